//! Regions of a graph: the loss, the forward part, and the nodes between the last layer and the loss.

use std::collections::HashSet;

use crate::graph::Graph;
use crate::host::is_host;
use bf16scope_hlo::DType;

/// Whether `tf.gradients` or an optimizer's update made a node, by its name.
pub(super) fn is_backward(name: &str) -> bool {
    // A fast check first: most names contain no `grad`, and this is called for every name.
    name.contains("grad")
        && name.split('/').any(|part| part == "gradients" || part.starts_with("gradients_") || part.ends_with("_grad"))
}

/// Whether a `GradientTape` made a node, by its name.
pub(super) fn is_taped(name: &str) -> bool {
    name.contains("gradient_tape") && name.split('/').any(|part| part.starts_with("gradient_tape"))
}

/// The node that is differentiated: from the names that `tf.gradients` makes; else from a summary or a collection.
pub(super) fn loss(graph: &Graph) -> Option<usize> {
    let nodes = &graph.body.nodes;
    // `gradients/NAME_grad/…` reads `gradients/grad_ys_0` or `gradients/Fill`.
    let is_seed = |idx: usize| {
        let name = nodes[idx].name.as_str();
        let last = name.rsplit('/').next().unwrap_or(name);
        is_backward(name) && (last.starts_with("grad_ys_") || last == "Fill" || last.starts_with("grad_ys"))
    };
    let from_gradients = nodes.iter().find_map(|node| {
        let mut reads = node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied());
        if node.name.contains("gradients/") && reads.any(is_seed) { differentiated(graph, &node.name) } else { None }
    });
    let listed = || graph.collection("losses").last().and_then(|name| graph.body.edge(name)).map(|edge| edge.node);
    let summed = || {
        let is_loss = |name: &str| name.rsplit('/').next().is_some_and(|last| last.starts_with("loss"));
        nodes
            .iter()
            .filter(|node| node.op == "ScalarSummary" && is_loss(&node.name))
            .find_map(|node| Some(node.inputs.get(1)?.node))
    };
    from_gradients.or_else(summed).or_else(listed)
}

/// The forward node whose gradient a node of `tf.gradients` belongs to, by that node's name.
fn differentiated(graph: &Graph, name: &str) -> Option<usize> {
    let (prefix, rest) = name.split_once("gradients/")?;
    // The forward node's name may contain slashes; the names of the gradient's nodes follow `_grad/`.
    let (forward, _) = rest.split_once("_grad/")?;
    graph.body.find(&format!("{prefix}{forward}")).or_else(|| graph.body.find(forward))
}

/// The nodes that a loss is computed from, and those whose gradients are taken for further losses.
pub(super) fn in_loss(graph: &Graph, loss: Option<usize>) -> HashSet<usize> {
    let mut nodes = ancestors(graph, loss);
    nodes.extend(graph.body.nodes.iter().filter_map(|node| differentiated(graph, &node.name)));
    nodes
}

/// All nodes that some nodes are computed from, and these nodes.
pub(super) fn ancestors(graph: &Graph, from: impl IntoIterator<Item = usize>) -> HashSet<usize> {
    let mut seen = HashSet::new();
    let mut pending: Vec<usize> = from.into_iter().collect();
    while let Some(node) = pending.pop() {
        if seen.insert(node) && !is_host(&graph.body.nodes[node].op) {
            pending.extend(graph.body.nodes[node].inputs.iter().map(|edge| edge.node));
        }
    }
    seen
}

/// Whether an op reads only the shape of its input.
pub(super) fn is_of_shape(op: &str) -> bool {
    matches!(op, "Shape" | "ShapeN" | "Size" | "Rank" | "ZerosLike" | "OnesLike")
}

/// Whether an op is a layer's product with a variable, its bias or its normalisation.
pub(super) fn is_weighted(op: &str) -> bool {
    matches!(
        op,
        "Conv2D"
            | "Conv3D"
            | "MatMul"
            | "BatchMatMul"
            | "BatchMatMulV2"
            | "BatchMatMulV3"
            | "DepthwiseConv2dNative"
            | "FusedBatchNorm"
            | "FusedBatchNormV2"
            | "FusedBatchNormV3"
            | "BiasAdd"
            | "Einsum"
            | "Conv2DBackpropInput"
            | "Conv3DBackpropInputV2"
    )
}

/// Whether a layer of the graph computes in bf16.
pub(super) fn is_bf16_network(graph: &Graph) -> bool {
    graph.body.nodes.iter().any(|node| is_weighted(&node.op) && node.dtype("T") == Some(DType::BF16))
}

/// The nodes between the last layers and the loss: ancestors of the loss that no layer depends on.
pub(super) fn behind_layers(graph: &Graph, loss: usize) -> HashSet<usize> {
    let all = ancestors(graph, [loss]);
    let weighted = all.iter().copied().filter(|node| is_weighted(&graph.body.nodes[*node].op));
    let before = ancestors(graph, weighted);
    all.difference(&before).copied().collect()
}
