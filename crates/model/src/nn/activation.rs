//! Activations: elementwise functions, and softmax.
//!
//! All compute in the dtype of their input and round to it after each elementary operation, as TensorFlow does in a
//! bf16 network. Sums are f32.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, Comparison, UnaryOp};
use bf16scope_hlo::{DType, Emitter, InstrId};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// An activation by its name in configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The identity.
    #[default]
    Linear,
    /// [`relu`].
    Relu,
    /// [`relu6`].
    Relu6,
    /// [`leaky_relu`] with a slope of [`Activation::NEGATIVE_SLOPE`].
    LeakyRelu,
    /// [`elu`].
    Elu,
    /// [`selu`].
    Selu,
    /// [`gelu`] with [`Gelu::Erf`], Keras' default.
    Gelu,
    /// [`gelu`] with [`Gelu::Tanh`].
    GeluTanh,
    /// [`silu`].
    #[serde(alias = "swish")]
    Silu,
    /// [`softplus`].
    Softplus,
    /// [`softsign`].
    Softsign,
    /// [`sigmoid`].
    Sigmoid,
    /// [`hard_sigmoid`].
    HardSigmoid,
    /// [`tanh`].
    Tanh,
    /// `e^x`.
    Exponential,
    /// [`softmax`] over the last axis.
    Softmax,
    /// [`log_softmax`] over the last axis.
    LogSoftmax,
}

impl Activation {
    /// The slope of `leaky_relu` below 0: that of Keras' function of this name.
    pub const NEGATIVE_SLOPE: f64 = 0.2;

    /// Applies the function to x.
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Linear => x.clone(),
            Activation::Relu => relu(x),
            Activation::Relu6 => relu6(x),
            Activation::LeakyRelu => leaky_relu(x, Activation::NEGATIVE_SLOPE),
            Activation::Elu => elu(x),
            Activation::Selu => selu(x),
            Activation::Gelu => gelu(x, Gelu::Erf),
            Activation::GeluTanh => gelu(x, Gelu::Tanh),
            Activation::Silu => silu(x),
            Activation::Softplus => softplus(x),
            Activation::Softsign => softsign(x),
            Activation::Sigmoid => sigmoid(x),
            Activation::HardSigmoid => hard_sigmoid(x),
            Activation::Tanh => tanh(x),
            Activation::Exponential => x.exponential(),
            Activation::Softmax => softmax(x, -1),
            Activation::LogSoftmax => log_softmax(x, -1),
        }
    }
}

impl Activation {
    /// The function as plain ops, for the body of a loop, where custom VJPs are not supported: reverse mode goes
    /// through the ops.
    #[track_caller]
    pub(super) fn of_ops(self, x: &Tensor) -> Tensor {
        match self {
            _ if x.is_poison() => x.clone(),
            Activation::Gelu => gelu_of_ops(x, Gelu::Erf),
            Activation::GeluTanh => gelu_of_ops(x, Gelu::Tanh),
            // The slope of this form at 0 is 1/2, the sigmoid's value.
            Activation::Softplus => (x + x.abs()) * 0.5 + x.abs().negate().exponential().log_plus_one(),
            other => other.apply(x),
        }
    }
}

/// `max(x, 0)`. Exact in any dtype; NaN stays NaN. The gradient passes where the result is above 0.
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

/// `min(max(x, 0), 6)`. Exact in any dtype.
///
/// # Source
/// TensorFlow's `Relu6`.
#[track_caller]
pub fn relu6(x: &Tensor) -> Tensor {
    relu(x).binary_scalar(BinaryOp::Minimum, 6.0)
}

/// x above 0, else `slope · x`.
///
/// # Source
/// TensorFlow's `LeakyRelu`.
#[track_caller]
pub fn leaky_relu(x: &Tensor, slope: f64) -> Tensor {
    x.greater(&x.graph().full(x.dtype(), &x.dims(), 0.0)).select(x, &(x * slope))
}

