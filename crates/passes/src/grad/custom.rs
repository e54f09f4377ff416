//! Custom VJPs in reverse mode: checks the cotangents that a rule returns, and detects gradients that would be lost.

use super::passes_variation;
use crate::{PassError, PassErrorKind, Place};
use bf16scope_hlo::{Computation, CustomVjp, Emitter, InstrId, Op, POISON, Shape};
use std::collections::BTreeSet;

fn problem(at: Place, text: impl Into<String>, help: &str) -> PassError {
    PassError::new(PassErrorKind::NoGradient, text).at(at).with_help(help)
}

/// The error that the array at `at` has the mark of a custom VJP whose rule is missing.
pub(super) fn no_rule(at: Place) -> PassError {
    let text =
        "it has a custom VJP, whose rule no module holds: the instructions that made it would give another gradient";
    problem(at, text, "take gradients in the graph, by passes::grad::gradients, before Graph::finish")
}

/// The error that the array at `at` depends on a variable other than through the inputs of its custom VJP.
pub(super) fn lost(at: Place, variable: &Place) -> PassError {
    let text = format!(
        "it also depends on {variable}, which is not behind an input of its custom VJP: that gradient would be lost"
    );
    problem(at, text, "make it an input; a rule may give zeros for it")
}

/// The rule's cotangents of the inputs, in order; wanted ones are checked.
pub(super) fn cotangents(
    e: &Emitter,
    result: InstrId,
    custom: &CustomVjp,
    g: InstrId,
    wanted: &[bool],
) -> Result<Vec<InstrId>, PassError> {
    let returned = (custom.rule)(e, g, wanted);
    if let Some(error) = e.error() {
        return Err(PassError::from(Box::new(error)));
    }
    let at = || e.with_module(|module| Place::new(module, e.comp(), result));
    match check(e, custom, g, wanted, &returned) {
        Some((text, help)) => Err(problem(at(), text, help)),
        None => Ok(returned),
    }
}

/// The first mistake in a rule's cotangents, with advice.
fn check(
    e: &Emitter,
    custom: &CustomVjp,
    g: InstrId,
    wanted: &[bool],
    returned: &[InstrId],
) -> Option<(String, &'static str)> {
    let expected = custom.inputs.len();
    if returned.len() != expected {
        let n_returned = returned.len();
        let text = format!("its custom VJP gives {n_returned} cotangents, expected {expected}: one for each input");
        return Some((text, ""));
    }
    e.with_module(|module| {
        let computation = module.comp(e.comp());
        let all = custom.inputs.iter().zip(returned).enumerate().zip(wanted);
        all.filter(|(_, wanted)| **wanted).find_map(|((idx, (&input, &cotangent)), _)| {
            let name = || Place::new(module, e.comp(), input);
            if cotangent == POISON {
                let text = format!("its custom VJP gives POISON for input {idx}, {}, expected a cotangent", name());
                return Some((text, ""));
            }
            let Some(instr) = computation.instructions.get(cotangent.idx()) else {
                let (id, name) = (cotangent.0, name());
                let text =
                    format!("its custom VJP gives instruction {id} for input {idx}, {name}, which the computation has not");
                return Some((text, "an id is one of the graph it was made in"));
            };
            let expected = &computation.instr(input).shape;
            if !same_array(&instr.shape, expected) {
                let (shape, name) = (&instr.shape, name());
                let text = format!("its custom VJP gives {shape} for input {idx}, {name}, expected {expected}");
                return Some((text, "a cotangent has the dtype and dims of its input"));
            }
            let is_linear = depends_on(computation, cotangent, g) || is_constant(computation, cotangent);
            (!is_linear).then(|| {
                let name = name();
                let text = format!(
                    "what its custom VJP gives for input {idx}, {name}, is not computed from the cotangent of the result"
                );
                (text, "a VJP is linear in that cotangent; an id of another graph names some other instruction here")
            })
        })
    })
}

/// Whether both are arrays of one dtype and dims.
fn same_array(a: &Shape, b: &Shape) -> bool {
    a.as_array().is_some() && a.dtype() == b.dtype() && a.dims() == b.dims()
}

/// Whether a value is computed from `g`.
fn depends_on(computation: &Computation, id: InstrId, g: InstrId) -> bool {
    let mut pending = BTreeSet::from([id]);
    while let Some(id) = pending.pop_last() {
        if id == g {
            return true;
        }
        pending.extend(computation.instr(id).operands.iter().filter(|operand| **operand >= g));
    }
    false
}

/// Whether a value is computed from constants alone.
fn is_constant(computation: &Computation, id: InstrId) -> bool {
    let mut pending = BTreeSet::from([id]);
    while let Some(id) = pending.pop_last() {
        let instr = computation.instr(id);
        if instr.operands.is_empty() && !matches!(instr.op, Op::Constant(_) | Op::Iota { .. }) {
            return false;
        }
        pending.extend(&instr.operands);
    }
    true
}

/// A variable on which `result` depends other than through the inputs of its custom VJP, in a way that has a gradient.
/// `varied` says for each instruction before `result` whether it depends on a variable; `inputs` returns the inputs of
/// a custom VJP.
pub(super) fn lost_variable(
    computation: &Computation,
    result: InstrId,
    varied: &[bool],
    wrt: &BTreeSet<InstrId>,
    inputs: &dyn Fn(InstrId) -> Option<Vec<InstrId>>,
) -> Option<InstrId> {
    let vjp_inputs: BTreeSet<InstrId> = inputs(result)?.into_iter().collect();
    let mut pending = BTreeSet::from([result]);
    while let Some(id) = pending.pop_last() {
        let instr = computation.instr(id);
        if id != result && wrt.contains(&id) {
            return Some(id);
        }
        let next = match inputs(id) {
            Some(inputs) if id != result => inputs,
            _ if !passes_variation(instr) => Vec::new(),
            _ => instr.operands.clone(),
        };
        pending.extend(next.into_iter().filter(|operand| varied[operand.idx()] && !vjp_inputs.contains(operand)));
    }
    None
}
