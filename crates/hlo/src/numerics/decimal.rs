//! Exact decimal numbers: the number a user typed, and the exact value of a float.
//!
//! Every binary float is a finite decimal (`m * 2^-k = m * 5^k * 10^-k`), so a typed number, the float it rounds to
//! and the difference of the two are all [`Decimal`]s, with no rounding anywhere. Rounding to a floating-point format
//! is in [`super::formats`].

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use num_bigint::BigUint;

/// Longest number accepted as text, in characters. A float's exact value has at most 767 significant digits (f64), so
/// this is far above use and far below where quadratic parsing would be felt.
const MAX_TEXT_LEN: usize = 10_000;

/// Largest decimal exponent accepted as text, in powers of ten. f64 spans 10^-324 to 10^308.
const MAX_EXPONENT: i64 = 100_000;

/// An exact decimal number, `(-1)^negative * digits * 10^exponent`, without trailing zeros in `digits`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    negative: bool,
    digits: BigUint,
    exponent: i64,
}

/// A number as a user types it: a decimal, an infinity or a NaN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Number {
    /// A finite decimal, exactly.
    Finite(Decimal),
    /// `inf` or `-inf`.
    Infinite {
        /// Whether it is `-inf`.
        negative: bool,
    },
    /// `nan` or `-nan`.
    Nan {
        /// Whether it is `-nan`.
        negative: bool,
    },
}

/// Why a text is not a [`Number`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseNumberError {
    /// Not a decimal number, `inf` or `nan`.
    #[error("`{text}` is not a number; expected a decimal such as 1.125, -3e-5, inf or nan")]
    NotANumber {
        /// The typed text.
        text: String,
    },
    /// Longer than any float's exact value.
    #[error("a number of {len} characters is too long; expected at most {MAX_TEXT_LEN}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A power of ten far outside every format.
    #[error("the exponent in `{text}` is out of range; expected at most {MAX_EXPONENT} either way")]
    ExponentOutOfRange {
        /// The typed text.
        text: String,
    },
}

impl Decimal {
    /// `(-1)^negative * digits * 10^exponent`.
    pub(super) fn new(negative: bool, digits: BigUint, exponent: i64) -> Decimal {
        let mut decimal = Decimal { negative, digits, exponent };
        decimal.strip_zeros();
        decimal
    }

    /// `(-1)^negative * significand * 2^exponent`, exactly.
    pub fn from_binary(negative: bool, significand: u64, exponent: i32) -> Decimal {
        let significand = BigUint::from(significand);
        if exponent >= 0 {
            Decimal::new(negative, significand << exponent, 0)
        } else {
            let fives = BigUint::from(5u32).pow(exponent.unsigned_abs());
            Decimal::new(negative, significand * fives, i64::from(exponent))
        }
    }

    /// Whether the sign is minus; zero keeps its sign, as floats do.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// Whether the value is zero.
    pub fn is_zero(&self) -> bool {
        self.digits == BigUint::ZERO
    }

    /// The value as a fraction of whole numbers (numerator, denominator), without its sign.
    ///
    /// The size of both grows with the exponent: ask [`Decimal::magnitude`] first.
    pub(super) fn to_ratio(&self) -> (BigUint, BigUint) {
        let power = pow10(self.exponent.unsigned_abs());
        if self.exponent >= 0 { (&self.digits * power, BigUint::from(1u32)) } else { (self.digits.clone(), power) }
    }

    /// The power of ten of the first digit: 3 for 1234.5, -2 for 0.05; 0 for zero.
    pub fn magnitude(&self) -> i64 {
        if self.is_zero() {
            return 0;
        }
        self.exponent + self.digits.to_string().len() as i64 - 1
    }

    /// `|self|`.
    pub fn abs(&self) -> Decimal {
        Decimal { negative: false, ..self.clone() }
    }

    /// `-self`.
    pub fn negate(&self) -> Decimal {
        Decimal { negative: !self.negative, ..self.clone() }
    }

