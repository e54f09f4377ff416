//! Accepts and rejects of the movement rules; messages are compared whole.

use super::super::testing::check;
use super::*;
use crate::Op;

#[test]
fn broadcast_accepts() {
    let accept = |dimensions: &[i64], from: &str, to: &str| {
        check(&Op::Broadcast { dimensions: dimensions.to_vec() }, &[from], to, Ok(to));
    };
    accept(&[], "f32[]", "f32[2,3]");
    accept(&[0, 2], "bf16[2,4]", "bf16[2,3,4]");
    accept(&[1, 0], "s32[2,4]", "s32[4,2]");
    accept(&[0], "pred[0]", "pred[0,<=5]");
}

#[test]
fn broadcast_rejects() {
    let reject = |dimensions: &[i64], operands: &[&str], to: &str, expected: &str| {
        check(&Op::Broadcast { dimensions: dimensions.to_vec() }, operands, to, Err(expected));
    };
    reject(&[], &[], "f32[]", "operands/arity: broadcast takes 1 operand, got 0");
    reject(&[], &["token[]"], "f32[]", "operands/kind: broadcast operand is token[], expected an array");
    reject(
        &[],
        &["f32[]"],
        "",
        "operands/declared: broadcast has no declared shape, expected one
  help: the operands of broadcast do not fix its result: declare the result's shape",
    );
    reject(
        &[],
        &["f32[]"],
        "bf16[2]",
        "operands/dtypes-differ: broadcast dtypes differ: operand is f32[], result is bf16[2]
  help: hlo converts nothing by itself: insert a `convert` of result to f32 (or of operand to bf16)",
    );
    reject(
        &[0],
        &["f32[2,3]"],
        "f32[2,3]",
        "operands/per-dimension: broadcast dimensions has 1 entries, expected 2, one per dimension of f32[2,3]",
    );
    reject(&[2], &["f32[3]"], "f32[2,3]", "operands/axis: broadcast dimensions names axis 2, expected 0 <= axis < 2");
    reject(&[-1], &["f32[3]"], "f32[2,3]", "operands/axis: broadcast dimensions names axis -1, expected 0 <= axis < 2");
    reject(
        &[1, 1],
        &["f32[3,3]"],
        "f32[2,3]",
        "operands/axis-twice: broadcast dimensions={1,1} names axis 1 twice, expected each axis at most once",
    );
    reject(
        &[1],
        &["f32[1]"],
        "f32[2,3]",
        "broadcast/sizes: broadcast sizes differ: operand[0]=1, result[1]=3
  help: hlo repeats along new dimensions only: `reshape` a dimension of 1 away first",
    );
}

#[test]
fn reshape_accepts() {
    check(&Op::Reshape, &["f32[2,3,4]"], "f32[6,4]", Ok("f32[6,4]"));
    check(&Op::Reshape, &["bf16[]"], "bf16[1,1]", Ok("bf16[1,1]"));
    check(&Op::Reshape, &["pred[0,7]"], "pred[0]", Ok("pred[0]"));
}

#[test]
fn reshape_rejects() {
    let reject = |operands: &[&str], to: &str, expected: &str| check(&Op::Reshape, operands, to, Err(expected));
    reject(&["f32[]", "f32[]"], "f32[]", "operands/arity: reshape takes 1 operand, got 2");
    reject(&["(f32[])"], "f32[]", "operands/kind: reshape operand is (f32[]), expected an array");
    reject(
        &["f32[4]"],
        "",
        "operands/declared: reshape has no declared shape, expected one
  help: the operands of reshape do not fix its result: declare the result's shape",
    );
    reject(
        &["f32[4]"],
        "s32[2,2]",
        "operands/dtypes-differ: reshape dtypes differ: operand is f32[4], result is s32[2,2]
  help: hlo converts nothing by itself: insert a `convert` of result to f32 (or of operand to s32)",
    );
    reject(
        &["f32[4]"],
        "f32[2,3]",
        "reshape/elements: reshape element counts differ: operand f32[4] has 4, result f32[2,3] has 6
  help: `broadcast`, `slice` or `pad` change the number of elements; `reshape` does not",
    );
    reject(
        &["f32[4]"],
        "f32[-2,-2]",
        "operands/negative-dim: reshape result is f32[-2,-2], expected dims of 0 or more",
    );
    reject(
        &["f32[4]"],
        "f32[4611686018427387904,4611686018427387904,0]",
        "operands/size: reshape result is f32[4611686018427387904,4611686018427387904,0], expected at most 2^56 bytes",
    );
}

#[test]
fn transpose_accepts() {
    let op = Op::Transpose { permutation: vec![2, 0, 1] };
    check(&op, &["f32[2,3,<=4]"], "", Ok("f32[<=4,2,3]"));
    check(&Op::Transpose { permutation: vec![] }, &["f32[]"], "", Ok("f32[]"));
}

