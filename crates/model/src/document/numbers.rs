//! Numbers in a document, checked against the range of their key.

use serde::Deserialize;
use serde::de::{self, Deserializer, Unexpected, Visitor};
use std::fmt;

/// A whole number of at least 1, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Any other value.
pub fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    positive_up_to(deserializer, i64::MAX)
}

/// A whole number from 1 to `max`.
///
/// # Errors
/// Any other value.
pub fn positive_up_to<'de, D: Deserializer<'de>>(deserializer: D, max: i64) -> Result<i64, D::Error> {
    deserializer.deserialize_i64(Whole { min: 1, max })
}

/// A whole number from 0 to `max`.
///
/// # Errors
/// Any other value.
pub fn whole_up_to<'de, D: Deserializer<'de>>(deserializer: D, max: i64) -> Result<i64, D::Error> {
    deserializer.deserialize_i64(Whole { min: 0, max })
}

struct Whole {
    min: i64,
    max: i64,
}

impl Visitor<'_> for Whole {
    type Value = i64;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            i64::MAX => write!(f, "a whole number of at least {}", self.min),
            max => write!(f, "a whole number from {} to {max}", self.min),
        }
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<i64, E> {
        match i64::try_from(value) {
            Ok(value) if (self.min..=self.max).contains(&value) => Ok(value),
            _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<i64, E> {
        match (self.min..=self.max).contains(&value) {
            true => Ok(value),
            false => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }
}

/// A whole number of at least 1, as an element.
#[derive(Deserialize)]
pub struct Positive(#[serde(deserialize_with = "positive")] pub i64);

/// The most numbers in a list of sizes: as many as the deepest networks have layers.
const MAX_POSITIVES: usize = 1000;

/// A list of whole numbers of at least 1, for `#[serde(deserialize_with)]`: sizes of an array, or of layers.
///
/// # Errors
/// Any other value; more than a thousand numbers: building such a network would take hours.
pub fn positives<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    let values = Vec::<Positive>::deserialize(deserializer)?;
    if values.len() > MAX_POSITIVES {
        let measured = format!("a list of {} numbers, expected at most {MAX_POSITIVES}", values.len());
        return Err(serde::de::Error::custom(measured));
    }
    Ok(values.into_iter().map(|Positive(value)| value).collect())
}

/// A number from 0 up to but not including 1, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Any other value.
pub fn fraction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, |value| (0.0..1.0).contains(&value), "a number from 0 up to but not including 1")
}

/// A number that `accepts` accepts; `expected` describes those.
///
/// # Errors
/// Any other value.
pub fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    accepts: fn(f64) -> bool,
    expected: &'static str,
) -> Result<f64, D::Error> {
    struct Number {
        accepts: fn(f64) -> bool,
        expected: &'static str,
    }
    impl Number {
        /// The value if it is accepted; the error quotes it as written.
        fn accepted<E: de::Error>(self, value: f64, written: Unexpected<'_>) -> Result<f64, E> {
            match (self.accepts)(value) {
                true => Ok(value),
                false => Err(E::invalid_value(written, &self)),
            }
        }
    }
    impl Visitor<'_> for Number {
        type Value = f64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }
        fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
            self.accepted(value, Unexpected::Float(value))
        }
        fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
            self.accepted(value as f64, Unexpected::Unsigned(value))
        }
        fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
            self.accepted(value as f64, Unexpected::Signed(value))
        }
    }
    deserializer.deserialize_f64(Number { accepts, expected })
}
