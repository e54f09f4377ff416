//! Part of a document as a value, for configurations whose keys mean something only together; its errors know the way
//! to where they belong.
//!
//! A [`Node`] is read like any configuration. What is then made of it reports a [`NodeError`]: a message and the steps
//! from the node to the culprit. `serde::de::Error::custom` takes it through the YAML crate as text, and
//! [`from_str`](super::from_str) takes it apart, goes the steps through the document and finds line and column.

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::{Serialize, forward_to_deserialize_any};
use std::fmt;

/// What a document holds at one place.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
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
    Map(Vec<(String, Node)>),
}

/// One step from a node to what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Step {
    /// The value of a key.
    Key(String),
    /// The key itself; the last step.
    KeyItself(String),
    /// An element of a list, from 0.
    Index(usize),
}

/// What is wrong in a node, and the way there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// From the node that was read to the culprit.
    pub path: Vec<Step>,
    /// What is wrong: a sentence of serde's, or one of ours if `help` or `is_own` says so.
    pub message: String,
    /// Whether `message` is to be shown as it stands.
    pub is_own: bool,
    /// What to do about it.
    pub help: Option<String>,
}

/// Stands around the steps in an error's text; no YAML document holds it but as an escape, which JSON escapes again.
const MARK: char = '\u{1}';

impl NodeError {
    /// An error in our own words, about what is at `path`.
    pub fn new(path: Vec<Step>, message: impl Into<String>) -> NodeError {
        NodeError { path, message: message.into(), is_own: true, help: None }
    }

    /// The error of a node that is something else.
    pub fn wrong(node: &Node, expected: &str) -> NodeError {
        de::Error::invalid_type(node.unexpected(), &expected)
    }

    /// The same with help.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> NodeError {
        NodeError { help: Some(help.into()), ..self }
    }

    /// The same, if it is serde's sentence in our words.
    #[must_use]
    pub fn in_own_words(self) -> NodeError {
        match self.is_own {
            true => self,
            false => NodeError { message: super::problem(&self.message).to_string(), is_own: true, ..self },
        }
    }

    /// The same, seen from one step further out.
    #[must_use]
    pub fn within(mut self, step: Step) -> NodeError {
        self.path.insert(0, step);
        self
    }

    /// Takes an error's text apart: what stands before ours, and ours.
    pub(super) fn parse(text: &str) -> Option<(&str, NodeError)> {
        let (before, rest) = text.split_once(MARK)?;
        let (steps, message) = rest.split_once(MARK)?;
        let (path, is_own, help) = serde_json::from_str(steps).ok()?;
        Some((before, NodeError { path, message: message.to_string(), is_own, help }))
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = serde_json::json!((&self.path, self.is_own, &self.help));
        write!(f, "{MARK}{steps}{MARK}{}", self.message)
    }
}

impl std::error::Error for NodeError {}

