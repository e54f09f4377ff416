//! What `paint` decides for a region: the dtype of each node and value, and the rule that decided.

use super::dataflow::{NodeId, ValueId};
use super::need::Need;
use std::collections::{BTreeMap, BTreeSet};

/// Why a node computes in what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Its class is allow.
    Allowed,
    /// Its class is deny.
    Denied,
    /// It is computed from a denied op.
    Spread,
    /// It leads to a scalar result.
    Loss,
    /// It leads to a result that keeps its type.
    Result,
    /// It lies between allowed ops.
    Between,
    /// The policy lowers all ops of its class.
    Reach,
    /// Its value need not be stored, so that rounding it saves nothing.
    Unstored,
    /// It is computed of one array, as is a polynomial that it belongs to.
    Polynomial,
    /// It computes in f32 as `Unstored`, but its value is stored, and rounded once for all that read it.
    Rounded,
    /// It computes in f32, as a result is made of it, and its value is stored, and rounded once for all that read it.
    Stored,
    /// It adds rows between products, of which nothing was rounded since denied ops: a statistic, which stays f32.
    Statistic,
    /// It does not lie between allowed ops, or the policy does not reach it.
    OutOfReach,
    /// It looks up rows of a table whose rows are narrow, behind a barrier.
    Lookup,
    /// It gives logits that are as large as any parameter or larger, in f32, and rounds them once for all that read them.
    Logits,
    /// It sums the gradient of such logits over all rows.
    Bias,
    /// What reads it needs f32.
    Needed(Need),
    /// It moves values, is stored, and one of its readers reads the narrow dtype.
    Moved,
    /// As `Moved`, of a part of what it reads, which it rounds behind the move.
    MovedPart,
    /// It writes a slice of an array that a loop fills, between products.
    Filled,
    /// It adds rows between products, and what it adds and gives is stored.
    MovedSum,
    /// It sums few numbers to each that it gives, between products; it computes in f32 and rounds, once, what is stored.
    FewTerms,
    /// It sums over windows of few numbers, between products, and what it sums and gives is stored.
    WindowSum,
    /// It sums a narrow concatenation, which a product reads too, part by part.
    SumOfParts,
    /// It adds narrow rows, which are bf16 already, to zeros, or adds up several such sums.
    Rows,
    /// It gives narrow rows that are added to zeros; it computes in f32 and rounds them, once.
    Row,
    /// All that read it read the narrow dtype.
    ReadNarrow,
    /// It holds a parameter back, which is cast behind it.
    Held,
    /// What it reads is narrow already.
    OfNarrow,
    /// Lowering it would round where nothing needs to.
    WouldRound,
    /// It cannot be retyped.
    Fixed,
    /// It is a source of values: a parameter, a constant, a conversion.
    Source,
    /// The policy lowers nothing.
    Off,
    /// Its form was decided.
    Decided,
}

/// What [`paint`](super::paint::paint) found.
#[derive(Debug)]
pub(super) struct Painted {
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

impl Painted {
    /// What was assigned so far in a region of so many values, whose nodes follow these rules.
    pub(super) fn new(rule: Vec<Rule>, n_values: usize, beyond: Vec<bool>) -> Painted {
        Painted {
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

/// What is computed from the nodes and values of a region.
#[derive(Debug)]
pub(super) struct Ends {
    /// For each value whether the region gives it, in its own dtype.
    pub is_result: Vec<bool>,
    /// For each node whether a scalar result is computed from it, and from no allowed op between.
    pub leads_to_loss: Vec<bool>,
    /// For each node whether a result is computed from it by ops of class infer and clear.
    pub leads_to_result: Vec<bool>,
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
