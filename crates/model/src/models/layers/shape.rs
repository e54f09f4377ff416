//! Layers that only move elements: `flatten`, `reshape`, `take`, `zero_padding`, `upsample`.

use super::layer_options::LayerOptions;
use super::options::{DataFormat, Margins, Pair, is_default, two};
use crate::graph::{Scope, Tensor};
use crate::nn;
use serde::{Deserialize, Serialize};

/// `flatten` has no options; see [`nn::flatten`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flatten {}

impl LayerOptions for Flatten {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::flatten(inputs[0]))
    }
}

/// Options of `reshape`; see [`nn::reshape_example`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// Dims of an example; one of them may be -1.
    pub target_shape: Vec<i64>,
}

impl LayerOptions for Reshape {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::reshape_example(inputs[0], &self.target_shape))
    }
}

/// Options of `take`: what stands at one place of an axis, which goes. `{take: 0}` of a sequence is its first position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// The place, from 0.
    pub index: u32,
    /// The axis, the batch counted. Default 1.
    #[serde(default = "first")]
    pub axis: i64,
}

fn first() -> i64 {
    1
}

impl LayerOptions for Take {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::take(inputs[0], i64::from(self.index), self.axis))
    }
}

/// Options of `zero_padding`; see [`nn::zero_padding`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroPadding {
    /// Rows above and below, columns left and right. Default 1.
    #[serde(default = "Margins::one")]
    pub padding: Margins,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for ZeroPadding {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::zero_padding(inputs[0], self.padding.0, self.data_format.into()))
    }
}

/// Options of `upsample`; see [`nn::upsample`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upsample {
    /// How often a pixel is repeated down and right. Default 2.
    #[serde(default = "two")]
    pub size: Pair,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for Upsample {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::upsample(inputs[0], self.size.0, self.data_format.into()))
    }
}