impl de::Error for NodeError {
    fn custom<T: fmt::Display>(message: T) -> NodeError {
        let message = message.to_string();
        match NodeError::parse(&message) {
            Some((_, inner)) => inner,
            None => NodeError { path: Vec::new(), message, is_own: false, help: None },
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys, values and lists")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
                Ok(u64::try_from(value).map_or(Node::Negative(value), Node::Whole))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Whole(value))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Float(value))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_string()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Node, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    list.push(element);
                }
                Ok(Node::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
                let mut map: Vec<(String, Node)> = Vec::new();
                while let Some(key) = entries.next_key::<String>()? {
                    if map.iter().any(|(other, _)| *other == key) {
                        return Err(de::Error::custom(format!("duplicate field `{key}`")));
                    }
                    map.push((key, entries.next_value()?));
                }
                Ok(Node::Map(map))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = NodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NodeError> {
        match self {
            Node::Null => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Negative(value) => visitor.visit_i64(*value),
            Node::Whole(value) => visitor.visit_u64(*value),
            Node::Float(value) => visitor.visit_f64(*value),
            Node::Text(text) => visitor.visit_borrowed_str(text),
            Node::List(list) => visitor.visit_seq(Items { rest: list.iter(), index: 0 }),
            Node::Map(map) => visitor.visit_map(Entries { rest: map.iter(), value: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NodeError> {
        match self {
            Node::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, NodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, NodeError> {
        match self {
            Node::Text(text) => visitor.visit_enum(Name(text)),
            other => Err(de::Error::invalid_type(other.unexpected(), &"a name")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl Node {
    /// Reads a node, and of it something else. Errors of `read` point at what they are about: they are made while the YAML
    /// crate still knows where it is.
    ///
    /// # Errors
    /// Those of the document, and those of `read`.
    pub fn read<'de, D: Deserializer<'de>, T>(
        deserializer: D,
        read: impl FnOnce(Node) -> Result<T, NodeError>,
    ) -> Result<T, D::Error> {
        struct Then<F>(F);
        impl<'de, T, F: FnOnce(Node) -> Result<T, NodeError>> Visitor<'de> for Then<F> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys, values and lists")
            }
            fn visit_unit<E: de::Error>(self) -> Result<T, E> {
                (self.0)(Node::Null).map_err(E::custom)
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
                (self.0)(Node::Bool(value)).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
                (self.0)(u64::try_from(value).map_or(Node::Negative(value), Node::Whole)).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
                (self.0)(Node::Whole(value)).map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
                (self.0)(Node::Float(value)).map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
                (self.0)(Node::Text(value.to_string())).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<T, A::Error> {
                let node = Node::deserialize(de::value::SeqAccessDeserializer::new(elements))?;
                (self.0)(node).map_err(de::Error::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<T, A::Error> {
                let node = Node::deserialize(de::value::MapAccessDeserializer::new(entries))?;
                (self.0)(node).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(Then(read))
    }

    /// Entries of a map, to be read one after another.
    pub fn entries(map: &[(String, Node)]) -> impl MapAccess<'_, Error = NodeError> {
        Entries { rest: map.iter(), value: None }
    }

    /// What a step leads to.
    pub fn get(&self, step: &Step) -> Option<&Node> {
        match (self, step) {
            (Node::List(list), Step::Index(at)) => list.get(*at),
            (Node::Map(map), Step::Key(key) | Step::KeyItself(key)) => {
                map.iter().find(|(other, _)| other == key).map(|(_, node)| node)
            }
            _ => None,
        }
    }

    /// That it is no number alone, where keys are expected; `keys` are what to write before the number, such as
    /// `kind: norm, value`.
    ///
    /// # Errors
    /// A number, with what to write.
    pub fn is_no_number(&self, keys: &str) -> Result<(), NodeError> {
        let number = match self {
            Node::Whole(value) => value.to_string(),
            Node::Float(value) => value.to_string(),
            _ => return Ok(()),
        };
        let error = NodeError::wrong(self, "keys and values").in_own_words();
        Err(error.with_help(format!("write `{{{keys}: {number}}}`")))
    }

    /// What it is, for an error.
    pub fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Node::Null => Unexpected::Unit,
            Node::Bool(value) => Unexpected::Bool(*value),
            Node::Negative(value) => Unexpected::Signed(*value),
            Node::Whole(value) => Unexpected::Unsigned(*value),
            Node::Float(value) => Unexpected::Float(*value),
            Node::Text(text) => Unexpected::Str(text),
            Node::List(_) => Unexpected::Seq,
            Node::Map(_) => Unexpected::Map,
        }
    }
}

/// The name of an enum's variant that has no content.
struct Name<'a>(&'a str);

impl<'de> EnumAccess<'de> for Name<'de> {
    type Error = NodeError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), NodeError> {
        let deserializer: StrDeserializer<'_, NodeError> = self.0.into_deserializer();
        Ok((seed.deserialize(deserializer)?, self))
    }
}

impl<'de> VariantAccess<'de> for Name<'de> {
    type Error = NodeError;

    fn unit_variant(self) -> Result<(), NodeError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _seed: S) -> Result<S::Value, NodeError> {
        Err(de::Error::custom("this name has content"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, NodeError> {
        Err(de::Error::custom("this name has content"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, NodeError> {
        Err(de::Error::custom("this name has content"))
    }
}

/// The elements of a list.
struct Items<'a> {
    rest: std::slice::Iter<'a, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = NodeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, NodeError> {
        let Some(node) = self.rest.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(node).map(Some).map_err(|error| error.within(Step::Index(index)))
    }
}

/// The entries of a map.
struct Entries<'a> {
    rest: std::slice::Iter<'a, (String, Node)>,
    value: Option<&'a (String, Node)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = NodeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, NodeError> {
        self.value = self.rest.next();
        let Some((key, _)) = self.value else { return Ok(None) };
        let deserializer: StrDeserializer<'_, NodeError> = key.as_str().into_deserializer();
        seed.deserialize(deserializer).map(Some).map_err(|error| error.within(Step::KeyItself(key.clone())))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, NodeError> {
        let Some((key, node)) = self.value.take() else { return Err(de::Error::custom("a value without a key")) };
        seed.deserialize(node).map_err(|error| error.within(Step::Key(key.clone())))
    }
}

/// Goes the steps through a document, and fails where they end: the YAML crate then says where that is.
pub(super) struct Find<'a>(pub &'a [Step]);

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    /// Whatever is not gone into is where the steps end.
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("to end here")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Some((Step::Index(index), rest)) = self.0.split_first() else {
            return Err(de::Error::invalid_type(Unexpected::Seq, &self));
        };
        for _ in 0..*index {
            elements.next_element::<IgnoredAny>()?;
        }
        elements.next_element_seed(Find(rest))?;
        Err(de::Error::invalid_type(Unexpected::Seq, &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let (wanted, rest) = match self.0.split_first() {
            Some((Step::Key(key), rest)) => (key, Some(rest)),
            Some((Step::KeyItself(key), _)) => (key, None),
            Some((Step::Index(_), _)) | None => return Err(de::Error::invalid_type(Unexpected::Map, &self)),
        };
        while let Some(is_found) = entries.next_key_seed(FindKey { wanted, fails: rest.is_none() })? {
            match rest.filter(|_| is_found) {
                Some(rest) => entries.next_value_seed(Find(rest))?,
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Err(de::Error::invalid_type(Unexpected::Map, &self))
    }
}

/// Whether a key is the wanted one; then it may fail there.
struct FindKey<'a> {
    wanted: &'a str,
    fails: bool,
}

impl<'de> DeserializeSeed<'de> for FindKey<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FindKey<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E: de::Error>(self, key: &str) -> Result<bool, E> {
        match key == self.wanted {
            true if self.fails => Err(E::custom("to end here")),
            is_found => Ok(is_found),
        }
    }
}
