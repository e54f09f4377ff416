//! Binary floating-point formats as data, and the reference for every rounding in the crate.
//!
//! The formats are f16, bf16, f32 and f64: field widths, encoding from f64 and from exact decimals (round to nearest,
//! ties to even, once), the exact value of a bit pattern, neighbours and ulps. Fast paths are in [`super::bf16`] and
//! are tested against this file. The 8-bit formats are not here, because no instruction of ours computes in them.
//!
//! Source: IEEE 754-2019, 3.4 (encodings), 4.3.1 (rounding), 6.2 (NaN); bfloat16 is the upper half of binary32.

use num_bigint::BigUint;

use super::decimal::{Decimal, Number};
use crate::DType;

/// A binary interchange format: one sign bit, then exponent, then fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The HLO element type.
    pub dtype: DType,
    /// Width of the exponent field, in bits.
    pub exponent_bits: u32,
    /// Width of the fraction field, in bits; the leading one of a normal number is not stored.
    pub fraction_bits: u32,
}

/// The class of a bit pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `+0` or `-0`.
    Zero,
    /// Exponent field 0: fewer significant bits than a normal number.
    Subnormal,
    /// Everything else that is finite.
    Normal,
    /// Exponent field all ones, fraction 0.
    Infinite,
    /// Exponent field all ones, fraction not 0.
    Nan,
}

impl Class {
    /// The name as one word, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Zero => "zero",
            Class::Subnormal => "subnormal",
            Class::Normal => "normal",
            Class::Infinite => "infinite",
            Class::Nan => "nan",
        }
    }
}

/// A bit pattern cut into its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The sign bit: whether the number is negative.
    pub negative: bool,
    /// The exponent field, biased.
    pub exponent: u64,
    /// The fraction field.
    pub fraction: u64,
}

impl Format {
    /// IEEE binary16: 1 + 5 + 10 bits.
    pub const F16: Format = Format { dtype: DType::F16, exponent_bits: 5, fraction_bits: 10 };
    /// bfloat16: 1 + 8 + 7 bits.
    pub const BF16: Format = Format { dtype: DType::BF16, exponent_bits: 8, fraction_bits: 7 };
    /// IEEE binary32: 1 + 8 + 23 bits.
    pub const F32: Format = Format { dtype: DType::F32, exponent_bits: 8, fraction_bits: 23 };
    /// IEEE binary64: 1 + 11 + 52 bits.
    pub const F64: Format = Format { dtype: DType::F64, exponent_bits: 11, fraction_bits: 52 };

    /// Every format, narrowest first.
    pub const ALL: [Format; 4] = [Format::F16, Format::BF16, Format::F32, Format::F64];

