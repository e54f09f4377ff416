//! The values that the backward pass rematerialises.

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The values that the backward pass rematerialises instead of keeping them, see [`passes::remat`](crate::remat). In
/// YAML `none`, `elementwise`, `convolutional`, or a list of patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Remat {
    /// Nothing.
    #[default]
    None,
    /// Elementwise functions of one or two kept arrays, and casts of large kernels.
    Elementwise,
    /// As `elementwise` in programs with convolutions, else nothing. Convolutions are followed by norms, relus and
    /// sums of whole images, so ResNet-50 takes less memory and fewer cycles; BERT-base would take more cycles for
    /// next to no memory.
    Convolutional,
    /// As `elementwise`, and also scopes that match patterns of one or more levels of a name: `block*`,
    /// `stage1/*/conv3`. `*` matches any text, `?` any character.
    Scopes(Vec<String>),
}

impl Remat {
    /// The patterns of scopes; empty for the other variants.
    pub fn patterns(&self) -> &[String] {
        match self {
            Remat::None | Remat::Elementwise | Remat::Convolutional => &[],
            Remat::Scopes(patterns) => patterns,
        }
    }
}

/// The names of the variants without patterns.
const NAMES: [&str; 3] = ["none", "elementwise", "convolutional"];

impl Serialize for Remat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Remat::None => serializer.serialize_str("none"),
            Remat::Elementwise => serializer.serialize_str("elementwise"),
            Remat::Convolutional => serializer.serialize_str("convolutional"),
            Remat::Scopes(patterns) => patterns.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Remat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Remat, D::Error> {
        struct Choice;
        impl<'de> Visitor<'de> for Choice {
            type Value = Remat;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("none, elementwise, convolutional, or a list of patterns such as [\"block*\"]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Remat, E> {
                match text {
                    "none" => Ok(Remat::None),
                    "elementwise" => Ok(Remat::Elementwise),
                    "convolutional" => Ok(Remat::Convolutional),
                    _ => Err(E::unknown_variant(text, &NAMES)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Remat, A::Error> {
                let mut patterns = Vec::new();
                while let Some(pattern) = seq.next_element()? {
                    patterns.push(pattern);
                }
                Ok(Remat::Scopes(patterns))
            }
        }
        deserializer.deserialize_any(Choice)
    }
}
