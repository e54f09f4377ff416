//! Constraints of layers, as in Keras: `kernel_constraint: {max_norm: 3}`; and the number of `spectral_norm`.

use super::choice::Choice;
use crate::document::{self, Key, Node, ReadError, Value, nearest};
use crate::graph::{Constraint, Graph, VariableInfo};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Constraints on a layer's variables, by the part of the key before `_constraint`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints(Vec<(&'static str, Constraint)>);

/// Keys, with the variables that they constrain.
const KEYS: &[(&str, &str)] = &[
    ("kernel_constraint", "kernel"),
    ("bias_constraint", "bias"),
    ("recurrent_constraint", "recurrent_kernel"),
    ("embeddings_constraint", "embeddings"),
    ("depthwise_constraint", "depthwise_kernel"),
    ("pointwise_constraint", "pointwise_kernel"),
    ("beta_constraint", "beta"),
    ("gamma_constraint", "gamma"),
    ("alpha_constraint", "alpha"),
];

/// Names, with their arguments; the first argument may stand alone.
const KINDS: &[(&str, &[&str])] = &[
    ("non_neg", &[]),
    ("unit_norm", &["axis"]),
    ("max_norm", &["max_value", "axis"]),
    ("min_max_norm", &["min_value", "max_value", "rate", "axis"]),
    ("clip", &["value"]),
];

/// The forms, for errors.
const EXPECTED: &str =
    "one of non_neg, unit_norm, max_norm, min_max_norm, clip, with its arguments, such as `{max_norm: 3}`";

/// A name without case and underscores: `MaxNorm` is `max_norm`.
fn plain(name: &str) -> String {
    name.chars().filter(|&c| c != '_').collect::<String>().to_lowercase()
}

fn read(node: &Node) -> Result<Constraint, ReadError> {
    let nothing = Node::scalar(Value::Null, "", node.mark);
    let (name, mark, arguments) = match &node.value {
        Value::Text(name) => (name.as_str(), node.mark, &nothing),
        Value::Map(map) => match &map[..] {
            [(name, arguments)] => (&**name, name.mark, arguments),
            _ => return Err(node.wrong(EXPECTED)),
        },
        _ => return Err(node.wrong(EXPECTED)),
    };
    let Some((kind, keys)) = KINDS.iter().find(|(kind, _)| plain(kind) == plain(name)) else {
        let names: Vec<String> = KINDS.iter().map(|(kind, _)| kind.to_string()).collect();
        let error = ReadError::new(format!("unknown constraint `{name}`, expected {EXPECTED}")).or_at(mark);
        return Err(match nearest(name, &names) {
            Some(near) => error.with_help(format!("did you mean `{near}`?")),
            None => error,
        });
    };
    let map = match (&arguments.value, keys.first()) {
        (Value::Map(map), _) => map.clone(),
        (Value::Null, _) => Vec::new(),
        (_, Some(first)) => vec![(Key::new(*first, arguments.mark), arguments.clone())],
        (_, None) => return Err(arguments.wrong("nothing: `non_neg` has no arguments")),
    };
    if let Some((key, _)) = map.iter().find(|(key, _)| !keys.contains(&&**key)) {
        let message = match keys.is_empty() {
            true => format!("`{kind}` has no arguments, found `{}`", &**key),
            false => format!("unknown key `{}` of `{kind}`, expected one of {}", &**key, keys.join(", ")),
        };
        return Err(ReadError::new(message).or_at(key.mark));
    }
    let value = |key: &str| map.iter().find(|(other, _)| &**other == key).map(|(_, node)| node);
    let number = |key: &str, default: f64| match value(key) {
        Some(node) => document::number(node, |n| (0.0..=f64::from(f32::MAX)).contains(&n), "a number of at least 0"),
        None => Ok(default),
    };
    // Nothing but zeros fits a bound of 0.
    let bound = |key: &str, default: f64| match value(key) {
        Some(node) => document::number(node, |n| n > 0.0 && n <= f64::from(f32::MAX), "a number above 0"),
        None => Ok(default),
    };
    let axis = || value("axis").map_or(Ok(vec![0]), axes);
    let constraint = match *kind {
        "non_neg" => Constraint::NonNeg,
        "unit_norm" => Constraint::UnitNorm { axis: axis()? },
        "max_norm" => Constraint::MaxNorm { max_value: bound("max_value", 2.0)?, axis: axis()? },
        "clip" => match value("value") {
            Some(_) => Constraint::Clip { value: bound("value", 1.0)? },
            None => return Err(node.wrong("a bound, such as `{clip: 0.01}`")),
        },
        _ => {
            let (min_value, max_value) = (number("min_value", 0.0)?, number("max_value", 1.0)?);
            if min_value > max_value {
                return Err(node.wrong(&format!("a `min_value` ({min_value}) of at most `max_value` ({max_value})")));
            }
            let rate = value("rate")
                .map_or(Ok(1.0), |node| document::number(node, |n| (0.0..=1.0).contains(&n), "a share from 0 to 1"))?;
            Constraint::MinMaxNorm { min_value, max_value, rate, axis: axis()? }
        }
    };
    Ok(constraint)
}

