//! Losses. All are computed in f32 (or f64); logits in bf16 or f16 are an error that names the missing cast.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, RuleError};
use bf16scope_hlo::{DType, Literal};

/// Mean over all examples of [`sparse_softmax_cross_entropy_per_example`]: `[]`.
#[track_caller]
pub fn sparse_softmax_cross_entropy(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
    mean(&sparse_softmax_cross_entropy_per_example(logits, labels, label_smoothing))
}

/// Cross-entropy of each example's softmax with its class: `log Σ e^z - z[label]`, `z = logits - max logits`.
///
/// With `label_smoothing` s the label's probability is `1 - s + s / n_classes` and each other's `s / n_classes`.
/// A label outside `0..n_classes` gives NaN, as in TensorFlow: check labels where they are read.
///
/// # Shapes
/// logits `[…, n_classes]`, labels `[…]` → `[…]`.
///
/// # Types
/// logits f32 or f64, labels any integer dtype; computed in the logits' dtype.
///
/// # Errors
/// bf16 or f16 logits; labels that are not integers or do not have the logits' leading dims; smoothing outside `[0, 1)`.
///
/// # Source
/// TensorFlow's `SparseSoftmaxCrossEntropyWithLogits`, operation for operation as its XLA bridge compiles it; label
/// smoothing as `tf.losses.softmax_cross_entropy`.
#[track_caller]
pub fn sparse_softmax_cross_entropy_per_example(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
    let what = "sparse_softmax_cross_entropy";
    let check = || check_sparse(logits, labels, label_smoothing);
    loss(what, [logits, labels], check, || {
        let one_hot = one_hot_or_nan(logits, labels);
        cross_entropy(logits, &one_hot, label_smoothing)
    })
}

/// [`one_hot`], with a row of NaN for a label that is not a class.
pub(super) fn one_hot_or_nan(logits: &Tensor, labels: &Tensor) -> Tensor {
    let (graph, dims) = (logits.graph(), logits.dims());
    let (last, n_classes) = (dims.len() as i64 - 1, dims[dims.len() - 1]);
    let leading: Vec<i64> = (0..last).collect();
    let zeros = graph.full(labels.dtype(), &labels.dims(), 0.0);
    let n = graph.full(labels.dtype(), &labels.dims(), n_classes as f64);
    let is_class = labels.greater_equal(&zeros).binary(BinaryOp::And, &labels.less(&n));
    let nan = graph.full(logits.dtype(), &labels.dims(), f64::NAN);
    let zero_or_nan = is_class.select(&graph.full(logits.dtype(), &labels.dims(), 0.0), &nan);
    one_hot(logits, labels) + zero_or_nan.broadcast_in_dim(&dims, &leading)
}

/// Mean over all examples of [`softmax_cross_entropy_per_example`]: `[]`.
#[track_caller]
pub fn softmax_cross_entropy(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
    mean(&softmax_cross_entropy_per_example(logits, labels, label_smoothing))
}

/// Cross-entropy of each example's softmax with a distribution: `-Σ label · (z - log Σ e^z)`, `z = logits - max logits`.
///
/// With `label_smoothing` s, `label · (1 - s) + s / n_classes` replaces `label`. Classes of probability 0 add nothing,
/// even where a logit is minus infinity.
///
/// # Shapes
/// logits, labels `[…, n_classes]` → `[…]`.
///
/// # Types
/// logits and labels f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 logits; labels of another shape; smoothing outside `[0, 1)`.
///
/// # Source
/// TensorFlow's `SoftmaxCrossEntropyWithLogits`, operation for operation as its XLA bridge compiles it; label smoothing
/// as `tf.losses.softmax_cross_entropy`.
#[track_caller]
pub fn softmax_cross_entropy_per_example(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
    let check = || check_dense(logits, labels, label_smoothing);
    loss("softmax_cross_entropy", [logits, labels], check, || cross_entropy(logits, labels, label_smoothing))
}

