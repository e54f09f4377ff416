//! Recognises normalisations written with plain ops, as by `tf.nn.batch_normalization`: `x · m + (beta - mean · m)`, where `m` is
//! `gamma / sqrt(variance + epsilon)`.

use std::collections::{HashMap, HashSet};

use super::symbols::{Symbols, constant};
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
        if let Some(norm) = norm(symbols, idx) {
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

fn norm(symbols: &Symbols<'_>, idx: usize) -> Option<Norm> {
    let pair = |edge: Edge, ops: &[&str]| match (
        ops.contains(&symbols.node(edge.node).op.as_str()),
        &symbols.node(edge.node).inputs[..],
    ) {
        (true, [a, b]) => Some((*a, *b)),
        _ => None,
    };
    let (scaled, shift) = pair(Edge { node: idx, output: 0 }, &["Add", "AddV2"])?;
    let (beta, moved) = pair(through(symbols, shift), &["Sub"])?;
    let (mean, factor) = pair(through(symbols, moved), &["Mul"])?;
    let (x, other) = pair(scaled, &["Mul"])?;
    let (mean, factor) = (through(symbols, mean), through(symbols, factor));
    if through(symbols, other) != factor {
        return None;
    }
    let (root, gamma) = match pair(factor, &["Mul"]) {
        Some((root, gamma)) => (through(symbols, root), Some(gamma)),
        None => (factor, None),
    };
    if symbols.node(root.node).op != "Rsqrt" {
        return None;
    }
    let sum = through(symbols, *symbols.node(root.node).inputs.first()?);
    let (variance, _) = pair(sum, &["Add", "AddV2"])?;
    let epsilon = symbols.scalar(symbols.node(sum.node), 1)?;
    let variance = through(symbols, variance);
    let (kind, axes) = match symbols.node(mean.node).op.as_str() {
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
    };
    Some(Norm { kind, axes, x, gamma, beta: Some(beta), epsilon })
}

fn axes(symbols: &Symbols<'_>, mean: Edge) -> Option<Vec<i64>> {
    let node = symbols.node(mean.node);
    let (_, values) = constant(symbols.node(symbols.behind(*node.inputs.get(1)?).node))?;
    (node.op == "Mean").then(|| values.iter().map(|value| *value as i64).collect())
}
