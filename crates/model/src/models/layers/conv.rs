//! `conv` and `depthwise_conv`: Keras' `Conv2D` and `DepthwiseConv2D`.

use super::layer_options::LayerOptions;
use super::options::{DataFormat, Initializer, Padding, Pair, is_default, one, yes};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn::{self, Activation};
use serde::{Deserialize, Serialize};

/// Options of `conv`; see [`nn::conv2d`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv {
    /// Channels of the result.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Height and width of the kernel.
    pub kernel_size: Pair,
    /// Steps down and right. Default 1.
    #[serde(default = "one")]
    pub strides: Pair,
    /// `valid` (default) or `same`.
    #[serde(default)]
    pub padding: Padding,
    /// Distances of the kernel's elements. Default 1.
    #[serde(default = "one")]
    pub dilation_rate: Pair,
    /// Groups that channels and filters split in. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub groups: i64,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
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

fn single() -> i64 {
    1
}

impl Conv {
    /// So many filters of this kernel, and all else by default.
    pub fn new(filters: i64, kernel_size: Pair) -> Conv {
        Conv {
            filters,
            kernel_size,
            strides: one(),
            padding: Padding::Valid,
            dilation_rate: one(),
            groups: 1,
            data_format: DataFormat::ChannelsLast,
            activation: Activation::default(),
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform,
            bias_initializer: Initializer::Zeros,
        }
    }
}

impl LayerOptions for Conv {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::Conv2d {
            filters: self.filters,
            kernel: self.kernel_size.0,
            strides: self.strides.0,
            padding: self.padding.into(),
            dilation: self.dilation_rate.0,
            groups: self.groups,
            format: self.data_format.into(),
            use_bias: self.use_bias,
            kernel_init: self.kernel_initializer.init(),
            bias_init: self.bias_initializer.init(),
        };
        self.activation.of(&nn::conv2d(s, inputs[0], name, &config))
    }
}

/// Options of `depthwise_conv`; see [`nn::depthwise_conv2d`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthwiseConv {
    /// Height and width of the kernels.
    pub kernel_size: Pair,
    /// Steps down and right. Default 1.
    #[serde(default = "one")]
    pub strides: Pair,
    /// `valid` (default) or `same`.
    #[serde(default)]
    pub padding: Padding,
    /// Distances of a kernel's elements. Default 1.
    #[serde(default = "one")]
    pub dilation_rate: Pair,
    /// Kernels of each channel. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub depth_multiplier: i64,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
    /// Applied to the result. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether a bias is added. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// How the kernels start. Default `glorot_uniform`.
    #[serde(default = "Initializer::glorot_uniform")]
    pub depthwise_initializer: Initializer,
    /// How the bias starts. Default `zeros`.
    #[serde(default = "Initializer::zeros")]
    pub bias_initializer: Initializer,
}

impl LayerOptions for DepthwiseConv {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::DepthwiseConv2d {
            kernel: self.kernel_size.0,
            strides: self.strides.0,
            padding: self.padding.into(),
            dilation: self.dilation_rate.0,
            depth_multiplier: self.depth_multiplier,
            format: self.data_format.into(),
            use_bias: self.use_bias,
            kernel_init: self.depthwise_initializer.init(),
            bias_init: self.bias_initializer.init(),
        };
        self.activation.of(&nn::depthwise_conv2d(s, inputs[0], name, &config))
    }
}