/// `Σ label · (log label − log softmax(logits))` over the last axis: how far the predicted distribution is from the
/// label's. It is the cross entropy less the label's entropy, so gradients are those of the cross entropy.
///
/// # Shapes, types, errors
/// As [`softmax_cross_entropy_per_example`], without smoothing.
///
/// # Source
/// Kullback & Leibler 1951. Keras' `KLDivergence` reads probabilities, and clips both distributions at 1e-7.
#[track_caller]
pub fn kl_divergence_per_example(logits: &Tensor, labels: &Tensor) -> Tensor {
    let check = || check_dense(logits, labels, 0.0);
    loss("kl_divergence", [logits, labels], check, || {
        let zeros = labels.graph().full(labels.dtype(), &labels.dims(), 0.0);
        let ones = labels.graph().full(labels.dtype(), &labels.dims(), 1.0);
        // x · log x goes to 0 with x.
        let information = labels * labels.equal(&zeros).select(&ones, labels).log();
        cross_entropy(logits, labels, 0.0) + information.sum(&[-1])
    })
}

/// The operations of TensorFlow's cross-entropy.
fn cross_entropy(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
    let (graph, dims) = (logits.graph(), logits.dims());
    let (last, n_classes) = (dims.len() as i64 - 1, dims[dims.len() - 1]);
    let leading: Vec<i64> = (0..last).collect();
    let labels = if label_smoothing == 0.0 {
        labels.clone()
    } else {
        labels * (1.0 - label_smoothing) + label_smoothing / n_classes as f64
    };
    let shifted = logits - logits.max(&[last]).broadcast_in_dim(&dims, &leading);
    let log_sum = shifted.exponential().sum(&[last]).log();
    let log_probability = shifted - log_sum.broadcast_in_dim(&dims, &leading);
    let zeros = graph.full(logits.dtype(), &dims, 0.0);
    let counted = labels.equal(&zeros).select(&zeros, &log_probability);
    (labels.negate() * counted).sum(&[last])
}

/// Mean of `(prediction - target)²` over all elements.
///
/// # Shapes
/// prediction and target of one shape → `[]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 predictions; shapes that differ.
#[track_caller]
pub fn mean_squared_error(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_equal("prediction", prediction, "target", target);
    loss("mean_squared_error", [prediction, target], check, || {
        let difference = prediction - target;
        let axes: Vec<i64> = (0..difference.rank() as i64).collect();
        (&difference * &difference).mean(&axes)
    })
}

/// Mean of `(prediction - target)²` over all axes but the first.
///
/// # Shapes
/// prediction and target `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// As [`mean_squared_error`].
///
/// # Errors
/// As [`mean_squared_error`]; a rank of 0.
#[track_caller]
pub fn mean_squared_error_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("mean_squared_error", [prediction, target], check, || {
        let difference = prediction - target;
        mean_of_rows(&(&difference * &difference))
    })
}

/// Mean of `|prediction - target|` over all axes but the first.
///
/// # Shapes
/// prediction and target `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Gradient
/// 0 where prediction and target are equal.
///
/// # Errors
/// bf16 or f16 predictions; shapes that differ; a rank of 0.
#[track_caller]
pub fn mean_absolute_error_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("mean_absolute_error", [prediction, target], check, || mean_of_rows(&(prediction - target).abs()))
}

/// Mean of `prediction - target` over all axes but the first: of a target of 0 a loss that the network computes itself.
///
/// # Shapes
/// prediction and target `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 predictions; shapes that differ; a rank of 0.
#[track_caller]
pub fn value_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("value", [prediction, target], check, || mean_of_rows(&(prediction - target)))
}

/// Cross-entropy of independent answers: `max(z, 0) - z · label + log(1 + e^-|z|)` for each logit `z`, averaged over
/// all axes but the first.
///
/// With `label_smoothing` s, `label · (1 - s) + s / 2` replaces `label`.
///
/// # Shapes
/// logits and labels `[batch, …]` of one shape → `[batch]`; labels are probabilities, usually 0 or 1.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 logits; labels of another shape; a rank of 0; smoothing outside `[0, 1)`.
///
/// # Source
/// TensorFlow's `sigmoid_cross_entropy_with_logits`; label smoothing as `tf.losses.sigmoid_cross_entropy`.
#[track_caller]
pub fn sigmoid_cross_entropy_per_example(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
    let check = || check_rows("logits", logits, "labels", labels).and(check_label_smoothing(label_smoothing));
    loss("sigmoid_cross_entropy", [logits, labels], check, || {
        let labels = match label_smoothing {
            0.0 => labels.clone(),
            smoothing => labels * (1.0 - smoothing) + smoothing / 2.0,
        };
        mean_of_rows(&yes_or_no(logits, &labels))
    })
}

