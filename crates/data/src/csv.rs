//! CSV files: one example per line, the numbers of its features separated by commas, its labels last.
//!
//! There is no header; a number may be quoted, without a comma or line end in the quotes; empty lines are skipped; gzip
//! is recognised by the first bytes, not by the name. The whole file is read into memory, up to a bound. The crate
//! `csv` splits rows; it has no limits, so `Lines` counts the text before it gets there.

use std::error::Error;
use std::io::{self, Read};
use std::path::Path;

use super::arrays::Arrays;
use super::cast::{bounds, is_whole};
use super::feature::{Feature, FeatureDType};
use super::source::ArrayInfo;
use super::written::{Text, WRITE_POINTS, beyond_range, is_with_comma, open};
use crate::error::{COPY_AGAIN, DataError, DataErrorKind, DataPlace};
use bf16scope_hlo::DType;

/// Limits for one file: they bound memory and time when a wrong file is named, or a small one unpacks to something
/// huge.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes of text after decompression.
    text: u64,
    /// Text of one row, in bytes.
    row: u64,
    /// Columns of a row beyond the expected ones that are still counted before the row is rejected.
    columns: usize,
    /// Consecutive empty lines: a small gzip file may hold billions.
    empty_lines: u64,
}

const LIMITS: Limits = Limits { text: 4 << 30, row: 64 << 20, columns: 1 << 16, empty_lines: 1 << 20 };

/// Spreadsheets put one at the start of a CSV file, and a file concatenated from several has more.
const BYTE_ORDER_MARK: char = '\u{FEFF}';

/// Reads examples of these features: in each line first the features that are not labels, in the given order, then the
/// labels; each row-major.
///
/// ```no_run
/// use bf16scope_data::{Feature, csv};
/// use bf16scope_hlo::DType;
///
/// let features = [Feature::compute("pixels", [8, 8, 1]), Feature::exact("digit", DType::S32, []).below(10).label()];
/// let digits = csv::read("digits.csv.gz", &features)?.scaled("pixels", 1.0 / 16.0)?;
/// # Ok::<(), bf16scope_data::DataError>(())
/// ```
///
/// # Types
/// As [`read_scaled`] with a scale of 1.
///
/// # Errors
/// As [`read_scaled`].
pub fn read(path: impl AsRef<Path>, features: &[Feature]) -> Result<Arrays, DataError> {
    read_scaled(path, features, 1.0)
}

/// Like [`read`], but features that are cast and are not labels are multiplied by `scale` as they are read.
///
/// # Types
/// Features that are cast are read as f32, each product with `scale` rounded once; features of f32, f64, `pred` and
/// integers of 8 to 64 bits keep their dtype.
///
/// # Errors
/// A file that cannot be opened, unpacked or held in memory; text in UTF-16, or with carriage returns for line ends; a
/// header; a row with more or fewer columns; a column that is not a number of its feature, with its line and place.
pub fn read_scaled(path: impl AsRef<Path>, features: &[Feature], scale: f32) -> Result<Arrays, DataError> {
    let path = path.as_ref();
    let Text { head, reader } = open(path)?;
    if has_old_line_ends(&head) {
        let message = "its lines end in carriage returns alone, as on old Macs; expected line feeds";
        let help = "write them: `tr '\\r' '\\n' < FILE > NEW`";
        return Err(DataError::new(DataErrorKind::Format, (path, 1), message).help(help));
    }
    read_rows(reader, CsvRow::new(path, features, scale)?, LIMITS)
}

/// Whether a text has carriage returns between its lines, and no line feeds.
fn has_old_line_ends(head: &[u8]) -> bool {
    let ends_line = |pair: &[u8]| pair[0] == b'\r' && !pair[1].is_ascii_whitespace();
    memchr::memchr(b'\n', head).is_none() && head.windows(2).any(ends_line)
}

/// The layout of a row, and the values read so far.
struct CsvRow<'a> {
    path: &'a Path,
    columns: Vec<Columns>,
    n_columns: usize,
}

/// The columns of one feature.
struct Columns {
    info: ArrayInfo,
    n: usize,
    cell: Cell,
    bytes: Vec<u8>,
}

/// The type of a column.
#[derive(Clone, Copy)]
enum Cell {
    F32 { scale: Option<f32> },
    F64,
    Pred,
    Integer { n_bytes: usize, least: i128, greatest: i128 },
}

