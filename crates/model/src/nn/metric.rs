//! Metrics: the share of correct predictions.

use super::loss::{check_labels, is_label};
use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{BinaryOp, RuleError};

/// Argmax along the last axis: the index of the largest value, the first on a tie, as TensorFlow's `argmax`. A row with
/// a NaN gives the number of classes, which is not a class.
///
/// # Shapes
/// x `[…, n]` → `s32[…]`.
#[track_caller]
pub fn arg_max(x: &Tensor) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let dims = x.dims();
    let last = dims.len() as i64 - 1;
    let leading: Vec<i64> = (0..last).collect();
    let is_largest = x.equal(&x.max(&[-1]).broadcast_in_dim(&dims, &leading));
    let indices = x.graph().iota(DType::S32, &dims, last);
    let none = x.graph().full(DType::S32, &dims, dims[last as usize] as f64);
    let first = is_largest.select(&indices, &none).reduce(BinaryOp::Minimum, &[-1]);
    // Back ends differ in whether a reduction's maximum propagates NaN, so it is tested explicitly.
    let has_nan = x.not_equal(x).reduce(BinaryOp::Or, &[-1]);
    has_nan.select(&x.graph().full(DType::S32, &first.dims(), dims[last as usize] as f64), &first)
}

/// Whether [`arg_max`] of each row is its label.
///
/// # Shapes
/// logits `[…, n_classes]` of any floating dtype, labels `[…]` of any integer dtype → `pred[…]`.
///
/// # Errors
/// Labels that are not integers or do not have the logits' leading dims.
#[track_caller]
pub fn is_correct(logits: &Tensor, labels: &Tensor) -> Tensor {
    metric("is_correct", logits, labels, || arg_max(logits).equal(&labels.cast(DType::S32)))
}

/// Whether fewer than `k` classes of each row are above its label's, so all that tie at the boundary are among the top.
/// A row with a NaN at its label is wrong.
///
/// # Shapes
/// As [`is_correct`].
///
/// # Errors
/// As [`is_correct`].
///
/// # Source
/// TensorFlow's `in_top_k`.
#[track_caller]
pub fn is_in_top_k(logits: &Tensor, labels: &Tensor, k: i64) -> Tensor {
    metric("is_in_top_k", logits, labels, || {
        let (graph, dims) = (logits.graph(), logits.dims());
        let leading: Vec<i64> = (0..dims.len() as i64 - 1).collect();
        let zeros = graph.full(logits.dtype(), &dims, 0.0);
        let is_label = is_label(labels, &dims);
        let label_logit = is_label.select(logits, &zeros).reduce(BinaryOp::Add, &[-1]);
        let is_class = is_label.reduce(BinaryOp::Or, &[-1]);
        let is_above = logits.greater(&label_logit.broadcast_in_dim(&dims, &leading));
        let n_above = is_above.cast(DType::S32).reduce(BinaryOp::Add, &[-1]);
        let limit = graph.full(DType::S32, &n_above.dims(), k as f64);
        n_above.less(&limit).binary(BinaryOp::And, &label_logit.is_finite()).binary(BinaryOp::And, &is_class)
    })
}

/// Whether each logit agrees with its label: above 0 where the label is above 1/2. A NaN agrees with neither.
///
/// # Shapes
/// logits and labels of one shape and floating dtype → `pred` of that shape.
///
/// # Errors
/// Shapes or dtypes that differ.
///
/// # Source
/// Keras' `BinaryAccuracy` of `sigmoid(logits)`.
#[track_caller]
pub fn is_on_side(logits: &Tensor, labels: &Tensor) -> Tensor {
    if let Some(poison) = [logits, labels].into_iter().find(|tensor| tensor.is_poison()) {
        return poison.clone();
    }
    let graph = logits.graph();
    graph.scope().layer("metric", |_| {
        if let Some(poison) = check_sides("is_on_side", logits, labels) {
            return poison;
        }
        let full = |value| graph.full(logits.dtype(), &logits.dims(), value);
        let (above, below) = (logits.greater(&full(0.0)), logits.less_equal(&full(0.0)));
        labels.greater(&full(0.5)).select(&above, &below)
    })
}

/// Whether each logit is positive (above 0), and whether its label is (above 1/2): where the first holds, the mean of
/// the second is the precision, and where the second holds, the mean of the first is the recall. A NaN is negative.
///
/// # Shapes
/// logits and labels of one shape and floating dtype → twice `pred` of that shape.
///
/// # Errors
/// Shapes or dtypes that differ.
///
/// # Source
/// Keras' `Precision` and `Recall` of `sigmoid(logits)`, with thresholds of 1/2.
#[track_caller]
pub fn sides(logits: &Tensor, labels: &Tensor) -> (Tensor, Tensor) {
    if let Some(poison) = [logits, labels].into_iter().find(|tensor| tensor.is_poison()) {
        return (poison.clone(), poison.clone());
    }
    let graph = logits.graph();
    graph.scope().layer("metric", |_| match check_sides("sides", logits, labels) {
        Some(poison) => (poison.clone(), poison),
        None => {
            let full = |value| graph.full(logits.dtype(), &logits.dims(), value);
            (logits.greater(&full(0.0)), labels.greater(&full(0.5)))
        }
    })
}

/// Poison, unless logits and labels are floats of one shape.
#[track_caller]
pub(super) fn check_sides(what: &str, logits: &Tensor, labels: &Tensor) -> Option<Tensor> {
    if logits.dtype().is_float() && logits.shape() == labels.shape() {
        return None;
    }
    let message = format!("labels {} do not fit logits {}, expected one shape", labels.shape(), logits.shape());
    Some(logits.graph().fail(what, &[logits, labels], RuleError::new("metric/labels", message)))
}

/// The share of rows whose largest logit is their label's: `f32[]`. See [`is_correct`].
#[track_caller]
pub fn accuracy(logits: &Tensor, labels: &Tensor) -> Tensor {
    fraction(&is_correct(logits, labels))
}

/// The share of rows whose label is among the `k` largest: `f32[]`. See [`is_in_top_k`].
#[track_caller]
pub fn top_k_accuracy(logits: &Tensor, labels: &Tensor, k: i64) -> Tensor {
    fraction(&is_in_top_k(logits, labels, k))
}

#[track_caller]
fn fraction(is_right: &Tensor) -> Tensor {
    let axes: Vec<i64> = (0..is_right.rank() as i64).collect();
    is_right.cast(DType::F32).mean(&axes)
}

/// Runs `body` under the name level `metric`, unless an operand is poison or labels do not fit.
#[track_caller]
fn metric(what: &str, logits: &Tensor, labels: &Tensor, body: impl FnOnce() -> Tensor) -> Tensor {
    for tensor in [logits, labels] {
        if tensor.is_poison() {
            return tensor.clone();
        }
    }
    let graph = logits.graph();
    graph.scope().layer("metric", |_| match check_labels(logits, labels) {
        Ok(()) => body(),
        Err(error) => graph.fail(what, &[logits, labels], error),
    })
}
