//! Squeeze and excitation: channels weighted by a function of the whole image.

use super::options::{glorot_uniform, relu};
use super::{Activation, DataFormat, Dense, dense, global_avg_pool, of_rank};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use serde::{Deserialize, Serialize};

/// Configuration of [`squeeze_excite`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqueezeExcite {
    /// Units between the two dense layers.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// The activation in between. Default `relu`.
    #[serde(default = "relu")]
    pub activation: Activation,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
}

/// `x · sigmoid(W₂ · activation(W₁ · mean(x) + b₁) + b₂)`, the mean over height and width, a factor for each channel.
///
/// # Shapes
/// x `[b, h, w, c]` → the same; the variables of two dense layers, `reduce` `[c, filters]` and `expand` `[filters, c]`.
///
/// # Types
/// As the layers that it consists of.
///
/// # Errors
/// x not of rank 4 or not floating; `filters` below 1.
///
/// # Source
/// Hu et al. 2018. EfficientNet's code has convolutions of 1×1 for the dense layers, which are the same.
#[track_caller]
pub fn squeeze_excite(s: &Scope, x: &Tensor, name: &str, config: &SqueezeExcite) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        if let Err(error) = of_rank("squeeze_excite/rank", "x", x, 4, DataFormat::ChannelsLast.axes()) {
            return s.graph().fail("squeeze_excite", &[x], error);
        }
        let with_units = |units| Dense { units, kernel_initializer: config.kernel_initializer, ..Dense::default() };
        let squeezed = global_avg_pool(x, DataFormat::ChannelsLast);
        let reduced = config.activation.apply(&dense(s, &squeezed, "reduce", &with_units(config.filters)));
        let excited = dense(s, &reduced, "expand", &with_units(x.dims()[3]));
        if excited.is_poison() {
            return excited;
        }
        let factors = Activation::Sigmoid.apply(&excited);
        x * factors.broadcast_in_dim(&x.dims(), &[0, 3])
    })
}
