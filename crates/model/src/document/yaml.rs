//! Parses YAML text into a tree of [`Node`]s, and writes YAML.
//!
//! This is the only file that names YAML crates. `saphyr-parser` scans a document and gives the place of each value.
//! The meaning of a plain scalar (a number, a boolean, text) follows `serde_yaml`, which this crate used from the
//! start: numbers are its [`serde_yaml::Number`], so one tree gives both values and places. `serde_yaml`, which is
//! archived upstream, writes.

use super::error::ConfigProblem;
use super::node::{Node, Size, Value};
use super::place::{Key, Mark};
use super::{MAX_DEPTH, MAX_NODES, MAX_TEXT};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

/// The problem of an invalid text, and its place.
type Wrong = (ConfigProblem, Option<Mark>);

/// Parses a document.
pub(super) fn parse(text: &str) -> Result<Node, Wrong> {
    let mut tree = Tree::default();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => tree.take(event, mark_of(span.start))?,
            Err(error) => return Err(tree.syntax(text, &error)),
        }
    }
    let nothing = Node::new(Value::Null, Mark { line: 1, column: 1 });
    Ok(tree.root.unwrap_or(nothing))
}

fn mark_of(marker: Marker) -> Mark {
    Mark { line: marker.line(), column: marker.col() + 1 }
}

/// A tree under construction.
#[derive(Default)]
struct Tree {
    root: Option<Node>,
    /// Lists and maps that are not closed yet, from the outermost.
    open: Vec<Open>,
    /// The nodes of anchors, by the scanner's numbers.
    anchors: BTreeMap<usize, Node>,
    n_nodes: usize,
    /// Bytes of text that anchors and aliases repeat.
    n_bytes: usize,
    n_documents: usize,
}

/// A list or a map that is not closed yet.
struct Open {
    anchor: usize,
    tag: Option<String>,
    mark: Mark,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    /// The last key waits for its value; the set of keys detects duplicates.
    Map(Vec<(Key, Node)>, Option<Key>, HashSet<String>),
}

impl Tree {
    /// The scanner's error, with the likely cause: a tab, too deep brackets, or a bracket that is not closed.
    fn syntax(&self, text: &str, error: &ScanError) -> Wrong {
        let mark = mark_of(*error.marker());
        let lines: Vec<&str> = text.lines().collect();
        let line = |number: usize| lines.get(number.saturating_sub(1)).copied().unwrap_or_default();
        let together = |message: String, help: String| ConfigProblem::Together { message, help: Some(help) };
        // A plain scalar begins on the line before the tab that ends it.
        let tab = [mark.line, mark.line + 1].into_iter().find_map(|number| {
            let indent = line(number).chars().take_while(|c| c.is_whitespace());
            indent.enumerate().find(|(_, c)| *c == '\t').map(|(at, _)| Mark { line: number, column: at + 1 })
        });
        if let Some(tab) = tab {
            let message = "not valid yaml: a tab indents this line".to_string();
            return (together(message, "indent it with spaces".to_string()), Some(tab));
        }
        let before = |number: usize| if number < mark.line { usize::MAX } else { mark.column };
        let until = lines.iter().zip(1..).take(mark.line).flat_map(|(line, at)| line.chars().take(before(at)));
        let n_open = until.fold(0usize, |n, c| match c {
            '[' | '{' => n + 1,
            ']' | '}' => n.saturating_sub(1),
            _ => n,
        });
        if n_open > MAX_DEPTH {
            return (ConfigProblem::TooDeep, Some(mark));
        }
        let bracket = self.open.iter().rev().find_map(|open| {
            let bracket = line(open.mark.line).chars().nth(open.mark.column - 1)?;
            matches!(bracket, '[' | '{').then_some((open.mark, bracket))
        });
        match bracket {
            Some((at, bracket)) => {
                let message = format!("not valid yaml: {}", error.info());
                let help = format!("`{bracket}` of line {}, column {} is open here", at.line, at.column);
                // The end of the text has no line to show.
                let mark = if line(mark.line).trim().is_empty() { at } else { mark };
                (together(message, help), Some(mark))
            }
            None => (ConfigProblem::Syntax(error.info().to_string()), Some(mark)),
        }
    }

