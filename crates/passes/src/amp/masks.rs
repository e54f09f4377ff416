//! Masks that a program computes by a comparison for equality, as of scores with their maximum, and computes on with.
//!
//! `scores == max(scores)` selects the maximum, and rounded scores may tie where exact ones do not: then it selects
//! two. Gradients compare for equality as well, to find which operand was the maximum, but lose nothing: both sides
//! are rounded alike, and tied operands share the cotangent. The values that the mask meets tell the two apart. A
//! gradient's mask meets a cotangent, which is computed from the maximum, as all of a backward pass is, or from a loss
//! before it. A program's mask meets other values, such as those that the scores were computed from, and is on the way
//! to the loss, if there is one. Loops and branches of a forward pass are on that way, too, and only store a
//! gradient's mask for the backward pass.
//!
//! A choice, by a mask or by an index, may also select among results of the program, with no product behind it.

use super::assignment::RegionKind;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::loss;
use super::surroundings::Known;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::decisions::movement;
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::{DType, Op};

/// The number of choices that are followed at once: one per bit.
const AT_ONCE: usize = 64;

/// For each node whether it is a choice whose outcome alone meets other values: a comparison for equality on the way
/// to a product, or anything that `is_choice` on the way to an array that the program returns.
pub(super) fn masks(
    graph: &Dataflow<'_>,
    kind: RegionKind,
    values: &[Known],
    is_backward: &dyn Fn(NodeId) -> bool,
    leads_to_product: &dyn Fn(NodeId) -> bool,
    is_choice: &dyn Fn(NodeId) -> bool,
) -> Vec<bool> {
    let n = graph.nodes.len();
    let mut masks = vec![false; n];
    let equalities = |node: NodeId| maximum(graph, graph.node(node), values).filter(|_| !is_backward(node));
    let all: Vec<(NodeId, Option<NodeId>)> = (0..n as NodeId)
        .filter_map(|node| match equalities(node) {
            None => (kind == RegionKind::Entry && is_choice(node)).then_some((node, None)),
            maximum => Some((node, maximum)),
        })
        .collect();
    if all.is_empty() {
        return masks;
    }
    let is_float = |value: ValueId| graph.value(value).dtype.is_some_and(DType::is_float);
    let gives_array = gives_array(graph);
    for some in all.chunks(AT_ONCE) {
        // For each value the choices whose outcome alone it is computed from; for each node those whose maximum it is
        // computed from.
        let mut outcome = vec![0_u64; graph.values.len()];
        let mut from_maximum_of = vec![0_u64; n];
        let mut mask_bits = 0_u64;
        let mut equality = 0_u64;
        for (bit, (node, maximum)) in some.iter().enumerate() {
            let is_outcome = |&value: &ValueId| !is_float(value);
            graph.node(*node).results().filter(is_outcome).for_each(|value| outcome[value as usize] |= 1 << bit);
            if let Some(maximum) = maximum {
                from_maximum_of[*maximum as usize] |= 1 << bit;
                equality |= 1 << bit;
            }
        }
        for node in 0..n as NodeId {
            let record = graph.node(node);
            let made_of = record.operands.iter().fold(0, |all, &value| all | outcome[value as usize]);
            let of_operands =
                record.operands.iter().fold(0, |all, &value| all | from_maximum_of[graph.producer(value) as usize]);
            from_maximum_of[node as usize] |= of_operands;
            if made_of == 0 {
                continue;
            }
            // An op that only stores it beside others does not combine it with them.
            let is_stored = movement(&graph.instr(record).op) == Movement::Joins;
            let is_other = |&value: &ValueId| !is_stored && is_float(value) && !values[value as usize].is_constant;
            let others = || record.operands.iter().copied().filter(is_other);
            let meets = others().fold(0, |all, value| all | made_of & !outcome[value as usize]);
            let meets_cotangent = others()
                .fold(0, |all, value| all | from_maximum_of[graph.producer(value) as usize] & !outcome[value as usize]);
            let meets_array = others()
                .filter(|&value| graph.value(value).n_elements > 1)
                .fold(0, |all, value| all | made_of & !outcome[value as usize]);
            let to_product = if leads_to_product(node) { meets & equality } else { 0 };
            let to_array = if gives_array[node as usize] { meets_array } else { 0 };
            mask_bits |= (to_product | to_array) & !meets_cotangent;
            record.results().for_each(|value| outcome[value as usize] |= made_of & !meets);
        }
        for (bit, (node, _)) in some.iter().enumerate() {
            masks[*node as usize] = mask_bits & (1 << bit) != 0;
        }
    }
    masks
}

/// For a comparison for equality of two learned values, one of which is computed from the other: the producer of that
/// one, behind ops that only place elements.
fn maximum(graph: &Dataflow<'_>, node: &Node, values: &[Known]) -> Option<NodeId> {
    let Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. } = graph.instr(node).op else { return None };
    let &[a, b] = &node.operands[..] else { return None };
    let is_open = |value: ValueId| graph.value(value).is_f32() && values[value as usize].is_learned;
    if a == b || !is_open(a) || !is_open(b) || graph.value(node.first_result).n_elements < 2 {
        return None;
    }
    // The later of the two.
    let last = if graph.producer(a) > graph.producer(b) { a } else { b };
    let places = |maker: &Node, _| !matches!(movement(&graph.instr(maker).op), Movement::None | Movement::Joins);
    Some(graph.producer(graph.origin(last, places)))
}

/// For each node whether a loss is computed from it; `None` if the program has no loss.
pub(super) fn leads_to_loss(graph: &Dataflow<'_>) -> Option<Vec<bool>> {
    let losses = loss::losses(graph);
    (!losses.is_empty()).then(|| graph.leads_to(&losses, |_| true))
}

/// For each node whether its result is an f32 array that the program returns, or that such an array is computed from.
fn gives_array(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_array = |value: ValueId| graph.value(value).is_f32_array();
    let arrays: Vec<ValueId> = graph.results.iter().copied().filter(|&value| is_array(value)).collect();
    graph.leads_to(&arrays, is_array)
}

/// For each value whether it is the same in every run. `taken` says so of the region's parameters.
pub(super) fn constants(graph: &Dataflow<'_>, taken: &[Known]) -> Vec<bool> {
    let mut is_constant = vec![false; graph.values.len()];
    graph.parameters().zip(taken).for_each(|(value, known)| is_constant[value as usize] = known.is_constant);
    for node in graph.nodes.iter().filter(|node| node.kind != NodeKind::Parameter) {
        let op = &graph.instr(node).op;
        let is_source = matches!(op, Op::Constant(_) | Op::Iota { .. });
        // The result of an unknown op may differ from call to call.
        let is_known = !matches!(op, Op::Opaque(_) | Op::CustomCall(_));
        let is_of_constants = is_known && !node.operands.is_empty();
        let all = || node.operands.iter().all(|&value| is_constant[value as usize]);
        let is_same = is_source || is_of_constants && all();
        node.results().for_each(|value| is_constant[value as usize] = is_same);
    }
    is_constant
}
