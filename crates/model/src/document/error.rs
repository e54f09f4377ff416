//! Errors of documents: the place, the problem, and advice.

use super::place::{Key, Mark, Step};
use super::{MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_TEXT, nearest};
use serde::de::{self, Expected, Unexpected};
use std::cell::RefCell;
use std::fmt;

/// The most characters of a line that an error quotes.
const MAX_SHOWN: usize = 100;

/// An error in a document, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file, as the caller named it.
    pub path: String,
    /// The place, if there is one.
    pub place: Option<Place>,
    /// The problem.
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

/// A problem in a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// An unknown key.
    #[error("unknown key `{key}`, {}", expected("key", valid))]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys that are valid there.
        valid: Vec<String>,
    },
    /// A key of a [`Tuning`](bf16scope_passes::tuning::Tuning) outside of `tune`, where earlier versions had it.
    #[error("`{key}` is a choice for a target, expected under `tune`")]
    OfTuning {
        /// The key.
        key: String,
        /// The line to write instead.
        line: String,
    },
    /// A key of a [`Tuning`](bf16scope_passes::tuning::Tuning) by its name in earlier versions.
    #[error("`{key}` is called `{now}`")]
    Renamed {
        /// The key.
        key: String,
        /// The present name.
        now: &'static str,
        /// The line to write instead.
        line: String,
    },
    /// A value that is not one of the valid ones.
    #[error("unknown value `{value}`, {}", expected("value", valid))]
    UnknownValue {
        /// The value.
        value: String,
        /// The valid ones.
        valid: Vec<String>,
    },
    /// A missing key.
    #[error("missing key `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A duplicate key.
    #[error("key `{key}` is given twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value of the wrong kind or out of range.
    #[error("found {found}, expected {expected}")]
    WrongValue {
        /// The value in the document.
        found: String,
        /// The valid values.
        expected: String,
    },
    /// Keys and values that are valid alone but not together.
    #[error("{message}")]
    Together {
        /// The measured and the expected value.
        message: String,
        /// The advice, if it is not obvious.
        help: Option<String>,
    },
    /// Not YAML; the text is the YAML parser's.
    #[error("not valid yaml: {0}")]
    Syntax(String),
    /// Nesting deeper than any configuration.
    #[error("more than {MAX_DEPTH} lists and maps stand inside one another")]
    TooDeep,
    /// Aliases that repeat aliases.
    #[error("aliases repeat more than {MAX_NODES} values")]
    TooMany,
    /// Aliases that repeat a long text.
    #[error("aliases repeat more than {MAX_TEXT} bytes of text")]
    TooMuchText,
    /// A document too large to be a configuration.
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
    /// The advice, if it is not obvious.
    pub fn help(&self) -> Option<String> {
        match self {
            ConfigProblem::UnknownValue { value, valid } if valid == &["auto", "none"] && value.starts_with("tpu") => {
                Some(format!("`--tune {value}`, on the command line, is what that target compiles"))
            }
            ConfigProblem::UnknownKey { key, .. } if key == "<<" => {
                Some("keys are not merged: write here each one that is meant".to_string())
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
            ConfigProblem::WrongValue { found, expected } => as_expected(found, expected),
            ConfigProblem::TooDeep
            | ConfigProblem::TooMany
            | ConfigProblem::TooMuchText
            | ConfigProblem::TooLarge { .. } => None,
        }
    }
}

