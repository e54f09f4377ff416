//! A rectifier with a learned slope below 0.

use super::options::zeros;
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// Configuration of [`prelu`]. The default is Keras'.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prelu {
    /// The initializer of slopes. Default `zeros`.
    #[serde(default = "zeros")]
    pub alpha_initializer: Init,
    /// Axes that share slopes, counting the batch, from 1. Default none: `[1, 2]` of an image gives a slope for each
    /// channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_axes: Vec<i64>,
}

impl Default for Prelu {
    fn default() -> Prelu {
        Prelu { alpha_initializer: Init::Zeros, shared_axes: Vec::new() }
    }
}

/// x from 0 on, else `alpha · x`.
///
/// # Shapes
/// x `[batch, …]` → the same; variable `alpha` of an example's dims, 1 along `shared_axes`.
///
/// # Types
/// In the dtype of x, in which `alpha` is requested.
///
/// # Errors
/// x not floating; shared axes that x does not have, or the batch.
///
/// # Source
/// He et al. 2015; Keras' `PReLU`, which computes `relu(x) - alpha · relu(-x)`.
#[track_caller]
pub fn prelu(s: &Scope, x: &Tensor, name: &str, config: &Prelu) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let shared = x.axes(&config.shared_axes);
        let fits = super::is_float("prelu/dtype", "x", x).and_then(|()| {
            match shared.iter().find(|axis| !(1..x.rank() as i64).contains(axis)) {
                None => Ok(()),
                Some(axis) => {
                    let message = format!("a shared axis is {axis}, expected one of {} after the batch", x.shape());
                    Err(RuleError::new("prelu/axes", message))
                }
            }
        });
        if let Err(error) = fits {
            return s.graph().fail("prelu", &[x], error);
        }
        let dims = x.dims();
        let alpha_dims: Vec<i64> =
            (1..).zip(&dims[1..]).map(|(axis, &dim)| if shared.contains(&axis) { 1 } else { dim }).collect();
        let alpha = s.variable("alpha", x.dtype(), alpha_dims, config.alpha_initializer).value;
        let alpha = alpha.broadcast_to(&dims);
        super::relu(x) - alpha * super::relu(&x.negate())
    })
}