    fn take(&mut self, event: Event<'_>, mark: Mark) -> Result<(), Wrong> {
        match event {
            Event::DocumentStart(_) => {
                self.n_documents += 1;
                if self.n_documents > 1 {
                    let problem = ConfigProblem::Syntax("there is more than one document here".to_string());
                    return Err((problem, Some(mark)));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let node = scalar(&text, style, tag.as_deref(), mark)?;
                self.close(node, anchor)?;
            }
            Event::SequenceStart(anchor, tag) => self.begin(Items::List(Vec::new()), anchor, tag, mark)?,
            Event::MappingStart(anchor, tag) => {
                self.begin(Items::Map(Vec::new(), None, HashSet::new()), anchor, tag, mark)?
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { anchor, tag, mark, items }) = self.open.pop() {
                    let value = match items {
                        Items::List(list) => Value::List(list),
                        Items::Map(map, ..) => Value::Map(map),
                    };
                    self.close(tagged(tag, Node::new(value, mark)), anchor)?;
                }
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    // The scanner refuses unknown anchors, so this one is not complete yet.
                    let problem = ConfigProblem::Syntax("an alias stands inside what it is an alias of".to_string());
                    return Err((problem, Some(mark)));
                };
                let (size, depth) = (node.size(), depth_of(node));
                self.repeat(size, mark)?;
                if depth + self.open.len() > MAX_DEPTH {
                    return Err((ConfigProblem::TooDeep, Some(mark)));
                }
                let node = self.anchors[&anchor].clone();
                self.close(node, 0)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    /// Counts what is added to the tree.
    fn repeat(&mut self, size: Size, mark: Mark) -> Result<(), Wrong> {
        self.n_nodes += size.n_nodes;
        self.n_bytes += size.n_bytes;
        match (self.n_nodes > MAX_NODES, self.n_bytes > MAX_TEXT) {
            (true, _) => Err((ConfigProblem::TooMany, Some(mark))),
            (_, true) => Err((ConfigProblem::TooMuchText, Some(mark))),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, items: Items, anchor: usize, tag: Option<Cow<'_, Tag>>, mark: Mark) -> Result<(), Wrong> {
        if self.open.len() == MAX_DEPTH {
            return Err((ConfigProblem::TooDeep, Some(mark)));
        }
        let tag = tag.as_deref().and_then(own_tag);
        self.open.push(Open { anchor, tag, mark, items });
        Ok(())
    }

    /// Adds a complete value to its list or map.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Wrong> {
        // A node with an anchor is stored beside the tree too, and counts twice.
        let size = if anchor > 0 { node.size() } else { Size { n_nodes: 1, n_bytes: 0 } };
        self.repeat(size, node.mark)?;
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(node),
            Some(Items::List(list)) => list.push(node),
            Some(Items::Map(map, waiting, keys)) => match waiting.take() {
                Some(key) => map.push((key, node)),
                None => {
                    let mark = node.mark;
                    let Some(key) = node.text().map(str::to_string) else {
                        let expected = "a key, which is text".to_string();
                        let problem = ConfigProblem::WrongValue { found: node.description(), expected };
                        return Err((problem, Some(mark)));
                    };
                    if !keys.insert(key.clone()) {
                        return Err((ConfigProblem::DuplicateKey { key }, Some(mark)));
                    }
                    *waiting = Some(Key::new(key, mark));
                }
            },
        }
        Ok(())
    }
}

/// The nesting depth of a node; 0 for a scalar. Like [`Node::size`], it recurses no deeper than [`MAX_DEPTH`].
fn depth_of(node: &Node) -> usize {
    node.children().map(|child| 1 + depth_of(child)).max().unwrap_or(0)
}

/// The name of a tag that is not one of YAML's own.
fn own_tag(tag: &Tag) -> Option<String> {
    (!tag.is_yaml_core_schema() && tag.handle == "!" && !tag.suffix.is_empty()).then(|| tag.suffix.clone())
}

fn tagged(tag: Option<String>, node: Node) -> Node {
    match tag {
        Some(tag) => {
            let mark = node.mark;
            Node::new(Value::Tagged(tag, Box::new(node)), mark)
        }
        None => node,
    }
}

/// A scalar's value: by its tag if that is YAML's own, by its text if it is plain, or else text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, mark: Mark) -> Result<Node, Wrong> {
    let of_text = || Value::Text(text.to_string());
    let value = match tag.filter(|tag| tag.is_yaml_core_schema()).map(|tag| tag.suffix.as_str()) {
        Some("str") => of_text(),
        Some(suffix @ ("int" | "float" | "bool" | "null")) => {
            let value = match (suffix, plain(text)) {
                ("int", value @ (Value::Whole(_) | Value::Negative(_))) => Some(value),
                ("float", value @ Value::Float(_)) => Some(value),
                ("float", Value::Whole(value)) => Some(Value::Float(value as f64)),
                ("float", Value::Negative(value)) => Some(Value::Float(value as f64)),
                ("bool", value @ Value::Bool(_)) | ("null", value @ Value::Null) => Some(value),
                _ => None,
            };
            value.ok_or_else(|| {
                let problem =
                    ConfigProblem::WrongValue { found: format!("string {text:?}"), expected: format!("`!!{suffix}`") };
                (problem, Some(mark))
            })?
        }
        _ if style == ScalarStyle::Plain => plain(text),
        _ => of_text(),
    };
    Ok(tagged(tag.and_then(own_tag), Node::scalar(value, text, mark)))
}

