//! Numbers as C++ prints them (`%.9g`), and quoted strings as Abseil escapes them.

use crate::{DType, Element, ElementVisitor};
use half::{bf16, f16};

/// `%.{precision}g`: the shorter of fixed and scientific notation, without trailing zeros.
pub(super) fn general(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.to_string();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.to_string();
    }
    let precision = precision.max(1);
    let scientific = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("`e` formatting writes an exponent");
    let exponent: i32 = exponent.parse().expect("`e` formatting writes a decimal exponent");
    let trim = |digits: &str| -> String {
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }.to_string()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    } else {
        trim(&format!("{value:.*}", (precision as i32 - 1 - exponent) as usize))
    }
}

/// An f32 in as few digits as round-trip: 6, else 9.
pub(super) fn f32_text(value: f32) -> String {
    let short = general(value.into(), 6);
    if short.parse::<f32>().is_ok_and(|parsed| parsed == value) { short } else { general(value.into(), 9) }
}

/// An f64 in as few digits as round-trip: 15, else 17.
pub(crate) fn f64_text(value: f64) -> String {
    let short = general(value, 15);
    if short.parse::<f64>().is_ok_and(|parsed| parsed == value) { short } else { general(value, 17) }
}

/// One element of an array from its little-endian bytes, with a NaN's payload if it is not the default one.
pub(crate) fn element(dtype: DType, bytes: &[u8]) -> String {
    struct Text<'a>(&'a [u8]);
    impl ElementVisitor for Text<'_> {
        type Output = String;

        fn visit<T: Element>(self) -> String {
            T::read(self.0).to_string()
        }
    }
    match dtype {
        DType::BF16 => {
            let value = bf16::read(bytes);
            with_payload(general(value.to_f64(), 4), (value.to_bits() & 0x7f).into(), 0x40, value.is_nan())
        }
        DType::F16 => {
            let value = f16::read(bytes);
            with_payload(general(value.to_f64(), 5), (value.to_bits() & 0x3ff).into(), 0x200, value.is_nan())
        }
        DType::F32 => f32_element(f32::read(bytes)),
        DType::F64 => f64_element(f64::read(bytes)),
        DType::C64 => {
            let [real, imag] = [&bytes[..4], &bytes[4..]].map(|part| element(DType::F32, part));
            format!("({real}, {imag})")
        }
        DType::C128 => {
            let [real, imag] = [&bytes[..8], &bytes[8..]].map(|part| element(DType::F64, part));
            format!("({real}, {imag})")
        }
        // `pred` and integers as Rust writes them; otherwise a float of 8 bits or less.
        _ => dtype.stored().visit(Text(bytes)).unwrap_or_else(|| small_float(dtype, bytes[0])),
    }
}

fn f32_element(value: f32) -> String {
    with_payload(f32_text(value), (value.to_bits() & 0x7f_ffff).into(), 0x40_0000, value.is_nan())
}

fn f64_element(value: f64) -> String {
    with_payload(f64_text(value), value.to_bits() & 0xf_ffff_ffff_ffff, 0x8_0000_0000_0000, value.is_nan())
}

fn with_payload(text: String, payload: u64, plain: u64, is_nan: bool) -> String {
    if is_nan && payload != plain { format!("{text}(0x{payload:x})") } else { text }
}

/// The layout of a float format of at most 8 bits.
pub(super) struct SmallFloat {
    /// Exponent bits.
    pub(super) exponent_bits: u32,
    /// Fraction bits.
    pub(super) fraction_bits: u32,
    /// Exponent bias.
    pub(super) bias: i32,
    /// The meaning of the largest exponent, and of negative zero.
    pub(super) specials: Specials,
}

/// The bit patterns that a small format uses for infinities and NaN.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Specials {
    /// As IEEE 754: the largest exponent is infinity or NaN.
    Ieee,
    /// `fn`: all ones is NaN, no infinities.
    OnesAreNan,
    /// `fnuz`: negative zero is NaN, no infinities.
    NegativeZeroIsNan,
    /// Finite numbers only.
    Finite,
}

impl SmallFloat {
    /// The format of a dtype, if it is a small float. `f8e8m0fnu` is not: it has no sign.
    pub(super) fn for_dtype(dtype: DType) -> Option<SmallFloat> {
        let (exponent_bits, fraction_bits, bias, specials) = match dtype {
            DType::F8E5M2 => (5, 2, 15, Specials::Ieee),
            DType::F8E4M3 => (4, 3, 7, Specials::Ieee),
            DType::F8E3M4 => (3, 4, 3, Specials::Ieee),
            DType::F8E4M3FN => (4, 3, 7, Specials::OnesAreNan),
            DType::F8E4M3B11FNUZ => (4, 3, 11, Specials::NegativeZeroIsNan),
            DType::F8E4M3FNUZ => (4, 3, 8, Specials::NegativeZeroIsNan),
            DType::F8E5M2FNUZ => (5, 2, 16, Specials::NegativeZeroIsNan),
            DType::F4E2M1FN => (2, 1, 1, Specials::Finite),
            DType::F6E3M2FN => (3, 2, 3, Specials::Finite),
            DType::F6E2M3FN => (2, 3, 1, Specials::Finite),
            _ => return None,
        };
        Some(SmallFloat { exponent_bits, fraction_bits, bias, specials })
    }

