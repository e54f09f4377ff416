//! A second look at the roundings that a policy asked for: those that are likely to hurt accuracy.
//!
//! The default policy leaves some values f32 for their consumers: a choice, a recurrence, a sine, a decomposition, a
//! cancellation. If another policy rounds one of these, the report names it, and how to keep it f32.

use super::policy::{Boundary, Policy, Reach};
use super::report::{Decision, Hurt, LoweringReport, reasons};
use crate::PassError;
use bf16scope_hlo::Module;
use std::collections::BTreeMap;

/// The prefix of the names of rules that leave a value f32 for a consumer, and the rule for choices among them.
const NEEDED: &str = "Needed(";
const CHOICE: &str = "Needed(Choice)";

/// The values that a policy rounds though the default leaves them f32 for a consumer, in the order of the module.
///
/// # Errors
/// The errors of lowering by the default policy.
pub(super) fn hurts(module: &Module, policy: &Policy, report: &LoweringReport) -> Result<Vec<Hurt>, PassError> {
    let policy_keys = policy.clone();
    let usual = Policy {
        dtype: policy_keys.dtype,
        keep: policy_keys.keep,
        losses: policy_keys.losses,
        data: policy_keys.data,
        decided: policy_keys.decided,
        min_elements: policy_keys.min_elements,
        sums: policy_keys.sums,
        ..Policy::default()
    };
    if usual == *policy || policy.reach == Reach::None || report.n_lowered() == 0 {
        return Ok(Vec::new());
    }
    let (_, usual) = super::lowered(module, &usual)?;
    let needs: Vec<(String, String)> = reasons().into_iter().filter(|(rule, _)| rule.starts_with(NEEDED)).collect();
    let need = |decision: &Decision| needs.iter().find(|(_, why)| decision.rule.starts_with(&why[..]));
    let needed: BTreeMap<&str, (&(String, String), &Decision)> = usual
        .decisions
        .iter()
        .filter(|decision| !decision.is_lowered)
        .filter_map(|decision| Some((&decision.instruction[..], (need(decision)?, decision))))
        .collect();
    let mut hurts: Vec<Hurt> = Vec::new();
    for decision in report.decisions.iter().filter(|decision| decision.is_lowered) {
        let Some(((rule, why), usual)) = needed.get(&decision.instruction[..]) else { continue };
        let read_by = usual.from.clone().filter(|from| *from != decision.instruction);
        if let Some(hurt) = hurts.iter_mut().find(|hurt| hurt.why == *why && hurt.read_by == read_by) {
            hurt.n += 1;
            continue;
        }
        hurts.push(Hurt {
            instruction: decision.instruction.clone(),
            opcode: decision.opcode.clone(),
            n: 1,
            read_by,
            why: why.clone(),
            remedy: remedy(rule == CHOICE, policy, decision),
        });
    }
    Ok(hurts)
}

/// How to keep such a value f32.
fn remedy(is_choice: bool, policy: &Policy, decision: &Decision) -> String {
    let name = &decision.instruction;
    if is_choice && policy.choices == Boundary::Lower {
        format!("`choices: keep` in a policy leaves all scores f32, --keep '{name}' this one")
    } else {
        format!("--keep '{name}' leaves it f32; the policy `default` leaves all such values")
    }
}
