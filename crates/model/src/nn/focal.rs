//! Focal losses: cross-entropies that reduce the weight of terms that are already right. Computed in f32 (or f64), as
//! all losses.
//!
//! A term of the cross-entropy is multiplied by `(1 - p)^gamma`, where `p` is the predicted probability of the truth.
//! The factor is `e^(gamma · log(1 - p))`, with `1 - p` computed without cancellation: a term that is nearly right
//! keeps its relative precision, and its gradient is finite for any `gamma`.
//!
//! Source: Lin et al. 2017 (RetinaNet); Keras' `BinaryFocalCrossentropy` and `CategoricalFocalCrossentropy`, which clip
//! probabilities to 1e-7 from 0 and 1; these losses do not need to.

use super::activation::{log_softmax, sigmoid};
use super::loss::{
    check_dense, check_label_smoothing, check_rows, check_sparse, loss, mean_of_rows, one_hot_or_nan, yes_or_no,
};
use crate::graph::Tensor;
use bf16scope_hlo::ops::{RuleError, UnaryOp};

/// The factors of a focal loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Focal {
    /// The power of `1 - p`; 0 is the cross-entropy. Default 2.
    pub gamma: f64,
    /// The weight of terms: for independent answers `alpha` where the label is 1 and `1 - alpha` where it is 0; for
    /// classes the same for all. `None` is 1. Default 0.25.
    pub alpha: Option<f64>,
}

impl Default for Focal {
    fn default() -> Focal {
        Focal { gamma: 2.0, alpha: Some(0.25) }
    }
}

impl Focal {
    fn check(&self) -> Result<(), RuleError> {
        let Focal { gamma, alpha } = *self;
        if !(gamma >= 0.0 && (gamma as f32).is_finite()) {
            let message = format!("gamma is {gamma}, expected a finite number of at least 0");
            return Err(RuleError::new("loss/focal", message));
        }
        match alpha {
            Some(alpha) if !(0.0..=1.0).contains(&alpha) => {
                let message = format!("alpha is {alpha}, expected a number from 0 to 1");
                Err(RuleError::new("loss/focal", message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// `rest^gamma`. If `rest` is 0, so are the factor and its gradient.
    #[track_caller]
    fn factor(&self, rest: &Tensor) -> Tensor {
        let least = rest.graph().full(rest.dtype(), &rest.dims(), f64::from(f32::MIN_POSITIVE));
        (rest.maximum(&least).log() * self.gamma).exponential()
    }
}

/// The cross-entropy of independent answers, times `(1 - p)^gamma` and alpha, averaged over all axes but the first.
///
/// With `label_smoothing` s, `label · (1 - s) + s / 2` replaces `label`. RetinaNet divides the sum by the number of
/// matched anchors instead of all: pass that as a weight.
///
/// # Shapes
/// logits and labels `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// As [`sigmoid_cross_entropy_per_example`](super::sigmoid_cross_entropy_per_example); a gamma or alpha out of range.
#[track_caller]
pub fn sigmoid_focal_cross_entropy_per_example(
    logits: &Tensor,
    labels: &Tensor,
    focal: &Focal,
    label_smoothing: f64,
) -> Tensor {
    let check = || {
        check_rows("logits", logits, "labels", labels)?;
        check_label_smoothing(label_smoothing)?;
        focal.check()
    };
    loss("sigmoid_focal_cross_entropy", [logits, labels], check, || {
        let labels = match label_smoothing {
            0.0 => labels.clone(),
            smoothing => labels * (1.0 - smoothing) + smoothing / 2.0,
        };
        let noes = labels.negate() + 1.0;
        let rest = &labels * sigmoid(&logits.negate()) + &noes * sigmoid(logits);
        let terms = yes_or_no(logits, &labels) * focal.factor(&rest);
        mean_of_rows(&match focal.alpha {
            Some(alpha) => terms * (labels * alpha + noes * (1.0 - alpha)),
            None => terms,
        })
    })
}

/// The cross-entropy of each example's softmax with a distribution, with each class's term times `(1 - p)^gamma` and
/// alpha.
///
/// # Shapes
/// logits, labels `[…, n_classes]` → `[…]`.
///
/// # Types, errors
/// As [`softmax_cross_entropy_per_example`](super::softmax_cross_entropy_per_example), whose label smoothing this has; a
/// gamma or alpha out of range.
#[track_caller]
pub fn softmax_focal_cross_entropy_per_example(
    logits: &Tensor,
    labels: &Tensor,
    focal: &Focal,
    label_smoothing: f64,
) -> Tensor {
    let check = || check_dense(logits, labels, label_smoothing).and(focal.check());
    loss("softmax_focal_cross_entropy", [logits, labels], check, || {
        focal_cross_entropy(logits, labels, focal, label_smoothing)
    })
}

/// [`softmax_focal_cross_entropy_per_example`] with the class of each example.
///
/// # Shapes
/// logits `[…, n_classes]`, labels `[…]` of any integer dtype → `[…]`; a label that is not a class gives NaN.
///
/// # Types, errors
/// As [`sparse_softmax_cross_entropy_per_example`](super::sparse_softmax_cross_entropy_per_example); a gamma or alpha out of
/// range.
#[track_caller]
pub fn sparse_softmax_focal_cross_entropy_per_example(
    logits: &Tensor,
    labels: &Tensor,
    focal: &Focal,
    label_smoothing: f64,
) -> Tensor {
    let check = || check_sparse(logits, labels, label_smoothing).and(focal.check());
    loss("sparse_softmax_focal_cross_entropy", [logits, labels], check, || {
        focal_cross_entropy(logits, &one_hot_or_nan(logits, labels), focal, label_smoothing)
    })
}

#[track_caller]
fn focal_cross_entropy(logits: &Tensor, labels: &Tensor, focal: &Focal, label_smoothing: f64) -> Tensor {
    let dims = logits.dims();
    let n_classes = dims[dims.len() - 1] as f64;
    let labels = match label_smoothing {
        0.0 => labels.clone(),
        smoothing => labels * (1.0 - smoothing) + smoothing / n_classes,
    };
    let log_probability = log_softmax(logits, -1);
    let rest = log_probability.unary(UnaryOp::Expm1).negate();
    let zeros = logits.graph().full(logits.dtype(), &dims, 0.0);
    let counted = labels.equal(&zeros).select(&zeros, &(focal.factor(&rest) * log_probability));
    let terms = labels.negate() * counted;
    let terms = match focal.alpha {
        Some(alpha) => terms * alpha,
        None => terms,
    };
    terms.sum(&[dims.len() as i64 - 1])
}
