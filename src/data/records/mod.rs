//! Examples on disk that are not read into memory: TFRecord files and folders of images.
//!
//! Each kind is [`Records`]: how many there are, and the named values of one, read by number from any thread. What a
//! program is given is made of them by transforms ([`super::Pipeline`]).

mod error;
mod example;
mod folder;
mod index;
mod shard;
mod survey;
mod tfrecord;
mod unpack;

pub use error::RecordError;
pub(super) use example::parse;
pub use folder::ImageFolder;
pub use index::indexes;
pub use survey::{Held, Survey};
pub use tfrecord::TfRecords;
pub use unpack::unpacked;

use std::collections::BTreeMap;

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
    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, RecordError>;

    /// Where record `index` stands: `train-00000, record 17`.
    fn place(&self, index: u64) -> String;

    /// What tells these records from others, in their order: SHA-256 in hexadecimal.
    fn fingerprint(&self) -> &str;

    /// Names of classes, where the files have them: of label 0 first.
    fn classes(&self) -> &[String] {
        &[]
    }
}