impl<'a> CsvRow<'a> {
    fn new(path: &'a Path, features: &[Feature], scale: f32) -> Result<CsvRow<'a>, DataError> {
        let labels_last = features.iter().filter(|f| !f.is_label).chain(features.iter().filter(|f| f.is_label));
        let columns: Vec<Columns> =
            labels_last.map(|feature| Columns::new(path, feature, scale)).collect::<Result<_, _>>()?;
        let n_columns = columns.iter().try_fold(0usize, |sum, columns| sum.checked_add(columns.n));
        match n_columns {
            Some(n_columns) => Ok(CsvRow { path, columns, n_columns }),
            None => Err(DataError::dims(&features[0].dims)),
        }
    }

    /// The columns in words.
    fn layout(&self) -> String {
        self.columns.iter().map(|it| format!("{} of `{}`", it.n, it.info.name)).collect::<Vec<_>>().join(", ")
    }

    /// Appends one row.
    fn push(&mut self, line: u64, record: &::csv::ByteRecord) -> Result<(), DataError> {
        if record.len() != self.n_columns {
            let with_comma = self.comma_error(line, record);
            return Err(with_comma.unwrap_or_else(|| self.columns_error(line, record.len(), true)));
        }
        let mut idx = 0;
        for columns in &mut self.columns {
            for _ in 0..columns.n {
                let text = std::str::from_utf8(&record[idx]).map_err(|error| unread(self.path, line, error))?;
                let text = if idx == 0 { text.trim_start_matches(BYTE_ORDER_MARK).trim() } else { text.trim() };
                let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
                let text = quoted.map_or(text, str::trim);
                idx += 1;
                if columns.push(text) {
                    continue;
                }
                if line == 1 && is_header(record) {
                    let message =
                        format!("a header, which begins with `{text}`; expected numbers from the first line on");
                    let help =
                        "say under `columns` what features are made of the columns it names, or remove it: tail -n +2";
                    return Err(DataError::new(DataErrorKind::Format, (self.path, line), message).help(help));
                }
                let error = columns.value_error((self.path, line), idx, text);
                return Err(self.comma_error(line, record).unwrap_or(error));
            }
        }
        Ok(())
    }

    /// The error for the first number in quotes that has a comma in it, if there is one: cells are cut at commas.
    fn comma_error(&self, line: u64, record: &::csv::ByteRecord) -> Option<DataError> {
        /// The most parts into which commas cut a number.
        const MOST_PARTS: usize = 8;
        let cells: Vec<&str> = record.iter().map(std::str::from_utf8).collect::<Result<_, _>>().ok()?;
        let number_at = |at: usize| {
            let joined = (2..=MOST_PARTS.min(cells.len() - at)).map(|n| cells[at..at + n].join(","));
            let quoted = joined.map(|joined| joined.trim().to_string()).find(|joined| joined.ends_with('"'))?;
            let number = quoted.strip_prefix('"')?.strip_suffix('"')?;
            is_with_comma(number).then_some((at, quoted))
        };
        let (at, value) = (0..cells.len()).find_map(number_at)?;
        let mut n_before = 0;
        let feature = self.columns.iter().find(|columns| {
            n_before += columns.n;
            at < n_before
        });
        let feature = feature.map_or(String::new(), |columns| columns.info.name.clone());
        let message = format!("column {} is `{value}`; expected a number without a comma in it", at + 1);
        let kind = DataErrorKind::Value { feature, value };
        Some(DataError::new(kind, (self.path, line), message).help(WRITE_POINTS))
    }

    fn columns_error(&self, line: u64, measured: usize, is_all: bool) -> DataError {
        let least = if is_all { "" } else { "at least " };
        let (columns, help) = match measured {
            1 => ("column", "a comma stands between two columns"),
            _ => ("columns", ""),
        };
        let message = format!("{least}{measured} {columns}; expected {}: {}", self.n_columns, self.layout());
        DataError::new(DataErrorKind::Columns, (self.path, line), message).help(help)
    }
}

/// Whether no column of a row is a number.
fn is_header(record: &::csv::ByteRecord) -> bool {
    let is_number = |text: &[u8]| {
        std::str::from_utf8(text).is_ok_and(|text| text.trim().trim_matches('"').trim().parse::<f64>().is_ok())
    };
    record.iter().all(|text| !text.trim_ascii().is_empty() && !is_number(text))
}

impl Columns {
    fn new(path: &Path, feature: &Feature, scale: f32) -> Result<Columns, DataError> {
        let Some(n) = feature.n_elements() else {
            return Err(DataError::dims(&feature.dims));
        };
        let is_scaled = feature.dtype == FeatureDType::Compute && !feature.is_label;
        if is_scaled && (!scale.is_finite() || scale == 0.0) {
            return Err(DataError::scale(path, &feature.name, scale));
        }
        let dtype = feature.dtype_in(DType::F32);
        let cell = match dtype {
            DType::F32 => Cell::F32 { scale: is_scaled.then_some(scale) },
            DType::F64 => Cell::F64,
            DType::Pred => Cell::Pred,
            dtype if is_whole(dtype) => {
                let (mut least, mut greatest) = bounds(dtype);
                if let Some(n) = feature.n_values {
                    (least, greatest) = (0, greatest.min(i128::from(n) - 1));
                }
                Cell::Integer { n_bytes: dtype.n_bytes(), least, greatest }
            }
            dtype => {
                let message = format!(
                    "`{}` is {dtype}, which is not read from text; expected a float for the network, f32, f64, pred or integers \
                     of 8 to 64 bits",
                    feature.name
                );
                return Err(DataError::new(DataErrorKind::Request, path, message));
            }
        };
        let info = ArrayInfo::new(&feature.name, dtype, feature.dims.clone());
        Ok(Columns { info, n, cell, bytes: Vec::new() })
    }

