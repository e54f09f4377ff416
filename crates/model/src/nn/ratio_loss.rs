//! Losses on relative errors and counts: percentages, logarithms, Poisson's. Computed in f32 (or f64).

use super::loss::{check_rows, loss, mean_of_rows};
use crate::graph::Tensor;

/// Keras' epsilon, which keeps divisors and logarithms finite.
const EPSILON: f64 = 1e-7;

/// `100 · |target − prediction| / max(|target|, 1e-7)`, averaged over all axes but the first.
///
/// # Shapes
/// prediction and target `[batch, …]` of one shape → `[batch]`.
///
/// # Types
/// f32 or f64; computed in that dtype.
///
/// # Errors
/// bf16 or f16 predictions; shapes that differ; a rank of 0.
///
/// # Source
/// Keras' `MeanAbsolutePercentageError`.
#[track_caller]
pub fn mean_absolute_percentage_error_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("mean_absolute_percentage_error", [prediction, target], check, || {
        mean_of_rows(&((target - prediction) / at_least_epsilon(&target.abs())).abs()) * 100.0
    })
}

/// `(log(1 + max(prediction, 1e-7)) − log(1 + max(target, 1e-7)))²`, averaged over all axes but the first: a relative
/// error of numbers that are not negative.
///
/// # Shapes, types, errors
/// As [`mean_absolute_percentage_error_per_example`].
///
/// # Source
/// Keras' `MeanSquaredLogarithmicError`.
#[track_caller]
pub fn mean_squared_logarithmic_error_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("mean_squared_logarithmic_error", [prediction, target], check, || {
        let logarithm = |x: &Tensor| at_least_epsilon(x).log_plus_one();
        let difference = logarithm(prediction) - logarithm(target);
        mean_of_rows(&(&difference * &difference))
    })
}

/// `prediction − target · log(prediction + 1e-7)`, averaged over all axes but the first: minus the log likelihood of
/// counts whose Poisson rate is the prediction, which must be positive (a `softplus` or `exponential` makes it so).
///
/// # Shapes, types, errors
/// As [`mean_absolute_percentage_error_per_example`].
///
/// # Source
/// Keras' `Poisson`.
#[track_caller]
pub fn poisson_per_example(prediction: &Tensor, target: &Tensor) -> Tensor {
    let check = || check_rows("prediction", prediction, "target", target);
    loss("poisson", [prediction, target], check, || {
        mean_of_rows(&(prediction - &(target * (prediction + EPSILON).log())))
    })
}

fn at_least_epsilon(x: &Tensor) -> Tensor {
    x.maximum(&x.graph().full(x.dtype(), &x.dims(), EPSILON))
}
