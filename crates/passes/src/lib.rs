//! Passes: functions from modules to modules.
//!
//! - `grad`: reverse-mode differentiation.
//! - `remat`: rematerialises values in the backward pass instead of keeping them; `cotangent_remat` does so for
//!   cotangents at the ops that add them.
//! - `pace`: lets variable updates run before the end of the program.
//! - `partition`: splits a step over the model axis, by shardings.
//! - `amp`: automatic mixed precision.
//! - `as_tpu`: computes f32 products as a TPU's matrix unit does, from bf16 parts.
//! - `widen`: converts a module to f64.
//! - `constants`: turns parameters into constants, and constants into parameters.
//! - `tidy`: folds exact conversions, merges common subexpressions, removes dead code.
//!
//! Every pass has one signature, `run(&Module, &Config) -> Result<(Module, Report), PassError>`: it takes a verified
//! module and returns a verified module with a report of its changes. (The configuration of `amp` is its `Policy`,
//! that of `as_tpu` the arithmetic; `constants` has two functions, `bake` and `lift`.) `grad` and `remat` can also
//! append to the computation that an emitter is writing. The same input gives the same output, byte for byte. A pass
//! reads no files and compiles nothing.
//!
//! ```
//! use bf16scope_hlo::text;
//! use bf16scope_passes::amp::{self, Policy};
//!
//! let module = text::parse(
//!     "HloModule scores
//!      ENTRY main {
//!        x = f32[8,64] parameter(0)
//!        w = f32[64,10] parameter(1)
//!        ROOT scores = f32[8,10] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//!      }",
//!     "scores.hlo",
//! )?;
//! let (lowered, report) = amp::run(&module, &Policy::default())?;
//! assert!(text::print(&lowered, &Default::default()).contains("bf16[8,64]"));
//! assert!(!report.explain("scores").is_empty()); // the decision, and why
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

use bf16scope_hlo::{InstrId, Instruction, Op};
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};

pub mod amp;
pub mod as_tpu;
pub mod constants;
pub mod cotangent_remat;
mod error;
mod evaluate;
pub mod grad;
pub mod name_pattern;
mod order;
pub mod pace;
pub mod partition;
pub mod remat;
pub mod tidy;
pub mod tuning;
pub mod widen;

pub use error::{PassError, PassErrorKind, Place};
pub use name_pattern::matches as name_matches;

/// Whether an instruction has more than its value tied to it: a sharding, attributes for a compiler, or control
/// dependencies. Such an instruction is not merged or removed, even if another one has the same value.
fn is_tied(instr: &Instruction) -> bool {
    instr.sharding.is_some()
        || !instr.frontend_attributes.is_empty()
        || !instr.backend_config.is_empty()
        || !instr.control_predecessors.is_empty()
}

/// The operands and control predecessors of an instruction.
fn taken_or_awaited(instr: &Instruction) -> impl Iterator<Item = InstrId> + '_ {
    instr.operands.iter().chain(&instr.control_predecessors).copied()
}

/// Hashes all attributes of an op, by its `Debug` form, as it may hold floats.
fn hash_debug(hasher: &mut DefaultHasher, op: &Op) {
    struct HashedText<'a>(&'a mut DefaultHasher);
    impl fmt::Write for HashedText<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let written = write!(HashedText(hasher), "{op:?}");
    debug_assert!(written.is_ok(), "a hasher takes all that is written");
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::Module;

    type Pass<C, R> = fn(&Module, &C) -> Result<(Module, R), PassError>;

    /// Compiles only for functions of the one signature.
    fn pass<C, R>(_: Pass<C, R>) -> usize {
        1
    }

    #[test]
    fn all_passes_have_one_signature() {
        let n_passes = pass(amp::run)
            + pass(as_tpu::run)
            + pass(constants::bake)
            + pass(constants::lift)
            + pass(cotangent_remat::run)
            + pass(grad::run)
            + pass(pace::run)
            + pass(partition::run)
            + pass(remat::run)
            + pass(tidy::run)
            + pass(widen::run);
        let documented = include_str!("lib.rs").lines().filter(|line| line.starts_with("//! - `")).count();
        // `cotangent_remat` stands on the line of `remat`, and `constants` has two.
        assert_eq!(n_passes, documented + 2);
    }
}
