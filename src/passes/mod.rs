//! Passes: functions from modules to modules.
//!
//! `grad` (reverse mode), `remat` (what the backward pass computes again instead of keeping), `residual` (cotangents that
//! are made again where they are added), `pace` (updates that do not wait for the end of the program), `amp` (automatic low precision) and `tidy` (dead code, common subexpressions, exact
//! conversions). A pass takes a verified module and gives a verified module; the same input gives the same output, byte
//! for byte. No pass reads files or compiles anything.

use crate::hlo::Instruction;

pub mod amp;
mod glob;
pub mod grad;
mod order;
pub mod pace;
pub mod remat;
pub mod residual;
pub mod tidy;

/// Whether more than a value is tied to an instruction: how it is laid over devices, what a compiler is told of it, what
/// it waits for. Such an instruction stays, though another one has its value.
fn is_tied(instr: &Instruction) -> bool {
    instr.sharding.is_some()
        || !instr.frontend_attributes.is_empty()
        || !instr.backend_config.is_empty()
        || !instr.control_predecessors.is_empty()
}

/// Why a pass could not rewrite a module.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// From [`grad`].
    #[error(transparent)]
    Grad(#[from] grad::GradError),
    /// From [`amp`].
    #[error(transparent)]
    Amp(#[from] amp::AmpError),
}
