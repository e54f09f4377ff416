//! Formulas in YAML: `a * sigmoid(b)` of layers, and `4 * filters` of a block's parameters, with one grammar.
//!
//! Operators, from the loosest binding: `or`, `and`, `not`, comparisons, `+ -`, `* / // %`, unary `-`, `**`; then
//! calls, names, numbers and parentheses. Names hold letters, digits, `_` and `.`, and do not begin with a digit.

use crate::document::nearest;
use std::fmt;

/// A formula.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Formula {
    /// A number.
    Number(f64),
    /// A name.
    Name(String),
    /// `-x`, `not x`.
    Unary(Operator, Box<Formula>),
    /// `x + y` and the like.
    Binary(Operator, Box<Formula>, Box<Formula>),
    /// `f(x, …)`.
    Call(String, Vec<Formula>),
}

/// An operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    Not,
    Equal,
    NotEqual,
    AtMost,
    AtLeast,
    Less,
    Greater,
    Add,
    Subtract,
    Multiply,
    FloorDivide,
    Divide,
    Remainder,
    Negate,
    Power,
}

/// Binary operators from the loosest binding; an operator precedes those that are prefixes of it.
const LEVELS: &[&[(&str, Operator)]] = &[
    &[("or", Operator::Or)],
    &[("and", Operator::And)],
    &[
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::AtMost),
        (">=", Operator::AtLeast),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ],
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("*", Operator::Multiply), ("//", Operator::FloorDivide), ("/", Operator::Divide), ("%", Operator::Remainder)],
];

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = LEVELS.iter().copied().flatten();
        let text = all.find(|(_, operator)| operator == self).map(|(text, _)| *text);
        f.write_str(text.unwrap_or(match self {
            Operator::Not => "not",
            Operator::Power => "**",
            _ => "-",
        }))
    }
}

/// The deepest nesting of formulas.
const MAX_DEPTH: usize = 64;

impl Formula {
    /// Parses a formula.
    ///
    /// # Errors
    /// A syntax error and its column, counted from 1.
    pub fn parse(text: &str) -> Result<Formula, String> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let formula = parser.level(0)?;
        match first(parser.rest()).as_str() {
            "" => Ok(formula),
            next => Err(parser.wrong(&format!("an operator or the end, found `{next}`"))),
        }
    }

    /// Its names, each once, in order of appearance.
    pub fn names(&self) -> Vec<String> {
        fn collect(formula: &Formula, names: &mut Vec<String>) {
            match formula {
                Formula::Number(_) => {}
                Formula::Name(name) if names.contains(name) => {}
                Formula::Name(name) => names.push(name.clone()),
                Formula::Unary(_, x) => collect(x, names),
                Formula::Binary(_, x, y) => [x, y].into_iter().for_each(|x| collect(x, names)),
                Formula::Call(_, arguments) => arguments.iter().for_each(|x| collect(x, names)),
            }
        }
        let mut names = Vec::new();
        collect(self, &mut names);
        names
    }

    /// Its value, where `value` gives the number of every name; comparisons give 1 or 0.
    ///
    /// # Errors
    /// A name without a number, an unknown function, or the wrong number of arguments.
    pub fn number(&self, value: &dyn Fn(&str) -> Result<f64, String>) -> Result<f64, String> {
        let truth = |is: bool| f64::from(u8::from(is));
        Ok(match self {
            Formula::Number(number) => *number,
            Formula::Name(name) => value(name)?,
            Formula::Unary(Operator::Not, x) => truth(x.number(value)? == 0.0),
            Formula::Unary(_, x) => -x.number(value)?,
            Formula::Binary(operator, x, y) => {
                let (x, y) = (x.number(value)?, y.number(value)?);
                match operator {
                    Operator::Or => truth(x != 0.0 || y != 0.0),
                    Operator::And => truth(x != 0.0 && y != 0.0),
                    Operator::Equal => truth(x == y),
                    Operator::NotEqual => truth(x != y),
                    Operator::AtMost => truth(x <= y),
                    Operator::AtLeast => truth(x >= y),
                    Operator::Less => truth(x < y),
                    Operator::Greater => truth(x > y),
                    Operator::Add => x + y,
                    Operator::Subtract => x - y,
                    Operator::Multiply => x * y,
                    Operator::FloorDivide => (x / y).floor(),
                    Operator::Divide => x / y,
                    Operator::Remainder => x - y * (x / y).floor(),
                    Operator::Power | Operator::Negate | Operator::Not => x.powf(y),
                }
            }
            Formula::Call(name, arguments) => {
                let arguments: Vec<f64> = arguments.iter().map(|x| x.number(value)).collect::<Result<_, _>>()?;
                match (name.as_str(), &arguments[..]) {
                    ("min", [first, rest @ ..]) => rest.iter().fold(*first, |x, y| x.min(*y)),
                    ("max", [first, rest @ ..]) => rest.iter().fold(*first, |x, y| x.max(*y)),
                    ("round", [x]) => x.round(),
                    ("floor", [x]) => x.floor(),
                    ("ceil", [x]) => x.ceil(),
                    ("sqrt", [x]) => x.sqrt(),
                    ("exp", [x]) => x.exp(),
                    ("log", [x]) => x.ln(),
                    ("abs", [x]) => x.abs(),
                    ("sin", [x]) => x.sin(),
                    ("cos", [x]) => x.cos(),
                    _ if OF_NUMBERS.contains(&name.as_str()) => return Err(wrong_count(name, arguments.len())),
                    _ => return Err(unknown(name, OF_NUMBERS)),
                }
            }
        })
    }
}

