//! Elements of arrays as Rust values, and the dispatch from a dtype at run time to code for its type.
//!
//! [`Element`] is implemented for the thirteen dtypes that have a type in Rust or `half`. Generic code for all of them
//! is an [`ElementVisitor`], which [`DType::visit`] calls; [`f64s`], [`f32s`] and [`integers`] are common ones.
//! Complex dtypes and floats of 8 bits and less have no such type. Integers of less than a byte are stored in one and
//! read from it.

use super::{DType, round};
use half::{bf16, f16};
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// A Rust type that represents the values of a dtype.
pub trait Element: Copy + PartialEq + Debug + Display + FromStr + 'static {
    /// Its dtype.
    const DTYPE: DType;
    /// Its little-endian bytes: an array of `DTYPE.n_bytes()`.
    type Bytes: Copy + AsRef<[u8]> + for<'a> TryFrom<&'a [u8]>;

    /// The value of these bytes; for `pred`, whether they are not 0.
    fn from_le(bytes: Self::Bytes) -> Self;

    /// Its bytes.
    fn to_le(self) -> Self::Bytes;

    /// The whole elements among `bytes`.
    fn chunks(bytes: &[u8]) -> &[Self::Bytes];

    /// The nearest f64, ties to even; exact but for 64-bit integers.
    fn to_f64(self) -> f64;

    /// The nearest f32, ties to even, rounded once.
    fn to_f32(self) -> f32;

    /// The value nearest to `value`: floats round to nearest even in one step, integers truncate and saturate, `pred` is
    /// `value != 0`.
    fn from_f64(value: f64) -> Self;

    /// The integer; `None` for floats. `pred` is 0 or 1.
    fn to_integer(self) -> Option<i128>;

    /// Appends its little-endian bytes.
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.to_le().as_ref());
    }

    /// Reads it from exactly `DTYPE.n_bytes()` bytes.
    ///
    /// # Panics
    /// The number of bytes does not match: a bug of the caller.
    fn read(bytes: &[u8]) -> Self {
        Self::from_le(bytes.try_into().ok().expect("an element is read from its own width"))
    }
}

/// A floating-point element.
pub trait Float: Element {
    /// The smallest positive normal number, exact in f64.
    const MIN_NORMAL: f64;

    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

/// Code for elements of any type.
pub trait ElementVisitor {
    /// Its result.
    type Output;

    /// Runs for elements of `T`.
    fn visit<T: Element>(self) -> Self::Output;
}

/// Code for elements of any floating type.
pub trait FloatVisitor {
    /// Its result.
    type Output;

    /// Runs for elements of `T`.
    fn visit<T: Float>(self) -> Self::Output;
}

/// The implementation that all types with `from_le_bytes` share; the conversions differ.
macro_rules! bytes_of {
    ($ty:ty, $dtype:ident) => {
        const DTYPE: DType = DType::$dtype;
        type Bytes = [u8; DType::$dtype.n_bytes()];

        #[inline(always)]
        fn from_le(bytes: Self::Bytes) -> Self {
            <$ty>::from_le_bytes(bytes)
        }

        #[inline(always)]
        fn to_le(self) -> Self::Bytes {
            self.to_le_bytes()
        }

        #[inline]
        fn chunks(bytes: &[u8]) -> &[Self::Bytes] {
            bytes.as_chunks().0
        }
    };
}

macro_rules! integers {
    ($($ty:ident = $dtype:ident;)*) => {$(
        impl Element for $ty {
            bytes_of!($ty, $dtype);

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }

            fn from_f64(value: f64) -> Self {
                value as $ty
            }

            #[inline(always)]
            fn to_integer(self) -> Option<i128> {
                Some(self.into())
            }
        }
    )*};
}

macro_rules! floats {
    ($($ty:ident = $dtype:ident, $to_f64:expr, $to_f32:expr, $from_f64:expr, $min_normal:expr;)*) => {$(
        impl Element for $ty {
            bytes_of!($ty, $dtype);

            #[inline(always)]
            fn to_f64(self) -> f64 {
                ($to_f64)(self)
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                ($to_f32)(self)
            }

            fn from_f64(value: f64) -> Self {
                ($from_f64)(value)
            }

            fn to_integer(self) -> Option<i128> {
                None
            }
        }

        impl Float for $ty {
            const MIN_NORMAL: f64 = $min_normal;

            #[inline(always)]
            fn is_finite(self) -> bool {
                <$ty>::is_finite(self)
            }
        }
    )*};
}

integers! {
    i8 = S8; i16 = S16; i32 = S32; i64 = S64;
    u8 = U8; u16 = U16; u32 = U32; u64 = U64;
}

