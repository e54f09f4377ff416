//! `dense`: Keras' `Dense`.

use super::layer_options::LayerOptions;
use super::options::{Initializer, is_default, yes};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn::{self, Activation};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// Options of `dense`; see [`nn::dense`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Size of the last axis of the result.
    #[serde(deserialize_with = "document::positive")]
    pub units: i64,
    /// Applied to the result. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether a bias is added. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// How the kernel starts. Default `glorot_uniform`.
    #[serde(default = "Initializer::glorot_uniform")]
    pub kernel_initializer: Initializer,
    /// How the bias starts. Default `zeros`.
    #[serde(default = "Initializer::zeros")]
    pub bias_initializer: Initializer,
}

impl Dense {
    /// So many units, and all else by default.
    pub fn new(units: i64) -> Dense {
        let (kernel_initializer, bias_initializer) = (Initializer::GlorotUniform, Initializer::Zeros);
        Dense { units, activation: Activation::default(), use_bias: true, kernel_initializer, bias_initializer }
    }
}

impl LayerOptions for Dense {
    /// Keras applies a dense layer to the last axis of anything. An image is refused here: that `flatten` was forgotten
    /// is likelier than that a convolution of 1×1 was meant.
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = inputs[0];
        if x.rank() > 3 {
            let message = format!("x {} has rank {}, expected 2 or 3: [batch, …, inputs]", x.shape(), x.rank());
            let help = "put `flatten` or `global_avg_pool` before it, or write a dense layer for each pixel as \
                        `{conv: UNITS, kernel_size: 1}`";
            return s.graph().fail("dense", &[x], RuleError::new("dense/rank", message).with_help(help));
        }
        let config = nn::Dense {
            units: self.units,
            use_bias: self.use_bias,
            kernel_init: self.kernel_initializer.init(),
            bias_init: self.bias_initializer.init(),
        };
        self.activation.of(&nn::dense(s, x, name, &config))
    }
}