/// Functions of numbers.
pub(super) const OF_NUMBERS: &[&str] =
    &["min", "max", "round", "floor", "ceil", "sqrt", "exp", "log", "abs", "sin", "cos"];

/// The error of a function with the wrong number of arguments.
pub(super) fn wrong_count(name: &str, n: usize) -> String {
    format!("`{name}` does not take {n} argument{}", if n == 1 { "" } else { "s" })
}

/// The error of an unknown function.
pub(super) fn unknown(name: &str, names: &[&str]) -> String {
    let all: Vec<String> = names.iter().map(ToString::to_string).collect();
    match nearest(name, &all) {
        Some(near) => format!("there is no function `{name}`, did you mean `{near}`?"),
        None => format!("there is no function `{name}`, expected one of {}", names.join(", ")),
    }
}

fn first(rest: &str) -> String {
    rest.chars().take(1).collect()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&mut self) -> &str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn wrong(&self, expected: &str) -> String {
        let column = self.text[..self.at].chars().count() + 1;
        format!("in `{}`, at character {column}: expected {expected}", self.text)
    }

    /// Takes `token` if it comes next; a word must end there.
    fn takes(&mut self, token: &str) -> bool {
        let Some(after) = self.rest().strip_prefix(token) else { return false };
        let is_word = token.starts_with(char::is_alphabetic);
        let is_longer = if is_word { after.starts_with(is_of_name) } else { token == "*" && after.starts_with('*') };
        if !is_longer {
            self.at += token.len();
        }
        !is_longer
    }

    fn level(&mut self, number: usize) -> Result<Formula, String> {
        let Some(level) = LEVELS.get(number) else { return self.signed() };
        if number == 2 && self.takes("not") {
            return self.deeper(|parser| Ok(Formula::Unary(Operator::Not, Box::new(parser.level(2)?))));
        }
        let mut left = self.level(number + 1)?;
        let mut n_terms = 0;
        while let Some((_, operator)) = level.iter().find(|(token, _)| self.takes(token)) {
            n_terms += 1;
            if n_terms > MAX_DEPTH {
                return Err(format!("a formula has at most {MAX_DEPTH} terms in a row"));
            }
            left = Formula::Binary(*operator, Box::new(left), Box::new(self.level(number + 1)?));
        }
        Ok(left)
    }

    fn signed(&mut self) -> Result<Formula, String> {
        if self.takes("-") {
            return self.deeper(|parser| Ok(Formula::Unary(Operator::Negate, Box::new(parser.signed()?))));
        }
        let base = self.atom()?;
        match self.takes("**") {
            true => {
                self.deeper(|parser| Ok(Formula::Binary(Operator::Power, Box::new(base), Box::new(parser.signed()?))))
            }
            false => Ok(base),
        }
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Result<Formula, String>) -> Result<Formula, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} formulas stand inside one another"));
        }
        let formula = read(self);
        self.depth -= 1;
        formula
    }

    fn atom(&mut self) -> Result<Formula, String> {
        if self.takes("(") {
            let inner = self.deeper(|parser| parser.level(0))?;
            return if self.takes(")") { Ok(inner) } else { Err(self.wrong("`)`")) };
        }
        let rest = self.rest();
        if rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            let is_exponent = |at: usize| matches!(rest.as_bytes().get(at.wrapping_sub(1)), Some(b'e' | b'E'));
            let is_part = |(at, c): (usize, char)| {
                c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E') || (matches!(c, '+' | '-') && is_exponent(at))
            };
            let length = rest.char_indices().find(|&it| !is_part(it)).map_or(rest.len(), |(at, _)| at);
            let Ok(number) = rest[..length].parse() else { return Err(self.wrong("a number")) };
            self.at += length;
            return Ok(Formula::Number(number));
        }
        let length = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let name = rest[..length].to_string();
        if name.is_empty() {
            return Err(self.wrong("a name, a number or `(`"));
        }
        self.at += length;
        if !self.takes("(") {
            return Ok(Formula::Name(name));
        }
        self.deeper(|parser| {
            let mut arguments = Vec::new();
            while !parser.takes(")") {
                if !arguments.is_empty() && !parser.takes(",") {
                    return Err(parser.wrong("`,` or `)`"));
                }
                arguments.push(parser.level(0)?);
            }
            Ok(Formula::Call(name, arguments))
        })
    }
}

