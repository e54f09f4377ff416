//! Parquet files, unpacked once into the cache and read there by number.
//!
//! A Parquet file has its columns one after the other, in pages of many rows: no row is read from it alone. So each file is
//! rewritten as records of `tf.train.Example`s, one a row, and from there on is what a TFRecord file is: indexed, checked by
//! checksums, read by number from any thread. Footers, levels and values are the crate `parquet`'s; pages are read and
//! unpacked here ([`pages`]).
//!
//! Source: `parquet.thrift` and `Encodings.md` of Apache Parquet.

mod codec;
mod column;
mod pages;
mod schema;
mod thrift;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use self::column::{Cell, Cells};
use self::pages::{Pages, Shape};
use self::schema::{Column, Kind, Said};
use super::index::MAX_RECORD;
use super::tfrecord::TfRecords;
use super::unpack::Compression;
use super::{Records, Value, Values, example};
use crate::data::error::{COPY_AGAIN, DataError, DataErrorKind};
use crate::data::guard::guarded;
use crate::files;
use crate::files::framing::framed;

/// What a file begins and ends with; where its footer is encrypted, `PARE`.
const MAGIC: &[u8; 4] = b"PAR1";
/// Bytes of a footer at most.
const MAX_FOOTER: u64 = 256 << 20;
/// Columns that are read at most.
const MAX_COLUMNS: usize = 10_000;
/// Rows that are in memory at a time, of all columns.
const N_ROWS: usize = 64;
/// What follows a column's name where a record says why the row has no value there.
const WHY: char = '\0';

/// The rows of Parquet files, one file after the other.
#[derive(Debug)]
pub struct Parquet {
    rows: TfRecords,
    /// For each file its columns.
    columns: Vec<Arc<[Column]>>,
    said: Said,
}

impl Parquet {
    /// The rows of `files`, in this order. They are unpacked into the cache once.
    ///
    /// # Errors
    /// A file that cannot be opened or unpacked, or is no Parquet file; no row at all; no cache.
    pub fn open(files: &[PathBuf], cache: Option<&Path>) -> Result<Parquet, DataError> {
        let rows = TfRecords::open_as(files, cache, |_| Some(Compression::Parquet))?;
        let (mut columns, mut said): (Vec<Arc<[Column]>>, _) = (Vec::new(), None);
        for (idx, path) in files.iter().enumerate() {
            let file = files::open(rows.whole(idx)).map_err(|cause| DataError::open(path, cause))?;
            let (footer, own) = footer(&file, path)?;
            said.get_or_insert_with(|| schema::said(footer.file_metadata()));
            // Files of one data set have the same columns, which are kept once.
            let same = columns.last().filter(|last| ***last == *own).cloned();
            columns.push(same.unwrap_or_else(|| own.into()));
        }
        Ok(Parquet { rows, columns, said: said.unwrap_or_default() })
    }

    /// What is wrong with a column of this name in a row that has no value there, if the file has such a column.
    fn fault(&self, index: u64, key: &str, values: &Values) -> Option<DataError> {
        let column = self.columns[self.rows.find(index).0].iter().find(|column| column.name == key)?;
        let what = format!("column `{key}`");
        if let Err(found) = &column.kind {
            let expected = "whole numbers, floats, bools, bytes, text or lists of them";
            return Some(DataError::mismatch(self.place(index), &what, found, expected));
        }
        let (kind, found, damaged) = match values.get(&format!("{key}{WHY}")) {
            Some(Value::Bytes(strings)) => {
                let found = strings.first().map(|found| String::from_utf8_lossy(found).into_owned());
                let damaged = "if the file is damaged, copy or download it again; or ";
                (DataErrorKind::Damaged, format!("{what}: {}", found.unwrap_or_default()), damaged)
            }
            _ => {
                let elsewhere = match values.contains_key(&format!("{key}.path")) {
                    true => ": the row only says where its file was, so write the data set again with files in it",
                    false => "",
                };
                (DataErrorKind::Missing, format!("{what} is null; expected a value{elsewhere}"), "")
            }
        };
        let help = format!("{damaged}leave such rows out: `on_error: {{skip: N}}` under `data`");
        Some(DataError::new(kind, self.place(index), found).help(help))
    }
}

