//! Finds a network's heads: the logits that losses read, the losses' weights, and their labels.

use std::collections::{BTreeSet, HashMap};

use super::loss_rows::{self, RowValue};
use super::loss_search::{self, Recognised};
use super::symbols::{Symbols, constant, is_variable, shortest, yaml_number};
use super::{cores, region, updates};
use crate::choice;
use crate::graph::Graph;
use crate::host::is_input;
use crate::node::{Edge, Node};
use bf16scope_hlo::DType;

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
    /// Its node's losses are so many times the word's.
    pub unit: f64,
    /// And so much above them.
    pub offset: f64,
}

impl Head {
    /// The head of a graph that only predicts, with the loss that it was probably trained by.
    fn predicted(logits: Edge, loss: &'static str) -> Head {
        Head { node: logits.node, logits, labels: None, loss, options: Vec::new(), weight: 1.0, unit: 1.0, offset: 0.0 }
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
        let last = || (0..nodes.len()).rev().find(|idx| region::is_weighted(&nodes[*idx].op));
        let head = |node| Head::predicted(Edge { node, output: 0 }, "");
        let trained = all(graph, (0..nodes.len()).collect(), None).into_iter().next();
        return trained.or_else(|| only_output(graph)).or_else(|| last().map(head)).into_iter().collect();
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
        let head = graph.body.edge(tensor).and_then(|edge| output(&symbols, edge));
        heads.extend(head.filter(|head| heads.iter().all(|other| other.logits != head.logits)));
    }
    heads
}

/// The head of an output, unless it is of predicted classes, which no loss reads.
fn output(symbols: &Symbols<'_>, edge: Edge) -> Option<Head> {
    let edge = symbols.behind(edge);
    let node = symbols.node(edge.node);
    let (logits, loss) = match (node.op.as_str(), node.inputs.first()) {
        ("ArgMax" | "Cast" | "AsString" | "TopKV2", _) => return None,
        ("Softmax", Some(logits)) => (*logits, "sparse_softmax_cross_entropy"),
        ("Sigmoid", Some(logits)) => (*logits, "sigmoid_cross_entropy"),
        _ => (edge, "mean_squared_error"),
    };
    Some(Head::predicted(logits, loss))
}

/// The output of a graph that trains nothing, if a single tensor that nothing reads depends on its input.
fn only_output(graph: &Graph) -> Option<Head> {
    let nodes = &graph.body.nodes;
    if nodes.iter().any(updates::is_gradient) {
        return None;
    }
    let is_output = |edge: &Edge| {
        let before = region::ancestors(graph, [edge.node]);
        let is_layer = |idx: &usize| region::is_weighted(&nodes[*idx].op);
        before.iter().any(|idx| is_input(&nodes[*idx].op)) && before.iter().any(is_layer)
    };
    let ends = choice::sinks(graph).into_iter().map(|(_, edge)| edge);
    let ends: Vec<Edge> = ends.filter(|edge| !nodes[edge.node].op.contains("Assign")).take(MAX_ENDS).collect();
    let mut outputs = ends.into_iter().filter(is_output);
    let output = outputs.next().filter(|_| outputs.next().is_none())?;
    let symbols = Symbols::new(graph);
    let end = symbols.node(symbols.behind(output).node);
    match (end.op.as_str(), end.inputs.first()) {
        // Classes are chosen by the scores that a loss reads.
        ("ArgMax" | "TopKV2", Some(scores)) => {
            Some(Head { loss: "sparse_softmax_cross_entropy", ..self::output(&symbols, *scores)? })
        }
        _ => self::output(&symbols, output),
    }
}

/// A graph with more tensors that nothing reads has no output that is known.
const MAX_ENDS: usize = 64;

