//! What output for eyes is fitted to: a width, and which characters can be shown.
//!
//! A [`Screen`] is a value. Whoever prints finds out what there is (the command line asks the environment and the
//! terminal, at one place) and hands it to what renders. All widths are columns of a terminal, in which a CJK character
//! takes two and a combining mark none.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Less than this is no width to write in; a narrower terminal breaks lines itself.
pub const MIN_WIDTH: usize = 24;

/// Where a text is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Columns that a table may take; `None` for as many as it needs.
    pub table: Option<usize>,
    /// Columns that a line of words may take; `None` for lines as they are.
    pub line: Option<usize>,
    /// Whether it shows nothing but ASCII.
    pub is_ascii: bool,
}

impl Screen {
    /// Without bounds.
    pub const WIDE: Screen = Screen { table: None, line: None, is_ascii: false };

    /// Of so many columns, for tables and for words, but for no fewer than [`MIN_WIDTH`].
    pub fn of(width: usize) -> Screen {
        let width = Some(width.max(MIN_WIDTH));
        Screen { table: width, line: width, is_ascii: false }
    }

    /// What stands for what was left out of a text.
    pub fn ellipsis(self) -> &'static str {
        if self.is_ascii { "..." } else { "…" }
    }

    /// The text in characters that the screen shows: where that is ASCII, `->` for an arrow, and `\u{e9}` for what
    /// nothing resembles.
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

    /// The text with its long lines broken between words; what continues a line stands `hang` columns further right
    /// than its beginning. A word that is longer than the screen stays whole.
    pub fn folded(self, text: &str, hang: usize) -> Cow<'_, str> {
        let Some(width) = self.line.filter(|width| text.lines().any(|line| line.width() > *width)) else {
            return Cow::Borrowed(text);
        };
        let mut out = String::with_capacity(text.len() + text.len() / 32);
        for line in text.split_inclusive('\n') {
            let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
            fold(&mut out, line, width, hang);
            out.push_str(end);
        }
        Cow::Owned(out)
    }
}

/// What says the same in ASCII, for the characters that this crate writes.
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

fn fold(out: &mut String, line: &str, width: usize, hang: usize) {
    if line.width() <= width {
        out.push_str(line);
        return;
    }
    let indent = line.len() - line.trim_start_matches(' ').len();
    // What hangs deeper than half of the screen leaves no room.
    let hang = if indent + hang <= width / 2 { indent + hang } else { 0 };
    out.push_str(&line[..indent]);
    let mut at = indent;
    for (place, word) in line[indent..].split(' ').enumerate() {
        let n_columns = word.width();
        if place > 0 && at + 1 + n_columns > width && at > hang {
            out.truncate(out.trim_end_matches(' ').len());
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

/// A name of at most so many columns: where it is longer, its middle is left out, and more of its end is kept than of
/// its beginning, since ends tell layers apart.
pub fn shortened<'t>(name: &'t str, width: usize, ellipsis: &str) -> Cow<'t, str> {
    if name.width() <= width {
        return Cow::Borrowed(name);
    }
    let kept = width.saturating_sub(ellipsis.width());
    let n_first = kept * 2 / 5;
    let first = taken(name.char_indices().map(|(at, c)| (at + c.len_utf8(), c)), n_first).unwrap_or(0);
    let last = taken(name.char_indices().rev(), kept - n_first).unwrap_or(name.len());
    Cow::Owned(format!("{}{ellipsis}{}", &name[..first], &name[last..]))
}

/// The text in lines of at most so many columns, broken behind the separator, and anywhere in a part that is longer than
/// a line.
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
                // At least a character, however narrow the line.
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

/// The last place that is reached before the characters take more than so many columns.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_hang() {
        let screen = Screen::of(24);
        let text = "a line that is too long for it\n  net/block1: kept, and more\n\nshort\n";
        let expected = "a line that is too long\n  for it\n  net/block1: kept, and\n    more\n\nshort\n";
        assert_eq!(screen.folded(text, 2), expected);
        assert!(matches!(Screen::WIDE.folded(text, 2), Cow::Borrowed(_)));
        // A word longer than the screen stays whole, and is found by what looks for it.
        let path = "/home/someone/.cache/bf16scope/plugins";
        assert_eq!(screen.folded(&format!("in {path} it is"), 2), format!("in {path}\n  it is"));
        let path = format!("it is in {path}");
        assert_eq!(screen.folded(&path, 2), path.replace("in /", "in\n  /"));
        // Columns, not bytes or characters.
        assert_eq!(screen.folded("日本語日本語 日本語日本語", 0), "日本語日本語\n日本語日本語");
        // No end of line is made up, and none lost.
        assert_eq!(screen.folded(&"ab ".repeat(20), 0).lines().count(), 3);
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
        let screen = Screen { is_ascii: true, ..Screen::of(80) };
        assert_eq!(screen.shown("f32 → bf16: 1.5 × …, naïve"), "f32 -> bf16: 1.5 x ..., na\\u{ef}ve");
        assert!(matches!(screen.shown("plain"), Cow::Borrowed("plain")));
        assert_eq!(Screen::of(80).shown("→"), "→");
        assert_eq!(Screen::of(3).table, Some(MIN_WIDTH));
    }
}
