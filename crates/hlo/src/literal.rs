//! Literals: constant values of any shape, as bytes.
//!
//! An array's bytes are little-endian, row-major, one element after another; `pred` and types under a byte take one
//! byte each. This file stores and reads elements; printing is in `hlo::text`, encoding in `hlo::proto`.
//!
//! Source: `LiteralProto` in XLA's `xla_data.proto`.

use super::{ArrayShape, DType, Element, ElementVisitor, Shape};
use half::{bf16, f16};

/// A constant value.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// A dense array.
    Array {
        /// Dtype and dims. The layout is that of the text; `bytes` are row-major in any case.
        shape: ArrayShape,
        /// `shape.n_bytes()` bytes.
        bytes: Vec<u8>,
    },
    /// A tuple of literals.
    Tuple(Vec<Literal>),
    /// A token.
    Token,
}

impl Literal {
    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Literal {
        Literal::from_elements([], &[value])
    }

    /// An array from its elements in row-major order.
    ///
    /// # Panics
    /// The dims do not multiply to the number of elements: a bug of the caller.
    pub fn from_elements<T: Element>(dims: impl Into<Vec<i64>>, elements: &[T]) -> Literal {
        let shape = ArrayShape::new(T::DTYPE, dims);
        assert_eq!(shape.n_elements(), elements.len() as i64, "{shape} does not hold {} elements", elements.len());
        let mut bytes = Vec::with_capacity(std::mem::size_of_val(elements));
        elements.iter().for_each(|element| element.write(&mut bytes));
        Literal::Array { shape, bytes }
    }

    /// The scalar of dtype `dtype` nearest to `value`: floats round to nearest even in one step, integers truncate and
    /// saturate, `pred` is `value != 0`. `None` for complex dtypes and floats under 16 bits, which have no such rule
    /// here.
    pub fn scalar_of(dtype: DType, value: f64) -> Option<Literal> {
        struct Scalar(f64);
        impl ElementVisitor for Scalar {
            type Output = Literal;

            fn visit<T: Element>(self) -> Literal {
                Literal::scalar(T::from_f64(self.0))
            }
        }
        dtype.visit(Scalar(value))
    }

    /// The scalar from which a `max` reduction starts (`-inf`, or the least integer); `None` for dtypes without
    /// [`Literal::scalar_of`].
    pub fn min_value(dtype: DType) -> Option<Literal> {
        Literal::scalar_of(dtype, f64::NEG_INFINITY)
    }

    /// The shape of this value.
    pub fn shape(&self) -> Shape {
        match self {
            Literal::Array { shape, .. } => Shape::Array(shape.clone()),
            Literal::Tuple(elements) => Shape::Tuple(elements.iter().map(Literal::shape).collect()),
            Literal::Token => Shape::Token,
        }
    }

    /// The elements of an array of dtype `T`, in row-major order; `None` for another dtype or kind.
    pub fn elements<T: Element>(&self) -> Option<Vec<T>> {
        match self {
            Literal::Array { shape, bytes } if shape.dtype == T::DTYPE => {
                Some(bytes.chunks_exact(T::DTYPE.n_bytes()).map(T::read).collect())
            }
            Literal::Array { .. } | Literal::Tuple(_) | Literal::Token => None,
        }
    }

    /// Whether this is an f32 array whose elements bf16 or f16 represents exactly; NaN counts as exact.
    pub fn is_exact_in(&self, dtype: DType) -> bool {
        let is_exact = |x: f32| {
            let back = if dtype == DType::F16 { f16::from_f32(x).to_f32() } else { bf16::from_f32(x).to_f32() };
            back == x || x.is_nan()
        };
        self.elements::<f32>().is_some_and(|elements| elements.into_iter().all(is_exact))
    }

    /// An f32 array rounded to bf16 or f16, to nearest even. Finite elements stay finite: those beyond the range
    /// become the end of it, as f32's least number does, which programs use for "minus infinity, but no NaN". `None` if
    /// this is no f32 array.
    pub fn saturated_to(&self, dtype: DType) -> Option<Literal> {
        let Literal::Array { shape, .. } = self else { return None };
        let largest = if dtype == DType::F16 { f16::MAX.to_f32() } else { bf16::MAX.to_f32() };
        let bits = |x: f32| {
            let within = if x.is_finite() { x.clamp(-largest, largest) } else { x };
            if dtype == DType::F16 { f16::from_f32(within).to_bits() } else { bf16::from_f32(within).to_bits() }
        };
        let bytes = self.elements::<f32>()?.into_iter().flat_map(|x| bits(x).to_le_bytes()).collect();
        Some(Literal::Array { shape: ArrayShape { dtype, ..shape.clone() }, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_round_trip() {
        let literal = Literal::from_elements([2, 2], &[1.0f32, -0.0, f32::NAN, f32::INFINITY]);
        let back = literal.elements::<f32>().unwrap();
        assert_eq!(back[0], 1.0);
        assert!(back[1].is_sign_negative() && back[2].is_nan());
        assert_eq!(literal.shape(), Shape::array(DType::F32, [2, 2]));
        assert_eq!(literal.elements::<f64>(), None);
    }

    #[test]
    fn scalars_round_once() {
        // 1 + 2^-8 + 2^-40 lies above the midpoint of two bf16 neighbours; through f32 it would look like a tie.
        let literal = Literal::scalar_of(DType::BF16, 1.0 + 2f64.powi(-8) + 2f64.powi(-40)).unwrap();
        assert_eq!(literal.elements::<bf16>().unwrap()[0].to_bits(), 0x3f81);
        assert_eq!(Literal::min_value(DType::S8).unwrap().elements::<i8>().unwrap()[0], i8::MIN);
    }

    #[test]
    fn finite_numbers_stay_finite() {
        let literal = Literal::from_elements([4], &[f32::MIN, 0.1, f32::NEG_INFINITY, 1e6]);
        let narrow = literal.saturated_to(DType::BF16).unwrap().elements::<bf16>().unwrap();
        assert_eq!((narrow[0], narrow[2]), (bf16::MIN, bf16::NEG_INFINITY));
        assert_eq!(narrow[1].to_f32(), 0.100097656);
        let narrow = literal.saturated_to(DType::F16).unwrap().elements::<f16>().unwrap();
        assert_eq!((narrow[0], narrow[3]), (f16::MIN, f16::MAX));
        assert_eq!((narrow[1].to_f32(), narrow[2]), (0.099975586, f16::NEG_INFINITY));
        assert!(!literal.is_exact_in(DType::BF16));
        assert!(Literal::from_elements([2], &[0.5f32, f32::NAN]).is_exact_in(DType::BF16));
    }
}
