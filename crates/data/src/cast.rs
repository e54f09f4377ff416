//! Casting slices of f32 to what a program computes in, on the host.
//!
//! A batch that is cast before it is copied to the device is half as many bytes. Values are converted as
//! [`bf16scope_hlo::numerics::bf16`] says; here is only the loop around it. Bytes are in the machine's own order, as PJRT
//! takes them.
//!
//! Plain loops, compiled to vector code, are within reach of memcpy (`benches/README.md`), so nothing here is `unsafe`.
//! The processor's own `vcvtneps2bf16` would not do: it takes subnormal inputs for zeros.

use half::slice::HalfFloatSliceExt;

use bf16scope_hlo::DType;
use bf16scope_hlo::numerics::bf16::{Subnormals, bf16_from_f32, bf16_from_f32_flushed};

/// f16 values converted at a time: small enough for the first-level cache.
const CHUNK: usize = 1024;

/// Casts `src` to bf16 in `dst`, which has two bytes for each value.
///
/// # Types
/// f32 to bf16: round to nearest, ties to even; overflow to infinity; NaN stays NaN, quiet. Subnormals are kept or
/// flushed as asked.
///
/// # Panics
/// If `dst` has another length; that is a bug of the caller.
pub fn cast_bf16(src: &[f32], dst: &mut [u8], subnormals: Subnormals) {
    match subnormals {
        Subnormals::Keep => map_u16(src, dst, bf16_from_f32),
        Subnormals::Flush => map_u16(src, dst, bf16_from_f32_flushed),
    }
}

/// Casts `src` to f16 in `dst`, which has two bytes for each value.
///
/// # Types
/// f32 to f16, as [`cast_bf16`]; subnormals are always kept, for no TPU computes in f16.
///
/// # Panics
/// If `dst` has another length; that is a bug of the caller.
pub fn cast_f16(src: &[f32], dst: &mut [u8]) {
    assert_eq!(dst.len(), 2 * src.len(), "two bytes for each value");
    let mut halves = [half::f16::ZERO; CHUNK];
    for (values, bytes) in src.chunks(CHUNK).zip(dst.chunks_mut(2 * CHUNK)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        for (half, bytes) in halves.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *bytes = half.to_ne_bytes();
        }
    }
}

/// Whether all numbers of an array of floats are finite: little-endian bytes of bf16, f16, f32 or f64 (any other dtype is read
/// as f64). The exponent of one that is not is all ones. Without an early end the loop becomes vector code, and bytes that are
/// wrong are rare; what it costs beside the cast is in `benches/README.md`.
pub fn are_finite(dtype: DType, bytes: &[u8]) -> bool {
    fn all<const N: usize>(bytes: &[u8], is_finite: impl Fn([u8; N]) -> bool) -> bool {
        bytes.as_chunks::<N>().0.iter().fold(true, |all, bytes| all & is_finite(*bytes))
    }
    match dtype {
        DType::BF16 => all(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7F80 != 0x7F80),
        DType::F16 => all(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7C00 != 0x7C00),
        DType::F32 => all(bytes, |bytes| u32::from_le_bytes(bytes) & 0x7F80_0000 != 0x7F80_0000),
        _ => all(bytes, |bytes| f64::from_le_bytes(bytes).is_finite()),
    }
}

/// Inlined with `convert`, this loop becomes vector code.
#[inline(always)]
fn map_u16(src: &[f32], dst: &mut [u8], convert: impl Fn(f32) -> u16) {
    assert_eq!(dst.len(), 2 * src.len(), "two bytes for each value");
    for (value, bytes) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
        *bytes = convert(*value).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::numerics::bf16::f16_from_f32;

    /// Every upper half of an f32 with the lower halves that decide rounding, so every exponent, NaN and tie; and a
    /// length that no vector width divides.
    fn edges() -> Vec<f32> {
        let lower = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
        let all = (0..=0xFFFFu32).flat_map(|upper| lower.map(|lower| f32::from_bits(upper << 16 | lower)));
        all.chain([1.0]).collect()
    }

    fn words(bytes: &[u8]) -> Vec<u16> {
        bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect()
    }

    fn check(cast: impl Fn(&[f32], &mut [u8]), one: impl Fn(f32) -> u16) {
        let src = edges();
        let expected: Vec<u16> = src.iter().map(|&value| one(value)).collect();
        let mut bytes = vec![0xAA; 2 * src.len()];
        cast(&src, &mut bytes);
        assert!(words(&bytes) == expected, "the slice and the single conversion differ");
        // Short slices, at every alignment.
        for start in 0..9 {
            for len in 0..40 {
                let mut bytes = vec![0xAA; 2 * len];
                cast(&src[start..start + len], &mut bytes);
                assert_eq!(words(&bytes), expected[start..start + len]);
            }
        }
    }

    #[test]
    fn slices_convert_as_single_values() {
        check(|src, dst| cast_bf16(src, dst, Subnormals::Keep), |value| half::bf16::from_f32(value).to_bits());
        check(|src, dst| cast_bf16(src, dst, Subnormals::Flush), bf16_from_f32_flushed);
        check(cast_f16, f16_from_f32);
        check(cast_f16, |value| half::f16::from_f32_const(value).to_bits());
    }

    #[test]
    fn flushing_differs_only_where_the_input_is_subnormal() {
        let src = edges();
        let mut kept = vec![0; 2 * src.len()];
        let mut flushed = kept.clone();
        cast_bf16(&src, &mut kept, Subnormals::Keep);
        cast_bf16(&src, &mut flushed, Subnormals::Flush);
        for ((value, kept), flushed) in src.iter().zip(words(&kept)).zip(words(&flushed)) {
            let expected = if value.is_subnormal() { kept & 0x8000 } else { kept };
            assert_eq!(flushed, expected, "{value:e}");
        }
    }
}
