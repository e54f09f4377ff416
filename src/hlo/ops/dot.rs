//! `dot`: the generalised matrix product.

use super::RuleError;
use crate::hlo::Shape;

/// Dimension numbers of `dot`: batch dims come first in the result, then the free dims of lhs, then those of rhs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct DotDims {
    /// Batch dimensions of lhs.
    pub lhs_batch: Vec<i64>,
    /// Batch dimensions of rhs, in the same order.
    pub rhs_batch: Vec<i64>,
    /// Contracting dimensions of lhs.
    pub lhs_contracting: Vec<i64>,
    /// Contracting dimensions of rhs, in the same order.
    pub rhs_contracting: Vec<i64>,
}

super::elementwise::named! {
/// How precisely a back end must multiply f32 operands (`operand_precision`).
OperandPrecision {
    /// The back end's fastest: one bf16 pass on a TPU.
    Default = "default";
    /// Better: three bf16 passes on a TPU.
    High = "high";
    /// Full f32: six bf16 passes on a TPU.
    Highest = "highest";
}}

/// `operand_precision={…}, algorithm=…` of a dot or convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct PrecisionConfig {
    /// One per operand; empty = all default.
    pub operand_precision: Vec<OperandPrecision>,
    /// `PrecisionConfig.Algorithm` by name (`dot_bf16_bf16_f32`), if set.
    pub algorithm: Option<String>,
}

/// lhs, rhs → batch, lhs free, rhs free dims; dtype as declared, else the operands'.
pub(super) fn dot(
    dims: &DotDims,
    precision: &PrecisionConfig,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let _ = (dims, precision, operands, declared);
    todo!()
}
