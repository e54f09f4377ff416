//! The errors of reading HLO text, with their place.

use std::fmt;

/// Text that is not a module: where, what is there, what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseError {
    /// The file, as the caller named it.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The kind of error.
    pub kind: Box<ParseErrorKind>,
    /// The line, or the part of a long one around the place.
    pub excerpt: String,
    /// Characters of `excerpt` before the place.
    pub caret: usize,
}

/// The kinds of errors in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Another token was expected.
    #[error("found {found}, expected {expected}")]
    Expected {
        /// The token in the text, quoted.
        found: String,
        /// The expected token.
        expected: String,
    },
    /// A name is not defined.
    #[error("no {what} is named `{name}`{}", suggestion(.nearest))]
    UnknownName {
        /// The kind of thing.
        what: &'static str,
        /// The name.
        name: String,
        /// The most similar name.
        nearest: Option<String>,
    },
    /// HLO does not have the opcode.
    #[error("no opcode is named `{opcode}`; help: {}", opcode_help(.nearest))]
    UnknownOpcode {
        /// The opcode.
        opcode: String,
        /// The most similar opcode of HLO.
        nearest: Option<String>,
    },
    /// A name is defined twice.
    #[error("the {what} `{name}` is defined twice")]
    DuplicateName {
        /// The kind of thing.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A second instruction of the computation is marked `ROOT`.
    #[error("a second ROOT, expected one in a computation")]
    SecondRoot,
    /// An attribute that the op needs is missing.
    #[error("`{opcode}` needs the attribute `{attribute}`")]
    MissingAttribute {
        /// The op.
        opcode: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// The op does not have the attribute.
    #[error("`{opcode}` has no attribute `{attribute}`; help: take it out, as nothing would come of it")]
    NoAttribute {
        /// The op.
        opcode: String,
        /// The attribute.
        attribute: String,
    },
    /// A number is out of its dtype's range.
    #[error("`{token}` is not a value of {dtype}")]
    BadElement {
        /// The number.
        token: String,
        /// The dtype.
        dtype: &'static str,
    },
    /// A constant was printed without its values.
    #[error("the constant's values were left out (`{{...}}`); help: print the module with large constants")]
    Elided,
    /// Operands or calls form a cycle.
    #[error("{what} form a cycle through `{name}`")]
    Cycle {
        /// `operands` or `calls`.
        what: &'static str,
        /// A member of the cycle.
        name: String,
    },
    /// Nesting is deeper than in any real module.
    #[error("nesting is deeper than {max}")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The module would take too much memory.
    #[error("the module takes more than {} MiB of memory from here on, the most that one may", super::MAX_BYTES >> 20)]
    TooLarge,
    /// The module has no entry computation, or several.
    #[error("{n} of {n_all} computations are marked `ENTRY`, expected 1; help: {}", entry_help(*n, *n_all))]
    Entry {
        /// The number of computations with the mark.
        n: usize,
        /// The number of all computations.
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

/// The number of characters of a long line that are shown on each side of the place.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_memory_is_named() {
        let limit = super::super::MAX_BYTES >> 20;
        assert_eq!(
            ParseErrorKind::TooLarge.to_string(),
            format!("the module takes more than {limit} MiB of memory from here on, the most that one may")
        );
    }
}