/// Whether a name may contain this character.
pub(super) fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Result<f64, String> {
        let value = |name: &str| if name == "x" { Ok(6.0) } else { Err(format!("no {name}")) };
        Formula::parse(text)?.number(&value)
    }

    #[test]
    fn operators_bind_as_in_python() {
        for (text, expected) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("-x ** 2", -36.0),
            ("2 ** -1", 0.5),
            ("x // 4 + x % 4", 3.0),
            ("-7 // 2", -4.0),
            ("-7 % 2", 1.0),
            ("x == 6 and not x < 3 or 0", 1.0),
            ("not x == 6", 0.0),
            ("max(8, round(x * 1.25), 2)", 8.0),
            ("1e-3 * 2.5e+2", 0.25),
        ] {
            assert_eq!(number(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("1 +", "in `1 +`, at character 4: expected a name, a number or `(`"),
            ("(1", "in `(1`, at character 3: expected `)`"),
            ("1 2", "in `1 2`, at character 3: expected an operator or the end, found `2`"),
            ("f(1", "in `f(1`, at character 4: expected `,` or `)`"),
            ("1.2.3", "in `1.2.3`, at character 1: expected a number"),
            ("maxi(1)", "there is no function `maxi`, did you mean `max`?"),
            ("floor(1, 2)", "`floor` does not take 2 arguments"),
            ("y", "no y"),
        ] {
            assert_eq!(number(text).unwrap_err(), expected);
        }
        for deep in ["(", "-"] {
            assert_eq!(number(&deep.repeat(1000)).unwrap_err(), "more than 64 formulas stand inside one another");
        }
        assert_eq!(number(&"1+".repeat(100_000)).unwrap_err(), "a formula has at most 64 terms in a row");
        assert!(number(&"é".repeat(3)).unwrap_err().contains("no ééé"));
    }
}
