//! Data on its way into a program: reading, shuffling, batching, casting on the host.
//!
//! Knows [`crate::hlo::DType`] and the conversions of [`crate::numerics`]; knows nothing of graphs, devices or training.

pub mod batches;
pub mod cast;
pub mod dataset;
pub mod error;
mod fingerprint;
pub mod npz;
mod random;
mod shift;

pub use batches::{Batch, Batches};
pub use dataset::{CsvSpec, Dataset};
pub use error::DataError;
pub use fingerprint::Fingerprint;
