//! Finds the terms of a graph's loss that no word of an experiment stands for.

use std::collections::{HashMap, HashSet};

use super::heads::{self, Head};
use super::region;
use super::symbols::{Symbols, is_variable};
use crate::graph::Graph;

/// How an op of the loss passes on the terms that it reads.
enum Passed {
    /// Each input is a term of its own.
    Sum,
    /// Its inputs are factors of one term.
    Product,
    /// Its inputs are of one term.
    Other,
}

fn passed(op: &str) -> Passed {
    match op {
        "Add" | "AddV2" | "AddN" | "Sub" | "Pack" | "ConcatV2" => Passed::Sum,
        "Mul" | "RealDiv" | "Div" | "DivNoNan" => Passed::Product,
        _ => Passed::Other,
    }
}

/// Whether an op takes no gradients to its inputs: numbers of a shape, comparisons, whole numbers.
fn has_no_gradient(op: &str) -> bool {
    matches!(
        op,
        "Shape"
            | "ShapeN"
            | "Size"
            | "Rank"
            | "ZerosLike"
            | "OnesLike"
            | "StopGradient"
            | "ArgMax"
            | "ArgMin"
            | "OneHot"
            | "Equal"
            | "NotEqual"
            | "Less"
            | "LessEqual"
            | "Greater"
            | "GreaterEqual"
            | "LogicalAnd"
            | "LogicalOr"
            | "LogicalNot"
            | "IsFinite"
            | "Sign"
            | "Floor"
            | "Ceil"
            | "Round"
            | "Rint"
    )
}

/// The nodes whose gradients reach some nodes, and these nodes.
fn reached(graph: &Graph, readers: &HashMap<usize, Vec<usize>>, from: Vec<usize>) -> HashSet<usize> {
    let (mut reached, mut pending) = (HashSet::new(), from);
    while let Some(idx) = pending.pop() {
        if reached.insert(idx) {
            let above = readers.get(&idx).into_iter().flatten().copied();
            pending.extend(above.filter(|reader| !has_no_gradient(&graph.body.nodes[*reader].op)));
        }
    }
    reached
}

/// The nodes of the loss that train variables and belong to no head and to no weight decay: terms, and factors of terms.
pub(super) fn unported(graph: &Graph, loss: usize, heads: &[Head]) -> Vec<usize> {
    let symbols = Symbols::new(graph);
    let mut before: Vec<usize> = region::ancestors(graph, [loss]).into_iter().collect();
    before.sort_unstable();
    let readers = heads::readers(graph, &before);
    let is_ported = |idx: &usize| {
        heads.iter().any(|head| head.node == *idx) || symbols.decayed_variable(symbols.node(*idx)).is_some()
    };
    let ported: HashSet<usize> = before.iter().copied().filter(is_ported).collect();
    let names = graph.variables.iter().filter(|variable| variable.is_trainable).map(|variable| variable.name.as_str());
    let names: HashSet<&str> = names.collect();
    let is_trained = |idx: &usize| {
        let node = symbols.node(*idx);
        is_variable(&node.op)
            && node.dtype("dtype").is_some_and(|dtype| dtype.is_float())
            && (names.is_empty() || names.contains(node.variable_name().as_str()))
    };
    let trains = reached(graph, &readers, before.iter().copied().filter(is_trained).collect());
    let above = reached(graph, &readers, ported.iter().copied().collect());
    let (mut terms, mut seen, mut pending) = (Vec::new(), HashSet::new(), vec![loss]);
    while let Some(idx) = pending.pop() {
        if !seen.insert(idx) || ported.contains(&idx) || !trains.contains(&idx) {
            continue;
        }
        let node = symbols.node(idx);
        let inputs = node.inputs.iter().map(|edge| edge.node);
        match (above.contains(&idx), passed(&node.op), node.op.as_str()) {
            (true, Passed::Other, _) => pending.extend(inputs.filter(|input| above.contains(input))),
            (true, ..) | (false, Passed::Sum, _) | (false, _, "Identity" | "Cast") => pending.extend(inputs),
            (false, ..) => terms.push(idx),
        }
    }
    terms.sort_unstable();
    terms
}
