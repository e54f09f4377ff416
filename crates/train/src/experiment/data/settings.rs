//! Values of `data` that have two forms each.

use bf16scope_model::document::{self, Node, ReadError, Value};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// File names or patterns: one, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns(pub Vec<String>);

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Patterns, D::Error> {
        const EXPECTED: &str = "a file name or a pattern such as train-*, or a list of them";
        Node::read(deserializer, |node| match &node.value {
            Value::Text(pattern) => Ok(Patterns(vec![pattern.clone()])),
            Value::List(patterns) if patterns.is_empty() => {
                Err(ReadError::wrong("an empty list".to_string(), EXPECTED).or_at(node.mark))
            }
            Value::List(_) => Vec::deserialize(node).map(Patterns),
            _ => Err(node.wrong(EXPECTED)),
        })
    }
}

/// The size of a part for testing or validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PartSize {
    /// A number of examples.
    Count(u64),
    /// A share of all examples, above 0 and below 1; rounded to the nearest number.
    Share(f64),
}

impl PartSize {
    /// The number of examples out of `n`.
    pub fn of_examples(self, n: u64) -> u64 {
        match self {
            PartSize::Count(count) => count,
            PartSize::Share(share) => (share * n as f64).round() as u64,
        }
    }
}

impl From<u64> for PartSize {
    fn from(count: u64) -> PartSize {
        PartSize::Count(count)
    }
}

impl<'de> Deserialize<'de> for PartSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PartSize, D::Error> {
        const EXPECTED: &str = "a number of examples, or a share of all such as 0.2";
        Node::read(deserializer, |node| match &node.value {
            Value::Whole(count) => Ok(PartSize::Count(*count)),
            Value::Float(_) => {
                document::number(node, |share| share > 0.0 && share < 1.0, EXPECTED).map(PartSize::Share)
            }
            _ => Err(node.wrong(EXPECTED)),
        })
    }
}

/// The label by which a split keeps the share of each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stratify {
    /// The only label of classes.
    Only,
    /// This label.
    Label(String),
}

impl<'de> Deserialize<'de> for Stratify {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stratify, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Bool(true) => Ok(Stratify::Only),
            Value::Text(label) if !label.is_empty() => Ok(Stratify::Label(label.clone())),
            _ => Err(node.wrong("`true`, or the name of a label of classes")),
        })
    }
}

/// `shuffle: true`, which is seed 0, or the seed of the order in which examples are split.
pub(super) fn shuffle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Bool(false) => Ok(None),
        Value::Bool(true) => Ok(Some(0)),
        Value::Whole(seed) => Ok(Some(*seed)),
        _ => Err::<_, ReadError>(node.wrong("`true`, or a seed, a whole number")),
    })
}

/// How an example that cannot be read is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// The run ends.
    #[default]
    Stop,
    /// It is skipped, up to a limit; then the run ends.
    Skip(u64),
}

impl Tolerance {
    /// The most examples that may be skipped.
    pub(super) fn n_skipped_max(self) -> u64 {
        match self {
            Tolerance::Stop => 0,
            Tolerance::Skip(limit) => limit,
        }
    }
}

impl<'de> Deserialize<'de> for Tolerance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tolerance, D::Error> {
        Node::read(deserializer, |node| match (&node.value, node.get("skip").map(|limit| &limit.value)) {
            (Value::Text(word), _) if word == "stop" => Ok(Tolerance::Stop),
            (Value::Map(keys), Some(Value::Whole(limit @ 1..))) if keys.len() == 1 => Ok(Tolerance::Skip(*limit)),
            _ => Err(node.wrong("`stop`, or `{skip: N}`: how many examples may be left out, 1 at least")),
        })
    }
}

/// The factors of features.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// One factor for all features that the network computes with.
    All(f32),
    /// Factors by feature name.
    Of(BTreeMap<String, f32>),
}

/// A float or an integer of YAML.
#[derive(Clone, Copy, Deserialize)]
struct Factor(#[serde(deserialize_with = "factor")] f32);

fn factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(document::number(deserializer, is_factor, FACTOR)? as f32)
}

fn is_factor(value: f64) -> bool {
    (value as f32).is_normal()
}

const FACTOR: &str = "a number other than 0 that f32 can hold";
const FACTORS: &str = "a number other than 0 that f32 can hold, or one for each feature";

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scale, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Map(_) => {
                let factors = BTreeMap::<String, Factor>::deserialize(node)?;
                Ok(Scale::Of(factors.into_iter().map(|(name, Factor(value))| (name, value)).collect()))
            }
            Value::Whole(_) | Value::Negative(_) | Value::Float(_) => {
                document::number(node, is_factor, FACTORS).map(|value| Scale::All(value as f32))
            }
            _ => Err(node.wrong(FACTORS)),
        })
    }
}
