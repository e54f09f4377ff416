//! Features of a file of JSON: its members, by name.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use crate::records::Value;

/// Values by name; for a member that cannot be a feature, its type.
pub(super) type Features = BTreeMap<String, Result<Value, &'static str>>;

/// The members of JSON, as `NAME.MEMBER`.
///
/// # Errors
/// Bytes that are not JSON, and a key that an object has twice: readers would silently take the last of two values.
pub(super) fn features(name: &str, bytes: &[u8]) -> Result<Features, serde_json::Error> {
    let Unique(json) = serde_json::from_slice(bytes)?;
    let mut features = Features::new();
    flatten(name, &json, &mut features);
    Ok(features)
}

/// Refuses JSON in which an object has a key twice.
///
/// # Errors
/// That key, or bytes that are not JSON.
pub(crate) fn check_keys(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Unique>(bytes).map(drop)
}

/// JSON in which no object has a key twice.
struct Unique(Json);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(UniqueVisitor)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Unique, E> {
        Ok(Unique(Json::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Unique, E> {
        Ok(Unique(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(json)) = list.next_element()? {
            items.push(json);
        }
        Ok(Unique(Json::Array(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Unique, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some((key, Unique(json))) = members.next_entry::<String, Unique>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` twice in one object")));
            }
            object.insert(key, json);
        }
        Ok(Unique(Json::Object(object)))
    }
}

/// The values in JSON, by name: numbers, booleans and texts, and lists of one of these; or the type that cannot be a
/// feature.
fn flatten(name: &str, json: &Json, into: &mut Features) {
    let list = match json {
        Json::Object(members) => {
            members.iter().for_each(|(member, json)| flatten(&format!("{name}.{member}"), json, into));
            return;
        }
        Json::Array(list) => &list[..],
        other => std::slice::from_ref(other),
    };
    // A member may be called as the way to another is: `{"a.b": 1, "a": {"b": 2}}`.
    let value = if into.contains_key(name) { Err("there twice") } else { feature(list) };
    into.insert(name.to_string(), value);
}

/// The values of a homogeneous list; otherwise the type that cannot be a feature.
fn feature(list: &[Json]) -> Result<Value, &'static str> {
    let is_all = |is: fn(&Json) -> bool| list.iter().all(is);
    if is_all(Json::is_boolean) {
        return Ok(Value::Ints(list.iter().filter_map(Json::as_bool).map(i64::from).collect()));
    }
    if is_all(|json| json.is_i64() || json.is_u64()) {
        let ints: Option<Vec<i64>> = list.iter().map(Json::as_i64).collect();
        return ints.map(Value::Ints).ok_or("a whole number beyond 64 bits with a sign");
    }
    if is_all(Json::is_number) {
        return Ok(Value::Floats(list.iter().filter_map(Json::as_f64).map(|value| value as f32).collect()));
    }
    if is_all(Json::is_string) {
        return Ok(Value::Bytes(list.iter().filter_map(Json::as_str).map(|text| text.as_bytes().to_vec()).collect()));
    }
    Err(match list {
        [Json::Null] => "null",
        _ if list.iter().any(|json| json.is_array() || json.is_object()) => "a list of lists or objects",
        _ => "a list of several kinds",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_features_or_it_is_said_what_they_are() {
        let parsed = |text: &str| features("json", text.as_bytes()).unwrap().remove("json").unwrap();
        assert_eq!(parsed("[true, false]"), Ok(Value::Ints(vec![1, 0])));
        assert_eq!(parsed("[1, -2]"), Ok(Value::Ints(vec![1, -2])));
        assert_eq!(parsed("[1, 0.5]"), Ok(Value::Floats(vec![1.0, 0.5])));
        assert_eq!(parsed("[]"), Ok(Value::Ints(vec![])));
        assert_eq!(parsed("\"a\""), Ok(Value::Bytes(vec![b"a".to_vec()])));
        for (text, expected) in [
            ("[1, \"a\"]", "a list of several kinds"),
            ("[true, 2]", "a list of several kinds"),
            ("[1, null]", "a list of several kinds"),
            ("null", "null"),
            ("[[1], [2]]", "a list of lists or objects"),
            ("[{\"a\": 1}]", "a list of lists or objects"),
            ("9223372036854775808", "a whole number beyond 64 bits with a sign"),
        ] {
            assert_eq!(parsed(text), Err(expected), "{text}");
        }
        for text in ["{\"a.b\": 1, \"a\": {\"b\": 2}}", "{\"a\": {\"b\": 2}, \"a.b\": 1}"] {
            assert_eq!(features("json", text.as_bytes()).unwrap()["json.a.b"], Err("there twice"), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let message = |text: &str| features("json", text.as_bytes()).map(|_| ()).unwrap_err().to_string();
        assert_eq!(message(r#"{"a": 1, "a": 2}"#), "the key `a` twice in one object at line 1 column 16");
        assert_eq!(
            message(r#"{"b": {"a": 1, "c": [], "a": 1}}"#),
            "the key `a` twice in one object at line 1 column 31"
        );
    }
}
