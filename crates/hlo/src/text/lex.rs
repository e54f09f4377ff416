//! A cursor over HLO text: words, numbers, strings, balanced values and shapes.
//!
//! HLO's tokens depend on their context (`3x3_1`, `b01f_01io->b01f`, `{1,0:T(8,128)}`), so there is no separate stream
//! of tokens: a reader asks the cursor for the expected token. Nothing is copied.

mod shape;

use super::error::ParseErrorKind;
use memchr::memchr2;
use smallvec::SmallVec;
use std::cell::Cell;

/// The deepest nesting of shapes that is accepted; real ones are a few levels deep.
pub(crate) const MAX_DEPTH: usize = 100;

/// A byte offset and the error there.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) offset: usize,
    /// Boxed, so that the size of errors does not slow the successful path.
    pub(crate) kind: Box<ParseErrorKind>,
}

impl Fault {
    #[cold]
    pub(crate) fn new(offset: usize, kind: ParseErrorKind) -> Fault {
        Fault { offset, kind: Box::new(kind) }
    }
}

pub(crate) type Read<T> = Result<T, Fault>;

/// A position in the text, and the end of the part that may be read.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    pub(crate) text: &'a str,
    pub(crate) pos: usize,
    pub(crate) end: usize,
    /// How many more bytes of memory may be taken for values; unbounded if `None`.
    left: Option<&'a Cell<usize>>,
}

/// A part of the text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A short list while it is being read.
type Ints = SmallVec<[i64; 8]>;

/// The list as it is stored, with no more memory than it needs.
fn exact(ints: Ints) -> Vec<i64> {
    if ints.spilled() { ints.into_vec() } else { ints.to_vec() }
}

pub(super) const fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'+') || byte >= 0x80
}

/// Whether a value may end at this byte, or brackets, strings or comments begin or end there.
const fn is_value_mark(byte: u8) -> bool {
    matches!(byte, b'"' | b'/' | b'{' | b'(' | b'[' | b'}' | b')' | b']' | b',' | b'\n')
}

