//! The elements of one example, from the bytes of a source into their place in a batch.
//!
//! Three things are done with bytes: they are copied, cast to what the network computes in, or made integers of
//! another width. All bytes are little-endian, of sources and of batches. Slices of f32 are [`super::cast`]'s.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use bf16scope_hlo::numerics::bf16::{bf16_from_f32, bf16_to_f32};
use bf16scope_hlo::{DType, DTypeClass};

/// f16 values converted at a time: small enough for the first-level cache.
const CHUNK: usize = 1024;

/// What is done with an array's bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Conversion {
    /// They are as they should be.
    Copy,
    /// Numbers to f32, times `scale` in f32, to `to`: f32, bf16 or f16.
    Cast { from: DType, scale: f32, to: DType },
    /// Integers to another width; values were checked.
    Integers { from: DType, to: DType },
}

impl Conversion {
    /// Converts whole elements.
    pub(super) fn run(self, src: &[u8], dst: &mut [u8]) {
        match self {
            Conversion::Copy => dst.copy_from_slice(src),
            Conversion::Cast { from, scale, to } => cast(from, scale, to, src, dst),
            Conversion::Integers { from, to } => {
                let width = to.n_bytes();
                for (idx, dst) in dst.chunks_exact_mut(width).enumerate() {
                    let value = integer(from, src, idx).expect("the loader converts integers only");
                    dst.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
        }
    }
}

/// Dtypes whose numbers are cast to what a network computes in.
pub(super) const CASTABLE: &[DType] = &[
    DType::U8,
    DType::S8,
    DType::U16,
    DType::S16,
    DType::U32,
    DType::S32,
    DType::U64,
    DType::S64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Whether integers of this dtype are converted to other widths.
pub(super) fn is_whole(dtype: DType) -> bool {
    dtype.is_integer() && dtype.bits() >= 8
}

/// The least and largest integer of a dtype.
pub(super) fn bounds(dtype: DType) -> (i128, i128) {
    let bits = dtype.bits();
    match dtype.class() {
        DTypeClass::Signed => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        DTypeClass::Unsigned | DTypeClass::Pred | DTypeClass::Float | DTypeClass::Complex => (0, (1 << bits) - 1),
    }
}

/// Element `idx` of integers; `None` for another dtype.
pub(super) fn integer(dtype: DType, bytes: &[u8], idx: usize) -> Option<i128> {
    if !is_whole(dtype) {
        return None;
    }
    let width = dtype.n_bytes();
    let element = &bytes[idx * width..][..width];
    let is_negative = dtype.is_signed() && element[width - 1] & 0x80 != 0;
    let mut wide = [if is_negative { 0xFF } else { 0 }; 16];
    wide[..width].copy_from_slice(element);
    Some(i128::from_le_bytes(wide))
}

/// Element `idx` of floats or integers, for messages; `None` for another dtype.
pub(super) fn number(dtype: DType, bytes: &[u8], idx: usize) -> Option<f64> {
    let width = dtype.n_bytes();
    let element = &bytes[idx * width..][..width];
    match dtype {
        DType::F64 => element.try_into().ok().map(f64::from_le_bytes),
        DType::F32 => element.try_into().ok().map(|bytes| f32::from_le_bytes(bytes).into()),
        DType::F16 => element.try_into().ok().map(|bytes| f16::from_le_bytes(bytes).into()),
        DType::BF16 => element.try_into().ok().map(|bytes| bf16::from_le_bytes(bytes).into()),
        _ => integer(dtype, bytes, idx).map(|value| value as f64),
    }
}

/// Integers convert to the nearest f32, ties to even, as `as` does.
fn cast(from: DType, scale: f32, to: DType, src: &[u8], dst: &mut [u8]) {
    match from {
        DType::U8 => each(src, dst, scale, to, |[byte]| f32::from(byte)),
        DType::S8 => each(src, dst, scale, to, |bytes| f32::from(i8::from_le_bytes(bytes))),
        DType::U16 => each(src, dst, scale, to, |bytes| f32::from(u16::from_le_bytes(bytes))),
        DType::S16 => each(src, dst, scale, to, |bytes| f32::from(i16::from_le_bytes(bytes))),
        DType::U32 => each(src, dst, scale, to, |bytes| u32::from_le_bytes(bytes) as f32),
        DType::S32 => each(src, dst, scale, to, |bytes| i32::from_le_bytes(bytes) as f32),
        DType::U64 => each(src, dst, scale, to, |bytes| u64::from_le_bytes(bytes) as f32),
        DType::S64 => each(src, dst, scale, to, |bytes| i64::from_le_bytes(bytes) as f32),
        DType::F16 => each(src, dst, scale, to, |bytes| f16::from_le_bytes(bytes).to_f32()),
        DType::BF16 => each(src, dst, scale, to, |bytes| bf16_to_f32(u16::from_le_bytes(bytes))),
        DType::F32 => each(src, dst, scale, to, f32::from_le_bytes),
        DType::F64 => each(src, dst, scale, to, |bytes| f64::from_le_bytes(bytes) as f32),
        dtype => unreachable!("the loader does not cast {dtype}"),
    }
}

/// Inlined with `read`, the loops for f32 and bf16 become vector code.
#[inline(always)]
fn each<const N: usize>(src: &[u8], dst: &mut [u8], scale: f32, to: DType, read: impl Fn([u8; N]) -> f32) {
    let src = src.as_chunks::<N>().0;
    match to {
        DType::F32 => {
            for (src, dst) in src.iter().zip(dst.as_chunks_mut::<4>().0) {
                *dst = (read(*src) * scale).to_le_bytes();
            }
        }
        DType::BF16 => {
            for (src, dst) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
                *dst = bf16_from_f32(read(*src) * scale).to_le_bytes();
            }
        }
        DType::F16 => {
            // `half` has the processor's instruction for slices.
            let (mut floats, mut halves) = ([0f32; CHUNK], [f16::ZERO; CHUNK]);
            for (src, dst) in src.chunks(CHUNK).zip(dst.as_chunks_mut::<2>().0.chunks_mut(CHUNK)) {
                let (floats, halves) = (&mut floats[..src.len()], &mut halves[..src.len()]);
                for (float, src) in floats.iter_mut().zip(src) {
                    *float = read(*src) * scale;
                }
                halves.convert_from_f32_slice(floats);
                for (half, dst) in halves.iter().zip(dst) {
                    *dst = half.to_le_bytes();
                }
            }
        }
        dtype => unreachable!("the loader does not cast to {dtype}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::numerics::bf16::f16_from_f32;

    fn run(conversion: Conversion, src: &[u8], n: usize, width: usize) -> Vec<u8> {
        let mut dst = vec![0xAA; n * width];
        conversion.run(src, &mut dst);
        dst
    }

    /// Casts bytes of `n` elements to each of the three dtypes and compares with single conversions.
    fn check_casts(from: DType, src: &[u8], values: &[f32]) {
        let n = values.len();
        for scale in [1.0f32, 1.0 / 16.0, 1.0 / 255.0, -3.0] {
            let cast = |to: DType| run(Conversion::Cast { from, scale, to }, src, n, to.n_bytes());
            let f32s: Vec<u32> = cast(DType::F32).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            let expected: Vec<f32> = values.iter().map(|value| value * scale).collect();
            for (found, expected) in f32s.iter().zip(&expected) {
                assert!(*found == expected.to_bits() || expected.is_nan() && f32::from_bits(*found).is_nan());
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
        // NaN's payload is anybody's; that it stays one is not.
        let finite: Vec<u16> = (0..=u16::MAX).filter(|&bits| !f16::from_bits(bits).is_nan()).collect();
        let bytes: Vec<u8> = finite.iter().copied().flat_map(u16::to_le_bytes).collect();
        check_casts(DType::F16, &bytes, &finite.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect::<Vec<_>>());
        let finite: Vec<u16> = (0..=u16::MAX).filter(|&bits| !bf16::from_bits(bits).is_nan()).collect();
        let bytes: Vec<u8> = finite.iter().copied().flat_map(u16::to_le_bytes).collect();
        check_casts(
            DType::BF16,
            &bytes,
            &finite.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect::<Vec<_>>(),
        );
    }

    /// Where f32 must round: ties to even, and the one number above 2^24 that decides.
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
                assert_eq!(integer(from, &src, 0), Some(value), "{from}");
                for to in all.into_iter().filter(|&to| bounds(to).0 <= value && value <= bounds(to).1) {
                    let dst = run(Conversion::Integers { from, to }, &src, 1, to.n_bytes());
                    assert_eq!(integer(to, &dst, 0), Some(value), "{from} to {to}");
                }
            }
        }
        assert_eq!(bounds(DType::U64), (0, u64::MAX.into()));
        assert_eq!(bounds(DType::S64), (i64::MIN.into(), i64::MAX.into()));
    }
}
