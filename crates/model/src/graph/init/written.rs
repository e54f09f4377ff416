//! Initial values in configurations: `zeros`, `{constant: -2}`, `{random_normal: {stddev: 0.02}}`.

use super::{Distribution, FanMode, Init, Matrix, NAMED, Name};
use crate::document::{self, Key, Node, ReadError, Value, nearest};
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize as DeriveDeserialize, Serialize};

/// Recipes with arguments; the first argument may be given alone.
const RECIPES: &[(&str, &[&str])] = &[
    ("constant", &["value"]),
    ("random_normal", &["stddev", "mean"]),
    ("truncated_normal", &["stddev", "mean"]),
    ("random_uniform", &["maxval", "minval"]),
    ("variance_scaling", &["scale", "mode", "distribution"]),
    ("orthogonal", &["gain"]),
    ("identity", &["gain"]),
];

/// Keras' and other frameworks' names of our initializers.
fn canonical(name: &str) -> String {
    let mut canonical = String::new();
    for (at, c) in name.char_indices() {
        if c.is_uppercase() && at > 0 && !canonical.ends_with('_') {
            canonical.push('_');
        }
        canonical.extend(c.to_lowercase());
    }
    canonical
}

impl<'de> Deserialize<'de> for Init {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Init, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Map(map) => match &map[..] {
                [(name, arguments)] => with_arguments(name, arguments),
                _ => Err(node.wrong("one name with its arguments, such as `{random_normal: {stddev: 0.02}}`")),
            },
            Value::Text(name) if NAMED.iter().all(|(known, _)| text(*known) != *name) => {
                let canonical = canonical(name);
                if let Some((_, init)) = NAMED.iter().find(|(known, _)| text(*known) == canonical) {
                    return Ok(*init);
                }
                if RECIPES.iter().any(|(recipe, _)| *recipe == canonical) {
                    let help = format!("write `{{{canonical}: …}}`");
                    return Err(node.wrong(&format!("`{canonical}` with its arguments")).with_help(help));
                }
                Name::deserialize(node).map(Init::from)
            }
            _ => Name::deserialize(node).map(Init::from),
        })
    }
}

fn text(name: Name) -> String {
    serde_json::to_value(name).ok().and_then(|value| Some(value.as_str()?.to_string())).unwrap_or_default()
}

