//! f64 to the bits of the nearest bf16 or f16, rounded once.
//!
//! `half`'s own conversions do not: `bf16::from_f64` drops the low 32 bits before rounding, and `f16::from_f64` goes
//! through f32 where the processor has F16C. Here the intermediate f32 is *rounded to odd*, which keeps the
//! information that the second rounding needs: an f32 has more than two bits beyond either format (Boldo & Melquiond
//! 2008).
//!
//! The rest of the crate converts through `numerics::bf16`, which builds on this; `hlo` needs it only for constants.

use half::{bf16, f16};

/// The bits of the bf16 nearest to `value`, ties to even; NaN stays NaN and is quiet.
pub fn bf16_from_f64(value: f64) -> u16 {
    bf16::from_f32(to_odd_f32(value)).to_bits()
}

/// The bits of the f16 nearest to `value`, ties to even; NaN stays NaN and is quiet.
pub fn f16_from_f64(value: f64) -> u16 {
    f16::from_f32(to_odd_f32(value)).to_bits()
}

/// `value` as f32 if that is exact; else the neighbour, above or below, whose last bit is 1.
fn to_odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    if value.is_nan() || f64::from(nearest) == value {
        return nearest;
    }
    // Round toward zero, then to odd: if the last bit is even, the odd neighbour is the one further away from zero.
    let away = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(away)) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_once() {
        let above_tie = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(bf16_from_f64(above_tie), 0x3F81);
        assert_eq!(bf16_from_f64(1.0 + 2f64.powi(-8)), 0x3F80);
        assert_eq!(bf16_from_f64(-above_tie), 0xBF81);
        assert_eq!(f16_from_f64(1.0 + 2f64.powi(-11) + 2f64.powi(-40)), 0x3C01);
        assert_eq!(bf16_from_f64(f64::MAX), 0x7F80);
        assert_eq!(bf16_from_f64(f64::from(f32::MAX) * 1.0000001), 0x7F80);
        assert_eq!(bf16_from_f64(f64::MIN_POSITIVE), 0);
        assert_eq!(bf16_from_f64(-f64::MIN_POSITIVE), 0x8000);
        assert!(bf16::from_bits(bf16_from_f64(f64::NAN)).is_nan());
    }

    #[test]
    fn every_midpoint_goes_to_the_even_neighbour_and_its_surroundings_to_the_nearer() {
        for bits in 0..0x7F7Fu16 {
            let (low, high) = (bf16::from_bits(bits).to_f64(), bf16::from_bits(bits + 1).to_f64());
            let midpoint = (low + high) / 2.0;
            assert_eq!(bf16_from_f64(midpoint), bits + (bits & 1), "{bits:#06x}");
            assert_eq!(bf16_from_f64(midpoint.next_up()), bits + 1, "{bits:#06x}");
            assert_eq!(bf16_from_f64(midpoint.next_down()), bits, "{bits:#06x}");
        }
        for bits in 0..0x7BFFu16 {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let midpoint = (low + high) / 2.0;
            assert_eq!(f16_from_f64(midpoint), bits + (bits & 1), "{bits:#06x}");
            assert_eq!(f16_from_f64(midpoint.next_up()), bits + 1, "{bits:#06x}");
            assert_eq!(f16_from_f64(midpoint.next_down()), bits, "{bits:#06x}");
        }
    }
}
