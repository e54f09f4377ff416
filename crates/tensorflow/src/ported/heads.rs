//! Finds a network's heads: the logits that losses read, the losses' weights, and their labels.

use std::collections::{BTreeSet, HashMap};

use super::region;
use super::symbols::{Symbols, constant, shortest, yaml_number};
use crate::graph::Graph;
use crate::node::{Edge, Node};

/// A loss and its inputs.
pub(super) struct Head {
    /// The node of the losses of examples; without a loss that of the logits.
    pub node: usize,
    pub logits: Edge,
    pub labels: Option<Edge>,
    /// The loss's name in YAML; empty if the graph only predicts.
    pub loss: &'static str,
    /// The loss's options in YAML.
    pub options: Vec<(&'static str, String)>,
    /// Its weight in the sum of losses.
    pub weight: f64,
}

impl Head {
    /// The head of a graph that only predicts, with the loss that it was probably trained by.
    fn predicted(logits: Edge, loss: &'static str) -> Head {
        Head { node: logits.node, logits, labels: None, loss, options: Vec::new(), weight: 1.0 }
    }
}

/// The losses of a graph, by decreasing weight. A graph that only predicts has its signature's outputs as heads, or its last
/// layer.
pub(super) fn heads(graph: &Graph, loss: Option<usize>) -> Vec<Head> {
    let nodes = &graph.body.nodes;
    let Some(loss) = loss else {
        let predicted = predicted(graph);
        if !predicted.is_empty() {
            return predicted;
        }
        let last = (0..nodes.len()).rev().find(|idx| region::is_weighted(&nodes[*idx].op));
        let head = |node| Head::predicted(Edge { node, output: 0 }, "");
        return all(graph, (0..nodes.len()).collect(), None)
            .into_iter()
            .next()
            .or(last.map(head))
            .into_iter()
            .collect();
    };
    let mut before: Vec<usize> = region::ancestors(graph, [loss]).into_iter().collect();
    before.sort_unstable();
    let mut heads = all(graph, before, Some(loss));
    heads.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    heads
}

/// The outputs of a signature, before a softmax or sigmoid, with the losses that they were probably trained by.
fn predicted(graph: &Graph) -> Vec<Head> {
    let mut heads: Vec<Head> = Vec::new();
    let symbols = Symbols::new(graph);
    let [signature] = &graph.signatures.values().collect::<Vec<_>>()[..] else { return heads };
    for tensor in signature.outputs.values() {
        let Some(edge) = graph.body.edge(tensor) else { continue };
        let edge = symbols.behind(edge);
        let node = symbols.node(edge.node);
        // A loss does not read predicted classes.
        if matches!(node.op.as_str(), "ArgMax" | "Cast" | "AsString" | "TopKV2") {
            continue;
        }
        let (logits, loss) = match (node.op.as_str(), node.inputs.first()) {
            ("Softmax", Some(logits)) => (*logits, "sparse_softmax_cross_entropy"),
            ("Sigmoid", Some(logits)) => (*logits, "sigmoid_cross_entropy"),
            _ => (edge, "mean_squared_error"),
        };
        if heads.iter().all(|head| head.logits != logits) {
            heads.push(Head::predicted(logits, loss));
        }
    }
    heads
}

fn all(graph: &Graph, before: Vec<usize>, loss: Option<usize>) -> Vec<Head> {
    let nodes = &graph.body.nodes;
    let symbols = Symbols::new(graph);
    let readers = loss.map(|_| readers(graph, &before)).unwrap_or_default();
    let weigh = |node: usize| match loss {
        Some(_) => weight(&symbols, &readers, node),
        None => 1.0,
    };
    let mut heads: Vec<Head> = Vec::new();
    for idx in before.into_iter().filter(|idx| !region::is_backward(&nodes[*idx].name)) {
        let node = &nodes[idx];
        let head = match node.op.as_str() {
            "SparseSoftmaxCrossEntropyWithLogits" => Some((node.inputs.first(), "sparse_softmax_cross_entropy")),
            // One-hot labels are class indices in the sparse loss.
            "SoftmaxCrossEntropyWithLogits" if labels_of_classes(graph, node.inputs.get(1).copied()) => {
                Some((node.inputs.first(), "sparse_softmax_cross_entropy"))
            }
            "SoftmaxCrossEntropyWithLogits" => Some((node.inputs.first(), "softmax_cross_entropy")),
            "SquaredDifference" if node.name.contains("mean_squared_error") => {
                Some((node.inputs.first(), "mean_squared_error"))
            }
            "Sub" if node.name.contains("absolute_difference") => Some((node.inputs.first(), "mean_absolute_error")),
            _ => None,
        };
        if let Some((Some(logits), loss)) = head {
            let (logits, labels) = (symbols.behind(*logits), node.inputs.get(1).copied());
            heads.push(Head { node: idx, logits, labels, loss, options: Vec::new(), weight: weigh(idx) });
        }
        if let Some((logits, labels)) = sigmoid_cross_entropy(&symbols, node) {
            let (labels, loss) = (Some(labels), "sigmoid_cross_entropy");
            heads.push(Head { node: idx, logits, labels, loss, options: Vec::new(), weight: weigh(idx) });
        }
        if let Some((logits, labels)) = plain_cross_entropy(&symbols, node) {
            let is_sparse = labels_of_classes(graph, Some(labels));
            let loss = if is_sparse { "sparse_softmax_cross_entropy" } else { "softmax_cross_entropy" };
            let labels = Some(labels);
            heads.push(Head { node: idx, logits, labels, loss, options: Vec::new(), weight: weigh(idx) });
        }
        if let Some((logits, labels, delta)) = huber(&symbols, node) {
            let options = vec![("delta", yaml_number(delta))];
            heads.push(Head { node: idx, logits, labels: Some(labels), loss: "huber", options, weight: weigh(idx) });
        }
    }
    heads
}

/// The logits and labels of the last node of `tf.nn.sigmoid_cross_entropy_with_logits`, which is no single op:
/// `max(x, 0) - x * z + log1p(exp(-abs(x)))`, with a `Select` for `max`. A caller may name its nodes, so they are recognised by
/// their ops.
fn sigmoid_cross_entropy(symbols: &Symbols<'_>, node: &Node) -> Option<(Edge, Edge)> {
    let has_op = |node: &Node, ops: &[&str]| ops.contains(&node.op.as_str());
    let [difference, logarithm] = inputs(symbols, node)?;
    if !has_op(node, &["Add", "AddV2"]) || !has_op(difference, &["Sub"]) || !has_op(logarithm, &["Log1p"]) {
        return None;
    }
    let [positive, product] = inputs(symbols, difference)?;
    if !has_op(positive, &["Select", "SelectV2"]) || !has_op(product, &["Mul"]) {
        return None;
    }
    let [logits, labels] = product.inputs[..] else { return None };
    let condition = symbols.node(positive.inputs.first()?.node);
    let is_of_logits = positive.inputs.get(1) == Some(&logits) && condition.inputs.first() == Some(&logits);
    (has_op(condition, &["GreaterEqual"]) && is_of_logits).then_some((logits, labels))
}

/// The logits and labels of a cross-entropy of plain ops, as BERT has it: `-sum(labels * log_softmax(logits))` over classes, or
/// the mean of such.
fn plain_cross_entropy(symbols: &Symbols<'_>, node: &Node) -> Option<(Edge, Edge)> {
    let input = |node: &Node| Some(symbols.node(symbols.behind(*node.inputs.first()?).node));
    if node.op != "Neg" {
        return None;
    }
    let sum = match input(node)? {
        mean if mean.op == "Mean" => input(mean)?,
        sum => sum,
    };
    let product = input(sum)?;
    let [a, b] = product.inputs[..] else { return None };
    if sum.op != "Sum" || product.op != "Mul" {
        return None;
    }
    let (_, axes) = constant(symbols.node(symbols.behind(*sum.inputs.get(1)?).node))?;
    let (logits, labels) = [(a, b), (b, a)].into_iter().find_map(|(logarithms, labels)| {
        let node = symbols.node(symbols.behind(logarithms).node);
        let logits = node.inputs.first().filter(|_| node.op == "LogSoftmax")?;
        Some((symbols.behind(*logits), labels))
    })?;
    // The last axis by its number is known of a product of two matrices.
    let last = symbols.node(logits.node);
    let is_matrix = last.op == "MatMul" || input(last).is_some_and(|node| node.op == "MatMul");
    let is_last = axes == [-1.0] || (axes == [1.0] && is_matrix);
    is_last.then_some((logits, labels))
}

/// The nodes that a node of two inputs reads.
fn inputs<'g>(symbols: &Symbols<'g>, node: &Node) -> Option<[&'g Node; 2]> {
    let [a, b] = node.inputs[..] else { return None };
    Some([symbols.node(a.node), symbols.node(b.node)])
}

