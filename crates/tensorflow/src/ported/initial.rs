//! How variables start: the constants and distributions of their initializers, as a layer's `…_initializer` calls them.

use super::symbols::{Symbols, constant, shortest};
use crate::graph::Graph;
use crate::node::{Edge, Node};

/// How a variable starts.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Initial {
    /// A word of ours.
    Named(&'static str),
    /// No exact equivalent; the nearest one.
    Near { what: String, word: &'static str },
}

/// The value that a variable's initializer assigns.
fn assigned(graph: &Graph, variable: &str) -> Option<Edge> {
    let info = graph.variables.iter().find(|info| info.name == variable)?;
    let assign = graph.body.find(&info.initializer)?;
    graph.body.nodes[assign].inputs.get(1).copied()
}

/// How a variable of these dims starts; `None` where its initializer is of another kind.
pub(super) fn initial(symbols: &Symbols<'_>, variable: &str, dims: &[i64]) -> Option<Initial> {
    let node = symbols.node(symbols.behind(assigned(symbols.graph, variable)?).node);
    if let Some(value) = constant_of(symbols, node) {
        return Some(match value {
            0.0 => Initial::Named("zeros"),
            1.0 => Initial::Named("ones"),
            value => {
                let word = if value.abs() < 0.5 { "zeros" } else { "ones" };
                Initial::Near { what: format!("all {value:?}"), word }
            }
        });
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
    let n: i64 = dims.iter().rev().skip(2).product();
    let (inputs, outputs) = match dims {
        [.., inputs, outputs] => ((inputs * n) as f64, (outputs * n) as f64),
        [one] => (*one as f64, *one as f64),
        [] => (1.0, 1.0),
    };
    let is = |value: f64, wanted: f64| (value - wanted).abs() <= 1e-4 * wanted;
    // The bounds and deviations of what has a word.
    let both = inputs + outputs;
    let uniform = [
        ("glorot_uniform", (6.0 / both).sqrt()),
        ("he_uniform", (6.0 / inputs).sqrt()),
        ("lecun_uniform", (3.0 / inputs).sqrt()),
        ("lecun_uniform_fan_out", (1.0 / outputs).sqrt()),
        ("random_uniform", 0.05),
    ];
    let truncated = [
        ("glorot_normal", (2.0 / both).sqrt()),
        ("he_normal", (2.0 / inputs).sqrt()),
        ("lecun_normal", (1.0 / inputs).sqrt()),
        ("he_normal_fan_out", (2.0 / outputs).sqrt()),
    ];
    let normal = [("random_normal", 0.05), ("bert_normal", 0.02)];
    let nearest = |words: &[(&'static str, f64)], value: f64| {
        let far = |word: &&(&str, f64)| (word.1 / value).ln().abs();
        words.iter().min_by(|a, b| far(a).total_cmp(&far(b))).copied().unwrap_or(("glorot_uniform", value))
    };
    // A truncated normal of deviation 1 has this one: TensorFlow divides by it.
    const TRUNCATED: f64 = 0.879_625_661_034_239_8;
    if op.contains("RandomUniform") {
        let limit = scale / 2.0;
        let (word, of_word) = nearest(&uniform, limit);
        return Some(match is(limit, of_word) && (mean + limit).abs() <= 1e-4 * limit {
            true => Initial::Named(word),
            false => Initial::Near { what: format!("uniform in [{}, {})", short(mean), short(mean + scale)), word },
        });
    }
    let is_truncated = op.contains("TruncatedNormal");
    if !is_truncated && !op.contains("Normal") {
        return None;
    }
    let words: Vec<_> = truncated.iter().chain(&normal).copied().collect();
    let of_variance = if is_truncated { scale * TRUNCATED } else { scale };
    let (word, deviation) = nearest(&words, of_variance);
    let exact = match is_truncated {
        // BERT's is truncated, and its word is not: the deviation that was asked for counts.
        true if is(scale, 0.02) => return Some(Initial::Named("bert_normal")),
        true => truncated.iter().any(|(known, _)| *known == word) && is(of_variance, deviation),
        false => normal.iter().any(|(known, _)| *known == word) && is(scale, deviation),
    };
    let kind = if is_truncated { "truncated normal" } else { "normal" };
    let what = match format!("{:.2}", of_variance / deviation).as_str() {
        "1.00" if mean == 0.0 => format!("{kind} of its deviation"),
        times => format!("{kind} of mean {} and {times} times its deviation", short(mean)),
    };
    Some(if exact && mean == 0.0 { Initial::Named(word) } else { Initial::Near { what, word } })
}

fn short(value: f64) -> String {
    format!("{:?}", shortest(format!("{value:.4e}").parse().unwrap_or(value as f32)))
}

/// The number that all elements are.
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
