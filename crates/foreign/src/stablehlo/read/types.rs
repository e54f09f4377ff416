//! Types of values, and constants.

use super::UNKNOWN;
use super::cursor::Cursor;
use bf16scope_hlo::{ArrayShape, DType, DTypeClass, Literal, Shape};

/// A constant: all elements, or one that is all of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dense {
    pub(super) shape: ArrayShape,
    /// An array of this shape, or a scalar.
    pub(super) literal: Literal,
}

impl<'t> Cursor<'t> {
    /// `tensor<2x3xf32>`; no other type is known here.
    pub(super) fn tensor(&mut self) -> Option<Shape> {
        self.array().map(Shape::Array)
    }

    fn array(&mut self) -> Option<ArrayShape> {
        self.expect_word("tensor")?;
        self.expect("<")?;
        let mut rest = self.until(b'>')?;
        let mut dims = Vec::new();
        while rest.starts_with(|first: char| first.is_ascii_digit() || self.is_symbolic && first == '?') {
            let (dim, after) = rest.split_once('x')?;
            if dim == "?" {
                dims.push(UNKNOWN);
                rest = after;
                continue;
            }
            if !dim.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            dims.push(dim.parse().ok()?);
            rest = after;
        }
        Some(ArrayShape::new(dtype(rest)?, dims))
    }

    /// `dense<1.0> : tensor<2xf32>`, after the word.
    pub(super) fn dense(&mut self) -> Option<Dense> {
        self.expect("<")?;
        let body = self.until(b'>')?.trim();
        self.expect(":")?;
        let shape = self.array()?;
        if shape.dims.contains(&UNKNOWN) {
            return None;
        }
        // A shape that no machine holds is XLA's to refuse.
        let n_bytes = usize::try_from(shape.n_bytes()).ok().filter(|&n| n < isize::MAX as usize)?;
        let mut bytes = Vec::new();
        if let Some(hex) = body.strip_prefix("\"0x") {
            let hex = hex.strip_suffix('"')?;
            if shape.dtype == DType::Pred || hex.len() != n_bytes.checked_mul(2)? {
                return None;
            }
            for pair in hex.as_bytes().chunks_exact(2) {
                bytes.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
            }
        } else if body.starts_with('[') {
            let mut inner = Cursor::new(body);
            nested(&mut inner, shape.dtype, &shape.dims, &mut bytes)?;
            if inner.peek() != 0 || bytes.len() != n_bytes {
                return None;
            }
        } else if body.is_empty() {
            if n_bytes > 0 || shape.dims.is_empty() {
                return None;
            }
        } else {
            element(shape.dtype, body, &mut bytes)?;
            let of = if n_bytes == bytes.len() { shape.clone() } else { ArrayShape::new(shape.dtype, []) };
            let is_empty = n_bytes == 0;
            return (!is_empty).then_some(Dense { shape, literal: Literal::Array { shape: of, bytes } });
        }
        Some(Dense { literal: Literal::Array { shape: shape.clone(), bytes }, shape })
    }
}

impl Dense {
    /// All elements of a short list of integers.
    pub(super) fn ints(&self) -> Option<Vec<i64>> {
        let elements = self.literal.elements::<i64>()?;
        let n = self.shape.n_elements();
        match elements[..] {
            [one] => (n <= 1024).then(|| vec![one; n as usize]),
            _ => Some(elements),
        }
    }
}

/// Types of a byte and more, but complex ones.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        "i1" => DType::Pred,
        "i32" => DType::S32,
        "f16" => DType::F16,
        "f64" => DType::F64,
        "i8" => DType::S8,
        "i16" => DType::S16,
        "i64" => DType::S64,
        "ui8" => DType::U8,
        "ui16" => DType::U16,
        "ui32" => DType::U32,
        "ui64" => DType::U64,
        _ => return None,
    })
}

