//! Text as examples of ids: text or JSON-lines files, tokenized once, then served as windows, packs or single texts by
//! number.
//!
//! [`Texts`] selects the text, [`Tokenizer`] converts it to ids, [`Options`] shapes the examples. The ids are written
//! once, in order, to a file in the cache, and read from there by range; so any example is read by number, from any
//! thread, and memory does not grow with the text.

mod examples;
mod ids;
mod mask;
mod model;
mod tokenize;
mod tokenizer;

pub use examples::TextExamples;
pub use ids::token_ids;
pub use mask::Mask;
pub use tokenize::{Format, Texts};
pub use tokenizer::{Encoder, Frame, Tokenizer, path_of};

use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// How text becomes examples: the `tokens` of `data`.
///
/// One of `window`, `pack` and `max_length` selects the kind of examples, and thereby their arrays:
///
/// | | arrays |
/// | --- | --- |
/// | `window: n` | `tokens`, and `labels`, the tokens that follow: `s32[n]` each |
/// | `pack: n` | the same, and `segments` (from 1; 0 is padding), `positions` (from 0 in each text) and `weights` (`f32[n]`, 0 where no label is) |
/// | `max_length: n` | `tokens`, `segments` (0, and 1 in a second text), `weights` (1 of tokens, 0 of padding); `labels`: the field `label`, else tokens that follow |
///
/// With `mask` some of `tokens` are replaced, `labels` are the original tokens, and `weights` are 1 at the chosen ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// `bytes`, or a file: `tokenizer.json` or BERT's `vocab.txt`.
    pub tokenizer: String,
    /// For `vocab.txt`: whether text is made lower-case, without accents. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowercase: Option<bool>,
    /// The unit of text. Default: a file for windows, otherwise a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
    /// For JSON lines: the field of the text, or the two of a pair. Default `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Fields>,
    /// For JSON lines: the field of the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The names of labels that are strings, starting with label 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Tokens of an example that crosses the boundaries of texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Length>,
    /// Tokens from one window to the next. Default `window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<Length>,
    /// Tokens of an example that packs as many texts as fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<Length>,
    /// Tokens of an example with one text, or a pair: longer ones are truncated, shorter ones padded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<Length>,
    /// The token after each text, in windows and packs. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// The padding token. Default `[PAD]`, `<pad>` or, if the tokenizer has neither, id 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<String>,
    /// Masked-LM masking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<Mask>,
}

/// The unit of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// A file.
    File,
    /// A non-empty line.
    Line,
}

/// A number of tokens, from 1 to 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Length(pub u64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Length, D::Error> {
        struct Tokens;
        impl Visitor<'_> for Tokens {
            type Value = Length;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of tokens from 1 to 16777216")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Length, E> {
                match value {
                    1..=0x100_0000 => Ok(Length(value)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

/// The field of a text, or the fields of a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fields(pub Vec<String>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct OneOrTwo;
        impl<'de> Visitor<'de> for OneOrTwo {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field, or a list of two")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Fields, E> {
                Ok(Fields(vec![value.to_string()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = seq.next_element()? {
                    fields.push(field);
                }
                match fields.len() {
                    1 | 2 => Ok(Fields(fields)),
                    n => Err(de::Error::invalid_length(n, &self)),
                }
            }
        }
        deserializer.deserialize_any(OneOrTwo)
    }
}