fn all(graph: &Graph, before: Vec<usize>, loss: Option<usize>) -> Vec<Head> {
    let nodes = &graph.body.nodes;
    let symbols = Symbols::new(graph);
    let readers = loss.map(|_| readers(graph, &before)).unwrap_or_default();
    let weigh = |node: usize| match loss {
        Some(_) => weight(&symbols, &readers, node),
        None => 1.0,
    };
    let mut heads: Vec<Head> = Vec::new();
    for idx in before.iter().copied().filter(|idx| !region::is_backward(&nodes[*idx].name)) {
        let node = &nodes[idx];
        let head_of = |logits: Edge, labels: Option<Edge>, loss: &'static str, options: Vec<(&'static str, String)>| {
            Head { node: idx, logits, labels, loss, options, weight: weigh(idx), unit: 1.0, offset: 0.0 }
        };
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
            heads.push(head_of(logits, labels, loss, Vec::new()));
        }
        if let Some((logits, labels, loss)) = plain_distance(&symbols, &readers, idx) {
            let (labels, options) = (Some(labels), Vec::new());
            heads.push(head_of(logits, labels, loss, options));
        }
        if let Some((logits, labels)) = sigmoid_cross_entropy(&symbols, node) {
            let (labels, loss) = (Some(labels), "sigmoid_cross_entropy");
            heads.push(head_of(logits, labels, loss, Vec::new()));
        }
        if let Some((logits, labels)) = plain_cross_entropy(&symbols, node) {
            let is_sparse = labels_of_classes(graph, Some(labels));
            let loss = if is_sparse { "sparse_softmax_cross_entropy" } else { "softmax_cross_entropy" };
            let labels = Some(labels);
            heads.push(head_of(logits, labels, loss, Vec::new()));
        }
        if let Some((logits, labels, delta)) = huber(&symbols, node) {
            let options = vec![("delta", yaml_number(delta))];
            heads.push(head_of(logits, Some(labels), "huber", options));
        }
    }
    let Some(loss) = loss else { return heads };
    let head = |one: Recognised| {
        let Recognised { node, logits, labels, loss, options, unit, offset, .. } = one;
        Head { node, logits, labels: Some(labels), loss, options, weight: weigh(node) * unit, unit, offset }
    };
    for one in loss_search::outer(&symbols, &readers, &before, loss) {
        heads.retain(|head| !one.inside.contains(&head.node));
        heads.push(head(one));
    }
    for head in &mut heads {
        if let Some((node, options)) = loss_search::focal_of(&symbols, &before, loss, (head.node, head.loss)) {
            let is_sparse = head.loss.starts_with("sparse");
            head.loss = if is_sparse { "sparse_softmax_focal_cross_entropy" } else { "sigmoid_focal_cross_entropy" };
            (head.node, head.options, head.weight) = (node, options, weigh(node));
        }
    }
    let known: Vec<usize> = heads.iter().map(|head| head.node).collect();
    let others = loss_search::recognised(&symbols, &readers, &before, loss, &known);
    heads.extend(others.into_iter().map(head));
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
        let logits = match node.op.as_str() {
            "LogSoftmax" => *node.inputs.first()?,
            "Log" => *input(node).filter(|softmax| softmax.op == "Softmax")?.inputs.first()?,
            _ => return None,
        };
        Some((symbols.behind(logits), labels))
    })?;
    // The last axis by its number is known of a product of two matrices.
    let last = symbols.node(logits.node);
    let is_matrix = last.op == "MatMul" || input(last).is_some_and(|node| node.op == "MatMul");
    let is_last = axes == [-1.0] || (axes == [1.0] && is_matrix);
    // An entropy of the network's own probabilities is no loss of labels.
    let is_own = || region::ancestors(symbols.graph, [labels.node]).contains(&logits.node);
    (is_last && !is_own()).then_some((logits, labels))
}

