//! A convolution, batch norm, relu and max pool, computed with the pool first.
//!
//! Batch norm and relu are monotone, so the maximum of their results is their result at the maximum, or at the minimum
//! where gamma is negative. For such a feature the signs of the kernel and of gamma are flipped. The pool then reads
//! the convolution's output, and norm, relu and all of their backward pass but the last step work on the pooled
//! elements: a quarter for windows of stride 2. The statistics still cover all elements; the TPU compiler sums them
//! where the convolution writes its output.

use super::batch_norm::{self, BatchNorm, Variables};
use super::conv::{self, Conv2d};
use super::pool::{self, Pool};
use super::{Activation, max_pool, normalising_dtype, paired, relu};
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::batch_norm::normalisation::Normalisation;
use bf16scope_hlo::ops::window::grad::select_extremum;
use bf16scope_hlo::ops::{self, Comparison, RuleError};

/// Configuration of [`conv_norm_pool`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvNormPool {
    /// The convolution. It has no bias, which the norm would remove.
    pub conv: Conv2d,
    /// Whether the convolution computes two columns at a time where that saves work, as
    /// [`conv2d_paired`](super::conv2d_paired).
    pub pair_columns: bool,
    /// The norm, of the convolution's features. Its gradient is always [`NormGradient::PerFeature`](super::NormGradient).
    pub norm: BatchNorm,
    /// The pool.
    pub pool: Pool,
}

/// `max_pool(relu(batch_norm(conv2d(x))))`, with the pool first.
///
/// # Shapes
/// As those four. Variables `conv/kernel` and `bn/gamma`, `bn/beta`, `bn/moving_mean`, `bn/moving_variance`, as those
/// of [`conv2d`](super::conv2d) and [`batch_norm`](super::batch_norm) with these names.
///
/// # Types
/// As those four, with the same bits if the compiler sums the statistics in the same order. Gradients differ in their
/// last bits. If the norm rounds several elements of a window to the same maximum, or gamma is 0, plain order gives the
/// gradient to the first of these; here it goes to the first of those that were largest before the norm.
///
/// # Errors
/// As those four; a convolution with bias or an activation; a norm along another axis than the features.
#[track_caller]
pub fn conv_norm_pool(s: &Scope, x: &Tensor, config: &ConvNormPool) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let ConvNormPool { conv, norm, pool, .. } = config;
    let window = match conv::check(x, conv).and_then(|window| check(config).map(|()| window)) {
        Ok(window) => window,
        Err(error) => return s.graph().fail("conv_norm_pool", &[x], error),
    };
    let dtype = normalising_dtype(x);
    let kernel = s.layer("conv", |s| conv::kernel(s, x, conv));
    let variables = s.layer("bn", |s| Variables::new(s, dtype, conv.filters, norm));
    let sign = s.layer("bn", |s| signs(s, &variables.gamma));
    let features = s.layer("conv", |_| {
        let kernel = &kernel * sign.cast(x.dtype()).broadcast_in_dim(&kernel.dims(), &[3]);
        let convolution = if config.pair_columns { paired::convolution } else { conv::convolution };
        convolution(x, &kernel, window, conv)
    });
    if let Err(error) = batch_norm::check(&features, norm).and_then(|()| pool::windows(&features, pool).map(|_| ())) {
        return s.graph().fail("conv_norm_pool", &[&features], error);
    }
    let pooled = max_pool(&features, pool);
    let normalised = s.layer("bn", |s| normalise(s, [&features, &pooled], &variables, &sign, config));
    relu(&normalised)
}

/// 1, or -1 where gamma is below 0.
#[track_caller]
fn signs(s: &Scope, gamma: &Tensor) -> Tensor {
    let full = |value: f64| s.graph().full(gamma.dtype(), &gamma.dims(), value);
    gamma.greater_equal(&full(0.0)).select(&full(1.0), &full(-1.0))
}

/// The norm of pooled features, where the signs of features and gamma were flipped to make gamma positive.
#[track_caller]
fn normalise(
    s: &Scope,
    [features, pooled]: [&Tensor; 2],
    variables: &Variables,
    sign: &Tensor,
    config: &ConvNormPool,
) -> Tensor {
    let Variables { gamma, beta, running_mean, running_variance } = variables;
    let (low, dtype) = (features.dtype(), gamma.dtype());
    let attributes =
        ops::BatchNorm { epsilon: config.norm.epsilon as f32, feature_index: features.axis(config.norm.axis) };
    let (data, scale) = (pooled.cast(dtype), gamma * sign);
    if !s.is_training() {
        let mean = &running_mean.value * sign;
        return batch_norm::inference(&data, [&scale, beta, &mean, &running_variance.value], attributes).cast(low);
    }
    let (_, own) = batch_norm::training(&features.cast(dtype), &scale, beta, attributes);
    let group = s.graph().statistics_group();
    let [mean, variance] = batch_norm::over(group.as_ref(), own);
    variables.update(&(&mean * sign), &variance, &features.dims(), &config.norm);
    let norm = Normalisation { scale: scale.id, mean: mean.id, variance: variance.id, attributes };
    let window = pool::windows(features, &config.pool).unwrap_or_default();
    let (features_id, data_id, sign_id) = (features.id, data.id, sign.id);
    let y = data.emit("batch-norm-training", &[beta], |e| norm.apply(e, data.id, beta.id));
    let y = y.with_layer_vjp(&[features, gamma, beta], move |e, g, _| {
        let to_parameters = norm.parameter_cotangents(e, data_id, g);
        // Only selected elements have a cotangent through the result; their sums are above.
        let selected = select_extremum(e, features_id, e.convert(g, low), &window, Comparison::Ge);
        let of_all = e.convert(features_id, dtype);
        let to_all = batch_norm::mean_cotangents(e, group.as_ref(), to_parameters);
        let to_features = norm.data_cotangent(e, of_all, e.convert(selected, dtype), to_all);
        let [to_scale, to_offset] = to_parameters;
        vec![e.convert(to_features, low), e.mul(to_scale, sign_id), to_offset]
    });
    y.cast(low)
}

fn check(config: &ConvNormPool) -> Result<(), RuleError> {
    let ConvNormPool { conv, norm, .. } = config;
    if conv.use_bias {
        let error = RuleError::new("conv_norm_pool/bias", "the convolution has a bias, expected none");
        return Err(error.with_help("the norm subtracts the mean, and the bias with it: set use_bias to false"));
    }
    if conv.activation != Activation::Linear {
        let error = RuleError::new("conv_norm_pool/activation", "the convolution has an activation, expected linear");
        return Err(error.with_help("relu follows the norm: leave `activation` out"));
    }
    let axis = conv.data_format.channels();
    if norm.axis == axis || norm.axis == axis - 4 {
        return Ok(());
    }
    let message = format!("the norm's axis is {}, expected {axis}, that of the features", norm.axis);
    Err(RuleError::new("conv_norm_pool/axis", message))
}
