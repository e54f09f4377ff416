//! Tables: CSV files with a header, whose columns are numbers, categories or text.
//!
//! The encoding of a column may be learnt from the training rows: a mean and a deviation, categories, a vocabulary. It
//! is stored ([`Learnt`]), so that other rows are encoded in the same way. Cells may be quoted, with commas and line
//! ends in them. The whole file is read into memory, up to a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::arrays::{Arrays, ColumnNames};
use super::feature::{Feature, is_whole};
pub use super::learnt::{Learnt, LearntColumn};
use super::source::ArrayInfo;
use super::written::{WRITE_POINTS, beyond_range, is_with_comma, open};
use crate::error::{DataError, DataErrorKind};
use bf16scope_hlo::DType;
use bf16scope_hlo::words::{listed, nearest};

/// The largest size of the text in bytes, after decompression.
const MAX_TEXT: u64 = 4 << 30;
/// Names or categories that a message lists.
const N_LISTED: usize = 12;
/// The largest number of categories learnt for a column: a column with more is not categorical.
const MAX_CATEGORIES: usize = 100_000;

/// A column and its encoding.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// The type of its cells.
    pub kind: ColumnKind,
    /// The value of an empty cell. Default an error.
    pub missing: Missing,
}

/// The type of a column's cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub enum ColumnKind {
    /// Numbers, as they are.
    #[default]
    Number,
    /// Numbers, standardised by the mean and standard deviation of the training rows.
    Normalized,
    /// Names, in this order; without names, those in the training rows, sorted. A network's input row is one-hot; whole
    /// numbers and labels are the category's index.
    Categories {
        /// The names. If empty, they are learnt.
        names: Vec<String>,
        /// Whether unknown names are one more category, the last, instead of an error.
        has_other: bool,
    },
    /// Text, as the numbers of its words: 0 is padding, 1 an unknown word, and from 2 on the words of the training
    /// rows, the most frequent first, up to `max_tokens`. This is Keras' `TextVectorization`: lower-case, without
    /// punctuation.
    Words {
        /// The size of the vocabulary, 0 and 1 included.
        max_tokens: usize,
    },
}

/// The value of an empty cell, `NA` or `NaN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub enum Missing {
    /// It is an error.
    #[default]
    Error,
    /// A constant.
    Number(f64),
    /// The mean of the training rows.
    Mean,
}

/// A file of rows, as text.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    header: Vec<String>,
    rows: Vec<::csv::StringRecord>,
    /// The line of each row.
    lines: Vec<u64>,
}

/// The columns of each feature of a task.
pub type Columns = BTreeMap<String, Vec<Column>>;

/// The columns of a feature: the specified ones, or the column of its name.
fn columns_of(columns: &Columns, feature: &Feature) -> Vec<Column> {
    let default = || vec![Column { name: feature.name.clone(), ..Column::default() }];
    columns.get(&feature.name).cloned().unwrap_or_else(default)
}

impl Table {
    /// Reads a file, plain or gzip, whose first line names the columns, with this delimiter between cells.
    ///
    /// # Errors
    /// A file that cannot be read or held in memory; a missing header, or one with a duplicate name; a row with more or
    /// fewer cells.
    pub fn read(path: impl AsRef<Path>, delimiter: u8) -> Result<Table, DataError> {
        Table::read_up_to(path.as_ref(), delimiter, MAX_TEXT)
    }

