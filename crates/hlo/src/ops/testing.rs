//! Helpers for tests of shape rules: shapes as text, and one `check` for all ops.

use super::{Op, infer_shape};
use crate::{ArrayShape, DType, Module, Shape};

/// A shape from its text without layouts: `bf16[2,<=3]`, `(u64[2], f32[])`, `token[]`.
pub(crate) fn shape(text: &str) -> Shape {
    if text == "token[]" {
        return Shape::Token;
    }
    if let Some(elements) = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return Shape::Tuple(elements.split(", ").filter(|element| !element.is_empty()).map(shape).collect());
    }
    let (dtype, dims) = text.strip_suffix(']').and_then(|rest| rest.split_once('[')).expect(text);
    let dims: Vec<&str> = dims.split(',').filter(|dim| !dim.is_empty()).collect();
    let mut array = ArrayShape::new(
        DType::from_name(dtype).expect(text),
        dims.iter().map(|dim| dim.trim_start_matches("<=").parse().expect(text)).collect::<Vec<i64>>(),
    );
    if text.contains("<=") {
        array.dynamic = dims.iter().map(|dim| dim.starts_with("<=")).collect();
    }
    array.into()
}

/// Checks the shape rule of `op` with these operands and this declared shape (`""`: none): the result's text, or the
/// rule's name and its whole message.
#[track_caller]
pub(crate) fn check_in(module: &Module, op: &Op, operands: &[&str], declared: &str, expected: Result<&str, &str>) {
    let operands: Vec<Shape> = operands.iter().map(|text| shape(text)).collect();
    let declared = (!declared.is_empty()).then(|| shape(declared));
    let measured = infer_shape(module, op, &operands.iter().collect::<Vec<_>>(), declared.as_ref());
    let measured = measured.map(|shape| shape.to_string()).map_err(|error| format!("{}: {error}", error.rule));
    assert_eq!(measured.as_deref().map_err(String::as_str), expected, "{op:?}");
}

/// The same in an empty module.
#[track_caller]
pub(crate) fn check(op: &Op, operands: &[&str], declared: &str, expected: Result<&str, &str>) {
    check_in(&Module::new("test"), op, operands, declared, expected);
}

/// Compares the result of the shape rule, as text: the shape, or `rule: message`. `UPDATE_EXPECT=1` rewrites the
/// expected text.
#[track_caller]
pub(crate) fn expect_in(module: &Module, op: &Op, operands: &[&str], declared: &str, expected: expect_test::Expect) {
    let operands: Vec<Shape> = operands.iter().map(|text| shape(text)).collect();
    let declared = (!declared.is_empty()).then(|| shape(declared));
    let measured = infer_shape(module, op, &operands.iter().collect::<Vec<_>>(), declared.as_ref());
    expected.assert_eq(&measured.map_or_else(|error| format!("{}: {error}", error.rule), |shape| shape.to_string()));
}

/// The same in an empty module.
#[track_caller]
pub(crate) fn expect(op: &Op, operands: &[&str], declared: &str, expected: expect_test::Expect) {
    expect_in(&Module::new("test"), op, operands, declared, expected);
}

/// A computation with these parameters and this result, which is its last parameter.
pub(crate) fn computation(module: &mut Module, parameters: &[&str], result: &str) -> crate::CompId {
    let comp = module.add_computation("called");
    for (number, text) in (0..).zip(parameters) {
        module.append(comp, Op::parameter(number), Vec::new(), shape(text), Default::default());
    }
    let call = super::CustomCall { target: "any".into(), ..Default::default() };
    module.append(comp, Op::CustomCall(Box::new(call)), Vec::new(), shape(result), Default::default());
    comp
}
