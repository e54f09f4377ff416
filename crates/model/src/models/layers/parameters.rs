//! Parameters of blocks: replaces `$name`, `$(4 * name)` and texts that contain them by values.

use super::expression::{Formula, is_of_name};
use crate::document::{MAX_TEXT, Mark, Node, ReadError, Value, nearest};

/// The most values of a network after replacement, as many as a document's aliases may expand to.
const MAX_VALUES: usize = 1 << 20;

/// Values of parameters by name; the last of a name wins.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(pub Vec<(String, Node)>);

impl Values {
    /// These values and the index of the repetition.
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

    /// The number of a parameter, or of a formula of parameters.
    fn number(&self, text: &str) -> Result<f64, String> {
        Formula::parse(text)?.number(&|name| match &self.get(name)?.value {
            Value::Bool(is) => Ok(f64::from(u8::from(*is))),
            Value::Whole(value) => Ok(*value as f64),
            Value::Negative(value) => Ok(*value as f64),
            Value::Float(value) => Ok(*value),
            _ => Err(format!("parameter `${name}` is {}, expected a number", self.get(name)?.description())),
        })
    }
}

/// Replaces parameters, and counts the resulting values.
#[derive(Debug, Default)]
pub(super) struct Replacer {
    n_values: usize,
    /// Bytes of their texts.
    n_bytes: usize,
}

impl Replacer {
    /// `node` with parameters replaced by their values.
    ///
    /// # Errors
    /// Unknown parameters, invalid formulas, more values than a network may have.
    pub fn replaced(&mut self, node: &Node, values: &Values) -> Result<Node, ReadError> {
        self.add(node, node.mark)?;
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

    /// Counts a value, without those in it.
    fn add(&mut self, node: &Node, mark: Mark) -> Result<(), ReadError> {
        self.n_values += 1;
        self.n_bytes += node.n_own_bytes();
        let most = match (self.n_values > MAX_VALUES, self.n_bytes > MAX_TEXT) {
            (true, _) => format!("{MAX_VALUES} values"),
            (_, true) => format!("{MAX_TEXT} bytes of text"),
            _ => return Ok(()),
        };
        Err(ReadError::new(format!("blocks and their parameters repeat more than {most}")).or_at(mark))
    }

    /// Counts a value that is repeated unchanged.
    pub fn count(&mut self, node: &Node, mark: Mark) -> Result<(), ReadError> {
        self.add(node, mark)?;
        node.children().try_for_each(|child| self.count(child, mark))
    }

    fn text(&mut self, text: &str, mark: Mark, values: &Values) -> Result<Node, ReadError> {
        let at = |message: String| {
            let error = ReadError::new(message).or_at(mark);
            error.with_help("a block's layers have its parameters as `$name` or `$(2 * name)`; `$$` is a dollar sign")
        };
        let (mut result, mut rest) = (String::new(), text);
        while let Some(dollar) = rest.find('$') {
            result += &rest[..dollar];
            let after = &rest[dollar + 1..];
            if let Some(after) = after.strip_prefix('$') {
                result.push('$');
                rest = after;
                continue;
            }
            let is_alone = dollar == 0 && result.is_empty() && rest.len() == text.len();
            if after.starts_with('(') {
                let Some(length) = closing(after) else {
                    // In YAML's flow style a comma ends a plain text, also within parentheses.
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
                result += &number.to_string();
            } else {
                let length = after.find(|c| !is_of_name(c)).unwrap_or(after.len());
                let value = values.get(&after[..length]).map_err(at)?;
                rest = &after[length..];
                if is_alone && rest.is_empty() {
                    self.count(value, mark)?;
                    return Ok(value.clone());
                }
                match value.text() {
                    Some(text) => result += text,
                    None => {
                        return Err(at(format!(
                            "`{text}` has {} inside, expected a text or number",
                            value.description()
                        )));
                    }
                }
            }
            if result.len() > crate::document::MAX_BYTES {
                return Err(at("a text with its parameters is longer than a document".to_string()));
            }
        }
        result += rest;
        let node = Node::scalar(Value::Text(result.clone()), &result, mark);
        self.add(&node, mark)?;
        Ok(node)
    }
}

/// The position of the bracket that closes the one at the beginning of `text`.
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

/// A number as a YAML value: a whole number if it is one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::MAX_BYTES;

    #[test]
    fn what_parameters_repeat_is_bounded() {
        let mark = Mark { line: 1, column: 1 };
        let text = |text: &str| Node::scalar(Value::Text(text.to_string()), text, mark);
        let mut full = Replacer { n_values: MAX_VALUES, ..Replacer::default() };
        assert_eq!(
            full.count(&text("a"), mark).unwrap_err().to_string(),
            "line 1 column 1: blocks and their parameters repeat more than 1048576 values"
        );
        let long = text(&"a".repeat(1000));
        let mut full = Replacer { n_bytes: MAX_TEXT - 1000, ..Replacer::default() };
        assert_eq!(
            full.count(&long, mark).unwrap_err().to_string(),
            "line 1 column 1: blocks and their parameters repeat more than 67108864 bytes of text"
        );
        let values = Values(vec![("a".to_string(), long)]);
        let list = Node::new(Value::List(vec![text("b$a"); 40_000]), mark);
        assert_eq!(
            Replacer::default().replaced(&list, &values).unwrap_err().to_string(),
            "line 1 column 1: blocks and their parameters repeat more than 67108864 bytes of text"
        );
        let values = Values(vec![("a".to_string(), text(&"a".repeat(MAX_BYTES)))]);
        assert_eq!(
            Replacer::default().replaced(&text("b$a"), &values).unwrap_err().to_string(),
            "line 1 column 1: a text with its parameters is longer than a document"
        );
    }
}