impl Records for Parquet {
    fn n_records(&self) -> u64 {
        self.rows.n_records()
    }

    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError> {
        let Some(keys) = keys else {
            let mut values = self.rows.values(index, None)?;
            let why = values.keys().find_map(|key| key.strip_suffix(WHY)).map(str::to_string);
            if let Some(error) = why.and_then(|key| self.fault(index, &key, &values)) {
                return Err(error);
            }
            values.retain(|key, _| !key.ends_with(WHY));
            return Ok(values);
        };
        let beside = keys.iter().flat_map(|key| [format!("{key}{WHY}"), format!("{key}.path")]);
        let beside: Vec<String> = beside.collect();
        let asked: Vec<&str> = keys.iter().copied().chain(beside.iter().map(String::as_str)).collect();
        let mut values = self.rows.values(index, Some(&asked))?;
        let missing = keys.iter().filter(|key| !values.contains_key(**key));
        if let Some(error) = missing.filter_map(|key| self.fault(index, key, &values)).next() {
            return Err(error);
        }
        values.retain(|key, _| keys.contains(&key.as_str()));
        Ok(values)
    }

    fn place(&self, index: u64) -> String {
        let (file_idx, row) = self.rows.find(index);
        place(self.rows.path(file_idx), row as u64)
    }

    fn fingerprint(&self) -> &str {
        self.rows.fingerprint()
    }

    fn is_image(&self, key: &str) -> bool {
        self.said.images.iter().any(|name| name == key)
    }

    fn classes(&self) -> &[String] {
        &self.said.classes
    }
}

fn place(path: &Path, row: u64) -> String {
    format!("{}, row {row}", path.display())
}

fn no_parquet(path: &Path, found: &str) -> DataError {
    DataError::new(DataErrorKind::Format, path, format!("no Parquet file: {found}")).help(COPY_AGAIN)
}

/// The footer of a file, and its columns.
fn footer(file: &File, path: &Path) -> Result<(ParquetMetaData, Vec<Column>), DataError> {
    let wrong = |found: String| no_parquet(path, &found);
    let read = |at: u64, n_bytes: usize| {
        let mut bytes = vec![0; n_bytes];
        let done = files::read_exact_at(file, &mut bytes, at);
        done.map(|()| bytes).map_err(|cause| DataError::open(path, cause))
    };
    let metadata = file.metadata().map_err(|cause| DataError::open(path, cause))?;
    let n_bytes = metadata.len();
    if n_bytes < 12 {
        return Err(wrong(format!("{n_bytes} bytes")));
    }
    let tail = read(n_bytes - 8, 8)?;
    let encrypted = || {
        let found = "an encrypted Parquet file; expected one that is not: there is nowhere to give its keys";
        DataError::new(DataErrorKind::Format, path, found)
    };
    match &tail[4..] {
        b"PARE" => return Err(encrypted()),
        end if end == MAGIC && read(0, 4)? == MAGIC => {}
        end if end == MAGIC => return Err(wrong("it ends with PAR1, and does not begin with it".to_string())),
        _ => return Err(wrong("it does not end with PAR1".to_string())),
    }
    let length = u64::from(u32::from_le_bytes(*tail.first_chunk().expect("eight bytes")));
    if length > MAX_FOOTER.min(n_bytes - 12) {
        return Err(wrong(format!(
            "a footer of {length} bytes in {n_bytes}; expected at most {MAX_FOOTER} and no more than there are"
        )));
    }
    let bytes = read(n_bytes - 8 - length, length as usize)?;
    // Field 8 of FileMetaData is how columns are encrypted.
    if thrift::read(&bytes).is_ok_and(|(fields, _)| fields.contains_key(&8)) {
        return Err(encrypted());
    }
    // The crate's reader of footers is no place to trust: a panic there is an error of this file.
    let parsed = guarded(|| {
        let footer = ParquetMetaDataReader::decode_metadata(&bytes).map_err(|error| error.to_string())?;
        let columns = schema::columns(footer.file_metadata());
        Ok::<_, String>((footer, columns))
    });
    let parsed = parsed.unwrap_or_else(|_| Err("its reader has a bug that this footer shows".to_string()));
    let (footer, columns) = parsed.map_err(|found| wrong(format!("its footer cannot be read: {found}")))?;
    if columns.len() > MAX_COLUMNS {
        return Err(wrong(format!("{} columns; expected at most {MAX_COLUMNS}", columns.len())));
    }
    if let Some(column) = columns.iter().find(|column| column.name.contains(WHY)) {
        return Err(wrong(format!("a column is called {:?}; expected a name without a NUL", column.name)));
    }
    Ok((footer, columns))
}

