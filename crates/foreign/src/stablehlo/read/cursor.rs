//! A place in a text, and the smallest things that are read there. Everything gives `None` where something else stands.

use super::Use;
use super::names::Locations;

/// Regions, types and attributes nest no deeper.
pub(super) const MAX_DEPTH: u32 = 64;

/// The rest of a text that is still to be read.
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    depth: u32,
    /// Whether `?` is a dimension.
    pub(super) is_symbolic: bool,
    /// Locations so far; without them a text that has some is not read.
    pub(super) locations: Option<Locations<'t>>,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, at: 0, line: 1, depth: 0, is_symbolic: false, locations: None }
    }

    fn rest(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// The line of what comes next, from 1.
    pub(super) fn line(&mut self) -> u32 {
        self.space();
        self.line
    }

    fn space(&mut self) {
        while let Some(byte) = self.rest().first() {
            match byte {
                b'\n' => self.line += 1,
                b' ' | b'\t' | b'\r' => {}
                b'/' if self.rest().starts_with(b"//") => {
                    self.at += memchr::memchr(b'\n', self.rest()).unwrap_or(self.rest().len());
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    /// The next byte that is no space; 0 at the end.
    pub(super) fn peek(&mut self) -> u8 {
        self.space();
        self.rest().first().copied().unwrap_or(0)
    }

    /// Takes a mark such as `->`, if it is there.
    pub(super) fn eat(&mut self, mark: &str) -> bool {
        self.space();
        let is_there = self.rest().starts_with(mark.as_bytes());
        self.at += if is_there { mark.len() } else { 0 };
        is_there
    }

    /// Takes a mark if this byte comes after it.
    pub(super) fn eat_before(&mut self, mark: &str, next: u8) -> bool {
        let before = (self.at, self.line);
        let is_there = self.eat(mark) && self.peek() == next;
        if !is_there {
            (self.at, self.line) = before;
        }
        is_there
    }

    pub(super) fn expect(&mut self, mark: &str) -> Option<()> {
        self.eat(mark).then_some(())
    }

    /// Takes a whole word, if it is there.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        self.space();
        let is_there =
            self.rest().starts_with(word.as_bytes()) && !self.rest().get(word.len()).is_some_and(|byte| of_word(*byte));
        self.at += if is_there { word.len() } else { 0 };
        is_there
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Option<()> {
        self.eat_word(word).then_some(())
    }

    fn while_of(&mut self, of: impl Fn(u8) -> bool) -> &'t str {
        let n = self.rest().iter().take_while(|byte| of(**byte)).count();
        let word = &self.text[self.at..self.at + n];
        self.at += n;
        word
    }

    /// Letters, digits, `_`, `.` and `$`, not beginning with a digit.
    pub(super) fn word(&mut self) -> Option<&'t str> {
        match self.peek() {
            byte if byte.is_ascii_digit() => None,
            _ => Some(self.while_of(of_word)).filter(|word| !word.is_empty()),
        }
    }

    /// The name of a value, without `%`.
    pub(super) fn value_name(&mut self) -> Option<&'t str> {
        self.expect("%")?;
        Some(self.while_of(|byte| of_word(byte) || byte == b'-')).filter(|name| !name.is_empty())
    }

    pub(super) fn value(&mut self) -> Option<Use<'t>> {
        let name = self.value_name()?;
        let result = match self.rest().first() {
            Some(b'#') => {
                self.at += 1;
                self.digits()?
            }
            _ => 0,
        };
        Some(Use { name, result })
    }

    /// A number of digits alone, right here.
    pub(super) fn digits<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.while_of(|byte| byte.is_ascii_digit()).parse().ok()
    }

    pub(super) fn int(&mut self) -> Option<i64> {
        let sign = if self.eat("-") { -1 } else { 1 };
        self.space();
        self.digits::<i64>().map(|value| sign * value)
    }

    /// A number of any kind as it stands: `-1`, `1.0e-5`, `0xFF800000`.
    pub(super) fn number(&mut self) -> Option<&'t str> {
        self.space();
        let start = self.at;
        let _ = self.eat("-");
        let is_hex = self.rest().starts_with(b"0x");
        let mut last = 0;
        while let Some(&byte) = self.rest().first() {
            let is_sign = matches!(byte, b'+' | b'-') && matches!(last, b'e' | b'E') && !is_hex;
            if !byte.is_ascii_alphanumeric() && byte != b'.' && !is_sign {
                break;
            }
            last = byte;
            self.at += 1;
        }
        Some(&self.text[start..self.at]).filter(|number| !number.is_empty())
    }

    /// The text between quotes, with its escapes.
    pub(super) fn quoted(&mut self) -> Option<&'t str> {
        self.expect("\"")?;
        let start = self.at;
        loop {
            self.at += memchr::memchr3(b'"', b'\\', b'\n', self.rest())?;
            match self.rest().first()? {
                b'"' => break,
                b'\\' if self.rest().get(1).is_some_and(u8::is_ascii) => self.at += 2,
                _ => return None,
            }
        }
        self.at += 1;
        Some(&self.text[start..self.at - 1])
    }

    /// `@name` or `@"name"`, without the mark.
    pub(super) fn symbol(&mut self) -> Option<&'t str> {
        self.expect("@")?;
        match self.rest().first()? {
            b'"' => self.quoted().filter(|name| !name.contains('\\')),
            _ => self.word(),
        }
    }

    /// The number of the location that stands here, where locations are read.
    pub(super) fn location(&mut self) -> Option<u32> {
        if self.locations.is_none() || !self.eat("loc(") {
            return Some(0);
        }
        let (start, mut depth) = (self.at, 1);
        while depth > 0 {
            match self.rest().first()? {
                b'"' => drop(self.quoted()?),
                b'\n' => return None,
                byte => {
                    depth += match byte {
                        b'(' => 1,
                        b')' => -1,
                        _ => 0,
                    };
                    self.at += 1;
                }
            }
        }
        let location = &self.text[start..self.at - 1];
        Some(self.locations.as_mut()?.number(location))
    }

    /// All until a mark, which is taken too.
    pub(super) fn until(&mut self, mark: u8) -> Option<&'t str> {
        let n = memchr::memchr(mark, self.rest())?;
        let found = &self.text[self.at..self.at + n];
        self.line += memchr::memchr_iter(b'\n', found.as_bytes()).count() as u32;
        self.at += n + 1;
        Some(found)
    }

    /// Things with commas between two marks.
    pub(super) fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Cursor<'t>) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        if self.eat(close) {
            return Some(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Some(items);
            }
            self.expect(",")?;
        }
    }

    /// `[1, 2]`.
    pub(super) fn ints(&mut self) -> Option<Vec<i64>> {
        self.list("[", "]", Cursor::int)
    }

    /// Reads what may hold itself.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Cursor<'t>) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let found = if self.depth > MAX_DEPTH { None } else { read(self) };
        self.depth -= 1;
        found
    }
}

