//! Input dims that image models share.

use super::yaml::Positive;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use std::fmt;

/// `[height, width, channels]`, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Any other value.
pub fn image_dims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    struct Dims;
    impl<'de> Visitor<'de> for Dims {
        type Value = Vec<i64>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("[height, width, channels]")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Vec<i64>, A::Error> {
            let mut dims = Vec::new();
            while let Some(Positive(size)) = sizes.next_element()? {
                dims.push(size);
            }
            if dims.len() == 3 {
                return Ok(dims);
            }
            let found = format!("{} sizes", dims.len());
            Err(A::Error::invalid_value(Unexpected::Other(&found), &self))
        }
    }
    deserializer.deserialize_seq(Dims)
}
