//! Accepts and rejects of the window rules; messages are compared whole.

use super::super::testing::{computation, expect_in};
use super::super::{BinaryOp, Op};
use super::*;
use crate::Module;
use expect_test::expect as text;

fn window(sizes: &[i64]) -> Window {
    sizes.iter().map(|&size| WindowDim::of_size(size)).collect()
}

#[test]
fn positions_are_those_of_the_formula() {
    for n in 0..9i64 {
        for (size, stride, low, high, window_dilation, base_dilation) in
            [(1, 1, 0, 0, 1, 1), (2, 3, 1, -1, 1, 1), (3, 2, 0, 2, 2, 1), (2, 1, -1, 4, 1, 3), (5, 4, 0, 0, 1, 1)]
        {
            let dim = WindowDim {
                size,
                stride,
                padding_low: low,
                padding_high: high,
                window_dilation,
                base_dilation,
                reversal: false,
            };
            let padded = if n == 0 { 0 } else { (n - 1) * base_dilation + 1 } + low + high;
            let covered = (size - 1) * window_dilation + 1;
            // Counted one by one: starts 0, stride, … whose last element lies within.
            let expected = (0..).map(|i| i * stride).take_while(|start| start + covered <= padded).count() as i64;
            assert_eq!(dim.n_positions(n), expected, "{dim:?} over {n}");
        }
    }
}

