//! Examples on disk that are not read into memory: TFRecord files, WebDataset's tars, Parquet files and folders of images.
//!
//! Each kind is [`Records`]: how many there are, and the named values of one, read by number from any thread. What a
//! program is given is made of them by transforms ([`super::Pipeline`]).

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

/// Bytes of a record at most: an image or a page, never a whole data set.
pub(super) const MAX_RECORD: u64 = 256 << 20;

/// What an example holds under one name, as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Strings of bytes: encoded images, text.
    Bytes(Vec<Vec<u8>>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f32>),
}

impl Value {
    /// The kind in TensorFlow's words, for tables and messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Bytes(_) => "bytes",
            Value::Ints(_) => "int64",
            Value::Floats(_) => "float",
        }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        match self {
            Value::Bytes(values) => values.len(),
            Value::Ints(values) => values.len(),
            Value::Floats(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The named values of one example.
pub type Values = BTreeMap<String, Value>;

/// Examples on disk, by number.
pub trait Records: Send + Sync + std::fmt::Debug {
    /// How many there are.
    fn n_records(&self) -> u64;

    /// The values of record `index`: those of `keys` that it has, all of them where that is `None`.
    ///
    /// # Errors
    /// A record that cannot be read, with its place.
    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError>;

    /// Where record `index` stands: `train-00000, record 17`.
    fn place(&self, index: u64) -> String;

    /// What tells these records from others, in their order: SHA-256 in hexadecimal.
    fn fingerprint(&self) -> &str;

    /// Whether the values of this name are images, whatever their bytes are. Default: that is not known.
    fn is_image(&self, key: &str) -> bool {
        let _ = key;
        false
    }

    /// Names of classes, where the files have them: of label 0 first.
    fn classes(&self) -> &[String] {
        &[]
    }
}

/// The records of files or patterns of names, relative to `folder`, of the kind that their names say: one directory of images, tars
/// (`.tar`, packed or not), Parquet files (`.parquet`), else TFRecords. `cache` is as in [`TfRecords::open`].
///
/// # Errors
/// Those of the kind.
pub fn open(
    folder: impl AsRef<Path>,
    patterns: &[impl AsRef<str>],
    cache: Option<&Path>,
) -> Result<Arc<dyn Records>, DataError> {
    let folder = folder.as_ref();
    open_in(folder, patterns, &cache.into())
}

/// The same, where somebody may be told how far fetching is.
///
/// # Errors
/// As there.
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

/// A file whose examples only an experiment describes, under `key`.
fn described(path: &Path, key: &str) -> DataError {
    let help = format!(
        "an experiment tells it of this one: `data: {{{key}: {}}}` in a YAML file, whose other keys are in docs/EXPERIMENTS.md",
        path.display()
    );
    let found = "no TFRecord file, tar, Parquet file or folder of images, which tell what is in them";
    DataError::new(DataErrorKind::Format, path, found).help(help)
}

/// The key of `data` under which an experiment describes files of such a name.
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

/// A pattern that is none.
fn no_pattern(pattern: &str, error: &glob::PatternError) -> DataError {
    let found = format!("`{pattern}` is not a pattern of file names: {}; expected one such as train-*", error.msg);
    DataError::new(DataErrorKind::Read, DataPlace::Nowhere, found)
}

/// A pattern that no file matches.
fn no_files(pattern: String) -> DataError {
    let found = "no file has such a name; expected one at least";
    DataError::new(DataErrorKind::Read, pattern, found)
}
