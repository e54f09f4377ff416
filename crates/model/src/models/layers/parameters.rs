//! Parameters of blocks: `$name`, `$(4 * name)` and texts with either inside, replaced by values.

use super::expression::{Formula, is_of_name};
use crate::document::{Mark, Node, ReadError, Value, nearest};

/// Values that a replaced network may hold in all: as a document's aliases may repeat.
const MAX_VALUES: usize = 1 << 20;

/// Values of parameters by name; the last of a name counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(pub Vec<(String, Node)>);

impl Values {
    /// These, and which repetition it is.
    pub fn counted(&self, index: usize, mark: Mark) -> Values {
        let mut values = self.clone();
        values.0.push(("index".to_string(), numeric(index as f64, mark)));
        values
    }

    fn get(&self, name: &str) -> Result<&Node, String> {
        let known = self.0.iter().rev().find(|(other, _)| other == name).map(|(_, node)| node);
        known.ok_or_else(|| {
            let mut names: Vec<String> = self.0.iter().map(|(name, _)| format!("${name}")).collect();
            names.dedup();
            match nearest(&format!("${name}"), &names) {
                Some(near) => format!("there is no parameter `${name}`, did you mean `{near}`?"),
                None if names.is_empty() => format!("there is no parameter `${name}`, as `parameters` names none"),
                None => format!("there is no parameter `${name}`, expected one of {}", names.join(", ")),
            }
        })
    }

    /// A parameter, or a formula of parameters, as a number.
    fn number(&self, text: &str) -> Result<f64, String> {
        Formula::parse(text)?.number(&|name| match &self.get(name)?.value {
            Value::Bool(is) => Ok(f64::from(u8::from(*is))),
            Value::Whole(value) => Ok(*value as f64),
            Value::Negative(value) => Ok(*value as f64),
            Value::Float(value) => Ok(*value),
            _ => Err(format!("parameter `${name}` is {}, expected a number", self.get(name)?.found())),
        })
    }
}

/// Replaces parameters, and counts what it makes.
#[derive(Debug, Default)]
pub(super) struct Replacer {
    n_values: usize,
}

impl Replacer {
    /// `node` with the parameters' values in their places.
    ///
    /// # Errors
    /// Unknown parameters, formulas that are wrong, more values than a network may hold.
    pub fn replaced(&mut self, node: &Node, values: &Values) -> Result<Node, ReadError> {
        self.add(1, node.mark)?;
        Ok(match &node.value {
            Value::Text(text) if text.contains('$') => self.text(text, node.mark, values)?,
            Value::List(list) => {
                let list: Result<Vec<Node>, ReadError> = list.iter().map(|it| self.replaced(it, values)).collect();
                node.replaced(Value::List(list?))
            }
            Value::Map(map) => {
                let pair = |(key, it): &(_, Node)| Ok((Clone::clone(key), self.replaced(it, values)?));
                node.replaced(Value::Map(map.iter().map(pair).collect::<Result<_, ReadError>>()?))
            }
            _ => node.clone(),
        })
    }

    fn add(&mut self, n: usize, mark: Mark) -> Result<(), ReadError> {
        self.n_values += n;
        if self.n_values <= MAX_VALUES {
            return Ok(());
        }
        Err(ReadError::new(format!("blocks and their parameters repeat more than {MAX_VALUES} values")).or_at(mark))
    }

    /// Counts a value that is repeated as it is.
    pub fn count(&mut self, node: &Node, mark: Mark) -> Result<(), ReadError> {
        self.add(1, mark)?;
        node.children().try_for_each(|child| self.count(child, mark))
    }

    fn text(&mut self, text: &str, mark: Mark, values: &Values) -> Result<Node, ReadError> {
        let at = |message: String| {
            let error = ReadError::new(message).or_at(mark);
            error.with_help("a block's layers have its parameters as `$name` or `$(2 * name)`; `$$` is a dollar sign")
        };
        let (mut made, mut rest) = (String::new(), text);
        while let Some(dollar) = rest.find('$') {
            made += &rest[..dollar];
            let after = &rest[dollar + 1..];
            if let Some(after) = after.strip_prefix('$') {
                made.push('$');
                rest = after;
                continue;
            }
            let is_alone = dollar == 0 && made.is_empty() && rest.len() == text.len();
            if after.starts_with('(') {
                let Some(length) = closing(after) else {
                    // Braces and brackets of YAML end a text at its comma.
                    let error = ReadError::new(format!("`{text}` has no `)` for its `$(`")).or_at(mark);
                    let help = "quote a formula with commas inside of `{…}` or `[…]`: `\"$(max(8, n))\"`";
                    return Err(error.with_help(help));
                };
                let number = values.number(&after[1..length]).map_err(at)?;
                if !number.is_finite() {
                    return Err(at(format!("`$({})` is {number}, expected a finite number", &after[1..length])));
                }
                rest = &after[length + 1..];
                if is_alone && rest.is_empty() {
                    return Ok(numeric(number, mark));
                }
                made += &number.to_string();
            } else {
                let length = after.find(|c| !is_of_name(c)).unwrap_or(after.len());
                let value = values.get(&after[..length]).map_err(at)?;
                rest = &after[length..];
                if is_alone && rest.is_empty() {
                    self.count(value, mark)?;
                    return Ok(value.clone());
                }
                match value.text() {
                    Some(text) => made += text,
                    None => {
                        return Err(at(format!("`{text}` has {} inside, expected a text or number", value.found())));
                    }
                }
            }
            if made.len() > crate::document::MAX_BYTES {
                return Err(at("a text with its parameters is longer than a document".to_string()));
            }
        }
        made += rest;
        Ok(Node::scalar(Value::Text(made.clone()), &made, mark))
    }
}

/// Where the bracket that `text` begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// A number as YAML has it: whole where it is.
pub(super) fn numeric(number: f64, mark: Mark) -> Node {
    // Whole numbers below 2^53 are exact.
    let is_whole = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    let value = match number {
        _ if !is_whole => Value::Float(number),
        0.0.. => Value::Whole(number as u64),
        _ => Value::Negative(number as i64),
    };
    Node::scalar(value, &number.to_string(), mark)
}
