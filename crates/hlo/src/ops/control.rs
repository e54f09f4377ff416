//! Tuples, calls, loops, branches, custom calls, barriers.

pub mod grad;

use super::{Callees, RuleError, operands};
use crate::{CompId, DType, Shape};

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
    /// The called computations.
    pub called: Vec<CompId>,
    /// `operand_layout_constraints`, one shape with layout per operand; empty = none.
    pub operand_layouts: Vec<Shape>,
}

/// Any → the tuple of them.
pub(super) fn tuple(operands: &[&Shape]) -> Result<Shape, RuleError> {
    Ok(Shape::Tuple(operands.iter().map(|shape| shape.without_layout()).collect()))
}

/// A tuple → its element at `index`.
pub(super) fn get_tuple_element(index: i64, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "get-tuple-element";
    let [tuple] = operands::arity(op, operands)?;
    let Shape::Tuple(elements) = tuple else {
        let message = format!("get-tuple-element operand is {}, expected a tuple", tuple.without_layout());
        return Err(RuleError::new("get-tuple-element/kind", message));
    };
    match usize::try_from(index).ok().and_then(|index| elements.get(index)) {
        Some(element) => Ok(element.without_layout()),
        None => {
            let message = format!("index is {index}, expected 0 <= index < {}", elements.len());
            Err(RuleError::new("get-tuple-element/index", message))
        }
    }
}

/// The computation's arguments → its result. Operands have the parameters' shapes, up to layout.
pub(super) fn call(callees: &dyn Callees, to_apply: CompId, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let signature = operands::signature(callees, "call", "to_apply", to_apply)?;
    let result = signature.result.without_layout();
    let arguments: Vec<Shape> = operands.iter().map(|shape| shape.without_layout()).collect();
    operands::check_signature("call", "to_apply", &signature, &arguments, &result)?;
    Ok(result)
}

/// Applies `body` to the state while `condition` returns true for it.
///
/// # Shapes
/// The state (any shape, usually a tuple) → the same. `condition`: state → `pred`; `body`: state → state.
///
/// # Source
/// `ShapeInference::InferWhileShape`.
pub(super) fn while_loop(
    callees: &dyn Callees,
    condition: CompId,
    body: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "while";
    let [state] = operands::arity(op, operands)?;
    let state = [state.without_layout()];
    let signature = operands::signature(callees, op, "condition", condition)?;
    operands::check_signature(op, "condition", &signature, &state, &Shape::scalar(DType::Pred))?;
    let signature = operands::signature(callees, op, "body", body)?;
    operands::check_signature(op, "body", &signature, &state, &state[0])?;
    let [state] = state;
    Ok(state)
}

/// Runs the branch that the selector selects, with that branch's argument.
///
/// # Shapes
/// Selector (a `pred` or `s32` scalar), one argument per branch → what every branch gives. Each branch takes exactly
/// one parameter; several values travel as a tuple.
///
/// # Source
/// `ShapeInference::InferConditionalShape`.
pub(super) fn conditional(
    callees: &dyn Callees,
    conditional: &Conditional,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "conditional";
    let n_branches = conditional.branches.len();
    let Some((selector, arguments)) = operands.split_first() else {
        return Err(operands::arity_error(op, n_branches + 1, 0));
    };
    let selector = operands::scalar(op, "selector", selector)?;
    operands::dtype(op, "selector", selector, |dtype| matches!(dtype, DType::Pred | DType::S32), "pred or s32")?;
    let counts_fit = if selector.dtype == DType::Pred { n_branches == 2 } else { n_branches >= 1 };
    if !counts_fit {
        let expected = if selector.dtype == DType::Pred { "exactly 2 branches" } else { "1 or more branches" };
        let message = format!("conditional on {} takes {expected}, got {n_branches}", selector.dtype);
        return Err(RuleError::new("conditional/branches", message));
    }
    if arguments.len() != n_branches {
        return Err(operands::arity_error(op, n_branches + 1, operands.len())
            .with_help("the selector, then one argument per branch"));
    }
    let result = operands::signature(callees, op, "branch 0", conditional.branches[0])?.result.without_layout();
    for (i, (&branch, argument)) in conditional.branches.iter().zip(arguments).enumerate() {
        let attribute = format!("branch {i}");
        let signature = operands::signature(callees, op, &attribute, branch)?;
        operands::check_signature(op, &attribute, &signature, &[argument.without_layout()], &result)?;
    }
    Ok(result)
}

/// The highest `CustomCallApiVersion` of XLA's `xla_data.proto` (`API_VERSION_TYPED_FFI`).
const LAST_API_VERSION: i32 = 4;

/// Any → the declared shape. Whether the back end knows the target is not checked.
///
/// # Errors
/// An empty target, an unknown API version, layout constraints that are not one array with layout per operand.
///
/// # Source
/// `ShapeVerifier::HandleCustomCall`.
pub(super) fn custom_call(
    call: &CustomCall,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let op = "custom-call";
    let declared = operands::declared(op, declared)?;
    if call.target.is_empty() {
        return Err(RuleError::new("custom-call/target", "custom_call_target is empty, expected a name"));
    }
    if !(0..=LAST_API_VERSION).contains(&call.api_version) {
        let message = format!("api_version is {}, expected 0 to {LAST_API_VERSION}", call.api_version);
        return Err(RuleError::new("custom-call/api-version", message));
    }
    let layouts = &call.operand_layouts;
    if !layouts.is_empty() && layouts.len() != operands.len() {
        let message = format!(
            "operand_layout_constraints has {} shapes, expected {}, one per operand",
            layouts.len(),
            operands.len()
        );
        return Err(RuleError::new("custom-call/layouts", message));
    }
    for (i, (constraint, operand)) in layouts.iter().zip(operands).enumerate() {
        let has_layout = constraint
            .leaves()
            .into_iter()
            .all(|leaf| leaf.as_array().is_none_or(|a| a.dims.is_empty() || a.layout.is_some()));
        if !constraint.is_compatible(operand) || !has_layout {
            let expected = operand.without_layout();
            let message = format!("operand_layout_constraints[{i}] is {constraint}, expected {expected} with a layout");
            return Err(RuleError::new("custom-call/layouts", message));
        }
    }
    Ok(declared.without_layout())
}

/// Any → the same. Code does not move across it in either direction.
pub(super) fn optimization_barrier(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [value] = operands::arity("opt-barrier", operands)?;
    Ok(value.without_layout())
}

#[cfg(test)]
mod tests;
