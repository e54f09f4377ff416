//! An audit: tables and conclusions on a terminal, and a page with plots.

mod cycles;
mod page;
mod screen;
mod step;

use std::path::PathBuf;

use serde::Serialize;

use bf16scope_audit::{Audit, AuditRow, F32Failure, FirstBeyond, ResultRow, Search};
use bf16scope_hlo::numerics::compare::Errors;
use bf16scope_passes::amp::Policy;
use bf16scope_passes::as_tpu::TpuArithmetic;

pub use cycles::AuditCycles;
pub use page::page;
pub use screen::{first_beyond_line, number, render};
pub use step::{AtStep, is_same};

/// All results of the command; also the output of `--json`.
#[derive(Debug, Serialize)]
pub struct AuditOutcome {
    /// The module, the experiment or the folder of its run.
    pub file: PathBuf,
    /// The audited step of a run, if one was selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<AtStep>,
    /// The measurement of a search for that step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_beyond: Option<FirstBeyond>,
    /// Whether subnormal numbers became 0 where f32 becomes bf16.
    pub flush_subnormals: bool,
    /// How it was lowered.
    pub policy: Policy,
    /// Largest scaled error of a result; `null` if one is not finite.
    pub error: f64,
    /// The largest error that a result may have, if there is a bound.
    pub budget: Option<f64>,
    /// Whether the results are within the budget (or equal, if they are only integers and predicates), and no
    /// instruction introduces a NaN or infinity. `null` if that cannot be judged: results differ and there is no
    /// budget, f32's own results are not a reliable reference, or no result is to be judged.
    pub is_right: Option<bool>,
    /// Why f32's own results are not a reliable reference, if so: nothing is recommended then.
    pub f32_fails: Option<F32Failure>,
    /// The source of the inputs.
    #[serde(skip)]
    pub inputs: InputsFrom,
    /// The file with the policy that was found.
    pub saved_policy: Option<PathBuf>,
    /// The instructions that a search found to keep in f32.
    pub search: Option<Search>,
    /// The cost of the search's list on a TPU, if a target was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<AuditCycles>,
    /// The f32 module in a TPU's arithmetic, if requested.
    pub f32_as: Option<F32As>,
    /// Every instruction and result.
    #[serde(flatten)]
    pub audit: Audit,
}

/// The source of an audit's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputsFrom {
    /// A step of a run.
    Run,
    /// A file, for all inputs.
    File,
    /// Random, for some inputs.
    Drawn,
}

/// The f32 module in a TPU's arithmetic.
#[derive(Debug, Serialize)]
pub struct F32As {
    /// The arithmetic.
    pub arithmetic: TpuArithmetic,
    /// Largest scaled error of a result.
    pub error: f64,
    /// Every instruction and result.
    pub audit: Audit,
}

impl F32As {
    /// The error of an instruction.
    pub fn instruction(&self, instruction: &str) -> Option<&AuditRow> {
        self.audit.rows.iter().find(|row| row.instruction == instruction)
    }

    /// The errors of the same result.
    pub fn result(&self, row: &ResultRow) -> Option<Errors> {
        self.audit.results.iter().find(|other| other.index == row.index).and_then(|row| row.errors)
    }
}
