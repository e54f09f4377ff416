//! Input dims that models share.

use crate::document::Positive;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use std::fmt;
use std::ops::RangeInclusive;

/// `[height, width, channels]`, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Any other value.
pub fn image_dims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    dims_of_rank(deserializer, 3..=3, "[height, width, channels]")
}

/// Sizes of at least 1, as many as `ranks` allows; `expected` describes them.
///
/// # Errors
/// Any other value.
pub(super) fn dims_of_rank<'de, D: Deserializer<'de>>(
    deserializer: D,
    ranks: RangeInclusive<usize>,
    expected: &'static str,
) -> Result<Vec<i64>, D::Error> {
    struct Dims {
        ranks: RangeInclusive<usize>,
        expected: &'static str,
    }
    impl<'de> Visitor<'de> for Dims {
        type Value = Vec<i64>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Vec<i64>, A::Error> {
            let mut dims = Vec::new();
            while let Some(Positive(size)) = sizes.next_element()? {
                dims.push(size);
            }
            if self.ranks.contains(&dims.len()) {
                return Ok(dims);
            }
            let measured = format!("{} sizes", dims.len());
            Err(A::Error::invalid_value(Unexpected::Other(&measured), &self))
        }
    }
    deserializer.deserialize_seq(Dims { ranks, expected })
}