/// The cross-entropy of each independent answer.
#[track_caller]
pub(super) fn yes_or_no(logits: &Tensor, labels: &Tensor) -> Tensor {
    // Selects instead of max and abs: their gradients are right at a logit of 0.
    let zeros = logits.graph().full(logits.dtype(), &logits.dims(), 0.0);
    let is_positive = logits.greater_equal(&zeros);
    let positive = is_positive.select(logits, &zeros);
    let minus_abs = is_positive.select(&logits.negate(), logits);
    positive - logits * labels + minus_abs.exponential().log_plus_one()
}

/// Quadratic for small differences and linear for large ones: `d² / 2` where `d = |prediction - target|` is at most
/// `delta`, else `delta · d - delta² / 2`, averaged over all axes but the first.
///
/// # Shapes
/// prediction and target `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// As [`mean_squared_error_per_example`]; a delta that is not above 0.
///
/// # Source
/// Keras' `Huber`.
#[track_caller]
pub fn huber_per_example(prediction: &Tensor, target: &Tensor, delta: f64) -> Tensor {
    let check = || {
        check_rows("prediction", prediction, "target", target)?;
        if delta as f32 > 0.0 && (delta as f32).is_finite() {
            return Ok(());
        }
        Err(RuleError::new("loss/delta", format!("delta is {delta}, expected a finite number above 0")))
    };
    loss("huber", [prediction, target], check, || {
        let difference = prediction - target;
        let distance = difference.abs();
        let is_small = distance.less_equal(&distance.graph().full(distance.dtype(), &distance.dims(), delta));
        let line = distance * delta - 0.5 * delta * delta;
        mean_of_rows(&is_small.select(&(&difference * &difference * 0.5), &line))
    })
}

/// The weight of each row's class: the label's for classes, or the mean by probability for distributions.
///
/// # Shapes
/// labels `[…]` of an integer dtype, or `[…, n_classes]` f32 or f64; one weight for each of the `n_classes` → f32 (f64
/// for f64 labels) `[…]`. A label that is not a class has weight 0.
///
/// # Errors
/// Labels of another dtype, distributions whose number of classes differs from the number of weights, no weights, and
/// weights that are negative or not finite.
///
/// # Source
/// Keras' `class_weight`.
#[track_caller]
pub fn class_weights(labels: &Tensor, weights: &[f64]) -> Tensor {
    let check = || check_class_weights(labels, weights);
    loss("class_weights", [labels, labels], check, || {
        let dtype = if labels.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let n = weights.len() as i64;
        let narrow: Vec<f32> = weights.iter().map(|&weight| weight as f32).collect();
        let constant = match dtype {
            DType::F64 => Literal::from_elements([n], weights),
            _ => Literal::from_elements([n], &narrow),
        };
        let mut dims = labels.dims();
        if labels.dtype().is_integer() {
            dims.push(n);
        }
        let last = dims.len() as i64 - 1;
        let weights = labels.graph().constant(constant).broadcast_in_dim(&dims, &[last]);
        let zeros = labels.graph().full(dtype, &dims, 0.0);
        let weighed = match labels.dtype().is_integer() {
            true => is_label(labels, &dims).select(&weights, &zeros),
            false => labels * &weights,
        };
        weighed.sum(&[last])
    })
}

fn check_class_weights(labels: &Tensor, weights: &[f64]) -> Result<(), RuleError> {
    let wrong = |message: String| Err(RuleError::new("loss/class-weights", message));
    if let Some(weight) = weights.iter().find(|weight| !(**weight >= 0.0 && (**weight as f32).is_finite())) {
        return wrong(format!("a class weighs {weight}, expected a finite number of at least 0"));
    }
    let fits = match labels.dtype() {
        DType::F32 | DType::F64 => labels.dims().last() == Some(&(weights.len() as i64)),
        dtype => dtype.is_integer(),
    };
    match fits && !weights.is_empty() {
        true => Ok(()),
        false => wrong(format!("{} weights of classes do not fit labels {}", weights.len(), labels.shape())),
    }
}

/// The mean over all axes but the first.
#[track_caller]
pub(super) fn mean_of_rows(values: &Tensor) -> Tensor {
    let axes: Vec<i64> = (1..values.rank() as i64).collect();
    if axes.is_empty() { values.clone() } else { values.mean(&axes) }
}

/// Runs `body` under the name level `loss`, unless an operand is poison or `check` fails.
#[track_caller]
pub(super) fn loss(
    what: &str,
    operands: [&Tensor; 2],
    check: impl FnOnce() -> Result<(), RuleError>,
    body: impl FnOnce() -> Tensor,
) -> Tensor {
    if let Some(poison) = operands.into_iter().find(|tensor| tensor.is_poison()) {
        return poison.clone();
    }
    let graph = operands[0].graph();
    graph.scope().layer("loss", |_| match check() {
        Ok(()) => body(),
        Err(error) => graph.fail(what, &operands, error),
    })
}