floats! {
    f16 = F16, f16::to_f64, f16::to_f32, |value| f16::from_bits(round::f16_from_f64(value)), f16::MIN_POSITIVE.to_f64_const();
    // The bits of a bf16 are the upper half of an f32's.
    bf16 = BF16, |value| f64::from(bf16::to_f32(value)), bf16::to_f32, |value| bf16::from_bits(round::bf16_from_f64(value)),
        bf16::MIN_POSITIVE.to_f64_const();
    f32 = F32, f64::from, |value| value, |value| value as f32, f32::MIN_POSITIVE as f64;
    f64 = F64, |value| value, |value| value as f32, |value| value, f64::MIN_POSITIVE;
}

impl Element for bool {
    const DTYPE: DType = DType::Pred;
    type Bytes = [u8; 1];

    fn from_le([byte]: [u8; 1]) -> bool {
        byte != 0
    }

    fn to_le(self) -> [u8; 1] {
        [self.into()]
    }

    fn chunks(bytes: &[u8]) -> &[[u8; 1]] {
        bytes.as_chunks().0
    }

    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }

    fn to_f32(self) -> f32 {
        f32::from(u8::from(self))
    }

    fn from_f64(value: f64) -> bool {
        value != 0.0
    }

    fn to_integer(self) -> Option<i128> {
        Some(self.into())
    }
}

impl DType {
    /// Runs `visitor` for the type of this dtype; `None` if it has no type.
    pub fn visit<V: ElementVisitor>(self, visitor: V) -> Option<V::Output> {
        Some(match self {
            DType::Pred => visitor.visit::<bool>(),
            DType::S8 => visitor.visit::<i8>(),
            DType::S16 => visitor.visit::<i16>(),
            DType::S32 => visitor.visit::<i32>(),
            DType::S64 => visitor.visit::<i64>(),
            DType::U8 => visitor.visit::<u8>(),
            DType::U16 => visitor.visit::<u16>(),
            DType::U32 => visitor.visit::<u32>(),
            DType::U64 => visitor.visit::<u64>(),
            DType::F16 => visitor.visit::<f16>(),
            DType::BF16 => visitor.visit::<bf16>(),
            DType::F32 => visitor.visit::<f32>(),
            DType::F64 => visitor.visit::<f64>(),
            DType::C64
            | DType::C128
            | DType::F8E5M2
            | DType::F8E4M3FN
            | DType::F8E4M3B11FNUZ
            | DType::F8E5M2FNUZ
            | DType::F8E4M3FNUZ
            | DType::F8E4M3
            | DType::F8E3M4
            | DType::F4E2M1FN
            | DType::F6E3M2FN
            | DType::F6E2M3FN
            | DType::F8E8M0FNU
            | DType::S4
            | DType::U4
            | DType::S2
            | DType::U2
            | DType::S1
            | DType::U1 => return None,
        })
    }

    /// Runs `visitor` for the type of this floating dtype; `None` if it has no type.
    pub fn visit_float<V: FloatVisitor>(self, visitor: V) -> Option<V::Output> {
        match self {
            DType::F16 => Some(visitor.visit::<f16>()),
            DType::BF16 => Some(visitor.visit::<bf16>()),
            DType::F32 => Some(visitor.visit::<f32>()),
            DType::F64 => Some(visitor.visit::<f64>()),
            _ => None,
        }
    }

    /// The dtype that an element is stored as on the host: a byte for integers of less than one.
    pub const fn stored(self) -> DType {
        match self {
            DType::S1 | DType::S2 | DType::S4 => DType::S8,
            DType::U1 | DType::U2 | DType::U4 => DType::U8,
            other => other,
        }
    }
}

/// An iterator over the numbers of an array.
pub type Numbers<'a, N> = Box<dyn Iterator<Item = N> + 'a>;

/// Declares a function over all elements of little-endian bytes.
macro_rules! iterate {
    ($(#[$doc:meta])* $name:ident, $visitor:ident, $number:ty, $convert:ident) => {
        $(#[$doc])*
        pub fn $name(dtype: DType, bytes: &[u8]) -> Option<Numbers<'_, $number>> {
            struct $visitor<'a>(&'a [u8]);
            impl<'a> ElementVisitor for $visitor<'a> {
                type Output = Numbers<'a, $number>;

                fn visit<T: Element>(self) -> Self::Output {
                    Box::new(T::chunks(self.0).iter().map(|bytes| T::from_le(*bytes).$convert()))
                }
            }
            dtype.stored().visit($visitor(bytes))
        }
    };
}

iterate! {
    /// Every number of little-endian bytes, as f64; `None` for complex numbers and floats of 8 bits and less.
    f64s, F64s, f64, to_f64
}

iterate! {
    /// Every number of little-endian bytes, rounded once to f32; `None` as for [`f64s`].
    f32s, F32s, f32, to_f32
}

