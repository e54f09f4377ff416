//! What options of several layers are, by the names that Keras gives them.

use crate::document::{self, Node, Value};
use crate::graph::{Distribution, FanMode, Init};
use crate::nn;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One number for height and width, or one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair(pub [i64; 2]);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pair, D::Error> {
        struct OneOrTwo;
        impl<'de> Visitor<'de> for OneOrTwo {
            type Value = Pair;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at least 1, or [height, width]")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Pair, E> {
                match value {
                    1.. => Ok(Pair([value; 2])),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
                }
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Pair, E> {
                let signed =
                    i64::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))?;
                self.visit_i64(signed)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Pair, A::Error> {
                let mut sizes = Vec::new();
                while let Some(document::Positive(size)) = elements.next_element()? {
                    sizes.push(size);
                }
                match sizes[..] {
                    [height, width] => Ok(Pair([height, width])),
                    _ => {
                        let found = format!("{} sizes", sizes.len());
                        Err(de::Error::invalid_value(de::Unexpected::Other(&found), &self))
                    }
                }
            }
        }
        deserializer.deserialize_any(OneOrTwo)
    }
}

/// What stands around an image: `[[above, below], [left, right]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins(pub [[i64; 2]; 2]);

impl Margins {
    pub(super) fn one() -> Margins {
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

/// In the shorter form where that says it: what checkpoints have of before there was the other.
impl Serialize for Margins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [[top, bottom], [left, right]] if top == bottom && left == right => [top, left].serialize(serializer),
            each => each.serialize(serializer),
        }
    }
}

pub(super) fn one() -> Pair {
    Pair([1, 1])
}

pub(super) fn two() -> Pair {
    Pair([2, 2])
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let is_positive = |value: f64| value as f32 > 0.0 && (value as f32).is_finite();
    document::number(deserializer, is_positive, "a number above 0 that f32 can hold")
}

pub(super) fn some_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    document::positive(deserializer).map(Some)
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What stands around an image when windows slide over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Nothing.
    #[default]
    Valid,
    /// As much as makes `ceil(size / stride)` positions.
    Same,
}

impl From<Padding> for nn::Padding {
    fn from(padding: Padding) -> nn::Padding {
        match padding {
            Padding::Valid => nn::Padding::Valid,
            Padding::Same => nn::Padding::Same,
        }
    }
}

/// Where the channels of an image stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// `[height, width, channels]`.
    #[default]
    ChannelsLast,
    /// `[channels, height, width]`.
    ChannelsFirst,
}

impl From<DataFormat> for nn::Format {
    fn from(format: DataFormat) -> nn::Format {
        match format {
            DataFormat::ChannelsLast => nn::Format::Nhwc,
            DataFormat::ChannelsFirst => nn::Format::Nchw,
        }
    }
}

/// How a variable starts, by the names and with the defaults of Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initializer {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Uniform, variance `2 / (inputs + outputs)`.
    GlorotUniform,
    /// Truncated normal, variance `2 / (inputs + outputs)`.
    GlorotNormal,
    /// Uniform, variance `2 / inputs`.
    HeUniform,
    /// Truncated normal, variance `2 / inputs`.
    HeNormal,
    /// Uniform, variance `1 / inputs`.
    LecunUniform,
    /// Truncated normal, variance `1 / inputs`.
    LecunNormal,
    /// Truncated normal, variance `2 / outputs`.
    HeNormalFanOut,
    /// Uniform, variance `1 / (3 · outputs)`: within `1 / √outputs`.
    LecunUniformFanOut,
    /// Normal, standard deviation 0.05.
    RandomNormal,
    /// Normal, standard deviation 0.02, as BERT and GPT-2 start (BERT's is truncated at two standard deviations).
    BertNormal,
    /// Uniform within 0.05.
    RandomUniform,
}

impl Initializer {
    pub(super) fn zeros() -> Initializer {
        Initializer::Zeros
    }

    pub(super) fn ones() -> Initializer {
        Initializer::Ones
    }

    pub(super) fn glorot_uniform() -> Initializer {
        Initializer::GlorotUniform
    }

    pub(super) fn random_uniform() -> Initializer {
        Initializer::RandomUniform
    }

    /// The recipe.
    pub fn init(self) -> Init {
        let scaled = |scale, mode, distribution| Init::VarianceScaling { scale, mode, distribution };
        match self {
            Initializer::Zeros => Init::Zeros,
            Initializer::Ones => Init::Ones,
            Initializer::GlorotUniform => Init::GLOROT_UNIFORM,
            Initializer::GlorotNormal => scaled(1.0, FanMode::FanAvg, Distribution::TruncatedNormal),
            Initializer::HeUniform => scaled(2.0, FanMode::FanIn, Distribution::Uniform),
            Initializer::HeNormal => Init::HE_NORMAL,
            Initializer::LecunUniform => scaled(1.0, FanMode::FanIn, Distribution::Uniform),
            Initializer::LecunNormal => Init::VARIANCE_SCALING,
            Initializer::HeNormalFanOut => scaled(2.0, FanMode::FanOut, Distribution::TruncatedNormal),
            Initializer::LecunUniformFanOut => scaled(1.0 / 3.0, FanMode::FanOut, Distribution::Uniform),
            Initializer::BertNormal => Init::Normal { stddev: 0.02 },
            Initializer::RandomNormal => Init::Normal { stddev: 0.05 },
            Initializer::RandomUniform => Init::Uniform { limit: 0.05 },
        }
    }
}
