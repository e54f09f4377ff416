//! The tree of a document: every value and every key knows its line and column.
//!
//! A [`Node`] is read like any configuration: `&Node` is a [`serde::Deserializer`] (see [`de`](super::de)). A [`Node`]
//! is itself [`Deserialize`], for configurations whose keys must be interpreted together.

use super::error::{NodeError, ReadError};
use super::place::{Key, Mark, Step};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use std::cell::RefCell;
use std::fmt;
use std::ops::Add;

/// A value of a document, with its place. Nodes with equal values are equal, wherever they are.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// The place of its beginning.
    pub mark: Mark,
    /// For a scalar, its text as written, without quotes.
    written: Box<str>,
}

/// The value of a [`Node`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number below 0.
    Negative(i64),
    /// A whole number from 0 on.
    Whole(u64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values, in the document's order.
    Map(Vec<(Key, Node)>),
    /// A value with a tag, `!name value`.
    Tagged(String, Box<Node>),
}

/// How much a node holds, with all that is in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Values, itself among them.
    pub n_nodes: usize,
    /// Bytes of texts and keys.
    pub n_bytes: usize,
}

impl Add for Size {
    type Output = Size;

    fn add(self, other: Size) -> Size {
        Size { n_nodes: self.n_nodes + other.n_nodes, n_bytes: self.n_bytes + other.n_bytes }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.value == other.value
    }
}

impl Node {
    /// A node for a list, a map, or nothing.
    pub fn new(value: Value, mark: Mark) -> Node {
        Node { value, mark, written: Box::default() }
    }

    /// A node for a scalar with this text.
    pub(crate) fn scalar(value: Value, written: &str, mark: Mark) -> Node {
        Node { value, mark, written: written.into() }
    }

    /// Bytes of its text and its keys, without those of the nodes in it.
    pub(crate) fn n_own_bytes(&self) -> usize {
        let keys_or_text = match &self.value {
            Value::Map(map) => map.iter().map(|(key, _)| key.len()).sum(),
            Value::Text(text) => text.len(),
            _ => 0,
        };
        self.written.len() + keys_or_text
    }

    /// How much it holds.
    pub(super) fn size(&self) -> Size {
        let alone = Size { n_nodes: 1, n_bytes: self.n_own_bytes() };
        self.children().map(Node::size).fold(alone, |sum, child| sum + child)
    }

    /// The same node with another value.
    #[must_use]
    pub fn replaced(&self, value: Value) -> Node {
        Node { value, mark: self.mark, written: self.written.clone() }
    }

    /// Reads a node, and converts it by `read`. Errors of `read` keep their place and advice if `deserializer` is
    /// within a [`Node`]'s; otherwise they become text.
    ///
    /// # Errors
    /// Those of the document, and those of `read`.
    pub fn read<'de, D: Deserializer<'de>, T>(
        deserializer: D,
        read: impl FnOnce(&Node) -> Result<T, ReadError>,
    ) -> Result<T, D::Error> {
        let node = Node::deserialize(deserializer)?;
        read(&node).map_err(|error| error.or_at(node.mark).raise())
    }

