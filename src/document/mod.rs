//! YAML to configuration types, with errors that a person can act on: they point at line and column, quote the line,
//! list the valid keys or values and suggest the nearest.
//!
//! This is the one file that names the YAML crate, which is archived upstream: who changes it, changes it here.
//!
//! No IO: the caller reads the file. serde says what it found wrong in one line of English and where; this file takes
//! that line apart. For places to be right, configuration types must not use `#[serde(flatten)]`, `untagged` or
//! `tag = …`, which read a map before they look at it (see [`Model`](super::Model) for how to do without).

mod error;
pub mod kind;
mod node;
mod numbers;

pub use error::{ConfigError, ConfigProblem, Place, nearest};
pub use node::{Node, NodeError, Step};

pub use numbers::{Positive, fraction, number, positive, positive_up_to, positives};

use crate::tuning::{CHOICES, Choice};
use error::{problem, without_place};
use node::Find;
use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed};

/// Largest document taken, in bytes. A model is a page of text; serde_yaml bounds aliases and nesting itself, and this
/// bounds the rest.
pub const MAX_BYTES: usize = 1 << 20;

/// Most brackets open at once. serde_yaml refuses deeper nesting too, but only after time that grows with the square of
/// how many there are: minutes for a megabyte of them.
const MAX_OPEN: usize = 256;

/// Reads a configuration from the text of file `path`, which is named in errors only.
///
/// # Errors
/// The first problem of the document.
pub fn from_str<T: DeserializeOwned>(path: &str, text: &str) -> Result<T, ConfigError> {
    if text.len() > MAX_BYTES {
        let problem = ConfigProblem::TooLarge { n_bytes: text.len() };
        return Err(ConfigError { path: path.to_string(), place: None, problem });
    }
    // Some editors put a byte order mark first, which serde_yaml takes for a document.
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    if let Some(place) = too_deep(text) {
        return Err(ConfigError { path: path.to_string(), place: Some(place), problem: ConfigProblem::TooDeep });
    }
    serde_yaml::from_str(text).map_err(|error| {
        let message = error.to_string();
        if let Some((before, error)) = NodeError::parse(without_place(&message)) {
            return of_node(path, text, before, error);
        }
        let problem = match problem(&message) {
            ConfigProblem::UnknownKey { key, valid } => match Choice::of(&key) {
                // `tune` itself reads the new name.
                Some(choice) if valid.iter().any(|name| name == choice.key) => {
                    ConfigProblem::Renamed { now: choice.key, line: renamed_line(text, &key), key }
                }
                Some(_) => ConfigProblem::OfTuning { line: tune_line(text, &key), key },
                None => ConfigProblem::UnknownKey { key, valid },
            },
            problem => problem,
        };
        let place = error.location().map(|location| {
            let (line, column) = (location.line(), location.column());
            let line = match &problem {
                ConfigProblem::DuplicateKey { key } => second_line_of(text, key, line, column).unwrap_or(line),
                _ => line,
            };
            Place { line, column, text: text.lines().nth(line - 1).unwrap_or_default().to_string() }
        });
        ConfigError { path: path.to_string(), place, problem }
    })
}

/// An error about what is at its path in the document `text` of file `path`, with its place; of no text, without one.
pub fn error_at(path: &str, text: &str, error: NodeError) -> ConfigError {
    let error = of_node(path, text, "", error);
    ConfigError { place: error.place.filter(|_| !text.is_empty()), ..error }
}

/// A problem of a [`Node`] that stands in the document where `before` says, which is the YAML crate's `a.b[1]: `.
fn of_node(path: &str, text: &str, before: &str, error: NodeError) -> ConfigError {
    let NodeError { path: inner, message, is_own, help } = error;
    let mut steps = steps(before.trim_end_matches(": "));
    steps.extend(inner);
    let problem = if is_own { ConfigProblem::Together { message, help } } else { problem(&message) };
    let found = Find(&steps).deserialize(serde_yaml::Deserializer::from_str(text)).err();
    let place = found.and_then(|error| error.location()).map(|location| {
        let (line, column) = (location.line(), location.column());
        Place { line, column, text: text.lines().nth(line - 1).unwrap_or_default().to_string() }
    });
    ConfigError { path: path.to_string(), place, problem }
}