/// One axis of a variable, or several.
fn axes(node: &Node) -> Result<Vec<i64>, ReadError> {
    let fits = |n: f64| n.fract() == 0.0 && n.abs() <= f64::from(u8::MAX);
    let axis = |node: &Node| document::number(node, fits, "an axis, or a list of axes").map(|n| n as i64);
    match &node.value {
        Value::List(list) => list.iter().map(axis).collect(),
        _ => axis(node).map(|axis| vec![axis]),
    }
}

/// A constraint as a key's value.
struct Written(Constraint);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Written, D::Error> {
        Node::read(deserializer, |node| read(node).map(Written))
    }
}

impl Constraints {
    /// Whether a key is a constraint's.
    pub(super) fn is_key(key: &str) -> bool {
        KEYS.iter().any(|(name, _)| *name == key)
    }

    /// Takes a layer's constraints out of its options.
    pub(super) fn take(choice: &mut Choice<'_>) -> Result<Constraints, ReadError> {
        let mut all = Vec::new();
        for (key, _) in KEYS {
            all.extend(choice.take::<Written>(key)?.map(|Written(constraint)| (*key, constraint)));
        }
        Ok(Constraints(all))
    }

    /// Whether the layer has no constraints.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn serialize_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        self.0.iter().try_for_each(|(key, constraint)| match constraint {
            Constraint::NonNeg => map.serialize_entry(key, "non_neg"),
            constraint => map.serialize_entry(key, constraint),
        })
    }

    /// Constrains those of a layer's `variables`, with their numbers, whose last name level is a key's.
    ///
    /// # Errors
    /// A constraint of a variable that the layer does not have: its key, and the message.
    pub(super) fn apply(
        &self,
        graph: &Graph,
        variables: &[(usize, VariableInfo)],
    ) -> Result<(), (&'static str, String)> {
        for (key, constraint) in &self.0 {
            let variable = KEYS.iter().find(|(other, _)| other == key).map_or("", |(_, variable)| *variable);
            let last = |info: &VariableInfo| info.name.rsplit('/').next().unwrap_or_default().to_string();
            let trains = || variables.iter().filter(|(_, info)| info.trainable || info.is_frozen);
            let constrained: Vec<usize> =
                trains().filter(|(_, info)| last(info) == variable).map(|(number, _)| *number).collect();
            if constrained.is_empty() {
                let names: Vec<String> = trains().map(|(_, info)| last(info)).collect();
                let there = if names.is_empty() { "none".to_string() } else { names.join(", ") };
                let message = format!("`{key}` is of a variable that the layer does not have; its variables: {there}");
                return Err((key, message));
            }
            for number in constrained {
                graph.constrain(number, constraint.clone());
            }
        }
        Ok(())
    }
}

/// How often a training step iterates the vectors of `spectral_norm`: `true` is once, `false` is 0 and no norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iterations(pub u32);

impl<'de> Deserialize<'de> for Iterations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Iterations, D::Error> {
        const EXPECTED: &str = "`true`, or the iterations of a step, from 1 to 100";
        Node::read(deserializer, |node| match &node.value {
            Value::Bool(is_normed) => Ok(Iterations(u32::from(*is_normed))),
            Value::Whole(n @ 1..=100) => Ok(Iterations(*n as u32)),
            _ => Err(node.wrong(EXPECTED)),
        })
    }
}

impl Serialize for Iterations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
