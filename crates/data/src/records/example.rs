//! `tf.train.Example`: named lists of bytes, whole numbers or floats; and `tf.train.SequenceExample`, whose feature lists become
//! one list each: the values of all steps, one step after the other.
//!
//! Source: TensorFlow's `core/example/example.proto` and `feature.proto`. Only the requested features are decoded: the
//! others stay bytes of the record.

use prost::Message;
use prost::bytes::Bytes;

use super::{Value, Values};

/// The largest number of features in an example: it bounds memory if a damaged record claims millions of empty ones.
const MAX_FEATURES: usize = 1 << 16;
/// The largest number of steps in a feature list, for the same reason.
const MAX_STEPS: usize = 1 << 22;

/// `tensorflow.Example`.
#[derive(Clone, PartialEq, Message)]
struct Example {
    #[prost(bytes = "bytes", tag = "1")]
    features: Bytes,
    /// Present in a `SequenceExample`, whose `context` has the field number of an `Example`'s features.
    #[prost(bytes = "bytes", tag = "2")]
    feature_lists: Bytes,
}

/// `tensorflow.FeatureList`: a feature for each step.
#[derive(Clone, PartialEq, Message)]
struct FeatureList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    feature: Vec<Bytes>,
}

/// `tensorflow.Features`, only to count the entries.
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

/// `tensorflow.Feature`: at most one field of its `oneof` is present.
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

/// The features of a record that `keys` selects, or all of them if it is `None`. A feature without a kind counts as
/// missing.
///
/// # Errors
/// Errors of the message reader; more features than any example has.
pub(crate) fn parse(record: Vec<u8>, keys: Option<&[&str]>) -> Result<Values, String> {
    let message = |error: prost::DecodeError| error.to_string();
    let Example { features, feature_lists } = Example::decode(Bytes::from(record)).map_err(message)?;
    let entries = |map: Bytes| {
        let n_features = Count::decode(map.clone()).map_err(message)?.feature.len();
        if n_features > MAX_FEATURES {
            return Err(format!("{n_features} features; expected at most {MAX_FEATURES}"));
        }
        let is_wanted = |entry: &Entry| keys.is_none_or(|keys| keys.contains(&entry.key.as_str()));
        Ok(Features::decode(map).map_err(message)?.feature.into_iter().filter(is_wanted))
    };
    let mut values = Values::new();
    for Entry { key, value } in entries(features)? {
        // The last of two entries with one key counts, as in every map of protocol buffers.
        if let Some(value) = value_of(&key, value)? {
            values.insert(key, value);
        }
    }
    let mut of_steps = Values::new();
    for Entry { key, value } in entries(feature_lists)? {
        if let Some(value) = joined(&key, value)? {
            of_steps.insert(key, value);
        }
    }
    for (key, value) in of_steps {
        if values.contains_key(&key) {
            return Err(format!("feature `{key}` stands in the context and in the feature lists; expected it in one"));
        }
        values.insert(key, value);
    }
    Ok(values)
}

/// The values of a feature; `None` if it has no kind.
fn value_of(key: &str, feature: Bytes) -> Result<Option<Value>, String> {
    let feature = Feature::decode(feature).map_err(|error| format!("feature `{key}`: {error}"))?;
    Ok(Some(match feature {
        Feature { bytes_list: Some(list), float_list: None, int64_list: None } => Value::Bytes(list.value),
        Feature { bytes_list: None, float_list: Some(list), int64_list: None } => Value::Floats(list.value),
        Feature { bytes_list: None, float_list: None, int64_list: Some(list) } => Value::Ints(list.value),
        Feature { bytes_list: None, float_list: None, int64_list: None } => return Ok(None),
        Feature { .. } => return Err(format!("feature `{key}` has values of two kinds; expected one")),
    }))
}