#[test]
fn transpose_rejects() {
    let reject = |permutation: &[i64], operands: &[&str], expected: &str| {
        check(&Op::Transpose { permutation: permutation.to_vec() }, operands, "", Err(expected));
    };
    reject(&[0], &[], "operands/arity: transpose takes 1 operand, got 0");
    reject(&[0], &["token[]"], "operands/kind: transpose operand is token[], expected an array");
    reject(
        &[0],
        &["f32[2,3]"],
        "operands/per-dimension: transpose dimensions has 1 entries, expected 2, one per dimension of f32[2,3]",
    );
    reject(&[0, 2], &["f32[2,3]"], "operands/axis: transpose dimensions names axis 2, expected 0 <= axis < 2");
    reject(
        &[0, 0],
        &["f32[2,3]"],
        "operands/axis-twice: transpose dimensions={0,0} names axis 0 twice, expected each axis at most once",
    );
}

fn slice_dim(start: i64, limit: i64, stride: i64) -> SliceDim {
    SliceDim { start, limit, stride }
}

#[test]
fn slice_accepts() {
    let accept = |dims: &[SliceDim], operand: &str, expected: &str| {
        check(&Op::Slice(dims.to_vec()), &[operand], "", Ok(expected));
    };
    accept(&[slice_dim(1, 5, 2), slice_dim(0, 3, 1)], "f32[5,<=3]", "f32[2,<=3]");
    accept(&[slice_dim(0, 5, 2)], "bf16[5]", "bf16[3]");
    accept(&[slice_dim(2, 2, 1)], "f32[5]", "f32[0]");
    accept(&[slice_dim(0, 5, i64::MAX)], "f32[5]", "f32[1]");
    accept(&[], "f32[]", "f32[]");
}

#[test]
fn slice_rejects() {
    let reject = |dims: &[SliceDim], operands: &[&str], expected: &str| {
        check(&Op::Slice(dims.to_vec()), operands, "", Err(expected));
    };
    reject(&[], &[], "operands/arity: slice takes 1 operand, got 0");
    reject(&[], &["token[]"], "operands/kind: slice operand is token[], expected an array");
    reject(
        &[],
        &["f32[2]"],
        "operands/per-dimension: slice bounds has 0 entries, expected 1, one per dimension of f32[2]",
    );
    for (start, limit) in [(-1, 2), (2, 1), (0, 4), (i64::MIN, i64::MAX)] {
        let message = format!("slice/bounds: slice of axis 0 is [{start}:{limit}], expected 0 <= start <= limit <= 3");
        reject(&[slice_dim(start, limit, 1)], &["f32[3]"], &message);
    }
    reject(
        &[slice_dim(0, 3, 0)],
        &["f32[3]"],
        "slice/stride: slice stride of axis 0 is 0, expected 1 or more\n  help: use `reverse` to walk backwards",
    );
}

fn pad_dim(low: i64, high: i64, interior: i64) -> PadDim {
    PadDim { low, high, interior }
}

#[test]
fn pad_accepts() {
    let accept = |dims: &[PadDim], operand: &str, expected: &str| {
        let value = format!("{}[]", operand.split('[').next().unwrap());
        check(&Op::Pad(dims.to_vec()), &[operand, &value], "", Ok(expected));
    };
    accept(&[pad_dim(1, 2, 0), pad_dim(0, 0, 1)], "bf16[4,<=3]", "bf16[7,<=5]");
    accept(&[pad_dim(-1, -1, 0)], "f32[4]", "f32[2]");
    accept(&[pad_dim(-2, -2, 0)], "f32[4]", "f32[0]");
    accept(&[pad_dim(0, 1, 7)], "f32[0]", "f32[1]");
    accept(&[pad_dim(i64::MIN, i64::MAX, 0)], "f32[1]", "f32[0]");
}

