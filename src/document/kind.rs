//! Enums in YAML: `kind`, and the keys of that kind.
//!
//! `{kind: momentum, momentum: 0.9}` is read as serde's own form `{momentum: {momentum: 0.9}}`, as it comes: a derived
//! `tag = "kind"` would read the whole map before it looks at it, and lose the places that errors point at. Where `kind`
//! is not the first key, the map is read as a [`Node`], whose errors know the way to their place, and begun with `kind`.
//! A kind without keys may stand alone: `adam`.

use crate::document::{self, Node, NodeError};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, Unexpected,
    VariantAccess, Visitor,
    value::{MapAccessDeserializer, MapDeserializer, StrDeserializer},
};
use serde::forward_to_deserialize_any;
use std::fmt;
use std::marker::PhantomData;

/// Reads an enum whose variants are all structs, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Where `kind` is missing or not known, and whatever the kind's own keys bring.
pub fn read<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Kinds { number: None, kind: PhantomData })
}

/// As [`read()`], where a number alone stands for one of the kinds.
///
/// # Errors
/// As [`read()`]; a number that `of_number` does not take, which says what it takes.
pub fn read_or_number<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
    of_number: OfNumber<T>,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(Kinds { number: Some(of_number), kind: PhantomData })
}

/// The error of [`read()`] or [`read_or_number`], of a key that another kind has, with which that is.
pub fn elsewhere<T: DeserializeOwned>(error: NodeError) -> NodeError {
    let Some(key) = error.message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) else {
        return error;
    };
    let has = |kind: &&str| {
        let mut keys = Vec::new();
        // It fails, after it has named them.
        drop(T::deserialize(AskKeys { kind, keys: &mut keys }));
        keys.contains(&key)
    };
    let kinds: Vec<&str> = names_of::<T>().into_iter().filter(has).collect();
    match kinds.is_empty() {
        true => error,
        false => {
            let help = format!("`{key}` goes with `kind: {}`", kinds.join("`, `kind: "));
            error.in_own_words().with_help(help)
        }
    }
}

/// What a number alone stands for; an error says which numbers do.
type OfNumber<T> = fn(f64) -> Result<T, &'static str>;

/// Reads a map with `kind`, or what stands for one.
struct Kinds<T> {
    number: Option<OfNumber<T>>,
    kind: PhantomData<T>,
}

impl<T: DeserializeOwned> Kinds<T> {
    fn of_number<E: de::Error>(&self, found: Unexpected<'_>, value: f64) -> Result<T, E> {
        match self.number.map(|of_number| of_number(value)) {
            None => Err(E::invalid_type(found, self)),
            Some(Ok(kind)) => Ok(kind),
            Some(Err(expected)) => Err(E::invalid_value(found, &expected)),
        }
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Kinds<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = if self.number.is_some() { "a number, or " } else { "" };
        write!(f, "{number}keys with `kind: …`, one of {}", names_of::<T>().join(", "))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        self.of_number(Unexpected::Float(value), value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        self.of_number(Unexpected::Unsigned(value), value as f64)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        self.of_number(Unexpected::Signed(value), value as f64)
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
        let names: Vec<String> = names_of::<T>().into_iter().map(str::to_string).collect();
        // What is like none of the kinds need not be meant for one.
        if self.number.is_some() && document::nearest(name, &names).is_none() {
            return Err(E::invalid_value(Unexpected::Str(name), &self));
        }
        let mut map = MapDeserializer::new([("kind", name)].into_iter());
        map.next_key::<String>()?;
        T::deserialize(Tagged(map))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let Some(first) = map.next_key::<String>()? else { return Err(de::Error::missing_field("kind")) };
        if first == "kind" {
            return T::deserialize(Tagged(map));
        }
        let mut entries = vec![(first, map.next_value::<Node>()?)];
        while let Some(key) = map.next_key::<String>()? {
            if entries.iter().any(|(other, _)| *other == key) {
                return Err(de::Error::custom(format!("duplicate field `{key}`")));
            }
            entries.push((key, map.next_value::<Node>()?));
        }
        let Some(at) = entries.iter().position(|(key, _)| key == "kind") else {
            return Err(de::Error::missing_field("kind"));
        };
        entries[..=at].rotate_right(1);
        let read = || -> Result<T, NodeError> {
            let mut map = Node::entries(&entries);
            map.next_key::<String>()?;
            T::deserialize(Tagged(map))
        };
        read().map_err(de::Error::custom)
    }
}

/// What the kinds are called.
fn names_of<T: DeserializeOwned>() -> Vec<&'static str> {
    let mut names = Vec::new();
    // It fails, after it has named them.
    drop(T::deserialize(Ask(&mut names)));
    names
}

/// Is told what variants an enum has.
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

/// Is told what keys a kind has.
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

/// The rest of a map after its key `kind`: as an enum, the value is the variant and what follows its fields.
struct Tagged<A>(A);

impl<'de, A: MapAccess<'de>> Deserializer<'de> for Tagged<A> {
    type Error = A::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_enum(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, A::Error> {
        Err(de::Error::custom("only enums have a `kind`"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for Tagged<A> {
    type Error = A::Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(mut self, seed: S) -> Result<(S::Value, Self), A::Error> {
        let variant = self.0.next_value_seed(seed)?;
        Ok((variant, self))
    }
}

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for Tagged<A> {
    type Error = A::Error;

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        seed.deserialize(MapAccessDeserializer::new(self.0))
    }

    fn unit_variant(self) -> Result<(), A::Error> {
        Err(de::Error::custom("a kind is a struct, if an empty one"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, A::Error> {
        Err(de::Error::custom("a kind is a struct"))
    }
}
