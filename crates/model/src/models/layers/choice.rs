//! The forms of layers, losses and metrics: `NAME`, `{NAME: MAIN, key: value}`, `{NAME: {key: value}}` or, as elsewhere
//! in an experiment, `{kind: NAME, key: value}`.

use crate::document::{ConfigProblem, Key, Mark, Node, ReadError, Value, nearest};
use serde::de::value::StrDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use std::collections::HashSet;

/// A name and its options, as written.
pub(super) struct Choice<'a> {
    /// The name.
    pub name: &'a str,
    /// Its place.
    pub mark: Mark,
    /// The value of the name's key if that is the first option, not a map of options.
    pub main: Option<&'a Node>,
    /// The key of the first option, once it was taken.
    main_key: Option<&'static str>,
    /// Keys that errors do not list.
    unlisted: &'static [&'static str],
    /// Options by name.
    options: Vec<(&'a Key, &'a Node)>,
}

/// Decides which of a node's keys is its name: keys have no order.
pub(super) struct Names<'a> {
    /// Keys that are not names.
    pub common: &'a [&'a str],
    /// Whether a key is a known name.
    pub is_known: &'a dyn Fn(&str) -> bool,
    /// Whether a name has an option with that key.
    pub has_option: &'a dyn Fn(&str, &str) -> bool,
}

impl Names<'_> {
    /// The position of the name: a known one that has options of all other keys, such as `dense` in `{activation: relu,
    /// dense: 10}`; otherwise a known one, or the first possible key, which the error is about.
    fn position(&self, keys: &[&str]) -> Option<usize> {
        let may_be = |at: &usize| !self.common.contains(&keys[*at]);
        let is_known = |at: &usize| may_be(at) && (self.is_known)(keys[*at]);
        let fits = |at: &usize| {
            let mut others = keys.iter().enumerate().filter(|(other, key)| other != at && !self.common.contains(key));
            is_known(at) && others.all(|(_, key)| (self.has_option)(keys[*at], key))
        };
        let all = || 0..keys.len();
        all().find(fits).or_else(|| all().find(is_known)).or_else(|| all().find(may_be))
    }
}

impl<'a> Choice<'a> {
    /// Reads `node`; [`Names`] decides which key is the name.
    pub fn read(node: &'a Node, names: &Names<'_>, example: &str) -> Result<Choice<'a>, ReadError> {
        let map = match &node.value {
            Value::Text(name) => {
                let (main, main_key, unlisted, options) = (None, None, &[][..], Vec::new());
                return Ok(Choice { name, mark: node.mark, main, main_key, unlisted, options });
            }
            Value::Map(map) => map,
            _ => return Err(node.wrong(example)),
        };
        if let Some(kind) = node.get("kind") {
            let Value::Text(name) = &kind.value else { return Err(kind.wrong(example)) };
            let options = map.iter().filter(|(key, _)| &**key != "kind").map(|(key, node)| (key, node)).collect();
            return Ok(Choice { name, mark: kind.mark, main: None, main_key: None, unlisted: &[], options });
        }
        let Some(at) = names.position(&map.iter().map(|(key, _)| &**key).collect::<Vec<&str>>()) else {
            return Err(node.wrong(example));
        };
        let (name, value) = &map[at];
        let mut options: Vec<(&Key, &Node)> =
            map.iter().filter(|(key, _)| key != name).map(|(key, node)| (key, node)).collect();
        let main = match &value.value {
            Value::Null => None,
            Value::Map(inner) => {
                options.extend(inner.iter().map(|(key, node)| (key, node)));
                None
            }
            _ => Some(value),
        };
        let mut seen = HashSet::new();
        for (key, _) in &options {
            if !seen.insert(&***key) {
                return Err(twice(key, key.mark));
            }
        }
        Ok(Choice { name, mark: name.mark, main, main_key: None, unlisted: &[], options })
    }

    /// The error of a name that is not in `names`; `meant` is its meaning elsewhere, if known, and `form` shows how a
    /// name is written.
    pub fn unknown(&self, names: &[&str], meant: Option<&str>, form: impl Fn(&str) -> String) -> ReadError {
        let all: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let message = format!("unknown value `{}`, expected one of {}", self.name, names.join(", "));
        let help = match meant.or_else(|| nearest(self.name, &all)) {
            Some(name) => format!("did you mean `{name}`? {}", form(name)),
            None => form(names[0]),
        };
        let error = ReadError::new(message).or_at(self.mark);
        if help.is_empty() { error } else { error.with_help(help.trim_end()) }
    }

    /// The place of an option, if it is present.
    pub fn place_of(&self, option: &str) -> Option<Mark> {
        self.options.iter().find(|(key, _)| &***key == option).map(|(key, _)| key.mark)
    }

    /// Keys and values beside the name's.
    pub fn entries(&self) -> impl Iterator<Item = (&'a Key, &'a Node)> {
        self.options.iter().copied()
    }

    /// The value of an option, if it is present.
    pub fn value_of(&self, option: &str) -> Option<&'a Node> {
        self.options.iter().find(|(key, _)| &***key == option).map(|(_, node)| *node)
    }

    /// Takes the option `key`.
    pub fn take<T: Deserialize<'a>>(&mut self, key: &str) -> Result<Option<T>, ReadError> {
        let Some(at) = self.options.iter().position(|(other, _)| &***other == key) else { return Ok(None) };
        let (_, node) = self.options.remove(at);
        T::deserialize(node).map(Some)
    }

    /// Takes the first option, whose key is `key`: it may be the value of the name's key.
    pub fn take_main<T: Deserialize<'a>>(&mut self, key: &'static str) -> Result<Option<T>, ReadError> {
        self.main_key = Some(key);
        let Some(main) = self.main.take() else { return self.take(key) };
        match self.place_of(key) {
            Some(mark) => Err(twice(key, mark)),
            None => T::deserialize(main).map(Some),
        }
    }

    /// Errors do not list these keys: they are read only to explain why they do not apply to this name.
    pub fn unlisted(self, keys: &'static [&'static str]) -> Choice<'a> {
        Choice { unlisted: keys, ..self }
    }

    /// The options as a struct whose first field is the main one; errors list `common` too.
    pub fn options<T: Deserialize<'a>>(self, common: &'static [&'static str]) -> Result<T, ReadError> {
        let mark = self.mark;
        T::deserialize(Options { choice: self, common }).map_err(|error| error.or_at(mark))
    }
}

