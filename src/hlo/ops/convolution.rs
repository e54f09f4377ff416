//! `convolution`, with every window and dimension attribute.

use super::RuleError;
use super::dot::PrecisionConfig;
use super::window::Window;
use crate::hlo::Shape;

/// Attributes of `convolution`.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// One entry per spatial dimension: size = the kernel's, stride, padding, dilations, reversal.
    pub window: Window,
    /// Which dimension is which.
    pub dims: ConvolutionDims,
    /// Groups the input features split in.
    pub feature_group_count: i64,
    /// Groups the batch splits in.
    pub batch_group_count: i64,
    /// Operand precision.
    pub precision: PrecisionConfig,
}

/// Which dimension of each array is batch, feature, or the n-th spatial one; `dim_labels=b01f_01io->b01f`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionDims {
    /// Of the input.
    pub input_batch: i64,
    /// Of the input.
    pub input_feature: i64,
    /// Of the input.
    pub input_spatial: Vec<i64>,
    /// Of the kernel.
    pub kernel_input_feature: i64,
    /// Of the kernel.
    pub kernel_output_feature: i64,
    /// Of the kernel.
    pub kernel_spatial: Vec<i64>,
    /// Of the result.
    pub output_batch: i64,
    /// Of the result.
    pub output_feature: i64,
    /// Of the result.
    pub output_spatial: Vec<i64>,
}

/// Input, kernel → batch, output features, window positions; dtype as declared, else the operands'.
pub(super) fn convolution(
    convolution: &Convolution,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let _ = (convolution, operands, declared);
    todo!()
}
