//! Arrays that loops store: those that they fill slice by slice, and those that they read slice by slice.
//!
//! A loop carries its state in the types of its operands, and a value that is carried from step to step stays f32, as
//! its error would be carried, too. But a loop that JAX's `scan` generates also carries other arrays. Those that it
//! *fills* are stacked results of all steps: its outputs, and the residuals of its backward pass. Those that it
//! *reads* are stacked inputs of all steps. Both are only stored, once per step, and between products both are rounded
//! for that, as any other stored value is; what is computed from them within a step is f32.
//!
//! Section 7 of docs/HOW_PRECISION_IS_DECIDED.md has the rules. A loop *over layers* is a network written as a loop, and its
//! state is rounded where the same network without a loop would round it: between two layers. In a loop over time each
//! step has the same weights, so this does not hold; nor does it for a training loop, which multiplies weights that it
//! carries by data that it reads.
//!
//! A sum of logarithms in a loop, as CTC and hidden Markov models sum up likelihoods, is read by exponentials:
//! rounding a logarithm of −100 is an error of 0.2, and of a fifth in the exponential.

use super::assignment::RegionContext;
use super::data_movement::MAX_TERMS;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::decision::Need;
use super::recurrences::{factors, solved_again};
use super::terms::is_linear;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::{amplification, movement};
use bf16scope_hlo::ops::precision::{Amplification, Class, Movement};
use std::collections::BTreeSet;

/// How a loop uses an array of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// In any other way.
    Carried {
        /// Whether a product of the step reads it, and its next value is computed from a product of the step.
        is_between: bool,
    },
    /// Each step reads a slice; the array does not change.
    Read {
        /// Whether the loop multiplies its state by the slices, in few steps (a loop over layers).
        is_layers: bool,
    },
    /// Each step writes a slice and does not read the array.
    Filled {
        /// Whether the slice is computed from a product of the step.
        is_of_product: bool,
        /// Whether the slice is computed from an array that the loop reads slice by slice.
        is_of_read: bool,
    },
}

impl Use {
    /// The use of an array that has to be carried in its own dtype.
    pub(super) const AS_IT_IS: Use = Use::Carried { is_between: false };
}

/// The use that a loop makes of its state.
#[derive(Clone, Debug, Default)]
pub(super) struct Loop {
    /// How it uses each array of the state.
    pub uses: Vec<Use>,
    /// Whether a step computes a product.
    pub has_product: bool,
    /// Whether a step takes logarithms and computes no product.
    pub is_of_logarithms: bool,
    /// For each array of the state whether a recurrence multiplies by it (`recurrences`).
    pub is_factor: Vec<bool>,
    /// For each array of the state the needs of its consumers in a step, with no product between (`needs`).
    pub needs: Vec<Vec<Need>>,
}

