//! Element types: their HLO spelling, XLA `PrimitiveType` number, width and class.
//!
//! This is the crate's only table of dtypes. Tuples, tokens and opaque shapes are kinds of [`Shape`](super::Shape);
//! the encoding of values in bits is in `numerics::formats`.
//!
//! Source: `PrimitiveType` in XLA's `xla_data.proto`; spelling as XLA's HLO text prints it.

use std::fmt;

/// How a dtype's bits are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DTypeClass {
    /// `pred`.
    Pred,
    /// Two's complement integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Floating point, of any width.
    Float,
    /// A pair of floats, real part first.
    Complex,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $bits:literal, $class:ident;)*) => {
        /// An element type. Numeric value = XLA's `PrimitiveType`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DType { $($(#[$doc])* $variant = $number,)* }

        impl DType {
            /// Every dtype, in the order of XLA's numbers.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The dtype with this HLO spelling.
            pub fn from_name(name: &str) -> Option<DType> {
                match name {
                    $($name => Some(DType::$variant),)*
                    _ => None,
                }
            }

            /// HLO's spelling, such as `bf16`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Width in bits. `pred` is stored in a byte, so its width is 8.
            pub const fn bits(self) -> usize {
                match self { $(DType::$variant => $bits,)* }
            }

            /// How the bits are interpreted.
            pub const fn class(self) -> DTypeClass {
                match self { $(DType::$variant => DTypeClass::$class,)* }
            }
        }
    };
}

dtypes! {
    /// Boolean, one byte, 0 or 1.
    Pred = 1, "pred", 8, Pred;
    /// 8-bit signed integer.
    S8 = 2, "s8", 8, Signed;
    /// 16-bit signed integer.
    S16 = 3, "s16", 16, Signed;
    /// 32-bit signed integer.
    S32 = 4, "s32", 32, Signed;
    /// 64-bit signed integer.
    S64 = 5, "s64", 64, Signed;
    /// 8-bit unsigned integer.
    U8 = 6, "u8", 8, Unsigned;
    /// 16-bit unsigned integer.
    U16 = 7, "u16", 16, Unsigned;
    /// 32-bit unsigned integer.
    U32 = 8, "u32", 32, Unsigned;
    /// 64-bit unsigned integer.
    U64 = 9, "u64", 64, Unsigned;
    /// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
    F16 = 10, "f16", 16, Float;
    /// IEEE 754 binary32.
    F32 = 11, "f32", 32, Float;
    /// IEEE 754 binary64.
    F64 = 12, "f64", 64, Float;
    /// Two f32.
    C64 = 15, "c64", 64, Complex;
    /// bfloat16: 1 sign, 8 exponent, 7 fraction bits; the upper half of an f32.
    BF16 = 16, "bf16", 16, Float;
    /// Two f64.
    C128 = 18, "c128", 128, Complex;
    /// 8-bit float, 5 exponent bits.
    F8E5M2 = 19, "f8e5m2", 8, Float;
    /// 8-bit float, 4 exponent bits, no infinity.
    F8E4M3FN = 20, "f8e4m3fn", 8, Float;
    /// 4-bit signed integer.
    S4 = 21, "s4", 4, Signed;
    /// 4-bit unsigned integer.
    U4 = 22, "u4", 4, Unsigned;
    /// 8-bit float, bias 11, no infinity, no negative zero.
    F8E4M3B11FNUZ = 23, "f8e4m3b11fnuz", 8, Float;
    /// 8-bit float, no infinity, no negative zero.
    F8E5M2FNUZ = 24, "f8e5m2fnuz", 8, Float;
    /// 8-bit float, no infinity, no negative zero.
    F8E4M3FNUZ = 25, "f8e4m3fnuz", 8, Float;
    /// 2-bit signed integer.
    S2 = 26, "s2", 2, Signed;
    /// 2-bit unsigned integer.
    U2 = 27, "u2", 2, Unsigned;
    /// 8-bit float, 4 exponent bits, with infinities.
    F8E4M3 = 28, "f8e4m3", 8, Float;
    /// 8-bit float, 3 exponent bits.
    F8E3M4 = 29, "f8e3m4", 8, Float;
    /// 1-bit signed integer.
    S1 = 30, "s1", 1, Signed;
    /// 1-bit unsigned integer.
    U1 = 31, "u1", 1, Unsigned;
    /// 4-bit float, 2 exponent bits.
    F4E2M1FN = 32, "f4e2m1fn", 4, Float;
    /// Exponent only, 8 bits: a scale.
    F8E8M0FNU = 33, "f8e8m0fnu", 8, Float;
    /// 6-bit float, 3 exponent bits, finite numbers only.
    F6E3M2FN = 35, "f6e3m2fn", 6, Float;
    /// 6-bit float, 2 exponent bits, finite numbers only.
    F6E2M3FN = 36, "f6e2m3fn", 6, Float;
}

impl DType {
    /// The dtype with this XLA `PrimitiveType` number.
    pub fn from_xla(number: i32) -> Option<DType> {
        DType::ALL.iter().copied().find(|dtype| dtype.xla() == number)
    }

    /// XLA's `PrimitiveType` number.
    pub const fn xla(self) -> i32 {
        self as u8 as i32
    }

    /// Bytes of an element in a host literal. Types under a byte take one each, as in XLA's unpacked literals.
    pub const fn n_bytes(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Whether this is a floating type (not complex).
    pub const fn is_float(self) -> bool {
        matches!(self.class(), DTypeClass::Float)
    }

    /// Whether this is a signed or unsigned integer (not `pred`).
    pub const fn is_integer(self) -> bool {
        matches!(self.class(), DTypeClass::Signed | DTypeClass::Unsigned)
    }

    /// Whether this is complex.
    pub const fn is_complex(self) -> bool {
        matches!(self.class(), DTypeClass::Complex)
    }

    /// Whether a negative value exists: signed integers, floats, complex.
    pub const fn is_signed(self) -> bool {
        matches!(self.class(), DTypeClass::Signed | DTypeClass::Float | DTypeClass::Complex)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_round_trip() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_xla(dtype.xla()), Some(dtype));
        }
        let names: std::collections::BTreeSet<_> = DType::ALL.iter().map(|d| d.name()).collect();
        assert_eq!(names.len(), DType::ALL.len());
    }

    #[test]
    fn widths() {
        assert_eq!(DType::Pred.n_bytes(), 1);
        assert_eq!(DType::BF16.n_bytes(), 2);
        assert_eq!(DType::S4.n_bytes(), 1);
        assert_eq!(DType::C128.n_bytes(), 16);
    }
}