    /// `self + other`, exactly.
    pub fn add(&self, other: &Decimal) -> Decimal {
        if other.is_zero() {
            return self.clone();
        }
        if self.is_zero() {
            return other.clone();
        }
        let exponent = self.exponent.min(other.exponent);
        let lhs = &self.digits * pow10((self.exponent - exponent).unsigned_abs());
        let rhs = &other.digits * pow10((other.exponent - exponent).unsigned_abs());
        if self.negative == other.negative {
            return Decimal::new(self.negative, lhs + rhs, exponent);
        }
        match lhs.cmp(&rhs) {
            Ordering::Greater => Decimal::new(self.negative, lhs - rhs, exponent),
            Ordering::Less => Decimal::new(other.negative, rhs - lhs, exponent),
            Ordering::Equal => Decimal::new(false, BigUint::ZERO, 0),
        }
    }

    /// `self - other`, exactly.
    pub fn subtract(&self, other: &Decimal) -> Decimal {
        self.add(&other.negate())
    }

    /// `self * factor`, exactly.
    pub fn times(&self, factor: u64) -> Decimal {
        Decimal::new(self.negative, &self.digits * factor, self.exponent)
    }

    /// `|self / other|` truncated (not rounded) after at least `n_digits` significant digits, or `None` if `other` is
    /// zero.
    pub fn ratio(&self, other: &Decimal, n_digits: u32) -> Option<Decimal> {
        if other.is_zero() {
            return None;
        }
        let len = |digits: &BigUint| digits.to_string().len() as i64;
        let shift = (i64::from(n_digits) + 1 + len(&other.digits) - len(&self.digits)).max(0);
        let quotient = &self.digits * pow10(shift.unsigned_abs()) / &other.digits;
        Some(Decimal::new(false, quotient, self.exponent - other.exponent - shift))
    }

    /// Scientific notation of at most `n_digits` significant digits, rounded half up: `4.2e-5`.
    ///
    /// For reading only; [`fmt::Display`] has every digit.
    pub fn to_scientific(&self, n_digits: usize) -> String {
        let text = self.digits.to_string();
        let rounded = if text.len() > n_digits {
            let cut = (text.len() - n_digits) as u64;
            let unit = pow10(cut);
            let digits = (&self.digits + &unit / 2u32) / unit;
            Decimal::new(self.negative, digits, self.exponent + cut as i64)
        } else {
            self.clone()
        };
        if rounded.is_zero() { "0".to_owned() } else { rounded.scientific_text() }
    }

    fn scientific_text(&self) -> String {
        let digits = self.digits.to_string();
        let sign = if self.negative { "-" } else { "" };
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        format!("{sign}{first}{point}{rest}e{}", self.magnitude())
    }

    fn strip_zeros(&mut self) {
        if self.is_zero() {
            self.exponent = 0;
            return;
        }
        let text = self.digits.to_string();
        let n_zeros = text.len() - text.trim_end_matches('0').len();
        self.digits /= pow10(n_zeros as u64);
        self.exponent += n_zeros as i64;
    }
}

fn pow10(exponent: u64) -> BigUint {
    let exponent = u32::try_from(exponent).expect("exponents are bounded when a number is parsed");
    BigUint::from(10u32).pow(exponent)
}

/// Every digit: positional from 10^-7 up to 10^21, scientific outside.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !(-7..=21).contains(&self.magnitude()) {
            return f.write_str(&self.scientific_text());
        }
        let sign = if self.negative { "-" } else { "" };
        let digits = self.digits.to_string();
        if self.exponent >= 0 {
            return write!(f, "{sign}{digits}{}", "0".repeat(self.exponent.unsigned_abs() as usize));
        }
        let n_fraction = self.exponent.unsigned_abs() as usize;
        let padded = format!("{digits:0>width$}", width = n_fraction + 1);
        let (whole, fraction) = padded.split_at(padded.len() - n_fraction);
        write!(f, "{sign}{whole}.{fraction}")
    }
}

impl FromStr for Number {
    type Err = ParseNumberError;

    fn from_str(text: &str) -> Result<Number, ParseNumberError> {
        if text.len() > MAX_TEXT_LEN {
            return Err(ParseNumberError::TooLong { len: text.len() });
        }
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        match unsigned.to_ascii_lowercase().as_str() {
            "inf" | "infinity" => return Ok(Number::Infinite { negative }),
            "nan" => return Ok(Number::Nan { negative }),
            _ => {}
        }
        parse_decimal(negative, unsigned, text).map(Number::Finite)
    }
}

