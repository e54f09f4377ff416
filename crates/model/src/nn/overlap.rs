//! Dice losses: one minus the overlap of a predicted region with the true one. Computed in f32 (or f64), as all losses.
//!
//! Source: Milletari et al. 2016 (V-Net); Keras' `Dice` over all axes but the batch, with probabilities computed here.

use super::activation::{sigmoid, softmax};
use super::loss::{check_rows, loss};
use crate::graph::Tensor;

/// Keras' epsilon: avoids 0/0 for an example without positive labels and predictions.
const EPSILON: f64 = 1e-7;

/// `1 - 2 Σ p · label / (Σ label + Σ p + 1e-7)` for each example, `p` the sigmoid of each logit.
///
/// # Shapes
/// logits and labels `[batch, …]` of one shape → `[batch]`; labels are 0 or 1.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 logits; labels of another shape; a rank of 0.
#[track_caller]
pub fn sigmoid_dice_per_example(logits: &Tensor, labels: &Tensor) -> Tensor {
    let check = || check_rows("logits", logits, "labels", labels);
    loss("sigmoid_dice", [logits, labels], check, || dice(&sigmoid(logits), labels))
}

/// As [`sigmoid_dice_per_example`], with `p` the softmax along the last axis, and labels one-hot there.
///
/// # Shapes, types, errors
/// As there.
#[track_caller]
pub fn softmax_dice_per_example(logits: &Tensor, labels: &Tensor) -> Tensor {
    let check = || {
        check_rows("logits", logits, "labels", labels)?;
        super::at_least("loss/rank", "rank of logits", logits.rank() as i64, 2)
    };
    loss("softmax_dice", [logits, labels], check, || dice(&softmax(logits, -1), labels))
}

#[track_caller]
fn dice(p: &Tensor, labels: &Tensor) -> Tensor {
    let axes: Vec<i64> = (1..p.rank() as i64).collect();
    let sum = |x: &Tensor| if axes.is_empty() { x.clone() } else { x.sum(&axes) };
    let overlap = sum(&(p * labels)) * 2.0;
    (overlap / (sum(labels) + sum(p) + EPSILON)).negate() + 1.0
}
