//! Accepts and rejects of the elementwise rules; messages are compared whole.

use super::super::testing::check;
use super::*;
use crate::Op;

/// The dtypes that an op accepts, as far as all its operands have one of these seven.
fn accepted(op: &Op, n_operands: usize) -> Vec<DType> {
    use DType::{BF16, C64, F32, Pred, S32, U8, U64};
    let module = crate::Module::new("test");
    let takes = |dtype: &DType| {
        let shape = Shape::array(*dtype, [2]);
        super::super::infer_shape(&module, op, &vec![&shape; n_operands], None).is_ok()
    };
    [Pred, S32, U8, U64, BF16, F32, C64].into_iter().filter(takes).collect()
}

#[test]
fn unary_ops_take_their_dtypes() {
    use DType::{BF16, C64, F32, Pred, S32, U8, U64};
    for &op in UnaryOp::ALL {
        let expected: &[DType] = match op {
            UnaryOp::Copy => &[Pred, S32, U8, U64, BF16, F32, C64],
            UnaryOp::Not => &[Pred, S32, U8, U64],
            UnaryOp::Clz | UnaryOp::PopulationCount => &[S32, U8, U64],
            UnaryOp::Negate => &[S32, U8, U64, BF16, F32, C64],
            UnaryOp::Abs | UnaryOp::Sign => &[S32, BF16, F32, C64],
            UnaryOp::Cbrt | UnaryOp::Ceil | UnaryOp::Erf | UnaryOp::Floor | UnaryOp::IsFinite => &[BF16, F32],
            UnaryOp::RoundNearestAfz | UnaryOp::RoundNearestEven => &[BF16, F32],
            _ => &[BF16, F32, C64],
        };
        assert_eq!(accepted(&Op::Unary(op), 1), expected, "{op:?}");
    }
}

#[test]
fn binary_ops_take_their_dtypes() {
    use DType::{BF16, C64, F32, Pred, S32, U8, U64};
    for &op in BinaryOp::ALL {
        let expected: &[DType] = match op {
            BinaryOp::Add | BinaryOp::Multiply => &[Pred, S32, U8, U64, BF16, F32, C64],
            BinaryOp::Maximum | BinaryOp::Minimum => &[Pred, S32, U8, U64, BF16, F32],
            BinaryOp::Subtract | BinaryOp::Divide | BinaryOp::Power => &[S32, U8, U64, BF16, F32, C64],
            BinaryOp::Remainder => &[S32, U8, U64, BF16, F32],
            BinaryOp::Atan2 => &[BF16, F32, C64],
            BinaryOp::Complex => &[F32],
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => &[Pred, S32, U8, U64],
            BinaryOp::ShiftLeft | BinaryOp::ShiftRightArithmetic | BinaryOp::ShiftRightLogical => &[S32, U8, U64],
        };
        assert_eq!(accepted(&Op::Binary(op), 2), expected, "{op:?}");
    }
}

#[test]
fn unary_results() {
    let unary = |op, operand, expected| check(&Op::Unary(op), &[operand], "", Ok(expected));
    unary(UnaryOp::Tanh, "bf16[2,<=3]", "bf16[2,<=3]");
    unary(UnaryOp::IsFinite, "bf16[2,3]", "pred[2,3]");
    unary(UnaryOp::Abs, "c64[4]", "f32[4]");
    unary(UnaryOp::Abs, "s8[4]", "s8[4]");
    unary(UnaryOp::Real, "c128[4]", "f64[4]");
    unary(UnaryOp::Imag, "f32[4]", "f32[4]");
    unary(UnaryOp::Sign, "c64[]", "c64[]");
    unary(UnaryOp::Copy, "(f32[2], token[])", "(f32[2], token[])");
}

#[test]
fn results_have_no_layout() {
    let operand = shape_with_layout();
    let module = crate::Module::new("test");
    let result = super::super::infer_shape(&module, &Op::Unary(UnaryOp::Exp), &[&operand], None);
    assert_eq!(result, Ok(operand.without_layout()));
}

fn shape_with_layout() -> Shape {
    Shape::array(DType::F32, [2, 3]).with_default_layout()
}

#[test]
fn every_unary_op_rejects() {
    for &op in UnaryOp::ALL {
        let name = op.name();
        let message = format!("operands/arity: {name} takes 1 operand, got 2");
        check(&Op::Unary(op), &["f32[2]", "f32[2]"], "", Err(&message));
        if op == UnaryOp::Copy {
            continue;
        }
        let message = format!("operands/kind: {name} operand is token[], expected an array");
        check(&Op::Unary(op), &["token[]"], "", Err(&message));
        let domain = Domain::of_unary(op);
        let wrong = if domain.accepts(DType::Pred) { "f32" } else { "pred" };
        let message = format!(
            "operands/dtype: {name} operand is {wrong}[2], expected {}\n  help: insert a `convert` to such a dtype",
            domain.expected()
        );
        check(&Op::Unary(op), &[&format!("{wrong}[2]")], "", Err(&message));
    }
}

