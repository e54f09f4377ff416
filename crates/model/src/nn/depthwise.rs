//! Depthwise convolution: every channel has its own kernels.

use super::conv::{self, Conv2d};
use super::options::{glorot_uniform, is_default, one, pair, single, yes, zeros};
use super::window::{DataFormat, Padding};
use super::{Activation, at_least};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use serde::{Deserialize, Serialize};

/// Configuration of [`depthwise_conv2d`]. The defaults are Keras'; `kernel_size` has none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthwiseConv2d {
    /// Height and width of the kernels.
    #[serde(deserialize_with = "pair")]
    pub kernel_size: [i64; 2],
    /// Strides down and right. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub strides: [i64; 2],
    /// The padding. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// The dilation of the kernels. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub dilation_rate: [i64; 2],
    /// The number of kernels per channel. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub depth_multiplier: i64,
    /// The order of axes in x and in the output. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
    /// The activation. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether there is a bias. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub depthwise_initializer: Init,
    /// The bias initializer. Default `zeros`.
    #[serde(default = "zeros")]
    pub bias_initializer: Init,
}

impl Default for DepthwiseConv2d {
    fn default() -> DepthwiseConv2d {
        DepthwiseConv2d {
            kernel_size: [0, 0],
            strides: [1, 1],
            padding: Padding::Valid,
            dilation_rate: [1, 1],
            depth_multiplier: 1,
            data_format: DataFormat::ChannelsLast,
            activation: Activation::Linear,
            use_bias: true,
            depthwise_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// A convolution of each channel with its own `depth_multiplier` kernels, plus a bias, followed by an activation.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → `[b, h', w', c · depth_multiplier]` (or `[b, c · depth_multiplier, h', w']`),
/// sizes as in [`conv2d`](super::conv2d); kernel `[kh, kw, c, depth_multiplier]`, bias `[c · depth_multiplier]`. Channel
/// `i` of x makes channels `i · depth_multiplier ..` of the result.
///
/// # Types
/// As [`conv2d`](super::conv2d).
///
/// # Errors
/// x not of rank 4 or not floating; a kernel, strides, dilation or multiplier below 1; a window larger than the padded
/// image.
///
/// # Source
/// TensorFlow's `DepthwiseConv2dNative` and `BiasAdd`, which its XLA bridge compiles to a convolution of `c` groups.
#[track_caller]
pub fn depthwise_conv2d(s: &Scope, x: &Tensor, name: &str, config: &DepthwiseConv2d) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let channels = x.dims().get(config.data_format.channels() as usize).copied().unwrap_or(1);
        let grouped = Conv2d {
            filters: channels.saturating_mul(config.depth_multiplier),
            kernel_size: config.kernel_size,
            strides: config.strides,
            padding: config.padding,
            dilation_rate: config.dilation_rate,
            groups: channels,
            data_format: config.data_format,
            use_bias: config.use_bias,
            bias_initializer: config.bias_initializer,
            ..Conv2d::default()
        };
        let is_positive = at_least("depthwise_conv2d/multiplier", "depth_multiplier", config.depth_multiplier, 1);
        let window = match is_positive.and_then(|()| conv::check(x, &grouped)) {
            Ok(window) => window,
            Err(error) => return s.graph().fail("depthwise_conv2d", &[x], error),
        };
        let [height, width] = config.kernel_size;
        let dims = [height, width, channels, config.depth_multiplier];
        let kernel = s.variable("kernel", x.dtype(), dims, config.depthwise_initializer).value;
        let kernel = kernel.reshape([height, width, 1, grouped.filters]);
        conv::add_bias(s, conv::convolution(x, &kernel, window, &grouped), &grouped)
    });
    config.activation.apply(&y)
}
