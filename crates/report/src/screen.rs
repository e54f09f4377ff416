//! The capabilities of an output for people: its width, and its character set.
//!
//! A [`Screen`] is a value. The command line determines it once, from the environment and the terminal, and passes it
//! to the code that renders. All widths are columns of a terminal, in which a CJK character takes two and a combining
//! mark none.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Smaller widths are ignored; a narrower terminal wraps lines itself.
pub const MIN_WIDTH: usize = 24;

/// The properties of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// The width of tables; `None` if unlimited.
    pub table: Option<usize>,
    /// The width of lines of words; `None` if lines are not wrapped.
    pub line: Option<usize>,
    /// Whether it can show only ASCII.
    pub is_ascii: bool,
}

impl Screen {
    /// Without limits.
    pub const WIDE: Screen = Screen { table: None, line: None, is_ascii: false };

    /// With this width for tables and for words, but at least [`MIN_WIDTH`].
    pub fn with_width(width: usize) -> Screen {
        let width = Some(width.max(MIN_WIDTH));
        Screen { table: width, line: width, is_ascii: false }
    }

    /// Marks an omission in a text.
    pub fn ellipsis(self) -> &'static str {
        if self.is_ascii { "..." } else { "…" }
    }

    /// The text in characters that the screen can show: on ASCII, `->` for an arrow, and `\u{e9}` for a character
    /// without a resemblance.
    pub fn shown(self, text: &str) -> Cow<'_, str> {
        if !self.is_ascii || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 16);
        for character in text.chars() {
            match ascii(character) {
                Some(same) => out.push_str(same),
                None if character.is_ascii() => out.push(character),
                None => out.extend(character.escape_unicode()),
            }
        }
        Cow::Owned(out)
    }

    /// Wraps long lines between words; continuation lines are indented by `hang` more columns than the line's
    /// beginning. A word that is longer than the screen stays whole, and so does what is between backticks: it is
    /// copied, and a terminal copies a line that it wraps itself as one.
    pub fn folded(self, text: &str, hang: usize) -> Cow<'_, str> {
        self.folded_with(text, &PROSE, hang)
    }

    /// Wraps a long command for a shell, which reads on after a backslash: what is copied is the command.
    pub fn folded_command(self, command: &str, hang: usize) -> Cow<'_, str> {
        self.folded_with(command, &COMMAND, hang)
    }

    fn folded_with<'t>(self, text: &'t str, form: &Form, hang: usize) -> Cow<'t, str> {
        let Some(width) = self.line.filter(|width| text.lines().any(|line| line.width() > *width)) else {
            return Cow::Borrowed(text);
        };
        let mut out = String::with_capacity(text.len() + text.len() / 32);
        for line in text.split_inclusive('\n') {
            let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
            fold(&mut out, line, form, (width, hang));
            out.push_str(end);
        }
        Cow::Owned(out)
    }
}

/// An ASCII equivalent of a character that this crate writes.
fn ascii(character: char) -> Option<&'static str> {
    Some(match character {
        '…' => "...",
        '→' => "->",
        '×' => "x",
        '±' => "+-",
        '≤' => "<=",
        '≥' => ">=",
        '–' | '—' | '−' | '─' => "-",
        '·' => ".",
        '‘' | '’' => "'",
        '“' | '”' => "\"",
        '│' | '┆' => "|",
        _ => return None,
    })
}

/// How lines are wrapped.
struct Form {
    /// Marks in pairs, between which nothing is wrapped.
    quotes: &'static [char],
    /// Ends each line but the last.
    end: &'static str,
}

const PROSE: Form = Form { quotes: &['`'], end: "" };
const COMMAND: Form = Form { quotes: &['\'', '"', '`'], end: " \\" };