#[test]
fn unary_messages() {
    let unary = |op, operand, expected| check(&Op::Unary(op), &[operand], "", Err(expected));
    unary(
        UnaryOp::Exp,
        "s32[2]",
        "operands/dtype: exponential operand is s32[2], expected a float or complex dtype
  help: insert a `convert` to such a dtype",
    );
    unary(
        UnaryOp::Floor,
        "c64[2]",
        "operands/dtype: floor operand is c64[2], expected a float dtype
  help: insert a `convert` to such a dtype",
    );
    unary(
        UnaryOp::Abs,
        "u32[2]",
        "operands/dtype: abs operand is u32[2], expected a signed integer, float or complex dtype
  help: insert a `convert` to such a dtype",
    );
    unary(
        UnaryOp::Copy,
        "(f32[2], f32[-2])",
        "operands/negative-dim: copy operand is f32[-2], expected dims of 0 or more",
    );
}

#[test]
fn binary_results() {
    let binary = |op, operands: [&str; 2], expected| check(&Op::Binary(op), &operands, "", Ok(expected));
    binary(BinaryOp::Add, ["bf16[2,3]", "bf16[2,3]"], "bf16[2,3]");
    binary(BinaryOp::Add, ["f32[2,<=3]", "f32[<=2,3]"], "f32[<=2,<=3]");
    binary(BinaryOp::Complex, ["f32[2]", "f32[2]"], "c64[2]");
    binary(BinaryOp::Complex, ["f64[]", "f64[]"], "c128[]");
    binary(BinaryOp::Power, ["f32[0]", "f32[0]"], "f32[0]");
}

#[test]
fn every_binary_op_rejects() {
    for &op in BinaryOp::ALL {
        let name = op.name();
        let reject = |operands: &[&str], expected: &str| check(&Op::Binary(op), operands, "", Err(expected));
        reject(&["f32[2]"], &format!("operands/arity: {name} takes 2 operands, got 1"));
        reject(&["f32[2]", "(f32[2])"], &format!("operands/kind: {name} rhs is (f32[2]), expected an array"));
        reject(
            &["f32[2]", "bf16[2]"],
            &format!(
                "operands/dtypes-differ: {name} dtypes differ: lhs is f32[2], rhs is bf16[2]
  help: hlo converts nothing by itself: insert a `convert` of rhs to f32 (or of lhs to bf16)"
            ),
        );
        reject(
            &["f32[2,3]", "f32[3]"],
            &format!(
                "operands/dims-differ: {name} dims differ: lhs is f32[2,3], rhs is f32[3]
  help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"
            ),
        );
        let domain = Domain::of_binary(op);
        if domain != Domain::Any {
            let wrong = if domain.accepts(DType::Pred) { "c64[2]" } else { "pred[2]" };
            reject(
                &[wrong, wrong],
                &format!(
                    "operands/dtype: {name} lhs is {wrong}, expected {}\n  help: insert a `convert` to such a dtype",
                    domain.expected()
                ),
            );
        }
    }
}

