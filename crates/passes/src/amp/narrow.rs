//! Shapes, constants and whole computations in a narrow dtype.

use bf16scope_hlo::{ArrayShape, Computation, DType, Layout, Literal, Op, Shape};
use half::{bf16, f16};

/// The shape with dtype `low` in each f32 leaf for which `is_low` returns true; it is called with the leaf's number,
/// depth first. Layouts keep their order of dimensions; tiles fit another width, so they are dropped.
pub(super) fn shape(shape: &Shape, low: DType, is_low: &mut dyn FnMut(usize) -> bool) -> Shape {
    fn walk(shape: &Shape, low: DType, place: &mut usize, is_low: &mut dyn FnMut(usize) -> bool) -> Shape {
        match shape {
            Shape::Tuple(elements) => {
                Shape::Tuple(elements.iter().map(|element| walk(element, low, place, is_low)).collect())
            }
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
                *place += 1;
                let mut leaf = shape.clone();
                if let Shape::Array(array) = &mut leaf
                    && array.dtype == DType::F32
                    && is_low(*place - 1)
                {
                    array.dtype = low;
                    if let Some(layout) = &mut array.layout {
                        let minor_to_major = std::mem::take(&mut layout.minor_to_major);
                        *layout = Layout { minor_to_major, ..Layout::default() };
                    }
                }
                leaf
            }
        }
    }
    walk(shape, low, &mut 0, is_low)
}

/// An f32 array rounded to `low`, to nearest even. Finite elements stay finite: f32's least number, which programs use
/// for "minus infinity, but no NaN", becomes the least finite one. `None` if it is not an f32 array.
pub(super) fn literal(wide: &Literal, low: DType) -> Option<Literal> {
    let Literal::Array { shape, .. } = wide else { return None };
    let elements = wide.elements::<f32>()?;
    let largest = largest(low);
    let bits = |x: f32| {
        let within = if x.is_finite() { x.clamp(-largest, largest) } else { x };
        if low == DType::F16 { f16::from_f32(within).to_bits() } else { bf16::from_f32(within).to_bits() }
    };
    let bytes = elements.into_iter().flat_map(|x| bits(x).to_le_bytes()).collect();
    Some(Literal::Array { shape: ArrayShape { dtype: low, ..shape.clone() }, bytes })
}

/// A retypable computation with every f32 replaced by `low`.
pub(super) fn computation(wide: &Computation, low: DType) -> Computation {
    let mut copy = wide.clone();
    for instr in &mut copy.instructions {
        instr.shape = shape(&instr.shape, low, &mut |_| true);
        if let Op::Constant(constant) = &mut instr.op
            && let Some(narrow) = literal(constant, low)
        {
            *constant = narrow;
        }
    }
    copy
}

/// Whether `low` represents each element of an f32 array exactly; NaN counts as exact.
pub(super) fn is_exact(literal: &Literal, low: DType) -> bool {
    let is_exact = |x: f32| {
        let back = if low == DType::F16 { f16::from_f32(x).to_f32() } else { bf16::from_f32(x).to_f32() };
        back == x || x.is_nan()
    };
    literal.elements::<f32>().is_some_and(|elements| elements.into_iter().all(is_exact))
}

/// The largest finite number of `low`.
pub(super) fn largest(low: DType) -> f32 {
    if low == DType::F16 { f16::MAX.to_f32() } else { bf16::MAX.to_f32() }
}

/// Whether each number of an array is zero, of either sign.
pub(super) fn is_zero(literal: &Literal) -> bool {
    literal.elements::<f32>().is_some_and(|elements| elements.iter().all(|&x| x == 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finite_constants_stay_finite() {
        let literal = Literal::from_elements([4], &[f32::MIN, 0.1, f32::NEG_INFINITY, 1e6]);
        let narrowed = super::literal(&literal, DType::BF16).unwrap().elements::<bf16>().unwrap();
        assert_eq!(narrowed[0], bf16::MIN);
        assert_eq!(narrowed[1].to_f32(), 0.100097656);
        assert_eq!(narrowed[2], bf16::NEG_INFINITY);
        let narrowed = super::literal(&literal, DType::F16).unwrap().elements::<f16>().unwrap();
        assert_eq!((narrowed[0], narrowed[3]), (f16::MIN, f16::MAX));
        assert_eq!((narrowed[1].to_f32(), narrowed[2]), (0.099975586, f16::NEG_INFINITY));
        assert!(!is_exact(&literal, DType::BF16));
        assert!(is_exact(&Literal::from_elements([2], &[0.5f32, f32::NAN]), DType::BF16));
    }
}
