//! Whole numbers as arguments.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Parses a whole number within bounds; the error lists the expected ones. The argument needs `allow_negative_numbers`,
/// or `-1` is taken for an option.
pub(super) fn whole<T>(bounds: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", bounds.start(), bounds.end()))
    }
}
