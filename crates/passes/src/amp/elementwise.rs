//! Elementwise functions of one array, such as GELU, a softplus, the polynomials that a framework computes `erfc` by, or
//! rounding to the steps of a quantization.
//!
//! A back end computes such a function in one fusion, whatever ops it is written with, and stores only its end. So
//! rounding within it saves no memory, and could make the result worse than its operand: JAX computes `erfc` in f32
//! for every dtype. So all ops on one array, element by element, are f32, up to an op that reads another array, a sum,
//! or a product. A single number, such as a learned step, is no array: it is kept in a register, as a constant is. A
//! value that is also read outside, as the gradient reads a function's terms, is an end.

use super::assignment::Assignment;
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::decision::{Decision, Rule};
use super::need::Need;
use super::terms::adds;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{amplification, is_map};
use bf16scope_hlo::ops::precision::{Amplification, Class};

/// Finds the nodes of elementwise functions of one array: they compute in f32. `is_input` says which values are data
/// that the program was given, or are computed from those alone: an end of such a function is not rounded for all that
/// read it.
pub(super) fn elementwise(graph: &Dataflow<'_>, assignment: &Assignment, is_input: &[bool]) -> Vec<(NodeId, Decision)> {
    let sources = sources(graph);
    // A value that is not a function of another is its own source.
    let source =
        |node: NodeId| sources[graph.node(node).first_result as usize].filter(|&value| graph.producer(value) != node);
    // A node whose result only the function itself reads.
    let is_inside = |&node: &NodeId| {
        let mut users = graph.readers(node).peekable();
        users.peek().is_some() && source(node).is_some() && users.all(|user| source(user) == source(node))
    };
    let mut is_within = vec![false; graph.nodes.len()];
    for node in graph.node_ids().filter(is_inside) {
        is_within[node as usize] = true;
        graph.readers(node).for_each(|end| is_within[end as usize] = true);
    }
    let is_outside = |node: NodeId| !is_within[node as usize];
    let is_read_narrow = graph.read_by(
        |user| is_outside(user) && assignment.low[user as usize],
        |user| is_outside(user) && graph.node(user).is_clear(),
    );
    let is_open = |&node: &NodeId| {
        let record = graph.node(node);
        let is_open = match record.class() {
            Some(Class::Infer) => assignment.low[node as usize],
            Some(Class::Clear) => graph.value(record.first_result).is_f32(),
            _ => false,
        };
        is_within[node as usize] && is_open
    };
    let unstored = |node: NodeId| {
        // A gradient finds the maximum's operand by equality; if only one side were rounded, neither would be equal.
        let compares = |user: NodeId| matches!(graph.op(user), Op::Compare { .. }) && source(user) == source(node);
        let is_compared = graph.readers(node).any(compares);
        let is_given = is_input[graph.node(node).first_result as usize];
        let is_stored = is_read_narrow[node as usize] && graph.readers(node).count() > 1 && !is_compared && !is_given;
        (node, if is_stored { Decision::rounded(Rule::RoundedOnce, None) } else { Decision::f32(Rule::Fused, None) })
    };
    graph.node_ids().filter(is_open).map(unstored).collect()
}

/// Finds sums of a product and a smaller array, such as a bias of −5 before a softplus, that are lowered, and that only
/// ops in f32 read, one of them an exponential, or a sigmoid that a recurrence needs. The sum is as large as the bias,
/// and its rounding is an error of the exponential; a back end adds the bias in each fusion that reads the product.
pub(super) fn shifted_exponents(graph: &Dataflow<'_>, assignment: &Assignment) -> Vec<(NodeId, Decision)> {
    let is_wide = |node: NodeId| {
        let is_decided = match graph.node(node).class() {
            Some(Class::Infer | Class::Deny { .. }) => true,
            Some(Class::Clear) => assignment.rule[node as usize] == Rule::Fused,
            _ => false,
        };
        is_decided && !assignment.low[node as usize] && is_map(graph.op(node))
    };
    let is_exponential = |node: NodeId| {
        let squashes = assignment.rule[node as usize] == Rule::Needed(Need::Recurrence);
        // The exponential of a sigmoid is of class infer.
        let is_denied = matches!(graph.node(node).class(), Some(Class::Deny { .. }));
        is_wide(node) && (squashes || is_denied && amplification(graph.op(node)) == Amplification::Exponent)
    };
    let leads = graph.read_by(is_exponential, is_wide);
    let is_smaller = |node: NodeId| {
        let n_elements = |node: NodeId| graph.value(graph.node(node).first_result).n_elements;
        matches!(graph.op(node), Op::Broadcast { .. })
            && graph.makers(node).all(|maker| n_elements(maker) < n_elements(node))
    };
    let is_shifted = |&node: &NodeId| {
        let (record, idx) = (graph.node(node), node as usize);
        let [a, b] = record.operands[..] else { return false };
        let [a, b] = [a, b].map(|value| graph.producer(value));
        let shifts = |product: NodeId, bias: NodeId| graph.node(product).is_product() && is_smaller(bias);
        let is_read = |reader: NodeId| is_wide(reader) || matches!(graph.op(reader), Op::Compare { .. });
        leads[idx]
            && assignment.low[idx]
            && record.class() == Some(Class::Infer)
            && adds(graph.op(node))
            && (shifts(a, b) || shifts(b, a))
            && graph.readers(node).all(is_read)
    };
    graph.node_ids().filter(is_shifted).map(|node| (node, Decision::f32(Rule::Fused, None))).collect()
}

/// For each value the array that it is computed from elementwise, with constants and single numbers; `None` if it is
/// computed from those alone.
fn sources(graph: &Dataflow<'_>) -> Vec<Option<ValueId>> {
    let is_number = |value: ValueId| graph.value(value).is_f32() && graph.value(value).n_elements == 1;
    let initial = |value| Some(value).filter(|_| !is_number(value));
    let mut sources: Vec<Option<ValueId>> = (0..graph.values.len() as ValueId).map(initial).collect();
    for record in &graph.nodes {
        let mut varying = record.operands.iter().filter_map(|&value| sources[value as usize]);
        let op = &graph.instr(record).op;
        let source = match (&record.kind, varying.next()) {
            _ if matches!(op, Op::Constant(_)) => Some(None),
            // The same numbers, which each computation that reads them may convert for itself.
            (NodeKind::FromLow, Some(first)) => Some(Some(first)),
            (NodeKind::Op(_) | NodeKind::Fixed(_), None) if !record.operands.is_empty() => Some(None),
            (NodeKind::Op(_) | NodeKind::Fixed(_), Some(first)) => {
                let is_placing = matches!(op, Op::Broadcast { .. } | Op::Reshape);
                let is_of_one = is_map(op) && !is_placing && varying.all(|source| source == first);
                is_of_one.then_some(Some(first))
            }
            _ => None,
        };
        if let Some(source) = source {
            record.results().filter(|&value| !is_number(value)).for_each(|value| sources[value as usize] = source);
        }
    }
    sources
}
