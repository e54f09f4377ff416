//! Numbers of every kind as bf16 and f16.

use super::*;
use bf16scope_hlo::numerics::bf16::f16_from_f32;
use half::bf16;

fn run(conversion: Conversion, src: &[u8], n: usize, width: usize) -> Vec<u8> {
    let mut dst = vec![0xAA; n * width];
    conversion.run(Elements::Bytes(src), &mut dst);
    dst
}

/// Casts bytes of `n` elements to each of the three dtypes and compares with single conversions.
fn check_casts(from: DType, src: &[u8], values: &[f32]) {
    let n = values.len();
    for scale in [1.0f32, 1.0 / 16.0, 1.0 / 255.0, -3.0] {
        let cast = |to: DType| run(Conversion::Cast { from, scale, to }, src, n, to.n_bytes());
        let f32s: Vec<u32> = cast(DType::F32).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let expected: Vec<f32> = values.iter().map(|value| value * scale).collect();
        for (measured, expected) in f32s.iter().zip(&expected) {
            assert!(*measured == expected.to_bits() || expected.is_nan() && f32::from_bits(*measured).is_nan());
        }
        let u16s = |to| -> Vec<u16> { cast(to).as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect() };
        assert_eq!(u16s(DType::BF16), expected.iter().map(|&v| bf16::from_f32(v).to_bits()).collect::<Vec<_>>());
        assert_eq!(u16s(DType::F16), expected.iter().map(|&v| f16_from_f32(v)).collect::<Vec<_>>());
    }
}

#[test]
fn bytes_are_numbers() {
    let all: Vec<u8> = (0..=255).collect();
    check_casts(DType::U8, &all, &all.iter().map(|&byte| f32::from(byte)).collect::<Vec<_>>());
    check_casts(DType::S8, &all, &all.iter().map(|&byte| f32::from(byte as i8)).collect::<Vec<_>>());
}

#[test]
fn halves_are_numbers() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let values = |of: fn(u16) -> f32| (0..=u16::MAX).map(of).collect::<Vec<_>>();
    check_casts(DType::U16, &all, &values(f32::from));
    check_casts(DType::S16, &all, &values(|bits| f32::from(bits as i16)));
    // NaN payloads are unspecified; NaN itself must stay NaN.
    let finite: Vec<u16> = (0..=u16::MAX).filter(|&bits| !f16::from_bits(bits).is_nan()).collect();
    let bytes: Vec<u8> = finite.iter().copied().flat_map(u16::to_le_bytes).collect();
    check_casts(DType::F16, &bytes, &finite.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect::<Vec<_>>());
    let finite: Vec<u16> = (0..=u16::MAX).filter(|&bits| !bf16::from_bits(bits).is_nan()).collect();
    let bytes: Vec<u8> = finite.iter().copied().flat_map(u16::to_le_bytes).collect();
    check_casts(DType::BF16, &bytes, &finite.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect::<Vec<_>>());
}

/// Values that f32 must round: ties to even, and the one number above 2^24 that decides.
#[test]
fn wide_numbers_round_once_to_f32() {
    let integers: [(i64, f32); 7] = [
        ((1 << 24) + 1, 16_777_216.0),
        ((1 << 24) + 3, 16_777_220.0),
        (-((1 << 24) + 1), -16_777_216.0),
        ((1 << 54) + (1 << 30), 18_014_398_509_481_984.0),
        ((1 << 54) + (1 << 30) + 1, 18_014_400_656_965_632.0),
        (i64::MAX, 9_223_372_036_854_775_808.0),
        (i64::MIN, -9_223_372_036_854_775_808.0),
    ];
    let (bytes, values): (Vec<[u8; 8]>, Vec<f32>) = integers.iter().map(|(int, f)| (int.to_le_bytes(), *f)).unzip();
    check_casts(DType::S64, bytes.as_flattened(), &values);
    check_casts(DType::U64, &u64::MAX.to_le_bytes(), &[18_446_744_073_709_551_616.0]);
    check_casts(DType::S32, &(16_777_217i32).to_le_bytes(), &[16_777_216.0]);
    check_casts(DType::U32, &u32::MAX.to_le_bytes(), &[4_294_967_296.0]);
    let doubles: [(f64, f32); 4] = [(1.0 + 2f64.powi(-24), 1.0), (0.1, 0.1), (1e300, f32::INFINITY), (1e-46, 0.0)];
    let (bytes, values): (Vec<[u8; 8]>, Vec<f32>) = doubles.iter().map(|(d, f)| (d.to_le_bytes(), *f)).unzip();
    check_casts(DType::F64, bytes.as_flattened(), &values);
    let floats = [f32::MIN_POSITIVE / 2.0, 1e-45, f32::MAX, 0.1, -0.0];
    check_casts(DType::F32, &floats.map(f32::to_le_bytes).concat(), &floats);
}

