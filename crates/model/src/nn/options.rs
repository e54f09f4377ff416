//! Fields that several configurations share: their defaults and deserializers.

use crate::document::{self, Positive};
use crate::graph::Init;
use crate::nn::{Activation, Sizes};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use std::fmt;

/// One number for height and width, or one for each.
///
/// # Errors
/// Any other value.
pub(crate) fn pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[i64; 2], D::Error> {
    Pair::deserialize(deserializer).map(|Pair(pair)| pair)
}

/// As [`pair`], or null.
pub(crate) fn some_pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<[i64; 2]>, D::Error> {
    Ok(Option::<Pair>::deserialize(deserializer)?.map(|Pair(pair)| pair))
}

struct Pair([i64; 2]);

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
                while let Some(Positive(size)) = elements.next_element()? {
                    sizes.push(size);
                }
                match sizes[..] {
                    [height, width] => Ok(Pair([height, width])),
                    _ => {
                        let measured = format!("{} sizes", sizes.len());
                        Err(de::Error::invalid_value(de::Unexpected::Other(&measured), &self))
                    }
                }
            }
        }
        deserializer.deserialize_any(OneOrTwo)
    }
}

/// Sizes that may be 0, such as an output padding.
pub(crate) fn some_sizes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Sizes>, D::Error> {
    document::Node::read(deserializer, |node| Sizes::read(node, 0.0).map(Some))
}

/// Sizes, or null.
pub(crate) fn some_windows<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Sizes>, D::Error> {
    Option::<Sizes>::deserialize(deserializer)
}

pub(crate) fn ones() -> Sizes {
    Sizes::from(1)
}

pub(crate) fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let is_positive = |value: f64| value as f32 > 0.0 && (value as f32).is_finite();
    document::number(deserializer, is_positive, "a number above 0 that f32 can hold")
}

pub(crate) fn unit_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

pub(crate) fn some_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    document::positive(deserializer).map(Some)
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(crate) fn is_true(value: &bool) -> bool {
    *value
}

pub(crate) fn yes() -> bool {
    true
}

pub(crate) fn single() -> i64 {
    1
}

pub(crate) fn one() -> [i64; 2] {
    [1, 1]
}

pub(crate) fn relu() -> Activation {
    Activation::Relu
}

pub(crate) fn zeros() -> Init {
    Init::Zeros
}

pub(crate) fn glorot_uniform() -> Init {
    Init::GLOROT_UNIFORM
}

pub(crate) fn orthogonal() -> Init {
    Init::ORTHOGONAL
}

pub(crate) fn tanh() -> Activation {
    Activation::Tanh
}

pub(crate) fn sigmoid() -> Activation {
    Activation::Sigmoid
}

pub(crate) fn random_normal() -> Init {
    Init::RANDOM_NORMAL
}

pub(crate) fn random_uniform() -> Init {
    Init::RANDOM_UNIFORM
}

#[cfg(test)]
mod tests {
    use crate::document;
    use crate::graph::Init;
    use crate::nn::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use std::fmt::Debug;

    /// Text with only its required keys gives the default, and a written configuration is read back unchanged.
    #[track_caller]
    fn check<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str, expected: T) {
        let read: T = document::from_str("layer.yaml", text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read, expected);
        let written = serde_yaml::to_string(&read).unwrap();
        assert_eq!(document::from_str::<T>("again.yaml", &written).unwrap(), expected, "{written}");
    }

    #[test]
    fn defaults_in_yaml_are_those_in_rust() {
        check("units: 3", Dense { units: 3, ..Dense::default() });
        check("{filters: 3, kernel_size: 2}", Conv2d { filters: 3, kernel_size: [2, 2], ..Conv2d::default() });
        check("kernel_size: [2, 1]", DepthwiseConv2d { kernel_size: [2, 1], ..DepthwiseConv2d::default() });
        check("{}", BatchNorm::default());
        check("{}", LayerNorm::default());
        check("{}", RmsNorm::default());
        check("{}", GroupNorm::default());
        check("{filters: 3, kernel_size: 2}", Conv1d { filters: 3, kernel_size: 2, ..Conv1d::default() });
        check("{}", Pool::default());
        check("{}", ClassToken::default());
        check("{}", Rope::default());
        check("num_heads: 4", Attention { num_heads: 4, ..Attention::default() });
        check("{input_dim: 9, output_dim: 2}", Embedding { input_dim: 9, output_dim: 2, ..Embedding::default() });
        check("units: 3", Lstm { units: 3, ..Lstm::default() });
        check("units: 3", Gru { units: 3, ..Gru::default() });
        check("max_length: 7", PositionEmbedding { max_length: 7, ..PositionEmbedding::default() });
    }

    #[test]
    fn what_is_written_is_read() {
        let conv = Conv2d {
            filters: 3,
            kernel_size: [3, 3],
            strides: [2, 1],
            padding: Padding::Same,
            dilation_rate: [1, 2],
            data_format: DataFormat::ChannelsFirst,
            activation: Activation::Relu,
            use_bias: false,
            kernel_initializer: Init::HE_NORMAL,
            ..Conv2d::default()
        };
        check(
            "{filters: 3, kernel_size: 3, strides: [2, 1], padding: same, dilation_rate: [1, 2], data_format: \
             channels_first, activation: relu, use_bias: false, kernel_initializer: he_normal}",
            conv,
        );
        check("{pool_size: 3, strides: 1}", Pool { pool_size: [3, 3], strides: Some([1, 1]), ..Pool::default() });
    }

    #[test]
    fn what_only_rust_can_say_is_no_key() {
        let error = |text: &str| document::from_str::<BatchNorm>("n.yaml", text).unwrap_err().to_string();
        let expected = "expected one of momentum, epsilon, axis, center, scale, beta_initializer, gamma_initializer";
        assert!(error("gradient: per_feature").contains(expected), "{}", error("gradient: per_feature"));
        let recipe = serde_json::to_string(&Init::ForgetGate).unwrap();
        assert_eq!(recipe, "\"ForgetGate\"");
        assert!(error("beta_initializer: Constant(0.5)").contains("expected one of zeros, ones, glorot_uniform"));
    }
}
