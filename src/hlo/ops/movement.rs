//! Data movement at constant indices: broadcast, reshape, transpose, slice, pad, concatenate, reverse.

use super::RuleError;
use crate::hlo::Shape;

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
    let _ = (dimensions, operands, declared);
    todo!()
}

/// The declared dims, which hold as many elements of the same dtype.
pub(super) fn reshape(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let _ = (operands, declared);
    todo!()
}

/// Result dimension `i` is operand dimension `permutation[i]`.
pub(super) fn transpose(permutation: &[i64], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (permutation, operands);
    todo!()
}

/// Each dimension has `ceil((limit - start) / stride)` elements.
pub(super) fn slice(dims: &[SliceDim], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (dims, operands);
    todo!()
}

/// Each dimension has `n + low + high + max(n - 1, 0) * interior` elements; second operand: the scalar put there.
pub(super) fn pad(dims: &[PadDim], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (dims, operands);
    todo!()
}

/// Operands differ only in `dimension`, whose sizes add up.
pub(super) fn concatenate(dimension: i64, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (dimension, operands);
    todo!()
}

/// The same shape.
pub(super) fn reverse(dimensions: &[i64], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (dimensions, operands);
    todo!()
}
