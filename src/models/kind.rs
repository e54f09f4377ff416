//! Enums in YAML: `kind` first, then the keys of that kind.
//!
//! `{kind: momentum, momentum: 0.9}` is read as serde's own form `{momentum: {momentum: 0.9}}`, as it comes: a derived
//! `tag = "kind"` would read the whole map before it looks at it, and lose the places that errors point at.

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, VariantAccess, Visitor, value::MapAccessDeserializer,
};
use serde::{Deserialize, forward_to_deserialize_any};
use std::fmt;
use std::marker::PhantomData;

/// Reads an enum whose variants are all structs, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Where `kind` is not the first key or not known, and whatever the kind's own keys bring.
pub fn kind_first<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Map<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map that starts with `kind`")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            match map.next_key()? {
                Some(KindKey) => T::deserialize(Tagged(map)),
                None => Err(de::Error::missing_field("kind")),
            }
        }
    }
    deserializer.deserialize_map(Map(PhantomData))
}

/// The key `kind`, and no other.
struct KindKey;

impl<'de> Deserialize<'de> for KindKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KindKey, D::Error> {
        struct Key;
        impl Visitor<'_> for Key {
            type Value = KindKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`kind: …` before it")
            }
            fn visit_str<E: de::Error>(self, key: &str) -> Result<KindKey, E> {
                match key {
                    "kind" => Ok(KindKey),
                    _ => Err(E::invalid_value(de::Unexpected::Other(&format!("key `{key}`")), &self)),
                }
            }
        }
        deserializer.deserialize_str(Key)
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
