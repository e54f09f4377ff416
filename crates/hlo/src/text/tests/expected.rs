//! Errors say which token the reader expects.

use super::error_of;
use crate::text::parse;

#[track_caller]
fn check(error: &str, expected: &str) {
    let line = error.lines().next().unwrap_or_default();
    assert!(line.ends_with(&format!(", expected {expected}")), "{line}");
}

#[test]
fn attributes_name_the_token_that_they_expect() {
    for (instruction, expected) in [
        ("ROOT % = f32[2]{0} negate(x)", "the root instruction's name"),
        ("ROOT y = f32[2]{0:=} negate(x)", "a layout attribute or `}`"),
        ("ROOT y = f32[2]{0:X(1)} negate(x)", "one of the layout attributes D, T, L, #, *, E, S, SC, P, M"),
        ("ROOT y = f32[2]{0} negate(x), =1", "an attribute's name"),
        ("ROOT y = f32[2]{0} negate(x), foo=", "a value of `foo`"),
        ("ROOT y = f32[2]{0} negate(x), frontend_attributes={=\"a\"}", "an attribute's name"),
        ("ROOT y = f32[2]{0} negate(x), metadata={=\"a\"}", "a metadata field or `}`"),
        ("ROOT y = f32[2]{0} negate(x), metadata={op_name=\"a}", "a closing quote"),
        ("ROOT y = f32[2]{0} negate(x), metadata={op_name=\"\\xff\"}", "a string of UTF-8"),
        ("ROOT y = f32[2]{0} negate(x), metadata={source_line=9999999999}", "a 32-bit integer"),
        ("ROOT y = f32[2]{0} call(x), to_apply={}", "a computation's name"),
        ("ROOT y = f32[2]{0} pad(x, x), padding=1_a", "integers like `0_1x2_3`"),
        ("ROOT y = f32[2]{0} pad(x, x), padding=1_2_3_4", "padding like `1_2x0_0_3`"),
        ("ROOT y = f32[2]{0} reduce-window(x, x), window={=1}", "a window attribute or `}`"),
        (
            "ROOT y = f32[2]{0} reduce-window(x, x), window={size=3x3 stride=2}",
            "2 values, as many as `size` before it has",
        ),
        (
            "ROOT y = f32[2]{0} reduce-window(x, x), window={size=3 stride=1_1}",
            "two integers per dimension in `pad`, one in all others",
        ),
        (
            "ROOT y = f32[2]{0} reduce-window(x, x), window={size=3 foo=1}",
            "size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal",
        ),
        ("ROOT y = f32[2]{0} convolution(x, x), dim_labels=bf->bf", "dimension labels like `b01f_01io->b01f`"),
    ] {
        check(&error_of(instruction), expected);
    }
}

#[test]
fn headers_and_computations_name_the_token_that_they_expect() {
    let entry = "\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n";
    for (text, expected) in [
        ("HloModule".to_string(), "the module's name"),
        ("HloModule m\n\nENTRY = {".to_string(), "the entry computation's name"),
        ("HloModule m\n\nENTRY e {\n}\n".to_string(), "a computation with instructions"),
        (format!("HloModule m, is_scheduled=maybe{entry}"), "`true` or `false`"),
        (format!("HloModule m, input_output_alias={{ {{}}: (0, {{}}, x) }}{entry}"), "`may-alias` or `must-alias`"),
    ] {
        check(&parse(&text, "m.hlo").unwrap_err().to_string(), expected);
    }
}
