//! Finds for how many cores a graph is, whether its gradients are summed over them, and what gradients go through before their
//! updates.

use super::symbols::{Symbols, is_variable};
use super::{region, updates};
use crate::graph::Graph;
use crate::node::{Edge, Node};
use bf16scope_hlo::DType;

/// The number of replicas that a TPU program records.
pub(super) fn n_cores(graph: &Graph) -> Option<i64> {
    let recorded = |node: &Node| match node.op.as_str() {
        "TPUReplicateMetadata" | "TPUReplicate" | "_TPUReplicate" => node.int("num_replicas"),
        "TPUReplicatedInput" => node.int("N"),
        _ => None,
    };
    graph.body.nodes.iter().filter_map(recorded).max()
}

/// Whether an op sums over cores, or makes their mean.
fn is_sum_over_cores(op: &str) -> bool {
    matches!(op, "CrossReplicaSum" | "XlaAllReduce" | "NcclAllReduce") || op.starts_with("CollectiveReduce")
}

/// The first sum of gradients over cores, unless the loss is divided by the number of cores.
pub(super) fn summed_over_cores(symbols: &Symbols<'_>, loss: Option<usize>) -> Option<usize> {
    let nodes = &symbols.graph.body.nodes;
    let n_cores = n_cores(symbols.graph).filter(|n| *n > 1)? as f64;
    let sums_gradients = |node: &Node| {
        node.op == "CrossReplicaSum"
            && region::ancestors(symbols.graph, node.inputs.first().map(|edge| edge.node))
                .iter()
                .any(|idx| region::is_backward(&nodes[*idx].name))
    };
    let sum = nodes.iter().position(sums_gradients)?;
    // The loss may be scaled itself, or one of the nodes that it is computed from.
    let is_scaled = region::ancestors(symbols.graph, loss).iter().any(|idx| {
        let node = &nodes[*idx];
        let numbers = || (0..node.inputs.len()).filter_map(|number| symbols.scalar(node, number));
        match node.op.as_str() {
            "Mul" => numbers().any(|value| (value * n_cores - 1.0).abs() < 1e-6),
            "RealDiv" | "Div" => symbols.scalar(node, 1) == Some(n_cores),
            _ => false,
        }
    });
    (!is_scaled).then_some(sum)
}

/// The first update of a program for several cores whose gradient is not summed over them, where variables are not either.
pub(super) fn not_summed_over_cores(symbols: &Symbols<'_>) -> Option<usize> {
    let graph = symbols.graph;
    n_cores(graph).filter(|n| *n > 1)?;
    let from_gradients = updates::from_gradients(graph);
    // The sums of the backward pass are of layers, such as a batch norm's over cores, and not of variables' gradients.
    let is_of_update = |node: &Node| {
        let is_of_update = |edge: &Edge| from_gradients[edge.node] || is_of_variable(symbols, *edge);
        is_sum_over_cores(&node.op) && !updates::is_gradient(node) && node.inputs.iter().any(is_of_update)
    };
    // The arguments of a function are not followed.
    let mut inside = graph.functions.values().flat_map(|function| &function.body.nodes);
    if inside.any(|node| is_sum_over_cores(&node.op)) {
        return None;
    }
    let nodes = &graph.body.nodes;
    let sums: Vec<usize> = (0..nodes.len()).filter(|idx| is_of_update(&nodes[*idx])).collect();
    if sums.iter().any(|idx| !nodes[*idx].inputs.iter().any(|edge| from_gradients[edge.node])) {
        return None;
    }
    // One of several optimizers may not be wrapped.
    let is_alone = |(at, value): &(usize, Edge)| {
        let is_apply = || updates::operands(&nodes[*at]).is_some();
        let is_summed = || region::ancestors(graph, [value.node]).iter().any(|idx| sums.contains(idx));
        sums.is_empty() || is_apply() && !is_summed()
    };
    updates::of_gradients(graph, &from_gradients).into_iter().find(is_alone).map(|(at, _)| at)
}

/// Whether a tensor is a variable, times a number or not.
fn is_of_variable(symbols: &Symbols<'_>, mut edge: Edge) -> bool {
    for _ in 0..16 {
        edge = symbols.behind(edge);
        let node = symbols.node(edge.node);
        let number = |number: usize| symbols.scalar(node, number).is_some();
        match (node.op.as_str(), &node.inputs[..]) {
            ("Mul" | "RealDiv" | "Div", [x, _]) if number(1) => edge = *x,
            ("Mul", [_, y]) if number(0) => edge = *y,
            (op, _) => return is_variable(op),
        }
    }
    false
}

/// A norm in bf16 by which updates are scaled: a sum of squares, or its root.
pub(super) fn bf16_norm_of_gradients(symbols: &Symbols<'_>) -> Option<usize> {
    let graph = symbols.graph;
    let nodes = &graph.body.nodes;
    let is_square = |edge: &Edge| {
        let node = symbols.node(symbols.behind(*edge).node);
        matches!(node.op.as_str(), "Square" | "L2Loss") || node.op == "Mul" && node.inputs.first() == node.inputs.get(1)
    };
    let is_norm = |node: &Node| {
        let is_one = match node.op.as_str() {
            "L2Loss" | "EuclideanNorm" | "Sqrt" | "Rsqrt" => true,
            "Sum" | "Mean" => node.inputs.first().is_some_and(is_square),
            _ => false,
        };
        is_one && node.dtype("T") == Some(DType::BF16) && !updates::is_gradient(node)
    };
    if !nodes.iter().any(is_norm) {
        return None;
    }
    let from_gradients = updates::from_gradients(graph);
    let values = updates::of_gradients(graph, &from_gradients);
    let before = region::ancestors(graph, values.iter().map(|(_, value)| value.node));
    let mut norms: Vec<usize> =
        before.into_iter().filter(|idx| from_gradients[*idx] && is_norm(&nodes[*idx])).collect();
    norms.sort_unstable();
    norms.first().copied()
}