/// The steps that the YAML crate writes as `a.b[1]`.
fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for piece in path.split('.').filter(|piece| !piece.is_empty()) {
        let mut parts = piece.split('[');
        steps.extend(parts.next().filter(|key| !key.is_empty()).map(|key| Step::Key(key.to_string())));
        steps.extend(parts.filter_map(|index| index.trim_end_matches(']').parse().ok().map(Step::Index)));
    }
    steps
}

/// The line that says under `tune` what a document says elsewhere.
fn tune_line(text: &str, key: &str) -> String {
    let document: serde_yaml::Value = serde_yaml::from_str(text).unwrap_or_default();
    // A model may stand alone.
    let blocks = [Some(&document), document.get("model"), document.get("train")];
    let given = |choice: &Choice| {
        let of_block = |block: &&serde_yaml::Value| block.get(choice.key).or_else(|| block.get(choice.was?)).cloned();
        let value = blocks.iter().flatten().find_map(of_block)?;
        Some(format!("{}: {}", choice.key, as_now(choice.key, &value)))
    };
    let given: Vec<String> = CHOICES.iter().filter_map(given).collect();
    match given.is_empty() {
        true => format!("tune: {{{}: …}}", Choice::of(key).map_or(key, |choice| choice.key)),
        false => format!("tune: {{{}}}", given.join(", ")),
    }
}

