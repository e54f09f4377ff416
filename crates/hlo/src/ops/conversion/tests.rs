//! Accepts and rejects of the conversion rules; messages are compared whole.

use super::super::testing::check;
use crate::Op;

#[test]
fn convert_accepts() {
    let accept = |from: &str, to: &str, expected: &str| check(&Op::Convert, &[from], to, Ok(expected));
    accept("f32[2,3]", "bf16[2,3]", "bf16[2,3]");
    accept("pred[<=2]", "s32[2]", "s32[<=2]");
    accept("f32[]", "c64[]", "c64[]");
    accept("c64[1]", "c128[1]", "c128[1]");
    accept("f8e5m2[1]", "f8e5m2[1]", "f8e5m2[1]");
}

#[test]
fn convert_rejects() {
    let reject = |operands: &[&str], to: &str, expected: &str| check(&Op::Convert, operands, to, Err(expected));
    reject(&[], "f32[]", "operands/arity: convert takes 1 operand, got 0");
    reject(&["token[]"], "f32[]", "operands/kind: convert operand is token[], expected an array");
    reject(&["f32[2]"], "(f32[2])", "operands/kind: convert result is (f32[2]), expected an array");
    reject(
        &["f32[2]"],
        "",
        "operands/declared: convert has no declared shape, expected one
  help: the operands of convert do not fix its result: declare the result's shape",
    );
    reject(
        &["f32[2]"],
        "bf16[3]",
        "operands/dims-differ: convert dims differ: operand is f32[2], result is bf16[3]
  help: convert changes the dtype only: declare a result of the operand's dims",
    );
    reject(
        &["c64[2]"],
        "f32[2]",
        "convert/complex: convert is from c64 to f32, expected a complex result
  help: take its `real`, `imag` or `abs` first",
    );
}

#[test]
fn bitcast_convert_accepts() {
    let accept = |from: &str, to: &str, expected: &str| check(&Op::BitcastConvert, &[from], to, Ok(expected));
    accept("f32[2,3]", "u32[2,3]", "u32[2,3]");
    accept("f32[2,<=3]", "bf16[2,3,2]", "bf16[2,<=3,2]");
    accept("bf16[2,2]", "f32[2]", "f32[2]");
    accept("u8[4]", "s32[]", "s32[]");
    accept("u8[]", "s4[2]", "s4[2]");
    accept("pred[3]", "pred[3]", "pred[3]");
    accept("c64[3]", "c64[3]", "c64[3]");
}

#[test]
fn bitcast_convert_rejects() {
    let reject = |operands: &[&str], to: &str, expected: &str| check(&Op::BitcastConvert, operands, to, Err(expected));
    reject(&["f32[]", "f32[]"], "f32[]", "operands/arity: bitcast-convert takes 1 operand, got 2");
    reject(&["(f32[])"], "f32[]", "operands/kind: bitcast-convert operand is (f32[]), expected an array");
    reject(
        &["f32[2]"],
        "",
        "operands/declared: bitcast-convert has no declared shape, expected one
  help: the operands of bitcast-convert do not fix its result: declare the result's shape",
    );
    let message = |from, to| {
        format!(
            "bitcast-convert/dtypes: bitcast-convert is from {from} to {to}, expected two dtypes of integers or floats
  help: the bits of pred and complex are not exposed: use `convert`, `real` or `imag`"
        )
    };
    for (from, to) in [("c64", "f64"), ("f32", "c64"), ("c128", "c64"), ("pred", "u8"), ("u8", "pred")] {
        reject(&[&format!("{from}[2]")], &format!("{to}[2]"), &message(from, to));
    }
    for operand in ["bf16[3]", "bf16[]"] {
        reject(
            &[operand],
            "f32[]",
            &format!(
                "bitcast-convert/last-dimension: bitcast-convert to f32 is of {operand}, expected a last dimension of 2: \
                 32 bits are 2 times 16
  help: insert a `reshape` that splits off the elements that make one"
            ),
        );
    }
    reject(
        &["f32[2]"],
        "bf16[4]",
        "operands/dims-differ: bitcast-convert dims differ: implied result is bf16[2,2], declared result is bf16[4]
  help: a wider dtype takes away a last dimension, a narrower one adds it",
    );
    reject(
        &["f64[1152921504606846976]"],
        "u8[1152921504606846976,8]",
        "operands/size: bitcast-convert operand is f64[1152921504606846976], expected at most 2^56 bytes",
    );
}

fn reduce_precision(exponent_bits: i32, mantissa_bits: i32) -> Op {
    Op::ReducePrecision { exponent_bits, mantissa_bits }
}

#[test]
fn reduce_precision_accepts() {
    check(&reduce_precision(8, 7), &["f32[2,<=3]"], "", Ok("f32[2,<=3]"));
    check(&reduce_precision(1, 0), &["bf16[]"], "", Ok("bf16[]"));
    check(&reduce_precision(11, 52), &["f64[]"], "", Ok("f64[]"));
}

#[test]
fn reduce_precision_rejects() {
    let reject = |e, m, operands: &[&str], expected| check(&reduce_precision(e, m), operands, "", Err(expected));
    reject(8, 7, &[], "operands/arity: reduce-precision takes 1 operand, got 0");
    reject(8, 7, &["token[]"], "operands/kind: reduce-precision operand is token[], expected an array");
    reject(
        8,
        7,
        &["s32[2]"],
        "operands/dtype: reduce-precision operand is s32[2], expected a float dtype
  help: insert a `convert` to such a dtype",
    );
    reject(
        0,
        7,
        &["f32[2]"],
        "reduce-precision/exponent-bits: reduce-precision exponent_bits is 0, expected 1 or more
  help: one exponent bit tells 0 from infinity; bfloat16 has 8",
    );
    reject(
        8,
        -1,
        &["f32[2]"],
        "reduce-precision/mantissa-bits: reduce-precision mantissa_bits is -1, expected 0 or more
  help: bfloat16 has 7",
    );
}
