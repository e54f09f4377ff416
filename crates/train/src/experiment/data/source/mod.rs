//! The sources that `data` may name.
//!
//! To add a source, write a file in this folder that opens its files, and a line in the table below.

mod csv;
mod idx;
mod images;
mod jsonl;
mod mnist;
mod npz;
mod parquet;
mod text;
mod tfrecord;
mod webdataset;

use crate::TrainError;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use bf16scope_model::document::{ConfigProblem, Key, Node, ReadError, Value};
use serde::{Deserialize, Deserializer};

macro_rules! sources {
    ($($(#[$doc:meta])* $Source:ident in $key:ident = $value:literal;)*) => {
        $(pub use $key::$Source;)*

        /// The source of examples: a key of `data`, or of its `test`, and the files that it names.
        #[derive(Clone, Debug, PartialEq)]
        pub enum DataSource {
            $($(#[$doc])* $Source($Source),)*
        }

        /// Every source, in the order of the documentation.
        pub(super) const SOURCES: &[SourceKey] = &[$(SourceKey {
            name: stringify!($key),
            value: $value,
            family: <$Source as SourceFiles>::FAMILY,
            takes: <$Source as SourceFiles>::TAKES,
            scale: <$Source as SourceFiles>::SCALE,
        }),*];

        impl DataSource {
            /// The key.
            pub fn key(&self) -> &'static str {
                match self {
                    $(DataSource::$Source(_) => stringify!($key),)*
                }
            }

            pub(super) fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
                match self {
                    $(DataSource::$Source(files) => files.open(reading),)*
                }
            }

            fn read(key: &str, node: &Node) -> Result<Option<DataSource>, ReadError> {
                $(if key == stringify!($key) {
                    return $Source::deserialize(node).map(|files| Some(DataSource::$Source(files)));
                })*
                Ok(None)
            }
        }
    };
}

sources! {
    /// One example a line: its features in the task's order, then its labels; plain or gzip.
    Csv in csv = "FILE";
    /// Arrays by name, as `numpy.savez` writes them; the first dim is the example.
    Npz in npz = "FILE";
    /// A file of MNIST's format for each feature; plain or gzip.
    Idx in idx = "{NAME: FILE}";
    /// The directory of MNIST's four files, with `images` (scaled by 1/255 unless said otherwise) and `labels`.
    Mnist in mnist = "DIRECTORY";
    /// TFRecord files of `tf.train.Example`s, by name or pattern. They are read by number, and stay on the disk.
    TfRecord in tfrecord = "FILES";
    /// WebDataset's tar files, by name or pattern: files of one name are an example, and their endings name what it holds.
    WebDataset in webdataset = "FILES";
    /// Parquet files, by name or pattern. They are unpacked into the cache once, and read there by number.
    Parquet in parquet = "FILES";
    /// A directory of images with a directory for each class: `images` and `labels`.
    Images in images = "DIRECTORY";
    /// Files of text, by name or pattern; `tokens` says what becomes of it.
    Text in text = "FILES";
    /// Files of JSON lines, by name or pattern; `tokens` says what becomes of their text.
    Jsonl in jsonl = "FILES";
}

/// A source's row of the table.
#[derive(Clone, Copy)]
pub(super) struct SourceKey {
    pub(super) name: &'static str,
    /// The form of the key's value.
    value: &'static str,
    pub(super) family: Family,
    takes: &'static [&'static str],
    pub(super) scale: Option<f32>,
}

impl SourceKey {
    /// `{csv: FILE}`.
    pub(super) fn form(&self) -> String {
        format!("{{{}: {}}}", self.name, self.value)
    }

    /// Whether its value names directories instead of files.
    pub(super) fn is_of_folders(&self) -> bool {
        self.value == "DIRECTORY"
    }

    /// Whether a key may stand beside it.
    pub(super) fn takes(&self, key: &str) -> bool {
        self.takes.contains(&key)
    }

    /// Whether `test` may name the source `other`.
    pub(super) fn may_be_tested_on(&self, other: &SourceKey) -> bool {
        match self.family {
            Family::Memory => other.family == Family::Memory,
            Family::Sets => false,
            Family::Disk | Family::Text => other.name == self.name,
        }
    }

    /// The keys that may name the test examples, for a message.
    pub(super) fn tests(&self) -> String {
        let forms = SOURCES.iter().filter(|other| self.may_be_tested_on(other)).map(|other| other.form());
        alternatives(forms.map(|form| format!("`test: {form}`")))
    }
}

/// `` `csv`, `npz` or `idx` ``: the sources that meet a condition.
pub(super) fn names(is_meant: impl Fn(&SourceKey) -> bool) -> String {
    alternatives(SOURCES.iter().filter(|source| is_meant(source)).map(|source| format!("`{}`", source.name)))
}

/// `a, b or c`.
pub(super) fn alternatives(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match &names[..] {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => names.concat(),
    }
}

/// Keys beside a source, with their values.
type OtherKeys = Vec<(Key, Node)>;

impl DataSource {
    /// Its row of the table.
    pub(super) fn source_key(&self) -> &'static SourceKey {
        SOURCES.iter().find(|source| source.name == self.key()).expect("every source is in the table")
    }

    /// The source that the keys of `block` name, and the other keys, which must be among `known`.
    pub(super) fn from_keys(
        block: &str,
        node: &Node,
        known: &[&str],
    ) -> Result<(Option<DataSource>, OtherKeys), ReadError> {
        let Value::Map(map) = &node.value else { return Err(node.wrong("keys and values")) };
        let (mut source, mut others) = (None::<DataSource>, Vec::new());
        for (key, value) in map {
            let is_source = SOURCES.iter().any(|source| source.name == &**key);
            if known.contains(&&**key) {
                others.push((key.clone(), value.clone()));
            } else if !is_source {
                let valid = SOURCES.iter().map(|source| source.name).chain(known.iter().copied());
                let valid = valid.map(str::to_string).collect();
                let written = key.as_written().to_string();
                return Err(ReadError::from_problem(ConfigProblem::UnknownKey { key: written, valid }).or_at(key.mark));
            } else if value.value != Value::Null {
                if let Some(other) = &source {
                    let (other, own) = (other.key(), &key.name);
                    let message = format!("`{block}` has `{own}` beside `{other}`, expected one of them");
                    return Err(ReadError::new(message).or_at(key.mark));
                }
                source = DataSource::read(key, value).map_err(|error| error.or_at(value.mark))?;
            }
        }
        Ok((source, others))
    }
}

/// The source that `test` names.
impl<'de> Deserialize<'de> for DataSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DataSource, D::Error> {
        Node::read(deserializer, |node| {
            let (source, _) = DataSource::from_keys("test", node, &[])?;
            source.ok_or_else(|| {
                let help = "write them as `data` has its own: `test: {csv: FILE}`";
                node.wrong("files for testing").with_help(help)
            })
        })
    }
}
