//! `tf.train.Example`: named lists of bytes, whole numbers or floats.
//!
//! Source: TensorFlow's `core/example/example.proto` and `feature.proto`. Only the features that are asked for are
//! decoded: the others stay bytes of the record.

use prost::Message;
use prost::bytes::Bytes;

use super::{Value, Values};

/// Features of an example at most: what bounds memory where a damaged record claims millions of empty ones.
const MAX_FEATURES: usize = 1 << 16;

/// `tensorflow.Example`.
#[derive(Clone, PartialEq, Message)]
struct Example {
    #[prost(bytes = "bytes", tag = "1")]
    features: Bytes,
}

/// `tensorflow.Features`, of whose entries only the number is wanted.
#[derive(Clone, PartialEq, Message)]
struct Count {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<()>,
}

/// `tensorflow.Features`; a map is a repeated message of a key and a value.
#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// `tensorflow.Feature`. Of its `oneof` one field at most is there.
#[derive(Clone, PartialEq, Message)]
struct Feature {
    #[prost(message, optional, tag = "1")]
    bytes_list: Option<BytesList>,
    #[prost(message, optional, tag = "2")]
    float_list: Option<FloatList>,
    #[prost(message, optional, tag = "3")]
    int64_list: Option<Int64List>,
}

#[derive(Clone, PartialEq, Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct FloatList {
    #[prost(float, repeated, tag = "1")]
    value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}

/// The features of a record that `keys` asks for, all of them where that is `None`. A feature of no kind is left out, as a
/// missing one.
///
/// # Errors
/// What the reader of messages says; more features than any example has.
pub(crate) fn parse(record: Vec<u8>, keys: Option<&[&str]>) -> Result<Values, String> {
    let said = |error: prost::DecodeError| error.to_string();
    let features = Example::decode(Bytes::from(record)).map_err(said)?.features;
    let n_features = Count::decode(features.clone()).map_err(said)?.feature.len();
    if n_features > MAX_FEATURES {
        return Err(format!("{n_features} features; expected at most {MAX_FEATURES}"));
    }
    let mut values = Values::new();
    for entry in Features::decode(features).map_err(said)?.feature {
        if keys.is_some_and(|keys| !keys.contains(&entry.key.as_str())) {
            continue;
        }
        let feature = Feature::decode(entry.value).map_err(|error| format!("feature `{}`: {error}", entry.key))?;
        let value = match feature {
            Feature { bytes_list: Some(list), float_list: None, int64_list: None } => Value::Bytes(list.value),
            Feature { bytes_list: None, float_list: Some(list), int64_list: None } => Value::Floats(list.value),
            Feature { bytes_list: None, float_list: None, int64_list: Some(list) } => Value::Ints(list.value),
            Feature { bytes_list: None, float_list: None, int64_list: None } => continue,
            Feature { .. } => return Err(format!("feature `{}` has values of two kinds; expected one", entry.key)),
        };
        // The last of two with one key counts, as in every map of protocol buffers.
        values.insert(entry.key, value);
    }
    Ok(values)
}

/// An example as bytes.
#[cfg(any(test, feature = "records"))]
pub(crate) fn encode(values: &Values) -> Vec<u8> {
    let feature = |value: &Value| match value {
        Value::Bytes(value) => Feature { bytes_list: Some(BytesList { value: value.clone() }), ..Feature::default() },
        Value::Floats(value) => Feature { float_list: Some(FloatList { value: value.clone() }), ..Feature::default() },
        Value::Ints(value) => Feature { int64_list: Some(Int64List { value: value.clone() }), ..Feature::default() },
    };
    let entry =
        |(key, value): (&String, &Value)| Entry { key: key.clone(), value: feature(value).encode_to_vec().into() };
    let features = Features { feature: values.iter().map(entry).collect() };
    Example { features: features.encode_to_vec().into() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        [
            ("image".to_string(), Value::Bytes(vec![b"jpeg".to_vec()])),
            ("label".to_string(), Value::Ints(vec![-1, i64::MAX])),
            ("box".to_string(), Value::Floats(vec![0.25, -1.0])),
        ]
        .into()
    }

    #[test]
    fn what_is_asked_for_is_read() {
        let bytes = encode(&values());
        assert_eq!(parse(bytes.clone(), None).unwrap(), values());
        let one = parse(bytes, Some(&["label", "other"])).unwrap();
        assert_eq!(one, [("label".to_string(), Value::Ints(vec![-1, i64::MAX]))].into());
        assert_eq!(parse(Vec::new(), None).unwrap(), Values::new());
    }

    #[test]
    fn what_is_no_example_is_refused() {
        let bytes = encode(&values());
        let mut n_refused = 0;
        for end in 1..bytes.len() {
            n_refused += usize::from(parse(bytes[..end].to_vec(), None).is_err());
        }
        // The length at the front covers all there is.
        assert_eq!(n_refused, bytes.len() - 1);
        // Each of two bytes: a key and an empty message.
        let features = [0x0a, 0].repeat(MAX_FEATURES + 1);
        let example = Example { features: features.into() }.encode_to_vec();
        assert_eq!(parse(example, None).unwrap_err(), "65537 features; expected at most 65536");
    }
}
