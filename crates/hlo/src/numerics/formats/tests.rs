//! Numbers of every format, as text and as bits: midpoints go to even.

use super::*;
use proptest::prelude::*;

fn number(text: &str) -> Number {
    text.parse().unwrap()
}

#[test]
fn table() {
    let row = |format: Format| (format.name(), format.width(), format.bias());
    assert_eq!(Format::ALL.map(row), [("f16", 16, 15), ("bf16", 16, 127), ("f32", 32, 127), ("f64", 64, 1023)]);
    for format in Format::ALL {
        assert_eq!(format.width() as usize, format.dtype.bits());
        assert_eq!(Format::from_name(format.name()), Some(format));
    }
    assert_eq!(Format::from_name("fp16"), None);
}

/// Every 16-bit pattern survives f64 and its own exact decimal; signalling NaNs come back quiet.
#[test]
fn all_sixteen_bit_patterns_round_trip() {
    for format in [Format::F16, Format::BF16] {
        for bits in 0..=0xFFFFu64 {
            let value = format.decode_f64(bits);
            if format.class(bits) == Class::Nan {
                assert_eq!(format.encode_f64(value), bits | format.quiet_bit());
                assert_eq!(format.exact(bits), None);
                continue;
            }
            assert_eq!(format.encode_f64(value), bits, "{} {bits:#06x}", format.name());
            if let Some(exact) = format.exact(bits) {
                assert_eq!(format.encode_decimal(&exact), bits, "{exact}");
            }
        }
    }
}

/// Between each pair of finite neighbours: the midpoint goes to the even one, its f64 neighbours to the nearer.
#[test]
fn midpoints_go_to_even() {
    for format in [Format::F16, Format::BF16] {
        for bits in 0..format.infinity(false) {
            let low = format.decode_f64(bits);
            let above = format.above(bits).unwrap();
            let high = if above == format.infinity(false) {
                low + (low - format.decode_f64(bits - 1))
            } else {
                format.decode_f64(above)
            };
            // Exact: f64 has at least 42 bits more than the formats.
            let midpoint = low + (high - low) / 2.0;
            let even = if bits % 2 == 0 { bits } else { above };
            assert_eq!(format.encode_f64(midpoint), even, "{} {bits:#x}", format.name());
            assert_eq!(format.encode_f64(midpoint.next_down()), bits);
            assert_eq!(format.encode_f64(midpoint.next_up()), above);
        }
    }
}

#[test]
fn cases_that_trip_converters() {
    let bf16 = Format::BF16;
    // Rounding through f32 would lose the 2^-40 and then tie to 1.0.
    let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(bf16.decode_f64(bf16.encode_f64(value)), 1.0 + 2f64.powi(-7));
    // A signalling NaN whose payload lies only in the cut bits.
    let signalling = f64::from_bits(0x7FF0_0000_0000_0001);
    assert_eq!(bf16.encode_f64(signalling), 0x7FC0);
    assert_eq!(Format::F32.decode_f64(0x7F80_0001).to_bits(), 0x7FF8_0000_2000_0000);
    // Overflow: the largest bf16 plus half its ulp ties to even, which is infinity.
    assert_eq!(bf16.encode_f64(f64::MAX), 0x7F80);
    assert_eq!(bf16.encode_f64(-f64::MAX), 0xFF80);
    let overflows = (2.0 - 2f64.powi(-8)) * 2f64.powi(127);
    assert_eq!(bf16.encode_f64(overflows), 0x7F80);
    assert_eq!(bf16.encode_f64(overflows.next_down()), 0x7F7F);
    // Underflow: half the smallest subnormal ties to zero, keeping its sign.
    assert_eq!(bf16.encode_f64(2f64.powi(-134)), 0);
    assert_eq!(bf16.encode_f64(-2f64.powi(-134)), 0x8000);
    assert_eq!(bf16.encode_f64(2f64.powi(-134).next_up()), 1);
    assert_eq!(bf16.encode_f64(f64::from_bits(1)), 0);
    assert_eq!(bf16.encode_f64(-0.0), 0x8000);
}

