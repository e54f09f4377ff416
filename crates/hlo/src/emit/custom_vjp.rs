//! Custom VJPs: gradient rules that the user provides.
//!
//! A rule is a closure, so it is stored in the emitter and not in the module. The module has a mark instead, the op
//! type of the result's metadata ([`Metadata::CUSTOM_VJP`](crate::Metadata::CUSTOM_VJP)), which survives passes, text
//! and proto with the metadata. Reverse mode refuses a mark without its rule.

use super::{Emitter, POISON, RuleError};
use crate::{Computation, InstrId, Metadata};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// A custom VJP (vector-Jacobian product): it replaces the chain of rules of the instructions that compute an array,
/// where that chain would keep or compute more than the gradient of the whole function needs.
#[derive(Clone)]
pub struct CustomVjp {
    /// The inputs of the function.
    pub inputs: Vec<InstrId>,
    /// Emits the cotangents of the inputs, in order, from the cotangent of the array. It learns which are wanted; what
    /// it returns for the others is ignored.
    pub rule: Rc<VjpRule>,
}

/// See [`CustomVjp::rule`].
pub type VjpRule = dyn Fn(&Emitter, InstrId, &[bool]) -> Vec<InstrId>;

impl fmt::Debug for CustomVjp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomVjp").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Emitter {
    /// Gives the array `result` a custom VJP, and marks it; returns `result`. The rule applies to all its readers; to
    /// apply it to some readers only, give them a copy.
    ///
    /// # Errors
    /// The result is not a floating-point array, or has a custom VJP already; there are no inputs; or an input is not an
    /// array, is not defined before the result, or does not feed it. Then the method returns [`POISON`].
    pub fn set_custom_vjp(&self, result: InstrId, custom: CustomVjp) -> InstrId {
        let operands = [&[result], custom.inputs.as_slice()].concat();
        if operands.contains(&POISON) {
            return POISON;
        }
        let is_set = self.custom_vjps.borrow().contains_key(&result);
        if let Some(error) = self.with_module(|module| problem(module.comp(self.comp), result, &custom.inputs, is_set))
        {
            return self.fail("custom VJP", &operands, error);
        }
        self.with_module_mut(|module| {
            let computation = &mut module.computations[self.comp.idx()];
            computation.instructions[result.idx()].metadata.op_type = Metadata::CUSTOM_VJP.to_string();
        });
        self.custom_vjps.borrow_mut().insert(result, custom);
        result
    }

    /// The custom VJP of an array, if it has one.
    pub fn custom_vjp(&self, id: InstrId) -> Option<CustomVjp> {
        self.custom_vjps.borrow().get(&id).cloned()
    }

    /// Whether an instruction has no reader so far, and no custom VJP.
    pub fn is_unread(&self, id: InstrId) -> bool {
        let is_read = self.with_module(|module| {
            let later = module.comp(self.comp).instructions.get(id.idx()..).unwrap_or_default();
            later.iter().any(|instr| instr.operands.contains(&id))
        });
        !is_read && !self.custom_vjps.borrow().contains_key(&id)
    }
}

/// Why `result` cannot have a custom VJP as a function of `inputs`.
fn problem(computation: &Computation, result: InstrId, inputs: &[InstrId], is_set: bool) -> Option<RuleError> {
    let n_instructions = computation.instructions.len();
    if let Some(id) = inputs.iter().chain([&result]).find(|id| id.idx() >= n_instructions) {
        let message = format!("instruction {} was named, but there are {n_instructions}", id.0);
        return Some(RuleError::new("custom_vjp/id", message));
    }
    let shape = &computation.instr(result).shape;
    if !shape.as_array().is_some_and(|array| array.dtype.is_float()) {
        let message = format!("the result is {shape}, expected a floating array");
        return Some(RuleError::new("custom_vjp/result", message));
    }
    if is_set {
        let error = RuleError::new("custom_vjp/twice", "the result has a custom VJP already");
        return Some(error.with_help("give the second one to a copy of it"));
    }
    if inputs.is_empty() {
        return Some(RuleError::new("custom_vjp/inputs", "there are no inputs, expected at least 1"));
    }
    let feeding = feeding(computation, result, inputs);
    for (idx, &input) in inputs.iter().enumerate() {
        let shape = &computation.instr(input).shape;
        if shape.as_array().is_none() {
            let message = format!("input {idx} is {shape}, expected an array");
            return Some(RuleError::new("custom_vjp/inputs", message));
        }
        if input == result || !feeding.contains(&input) {
            let what = if input == result { "is the result itself" } else { "does not feed the result" };
            let error = RuleError::new("custom_vjp/inputs", format!("input {idx} {what}"));
            return Some(error.with_help("the inputs are the values that the result is computed from"));
        }
    }
    None
}

/// The `inputs` that `result` is computed from.
fn feeding(computation: &Computation, result: InstrId, inputs: &[InstrId]) -> BTreeSet<InstrId> {
    let mut missing: BTreeSet<InstrId> = inputs.iter().copied().collect();
    let mut feeding = BTreeSet::new();
    // The latest first; values earlier than all remaining inputs are skipped.
    let mut pending = BTreeSet::from([result]);
    while let (Some(id), Some(first)) = (pending.pop_last(), missing.first().copied()) {
        if missing.remove(&id) {
            feeding.insert(id);
        }
        pending.extend(computation.instr(id).operands.iter().filter(|operand| **operand >= first));
    }
    feeding
}
