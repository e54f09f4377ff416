//! Losses on numbers and distances: quantiles, log cosh, cosine, hinges, contrastive, triplet. Computed in f32 (or f64).

use super::loss::{check_rows, loss, mean_of_rows};
use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{BinaryOp, RuleError, UnaryOp};

/// Pinball loss: `quantile · d` where `d = target − prediction` is above 0, else `(quantile − 1) · d`, averaged over
/// all axes but the first. Its minimum is the quantile of the target.
///
/// # Shapes
/// prediction and target `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 predictions; shapes that differ; a rank of 0; a quantile that is not above 0 and below 1.
///
/// # Source
/// Koenker & Bassett 1978; TensorFlow Addons' `PinballLoss`.
#[track_caller]
pub fn quantile_per_example(prediction: &Tensor, target: &Tensor, quantile: f64) -> Tensor {
    let check = || {
        check_rows("prediction", prediction, "target", target)?;
        in_bounds("quantile", quantile, quantile > 0.0 && quantile < 1.0, "a number above 0 and below 1")
    };
    loss("quantile", [prediction, target], check, || {
        let distance = target - prediction;
        mean_of_rows(&(&distance * quantile).maximum(&(&distance * (quantile - 1.0))))
    })
}

/// `log(cosh(prediction − target))`, computed as `d + softplus(−2d) − log 2` with `d = |prediction − target|`, which
/// does not overflow, averaged over all axes but the first.
///
/// # Shapes, types, errors
/// As [`quantile_per_example`].
///
/// # Source
/// Keras' `LogCosh`.
#[track_caller]
pub fn log_cosh_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("log_cosh", [prediction, target], check, || {
        let distance = (prediction - target).abs();
        let softplus = (&distance * -2.0).exponential().log_plus_one();
        mean_of_rows(&(distance + softplus - std::f64::consts::LN_2))
    })
}

/// Minus the cosine of prediction and target along the last axis, averaged over all other axes but the first: −1 where
/// they have the same direction.
///
/// # Shapes
/// prediction and target `[batch, …, n]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype. A vector of zeros has the cosine 0.
///
/// # Errors
/// As [`quantile_per_example`]; a rank below 2.
///
/// # Source
/// Keras' `CosineSimilarity`, whose norms are at least 1e-6.
#[track_caller]
pub fn cosine_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    loss(
        "cosine_similarity",
        [prediction, target],
        || check_vectors(prediction, target),
        || mean_of_rows(&cosine(prediction, target).negate()),
    )
}

/// The cosine along the last axis: `[…]` from two checked arrays `[…, n]`.
#[track_caller]
pub(super) fn cosine(x: &Tensor, y: &Tensor) -> Tensor {
    // Keras' `l2_normalize`: x / √max(Σ x², 1e-12).
    let inverse = |x: &Tensor| {
        let square = (x * x).sum(&[-1]);
        let floor = square.graph().full(square.dtype(), &square.dims(), 1e-12);
        square.maximum(&floor).unary(UnaryOp::Rsqrt)
    };
    (x * y).sum(&[-1]) * inverse(x) * inverse(y)
}

/// Checks two arrays of vectors along the last axis.
pub(super) fn check_vectors(x: &Tensor, y: &Tensor) -> Result<(), RuleError> {
    check_rows("prediction", x, "target", y)?;
    super::at_least("loss/rank", "rank of prediction", x.rank() as i64, 2)
}

/// `max(1 − y·prediction, 0)`, with `y` 1 where the label is above 1/2 and −1 elsewhere, averaged over all axes but the
/// first.
///
/// # Shapes
/// prediction and labels `[batch, …]` of one shape → `[batch]`; labels are 0 or 1.
///
/// # Types, errors
/// As [`quantile_per_example`].
///
/// # Source
/// Keras' `Hinge`.
#[track_caller]
pub fn hinge_per_example(prediction: &Tensor, labels: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "labels", labels);
    loss("hinge", [prediction, labels], check, || mean_of_rows(&hinge(prediction, labels)))
}

/// `max(1 − y·prediction, 0)` of each element.
#[track_caller]
fn hinge(prediction: &Tensor, labels: &Tensor) -> Tensor {
    let margin = (labels * 2.0 - 1.0) * prediction;
    let zeros = margin.graph().full(margin.dtype(), &margin.dims(), 0.0);
    (margin.negate() + 1.0).maximum(&zeros)
}

/// `max(1 − y·prediction, 0)²`, with `y` as in [`hinge_per_example`], averaged over all axes but the first.
///
/// # Shapes, types, errors
/// As [`hinge_per_example`].
///
/// # Source
/// Keras' `SquaredHinge`.
#[track_caller]
pub fn squared_hinge_per_example(prediction: &Tensor, labels: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "labels", labels);
    loss("squared_hinge", [prediction, labels], check, || {
        let hinge = hinge(prediction, labels);
        mean_of_rows(&(&hinge * &hinge))
    })
}

