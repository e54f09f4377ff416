//! Where examples come from: named arrays, read by index.
//!
//! Access by index is what makes order, resumption and parts for several hosts exact: which examples a batch holds is
//! arithmetic, and no reader has a position. [`Arrays`](super::Arrays) is the source in memory. Casting, shuffling and
//! batches are [`Loader`](super::Loader)'s.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::DataError;
use crate::hlo::DType;

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

    /// The bytes of example `index`, one slice for each of [`arrays`](Source::arrays), in that order; row-major,
    /// little-endian. Sources in memory lend.
    ///
    /// # Errors
    /// What the reader of a file says; [`DataError::NoExample`] from [`n_examples`](Source::n_examples) on. A source of
    /// somebody else's has [`DataError::Unreadable`].
    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError>;

    /// Where example `index` stands, for errors: `digits.csv.gz:17`, `train.npz, example 16`.
    fn place(&self, index: u64) -> String;

    /// What tells these examples from others.
    fn fingerprint(&self) -> Fingerprint;
}

/// The identity of examples in their order, array by array, so that it shows which changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// How many examples there are.
    pub n_examples: u64,
    /// For each array SHA-256 of its dtype, dims, scale and bytes.
    pub arrays: BTreeMap<String, String>,
}
