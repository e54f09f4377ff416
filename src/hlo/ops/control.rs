//! Tuples, calls, loops, branches, custom calls, barriers.

use super::RuleError;
use crate::hlo::{CompId, Module, Shape};

/// Attributes of `conditional`. Operands: the selector, then one argument per branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditional {
    /// The computations. With a `pred` selector exactly two: true, then false. With an `s32` selector any number; an
    /// index out of range takes the last.
    pub branches: Vec<CompId>,
}

/// Attributes of `custom-call`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CustomCall {
    /// `custom_call_target`.
    pub target: String,
    /// `custom_call_has_side_effect`.
    pub has_side_effect: bool,
    /// `api_version`, XLA's `CustomCallApiVersion` number; 0 = unspecified.
    pub api_version: i32,
    /// Computations handed over.
    pub called: Vec<CompId>,
    /// `operand_layout_constraints`, one shape with layout per operand; empty = none.
    pub operand_layouts: Vec<Shape>,
}

/// Any → the tuple of them.
pub(super) fn tuple(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = operands;
    todo!()
}

/// A tuple → its element.
pub(super) fn get_tuple_element(index: i64, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (index, operands);
    todo!()
}

/// The computation's arguments → its result.
pub(super) fn call(module: &Module, to_apply: CompId, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (module, to_apply, operands);
    todo!()
}

/// The state → the state.
pub(super) fn while_loop(
    module: &Module,
    condition: CompId,
    body: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let _ = (module, condition, body, operands);
    todo!()
}

/// Selector, one argument per branch → what every branch gives.
pub(super) fn conditional(module: &Module, conditional: &Conditional, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (module, conditional, operands);
    todo!()
}

/// Any → the declared shape.
pub(super) fn custom_call(
    call: &CustomCall,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let _ = (call, operands, declared);
    todo!()
}

/// Any → the same.
pub(super) fn optimization_barrier(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = operands;
    todo!()
}
