//! Converts the text form of protocol buffers (`.pbtxt`) to the binary form by a [`Schema`]. Fields that the schema does not
//! have are skipped; values are not interpreted beyond their encoding.
//!
//! Source: the text format's specification, as `google/protobuf/text_format.cc` reads it.

use prost::encoding::{WireType, encode_key, encode_varint};

use super::dtypes;
use super::schema::{Field, FieldType, Schema};

/// The deepest nesting of messages that is read.
const MAX_DEPTH: u32 = 64;

/// A syntax error, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextProblem {
    /// The line, counted from 1.
    pub line: u32,
    /// The token at the error, and the expected one.
    pub message: String,
}

/// The binary form of a text.
pub(crate) fn to_binary(text: &str, schema: &'static Schema) -> Result<Vec<u8>, TextProblem> {
    let mut reader = Reader { text, rest: text };
    let mut out = Vec::new();
    reader.skip();
    reader.fields(Some(schema), None, 0, &mut out)?;
    Ok(out)
}

/// The name of the first field of a text, which shows what kind of message it is.
pub(crate) fn first_field(text: &str) -> Option<&str> {
    let mut reader = Reader { text, rest: text };
    reader.skip();
    let name = reader.word();
    reader.skip();
    (!name.is_empty() && reader.rest.starts_with([':', '{'])).then_some(name)
}

struct Reader<'t> {
    text: &'t str,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn problem(&self, expected: &str) -> TextProblem {
        let at = self.text.len() - self.rest.len();
        let line = 1 + self.text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() as u32;
        let seen: String = self.rest.chars().take(12).take_while(|c| *c != '\n').collect();
        let seen = match (seen.is_empty(), self.rest.is_empty()) {
            (false, _) => format!("`{}`", seen.escape_debug()),
            (true, true) => "the end of the text".to_string(),
            (true, false) => "the end of the line".to_string(),
        };
        TextProblem { line, message: format!("found {seen}, expected {expected}") }
    }

    /// Skips whitespace and comments.
    fn skip(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix('#') else { return };
            self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
        }
    }

    /// Takes a character and the whitespace after it, if the character comes next.
    fn take(&mut self, letter: char) -> bool {
        let is_there = self.rest.starts_with(letter);
        if is_there {
            self.rest = &self.rest[letter.len_utf8()..];
            self.skip();
        }
        is_there
    }

    /// Takes a name or a number; empty if neither comes next.
    fn word(&mut self) -> &'t str {
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+' | '/');
        let end = self.rest.find(|c| !is_of_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.skip();
        word
    }

    /// Fields up to `end`, or to the end of the text.
    fn fields(
        &mut self,
        schema: Option<&'static Schema>,
        end: Option<char>,
        depth: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), TextProblem> {
        if depth > MAX_DEPTH {
            return Err(self.problem(&format!("at most {MAX_DEPTH} messages in each other")));
        }
        loop {
            match end {
                Some(end) if self.take(end) => return Ok(()),
                None if self.rest.is_empty() => return Ok(()),
                Some(_) | None => {}
            }
            // An extension, or the type of an `Any`, in brackets.
            let name = if self.take('[') {
                let name = self.word();
                if !self.take(']') {
                    return Err(self.problem("`]`"));
                }
                name
            } else {
                self.word()
            };
            if name.is_empty() {
                return Err(self.problem(&match end {
                    Some(end) => format!("the name of a field or `{end}`"),
                    None => "the name of a field".to_string(),
                }));
            }
            let field = schema.and_then(|schema| schema.fields.iter().find(|field| field.name == name));
            let has_colon = self.take(':');
            if has_colon && self.take('[') {
                while !self.take(']') {
                    self.value(field, depth, out)?;
                    self.take(',');
                }
            } else if has_colon || self.rest.starts_with(['{', '<']) {
                self.value(field, depth, out)?;
            } else {
                return Err(self.problem("`:` or `{`"));
            }
            if !self.take(',') {
                self.take(';');
            }
        }
    }

    fn value(&mut self, field: Option<&'static Field>, depth: u32, out: &mut Vec<u8>) -> Result<(), TextProblem> {
        let end = match self.rest.as_bytes().first() {
            Some(b'{') => Some('}'),
            Some(b'<') => Some('>'),
            _ => None,
        };
        if let Some(end) = end {
            let inner = match field.map(|field| field.ty) {
                Some(FieldType::Message(inner)) => Some(inner),
                None => None,
                Some(_) => return Err(self.problem("a value, not a message")),
            };
            self.rest = &self.rest[1..];
            self.skip();
            let mut bytes = Vec::new();
            self.fields(inner, Some(end), depth + 1, &mut bytes)?;
            field.iter().for_each(|field| put_bytes(field.tag, &bytes, out));
            return Ok(());
        }
        if self.rest.starts_with(['"', '\'']) {
            let mut bytes = Vec::new();
            while self.rest.starts_with(['"', '\'']) {
                self.string(&mut bytes)?;
            }
            return match field.map(|field| field.ty) {
                Some(FieldType::Bytes) => {
                    field.iter().for_each(|field| put_bytes(field.tag, &bytes, out));
                    Ok(())
                }
                None => Ok(()),
                Some(_) => Err(self.problem("another kind of value than text before it")),
            };
        }
        let before = self.rest;
        let word = self.word();
        let is_put = !word.is_empty() && field.is_none_or(|field| put_word(field, word, out));
        if !is_put {
            self.rest = before;
            return Err(self.problem(field.map_or("a value", |field| expected(field.ty))));
        }
        Ok(())
    }

    fn string(&mut self, bytes: &mut Vec<u8>) -> Result<(), TextProblem> {
        let quote = self.rest.as_bytes()[0];
        let all = self.rest.as_bytes();
        let mut at = 1;
        loop {
            match all.get(at) {
                None | Some(b'\n') => return Err(self.problem("text with a quote at its end")),
                Some(byte) if *byte == quote => break,
                Some(b'\\') => {
                    let (byte, n) = match escape(&all[at + 1..]) {
                        Some(escaped) => escaped,
                        None => return Err(self.problem("text with escapes of C")),
                    };
                    bytes.push(byte);
                    at += 1 + n;
                }
                Some(byte) => {
                    bytes.push(*byte);
                    at += 1;
                }
            }
        }
        self.rest = &self.rest[at + 1..];
        self.skip();
        Ok(())
    }
}

