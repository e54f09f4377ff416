//! Accepts and rejects of the rules of tuples, calls, loops and branches; messages are compared whole.

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
