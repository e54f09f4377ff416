//! Accepts and rejects of the source rules; messages are compared whole.

use super::super::testing::check;
use super::*;
use crate::{Module, Op, ops::infer_shape};

#[test]
fn parameter_accepts() {
    let accept = |declared: &str| check(&Op::parameter(0), &[], declared, Ok(declared));
    accept("bf16[2,<=3]");
    accept("(f32[2], (), token[])");
    accept("token[]");
}

#[test]
fn parameter_rejects() {
    let reject = |operands: &[&str], declared: &str, expected: &str| {
        check(&Op::parameter(0), operands, declared, Err(expected));
    };
    reject(&["f32[]"], "f32[]", "operands/arity: parameter takes 0 operands, got 1");
    reject(
        &[],
        "",
        "operands/declared: parameter has no declared shape, expected one
  help: the operands of parameter do not fix its result: declare the result's shape",
    );
    reject(&[], "(f32[2], f32[-1])", "operands/negative-dim: parameter result is f32[-1], expected dims of 0 or more");
    reject(
        &[],
        "f32[4294967296,4294967296]",
        "operands/size: parameter result is f32[4294967296,4294967296], expected at most 2^56 bytes",
    );
}

#[test]
fn constant_accepts() {
    let literal = Literal::Tuple(vec![Literal::from_elements([2], &[1.0f32, 2.0]), Literal::Token]);
    check(&Op::Constant(literal), &[], "", Ok("(f32[2], token[])"));
    check(&Op::Constant(Literal::scalar(true)), &[], "", Ok("pred[]"));
}

#[test]
fn constant_rejects() {
    let literal = |dims: &[i64], n_bytes: usize| {
        Op::Constant(Literal::Array { shape: ArrayShape::new(DType::F32, dims), bytes: vec![0; n_bytes] })
    };
    check(&literal(&[1], 4), &["f32[]"], "", Err("operands/arity: constant takes 0 operands, got 1"));
    check(&literal(&[2], 4), &[], "", Err("constant/bytes: constant literal f32[2] has 4 bytes, expected 8"));
    check(
        &literal(&[-2, -2], 16),
        &[],
        "",
        Err("operands/negative-dim: constant literal is f32[-2,-2], expected dims of 0 or more"),
    );
    check(
        &literal(&[i64::MAX], 0),
        &[],
        "",
        Err("operands/size: constant literal is f32[9223372036854775807], expected at most 2^56 bytes"),
    );
}

#[test]
fn iota_accepts() {
    let accept = |dimension, declared: &str| check(&Op::Iota { dimension }, &[], declared, Ok(declared));
    accept(1, "bf16[2,3]");
    accept(0, "c64[5]");
    accept(0, "u8[0]");
}

#[test]
fn iota_rejects() {
    let reject = |dimension, operands: &[&str], declared: &str, expected: &str| {
        check(&Op::Iota { dimension }, operands, declared, Err(expected));
    };
    reject(0, &["s32[]"], "s32[2]", "operands/arity: iota takes 0 operands, got 1");
    reject(0, &[], "token[]", "operands/kind: iota result is token[], expected an array");
    reject(
        0,
        &[],
        "",
        "operands/declared: iota has no declared shape, expected one
  help: the operands of iota do not fix its result: declare the result's shape",
    );
    reject(
        0,
        &[],
        "pred[2]",
        "operands/dtype: iota result is pred[2], expected an integer, float or complex dtype
  help: insert a `convert` to such a dtype",
    );
    reject(0, &[], "s32[]", "operands/axis: iota iota_dimension names axis 0, expected 0 <= axis < 0");
    reject(2, &[], "s32[2,3]", "operands/axis: iota iota_dimension names axis 2, expected 0 <= axis < 2");
}

#[test]
fn rng_bit_generator_accepts() {
    let accept = |algorithm, state: &str, declared: &str| {
        check(&Op::RngBitGenerator(algorithm), &[state], declared, Ok(declared));
    };
    accept(RngAlgorithm::ThreeFry, "u64[2]", "(u64[2], u32[4,5])");
    accept(RngAlgorithm::Philox, "u64[3]", "(u64[3], u8[4])");
    accept(RngAlgorithm::Default, "u64[2]", "(u64[2], u64[])");
    accept(RngAlgorithm::Default, "u64[3]", "(u64[3], u16[<=4])");
}

#[test]
fn rng_bit_generator_rejects() {
    let reject = |algorithm, operands: &[&str], declared: &str, expected: &str| {
        check(&Op::RngBitGenerator(algorithm), operands, declared, Err(expected));
    };
    let philox = RngAlgorithm::Philox;
    reject(philox, &[], "u32[2]", "operands/arity: rng-bit-generator takes 1 operand, got 0");
    reject(philox, &["token[]"], "u32[2]", "operands/kind: rng-bit-generator state is token[], expected an array");
    reject(
        RngAlgorithm::ThreeFry,
        &["u64[3]"],
        "u32[2]",
        "rng-bit-generator/state: rng-bit-generator state of rng_three_fry is u64[3], expected u64[2]",
    );
    for state in ["u32[4]", "u64[4]", "u64[]", "u64[1,2]"] {
        let message = format!(
            "rng-bit-generator/state: rng-bit-generator state of rng_philox is {state}, expected u64[2] or u64[3]"
        );
        reject(philox, &[state], "u32[2]", &message);
    }
    reject(
        philox,
        &["u64[2]"],
        "",
        "operands/declared: rng-bit-generator has no declared shape, expected one
  help: the operands of rng-bit-generator do not fix its result: declare the result's shape",
    );
    for result in ["(u64[3], u32[2])", "(u64[2])", "(u64[2], u32[2], u32[2])", "u32[2]", "token[]"] {
        let message = format!(
            "rng-bit-generator/result: rng-bit-generator result is {result}, \
             expected the tuple (u64[2], bits)"
        );
        reject(philox, &["u64[2]"], result, &message);
    }
    reject(
        philox,
        &["u64[2]"],
        "(u64[2], token[])",
        "operands/kind: rng-bit-generator bits is token[], expected an array",
    );
    for bits in ["pred[2]", "s32[2]", "f32[2]", "u4[2]"] {
        let message = format!(
            "operands/dtype: rng-bit-generator bits is {bits}, expected u8, u16, u32 or u64
  help: insert a `convert` to such a dtype"
        );
        reject(philox, &["u64[2]"], &format!("(u64[2], {bits})"), &message);
    }
}

#[test]
fn declared_layouts_are_dropped() {
    let declared = Shape::array(DType::F32, [2, 3]).with_default_layout();
    let result = infer_shape(&Module::new("test"), &Op::parameter(0), &[], Some(&declared));
    assert_eq!(result, Ok(declared.without_layout()));
}