/// Describes the loop with this body and condition, in these surroundings. Scores are carried in their own dtype.
pub(super) fn of_body(body: &Dataflow<'_>, condition: &Dataflow<'_>, around: Option<&RegionContext>) -> Loop {
    let (Some(state), Some(in_condition)) = (parameter(body), parameter(condition)) else {
        return Loop::default();
    };
    let (taken, scores) = around.map(|around| (&around.operands[..], &around.scores[..])).unwrap_or_default();
    let is_factor = factors(body, &state, taken);
    let leaves: Vec<(ValueId, ValueId)> = state.iter().copied().zip(body.results.iter().copied()).collect();
    let arrays: Vec<Option<Kept>> = (leaves.iter().zip(in_condition))
        .map(|(&(before, after), in_condition)| {
            let is_open = body.value(before).is_f32() && condition.users[in_condition as usize].is_empty();
            kept(body, before, after).filter(|_| is_open)
        })
        .collect();
    let is_product = |node: NodeId| body.node(node).is_product();
    // The state comes from what the previous step computed.
    let of_product = body.reached_in_steps(&state, is_product, |_| false);
    let of_read = body.reached_in_steps(&state, |_| false, |leaf| arrays[leaf] == Some(Kept::Read));
    let is_carried = |&(leaf, (before, after)): &(usize, (ValueId, ValueId))| {
        arrays[leaf].is_none() && before != after && body.value(before).is_f32()
    };
    let carried = leaves.iter().copied().enumerate().filter(is_carried).map(|(_, leaf)| leaf);
    let steps = Steps::new(body, carried.collect());
    // The stacked results of decompositions and solves, and of products between two of them, keep f32, also moved, scaled
    // or added up: the backward pass solves by them, or adds up the gradients that it solved for.
    let solved: BTreeSet<NodeId> = solved_again(body).into_iter().collect();
    let is_solved = |update: ValueId| {
        let terms = body.behind([update], |value| is_linear(body, body.producer(value)));
        let gives = |maker: NodeId| solved.contains(&maker) || amplification(body.op(maker)) == Amplification::Matrix;
        terms.into_iter().any(|value| gives(body.producer(value)))
    };
    let used = |(leaf, &(before, after)): (usize, &(ValueId, ValueId))| match arrays[leaf] {
        _ if is_factor[leaf] || scores.get(leaf) == Some(&true) => Use::AS_IT_IS,
        None => Use::Carried { is_between: steps.between.contains(&(before, after)) },
        Some(Kept::Filled(update)) if is_solved(update) => Use::AS_IT_IS,
        Some(Kept::Read) => Use::Read { is_layers: steps.multiply(before) },
        Some(Kept::Filled(update)) => {
            Use::Filled { is_of_product: of_product[update as usize], is_of_read: of_read[update as usize] }
        }
    };
    let has_product = body.node_ids().any(is_product);
    let is_logarithm = |node: &_| matches!(body.instr(node).op, Op::Unary(UnaryOp::Log | UnaryOp::Log1p));
    let mut ops = body.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Op(_)));
    Loop {
        uses: leaves.iter().enumerate().map(used).collect(),
        has_product,
        is_of_logarithms: !has_product && ops.any(is_logarithm),
        needs: angles(body, &state),
        is_factor,
    }
}

/// The ways of values through a step of a loop.
struct Steps<'b> {
    body: &'b Dataflow<'b>,
    /// The pairs (before, after) of carried arrays where a product reads `before`, and `after` is computed from a
    /// product.
    between: BTreeSet<(ValueId, ValueId)>,
    /// For each value whether it is computed from such a `before`.
    of_between: Vec<bool>,
}

impl<'b> Steps<'b> {
    fn new(body: &'b Dataflow<'b>, carried: Vec<(ValueId, ValueId)>) -> Steps<'b> {
        let products = body.nodes.iter().filter(|node| node.is_product());
        let of_product = body.reached(products.flat_map(Node::results).collect(), |_| true);
        let leads_to_product = body.leads_to_product();
        let is_between = |&(before, after): &(ValueId, ValueId)| {
            let leads = |&user: &NodeId| body.node(user).is_product() || leads_to_product[user as usize];
            of_product[after as usize] && body.users[before as usize].iter().any(leads)
        };
        let between: BTreeSet<_> = carried.into_iter().filter(is_between).collect();
        let of_between = body.reached(between.iter().map(|&(before, _)| before).collect(), |_| true);
        Steps { body, between, of_between }
    }

    /// Whether the carried arrays become, in few steps, products of themselves and slices of `array`: a sum over
    /// layers gets one residual per step, and `MAX_TERMS` bounds its terms.
    fn multiply(&self, array: ValueId) -> bool {
        let body = self.body;
        let n_elements = |value: ValueId| body.value(value).n_elements;
        let slices: Vec<ValueId> =
            body.users[array as usize].iter().map(|&slice| body.node(slice).first_result).collect();
        let is_in_few = slices.iter().all(|&slice| n_elements(array) <= n_elements(slice).saturating_mul(MAX_TERMS));
        let of_slice = body.reached(slices, |node| body.node(node).is_clear());
        let is_layer = |node: &&Node| {
            let is_carried = |&value: &ValueId| !of_slice[value as usize] && self.of_between[value as usize];
            node.is_product() && node.reads(&of_slice) && node.operands.iter().any(is_carried)
        };
        let of_layers = body.reached(body.nodes.iter().filter(is_layer).flat_map(Node::results).collect(), |_| true);
        is_in_few && self.between.iter().any(|&(_, after)| of_layers[after as usize])
    }
}

