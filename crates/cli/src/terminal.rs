//! Text for a terminal: its width and its character set. Control sequences are made visible, and overlong text is
//! shortened.
//!
//! Names in modules, fields of data, a plugin's messages: any of them may hold escape sequences, or ten megabytes. All
//! output for people passes through here once, so other code need not handle this. Only this file reads the terminal's
//! properties from the environment: see [`screen`].

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;
use std::sync::OnceLock;

use crate::report::Screen;
use bf16scope_hlo::words::steers;
pub(super) use bf16scope_hlo::words::visible;

/// The width of tables in a pipe or a file if it is not set.
const IN_A_PIPE: usize = 100;
/// The width of a terminal that does not report it.
const UNKNOWN: usize = 80;
/// The largest width of help: longer lines are hard to read.
const HELP: usize = 100;

/// The capabilities of standard output. `COLUMNS` sets the width, otherwise the terminal does. A pipe or a file gets
/// tables of [`IN_A_PIPE`] columns and unbroken sentences, so that `grep` finds them. `wide` removes all limits.
pub(super) fn screen(wide: bool) -> Screen {
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let columns = std::env::var("COLUMNS").ok();
    Screen { is_ascii: is_ascii(), ..bounds(wide, columns.as_deref(), terminal) }
}

fn bounds(wide: bool, columns: Option<&str>, terminal: Option<usize>) -> Screen {
    let from_variable = columns.and_then(|columns| columns.trim().parse().ok()).filter(|columns| *columns > 0);
    match (wide, from_variable, terminal) {
        (true, ..) => Screen::WIDE,
        (false, Some(columns), _) => Screen::with_width(columns),
        (false, None, Some(0)) => Screen::with_width(UNKNOWN),
        (false, None, Some(columns)) => Screen::with_width(columns),
        (false, None, None) => Screen { line: None, ..Screen::with_width(IN_A_PIPE) },
    }
}

/// Whether only ASCII can be shown: on a dumb terminal, and if the locale has another character set than UTF-8.
pub(super) fn is_ascii() -> bool {
    static IS_ASCII: OnceLock<bool> = OnceLock::new();
    *IS_ASCII.get_or_init(|| shows_ascii(|name| std::env::var(name).ok()))
}

/// Decides by the first of POSIX's locale variables that is set. If none is set, the locale is unknown, not ASCII:
/// containers set none, and today's terminals show UTF-8.
fn shows_ascii(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).map(|locale| locale.to_ascii_lowercase());
    let is_other = locale.is_some_and(|locale| !locale.contains("utf-8") && !locale.contains("utf8"));
    is_other || set(&"TERM").is_some_and(|term| term == "dumb")
}

/// Sets the help's width and wraps its text: paragraphs are filled, examples keep their lines.
pub(super) fn help(command: clap::Command) -> clap::Command {
    let width = screen(false).line.map_or(HELP, |width| width.min(HELP));
    let filled = |command: clap::Command| match command.get_after_help().map(ToString::to_string) {
        Some(text) => {
            let (text, screen) = (paragraphs(&text), Screen::with_width(width));
            // Continuation lines of examples (commands) and of list entries are indented further.
            let line = |line: &str| match line.starts_with("  ") && !line.starts_with("   ") {
                true if line.starts_with("  bf16scope ") => screen.folded_command(line, 4).into_owned(),
                is_entry => screen.folded(line, if is_entry { 4 } else { 0 }).into_owned(),
            };
            command.after_help(text.split('\n').map(line).collect::<Vec<String>>().join("\n"))
        }
        None => command,
    };
    filled(command).mut_subcommands(filled).term_width(width)
}

/// Joins each paragraph into one line: consecutive lines at the margin, up to one that ends with a colon.
fn paragraphs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split('\n') {
        let is_words = |line: &str| !line.is_empty() && !line.starts_with(' ');
        let above = out.rsplit('\n').next().unwrap_or_default();
        match is_words(line) && is_words(above) && !above.ends_with(':') {
            true => out.push(' '),
            false => out.push('\n'),
        }
        out.push_str(line);
    }
    out.remove(0);
    out
}

/// The text in characters that this terminal can show.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    Screen { is_ascii: is_ascii(), ..Screen::WIDE }.shown(text)
}

