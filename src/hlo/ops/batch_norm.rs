//! Batch normalisation: training, inference, and the gradient of training.
//!
//! All operands have one floating dtype: bf16 data with f32 parameters must be converted around the op.

use super::RuleError;
use crate::hlo::Shape;

/// Attributes of the `batch-norm-*` ops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// The dimension of features.
    pub feature_index: i64,
}

/// x `[…, c, …]`, scale `[c]`, offset `[c]` → (like x, mean `[c]`, variance `[c]`); the variance is the biased one.
pub(super) fn training(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (attributes, operands);
    todo!()
}

/// x `[…, c, …]`, scale, offset, mean, variance `[c]` → like x.
pub(super) fn inference(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (attributes, operands);
    todo!()
}

/// x, scale, mean, variance, grad like x → (grad of x, of scale `[c]`, of offset `[c]`).
pub(super) fn grad(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (attributes, operands);
    todo!()
}
