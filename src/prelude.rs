//! The imports of a file that builds a model: `use bf16scope::prelude::*;`.
//!
//! The builder, the dtypes, layers and their configurations, what trains them, and the modules [`hlo`], [`nn`]
//! and [`models`] by name for the rest. [`Trainer`] trains; what reads files or compiles for a TPU is imported by name, such as
//! `bf16scope::study::Fit`.

pub use crate::hlo;
pub use crate::train::Trainer;
pub use bf16scope_model::prelude::*;
