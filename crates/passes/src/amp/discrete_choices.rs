//! Products on which a discrete choice depends, and the program computes on with the choice: a router's scores decide
//! which experts a token goes to.
//!
//! Rounding scores by 2^-9 moves no number far, but where two are close it changes which is greater, and with it
//! everything that is computed from the choice. So the products that compute scores stay f32, and so do the ops
//! between them and the choice. What is computed from the choice is lowered as usual, and a choice that is only
//! reported, such as an accuracy, is ignored. The products read f32: an op between them and the products before is
//! computed in f32 if nothing else reads it (`fused`).
//!
//! Section 3 of docs/HOW_PRECISION_IS_DECIDED.md says what is a choice. A comparison with anything, a constant too, is one
//! if integers are computed from it, such as an index into a table that was searched, or the bits of a code: gradients
//! never compute any. The results of a loop's step or of a branch may reach a product outside, so they count as reaching
//! one; and so do the operands of a loop or a branch, and those of a product of any dtype.
//!
//! Scores may be computed outside of the loop or branch that chooses by them, or in one that returns them to a choice
//! outside: `regions` follows them across the border.
//!
//! # Masks
//!
//! A mask is a choice by a comparison for equality, as of scores with their maximum.
//! `scores == max(scores)` selects the maximum, and rounded scores may tie where exact ones do not: then it selects
//! two. Gradients compare for equality as well, to find which operand was the maximum, but lose nothing: both sides
//! are rounded alike, and tied operands share the cotangent. The values that the mask meets tell the two apart. A
//! gradient's mask meets a cotangent, which is computed from the maximum, as all of a backward pass is, or from a loss
//! before it. A program's mask meets other values, such as those that the scores were computed from, and is on the way
//! to the loss, if there is one. Loops and branches of a forward pass are on that way, too, and only store a
//! gradient's mask for the backward pass.
//!
//! A choice, by a mask or by an index, may also select among results of the program, with no product behind it.

use super::assignment::{Known, RegionContext, RegionKind};
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::loss::losses;
use super::policy::Because;
use super::recurrences::of_products_alone;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::decisions::{calls_regions, choice, movement, precision_class};
use bf16scope_hlo::ops::precision::{Choice, Class, Movement};
use bf16scope_hlo::{DType, Op};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

/// The choices of a region, or of the regions that an op runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    /// For each node the choice that it is computed for, with no product between; the node itself, if the choice is
    /// outside.
    pub of_node: Vec<Option<NodeId>>,
    /// For each operand whether a choice depends on it, with no product between.
    pub scores: Vec<bool>,
    /// For each result whether it is computed from a product.
    pub learned: Vec<bool>,
    /// For each node that runs regions the surroundings of these, in the order of its attributes.
    pub around: BTreeMap<NodeId, Vec<RegionContext>>,
}

impl Choices {
    /// The surroundings of the last region that a node runs: of a loop's body, or of a branch.
    pub(super) fn last_around(&self, node: NodeId) -> Option<&RegionContext> {
        self.around.get(&node)?.last()
    }

    /// The same without scores, for a policy that rounds them.
    pub(super) fn without_scores(mut self) -> Choices {
        self.of_node.fill(None);
        self.scores.fill(false);
        self.around.values_mut().flatten().for_each(|around| around.scores.fill(false));
        self
    }
}

/// The flow of values through an op that runs regions.
#[derive(Clone, Debug)]
pub(super) struct Through {
    /// For each result whether it is computed from products.
    pub learned: Vec<bool>,
    /// For each operand whether it is a score.
    pub scores: Vec<bool>,
    /// The surroundings of its regions.
    pub around: Vec<RegionContext>,
}

/// Describes what an op that runs regions does with values, given the surroundings of the op.
pub(super) type RunsRegions<'r> = dyn FnMut(&Op, RegionContext) -> Through + 'r;

/// Finds the choices of a region. `through` describes ops that run regions.
pub(super) fn discrete_choices(
    graph: &Dataflow<'_>,
    kind: RegionKind,
    around: &RegionContext,
    through: &mut RunsRegions<'_>,
) -> Choices {
    let facts = Facts::new(graph, kind, around, through);
    let is_choice = facts.choosing_nodes();
    let is_open = |value: ValueId| graph.value(value).is_f32() && facts.values[value as usize].is_learned;
    let mut choices = Choices { of_node: vec![None; graph.nodes.len()], ..Choices::default() };
    // For each score, which a choice depends on with no product between, that choice.
    let mut choice_of: Vec<Option<NodeId>> = vec![None; graph.values.len()];
    for (&value, _) in
        graph.results.iter().zip(&around.scores).filter(|&(&value, &is_score)| is_score && is_open(value))
    {
        choice_of[value as usize] = Some(graph.producer(value));
    }
    for node in graph.node_ids().rev() {
        let (record, op) = (graph.node(node), graph.op(node));
        let choice = record.results().find_map(|value| choice_of[value as usize]);
        choices.of_node[node as usize] = choice;
        let scores = if calls_regions(op) {
            let scores = record.results().map(|value| choice_of[value as usize].is_some()).collect();
            let runs = through(op, facts.context(node, scores));
            choices.around.insert(node, runs.around);
            runs.scores
        } else {
            // An op that computes scores: all its operands count, but not the numbers by which it looks rows up.
            let computes = !facts.is_product(node) && !matches!(record.kind, NodeKind::Fixed(_) | NodeKind::Parameter);
            vec![is_choice[node as usize] || choice.is_some() && computes; record.operands.len()]
        };
        for (&value, _) in record.operands.iter().zip(scores).filter(|&(&value, is_score)| is_score && is_open(value)) {
            choice_of[value as usize].get_or_insert(choice.unwrap_or(node));
        }
    }
    choices.scores = graph.parameters().map(|value| choice_of[value as usize].is_some()).collect();
    choices.learned = graph.results.iter().map(|&value| facts.values[value as usize].is_learned).collect();
    choices
}

