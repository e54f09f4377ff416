//! The dtypes that `assign` gives to the nodes and values of a region, and the rule behind each.

use super::dataflow::{NodeId, ValueId};
use super::decision::Rule;
use std::collections::{BTreeMap, BTreeSet};

/// The result of [`assign`](super::assign::assign).
#[derive(Debug)]
pub(super) struct Assignment {
    /// For each node whether it reads the narrow dtype.
    pub low: Vec<bool>,
    /// For each value whether it is made in the narrow dtype: by a node that is not `low`, if that rounds it.
    pub value_low: Vec<bool>,
    /// For each node the rule that decided.
    pub rule: Vec<Rule>,
    /// For each node the one that the decision came from.
    pub from: Vec<Option<NodeId>>,
    /// For each loop and `conditional` what crosses its border narrow.
    pub crossings: BTreeMap<NodeId, Crossing>,
    /// The values that each of them takes narrow.
    taken_narrow: BTreeSet<(NodeId, ValueId)>,
    /// For each result of the region whether it is narrow for its caller.
    pub narrow_results: Vec<bool>,
    /// The values of those that are.
    given_narrow: BTreeSet<ValueId>,
    /// Whether an allowed op reads what the loss leads to: there is a backward pass.
    pub differentiates: bool,
    /// For each value whether a cast of it must keep what is finite finite.
    pub beyond: Vec<bool>,
}

impl Assignment {
    /// What was assigned so far in a region of so many values, whose nodes follow these rules.
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

    /// Says what crosses the border of a loop or a `conditional` that has these operands.
    pub(super) fn cross(&mut self, node: NodeId, operands: &[ValueId], crossing: Crossing) {
        let taken = operands.iter().zip(&crossing.taken).filter(|(_, is_narrow)| **is_narrow);
        self.taken_narrow.extend(taken.map(|(&operand, _)| (node, operand)));
        self.crossings.insert(node, crossing);
    }

    /// Says which of the region's results its caller gets in the narrow dtype.
    pub(super) fn give(&mut self, results: &[ValueId], are_narrow: &[bool]) {
        let given = results.iter().zip(are_narrow).filter(|(_, is_narrow)| **is_narrow);
        self.given_narrow = given.map(|(&result, _)| result).collect();
        self.narrow_results = are_narrow.to_vec();
    }

    /// Whether a loop or a `conditional` takes a value in the narrow dtype.
    pub(super) fn is_narrow_state(&self, node: NodeId, value: ValueId) -> bool {
        self.taken_narrow.contains(&(node, value))
    }

    /// Whether the region gives a value in the narrow dtype to its caller.
    pub(super) fn is_narrow_result(&self, value: ValueId) -> bool {
        self.given_narrow.contains(&value)
    }
}

/// Which values cross the border of a region, or of the op that runs it, in the narrow dtype.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crossing {
    /// Of those that it takes.
    pub taken: Vec<bool>,
    /// Of those that it gives; none are named of a condition.
    pub given: Vec<bool>,
}

/// Of what kind a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionKind {
    /// The entry: its parameters and results are the program's.
    Entry,
    /// A body or branch: its parameters and results keep their types.
    Body,
}