    /// The error for a column that cannot be parsed.
    fn value_error(&self, place: (&Path, u64), column: usize, text: &str) -> DataError {
        let (feature, value) = (self.info.name.clone(), text.to_string());
        let (message, help) = match (self.cell, text.parse::<f32>()) {
            (Cell::F32 { scale: Some(scale) }, Ok(value)) if value.is_finite() => {
                let message =
                    format!("column {column} is {value}, which times the scale {scale} is not a finite number");
                (message, "make `scale` smaller".to_string())
            }
            _ => {
                let expected = self.cell.expected();
                let whole = self.cell.without_point(text);
                let help = whole.map(|value| format!("write `{value}`, which pandas does after `astype(int)`"));
                let help = help.or_else(|| beyond_range(text, self.cell.float()?));
                let message = format!("column {column}, of `{feature}`, is `{text}`; expected {expected}");
                (message, help.unwrap_or_default())
            }
        };
        DataError::new(DataErrorKind::Value { feature, value }, place, message).help(help)
    }

    /// Appends one number; `false` if the text is not a valid one.
    fn push(&mut self, text: &str) -> bool {
        match self.cell {
            Cell::F32 { scale } => match text.parse::<f32>().map(|value| scale.map_or(value, |scale| value * scale)) {
                Ok(value) if value.is_finite() => self.bytes.extend_from_slice(&value.to_le_bytes()),
                Ok(_) | Err(_) => return false,
            },
            Cell::F64 => match text.parse::<f64>() {
                Ok(value) if value.is_finite() => self.bytes.extend_from_slice(&value.to_le_bytes()),
                Ok(_) | Err(_) => return false,
            },
            Cell::Pred => match text {
                "0" => self.bytes.push(0),
                "1" => self.bytes.push(1),
                _ => return false,
            },
            Cell::Integer { n_bytes, least, greatest } => match text.parse::<i128>() {
                Ok(value) if (least..=greatest).contains(&value) => {
                    self.bytes.extend_from_slice(&value.to_le_bytes()[..n_bytes]);
                }
                Ok(_) | Err(_) => return false,
            },
        }
        true
    }
}

impl Cell {
    /// A whole number of this type that the text writes as a float, such as `1.0`.
    fn without_point(self, text: &str) -> Option<i128> {
        let Cell::Integer { least, greatest, .. } = self else { return None };
        let value = text.parse::<f64>().ok().filter(|value| value.fract() == 0.0)? as i128;
        (text.contains(['.', 'e', 'E']) && (least..=greatest).contains(&value)).then_some(value)
    }

    /// Its dtype, if it is a float.
    fn float(self) -> Option<DType> {
        match self {
            Cell::F32 { .. } => Some(DType::F32),
            Cell::F64 => Some(DType::F64),
            Cell::Pred | Cell::Integer { .. } => None,
        }
    }

    fn expected(self) -> String {
        match self {
            Cell::F32 { .. } | Cell::F64 => "a finite number".to_string(),
            Cell::Pred => "0 or 1".to_string(),
            Cell::Integer { least, greatest, .. } => format!("a whole number from {least} to {greatest}"),
        }
    }
}

fn read_rows(reader: impl Read, mut row: CsvRow<'_>, limits: Limits) -> Result<Arrays, DataError> {
    let limits = Limits { columns: row.n_columns.saturating_add(limits.columns), ..limits };
    let mut reader = ::csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .quoting(false)
        .terminator(::csv::Terminator::Any(b'\n'))
        .buffer_capacity(1 << 16)
        .from_reader(Lines::new(reader, limits));
    let mut record = ::csv::ByteRecord::new();
    let (mut n_examples, mut lines) = (0u64, Vec::<(u64, u64)>::new());
    loop {
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return Err(reader.get_ref().explain(error, &row)),
        }
        // There is a line end after every row.
        let line = reader.position().line() - 1;
        if record.len() == 1 && record[0].trim_ascii().is_empty() {
            continue;
        }
        row.push(line, &record)?;
        if lines.last().is_none_or(|(first, first_line)| first_line + (n_examples - first) != line) {
            lines.push((n_examples, line));
        }
        n_examples += 1;
    }
    if n_examples == 0 {
        return Err(DataError::empty(row.path, &format!("no rows; expected one example a line: {}", row.layout())));
    }
    let arrays = row.columns.into_iter().map(|columns| (columns.info, columns.bytes)).collect();
    Ok(Arrays::new(row.path, arrays)?.with_lines(lines))
}