#[test]
fn pad_rejects() {
    let reject = |dims: &[PadDim], operands: &[&str], expected: &str| {
        check(&Op::Pad(dims.to_vec()), operands, "", Err(expected));
    };
    reject(&[], &["f32[]"], "operands/arity: pad takes 2 operands, got 1");
    reject(&[], &["token[]", "f32[]"], "operands/kind: pad operand is token[], expected an array");
    reject(&[], &["f32[2]", "f32[1]"], "operands/scalar: pad padding value is f32[1], expected a scalar");
    reject(
        &[pad_dim(0, 0, 0)],
        &["bf16[2]", "f32[]"],
        "operands/dtypes-differ: pad dtypes differ: operand is bf16[2], padding value is f32[]
  help: hlo converts nothing by itself: insert a `convert` of padding value to bf16 (or of operand to f32)",
    );
    reject(
        &[],
        &["f32[2]", "f32[]"],
        "operands/per-dimension: pad padding has 0 entries, expected 1, one per dimension of f32[2]",
    );
    reject(
        &[pad_dim(0, 0, -1)],
        &["f32[2]", "f32[]"],
        "pad/interior: pad interior of axis 0 is -1, expected 0 or more
  help: a strided `slice` takes elements out",
    );
    reject(
        &[pad_dim(-2, -1, 0)],
        &["f32[2]", "f32[]"],
        "pad/size: pad of axis 0 makes -1 elements of 2 with -2_-1_0, expected 0 to 2^63 - 1 elements",
    );
    reject(
        &[pad_dim(i64::MAX, i64::MAX, i64::MAX)],
        &["f32[3]", "f32[]"],
        "pad/size: pad of axis 0 makes 36893488147419103231 elements of 3 with \
         9223372036854775807_9223372036854775807_9223372036854775807, expected 0 to 2^63 - 1 elements",
    );
    reject(
        &[pad_dim(i64::MAX - 3, 0, 0)],
        &["f32[3]", "f32[]"],
        "operands/size: pad result is f32[9223372036854775807], expected at most 2^56 bytes",
    );
}

#[test]
fn concatenate_accepts() {
    let accept = |dimension, operands: &[&str], expected: &str| {
        check(&Op::Concatenate { dimension }, operands, "", Ok(expected));
    };
    accept(1, &["f32[2,3]", "f32[<=2,5]", "f32[2,0]"], "f32[<=2,8]");
    accept(0, &["bf16[3]"], "bf16[3]");
    accept(0, &["s4[3]", "s4[3]"], "s4[6]");
}

#[test]
fn concatenate_rejects() {
    let reject = |dimension, operands: &[&str], expected: &str| {
        check(&Op::Concatenate { dimension }, operands, "", Err(expected));
    };
    reject(0, &[], "concatenate/arity: concatenate takes 1 or more operands, got 0");
    reject(0, &["f32[2]", "token[]"], "operands/kind: concatenate operand 1 is token[], expected an array");
    reject(0, &["f32[]"], "operands/axis: concatenate dimensions names axis 0, expected 0 <= axis < 0");
    for dtype in ["s1", "u1", "s2", "u2"] {
        let operand = format!("{dtype}[4]");
        let message = format!(
            "concatenate/dtype: concatenate operand 0 is {operand}, expected a dtype of 4 bits or more
  help: xla's cpu back end aborts on it: insert a `convert` to a wider integer"
        );
        reject(0, &[&operand, &operand], &message);
    }
    reject(-1, &["f32[2]"], "operands/axis: concatenate dimensions names axis -1, expected 0 <= axis < 1");
    reject(
        0,
        &["f32[2]", "f32[2]", "bf16[2]"],
        "operands/dtypes-differ: concatenate dtypes differ: operand 0 is f32[2], operand 2 is bf16[2]
  help: hlo converts nothing by itself: insert a `convert` of operand 2 to f32 (or of operand 0 to bf16)",
    );
    for other in ["f32[2,4]", "f32[2]", "f32[2,3,1]"] {
        let message = format!(
            "concatenate/dims: concatenate dims differ: operand 0 is f32[2,3], operand 1 is {other}, \
             expected a difference in axis 0 only"
        );
        reject(0, &["f32[2,3]", other], &message);
    }
    reject(
        0,
        &["u8[72057594037927936]", "u8[72057594037927936]"],
        "operands/size: concatenate result is u8[144115188075855872], expected at most 2^56 bytes",
    );
    reject(
        0,
        &["u16[36028797018963968]", "u16[1]"],
        "operands/size: concatenate result is u16[36028797018963969], expected at most 2^56 bytes",
    );
}

#[test]
fn reverse_accepts() {
    check(&Op::Reverse { dimensions: vec![1, 0] }, &["f32[2,<=3]"], "", Ok("f32[2,<=3]"));
    check(&Op::Reverse { dimensions: vec![] }, &["f32[]"], "", Ok("f32[]"));
}

#[test]
fn reverse_rejects() {
    let reject = |dimensions: &[i64], operands: &[&str], expected: &str| {
        check(&Op::Reverse { dimensions: dimensions.to_vec() }, operands, "", Err(expected));
    };
    reject(&[], &[], "operands/arity: reverse takes 1 operand, got 0");
    reject(&[], &["token[]"], "operands/kind: reverse operand is token[], expected an array");
    reject(&[1], &["f32[2]"], "operands/axis: reverse dimensions names axis 1, expected 0 <= axis < 1");
    reject(
        &[0, 0],
        &["f32[2]"],
        "operands/axis-twice: reverse dimensions={0,0} names axis 0 twice, expected each axis at most once",
    );
}