    /// The same of a text of fewer than `limit` bytes.
    fn read_up_to(path: &Path, delimiter: u8, limit: u64) -> Result<Table, DataError> {
        let text = open(path)?.reader;
        let mut reader = ::csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .flexible(true)
            .trim(::csv::Trim::All)
            .from_reader(text.take(limit));
        let unread = |line: u64, error: ::csv::Error| {
            DataError::new(DataErrorKind::Read, (path, line), "cannot read on from here").because(error)
        };
        let header = reader.headers().map_err(|error| unread(1, error))?;
        let header: Vec<String> = header.iter().map(|name| name.trim_start_matches('\u{FEFF}').to_string()).collect();
        let wrong = |message: String| DataError::new(DataErrorKind::Format, (path, 1), message);
        if header.is_empty() || header.iter().all(String::is_empty) {
            return Err(wrong("no header; expected the names of the columns".to_string()));
        }
        if header.iter().all(|name| name.parse::<f64>().is_ok()) {
            let message =
                format!("the first line is numbers, such as `{}`; expected the names of the columns", header[0]);
            return Err(wrong(message)
                .help("leave `columns` out: files without a header are read by the order of their columns"));
        }
        if let Some((_, twice)) = header.iter().enumerate().find(|(at, name)| header[..*at].contains(name)) {
            return Err(wrong(format!("the header has `{twice}` twice")).help("give each column another name"));
        }
        let (mut rows, mut lines, mut record) = (Vec::new(), Vec::new(), ::csv::StringRecord::new());
        loop {
            let line = reader.position().line();
            match reader.read_record(&mut record) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(unread(line, error)),
            }
            let line = record.position().map_or(line, ::csv::Position::line);
            if record.len() == 1 && record[0].is_empty() {
                continue;
            }
            if record.len() != header.len() {
                let cells = if record.len() == 1 { "cell" } else { "cells" };
                let names = listed(&header, N_LISTED);
                let message = format!("{} {cells}; expected {}: {names}", record.len(), header.len());
                let help = "a cell with a comma in it stands in quotes; `delimiter` says what else is between cells";
                return Err(DataError::new(DataErrorKind::Columns, (path, line), message).help(help));
            }
            rows.push(record.clone());
            lines.push(line);
        }
        if reader.into_inner().limit() == 0 {
            let message = format!("more than {limit} bytes of text, which are not read into memory");
            return Err(
                DataError::new(DataErrorKind::Format, path, message).help("keep it as Parquet: `parquet: FILE`")
            );
        }
        match rows.is_empty() {
            true => Err(DataError::empty(path, "no rows below the header; expected one example a line")),
            false => Ok(Table { path: path.to_path_buf(), header, rows, lines }),
        }
    }

    /// The number of rows.
    pub fn n_rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// A number for each row that identifies the value of its cell in a column: equal cells have equal numbers.
    ///
    /// # Errors
    /// The column does not exist.
    pub fn groups(&self, column: &str) -> Result<Vec<i64>, DataError> {
        let at = self.place_of(column)?;
        let names: BTreeSet<&str> = self.rows.iter().map(|row| &row[at]).collect();
        let numbers: BTreeMap<&str, i64> = names.into_iter().zip(0..).collect();
        Ok(self.rows.iter().map(|row| numbers[&row[at]]).collect())
    }

    fn place_of(&self, column: &str) -> Result<usize, DataError> {
        self.header.iter().position(|name| name == column).ok_or_else(|| {
            let message = format!("there is no column `{column}`; it has {}", listed(&self.header, N_LISTED));
            let near = nearest(column, self.header.iter().map(String::as_str));
            let help =
                near.map_or("name one of these under `columns`".to_string(), |name| format!("did you mean `{name}`?"));
            DataError::new(DataErrorKind::Missing, (&*self.path, 1), message).help(help)
        })
    }

    /// The number in a cell; `None` if it is empty.
    fn number(&self, row: usize, at: usize) -> Result<Option<f64>, DataError> {
        let text = &self.rows[row][at];
        if is_missing(text) {
            return Ok(None);
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && (value as f32).is_finite() => Ok(Some(value)),
            _ if is_with_comma(text) => Err(self.wrong(row, at, "a number without a comma in it").help(WRITE_POINTS)),
            _ => {
                let of_names = "a column of names has `categories: true`, one of text `words: N`, under `columns`";
                let help = beyond_range(text, DType::F32).unwrap_or_else(|| of_names.to_string());
                Err(self.wrong(row, at, "a finite number").help(help))
            }
        }
    }

    fn wrong(&self, row: usize, at: usize, expected: &str) -> DataError {
        let (name, value) = (&self.header[at], self.rows[row][at].to_string());
        let message = match value.as_str() {
            "" => format!("column `{name}` is empty; expected {expected}"),
            text => format!("column `{name}` is `{text}`; expected {expected}"),
        };
        let kind = DataErrorKind::Value { feature: name.clone(), value };
        DataError::new(kind, (&*self.path, self.lines[row]), message)
    }

    /// Learns the encodings of these features' columns from the training rows.
    ///
    /// # Errors
    /// A column that does not exist; cells that are not numbers; a column without any number, or with more categories
    /// than the limit.
    pub fn learn(&self, columns: &Columns, features: &[Feature], rows: &[u64]) -> Result<Learnt, DataError> {
        let mut learnt = BTreeMap::new();
        for feature in features {
            for column in columns_of(columns, feature) {
                let at = self.place_of(&column.name)?;
                let key = format!("{}.{}", feature.name, column.name);
                let is_scaled = column.kind == ColumnKind::Normalized || column.missing == Missing::Mean;
                match &column.kind {
                    ColumnKind::Number | ColumnKind::Normalized if is_scaled => {
                        learnt.insert(key, self.scale(at, rows)?);
                    }
                    ColumnKind::Number | ColumnKind::Normalized => {}
                    ColumnKind::Categories { names, .. } if !names.is_empty() => {
                        learnt.insert(key, LearntColumn::Categories(names.clone()));
                    }
                    ColumnKind::Categories { .. } => {
                        learnt.insert(key, LearntColumn::Categories(self.categories(at, rows)?));
                    }
                    ColumnKind::Words { max_tokens } => {
                        learnt.insert(key, LearntColumn::Words(self.vocabulary(at, rows, *max_tokens)));
                    }
                }
            }
        }
        Ok(Learnt(learnt))
    }

    fn scale(&self, at: usize, rows: &[u64]) -> Result<LearntColumn, DataError> {
        let mut numbers = Vec::with_capacity(rows.len());
        for &row in rows {
            numbers.extend(self.number(row as usize, at)?);
        }
        if numbers.is_empty() {
            let message = format!("column `{}` has no number in any row that is trained on", self.header[at]);
            return Err(DataError::new(
                DataErrorKind::Value { feature: self.header[at].clone(), value: String::new() },
                (&*self.path, 1),
                message,
            ));
        }
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / numbers.len() as f64;
        let std = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        Ok(LearntColumn::Scale { mean, std })
    }

    fn categories(&self, at: usize, rows: &[u64]) -> Result<Vec<String>, DataError> {
        let mut names = BTreeSet::new();
        for &row in rows {
            let name = &self.rows[row as usize][at];
            if name.is_empty() {
                return Err(self.wrong(row as usize, at, "a name").help("write what stands there, such as `unknown`"));
            }
            names.insert(name);
            if names.len() > MAX_CATEGORIES {
                return Err(self.wrong(row as usize, at, &format!("at most {MAX_CATEGORIES} categories in a column")));
            }
        }
        Ok(names.into_iter().map(str::to_string).collect())
    }

    /// The most frequent words; equally frequent ones in reverse alphabetical order, like Keras.
    fn vocabulary(&self, at: usize, rows: &[u64], max_tokens: usize) -> Vec<String> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for &row in rows {
            for word in words(&self.rows[row as usize][at]) {
                *counts.entry(word).or_default() += 1;
            }
        }
        let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
        counts.sort_by(|(word, n), (other, m)| (m, other).cmp(&(n, word)));
        counts.into_iter().map(|(word, _)| word).take(max_tokens.saturating_sub(2)).collect()
    }

    /// Builds the features from these rows, in this order.
    ///
    /// # Errors
    /// A column that does not exist, or whose encoding was not learnt; a cell that does not match its column; columns
    /// that give another number of values than the feature has.
    pub fn arrays(
        &self,
        columns: &Columns,
        features: &[Feature],
        learnt: &Learnt,
        rows: &[u64],
    ) -> Result<Arrays, DataError> {
        let arrays = features.iter().map(|feature| self.array(columns, feature, learnt, rows));
        let arrays = Arrays::new(&self.path, arrays.collect::<Result<_, _>>()?)?;
        let mut lines: Vec<(u64, u64)> = Vec::new();
        for (example, &row) in (0u64..).zip(rows) {
            let line = self.lines[row as usize];
            if lines.last().is_none_or(|(first, first_line)| first_line + (example - first) != line) {
                lines.push((example, line));
            }
        }
        let mut names = ColumnNames::new();
        for feature in features {
            let makers = self.makers(columns, feature, learnt)?;
            names.insert(feature.name.clone(), makers.iter().flat_map(Maker::columns).collect());
        }
        Ok(arrays.with_lines(lines).with_columns(names))
    }

    /// The encoders of the columns of a feature.
    fn makers<'a>(
        &self,
        columns: &Columns,
        feature: &Feature,
        learnt: &'a Learnt,
    ) -> Result<Vec<Maker<'a>>, DataError> {
        let n = feature.n_elements().ok_or_else(|| DataError::dims(&feature.dims))?;
        let maker = |column: Column| {
            let at = self.place_of(&column.name)?;
            let known = learnt.0.get(&format!("{}.{}", feature.name, column.name));
            Maker::new(feature, column, at, known, n, is_whole(feature))
                .map_err(|message| DataError::new(DataErrorKind::Request, &*self.path, message))
        };
        columns_of(columns, feature).into_iter().map(maker).collect()
    }

    fn array(
        &self,
        columns: &Columns,
        feature: &Feature,
        learnt: &Learnt,
        rows: &[u64],
    ) -> Result<(ArrayInfo, Vec<u8>), DataError> {
        let n = feature.n_elements().ok_or_else(|| DataError::dims(&feature.dims))?;
        let is_whole = is_whole(feature);
        let dtype = if is_whole { DType::S64 } else { DType::F32 };
        let makers = self.makers(columns, feature, learnt)?;
        let n_made: usize = makers.iter().map(|maker| maker.width).sum();
        if n_made != n {
            let widths: Vec<String> =
                makers.iter().map(|maker| format!("{} {}", maker.column.name, maker.width)).collect();
            let message = format!(
                "`{}` has {n} numbers for an example, and its columns make {n_made}: {}",
                feature.name,
                listed(&widths, N_LISTED)
            );
            let help = format!("write `{}: [{n_made}]` in the model, or name other columns", feature.name);
            return Err(DataError::new(DataErrorKind::Request, &*self.path, message).help(help));
        }
        let mut bytes = Vec::with_capacity(rows.len() * n * dtype.n_bytes());
        let mut numbers = Vec::with_capacity(n);
        for &row in rows {
            numbers.clear();
            makers.iter().try_for_each(|maker| maker.push(self, row as usize, &mut numbers))?;
            for &number in &numbers {
                match is_whole {
                    true => bytes.extend_from_slice(&(number as i64).to_le_bytes()),
                    false => bytes.extend_from_slice(&(number as f32).to_le_bytes()),
                }
            }
        }
        Ok((ArrayInfo::new(&feature.name, dtype, feature.dims.clone()), bytes))
    }
}