fn with_arguments(name: &Key, node: &Node) -> Result<Init, ReadError> {
    let canonical = canonical(name);
    let Some((recipe, arguments)) = RECIPES.iter().find(|(recipe, _)| *recipe == canonical) else {
        let names: Vec<String> = RECIPES.iter().map(|(recipe, _)| recipe.to_string()).collect();
        let message = format!("unknown initializer `{}` with arguments, expected one of {}", &**name, names.join(", "));
        let error = ReadError::new(message).or_at(name.mark);
        return Err(match nearest(&canonical, &names) {
            Some(near) => error.with_help(format!("did you mean `{near}`?")),
            None => error.with_help(format!("initializers without arguments are names alone: `{}`", &**name)),
        });
    };
    let map = match &node.value {
        Value::Map(map) => map.clone(),
        Value::Null => Vec::new(),
        _ => vec![(Key::new(arguments[0], node.mark), node.clone())],
    };
    if let Some((key, _)) = map.iter().find(|(key, _)| !arguments.contains(&&**key)) {
        let message = format!("unknown key `{}` of `{recipe}`, expected one of {}", &**key, arguments.join(", "));
        return Err(ReadError::new(message).or_at(key.mark));
    }
    let value = |key: &str| map.iter().find(|(other, _)| &**other == key).map(|(_, node)| node);
    let number = |key: &str, default: f64, fits: fn(f64) -> bool, expected: &'static str| match value(key) {
        Some(node) => document::number(node, fits, expected),
        None => Ok(default),
    };
    let any = |key: &str, default: f64| number(key, default, |n| (n as f32).is_finite(), "a number that f32 can hold");
    let positive =
        |key: &str, default: f64| number(key, default, |n| n > 0.0 && (n as f32).is_finite(), "a number above 0");
    let recipe = match *recipe {
        "constant" => match value("value") {
            Some(_) => Init::Constant(any("value", 0.0)?),
            None => return Err(node.wrong("a number, such as `{constant: -2}`")),
        },
        "random_normal" | "truncated_normal" => {
            let is_truncated = *recipe == "truncated_normal";
            let (mean, stddev) = (any("mean", 0.0)?, positive("stddev", 0.05)?);
            match is_truncated || mean != 0.0 {
                true => Init::NormalAround { mean, stddev, is_truncated },
                false => Init::Normal { stddev },
            }
        }
        "random_uniform" => {
            let maxval = any("maxval", 0.05)?;
            // Keras' two defaults are -0.05 and 0.05; a single bound applies to both sides.
            let minval = any("minval", -maxval)?;
            if minval >= maxval {
                return Err(node.wrong(&format!("a `minval` ({minval}) below `maxval` ({maxval})")));
            }
            if minval == -maxval { Init::Uniform { limit: maxval } } else { Init::UniformBetween { minval, maxval } }
        }
        "variance_scaling" => {
            let mode = chosen(value("mode"), FanMode::FanIn)?;
            let distribution = chosen(value("distribution"), Distribution::TruncatedNormal)?;
            Init::VarianceScaling { scale: positive("scale", 1.0)?, mode, distribution }
        }
        "orthogonal" => match any("gain", 1.0)? {
            1.0 => Init::Orthogonal,
            gain => Init::Times { gain, matrix: Matrix::Orthogonal },
        },
        _ => Init::Times { gain: any("gain", 1.0)?, matrix: Matrix::Identity },
    };
    Ok(recipe)
}

fn chosen<T: DeserializeOwned>(node: Option<&Node>, default: T) -> Result<T, ReadError> {
    node.map_or(Ok(default), |node| T::deserialize(node))
}

/// The arguments of a recipe, as written.
#[derive(Serialize, DeriveDeserialize)]
struct Scaling {
    scale: f64,
    mode: FanMode,
    distribution: Distribution,
}

