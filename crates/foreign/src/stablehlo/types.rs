//! Types, constants and lists as MLIR writes them, and how something without a form there is reported.

use std::fmt::Write as _;

use bf16scope_hlo::element::integers;
use bf16scope_hlo::{DType, DTypeClass, Literal, Shape};

/// The remedy where StableHLO cannot express something.
pub(super) const KEEP_HLO: &str = "write HLO instead, text or proto, which XLA's plugins read too; of a function \
                                   for `bf16scope.jax.lower`, lower the parts without this op";

/// The thing that is missing, and the remedy.
pub(super) type Missing = (String, &'static str);

pub(super) fn missing(what: &str) -> Missing {
    (what.to_string(), KEEP_HLO)
}

/// `tensor<4x8xf32>`; `None` for what StableHLO has no type for.
pub(super) fn of_shape(shape: &Shape) -> Option<String> {
    match shape {
        Shape::Array(array) if !array.has_dynamic() => {
            let mut text = "tensor<".to_string();
            for dim in &array.dims {
                write!(text, "{dim}x").ok()?;
            }
            write!(text, "{}>", element(array.dtype)).ok()?;
            Some(text)
        }
        Shape::Token => Some("!stablehlo.token".to_string()),
        Shape::Array(_) | Shape::Tuple(_) | Shape::Opaque | Shape::Buffer(_) => None,
    }
}

/// An element type: `f32`, `ui8`, `complex<f32>`, `f8E4M3FN`.
pub(super) fn element(dtype: DType) -> String {
    match dtype.class() {
        DTypeClass::Pred => "i1".to_string(),
        DTypeClass::Signed => format!("i{}", dtype.bits()),
        DTypeClass::Unsigned => format!("ui{}", dtype.bits()),
        DTypeClass::Complex => format!("complex<f{}>", dtype.bits() / 2),
        DTypeClass::Float => match dtype {
            DType::BF16 | DType::F16 | DType::F32 | DType::F64 => dtype.name().to_string(),
            // The exponent, the fraction and what is special are in capitals.
            dtype => format!("f{}", dtype.name()[1..].to_uppercase()),
        },
    }
}

/// `dense<…> : tensor<…>`; `None` for what is no array.
pub(super) fn of_literal(literal: &Literal) -> Option<String> {
    let Literal::Array { shape, bytes } = literal else { return None };
    let ty = of_shape(&Shape::Array(shape.clone()))?;
    let width = shape.dtype.n_bytes();
    let mut elements = bytes.chunks_exact(width);
    let Some(first) = elements.next() else { return Some(format!("dense<> : {ty}")) };
    let text = if elements.all(|element| element == first) {
        one(shape.dtype, first)?
    } else if shape.dtype.bits() >= 8 && shape.dtype != DType::Pred {
        format!("\"0x{}\"", hex(bytes.iter()))
    } else {
        // Packed otherwise in MLIR: written one by one.
        nested(&shape.dims, &mut bytes.chunks_exact(width).map(|bytes| one(shape.dtype, bytes)))?
    };
    Some(format!("dense<{text}> : {ty}"))
}

/// One element, to the last bit: floats by their bits.
fn one(dtype: DType, bytes: &[u8]) -> Option<String> {
    Some(match dtype.class() {
        DTypeClass::Pred => if bytes[0] != 0 { "true" } else { "false" }.to_string(),
        DTypeClass::Signed | DTypeClass::Unsigned => integers(dtype, bytes)?.next()?.to_string(),
        DTypeClass::Float => format!("0x{}", hex(bytes.iter().rev())),
        DTypeClass::Complex => {
            let (real, imag) = bytes.split_at(bytes.len() / 2);
            format!("(0x{}, 0x{})", hex(real.iter().rev()), hex(imag.iter().rev()))
        }
    })
}

/// `[[a, b], [c, d]]`. Recursion is as deep as the rank.
fn nested(dims: &[i64], elements: &mut dyn Iterator<Item = Option<String>>) -> Option<String> {
    let Some((&size, rest)) = dims.split_first() else { return elements.next()? };
    let parts: Option<Vec<String>> = (0..size).map(|_| nested(rest, elements)).collect();
    Some(format!("[{}]", parts?.join(", ")))
}

fn hex<'a>(bytes: impl Iterator<Item = &'a u8>) -> String {
    bytes.fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02X}").expect("writing to a string cannot fail");
        text
    })
}

/// `1, 2`.
pub(super) fn plain(values: &[i64]) -> String {
    values.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// `name = array<i64: 1, 2>`.
pub(super) fn ints(name: &str, values: &[i64]) -> String {
    match values {
        [] => format!("{name} = array<i64>"),
        values => format!("{name} = array<i64: {}>", plain(values)),
    }
}

/// Text between quotes: MLIR's strings know `\"`, `\\` and two hexadecimal digits.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => out.push(char::from(byte)),
            byte => write!(out, "\\{byte:02X}").expect("writing to a string cannot fail"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::ArrayShape;

    #[test]
    fn constants_are_written_to_the_last_bit() {
        let check = |literal: &Literal, expected: &str| assert_eq!(of_literal(literal).unwrap(), expected);
        check(&Literal::scalar(-1i32), "dense<-1> : tensor<i32>");
        check(&Literal::scalar(200u8), "dense<200> : tensor<ui8>");
        check(&Literal::scalar(u64::MAX), "dense<18446744073709551615> : tensor<ui64>");
        let small = ArrayShape::new(DType::S4, [2]);
        check(&Literal::Array { shape: small, bytes: vec![0xF8, 7] }, "dense<[-8, 7]> : tensor<2xi4>");
        check(&Literal::scalar(1.5f32), "dense<0x3FC00000> : tensor<f32>");
        check(&Literal::scalar(half::bf16::from_f32(-2.0)), "dense<0xC000> : tensor<bf16>");
        check(&Literal::from_elements([2], &[true, false]), "dense<[true, false]> : tensor<2xi1>");
        check(&Literal::from_elements([2, 1], &[1i16, 2]), "dense<\"0x01000200\"> : tensor<2x1xi16>");
        check(&Literal::from_elements([0, 3], &[0f32; 0]), "dense<> : tensor<0x3xf32>");
        check(&Literal::from_elements([3], &[f32::NAN; 3]), "dense<0x7FC00000> : tensor<3xf32>");
        assert_eq!(of_literal(&Literal::Token), None);
    }

    #[test]
    fn types_and_strings_are_mlirs() {
        assert_eq!(element(DType::F8E4M3B11FNUZ), "f8E4M3B11FNUZ");
        assert_eq!(element(DType::C128), "complex<f64>");
        assert_eq!(element(DType::U4), "ui4");
        assert_eq!(escaped("a\"b\\\u{e9}"), "a\\\"b\\\\\\C3\\A9");
    }
}