#[test]
fn integers_keep_their_value() {
    let all = [DType::S8, DType::U8, DType::S16, DType::U16, DType::S32, DType::U32, DType::S64, DType::U64];
    for from in all {
        let (least, greatest) = bounds(from);
        for value in [least, -1, 0, 1, 100, greatest].into_iter().filter(|v| (least..=greatest).contains(v)) {
            let src = value.to_le_bytes()[..from.n_bytes()].to_vec();
            assert_eq!(integers(from, &src).unwrap().next(), Some(value), "{from}");
            for to in all.into_iter().filter(|&to| bounds(to).0 <= value && value <= bounds(to).1) {
                let dst = run(Conversion::Integers { from, to }, &src, 1, to.n_bytes());
                assert_eq!(integers(to, &dst).unwrap().next(), Some(value), "{from} to {to}");
            }
        }
    }
    assert_eq!(bounds(DType::U64), (0, u64::MAX.into()));
    assert_eq!(bounds(DType::S64), (i64::MIN.into(), i64::MAX.into()));
}

/// Numbers of more than one chunk, in both forms that a source may give.
#[test]
fn numbers_are_scaled_as_their_bytes_are() {
    let finite = |n: u32| f32::from_bits(n.wrapping_mul(0x9E37_79B9) & 0xFF7F_FFFF);
    let values: Vec<f32> = (0..3 * CHUNK as u32 / 2).map(finite).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for scale in [1.0, 1.0 / 255.0, -3.0] {
        for to in [DType::F32, DType::BF16, DType::F16] {
            let conversion = Conversion::Cast { from: DType::F32, scale, to };
            let mut dst = vec![0xAA; values.len() * to.n_bytes()];
            conversion.run(Elements::F32s(&values), &mut dst);
            assert!(dst == run(conversion, &bytes, values.len(), to.n_bytes()), "{to} times {scale}");
        }
    }
}

/// Every upper half of an f32 with the lower halves that decide rounding (so every exponent, subnormal, NaN and
/// tie), in both forms that a source may give; and short slices, at every alignment.
#[test]
fn slices_convert_as_single_values() {
    let lower = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
    let all = (0..=0xFFFFu32).flat_map(|upper| lower.map(|lower| f32::from_bits(upper << 16 | lower)));
    let values: Vec<f32> = all.chain([1.0]).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let one = |to: DType, value: f32| match to {
        DType::BF16 => bf16::from_f32(value).to_bits(),
        _ => f16::from_f32_const(value).to_bits(),
    };
    for to in [DType::BF16, DType::F16] {
        let expected: Vec<u8> = values.iter().flat_map(|&value| one(to, value).to_le_bytes()).collect();
        let conversion = Conversion::Cast { from: DType::F32, scale: 1.0, to };
        let check = |range: std::ops::Range<usize>| {
            let bytes = &bytes[4 * range.start..4 * range.end];
            for src in [Elements::Bytes(bytes), Elements::F32s(&values[range.clone()])] {
                let mut dst = vec![0xAA; 2 * range.len()];
                conversion.run(src, &mut dst);
                assert!(dst == expected[2 * range.start..2 * range.end], "{to} {range:?}");
            }
        };
        check(0..values.len());
        (0..9).for_each(|start| (0..40).for_each(|len| check(start..start + len)));
    }
    let mut dst = vec![0xAA; bytes.len()];
    Conversion::Copy.run(Elements::F32s(&values), &mut dst);
    assert!(dst == bytes, "a NaN keeps its payload");
}