/// Bytes of a longer line to keep at the beginning and at the end.
const LINE: (usize, usize) = (1500, 500);
/// The same for a longer text.
const TEXT: (usize, usize) = (12_000, 4_000);

/// JSON with control characters as JSON escapes: they occur only in strings, where the escape means the same.
pub(super) fn visible_json(text: &str) -> Cow<'_, str> {
    escaped(text, |out, character| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}").expect("a string takes everything");
        }
    })
}

/// A message for printing: long lines and texts are shortened, and control characters made visible.
pub(super) fn message(text: &str) -> String {
    shown(&visible(&both_ends_of_message(text))).into_owned()
}

/// A message of readable length: both ends of its lines, and of itself.
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

/// The first and the last bytes of a long text, in whole characters, and how many are omitted between.
fn both_ends(text: &str, (first, last): (usize, usize)) -> Cow<'_, str> {
    if text.len() <= first + last {
        return Cow::Borrowed(text);
    }
    let start = (0..=first).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let end = (text.len() - last..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    Cow::Owned(format!("{} …({} bytes left out)… {}", &text[..start], end - start, &text[end..]))
}

/// Compares the 80-column rendering with its recording in `tests/cli/screens`.
#[cfg(test)]
pub(super) fn check_screen(render: impl Fn(Screen) -> String, expected: &expect_test::ExpectFile) {
    use unicode_width::UnicodeWidthStr as _;
    let screen = Screen::with_width(80);
    let text = screen.folded(&render(screen), 2).into_owned();
    assert!(text.lines().all(|line| line.width() <= 80), "{text}");
    expected.assert_eq(&text);
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
    fn columns_says_how_wide_and_else_the_terminal() {
        let screen_for = |columns, terminal| bounds(false, columns, terminal);
        assert_eq!(screen_for(Some("40"), Some(120)), Screen::with_width(40));
        assert_eq!(screen_for(None, Some(120)), Screen::with_width(120));
        assert_eq!(screen_for(None, Some(0)), Screen::with_width(80));
        for none in ["", "0", "many", "-80"] {
            assert_eq!(screen_for(Some(none), Some(120)), Screen::with_width(120), "{none}");
        }
        // Sentences in a pipe stay whole, unless the width is set.
        assert_eq!(screen_for(None, None), Screen { table: Some(100), line: None, is_ascii: false });
        assert_eq!(screen_for(Some("80"), None), Screen::with_width(80));
        assert_eq!(bounds(true, Some("40"), Some(120)), Screen::WIDE);
    }

    #[test]
    fn other_locales_than_utf_8_and_dumb_terminals_are_shown_ascii() {
        let ascii = |set: &[(&str, &str)]| {
            shows_ascii(|name| set.iter().find(|(own, _)| *own == name).map(|(_, value)| value.to_string()))
        };
        assert!(!ascii(&[]) && !ascii(&[("LANG", "en_US.UTF-8"), ("TERM", "xterm")]));
        assert!(!ascii(&[("LC_ALL", ""), ("LANG", "C.utf8")]));
        assert!(ascii(&[("LANG", "C")]) && ascii(&[("LC_ALL", "POSIX"), ("LANG", "C.UTF-8")]));
        assert!(ascii(&[("LC_CTYPE", "de_DE.ISO-8859-1")]) && ascii(&[("LANG", "C.UTF-8"), ("TERM", "dumb")]));
        assert!(!ascii(&[("LC_CTYPE", "C.UTF-8"), ("LANG", "C")]));
    }

    #[test]
    fn a_help_has_paragraphs() {
        let text = "Examples:\n  bits 1\n          one\n\nIt is\nlong.\n\nAnd:\nshort";
        assert_eq!(paragraphs(text), "Examples:\n  bits 1\n          one\n\nIt is long.\n\nAnd:\nshort");
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
        let shortened = message(&text);
        assert!(
            shortened.starts_with("no instruction `ää") && shortened.ends_with("ä`\nhelp: name one"),
            "{shortened}"
        );
        assert!(shortened.contains("ää …(9998018 bytes left out)… ää"), "{}", &shortened[shortened.len() - 700..]);
        let shortened = message(&"a line of a long list\n".repeat(100_000));
        assert!(shortened.len() < 17_000 && shortened.ends_with("a line of a long list\n"), "{}", shortened.len());
        assert_eq!(message("short"), "short");
    }
}
