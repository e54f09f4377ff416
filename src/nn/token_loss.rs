//! Cross-entropy over a large vocabulary, where the logits are the largest array of a program.
//!
//! The same function as [`sparse_softmax_cross_entropy`](super::sparse_softmax_cross_entropy), written for few passes
//! over the logits and for nothing of their size to be kept but themselves: one pass finds the greatest, one makes every
//! sum, and the gradient, which is its own, makes the probabilities again from the logits and two numbers of each row.

use super::loss::{check_label_smoothing, check_labels, check_logits, is_label, loss};
use crate::graph::Tensor;
use crate::hlo::ops::{BinaryOp, Comparison, UnaryOp};
use crate::hlo::{DType, Emitter, InstrId};

/// What [`token_loss`] gives for each row of logits.
#[derive(Clone, Debug)]
pub struct TokenLoss {
    /// The cross-entropy, f32 or f64.
    pub loss: Tensor,
    /// Whether the label is the class of the first greatest logit, as [`is_correct`](super::is_correct); never where the
    /// powers of the row have no sum, because of a NaN or of infinities.
    pub is_correct: Tensor,
}

/// Cross-entropy of each row's softmax with its class, and whether the class is the row's first greatest.
///
/// `log Σ e^z - (1 - s) z[label] - s / n Σ z` with `z = logits - max logits`, `s` the label smoothing and `n` the number
/// of classes. A label outside `0..n` gives NaN, and gradients of NaN.
///
/// # Shapes
/// logits `[…, n]`, labels `[…]` → `[…]` each.
///
/// # Types
/// logits any floating dtype, labels any integer dtype. bf16 and f16 logits are cast to f32 before anything else, so
/// values are those of f32 logits, and only their cotangent is rounded to their dtype; f64 is computed in f64.
///
/// # Gradient
/// `g · (e^z / Σ e^z - (1 - s) [label] - s / n)`, in one expression of the logits, the greatest and the sum.
///
/// # Errors
/// Logits that are not floating; labels that are not integers or do not have the logits' leading dims; smoothing outside
/// `[0, 1)`.
#[track_caller]
pub fn token_loss(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> TokenLoss {
    let mut is_correct = None;
    let wide = if logits.dtype().is_float() && logits.dtype().bits() < 32 { DType::F32 } else { logits.dtype() };
    let check = || {
        check_logits("logits", &logits.cast(wide))?;
        check_labels(logits, labels)?;
        check_label_smoothing(label_smoothing)
    };
    let loss = loss("token_loss", [logits, labels], check, || {
        let both = rows(logits, &logits.cast(wide), labels, label_smoothing);
        is_correct = Some(both.is_correct);
        both.loss
    });
    // After an error both are poison.
    let is_correct = is_correct.unwrap_or_else(|| loss.clone());
    TokenLoss { loss, is_correct }
}

#[track_caller]
fn rows(given: &Tensor, logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> TokenLoss {
    let (graph, dtype, dims) = (logits.graph(), logits.dtype(), logits.dims());
    let (last, n_classes) = (dims.len() as i64 - 1, dims[dims.len() - 1]);
    let leading: Vec<i64> = (0..last).collect();
    let along = |row: &Tensor| row.broadcast_in_dim(&dims, &leading);
    let is_class = {
        let limit = |value: f64| graph.full(labels.dtype(), &labels.dims(), value);
        labels.greater_equal(&limit(0.0)).binary(BinaryOp::And, &labels.less(&limit(n_classes as f64)))
    };
    let nan = graph.full(dtype, &labels.dims(), f64::NAN);
    let zeros = graph.full(dtype, &dims, 0.0);
    let greatest = logits.max(&[last]);
    // Three sums over the same differences: the compiler makes one pass of them.
    let shifted = logits - along(&greatest);
    let sum = shifted.exponential().sum(&[last]);
    let own = is_class.select(&is_label(labels, &dims).select(&shifted, &zeros).sum(&[last]), &nan);
    let n_before = {
        let is_before = graph.iota(labels.dtype(), &dims, last).less(&along(labels));
        let is_greatest_before = shifted.equal(&zeros).binary(BinaryOp::And, &is_before);
        is_greatest_before.select(&graph.full(dtype, &dims, 1.0), &zeros).sum(&[last])
    };
    let mut loss = sum.log() - &own * (1.0 - label_smoothing);
    if label_smoothing > 0.0 {
        loss = loss - shifted.sum(&[last]) * (label_smoothing / n_classes as f64);
    }
    let none = graph.full(dtype, &labels.dims(), 0.0);
    let is_first = own.equal(&none).binary(BinaryOp::And, &n_before.equal(&none));
    let is_correct = is_first.binary(BinaryOp::And, &sum.equal(&sum));
    let own_gradient = {
        let [labels, is_class, greatest, sum, logits] = [labels, &is_class, &greatest, &sum, logits].map(|t| t.id);
        let dtype = given.dtype();
        move |e: &Emitter, g: InstrId| {
            // A label that is no class takes its row's gradient with it, as TensorFlow's does.
            let g = e.select(is_class, g, e.full_like(g, f64::NAN));
            vec![e.convert(of_logits(e, g, [logits, labels, greatest, sum], label_smoothing), dtype)]
        }
    };
    TokenLoss { loss: loss.with_gradient(&[given], own_gradient), is_correct }
}

/// The cotangent of the logits.
fn of_logits(e: &Emitter, g: InstrId, [logits, labels, greatest, sum]: [InstrId; 4], label_smoothing: f64) -> InstrId {
    let dims = e.dims(logits);
    let last = dims.len() as i64 - 1;
    let leading: Vec<i64> = (0..last).collect();
    let along = |row: InstrId| e.broadcast(row, &leading, &dims);
    let power = e.unary(UnaryOp::Exp, e.sub(logits, along(greatest)));
    let probability = e.mul(power, along(e.div(g, sum)));
    let is_label = e.compare(Comparison::Eq, along(labels), e.iota(e.dtype(labels), &dims, last));
    let own = e.select(is_label, along(e.mul_scalar(g, 1.0 - label_smoothing)), e.zeros_like(logits));
    let difference = e.sub(probability, own);
    if label_smoothing == 0.0 {
        return difference;
    }
    e.sub(difference, along(e.mul_scalar(g, label_smoothing / dims[last as usize] as f64)))
}
