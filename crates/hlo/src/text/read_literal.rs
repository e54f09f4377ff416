//! Literals from text: the inverse of `literal`.

use super::error::ParseErrorKind;
use super::lex::{Cursor, MAX_DEPTH, Read};
use super::number::{SmallFloat, scale};
use crate::{ArrayShape, DType, Literal, Shape};
use crate::{Element, ElementVisitor};
use half::{bf16, f16};

/// Reads a literal of a shape.
pub(super) fn literal(cursor: &mut Cursor<'_>, shape: &Shape) -> Read<Literal> {
    match shape {
        Shape::Tuple(elements) => {
            let mut literals = Vec::with_capacity(elements.len());
            cursor.expect("(")?;
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    cursor.expect(",")?;
                }
                cursor.spend(2 * size_of::<Literal>())?;
                literals.push(literal(cursor, element)?);
            }
            cursor.expect(")")?;
            Ok(Literal::Tuple(literals))
        }
        Shape::Token => match cursor.word_or_empty() {
            "" | "token" => Ok(Literal::Token),
            _ => Err(cursor.expected("`token`")),
        },
        Shape::Opaque | Shape::Buffer(_) => Err(cursor.expected("no constant, for an opaque value has none")),
        Shape::Array(array) => {
            let rank = array.rank();
            if rank > MAX_DEPTH {
                return Err(cursor.fault(ParseErrorKind::TooDeep { max: MAX_DEPTH }));
            }
            refuse_elided(*cursor)?;
            let mut reader = Reader { array, codes: Codes::for_dtype(array.dtype), bytes: Vec::new() };
            // The text bounds the number of elements, whatever the shape says.
            let n_text = (cursor.end - cursor.pos) as i64;
            let n_elements = array.n_elements().clamp(0, n_text) as usize;
            cursor.spend(n_elements * array.dtype.n_bytes())?;
            reader.bytes.reserve(n_elements * array.dtype.n_bytes());
            reader.dimension(cursor, 0)?;
            Ok(Literal::Array { shape: array.clone(), bytes: reader.bytes })
        }
    }
}

fn refuse_elided(mut cursor: Cursor<'_>) -> Read<()> {
    let start = cursor;
    if cursor.eat("{") && cursor.eat("...") { Err(start.fault(ParseErrorKind::Elided)) } else { Ok(()) }
}

struct Reader<'a> {
    array: &'a ArrayShape,
    codes: Codes,
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// Elements of the dimensions from `axis` on.
    fn dimension(&mut self, cursor: &mut Cursor<'_>, axis: usize) -> Read<()> {
        let Some(&size) = self.array.dims.get(axis) else { return self.element(cursor) };
        let array = self.array;
        let expected = |cursor: &mut Cursor<'_>, found: &str| {
            cursor.expected(format!("{size} elements in dimension {axis} of {array}, here {found}"))
        };
        cursor.expect("{")?;
        let mut n_read = 0;
        while cursor.peek() != Some(b'}') {
            if n_read > 0 {
                cursor.expect(",")?;
            }
            if n_read == size {
                return Err(expected(cursor, "are more"));
            }
            self.dimension(cursor, axis + 1)?;
            n_read += 1;
        }
        if n_read != size {
            return Err(expected(cursor, &format!("are {n_read}")));
        }
        cursor.expect("}")
    }

    fn element(&mut self, cursor: &mut Cursor<'_>) -> Read<()> {
        let dtype = self.array.dtype;
        if dtype.is_complex() {
            cursor.expect("(")?;
            self.number(cursor, if dtype == DType::C64 { DType::F32 } else { DType::F64 })?;
            cursor.expect(",")?;
            self.number(cursor, if dtype == DType::C64 { DType::F32 } else { DType::F64 })?;
            return cursor.expect(")");
        }
        self.number(cursor, dtype)
    }

    fn number(&mut self, cursor: &mut Cursor<'_>, dtype: DType) -> Read<()> {
        cursor.skip_blank();
        let start = *cursor;
        let token = cursor.word("a value")?;
        let payload = payload(cursor, token);
        let written = match payload {
            Some(payload) => write_nan(&mut self.bytes, dtype, token.starts_with('-'), payload),
            None => write_number(&mut self.bytes, dtype, token, &self.codes),
        };
        written.ok_or_else(|| {
            start.fault(ParseErrorKind::BadElement { token: token.chars().take(40).collect(), dtype: dtype.name() })
        })
    }
}

/// The payload of `nan(0x7fc001)`.
fn payload(cursor: &mut Cursor<'_>, token: &str) -> Option<u64> {
    if !matches!(token, "nan" | "-nan") || !cursor.eat("(") {
        return None;
    }
    let digits = cursor.word_or_empty();
    let payload = u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
    cursor.eat(")").then_some(payload)
}

