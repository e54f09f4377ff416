//! Accepts and rejects of the opaque rules; messages are compared whole.

use super::super::testing::check;
use super::*;
use crate::hlo::Op;

fn fusion() -> Op {
    Op::Opaque(Box::new(Opaque { opcode: "fusion".to_string(), called: Vec::new() }))
}

#[test]
fn opaque_gives_what_it_declares() {
    check(&fusion(), &["f32[2]", "token[]"], "(bf16[<=4], token[])", Ok("(bf16[<=4], token[])"));
}

#[test]
fn opaque_rejects() {
    check(
        &fusion(),
        &["f32[2]"],
        "",
        Err("operands/declared: fusion has no declared shape, expected one
  help: the operands of fusion do not fix its result: declare the result's shape"),
    );
    check(
        &fusion(),
        &["f32[2]", "(f32[-2])"],
        "f32[2]",
        Err("operands/negative-dim: fusion operand 1 is f32[-2], expected dims of 0 or more"),
    );
    check(
        &fusion(),
        &[],
        "s64[9223372036854775807]",
        Err("operands/size: fusion result is s64[9223372036854775807], expected at most 2^56 bytes"),
    );
}