/// The error for a line that is not text, or a file that ends in the middle of it: a disk error or a damaged gzip
/// stream.
fn unread(path: &Path, line: u64, cause: impl Into<Box<dyn Error + Send + Sync>>) -> DataError {
    DataError::new(DataErrorKind::Read, (path, line), "cannot read on from here").because(cause)
}

/// Passes text through as long as it is within its limits, and makes it end with a line end.
struct Lines<R> {
    inner: R,
    limits: Limits,
    n_bytes: u64,
    /// The line that is being read, from 1.
    line: u64,
    row_bytes: u64,
    row_commas: usize,
    /// Whether the line has only blanks so far.
    is_empty: bool,
    n_empty: u64,
    beyond: Option<Beyond>,
}

/// The limit that the text exceeded.
#[derive(Clone, Copy)]
enum Beyond {
    Text,
    Row,
    Columns,
    EmptyLines,
}

impl<R: Read> Lines<R> {
    fn new(inner: R, limits: Limits) -> Lines<R> {
        Lines {
            inner,
            limits,
            n_bytes: 0,
            line: 1,
            row_bytes: 0,
            row_commas: 0,
            is_empty: true,
            n_empty: 0,
            beyond: None,
        }
    }

    fn count(&mut self, text: &[u8]) -> Result<(), Beyond> {
        self.n_bytes += text.len() as u64;
        if self.n_bytes > self.limits.text {
            return Err(Beyond::Text);
        }
        for part in text.split_inclusive(|&byte| byte == b'\n') {
            self.row_bytes += part.len() as u64;
            self.row_commas += memchr::memchr_iter(b',', part).count();
            self.is_empty &= part.trim_ascii().is_empty();
            if self.row_bytes > self.limits.row {
                return Err(Beyond::Row);
            }
            if self.row_commas >= self.limits.columns {
                return Err(Beyond::Columns);
            }
            if part.ends_with(b"\n") {
                self.n_empty = if self.is_empty { self.n_empty + 1 } else { 0 };
                if self.n_empty > self.limits.empty_lines {
                    return Err(Beyond::EmptyLines);
                }
                (self.line, self.row_bytes, self.row_commas, self.is_empty) = (self.line + 1, 0, 0, true);
            }
        }
        Ok(())
    }

    /// Why reading stopped.
    fn explain(&self, error: ::csv::Error, row: &CsvRow<'_>) -> DataError {
        let (path, line, limits) = (row.path, self.line, self.limits);
        let expected = "expected lines of numbers: name a CSV file, plain or gzip";
        let too_large = |place: DataPlace, message: String| DataError::new(DataErrorKind::TooLarge, place, message);
        match self.beyond {
            Some(Beyond::Text) => {
                let message = format!(
                    "more than {} bytes of text; expected a data set that fits in memory: split it",
                    limits.text
                );
                return too_large(path.into(), message);
            }
            Some(Beyond::Row) => {
                return too_large((path, line).into(), format!("a row of more than {} bytes; {expected}", limits.row));
            }
            Some(Beyond::Columns) => return row.columns_error(line, self.row_commas + 1, false),
            Some(Beyond::EmptyLines) => {
                let message = format!("more than {} empty lines after one another; {expected}", limits.empty_lines);
                return too_large((path, line).into(), message);
            }
            None => {}
        }
        match error.into_kind() {
            ::csv::ErrorKind::Io(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                let message = format!("the gzip stream ends early, at this line; {COPY_AGAIN}");
                DataError::new(DataErrorKind::Damaged, (path, line), message)
            }
            ::csv::ErrorKind::Io(source) => unread(path, line, source),
            kind => unread(path, line, io::Error::other(format!("{kind:?}"))),
        }
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = loop {
            match self.inner.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if n == 0 && self.row_bytes > 0 && !buffer.is_empty() {
            buffer[0] = b'\n';
            self.row_bytes = 0;
            return Ok(1);
        }
        match self.count(&buffer[..n]) {
            Ok(()) => Ok(n),
            Err(beyond) => {
                self.beyond = Some(beyond);
                Err(io::Error::other("text beyond its limits"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
