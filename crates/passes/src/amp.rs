//! Automatic mixed precision: takes any HLO module and returns the same program with its heavy work in bf16 (or f16),
//! and a report of the decision on each instruction, with its reason.
//!
//! This is TensorFlow's `auto_mixed_precision` for HLO: [`Class`](bf16scope_hlo::ops::precision::Class) says how an op
//! may be lowered, a [`Policy`] overrides that, `assign` decides for each value, and `rewrite` writes the module.
//! docs/HOW_PRECISION_IS_DECIDED.md describes the decisions. Only f32 is ever lowered. The pass does not scale losses
//! for f16 (the report says where that is needed), and it does not simplify: whatever it does not retype stays as it
//! was, name included, except for a barrier before some lookups and for sums that are written part by part (`tiles`).
//!
//! Guarantees: the result passes the verifier. Unless the policy says otherwise, parameters and results keep their
//! types, and so do the operands and results of unknown ops; loops and branches keep the types at their borders,
//! except for arrays between products (`crossings`). A called computation that two callers need in different dtypes is
//! copied. A computation has one cast per value and direction. A rounding that the program asks for (f32 → bf16 → f32,
//! `reduce-precision`) is never dropped.

use bf16scope_hlo::{Module, verify};

mod assign;
mod assignment;
mod cancellation;
mod data_movement;
mod dataflow;
mod decided;
mod decision;
mod differences;
mod discrete_choices;
mod document;
mod ends;
mod equal_expressions;
mod flow;
mod frame;
mod ids;
pub mod keys;
mod loops;
mod loss;
mod needs;
mod policy;

mod materialised;
mod powers;
pub mod presets;
mod provenance;
mod range;
mod recurrences;
mod regions;
mod report;
mod rewrite;
mod sums;
mod terms;
mod tiles;

pub use decided::{Decided, StoredAs};
pub use keys::{Accumulate, Boundary, LowDType, Narrow, Policy, PolicyDocument, Reach, Rounds, Sums};
pub use loss::TakenLoss;
pub use policy::PolicyError;
pub use report::{Cast, Decision, Hurt, LoweringReport, Total, reasons};

use crate::{PassError, PassErrorKind};
use assignment::{Crossing, RegionContext, RegionKind};
use rewrite::Rewriter;

/// Lowers a module.
///
/// # Errors
/// The module does not verify, or the policy is invalid.
pub fn run(module: &Module, policy: &Policy) -> Result<(Module, LoweringReport), PassError> {
    policy.check().map_err(|error| PassError::new(PassErrorKind::Config, error.to_string()))?;
    verify(module).map_err(|errors| {
        PassError::new(PassErrorKind::Invalid, format!("the module does not verify, so it was not lowered:\n{errors}"))
    })?;
    policy.check_numbers(module).map_err(|error| PassError::new(PassErrorKind::Config, error.to_string()))?;
    let (lowered, mut report) = lowered(module, policy)?;
    report.hurts = report::hurts(module, policy, &report)?;
    Ok((lowered, report))
}

/// Lowers a verified module by a checked policy.
fn lowered(module: &Module, policy: &Policy) -> Result<(Module, LoweringReport), PassError> {
    let mut rewriter = Rewriter::new(module, policy);
    let entry = rewriter.region(module.entry, RegionKind::Entry, &Crossing::default(), &RegionContext::default());
    let differentiates = rewriter.differentiates;
    let losses = std::mem::take(&mut rewriter.losses);
    let (lowered, parts) = rewriter.finish(entry);
    verify(&lowered).map_err(|errors| PassError::broken("lowering", &errors))?;
    let mut report = report::report(policy, &lowered, parts);
    report.losses = losses;
    if policy.dtype == LowDType::F16 && (differentiates || report.n_lowered() > 0) {
        report.notes.push(if differentiates { F16_NOTE } else { F16_RANGE_NOTE }.to_string());
    }
    report.notes.extend(policy.idle(module));
    Ok((lowered, report))
}

/// The note for any program that is lowered to f16.
const F16_RANGE_NOTE: &str = "f16 ends at 65504, where f32 and bf16 end at 3.4e38: products, sums, squares and exponentials \
                              beyond it become infinite, and nothing is scaled. `bf16scope audit` with the same policy names \
                              the first instruction where that happens; --keep leaves it in f32, and bf16 has f32's range";

/// The note for a training program that is lowered to f16.
const F16_NOTE: &str = "this program differentiates a scalar loss, and in f16 gradients under 6e-8 vanish and values over \
                        65504 overflow: lowering cannot scale the loss, as unscaling gradients and skipping a step that \
                        overflowed are the optimizer's work. Unless it does so already, scale the loss in the program (static, \
                        or dynamic from 2^15, doubled after 2000 finite steps and halved on a non-finite gradient), or \
                        lower to bf16, which needs no scaling";
