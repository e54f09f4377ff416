//! Examples read from disk one at a time: TFRecord files, WebDataset's tars, Parquet files and folders of images.
//!
//! Each format implements [`Records`]: the number of records, and the named values of one, read by number from any
//! thread. [`super::Pipeline`] transforms them into a program's inputs.

mod compression;
mod example;
mod folder;
mod index;
#[cfg_attr(not(feature = "records"), path = "no_parquet.rs")]
mod parquet_files;
mod pattern;
mod pictures;
mod remote;
mod shard;
mod shards;
mod survey;
mod tfrecord;
mod unpack;
mod webdataset;
#[cfg(feature = "records")]
mod zstd;

use crate::error::{DataError, DataErrorKind, DataPlace};
use bf16scope_files::Cache;
pub(super) use example::parse;
pub use folder::ImageFolder;
pub use index::indexes;
pub use parquet_files::Parquet;
pub use pattern::files;
pub use pictures::Pictures;
pub use remote::{at, directory, local, objects};
pub(super) use shard::{Shard, key};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
pub use survey::{Held, Survey};
pub use tfrecord::TfRecords;
pub use unpack::unpacked;
pub use webdataset::Tars;
pub(super) use webdataset::check_keys;

/// The largest size of a record in bytes: an image or a page, never a whole data set.
pub(super) const MAX_RECORD: u64 = 256 << 20;

/// Appended to a key: under it are the lengths of the lists, outermost first, where a file has the key's values as lists
/// of lists.
pub(super) const DIMS: &str = "\0dims";

/// A named value of an example, as stored in its file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Byte strings: encoded images, text.
    Bytes(Vec<Vec<u8>>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f32>),
}

impl Value {
    /// TensorFlow's name of the kind, for tables and messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Bytes(_) => "bytes",
            Value::Ints(_) => "int64",
            Value::Floats(_) => "float",
        }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Value::Bytes(values) => values.len(),
            Value::Ints(values) => values.len(),
            Value::Floats(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The named values of one example.
pub type Values = BTreeMap<String, Value>;

/// Examples on disk, by number.
pub trait Records: Send + Sync + std::fmt::Debug {
    /// The number of records.
    fn n_records(&self) -> u64;

    /// The values of record `index` that `keys` selects, or all of them if it is `None`.
    ///
    /// # Errors
    /// A record that cannot be read, with its place.
    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError>;

    /// The place of record `index`: `train-00000, record 17`.
    fn place(&self, index: u64) -> String;

    /// Identifies these records and their order: SHA-256 in hexadecimal.
    fn fingerprint(&self) -> &str;

    /// Whether the values with this key are images, whatever their bytes are. Default: unknown, `false`.
    fn is_image(&self, key: &str) -> bool {
        let _ = key;
        false
    }

    /// Names of classes, starting with label 0, if the files contain them.
    fn classes(&self) -> &[String] {
        &[]
    }
}

/// Opens files or patterns of names, relative to `folder`, in the format that their names indicate: one directory of
/// images, tars (`.tar`, compressed or not), Parquet files (`.parquet`), otherwise TFRecords. `cache` is as in
/// [`TfRecords::open`].
///
/// # Errors
/// Those of the format.
pub fn open(
    folder: impl AsRef<Path>,
    patterns: &[impl AsRef<str>],
    cache: Option<&Path>,
) -> Result<Arc<dyn Records>, DataError> {
    let folder = folder.as_ref();
    open_in(folder, patterns, &cache.into())
}

/// The same, with a callback for download progress.
///
/// # Errors
/// Those of [`open`].
pub fn open_in(
    folder: impl AsRef<Path>,
    patterns: &[impl AsRef<str>],
    cache: &Cache,
) -> Result<Arc<dyn Records>, DataError> {
    let folder = folder.as_ref();
    if let [one] = patterns
        && shard::url(Path::new(one.as_ref())).is_none()
        && folder.join(one.as_ref()).is_dir()
    {
        return Ok(Arc::new(ImageFolder::open(folder.join(one.as_ref()))?));
    }
    let files = files(folder, patterns)?;
    let name = files[0].to_string_lossy().to_lowercase();
    match [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"].iter().any(|end| name.ends_with(end)) {
        true => Ok(Arc::new(Tars::open_in(&files, cache)?)),
        false if name.ends_with(".parquet") => Ok(Arc::new(Parquet::open_in(&files, cache)?)),
        false => match (TfRecords::open_in(&files, cache), key_of(&name)) {
            (Err(error), Some(key)) if *error.kind() == DataErrorKind::Format => Err(described(&files[0], key)),
            (records, _) => Ok(Arc::new(records?)),
        },
    }
}

/// The error for a file that has to be described in an experiment, under `key`.
fn described(path: &Path, key: &str) -> DataError {
    let help = format!(
        "an experiment tells it of this one: `data: {{{key}: {}}}` in a YAML file, whose other keys are in docs/EXPERIMENTS.md",
        path.display()
    );
    let message = "no TFRecord file, tar, Parquet file or folder of images, which tell what is in them";
    DataError::new(DataErrorKind::Format, path, message).help(help)
}

/// The key of `data` that describes files with such a name in an experiment.
fn key_of(name: &str) -> Option<&'static str> {
    let ending = Path::new(name.trim_end_matches(".gz")).extension()?.to_str()?;
    Some(match ending {
        "csv" | "tsv" => "csv",
        "npz" | "npy" => "npz",
        "txt" | "md" => "text",
        "json" | "jsonl" => "jsonl",
        _ => return None,
    })
}

/// The error for an invalid pattern.
fn no_pattern(pattern: &str, error: &glob::PatternError) -> DataError {
    let message = format!("`{pattern}` is not a pattern of file names: {}; expected one such as train-*", error.msg);
    DataError::new(DataErrorKind::Read, DataPlace::Nowhere, message)
}

/// The error for a pattern that no file matches.
fn no_files(pattern: String) -> DataError {
    let message = "no file has such a name; expected one at least";
    DataError::new(DataErrorKind::Read, pattern, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_an_experiment_describes_are_told_the_key() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), "x,y\n1.0,2.0\n3.0,4.0").unwrap();
        let error = open(folder.path(), &["a.csv"], None).unwrap_err().to_string();
        assert_eq!(
            error.replace(&format!("{}/", folder.path().display()), ""),
            "a.csv: no TFRecord file, tar, Parquet file or folder of images, which tell what is in them\n\
             help: an experiment tells it of this one: `data: {csv: a.csv}` in a YAML file, whose other keys are in \
             docs/EXPERIMENTS.md"
        );
    }

    #[test]
    fn a_pattern_that_is_none_is_told() {
        let error = glob::Pattern::new("a***").unwrap_err();
        assert_eq!(
            no_pattern("a***", &error).to_string(),
            format!("`a***` is not a pattern of file names: {}; expected one such as train-*", error.msg)
        );
    }
}
