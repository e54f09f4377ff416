//! Accepts and rejects of the dot rules; messages are compared whole.

use super::super::{Op, testing::expect};
use super::*;
use expect_test::expect as text;

fn op(batch: [&[i64]; 2], contracting: [&[i64]; 2]) -> Op {
    let dims = DotDims {
        lhs_batch: batch[0].to_vec(),
        rhs_batch: batch[1].to_vec(),
        lhs_contracting: contracting[0].to_vec(),
        rhs_contracting: contracting[1].to_vec(),
    };
    Op::Dot { dims, precision: PrecisionConfig::default() }
}

fn matmul() -> Op {
    op([&[], &[]], [&[1], &[0]])
}

#[test]
fn accepts() {
    expect(&matmul(), &["bf16[2,3]", "bf16[3,5]"], "", text!["bf16[2,5]"]);
    expect(&op([&[], &[]], [&[], &[]]), &["f32[]", "f32[3]"], "", text!["f32[3]"]);
    expect(&matmul(), &["bf16[2,3]", "bf16[3,5]"], "f32[9]", text!["f32[2,5]"]);
    expect(&matmul(), &["s8[2,3]", "s8[3,5]"], "s32[2,5]", text!["s32[2,5]"]);
    expect(&matmul(), &["f8e4m3fn[2,3]", "f8e5m2[3,5]"], "f32[2,5]", text!["f32[2,5]"]);
    // In XLA's order of dtypes any float wins over any integer.
    expect(&matmul(), &["f32[2,3]", "s32[3,5]"], "", text!["f32[2,5]"]);
    expect(&matmul(), &["s64[2,3]", "bf16[3,5]"], "", text!["bf16[2,5]"]);
    expect(&matmul(), &["s8[2,3]", "bf16[3,5]"], "f32[2,5]", text!["f32[2,5]"]);
    // Any complex number wins over any float, then more range, more precision, more bits, a sign.
    expect(&matmul(), &["bf16[2,3]", "f32[3,5]"], "", text!["f32[2,5]"]);
    expect(&matmul(), &["f32[2,3]", "f16[3,5]"], "f64[2,5]", text!["f64[2,5]"]);
    expect(&matmul(), &["f16[2,3]", "bf16[3,5]"], "", text!["bf16[2,5]"]);
    expect(&matmul(), &["f64[2,3]", "c64[3,5]"], "", text!["c64[2,5]"]);
    expect(&matmul(), &["s8[2,3]", "u32[3,5]"], "", text!["u32[2,5]"]);
    expect(&matmul(), &["u32[2,3]", "s32[3,5]"], "", text!["s32[2,5]"]);
    expect(&matmul(), &["pred[2,0]", "pred[0,5]"], "", text!["pred[2,5]"]);
    // Batch dims come first, in the order of lhs_batch, then the free dims of lhs, then those of rhs.
    expect(&op([&[3, 0], &[1, 2]], [&[1], &[0]]), &["f32[7,4,6,<=5]", "f32[4,5,7,9]"], "", text!["f32[<=5,7,6,9]"]);
    expect(&op([&[], &[]], [&[0, 1], &[1, 0]]), &["f32[2,3]", "f32[3,2]"], "", text!["f32[]"]);
    expect(&op([&[], &[]], [&[], &[]]), &["f32[2]", "f32[3]"], "", text!["f32[2,3]"]);
}

