//! Products on which a discrete choice depends, and the program computes on with the choice: a router's scores decide
//! which experts a token goes to.
//!
//! Rounding scores by 2^-9 moves no number far, but where two are close it changes which is greater, and with it
//! everything that is computed from the choice. So the products that compute scores stay f32, and so do the ops
//! between them and the choice. What is computed from the choice is lowered as usual, and a choice that is only
//! reported, such as an accuracy, is ignored. The products read f32: an op between them and the products before is
//! computed in f32 if nothing else reads it (`fused`).
//!
//! A choice is a `sort`, a `topk`, a reduction of several arrays together (`argmax`), a conversion to integers, or an
//! inequality of two values that are both computed from products (`masks` says which of those are). A comparison with
//! anything, a constant too, is a choice if integers are computed from it, such as an index into a table that was
//! searched, or the bits of a code: gradients never compute any. The results of a loop's step or of a branch may reach
//! a product outside, so they count as reaching one; and so do the operands of a loop or a branch, and those of a
//! product of any dtype.
//!
//! Scores may be computed outside of the loop or branch that chooses by them, or in one that returns them to a choice
//! outside: `regions` follows them across the border.

use super::assignment::RegionKind;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::masks;
use super::policy::Because;
use super::recurrences::of_products_alone;
use super::surroundings::{Known, RegionContext};
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::decisions::{calls_regions, choice, precision_class};
use bf16scope_hlo::ops::precision::{Choice, Class};
use bf16scope_hlo::{DType, Op};
use std::collections::BTreeMap;

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
    let n = graph.nodes.len();
    let choices = Choices { of_node: vec![None; n], ..Choices::default() };
    let mut search = Search { facts: &facts, is_score: vec![false; graph.values.len()], choices };
    for (&value, _) in graph.results.iter().zip(&around.scores).filter(|(_, is_score)| **is_score) {
        search.mark(value, graph.producer(value));
    }
    for node in (0..n as NodeId).rev() {
        search.follow(node, is_choice[node as usize], through);
    }
    let Search { is_score, mut choices, .. } = search;
    choices.scores = picked(graph.parameters(), &is_score);
    choices.learned = graph.results.iter().map(|&value| facts.values[value as usize].is_learned).collect();
    choices
}

/// The facts about some values.
fn picked<F: Copy>(values: impl Iterator<Item = ValueId>, facts: &[F]) -> Vec<F> {
    values.map(|value| facts[value as usize]).collect()
}

/// Facts about the nodes and values of a region, on which choices depend.
struct Facts<'a> {
    graph: &'a Dataflow<'a>,
    kind: RegionKind,
    around: &'a RegionContext,
    /// For each node whether the loss depends on it; `None` in a region that computes none.
    leads_to_loss: Option<Vec<bool>>,
    /// The facts about each value.
    values: Vec<Known>,
}

impl<'a> Facts<'a> {
    fn new(
        graph: &'a Dataflow<'a>,
        kind: RegionKind,
        around: &'a RegionContext,
        through: &mut RunsRegions<'_>,
    ) -> Facts<'a> {
        let of_products_alone = of_products_alone(graph, &around.operands);
        let known = masks::constants(graph, &around.operands).into_iter().zip(of_products_alone);
        let known = known.map(|(is_constant, is_of_products_alone)| Known {
            is_learned: false,
            is_of_products_alone,
            is_constant,
        });
        let leads_to_loss = if kind == RegionKind::Entry { masks::leads_to_loss(graph) } else { None };
        let mut facts = Facts { graph, kind, around, leads_to_loss, values: known.collect() };
        for node in graph.node_ids() {
            let are_learned = facts.are_learned(node, through);
            for (value, is_learned) in graph.node(node).results().zip(are_learned) {
                facts.values[value as usize].is_learned = is_learned;
            }
        }
        facts
    }

    /// For each result of a node whether it is computed from a product, given the same of the nodes before it.
    fn are_learned(&self, node: NodeId, through: &mut RunsRegions<'_>) -> Vec<bool> {
        let (record, op) = (self.graph.node(node), self.graph.op(node));
        let n_results = record.n_results as usize;
        if record.kind == NodeKind::Parameter {
            self.around.learned()
        } else if calls_regions(op) {
            through(op, self.context(node, vec![false; n_results])).learned
        } else {
            let is_learned = || record.operands.iter().any(|&value| self.values[value as usize].is_learned);
            vec![self.multiplies(node) || is_learned(); n_results]
        }
    }

    /// The surroundings of the regions that a node runs, given which of its results are scores.
    fn context(&self, node: NodeId, scores: Vec<bool>) -> RegionContext {
        let operands = picked(self.graph.node(node).operands.iter().copied(), &self.values);
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

    fn is_backward(&self, node: NodeId) -> bool {
        self.leads_to_loss.as_ref().map_or(self.around.is_backward, |leads_to_loss| !leads_to_loss[node as usize])
    }

    /// For each node whether a product, or the next step of a loop, depends on it.
    fn leads_to_product(&self) -> Vec<bool> {
        let graph = self.graph;
        let mut leads_to_product = vec![false; graph.nodes.len()];
        if self.kind == RegionKind::Body {
            graph.results.iter().for_each(|&value| leads_to_product[graph.producer(value) as usize] = true);
        }
        for node in graph.node_ids().rev() {
            if self.is_product(node) || self.multiplies(node) || leads_to_product[node as usize] {
                graph.makers(node).for_each(|maker| leads_to_product[maker as usize] = true);
            }
        }
        leads_to_product
    }

    /// For each node whether it chooses, and a product depends on the choice.
    fn choosing_nodes(&self) -> Vec<bool> {
        let (graph, kind) = (self.graph, self.kind);
        let leads_to_product = self.leads_to_product();
        let numbers = numbers(graph, &leads_to_product);
        let leads_on = |node: NodeId| self.multiplies(node) || leads_to_product[node as usize];
        let is_choice = |node: NodeId| is_choice(graph, graph.node(node), &self.values);
        let masks = masks::masks(graph, kind, &self.values, &|node| self.is_backward(node), &leads_on, &is_choice);
        let chooses = |node: NodeId| {
            let idx = node as usize;
            let compares = || matches!(graph.op(node), Op::Compare { .. });
            leads_to_product[idx] && is_choice(node) || masks[idx] || numbers[idx] && compares()
        };
        graph.node_ids().map(chooses).collect()
    }
}