/// The value of a plain scalar.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    if let Ok(number) = text.parse::<serde_yaml::Number>() {
        let whole = number.as_u64().map(Value::Whole).or_else(|| number.as_i64().map(Value::Negative));
        return whole.or_else(|| number.as_f64().map(Value::Float)).unwrap_or_else(|| Value::Text(text.to_string()));
    }
    // A whole number of more than 64 bits is a number, but not a `serde_yaml::Number`.
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    match text.parse::<f64>() {
        Ok(value) if is_number && value.is_finite() => Value::Float(value),
        _ => Value::Text(text.to_string()),
    }
}

/// Writes a configuration, such as [`from_str`](super::from_str) reads.
///
/// # Errors
/// A value that YAML cannot represent, such as an enum in an enum; the message is the writer's.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, WriteError> {
    serde_yaml::to_string(value).map_err(WriteError)
}

/// A value in one line, as [`from_str`](super::from_str) reads it: `{kind: momentum, momentum: 0.9}`.
///
/// ```
/// let value = serde_json::json!({"data": 8, "names": ["a", "b c"], "none": null});
/// assert_eq!(bf16scope_model::document::to_line(&value), r#"{data: 8, names: [a, "b c"], none: null}"#);
/// ```
pub fn to_line<T: Serialize>(value: &T) -> String {
    match serde_yaml::to_string(value) {
        Ok(text) => parse(&text).map_or(text, |node| node.in_one_line()),
        // Only a map whose keys are maps cannot be represented.
        Err(error) => error.to_string(),
    }
}

/// A document with some keys set, such as those of a command line: block, key and value as YAML; a key without a block
/// is set at the root. Keys keep their order, and missing ones are appended. Comments are lost.
///
/// # Errors
/// A document, or a value, that is not YAML; a value that YAML cannot represent.
///
/// ```
/// use bf16scope_model::document::with;
///
/// let text = "train: {epochs: 2, seed: 1}  # short\n";
/// let set = with(text, &[(Some("train"), "epochs", "20"), (None, "tune", "none")])?;
/// assert_eq!(set, "train:\n  epochs: 20\n  seed: 1\ntune: none\n");
/// # Ok::<(), bf16scope_model::document::WriteError>(())
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

