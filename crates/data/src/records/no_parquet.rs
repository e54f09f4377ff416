//! Replaces Parquet's reader if the feature `records` is off: it refuses every file, and names the feature.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Records, Values};
use crate::error::{DataError, DataErrorKind};
use bf16scope_files::Cache;

/// Parquet files, which this build cannot read: the feature `records` is off.
#[derive(Debug)]
pub enum Parquet {}

impl Parquet {
    /// Refuses `files`.
    ///
    /// # Errors
    /// Always: [`DataErrorKind::Read`].
    pub fn open(files: &[PathBuf], cache: Option<&Path>) -> Result<Parquet, DataError> {
        Parquet::open_in(files, &cache.into())
    }

    /// Refuses `files`.
    ///
    /// # Errors
    /// Always.
    pub fn open_in(files: &[PathBuf], _cache: &Cache) -> Result<Parquet, DataError> {
        Err(refused(files.first().map_or(Path::new(""), |first| first)))
    }
}

impl Records for Parquet {
    fn n_records(&self) -> u64 {
        match *self {}
    }

    fn values(&self, _: u64, _: Option<&[&str]>) -> Result<Values, DataError> {
        match *self {}
    }

    fn place(&self, _: u64) -> String {
        match *self {}
    }

    fn fingerprint(&self) -> &str {
        match *self {}
    }
}

/// Replaces the reader of a file's rows.
pub(super) mod rows {
    use super::{DataError, File, Path, refused};

    pub(in crate::records) fn unpack(
        _: File,
        path: &Path,
        _: impl FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        Err(refused(path))
    }
}

fn refused(path: &Path) -> DataError {
    let error = DataError::new(DataErrorKind::Read, path, "this build reads no Parquet files");
    error.help("build bf16scope with `--features records`, or write the rows as TFRecords")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feature_is_named() {
        let error = Parquet::open(&[PathBuf::from("data/a.parquet")], None).unwrap_err().to_string();
        assert_eq!(
            error,
            "data/a.parquet: this build reads no Parquet files\nhelp: build bf16scope with `--features records`, or write the \
             rows as TFRecords"
        );
    }
}