    /// The scalar's text as written, without quotes; `None` for a list or a map.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::List(_) | Value::Map(_) => None,
            Value::Text(text) => Some(text),
            Value::Tagged(_, node) => node.text(),
            Value::Null | Value::Bool(_) | Value::Negative(_) | Value::Whole(_) | Value::Float(_) => {
                Some(&self.written)
            }
        }
    }

    /// Whether it is an empty value.
    pub(super) fn is_empty(&self) -> bool {
        self.value == Value::Null && self.written.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Value::Map(map) = &self.value else { return None };
        map.iter().find(|(other, _)| &**other == key).map(|(_, node)| node)
    }

    /// The value that a step leads to.
    pub fn after(&self, step: &Step) -> Option<&Node> {
        self.step(step).map(|(node, _)| node)
    }

    /// The value that a step leads to, and its place.
    fn step(&self, step: &Step) -> Option<(&Node, Mark)> {
        match (&self.value, step) {
            (Value::List(list), Step::Index(at)) => list.get(*at).map(|node| (node, node.mark)),
            (Value::Map(_), Step::Key(key)) => self.get(key).map(|node| (node, node.mark)),
            (Value::Map(map), Step::KeyItself(key)) => {
                map.iter().find(|(other, _)| &**other == key).map(|(key, node)| (node, key.mark))
            }
            _ => None,
        }
    }

    /// The place that the steps lead to, if there is one.
    pub fn place_of(&self, steps: &[Step]) -> Option<Mark> {
        let start = Some((self, self.mark));
        steps.iter().fold(start, |here, step| here.and_then(|(node, _)| node.step(step))).map(|(_, mark)| mark)
    }

    /// The place that the steps lead to; steps after the last existing value are ignored.
    pub fn nearest_place_of(&self, steps: &[Step]) -> Mark {
        let start = (self, self.mark);
        steps.iter().fold(start, |(node, mark), step| node.step(step).unwrap_or((node, mark))).1
    }

    /// An error about the value that its steps lead to from here.
    pub fn error(&self, error: NodeError) -> ReadError {
        let mark = self.nearest_place_of(&error.path);
        let help = error.help;
        let error = ReadError::new(error.message).or_at(mark);
        if let Some(help) = help { error.with_help(help) } else { error }
    }

    /// The nodes that it directly holds.
    pub(crate) fn children(&self) -> Box<dyn Iterator<Item = &Node> + '_> {
        match &self.value {
            Value::List(list) => Box::new(list.iter()),
            Value::Map(map) => Box::new(map.iter().map(|(_, node)| node)),
            Value::Tagged(_, node) => Box::new(std::iter::once(&**node)),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// Refuses a number alone where keys are expected; `keys` are the text to write before the number, such as `kind:
    /// norm, value`.
    ///
    /// # Errors
    /// A number, with the correction.
    pub fn is_no_number(&self, keys: &str) -> Result<(), ReadError> {
        match &self.value {
            Value::Whole(_) | Value::Float(_) => {
                let number = self.text().unwrap_or_default();
                Err(self.wrong("keys and values").with_help(format!("write `{{{keys}: {number}}}`")))
            }
            _ => Ok(()),
        }
    }

    /// Reads one pattern of names, or a list of at least one. It refuses empty text and booleans; `help` says what to write
    /// instead.
    ///
    /// # Errors
    /// No pattern, or another value.
    pub fn patterns(&self, help: &str) -> Result<Vec<String>, ReadError> {
        let none = || ReadError::new("found no pattern, expected one at least");
        let pattern = |node: &Node| match &node.value {
            Value::Null => Err(none().or_at(node.mark).with_help(help)),
            Value::Text(text) if text.trim().is_empty() => Err(none().or_at(node.mark).with_help(help)),
            Value::Bool(_) => Err(node.wrong("a pattern of names").with_help(help)),
            _ => String::deserialize(node),
        };
        match &self.value {
            Value::List(list) if list.is_empty() => Err(none().or_at(self.mark).with_help(help)),
            Value::List(list) => list.iter().map(pattern).collect(),
            _ => Ok(vec![pattern(self)?]),
        }
    }

    /// The error of a node of another kind.
    pub fn wrong(&self, expected: &str) -> ReadError {
        ReadError::wrong(self.description(), expected).or_at(self.mark)
    }

    /// A description of it, for an error.
    pub fn description(&self) -> String {
        super::error::plain(&self.unexpected().to_string())
    }

    pub(super) fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Negative(value) => Unexpected::Signed(*value),
            Value::Whole(value) => Unexpected::Unsigned(*value),
            Value::Float(value) => Unexpected::Float(*value),
            Value::Text(text) => Unexpected::Str(text),
            Value::List(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
            Value::Tagged(..) => Unexpected::Enum,
        }
    }

    /// The value in YAML's flow style.
    pub fn in_one_line(&self) -> String {
        let text = |text: &str| match text.chars().all(|c| c.is_alphanumeric() || c == '_') {
            true => text.to_string(),
            false => format!("{text:?}"),
        };
        match &self.value {
            Value::List(list) => format!("[{}]", list.iter().map(Node::in_one_line).collect::<Vec<_>>().join(", ")),
            Value::Map(map) => {
                let pairs = map.iter().map(|(key, node)| format!("{}: {}", text(key), node.in_one_line()));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
            Value::Text(value) => text(value),
            Value::Tagged(tag, node) => format!("!{tag} {}", node.in_one_line()),
            Value::Null => "null".to_string(),
            _ => self.written.to_string(),
        }
    }
}

/// The name by which a [`Node`] asks a deserializer for itself: `&Node` recognises it, and any other deserializer reads
/// a value.
pub(super) const NODE: &str = "bf16scope::document::Node";

thread_local! {
    /// A node on its way from `&Node` to [`Node::deserialize`]. serde's traits cannot carry it: `&Node` stores it here
    /// and calls the visitor, which takes it at once.
    static HANDED_OVER: RefCell<Option<Node>> = const { RefCell::new(None) };
}

impl Node {
    /// Passes the node to a visitor that asked for it by [`NODE`].
    pub(super) fn hand_over<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        HANDED_OVER.with_borrow_mut(|place| *place = Some(self.clone()));
        visitor.visit_unit()
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_newtype_struct(NODE, Any)
    }
}

/// Reads a node from any deserializer, without places if it has none.
struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Node;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("keys, values and lists")
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        let handed_over = HANDED_OVER.with_borrow_mut(Option::take);
        Ok(handed_over.unwrap_or_else(|| Node::new(Value::Null, Mark::default())))
    }
    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::scalar(Value::Bool(value), &value.to_string(), Mark::default()))
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        let whole = u64::try_from(value).map_or(Value::Negative(value), Value::Whole);
        Ok(Node::scalar(whole, &value.to_string(), Mark::default()))
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::scalar(Value::Whole(value), &value.to_string(), Mark::default()))
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::scalar(Value::Float(value), &value.to_string(), Mark::default()))
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::scalar(Value::Text(value.to_string()), value, Mark::default()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Node::new(Value::List(list), Mark::default()))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map: Vec<(Key, Node)> = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            map.push((Key::new(key, Mark::default()), entries.next_value()?));
        }
        Ok(Node::new(Value::Map(map), Mark::default()))
    }
}
