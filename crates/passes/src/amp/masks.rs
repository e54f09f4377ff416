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
use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use super::surroundings::{Known, RegionContext};
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::decisions::{choice, movement};
use bf16scope_hlo::ops::precision::{Choice, Movement};
use bf16scope_hlo::{DType, Op};
use std::cell::LazyCell;
use std::collections::BTreeSet;

/// Facts about the nodes and values of a region, on which choices depend.
pub(super) struct Facts<'a> {
    pub graph: &'a Dataflow<'a>,
    pub kind: RegionKind,
    pub around: &'a RegionContext,
    /// For each node whether the loss depends on it; `None` in a region that computes none.
    pub leads_to_loss: Option<Vec<bool>>,
    /// The facts about each value.
    pub values: Vec<Known>,
}

impl Facts<'_> {
    pub(super) fn is_backward(&self, node: NodeId) -> bool {
        self.leads_to_loss.as_ref().map_or(self.around.is_backward, |leads_to_loss| !leads_to_loss[node as usize])
    }

    /// Whether a node chooses by its operands, whatever its result is used for.
    pub(super) fn is_choice(&self, node: NodeId) -> bool {
        let (record, op) = (self.graph.node(node), self.graph.op(node));
        match choice(op) {
            Choice::Never => false,
            Choice::Always => true,
            Choice::OfSeveral => record.n_results > 1,
            Choice::OfIntegers => self.graph.value(record.first_result).dtype.is_some_and(DType::is_integer),
            Choice::OfOrder => {
                let is_equality = matches!(op, Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. });
                !is_equality && record.operands.iter().all(|&value| self.values[value as usize].is_learned)
            }
        }
    }
}

/// The nodes that are choices whose outcome alone meets other values: a comparison for equality on the way to a product,
/// as `leads_to_product` says, or any choice on the way to an array that the program returns.
pub(super) fn masks(facts: &Facts<'_>, leads_to_product: impl Fn(NodeId) -> bool) -> BTreeSet<NodeId> {
    let graph = facts.graph;
    let is_array = |value: ValueId| graph.value(value).is_f32_array();
    let to_array =
        LazyCell::new(|| graph.behind(graph.results.iter().copied().filter(|&value| is_array(value)), is_array));
    let gives_array = |record: &Node| record.results().any(|value| is_array(value) && to_array.contains(&value));
    let is_float = |value: ValueId| graph.value(value).dtype.is_some_and(DType::is_float);
    let is_mask = |&choice: &NodeId| {
        let maximum = maximum(facts, choice).filter(|_| !facts.is_backward(choice));
        if maximum.is_none() && !(facts.kind == RegionKind::Entry && facts.is_choice(choice)) {
            return false;
        }
        let of_maximum = LazyCell::new(|| {
            let results = maximum.iter().flat_map(|&node| graph.node(node).results());
            graph.reached(results.collect(), |_| true)
        });
        // The values that are computed from the outcome alone, and the nodes that read them.
        let mut outcome: BTreeSet<ValueId> = graph.node(choice).results().filter(|&value| !is_float(value)).collect();
        let mut open: BTreeSet<NodeId> =
            outcome.iter().flat_map(|&value| &graph.users[value as usize]).copied().collect();
        while let Some(node) = open.pop_first() {
            let record = graph.node(node);
            // An op that only stores it beside others does not combine it with them.
            let is_stored = movement(graph.op(node)) == Movement::Joins;
            let is_other = |value: &ValueId| {
                is_float(*value) && !facts.values[*value as usize].is_constant && !outcome.contains(value)
            };
            let others: Vec<ValueId> =
                record.operands.iter().copied().filter(is_other).filter(|_| !is_stored).collect();
            if others.is_empty() {
                outcome.extend(record.results());
                open.extend(graph.readers(node));
                continue;
            }
            let is_array = others.iter().any(|&value| graph.value(value).n_elements > 1);
            let leads = maximum.is_some() && leads_to_product(node) || is_array && gives_array(record);
            if leads && !others.iter().any(|&value| of_maximum[value as usize]) {
                return true;
            }
        }
        false
    };
    graph.node_ids().filter(is_mask).collect()
}

/// For a comparison for equality of two learned values, one of which is computed from the other: the producer of that
/// one, behind ops that only place elements.
fn maximum(facts: &Facts<'_>, node: NodeId) -> Option<NodeId> {
    let (graph, record) = (facts.graph, facts.graph.node(node));
    let Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. } = graph.op(node) else { return None };
    let &[a, b] = &record.operands[..] else { return None };
    let is_open = |value: ValueId| graph.value(value).is_f32() && facts.values[value as usize].is_learned;
    if a == b || !is_open(a) || !is_open(b) || graph.value(record.first_result).n_elements < 2 {
        return None;
    }
    // The later of the two.
    let last = if graph.producer(a) > graph.producer(b) { a } else { b };
    let places = |maker: &Node, _| !matches!(movement(&graph.instr(maker).op), Movement::None | Movement::Joins);
    Some(graph.producer(graph.origin(last, places)))
}

/// For each value whether it is the same in every run. `taken` says so of the region's parameters.
pub(super) fn constants(graph: &Dataflow<'_>, taken: &[Known]) -> Vec<bool> {
    graph.derived(taken.iter().map(|known| known.is_constant), |node, is_constant| {
        let (op, operands) = (graph.op(node), &graph.node(node).operands);
        let is_source = matches!(op, Op::Constant(_) | Op::Iota { .. });
        // The result of an unknown op may differ from call to call.
        let is_known = !matches!(op, Op::Opaque(_) | Op::CustomCall(_));
        is_source || is_known && !operands.is_empty() && operands.iter().all(|&value| is_constant[value as usize])
    })
}
