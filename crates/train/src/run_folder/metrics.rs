//! `metrics.jsonl`: one JSON object on a line for each recorded step.
//!
//! ```json
//! {"step":44,"time":1763824800.25,"loss":0.8125,"learning_rate":0.05}
//! ```
//!
//! `step` counts updates, `time` is in seconds since 1970; every other key is a scalar, written so that every bit can
//! be read back. JSON has no NaN and no infinities: they are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, which
//! pandas, NumPy and JavaScript's `Number` parse.

use super::RunError;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead, Read as _};

/// Keys that are not scalars.
const RESERVED: [&str; 2] = ["step", "time"];
/// The longest line that is read as a record: no run has that many metrics.
pub(super) const MAX_LINE: usize = 1 << 20;

/// The most bytes of a longer line that are passed over: a file of holes has lines of any length.
const MAX_SKIPPED: u64 = 256 << 20;

/// The largest step: programs count in fewer bits.
pub(super) const MAX_STEP: u64 = i64::MAX as u64;

/// The scalars of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) step: u64,
    pub(super) time: f64,
    pub(super) scalars: Vec<(String, f64)>,
}

/// A number in JSON.
pub(super) fn number(value: f64) -> Value {
    let name = |name: &str| Value::String(name.to_string());
    match value {
        value if value.is_nan() => name("NaN"),
        f64::INFINITY => name("Infinity"),
        f64::NEG_INFINITY => name("-Infinity"),
        value => serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number),
    }
}

fn value(json: &Value) -> Option<f64> {
    match json {
        Value::Number(number) => number.as_f64(),
        // Other writers use `null`.
        Value::Null => Some(f64::NAN),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Checks the names of scalars.
pub(super) fn check(names: impl Iterator<Item = impl AsRef<str>> + Clone) -> Result<(), RunError> {
    let refuse = |name: &str, problem| Err(RunError::Name { name: name.to_string(), problem });
    for (nth, name) in names.clone().enumerate() {
        let name = name.as_ref();
        if RESERVED.contains(&name) {
            return refuse(name, "in metrics.jsonl that key is the record's own");
        } else if name.is_empty() {
            return refuse(name, "expected a name that is not empty");
        } else if names.clone().take(nth).any(|other| other.as_ref() == name) {
            return refuse(name, "expected one scalar of each name in a step");
        }
    }
    Ok(())
}

/// A record as a line, with its line break.
pub(super) fn line(record: &Record) -> String {
    let mut out = format!("{{\"step\":{},\"time\":{}", record.step, number(record.time));
    for (name, value) in &record.scalars {
        out += &format!(",{}:{}", Value::String(name.clone()), number(*value));
    }
    out + "}\n"
}

/// Parses a line without its line break into its record and the names of its texts; `None` if it is not a record.
fn parse(line: &[u8]) -> Option<(Record, Vec<String>)> {
    let Pairs(pairs) = serde_json::from_slice(line).ok()?;
    let value_of = |key: &str| pairs.iter().find(|(name, _)| name == key).map(|(_, json)| json);
    let step = value_of("step")?.as_u64().filter(|step| *step <= MAX_STEP)?;
    let time = value_of("time").and_then(value).unwrap_or(f64::NAN);
    // A value that is not a number was added by another program.
    let is_scalar = |name: &str| !RESERVED.contains(&name);
    let scalars = pairs.iter().filter(|(name, _)| is_scalar(name));
    let scalars = scalars.filter_map(|(name, json)| Some((name.clone(), value(json)?))).collect();
    let is_text = |(name, json): &&(String, Value)| is_scalar(name) && json.is_string() && value(json).is_none();
    let texts = pairs.iter().filter(is_text).map(|(name, _)| name.clone()).collect();
    Some((Record { step, time, scalars }, texts))
}

/// An object that keeps the order of its keys.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A line of a file, read.
#[derive(Debug)]
pub(super) struct Line {
    /// Its offset in bytes.
    pub(super) at: u64,
    /// Whether it has a line break: otherwise its writing was interrupted.
    pub(super) is_whole: bool,
    /// The record, if it is one.
    pub(super) record: Option<Record>,
    /// The names of its values that are texts, and no numbers.
    pub(super) texts: Vec<String>,
}

/// Reads lines in bounded memory, also those that are too long to be records.
pub(super) fn read(mut file: impl BufRead, mut take: impl FnMut(Line)) -> io::Result<()> {
    let (mut at, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let mut n_bytes = file.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
        if n_bytes == 0 {
            return Ok(());
        }
        let mut is_whole = line.last() == Some(&b'\n');
        let parsed = parse(&line[..n_bytes - usize::from(is_whole)]);
        let (mut record, mut texts) = parsed.map_or((None, Vec::new()), |(record, texts)| (Some(record), texts));
        if n_bytes > MAX_LINE && !is_whole {
            let n_rest = file.by_ref().take(MAX_SKIPPED).skip_until(b'\n')?;
            if n_rest as u64 == MAX_SKIPPED {
                let message = format!(
                    "a line of more than {MAX_SKIPPED} bytes, from byte {at} on; expected JSON objects, one a line"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            (is_whole, record, texts) = (true, None, Vec::new());
            n_bytes += n_rest;
        }
        take(Line { at, is_whole, record, texts });
        at += n_bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(scalars: &[(&str, f64)]) -> Record {
        let scalars = scalars.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        Record { step: 44, time: 1763824800.25, scalars }
    }

    #[test]
    fn a_line_is_as_the_page_says() {
        let record = record(&[("loss", f64::from(0.1f32)), ("a \"b\"\n", f64::NAN), ("c", -f64::INFINITY)]);
        assert_eq!(
            line(&record),
            "{\"step\":44,\"time\":1763824800.25,\"loss\":0.10000000149011612,\"a \\\"b\\\"\\n\":\"NaN\",\"c\":\"-Infinity\"}\n"
        );
        let (read, _) = parse(line(&record).trim_end().as_bytes()).unwrap();
        assert_eq!(read.scalars.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["loss", "a \"b\"\n", "c"]);
        assert!(read.scalars[1].1.is_nan());
    }

    proptest! {
        #[test]
        fn every_number_comes_back_to_the_last_bit(bits: u64, step in 0..=MAX_STEP, name in "\\PC{1,8}") {
            let value = f64::from_bits(bits);
            prop_assume!(!RESERVED.contains(&name.as_str()));
            let record = Record { step, time: 0.5, scalars: vec![(name, value)] };
            let (read, _) = parse(line(&record).trim_end_matches('\n').as_bytes()).unwrap();
            prop_assert_eq!(read.step, step);
            prop_assert_eq!(&read.scalars[0].0, &record.scalars[0].0);
            let back = read.scalars[0].1;
            prop_assert!(back.to_bits() == bits || (back.is_nan() && value.is_nan()));
        }

        #[test]
        fn bytes_that_are_no_line_are_none(bytes: Vec<u8>) {
            drop(parse(&bytes));
        }
    }

    #[test]
    fn names_that_a_line_cannot_have_are_said() {
        let text = |names: &[&str]| check(names.iter()).unwrap_err().to_string();
        let help = "\nhelp: give the metric another name";
        assert_eq!(
            text(&["loss", "step"]),
            format!("a scalar is called `step`: in metrics.jsonl that key is the record's own{help}")
        );
        assert_eq!(text(&[""]), format!("a scalar is called ``: expected a name that is not empty{help}"));
        assert_eq!(
            text(&["a", "b", "a"]),
            format!("a scalar is called `a`: expected one scalar of each name in a step{help}")
        );
        assert!(check(["loss", "test/loss", "Schritt"].iter()).is_ok());
    }
}
