//! The dtypes that `assign` chooses for the nodes and values of a region, and the rule behind each.

use super::dataflow::{NodeId, ValueId};
use super::decision::Rule;
use std::collections::{BTreeMap, BTreeSet};

/// The result of [`assign`](super::assign::assign).
#[derive(Debug)]
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
    /// The pairs of a loop or `conditional` and an operand that it takes in the narrow dtype.
    taken_narrow: BTreeSet<(NodeId, ValueId)>,
    /// For each result of the region whether its caller gets it in the narrow dtype.
    pub narrow_results: Vec<bool>,
    /// The values of the narrow results.
    given_narrow: BTreeSet<ValueId>,
    /// Whether there is a backward pass: an allowed op reads values that are computed from the loss.
    pub differentiates: bool,
    /// For each value whether its cast must clamp, so that finite numbers stay finite.
    pub beyond: Vec<bool>,
}

impl Assignment {
    /// An assignment in which nothing is narrow yet. The nodes start with the rules `rule`.
    pub(super) fn new(rule: Vec<Rule>, n_values: usize, beyond: Vec<bool>) -> Assignment {
        Assignment {
            low: vec![false; rule.len()],
            value_low: vec![false; n_values],
            from: vec![None; rule.len()],
            rule,
            crossings: BTreeMap::new(),
            taken_narrow: BTreeSet::new(),
            narrow_results: Vec::new(),
            given_narrow: BTreeSet::new(),
            differentiates: false,
            beyond,
        }
    }

    /// Records what crosses the border of a loop or a `conditional` that has these operands.
    pub(super) fn cross(&mut self, node: NodeId, operands: &[ValueId], crossing: Crossing) {
        let taken = operands.iter().zip(&crossing.taken).filter(|(_, is_narrow)| **is_narrow);
        self.taken_narrow.extend(taken.map(|(&operand, _)| (node, operand)));
        self.crossings.insert(node, crossing);
    }

    /// Records which of the region's results its caller gets in the narrow dtype.
    pub(super) fn give(&mut self, results: &[ValueId], are_narrow: &[bool]) {
        let narrow = results.iter().zip(are_narrow).filter(|(_, is_narrow)| **is_narrow);
        self.given_narrow = narrow.map(|(&result, _)| result).collect();
        self.narrow_results = are_narrow.to_vec();
    }

    /// Whether a loop or a `conditional` takes a value in the narrow dtype.
    pub(super) fn is_narrow_state(&self, node: NodeId, value: ValueId) -> bool {
        self.taken_narrow.contains(&(node, value))
    }

    /// Whether the region returns a value in the narrow dtype to its caller.
    pub(super) fn is_narrow_result(&self, value: ValueId) -> bool {
        self.given_narrow.contains(&value)
    }
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
