//! Data movement at constant indices: broadcast, reshape, transpose, slice, pad, concatenate, reverse.
//!
//! # Shapes
//! - `broadcast`: `[a, c] → [a, b, c]` with `dimensions=[0, 2]`; each entry names another result axis of equal size.
//! - `reshape`: dims with the same product; elements keep their row-major order.
//! - `transpose`: `[a, b, c] → [c, a, b]` with `permutation=[2, 0, 1]`.
//! - `slice`: `n → ceil((limit - start) / stride)`, with `0 <= start <= limit <= n` and `stride >= 1`.
//! - `pad`: `n → n + low + high + max(n - 1, 0) * interior`, with `interior >= 0` and a result of 0 or more; negative
//!   `low` and `high` remove elements. The padding value is a scalar.
//! - `concatenate`: `[a, b], [a, c] → [a, b + c]` with `dimension=1`; one operand or more.
//! - `reverse`: the same dims; each axis at most once.
//!
//! # Types
//! Any dtype (`concatenate`: of 4 bits or more); all operands and the result have one. Bits move unchanged: nothing
//! rounds, NaN payloads stay.
//!
//! # Errors
//! `operands/*`, `broadcast/sizes`, `reshape/elements`, `slice/bounds`, `slice/stride`, `pad/interior`, `pad/size`,
//! `concatenate/arity`, `concatenate/dims`, `concatenate/dtype`.
//!
//! # Source
//! XLA's operation semantics; `HandleBroadcast` and `HandleReshape` of `hlo_verifier.cc`; `InferTransposeShape`,
//! `InferSliceShape`, `InferPadShape`, `InferConcatOpShape`, `InferReverseShape` of `shape_inference.cc`.
//! A `concatenate` of 1-bit or 2-bit integers passes there and aborts the CPU back end: here it is an error.

pub(crate) mod grad;

use super::{RuleError, operands};
use crate::{ArrayShape, Shape};

/// One dimension of a `slice`: `start, start + stride, …` below `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceDim {
    /// First index.
    pub start: i64,
    /// Past the last index.
    pub limit: i64,
    /// Step, at least 1.
    pub stride: i64,
}

/// One dimension of a `pad`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PadDim {
    /// Elements added before (removed, if negative).
    pub low: i64,
    /// Elements added after (removed, if negative).
    pub high: i64,
    /// Elements added between neighbours, at least 0.
    pub interior: i64,
}

/// Operand dimension `i` becomes result dimension `dimensions[i]`, of equal size; the rest is the declared dims.
pub(super) fn broadcast(dimensions: &[i64], operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("broadcast", operands)?;
    let operand = operands::array("broadcast", "operand", operand)?;
    let declared = operands::declared_array("broadcast", declared)?;
    operands::same_dtype("broadcast", ("operand", operand), ("result", declared))?;
    operands::per_dimension("broadcast", "dimensions", dimensions.len(), operand)?;
    let axes = operands::axes("broadcast", "dimensions", dimensions, declared.rank())?;
    for (i, &axis) in axes.iter().enumerate() {
        let (from, to) = (operand.dims[i], declared.dims[axis]);
        if from != to {
            let message = format!("broadcast sizes differ: operand[{i}]={from}, result[{axis}]={to}");
            return Err(RuleError::new("broadcast/sizes", message)
                .with_help("hlo repeats along new dimensions only: `reshape` a dimension of 1 away first"));
        }
    }
    Ok(operands::like(declared, declared.dtype).into())
}

/// The declared dims, with as many elements, of the same dtype.
pub(super) fn reshape(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("reshape", operands)?;
    let operand = operands::array("reshape", "operand", operand)?;
    let declared = operands::declared_array("reshape", declared)?;
    operands::same_dtype("reshape", ("operand", operand), ("result", declared))?;
    let (from, to) = (operand.n_elements(), declared.n_elements());
    if from != to {
        let message = format!(
            "reshape element counts differ: operand {} has {from}, result {} has {to}",
            operands::show(operand),
            operands::show(declared)
        );
        return Err(RuleError::new("reshape/elements", message)
            .with_help("`broadcast`, `slice` or `pad` change the number of elements; `reshape` does not"));
    }
    Ok(operands::like(declared, declared.dtype).into())
}

/// Result dimension `i` is operand dimension `permutation[i]`.
pub(super) fn transpose(permutation: &[i64], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("transpose", operands)?;
    let operand = operands::array("transpose", "operand", operand)?;
    operands::per_dimension("transpose", "dimensions", permutation.len(), operand)?;
    let axes = operands::axes("transpose", "dimensions", permutation, operand.rank())?;
    let dims: Vec<i64> = axes.iter().map(|&axis| operand.dims[axis]).collect();
    let dynamic = operands::dynamic_flags(dims.len(), |i| operand.is_dynamic(axes[i]));
    Ok(ArrayShape { dims, dynamic, ..operands::like(operand, operand.dtype) }.into())
}

