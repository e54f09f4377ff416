//! Masks that a program makes of a choice and computes on with.
//!
//! `scores == max(scores)` says which score is the maximum, and rounded scores tie where others do not: then it names two.
//! But gradients compare for equality as well, to find which operand was the maximum, and there nothing is lost: both sides
//! are rounded alike, and operands that tie share what comes back. What comes back tells the two apart. A gradient's mask meets
//! a cotangent, which is computed from the maximum, as all of a backward pass is, or from a loss before it. A program's own
//! mask meets other values, such as those that the scores were made of, and is on the way to the loss, where there is one. So
//! are the loops and branches of a forward pass, which only store a gradient's mask for the backward pass.
//!
//! A choice, by a mask or by a number, may also be among numbers that the program gives, with no product behind it.

use super::assignment::RegionKind;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::loss;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::decisions::movement;
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::{DType, Op};

/// How many choices are followed at once: one for each bit.
const AT_ONCE: usize = 64;

/// For each node whether it is a choice whose outcome, and nothing else of it, meets other values: of a comparison for
/// equality on the way to a product, of any that `is_choice` on the way to an array that the program gives.
pub(super) fn masks(
    graph: &Dataflow<'_>,
    kind: RegionKind,
    [learned, is_constant]: [&[bool]; 2],
    is_backward: &dyn Fn(NodeId) -> bool,
    leads_to_product: &dyn Fn(NodeId) -> bool,
    is_choice: &dyn Fn(NodeId) -> bool,
) -> Vec<bool> {
    let n = graph.nodes.len();
    let mut found = vec![false; n];
    let equalities = |node: NodeId| maximum(graph, graph.node(node), learned).filter(|_| !is_backward(node));
    let all: Vec<(NodeId, Option<NodeId>)> = (0..n as NodeId)
        .filter_map(|node| match equalities(node) {
            None => (kind == RegionKind::Entry && is_choice(node)).then_some((node, None)),
            maximum => Some((node, maximum)),
        })
        .collect();
    if all.is_empty() {
        return found;
    }
    let is_float = |value: ValueId| graph.value(value).dtype.is_some_and(DType::is_float);
    let gives_array = gives_array(graph);
    for some in all.chunks(AT_ONCE) {
        // Of each value, the choices of whose outcome alone it is made; of each node, those whose maximum it is made of.
        let mut outcome = vec![0_u64; graph.values.len()];
        let mut of_maximum = vec![0_u64; n];
        let mut is_found = 0_u64;
        let mut equality = 0_u64;
        for (bit, (node, maximum)) in some.iter().enumerate() {
            let is_outcome = |&value: &ValueId| !is_float(value);
            graph.node(*node).results().filter(is_outcome).for_each(|value| outcome[value as usize] |= 1 << bit);
            if let Some(maximum) = maximum {
                of_maximum[*maximum as usize] |= 1 << bit;
                equality |= 1 << bit;
            }
        }
        for node in 0..n as NodeId {
            let of = graph.node(node);
            let made_of = of.operands.iter().fold(0, |all, &value| all | outcome[value as usize]);
            let from_maximum =
                of.operands.iter().fold(0, |all, &value| all | of_maximum[graph.producer(value) as usize]);
            of_maximum[node as usize] |= from_maximum;
            if made_of == 0 {
                continue;
            }
            // Where it is only stored among others, it meets none of them.
            let is_stored = movement(&graph.instr(of).op) == Movement::Joins;
            let is_other = |&value: &ValueId| !is_stored && is_float(value) && !is_constant[value as usize];
            let others = || of.operands.iter().copied().filter(is_other);
            let meets = others().fold(0, |all, value| all | made_of & !outcome[value as usize]);
            let meets_cotangent = others()
                .fold(0, |all, value| all | of_maximum[graph.producer(value) as usize] & !outcome[value as usize]);
            let meets_array = others()
                .filter(|&value| graph.value(value).n_elements > 1)
                .fold(0, |all, value| all | made_of & !outcome[value as usize]);
            let to_product = if leads_to_product(node) { meets & equality } else { 0 };
            let to_array = if gives_array[node as usize] { meets_array } else { 0 };
            is_found |= (to_product | to_array) & !meets_cotangent;
            of.results().for_each(|value| outcome[value as usize] |= made_of & !meets);
        }
        for (bit, (node, _)) in some.iter().enumerate() {
            found[*node as usize] = is_found & (1 << bit) != 0;
        }
    }
    found
}

/// Of a comparison for equality of two learned values, one of which is made of the other, what makes that one, behind what
/// only places elements.
fn maximum(graph: &Dataflow<'_>, node: &Node, learned: &[bool]) -> Option<NodeId> {
    let Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. } = graph.instr(node).op else { return None };
    let &[a, b] = &node.operands[..] else { return None };
    let is_open = |value: ValueId| graph.value(value).is_f32() && learned[value as usize];
    if a == b || !is_open(a) || !is_open(b) || graph.value(node.first_result).n_elements < 2 {
        return None;
    }
    // The one that is made last.
    let mut last = graph.producer(a).max(graph.producer(b));
    loop {
        let of = graph.node(last);
        let op = &graph.instr(of).op;
        let places = !matches!(movement(op), Movement::None | Movement::Joins);
        match of.operands.first() {
            Some(&operand) if places => last = graph.producer(operand),
            _ => return Some(last),
        }
    }
}

/// For each node whether a loss is computed from it; nothing where the program gives none.
pub(super) fn leads_to_loss(graph: &Dataflow<'_>) -> Option<Vec<bool>> {
    let losses = loss::losses(graph);
    let mut leads = vec![false; graph.nodes.len()];
    losses.iter().for_each(|&value| leads[graph.producer(value) as usize] = true);
    for node in (0..graph.nodes.len()).rev().filter(|_| !losses.is_empty()) {
        if leads[node] {
            graph.nodes[node].operands.iter().for_each(|&value| leads[graph.producer(value) as usize] = true);
        }
    }
    (!losses.is_empty()).then_some(leads)
}

/// For each node whether it gives an array of f32 that is a result, or that one is computed from.
fn gives_array(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_array = |value: ValueId| graph.value(value).is_f32() && graph.value(value).n_elements > 1;
    let mut gives = vec![false; graph.nodes.len()];
    for &value in graph.results.iter().filter(|&&value| is_array(value)) {
        gives[graph.producer(value) as usize] = true;
    }
    for node in (0..graph.nodes.len()).rev() {
        if gives[node] {
            let arrays = graph.nodes[node].operands.iter().filter(|&&value| is_array(value));
            arrays.for_each(|&value| gives[graph.producer(value) as usize] = true);
        }
    }
    gives
}

/// For each value whether it is the same in every run, given which are of those that the region takes.
pub(super) fn constants(graph: &Dataflow<'_>, taken: &[bool]) -> Vec<bool> {
    let mut is_constant = vec![false; graph.values.len()];
    graph.parameters().zip(taken).for_each(|(value, &is_taken)| is_constant[value as usize] = is_taken);
    for node in graph.nodes.iter().filter(|node| node.kind != NodeKind::Parameter) {
        let op = &graph.instr(node).op;
        let is_source = matches!(op, Op::Constant(_) | Op::Iota { .. });
        // What an unknown op gives may be another number each time.
        let is_known = !matches!(op, Op::Opaque(_) | Op::CustomCall(_));
        let is_of_constants = is_known && !node.operands.is_empty();
        let all = || node.operands.iter().all(|&value| is_constant[value as usize]);
        let is_same = is_source || is_of_constants && all();
        node.results().for_each(|value| is_constant[value as usize] = is_same);
    }
    is_constant
}