fn fold(out: &mut String, line: &str, form: &Form, (width, hang): (usize, usize)) {
    if line.width() <= width {
        out.push_str(line);
        return;
    }
    let indent = line.len() - line.trim_start_matches(' ').len();
    // An indent of more than half of the screen would leave no room.
    let hang = if indent + hang <= width / 2 { indent + hang } else { 0 };
    let room = width - form.end.len();
    out.push_str(&line[..indent]);
    let mut at = indent;
    for (place, word) in words(&line[indent..], form.quotes).into_iter().enumerate() {
        let n_columns = word.width();
        if place > 0 && at + 1 + n_columns > room && at > hang {
            out.truncate(out.trim_end_matches(' ').len());
            out.push_str(form.end);
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', hang));
            at = hang;
        } else if place > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += n_columns;
    }
}

/// The parts of a line between spaces; a space between two of the same quotes parts nothing.
fn words<'t>(line: &'t str, quotes: &[char]) -> Vec<&'t str> {
    let (mut words, mut start, mut open) = (Vec::new(), 0, None);
    for (at, character) in line.char_indices() {
        match open {
            Some(quote) if quote == character => open = None,
            Some(_) => {}
            None if character == ' ' => {
                words.push(&line[start..at]);
                start = at + 1;
            }
            // A single one, such as an apostrophe, opens nothing.
            None if quotes.contains(&character) && line[at + 1..].contains(character) => open = Some(character),
            None => {}
        }
    }
    words.push(&line[start..]);
    words
}

/// A name in at most `width` columns: the middle of a longer one is left out, and more of its end is kept than of its
/// beginning, because ends distinguish layers.
pub fn shortened<'t>(name: &'t str, width: usize, ellipsis: &str) -> Cow<'t, str> {
    if name.width() <= width {
        return Cow::Borrowed(name);
    }
    let n_kept = width.saturating_sub(ellipsis.width());
    let n_first = n_kept * 2 / 5;
    let first = taken(name.char_indices().map(|(at, c)| (at + c.len_utf8(), c)), n_first).unwrap_or(0);
    let last = taken(name.char_indices().rev(), n_kept - n_first).unwrap_or(name.len());
    Cow::Owned(format!("{}{ellipsis}{}", &name[..first], &name[last..]))
}

/// Splits text into lines of at most `width` columns, after the separator, and anywhere in a part that is longer than a
/// line.
pub fn lines(text: &str, width: usize, separator: char) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in text.split_inclusive(separator) {
        let mut part = part;
        while !part.is_empty() {
            let line = lines.last_mut().expect("it begins with one");
            let room = width.saturating_sub(line.width());
            if part.trim_end_matches(' ').width() <= room {
                line.push_str(part);
                break;
            }
            if line.is_empty() {
                // At least a character, however narrow the line is.
                let one = part.chars().next().map_or(0, char::len_utf8);
                let places = part.char_indices().map(|(at, c)| (at + c.len_utf8(), c));
                let (now, later) = part.split_at(taken(places, width).unwrap_or(one));
                line.push_str(now);
                part = later;
            }
            lines.push(String::new());
        }
    }
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end_matches(' ').len()));
    lines.retain(|line| !line.is_empty());
    lines
}

/// The last place before the characters take more than `width` columns.
fn taken(places: impl Iterator<Item = (usize, char)>, width: usize) -> Option<usize> {
    let mut n_columns = 0;
    places
        .take_while(|(_, character)| {
            n_columns += character.width().unwrap_or(0);
            n_columns <= width
        })
        .last()
        .map(|(at, _)| at)
}

