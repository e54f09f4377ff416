//! Recognises GELU written with plain ops, as `tf.nn.gelu` and BERT write it: `x / 2 · (1 + erf(x / √2))`, or with
//! `tanh(√(2 / π) · (x + 0.044715 x³))` in the place of erf.

use std::collections::{HashMap, HashSet};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use super::symbols::Symbols;
use crate::node::{Edge, Node};

/// A GELU, by its input and the name of its activation.
pub(super) struct Gelu {
    pub x: Edge,
    pub word: &'static str,
}

/// The GELUs among `order`, by the node of their result; and all nodes inside of them.
pub(super) fn gelus(symbols: &Symbols<'_>, order: &[usize]) -> (HashMap<usize, Gelu>, HashSet<usize>) {
    let (mut gelus, mut inside) = (HashMap::new(), HashSet::new());
    for &idx in order.iter().filter(|idx| matches!(symbols.node(**idx).op.as_str(), "Mul" | "RealDiv")) {
        let result = Edge { node: idx, output: 0 };
        let Some(gelu) = gelu(symbols, result) else { continue };
        let mut pending = vec![result];
        while let Some(edge) = pending.pop() {
            for input in &symbols.node(edge.node).inputs {
                if behind(symbols, *input) != gelu.x && symbols.value(*input).is_none() && inside.insert(input.node) {
                    pending.push(*input);
                }
            }
        }
        gelus.insert(idx, gelu);
    }
    (gelus, inside)
}

/// The edge behind identities and casts.
fn behind(symbols: &Symbols<'_>, mut edge: Edge) -> Edge {
    for _ in 0..16 {
        let node = symbols.node(edge.node);
        match (node.op.as_str(), node.inputs.first()) {
            ("Identity" | "Cast" | "Snapshot" | "StopGradient", Some(input)) => edge = *input,
            _ => break,
        }
    }
    edge
}

/// Whether a constant has a value, as far as bf16 holds it.
pub(super) fn is_close(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() < 0.01
}

/// The constant factor of a product; its other factors are collected, and `ends` are not taken apart.
fn product(symbols: &Symbols<'_>, edge: Edge, ends: &[Edge], factors: &mut Vec<Edge>, depth: usize) -> f64 {
    const MAX_DEPTH: usize = 6;
    let edge = behind(symbols, edge);
    if !ends.contains(&edge) && depth < MAX_DEPTH {
        if let Some(value) = symbols.value(edge) {
            return value;
        }
        let node = symbols.node(edge.node);
        match (node.op.as_str(), &node.inputs[..]) {
            ("Mul", [a, b]) => {
                let first = product(symbols, *a, ends, factors, depth + 1);
                return first * product(symbols, *b, ends, factors, depth + 1);
            }
            ("RealDiv" | "Div", [a, b]) => {
                if let Some(divisor) = symbols.value(*b) {
                    return product(symbols, *a, ends, factors, depth + 1) / divisor;
                }
            }
            _ => {}
        }
    }
    factors.push(edge);
    1.0
}

/// The sum `1 + erf(…)` or `1 + tanh(…)` among the factors of a product, and the function in it.
fn distribution(symbols: &Symbols<'_>, edge: Edge, depth: usize) -> Option<(Edge, Edge)> {
    const MAX_DEPTH: usize = 4;
    let edge = behind(symbols, edge);
    let node = symbols.node(edge.node);
    match (node.op.as_str(), &node.inputs[..]) {
        ("Mul" | "RealDiv" | "Div", [a, b]) if depth < MAX_DEPTH => {
            distribution(symbols, *a, depth + 1).or_else(|| distribution(symbols, *b, depth + 1))
        }
        ("Add" | "AddV2", [a, b]) => {
            let function = match (symbols.value(*a), symbols.value(*b)) {
                (Some(1.0), None) => behind(symbols, *b),
                (None, Some(1.0)) => behind(symbols, *a),
                _ => return None,
            };
            matches!(symbols.node(function.node).op.as_str(), "Erf" | "Tanh").then_some((edge, function))
        }
        _ => None,
    }
}

fn gelu(symbols: &Symbols<'_>, result: Edge) -> Option<Gelu> {
    let (sum, function) = distribution(symbols, result, 0)?;
    let function = symbols.node(function.node);
    let argument = *function.inputs.first()?;
    let gelu = match function.op.as_str() {
        "Erf" => Gelu { x: scaled(symbols, argument)?, word: "gelu" },
        _ => Gelu { x: cubic(symbols, argument)?, word: "gelu_tanh" },
    };
    let mut factors = Vec::new();
    let scale = product(symbols, result, &[gelu.x, sum], &mut factors, 0);
    let is_of_both = factors == [gelu.x, sum] || factors == [sum, gelu.x];
    (is_of_both && is_close(scale, 0.5)).then_some(gelu)
}

/// The x of `x / √2`.
fn scaled(symbols: &Symbols<'_>, edge: Edge) -> Option<Edge> {
    let (x, factor) = factor(symbols, symbols.node(behind(symbols, edge).node))?;
    is_close(factor, FRAC_1_SQRT_2).then(|| behind(symbols, x))
}

/// The factor of a product or quotient that is a constant, and the other one.
pub(super) fn factor(symbols: &Symbols<'_>, node: &Node) -> Option<(Edge, f64)> {
    let [a, b] = node.inputs[..] else { return None };
    match (node.op.as_str(), symbols.value(a), symbols.value(b)) {
        ("Mul", None, Some(factor)) => Some((a, factor)),
        ("Mul", Some(factor), None) => Some((b, factor)),
        ("RealDiv" | "Div", None, Some(divisor)) => Some((a, 1.0 / divisor)),
        _ => None,
    }
}

/// The x of `√(2 / π) · (x + 0.044715 x³)`.
fn cubic(symbols: &Symbols<'_>, edge: Edge) -> Option<Edge> {
    let mut factors = Vec::new();
    let scale = product(symbols, edge, &[], &mut factors, 0);
    let [sum] = factors[..] else { return None };
    let node = symbols.node(sum.node);
    let [a, b] = node.inputs[..] else { return None };
    if !is_close(scale, FRAC_2_PI.sqrt()) || !matches!(node.op.as_str(), "Add" | "AddV2") {
        return None;
    }
    let is_cube = |x: Edge, cube: Edge| {
        let mut factors = Vec::new();
        let scale = product(symbols, cube, &[x], &mut factors, 0);
        let is_power = |edge: Edge| {
            let node = symbols.node(edge.node);
            let base = node.inputs.first().map(|base| behind(symbols, *base));
            node.op == "Pow" && base == Some(x) && symbols.scalar(node, 1) == Some(3.0)
        };
        let is_third_power = factors == [x; 3] || matches!(factors[..], [power] if is_power(power));
        is_third_power && is_close(scale, 0.044715)
    };
    let [a_behind, b_behind] = [a, b].map(|x| behind(symbols, x));
    [(a_behind, b), (b_behind, a)].into_iter().find(|(x, cube)| is_cube(*x, *cube)).map(|(x, _)| x)
}
