//! Data on its way into a program: reading, shuffling, batching, casting on the host.
//!
//! A [`Source`] holds examples, by index: named arrays. A [`Feature`] says what a network wants under such a name. A
//! [`Loader`] makes batches of the two, in the order of an [`Order`]. [`csv`], [`idx`] and [`npz`] read files into
//! [`Arrays`], the source in memory.
//!
//! Knows [`crate::hlo::DType`] and the conversions of [`crate::numerics`]; knows nothing of graphs, devices or training.

mod arrays;
pub mod batches;
pub mod cast;
mod convert;
pub mod csv;
pub mod dataset;
pub mod error;
pub mod feature;
mod fingerprint;
pub mod idx;
pub mod loader;
pub mod npz;
mod order;
mod random;
mod shift;
pub mod source;

pub use arrays::Arrays;
pub use batches::{Batch, Batches};
pub use dataset::{CsvSpec, Dataset};
pub use error::DataError;
pub use feature::{Feature, FeatureDType};
pub use fingerprint::Fingerprint;
pub use loader::{Loader, NamedArray};
pub use order::{ORDER_VERSION, Order};
pub use source::{ArrayInfo, Source};
