//! Layer normalisation.

use super::options::{above_zero, is_true};
use super::{is_float, normalising_dtype};
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::{BinaryOp, RuleError};
use serde::{Deserialize, Serialize};

/// Configuration of [`layer_norm`]. The default is Keras'; [`LayerNorm::FLAX`] is Flax's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LayerNorm {
    /// Added to the variance. Default 0.001.
    #[serde(deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// Whether there is an offset, the variable `beta`. Default true.
    #[serde(skip_serializing_if = "is_true")]
    pub center: bool,
    /// Whether there is a scale, the variable `gamma`. Default true.
    #[serde(skip_serializing_if = "is_true")]
    pub scale: bool,
    /// The initializer of the offset. Default `zeros`.
    pub beta_initializer: Init,
    /// The initializer of the scale. Default `ones`.
    pub gamma_initializer: Init,
    /// How the variance is computed; not in YAML. Default in two passes.
    #[serde(skip)]
    pub variance: Variance,
}

impl LayerNorm {
    /// Flax's: epsilon 1e-6, and a variance in one pass.
    pub const FLAX: LayerNorm = LayerNorm {
        epsilon: 1e-6,
        center: true,
        scale: true,
        beta_initializer: Init::Zeros,
        gamma_initializer: Init::Ones,
        variance: Variance::OnePass,
    };
}

/// How a variance is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variance {
    /// The mean of squared differences from the mean, as in Keras: two passes over the data, without cancellation.
    #[default]
    TwoPasses,
    /// The mean of squares minus the square of the mean, at least 0, as in Flax: one pass. Data whose mean is `m` times
    /// its deviation loses `2 log2 m` bits of the variance.
    OnePass,
}

impl Default for LayerNorm {
    fn default() -> LayerNorm {
        LayerNorm { epsilon: 0.001, variance: Variance::TwoPasses, ..LayerNorm::FLAX }
    }
}

/// `x · r + (beta - mean · r)` over the last axis, with `r = gamma / sqrt(variance + epsilon)`.
///
/// The variance is the biased one, computed by [`LayerNorm::variance`].
///
/// # Shapes
/// x `[…, features]` → the same; variables `gamma`, `beta` `[features]`.
///
/// # Types
/// bf16 and f16 data is converted to f32, normalised in f32, and the result rounded once; variables are f32, requested
/// as f32 in any scope. f32 and f64 data is normalised in its own dtype.
///
/// # Errors
/// x not floating or of rank 0; epsilon not positive.
///
/// # Source
/// Ba et al. 2016; Keras' `LayerNormalization`, which converts low-precision data to its f32 variables.
#[track_caller]
pub fn layer_norm(s: &Scope, x: &Tensor, name: &str, config: &LayerNorm) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        if let Err(error) = check(x, config) {
            return s.graph().fail("layer_norm", &[x], error);
        }
        let (dims, dtype) = (x.dims(), normalising_dtype(x));
        let last = dims.len() as i64 - 1;
        let features = dims[last as usize];
        let variable = |is: bool, name: &str, init| is.then(|| s.variable(name, dtype, [features], init).value);
        let gamma = variable(config.scale, "gamma", config.gamma_initializer);
        let beta = variable(config.center, "beta", config.beta_initializer);
        let leading: Vec<i64> = (0..last).collect();
        let over_features = |reduced: &Tensor| reduced.broadcast_in_dim(&dims, &leading);
        let per_feature = |parameter: &Tensor| parameter.broadcast_in_dim(&dims, &[last]);
        let data = x.cast(dtype);
        let mean = data.mean(&[last]);
        let variance = match config.variance {
            Variance::TwoPasses => {
                let difference = &data - over_features(&mean);
                (&difference * &difference).mean(&[last])
            }
            Variance::OnePass => ((&data * &data).mean(&[last]) - &mean * &mean).binary_scalar(BinaryOp::Maximum, 0.0),
        };
        let mean = over_features(&mean);
        let scale = over_features(&(variance + config.epsilon).rsqrt());
        let scale = gamma.map_or(scale.clone(), |gamma| scale * per_feature(&gamma));
        let offset = match beta {
            Some(beta) => per_feature(&beta) - mean * &scale,
            None => (mean * &scale).negate(),
        };
        (data * scale + offset).cast(x.dtype())
    })
}

fn check(x: &Tensor, config: &LayerNorm) -> Result<(), RuleError> {
    is_float("layer_norm/dtype", "x", x)?;
    super::at_least("layer_norm/rank", "rank of x", x.rank() as i64, 1)?;
    if config.epsilon > 0.0 {
        return Ok(());
    }
    Err(RuleError::new("layer_norm/epsilon", format!("epsilon is {}, expected more than 0", config.epsilon)))
}
