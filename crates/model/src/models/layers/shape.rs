//! Layers that only move elements: `flatten`, `reshape`, `permute`, `take`, `slice`, `zero_padding`, `crop`, `upsample`.

use super::layer_options::LayerOptions;
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn::options::is_default;
use crate::nn::{self, DataFormat, Interpolation, Sizes};
use bf16scope_hlo::ops::RuleError;
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

/// Options of `take`: the element at one position of an axis, which is removed. `{take: 0}` of a sequence is its first
/// step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// The position, from 0, or from -1 backwards from the last.
    pub index: i64,
    /// The axis, counting the batch. Default 1.
    #[serde(default = "first")]
    pub axis: i64,
}

fn first() -> i64 {
    1
}

impl LayerOptions for Take {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::take(inputs[0], self.index, self.axis))
    }
}

/// Options of `slice`: a range of positions of an axis. `{slice: [0, 2], axis: -1}` takes the first two features.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The first position and the one after the last, from 0, or from -1 backwards; null is the end of the axis.
    pub bounds: [Option<i64>; 2],
    /// The axis, counting the batch. Default 1.
    #[serde(default = "first")]
    pub axis: i64,
}

impl LayerOptions for Slice {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::slice(inputs[0], self.bounds, self.axis))
    }
}

/// Options of `repeat_vector`: repeats an example of `[features]` to `[n, features]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepeatVector {
    /// The number of repetitions.
    #[serde(deserialize_with = "document::positive")]
    pub n: i64,
}

impl LayerOptions for RepeatVector {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = inputs[0];
        s.layer(name, |s| match x.dims()[..] {
            _ if x.is_poison() => x.clone(),
            [batch, features] => x.broadcast_in_dim(&[batch, self.n, features], &[0, 2]),
            _ => {
                let message = format!("x {} has rank {}, expected 2: [batch, features]", x.shape(), x.rank());
                s.graph().fail("repeat_vector", &[x], RuleError::new("repeat_vector/rank", message))
            }
        })
    }
}

/// Options of `permute`; see [`nn::permute`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permute {
    /// Axes of an example, from 1, in the order of the output.
    pub dims: Vec<i64>,
}

impl LayerOptions for Permute {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::permute(inputs[0], &self.dims))
    }
}

/// Options of `upsample`; see [`nn::upsample`] and [`nn::upsample_nd`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upsample {
    /// The factor by which each axis grows. Default 2.
    #[serde(default = "twice")]
    pub size: Sizes,
    /// The position of the channels. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
    /// The interpolation. Default `nearest`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub interpolation: Interpolation,
}

fn twice() -> Sizes {
    Sizes::from(2)
}

impl LayerOptions for Upsample {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = inputs[0];
        let is_plain = x.rank() == 4 && self.interpolation == Interpolation::Nearest;
        s.layer(name, |s| match (is_plain, self.size.image()) {
            (true, Some(size)) => nn::upsample(x, size, self.data_format),
            _ if self.data_format != DataFormat::ChannelsLast => {
                let message = "`channels_first` is for images and nearest places, expected `channels_last`";
                s.graph().fail("upsample", &[x], RuleError::new("upsample/format", message))
            }
            _ => nn::upsample_nd(x, &self.size, self.interpolation),
        })
    }
}
