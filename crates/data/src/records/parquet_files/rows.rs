//! The rows of a Parquet file, from the first to the last.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::column::{Cell, Cells};
use super::pages::{Pages, Shape};
use super::schema::{self, Column, ValueKind};
use super::thrift;
use crate::error::{COPY_AGAIN, DataError, DataErrorKind};
use crate::guard::guarded;
use crate::records::{DIMS, MAX_RECORD, Value, Values, example};
use bf16scope_files as files;
use bf16scope_files::framing::framed;

/// The magic bytes at both ends of a file; `PARE` if its footer is encrypted.
const MAGIC: &[u8; 4] = b"PAR1";
/// The largest size of a footer.
const MAX_FOOTER: u64 = 256 << 20;
/// The largest number of columns.
const MAX_COLUMNS: usize = 10_000;
/// Rows in memory at a time, over all columns.
const N_ROWS: usize = 64;
/// The limit of absent values: a constant, and a number for each byte of the file. All values of a damaged page are
/// absent; without a limit a footer of 200 bytes that claims 2^62 rows would fill the cache.
const MAX_ABSENT: [u64; 2] = [1 << 16, 64];
/// Appended to a column's name where a record states why the row has no value there.
pub(super) const WHY: char = '\0';

pub(super) fn place(path: &Path, row: u64) -> String {
    format!("{}, row {row}", path.display())
}

fn no_parquet(path: &Path, message: &str) -> DataError {
    DataError::new(DataErrorKind::Format, path, format!("no Parquet file: {message}")).help(COPY_AGAIN)
}

/// The footer of a file, and its columns.
pub(super) fn footer(file: &File, path: &Path) -> Result<(ParquetMetaData, Vec<Column>), DataError> {
    let wrong = |message: String| no_parquet(path, &message);
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
        let message = "an encrypted Parquet file; expected one that is not: there is nowhere to give its keys";
        DataError::new(DataErrorKind::Format, path, message)
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
    // Field 8 of FileMetaData holds the encryption of columns.
    if thrift::read(&bytes).is_ok_and(|(fields, _)| fields.contains_key(&8)) {
        return Err(encrypted());
    }
    if let Some(message) = thrift::fault_of_schema(&bytes) {
        return Err(wrong(format!("its footer cannot be read: {message}")));
    }
    // The crate's footer reader may panic on untrusted bytes: the panic becomes an error of this file.
    let parsed = guarded(|| {
        let footer = ParquetMetaDataReader::decode_metadata(&bytes).map_err(|error| error.to_string())?;
        let columns = schema::columns(footer.file_metadata());
        Ok::<_, String>((footer, columns))
    });
    let parsed = parsed.unwrap_or_else(|panicked| Err(panicked.to_string()));
    let (footer, columns) = parsed.map_err(|message| wrong(format!("its footer cannot be read: {message}")))?;
    if columns.len() > MAX_COLUMNS {
        return Err(wrong(format!("{} columns; expected at most {MAX_COLUMNS}", columns.len())));
    }
    if let Some(column) = columns.iter().find(|column| column.name.contains(WHY)) {
        return Err(wrong(format!("a column is called {:?}; expected a name without a NUL", column.name)));
    }
    Ok((footer, columns))
}

/// Passes the rows of a file to `take` as framed records, from the first to the last.
///
/// # Errors
/// An invalid footer; a row that is too large; errors of `take`. A fault in a value is stored in its record.
pub(in crate::records) fn unpack(
    file: File,
    path: &Path,
    mut take: impl FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let (footer, columns) = footer(&file, path)?;
    let n_bytes = file.metadata().map_err(|cause| DataError::open(path, cause))?.len();
    let wrong = |message: String| no_parquet(path, &message);
    let file = Arc::new(file);
    let most_absent = MAX_ABSENT[1].saturating_mul(n_bytes).saturating_add(MAX_ABSENT[0]);
    let (mut row, mut n_absent) = (0u64, 0);
    for group in footer.row_groups() {
        let n_rows = u64::try_from(group.num_rows()).map_err(|_| wrong(format!("{} rows", group.num_rows())))?;
        // The crate refuses a row group of more columns, or fewer.
        let mut readers: Vec<(&Column, Cells)> = Vec::new();
        for (column, chunk) in columns.iter().zip(group.columns()) {
            let Ok(kind) = &column.kind else { continue };
            let kind: ValueKind = *kind;
            // Added by hand, because the crate's own sum panics if one of the two is negative.
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
            let n_values = Arc::new(AtomicU64::new(0));
            let pages = Pages::new(Arc::clone(&file), [start, end], shape, Arc::clone(&n_values));
            readers.push((column, Cells::new(pages, n_values, descr, kind)));
        }
        let mut left = n_rows;
        while left > 0 {
            let n = left.min(N_ROWS as u64) as usize;
            let mut cells: Vec<_> =
                readers.iter_mut().map(|(column, cells)| (*column, cells.next(n).into_iter())).collect();
            for _ in 0..n {
                let row_cells: Vec<(&Column, Cell)> = cells
                    .iter_mut()
                    .map(|(column, cells)| (*column, cells.next().expect("as many as asked for")))
                    .collect();
                let measured: u64 =
                    row_cells.iter().map(|(column, cell)| cell.n_bytes() + column.name.len() as u64 + 16).sum();
                if measured > MAX_RECORD {
                    return Err(DataError::too_long(place(path, row), measured, MAX_RECORD));
                }
                let n_wrong = row_cells.iter().filter(|(_, cell)| matches!(cell, Cell::Wrong(_))).count();
                n_absent += if row_cells.is_empty() { 1 } else { n_wrong as u64 };
                if n_absent > most_absent {
                    return Err(wrong(format!(
                        "{n_absent} values are absent or damaged up to row {row}; expected at most {most_absent} in {n_bytes} bytes"
                    )));
                }
                take(&framed(&example::encode(&values(row_cells))))?;
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
        let cell = match cell {
            Cell::Nested(inner, dims) => {
                values.insert(format!("{name}{DIMS}"), Value::Ints(dims));
                *inner
            }
            cell => cell,
        };
        match cell {
            Cell::Bytes(strings) => {
                values.insert(name, Value::Bytes(strings.iter().map(|value| value.data().to_vec()).collect()))
            }
            Cell::Ints(numbers) => values.insert(name, Value::Ints(numbers)),
            Cell::Floats(numbers) => values.insert(name, Value::Floats(numbers)),
            Cell::Wrong(message) => values.insert(format!("{name}{WHY}"), Value::Bytes(vec![message.into_bytes()])),
            Cell::Null | Cell::Nested(..) => None,
        };
    }
    values
}
