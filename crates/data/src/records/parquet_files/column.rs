//! A column's values, row by row, from the `parquet` crate's values and levels.
//!
//! Nested lists are flattened in row-major order if the inner ones have equal lengths, like an array.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::schema::types::ColumnDescPtr;

use super::pages::Pages;
use super::schema::ValueKind;
use crate::guard::guarded;

/// A column's value in a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// Shared with their page, so that a value that many rows share is in memory once.
    Bytes(Vec<ByteArray>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    /// Values of lists of lists, and the lengths of these, outermost first.
    Nested(Box<Cell>, Vec<i64>),
    Null,
    /// Invalid, with the reason.
    Wrong(String),
}

impl Cell {
    /// Its approximate size in a record.
    pub(super) fn n_bytes(&self) -> u64 {
        match self {
            Cell::Bytes(values) => values.iter().map(|value| value.len() as u64 + 8).sum(),
            Cell::Ints(values) => 10 * values.len() as u64,
            Cell::Floats(values) => 4 * values.len() as u64,
            Cell::Nested(values, dims) => values.n_bytes() + 10 * dims.len() as u64,
            Cell::Null => 0,
            Cell::Wrong(message) => message.len() as u64,
        }
    }
}

/// A column of a row group, read from its first row to its last.
pub(super) struct Cells {
    reader: Option<ColumnReader>,
    column: ColumnDescPtr,
    kind: ValueKind,
    n_values: Arc<AtomicU64>,
    /// The reason why all rows from some row on are invalid.
    wrong: String,
}

impl Cells {
    pub(super) fn new(pages: Pages, n_values: Arc<AtomicU64>, column: ColumnDescPtr, kind: ValueKind) -> Cells {
        let reader = get_column_reader(Arc::clone(&column), Box::new(pages));
        Cells { reader: Some(reader), column, kind, n_values, wrong: String::new() }
    }

    /// The cells of the next `n` rows. If the column is damaged, the cells from there to the row group's end are
    /// `Wrong`.
    pub(super) fn next(&mut self, n: usize) -> Vec<Cell> {
        self.n_values.store(0, Ordering::Relaxed);
        if let Some(reader) = &mut self.reader {
            // The crate's decoders index beyond a damaged page; Rust's bounds check turns that into a panic.
            let read = guarded(|| cells(reader, &self.column, self.kind, n));
            let read = read.unwrap_or_else(|panicked| Err(panicked.to_string()));
            match read {
                Ok(cells) if cells.len() == n => return cells,
                Ok(cells) => self.wrong = format!("{} rows of the next {n} are there", cells.len()),
                Err(message) => self.wrong = message,
            }
            self.reader = None;
        }
        vec![Cell::Wrong(self.wrong.clone()); n]
    }
}

fn cells(reader: &mut ColumnReader, column: &ColumnDescPtr, kind: ValueKind, n: usize) -> Result<Vec<Cell>, String> {
    let ints = |number: i64| Ok(number);
    let unsigned = kind == ValueKind::Unsigned;
    match reader {
        ColumnReader::BoolColumnReader(reader) => rows(reader, column, n, |value| ints(i64::from(*value)), Cell::Ints),
        ColumnReader::Int32ColumnReader(reader) => {
            let number = |value: &i32| ints(if unsigned { i64::from(*value as u32) } else { i64::from(*value) });
            rows(reader, column, n, number, Cell::Ints)
        }
        ColumnReader::Int64ColumnReader(reader) => {
            let number = |value: &i64| match unsigned && *value < 0 {
                true => Err(format!("{}, beyond the largest whole number that is read, {}", *value as u64, i64::MAX)),
                false => ints(*value),
            };
            rows(reader, column, n, number, Cell::Ints)
        }
        ColumnReader::FloatColumnReader(reader) => rows(reader, column, n, |value| Ok(*value), Cell::Floats),
        ColumnReader::DoubleColumnReader(reader) => {
            let number = |value: &f64| match *value as f32 {
                single if single.is_infinite() && value.is_finite() => {
                    Err(format!("{value:e}, beyond the largest f32, {:e}", f32::MAX))
                }
                single => Ok(single),
            };
            rows(reader, column, n, number, Cell::Floats)
        }
        ColumnReader::ByteArrayColumnReader(reader) => rows(reader, column, n, |value| Ok(value.clone()), Cell::Bytes),
        ColumnReader::FixedLenByteArrayColumnReader(reader) if kind == ValueKind::Halves => {
            let number = |value: &parquet::data_type::FixedLenByteArray| match value.data() {
                [low, high] => Ok(f16::from_le_bytes([*low, *high]).to_f32()),
                other => Err(format!("{} bytes; expected 2", other.len())),
            };
            rows(reader, column, n, number, Cell::Floats)
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            rows(reader, column, n, |value| Ok((**value).clone()), Cell::Bytes)
        }
        ColumnReader::Int96ColumnReader(_) => Err("int96".to_string()),
    }
}

