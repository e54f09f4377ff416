//! Parquet files, unpacked once into the cache and read there by number.
//!
//! A Parquet file stores its columns one after the other, in pages of many rows, so a single row cannot be read
//! efficiently. Each file is therefore rewritten as one `tf.train.Example` per row, and is then handled like a TFRecord
//! file: indexed, verified by checksums, read by number from any thread. The crate `parquet` parses footers, levels and
//! values; pages are read and unpacked here ([`pages`]).
//!
//! Source: `parquet.thrift` and `Encodings.md` of Apache Parquet.

mod codec;
mod column;
mod pages;
pub(super) mod rows;
mod schema;
mod thrift;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::rows::{WHY, footer, place};
use self::schema::{Column, HuggingFace};
use super::compression::Compression;
use super::tfrecord::TfRecords;
use super::{DIMS, Records, Value, Values};
use crate::error::{DataError, DataErrorKind};
use bf16scope_files::{self as files, Cache};

/// The rows of Parquet files, one file after the other.
#[derive(Debug)]
pub struct Parquet {
    rows: TfRecords,
    /// The columns of each file.
    columns: Vec<Arc<[Column]>>,
    hugging_face: HuggingFace,
}

impl Parquet {
    /// The rows of `files`, in this order. They are unpacked into the cache once.
    ///
    /// # Errors
    /// A file that cannot be opened or unpacked, or is not a Parquet file; no rows; no cache.
    pub fn open(files: &[PathBuf], cache: Option<&Path>) -> Result<Parquet, DataError> {
        Parquet::open_in(files, &cache.into())
    }

    /// The same, with a callback for download progress.
    ///
    /// # Errors
    /// Those of [`Parquet::open`].
    pub fn open_in(files: &[PathBuf], cache: &Cache) -> Result<Parquet, DataError> {
        let rows = TfRecords::open_as(files, cache, |_| Some(Compression::Parquet))?;
        let (mut columns, mut hugging_face): (Vec<Arc<[Column]>>, _) = (Vec::new(), None);
        for (idx, path) in files.iter().enumerate() {
            let file = files::open(rows.whole(idx)).map_err(|cause| DataError::open(path, cause))?;
            let (footer, file_columns) = footer(&file, path)?;
            hugging_face.get_or_insert_with(|| schema::hugging_face(footer.file_metadata()));
            // Files of one data set usually have the same columns, which are stored once.
            let same = columns.last().filter(|last| ***last == *file_columns).cloned();
            columns.push(same.unwrap_or_else(|| file_columns.into()));
        }
        Ok(Parquet { rows, columns, hugging_face: hugging_face.unwrap_or_default() })
    }

    /// Why a row has no value in the column of this name, if the file has the column.
    fn fault(&self, index: u64, key: &str, values: &Values) -> Option<DataError> {
        let column = self.columns[self.rows.find(index).0].iter().find(|column| column.name == key)?;
        let what = format!("column `{key}`");
        if let Err(unsupported) = &column.kind {
            let (expected, help) = match unsupported == schema::TWICE {
                true => ("one column of its name", "rename one: which is meant, only their writer knows"),
                false => ("whole numbers, floats, bools, bytes, text or lists of them", ""),
            };
            return Some(DataError::mismatch(self.place(index), &what, unsupported, expected).help(help));
        }
        let (kind, message, damaged) = match values.get(&format!("{key}{WHY}")) {
            Some(Value::Bytes(strings)) => {
                let text = strings.first().map(|text| String::from_utf8_lossy(text).into_owned());
                let damaged = "if the file is damaged, copy or download it again; or ";
                (DataErrorKind::Damaged, format!("{what}: {}", text.unwrap_or_default()), damaged)
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
        Some(DataError::new(kind, self.place(index), message).help(help))
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
            values.retain(|key, _| !key.contains(WHY));
            return Ok(values);
        };
        let beside = keys.iter().flat_map(|key| [format!("{key}{WHY}"), format!("{key}.path"), format!("{key}{DIMS}")]);
        let beside: Vec<String> = beside.collect();
        let asked: Vec<&str> = keys.iter().copied().chain(beside.iter().map(String::as_str)).collect();
        let mut values = self.rows.values(index, Some(&asked))?;
        let missing = keys.iter().filter(|key| !values.contains_key(**key));
        if let Some(error) = missing.filter_map(|key| self.fault(index, key, &values)).next() {
            return Err(error);
        }
        values.retain(|key, _| keys.contains(&key.strip_suffix(DIMS).unwrap_or(key)));
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
        self.hugging_face.images.iter().any(|name| name == key)
    }

    fn classes(&self) -> &[String] {
        &self.hugging_face.classes
    }
}

#[cfg(test)]
mod tests;
