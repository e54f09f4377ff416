//! Converts the elements of one example from a source into their place in a batch.
//!
//! Elements are copied, cast to the network's compute dtype, or converted to integers of another width.
//! [`bf16scope_hlo::element`] and [`bf16scope_hlo::numerics::bf16`] define how values are converted; this file has only
//! the loop around them. All bytes, in sources and in batches, are little-endian.
//!
//! A batch that is cast before it is copied to the device has half as many bytes. Plain loops, compiled to vector code,
//! come close to memcpy (`benches/README.md`), so nothing here is `unsafe`. The processor's own `vcvtneps2bf16` is not
//! an option: it treats subnormal inputs as zeros.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::source::Elements;
use bf16scope_hlo::element::{Numbers, f64s, integers};
use bf16scope_hlo::numerics::bf16::bf16_from_f32;
use bf16scope_hlo::{DType, DTypeClass, Element, ElementVisitor};

/// f16 values converted at a time: small enough for the first-level cache.
const CHUNK: usize = 1024;

/// How an array's elements become those of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conversion {
    /// The bytes are copied unchanged.
    Copy,
    /// Numbers to f32, times `scale` in f32, then to `to` (f32, bf16 or f16), rounding each time to nearest, ties to
    /// even; overflow gives infinity, NaN stays NaN, subnormals are kept.
    Cast {
        /// The array's dtype: one of [`CASTABLE`].
        from: DType,
        /// The factor for each number.
        scale: f32,
        /// f32, bf16 or f16.
        to: DType,
    },
    /// Integers to another width; the values were range-checked before.
    Integers {
        /// The array's dtype.
        from: DType,
        /// An integer dtype of 8 to 64 bits, as is `from`.
        to: DType,
    },
}

impl Conversion {
    /// Converts whole elements into `dst`, which holds the same number of elements. Elements given as f32 must belong
    /// to an array of f32.
    ///
    /// # Panics
    /// For dtypes that the conversion does not support: a bug of the caller.
    pub fn run(self, src: Elements<'_>, dst: &mut [u8]) {
        match (self, src) {
            (Conversion::Copy, Elements::Bytes(src)) => dst.copy_from_slice(src),
            (Conversion::Copy, Elements::F32s(src)) => cast(src, dst, 1.0, DType::F32, |value| value, Some),
            (Conversion::Cast { from: DType::F32, scale, to }, Elements::F32s(src)) => {
                cast(src, dst, scale, to, |value| value, Some);
            }
            (Conversion::Cast { from, scale, to }, Elements::Bytes(src)) => {
                let cast = Cast { src, dst, scale, to };
                from.visit(cast).unwrap_or_else(|| unreachable!("the loader does not cast {from}"));
            }
            (Conversion::Integers { from, to }, Elements::Bytes(src)) => {
                let width = to.n_bytes();
                let values = integers(from, src).expect("the loader converts integers only");
                for (value, dst) in values.zip(dst.chunks_exact_mut(width)) {
                    dst.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            (Conversion::Cast { from, .. } | Conversion::Integers { from, .. }, Elements::F32s(_)) => {
                unreachable!("f32 for an array of {from}")
            }
        }
    }
}

/// Dtypes whose numbers can be cast to a network's compute dtype.
pub const CASTABLE: &[DType] = &[
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

/// Whether integers of this dtype can be converted to other widths.
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

/// Element `idx` of floats or integers, for messages; `None` for another dtype.
pub(super) fn number(dtype: DType, bytes: &[u8], idx: usize) -> Option<f64> {
    numbers(dtype, &bytes[idx * dtype.n_bytes()..][..dtype.n_bytes()])?.next()
}

/// The elements of floats or integers; `None` for another dtype.
pub(super) fn numbers(dtype: DType, bytes: &[u8]) -> Option<Numbers<'_, f64>> {
    CASTABLE.contains(&dtype).then(|| f64s(dtype, bytes)).flatten()
}

/// [`cast()`] over the bytes of elements of any dtype.
struct Cast<'a> {
    src: &'a [u8],
    dst: &'a mut [u8],
    scale: f32,
    to: DType,
}

impl ElementVisitor for Cast<'_> {
    type Output = ();

    fn visit<T: Element>(self) {
        cast(T::chunks(self.src), self.dst, self.scale, self.to, |bytes| T::from_le(bytes).to_f32(), |_| None);
    }
}

/// Multiplies only if the scale is not 1: a product by 1 changes nothing, and a processor may take a hundred cycles to
/// multiply a subnormal.
#[inline(always)]
fn cast<'a, S: Copy>(
    src: &'a [S],
    dst: &mut [u8],
    scale: f32,
    to: DType,
    read: impl Fn(S) -> f32,
    as_f32s: impl Fn(&'a [S]) -> Option<&'a [f32]>,
) {
    match scale {
        1.0 => store(src, dst, to, read, as_f32s),
        _ => store(src, dst, to, |value| read(value) * scale, |_| None),
    }
}

/// With `read` inlined, the loops for f32 and bf16 become vector code. `as_f32s` gives elements that are the numbers
/// already; `read` gives the same, one by one.
#[inline(always)]
fn store<'a, S: Copy>(
    src: &'a [S],
    dst: &mut [u8],
    to: DType,
    read: impl Fn(S) -> f32,
    as_f32s: impl Fn(&'a [S]) -> Option<&'a [f32]>,
) {
    match to {
        DType::F32 => {
            for (src, dst) in src.iter().zip(dst.as_chunks_mut::<4>().0) {
                *dst = read(*src).to_le_bytes();
            }
        }
        DType::BF16 => {
            for (src, dst) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
                *dst = bf16_from_f32(read(*src)).to_le_bytes();
            }
        }
        DType::F16 => {
            // `half` uses the processor's instruction for slices of f32.
            let (mut buffer, mut halves) = ([0f32; CHUNK], [f16::ZERO; CHUNK]);
            for (src, dst) in src.chunks(CHUNK).zip(dst.as_chunks_mut::<2>().0.chunks_mut(CHUNK)) {
                let halves = &mut halves[..src.len()];
                let floats = match as_f32s(src) {
                    Some(floats) => floats,
                    None => {
                        for (float, src) in buffer.iter_mut().zip(src) {
                            *float = read(*src);
                        }
                        &buffer[..src.len()]
                    }
                };
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
mod tests;
