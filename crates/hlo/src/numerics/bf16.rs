//! The crate's conversions between f32 or f64 and the 16-bit floats; there are no others.
//!
//! Rounding is to nearest, ties to even, once; NaN stays NaN and becomes quiet; overflow goes to infinity; subnormals
//! are kept by default. This file uses the `half` crate except where that does not round correctly:
//! - `half::bf16::from_f64` drops the low 32 bits of the f64 before rounding, so `1 + 2^-8 + 2^-40` becomes 1 and a
//!   tie broken by those bits goes the wrong way;
//! - `half::f16::from_f64` goes through f32 where the processor has F16C, rounding twice.
//!
//! Both f64 conversions are therefore [`crate::round`]'s. Whole slices are in `data::cast`.

use half::f16;

pub use crate::round::{bf16_from_f64, f16_from_f64};

/// The treatment of subnormal numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subnormals {
    /// Kept, as IEEE 754 says and as a CPU does.
    #[default]
    Keep,
    /// A subnormal f32 becomes a zero of its sign, as on a TPU.
    Flush,
}

/// f32 to the bits of the nearest bf16.
///
/// Written without branches so that a loop over it becomes vector code; equal to `half::bf16::from_f32` everywhere.
#[inline(always)]
pub const fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    // Half an ulp, less one if the kept part is even: carries into the kept part exactly when rounding up.
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x0040;
    let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
    (if is_nan { quiet } else { rounded }) as u16
}

/// f32 to the bits of the nearest bf16, a subnormal f32 to a zero of its sign.
#[inline(always)]
pub const fn bf16_from_f32_flushed(value: f32) -> u16 {
    let bits = value.to_bits();
    let is_subnormal = bits & 0x7F80_0000 == 0;
    // A zero keeps its sign and loses nothing.
    let mask = if is_subnormal { 0x8000 } else { 0xFFFF };
    bf16_from_f32(value) & mask
}

/// The bits of a bf16 to its f32, exactly; NaN comes back quiet.
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    half::bf16::from_bits(bits).to_f32_const()
}

/// f32 to the bits of the nearest f16.
#[inline]
pub fn f16_from_f32(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// The bits of an f16 to its f32, exactly; NaN comes back quiet.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::{Class, Format};
    use half::bf16;

    /// Converts in every available way, checks that the results agree, and returns the bits.
    fn bf16_of(value: f32) -> u16 {
        let bits = bf16_from_f32(value);
        assert_eq!(bits, bf16::from_f32(value).to_bits(), "{:#010x}", value.to_bits());
        if !value.is_nan() {
            assert_eq!(bits, bf16_from_f64(value.into()), "{:#010x}", value.to_bits());
        }
        bits
    }

    fn f16_of(value: f32) -> u16 {
        let bits = f16_from_f32(value);
        assert_eq!(bits, f16::from_f32_const(value).to_bits(), "{:#010x}", value.to_bits());
        if !value.is_nan() {
            assert_eq!(bits, f16_from_f64(value.into()), "{:#010x}", value.to_bits());
        }
        bits
    }

    #[test]
    fn every_pattern_round_trips_through_f32() {
        for bits in 0..=u16::MAX {
            let quiet = |format: Format, quiet_bit| match format.class(bits.into()) {
                Class::Nan => bits | quiet_bit,
                Class::Zero | Class::Subnormal | Class::Normal | Class::Infinite => bits,
            };
            assert_eq!(bf16_of(bf16_to_f32(bits)), quiet(Format::BF16, 0x0040));
            assert_eq!(f16_of(f16_to_f32(bits)), quiet(Format::F16, 0x0200));
        }
    }

    /// For every pair of neighbours: the midpoint ties to even and the f32 on either side goes to the nearer.
    #[test]
    fn midpoints_and_their_f32_neighbours() {
        fn check(format: Format, convert: fn(f32) -> u16) {
            for bits in 0..format.infinity(false) {
                let low = format.decode_f64(bits);
                let step = 2f64.powi(format.ulp_exponent(bits).unwrap());
                let midpoint = (low + step / 2.0) as f32;
                assert_eq!(f64::from(midpoint), low + step / 2.0, "the midpoint is an f32");
                let (low, high) = (bits as u16, bits as u16 + 1);
                assert_eq!(convert(midpoint), if low % 2 == 0 { low } else { high });
                assert_eq!(convert(midpoint.next_down()), low);
                assert_eq!(convert(midpoint.next_up()), high);
                assert_eq!(convert(-midpoint.next_up()), high | 0x8000);
            }
        }
        check(Format::BF16, bf16_of);
        check(Format::F16, f16_of);
    }

    #[test]
    fn nan_infinity_and_overflow() {
        assert_eq!(bf16_of(f32::from_bits(0x7F80_0001)), 0x7FC0);
        assert_eq!(bf16_of(f32::from_bits(0xFF80_0001)), 0xFFC0);
        assert_eq!(bf16_of(f32::from_bits(0x7FFF_FFFF)), 0x7FFF);
        assert_eq!(bf16_of(f32::INFINITY), 0x7F80);
        assert_eq!(bf16_of(f32::MAX), 0x7F80);
        assert_eq!(bf16_of(f32::MIN), 0xFF80);
        assert_eq!(f16_of(f32::from_bits(0x7F80_0001)), 0x7E00);
        assert_eq!(f16_of(65520.0), 0x7C00);
        assert_eq!(f16_of(65519.996), 0x7BFF);
    }

    /// The reasons why f64 does not go through `half`. When one of these fails, `half` has been fixed and may be used.
    #[test]
    fn half_rounds_f64_wrongly() {
        let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(bf16_from_f64(value), 0x3F81);
        assert_eq!(bf16::from_f64(value).to_bits(), 0x3F80);
        let value = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(f16_from_f64(value), 0x3C01);
        assert_eq!(f16::from_f64_const(value).to_bits(), 0x3C00);
    }

    #[test]
    fn flushing_takes_subnormal_inputs_only() {
        let flush = |bits: u32| bf16_from_f32_flushed(f32::from_bits(bits));
        assert_eq!(flush(0x0000_0001), 0x0000);
        assert_eq!(flush(0x8040_0000), 0x8000);
        assert_eq!(flush(0x007F_FFFF), 0x0000);
        assert_eq!(flush(0x0080_0000), 0x0080);
        assert_eq!(flush(0x7F80_0001), 0x7FC0);
        assert_eq!(flush(0x3F80_8000), 0x3F80);
        assert_eq!(bf16_of(f32::from_bits(0x007F_FFFF)), 0x0080);
    }
}