impl<'a> Facts<'a> {
    fn new(
        graph: &'a Dataflow<'a>,
        kind: RegionKind,
        around: &'a RegionContext,
        through: &mut RunsRegions<'_>,
    ) -> Facts<'a> {
        let known = constants(graph, &around.operands).into_iter().zip(of_products_alone(graph, &around.operands));
        let known = known.map(|(is_constant, is_of_products_alone)| Known {
            is_learned: false,
            is_of_products_alone,
            is_constant,
        });
        let losses = if kind == RegionKind::Entry { losses(graph) } else { Vec::new() };
        let leads_to_loss = (!losses.is_empty()).then(|| graph.leads(&losses, |_, leads| leads));
        let mut facts = Facts { graph, kind, around, leads_to_loss, values: known.collect() };
        for (value, known) in graph.parameters().zip(&around.operands) {
            facts.values[value as usize].is_learned = known.is_learned;
        }
        for node in graph.node_ids().filter(|&node| graph.node(node).kind != NodeKind::Parameter) {
            let (record, n_results) = (graph.node(node), graph.node(node).n_results as usize);
            let are_learned = if calls_regions(graph.op(node)) {
                through(graph.op(node), facts.context(node, vec![false; n_results])).learned
            } else {
                let is_learned = |&value: &ValueId| facts.values[value as usize].is_learned;
                vec![facts.multiplies(node) || record.operands.iter().any(is_learned); n_results]
            };
            for (value, is_learned) in record.results().zip(are_learned) {
                facts.values[value as usize].is_learned = is_learned;
            }
        }
        facts
    }

    /// The surroundings of the regions that a node runs, given which of its results are scores.
    fn context(&self, node: NodeId, scores: Vec<bool>) -> RegionContext {
        let operands = self.graph.node(node).operands.iter().map(|&value| self.values[value as usize]).collect();
        RegionContext { operands, scores, is_backward: self.is_backward(node) }
    }

    /// Whether a product may be lowered. An average that asks for full precision passes scores on as they are.
    fn is_product(&self, node: NodeId) -> bool {
        let record = self.graph.node(node);
        record.is_product() && record.because != Because::Exact
    }

    /// Whether a node is a product of any dtype, or may hold some.
    fn multiplies(&self, node: NodeId) -> bool {
        let op = self.graph.op(node);
        precision_class(self.graph.module, op) == Class::Allow || calls_regions(op)
    }

    /// For each node whether it chooses, and a product, or the next step of a loop, depends on the choice.
    fn choosing_nodes(&self) -> Vec<bool> {
        let graph = self.graph;
        let ends = if self.kind == RegionKind::Body { &graph.results[..] } else { &[] };
        let leads_to_product =
            graph.leads(ends, |reader, leads| leads || self.is_product(reader) || self.multiplies(reader));
        let numbers = numbers(graph, &leads_to_product);
        let masks = masks(self, |node| self.multiplies(node) || leads_to_product[node as usize]);
        let chooses = |node: NodeId| {
            let idx = node as usize;
            let compares = || matches!(graph.op(node), Op::Compare { .. }) && is_truth(graph, node);
            leads_to_product[idx] && self.is_choice(node) || masks.contains(&node) || numbers[idx] && compares()
        };
        graph.node_ids().map(chooses).collect()
    }
}

/// For each node whether its truth values, if it gives some, become integers that reach a product. A single truth value
/// does not count: it says whether a step is taken, not which way each element goes.
fn numbers(graph: &Dataflow<'_>, leads_to_product: &[bool]) -> Vec<bool> {
    graph.leads(&[], |reader, leads| {
        let decides = matches!(graph.op(reader), Op::Convert | Op::Select) && leads_to_product[reader as usize];
        let is_integer = graph.value(graph.node(reader).first_result).dtype.is_some_and(DType::is_integer);
        decides && is_integer || leads && is_truth(graph, reader)
    })
}

fn is_truth(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let value = graph.value(graph.node(node).first_result);
    value.dtype == Some(DType::Pred) && value.n_elements > 1
}

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

/// If this compares two learned values for equality: the producer of the later one, behind ops that only place elements.
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
