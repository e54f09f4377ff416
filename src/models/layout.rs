//! Input dims that image models share.

use super::yaml;
use serde::Deserializer;
use serde::de::{Error, Unexpected};

/// `[height, width, channels]`, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Any other value.
pub fn image_dims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    let dims = yaml::positives(deserializer)?;
    if dims.len() == 3 {
        return Ok(dims);
    }
    let found = format!("{} sizes", dims.len());
    Err(D::Error::invalid_value(Unexpected::Other(&found), &"[height, width, channels]"))
}