/// The next rows.
fn rows<T: DataType, I>(
    reader: &mut ColumnReaderImpl<T>,
    column: &ColumnDescPtr,
    n: usize,
    item: impl Fn(&T::T) -> Result<I, String>,
    cell: impl Fn(Vec<I>) -> Cell,
) -> Result<Vec<Cell>, String> {
    let (mut def, mut rep, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut n_rows = 0;
    while n_rows < n {
        let (read, _, n_levels) = reader
            .read_records(n - n_rows, Some(&mut def), Some(&mut rep), &mut values)
            .map_err(|error| without_prefix(&error.to_string()))?;
        if read == 0 && n_levels == 0 {
            break;
        }
        n_rows += read;
    }
    let levels = Levels { max_def: column.max_def_level(), max_rep: column.max_rep_level(), element: element(column) };
    let def = if levels.max_def == 0 { vec![0; values.len()] } else { def };
    let rep = if levels.max_rep == 0 { vec![0; def.len()] } else { rep };
    let (mut cells, mut values) = (Vec::with_capacity(n_rows), values.iter());
    let mut at = 0;
    while at < def.len() {
        let end = rep[at + 1..].iter().position(|&rep| rep == 0).map_or(rep.len(), |more| at + 1 + more);
        let n_values = def[at..end].iter().filter(|&&def| def == levels.max_def).count();
        let row = values.as_slice().get(..n_values).ok_or("fewer values than levels")?;
        values = values.as_slice()[n_values..].iter();
        cells.push(match levels.fault(&def[at..end], &rep[at..end]) {
            Some(fault) => fault,
            None => match row.iter().map(&item).collect::<Result<Vec<I>, String>>() {
                Ok(items) => match levels.dims(&rep[at..end], items.len()) {
                    Some(dims) => Cell::Nested(Box::new(cell(items)), dims),
                    None => cell(items),
                },
                Err(message) => Cell::Wrong(message),
            },
        });
        at = end;
    }
    Ok(cells)
}

/// The definition level from which on a list has an element, if the column is a list.
fn element(column: &ColumnDescPtr) -> i16 {
    if column.max_rep_level() == 0 { 0 } else { column.repeated_ancestor_def_level() }
}

/// The crate's message, without its prefix.
fn without_prefix(error: &str) -> String {
    error.trim_start_matches("Parquet error: ").to_string()
}

struct Levels {
    max_def: i16,
    max_rep: i16,
    element: i16,
}

impl Levels {
    /// The lengths of a row's lists, outermost first, if it has values in lists of lists without a [`fault`](Self::fault).
    fn dims(&self, rep: &[i16], n_values: usize) -> Option<Vec<i64>> {
        if self.max_rep < 2 || n_values == 0 {
            return None;
        }
        let n_lists = |depth: i16| rep.iter().filter(|rep| **rep < depth).count();
        Some((1..=self.max_rep).map(|depth| (n_lists(depth + 1) / n_lists(depth)) as i64).collect())
    }

    /// Why a row is not a list of values, if so.
    fn fault(&self, def: &[i16], rep: &[i16]) -> Option<Cell> {
        if self.max_rep == 0 {
            return (def[0] < self.max_def).then_some(Cell::Null);
        }
        if let [only] = def
            && *only < self.element
        {
            // In nested lists, a list that is not null itself is empty, at whatever depth.
            let is_null = if self.max_rep == 1 { *only + 1 < self.element } else { *only == 0 };
            return is_null.then_some(Cell::Null);
        }
        if let Some(at) = def.iter().position(|&def| def >= self.element && def < self.max_def) {
            return Some(Cell::Wrong(format!("null at place {at} of its list; expected a value")));
        }
        // At each depth, every list must have as many values as the first.
        for depth in 2..=self.max_rep {
            let mut counts: Vec<usize> = Vec::new();
            for (def, rep) in def.iter().zip(rep) {
                if *rep < depth {
                    counts.push(0);
                }
                if let Some(last) = counts.last_mut() {
                    *last += usize::from(*def == self.max_def);
                }
            }
            if let Some(other) = counts.iter().position(|&n| n != counts[0]) {
                let (first, count) = (counts[0], counts[other]);
                return Some(Cell::Wrong(format!(
                    "lists of {first} and of {count} values in one list; expected as many in each"
                )));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_lists_are_told_apart_by_levels() {
        // A nullable list of nullable elements: list 1, element 2, value 3.
        let flat = Levels { max_def: 3, max_rep: 1, element: 2 };
        assert_eq!(flat.fault(&[0], &[0]), Some(Cell::Null));
        assert_eq!(flat.fault(&[1], &[0]), None, "empty");
        assert_eq!(flat.fault(&[3, 3], &[0, 1]), None);
        let wrong = |message: &str| Some(Cell::Wrong(message.to_string()));
        assert_eq!(flat.fault(&[3, 2], &[0, 1]), wrong("null at place 1 of its list; expected a value"));
        // Lists of lists of required numbers.
        let nested = Levels { max_def: 2, max_rep: 2, element: 2 };
        assert_eq!(nested.fault(&[2, 2, 2, 2], &[0, 2, 1, 2]), None);
        assert_eq!(nested.dims(&[0, 2, 1, 2, 1, 2], 6), Some(vec![3, 2]));
        assert_eq!(Levels { max_rep: 3, ..nested }.dims(&[0, 3, 2, 3, 1, 3, 2, 3], 8), Some(vec![2, 2, 2]));
        assert_eq!((flat.dims(&[0, 1], 2), nested.dims(&[0], 0)), (None, None));
        let ragged = "lists of 2 and of 1 values in one list; expected as many in each";
        assert_eq!(nested.fault(&[2, 2, 2], &[0, 2, 1]), wrong(ragged));
        assert_eq!(nested.fault(&[2, 2, 1], &[0, 2, 1]), wrong(&ragged.replace("of 1", "of 0")));
    }
}
