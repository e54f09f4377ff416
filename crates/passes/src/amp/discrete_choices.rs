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
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::loss::losses;
use super::masks::{Facts, constants, masks};
use super::policy::Because;
use super::recurrences::of_products_alone;
use super::surroundings::{Known, RegionContext};
use bf16scope_hlo::ops::decisions::{calls_regions, precision_class};
use bf16scope_hlo::ops::precision::Class;
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
            let compares = || matches!(graph.op(node), Op::Compare { .. });
            leads_to_product[idx] && self.is_choice(node) || masks.contains(&node) || numbers[idx] && compares()
        };
        graph.node_ids().map(chooses).collect()
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
