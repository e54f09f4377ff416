//! Initial values of variables: the constants and distributions of their initializers, as values of `…_initializer` options.

use std::collections::{BTreeMap, HashMap};

use super::symbols::{Symbols, constant, shortest, yaml_number};
use crate::graph::Graph;
use crate::node::{Edge, Node};

/// The value that a variable's initializer assigns.
fn assigned(graph: &Graph, variable: &str) -> Option<Edge> {
    let info = graph.variables.iter().find(|info| info.name == variable)?;
    let assign = graph.body.find(&info.initializer)?;
    graph.body.nodes[assign].inputs.get(1).copied()
}

/// The initializer of a variable of these dims in YAML; `None` if it is of another kind. Several initializers may coincide
/// (fan-in and fan-out of a square matrix): the first one in `preferred` is taken.
pub(super) fn initial(symbols: &Symbols<'_>, variable: &str, dims: &[i64], preferred: &[&str]) -> Option<String> {
    let word = match start(symbols, variable)? {
        Start::Constant(0.0) => "zeros".to_string(),
        Start::Constant(1.0) => "ones".to_string(),
        Start::Constant(value) => format!("{{constant: {}}}", short(value)),
        Start::Drawn(drawn) => {
            let words = words(&drawn, dims);
            let known = preferred.iter().find(|word| words.contains(word)).or(words.first());
            known.map_or_else(|| in_numbers(&drawn), |word| word.to_string())
        }
    };
    Some(word)
}

/// The number that all elements of a variable have at first.
pub(super) fn number(symbols: &Symbols<'_>, variable: &str) -> Option<f64> {
    match start(symbols, variable)? {
        Start::Constant(value) => Some(value),
        Start::Drawn(_) => None,
    }
}

