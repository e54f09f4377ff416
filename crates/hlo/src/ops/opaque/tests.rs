//! Accepts and rejects of the opaque rules; messages are compared whole.

use super::super::testing::check;
use super::*;
use crate::Op;

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

/// Found by mutation: XLA aborts for any other shape.
#[test]
fn ids_of_devices_are_u32() {
    for opcode in ["partition-id", "replica-id"] {
        let op = Op::Opaque(Box::new(Opaque { opcode: opcode.to_string(), called: Vec::new() }));
        check(&op, &[], "u32[]", Ok("u32[]"));
        let refused = |shape: &str, message: &str| {
            check(&op, &[], shape, Err(&format!("opaque/id: {opcode} declares {message}, expected u32[]")));
        };
        refused("s4[]", "s4[]");
        refused("u32[1]", "u32[1]");
        refused("(u32[])", "(u32[])");
    }
}
