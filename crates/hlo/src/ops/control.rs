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
mod tests {
    use super::super::testing::{computation, expect, expect_in, shape};
    use super::super::{Op, infer_shape};
    use super::*;
    use crate::Layout;
    use crate::Module;
    use expect_test::expect as text;

    #[test]
    fn tuples() {
        expect(&Op::Tuple, &["f32[2]", "token[]", "(s32[])"], "", text!["(f32[2], token[], (s32[]))"]);
        expect(&Op::Tuple, &[], "", text!["()"]);
        expect(&Op::GetTupleElement { index: 1 }, &["(f32[2], s32[])"], "", text!["s32[]"]);
        expect(
            &Op::GetTupleElement { index: 2 },
            &["(f32[2], s32[])"],
            "",
            text!["get-tuple-element/index: index is 2, expected 0 <= index < 2"],
        );
        expect(
            &Op::GetTupleElement { index: i64::MIN },
            &["()"],
            "",
            text!["get-tuple-element/index: index is -9223372036854775808, expected 0 <= index < 0"],
        );
        expect(
            &Op::GetTupleElement { index: 0 },
            &["f32[2]"],
            "",
            text!["get-tuple-element/kind: get-tuple-element operand is f32[2], expected a tuple"],
        );
        expect(
            &Op::GetTupleElement { index: 0 },
            &[],
            "",
            text!["operands/arity: get-tuple-element takes 1 operand, got 0"],
        );
        expect(&Op::OptimizationBarrier, &["(f32[2], token[])"], "", text!["(f32[2], token[])"]);
        expect(
            &Op::OptimizationBarrier,
            &["f32[2]", "f32[2]"],
            "",
            text!["operands/arity: opt-barrier takes 1 operand, got 2"],
        );
    }