    /// The format with this HLO spelling.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// HLO's spelling, such as `bf16`.
    pub const fn name(self) -> &'static str {
        self.dtype.name()
    }

    /// Width in bits.
    pub const fn width(self) -> u32 {
        1 + self.exponent_bits + self.fraction_bits
    }

    /// The exponent bias: 127 for f32.
    pub const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The exponent of the smallest normal number, which subnormals share: -126 for f32.
    pub const fn min_exponent(self) -> i32 {
        1 - self.bias()
    }

    /// The bits of an infinity.
    pub const fn infinity(self, negative: bool) -> u64 {
        self.signed(negative, ((1 << self.exponent_bits) - 1) << self.fraction_bits)
    }

    /// The bits of the quiet NaN without payload.
    pub const fn nan(self) -> u64 {
        self.infinity(false) | self.quiet_bit()
    }

    /// Cuts a bit pattern into its fields.
    pub const fn fields(self, bits: u64) -> Fields {
        Fields {
            negative: bits >> (self.width() - 1) & 1 == 1,
            exponent: bits >> self.fraction_bits & ((1 << self.exponent_bits) - 1),
            fraction: bits & ((1 << self.fraction_bits) - 1),
        }
    }

    /// The class of a bit pattern.
    pub const fn class(self, bits: u64) -> Class {
        let fields = self.fields(bits);
        let all_ones = (1 << self.exponent_bits) - 1;
        match (fields.exponent, fields.fraction) {
            (0, 0) => Class::Zero,
            (0, _) => Class::Subnormal,
            (exponent, 0) if exponent == all_ones => Class::Infinite,
            (exponent, _) if exponent == all_ones => Class::Nan,
            _ => Class::Normal,
        }
    }

    /// Rounds an f64 to this format, in one step: nearest, ties to even, overflow to infinity, subnormals kept.
    /// A NaN keeps its sign and the upper bits of its payload, and comes back quiet.
    pub fn encode_f64(self, value: f64) -> u64 {
        let source = Format::F64;
        let bits = value.to_bits();
        let fields = source.fields(bits);
        match source.class(bits) {
            Class::Zero => self.signed(fields.negative, 0),
            Class::Infinite => self.infinity(fields.negative),
            Class::Nan => {
                let payload = fields.fraction >> (source.fraction_bits - self.fraction_bits);
                self.infinity(fields.negative) | self.quiet_bit() | payload
            }
            Class::Normal | Class::Subnormal => {
                let (significand, exponent) = source.significand(bits);
                self.round(fields.negative, significand, exponent, false)
            }
        }
    }

    /// Rounds an exact decimal to this format, in one step.
    pub fn encode_decimal(self, value: &Decimal) -> u64 {
        let negative = value.is_negative();
        // The widest format ends at 1.8e308, and half its smallest number is 2.5e-324. Deciding beyond them here
        // bounds the integers below.
        if value.is_zero() || value.magnitude() < -324 {
            return self.signed(negative, 0);
        }
        if value.magnitude() > 308 {
            return self.infinity(negative);
        }
        let (numerator, denominator) = value.to_ratio();
        // Scaled so that the quotient has 63 or 64 bits: at least ten more than any format keeps, so the remainder
        // only matters as "not zero".
        let shift = 63 + denominator.bits() as i64 - numerator.bits() as i64;
        let (numerator, denominator) =
            if shift >= 0 { (numerator << shift, denominator) } else { (numerator, denominator << -shift) };
        let quotient = &numerator / &denominator;
        let is_inexact = numerator != &quotient * &denominator;
        let quotient = u64::try_from(&quotient).expect("the shift leaves at most 64 bits");
        self.round(negative, quotient, -shift as i32, is_inexact)
    }

    /// Rounds a number that a user typed.
    pub fn encode(self, number: &Number) -> u64 {
        match number {
            Number::Finite(decimal) => self.encode_decimal(decimal),
            Number::Infinite { negative } => self.infinity(*negative),
            Number::Nan { negative } => self.infinity(*negative) | self.nan(),
        }
    }

    /// The value of a bit pattern as an f64, which holds every value of every format here. NaNs come back quiet.
    pub fn decode_f64(self, bits: u64) -> f64 {
        let fields = self.fields(bits);
        let wide = match self.class(bits) {
            Class::Zero => Format::F64.signed(fields.negative, 0),
            Class::Infinite => Format::F64.infinity(fields.negative),
            Class::Nan => {
                let payload = fields.fraction << (Format::F64.fraction_bits - self.fraction_bits);
                Format::F64.infinity(fields.negative) | Format::F64.quiet_bit() | payload
            }
            Class::Normal | Class::Subnormal => {
                let (significand, exponent) = self.significand(bits);
                Format::F64.round(fields.negative, significand, exponent, false)
            }
        };
        f64::from_bits(wide)
    }

    /// The exact value of a bit pattern, or `None` for infinities and NaN.
    pub fn exact(self, bits: u64) -> Option<Decimal> {
        let negative = self.fields(bits).negative;
        match self.class(bits) {
            Class::Zero => Some(Decimal::new(negative, BigUint::ZERO, 0)),
            Class::Normal | Class::Subnormal => {
                let (significand, exponent) = self.significand(bits);
                Some(Decimal::from_binary(negative, significand, exponent))
            }
            Class::Infinite | Class::Nan => None,
        }
    }

    /// The power of two between a number and the next larger one in magnitude, as its exponent: -7 for 1 in bf16.
    /// `None` for infinities and NaN.
    pub fn ulp_exponent(self, bits: u64) -> Option<i32> {
        match self.class(bits) {
            Class::Zero => Some(self.min_exponent() - self.fraction_bits as i32),
            Class::Normal | Class::Subnormal => Some(self.significand(bits).1),
            Class::Infinite | Class::Nan => None,
        }
    }

    /// The next number up, or `None` above `+inf` and for NaN. Both zeros lie below the smallest subnormal.
    pub fn above(self, bits: u64) -> Option<u64> {
        if self.class(bits) == Class::Nan || bits == self.infinity(false) {
            return None;
        }
        Some(match (self.fields(bits).negative, self.class(bits)) {
            (_, Class::Zero) => 1,
            (true, _) => bits - 1,
            (false, _) => bits + 1,
        })
    }

    /// The next number down, or `None` below `-inf` and for NaN.
    pub fn below(self, bits: u64) -> Option<u64> {
        let sign = self.signed(true, 0);
        self.above(bits ^ sign).map(|above| above ^ sign)
    }

    /// `significand * 2^exponent` of a finite pattern, without its sign.
    fn significand(self, bits: u64) -> (u64, i32) {
        let fields = self.fields(bits);
        let scale = self.fraction_bits as i32;
        match fields.exponent {
            0 => (fields.fraction, self.min_exponent() - scale),
            biased => (fields.fraction | 1 << scale, biased as i32 - self.bias() - scale),
        }
    }

    /// Rounds `(significand + epsilon) * 2^exponent` to nearest, ties to even, where epsilon is 0, or a value between
    /// 0 and 1 if `is_inexact`; then `significand` must have more bits than the format keeps.
    fn round(self, negative: bool, significand: u64, exponent: i32, is_inexact: bool) -> u64 {
        if significand == 0 {
            return self.signed(negative, 0);
        }
        let scale = self.fraction_bits as i32;
        let leading = exponent + significand.ilog2() as i32;
        if leading > self.bias() {
            return self.infinity(negative);
        }
        // The result counts units of 2^unit; subnormals all share the unit of the smallest normal number.
        let unit = leading.max(self.min_exponent()) - scale;
        let significand = u128::from(significand);
        let rounded = match unit - exponent {
            shift if shift <= 0 => significand << -shift,
            // Below half a unit; a tie (shift 64 with only the top bit set) is handled below.
            shift if shift > 64 => 0,
            shift => {
                let half = 1u128 << (shift - 1);
                let rest = significand & ((1u128 << shift) - 1);
                let rounded = significand >> shift;
                let rounds_up = rest > half || rest == half && (is_inexact || rounded & 1 == 1);
                rounded + u128::from(rounds_up)
            }
        };
        // For a normal number `kept` includes the leading one, which adds one to the exponent field below it. A carry
        // out of the fraction goes into the exponent the same way, and out of the last exponent becomes infinity.
        let field = (leading.max(self.min_exponent()) - self.min_exponent()) as u64;
        let magnitude = (field << self.fraction_bits) + rounded as u64;
        self.signed(negative, magnitude)
    }

    const fn signed(self, negative: bool, magnitude: u64) -> u64 {
        (negative as u64) << (self.width() - 1) | magnitude
    }

    const fn quiet_bit(self) -> u64 {
        1 << (self.fraction_bits - 1)
    }
}

#[cfg(test)]
mod tests;
