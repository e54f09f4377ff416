//! Ranges of the settings of optimizers and schedules, for serde.
//!
//! Settings are f64 and become f32 constants of a program. One that is NaN, infinite or of the wrong sign would make a
//! program that trains to NaN, or away from the minimum; it is refused when the document is read, with the line.

use crate::document::number;
use serde::{Deserialize, Deserializer};

/// A number of at least 0 that is finite in f32, and 0 there only if it is 0.
pub(super) fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, is_not_negative, NOT_NEGATIVE)
}

/// Whether [`not_negative`] accepts it.
pub(super) fn is_not_negative(value: f64) -> bool {
    value == 0.0 || value as f32 > 0.0 && (value as f32).is_finite()
}

pub(super) const NOT_NEGATIVE: &str = "0, or a finite number above 0 in f32";

/// A number of at most 0 that is finite in f32.
pub(super) fn not_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, |value| value <= 0.0 && (value as f32).is_finite(), "0, or a finite number below 0 in f32")
}

/// A number above 0, in f32 too, that is finite there.
pub(super) fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let accepts = |value: f64| value as f32 > 0.0 && (value as f32).is_finite();
    number(deserializer, accepts, "a finite number above 0 in f32")
}

/// A share that decays: from 0 to 1, excluding 1, in f32 too.
pub(super) fn fraction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(
        deserializer,
        |value| (0.0..1.0).contains(&value) && (value as f32) < 1.0,
        "a number from 0 up to but not including 1",
    )
}

/// A share that is kept: from 0 to 1.
pub(super) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

/// A share strictly between 0 and 1, in f32 too.
pub(super) fn inner_fraction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, is_inner_fraction, INNER_FRACTION)
}

/// Whether [`inner_fraction`] accepts it.
pub(super) fn is_inner_fraction(value: f64) -> bool {
    value as f32 > 0.0 && (value as f32) < 1.0
}

pub(super) const INNER_FRACTION: &str = "a number above 0 and below 1";

/// [`positive`], or null.
pub(super) fn positive_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    struct Positive(#[serde(deserialize_with = "positive")] f64);
    Ok(Option::<Positive>::deserialize(deserializer)?.map(|Positive(value)| value))
}

/// [`fraction`], or null.
pub(super) fn fraction_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    struct Fraction(#[serde(deserialize_with = "fraction")] f64);
    Ok(Option::<Fraction>::deserialize(deserializer)?.map(|Fraction(value)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Numbers {
        #[serde(deserialize_with = "not_positive")]
        power: f64,
        #[serde(deserialize_with = "fraction")]
        share: f64,
    }

    #[test]
    fn numbers_are_read_as_written_within_bounds_that_hold_in_f32() {
        let read = |power: &str, share: &str| {
            serde_json::from_str::<Numbers>(&format!("{{\"power\": {power}, \"share\": {share}}}"))
        };
        let numbers = read("-0.25", "0.5").unwrap();
        assert_eq!((numbers.power, numbers.share), (-0.25, 0.5));
        assert!(read("0", "0").is_ok());
        assert!(read("0.5", "0").is_err());
        // It rounds to 1 in f32.
        assert!(read("0", "0.99999999999").is_err());
    }
}
