//! Sources of examples: named arrays, read by index.
//!
//! Access by index makes order, resumption and sharding over hosts exact: the examples of a batch are arithmetic, and
//! no reader has a position. [`Arrays`](super::Arrays) is the source in memory. [`Loader`](super::Loader) casts,
//! shuffles and batches.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::learnt::Learnt;
use super::random::Draw;
use crate::error::{DataError, DataErrorKind, DataPlace};
use bf16scope_hlo::DType;
use serde::{Deserialize, Serialize};

/// One array of every example.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayInfo {
    /// The name by which features refer to it.
    pub name: String,
    /// The dtype of its bytes.
    pub dtype: DType,
    /// Dimensions of one example; empty for a scalar.
    pub dims: Vec<i64>,
    /// The factor, in f32, for numbers that are cast to a network's compute dtype: 1/255 for intensities that are kept
    /// as u8. It has no meaning for features of an exact dtype.
    pub scale: f32,
}

impl ArrayInfo {
    /// An array without scaling.
    pub fn new(name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> ArrayInfo {
        ArrayInfo { name: name.to_string(), dtype, dims: dims.into(), scale: 1.0 }
    }
}

/// A column of a file of text, or a place in each example of another array, with the size of its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnSize {
    /// Its name, if the file has a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its number in the file, from 1; in the feature where the file has no columns.
    pub number: u64,
    /// Whether the number counts in the feature.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_feature: bool,
    /// √mean x² of its numbers as they are read.
    pub rms: f32,
}

/// Examples by index.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// The number of examples.
    fn n_examples(&self) -> u64;

    /// The arrays of every example.
    fn arrays(&self) -> &[ArrayInfo];

    /// The bytes of example `index` in evaluation mode, one slice for each of [`arrays`](Source::arrays), in that
    /// order; row-major, little-endian. Sources in memory return borrowed slices.
    ///
    /// # Errors
    /// The errors of the file's reader; [`DataErrorKind::Missing`] from [`n_examples`](Source::n_examples) on. A source
    /// outside this crate uses [`DataError::unreadable`].
    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError>;

    /// Passes the elements of example `index` to `take` piece by piece: each array from the first element to the last,
    /// in pieces of whole elements, so only a piece is in memory before it is in its batch. With a draw, the example is
    /// for training, and all randomness comes from the draw. Returns how long the stages took, if the source measures
    /// it.
    ///
    /// Default: each array in one piece, from [`read`](Source::read), without randomness.
    ///
    /// # Errors
    /// Those of [`read`](Source::read), and those of `take`.
    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        let _ = draw;
        let example = self.read(index)?;
        example.iter().enumerate().try_for_each(|(array, bytes)| take(array, Elements::Bytes(bytes)))?;
        Ok(None)
    }

    /// The place of example `index`, for errors: `digits.csv.gz:17`, `train.npz, example 16`.
    fn place(&self, index: u64) -> String;

    /// The fingerprint of these examples.
    fn fingerprint(&self) -> Fingerprint;

    /// How a loader should read it. Default: as from memory.
    fn reading(&self) -> Reading {
        Reading::default()
    }

    /// Names of the classes of labels, by array, starting with class 0. Default: none known.
    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        BTreeMap::new()
    }

    /// Statistics and vocabularies learnt to encode a table's rows. Default: none.
    fn learnt(&self) -> Option<&Learnt> {
        None
    }

    /// The sizes of the columns of a file of text that are the numbers of this array, for those that are read as they
    /// are, or of the places in each example of another array of rank 1; computed when it is called. Default: none known.
    fn columns(&self, array: &str) -> Option<Vec<ColumnSize>> {
        let _ = array;
        None
    }

    /// The counter of skipped examples. Default: none, so a bad example is an error.
    fn skipped(&self) -> Option<&Skipped> {
        None
    }
}

/// Callback that takes the next elements of an array, identified by its index in [`Source::arrays`].
pub type Take<'a> = dyn FnMut(usize, Elements<'_>) -> Result<(), DataError> + 'a;

/// Whole elements of an array: computed numbers are passed as f32, and become bytes once, in a batch's dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elements<'a> {
    /// Bytes of any dtype, little-endian.
    Bytes(&'a [u8]),
    /// Numbers of an f32 array.
    F32s(&'a [f32]),
}

impl<'a> Elements<'a> {
    /// Their size in bytes.
    pub fn n_bytes(self) -> usize {
        match self {
            Elements::Bytes(bytes) => bytes.len(),
            Elements::F32s(values) => size_of_val(values),
        }
    }

    /// The elements as little-endian bytes.
    pub fn bytes(self) -> Cow<'a, [u8]> {
        match self {
            Elements::Bytes(bytes) => bytes.into(),
            Elements::F32s(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

/// Wall-clock time of an example's stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Reading the record and finding its features.
    pub read: Duration,
    /// Decoding images.
    pub decode: Duration,
    /// Everything after decoding.
    pub transform: Duration,
}

/// How a loader reads a source. It does not change the content of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Threads that read and transform examples, one batch ahead of the consumer; 0, for sources in memory, if the
    /// caller's own thread reads on request.
    pub n_workers: usize,
    /// Whether reading an example is so costly that only a sample is checked before training.
    pub is_costly: bool,
}

/// Counts a source's skipped examples, which cannot be read or do not fit their features: each is replaced by the next
/// one in training, and missing in an evaluation.
#[derive(Debug)]
pub struct Skipped {
    limit: u64,
    examples: Mutex<BTreeSet<u64>>,
}

impl Skipped {
    /// An empty counter with this limit.
    pub fn new(limit: u64) -> Skipped {
        Skipped { limit, examples: Mutex::default() }
    }

    /// The largest number of skipped examples.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The number of skipped examples, each counted once.
    pub fn n(&self) -> u64 {
        self.examples.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// Skips an example; its error is logged once.
    ///
    /// # Errors
    /// More than the limit; if that is 0, `error` and how to skip such examples.
    pub fn add(&self, index: u64, error: DataError) -> Result<(), DataError> {
        let limit = self.limit;
        if limit == 0 {
            return Err(error.stop());
        }
        let mut examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        if examples.insert(index) {
            let n = examples.len() as u64;
            if n > limit {
                let message = format!("more than {limit} examples could not be used; the last of them: {error}");
                let help = format!("raise `on_error: {{skip: {limit}}}` under `data` if so many may be left out");
                return Err(DataError::new(DataErrorKind::Request, DataPlace::Nowhere, message).help(help));
            }
            tracing::warn!("left out, {n} of at most {limit}: {error}");
        }
        Ok(())
    }
}

/// Identifies examples and their order, array by array, so that it shows which array changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The number of examples.
    pub n_examples: u64,
    /// For each array, the SHA-256 of its dtype, dims, scale and bytes.
    pub arrays: BTreeMap<String, String>,
}