fn nibble(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// `[[1, 2], [3, 4]]`, as many as the dims say.
fn nested(cursor: &mut Cursor<'_>, dtype: DType, dims: &[i64], bytes: &mut Vec<u8>) -> Option<()> {
    let Some((&dim, inner)) = dims.split_first() else {
        return match cursor.peek() {
            b't' | b'f' => element(dtype, cursor.word()?, bytes),
            _ => element(dtype, cursor.number()?, bytes),
        };
    };
    let items = cursor.deeper(|cursor| cursor.list("[", "]", |cursor| nested(cursor, dtype, inner, bytes)))?;
    (items.len() as i64 == dim).then_some(())
}

/// Appends one element.
pub(super) fn element(dtype: DType, word: &str, bytes: &mut Vec<u8>) -> Option<()> {
    let n_bytes = dtype.n_bytes();
    if let Some(hex) = word.strip_prefix("0x") {
        // The bits of a float, all of them.
        if !dtype.is_float() || hex.len() != 2 * n_bytes || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let bits = u64::from_str_radix(hex, 16).ok()?;
        bytes.extend_from_slice(&bits.to_le_bytes()[..n_bytes]);
        return Some(());
    }
    match dtype.class() {
        DTypeClass::Pred => bytes.push(match word {
            "true" => 1,
            "false" => 0,
            _ => return None,
        }),
        DTypeClass::Signed | DTypeClass::Unsigned => {
            let value: i128 = word.parse().ok()?;
            let bits = 8 * n_bytes as u32;
            let is_signed = dtype.class() == DTypeClass::Signed;
            let (least, most) =
                if is_signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
            if word.starts_with('+') || !(least..=most).contains(&value) {
                return None;
            }
            bytes.extend_from_slice(&value.to_le_bytes()[..n_bytes]);
        }
        // As MLIR does: to f64, then to the type.
        DTypeClass::Float => {
            let begins = word.strip_prefix('-').unwrap_or(word).starts_with(|first: char| first.is_ascii_digit());
            if !begins || !word.contains('.') {
                return None;
            }
            let Literal::Array { bytes: of_scalar, .. } = Literal::scalar_of(dtype, word.parse().ok()?)? else {
                return None;
            };
            bytes.extend_from_slice(&of_scalar);
        }
        DTypeClass::Complex => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(text: &str) -> Option<Literal> {
        Cursor::new(text).dense().map(|dense| dense.literal)
    }

    #[test]
    fn types_are_read_and_others_are_not() {
        let tensor = |text| Cursor::new(text).tensor();
        assert_eq!(tensor("tensor<2x0x8xbf16>"), Some(Shape::array(DType::BF16, [2, 0, 8])));
        assert_eq!(tensor("tensor<ui8>"), Some(Shape::scalar(DType::U8)));
        for other in [
            "tensor<?xf32>",
            "tensor<2x f32>",
            "tensor<2>",
            "tensor<4xcomplex<f32>>",
            "tensor<2x!quant.uniform<i8:f32, 1.0>>",
            "tensor<2xf32, #stablehlo.bounds<3>>",
            "tensor<99999999999999999999xf32>",
            "!stablehlo.token",
            "tensor<2xf32",
        ] {
            assert_eq!(tensor(other), None, "{other}");
        }
    }

    #[test]
    fn constants_are_read_in_each_form() {
        assert_eq!(dense("<0xFF800000> : tensor<f32>"), Some(Literal::scalar(f32::NEG_INFINITY)));
        assert_eq!(
            dense("<[[1, -2], [3, 4]]> : tensor<2x2xi16>"),
            Some(Literal::from_elements([2, 2], &[1i16, -2, 3, 4]))
        );
        assert_eq!(dense("<\"0x0000803F000000C0\"> : tensor<2xf32>"), Some(Literal::from_elements([2], &[1f32, -2.0])));
        assert_eq!(dense("<[true, false]> : tensor<2xi1>"), Some(Literal::from_elements([2], &[true, false])));
        assert_eq!(dense("<> : tensor<0x3xf32>"), Some(Literal::from_elements::<f32>([0, 3], &[])));
        assert_eq!(dense("<4.471500e-02> : tensor<f32>"), Some(Literal::scalar(0.044715f32)));
        // One element that is all of them, however many.
        assert_eq!(dense("<1> : tensor<9000000000x9xui8>"), Some(Literal::scalar(1u8)));
        assert_eq!(Cursor::new("<-1> : tensor<2x2xi64>").dense().unwrap().ints(), Some(vec![-1; 4]));
    }

    #[test]
    fn constants_that_are_not_of_their_type_are_none() {
        for text in [
            "<1> : tensor<f32>",
            "<1.0> : tensor<i32>",
            "<256> : tensor<ui8>",
            "<-1> : tensor<ui8>",
            "<128> : tensor<i8>",
            "<0x7FC0> : tensor<f32>",
            "<0xFF> : tensor<i8>",
            "<[1, 2, 3]> : tensor<2xi32>",
            "<[[1], [2]]> : tensor<2xi32>",
            "<[1, 2] 3> : tensor<2xi32>",
            "<\"0x00\"> : tensor<2xui8>",
            "<\"0x01\"> : tensor<1xi1>",
            "<nan> : tensor<f32>",
            "<1.0> : tensor<0xf32>",
            "<> : tensor<f32>",
            "<+1> : tensor<i32>",
        ] {
            assert_eq!(dense(text), None, "{text}");
        }
    }
}