/// The correction of a value that is nearly valid: a number in quotes, a whole number with a decimal point, a list's
/// single item without brackets.
fn as_expected(written: &str, expected: &str) -> Option<String> {
    let quoted = written.strip_prefix("string \"").and_then(|rest| rest.strip_suffix('"'));
    let (integer, float) = (in_backticks(written, "integer"), in_backticks(written, "floating point"));
    let is_list = expected == "a list" || expected.starts_with("a list of ");
    match (quoted, integer, float) {
        (Some(text), ..) if text.starts_with('$') || text.contains("$(") => Some(
            "`$name` and `$(4 * name)` are computed under `model` where that has `parameters: {name: 4}`; elsewhere write the \
             value"
                .to_string(),
        ),
        (Some(text), ..) if expected.contains("number") && text.parse::<f64>().is_ok() => as_number(text),
        (_, _, Some(number)) if expected.contains("whole number") => {
            let whole = number.parse::<f64>().ok().filter(|number| number.fract() == 0.0 && number.abs() < 1e15)?;
            Some(format!("write {whole:.0}"))
        }
        (Some(text), ..) if is_list && !text.contains(['\'', '\\']) => {
            Some(format!("write ['{text}'], if it is the only one"))
        }
        (_, Some(item), _) | (_, _, Some(item)) if is_list => Some(format!("write [{item}], if it is the only one")),
        _ => None,
    }
}

/// The correction of a text that is a number to Rust: one in quotes, with leading zeros, or beyond f64's range.
fn as_number(text: &str) -> Option<String> {
    let value: f64 = text.parse().ok()?;
    let digits = text.trim_start_matches(['-', '+']);
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    if value.is_finite() && !(is_whole && digits.len() > 1 && digits.starts_with('0')) {
        return Some(format!("write {text} without quotes"));
    }
    let has_octal_digits = digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let is_octal = value.abs() > 7.0 && has_octal_digits;
    Some(match digits.bytes().any(|byte| byte.is_ascii_digit()) {
        true if value.is_infinite() => "it is beyond the range of f64, whose largest number is 1.8e308".to_string(),
        true if is_octal => format!("write {value}; an octal number is 0o{}", digits.trim_start_matches('0')),
        true => format!("write {value}"),
        false => "write a finite number".to_string(),
    })
}

fn in_backticks<'a>(written: &'a str, kind: &str) -> Option<&'a str> {
    written.strip_prefix(kind)?.strip_prefix(" `")?.strip_suffix('`')
}

/// `expected one of a, b, c`.
fn expected(noun: &str, valid: &[String]) -> String {
    match valid {
        [] => format!("expected no {noun} here"),
        [only] => format!("expected {only}"),
        several => format!("expected one of {}", several.join(", ")),
    }
}

/// `one of a, b, c`, from the valid names of a value.
pub(super) fn one_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}

/// A problem with a value, with the place of the innermost value or key that the error passed on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The place; `None` before it has passed one.
    pub mark: Option<Mark>,
    /// The problem.
    pub problem: ConfigProblem,
}

impl ReadError {
    /// An error with a message of ours.
    pub fn new(message: impl Into<String>) -> ReadError {
        ReadError::from_problem(ConfigProblem::Together { message: message.into(), help: None })
    }

    /// An error with this problem.
    pub fn from_problem(problem: ConfigProblem) -> ReadError {
        ReadError { mark: None, problem }
    }

    /// The error of a value of another kind.
    pub fn wrong(found: String, expected: &str) -> ReadError {
        ReadError::from_problem(ConfigProblem::WrongValue { found, expected: expected.to_string() })
    }

    /// The same error with this advice instead of the problem's own.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> ReadError {
        let problem = ConfigProblem::Together { message: self.problem.to_string(), help: Some(help.into()) };
        ReadError { problem, ..self }
    }

    /// The same error, at this place if it has none.
    #[must_use]
    pub fn or_at(self, mark: Mark) -> ReadError {
        ReadError { mark: self.mark.or(Some(mark).filter(|mark| mark.line > 0)), ..self }
    }

    /// The same error about a key, with the name that the document has for it.
    pub(super) fn of_key(self, key: &Key) -> ReadError {
        let problem = match self.problem {
            ConfigProblem::UnknownKey { valid, .. } => {
                ConfigProblem::UnknownKey { key: key.as_written().to_string(), valid }
            }
            problem => problem,
        };
        ReadError { problem, ..self }.or_at(key.mark)
    }

    /// Raises the error as serde's type `E`. serde passes an error of ours as text only, so the error itself waits in a
    /// thread-local until [`de::Error::custom`] of a [`ReadError`] takes it; an error of another deserializer keeps the
    /// text.
    pub fn raise<E: de::Error>(self) -> E {
        let text = self.to_string();
        RAISED.with_borrow_mut(|place| *place = Some(self));
        let error = E::custom(text);
        RAISED.with_borrow_mut(Option::take);
        error
    }
}

