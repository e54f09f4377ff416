//! Enums in YAML: a `kind`, and the keys of that kind.
//!
//! `{kind: momentum, momentum: 0.9}` is read as serde's own form `{momentum: {momentum: 0.9}}`; `kind` need not be the
//! first key. A kind whose keys all have defaults may be written as its name alone: `adam`.

use super::error::{ConfigProblem, ReadError};
use super::nearest;
use super::node::{Node, Value};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
    value::StrDeserializer,
};
use serde::forward_to_deserialize_any;

/// Reads an enum whose variants are all structs, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// A missing or unknown `kind`, and the errors of the kind's own keys.
pub fn read<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    Node::read(deserializer, from_node)
}

/// As [`read()`], from a node.
///
/// # Errors
/// As [`read()`].
pub fn from_node<T: DeserializeOwned>(node: &Node) -> Result<T, ReadError> {
    of_node(node, None)
}

/// As [`from_node`]; a number alone stands for one of the kinds.
///
/// # Errors
/// As [`read()`]; a number that `of_number` refuses, with its reason.
pub fn from_node_or_number<T: DeserializeOwned>(node: &Node, of_number: OfNumber<T>) -> Result<T, ReadError> {
    of_node(node, Some(of_number))
}

/// Adds to an error of [`from_node`] or [`from_node_or_number`] about an unknown key which other kind has that key.
pub fn elsewhere<T: DeserializeOwned>(error: ReadError) -> ReadError {
    let ConfigProblem::UnknownKey { key, .. } = &error.problem else { return error };
    let kinds = with_key::<T>(key);
    if kinds.is_empty() {
        return error;
    }
    let help = format!("`{key}` goes with `kind: {}`", kinds.join("`, `kind: "));
    error.with_help(help)
}

/// The kinds of an enum that have this key.
pub fn with_key<T: DeserializeOwned>(key: &str) -> Vec<&'static str> {
    let has = |kind: &&str| {
        let mut keys = Vec::new();
        // Fails, after the type has named its keys.
        drop(T::deserialize(AskKeys { kind, keys: &mut keys }));
        keys.contains(&key)
    };
    names_of::<T>().into_iter().filter(has).collect()
}

/// The keys of a struct.
pub fn keys_of<T: DeserializeOwned>() -> Vec<&'static str> {
    let mut keys = Vec::new();
    // Fails, after the type has named its keys.
    drop(T::deserialize(AskKeys { kind: "", keys: &mut keys }));
    keys
}

/// Converts a number alone; the error says which numbers are valid.
type OfNumber<T> = fn(f64) -> Result<T, &'static str>;

fn of_node<T: DeserializeOwned>(node: &Node, of_number: Option<OfNumber<T>>) -> Result<T, ReadError> {
    let names = names_of::<T>();
    let wrong = || {
        let number = if of_number.is_some() { "a number, or " } else { "" };
        node.wrong(&format!("{number}keys with `kind: …`, one of {}", names.join(", ")))
    };
    let number = match &node.value {
        Value::Float(value) => Some(*value),
        Value::Whole(value) => Some(*value as f64),
        Value::Negative(value) => Some(*value as f64),
        _ => None,
    };
    if let (Some(number), Some(of_number)) = (number, of_number) {
        return of_number(number).map_err(|expected| node.wrong(expected));
    }
    let (kind, rest) = match &node.value {
        Value::Text(name) => {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            // A name unlike all kinds is probably not meant as one.
            if of_number.is_some() && nearest(name, &names).is_none() {
                return Err(wrong());
            }
            (node, Vec::new())
        }
        Value::Map(map) => {
            let Some(kind) = node.get("kind") else {
                let missing = ReadError::from_problem(ConfigProblem::MissingKey { key: "kind".to_string() });
                // `{adam: {beta1: 0.9}}`, the form of layers.
                let named = map.iter().find(|(key, _)| names.contains(&&**key));
                let missing = match named {
                    Some((name, _)) => {
                        missing.with_help(format!("write `kind: {}`, and its keys beside it", name.name))
                    }
                    None => missing,
                };
                return Err(missing.or_at(node.mark));
            };
            (kind, map.iter().filter(|(key, _)| &**key != "kind").cloned().collect())
        }
        _ => return Err(wrong()),
    };
    let rest = Node::new(Value::Map(rest), node.mark);
    T::deserialize(Kinded { kind, rest: &rest }).map_err(|error| error.or_at(node.mark))
}

/// The names of an enum's variants, with their aliases.
pub fn names_of<T: DeserializeOwned>() -> Vec<&'static str> {
    let mut names = Vec::new();
    // Fails, after the type has named its variants.
    drop(T::deserialize(Ask(&mut names)));
    names
}

/// A deserializer that receives the names of an enum's variants.
struct Ask<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Ask<'_> {
    type Error = de::value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(variants);
        Err(de::Error::custom("only asked"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only enums have a `kind`"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A deserializer that receives the names of a kind's keys.
struct AskKeys<'a> {
    kind: &'a str,
    keys: &'a mut Vec<&'static str>,
}

impl<'de> Deserializer<'de> for AskKeys<'_> {
    type Error = de::value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.keys.extend(fields);
        Err(de::Error::custom("only asked"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only asked"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for AskKeys<'_> {
    type Error = de::value::Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Self::Error> {
        let kind: StrDeserializer<'_, Self::Error> = self.kind.into_deserializer();
        Ok((seed.deserialize(kind)?, self))
    }
}

impl<'de> VariantAccess<'de> for AskKeys<'_> {
    type Error = de::value::Error;

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.keys.extend(fields);
        Err(de::Error::custom("only asked"))
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Self::Error> {
        seed.deserialize(self)
    }

    fn unit_variant(self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only asked"))
    }
}

/// A kind and the keys beside it: the variant of an enum, and its fields.
struct Kinded<'a> {
    kind: &'a Node,
    rest: &'a Node,
}

impl<'de> Deserializer<'de> for Kinded<'de> {
    type Error = ReadError;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_enum(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ReadError> {
        Err(de::Error::custom("only enums have a `kind`"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for Kinded<'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), ReadError> {
        let variant = seed.deserialize(self.kind)?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Kinded<'de> {
    type Error = ReadError;

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.rest.deserialize_map(visitor)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ReadError> {
        seed.deserialize(self.rest)
    }

    fn unit_variant(self) -> Result<(), ReadError> {
        Err(de::Error::custom("a kind is a struct, if an empty one"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, ReadError> {
        Err(de::Error::custom("a kind is a struct"))
    }
}
