//! `max_pool`, `avg_pool`, `global_max_pool` and `global_avg_pool`: Keras' `MaxPooling2D` and its like.

use super::layer_options::LayerOptions;
use super::options::{DataFormat, Padding, Pair, is_default, two};
use crate::graph::{Scope, Tensor};
use crate::nn;
use serde::{Deserialize, Serialize};

/// Options of `max_pool`; see [`nn::max_pool`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxPool {
    /// Height and width of the window. Default 2.
    #[serde(default = "two")]
    pub pool_size: Pair,
    /// Steps down and right. Default: side by side.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strides: Option<Pair>,
    /// `valid` (default) or `same`.
    #[serde(default)]
    pub padding: Padding,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl MaxPool {
    fn config(&self) -> nn::Pool {
        nn::Pool {
            window: self.pool_size.0,
            strides: self.strides.unwrap_or(self.pool_size).0,
            padding: self.padding.into(),
            format: self.data_format.into(),
        }
    }
}

impl Default for MaxPool {
    fn default() -> MaxPool {
        MaxPool { pool_size: two(), strides: None, padding: Padding::Valid, data_format: DataFormat::ChannelsLast }
    }
}

impl LayerOptions for MaxPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::max_pool(inputs[0], &self.config()))
    }
}

/// Options of `avg_pool`, which are those of `max_pool`; see [`nn::avg_pool`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvgPool {
    /// Height and width of the window. Default 2.
    #[serde(default = "two")]
    pub pool_size: Pair,
    /// Steps down and right. Default: side by side.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strides: Option<Pair>,
    /// `valid` (default) or `same`.
    #[serde(default)]
    pub padding: Padding,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for AvgPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let AvgPool { pool_size, strides, padding, data_format } = *self;
        let config = MaxPool { pool_size, strides, padding, data_format }.config();
        s.layer(name, |_| nn::avg_pool(inputs[0], &config))
    }
}

/// Options of `global_max_pool`; see [`nn::global_max_pool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalMaxPool {
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for GlobalMaxPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::global_max_pool(inputs[0], self.data_format.into()))
    }
}

/// Options of `global_avg_pool`; see [`nn::global_avg_pool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalAvgPool {
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for GlobalAvgPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::global_avg_pool(inputs[0], self.data_format.into()))
    }
}
