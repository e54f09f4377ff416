//! Finds the terms of a graph's loss that no word of an experiment stands for, and the weights of its losses.

use std::collections::{HashMap, HashSet};

use super::heads::{self, Head};
use super::symbols::{Symbols, constant, is_variable};
use super::{region, updates};
use crate::graph::Graph;
use crate::host::is_input;
use bf16scope_hlo::DType;

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
    let is_whole = matches!(
        op,
        "StopGradient"
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
    );
    is_whole || region::is_of_shape(op)
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

/// Whether a value is computed from numbers of the program's input.
fn is_from_input(graph: &Graph, from: usize) -> bool {
    let (mut seen, mut pending) = (HashSet::new(), vec![from]);
    while let Some(idx) = pending.pop() {
        let node = &graph.body.nodes[idx];
        if is_input(&node.op) {
            return true;
        }
        if seen.insert(idx) && !region::is_of_shape(&node.op) {
            pending.extend(node.inputs.iter().map(|edge| edge.node));
        }
    }
    false
}

/// The products and choices behind heads by which numbers of the input weigh losses: those of examples, masks.
pub(super) fn weighted_by_input(graph: &Graph, loss: usize, heads: &[Head]) -> Vec<usize> {
    let mut before: Vec<usize> = region::ancestors(graph, [loss]).into_iter().collect();
    before.sort_unstable();
    let readers = heads::readers(graph, &before);
    let above = reached(graph, &readers, heads.iter().map(|head| head.node).collect());
    let is_weighted = |idx: &usize| {
        let node = &graph.body.nodes[*idx];
        let weighs = matches!(passed(&node.op), Passed::Product)
            || matches!(node.op.as_str(), "Select" | "SelectV2" | "Gather" | "GatherV2" | "GatherNd");
        let is_weight = |input: usize| !above.contains(&input) && is_from_input(graph, input);
        weighs
            && above.contains(idx)
            && heads.iter().all(|head| head.node != *idx)
            && node.inputs.iter().any(|edge| is_weight(edge.node))
    };
    before.iter().copied().filter(is_weighted).collect()
}

/// Weights that `tf.losses` multiplies losses by, before it divides their sum by the number of those that are not 0.
pub(super) struct Weights {
    /// The loss's number among heads.
    pub head: usize,
    /// The name of the nodes of the loss, up to a slash.
    pub scope: String,
    /// The product of losses and weights.
    pub product: usize,
    /// The node that the weights come from, behind casts and reshapes.
    pub from: usize,
    /// The input that they are, if no op computes them.
    pub feature: Option<String>,
    /// Their dims without the batch, and without ones at the end.
    pub dims: Vec<i64>,
    /// Whether they are a vector, with no dims but the batch's.
    pub is_vector: bool,
    /// Whether they are 0 and 1 alone.
    pub is_mask: bool,
}

/// The weights of `tf.losses` among nodes that weigh losses. Its names are certain: `LOSS/Mul`, `LOSS/num_present`, `LOSS/value`.
pub(super) fn weights_of_losses(graph: &Graph, heads: &[Head], weighing: &[usize]) -> Vec<Weights> {
    let symbols = Symbols::new(graph);
    let weights = |product: &usize| {
        let node = symbols.node(*product);
        let scope = format!("{}/", node.name.rsplit_once('/')?.0);
        let part = |name: &str| graph.body.find(&format!("{scope}{name}"));
        let is_of_losses = node.op == "Mul" && part("num_present").is_some() && part("value").is_some();
        let mut inside = heads.iter().enumerate().filter(|(_, head)| symbols.node(head.node).name.starts_with(&scope));
        let (head, of_head) = inside.next().filter(|_| is_of_losses)?;
        let is_only = inside.next().is_none();
        let mut edges =
            node.inputs.iter().filter(|edge| !region::ancestors(graph, [edge.node]).contains(&of_head.node));
        let from = symbols.behind(*edges.next().filter(|_| is_only)?).node;
        let source = symbols.node(from);
        let is_input = matches!(source.op.as_str(), "Placeholder" | "PlaceholderV2");
        // A shape that is known is a constant beside the check of the weights' shape.
        let shape = part("assert_broadcastable/weights/shape").and_then(|at| constant(symbols.node(at)));
        let shape = shape.map(|(_, sizes)| sizes.iter().map(|size| *size as i64).collect::<Vec<i64>>());
        let shape = shape.or_else(|| source.dims("shape").filter(|_| is_input))?;
        let (mut dims, is_vector) = (shape.get(1..)?.to_vec(), shape.len() == 1);
        while dims.last() == Some(&1) {
            dims.pop();
        }
        let is_mask = source.op.starts_with("Logical")
            || matches!(source.op.as_str(), "Equal" | "NotEqual" | "Less" | "LessEqual" | "Greater" | "GreaterEqual")
            || is_input && source.dtype("dtype") == Some(DType::Pred);
        let feature = is_input.then(|| source.name.replace(':', "_"));
        let is_known = dims.iter().all(|dim| *dim > 0);
        is_known.then_some(Weights { head, scope, product: *product, from, feature, dims, is_vector, is_mask })
    };
    weighing.iter().filter_map(weights).collect()
}

/// The first node that gradients are taken of and that is no part of the loss: another loss trains variables too.
pub(super) fn beside_loss(graph: &Graph, loss: usize, from_gradients: &[bool]) -> Option<usize> {
    let nodes = &graph.body.nodes;
    let before = region::ancestors(graph, [loss]);
    let names = graph.variables.iter().filter(|variable| variable.is_trainable).map(|variable| variable.name.as_str());
    let names: HashSet<&str> = names.collect();
    let is_trained = |idx: &usize| is_variable(&nodes[*idx].op) && names.contains(nodes[*idx].variable_name().as_str());
    let is_computed = |idx: usize| {
        let op = nodes[idx].op.as_str();
        let passes = matches!(op, "Identity" | "ReadVariableOp" | "Cast" | "Reshape" | "Transpose");
        let is_flow = ["Enter", "Exit", "Switch", "Merge", "Stack", "TensorList", "TensorArray", "While", "If", "Call"];
        let is_plain = !passes && !is_variable(op) && !is_flow.iter().any(|part| op.contains(part));
        is_plain && nodes[idx].dtype("T").is_some_and(|dtype| dtype.is_float()) && !has_no_gradient(op)
    };
    let gradients = nodes.iter().filter(|node| updates::is_gradient(node));
    let read = gradients.flat_map(|node| node.inputs.iter().map(|edge| edge.node));
    let beside = read.filter(|idx| !from_gradients[*idx] && !before.contains(idx) && is_computed(*idx));
    let all: Vec<usize> = (0..nodes.len()).collect();
    let trained = reached(graph, &heads::readers(graph, &all), all.into_iter().filter(is_trained).collect());
    beside.filter(|idx| trained.contains(idx)).min()
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