/// Compares the 80-column rendering with its recording in `tests/cli/screens`.
#[cfg(test)]
pub(crate) fn check_screen(render: impl Fn(Screen) -> String, expected: &expect_test::ExpectFile) {
    let screen = Screen::with_width(80);
    let text = screen.folded(&render(screen), 2).into_owned();
    assert!(text.lines().all(|line| line.width() <= 80), "{text}");
    expected.assert_eq(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_hang() {
        let screen = Screen::with_width(24);
        let text = "a line that is too long for it\n  net/block1: kept, and more\n\nshort\n";
        let expected = "a line that is too long\n  for it\n  net/block1: kept, and\n    more\n\nshort\n";
        assert_eq!(screen.folded(text, 2), expected);
        assert!(matches!(Screen::WIDE.folded(text, 2), Cow::Borrowed(_)));
        // A word longer than the screen stays whole, so it can still be searched for and copied.
        let path = "/home/someone/.cache/bf16scope/plugins";
        assert_eq!(screen.folded(&format!("in {path} it is"), 2), format!("in {path}\n  it is"));
        let path = format!("it is in {path}");
        assert_eq!(screen.folded(&path, 2), path.replace("in /", "in\n  /"));
        // Columns, not bytes or characters.
        assert_eq!(screen.folded("日本語日本語 日本語日本語", 0), "日本語日本語\n日本語日本語");
        // Line ends are neither added nor lost.
        assert_eq!(screen.folded(&"ab ".repeat(20), 0).lines().count(), 3);
    }

    #[test]
    fn commands_and_code_are_copied_whole() {
        let screen = Screen::with_width(24);
        let text = "next: `bf16scope eval mlp.yaml --seed 1`, or stop: it's a single ` that opens nothing";
        let expected = "next:\n  `bf16scope eval mlp.yaml --seed 1`,\n  or stop: it's a single\n  ` that opens nothing";
        assert_eq!(screen.folded(text, 2), expected);
        let command = "  bf16scope audit step.pb --results 'loss, kernel' --top 3";
        let expected =
            "  bf16scope audit \\\n      step.pb \\\n      --results \\\n      'loss, kernel' \\\n      --top 3";
        assert_eq!(screen.folded_command(command, 4), expected);
        assert!(matches!(Screen::with_width(80).folded_command(command, 4), Cow::Borrowed(_)));
    }

    #[test]
    fn names_lose_their_middle() {
        assert_eq!(shortened("resnet/block1/conv2/kernel", 16, "…"), "resnet…v2/kernel");
        assert_eq!(shortened("resnet/block1/conv2/kernel", 16, "..."), "resne...2/kernel");
        assert_eq!(shortened("short", 5, "…"), "short");
        assert_eq!(shortened("日本語日本語日本語", 8, "…"), "日…本語");
        for width in 0..30 {
            let name = shortened("resnet/ブロック/conv2/kernel", width, "…").into_owned();
            assert!(name.width() <= width.max(1), "{width}: {name}");
        }
    }

    #[test]
    fn lines_are_broken_behind_separators_and_else_anywhere() {
        let path = "/home/somebody/.cache/plugins/xla_cpu_pjrt-0.0.1.so";
        assert_eq!(lines(path, 24, '/'), ["/home/somebody/.cache/", "plugins/", "xla_cpu_pjrt-0.0.1.so"]);
        assert_eq!(lines(path, 10, '/').concat(), path);
        assert_eq!(lines("one two three", 8, ' '), ["one two", "three"]);
        assert_eq!(lines("123456789 12", 4, ' '), ["1234", "5678", "9 12"]);
        assert_eq!(lines("日本語", 1, ' '), ["日", "本", "語"]);
        assert!(lines("", 4, ' ').is_empty() && lines("   ", 2, ' ').is_empty());
    }

    #[test]
    fn a_screen_of_ascii_shows_ascii() {
        let screen = Screen { is_ascii: true, ..Screen::with_width(80) };
        assert_eq!(screen.shown("f32 → bf16: 1.5 × …, naïve"), "f32 -> bf16: 1.5 x ..., na\\u{ef}ve");
        assert!(matches!(screen.shown("plain"), Cow::Borrowed("plain")));
        assert_eq!(Screen::with_width(80).shown("→"), "→");
        assert_eq!(Screen::with_width(3).table, Some(MIN_WIDTH));
    }
}
