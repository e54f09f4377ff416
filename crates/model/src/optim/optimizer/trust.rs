//! The trust ratio of the optimizers for large batches.

use crate::graph::Tensor;
use bf16scope_hlo::ops::BinaryOp;

/// `ratio` where both norms are above 0, else 1.
#[track_caller]
pub(super) fn trusted(ratio: &Tensor, size: &Tensor, of_step: &Tensor) -> Tensor {
    let (zero, one) = (ratio.graph().scalar(ratio.dtype(), 0.0), ratio.graph().scalar(ratio.dtype(), 1.0));
    let is_positive = size.greater(&zero).binary(BinaryOp::And, &of_step.greater(&zero));
    is_positive.select(ratio, &one)
}
