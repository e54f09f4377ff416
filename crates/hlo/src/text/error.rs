//! Where and why HLO text could not be read.

use std::fmt;

/// Text that is not a module: where, what stands there, what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseError {
    /// The file, as the caller named it.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub kind: Box<ParseErrorKind>,
    /// The line, or the part of a long one around the place.
    pub excerpt: String,
    /// Characters of `excerpt` before the place.
    pub caret: usize,
}

/// What is wrong with the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Something else had to stand there.
    #[error("found {found}, expected {expected}")]
    Expected {
        /// The token that stands there, quoted.
        found: String,
        /// What had to.
        expected: String,
    },
    /// A name that nothing has.
    #[error("no {what} is named `{name}`{}", suggestion(.nearest))]
    UnknownName {
        /// What kind of thing.
        what: &'static str,
        /// The name.
        name: String,
        /// The nearest name that something has.
        nearest: Option<String>,
    },
    /// An opcode that HLO has not.
    #[error("no opcode is named `{opcode}`; help: {}", opcode_help(.nearest))]
    UnknownOpcode {
        /// The opcode.
        opcode: String,
        /// The nearest opcode that HLO has.
        nearest: Option<String>,
    },
    /// A name given twice.
    #[error("the {what} `{name}` is defined twice")]
    DuplicateName {
        /// What kind of thing.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Another instruction of the computation says `ROOT` already.
    #[error("a second ROOT, expected one in a computation")]
    SecondRoot,
    /// An attribute that the op needs is not there.
    #[error("`{opcode}` needs the attribute `{attribute}`")]
    MissingAttribute {
        /// The op.
        opcode: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// An attribute that the op has not.
    #[error("`{opcode}` has no attribute `{attribute}`; help: take it out, as nothing would come of it")]
    NoAttribute {
        /// The op.
        opcode: String,
        /// The attribute.
        attribute: String,
    },
    /// A number that its dtype cannot hold.
    #[error("`{token}` is not a value of {dtype}")]
    BadElement {
        /// The number.
        token: String,
        /// The dtype.
        dtype: &'static str,
    },
    /// A constant printed without its values.
    #[error("the constant's values were left out (`{{...}}`); help: print the module with large constants")]
    Elided,
    /// Operands or calls in a circle.
    #[error("{what} form a cycle through `{name}`")]
    Cycle {
        /// `operands` or `calls`.
        what: &'static str,
        /// One member.
        name: String,
    },
    /// Deeper nesting than any real module has.
    #[error("nesting is deeper than {max}")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// More than a machine should hold for one module.
    #[error("the module takes more than {} MiB of memory from here on, the most that one may", super::MAX_BYTES >> 20)]
    TooLarge,
    /// The module has no entry computation, or several.
    #[error("{n} of {n_all} computations are marked `ENTRY`, expected 1; help: {}", entry_help(*n, *n_all))]
    Entry {
        /// How many computations say so.
        n: usize,
        /// How many there are.
        n_all: usize,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!("; help: did you mean `{name}`"))
}

fn entry_help(n: usize, n_all: usize) -> &'static str {
    match (n, n_all) {
        (0, 0) => "a module has at least one, such as `ENTRY main { ROOT x = f32[] parameter(0) }`",
        (0, _) => "write `ENTRY` before the one that is the program, in what XLA prints the last",
        _ => "leave it before the one that is the program",
    }
}

fn opcode_help(nearest: &Option<String>) -> String {
    match nearest {
        Some(opcode) => format!("did you mean `{opcode}`"),
        None => "if it is newer than this build, a proto can carry it where text cannot".to_string(),
    }
}

/// Characters of a long line that are shown on each side of the place.
const EXCERPT: usize = 60;

impl ParseError {
    /// Finds line and column of a byte offset.
    pub(super) fn at(path: &str, text: &str, offset: usize, kind: ParseErrorKind) -> ParseError {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
        let before: Vec<char> = text[start..offset].chars().collect();
        let after = text[offset..].chars().take_while(|&c| c != '\n' && c != '\r').take(EXCERPT);
        let from = before.len().saturating_sub(EXCERPT);
        ParseError {
            path: path.to_string(),
            line: text[..start].bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before.len() + 1,
            kind: Box::new(kind),
            excerpt: before[from..].iter().copied().chain(after).collect(),
            caret: before.len() - from,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParseError { path, line, column, kind, excerpt, caret } = self;
        write!(f, "{path}:{line}:{column}: {kind}\n  {excerpt}\n  {:caret$}^", "")
    }
}

impl std::error::Error for ParseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None
    }
}
