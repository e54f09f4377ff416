//! A tolerant tokenizer of Python: tokens and logical lines, also of files with syntax errors.
//!
//! Source: the lexical analysis of Python's reference, versions 2.7 and 3.

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Name(String),
    Number(String),
    /// A string, without its quotes.
    Text(String),
    /// An operator or a bracket.
    Sign(&'static str),
}

impl Token {
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Token::Name(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn is(&self, sign: &str) -> bool {
        matches!(self, Token::Sign(known) if *known == sign)
    }
}

/// A logical line: a statement, or the part of one that the file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The file's line where it begins, counted from 1.
    pub number: u32,
    /// Columns of whitespace before it; a tab is eight.
    pub indent: u32,
    pub tokens: Vec<Token>,
}

/// The logical lines and comments of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub lines: Vec<Line>,
    /// Comments with their line numbers.
    pub comments: Vec<(u32, String)>,
}

/// Tokens of a logical line at most: a bracket that is never closed ends there.
const MAX_TOKENS: usize = 20_000;

const SIGNS: [&str; 42] = [
    "**=", "//=", ">>=", "<<=", "...", "==", "!=", "<=", ">=", "->", ":=", "+=", "-=", "*=", "/=", "%=", "&=", "|=",
    "^=", "**", "//", "<<", ">>", "(", ")", "[", "]", "{", "}", ",", ":", ".", ";", "=", "+", "-", "*", "/", "%", "@",
    "<", ">",
];

/// Keywords that begin a statement and never occur in brackets: a bracket that is still open before them was never closed.
const STARTS: [&str; 5] = ["def", "class", "import", "return", "with"];

/// Tokenizes a script.
pub(super) fn read(text: &str) -> Lines {
    let mut out = Lines::default();
    let mut line = Line::default();
    let mut depth = 0u32;
    let mut number = 1u32;
    let mut rest = text;
    let mut is_start = true;
    while !rest.is_empty() {
        if is_start && (depth == 0 || ends_brackets(rest)) {
            flush(&mut line, &mut out);
            depth = 0;
            let blanks = rest.len() - rest.trim_start_matches([' ', '\t']).len();
            line.indent = rest[..blanks].chars().map(|c| if c == '\t' { 8 } else { 1 }).sum();
            line.number = number;
            rest = &rest[blanks..];
        }
        is_start = false;
        let Some(first) = rest.chars().next() else { break };
        if first == '\n' {
            number += 1;
            is_start = true;
            rest = &rest[1..];
        } else if first == '\\' && rest[1..].trim_start_matches('\r').starts_with('\n') {
            number += 1;
            rest = &rest[rest.find('\n').unwrap_or(0) + 1..];
        } else if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
        } else if first == '#' {
            let end = rest.find('\n').unwrap_or(rest.len());
            out.comments.push((number, rest[1..end].to_string()));
            rest = &rest[end..];
        } else if let Some((text, after)) = string(rest) {
            number += rest[..rest.len() - after.len()].matches('\n').count() as u32;
            push(&mut line, Token::Text(text), &mut out);
            rest = after;
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            push(&mut line, Token::Name(rest[..end].to_string()), &mut out);
            rest = &rest[end..];
        } else if first.is_ascii_digit() {
            let is_of_number = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
            let end = rest.find(|c: char| !is_of_number(c)).unwrap_or(rest.len());
            push(&mut line, Token::Number(rest[..end].to_string()), &mut out);
            rest = &rest[end..];
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            match *sign {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            push(&mut line, Token::Sign(sign), &mut out);
            rest = &rest[sign.len()..];
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    flush(&mut line, &mut out);
    out
}

fn push(line: &mut Line, token: Token, out: &mut Lines) {
    if line.tokens.len() >= MAX_TOKENS {
        let (number, indent) = (line.number, line.indent);
        flush(line, out);
        (line.number, line.indent) = (number, indent);
    }
    line.tokens.push(token);
}

fn flush(line: &mut Line, out: &mut Lines) {
    let line = std::mem::take(line);
    if !line.tokens.is_empty() {
        out.lines.push(line);
    }
}

/// Whether a physical line begins with one of [`STARTS`], so that it cannot continue a bracket.
fn ends_brackets(rest: &str) -> bool {
    let line = rest.trim_start_matches([' ', '\t']);
    STARTS.iter().any(|word| line.strip_prefix(word).is_some_and(|after| after.starts_with([' ', '\t'])))
        && (line.starts_with("def ") || line.starts_with("class ") || rest.len() == line.len())
}

/// The string literal at the start of `rest`, without prefix and quotes, and the text after it. An unclosed literal ends with
/// its line, a triple-quoted one with the script.
fn string(rest: &str) -> Option<(String, &str)> {
    let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let is_prefix = letters <= 2 && rest[..letters].chars().all(|c| "rRbBuUfF".contains(c));
    let quoted = &rest[if is_prefix { letters } else { return None }..];
    let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| quoted.starts_with(quote))?;
    let body = &quoted[quote.len()..];
    let mut at = 0;
    let bytes = body.as_bytes();
    while at < bytes.len() {
        if bytes[at] == b'\\' {
            at += 2;
        } else if body.as_bytes()[at..].starts_with(quote.as_bytes()) {
            return Some((body[..at].to_string(), &body[at + quote.len()..]));
        } else if bytes[at] == b'\n' && quote.len() == 1 {
            return Some((body[..at].to_string(), &body[at..]));
        } else {
            at += 1;
        }
    }
    Some((body.to_string(), ""))
}

#[cfg(test)]
mod tests;