/// For each array of a loop's state whether a sine or cosine of the body reads it, with no product between: as a need.
fn angles(body: &Dataflow<'_>, state: &[ValueId]) -> Vec<Vec<Need>> {
    let turns = |record: &&Node| amplification(&body.instr(record).op) == Amplification::Angle;
    let angles = body.nodes.iter().filter(turns).flat_map(|record| record.operands.iter().copied());
    let angles = body.behind(angles, |value| body.node(body.producer(value)).is_soft());
    state.iter().map(|value| angles.contains(value).then_some(Need::Angle).into_iter().collect()).collect()
}

/// The values of a region's only parameter.
fn parameter(graph: &Dataflow<'_>) -> Option<Vec<ValueId>> {
    let n = graph.nodes.iter().filter(|node| node.kind == NodeKind::Parameter).count();
    (n == 1).then(|| graph.parameters().collect())
}

/// An array that stays the same from step to step, except for a slice that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Read,
    Filled(ValueId),
}

fn kept(body: &Dataflow<'_>, before: ValueId, after: ValueId) -> Option<Kept> {
    let readers = &body.users[before as usize];
    if before == after {
        let is_slice = |&reader: &NodeId| {
            let record = body.node(reader);
            let op = &body.instr(record).op;
            record.operands[0] == before && movement(op) == Movement::TakesPart
        };
        return readers.iter().all(is_slice).then_some(Kept::Read);
    }
    let update = filled(body, after)?;
    let writes = &body.node(body.producer(after)).operands;
    (writes[0] == before && readers.len() == 1 && body.users[after as usize].is_empty()).then_some(Kept::Filled(update))
}

/// The written slice, if a result is an array into which a slice was written.
pub(super) fn filled(body: &Dataflow<'_>, result: ValueId) -> Option<ValueId> {
    let node = body.node(body.producer(result));
    let is_write = node.kind == NodeKind::Op(Class::Clear) && matches!(body.instr(node).op, Op::DynamicUpdateSlice);
    is_write.then(|| node.operands.get(1).copied()).flatten()
}

/// A branch: what each of its results is computed from.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// The number of its operands.
    pub n_taken: usize,
    /// For each result whether it is computed from a product in the branch.
    pub of_product: Vec<bool>,
    /// For each result whether it is computed from an f32 array among the branch's operands.
    pub of_taken: Vec<bool>,
}

/// Describes the branch that is this region. Results that are `scores` are returned in their own dtype.
pub(super) fn of_branch(graph: &Dataflow<'_>, scores: &[bool]) -> Branch {
    let taken: Vec<ValueId> = graph.parameters().collect();
    let products = graph.nodes.iter().filter(|node| node.is_product()).flat_map(Node::results);
    let arrays = taken.iter().copied().filter(|&value| graph.value(value).is_f32_array());
    let is_score = |leaf: usize| scores.get(leaf) == Some(&true);
    let results_of = |values: Vec<ValueId>| {
        let is_reached = graph.reached(values, |_| true);
        let results = graph.results.iter().enumerate();
        results.map(|(leaf, &value)| is_reached[value as usize] && !is_score(leaf)).collect()
    };
    Branch { n_taken: taken.len(), of_product: results_of(products.collect()), of_taken: results_of(arrays.collect()) }
}
