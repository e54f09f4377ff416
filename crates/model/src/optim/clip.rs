//! Gradient clipping.

use super::number;
use super::storage::Updated;
use crate::graph::Tensor;
use bf16scope_hlo::ops::BinaryOp;
use serde::{Deserialize, Serialize};

/// How gradients are clipped: after weight decay that is a term of the loss, before the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Clip {
    /// All gradients by one factor, so that the root of the sum of all squares is at most `value`: `g · value · min(1 /
    /// norm, 1 / value)`. If the norm is not finite, every gradient is NaN.
    ///
    /// # Source
    /// TensorFlow's `clip_by_global_norm`.
    GlobalNorm {
        /// The largest norm.
        #[serde(deserialize_with = "number::positive")]
        value: f64,
        /// Whether each replica's gradients are clipped before they are summed, as in a `model_fn` of TPUEstimator that
        /// clips between `compute_gradients` and `apply_gradients`: gradients of its loss over the number of replicas,
        /// without added weight decay. Default false: the sum is clipped.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        per_replica: bool,
    },
    /// Each variable's gradient, so that its norm is at most `value`: `g · value / max(norm, value)`.
    ///
    /// # Source
    /// TensorFlow's `clip_by_norm`.
    Norm {
        /// The largest norm.
        #[serde(deserialize_with = "number::positive")]
        value: f64,
    },
    /// Each element, to the range from `-value` to `value`.
    ///
    /// # Source
    /// TensorFlow's `clip_by_value`.
    Value {
        /// The largest element.
        #[serde(deserialize_with = "number::positive")]
        value: f64,
    },
}

impl Clip {
    /// The gradients of these variables, clipped.
    #[track_caller]
    pub(super) fn emit(self, variables: &[Updated<'_>], gradients: &[Tensor]) -> Vec<Tensor> {
        match self {
            Clip::GlobalNorm { value, .. } => {
                let Some(first) = gradients.first() else { return vec![] };
                let square = |gradient: &Tensor| square(gradient).cast(first.dtype());
                let sum_of = |in_parts: bool| {
                    let both = variables.iter().zip(gradients);
                    // The padding of a sharded gradient is zeros.
                    let squares = both.filter(|(variable, _)| variable.part.is_some() == in_parts);
                    squares.map(|(_, gradient)| square(gradient)).reduce(|sum, square| sum + square)
                };
                let of_parts = sum_of(true).map(|sum| sum.sum_over_replicas());
                let Some(sum) = [sum_of(false), of_parts].into_iter().flatten().reduce(|a, b| a + b) else {
                    return vec![];
                };
                scaled_down(gradients, &sum.sqrt(), value)
            }
            Clip::Norm { value } => {
                let clipped = |(variable, gradient): (&Updated<'_>, &Tensor)| {
                    let least = gradient.graph().scalar(gradient.dtype(), value);
                    gradient * value / variable.norm(gradient).maximum(&least)
                };
                variables.iter().zip(gradients).map(clipped).collect()
            }
            Clip::Value { value } => (gradients.iter())
                .map(|g| g.binary_scalar(BinaryOp::Maximum, -value).binary_scalar(BinaryOp::Minimum, value))
                .collect(),
        }
    }

    /// Clips the gradients of one replica before they are summed; returns them unchanged if the sum is clipped.
    #[track_caller]
    pub fn of_replica(self, gradients: Vec<Tensor>) -> Vec<Tensor> {
        match (self, gradients.first().map(Tensor::dtype)) {
            (Clip::GlobalNorm { value, per_replica: true }, Some(dtype)) => {
                let squares = gradients.iter().map(|gradient| square(gradient).cast(dtype));
                match squares.reduce(|sum, square| sum + square) {
                    Some(sum) => scaled_down(&gradients, &sum.sqrt(), value),
                    None => gradients,
                }
            }
            _ => gradients,
        }
    }

    /// Whether the sum over replicas is clipped.
    pub(super) fn is_of_sum(self) -> bool {
        !matches!(self, Clip::GlobalNorm { per_replica: true, .. })
    }
}

/// Σg².
#[track_caller]
fn square(gradient: &Tensor) -> Tensor {
    let axes: Vec<i64> = (0..gradient.rank() as i64).collect();
    (gradient * gradient).sum(&axes)
}

/// `g · value · min(1 / norm, 1 / value)`.
#[track_caller]
fn scaled_down(gradients: &[Tensor], norm: &Tensor, value: f64) -> Vec<Tensor> {
    let scalar = |value: f64| norm.graph().scalar(norm.dtype(), value);
    let factor = (scalar(1.0) / norm).minimum(&scalar(1.0 / value)) * value;
    // 0, or NaN for an infinite norm, whose factor is 0.
    #[expect(clippy::eq_op, reason = "a norm that is not finite makes NaN, as in TensorFlow")]
    let factor = factor + (norm - norm);
    gradients.iter().map(|gradient| gradient * &factor.cast(gradient.dtype())).collect()
}