/// Every integer of little-endian bytes, where `pred` is 0 or 1; `None` for other dtypes.
pub fn integers(dtype: DType, bytes: &[u8]) -> Option<Numbers<'_, i128>> {
    struct Integers<'a>(&'a [u8]);
    impl<'a> ElementVisitor for Integers<'a> {
        type Output = Numbers<'a, i128>;

        fn visit<T: Element>(self) -> Self::Output {
            Box::new(T::chunks(self.0).iter().filter_map(|bytes| T::from_le(*bytes).to_integer()))
        }
    }
    let dtype = dtype.stored();
    (!dtype.is_float()).then(|| dtype.visit(Integers(bytes))).flatten()
}

/// Every number of little-endian bytes of floats of 16 to 64 bits, as f64, exactly; `None` for other dtypes.
pub fn floats(dtype: DType, bytes: &[u8]) -> Option<Numbers<'_, f64>> {
    dtype.is_float().then(|| f64s(dtype, bytes)).flatten()
}

/// Whether every float of little-endian bytes is finite; true for dtypes without [`floats`].
///
/// The loop has no early exit, so that it vectorizes; bytes that are not finite are rare.
pub fn are_finite(dtype: DType, bytes: &[u8]) -> bool {
    struct AreFinite<'a>(&'a [u8]);
    impl FloatVisitor for AreFinite<'_> {
        type Output = bool;

        fn visit<T: Float>(self) -> bool {
            T::chunks(self.0).iter().fold(true, |all, bytes| all & T::from_le(*bytes).is_finite())
        }
    }
    dtype.visit_float(AreFinite(bytes)).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the bytes of 1 as every dtype.
    #[test]
    fn each_dtype_is_visited_as_its_own_type() {
        struct One;
        impl ElementVisitor for One {
            type Output = (DType, Vec<u8>);

            fn visit<T: Element>(self) -> Self::Output {
                let mut bytes = Vec::new();
                T::from_f64(1.0).write(&mut bytes);
                assert_eq!(T::read(&bytes), T::from_f64(1.0));
                (T::DTYPE, bytes)
            }
        }
        let visited = DType::ALL.iter().filter_map(|&dtype| Some((dtype, dtype.visit(One)?)));
        let mut n = 0;
        for (dtype, (of_type, bytes)) in visited {
            assert_eq!((of_type, bytes.len()), (dtype, dtype.n_bytes()));
            assert_eq!(f64s(dtype, &bytes).unwrap().collect::<Vec<_>>(), [1.0], "{dtype}");
            assert_eq!(f32s(dtype, &bytes).unwrap().collect::<Vec<_>>(), [1.0], "{dtype}");
            assert_eq!(floats(dtype, &bytes).is_some(), dtype.is_float(), "{dtype}");
            assert_eq!(integers(dtype, &bytes).map(Iterator::collect), (!dtype.is_float()).then(|| vec![1]), "{dtype}");
            n += 1;
        }
        assert_eq!(n, 13);
        assert!(f64s(DType::C64, &[0; 8]).is_none() && f64s(DType::F8E5M2, &[0]).is_none());
    }

    #[test]
    fn small_integers_are_read_from_a_byte() {
        assert_eq!(f64s(DType::S4, &[0xF8, 7]).unwrap().collect::<Vec<_>>(), [-8.0, 7.0]);
        assert_eq!(integers(DType::U1, &[1, 0]).unwrap().collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn f64_rounds_once_to_f32_and_integers_to_both() {
        let bytes = (1.0 + 2f64.powi(-24) + 2f64.powi(-50)).to_le_bytes();
        assert_eq!(f32s(DType::F64, &bytes).unwrap().next(), Some(1.0 + f32::EPSILON));
        let odd = ((1u64 << 54) + (1 << 30) + 1).to_le_bytes();
        // Converted through f64 it would be a tie, and round to even.
        assert_eq!(f32s(DType::U64, &odd).unwrap().next(), Some(18_014_400_656_965_632.0));
        assert_eq!(integers(DType::U64, &u64::MAX.to_le_bytes()).unwrap().next(), Some(u64::MAX.into()));
    }

    #[test]
    fn what_is_not_finite_is_seen_in_every_float() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            struct Largest(f64);
            impl FloatVisitor for Largest {
                type Output = Vec<u8>;

                fn visit<T: Float>(self) -> Vec<u8> {
                    let mut bytes = Vec::new();
                    T::from_f64(0.5).write(&mut bytes);
                    T::from_f64(self.0).write(&mut bytes);
                    bytes
                }
            }
            for (last, is_finite) in
                [(2.0, true), (f64::INFINITY, false), (f64::NEG_INFINITY, false), (f64::NAN, false)]
            {
                assert_eq!(are_finite(dtype, &dtype.visit_float(Largest(last)).unwrap()), is_finite, "{dtype} {last}");
            }
        }
    }
}