    /// The value of a bit pattern.
    pub(super) fn value(&self, bits: u8) -> f64 {
        let n_bits = 1 + self.exponent_bits + self.fraction_bits;
        let negative = bits >> (n_bits - 1) & 1 == 1;
        let exponent = (bits >> self.fraction_bits) as i32 & ((1 << self.exponent_bits) - 1);
        let fraction = bits & ((1 << self.fraction_bits) - 1);
        let top_exponent = exponent == (1 << self.exponent_bits) - 1;
        let is_nan = match self.specials {
            Specials::Ieee => top_exponent && fraction != 0,
            Specials::OnesAreNan => top_exponent && fraction == (1 << self.fraction_bits) - 1,
            Specials::NegativeZeroIsNan => negative && exponent == 0 && fraction == 0,
            Specials::Finite => false,
        };
        let scaled = |mantissa: u8, exponent: i32| f64::from(mantissa) * 2f64.powi(exponent);
        let fraction_bits = self.fraction_bits as i32;
        let magnitude = if is_nan {
            f64::NAN
        } else if top_exponent && self.specials == Specials::Ieee {
            f64::INFINITY
        } else if exponent == 0 {
            scaled(fraction, 1 - self.bias - fraction_bits)
        } else {
            scaled(fraction + (1 << self.fraction_bits), exponent - self.bias - fraction_bits)
        };
        if negative && !(is_nan && self.specials == Specials::NegativeZeroIsNan) { -magnitude } else { magnitude }
    }

    /// The number of digits that distinguish all values: ⌈1 + p log₁₀ 2⌉ for p significant bits.
    fn digits(&self) -> usize {
        (1.0 + f64::from(self.fraction_bits + 1) * std::f64::consts::LOG10_2).ceil() as usize
    }
}

fn small_float(dtype: DType, bits: u8) -> String {
    match SmallFloat::for_dtype(dtype) {
        Some(format) => {
            let value = format.value(bits);
            let payload = bits & ((1 << format.fraction_bits) - 1);
            // Only the IEEE-like formats have more than one NaN.
            let is_nan = value.is_nan() && format.specials == Specials::Ieee;
            let plain = 1 << (format.fraction_bits - 1);
            with_payload(general(value, format.digits()), payload.into(), plain, is_nan)
        }
        None => general(scale(bits), 2),
    }
}

/// The value of an `f8e8m0fnu`: 2^(bits - 127), all ones is NaN.
pub(super) fn scale(bits: u8) -> f64 {
    if bits == 0xff { f64::NAN } else { 2f64.powi(i32::from(bits) - 127) }
}

/// Escapes a string for double quotes: as Abseil's `CEscape`, bytes that are not printable ASCII in octal.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'\n' => escaped.push_str("\\n"),
            b'\r' => escaped.push_str("\\r"),
            b'\t' => escaped.push_str("\\t"),
            b'"' => escaped.push_str("\\\""),
            b'\'' => escaped.push_str("\\'"),
            b'\\' => escaped.push_str("\\\\"),
            b' '..=b'~' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("\\{byte:03o}")),
        }
    }
    escaped
}

/// Whether text can stand without quotes because it is one balanced `{…}` whose strings are closed.
pub(super) fn is_json_dict(text: &str) -> bool {
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' => depth += 1,
            b'}' if depth == 1 => return at + 1 == text.len(),
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_xla_prints_them() {
        let f32s = [
            (0.0, "0"),
            (-0.0, "-0"),
            (0.1, "0.1"),
            (1e-8, "1e-08"),
            (0.044715, "0.044715"),
            (0.797_884_6, "0.797884583"),
            (1.000_244_3, "1.00024426"),
            (1e6, "1e+06"),
            (123456.0, "123456"),
            (16_777_217.0, "16777216"),
            (f32::NEG_INFINITY, "-inf"),
            (f32::NAN, "nan"),
            (f32::from_bits(0x7fc0_0001), "nan(0x400001)"),
            (f32::MAX, "3.40282347e+38"),
        ];
        for (value, text) in f32s {
            assert_eq!(element(DType::F32, &value.to_le_bytes()), text);
        }
        assert_eq!(element(DType::BF16, &bf16::from_f32(0.1).to_le_bytes()), "0.1001");
        assert_eq!(element(DType::F16, &f16::MAX.to_le_bytes()), "65504");
        assert_eq!(element(DType::F64, &0.1f64.to_le_bytes()), "0.1");
        assert_eq!(element(DType::F64, &(0.1f64 + 0.2).to_le_bytes()), "0.30000000000000004");
    }

    #[test]
    fn small_floats_have_their_values() {
        assert_eq!(small_float(DType::F8E4M3FN, 0x7e), "448");
        assert_eq!(small_float(DType::F8E4M3FN, 0x7f), "nan");
        assert_eq!(small_float(DType::F8E5M2, 0x7b), "5.7e+04");
        assert_eq!(small_float(DType::F8E5M2, 0xfc), "-inf");
        assert_eq!(small_float(DType::F8E4M3FNUZ, 0x80), "nan");
        assert_eq!(small_float(DType::F4E2M1FN, 0x0f), "-6");
        // The largest value of each, as in the OCP microscaling specification.
        assert_eq!(small_float(DType::F6E3M2FN, 0x1f), "28");
        assert_eq!(small_float(DType::F6E2M3FN, 0x3f), "-7.5");
        assert_eq!(small_float(DType::F8E8M0FNU, 127), "1");
        assert_eq!(small_float(DType::F8E3M4, 0x01), "0.0156");
    }

    #[test]
    fn strings_escape_and_json_stands_bare() {
        assert_eq!(escape("v['a']\n\"é\\"), "v[\\'a\\']\\n\\\"\\303\\251\\\\");
        assert!(is_json_dict(r#"{"a":{"b":"}"}}"#));
        assert!(!is_json_dict(r#"{"a":1} "#) && !is_json_dict("text") && !is_json_dict("") && !is_json_dict("{"));
    }
}