/// Gives `take` the rows of a file as framed records, from the first to the last.
///
/// # Errors
/// A file whose footer is not right; a row that is too long; those of `take`. What is wrong with a value is a part of its
/// record.
pub(super) fn unpack(
    file: File,
    path: &Path,
    mut take: impl FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let (footer, columns) = footer(&file, path)?;
    let n_bytes = file.metadata().map_err(|cause| DataError::open(path, cause))?.len();
    let wrong = |found: String| no_parquet(path, &found);
    let file = Arc::new(file);
    let mut row = 0u64;
    for group in footer.row_groups() {
        let n_rows = u64::try_from(group.num_rows()).map_err(|_| wrong(format!("{} rows", group.num_rows())))?;
        if group.num_columns() != columns.len() {
            return Err(wrong(format!("a row group of {} columns; expected {}", group.num_columns(), columns.len())));
        }
        let mut readers: Vec<(&Column, Cells)> = Vec::new();
        for (column, chunk) in columns.iter().zip(group.columns()) {
            let Ok(kind) = &column.kind else { continue };
            let kind: Kind = *kind;
            // By hand, for the crate's own sum panics where one of the two is negative.
            let first = chunk.dictionary_page_offset().filter(|at| *at > 0).unwrap_or(chunk.data_page_offset());
            let range = u64::try_from(first).ok().zip(u64::try_from(chunk.compressed_size()).ok());
            let range = range.and_then(|(start, n)| Some([start, start.checked_add(n)?]));
            let Some([start, end]) = range.filter(|[_, end]| *end <= n_bytes) else {
                return Err(wrong(format!("column `{}` lies beyond the file's {n_bytes} bytes", column.name)));
            };
            let descr = chunk.column_descr_ptr();
            let shape = Shape {
                codec: chunk.compression_codec(),
                physical: descr.physical_type(),
                width: usize::try_from(descr.type_length()).unwrap_or(0),
                max_rep: descr.max_rep_level(),
                max_def: descr.max_def_level(),
            };
            let given = Arc::new(AtomicU64::new(0));
            let pages = Pages::new(Arc::clone(&file), [start, end], shape, Arc::clone(&given));
            readers.push((column, Cells::new(pages, given, descr, kind)));
        }
        let mut left = n_rows;
        while left > 0 {
            let n = left.min(N_ROWS as u64) as usize;
            let mut cells: Vec<_> =
                readers.iter_mut().map(|(column, cells)| (*column, cells.next(n).into_iter())).collect();
            for _ in 0..n {
                let own: Vec<(&Column, Cell)> = cells
                    .iter_mut()
                    .map(|(column, cells)| (*column, cells.next().expect("as many as asked for")))
                    .collect();
                let measured: u64 =
                    own.iter().map(|(column, cell)| cell.n_bytes() + column.name.len() as u64 + 16).sum();
                if measured > MAX_RECORD {
                    return Err(DataError::too_long(place(path, row), measured, MAX_RECORD));
                }
                take(&framed(&example::encode(&values(own))))?;
                row += 1;
            }
            left -= n as u64;
        }
    }
    Ok(())
}

/// A row as an example's values.
fn values(cells: Vec<(&Column, Cell)>) -> Values {
    let mut values = Values::new();
    for (column, cell) in cells {
        let name = column.name.clone();
        match cell {
            Cell::Bytes(found) => {
                values.insert(name, Value::Bytes(found.iter().map(|value| value.data().to_vec()).collect()))
            }
            Cell::Ints(found) => values.insert(name, Value::Ints(found)),
            Cell::Floats(found) => values.insert(name, Value::Floats(found)),
            Cell::Wrong(found) => values.insert(format!("{name}{WHY}"), Value::Bytes(vec![found.into_bytes()])),
            Cell::Null => None,
        };
    }
    values
}

#[cfg(test)]
mod tests;