/// The search for scores, from choices back to products.
struct Search<'a> {
    facts: &'a Facts<'a>,
    /// For each value whether a choice depends on it, with no product between.
    is_score: Vec<bool>,
    choices: Choices,
}

impl Search<'_> {
    /// Marks a value on which the choice of a node depends.
    fn mark(&mut self, value: ValueId, choice: NodeId) {
        let graph = self.facts.graph;
        if graph.value(value).is_f32() && self.facts.values[value as usize].is_learned {
            self.is_score[value as usize] = true;
            self.choices.of_node[graph.producer(value) as usize].get_or_insert(choice);
        }
    }

    /// Marks the operands of a node that chooses, or on which a choice depends.
    fn follow(&mut self, node: NodeId, is_choice: bool, through: &mut RunsRegions<'_>) {
        let facts = self.facts;
        let (record, op) = (facts.graph.node(node), facts.graph.op(node));
        let choice = self.choices.of_node[node as usize];
        // An op that computes scores: all its operands count, but not the numbers by which it looks rows up.
        let computes = || !facts.is_product(node) && !matches!(record.kind, NodeKind::Fixed(_) | NodeKind::Parameter);
        let mut operand_scores = None;
        if calls_regions(op) {
            let op_result = through(op, facts.context(node, picked(record.results(), &self.is_score)));
            self.choices.around.insert(node, op_result.around);
            operand_scores = Some(op_result.scores);
        } else if !(choice.is_some() && computes() || is_choice) {
            return;
        }
        for (place, &value) in record.operands.iter().enumerate() {
            if operand_scores.as_ref().is_none_or(|scores| scores.get(place) == Some(&true)) {
                self.mark(value, choice.unwrap_or(node));
            }
        }
    }
}

/// Whether a node chooses by its operands, whatever its result is used for.
fn is_choice(graph: &Dataflow<'_>, node: &Node, values: &[Known]) -> bool {
    let op = &graph.instr(node).op;
    match choice(op) {
        Choice::Never => false,
        Choice::Always => true,
        Choice::OfSeveral => node.n_results > 1,
        Choice::OfIntegers => graph.value(node.first_result).dtype.is_some_and(DType::is_integer),
        Choice::OfOrder => {
            let is_equality = matches!(op, Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. });
            !is_equality && node.operands.iter().all(|&value| values[value as usize].is_learned)
        }
    }
}

/// For each node whether its truth values become integers that reach a product. A single truth value does not count:
/// it says whether a step is taken, not which way each element goes.
fn numbers(graph: &Dataflow<'_>, leads_to_product: &[bool]) -> Vec<bool> {
    let mut numbers = vec![false; graph.nodes.len()];
    for node in graph.node_ids().rev() {
        numbers[node as usize] = graph.node(node).results().any(|value| {
            let is_truth = graph.value(value).dtype == Some(DType::Pred) && graph.value(value).n_elements > 1;
            let makes_integers = |&user: &NodeId| {
                let user_node = graph.node(user);
                let dtype = graph.value(user_node.first_result).dtype;
                let decides = match graph.op(user) {
                    Op::Convert => true,
                    Op::Select => user_node.operands[0] == value,
                    _ => false,
                };
                let is_integer = decides && dtype.is_some_and(DType::is_integer) && leads_to_product[user as usize];
                is_integer || dtype == Some(DType::Pred) && numbers[user as usize]
            };
            is_truth && graph.users[value as usize].iter().any(makes_integers)
        });
    }
    numbers
}
