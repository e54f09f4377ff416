//! Conversions: to another dtype by value or by bits, and rounding within a dtype.

use super::RuleError;
use crate::hlo::Shape;

/// Any array → the declared dtype, same dims. Floats round to nearest even; float → integer truncates.
pub(super) fn convert(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let _ = (operands, declared);
    todo!()
}

/// Reinterprets bits; a last dimension appears or vanishes where widths differ.
pub(super) fn bitcast_convert(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let _ = (operands, declared);
    todo!()
}

/// A float array → the same shape, rounded to nearest even.
pub(super) fn reduce_precision(
    exponent_bits: i32,
    mantissa_bits: i32,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let _ = (exponent_bits, mantissa_bits, operands);
    todo!()
}