/// Each dimension has `ceil((limit - start) / stride)` elements.
pub(super) fn slice(dims: &[SliceDim], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("slice", operands)?;
    let operand = operands::array("slice", "operand", operand)?;
    operands::per_dimension("slice", "bounds", dims.len(), operand)?;
    let mut result = operands::like(operand, operand.dtype);
    for (axis, (dim, size)) in dims.iter().zip(&mut result.dims).enumerate() {
        let SliceDim { start, limit, stride } = *dim;
        if !(0 <= start && start <= limit && limit <= *size) {
            let message = format!("slice of axis {axis} is [{start}:{limit}], expected 0 <= start <= limit <= {size}");
            return Err(RuleError::new("slice/bounds", message));
        }
        if stride < 1 {
            let message = format!("slice stride of axis {axis} is {stride}, expected 1 or more");
            return Err(RuleError::new("slice/stride", message).with_help("use `reverse` to walk backwards"));
        }
        let length = limit - start;
        *size = length / stride + i64::from(length % stride != 0);
    }
    Ok(result.into())
}

/// Each dimension has `n + low + high + max(n - 1, 0) * interior` elements; the second operand is the padding scalar.
pub(super) fn pad(dims: &[PadDim], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [operand, value] = operands::arity("pad", operands)?;
    let operand = operands::array("pad", "operand", operand)?;
    let value = operands::scalar("pad", "padding value", value)?;
    operands::same_dtype("pad", ("operand", operand), ("padding value", value))?;
    operands::per_dimension("pad", "padding", dims.len(), operand)?;
    let mut result = operands::like(operand, operand.dtype);
    for (axis, (dim, size)) in dims.iter().zip(&mut result.dims).enumerate() {
        let PadDim { low, high, interior } = *dim;
        if interior < 0 {
            let message = format!("pad interior of axis {axis} is {interior}, expected 0 or more");
            return Err(RuleError::new("pad/interior", message).with_help("a strided `slice` takes elements out"));
        }
        // Computed in 128 bits, where neither the product nor the sum of 64-bit values overflows.
        let gaps = (i128::from(*size) - 1).max(0) * i128::from(interior);
        let padded = i128::from(*size) + i128::from(low) + i128::from(high) + gaps;
        *size = i64::try_from(padded).ok().filter(|&padded| padded >= 0).ok_or_else(|| {
            let padding = format!("{low}_{high}_{interior}");
            let message = format!(
                "pad of axis {axis} makes {padded} elements of {size} with {padding}, expected 0 to 2^63 - 1 elements"
            );
            RuleError::new("pad/size", message)
        })?;
    }
    operands::check_size("pad", "result", &result)?;
    Ok(result.into())
}

/// Operands differ only in `dimension`, whose sizes add up.
pub(super) fn concatenate(dimension: i64, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let arrays = operands::arrays("concatenate", operands)?;
    let Some((&first, rest)) = arrays.split_first() else {
        return Err(RuleError::new("concatenate/arity", "concatenate takes 1 or more operands, got 0"));
    };
    let axis = operands::axis("concatenate", "dimensions", dimension, first.rank())?;
    if first.dtype.bits() < 4 {
        let message = format!("concatenate operand 0 is {}, expected a dtype of 4 bits or more", operands::show(first));
        return Err(RuleError::new("concatenate/dtype", message)
            .with_help("xla's cpu back end aborts on it: insert a `convert` to a wider integer"));
    }
    let mut total = first.dims[axis];
    for (i, &array) in rest.iter().enumerate() {
        let role = format!("operand {}", i + 1);
        operands::same_dtype("concatenate", ("operand 0", first), (&role, array))?;
        let differs = |a: usize| a != axis && first.dims[a] != array.dims[a];
        if array.rank() != first.rank() || (0..first.rank()).any(differs) {
            let message = format!(
                "concatenate dims differ: operand 0 is {}, {role} is {}, expected a difference in axis {axis} only",
                operands::show(first),
                operands::show(array)
            );
            return Err(RuleError::new("concatenate/dims", message));
        }
        total = total.saturating_add(array.dims[axis]);
    }
    let mut result = operands::like(first, first.dtype);
    result.dims[axis] = total;
    result.dynamic = operands::dynamic_flags(first.rank(), |axis| arrays.iter().any(|array| array.is_dynamic(axis)));
    operands::check_size("concatenate", "result", &result)?;
    Ok(result.into())
}

/// The same shape.
pub(super) fn reverse(dimensions: &[i64], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [operand] = operands::arity("reverse", operands)?;
    let operand = operands::array("reverse", "operand", operand)?;
    operands::axes("reverse", "dimensions", dimensions, operand.rank())?;
    Ok(operands::like(operand, operand.dtype).into())
}

#[cfg(test)]
mod tests;