/// The predictions, labels and `delta` of the last node of `tf.losses.huber_loss`, by the names of its nodes.
fn huber(symbols: &Symbols<'_>, node: &Node) -> Option<(Edge, Edge, f64)> {
    let body = &symbols.graph.body;
    let scope = node.name.strip_suffix("/Add").filter(|_| matches!(node.op.as_str(), "Add" | "AddV2"))?;
    if !scope.rsplit('/').next()?.starts_with("huber_loss") {
        return None;
    }
    let part = |name: &str| body.find(&format!("{scope}/{name}")).map(|idx| &body.nodes[idx]);
    let [predictions, labels] = part("Sub")?.inputs[..] else { return None };
    let delta = symbols.scalar(part("Minimum")?, 1)?;
    Some((symbols.behind(predictions), labels, delta))
}

/// The readers of each node among `nodes`.
pub(super) fn readers(graph: &Graph, nodes: &[usize]) -> HashMap<usize, Vec<usize>> {
    let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
    for &idx in nodes {
        let node = &graph.body.nodes[idx];
        // An op that reads only the shape passes no values on.
        if !region::is_of_shape(&node.op) {
            node.inputs.iter().for_each(|edge| readers.entry(edge.node).or_default().push(idx));
        }
    }
    readers
}

/// The product of the constants that a loss is multiplied by, without the factor 1 / cores.
fn weight(symbols: &Symbols<'_>, readers: &HashMap<usize, Vec<usize>>, from: usize) -> f64 {
    let n_cores = symbols.graph.body.nodes.iter().filter(|node| node.op == "TPUReplicateMetadata");
    let n_cores = n_cores.filter_map(|node| node.int("num_replicas")).next().unwrap_or(1) as f64;
    let (mut weight, mut seen, mut pending) = (1.0, BTreeSet::new(), vec![from]);
    while let Some(idx) = pending.pop() {
        for reader in readers.get(&idx).into_iter().flatten().copied().filter(|reader| seen.insert(*reader)) {
            pending.push(reader);
            let node = symbols.node(reader);
            let factor = match node.op.as_str() {
                "Mul" => symbols.scalar(node, 0).or_else(|| symbols.scalar(node, 1)),
                "RealDiv" | "Div" => symbols.scalar(node, 1).filter(|by| *by != 0.0).map(|by| 1.0 / by),
                _ => None,
            };
            weight *= factor.filter(|factor| n_cores == 1.0 || (factor * n_cores - 1.0).abs() > 1e-6).unwrap_or(1.0);
        }
    }
    shortest(weight as f32)
}

