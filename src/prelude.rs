//! What a file that builds a model imports: `use bf16scope::prelude::*;`.
//!
//! The builder, the dtypes, layers and their configurations, what trains them, and the modules [`hlo`], [`nn`]
//! and [`models`] by name for the rest. Of what compiles and runs, [`Trainer`] alone is here; nothing that
//! reads files is.

pub use crate::hlo;
pub use crate::train::Trainer;
pub use bf16scope_model::prelude::*;
