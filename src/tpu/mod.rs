//! TPUs that are not here: which there are ([`Target`]), and what the TPU compiler says of a program ([`compile`]).
//!
//! Every figure of a [`CompileReport`] is the compiler's own; nothing here estimates, but for the turns of loops, which the
//! compiler counts as one. [`Compiler`] remembers on disk what was compiled before, and is what everything but a check
//! of the compiler itself should ask. This room does not build programs, does not run them (there is no TPU), and does
//! not print.

mod cache;
pub mod explain;
pub mod fit;
mod loops;
mod record;
mod report;
mod target;

pub use cache::{Cache, Compiled, Compiler};
pub use record::Answer;
pub use report::{CompileReport, Hbm, TpuError, compile, compile_with};
pub use target::{Target, TargetError, Version};