/// The concatenated values of all steps of a feature list. All steps must have the same length, otherwise their
/// boundaries would be lost.
fn joined(key: &str, list: Bytes) -> Result<Option<Value>, String> {
    let message = |error: prost::DecodeError| format!("feature list `{key}`: {error}");
    let n_steps = Count::decode(list.clone()).map_err(message)?.feature.len();
    if n_steps > MAX_STEPS {
        return Err(format!("feature list `{key}` has {n_steps} steps; expected at most {MAX_STEPS}"));
    }
    let list = FeatureList::decode(list).map_err(message)?;
    let (mut all, mut n_each) = (None, None);
    for (step, feature) in list.feature.into_iter().enumerate() {
        let value = value_of(key, feature)?;
        let n = value.as_ref().map_or(0, Value::len);
        if *n_each.get_or_insert(n) != n {
            let first = n_each.unwrap_or_default();
            return Err(format!(
                "feature list `{key}` has {n} values in step {step} and {first} in step 0; expected equally many in each"
            ));
        }
        match (&mut all, value) {
            (_, None) => {}
            (None, value) => all = value,
            (Some(Value::Bytes(all)), Some(Value::Bytes(more))) => all.extend(more),
            (Some(Value::Ints(all)), Some(Value::Ints(more))) => all.extend(more),
            (Some(Value::Floats(all)), Some(Value::Floats(more))) => all.extend(more),
            (Some(_), Some(_)) => {
                return Err(format!(
                    "feature list `{key}` has values of two kinds, the second in step {step}; expected one"
                ));
            }
        }
    }
    Ok(all)
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
    Example { features: features.encode_to_vec().into(), ..Example::default() }.encode_to_vec()
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

    /// A `SequenceExample` with the context of an example, and with feature lists: steps, each a feature.
    fn sequence(context: &Values, lists: &[(&str, Vec<Value>)]) -> Vec<u8> {
        let features = |value: &Value| {
            let one = Values::from([(String::new(), value.clone())]);
            let features = Example::decode(Bytes::from(encode(&one))).unwrap().features;
            Features::decode(features).unwrap().feature.remove(0).value
        };
        let entry = |(key, steps): &(&str, Vec<Value>)| {
            let list = FeatureList { feature: steps.iter().map(features).collect() };
            Entry { key: key.to_string(), value: list.encode_to_vec().into() }
        };
        let lists = Features { feature: lists.iter().map(entry).collect() };
        let context = Example::decode(Bytes::from(encode(context))).unwrap();
        Example { feature_lists: lists.encode_to_vec().into(), ..context }.encode_to_vec()
    }

    #[test]
    fn a_sequence_example_is_read_whole() {
        let tokens = vec![Value::Ints(vec![3]), Value::Ints(vec![1]), Value::Ints(vec![4])];
        let frames = vec![Value::Floats(vec![0.5, 1.0]), Value::Floats(vec![2.0, 4.0])];
        let words = vec![Value::Bytes(vec![b"a".to_vec()]), Value::Bytes(vec![b"b".to_vec()])];
        let lists = [("tokens", tokens), ("frames", frames), ("words", words)];
        let bytes = sequence(&values(), &lists);
        let mut expected = values();
        expected.insert("tokens".to_string(), Value::Ints(vec![3, 1, 4]));
        expected.insert("frames".to_string(), Value::Floats(vec![0.5, 1.0, 2.0, 4.0]));
        expected.insert("words".to_string(), Value::Bytes(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(parse(bytes.clone(), None).unwrap(), expected);
        let one = parse(bytes, Some(&["tokens"])).unwrap();
        assert_eq!(one, [("tokens".to_string(), Value::Ints(vec![3, 1, 4]))].into());
        let refused = |lists: &[(&str, Vec<Value>)]| parse(sequence(&values(), lists), None).unwrap_err();
        assert_eq!(
            refused(&[("f", vec![Value::Ints(vec![1]), Value::Ints(vec![2, 3])])]),
            "feature list `f` has 2 values in step 1 and 1 in step 0; expected equally many in each"
        );
        assert_eq!(
            refused(&[("f", vec![Value::Ints(vec![1]), Value::Floats(vec![2.0])])]),
            "feature list `f` has values of two kinds, the second in step 1; expected one"
        );
        let two = Feature {
            bytes_list: Some(BytesList::default()),
            float_list: Some(FloatList::default()),
            ..Feature::default()
        };
        let error = value_of("f", two.encode_to_vec().into()).unwrap_err();
        assert_eq!(error, "feature `f` has values of two kinds; expected one");
        // Each takes two bytes, as below.
        let steps = [0x0a, 0].repeat(MAX_STEPS + 1);
        let error = joined("f", steps.into()).unwrap_err();
        assert_eq!(error, "feature list `f` has 4194305 steps; expected at most 4194304");
        assert_eq!(
            refused(&[("label", vec![Value::Ints(vec![1])])]),
            "feature `label` stands in the context and in the feature lists; expected it in one"
        );
    }

    #[test]
    fn what_is_no_example_is_refused() {
        let bytes = encode(&values());
        let mut n_refused = 0;
        for end in 1..bytes.len() {
            n_refused += usize::from(parse(bytes[..end].to_vec(), None).is_err());
        }
        // The length at the front covers the whole record.
        assert_eq!(n_refused, bytes.len() - 1);
        // Each takes two bytes: a key and an empty message.
        let features = [0x0a, 0].repeat(MAX_FEATURES + 1);
        let example = Example { features: features.into(), ..Example::default() }.encode_to_vec();
        assert_eq!(parse(example, None).unwrap_err(), "65537 features; expected at most 65536");
    }
}
