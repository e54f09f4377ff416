//! Cross-entropy over a large vocabulary, where the logits are the largest array of a program.
//!
//! The function is that of [`sparse_softmax_cross_entropy`](super::sparse_softmax_cross_entropy), in few passes over
//! the logits, and without other arrays of their size. One pass, or two, computes everything needed of a row, and the
//! gradient, a custom VJP, rematerialises the probabilities from the logits and one number per row.
//! number per row.

use super::dense::{self, Dense};
use super::log_sum_exp::log_sum_exp;
use super::loss::{check_label_smoothing, check_labels, check_logits, is_label, loss};
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::{BinaryOp, Comparison, DotDims, UnaryOp};
use bf16scope_hlo::{DType, Emitter, InstrId};
use bf16scope_passes::tuning::Softmax;

/// [`dense`](super::dense) for the logits of [`token_loss`].
///
/// # Gradient
/// That of the layer, except for the bias if the dtype is narrower than f32: its gradient, a sum over the rows of the
/// program's largest array, is computed as a product with ones. It is rounded once, as the sum would be, and the matrix
/// unit computes it while the vector unit computes the array.
///
/// # Shapes, types, errors
/// As [`dense`](super::dense).
#[track_caller]
pub fn token_logits(s: &Scope, x: &Tensor, name: &str, config: &Dense) -> Tensor {
    let (result, kernel, bias) = match dense::parts(s, x, name, config) {
        Ok(dense::Parts { result, kernel, bias: Some(bias) }) if x.dtype().bits() < 32 => (result, kernel, bias),
        Ok(parts) => return config.activation.apply(&parts.result),
        Err(poison) => return poison,
    };
    let (x_id, kernel_id) = (x.id, kernel.value.id);
    let result = result.with_layer_vjp(&[x, &kernel.value, &bias.value], move |e, g, _| {
        let (dims, dtype) = (e.dims(g), e.dtype(g));
        let last = dims.len() as i64 - 1;
        let dot = |lhs, rhs, lhs_contracting: Vec<i64>, rhs_contracting: Vec<i64>| {
            e.dot(lhs, rhs, DotDims { lhs_contracting, rhs_contracting, ..DotDims::default() })
        };
        let leading = || (0..last).collect::<Vec<i64>>();
        let mut of_ones = dims.clone();
        of_ones[last as usize] = 1;
        let ones = e.full(dtype, &of_ones, 1.0);
        let of_x = dot(g, kernel_id, vec![last], vec![1]);
        let of_bias = e.reshape(dot(ones, g, leading(), leading()), &dims[last as usize..]);
        // The logits' cotangent would be kept until the bias's gradient is computed, which nothing else waits for.
        let [of_x, of_bias] = e.barrier([of_x, of_bias]);
        // Computed once: a norm fused into this product would be recomputed for each part of the vocabulary.
        let [x] = e.barrier([x_id]);
        vec![of_x, dot(x, g, leading(), leading()), of_bias]
    });
    config.activation.apply(&result)
}

/// The results of [`token_loss`] for each row of logits.
#[derive(Clone, Debug)]
pub struct TokenLoss {
    /// The cross-entropy, f32 or f64.
    pub loss: Tensor,
    /// Whether the label is the class of the first largest logit, as [`is_correct`](super::is_correct); false if the
    /// row's sum of exponentials is not finite, because of a NaN or infinities.
    pub is_correct: Tensor,
}

/// Cross-entropy of each row's softmax with its class, and whether the class is the row's first largest.
///
/// `log Σ e^z - (1 - s) z[label] - s / n Σ z` with `s` the label smoothing and `n` the number of classes. A label outside
/// `0..n` gives NaN, and gradients of NaN.
///
/// # Shapes
/// logits `[…, n]`, labels `[…]` → `[…]` each.
///
/// # Types
/// logits any floating dtype, labels any integer dtype. bf16 and f16 logits are cast to f32 first, so values are those
/// of f32 logits, and only their cotangent is rounded to their dtype; f64 is computed in f64.
///
/// In one pass ([`Softmax::OnePass`]) each of `n` steps rounds a value that is at most the largest logit plus `log n`,
/// by 2^-24 of it in f32.
///
/// # Gradient
/// `g · (e^(z - log Σ e^z) - (1 - s) [label] - s / n)`, in one expression of the logits and `log Σ e^z`.
///
/// # Errors
/// Logits that are not floating; labels that are not integers or do not have the logits' leading dims; smoothing outside
/// `[0, 1)`.
#[track_caller]
pub fn token_loss(logits: &Tensor, labels: &Tensor, label_smoothing: f64, softmax: Softmax) -> TokenLoss {
    let mut is_correct = None;
    let wide = if logits.dtype().is_float() && logits.dtype().bits() < 32 { DType::F32 } else { logits.dtype() };
    let check = || {
        check_logits("logits", &logits.cast(wide))?;
        check_labels(logits, labels)?;
        check_label_smoothing(label_smoothing)
    };
    let loss = loss("token_loss", [logits, labels], check, || {
        let both = rows(logits, &logits.cast(wide), labels, (label_smoothing, softmax));
        is_correct = Some(both.is_correct);
        both.loss
    });
    // After an error both are poison.
    let is_correct = is_correct.unwrap_or_else(|| loss.clone());
    TokenLoss { loss, is_correct }
}