/// Whether labels come from a one-hot encoding.
fn labels_of_classes(graph: &Graph, labels: Option<Edge>) -> bool {
    let Some(labels) = labels else { return false };
    region::ancestors(graph, [labels.node]).iter().any(|idx| graph.body.nodes[*idx].op == "OneHot")
}

/// The label smoothing of the first cross entropy that has it; other losses have none.
pub(super) fn smoothing_of(graph: &Graph, heads: &[Head]) -> f64 {
    let entropies = heads.iter().filter(|head| head.loss.ends_with("cross_entropy"));
    entropies.map(|head| smoothing(graph, head.labels)).find(|smoothing| *smoothing > 0.0).unwrap_or(0.0)
}

/// The label smoothing `s`: tf.losses computes `labels * (1 - s) + s / n`.
fn smoothing(graph: &Graph, labels: Option<Edge>) -> f64 {
    let symbols = Symbols::new(graph);
    let Some(labels) = labels else { return 0.0 };
    let factors = region::ancestors(graph, [labels.node]).into_iter().filter_map(|idx| {
        let node = &graph.body.nodes[idx];
        (node.op == "Mul").then(|| symbols.scalar(node, 1).or_else(|| symbols.scalar(node, 0))).flatten()
    });
    let factors: Vec<f64> = factors.filter(|factor| (0.5..1.0).contains(factor)).collect();
    match factors[..] {
        [factor] => shortest((1.0 - factor) as f32),
        _ => 0.0,
    }
}

/// The name of the labels: that of the placeholder they are computed from.
pub(super) fn labels_name(graph: &Graph, labels: Option<Edge>) -> String {
    let near = labels.map(|labels| region::ancestors(graph, [labels.node])).unwrap_or_default();
    let mut inputs: Vec<usize> = near
        .into_iter()
        .filter(|idx| matches!(graph.body.nodes[*idx].op.as_str(), "Placeholder" | "PlaceholderV2"))
        .collect();
    inputs.sort_unstable();
    match inputs[..] {
        [one] => graph.body.nodes[one].name.replace(':', "_"),
        _ => "labels".to_string(),
    }
}