/// x from 0 on, else `e^x - 1`. It does not overflow for large x, where its gradient is 1, as at 0.
///
/// # Source
/// Clevert et al. 2015; TensorFlow's `Elu`.
#[track_caller]
pub fn elu(x: &Tensor) -> Tensor {
    // For a large x the power would be infinite, and its gradient 0 times infinity.
    from_zero(x, x, &x.binary_scalar(BinaryOp::Minimum, 0.0).unary(UnaryOp::Expm1))
}

/// `scale · x` from 0 on, else `scale · alpha · (e^x - 1)`, which keeps mean and variance at 0 and 1.
///
/// # Source
/// Klambauer et al. 2017; TensorFlow's `Selu`.
#[track_caller]
pub fn selu(x: &Tensor) -> Tensor {
    let negative = x.binary_scalar(BinaryOp::Minimum, 0.0).unary(UnaryOp::Expm1) * (SELU_SCALE * SELU_ALPHA);
    from_zero(x, &(x * SELU_SCALE), &negative)
}

/// The fixed point's factors; Klambauer et al. 2017, equation 14.
pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
pub(super) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// `x · sigmoid(x)`, also called swish.
///
/// # Source
/// Ramachandran et al. 2017; TensorFlow's `nn.silu`.
#[track_caller]
pub fn silu(x: &Tensor) -> Tensor {
    x * x.logistic()
}

/// `log(1 + e^x)`, computed as `max(x, 0) + log(1 + e^-|x|)`, which does not overflow.
///
/// # Gradient
/// `g · sigmoid(x)`.
///
/// # Source
/// TensorFlow's `Softplus`.
#[track_caller]
pub fn softplus(x: &Tensor) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let input = x.id;
    let sum = relu(x) + x.abs().negate().exponential().log_plus_one();
    sum.with_layer_vjp(&[x], move |e, g, _| vec![e.mul(g, e.unary(UnaryOp::Logistic, input))])
}

/// `x / (1 + |x|)`.
///
/// # Source
/// TensorFlow's `Softsign`.
#[track_caller]
pub fn softsign(x: &Tensor) -> Tensor {
    x / (x.abs() + 1.0)
}

/// `min(max(x + 3, 0), 6) / 6`.
///
/// # Source
/// Keras' `hard_sigmoid` since version 3; earlier versions had another slope.
#[track_caller]
pub fn hard_sigmoid(x: &Tensor) -> Tensor {
    relu6(&(x + 3.0)) / 6.0
}

/// One value where x is at least 0, another elsewhere: at 0 the first receives the gradient.
#[track_caller]
fn from_zero(x: &Tensor, there: &Tensor, elsewhere: &Tensor) -> Tensor {
    x.greater_equal(&x.graph().full(x.dtype(), &x.dims(), 0.0)).select(there, elsewhere)
}

/// The form of [`gelu`].
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
/// In the dtype of x. Each operation and each constant is rounded to it. Where `erf` rounds to -1 it is set to -1,
/// whatever the back end's polynomial gives: XLA's is off by 1.5 ulp, which a large x would multiply.
///
/// # Gradient
/// `g · dy/dx`, computed from x alone, in f32 if its dtype is narrower, and rounded once. With `t` the tanh and `u` its
/// argument that is `(1 + t) / 2 + x / 2 · (1 - t²) · du/dx`; with erf it is `(1 + erf(x / √2)) / 2 + x e^(-x²/2) /
/// √2π`.
///
/// # Source
/// Hendrycks & Gimpel 2016; TensorFlow's `nn.gelu`.
#[track_caller]
pub fn gelu(x: &Tensor, form: Gelu) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let _open = x.graph().open_layer();
    let input = x.id;
    gelu_of_ops(x, form).with_layer_vjp(&[x], move |e, g, _| vec![of_gelu(e, g, input, form)])
}