/// `max(1 + highest other score − score of the label, 0)`, averaged over all axes but the first and the last, which
/// counts the classes: a margin between the labelled class and the best of the others.
///
/// # Shapes
/// prediction and one-hot labels `[batch, …, n_classes]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// As [`quantile_per_example`]; a rank below 2.
///
/// # Source
/// Keras' `CategoricalHinge`: the labelled class counts as 0 among the others.
#[track_caller]
pub fn categorical_hinge_per_example(prediction: &Tensor, labels: &Tensor) -> Tensor {
    loss(
        "categorical_hinge",
        [prediction, labels],
        || check_vectors(prediction, labels),
        || {
            let score = (labels * prediction).sum(&[-1]);
            let highest = ((labels.negate() + 1.0) * prediction).max(&[-1]);
            let margin = highest - score + 1.0;
            let zeros = margin.graph().full(margin.dtype(), &margin.dims(), 0.0);
            mean_of_rows(&margin.maximum(&zeros))
        },
    )
}

/// Contrastive loss on distances: `label · d² + (1 − label) · max(margin − d, 0)²`, averaged over all axes but the
/// first. A label of 1 marks a matching pair.
///
/// # Shapes
/// distances and labels `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// As [`quantile_per_example`]; a margin that is not above 0.
///
/// # Source
/// Hadsell et al. 2006; TensorFlow Addons' `ContrastiveLoss`.
#[track_caller]
pub fn contrastive_per_example(distances: &Tensor, labels: &Tensor, margin: f64) -> Tensor {
    let check = || {
        check_rows("distances", distances, "labels", labels)?;
        check_margin(margin)
    };
    loss("contrastive", [distances, labels], check, || {
        let zeros = distances.graph().full(distances.dtype(), &distances.dims(), 0.0);
        let short = (distances.negate() + margin).maximum(&zeros);
        mean_of_rows(&(labels * (distances * distances) + (labels.negate() + 1.0) * (&short * &short)))
    })
}

/// Triplet loss with the hardest triplet of each example in the batch: `max(far − near + margin, 0)`, where `far` is
/// the largest squared distance to an example of its class, and `near` the smallest to one of another class. An example
/// without either, or with a label below 0, has a loss of 0 and is in no triplet of others.
///
/// # Shapes
/// embeddings `[batch, n]`, labels integers `[batch]` → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Gradient
/// Through the two selected distances; ties share it.
///
/// # Errors
/// bf16 or f16 embeddings; other ranks; labels that are not integers; a margin that is not above 0.
///
/// # Source
/// Hermans et al. 2017 ("batch hard"), with squared distances as in FaceNet.
#[track_caller]
pub fn triplet_per_example(embeddings: &Tensor, labels: &Tensor, margin: f64) -> Tensor {
    let check = || {
        super::loss::check_logits("embeddings", embeddings)?;
        check_margin(margin)?;
        let fits = matches!((&embeddings.dims()[..], &labels.dims()[..]), ([n, _], [m]) if n == m);
        if fits && labels.dtype().is_integer() {
            return Ok(());
        }
        let message = format!(
            "labels {} do not fit embeddings {}, expected integers [batch] and [batch, n]",
            labels.shape(),
            embeddings.shape()
        );
        Err(RuleError::new("loss/labels", message))
    };
    loss("triplet", [embeddings, labels], check, || {
        let (graph, n) = (embeddings.graph(), embeddings.dims()[0]);
        let all = [n, n];
        let (rows, columns): (&[i64], &[i64]) = (&[0], &[1]);
        let across = |x: &Tensor, axes: &[i64]| x.broadcast_in_dim(&all, axes);
        let labels = labels.cast(DType::S32);
        let zero = graph.full(DType::S32, &all, 0.0);
        let is_counted = across(&labels, rows)
            .greater_equal(&zero)
            .binary(BinaryOp::And, &across(&labels, columns).greater_equal(&zero));
        let is_alike = across(&labels, rows).equal(&across(&labels, columns));
        let is_other = graph.iota(DType::S32, &all, 0).not_equal(&graph.iota(DType::S32, &all, 1));
        let is_positive = is_alike.binary(BinaryOp::And, &is_other).binary(BinaryOp::And, &is_counted);
        let is_negative = is_alike.not().binary(BinaryOp::And, &is_counted);
        let dims = [n, n, embeddings.dims()[1]];
        let difference = embeddings.broadcast_in_dim(&dims, &[0, 2]) - embeddings.broadcast_in_dim(&dims, &[1, 2]);
        let distances = (&difference * &difference).sum(&[-1]);
        let full = |value: f64| graph.full(distances.dtype(), &all, value);
        let far = is_positive.select(&distances, &full(0.0)).reduce(BinaryOp::Maximum, &[-1]);
        // Finite: the product of infinity with a cotangent of 0 would be NaN.
        let near = is_negative.select(&distances, &full(f64::from(f32::MAX))).reduce(BinaryOp::Minimum, &[-1]);
        let has = |which: &Tensor| which.reduce(BinaryOp::Or, &[-1]);
        let zeros = graph.full(distances.dtype(), &[n], 0.0);
        let each = (far - near + margin).maximum(&zeros);
        has(&is_positive).binary(BinaryOp::And, &has(&is_negative)).select(&each, &zeros)
    })
}

fn check_margin(margin: f64) -> Result<(), RuleError> {
    let fits = margin as f32 > 0.0 && (margin as f32).is_finite();
    in_bounds("margin", margin, fits, "a finite number above 0")
}

fn in_bounds(what: &str, value: f64, fits: bool, expected: &str) -> Result<(), RuleError> {
    match fits {
        true => Ok(()),
        false => Err(RuleError::new("loss/option", format!("{what} is {value}, expected {expected}"))),
    }
}
