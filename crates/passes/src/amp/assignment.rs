//! The dtypes that `assign` chooses for the nodes and values of a region, and the rule behind each.

use super::dataflow::{Dataflow, NodeId, ValueId};
use super::decision::{Need, Rule};
use bf16scope_hlo::ops::PadDim;
use bf16scope_hlo::{InstrId, Op};
use std::collections::BTreeMap;

/// The result of [`assign`](super::assign::assign).
#[derive(Debug, Default)]
pub(super) struct Assignment {
    /// For each node whether its operands are narrow.
    pub low: Vec<bool>,
    /// For each value whether it is narrow. The node that computes it may still not be `low`: it then rounds its f32
    /// result.
    pub value_low: Vec<bool>,
    /// For each node the rule that decided.
    pub rule: Vec<Rule>,
    /// For each node the node that the decision came from.
    pub from: Vec<Option<NodeId>>,
    /// For each loop and `conditional` the values that cross its border in the narrow dtype.
    pub crossings: BTreeMap<NodeId, Crossing>,
    /// For each result of the region whether its caller gets it in the narrow dtype.
    pub narrow_results: Vec<bool>,
    /// The sums that are written part by part.
    pub parts: BTreeMap<NodeId, Parts>,
    /// Whether there is a backward pass: an allowed op reads values that are computed from the loss.
    pub differentiates: bool,
    /// For each value whether its cast must clamp, so that finite numbers stay finite.
    pub beyond: Vec<bool>,
    /// For each product, loop, branch or running sum whose f32 result is needed the need, and the consumer that has it.
    pub needed: Vec<Option<(Need, NodeId)>>,
}

impl Assignment {
    /// An assignment in which nothing is narrow yet. The nodes start with the rules `rule`.
    pub(super) fn new(rule: Vec<Rule>, n_values: usize, beyond: Vec<bool>) -> Assignment {
        let (low, value_low, from) = (vec![false; rule.len()], vec![false; n_values], vec![None; rule.len()]);
        Assignment { low, value_low, from, rule, beyond, ..Assignment::default() }
    }

    /// Whether a loop or a `conditional` takes a value in the narrow dtype.
    pub(super) fn is_narrow_state(&self, graph: &Dataflow<'_>, node: NodeId, value: ValueId) -> bool {
        let crossing = self.crossings.get(&node);
        crossing.is_some_and(|crossing| is_narrow_in(value, &graph.node(node).operands, &crossing.taken))
    }

    /// Whether the region returns a value in the narrow dtype to its caller.
    pub(super) fn is_narrow_result(&self, graph: &Dataflow<'_>, value: ValueId) -> bool {
        graph.is_result[value as usize] && is_narrow_in(value, &graph.results, &self.narrow_results)
    }
}

/// Whether a value is at a narrow place among values that cross a border.
fn is_narrow_in(value: ValueId, values: &[ValueId], are_narrow: &[bool]) -> bool {
    values.iter().zip(are_narrow).any(|(&crossing, &is_narrow)| is_narrow && crossing == value)
}

/// Which values cross the border of a region, or of the op that runs it, in the narrow dtype.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crossing {
    /// For each operand whether it is narrow.
    pub taken: Vec<bool>,
    /// For each result whether it is narrow; empty for the condition of a loop.
    pub given: Vec<bool>,
}

/// The kind of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionKind {
    /// The entry: its parameters and results are the program's.
    Entry,
    /// A body or branch: its parameters and results keep their types.
    Body,
}

/// A sum of an array that consists of parts.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    /// The parts, as instructions in the computation of the sum, each with its zero padding if padding places it.
    pub parts: Vec<(InstrId, Option<Vec<PadDim>>)>,
    /// The sum of each part.
    pub sum: Op,
    /// The dimension along which the sums are concatenated, unless they are padded and added.
    pub dimension: Option<i64>,
    /// How the combined sum is moved afterwards: each op, and the dims of its result.
    pub moves: Vec<(Op, Vec<i64>)>,
}

/// The facts about a value that follow from what it is computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Known {
    /// Whether it is computed from a product.
    pub is_learned: bool,
    /// Whether it is computed from products, and from no result of a loop or a branch.
    pub is_of_products_alone: bool,
    /// Whether it is the same in every run.
    pub is_constant: bool,
}

/// The surroundings of a region, or of an op that runs regions. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegionContext {
    /// The facts about each operand.
    pub operands: Vec<Known>,
    /// For each result whether a choice depends on it, with no product between.
    pub scores: Vec<bool>,
    /// Whether the program returns a loss, and this region is not on the way to it.
    pub is_backward: bool,
}

impl RegionContext {
    /// For each operand whether it is computed from a product.
    pub(super) fn learned(&self) -> Vec<bool> {
        self.operands.iter().map(|operand| operand.is_learned).collect()
    }
}
