//! Compiling for TPUs that are not present: the [`Target`]s, and the figures of Google's TPU compiler for a program
//! ([`compile`]).
//!
//! Every figure of a [`CompileReport`] comes from the compiler, with two estimates: loops are multiplied by their trip
//! counts, which the compiler takes as one; and collectives, for which it gives no cycles, are timed by [`Links`]. The
//! time of a step is a single estimate, [`StepTime`]. [`Compiler`] caches compiles on disk; use it for everything but a
//! check of the compiler itself. The example is compiled and not run, for it installs that compiler and sets variables
//! of its process:
//!
//! ```no_run
//! use bf16scope_hlo::{Module, proto::encode};
//! use bf16scope_pjrt::{Purpose, Setup, prepare_environment};
//! use bf16scope_tpu::Compiler;
//!
//! fn cost(module: &Module) -> Result<(), Box<dyn std::error::Error>> {
//!     prepare_environment(Purpose::Compile)?; // first in `main`, before there is a second thread
//!     let target = "tpu-v3".parse()?;
//!     let compiled = Compiler::new(&Setup::from_env()).compile(&target, &encode::to_bytes(module)?, 32)?; // a batch of 32
//!     println!("{:?}", compiled.report(&target)?); // HBM, flops, bytes, cycles
//!     Ok(())
//! }
//! ```
//!
//! This crate does not build programs, does not run them (there is no TPU), and does not print.

#![forbid(unsafe_code)]

mod cache;
mod clock;
mod collectives;
pub mod explain;
pub mod fit;
mod links;
mod loops;
mod narrow;
mod outcome;
pub mod plan;
mod record;
mod report;
mod target;
pub mod verdict;

pub use cache::{Cache, Compiled, Compiler};
pub use clock::{SPREAD, StepTime};
pub use collectives::Collective;
pub use links::Links;
pub use narrow::{NarrowSum, narrow_sums, read_narrow_sums};
pub use outcome::{CompileOutcome, Need};
pub use report::{CompileReport, Hbm, TpuError, compile, compile_with, no_topology};
pub use target::{Figures, Spec, Target, TargetError};