/// The names of the classes of labels, by feature.
pub fn class_names(columns: &Columns, features: &[Feature], learnt: &Learnt) -> BTreeMap<String, Vec<String>> {
    let names = |feature: &Feature| {
        let column = columns_of(columns, feature).into_iter().next()?;
        match learnt.0.get(&format!("{}.{}", feature.name, column.name))? {
            LearntColumn::Categories(names) => Some((feature.name.clone(), names.clone())),
            LearntColumn::Scale { .. } | LearntColumn::Words(_) => None,
        }
    };
    features.iter().filter(|feature| feature.is_label).filter_map(names).collect()
}

/// Encodes the cells of a column as numbers.
struct Maker<'a> {
    column: Column,
    at: usize,
    known: Option<&'a LearntColumn>,
    /// Numbers per cell.
    width: usize,
    /// Whether a category is encoded as its index and not one-hot.
    is_place: bool,
    n_values: Option<i64>,
    is_whole: bool,
}

impl<'a> Maker<'a> {
    fn new(
        feature: &Feature,
        column: Column,
        at: usize,
        known: Option<&'a LearntColumn>,
        n: usize,
        is_whole: bool,
    ) -> Result<Maker<'a>, String> {
        let is_place = is_whole || feature.is_label;
        let (name, shown) = (column.name.clone(), &feature.name);
        let unknown = || {
            format!(
                "nothing is known of column `{name}` of `{shown}`, which is learnt from the rows that are trained on"
            )
        };
        let width = match (&column.kind, known) {
            (ColumnKind::Number, _) => 1,
            (ColumnKind::Normalized, Some(LearntColumn::Scale { .. })) if !is_whole => 1,
            (ColumnKind::Normalized, Some(_)) => {
                return Err(format!(
                    "`{shown}` is whole numbers, and column `{name}` is normalized; expected `dtype: compute`"
                ));
            }
            (ColumnKind::Categories { .. }, Some(LearntColumn::Categories(_))) if is_place => 1,
            (ColumnKind::Categories { has_other, .. }, Some(LearntColumn::Categories(names))) => {
                names.len() + usize::from(*has_other)
            }
            (ColumnKind::Words { .. }, Some(LearntColumn::Words(_))) if is_whole => n,
            (ColumnKind::Words { .. }, Some(LearntColumn::Words(_))) => {
                return Err(format!(
                    "`{shown}` is no whole numbers, and column `{name}` is words; expected `dtype: int32`"
                ));
            }
            _ => return Err(unknown()),
        };
        if column.missing == Missing::Mean && !matches!(known, Some(LearntColumn::Scale { .. })) {
            return Err(unknown());
        }
        Ok(Maker { column, at, known, width, is_place, n_values: feature.n_values, is_whole })
    }

    /// The column of each of its numbers that is the cell's as it is.
    fn columns(&self) -> impl Iterator<Item = Option<(String, u64)>> {
        let is_number = self.column.kind == ColumnKind::Number;
        let column = is_number.then(|| (self.column.name.clone(), self.at as u64 + 1));
        std::iter::repeat_n(column, self.width)
    }

    /// Appends the numbers of a cell.
    fn push(&self, table: &Table, row: usize, out: &mut Vec<f64>) -> Result<(), DataError> {
        match (&self.column.kind, self.known) {
            (ColumnKind::Categories { has_other, .. }, Some(LearntColumn::Categories(names))) => {
                let cell = &table.rows[row][self.at];
                let place = names.iter().position(|name| name == cell);
                let place = place.or(has_other.then_some(names.len())).ok_or_else(|| {
                    let expected = format!("one of {}", listed(names, N_LISTED));
                    let help = "`other: true` of the column makes one more category of all that are not known";
                    table.wrong(row, self.at, &expected).help(help)
                })?;
                match self.is_place {
                    true => {
                        self.check_range(table, row, place as f64)?;
                        out.push(place as f64);
                    }
                    false => out.extend((0..self.width).map(|at| f64::from(u8::from(at == place)))),
                }
            }
            (ColumnKind::Words { max_tokens }, Some(LearntColumn::Words(known))) => {
                let number = |word: String| known.iter().position(|other| *other == word).map_or(1, |at| at + 2);
                let first = out.len();
                out.extend(words(&table.rows[row][self.at]).take(self.width).map(|word| number(word) as f64));
                if let Some(n) = self.n_values.filter(|n| *n < *max_tokens as i64) {
                    let message = format!(
                        "`words: {max_tokens}` of column `{}`, and the model has room for {n}",
                        self.column.name
                    );
                    return Err(DataError::new(DataErrorKind::Request, &*table.path, message)
                        .help(format!("write `input_dim: {max_tokens}`, or `words: {n}`")));
                }
                out.resize(first + self.width, 0.0);
            }
            (_, known) => {
                let scale = match known {
                    Some(LearntColumn::Scale { mean, std }) => Some((*mean, *std)),
                    _ => None,
                };
                let number = match (table.number(row, self.at)?, self.column.missing, scale) {
                    (Some(number), ..) => number,
                    (None, Missing::Number(number), _) => number,
                    (None, Missing::Mean, Some((mean, _))) => mean,
                    (None, ..) => {
                        let help = "write `missing: mean`, or a number, of the column under `columns`";
                        return Err(table.wrong(row, self.at, "a finite number").help(help));
                    }
                };
                self.check_range(table, row, number)?;
                out.push(match (&self.column.kind, scale) {
                    (ColumnKind::Normalized, Some((mean, std))) => (number - mean) / std,
                    _ => number,
                });
            }
        }
        Ok(())
    }

    /// Whether a whole number is one of the feature's.
    fn check_range(&self, table: &Table, row: usize, number: f64) -> Result<(), DataError> {
        if !self.is_whole {
            return Ok(());
        }
        let greatest = self.n_values.map_or(i64::from(i32::MAX), |n| n - 1);
        let fits = number.fract() == 0.0 && (0.0..=greatest as f64).contains(&number)
            || self.n_values.is_none() && number.fract() == 0.0 && number.abs() < 9e15;
        match fits {
            true => Ok(()),
            false => Err(table.wrong(row, self.at, &format!("a whole number from 0 to {greatest}"))),
        }
    }
}

/// Cells of a numeric column that count as missing.
fn is_missing(text: &str) -> bool {
    ["", "NA", "na", "N/A", "NaN", "nan", "null", "?"].contains(&text)
}

/// The words of a text: lower-case, without ASCII's punctuation, cut at whitespace.
fn words(text: &str) -> impl Iterator<Item = String> {
    let plain: String = text.to_lowercase().chars().filter(|letter| !letter.is_ascii_punctuation()).collect();
    plain.split_whitespace().map(str::to_string).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests;