/// A table of one of the two functions above, for every byte.
macro_rules! table {
    ($of:ident) => {{
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < table.len() {
            table[byte] = $of(byte as u8);
            byte += 1;
        }
        table
    }};
}
const WORD_BYTES: [bool; 256] = table!(is_word_byte);
const VALUE_MARKS: [bool; 256] = table!(is_value_mark);

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, pos: 0, end: text.len(), left: None }
    }

    /// A cursor that fails when values take more memory than is `left`.
    pub(crate) fn bounded(text: &'a str, left: &'a Cell<usize>) -> Cursor<'a> {
        Cursor { left: Some(left), ..Cursor::new(text) }
    }

    /// Subtracts the estimated bytes of memory that a value here takes.
    ///
    /// Every place that appends to a list reports the size of an element, as a text of a few bytes per element can
    /// grow to many times its size. An upper estimate is enough; the text itself is not counted.
    #[inline]
    pub(crate) fn spend(&self, n_bytes: usize) -> Read<()> {
        let Some(left) = self.left else { return Ok(()) };
        match left.get().checked_sub(n_bytes) {
            Some(rest) => {
                left.set(rest);
                Ok(())
            }
            None => Err(self.fault(ParseErrorKind::TooLarge)),
        }
    }

    /// A cursor over a part of the same text.
    pub(crate) fn over(self, span: Span) -> Cursor<'a> {
        Cursor { pos: span.start, end: span.end, ..self }
    }

    pub(crate) fn slice(&self, span: Span) -> &'a str {
        &self.text[span.start..span.end]
    }

    /// The offset of a part of this text.
    pub(crate) fn offset_of(&self, part: &'a str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        if at < self.end { Some(self.text.as_bytes()[at]) } else { None }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.pos..self.end]
    }

    /// Skips white space and comments.
    #[inline]
    pub(crate) fn skip_blank(&mut self) {
        // Nearly always there is nothing, or one space, to skip.
        if self.byte(self.pos) == Some(b' ') {
            self.pos += 1;
        }
        if self.byte(self.pos).is_some_and(|byte| byte <= b' ' || byte == b'/') {
            self.skip_long_blank();
        }
    }

    fn skip_long_blank(&mut self) {
        loop {
            match self.byte(self.pos) {
                Some(byte) if byte.is_ascii_whitespace() => self.pos += 1,
                Some(b'/') => match self.byte(self.pos + 1) {
                    Some(b'*') => self.pos = self.find(b"*/", self.pos + 2).map_or(self.end, |at| at + 2),
                    Some(b'/') => self.pos = self.find(b"\n", self.pos).unwrap_or(self.end),
                    _ => return,
                },
                _ => return,
            }
        }
    }

    fn find(&self, needle: &[u8], from: usize) -> Option<usize> {
        let haystack = self.text.as_bytes().get(from..self.end)?;
        haystack.windows(needle.len()).position(|window| window == needle).map(|at| from + at)
    }

    /// The next byte that is not blank.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.skip_blank();
        self.byte(self.pos)
    }

    pub(crate) fn at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Takes a punctuation mark if it is next.
    #[inline(always)]
    pub(crate) fn eat(&mut self, mark: &str) -> bool {
        self.skip_blank();
        let is_next = self.rest().starts_with(mark.as_bytes());
        if is_next {
            self.pos += mark.len();
        }
        is_next
    }

    #[inline(always)]
    pub(crate) fn expect(&mut self, mark: &str) -> Read<()> {
        if self.eat(mark) { Ok(()) } else { Err(self.expected_mark(mark)) }
    }

    #[cold]
    fn expected_mark(&mut self, mark: &str) -> Fault {
        self.expected(format!("`{mark}`"))
    }

    /// An error here: the token in the text, and the expected one.
    #[cold]
    pub(crate) fn expected(&mut self, expected: impl Into<String>) -> Fault {
        self.skip_blank();
        let token = match self.byte(self.pos) {
            None if self.end == self.text.len() => "the end of the text".to_string(),
            None => "the end of the value".to_string(),
            Some(_) => {
                let rest = &self.text[self.pos..self.end];
                let n_word = rest.bytes().take_while(|&byte| is_word_byte(byte)).count();
                let token: String = match n_word {
                    0 => rest.chars().take(1).collect(),
                    n => rest[..n].chars().take(40).collect(),
                };
                format!("`{token}`")
            }
        };
        self.fault(ParseErrorKind::Expected { found: token, expected: expected.into() })
    }

    pub(crate) fn fault(&self, kind: ParseErrorKind) -> Fault {
        Fault::new(self.pos, kind)
    }

    /// A maximal run of letters, digits, `_`, `.`, `-`, `+`; may be empty. `->` is not part of it.
    pub(crate) fn word_or_empty(&mut self) -> &'a str {
        self.skip_blank();
        let start = self.pos;
        let bytes = self.text.as_bytes();
        let rest = &bytes[start..self.end];
        let mut n_word = rest.iter().position(|&byte| !WORD_BYTES[usize::from(byte)]).unwrap_or(rest.len());
        if rest.get(n_word) == Some(&b'>') && rest[..n_word].ends_with(b"-") {
            n_word -= 1;
        }
        self.pos += n_word;
        &self.text[start..self.pos]
    }

    /// A word that must be there; `what` describes it.
    pub(crate) fn word(&mut self, what: &str) -> Read<&'a str> {
        match self.word_or_empty() {
            "" => Err(self.expected(what)),
            word => Ok(word),
        }
    }

    /// A name, with or without `%`.
    pub(crate) fn name(&mut self, what: &str) -> Read<&'a str> {
        self.eat("%");
        self.word(what)
    }

    /// A number.
    pub(crate) fn int(&mut self) -> Read<i64> {
        self.skip_blank();
        let start = self.pos;
        let is_negative = self.byte(start) == Some(b'-');
        self.pos += usize::from(is_negative);
        let (digits, mut value) = (self.pos, 0i64);
        while let Some(digit @ b'0'..=b'9') = self.byte(self.pos) {
            value = value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            self.pos += 1;
        }
        // Eighteen digits always fit.
        if (1..=18).contains(&(self.pos - digits)) {
            return Ok(if is_negative { -value } else { value });
        }
        self.text[start..self.pos].parse().map_err(|_| {
            self.pos = start;
            self.expected("an integer")
        })
    }

    /// `open`, integers with commas between, `close`.
    pub(crate) fn ints(&mut self, open: &str, close: &str) -> Read<Vec<i64>> {
        let mut values = Ints::new();
        self.spend(2 * size_of::<Vec<i64>>())?;
        self.sequence(open, close, |cursor| {
            cursor.spend(2 * size_of::<i64>())?;
            values.push(cursor.int()?);
            Ok(())
        })?;
        Ok(exact(values))
    }

    /// `open`, items with commas between, `close`.
    pub(crate) fn sequence(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Cursor<'a>) -> Read<()>,
    ) -> Read<()> {
        self.expect(open)?;
        if self.eat(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(close) {
                return Ok(());
            }
            if !self.eat(",") {
                return Err(self.expected(format!("`,` or `{close}`")));
            }
        }
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self) -> Read<bool> {
        let start = self.pos;
        match self.word_or_empty() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => {
                self.pos = start;
                Err(self.expected("`true` or `false`"))
            }
        }
    }

    /// A quoted string, unescaped.
    pub(crate) fn string(&mut self) -> Read<String> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a quoted string"));
        }
        let start = self.pos;
        let has_escapes = self.skip_string()?;
        let raw = &self.text[start + 1..self.pos - 1];
        if !has_escapes {
            return Ok(raw.to_string());
        }
        let bytes = unescape(raw);
        String::from_utf8(bytes).map_err(|_| {
            self.pos = start;
            self.expected("a string of UTF-8")
        })
    }

    /// Skips a quoted string, with the cursor at its first quote. Returns whether it contains a backslash.
    fn skip_string(&mut self) -> Read<bool> {
        let start = self.pos;
        let mut has_escapes = false;
        self.pos += 1;
        while let Some(at) = self.text.as_bytes().get(self.pos..self.end).and_then(|rest| memchr2(b'"', b'\\', rest)) {
            self.pos += at + 1;
            if self.text.as_bytes()[self.pos - 1] == b'"' {
                return Ok(has_escapes);
            }
            has_escapes = true;
            self.pos += 1;
        }
        self.pos = start;
        Err(self.expected("a closing quote"))
    }

    /// Skips a value of unknown form: up to a comma, a closing bracket, or the end of the line outside of all
    /// brackets.
    pub(crate) fn value(&mut self) -> Read<Span> {
        self.skip_blank();
        let start = self.pos;
        let bytes = self.text.as_bytes();
        // The expected closing brackets; on the stack, as nearly every value is a few brackets deep.
        let mut open: SmallVec<[u8; 16]> = SmallVec::new();
        loop {
            let rest = &bytes[self.pos..self.end];
            self.pos += rest.iter().position(|&byte| VALUE_MARKS[usize::from(byte)]).unwrap_or(rest.len());
            let Some(byte) = self.byte(self.pos) else { break };
            match byte {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'/' if matches!(self.byte(self.pos + 1), Some(b'*' | b'/')) => {
                    if open.is_empty() && self.byte(self.pos + 1) == Some(b'/') {
                        break;
                    }
                    self.skip_blank();
                    continue;
                }
                b'{' | b'(' | b'[' => {
                    self.spend(2)?;
                    open.push(if byte == b'(' { b')' } else { byte + 2 });
                }
                b'}' | b')' | b']' => match open.pop() {
                    None => break,
                    Some(close) if close == byte => {}
                    Some(close) => return Err(self.expected(format!("`{}`", char::from(close)))),
                },
                b',' | b'\n' if open.is_empty() => break,
                _ => {}
            }
            self.pos += 1;
        }
        if let Some(&close) = open.last() {
            return Err(self.expected(format!("`{}`", char::from(close))));
        }
        let end = start + self.text[start..self.pos].trim_end().len();
        Ok(Span { start, end })
    }

    /// Skips bracketed text whose opening bracket was read, up to and including its closing one.
    pub(crate) fn until_closed(&mut self, close: &str) -> Read<Span> {
        let start = self.pos;
        loop {
            match self.peek() {
                Some(b',') => self.pos += 1,
                _ if self.rest().starts_with(close.as_bytes()) => {
                    let end = self.pos;
                    self.pos += close.len();
                    return Ok(Span { start, end });
                }
                _ => {
                    let before = self.pos;
                    self.value()?;
                    if self.pos == before {
                        return Err(self.expected(format!("`{close}`")));
                    }
                }
            }
        }
    }
}

/// Undoes C escapes: `\n`, `\"`, octal, `\x` hex.
fn unescape(raw: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'x') => {
                let mut value = 0u8;
                while let Some(digit) = rest.peek().and_then(|&b| char::from(b).to_digit(16)) {
                    value = value.wrapping_mul(16).wrapping_add(digit as u8);
                    rest.next();
                }
                bytes.push(value);
            }
            Some(first @ b'0'..=b'7') => {
                let mut value = first - b'0';
                for _ in 0..2 {
                    match rest.peek() {
                        Some(&digit @ b'0'..=b'7') => {
                            value = value.wrapping_mul(8).wrapping_add(digit - b'0');
                            rest.next();
                        }
                        _ => break,
                    }
                }
                bytes.push(value);
            }
            Some(other) => bytes.push(other),
            None => bytes.push(b'\\'),
        }
    }
    bytes
}