#[test]
fn complex_takes_f32_or_f64() {
    check(
        &Op::Binary(BinaryOp::Complex),
        &["bf16[2]", "bf16[2]"],
        "",
        Err("complex/parts: complex parts are bf16[2], expected f32 or f64
  help: insert a `convert` of both parts to f32"),
    );
}

fn compare_op(direction: Comparison, kind: Option<CompareKind>) -> Op {
    Op::Compare { direction, kind }
}

#[test]
fn compare_accepts() {
    let accept = |direction, kind, operand: &str, expected| {
        check(&compare_op(direction, kind), &[operand, operand], "", Ok(expected));
    };
    accept(Comparison::Lt, None, "bf16[2,3]", "pred[2,3]");
    accept(Comparison::Lt, Some(CompareKind::TotalOrder), "f32[2]", "pred[2]");
    accept(Comparison::Ge, Some(CompareKind::Float), "f32[2]", "pred[2]");
    accept(Comparison::Ge, Some(CompareKind::Signed), "s8[2]", "pred[2]");
    accept(Comparison::Ge, Some(CompareKind::Unsigned), "u8[2]", "pred[2]");
    accept(Comparison::Ge, Some(CompareKind::Unsigned), "pred[2]", "pred[2]");
    accept(Comparison::Ne, None, "c64[2]", "pred[2]");
}

#[test]
fn a_comparison_holds_or_not_for_numbers_below_at_and_above_each_other() {
    use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
    let holds = |direction: Comparison| [1.0, 2.0, 3.0, f64::NAN].map(|x| direction.holds(x, 2.0));
    assert_eq!(
        [Lt, Le, Gt].map(holds),
        [[true, false, false, false], [true, true, false, false], [false, false, true, false]]
    );
    assert_eq!(
        [Ge, Eq, Ne].map(holds),
        [[false, true, true, false], [false, true, false, false], [true, false, true, true]]
    );
}

#[test]
fn compare_rejects() {
    let reject = |direction, kind, operands: &[&str], expected: &str| {
        check(&compare_op(direction, kind), operands, "", Err(expected));
    };
    reject(
        Comparison::Lt,
        Some(CompareKind::Signed),
        &["f32[2]", "f32[2]"],
        "compare/type: compare type of f32 is SIGNED, expected FLOAT or TOTALORDER
  help: leave the type out to use the dtype's own order",
    );
    reject(
        Comparison::Lt,
        Some(CompareKind::TotalOrder),
        &["s32[2]", "s32[2]"],
        "compare/type: compare type of s32 is TOTALORDER, expected SIGNED
  help: leave the type out to use the dtype's own order",
    );
    reject(
        Comparison::Gt,
        None,
        &["c64[2]", "c64[2]"],
        "compare/complex: compare direction of c64 is GT, expected EQ or NE
  help: complex numbers have no order: compare their `real`, `imag` or `abs`",
    );
    reject(Comparison::Eq, None, &["f32[2]"], "operands/arity: compare takes 2 operands, got 1");
    reject(
        Comparison::Eq,
        None,
        &["f32[2]", "s32[2]"],
        "operands/dtypes-differ: compare dtypes differ: lhs is f32[2], rhs is s32[2]
  help: hlo converts nothing by itself: insert a `convert` of rhs to f32 (or of lhs to s32)",
    );
    reject(
        Comparison::Eq,
        None,
        &["f32[2]", "f32[]"],
        "operands/dims-differ: compare dims differ: lhs is f32[2], rhs is f32[]
  help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one",
    );
}

#[test]
fn select_accepts() {
    check(&Op::Select, &["pred[2]", "bf16[2]", "bf16[2]"], "", Ok("bf16[2]"));
    check(&Op::Select, &["pred[]", "c64[2,3]", "c64[2,3]"], "", Ok("c64[2,3]"));
    check(&Op::Select, &["pred[<=2]", "f32[2]", "f32[2]"], "", Ok("f32[<=2]"));
}

#[test]
fn select_rejects() {
    let reject = |operands: &[&str], expected: &str| check(&Op::Select, operands, "", Err(expected));
    reject(&["pred[]", "f32[]"], "operands/arity: select takes 3 operands, got 2");
    reject(
        &["s32[2]", "f32[2]", "f32[2]"],
        "operands/dtype: select pred is s32[2], expected pred\n  help: insert a `convert` to such a dtype",
    );
    reject(&["pred[]", "(f32[2])", "(f32[2])"], "operands/kind: select on_true is (f32[2]), expected an array");
    reject(
        &["pred[2]", "f32[2]", "bf16[2]"],
        "operands/dtypes-differ: select dtypes differ: on_true is f32[2], on_false is bf16[2]
  help: hlo converts nothing by itself: insert a `convert` of on_false to f32 (or of on_true to bf16)",
    );
    reject(
        &["pred[2]", "f32[2]", "f32[]"],
        "operands/dims-differ: select dims differ: on_true is f32[2], on_false is f32[]
  help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one",
    );
    reject(
        &["pred[3]", "f32[2]", "f32[2]"],
        "operands/dims-differ: select dims differ: pred is pred[3], on_true is f32[2]
  help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one",
    );
}

#[test]
fn clamp_accepts() {
    check(&Op::Clamp, &["bf16[]", "bf16[2,3]", "bf16[2,3]"], "", Ok("bf16[2,3]"));
    check(&Op::Clamp, &["s32[]", "s32[<=4]", "s32[]"], "", Ok("s32[<=4]"));
}

#[test]
fn clamp_rejects() {
    let reject = |operands: &[&str], expected: &str| check(&Op::Clamp, operands, "", Err(expected));
    reject(&["f32[]"], "operands/arity: clamp takes 3 operands, got 1");
    reject(
        &["c64[]", "c64[]", "c64[]"],
        "operands/dtype: clamp operand is c64[], expected a dtype that is not complex
  help: insert a `convert` to such a dtype",
    );
    reject(
        &["f32[]", "bf16[2]", "bf16[]"],
        "operands/dtypes-differ: clamp dtypes differ: operand is bf16[2], low is f32[]
  help: hlo converts nothing by itself: insert a `convert` of low to bf16 (or of operand to f32)",
    );
    reject(
        &["f32[]", "f32[2,3]", "f32[3]"],
        "operands/dims-differ: clamp dims differ: high is f32[3], operand is f32[2,3]
  help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one",
    );
    reject(&["token[]", "f32[2]", "f32[]"], "operands/kind: clamp low is token[], expected an array");
}

#[test]
fn names_round_trip() {
    for &op in UnaryOp::ALL {
        assert_eq!(UnaryOp::from_name(op.name()), Some(op));
    }
    for &op in BinaryOp::ALL {
        assert_eq!(BinaryOp::from_name(op.name()), Some(op));
        assert_eq!(UnaryOp::from_name(op.name()), None);
    }
}