#[track_caller]
fn rows(x: &Tensor, logits: &Tensor, labels: &Tensor, (label_smoothing, softmax): (f64, Softmax)) -> TokenLoss {
    let (graph, dtype, dims) = (logits.graph(), logits.dtype(), logits.dims());
    let (last, n_classes) = (dims.len() as i64 - 1, dims[dims.len() - 1]);
    let is_class = {
        let limit = |value: f64| graph.full(labels.dtype(), &labels.dims(), value);
        labels.greater_equal(&limit(0.0)).binary(BinaryOp::And, &labels.less(&limit(n_classes as f64)))
    };
    // In one pass none of these depends on another, so the compiler can fuse them all with the logits.
    let log_sum = {
        let log_sum = log_sum_exp(logits, softmax);
        // The sum of exponentials is undefined if there is an infinity, or nothing above minus infinity.
        let is_number = log_sum.abs().less(&graph.full(dtype, &labels.dims(), f64::INFINITY));
        is_number.select(&log_sum, &graph.full(dtype, &labels.dims(), f64::NAN))
    };
    let label_logit = {
        let nan = graph.full(dtype, &labels.dims(), f64::NAN);
        let zeros = graph.full(dtype, &dims, 0.0);
        is_class.select(&is_label(labels, &dims).select(logits, &zeros).sum(&[last]), &nan)
    };
    let greatest_where = |direction: Comparison| {
        let label = labels.broadcast_in_dim(&dims, &(0..last).collect::<Vec<i64>>());
        let is_there = graph.iota(labels.dtype(), &dims, last).compare(direction, &label);
        is_there.select(logits, &graph.full(dtype, &dims, f64::NEG_INFINITY)).max(&[last])
    };
    let is_first = label_logit
        .greater(&greatest_where(Comparison::Lt))
        .binary(BinaryOp::And, &label_logit.greater_equal(&greatest_where(Comparison::Gt)));
    let mut loss = &log_sum - &label_logit * (1.0 - label_smoothing);
    if label_smoothing > 0.0 {
        loss = loss - logits.sum(&[last]) * (label_smoothing / n_classes as f64);
    }
    let is_correct = is_first.binary(BinaryOp::And, &log_sum.equal(&log_sum));
    let custom_vjp = {
        let [labels, is_class, log_sum, logits] = [labels, &is_class, &log_sum, logits].map(|t| t.id);
        let dtype = x.dtype();
        move |e: &Emitter, g: InstrId, _: &[bool]| {
            // A label that is not a class makes its row's gradient NaN, as in TensorFlow.
            let g = e.select(is_class, g, e.full_like(g, f64::NAN));
            vec![e.convert(of_logits(e, g, [logits, labels, log_sum], label_smoothing), dtype)]
        }
    };
    TokenLoss { loss: loss.with_layer_vjp(&[x], custom_vjp), is_correct }
}

/// The cotangent of the logits.
fn of_logits(e: &Emitter, g: InstrId, [logits, labels, log_sum]: [InstrId; 3], label_smoothing: f64) -> InstrId {
    let dims = e.dims(logits);
    let last = dims.len() as i64 - 1;
    let leading: Vec<i64> = (0..last).collect();
    let along = |row: InstrId| e.broadcast(row, &leading, &dims);
    let probability = e.unary(UnaryOp::Exp, e.sub(logits, along(log_sum)));
    let is_label = e.compare(Comparison::Eq, along(labels), e.iota(e.dtype(labels), &dims, last));
    let label_term = e.select(is_label, along(e.mul_scalar(g, 1.0 - label_smoothing)), e.zeros_like(logits));
    let difference = e.sub(e.mul(probability, along(g)), label_term);
    if label_smoothing == 0.0 {
        return difference;
    }
    e.sub(difference, along(e.mul_scalar(g, label_smoothing / dims[last as usize] as f64)))
}
