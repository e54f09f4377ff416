//! A second look at the roundings that a policy asked for: those that are likely to hurt accuracy.
//!
//! The default policy leaves some values f32 for their consumers: a choice, a recurrence, a sine, a decomposition, a
//! cancellation. If another policy rounds one of these, or an f32 sum that one reads, the report names it, and how to
//! keep it f32.

use super::need::Need;
use super::policy::{Boundary, Policy, Reach};
use super::report::{Decision, Hurt, LoweringReport};
use crate::PassError;
use bf16scope_hlo::Module;
use std::collections::{BTreeMap, BTreeSet};

/// The values that a policy rounds though the default leaves them f32 for a consumer, in the order of the module.
///
/// # Errors
/// The errors of lowering by the default policy.
pub(super) fn hurts(module: &Module, policy: &Policy, report: &LoweringReport) -> Result<Vec<Hurt>, PassError> {
    let Policy { dtype, keep, losses, data, decided, min_elements, sums, .. } = policy.clone();
    let usual = Policy { dtype, keep, losses, data, decided, min_elements, sums, ..Policy::default() };
    if usual == *policy || policy.reach == Reach::None || report.n_lowered() == 0 {
        return Ok(Vec::new());
    }
    let (_, usual) = super::lowered(module, &usual)?;
    let needed = usual.decisions.iter().filter(|decision| decision.need.is_some() && decision.new == decision.old);
    let needed: BTreeMap<&str, &Decision> = needed.map(|decision| (&decision.instruction[..], decision)).collect();
    let (readers, usual_readers) = (low_readers(report), low_readers(&usual));
    let mut hurts: Vec<Hurt> = Vec::new();
    for decision in &report.decisions {
        let Some(usual) = needed.get(&decision.instruction[..]) else { continue };
        let Some((need, reader)) = &usual.need else { continue };
        let is_rounded = decision.new != decision.old || decision.is_lowered && !usual.is_lowered;
        // A loop or a branch keeps the types at its border, whatever is rounded within and behind.
        let runs_regions = matches!(&decision.opcode[..], "while" | "conditional");
        let is_read_low = runs_regions && readers.contains(&reader[..]) && !usual_readers.contains(&reader[..]);
        if !(is_rounded || is_read_low) {
            continue;
        }
        let read_by = Some(reader.clone()).filter(|reader| *reader != decision.instruction);
        let why = need.why();
        if let Some(hurt) = hurts.iter_mut().find(|hurt| hurt.why == why && hurt.read_by == read_by) {
            hurt.n += 1;
            continue;
        }
        hurts.push(Hurt {
            instruction: decision.instruction.clone(),
            opcode: decision.opcode.clone(),
            n: 1,
            read_by,
            why: why.to_string(),
            remedy: remedy(*need, policy, decision, is_rounded),
        });
    }
    Ok(hurts)
}

/// The names of instructions that read the narrow dtype.
fn low_readers(report: &LoweringReport) -> BTreeSet<&str> {
    let readers = report.decisions.iter().filter(|decision| decision.reads_low);
    readers.map(|decision| &decision.instruction[..]).collect()
}

/// How to keep such a value f32.
fn remedy(need: Need, policy: &Policy, decision: &Decision, is_rounded: bool) -> String {
    let name = &decision.instruction;
    if need == Need::Choice && policy.choices == Boundary::Lower {
        format!("`choices: keep` in a policy leaves all scores f32, --keep '{name}' this one")
    } else if is_rounded {
        format!("--keep '{name}' leaves it f32; the policy `default` leaves all such values")
    } else {
        "the policy `default` leaves all such values f32, and the steps that add them up".to_string()
    }
}