/// Whether a byte may be part of a word.
fn of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_things_are_read_in_order() {
        let mut cursor = Cursor::new(" %30#2 = // a loop\n stablehlo.while_ -7 0x7FC0 -1.5e-05, \"a\\\"b\" @f [1, -2]");
        assert_eq!(cursor.value(), Some(Use { name: "30", result: 2 }));
        assert!(cursor.eat("=") && !cursor.eat_word("stablehlo.while"));
        assert_eq!((cursor.line(), cursor.word()), (2, Some("stablehlo.while_")));
        assert_eq!((cursor.int(), cursor.number(), cursor.number()), (Some(-7), Some("0x7FC0"), Some("-1.5e-05")));
        assert_eq!((cursor.eat(","), cursor.quoted(), cursor.symbol()), (true, Some("a\\\"b"), Some("f")));
        assert_eq!((cursor.ints(), cursor.peek()), (Some(vec![1, -2]), 0));
    }

    #[test]
    fn what_does_not_end_is_nothing() {
        assert_eq!(Cursor::new("\"abc").quoted(), None);
        assert_eq!(Cursor::new("\"abc\\").quoted(), None);
        assert_eq!(Cursor::new("[1, ").ints(), None);
        assert_eq!(Cursor::new("99999999999999999999").int(), None);
        assert_eq!(Cursor::new("").number(), None);
    }
}