    #[test]
    fn calls() {
        let mut module = Module::new("test");
        let to_apply = computation(&mut module, &["f32[2]", "s32[]"], "(f32[3])");
        expect_in(&module, &Op::Call { to_apply }, &["f32[2]", "s32[]"], "", text!["(f32[3])"]);
        expect_in(
            &module,
            &Op::Call { to_apply },
            &["f32[2]", "u32[]"],
            "",
            text![[r#"
                operands/signature: call to_apply is (f32[2], s32[]) -> (f32[3]), expected (f32[2], u32[]) -> (f32[3])"#]],
        );
        expect_in(
            &module,
            &Op::Call { to_apply },
            &["f32[2]"],
            "",
            text!["operands/signature: call to_apply is (f32[2], s32[]) -> (f32[3]), expected (f32[2]) -> (f32[3])"],
        );
        let empty = Op::Call { to_apply: module.entry };
        expect_in(
            &module,
            &empty,
            &[],
            "",
            text!["operands/computation: call to_apply is computation 0, expected one that exists and has a root"],
        );
    }

    #[test]
    fn loops() {
        let mut module = Module::new("test");
        let state = "(s32[], f32[2])";
        let condition = computation(&mut module, &[state], "pred[]");
        let body = computation(&mut module, &[state], state);
        let longer = computation(&mut module, &[state], "(s32[], f32[3])");
        let run = |condition, body| Op::While { condition, body };
        expect_in(&module, &run(condition, body), &[state], "", text!["(s32[], f32[2])"]);
        expect_in(
            &module,
            &run(condition, longer),
            &[state],
            "",
            text![[r#"
                operands/signature: while body is ((s32[], f32[2])) -> (s32[], f32[3]), expected ((s32[], f32[2])) -> (s32[], f32[2])"#]],
        );
        expect_in(
            &module,
            &run(body, body),
            &[state],
            "",
            text![[r#"
                operands/signature: while condition is ((s32[], f32[2])) -> (s32[], f32[2]), expected ((s32[], f32[2])) -> pred[]"#]],
        );
        expect_in(
            &module,
            &run(condition, body),
            &["f32[]"],
            "",
            text!["operands/signature: while condition is ((s32[], f32[2])) -> pred[], expected (f32[]) -> pred[]"],
        );
        expect_in(
            &module,
            &run(condition, body),
            &[state, state],
            "",
            text!["operands/arity: while takes 1 operand, got 2"],
        );
    }

    #[test]
    fn conditionals() {
        let mut module = Module::new("test");
        let double = computation(&mut module, &["f32[2]"], "f32[3]");
        let other = computation(&mut module, &["s32[]"], "f32[3]");
        let odd = computation(&mut module, &["s32[]"], "f32[4]");
        let op = |branches: &[CompId]| Op::Conditional(Conditional { branches: branches.to_vec() });
        expect_in(&module, &op(&[double, other]), &["pred[]", "f32[2]", "s32[]"], "", text!["f32[3]"]);
        expect_in(&module, &op(&[double]), &["s32[]", "f32[2]"], "", text!["f32[3]"]);
        expect_in(
            &module,
            &op(&[double]),
            &["pred[]", "f32[2]"],
            "",
            text!["conditional/branches: conditional on pred takes exactly 2 branches, got 1"],
        );
        expect_in(
            &module,
            &op(&[]),
            &["s32[]"],
            "",
            text!["conditional/branches: conditional on s32 takes 1 or more branches, got 0"],
        );
        expect_in(&module, &op(&[]), &[], "", text!["operands/arity: conditional takes 1 operand, got 0"]);
        expect_in(
            &module,
            &op(&[double, other]),
            &["pred[]", "f32[2]"],
            "",
            text![[r#"
            operands/arity: conditional takes 3 operands, got 2
              help: the selector, then one argument per branch"#]],
        );
        expect_in(
            &module,
            &op(&[double, odd]),
            &["pred[]", "f32[2]", "s32[]"],
            "",
            text!["operands/signature: conditional branch 1 is (s32[]) -> f32[4], expected (s32[]) -> f32[3]"],
        );
        expect_in(
            &module,
            &op(&[double, other]),
            &["pred[]", "f32[2]", "f32[]"],
            "",
            text!["operands/signature: conditional branch 1 is (s32[]) -> f32[3], expected (f32[]) -> f32[3]"],
        );
        expect_in(
            &module,
            &op(&[double]),
            &["u32[]", "f32[2]"],
            "",
            text![[r#"
            operands/dtype: conditional selector is u32[], expected pred or s32
              help: insert a `convert` to such a dtype"#]],
        );
        expect_in(
            &module,
            &op(&[double]),
            &["s32[1]", "f32[2]"],
            "",
            text!["operands/scalar: conditional selector is s32[1], expected a scalar"],
        );
    }

    #[test]
    fn custom_calls() {
        let op = |change: &dyn Fn(&mut CustomCall)| {
            let mut call = CustomCall { target: "target".into(), ..CustomCall::default() };
            change(&mut call);
            Op::CustomCall(Box::new(call))
        };
        expect(&op(&|_| ()), &["f32[2]"], "(f32[3], token[])", text!["(f32[3], token[])"]);
        expect(
            &op(&|_| ()),
            &["f32[2]"],
            "",
            text![[r#"
            operands/declared: custom-call has no declared shape, expected one
              help: the operands of custom-call do not fix its result: declare the result's shape"#]],
        );
        expect(
            &op(&|call| call.target.clear()),
            &["f32[2]"],
            "f32[]",
            text!["custom-call/target: custom_call_target is empty, expected a name"],
        );
        expect(
            &op(&|call| call.api_version = 5),
            &["f32[2]"],
            "f32[]",
            text!["custom-call/api-version: api_version is 5, expected 0 to 4"],
        );
        expect(
            &op(&|call| call.operand_layouts = vec![shape("f32[2]"); 2]),
            &["f32[2]"],
            "f32[]",
            text!["custom-call/layouts: operand_layout_constraints has 2 shapes, expected 1, one per operand"],
        );
        expect(
            &op(&|call| call.operand_layouts = vec![shape("f32[2]")]),
            &["f32[2]"],
            "f32[]",
            text!["custom-call/layouts: operand_layout_constraints[0] is f32[2], expected f32[2] with a layout"],
        );
        let with_layout = shape("f32[2]").with_default_layout();
        expect(&op(&|call| call.operand_layouts = vec![with_layout.clone()]), &["f32[2]"], "f32[]", text!["f32[]"]);
        expect(
            &op(&|call| call.operand_layouts = vec![with_layout.clone()]),
            &["f32[3]"],
            "f32[]",
            text!["custom-call/layouts: operand_layout_constraints[0] is f32[2]{0}, expected f32[3] with a layout"],
        );
    }

    #[test]
    fn results_carry_no_layout() {
        let mut laid_out = shape("f32[2,3]").with_default_layout();
        if let Shape::Array(array) = &mut laid_out {
            array.layout = Some(Layout { minor_to_major: vec![0, 1], ..Layout::default() });
        }
        let tuple = Shape::Tuple(vec![laid_out]);
        let element = infer_shape(&Module::new("test"), &Op::GetTupleElement { index: 0 }, &[&tuple], None);
        assert_eq!(element, Ok(shape("f32[2,3]")));
    }
}
