//! What is wrong with a document: where, in which words, and what to do about it.

use super::{MAX_BYTES, MAX_OPEN};
use std::fmt;

/// Most characters of a line that an error quotes.
const MAX_SHOWN: usize = 100;

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file, as the caller named it.
    pub path: String,
    /// The place, if there is one.
    pub place: Option<Place>,
    /// What is wrong.
    pub problem: ConfigProblem,
}

/// A place in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The line's text.
    pub text: String,
}

/// What is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// A key nobody reads.
    #[error("unknown key `{key}`, {}", expected("key", valid))]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys that are read there.
        valid: Vec<String>,
    },
    /// A key of a [`Tuning`](crate::tuning::Tuning) where it is none, as earlier versions had it.
    #[error("`{key}` is a choice for a target, expected under `tune`")]
    OfTuning {
        /// The key.
        key: String,
        /// What to write instead.
        line: String,
    },
    /// A key of a [`Tuning`](crate::tuning::Tuning) by the name that earlier versions read.
    #[error("`{key}` is called `{now}`")]
    Renamed {
        /// The key.
        key: String,
        /// Its name.
        now: &'static str,
        /// What to write instead.
        line: String,
    },
    /// A value that is none of the valid ones.
    #[error("unknown value `{value}`, {}", expected("value", valid))]
    UnknownValue {
        /// The value.
        value: String,
        /// The valid ones.
        valid: Vec<String>,
    },
    /// A key that must be there.
    #[error("missing key `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key that is there twice.
    #[error("key `{key}` is given twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value of the wrong kind or out of range.
    #[error("found {found}, expected {expected}")]
    WrongValue {
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// Keys and values that are right each, and together are not.
    #[error("{message}")]
    Together {
        /// What was found, and what was expected.
        message: String,
        /// What to do about it, if that is not plain.
        help: Option<String>,
    },
    /// Not YAML; the text is the YAML parser's.
    #[error("not valid yaml: {0}")]
    Syntax(String),
    /// Brackets inside brackets, deeper than any configuration.
    #[error("more than {MAX_OPEN} brackets are open at once")]
    TooDeep,
    /// Too large to be a configuration.
    #[error("document has at least {n_bytes} bytes, expected at most {MAX_BYTES}")]
    TooLarge {
        /// Its size, as far as it was read.
        n_bytes: usize,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError { path, place, problem } = self;
        let Some(Place { line, column, text }) = place else {
            write!(f, "{path}: {problem}")?;
            return match problem {
                ConfigProblem::Together { help: Some(help), .. } => write!(f, "\nhelp: {help}"),
                _ => Ok(()),
            };
        };
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        // A long line is shown around its column only.
        let start = if *column > MAX_SHOWN { column - MAX_SHOWN / 2 } else { 0 };
        let shown: Vec<char> = text.chars().skip(start).take(MAX_SHOWN).collect();
        let (before, rest) = shown.split_at((column - 1 - start).min(shown.len()));
        // Tabs stay tabs, so that the caret stands below its column.
        let indent: String = before.iter().map(|&c| if c == '\t' { '\t' } else { ' ' }).collect();
        let ends = |c: char| c.is_whitespace() || matches!(c, ':' | ',' | '[' | ']' | '}');
        let width = rest.iter().take_while(|&&c| !ends(c)).count().max(1);
        writeln!(f, "{path}:{line}:{column}: {problem}")?;
        writeln!(f, "  {number} | {}", shown.iter().collect::<String>())?;
        write!(f, "  {margin} | {indent}{}", "^".repeat(width))?;
        match problem.help() {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl ConfigProblem {
    /// What to do about it, if that is not plain.
    fn help(&self) -> Option<String> {
        match self {
            ConfigProblem::UnknownValue { value, valid } if valid == &["auto", "none"] && value.starts_with("tpu") => {
                Some(format!("`--tune {value}`, on the command line, is what that target compiles"))
            }
            ConfigProblem::UnknownKey { key: given, valid } | ConfigProblem::UnknownValue { value: given, valid } => {
                nearest(given, valid).map(|name| format!("did you mean `{name}`?"))
            }
            ConfigProblem::OfTuning { line, .. } => Some(format!(
                "write `{line}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays off on the target"
            )),
            ConfigProblem::Renamed { line, .. } => Some(format!("write `{line}`")),
            ConfigProblem::MissingKey { key } => Some(format!("add `{key}: …` to the block that starts here")),
            ConfigProblem::DuplicateKey { key } => Some(format!("keep one `{key}`")),
            ConfigProblem::Syntax(_) => {
                Some("keys and values are `key: value`, and nesting is two spaces of indentation".to_string())
            }
            ConfigProblem::Together { help, .. } => help.clone(),
            ConfigProblem::WrongValue { .. } | ConfigProblem::TooDeep | ConfigProblem::TooLarge { .. } => None,
        }
    }
}

/// The one of `valid` that `given` is probably meant to be.
pub fn nearest<'a>(given: &str, valid: &'a [String]) -> Option<&'a str> {
    let score = |name: &str| strsim::jaro_winkler(&given.to_lowercase(), &name.to_lowercase());
    let best = valid.iter().map(String::as_str).max_by(|a, b| score(a).total_cmp(&score(b)))?;
    // Below this, suggestions are noise: `mlp` for `cnn` scores 0, `filters` for `filter` 0.97, `hidden` for `width` 0.52.
    (score(best) >= 0.7).then_some(best)
}

/// `expected one of a, b, c`.
fn expected(noun: &str, valid: &[String]) -> String {
    match valid {
        [] => format!("expected no {noun} here"),
        [only] => format!("expected {only}"),
        several => format!("expected one of {}", several.join(", ")),
    }
}

/// Takes serde's sentence apart: `path: what at line 3 column 5`.
pub(super) fn problem(message: &str) -> ConfigProblem {
    let message = without_place(message);
    let after = |start: &str| message.find(start).map(|at| &message[at + start.len()..]);
    let first_quoted = |rest: &str| rest.split('`').next().unwrap_or_default().to_string();
    // serde quotes each name in backticks: every second piece is a name.
    let names = |rest: &str| rest.split('`').skip(2).step_by(2).map(str::to_string).collect();
    if let Some(rest) = after("unknown field `") {
        return ConfigProblem::UnknownKey { key: first_quoted(rest), valid: names(rest) };
    }
    if let Some(rest) = after("unknown variant `") {
        return ConfigProblem::UnknownValue { value: first_quoted(rest), valid: names(rest) };
    }
    if let Some(rest) = after("missing field `") {
        return ConfigProblem::MissingKey { key: first_quoted(rest) };
    }
    if let Some(rest) = after("duplicate field `") {
        return ConfigProblem::DuplicateKey { key: first_quoted(rest) };
    }
    for start in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, wanted)) = after(start).and_then(|rest| rest.split_once(", expected ")) {
            let length = if start == "invalid length " { "length " } else { "" };
            return ConfigProblem::WrongValue { found: format!("{length}{}", plain(found)), expected: plain(wanted) };
        }
    }
    ConfigProblem::Syntax(message.to_string())
}

/// The sentence without its place.
pub(super) fn without_place(message: &str) -> &str {
    message.rfind(" at line ").map_or(message, |end| &message[..end])
}

/// serde's and Rust's words for values in words of the document.
fn plain(words: &str) -> String {
    let known = match words {
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "a nonzero u32" => "a whole number of at least 1",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a string" | "str" | "string" => "text",
        "unit" | "unit value" => "nothing",
        "map" | "a map" => "keys and values",
        "sequence" => "a list",
        words if words.starts_with("struct ") => "keys and values",
        words => words,
    };
    known.to_string()
}