/// Initializers that describe some variable unambiguously, by decreasing number of such variables.
pub(super) fn preferred(symbols: &Symbols<'_>, variables: &HashMap<String, Vec<i64>>) -> Vec<&'static str> {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for (name, dims) in variables {
        if let Some(Start::Drawn(drawn)) = start(symbols, name)
            && let [word] = words(&drawn, dims)[..]
        {
            *counts.entry(word).or_default() += 1;
        }
    }
    let mut words: Vec<(&'static str, usize)> = counts.into_iter().collect();
    words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    words.into_iter().map(|(word, _)| word).collect()
}

/// A variable's initial value.
enum Start {
    /// Every element is this number.
    Constant(f64),
    Drawn(Drawn),
}

/// A distribution.
enum Drawn {
    Uniform {
        least: f64,
        limit: f64,
    },
    Normal {
        mean: f64,
        deviation: f64,
    },
    /// `deviation` is that of the normal distribution before values beyond two deviations are redrawn.
    Truncated {
        mean: f64,
        deviation: f64,
    },
}

fn start(symbols: &Symbols<'_>, variable: &str) -> Option<Start> {
    let node = symbols.node(symbols.behind(assigned(symbols.graph, variable)?).node);
    if let Some(value) = constant_of(symbols, node) {
        return Some(Start::Constant(value));
    }
    // `random * scale + offset`.
    let pair = |node: &'_ Node| match node.inputs[..] {
        [a, b] => Some((a, b)),
        _ => None,
    };
    let (scaled, mean) = match node.op.as_str() {
        "Add" | "AddV2" => {
            let (product, offset) = pair(node)?;
            (symbols.node(symbols.behind(product).node), symbols.value(offset)?)
        }
        "Mul" => (node, 0.0),
        _ => return None,
    };
    let (random, scale) = pair(scaled)?;
    let scale = symbols.value(scale)?;
    let op = symbols.node(symbols.behind(random).node).op.as_str();
    Some(Start::Drawn(match op {
        op if op.contains("RandomUniform") => Drawn::Uniform { least: mean, limit: mean + scale },
        op if op.contains("TruncatedNormal") => Drawn::Truncated { mean, deviation: scale },
        op if op.contains("Normal") => Drawn::Normal { mean, deviation: scale },
        _ => return None,
    }))
}

/// Initializers that give this distribution for these dims.
fn words(drawn: &Drawn, dims: &[i64]) -> Vec<&'static str> {
    let n: i64 = dims.iter().rev().skip(2).product();
    let (inputs, outputs) = match dims {
        [.., inputs, outputs] => ((inputs * n) as f64, (outputs * n) as f64),
        [one] => (*one as f64, *one as f64),
        [] => (1.0, 1.0),
    };
    // The standard deviation of a standard normal truncated at 2, by which TensorFlow divides.
    const TRUNCATED: f64 = 0.879_625_661_034_239_8;
    let both = inputs + outputs;
    let (all, value): (&[(&'static str, f64)], f64) = match *drawn {
        Drawn::Uniform { least, limit } if (least + limit).abs() <= 1e-4 * limit => (
            &[
                ("glorot_uniform", (6.0 / both).sqrt()),
                ("he_uniform", (6.0 / inputs).sqrt()),
                ("lecun_uniform", (3.0 / inputs).sqrt()),
                ("lecun_uniform_fan_out", (1.0 / outputs).sqrt()),
                ("random_uniform", 0.05),
            ],
            limit,
        ),
        Drawn::Truncated { mean: 0.0, deviation } => (
            &[
                ("glorot_normal", (2.0 / both).sqrt()),
                ("he_normal", (2.0 / inputs).sqrt()),
                ("lecun_normal", (1.0 / inputs).sqrt()),
                ("he_normal_fan_out", (2.0 / outputs).sqrt()),
            ],
            deviation * TRUNCATED,
        ),
        Drawn::Normal { mean: 0.0, deviation } => (
            &[
                ("random_normal", 0.05),
                ("bert_normal", 0.02),
                (
                    "{variance_scaling: {scale: 2, mode: fan_out, distribution: untruncated_normal}}",
                    (2.0 / outputs).sqrt(),
                ),
                (
                    "{variance_scaling: {scale: 2, mode: fan_in, distribution: untruncated_normal}}",
                    (2.0 / inputs).sqrt(),
                ),
                (
                    "{variance_scaling: {scale: 1, mode: fan_in, distribution: untruncated_normal}}",
                    (1.0 / inputs).sqrt(),
                ),
            ],
            deviation,
        ),
        _ => return Vec::new(),
    };
    let is_this = |known: f64| (value - known).abs() <= 1e-4 * known;
    all.iter().filter(|(_, known)| is_this(*known)).map(|(word, _)| *word).collect()
}

/// A distribution in YAML, with explicit numbers.
fn in_numbers(drawn: &Drawn) -> String {
    match *drawn {
        Drawn::Uniform { least, limit } if least == -limit => format!("{{random_uniform: {}}}", short(limit)),
        Drawn::Uniform { least, limit } => {
            format!("{{random_uniform: {{minval: {}, maxval: {}}}}}", short(least), short(limit))
        }
        Drawn::Normal { mean: 0.0, deviation } => format!("{{random_normal: {}}}", short(deviation)),
        Drawn::Normal { mean, deviation } => {
            format!("{{random_normal: {{stddev: {}, mean: {}}}}}", short(deviation), short(mean))
        }
        Drawn::Truncated { mean: 0.0, deviation } => format!("{{truncated_normal: {}}}", short(deviation)),
        Drawn::Truncated { mean, deviation } => {
            format!("{{truncated_normal: {{stddev: {}, mean: {}}}}}", short(deviation), short(mean))
        }
    }
}

fn short(value: f64) -> String {
    yaml_number(shortest(value as f32))
}

/// The number that every element equals.
fn constant_of(symbols: &Symbols<'_>, node: &Node) -> Option<f64> {
    match node.op.as_str() {
        "Const" => {
            let values = constant(node)?.1;
            let first = *values.first()?;
            values.iter().all(|value| *value == first).then_some(first)
        }
        "Fill" => symbols.value(*node.inputs.get(1)?),
        "ZerosLike" => Some(0.0),
        "OnesLike" => Some(1.0),
        _ => None,
    }
}
