//! Rematerialisation in the layers of a transformer: which values, and in how many layers.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The values that the gradients of a transformer's layers rematerialise instead of keeping them, each in a number of
/// layers, from the first on. Default: 0 layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayerRemat {
    /// Attention's weights, `[batch, heads, length, length]`, at the cost of a product of that size.
    pub weights: Layers,
    /// Attention's output, `[batch, length, features]`, at the cost of another such product.
    pub attention: Layers,
    /// Attention's values, of the same size, at the cost of a product with their kernel.
    pub values: Layers,
    /// The feed-forward network's hidden layer, `[batch, length, hidden]`, at the cost of a product with its kernel.
    pub hidden: Layers,
}

/// The first layers of a network: a number, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// The first `n` layers.
    First(u32),
    /// All layers.
    All,
}

impl Layers {
    /// Whether the layer of this number, counted from 1, is included.
    pub fn covers(self, number: i64) -> bool {
        match self {
            Layers::First(n) => number <= i64::from(n),
            Layers::All => true,
        }
    }
}

impl Default for Layers {
    fn default() -> Layers {
        Layers::First(0)
    }
}

impl Serialize for Layers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Layers::First(n) => serializer.serialize_u32(*n),
            Layers::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for Layers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Layers, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Layers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of layers, or all")
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Layers, E> {
                Ok(Layers::First(u32::try_from(n).unwrap_or(u32::MAX)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Layers, E> {
                match text {
                    "all" => Ok(Layers::All),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Number)
    }
}