/// The error of the option `name`, which is present twice, the second time here.
pub(super) fn twice(name: &str, mark: Mark) -> ReadError {
    ReadError::from_problem(ConfigProblem::DuplicateKey { key: name.to_string() }).or_at(mark)
}

/// A choice as the struct of its options.
struct Options<'a> {
    choice: Choice<'a>,
    common: &'static [&'static str],
}

impl<'de> Deserializer<'de> for Options<'de> {
    type Error = ReadError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let Options { choice, common } = self;
        if let Some((key, _)) = choice.options.iter().find(|(key, _)| !fields.contains(&&***key)) {
            let keys = choice.main_key.iter().chain(fields).chain(common);
            let valid = keys.filter(|key| !choice.unlisted.contains(key)).map(|field| field.to_string()).collect();
            return Err(
                ReadError::from_problem(ConfigProblem::UnknownKey { key: key.to_string(), valid }).or_at(key.mark)
            );
        }
        let mut main = None;
        if let Some(node) = choice.main {
            let Some(field) = fields.first() else { return Err(node.wrong("nothing, or options")) };
            if let Some((key, _)) = choice.options.iter().find(|(key, _)| &***key == *field) {
                return Err(twice(field, key.mark));
            }
            main = Some((*field, node));
        }
        visitor.visit_map(OptionsMap { main, rest: choice.options.into_iter(), value: None })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ReadError> {
        Err(de::Error::custom("options are a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The main option under its key, then the others.
struct OptionsMap<'a> {
    main: Option<(&'static str, &'a Node)>,
    rest: std::vec::IntoIter<(&'a Key, &'a Node)>,
    value: Option<&'a Node>,
}

impl<'de> MapAccess<'de> for OptionsMap<'de> {
    type Error = ReadError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        let rest = || self.rest.next().map(|(key, node)| (&**key, node));
        let Some((key, node)) = self.main.take().or_else(rest) else { return Ok(None) };
        self.value = Some(node);
        let name: StrDeserializer<'_, ReadError> = key.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let Some(node) = self.value.take() else { return Err(de::Error::custom("a value without a key")) };
        seed.deserialize(node)
    }
}