#[test]
fn rejects_operands() {
    expect(&matmul(), &["f32[2,3]"], "", text!["operands/arity: dot takes 2 operands, got 1"]);
    expect(
        &matmul(),
        &["f8e4m3[2,3]", "f8e4m3fnuz[3,5]"],
        "f32[2,5]",
        text![[r#"
            operands/dtypes-differ: dot dtypes differ: lhs is f8e4m3[2,3], rhs is f8e4m3fnuz[3,5]
              help: hlo converts nothing by itself: insert a `convert` of rhs to f8e4m3 (or of lhs to f8e4m3fnuz)"#]],
    );
    expect(&matmul(), &["f32[2,3]", "token[]"], "", text!["operands/kind: dot rhs is token[], expected an array"]);
    expect(
        &matmul(),
        &["bf16[2,3]", "f32[3,5]"],
        "bf16[2,5]",
        text![[r#"
            dot/declared-dtype: dot declares bf16 for operands of f32, expected f32 or a wider dtype like it
              help: let dot give f32 and `convert` its result to bf16"#]],
    );
    expect(
        &matmul(),
        &["f32[4611686018427387904,1]", "f32[1,4]"],
        "",
        text!["operands/size: dot lhs is f32[4611686018427387904,1], expected at most 2^56 bytes"],
    );
    expect(
        &matmul(),
        &["f32[2,3]", "f32[3,5]"],
        "bf16[2,5]",
        text![[r#"
            dot/declared-dtype: dot declares bf16 for operands of f32, expected f32 or a wider dtype like it
              help: let dot give f32 and `convert` its result to bf16"#]],
    );
    expect(
        &matmul(),
        &["f32[2,3]", "s32[3,5]"],
        "s32[2,5]",
        text![[r#"
            dot/declared-dtype: dot declares s32 for operands of f32, expected f32 or a wider dtype like it
              help: let dot give f32 and `convert` its result to s32"#]],
    );
    expect(
        &matmul(),
        &["u8[2,3]", "u8[3,5]"],
        "s32[2,5]",
        text![[r#"
            dot/declared-dtype: dot declares s32 for operands of u8, expected u8 or a wider dtype like it
              help: let dot give u8 and `convert` its result to s32"#]],
    );
    expect(
        &matmul(),
        &["s8[2,3]", "s8[3,5]"],
        "(s32[2,5])",
        text!["operands/kind: dot result is (s32[2,5]), expected an array"],
    );
}

#[test]
fn rejects_dims() {
    expect(
        &matmul(),
        &["f32[64,128]", "f32[256,128]"],
        "",
        text![[r#"
            dot/sizes: contracting sizes differ: lhs[1]=128, rhs[0]=256
              help: transpose rhs or set rhs_contracting=[1]"#]],
    );
    expect(
        &matmul(),
        &["f32[64,128]", "f32[256,512]"],
        "",
        text!["dot/sizes: contracting sizes differ: lhs[1]=128, rhs[0]=256"],
    );
    expect(
        &op([&[0], &[0]], [&[2], &[1]]),
        &["f32[2,3,4]", "f32[5,4,7]"],
        "",
        text!["dot/sizes: batch sizes differ: lhs[0]=2, rhs[0]=5"],
    );
    expect(
        &op([&[], &[]], [&[1], &[0, 1]]),
        &["f32[2,3]", "f32[3,5]"],
        "",
        text![[r#"
            dot/pairs: contracting dims differ in number: lhs_contracting=[1], rhs_contracting=[0, 1]
              help: name one dim of rhs for each of lhs, in order"#]],
    );
    expect(
        &op([&[], &[]], [&[2], &[0]]),
        &["f32[2,3]", "f32[3,5]"],
        "",
        text!["operands/axis: dot lhs_contracting names axis 2, expected 0 <= axis < 2"],
    );
    expect(
        &op([&[], &[]], [&[1, 1], &[0, 1]]),
        &["f32[2,3]", "f32[3,3]"],
        "",
        text!["operands/axis-twice: dot lhs_contracting={1,1} names axis 1 twice, expected each axis at most once"],
    );
    expect(
        &op([&[1], &[0]], [&[1], &[0]]),
        &["f32[2,3]", "f32[3,5]"],
        "",
        text!["dot/dim-twice: lhs dim 1 is in lhs_batch=[1] and lhs_contracting=[1], expected in one"],
    );
    expect(
        &op([&[i64::MIN], &[0]], [&[1], &[0]]),
        &["f32[2,3]", "f32[3,5]"],
        "",
        text!["operands/axis: dot lhs_batch names axis -9223372036854775808, expected 0 <= axis < 2"],
    );
}

#[test]
fn rejects_precision() {
    let with = |precision: PrecisionConfig| match matmul() {
        Op::Dot { dims, .. } => Op::Dot { dims, precision },
        other => other,
    };
    let operands = ["f32[2,3]", "f32[3,5]"];
    let algorithm = |name: &str| with(PrecisionConfig { algorithm: Some(name.into()), ..Default::default() });
    expect(&algorithm("dot_bf16_bf16_f32"), &operands, "", text!["f32[2,5]"]);
    expect(
        &algorithm("dot_bf16"),
        &operands,
        "",
        text![
            "dot/algorithm: dot algorithm is `dot_bf16`, expected one of dot_any_f8_any_f8_f32, dot_any_f8_any_f8_f32_fast_accum, dot_f16_f16_f16, dot_f16_f16_f32, dot_bf16_bf16_bf16, dot_bf16_bf16_f32, dot_bf16_bf16_f32_x3, dot_bf16_bf16_f32_x6, dot_tf32_tf32_f32, dot_tf32_tf32_f32_x3, dot_f32_f32_f32, dot_f64_f64_f64, dot_bf16_bf16_f32_x9"
        ],
    );
    let one = PrecisionConfig { operand_precision: vec![OperandPrecision::High], algorithm: None };
    expect(
        &with(one),
        &operands,
        "",
        text!["dot/precision: dot takes 2 operand precisions, one per operand, or none, got 1"],
    );
}