/// 1 at each label and 0 elsewhere, in the shape and dtype of logits; all 0 for a label that is not a class.
#[track_caller]
pub(super) fn one_hot(logits: &Tensor, labels: &Tensor) -> Tensor {
    let (graph, dims) = (logits.graph(), logits.dims());
    let [zeros, ones] = [0.0, 1.0].map(|value| graph.full(logits.dtype(), &dims, value));
    is_label(labels, &dims).select(&ones, &zeros)
}

/// Whether the index along the last of `dims` is the label.
#[track_caller]
pub(super) fn is_label(labels: &Tensor, dims: &[i64]) -> Tensor {
    let last = dims.len() as i64 - 1;
    let leading: Vec<i64> = (0..last).collect();
    let classes = labels.graph().iota(labels.dtype(), dims, last);
    labels.broadcast_in_dim(dims, &leading).equal(&classes)
}

/// Mean over all elements, under the name level `loss`.
#[track_caller]
fn mean(values: &Tensor) -> Tensor {
    let axes: Vec<i64> = (0..values.rank() as i64).collect();
    values.graph().scope().layer("loss", |_| values.mean(&axes))
}

/// Checks that logits are f32 or f64 and of rank 1 or more.
pub(super) fn check_logits(what: &str, logits: &Tensor) -> Result<(), RuleError> {
    match logits.dtype() {
        DType::F32 | DType::F64 => Ok(()),
        DType::BF16 | DType::F16 => {
            let message = format!("{what} {} would lose the loss to rounding, expected f32", logits.shape());
            let help = format!("cast them where the low-precision scope ends: {what}.cast(DType::F32)");
            Err(RuleError::new("loss/dtype", message).with_help(help))
        }
        _ => Err(RuleError::new("loss/dtype", format!("{what} are {}, expected f32", logits.shape()))),
    }
}

/// Checks that labels are integers, one for each row of logits.
pub(super) fn check_labels(logits: &Tensor, labels: &Tensor) -> Result<(), RuleError> {
    if !labels.dtype().is_integer() {
        let message = format!("labels are {}, expected an integer dtype", labels.shape());
        return Err(RuleError::new("loss/labels", message));
    }
    let dims = logits.dims();
    match dims.split_last() {
        Some((_, leading)) if leading == labels.dims() => Ok(()),
        _ => {
            let message = format!(
                "labels {} do not fit logits {}, expected one label for each row",
                labels.shape(),
                logits.shape()
            );
            Err(RuleError::new("loss/labels", message))
        }
    }
}

pub(super) fn check_sparse(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Result<(), RuleError> {
    check_logits("logits", logits)?;
    check_labels(logits, labels)?;
    check_label_smoothing(label_smoothing)
}

pub(super) fn check_dense(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Result<(), RuleError> {
    check_equal("logits", logits, "labels", labels)?;
    super::at_least("loss/rank", "rank of logits", logits.rank() as i64, 1)?;
    check_label_smoothing(label_smoothing)
}

pub(super) fn check_label_smoothing(label_smoothing: f64) -> Result<(), RuleError> {
    if (0.0..1.0).contains(&label_smoothing) {
        return Ok(());
    }
    let message = format!("label_smoothing is {label_smoothing}, expected 0 up to but not including 1");
    Err(RuleError::new("loss/label-smoothing", message))
}

/// Checks that `x` is f32 or f64, and `y` of the same shape.
fn check_equal(x_name: &str, x: &Tensor, y_name: &str, y: &Tensor) -> Result<(), RuleError> {
    check_logits(x_name, x)?;
    if x.shape() == y.shape() {
        return Ok(());
    }
    let message = format!("{y_name} {} differ from {x_name} {}, expected one shape", y.shape(), x.shape());
    Err(RuleError::new("loss/shape", message))
}

/// [`check_equal`], and that there is a first axis.
pub(super) fn check_rows(x_name: &str, x: &Tensor, y_name: &str, y: &Tensor) -> Result<(), RuleError> {
    check_equal(x_name, x, y_name, y)?;
    super::at_least("loss/rank", &format!("rank of {x_name}"), x.rank() as i64, 1)
}
