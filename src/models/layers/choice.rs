//! How layers, losses and metrics are written: `NAME`, `{NAME: MAIN, key: value}`, `{NAME: {key: value}}` or, as
//! elsewhere in an experiment, `{kind: NAME, key: value}`.

use crate::document::{Node, NodeError, Step, nearest};
use serde::de::value::StrDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

/// A name and its options, as they are written.
pub(super) struct Choice<'a> {
    /// The name.
    pub name: &'a str,
    /// Where it stands.
    name_path: Vec<Step>,
    /// The value of its key, unless that holds options: the first option.
    pub main: Option<&'a Node>,
    /// Options by name.
    options: Vec<Entry<'a>>,
}

/// A key and its value.
struct Entry<'a> {
    key: &'a str,
    node: &'a Node,
    /// The map that it is in.
    parent: Vec<Step>,
}

impl Entry<'_> {
    fn path(&self) -> Vec<Step> {
        [self.parent.as_slice(), &[Step::Key(self.key.to_string())]].concat()
    }

    fn path_to_key(&self) -> Vec<Step> {
        [self.parent.as_slice(), &[Step::KeyItself(self.key.to_string())]].concat()
    }
}

impl<'a> Choice<'a> {
    /// Reads `node`, in which the name is the first key that is none of `common`.
    pub fn read(node: &'a Node, common: &[&str], example: &str) -> Result<Choice<'a>, NodeError> {
        let map = match node {
            Node::Text(name) => {
                return Ok(Choice { name, name_path: Vec::new(), main: None, options: Vec::new() });
            }
            Node::Map(map) => map,
            other => return Err(de::Error::invalid_type(other.unexpected(), &example)),
        };
        if let Some((_, kind)) = map.iter().find(|(key, _)| key == "kind") {
            let path = vec![Step::Key("kind".to_string())];
            let Node::Text(name) = kind else {
                let error: NodeError = de::Error::invalid_type(kind.unexpected(), &example);
                return Err(NodeError { path, ..error });
            };
            let options = map.iter().filter(|(key, _)| key != "kind");
            let options = options.map(|(key, node)| Entry { key, node, parent: Vec::new() }).collect();
            return Ok(Choice { name, name_path: path, main: None, options });
        }
        let is_common = |key: &str| common.contains(&key);
        let Some((name, value)) = map.iter().find(|(key, _)| !is_common(key)) else {
            return Err(de::Error::invalid_value(de::Unexpected::Map, &example));
        };
        let entry = |parent: &[Step], (key, node): &'a (String, Node)| Entry { key, node, parent: parent.to_vec() };
        let mut options: Vec<Entry<'_>> =
            map.iter().filter(|(key, _)| key != name).map(|pair| entry(&[], pair)).collect();
        let main = match value {
            Node::Null => None,
            Node::Map(inner) => {
                let parent = [Step::Key(name.clone())];
                options.extend(inner.iter().map(|pair| entry(&parent, pair)));
                None
            }
            main => Some(main),
        };
        for (number, option) in options.iter().enumerate() {
            if options[..number].iter().any(|other| other.key == option.key) {
                let error: NodeError = de::Error::custom(format!("duplicate field `{}`", option.key));
                return Err(NodeError { path: option.path_to_key(), ..error });
            }
        }
        Ok(Choice { name, name_path: vec![Step::KeyItself(name.clone())], main, options })
    }

    /// The error of a name that is none of `names`; `meant` is what it means elsewhere, if that is known, and `form` how one
    /// is written.
    pub fn unknown(&self, names: &[&str], meant: Option<&str>, form: impl Fn(&str) -> String) -> NodeError {
        let all: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let message = format!("unknown value `{}`, expected one of {}", self.name, names.join(", "));
        let help = match meant.or_else(|| nearest(self.name, &all)) {
            Some(name) => format!("did you mean `{name}`? {}", form(name)),
            None => form(names[0]),
        };
        let error = NodeError::new(self.name_path.clone(), message);
        if help.is_empty() { error } else { error.with_help(help.trim_end()) }
    }

    /// Where the name stands.
    pub fn name_path(&self) -> Vec<Step> {
        self.name_path.clone()
    }

    /// Where the value of the name's key stands.
    pub fn main_path(&self) -> Vec<Step> {
        vec![Step::Key(self.name.to_string())]
    }

    /// Takes the option `key` out.
    pub fn take<T: Deserialize<'a>>(&mut self, key: &str) -> Result<Option<T>, NodeError> {
        let Some(at) = self.options.iter().position(|option| option.key == key) else { return Ok(None) };
        let option = self.options.remove(at);
        T::deserialize(option.node).map(Some).map_err(|error| under(option.path(), error))
    }

    /// The options as a struct, whose first field is the main one; errors list `common` too.
    pub fn options<T: Deserialize<'a>>(self, common: &'static [&'static str]) -> Result<T, NodeError> {
        T::deserialize(Options { choice: self, common })
    }
}

/// The same error, seen from where `path` starts.
pub(super) fn under(path: Vec<Step>, error: NodeError) -> NodeError {
    path.into_iter().rev().fold(error, NodeError::within)
}

/// A choice as the struct of its options.
struct Options<'a> {
    choice: Choice<'a>,
    common: &'static [&'static str],
}

impl<'de> Deserializer<'de> for Options<'de> {
    type Error = NodeError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, NodeError> {
        let Options { choice, common } = self;
        if let Some(option) = choice.options.iter().find(|option| !fields.contains(&option.key)) {
            let valid: Vec<String> = fields.iter().chain(common).map(|field| format!("`{field}`")).collect();
            let error: NodeError =
                de::Error::custom(format!("unknown field `{}`, expected one of {}", option.key, valid.join(", ")));
            return Err(NodeError { path: option.path_to_key(), ..error });
        }
        let mut main = None;
        if let Some(node) = choice.main {
            let path = choice.main_path();
            let Some(field) = fields.first() else {
                let error: NodeError = de::Error::invalid_value(node.unexpected(), &"nothing, or options");
                return Err(NodeError { path, ..error });
            };
            if let Some(option) = choice.options.iter().find(|option| option.key == *field) {
                let error: NodeError = de::Error::custom(format!("duplicate field `{field}`"));
                return Err(NodeError { path: option.path_to_key(), ..error });
            }
            main = Some((*field, node, path));
        }
        visitor.visit_map(OptionsMap { main, rest: choice.options.into_iter(), value: None })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, NodeError> {
        Err(de::Error::custom("options are a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The main option under its name, then the others.
struct OptionsMap<'a> {
    main: Option<(&'static str, &'a Node, Vec<Step>)>,
    rest: std::vec::IntoIter<Entry<'a>>,
    value: Option<(&'a Node, Vec<Step>)>,
}

impl<'de> MapAccess<'de> for OptionsMap<'de> {
    type Error = NodeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, NodeError> {
        let (key, node, path) = match self.main.take() {
            Some(main) => main,
            None => match self.rest.next() {
                Some(entry) => (entry.key, entry.node, entry.path()),
                None => return Ok(None),
            },
        };
        self.value = Some((node, path));
        let deserializer: StrDeserializer<'_, NodeError> = key.into_deserializer();
        seed.deserialize(deserializer).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, NodeError> {
        let Some((node, path)) = self.value.take() else { return Err(de::Error::custom("a value without a key")) };
        seed.deserialize(node).map_err(|error| under(path, error))
    }
}
