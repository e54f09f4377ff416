//! The input pipeline: reading, shuffling, batching, and casting on the host.
//!
//! A [`Source`] holds examples by index; an example is a set of named arrays. A [`Feature`] describes an array that a
//! network takes. A [`Loader`] makes batches of a source's examples for given features, in the order of an [`Order`].
//! [`csv`], [`idx`] and [`npz`] read files into [`Arrays`], the source in memory. Larger data stay on disk: a
//! [`Pipeline`] reads [`records`] by number (TFRecord, tar and Parquet files, folders of images) and transforms them,
//! and [`text`] is tokenized once.
//!
//! ```
//! use bf16scope_data::{Arrays, Feature, Loader};
//! use bf16scope_hlo::{Array, DType};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Three images of 2×2 bytes and their classes; `csv::read`, `npz::read` and `idx::read` read such from files.
//! let images = Array::from_vec(vec![0u8, 51, 102, 153, 204, 255, 0, 51, 102, 153, 204, 255], [-1, 2, 2, 1])?;
//! let classes = vec![0u8, 1, 1];
//! let source = Arrays::from_arrays([("image", images), ("label", classes.into())])?.scaled("image", 1.0 / 255.0)?;
//!
//! let features = [Feature::compute("image", [2, 2, 1]), Feature::exact("label", DType::S32, []).label().below(2)];
//! let loader = Loader::new(&source, &features, DType::BF16, 2, 42)?;
//! loader.check()?;
//! for batch in loader.epoch(0) {
//!     let batch = batch?;
//!     assert_eq!((batch.arrays[0].dtype, &batch.arrays[0].dims[..]), (DType::BF16, &[2, 2, 2, 1][..]));
//!     assert_eq!((batch.arrays[1].name.as_str(), batch.arrays[1].to_vec::<i32>()?.len()), ("label", 2));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Depends on [`bf16scope_hlo::DType`] and the conversions of [`bf16scope_hlo::numerics`]; does not know graphs,
//! devices or training.

#![forbid(unsafe_code)]

pub mod alignment;
mod arrays;
pub mod augment;
pub mod cast;
mod census;
pub mod csv;
pub mod error;
pub mod feature;
mod guard;
pub mod idx;
pub mod image;
mod learnt;
pub mod loader;
mod look;
mod misfits;
pub mod mnist;
mod named;
pub mod npz;
mod order;
pub mod pipeline;
mod random;
pub mod records;
pub mod selected;
mod shift;
pub mod source;
pub mod table;
pub mod text;
pub mod transpose;
pub mod weights;
pub mod words;
mod written;

pub use alignment::Alignment;
pub use arrays::Arrays;
pub use augment::{Augment, Augmented};
pub use census::{Census, Figures};
pub use error::{DataError, DataErrorKind, DataPlace};
pub use feature::{Feature, FeatureDType, Random};
pub use loader::{Ask, Batch, Loader, NamedArray, Supply};
pub use named::Named;
pub use order::{ORDER_VERSION, Order};
pub use pipeline::{FeatureSpec, Pipeline};
pub use random::{DRAW_VERSION, Draw, DrawVersion};
pub use selected::Selected;
pub use source::{ArrayInfo, ColumnSize, Elements, Fingerprint, Reading, Skipped, Source, Spent, Take};
pub use words::{WordTable, WordVectors};
