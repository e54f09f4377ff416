//! Activations: elementwise functions, and softmax.
//!
//! All compute in the dtype of their input, each elementary operation rounding to it, as TensorFlow's do in a bf16
//! network; sums are in f32.

use crate::graph::Tensor;
use crate::hlo::ops::BinaryOp;

/// `max(x, 0)`. Exact in any dtype; NaN stays NaN. Its gradient passes where the result is above 0.
///
/// # Source
/// TensorFlow's `Relu` and `ReluGrad`.
#[track_caller]
pub fn relu(x: &Tensor) -> Tensor {
    x.binary_scalar(BinaryOp::Maximum, 0.0)
}

/// Hyperbolic tangent, one operation of HLO.
#[track_caller]
pub fn tanh(x: &Tensor) -> Tensor {
    x.tanh()
}

/// `1 / (1 + e^-x)`, one operation of HLO (`logistic`).
#[track_caller]
pub fn sigmoid(x: &Tensor) -> Tensor {
    x.logistic()
}

/// Which form of [`gelu`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gelu {
    /// `x / 2 · (1 + erf(x / √2))`.
    Erf,
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, BERT's.
    #[default]
    Tanh,
}

/// Gaussian error linear unit.
///
/// # Types
/// In the dtype of x. Each operation and each constant is rounded to it.
///
/// # Source
/// Hendrycks & Gimpel 2016; TensorFlow's `nn.gelu`.
#[track_caller]
pub fn gelu(x: &Tensor, form: Gelu) -> Tensor {
    let inner = match form {
        Gelu::Erf => (x * std::f64::consts::FRAC_1_SQRT_2).erf(),
        Gelu::Tanh => {
            // sqrt(2 / pi) = 2 / sqrt(pi) / sqrt(2).
            let scale = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            let cube = x * x * x;
            ((x + cube * 0.044_715) * scale).tanh()
        }
    };
    x * 0.5 * (inner + 1.0)
}

/// `e^x / Σ e^x` over `axis`, computed as `e^(x - max x)` to stay in range.
///
/// # Types
/// In the dtype of x; for bf16 and f16 the sum is made in f32 and rounded once.
///
/// # Errors
/// An axis that x has not.
///
/// # Source
/// TensorFlow's `Softmax`, as its XLA bridge compiles it.
#[track_caller]
pub fn softmax(x: &Tensor, axis: i64) -> Tensor {
    let shifted = shifted(x, axis);
    let powers = shifted.exponential();
    let sum = along(&powers.sum(&[axis]), x, axis);
    powers / sum
}

/// `log(softmax(x))` over `axis`, computed as `x - max x - log Σ e^(x - max x)`.
///
/// # Types
/// As [`softmax`].
///
/// # Errors
/// An axis that x has not.
///
/// # Source
/// TensorFlow's `LogSoftmax`, as its XLA bridge compiles it.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: i64) -> Tensor {
    let shifted = shifted(x, axis);
    let log_sum = shifted.exponential().sum(&[axis]).log();
    shifted - along(&log_sum, x, axis)
}

/// `x - max x` along `axis`.
#[track_caller]
fn shifted(x: &Tensor, axis: i64) -> Tensor {
    x - along(&x.max(&[axis]), x, axis)
}

/// `reduced`, which lacks `axis` of x, repeated along it.
#[track_caller]
fn along(reduced: &Tensor, x: &Tensor, axis: i64) -> Tensor {
    if reduced.is_poison() {
        return reduced.clone();
    }
    let axis = x.axis(axis);
    let kept: Vec<i64> = (0..x.rank() as i64).filter(|&own| own != axis).collect();
    reduced.broadcast_in_dim(&x.dims(), &kept)
}
