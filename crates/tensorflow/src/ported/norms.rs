//! Recognises normalisations written with plain ops: as by `tf.nn.batch_normalization`, `x · m + (beta - mean · m)`, where `m` is
//! `gamma / sqrt(variance + epsilon)`, or as by hand, `(x - mean) / sqrt(variance + epsilon) · gamma + beta`. Keras' layer norm is
//! a fused batch norm of examples in the place of channels.

use std::collections::{HashMap, HashSet};

use super::symbols::{Symbols, constant, is_variable, shortest};
use crate::node::Edge;

/// The axes of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormKind {
    /// Over the batch and all axes but the last, or running statistics.
    Batch,
    /// Over the last axis.
    Layer,
}

/// A normalisation.
pub(super) struct Norm {
    pub kind: NormKind,
    /// The axes of its statistics; none of running ones.
    pub axes: Vec<i64>,
    pub x: Edge,
    pub gamma: Option<Edge>,
    pub beta: Option<Edge>,
    pub epsilon: f64,
}

/// The normalisations among `order`, by the node of their result; and all nodes inside of them.
pub(super) fn norms(symbols: &Symbols<'_>, order: &[usize]) -> (HashMap<usize, Norm>, HashSet<usize>) {
    let (mut norms, mut inside) = (HashMap::new(), HashSet::new());
    for &idx in order {
        if let Some(norm) = norm(symbols, idx).or_else(|| by_hand(symbols, idx)).or_else(|| fused(symbols, idx)) {
            let ends: Vec<usize> =
                [Some(norm.x), norm.gamma, norm.beta].into_iter().flatten().map(|edge| edge.node).collect();
            let mut pending = vec![idx];
            let mut seen: HashSet<usize> = ends.iter().copied().collect();
            while let Some(node) = pending.pop() {
                for edge in &symbols.node(node).inputs {
                    if !is_source(&symbols.node(edge.node).op) && seen.insert(edge.node) {
                        inside.insert(edge.node);
                        pending.push(edge.node);
                    }
                }
            }
            norms.insert(idx, norm);
        }
    }
    // The result of another normalisation is not inside of this one.
    inside.retain(|idx| !norms.contains_key(idx));
    (norms, inside)
}

fn is_source(op: &str) -> bool {
    matches!(op, "VarHandleOp" | "VariableV2" | "Variable" | "ReadVariableOp" | "Const")
}

/// The producer of a value, behind ops that change no values.
fn through(symbols: &Symbols<'_>, mut edge: Edge) -> Edge {
    for _ in 0..16 {
        let node = symbols.node(edge.node);
        match (node.op.as_str(), node.inputs.first()) {
            ("Identity" | "Cast" | "StopGradient" | "Reshape" | "Squeeze" | "ExpandDims" | "Enter", Some(input)) => {
                edge = *input
            }
            _ => break,
        }
    }
    edge
}

/// The inputs of a node of two, if it is one of these ops.
fn pair(symbols: &Symbols<'_>, edge: Edge, ops: &[&str]) -> Option<(Edge, Edge)> {
    let node = symbols.node(edge.node);
    match (ops.contains(&node.op.as_str()), &node.inputs[..]) {
        (true, [a, b]) => Some((*a, *b)),
        _ => None,
    }
}

fn norm(symbols: &Symbols<'_>, idx: usize) -> Option<Norm> {
    let (scaled, shift) = pair(symbols, Edge { node: idx, output: 0 }, &["Add", "AddV2"])?;
    let (beta, moved) = pair(symbols, through(symbols, shift), &["Sub"])?;
    let (mean, factor) = pair(symbols, through(symbols, moved), &["Mul"])?;
    let (x, other) = pair(symbols, scaled, &["Mul"])?;
    let (mean, factor) = (through(symbols, mean), through(symbols, factor));
    if through(symbols, other) != factor {
        return None;
    }
    let (root, gamma) = match pair(symbols, factor, &["Mul"]) {
        Some((root, gamma)) => (through(symbols, root), Some(gamma)),
        None => (factor, None),
    };
    if symbols.node(root.node).op != "Rsqrt" {
        return None;
    }
    let (variance, epsilon) = under_root(symbols, root)?;
    let (kind, axes) = statistics(symbols, mean, variance)?;
    Some(Norm { kind, axes, x, gamma, beta: Some(beta), epsilon })
}