#[test]
fn decimals_round_once() {
    let check = |format: Format, text: &str, bits: u64| {
        assert_eq!(format.encode(&number(text)), bits, "{} {text}", format.name());
    };
    check(Format::F16, "1.12156456132", 0x3C7C);
    check(Format::BF16, "1.12156456132", 0x3F90);
    check(Format::F32, "1.12156456132", 0x3F8F_8F6D);
    // Just above a tie by less than f64 can see.
    check(Format::BF16, "1.00390625", 0x3F80);
    check(Format::BF16, "1.0039062500000000000000000000001", 0x3F81);
    check(Format::F32, "1.000000059604644775390625", 0x3F80_0000);
    check(Format::F32, "1.00000005960464477539062500000001", 0x3F80_0001);
    check(Format::F64, "2.4703282292062327e-324", 0);
    check(Format::F64, "2.4703282292062328e-324", 1);
    check(Format::F64, "1e-100000", 0);
    check(Format::F64, "-1e100000", 0xFFF0_0000_0000_0000);
    check(Format::F16, "65519.99", 0x7BFF);
    check(Format::F16, "65520", 0x7C00);
    check(Format::F32, "-0", 0x8000_0000);
    check(Format::BF16, "inf", 0x7F80);
    check(Format::BF16, "-inf", 0xFF80);
    check(Format::F32, "nan", 0x7FC0_0000);
}

#[test]
fn neighbours_and_ulps() {
    let bf16 = Format::BF16;
    assert_eq!(bf16.above(0x3F80), Some(0x3F81));
    assert_eq!(bf16.below(0x3F80), Some(0x3F7F));
    assert_eq!(bf16.above(0x8000), Some(1));
    assert_eq!(bf16.below(0), Some(0x8001));
    assert_eq!(bf16.above(0x8001), Some(0x8000));
    assert_eq!(bf16.above(0x7F7F), Some(0x7F80));
    assert_eq!(bf16.above(0x7F80), None);
    assert_eq!(bf16.below(0x7F80), Some(0x7F7F));
    assert_eq!(bf16.below(0xFF80), None);
    assert_eq!(bf16.above(0x7FC0), None);
    assert_eq!(bf16.ulp_exponent(0x3F80), Some(-7));
    assert_eq!(bf16.ulp_exponent(0x3F7F), Some(-8));
    assert_eq!(bf16.ulp_exponent(0), Some(-133));
    assert_eq!(bf16.ulp_exponent(1), Some(-133));
    assert_eq!(bf16.ulp_exponent(0x7F80), None);
}

#[test]
fn classes() {
    let class = |bits| Format::F32.class(bits).name();
    assert_eq!(
        [0, 0x8000_0000, 1, 0x3F80_0000, 0x7F80_0000, 0x7F80_0001].map(class),
        ["zero", "zero", "subnormal", "normal", "infinite", "nan"]
    );
}

proptest! {
    /// The standard library parses f32 and f64 correctly rounded; so do we.
    #[test]
    fn decimals_agree_with_the_standard_library(text in r"-?[0-9]{1,25}(\.[0-9]{1,25})?(e-?[0-9]{1,2})?") {
        let number = text.parse::<Number>().unwrap();
        prop_assert_eq!(Format::F32.encode(&number), u64::from(text.parse::<f32>().unwrap().to_bits()));
        prop_assert_eq!(Format::F64.encode(&number), text.parse::<f64>().unwrap().to_bits());
    }

    /// Any f64 to f32, against the processor's own conversion.
    #[test]
    fn f64_to_f32_agrees_with_the_processor(bits: u64) {
        let value = f64::from_bits(bits);
        let ours = Format::F32.encode_f64(value);
        if value.is_nan() {
            prop_assert!(f32::from_bits(ours as u32).is_nan());
        } else {
            prop_assert_eq!(ours, u64::from((value as f32).to_bits()));
        }
        // The range where f32 is subnormal or overflows is rare among random patterns: aim at it.
        let small = f64::from_bits(bits & 0x800F_FFFF_FFFF_FFFF | (870 + bits % 60) << 52);
        prop_assert_eq!(Format::F32.encode_f64(small), u64::from((small as f32).to_bits()));
    }
}