thread_local! {
    /// An error on its way from [`ReadError::raise`] to `custom`, which it calls.
    static RAISED: RefCell<Option<ReadError>> = const { RefCell::new(None) };
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mark {
            Some(Mark { line, column }) => write!(f, "line {line} column {column}: {}", self.problem),
            None => write!(f, "{}", self.problem),
        }
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> ReadError {
        RAISED.with_borrow_mut(Option::take).unwrap_or_else(|| ReadError::new(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> ReadError {
        ReadError::wrong(plain(&found.to_string()), &plain(&expected.to_string()))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> ReadError {
        ReadError::invalid_type(found, expected)
    }

    fn invalid_length(n: usize, expected: &dyn Expected) -> ReadError {
        ReadError::wrong(format!("length {n}"), &plain(&expected.to_string()))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> ReadError {
        ReadError::from_problem(ConfigProblem::UnknownValue { value: variant.to_string(), valid: strings(expected) })
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> ReadError {
        ReadError::from_problem(ConfigProblem::UnknownKey { key: field.to_string(), valid: strings(expected) })
    }

    fn missing_field(field: &'static str) -> ReadError {
        ReadError::from_problem(ConfigProblem::MissingKey { key: field.to_string() })
    }

    fn duplicate_field(field: &'static str) -> ReadError {
        ReadError::from_problem(ConfigProblem::DuplicateKey { key: field.to_string() })
    }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// An error relative to a node: usually values that are valid alone but not together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// The steps from the node to the value.
    pub path: Vec<Step>,
    /// The problem.
    pub message: String,
    /// The advice.
    pub help: Option<String>,
}

impl NodeError {
    /// An error about the value at `path`.
    pub fn new(path: Vec<Step>, message: impl Into<String>) -> NodeError {
        NodeError { path, message: message.into(), help: None }
    }

    /// The same error with advice.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> NodeError {
        NodeError { help: Some(help.into()), ..self }
    }

    /// The same error, relative to a node one step further out.
    #[must_use]
    pub fn within(mut self, step: Step) -> NodeError {
        self.path.insert(0, step);
        self
    }
}

/// Replaces serde's and Rust's terms for values by terms of the document.
pub(super) fn plain(words: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_what_is_there_and_what_to_write() {
        let problems = [
            (
                ConfigProblem::OfTuning { key: "remat".to_string(), line: "tune: {remat: dots}".to_string() },
                "`remat` is a choice for a target, expected under `tune`",
                Some(
                    "write `tune: {remat: dots}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what \
                     pays off on the target",
                ),
            ),
            (
                ConfigProblem::Renamed {
                    key: "dilation".to_string(),
                    now: "dilation_rate",
                    line: "dilation_rate: 2".to_string(),
                },
                "`dilation` is called `dilation_rate`",
                Some("write `dilation_rate: 2`"),
            ),
            (
                ConfigProblem::UnknownKey { key: "<<".to_string(), valid: strings(&["a", "b"]) },
                "unknown key `<<`, expected one of a, b",
                Some("keys are not merged: write here each one that is meant"),
            ),
            (
                ConfigProblem::Syntax("a tab".to_string()),
                "not valid yaml: a tab",
                Some("keys and values are `key: value`, and nesting is two spaces of indentation"),
            ),
        ];
        for (problem, message, help) in problems {
            assert_eq!((problem.to_string().as_str(), problem.help().as_deref()), (message, help));
        }
        assert_eq!(
            ConfigProblem::TooDeep.to_string(),
            format!("more than {MAX_DEPTH} lists and maps stand inside one another")
        );
        assert_eq!(
            ConfigProblem::TooLarge { n_bytes: MAX_BYTES + 1 }.to_string(),
            format!("document has at least {} bytes, expected at most {MAX_BYTES}", MAX_BYTES + 1)
        );
    }
}
