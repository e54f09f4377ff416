//! Normalisation of groups of channels, example by example.

use super::options::above_zero;
use super::{is_float, normalising_dtype};
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// Configuration of [`group_norm`]. The default is Keras'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupNorm {
    /// The number of groups of channels; -1 is one for each channel, which is instance normalisation. Default 32.
    pub groups: i64,
    /// Added to the variance. Default 0.001.
    #[serde(deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// Whether there is an offset, the variable `beta`. Default true.
    pub center: bool,
    /// Whether there is a scale, the variable `gamma`. Default true.
    pub scale: bool,
    /// The initializer of the offset. Default `zeros`.
    pub beta_initializer: Init,
    /// The initializer of the scale. Default `ones`.
    pub gamma_initializer: Init,
}

impl Default for GroupNorm {
    fn default() -> GroupNorm {
        GroupNorm {
            groups: 32,
            epsilon: 0.001,
            center: true,
            scale: true,
            beta_initializer: Init::Zeros,
            gamma_initializer: Init::Ones,
        }
    }
}

/// `(x - mean) / sqrt(variance + epsilon) · gamma + beta`, with mean and (biased) variance over all positions of an
/// example and the channels of a group.
///
/// # Shapes
/// x `[batch, …, channels]` → the same; variables `gamma`, `beta` `[channels]`.
///
/// # Types
/// bf16 and f16 data is converted to f32, normalised in f32, and the result rounded once; variables are f32, requested
/// as f32 in any scope. f32 and f64 data is normalised in its own dtype.
///
/// # Errors
/// x not floating or of rank below 2; channels not divisible by the groups; epsilon not positive.
///
/// # Source
/// Wu & He 2018; Keras' `GroupNormalization`.
#[track_caller]
pub fn group_norm(s: &Scope, x: &Tensor, name: &str, config: &GroupNorm) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let groups = match groups(x, config) {
            Ok(groups) => groups,
            Err(error) => return s.graph().fail("group_norm", &[x], error),
        };
        let (dims, dtype) = (x.dims(), normalising_dtype(x));
        let last = dims.len() - 1;
        let channels = dims[last];
        let split = [&dims[..last], &[groups, channels / groups]].concat();
        let data = x.cast(dtype).reshape(split.clone());
        // All axes but the batch and the groups.
        let reduced: Vec<i64> = (1..split.len() as i64).filter(|&axis| axis != last as i64).collect();
        let over = |statistic: &Tensor| statistic.broadcast_in_dim(&split, &[0, last as i64]);
        let difference = &data - over(&data.mean(&reduced));
        let variance = (&difference * &difference).mean(&reduced);
        let mut y = (difference * over(&(variance + config.epsilon).rsqrt())).reshape(dims.clone());
        let per_channel = |parameter: &Tensor| parameter.broadcast_in_dim(&dims, &[last as i64]);
        if config.scale {
            let gamma = s.variable("gamma", dtype, [channels], config.gamma_initializer).value;
            y = y * per_channel(&gamma);
        }
        if config.center {
            let beta = s.variable("beta", dtype, [channels], config.beta_initializer).value;
            y = y + per_channel(&beta);
        }
        y.cast(x.dtype())
    })
}

/// Configuration of [`instance_norm`]: [`GroupNorm`]'s, with a group for each channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceNorm {
    /// Added to the variance. Default 0.001.
    #[serde(deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// Whether there is an offset, the variable `beta`. Default true.
    pub center: bool,
    /// Whether there is a scale, the variable `gamma`. Default true.
    pub scale: bool,
    /// The initializer of the offset. Default `zeros`.
    pub beta_initializer: Init,
    /// The initializer of the scale. Default `ones`.
    pub gamma_initializer: Init,
}

impl Default for InstanceNorm {
    fn default() -> InstanceNorm {
        let GroupNorm { epsilon, center, scale, beta_initializer, gamma_initializer, .. } = GroupNorm::default();
        InstanceNorm { epsilon, center, scale, beta_initializer, gamma_initializer }
    }
}

/// [`group_norm`] with a group for each channel.
///
/// # Source
/// Ulyanov et al. 2016; TensorFlow Addons' `InstanceNormalization`.
#[track_caller]
pub fn instance_norm(s: &Scope, x: &Tensor, name: &str, config: &InstanceNorm) -> Tensor {
    let InstanceNorm { epsilon, center, scale, beta_initializer, gamma_initializer } = *config;
    let config = GroupNorm { groups: -1, epsilon, center, scale, beta_initializer, gamma_initializer };
    group_norm(s, x, name, &config)
}

/// The number of groups.
fn groups(x: &Tensor, config: &GroupNorm) -> Result<i64, RuleError> {
    is_float("group_norm/dtype", "x", x)?;
    super::at_least("group_norm/rank", "rank of x", x.rank() as i64, 2)?;
    if config.epsilon <= 0.0 {
        let message = format!("epsilon is {}, expected more than 0", config.epsilon);
        return Err(RuleError::new("group_norm/epsilon", message));
    }
    let channels = x.dims().last().copied().unwrap_or(1);
    let groups = if config.groups == -1 { channels } else { config.groups };
    if groups < 1 || channels % groups != 0 {
        let message = format!("{channels} channels do not split in {groups} groups");
        let help = "write `groups` that divide the channels, or -1: one for each";
        return Err(RuleError::new("group_norm/groups", message).with_help(help));
    }
    Ok(groups)
}