/// `(x - mean) · rsqrt(variance + epsilon) · gamma + beta`, factors in any order, of means over axes of `x`.
fn by_hand(symbols: &Symbols<'_>, idx: usize) -> Option<Norm> {
    let either = |(a, b): (Edge, Edge)| [(a, b), (b, a)];
    let is_variable = |edge: Edge| is_source(&symbols.node(through(symbols, edge).node).op);
    let sums = either(pair(symbols, Edge { node: idx, output: 0 }, &["Add", "AddV2"])?);
    let (scaled, beta) = sums.into_iter().find(|(_, beta)| is_variable(*beta))?;
    let products = either(pair(symbols, through(symbols, scaled), &["Mul"])?);
    let (normed, gamma) = products.into_iter().find(|(_, gamma)| is_variable(*gamma))?;
    let normed = through(symbols, normed);
    let op = |edge: Edge| symbols.node(edge.node).op.as_str();
    let parts = match pair(symbols, normed, &["Mul"]) {
        Some(factors) => {
            either(factors).map(|(x, root)| (through(symbols, x), through(symbols, root), "Rsqrt")).to_vec()
        }
        None => {
            let (x, root) = pair(symbols, normed, &["RealDiv", "Div"])?;
            vec![(through(symbols, x), through(symbols, root), "Sqrt")]
        }
    };
    let (centred, root, _) = parts.into_iter().find(|(_, root, word)| op(*root) == *word)?;
    let (x, mean) = pair(symbols, centred, &["Sub"])?;
    let mean = through(symbols, mean);
    let (variance, epsilon) = under_root(symbols, root)?;
    let (kind, axes) = statistics(symbols, mean, variance)?;
    // The statistics are of the same values.
    let read = |edge: Edge| symbols.node(edge.node).inputs.first().map(|input| through(symbols, *input));
    let squares = read(variance)?;
    let is_of_x = match op(squares) {
        "SquaredDifference" => {
            let (a, b) = pair(symbols, squares, &["SquaredDifference"])?;
            either((through(symbols, a), through(symbols, b))).contains(&(through(symbols, x), mean))
        }
        "Square" => read(squares) == Some(centred),
        _ => false,
    };
    (is_of_x && read(mean) == Some(through(symbols, x))).then_some(Norm {
        kind,
        axes,
        x,
        gamma: Some(gamma),
        beta: Some(beta),
        epsilon,
    })
}

/// Keras' `LayerNormalization` with an epsilon that fused batch norms take: `reshape(fused(reshape(x))) · gamma + beta`, with
/// ones and zeros for the fused one's own.
fn fused(symbols: &Symbols<'_>, idx: usize) -> Option<Norm> {
    let (scaled, beta) = pair(symbols, Edge { node: idx, output: 0 }, &["Add", "AddV2"])?;
    let (normed, gamma) = pair(symbols, through(symbols, scaled), &["Mul"])?;
    let node = symbols.node(through(symbols, normed).node);
    let [input, ones, zeros, ..] = node.inputs[..] else { return None };
    let input = symbols.node(input.node);
    let is_vector = |edge: Edge| {
        let variable = symbols.node(symbols.behind(edge).node);
        is_variable(&variable.op) && variable.dims("shape").is_some_and(|dims| dims.len() == 1)
    };
    let is_of_examples = input.op == "Reshape"
        && matches!(symbols.sizes(input)[..], [1, _, _, 1])
        && node.text("data_format") == "NCHW"
        && (node.flag("is_training") || node.kind("is_training").is_none());
    let is_fused = matches!(node.op.as_str(), "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3")
        && [ones, zeros].map(|edge| symbols.fill(edge)) == [Some(1.0), Some(0.0)];
    let epsilon = shortest(node.float("epsilon")?);
    (is_fused && is_of_examples && is_vector(gamma) && is_vector(beta)).then_some(Norm {
        kind: NormKind::Layer,
        axes: vec![-1],
        x: *input.inputs.first()?,
        gamma: Some(gamma),
        beta: Some(beta),
        epsilon,
    })
}

/// The variance and the epsilon of a root.
fn under_root(symbols: &Symbols<'_>, root: Edge) -> Option<(Edge, f64)> {
    let sum = through(symbols, *symbols.node(root.node).inputs.first()?);
    let (variance, _) = pair(symbols, sum, &["Add", "AddV2"])?;
    Some((through(symbols, variance), symbols.scalar(symbols.node(sum.node), 1)?))
}

/// The axes of a mean and of a variance, which are the same.
fn statistics(symbols: &Symbols<'_>, mean: Edge, variance: Edge) -> Option<(NormKind, Vec<i64>)> {
    Some(match symbols.node(mean.node).op.as_str() {
        "Mean" => {
            let axes = axes(symbols, mean)?;
            if axes != self::axes(symbols, variance)? {
                return None;
            }
            match axes[..] {
                [0, ..] => (NormKind::Batch, axes),
                [_] => (NormKind::Layer, axes),
                _ => return None,
            }
        }
        "ReadVariableOp" | "VarHandleOp" | "VariableV2" | "Variable" => (NormKind::Batch, Vec::new()),
        _ => return None,
    })
}

fn axes(symbols: &Symbols<'_>, mean: Edge) -> Option<Vec<i64>> {
    let node = symbols.node(mean.node);
    let (_, values) = constant(symbols.node(symbols.behind(*node.inputs.get(1)?).node))?;
    (node.op == "Mean").then(|| values.iter().map(|value| *value as i64).collect())
}