/// The byte that an escape stands for, and how many characters it takes after the backslash.
fn escape(letters: &[u8]) -> Option<(u8, usize)> {
    let first = *letters.first()?;
    let digits = |radix: u32, from: usize, most: usize| {
        let n = letters[from..].iter().take(most).take_while(|letter| (**letter as char).is_digit(radix)).count();
        let digits = std::str::from_utf8(&letters[from..from + n]).ok()?;
        Some((u32::from_str_radix(digits, radix).ok()? as u8, from + n))
    };
    Some(match first {
        b'n' => (b'\n', 1),
        b't' => (b'\t', 1),
        b'r' => (b'\r', 1),
        b'a' => (7, 1),
        b'b' => (8, 1),
        b'f' => (12, 1),
        b'v' => (11, 1),
        b'\\' | b'\'' | b'"' | b'?' => (first, 1),
        b'0'..=b'7' => return digits(8, 0, 3),
        b'x' | b'X' => return digits(16, 1, 2),
        _ => return None,
    })
}

fn put_bytes(tag: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Writes a number or name; false if the field does not take it.
fn put_word(field: &Field, word: &str, out: &mut Vec<u8>) -> bool {
    match field.ty {
        FieldType::Varint => match whole(word).or_else(|| dtypes::from_name(word)) {
            Some(number) => {
                encode_key(field.tag, WireType::Varint, out);
                encode_varint(number as u64, out);
                true
            }
            None => false,
        },
        FieldType::DType => match dtypes::from_name(word).or_else(|| whole(word)) {
            Some(number) => {
                encode_key(field.tag, WireType::Varint, out);
                encode_varint(number as u64, out);
                true
            }
            None => false,
        },
        FieldType::Fixed32 => real(word).is_some_and(|value| {
            encode_key(field.tag, WireType::ThirtyTwoBit, out);
            out.extend_from_slice(&(value as f32).to_le_bytes());
            true
        }),
        FieldType::Fixed64 => real(word).is_some_and(|value| {
            encode_key(field.tag, WireType::SixtyFourBit, out);
            out.extend_from_slice(&value.to_le_bytes());
            true
        }),
        FieldType::Bytes | FieldType::Message(_) => false,
    }
}

fn expected(ty: FieldType) -> &'static str {
    match ty {
        FieldType::Varint => "a whole number, or true or false",
        FieldType::DType => "a dtype such as DT_FLOAT",
        FieldType::Fixed32 | FieldType::Fixed64 => "a number",
        FieldType::Bytes => "text in quotes",
        FieldType::Message(_) => "`{`",
    }
}

fn whole(word: &str) -> Option<i64> {
    match word {
        "true" | "True" | "t" => return Some(1),
        "false" | "False" | "f" => return Some(0),
        _ => {}
    }
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => i128::from_str_radix(digits, 16).ok()?,
        None => digits.parse::<i128>().ok()?,
    };
    let number = sign * number;
    i64::try_from(number).ok().or_else(|| u64::try_from(number).ok().map(|number| number as i64))
}

fn real(word: &str) -> Option<f64> {
    match word.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => Some(f64::INFINITY),
        "-inf" | "-infinity" => Some(f64::NEG_INFINITY),
        "nan" | "-nan" => Some(f64::NAN),
        word => word.strip_suffix('f').unwrap_or(word).parse().ok(),
    }
}

#[cfg(test)]
mod tests;