#[track_caller]
fn gelu_of_ops(x: &Tensor, form: Gelu) -> Tensor {
    let inner = match form {
        Gelu::Erf => {
            let z = x * FRAC_1_SQRT_2;
            let full = |value: f64| x.graph().full(x.dtype(), &x.dims(), value);
            z.less(&full(saturated(x.dtype()))).select(&full(-1.0), &z.erf())
        }
        Gelu::Tanh => ((x + x * x * x * CUBIC) * SQRT_2_OVER_PI).tanh(),
    };
    x * 0.5 * (inner + 1.0)
}

/// Below this `erf` rounds to -1: `1 + erf(-4)` is 1.5e-8, less than a quarter of f32's ulp below 1 (2^-24 = 6.0e-8), and
/// `1 + erf(-6)` is 2.2e-17, less than that of f64 (2^-53 = 1.1e-16).
fn saturated(dtype: DType) -> f64 {
    if dtype == DType::F64 { -6.0 } else { -4.0 }
}

/// `√(2/π) = 2/√π / √2`.
const SQRT_2_OVER_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The factor of the cube in gelu's tanh form; Hendrycks & Gimpel 2016.
const CUBIC: f64 = 0.044_715;

/// [`gelu`] with the same operations, for a gradient that rematerialises it.
pub(super) fn gelu_again(e: &Emitter, x: InstrId, form: Gelu) -> InstrId {
    let inner = match form {
        Gelu::Erf => {
            let z = e.mul_scalar(x, FRAC_1_SQRT_2);
            let (bound, minus_one) = (e.full_like(z, saturated(e.dtype(x))), e.full_like(z, -1.0));
            e.select(e.compare(Comparison::Lt, z, bound), minus_one, e.unary(UnaryOp::Erf, z))
        }
        Gelu::Tanh => {
            let cube = e.mul(e.mul(x, x), x);
            let argument = e.mul_scalar(e.add(x, e.mul_scalar(cube, CUBIC)), SQRT_2_OVER_PI);
            e.unary(UnaryOp::Tanh, argument)
        }
    };
    e.mul(e.mul_scalar(x, 0.5), e.add_scalar(inner, 1.0))
}

/// The cotangent of gelu's x.
pub(super) fn of_gelu(e: &Emitter, g: InstrId, x: InstrId, form: Gelu) -> InstrId {
    let dtype = e.dtype(x);
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let x = e.convert(x, wide);
    let square = e.mul(x, x);
    let half_plus = |inner: InstrId| e.add_scalar(e.mul_scalar(inner, 0.5), 0.5);
    let slope = match form {
        Gelu::Tanh => {
            let factor = e.add_scalar(e.mul_scalar(square, SQRT_2_OVER_PI * CUBIC), SQRT_2_OVER_PI);
            let t = e.unary(UnaryOp::Tanh, e.mul(x, factor));
            let du = e.add_scalar(e.mul_scalar(square, 3.0 * SQRT_2_OVER_PI * CUBIC), SQRT_2_OVER_PI);
            let half_dt = e.mul(e.mul_scalar(e.sub(e.ones_like(t), e.mul(t, t)), 0.5), du);
            e.add(half_plus(t), e.mul(x, half_dt))
        }
        Gelu::Erf => {
            let density =
                e.mul_scalar(e.unary(UnaryOp::Exp, e.mul_scalar(square, -0.5)), 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            e.add(half_plus(e.unary(UnaryOp::Erf, e.mul_scalar(x, FRAC_1_SQRT_2))), e.mul(x, density))
        }
    };
    e.convert(e.mul(e.convert(g, wide), slope), dtype)
}

/// `e^x / Σ e^x` over `axis`, computed as `e^(x - max x)` to stay in range.
///
/// # Types
/// In the dtype of x; for bf16 and f16 the sum is computed in f32 and rounded once.
///
/// # Errors
/// An axis that x does not have.
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
/// An axis that x does not have.
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
    let remaining: Vec<i64> = (0..x.rank() as i64).filter(|&own| own != axis).collect();
    reduced.broadcast_in_dim(&x.dims(), &remaining)
}