/// A value that YAML cannot represent.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WriteError(serde_yaml::Error);

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as a `serde_yaml` value.
    fn value_of(node: &Node) -> serde_yaml::Value {
        use serde_yaml::value::{Tag, TaggedValue};
        match &node.value {
            Value::Null => serde_yaml::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Negative(value) => (*value).into(),
            Value::Whole(value) => (*value).into(),
            Value::Float(value) => (*value).into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(list) => list.iter().map(value_of).collect::<Vec<_>>().into(),
            Value::Map(map) => {
                let entry = |(key, node): &(Key, Node)| (serde_yaml::Value::from(&key[..]), value_of(node));
                serde_yaml::Value::Mapping(map.iter().map(entry).collect())
            }
            Value::Tagged(tag, node) => {
                let tagged = TaggedValue { tag: Tag::new(tag), value: value_of(node) };
                serde_yaml::Value::Tagged(Box::new(tagged))
            }
        }
    }

    /// Agrees with `serde_yaml`'s own reader.
    #[test]
    fn values_are_those_of_serde_yaml() {
        let scalars = "a ~ null Null nULL true True tRUE yes no on 0 1 -1 +1 01 -01 007 1_000 0x1F -0x1F +0x1f 0x 0o17 0b101 \
                       1e3 1E3 1.5 .5 5. 1. -1.5e-3 1e400 .inf -.inf +.inf .nan .NaN -.nan inf nan NaN infinity 1.2.3 12:30 \
                       2026-11-24 18446744073709551615 9223372036854775808 -9223372036854775808 'x' \"a\\tb\" 'it''s' \"32\" \
                       'true' !a !a,b [] {} [1,[2,x]] {a}";
        let mut n = 0;
        for text in scalars.split(' ') {
            for text in [format!("{text}\n"), format!("k: {text}\n"), format!("k: [{text}]\n"), format!("- {text}\n")] {
                let (ours, other) = (parse(&text), serde_yaml::from_str::<serde_yaml::Value>(&text));
                match (ours, other) {
                    (Ok(ours), Ok(other)) => assert_eq!(value_of(&ours), other, "{text}"),
                    // In YAML 1.1, which `serde_yaml` follows here, a bracket does not end a tag.
                    (Ok(_), Err(_)) if text.contains("!a]") || text.contains("!a,b]") => {}
                    (ours, other) => assert_eq!(ours.is_ok(), other.is_ok(), "{text}: {ours:?}, {other:?}"),
                }
                n += 1;
            }
        }
        assert!(n > 190, "{n}");
        for folder in ["../../examples", "../../examples/recipes"] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "yaml") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let other: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
                    assert_eq!(value_of(&parse(&text).unwrap()), other, "{}", path.display());
                    n += 1;
                }
            }
        }
        assert!(n > 220, "{n}");
    }

    #[test]
    fn every_value_and_key_knows_where_it_stands() {
        let node = parse("a: 1\nb:\n  - x\n  - {c: [2, é, z]}\nd: &e\n  f: 3\ng: *e\n").unwrap();
        let mark = |line, column| Mark { line, column };
        let Value::Map(map) = &node.value else { panic!("{node:?}") };
        assert_eq!((node.mark, map[1].0.mark, map[1].1.mark), (mark(1, 1), mark(2, 1), mark(3, 3)));
        let Value::List(list) = &map[1].1.value else { panic!("{node:?}") };
        assert_eq!((list[0].mark, list[1].mark), (mark(3, 5), mark(4, 5)));
        let Value::Map(inner) = &list[1].value else { panic!("{node:?}") };
        let Value::List(deep) = &inner[0].1.value else { panic!("{node:?}") };
        assert_eq!((inner[0].0.mark, deep[2].mark), (mark(4, 6), mark(4, 16)));
        // An alias has the place of its anchor.
        assert_eq!((map[2].1.mark, map[3].0.mark, map[3].1.mark), (mark(5, 4), mark(7, 1), mark(5, 4)));
    }

    #[test]
    fn an_enum_in_an_enum_is_refused() {
        let value = Ok::<Result<u8, u8>, u8>(Ok(1));
        let error = to_string(&value).unwrap_err().to_string();
        assert_eq!(error, "serializing nested enums in YAML is not supported yet");
    }
}
