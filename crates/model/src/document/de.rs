//! serde deserialization from a `&Node`: an error gets the place of the innermost value or key that it passes on its
//! way out.

use super::error::ReadError;
use super::node::{NODE, Node, Value};
use super::place::Key;
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

impl<'de> Node {
    /// The value without its tag.
    fn untagged(&'de self) -> &'de Node {
        if let Value::Tagged(_, node) = &self.value { node } else { self }
    }

    fn is_none_of(&self, expected: &dyn Expected) -> ReadError {
        ReadError::invalid_type(self.unexpected(), expected).or_at(self.mark)
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let read = match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Negative(value) => visitor.visit_i64(*value),
            Value::Whole(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(list) => return items(self, list, visitor),
            Value::Map(map) => visitor.visit_map(Entries::new(map)),
            Value::Tagged(tag, node) => visitor.visit_enum(Variant { name: tag, content: Some(node) }),
        };
        read.map_err(|error| error.or_at(self.mark))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match name == NODE {
            true => self.hand_over(visitor),
            false => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let read = match (&self.value, self.text()) {
            (Value::Tagged(tag, node), _) => visitor.visit_enum(Variant { name: tag, content: Some(node) }),
            (_, Some(name)) => visitor.visit_enum(Variant { name, content: None }),
            (_, None) => Err(ReadError::wrong(self.description(), &super::error::one_of(variants))),
        };
        read.map_err(|error| error.or_at(self.mark))
    }

    /// Any scalar can be read as text, as it is written.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.text() {
            Some(text) => visitor.visit_borrowed_str(text).map_err(|error: ReadError| error.or_at(self.mark)),
            None => Err(self.is_none_of(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Tagged(_, node) => node.deserialize_unit(visitor),
            _ => Err(self.is_none_of(&visitor)),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::List(list) => items(self, list, visitor),
            Value::Tagged(_, node) => node.deserialize_seq(visitor),
            _ if self.is_empty() => items(self, &[], visitor),
            _ => Err(self.is_none_of(&visitor)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let map = match &self.value {
            Value::Map(map) => map,
            Value::Tagged(_, node) => return node.deserialize_map(visitor),
            _ if self.is_empty() => &[][..],
            _ => return Err(self.is_none_of(&visitor)),
        };
        visitor.visit_map(Entries::new(map)).map_err(|error| error.or_at(self.mark))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.untagged().deserialize_any(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.untagged().deserialize_any(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.untagged().deserialize_any(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.untagged().deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u128 f32 bytes byte_buf unit_struct ignored_any
    }
}

/// A list, which the visitor must consume completely.
fn items<'de, V: Visitor<'de>>(node: &Node, list: &'de [Node], visitor: V) -> Result<V::Value, ReadError> {
    let mut items = Items(list.iter());
    let read = visitor.visit_seq(&mut items).map_err(|error| error.or_at(node.mark))?;
    match items.0.len() {
        0 => Ok(read),
        n_left => {
            let measured = format!("a list of {}", list.len());
            Err(ReadError::wrong(measured, &format!("a list of {}", list.len() - n_left)).or_at(node.mark))
        }
    }
}

/// The elements of a list.
struct Items<'a>(std::slice::Iter<'a, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        self.0.next().map(|node| seed.deserialize(node).map_err(|error| error.or_at(node.mark))).transpose()
    }
}

/// The entries of a map.
pub(super) struct Entries<'a> {
    rest: std::slice::Iter<'a, (Key, Node)>,
    value: Option<&'a Node>,
}

impl<'a> Entries<'a> {
    pub fn new(map: &'a [(Key, Node)]) -> Entries<'a> {
        Entries { rest: map.iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = ReadError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        let Some((key, node)) = self.rest.next() else { return Ok(None) };
        self.value = Some(node);
        let name: StrDeserializer<'_, ReadError> = (**key).into_deserializer();
        seed.deserialize(name).map(Some).map_err(|error| error.of_key(key))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let Some(node) = self.value.take() else { return Err(ReadError::custom("a value without a key")) };
        seed.deserialize(node).map_err(|error| error.or_at(node.mark))
    }
}

/// A variant by its name: alone, or as the tag of its content.
struct Variant<'a> {
    name: &'a str,
    content: Option<&'a Node>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), ReadError> {
        let name: StrDeserializer<'_, ReadError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> Variant<'de> {
    fn content(&self) -> Result<&'de Node, ReadError> {
        self.content.ok_or_else(|| ReadError::wrong(format!("`{}` alone", self.name), "it with its content"))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        match self.content {
            None => Ok(()),
            Some(content) => de::Deserialize::deserialize(content),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ReadError> {
        seed.deserialize(self.content()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.content()?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.content()?.deserialize_map(visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::marker::PhantomData;

    #[test]
    fn a_value_has_a_key_and_a_variant_its_content() {
        let error = Entries::new(&[]).next_value_seed(PhantomData::<u64>).unwrap_err();
        assert_eq!(error.to_string(), "a value without a key");
        let error = Variant { name: "fixed", content: None }.newtype_variant_seed(PhantomData::<u64>).unwrap_err();
        assert_eq!(error.to_string(), "found `fixed` alone, expected it with its content");
    }
}