#[test]
fn reduce_window() {
    let mut module = Module::new("test");
    let to_apply = module.scalar_computation(BinaryOp::Maximum, DType::BF16);
    let argmax = computation(&mut module, &["f32[]", "s32[]", "f32[]", "s32[]"], "(f32[], s32[])");
    let op = |window: Window| Op::ReduceWindow { window, to_apply };
    let pool = || window(&[1, 2, 2, 1]);
    let operands = ["bf16[8,28,28,<=4]", "bf16[]"];
    expect_in(&module, &op(pool()), &operands, "", text!["bf16[8,27,27,<=4]"]);
    let pair = Op::ReduceWindow { window: window(&[3, 1]), to_apply: argmax };
    expect_in(&module, &pair, &["f32[5,2]", "s32[5,2]", "f32[]", "s32[]"], "", text!["(f32[3,2], s32[3,2])"]);
    expect_in(
        &module,
        &pair,
        &["f32[5,2]", "s32[5,3]", "f32[]", "s32[]"],
        "",
        text![[r#"
            operands/dims-differ: reduce-window dims differ: operand 0 is f32[5,2], operand 1 is s32[5,3]
              help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"#]],
    );
    expect_in(
        &module,
        &pair,
        &["f32[5,2]", "f32[5,2]", "f32[]", "f32[]"],
        "",
        text![[r#"
                operands/signature: reduce-window to_apply is (f32[], s32[], f32[], s32[]) -> (f32[], s32[]), expected (f32[], f32[], f32[], f32[]) -> (f32[], f32[])"#]],
    );
    expect_in(
        &module,
        &op(pool()),
        &["bf16[8,28,28,4]", "f32[]"],
        "",
        text![[r#"
            operands/dtypes-differ: reduce-window dtypes differ: operand 0 is bf16[8,28,28,4], init 0 is f32[]
              help: hlo converts nothing by itself: insert a `convert` of init 0 to bf16 (or of operand 0 to f32)"#]],
    );
    expect_in(
        &module,
        &op(pool()),
        &["bf16[8,28,28,4]", "bf16[1]"],
        "",
        text!["operands/scalar: reduce-window init 0 is bf16[1], expected a scalar"],
    );
    expect_in(
        &module,
        &op(pool()),
        &["bf16[8,28,28,4]"],
        "",
        text!["reduce/arity: reduce-window takes as many arrays as inits, at least one, got 1 in all"],
    );
    expect_in(
        &module,
        &op(pool()),
        &[],
        "",
        text!["reduce/arity: reduce-window takes as many arrays as inits, at least one, got 0 in all"],
    );
    expect_in(
        &module,
        &op(window(&[2, 2])),
        &operands,
        "",
        text![[r#"
                operands/per-dimension: reduce-window window has 2 entries, expected 4, one per dimension of bf16[8,28,28,<=4]"#]],
    );
    expect_in(
        &module,
        &op(window(&[1, 0, 2, 1])),
        &operands,
        "",
        text!["window/attribute: reduce-window window has size 0 in dimension 1, expected 1 or more"],
    );
    let reversed = vec![WindowDim { reversal: true, ..WindowDim::of_size(1) }; 4];
    expect_in(
        &module,
        &op(reversed),
        &operands,
        "",
        text![[r#"
            window/reversal: reduce-window window is reversed in dimension 0, expected no reversal
              help: only convolution reverses its window"#]],
    );
    let padded = vec![WindowDim { padding_low: i64::MAX, padding_high: i64::MIN, ..WindowDim::of_size(1) }; 4];
    expect_in(
        &module,
        &op(padded),
        &operands,
        "",
        text![[r#"
                window/padded-size: reduce-window pads dimension 0 of size 8 (base dilation 1) by 9223372036854775807 and -9223372036854775808 to 7, expected 0 to 2^63 - 1"#]],
    );
    let missing = Op::ReduceWindow { window: pool(), to_apply: CompId(99) };
    expect_in(
        &module,
        &missing,
        &operands,
        "",
        text![[r#"
                operands/computation: reduce-window to_apply is computation 99, expected one that exists and has a root"#]],
    );
}

#[test]
fn select_and_scatter() {
    let mut module = Module::new("test");
    let select = computation(&mut module, &["f32[]", "f32[]"], "pred[]");
    let scatter = module.scalar_computation(BinaryOp::Add, DType::F32);
    let op = |window: Window, select| Op::SelectAndScatter { window, select, scatter };
    let strided = || vec![WindowDim { stride: 2, ..WindowDim::of_size(2) }; 2];
    expect_in(&module, &op(strided(), select), &["f32[8,<=6]", "f32[4,3]", "f32[]"], "", text!["f32[8,<=6]"]);
    expect_in(
        &module,
        &op(strided(), select),
        &["f32[8,6]", "f32[4,4]", "f32[]"],
        "",
        text![[r#"
                window/source: select-and-scatter source is f32[4,4], expected f32[4,3], one element per window position"#]],
    );
    expect_in(
        &module,
        &op(strided(), scatter),
        &["f32[8,6]", "f32[4,3]", "f32[]"],
        "",
        text![[r#"
                operands/signature: select-and-scatter select is (f32[], f32[]) -> f32[], expected (f32[], f32[]) -> pred[]"#]],
    );
    expect_in(
        &module,
        &op(strided(), select),
        &["f32[8,6]", "bf16[4,3]", "f32[]"],
        "",
        text![[r#"
            operands/dtypes-differ: select-and-scatter dtypes differ: operand is f32[8,6], source is bf16[4,3]
              help: hlo converts nothing by itself: insert a `convert` of source to f32 (or of operand to bf16)"#]],
    );
    expect_in(
        &module,
        &op(strided(), select),
        &["f32[8,6]", "f32[4,3]", "f32[2]"],
        "",
        text!["operands/scalar: select-and-scatter init is f32[2], expected a scalar"],
    );
    expect_in(
        &module,
        &op(strided(), select),
        &["bf16[8,6]", "bf16[4,3]", "bf16[]"],
        "",
        text![[r#"
                operands/signature: select-and-scatter select is (f32[], f32[]) -> pred[], expected (bf16[], bf16[]) -> pred[]"#]],
    );
    let dilated = vec![WindowDim { window_dilation: 2, ..WindowDim::of_size(2) }; 2];
    expect_in(
        &module,
        &op(dilated, select),
        &["f32[8,6]", "f32[4,3]", "f32[]"],
        "",
        text![[r#"
                window/dilation: select-and-scatter window has window dilation 2 and base dilation 1 in dimension 0, expected 1"#]],
    );
}
