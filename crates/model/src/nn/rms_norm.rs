//! Normalisation by the root of the mean square.

use super::options::above_zero;
use super::{is_float, normalising_dtype};
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// Configuration of [`rms_norm`]. The default is Keras'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RmsNorm {
    /// Added to the mean square. Default 1e-6.
    #[serde(deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// The initializer of the scale. Default `ones`.
    pub scale_initializer: Init,
}

impl Default for RmsNorm {
    fn default() -> RmsNorm {
        RmsNorm { epsilon: 1e-6, scale_initializer: Init::Ones }
    }
}

/// `x / sqrt(mean(x²) + epsilon) · scale`, over the last axis.
///
/// # Shapes
/// x `[…, features]` → the same; variable `scale` `[features]`.
///
/// # Types
/// bf16 and f16 data is converted to f32, normalised and scaled in f32, and the result rounded once; the variable is
/// f32, requested as f32 in any scope. f32 and f64 data is normalised in its own dtype. (Hugging Face's Llama in bf16
/// also rounds before the scale, which is bf16 there.)
///
/// # Errors
/// x not floating or of rank 0; epsilon not positive.
///
/// # Source
/// Zhang and Sennrich 2019; Keras' `RMSNormalization`.
#[track_caller]
pub fn rms_norm(s: &Scope, x: &Tensor, name: &str, config: &RmsNorm) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        if let Err(error) = check(x, config) {
            return s.graph().fail("rms_norm", &[x], error);
        }
        let (dims, dtype) = (x.dims(), normalising_dtype(x));
        let last = dims.len() as i64 - 1;
        let scale = s.variable("scale", dtype, [dims[last as usize]], config.scale_initializer).value;
        let leading: Vec<i64> = (0..last).collect();
        let data = x.cast(dtype);
        let factor = ((&data * &data).mean(&[last]) + config.epsilon).rsqrt();
        let normalised = data * factor.broadcast_in_dim(&dims, &leading);
        (normalised * scale.broadcast_in_dim(&dims, &[last])).cast(x.dtype())
    })
}

fn check(x: &Tensor, config: &RmsNorm) -> Result<(), RuleError> {
    is_float("rms_norm/dtype", "x", x)?;
    super::at_least("rms_norm/rank", "rank of x", x.rank() as i64, 1)?;
    if config.epsilon > 0.0 {
        return Ok(());
    }
    Err(RuleError::new("rms_norm/epsilon", format!("epsilon is {}, expected more than 0", config.epsilon)))
}
