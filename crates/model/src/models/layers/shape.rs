//! Layers that only move elements: `flatten`, `reshape`, `permute`, `take`, `zero_padding`, `crop`, `upsample`.

use super::layer_options::LayerOptions;
use crate::document::{self, Node, Value};
use crate::graph::{Scope, Tensor};
use crate::nn::options::{is_default, pair, two};
use crate::nn::{self, DataFormat};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// Options of `permute`; see [`nn::permute`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permute {
    /// Axes of an example, from 1, in the order of the result.
    pub dims: Vec<i64>,
}

impl LayerOptions for Permute {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::permute(inputs[0], &self.dims))
    }
}

/// Options of `crop`; see [`nn::crop`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crop {
    /// Rows above and below, columns left and right. Default 1.
    #[serde(default = "Margins::one")]
    pub cropping: Margins,
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for Crop {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::crop(inputs[0], self.cropping.0, self.data_format))
    }
}

/// What stands around an image: `[[above, below], [left, right]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins(pub [[i64; 2]; 2]);

impl Margins {
    fn one() -> Margins {
        Margins([[1; 2]; 2])
    }
}

/// As Keras' `ZeroPadding2D`: one number for all four sides, one for height and one for width, or one for each side.
impl<'de> Deserialize<'de> for Margins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Margins, D::Error> {
        const EXPECTED: &str = "a whole number of at least 1, [height, width], or [[top, bottom], [left, right]]";
        // More pixels than this no axis has; f64 holds it exactly.
        let fits = |n: f64| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&n);
        let number = |node: &Node| document::number(node, fits, EXPECTED).map(|n| n as i64);
        let sides = |node: &Node| match &node.value {
            Value::List(list) => match &list[..] {
                [low, high] => Ok([number(low)?, number(high)?]),
                _ => Err(node.wrong(EXPECTED)),
            },
            _ => number(node).map(|n| [n; 2]),
        };
        Node::read(deserializer, |node| {
            let margins = match &node.value {
                Value::List(list) => match &list[..] {
                    [rows, columns] => [sides(rows)?, sides(columns)?],
                    _ => return Err(node.wrong(EXPECTED)),
                },
                _ => [sides(node)?; 2],
            };
            if margins == [[0; 2]; 2] { Err(node.wrong(EXPECTED)) } else { Ok(Margins(margins)) }
        })
    }
}

/// In the shorter form where that says it, as in checkpoints from before the longer one.
impl Serialize for Margins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [[top, bottom], [left, right]] if top == bottom && left == right => [top, left].serialize(serializer),
            each => each.serialize(serializer),
        }
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
        s.layer(name, |_| nn::zero_padding(inputs[0], self.padding.0, self.data_format))
    }
}

/// Options of `upsample`; see [`nn::upsample`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upsample {
    /// How often a pixel is repeated down and right. Default 2.
    #[serde(default = "two", deserialize_with = "pair")]
    pub size: [i64; 2],
    /// Where the channels stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl LayerOptions for Upsample {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::upsample(inputs[0], self.size, self.data_format))
    }
}
