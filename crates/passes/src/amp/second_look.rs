//! A second look at what a policy asked for: roundings that there is reason to think will hurt.
//!
//! The default policy leaves some values f32 for what reads them: a choice, a recurrence, a sine, a decomposition, a
//! cancellation. Where another policy rounds one of these, the report names it, and says what would leave it f32.

use super::facts::Need;
use super::policy::{Boundary, Policy, Reach};
use super::report::{Decision, Hurt, LoweringReport};
use crate::PassError;
use bf16scope_hlo::Module;
use std::collections::BTreeMap;

const NEEDS: [Need; 5] = [Need::Choice, Need::Recurrence, Need::Angle, Need::Decomposition, Need::Cancellation];

/// What a policy rounds that the default leaves f32 for a reader, in the order of the module.
///
/// # Errors
/// What lowering by the default policy refuses.
pub(super) fn hurts(module: &Module, policy: &Policy, report: &LoweringReport) -> Result<Vec<Hurt>, PassError> {
    let asked = policy.clone();
    let usual = Policy {
        dtype: asked.dtype,
        keep: asked.keep,
        losses: asked.losses,
        data: asked.data,
        decided: asked.decided,
        min_elements: asked.min_elements,
        sums: asked.sums,
        ..Policy::default()
    };
    if usual == *policy || policy.reach == Reach::None || report.n_lowered() == 0 {
        return Ok(Vec::new());
    }
    let (_, usual) = super::lowered(module, &usual)?;
    let need = |decision: &Decision| NEEDS.into_iter().find(|need| decision.rule.starts_with(need.why()));
    let needed: BTreeMap<&str, (Need, &Decision)> = usual
        .decisions
        .iter()
        .filter(|decision| !decision.is_lowered)
        .filter_map(|decision| Some((&decision.instruction[..], (need(decision)?, decision))))
        .collect();
    let mut hurts: Vec<(Need, Hurt)> = Vec::new();
    for decision in report.decisions.iter().filter(|decision| decision.is_lowered) {
        let Some((need, usual)) = needed.get(&decision.instruction[..]) else { continue };
        let same = |(of, hurt): &&mut (Need, Hurt)| of == need && hurt.read_by == usual.from;
        if let Some((_, hurt)) = hurts.iter_mut().find(same) {
            hurt.n += 1;
            continue;
        }
        hurts.push((
            *need,
            Hurt {
                instruction: decision.instruction.clone(),
                opcode: decision.opcode.clone(),
                n: 1,
                read_by: usual.from.clone().filter(|from| *from != decision.instruction),
                why: need.why().to_string(),
                remedy: remedy(*need, policy, decision),
            },
        ));
    }
    Ok(hurts.into_iter().map(|(_, hurt)| hurt).collect())
}

/// What leaves a value f32 that is rounded against such a need.
fn remedy(need: Need, policy: &Policy, decision: &Decision) -> String {
    let name = &decision.instruction;
    if need == Need::Choice && policy.choices == Boundary::Lower {
        format!("`choices: keep` in a policy leaves all scores f32, --keep '{name}' this one")
    } else {
        format!("--keep '{name}' leaves it f32; the policy `default` leaves all such values")
    }
}