/// The line that says what `tune` says, with the names that its keys have.
fn renamed_line(text: &str, key: &str) -> String {
    let now = |key: &str| Choice::of(key).map_or(key.to_string(), |choice| choice.key.to_string());
    let document: serde_yaml::Value = serde_yaml::from_str(text).unwrap_or_default();
    match document.get("tune").unwrap_or(&document) {
        serde_yaml::Value::Mapping(map) => {
            let pair = |(key, value)| {
                let key = now(&in_one_line(key));
                format!("{key}: {}", as_now(&key, value))
            };
            format!("tune: {{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        _ => format!("tune: {{{}: …}}", now(key)),
    }
}

/// A choice's value, which of one was a truth before it was counts of layers.
fn as_now(key: &str, value: &serde_yaml::Value) -> String {
    match (key, value) {
        ("layer_remat", serde_yaml::Value::Bool(true)) => "{weights: all}".to_string(),
        ("layer_remat", serde_yaml::Value::Bool(false)) => "{weights: 0}".to_string(),
        _ => in_one_line(value),
    }
}

/// A value as YAML writes it between brackets.
fn in_one_line(value: &serde_yaml::Value) -> String {
    use serde_yaml::Value;
    match value {
        Value::Sequence(items) => format!("[{}]", items.iter().map(in_one_line).collect::<Vec<_>>().join(", ")),
        Value::Mapping(map) => {
            let pairs = map.iter().map(|(key, value)| format!("{}: {}", in_one_line(key), in_one_line(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) if text.chars().all(|c| c.is_alphanumeric() || c == '_') => text.clone(),
        Value::String(text) => format!("{text:?}"),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::Null => "null".to_string(),
        Value::Tagged(tagged) => format!("{} {}", tagged.tag, in_one_line(&tagged.value)),
    }
}

/// Writes a configuration, such as [`from_str`] reads.
///
/// # Errors
/// A value that YAML has no form for, such as a map whose keys are maps; in the writer's words.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, WriteError> {
    serde_yaml::to_string(value).map_err(WriteError)
}

/// A value in one line, as [`from_str`] reads it: `{kind: momentum, momentum: 0.9}`.
///
/// ```
/// let value = serde_json::json!({"data": 8, "names": ["a", "b c"], "none": null});
/// assert_eq!(bf16scope::document::to_line(&value), r#"{data: 8, names: [a, "b c"], none: null}"#);
/// ```
pub fn to_line<T: Serialize>(value: &T) -> String {
    // Only a map whose keys are maps has no form.
    serde_yaml::to_value(value).map_or_else(|error| error.to_string(), |value| in_one_line(&value))
}

/// A document with some keys set, such as a command line's: block, key and value as YAML; a key of no block stands beside
/// the blocks. Keys keep their order, and what is not there is added. Comments are lost.
///
/// # Errors
/// A document, or a value, that is no YAML; a value that YAML has no form for.
///
/// ```
/// use bf16scope::document::with;
///
/// let text = "train: {epochs: 2, seed: 1}  # short\n";
/// let set = with(text, &[(Some("train"), "epochs", "20"), (None, "tune", "none")])?;
/// assert_eq!(set, "train:\n  epochs: 20\n  seed: 1\ntune: none\n");
/// # Ok::<(), bf16scope::document::WriteError>(())
/// ```
pub fn with(text: &str, keys: &[(Option<&str>, &str, &str)]) -> Result<String, WriteError> {
    use serde_yaml::{Mapping, Value};
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let mut document: Mapping = serde_yaml::from_str(text).map_err(WriteError)?;
    for (block, key, value) in keys {
        let value: Value = serde_yaml::from_str(value).map_err(WriteError)?;
        let place = match block {
            None => &mut document,
            Some(block) => {
                let place = document.entry(Value::from(*block)).or_insert(Value::Null);
                if !place.is_mapping() {
                    *place = Value::Mapping(Mapping::new());
                }
                place.as_mapping_mut().expect("it was just made one")
            }
        };
        place.insert(Value::from(*key), value);
    }
    to_string(&document)
}

/// A value that YAML has no form for.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WriteError(serde_yaml::Error);

/// Where more brackets than [`MAX_OPEN`] are open, counting those in text and comments too.
fn too_deep(text: &str) -> Option<Place> {
    let mut n_open = 0usize;
    for (line, text) in (1..).zip(text.lines()) {
        for (column, c) in (1..).zip(text.chars()) {
            match c {
                '[' | '{' => n_open += 1,
                ']' | '}' => n_open = n_open.saturating_sub(1),
                _ => {}
            }
            if n_open > MAX_OPEN {
                return Some(Place { line, column, text: text.to_string() });
            }
        }
    }
    None
}

/// The line of the second `key` in the block that starts at `line` and `column`, which is where serde says a duplicate is.
fn second_line_of(text: &str, key: &str, line: usize, column: usize) -> Option<usize> {
    let is_key = |text: &str| {
        let indent = text.chars().take_while(|c| *c == ' ').count();
        indent + 1 == column && text.trim_start().strip_prefix(key).is_some_and(|rest| rest.starts_with(':'))
    };
    (1..).zip(text.lines()).skip(line - 1).filter(|(_, text)| is_key(text)).nth(1).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Root {
        seed: u64,
        #[serde(default)]
        rate: f64,
        layer: Layer,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Layer {
        #[serde(deserialize_with = "positives")]
        filters: Vec<i64>,
        #[serde(default)]
        padding: Padding,
        #[serde(default, deserialize_with = "fraction")]
        dropout: f64,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Padding {
        #[default]
        Same,
        Valid,
    }

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&from_str::<Root>("model.yaml", text).unwrap_err().to_string());
    }

    #[test]
    fn good_document_is_read() {
        let root: Root = from_str("model.yaml", "seed: 1\nlayer:\n  filters: [8, 16]\n").unwrap();
        assert_eq!(root.layer.filters, [8, 16]);
    }

    #[test]
    fn unknown_key() {
        check(
            "seed: 1\nlayer:\n  filers: [8]\n",
            expect![[r#"
            model.yaml:3:3: unknown key `filers`, expected one of filters, padding, dropout
              3 |   filers: [8]
                |   ^^^^^^
              help: did you mean `filters`?"#]],
        );
    }

    #[test]
    fn unknown_value() {
        check(
            "seed: 1\nlayer:\n  filters: [8]\n  padding: vaild\n",
            expect![[r#"
            model.yaml:4:12: unknown value `vaild`, expected one of same, valid
              4 |   padding: vaild
                |            ^^^^^
              help: did you mean `valid`?"#]],
        );
    }

    #[test]
    fn missing_key() {
        check(
            "seed: 1\nlayer:\n  padding: same\n",
            expect![[r#"
            model.yaml:3:3: missing key `filters`
              3 |   padding: same
                |   ^^^^^^^
              help: add `filters: …` to the block that starts here"#]],
        );
        check(
            "layer:\n  filters: [1]\n",
            expect![[r#"
            model.yaml:1:1: missing key `seed`
              1 | layer:
                | ^^^^^
              help: add `seed: …` to the block that starts here"#]],
        );
        check(
            "",
            expect![[r#"
            model.yaml:1:1: missing key `seed`
              1 | 
                | ^
              help: add `seed: …` to the block that starts here"#]],
        );
    }

    #[test]
    fn duplicate_key() {
        check(
            "seed: 1\nseed: 2\n",
            expect![[r#"
                model.yaml:2:1: key `seed` is given twice
                  2 | seed: 2
                    | ^^^^
                  help: keep one `seed`"#]],
        );
    }

    #[test]
    fn wrong_value() {
        check(
            "seed: one\n",
            expect![[r#"
            model.yaml:1:7: found string "one", expected a whole number of at least 0
              1 | seed: one
                |       ^^^"#]],
        );
        check(
            "seed: -1\n",
            expect![[r#"
            model.yaml:1:7: found integer `-1`, expected a whole number of at least 0
              1 | seed: -1
                |       ^^"#]],
        );
        check(
            "seed: 1\nlayer:\n  filters: [8, 0]\n",
            expect![[r#"
            model.yaml:3:16: found integer `0`, expected a whole number of at least 1
              3 |   filters: [8, 0]
                |                ^"#]],
        );
        check(
            "seed: 1\nlayer:\n  filters: 8\n",
            expect![[r#"
            model.yaml:3:12: found integer `8`, expected a list
              3 |   filters: 8
                |            ^"#]],
        );
        check(
            "seed: 1\nlayer:\n  filters: [8]\n  dropout: 1.5\n",
            expect![[r#"
            model.yaml:4:12: found floating point `1.5`, expected a number from 0 up to but not including 1
              4 |   dropout: 1.5
                |            ^^^"#]],
        );
        check(
            "seed: 1\nrate: fast\n",
            expect![[r#"
            model.yaml:2:7: found string "fast", expected a number
              2 | rate: fast
                |       ^^^^"#]],
        );
        check(
            "seed: 1\nlayer: [1]\n",
            expect![[r#"
                model.yaml:2:8: found a list, expected keys and values
                  2 | layer: [1]
                    |        ^"#]],
        );
    }

    #[test]
    fn syntax() {
        check(
            "seed: 1\n\tlayer: 2\n",
            expect![[r#"
            model.yaml:2:1: not valid yaml: found a tab character that violates indentation at line 2 column 1, while scanning a plain scalar
              2 | 	layer: 2
                | ^
              help: keys and values are `key: value`, and nesting is two spaces of indentation"#]],
        );
        check(
            "seed: [1, 2\n",
            expect![[r#"
                model.yaml:1:7: found a list, expected a whole number of at least 0
                  1 | seed: [1, 2
                    |       ^"#]],
        );
        check(
            "seed: \"\u{fffe}",
            expect![[r#"
            model.yaml:1:1: not valid yaml: control characters are not allowed at position 7
              1 | seed: "￾
                | ^^^^
              help: keys and values are `key: value`, and nesting is two spaces of indentation"#]],
        );
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
        for (this, last) in "bcdefghij".chars().zip("abcdefghi".chars()) {
            bomb +=
                &format!("{this}: &{this} [*{last}, *{last}, *{last}, *{last}, *{last}, *{last}, *{last}, *{last}]\n");
        }
        let refused = |text: &str| from_str::<serde_yaml::Value>("model.yaml", text).unwrap_err().to_string();
        expect!["model.yaml: not valid yaml: repetition limit exceeded"].assert_eq(&refused(&bomb));
        expect![[r#"
            model.yaml:1:129: not valid yaml: recursion limit exceeded
              1 | [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
                |                                                  ^
              help: keys and values are `key: value`, and nesting is two spaces of indentation"#]]
        .assert_eq(&refused(&"[".repeat(200)));
        expect![[r#"
            model.yaml:1:257: more than 256 brackets are open at once
              1 | [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
                |                                                  ^"#]]
        .assert_eq(&refused(&"[".repeat(1_000_000)));
        expect!["model.yaml: document has at least 1048577 bytes, expected at most 1048576"]
            .assert_eq(&refused(&"#".repeat(MAX_BYTES + 1)));
    }
}
