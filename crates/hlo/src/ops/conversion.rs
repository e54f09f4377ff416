//! Conversions: to another dtype by value or by bits, and rounding within a dtype.
//!
//! # Shapes
//! `convert`, `reduce-precision`: `[…] → […]`. `bitcast-convert`: `[…] → […]` between dtypes of one width; to a dtype
//! of a k-th of the width `[…] → […, k]`, and back `[…, k] → […]`. The declared shape gives the new dtype.
//!
//! # Types
//! - `convert`: any to any, but complex only to complex. Float to narrower float rounds to nearest, ties to even, and
//!   overflows to infinity (to the largest finite value or NaN in dtypes without one); NaN stays NaN. Float to integer
//!   truncates toward 0, saturates, and gives 0 for NaN. Integer to float rounds to nearest even; to `pred` is `!= 0`.
//!   By default XLA may drop a pair f32 → bf16 → f32 (`xla_allow_excess_precision`).
//! - `bitcast-convert`: integers and floats in any pairing (all widths divide); `pred` and complex only to themselves.
//! - `reduce-precision`: a float keeps its dtype and is rounded to nearest even as if it had `exponent_bits` (≥ 1) and
//!   `mantissa_bits` (≥ 0); too large becomes infinity, NaN stays. With fewer exponent bits than the dtype has, what
//!   would be subnormal becomes 0. XLA never drops it: `(8, 7)` rounds f32 to bf16 for certain.
//!
//! # Errors
//! `operands/*`, `convert/complex`, `bitcast-convert/dtypes`, `bitcast-convert/last-dimension`,
//! `reduce-precision/exponent-bits`, `reduce-precision/mantissa-bits`.
//!
//! # Source
//! XLA's operation semantics (ConvertElementType, BitcastConvertType, ReducePrecision); `InferConvertShape`,
//! `InferBitcastConvertShape`, `InferReducePrecisionShape` of `shape_inference.cc`. Complex to real passes there
//! without a specified meaning; bitcasts of `pred` and between complex dtypes pass in some versions and are refused by
//! others and by back ends: all of these are errors here.

pub(crate) mod grad;

use super::{Op, RuleError, operands};
use crate::{ArrayShape, DType, Shape};

impl Op {
    /// Rounds to the values of bf16, without changing the dtype: unlike a convert and one back, compilers never remove
    /// it.
    pub const ROUND_TO_BF16: Op = Op::ReducePrecision { exponent_bits: 8, mantissa_bits: 7 };
}

/// Any array → the declared dtype, same dims. Floats round to nearest even; float → integer truncates.
pub(super) fn convert(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("convert", operands)?;
    let operand = operands::array("convert", "operand", operand)?;
    let declared = operands::declared_array("convert", declared)?;
    operands::same_dims("convert", ("operand", operand), ("result", declared))
        .map_err(|error| error.with_help("convert changes the dtype only: declare a result of the operand's dims"))?;
    if operand.dtype.is_complex() && !declared.dtype.is_complex() {
        let message = format!("convert is from {} to {}, expected a complex result", operand.dtype, declared.dtype);
        return Err(RuleError::new("convert/complex", message).with_help("take its `real`, `imag` or `abs` first"));
    }
    Ok(operands::like(operand, declared.dtype).into())
}

/// Reinterprets bits; a last dimension appears or vanishes where widths differ.
pub(super) fn bitcast_convert(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("bitcast-convert", operands)?;
    let operand = operands::array("bitcast-convert", "operand", operand)?;
    let declared = operands::declared_array("bitcast-convert", declared)?;
    let (from, to) = (operand.dtype, declared.dtype);
    let is_alone = |dtype: DType| dtype.is_complex() || dtype == DType::Pred;
    if from != to && (is_alone(from) || is_alone(to)) {
        let message = format!("bitcast-convert is from {from} to {to}, expected two dtypes of integers or floats");
        return Err(RuleError::new("bitcast-convert/dtypes", message)
            .with_help("the bits of pred and complex are not exposed: use `convert`, `real` or `imag`"));
    }
    let mut result = operands::like(operand, to);
    if from.bits() > to.bits() {
        result.dims.push((from.bits() / to.bits()) as i64);
        result.dynamic = operands::dynamic_flags(result.rank(), |axis| operand.is_dynamic(axis));
    } else if from.bits() < to.bits() {
        let ratio = (to.bits() / from.bits()) as i64;
        if result.dims.pop() != Some(ratio) {
            return Err(last_dimension_error(operand, to, ratio));
        }
        result.dynamic = operands::dynamic_flags(result.rank(), |axis| operand.is_dynamic(axis));
    }
    operands::check_size("bitcast-convert", "result", &result)?;
    operands::same_dims("bitcast-convert", ("implied result", &result), ("declared result", declared))
        .map_err(|error| error.with_help("a wider dtype takes away a last dimension, a narrower one adds it"))?;
    Ok(result.into())
}

fn last_dimension_error(operand: &ArrayShape, to: DType, ratio: i64) -> RuleError {
    let message = format!(
        "bitcast-convert to {to} is of {}, expected a last dimension of {ratio}: {} bits are {ratio} times {}",
        operands::show(operand),
        to.bits(),
        operand.dtype.bits(),
    );
    RuleError::new("bitcast-convert/last-dimension", message)
        .with_help("insert a `reshape` that splits off the elements that make one")
}

/// A float array → the same shape, rounded to nearest even.
pub(super) fn reduce_precision(
    exponent_bits: i32,
    mantissa_bits: i32,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("reduce-precision", operands)?;
    let operand = operands::array("reduce-precision", "operand", operand)?;
    operands::dtype("reduce-precision", "operand", operand, DType::is_float, "a float dtype")?;
    if exponent_bits < 1 {
        let message = format!("reduce-precision exponent_bits is {exponent_bits}, expected 1 or more");
        return Err(RuleError::new("reduce-precision/exponent-bits", message)
            .with_help("one exponent bit tells 0 from infinity; bfloat16 has 8"));
    }
    if mantissa_bits < 0 {
        let message = format!("reduce-precision mantissa_bits is {mantissa_bits}, expected 0 or more");
        return Err(RuleError::new("reduce-precision/mantissa-bits", message).with_help("bfloat16 has 7"));
    }
    Ok(operands::like(operand, operand.dtype).into())
}

#[cfg(test)]
mod tests;
