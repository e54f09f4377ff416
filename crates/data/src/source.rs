//! Where examples come from: named arrays, read by index.
//!
//! Access by index is what makes order, resumption and parts for several hosts exact: which examples a batch holds is
//! arithmetic, and no reader has a position. [`Arrays`](super::Arrays) is the source in memory. Casting, shuffling and
//! batches are [`Loader`](super::Loader)'s.

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
    /// What features call it.
    pub name: String,
    /// What its bytes are.
    pub dtype: DType,
    /// Dimensions of one example; none for one number.
    pub dims: Vec<i64>,
    /// What its numbers are multiplied with, in f32, where they are cast to what a network computes in: 1/255 for
    /// intensities that are kept as u8. Has no meaning for features of an exact dtype.
    pub scale: f32,
}

impl ArrayInfo {
    /// An array whose numbers are taken as they are.
    pub fn new(name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> ArrayInfo {
        ArrayInfo { name: name.to_string(), dtype, dims: dims.into(), scale: 1.0 }
    }
}

/// Examples by index.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// How many examples there are.
    fn n_examples(&self) -> u64;

    /// What every example holds.
    fn arrays(&self) -> &[ArrayInfo];

    /// The bytes of example `index` as evaluation has it, one slice for each of [`arrays`](Source::arrays), in that order;
    /// row-major, little-endian. Sources in memory lend.
    ///
    /// # Errors
    /// The errors of the file's reader; [`DataErrorKind::Missing`] from [`n_examples`](Source::n_examples) on. A source of
    /// somebody else's has [`DataError::unreadable`].
    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError>;

    /// Gives `take` the elements of example `index` piece by piece: of each array from the first to the last, in pieces of whole
    /// elements. So nothing but the pieces is in memory before it is in its batch. With a draw the example is training's, and
    /// all that is random about it is drawn from there. Says how long the stages took, where the source knows.
    ///
    /// Default: each array in one piece, as [`read`](Source::read) has it; nothing is random.
    ///
    /// # Errors
    /// As [`read`](Source::read), and those of `take`.
    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        let _ = draw;
        let example = self.read(index)?;
        example.iter().enumerate().try_for_each(|(array, bytes)| take(array, Elements::Bytes(bytes)))?;
        Ok(None)
    }

    /// Where example `index` stands, for errors: `digits.csv.gz:17`, `train.npz, example 16`.
    fn place(&self, index: u64) -> String;

    /// What tells these examples from others.
    fn fingerprint(&self) -> Fingerprint;

    /// How a loader reads it. Default: as it reads memory.
    fn reading(&self) -> Reading {
        Reading::default()
    }

    /// Names of the classes of labels, by array, of class 0 first. Default none are known.
    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        BTreeMap::new()
    }

    /// Statistics and vocabularies learnt to encode a table's rows. Default none.
    fn learnt(&self) -> Option<&Learnt> {
        None
    }

    /// Where examples that are left out are counted. Default nowhere: what is wrong with one is an error.
    fn skipped(&self) -> Option<&Skipped> {
        None
    }
}

/// What takes the next elements of an array, which is named by its number among [`Source::arrays`].
pub type Take<'a> = dyn FnMut(usize, Elements<'_>) -> Result<(), DataError> + 'a;

/// Whole elements of an array: numbers that were computed are given as they are, and become bytes once, in a batch's dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elements<'a> {
    /// Of any dtype, little-endian.
    Bytes(&'a [u8]),
    /// Of an array of f32.
    F32s(&'a [f32]),
}

impl<'a> Elements<'a> {
    /// How many bytes they are.
    pub fn n_bytes(self) -> usize {
        match self {
            Elements::Bytes(bytes) => bytes.len(),
            Elements::F32s(values) => size_of_val(values),
        }
    }

    /// They as little-endian bytes.
    pub fn bytes(self) -> Cow<'a, [u8]> {
        match self {
            Elements::Bytes(bytes) => bytes.into(),
            Elements::F32s(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

/// What an example's stages take, by the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Reading the record and finding its features.
    pub read: Duration,
    /// Decoding images.
    pub decode: Duration,
    /// All that follows.
    pub transform: Duration,
}

/// How a loader reads a source. Nothing of it changes what a batch holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Threads that read and transform examples, one batch ahead of who takes them; 0 where the caller's own thread does, when
    /// it asks: of memory.
    pub n_workers: usize,
    /// Whether reading an example costs so much that they are not all looked at before training.
    pub is_costly: bool,
}

/// The examples of a source that are left out because they cannot be read or no feature takes them: each is replaced by the
/// next one in training, and missing in an evaluation.
#[derive(Debug)]
pub struct Skipped {
    limit: u64,
    examples: Mutex<BTreeSet<u64>>,
}

impl Skipped {
    /// None so far, of at most `limit`.
    pub fn new(limit: u64) -> Skipped {
        Skipped { limit, examples: Mutex::default() }
    }

    /// How many there may be.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many there are, each counted once.
    pub fn n(&self) -> u64 {
        self.examples.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// Leaves an example out for what is wrong with it, which is said once.
    ///
    /// # Errors
    /// More than the limit; where that is 0, `error` and how such examples are left out.
    pub fn add(&self, index: u64, error: DataError) -> Result<(), DataError> {
        let limit = self.limit;
        if limit == 0 {
            return Err(error.stop());
        }
        let mut examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        if examples.insert(index) {
            let n = examples.len() as u64;
            if n > limit {
                let found = format!("more than {limit} examples could not be used; the last of them: {error}");
                let help = format!("raise `on_error: {{skip: {limit}}}` under `data` if so many may be left out");
                return Err(DataError::new(DataErrorKind::Request, DataPlace::Nowhere, found).help(help));
            }
            tracing::warn!("left out, {n} of at most {limit}: {error}");
        }
        Ok(())
    }
}

/// The identity of examples in their order, array by array, so that it shows which changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// How many examples there are.
    pub n_examples: u64,
    /// For each array SHA-256 of its dtype, dims, scale and bytes.
    pub arrays: BTreeMap<String, String>,
}