fn write_nan(out: &mut Vec<u8>, dtype: DType, negative: bool, payload: u64) -> Option<()> {
    macro_rules! nan {
        ($ty:ty, $bits:ty, $fraction:literal) => {{
            if payload == 0 || payload >> $fraction != 0 {
                return None;
            }
            let sign = (negative as $bits) << (<$bits>::BITS - 1);
            let exponent = (<$ty>::INFINITY.to_bits() as $bits) | sign;
            <$ty>::from_bits(exponent | payload as $bits).write(out);
        }};
    }
    match dtype {
        DType::BF16 => nan!(bf16, u16, 7),
        DType::F16 => nan!(f16, u16, 10),
        DType::F32 => nan!(f32, u32, 23),
        DType::F64 => nan!(f64, u64, 52),
        DType::F8E5M2 | DType::F8E4M3 | DType::F8E3M4 => {
            let format = SmallFloat::for_dtype(dtype)?;
            if payload == 0 || payload >> format.fraction_bits != 0 {
                return None;
            }
            let exponent = (((1u16 << format.exponent_bits) - 1) << format.fraction_bits) as u8;
            out.push(u8::from(negative) << 7 | exponent | payload as u8);
        }
        _ => return None,
    }
    Some(())
}

/// Writes a number rounded once to its dtype; `None` if the dtype does not have such a value.
fn write_number(out: &mut Vec<u8>, dtype: DType, token: &str, codes: &Codes) -> Option<()> {
    let small_int = |bits: u32, signed: bool| -> Option<u8> {
        let value: i64 = token.parse().ok()?;
        let range = if signed { -(1i64 << (bits - 1))..=(1 << (bits - 1)) - 1 } else { 0..=(1 << bits) - 1 };
        range.contains(&value).then_some(value as u8)
    };
    struct Parse<'a>(&'a mut Vec<u8>, &'a str);
    impl ElementVisitor for Parse<'_> {
        type Output = Option<()>;

        fn visit<T: Element>(self) -> Option<()> {
            self.1.parse::<T>().ok()?.write(self.0);
            Some(())
        }
    }
    match dtype {
        DType::Pred => out.push(match token {
            "true" | "1" => 1,
            "false" | "0" => 0,
            _ => return None,
        }),
        DType::S1 | DType::S2 | DType::S4 => out.push(small_int(dtype.bits() as u32, true)?),
        DType::U1 | DType::U2 | DType::U4 => out.push(small_int(dtype.bits() as u32, false)?),
        _ if dtype.is_integer() => return dtype.visit(Parse(out, token))?,
        DType::F16 => in_range(f16::from_f64(token.parse().ok()?), token, f16::is_infinite)?.write(out),
        DType::BF16 => in_range(bf16::from_f64(token.parse().ok()?), token, bf16::is_infinite)?.write(out),
        DType::F32 => in_range(token.parse::<f32>().ok()?, token, f32::is_infinite)?.write(out),
        DType::F64 => in_range(token.parse::<f64>().ok()?, token, f64::is_infinite)?.write(out),
        // Read as two parts.
        DType::C64 | DType::C128 => return None,
        // Floats of 8 bits and less.
        _ => out.push(codes.nearest(token.parse().ok()?)?),
    }
    Some(())
}

/// The value, unless it is an infinity and the token is a number: that is beyond the dtype's largest.
fn in_range<T: Copy>(value: T, token: &str, is_infinite: fn(T) -> bool) -> Option<T> {
    let is_named = token.trim_start_matches(['-', '+']).starts_with(['i', 'I']);
    (is_named || !is_infinite(value)).then_some(value)
}

/// The values of all bit patterns of a small float; empty for other dtypes.
struct Codes(Vec<(f64, u8)>);

impl Codes {
    fn for_dtype(dtype: DType) -> Codes {
        let n_patterns = 1u16 << dtype.bits().min(8);
        let all = || (0..n_patterns).map(|bits| bits as u8);
        match SmallFloat::for_dtype(dtype) {
            Some(format) => Codes(all().map(|bits| (format.value(bits), bits)).collect()),
            None if dtype == DType::F8E8M0FNU => Codes(all().map(|bits| (scale(bits), bits)).collect()),
            None => Codes(Vec::new()),
        }
    }

    /// The pattern nearest to a value, ties to even. `None` for a NaN or infinity that the dtype does not have, and
    /// for numbers beyond the largest.
    fn nearest(&self, value: f64) -> Option<u8> {
        if value.is_nan() {
            let sign_matches = |bits: u8| (bits >> 7 == 1) == value.is_sign_negative();
            let nans = || self.0.iter().filter(|(candidate, _)| candidate.is_nan()).map(|&(_, bits)| bits);
            // The quiet NaN without payload is the middle one of its sign.
            let same_sign: Vec<u8> = nans().filter(|&bits| sign_matches(bits)).collect();
            return same_sign.get(same_sign.len() / 2).copied().or_else(|| nans().next());
        }
        let finite = self.0.iter().map(|&(candidate, _)| candidate.abs()).filter(|candidate| candidate.is_finite());
        if value.is_finite() && value.abs() > finite.fold(0.0, f64::max) {
            return None;
        }
        let distance = |candidate: f64| if candidate == value { 0.0 } else { (candidate - value).abs() };
        self.0
            .iter()
            .filter(|(candidate, _)| !candidate.is_nan() && (candidate.is_finite() || *candidate == value))
            .filter(|_| value.is_finite() || self.0.iter().any(|&(candidate, _)| candidate == value))
            .min_by(|a, b| {
                let sign = |candidate: f64| candidate.is_sign_negative() != value.is_sign_negative();
                let key = |&(candidate, bits): &(f64, u8)| (distance(candidate), sign(candidate), bits & 1, bits);
                let (a, b) = (key(a), key(b));
                a.0.total_cmp(&b.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3)))
            })
            .map(|&(_, bits)| bits)
    }
}
