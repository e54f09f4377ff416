//! Values of plain ops for one example: numbers, and rows of classes that sums and softmaxes go along.

use std::collections::HashMap;

use super::numbers;
use super::symbols::{Symbols, constant};
use crate::node::{Edge, Node};

/// A tensor of one example.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RowValue {
    /// A number without axes, or one of many that are alike.
    Number(f64),
    /// A number of the example: `[batch]`.
    Each(f64),
    /// The same with its axis: `[batch, 1]`.
    Kept(f64),
    /// A row of the example: `[batch, n]`.
    All(Vec<f64>),
}

impl RowValue {
    fn at(&self, number: usize) -> Option<f64> {
        match self {
            RowValue::Number(value) | RowValue::Each(value) | RowValue::Kept(value) => Some(*value),
            RowValue::All(values) => values.get(number).copied(),
        }
    }
}

/// The values of edges as they are computed; `None` of those that have none.
pub(super) type Known = HashMap<Edge, Option<RowValue>>;

/// So many nodes lie between a value and what it is computed of.
const MAX_DEPTH: usize = 64;

/// Whether an op's result is known wherever its operands are.
pub(super) fn is_known(node: &Node) -> bool {
    is_along(&node.op) || numbers::is_known(node)
}

/// Whether an op goes along rows.
fn is_along(op: &str) -> bool {
    matches!(op, "Sum" | "Mean" | "Max" | "Min" | "Softmax" | "LogSoftmax" | "SoftmaxCrossEntropyWithLogits")
}

/// The value of an edge, where those of `known` are given. `rank` is the number of axes of rows, if it is known.
pub(super) fn value(
    symbols: &Symbols<'_>,
    edge: Edge,
    rank: Option<usize>,
    known: &mut Known,
    depth: usize,
) -> Option<RowValue> {
    if let Some(row) = known.get(&edge) {
        return row.clone();
    }
    let node = symbols.node(edge.node);
    let row = match constant(node) {
        _ if depth >= MAX_DEPTH => None,
        Some((_, values)) => {
            let first = values.first().copied().filter(|first| values.iter().all(|x| x == first));
            first.map(RowValue::Number)
        }
        None if node.op == "Fill" => {
            let filled = node.inputs.get(1);
            filled.and_then(|input| value(symbols, *input, rank, known, depth + 1))
        }
        None if is_along(&node.op) => along(symbols, node, rank, known, depth),
        None => each(symbols, edge, rank, known, depth),
    };
    known.insert(edge, row.clone());
    row
}

/// The result of an op of numbers, one after the other.
fn each(symbols: &Symbols<'_>, edge: Edge, rank: Option<usize>, known: &mut Known, depth: usize) -> Option<RowValue> {
    let node = symbols.node(edge.node);
    let (mut n, mut has_each, mut has_kept) = (None, false, false);
    for input in &node.inputs {
        match value(symbols, *input, rank, known, depth + 1) {
            Some(RowValue::All(values)) if n.is_none_or(|n| n == values.len()) => n = Some(values.len()),
            Some(RowValue::All(_)) => return None,
            Some(RowValue::Each(_)) => has_each = true,
            Some(RowValue::Kept(_)) => has_kept = true,
            Some(RowValue::Number(_)) | None => {}
        }
    }
    // `[batch]` beside `[batch, n]` is another broadcast, and a new shape of a row is not followed.
    let is_reshaped = matches!(node.op.as_str(), "Reshape" | "Squeeze" | "ExpandDims");
    if has_each && (has_kept || n.is_some()) || is_reshaped && (n.is_some() || has_each || has_kept) {
        return match (node.op.as_str(), value(symbols, *node.inputs.first()?, rank, known, depth + 1)?) {
            ("Squeeze", RowValue::Each(x) | RowValue::Kept(x)) => Some(RowValue::Each(x)),
            ("ExpandDims", RowValue::Each(x)) => Some(RowValue::Kept(x)),
            _ => None,
        };
    }
    let mut result = |number: usize| {
        let mut read = |input: Edge| value(symbols, input, rank, known, depth + 1)?.at(number);
        numbers::result(node, edge.output, |x| x, &mut read)
    };
    match n {
        Some(n) => (0..n).map(result).collect::<Option<Vec<f64>>>().map(RowValue::All),
        None if has_each => result(0).map(RowValue::Each),
        None if has_kept => result(0).map(RowValue::Kept),
        None => result(0).map(RowValue::Number),
    }
}

/// The result of an op along rows.
fn along(symbols: &Symbols<'_>, node: &Node, rank: Option<usize>, known: &mut Known, depth: usize) -> Option<RowValue> {
    let RowValue::All(row) = value(symbols, *node.inputs.first()?, rank, known, depth + 1)? else { return None };
    let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let norm = highest + row.iter().map(|x| (x - highest).exp()).sum::<f64>().ln();
    match node.op.as_str() {
        "Softmax" => return Some(RowValue::All(row.iter().map(|x| (x - norm).exp()).collect())),
        "LogSoftmax" => return Some(RowValue::All(row.iter().map(|x| x - norm).collect())),
        "SoftmaxCrossEntropyWithLogits" => {
            let RowValue::All(labels) = value(symbols, *node.inputs.get(1)?, rank, known, depth + 1)? else {
                return None;
            };
            return Some(RowValue::Each(row.iter().zip(&labels).map(|(x, y)| y * (norm - x)).sum()));
        }
        _ => {}
    }
    let (_, axes) = constant(symbols.node(symbols.behind(*node.inputs.get(1)?).node))?;
    let last = rank.map(|rank| rank as f64 - 1.0);
    let [axis] = axes[..] else { return None };
    if axis != -1.0 && Some(axis) != last {
        return None;
    }
    let value = match node.op.as_str() {
        "Sum" => row.iter().sum(),
        "Mean" => row.iter().sum::<f64>() / row.len() as f64,
        "Max" => highest,
        _ => row.iter().copied().fold(f64::INFINITY, f64::min),
    };
    Some(if node.flag("keep_dims") { RowValue::Kept(value) } else { RowValue::Each(value) })
}