impl Serialize for Init {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some((name, _)) = NAMED.iter().find(|(_, init)| init == self) {
            return name.serialize(serializer);
        }
        fn map<S: Serializer, T: Serialize + ?Sized>(serializer: S, name: &str, value: &T) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry(name, value)?;
            map.end()
        }
        let pair = |pairs: [(&'static str, f64); 2]| std::collections::BTreeMap::from(pairs);
        match *self {
            Init::Constant(value) => map(serializer, "constant", &value),
            Init::Normal { stddev } => map(serializer, "random_normal", &stddev),
            Init::NormalAround { mean, stddev, is_truncated } => {
                let name = if is_truncated { "truncated_normal" } else { "random_normal" };
                map(serializer, name, &pair([("mean", mean), ("stddev", stddev)]))
            }
            Init::Uniform { limit } => map(serializer, "random_uniform", &limit),
            Init::UniformBetween { minval, maxval } => {
                map(serializer, "random_uniform", &pair([("minval", minval), ("maxval", maxval)]))
            }
            Init::VarianceScaling { scale, mode, distribution } => {
                map(serializer, "variance_scaling", &Scaling { scale, mode, distribution })
            }
            Init::Times { gain, matrix } => {
                let name = if matrix == Matrix::Identity { "identity" } else { "orthogonal" };
                map(serializer, name, &gain)
            }
            // These are written in their short form.
            Init::Zeros | Init::Ones | Init::Orthogonal | Init::ForgetGate | Init::RandomBits => {
                serializer.collect_str(&format_args!("{self:?}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Init, String> {
        document::from_str("i.yaml", text).map_err(|error| error.to_string())
    }

    #[test]
    fn recipes_are_read_and_written() {
        for (text, init) in [
            ("constant: -2", Init::Constant(-2.0)),
            ("{constant: {value: 0.5}}", Init::Constant(0.5)),
            ("random_normal: 0.02", Init::Normal { stddev: 0.02 }),
            ("RandomNormal: {stddev: 0.02}", Init::BERT_NORMAL),
            ("{random_normal: {mean: 1}}", Init::NormalAround { mean: 1.0, stddev: 0.05, is_truncated: false }),
            ("truncated_normal: 0.02", Init::NormalAround { mean: 0.0, stddev: 0.02, is_truncated: true }),
            ("TruncatedNormal", Init::TRUNCATED_NORMAL),
            ("random_uniform: {minval: 0, maxval: 1}", Init::UniformBetween { minval: 0.0, maxval: 1.0 }),
            ("random_uniform: 0.1", Init::Uniform { limit: 0.1 }),
            ("variance_scaling: {scale: 2, mode: fan_in}", Init::HE_NORMAL),
            ("variance_scaling: ", Init::LECUN_NORMAL),
            (
                "variance_scaling: {scale: 0.5, mode: fan_out, distribution: untruncated_normal}",
                scaled(0.5, FanMode::FanOut, Distribution::UntruncatedNormal),
            ),
            ("orthogonal: 1", Init::Orthogonal),
            ("orthogonal: 0.5", Init::Times { gain: 0.5, matrix: Matrix::Orthogonal }),
            ("Identity", Init::IDENTITY),
            ("identity: {gain: 2}", Init::Times { gain: 2.0, matrix: Matrix::Identity }),
        ] {
            assert_eq!(read(text).unwrap(), init, "{text}");
            let written = serde_yaml::to_string(&init).unwrap();
            assert_eq!(read(&written).unwrap(), init, "{written}");
        }
    }

    fn scaled(scale: f64, mode: FanMode, distribution: Distribution) -> Init {
        Init::VarianceScaling { scale, mode, distribution }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("constant", "expected `constant` with its arguments"),
            ("constant: much", "found string \"much\", expected a number that f32 can hold"),
            (
                "random_norml: 1",
                "unknown initializer `random_norml` with arguments, expected one of constant, random_normal, \
                 truncated_normal, random_uniform, variance_scaling, orthogonal, identity\n",
            ),
            ("random_norml: 1", "did you mean `random_normal`?"),
            ("zzz: 1", "help: initializers without arguments are names alone: `zzz`"),
            ("constant: {}", "found keys and values, expected a number, such as `{constant: -2}`"),
            ("random_normal: {std: 1}", "unknown key `std` of `random_normal`, expected one of stddev, mean"),
            ("truncated_normal: 0", "expected a number above 0"),
            ("random_uniform: {minval: 1, maxval: 0}", "expected a `minval` (1) below `maxval` (0)"),
            ("variance_scaling: {mode: fan}", "unknown value `fan`, expected one of fan_in, fan_out, fan_avg"),
            ("{zeros: , ones: }", "expected one name with its arguments"),
            ("glorot", "unknown value `glorot`, expected one of zeros, ones, glorot_uniform"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn values_are_those_of_the_recipes() {
        let values = Init::Times { gain: 2.0, matrix: Matrix::Identity }.values(1, "w", &[2, 3]);
        assert_eq!(values, [2.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
        let truncated = Init::NormalAround { mean: 1.0, stddev: 0.5, is_truncated: true }.values(1, "w", &[10_000]);
        assert!(truncated.iter().all(|value| (0.0..=2.0).contains(value)));
        let between = Init::UniformBetween { minval: 3.0, maxval: 4.0 }.values(1, "w", &[10_000]);
        assert!(between.iter().all(|value| (3.0..=4.0).contains(value)));
        // The standard error of a mean of 10,000 is 0.003; of a normal distribution 0.005: a twentieth is ten of it.
        let mean = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        assert!((mean(&between) - 3.5).abs() < 0.05 && (mean(&truncated) - 1.0).abs() < 0.05);
    }
}