fn parse_decimal(negative: bool, unsigned: &str, text: &str) -> Result<Decimal, ParseNumberError> {
    let not_a_number = || ParseNumberError::NotANumber { text: text.to_owned() };
    let out_of_range = || ParseNumberError::ExponentOutOfRange { text: text.to_owned() };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent).ok_or_else(not_a_number)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(not_a_number());
    }
    let digits = BigUint::parse_bytes(digits.as_bytes(), 10).ok_or_else(not_a_number)?;
    if exponent.abs() > MAX_EXPONENT {
        return Err(out_of_range());
    }
    Ok(Decimal::new(negative, digits, exponent - fraction.len() as i64))
}

/// Saturates where the digits overflow an i64, so that the caller's range check sees it.
fn parse_exponent(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let magnitude = digits.parse::<i64>().unwrap_or(i64::MAX);
    Some(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        match text.parse() {
            Ok(Number::Finite(decimal)) => decimal,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn prints_every_digit() {
        for (text, printed) in [
            ("0", "0"),
            ("-0.0", "-0"),
            ("1.1250", "1.125"),
            ("+12.5e1", "125"),
            ("1e3", "1000"),
            (".5", "0.5"),
            ("5.", "5"),
            ("1e-7", "0.0000001"),
            ("12e-9", "1.2e-8"),
            ("1e21", "1000000000000000000000"),
            ("1.5e22", "1.5e22"),
            ("-0.00041999", "-0.00041999"),
        ] {
            assert_eq!(decimal(text).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_number() {
        for text in ["", "-", ".", "1.2.3", "1e", "1e+", "e5", "0x10", "1_000", "1,5", "--1", "١"] {
            assert_eq!(
                text.parse::<Number>().unwrap_err().to_string(),
                format!("`{text}` is not a number; expected a decimal such as 1.125, -3e-5, inf or nan"),
            );
        }
        assert_eq!(
            "1e100001".parse::<Number>().unwrap_err().to_string(),
            "the exponent in `1e100001` is out of range; expected at most 100000 either way"
        );
        assert_eq!(
            "1e-99999999999999999999".parse::<Number>().unwrap_err().to_string(),
            "the exponent in `1e-99999999999999999999` is out of range; expected at most 100000 either way"
        );
        assert_eq!(
            "1".repeat(10_001).parse::<Number>().unwrap_err().to_string(),
            "a number of 10001 characters is too long; expected at most 10000"
        );
    }

    #[test]
    fn reads_non_finite_names() {
        assert_eq!("inf".parse(), Ok(Number::Infinite { negative: false }));
        assert_eq!("-Infinity".parse(), Ok(Number::Infinite { negative: true }));
        assert_eq!("NaN".parse(), Ok(Number::Nan { negative: false }));
        assert_eq!("-nan".parse(), Ok(Number::Nan { negative: true }));
    }

    #[test]
    fn adds_and_subtracts_exactly() {
        let check = |lhs: &str, rhs: &str, sum: &str, difference: &str| {
            assert_eq!(decimal(lhs).add(&decimal(rhs)).to_string(), sum);
            assert_eq!(decimal(lhs).subtract(&decimal(rhs)).to_string(), difference);
        };
        check("1.125", "0.00041999", "1.12541999", "1.12458001");
        check("1", "-1", "0", "2");
        check("-3", "5", "2", "-8");
        check("0", "2.5", "2.5", "-2.5");
        assert_eq!(decimal("0.1").times(30).to_string(), "3");
    }

    #[test]
    fn binary_values_are_exact() {
        assert_eq!(Decimal::from_binary(true, 3, -2).to_string(), "-0.75");
        assert_eq!(Decimal::from_binary(false, 5, 1).to_string(), "10");
        assert_eq!(Decimal::from_binary(false, 1, -30).to_string(), "9.31322574615478515625e-10");
    }

    #[test]
    fn ratios_and_scientific_notation() {
        let ratio = |lhs: &str, rhs: &str| decimal(lhs).ratio(&decimal(rhs), 6).map(|ratio| ratio.to_scientific(3));
        assert_eq!(ratio("1", "3").as_deref(), Some("3.33e-1"));
        assert_eq!(ratio("-2", "3").as_deref(), Some("6.67e-1"));
        assert_eq!(ratio("12345678901234567890", "1").as_deref(), Some("1.23e19"));
        assert_eq!(ratio("0", "3").as_deref(), Some("0"));
        assert_eq!(ratio("1", "0"), None);
        assert_eq!(decimal("999.96").to_scientific(4), "1e3");
        assert_eq!(decimal("-4").to_scientific(4), "-4e0");
    }
}
