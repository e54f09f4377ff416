//! Text on its way to a terminal: what could steer it is made visible, and what is endless is cut.
//!
//! Names in modules, fields of data, what a plugin says: all of it may hold escape sequences, or ten megabytes. Everything
//! that this program prints for eyes passes here once, on its way out, so that no place has to think of it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Of a longer line so many bytes are kept at the beginning and at the end.
const LINE: (usize, usize) = (1500, 500);
/// Of a longer text.
const TEXT: (usize, usize) = (12_000, 4_000);

/// The text with every character made visible that could do more than be read: `\x1b`, `\r`, `\u{202e}`. Line ends and
/// tabs stay.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |out, character| {
        let code = u32::from(character);
        let written = match character {
            '\r' => out.write_str("\\r"),
            _ if code < 0x80 => write!(out, "\\x{code:02x}"),
            _ => write!(out, "\\u{{{code:x}}}"),
        };
        written.expect("a string takes everything");
    })
}

/// JSON with the same characters escaped as JSON has it: they stand in its strings only, and mean the same there.
pub(super) fn visible_json(text: &str) -> Cow<'_, str> {
    escaped(text, |out, character| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}").expect("a string takes everything");
        }
    })
}

/// A message as it is said: both ends of lines and texts that are too long to be read, everything visible.
pub(super) fn message(text: &str) -> String {
    visible(&both_ends_of_message(text)).into_owned()
}

/// A message of a length that can be read: both ends of its lines, and of itself.
pub(super) fn both_ends_of_message(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(|line| both_ends(line, LINE)).collect();
    both_ends(&lines.join("\n"), TEXT).into_owned()
}

fn escaped(text: &str, mut escape: impl FnMut(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match steers(character) {
            true => escape(&mut out, character),
            false => out.push(character),
        }
    }
    Cow::Owned(out)
}

/// Whether a terminal does something at this character: controls, among them those of 8 bits; marks that turn the
/// direction of writing; ends of lines and paragraphs that are no line feed; tags, which nobody sees.
fn steers(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{e0000}'..='\u{e007f}' => true,
        _ => character.is_control(),
    }
}

/// The first and the last bytes of a long text, whole characters each, and how many are left out between.
fn both_ends(text: &str, (first, last): (usize, usize)) -> Cow<'_, str> {
    if text.len() <= first + last {
        return Cow::Borrowed(text);
    }
    let start = (0..=first).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let end = (text.len() - last..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    Cow::Owned(format!("{} …({} bytes left out)… {}", &text[..start], end - start, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_made_visible_and_all_else_stays() {
        let text = "a\x1b[2J\u{9b}31mb\r\x08\x7fc\u{202e}d\u{2066}e\u{2028}\0";
        assert_eq!(visible(text), r"a\x1b[2J\u{9b}31mb\r\x08\x7fc\u{202e}d\u{2066}e\u{2028}\x00");
        for text in ["", "naïve ∑ 日本語 👩‍🔬\n\ttab", "│ a ┆ b │"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({"name": "\u{9b}31m\u{202e}\u{e0041}\x1b\n ü"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = visible_json(&text);
        assert_eq!(shown, "{\n  \"name\": \"\\u009b31m\\u202e\\udb40\\udc41\\u001b\\n ü\"\n}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn long_messages_keep_both_ends() {
        let text = format!("no instruction `{}`\nhelp: name one", "ä".repeat(5_000_000));
        let said = message(&text);
        assert!(said.starts_with("no instruction `ää") && said.ends_with("ä`\nhelp: name one"), "{said}");
        assert!(said.contains("ää …(9998018 bytes left out)… ää"), "{}", &said[said.len() - 700..]);
        let said = message(&"a line of a long list\n".repeat(100_000));
        assert!(said.len() < 17_000 && said.ends_with("a line of a long list\n"), "{}", said.len());
        assert_eq!(message("short"), "short");
    }
}