/// The predictions, labels and loss of a difference of plain ops whose squares or sizes are averaged or summed. One operand is
/// computed from trained variables, and the other from an input alone.
fn plain_distance(
    symbols: &Symbols<'_>,
    readers: &HashMap<usize, Vec<usize>>,
    at: usize,
) -> Option<(Edge, Edge, &'static str)> {
    let node = symbols.node(at);
    let only_reader = |at: usize| readers.get(&at).and_then(|all| if let [one] = all[..] { Some(one) } else { None });
    let is_known =
        ["mean_squared_error", "absolute_difference", "huber_loss"].iter().any(|name| node.name.contains(name));
    let (end, loss) = match node.op.as_str() {
        _ if is_known => return None,
        "SquaredDifference" => (at, "mean_squared_error"),
        "Sub" => {
            let end = only_reader(at)?;
            let reader = symbols.node(end);
            match reader.op.as_str() {
                "L2Loss" | "Square" => (end, "mean_squared_error"),
                "Pow" if symbols.scalar(reader, 1) == Some(2.0) => (end, "mean_squared_error"),
                "Mul" if reader.inputs.iter().all(|edge| edge.node == at) => (end, "mean_squared_error"),
                "Abs" => (end, "mean_absolute_error"),
                _ => return None,
            }
        }
        _ => return None,
    };
    if symbols.node(end).op != "L2Loss" && !matches!(symbols.node(only_reader(end)?).op.as_str(), "Mean" | "Sum") {
        return None;
    }
    let [a, b] = node.inputs[..] else { return None };
    let is_of = |edge: Edge| {
        let before = region::ancestors(symbols.graph, [edge.node]);
        let any = |is: &dyn Fn(&str) -> bool| before.iter().any(|idx| is(&symbols.node(*idx).op));
        (any(&is_variable), any(&is_input))
    };
    let (predictions, labels) = match (is_of(a), is_of(b)) {
        ((true, _), (false, true)) => (a, b),
        ((false, true), (true, _)) => (b, a),
        _ => return None,
    };
    Some((symbols.behind(predictions), labels, loss))
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
    let n_cores = cores::n_cores(symbols.graph).unwrap_or(1) as f64;
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
            // Neither of two numbers that a condition chooses from weighs all examples.
            let is_chosen =
                || readers.get(&reader).into_iter().flatten().any(|at| symbols.node(*at).op.starts_with("Select"));
            let factor = factor.filter(|_| !is_chosen());
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

/// How labels are smoothed.
#[derive(Clone, Copy)]
pub(super) struct Smoothing {
    /// The share that all classes have alike, as it was written.
    pub share: f64,
    /// The node that computes the labels.
    pub node: usize,
    /// Where the graph computes in 16 bits: the dtype, and the factor of the labels in it.
    pub rounded: Option<(DType, f64)>,
}

/// The label smoothing of the first cross entropy that has it; other losses have none.
pub(super) fn smoothing_of(graph: &Graph, heads: &[Head]) -> Option<Smoothing> {
    let entropies = heads.iter().filter(|head| head.loss.ends_with("cross_entropy"));
    entropies.filter_map(|head| head.labels).find_map(|labels| smoothing(graph, labels))
}

/// The label smoothing `s`: tf.losses computes `labels * (1 - s) + s / n`, which may also be the two values of a one-hot.
fn smoothing(graph: &Graph, labels: Edge) -> Option<Smoothing> {
    let symbols = Symbols::new(graph);
    let mut smoothings = region::ancestors(graph, [labels.node]).into_iter().filter_map(|idx| {
        let node = &graph.body.nodes[idx];
        let factor = match node.op.as_str() {
            "Mul" => {
                let number = [1, 0].into_iter().find(|number| symbols.scalar(node, *number).is_some())?;
                Some((symbols.scalar(node, number)?, symbols.rounded(node, number)))
            }
            "OneHot" => smoothed_one_hot(&symbols, node),
            _ => None,
        };
        let (factor, rounded) = factor.filter(|(factor, _)| (0.5..1.0).contains(factor))?;
        Some(Smoothing { share: shortest((1.0 - factor) as f32), node: idx, rounded })
    });
    smoothings.next().filter(|_| smoothings.next().is_none())
}

/// The distance of a one-hot's two values, if the values of a row sum to 1; and where it is of 16 bits, what it is in them.
fn smoothed_one_hot(symbols: &Symbols<'_>, node: &Node) -> Option<(f64, Option<(DType, f64)>)> {
    let [n, on, off] = [1, 2, 3].map(|number| symbols.scalar(node, number));
    let (n, on, off) = (n?, on?, off?);
    // Each value is known to half an ulp of a bf16 1 at best.
    let bound = if symbols.rounded(node, 2).is_some() { 2f64.powi(-8) } else { 1e-5 };
    let sums_to_1 = (on + (n - 1.0) * off - 1.0).abs() <= bound;
    let rounded =
        symbols.rounded(node, 2).map(|(dtype, on)| (dtype, on - symbols.rounded(node, 3).map_or(off, |at| at.1)));
    sums_to_1.then(|| (shortest((on - off) as f32), rounded))
}

/// The name of the labels: that of the placeholder they are computed from; the number, of labels that are all the same.
pub(super) fn labels_name(graph: &Graph, labels: Option<Edge>) -> String {
    let number = |labels| loss_rows::value(&Symbols::new(graph), labels, None, &mut loss_rows::Known::new(), 0);
    if let Some(RowValue::Number(number)) = labels.and_then(number) {
        return number.to_string();
    }
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
