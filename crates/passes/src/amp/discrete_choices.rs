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
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::decisions::{calls_regions, choice, precision_class};
use bf16scope_hlo::ops::precision::{Choice, Class};
use bf16scope_hlo::{DType, Op};
use std::collections::BTreeMap;

/// The surroundings of a region, or of an op that runs regions. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegionContext {
    /// For each operand whether it is computed from a product.
    pub learned: Vec<bool>,
    /// For each operand whether it is computed from products, and from no result of a loop or a branch.
    pub of_products_alone: Vec<bool>,
    /// For each operand whether it is the same in every run.
    pub constant: Vec<bool>,
    /// For each result whether a choice depends on it, with no product between.
    pub scores: Vec<bool>,
    /// Whether the program returns a loss, and this region is not on the way to it.
    pub is_backward: bool,
}

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
    /// For each node that runs regions, for each operand and for each result whether it is a score.
    pub of_regions: BTreeMap<NodeId, (Vec<bool>, Vec<bool>)>,
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
    let n = graph.nodes.len();
    // An average that asks for full precision passes scores on as they are.
    let is_product =
        |node: NodeId| graph.node(node).class() == Some(Class::Allow) && graph.node(node).because != Because::Exact;
    let multiplies = |node: NodeId| {
        let op = &graph.instr(graph.node(node)).op;
        precision_class(graph.module, op) == Class::Allow || calls_regions(op)
    };
    let producers = |node: NodeId| graph.node(node).operands.iter().map(|&value| graph.producer(value));
    let flags = |values: &mut dyn Iterator<Item = ValueId>, is_marked: &[bool]| -> Vec<bool> {
        values.map(|value| is_marked[value as usize]).collect()
    };
    let leads_to_loss = if kind == RegionKind::Entry { masks::leads_to_loss(graph) } else { None };
    let is_backward =
        |node: NodeId| leads_to_loss.as_ref().map_or(around.is_backward, |leads_to_loss| !leads_to_loss[node as usize]);
    let is_constant = masks::constants(graph, &around.constant);
    let of_products_alone = of_products_alone(graph, &around.of_products_alone);
    let tell = |node: NodeId, learned: &[bool], scores: Vec<bool>| {
        let taken = || graph.node(node).operands.iter().copied();
        let (learned, constant) = (flags(&mut taken(), learned), flags(&mut taken(), &is_constant));
        let of_products_alone = flags(&mut taken(), &of_products_alone);
        RegionContext { learned, of_products_alone, constant, scores, is_backward: is_backward(node) }
    };
    let mut learned = vec![false; graph.values.len()];
    for node in 0..n as NodeId {
        let record = graph.node(node);
        let op = &graph.instr(record).op;
        let are_learned: Vec<bool> = if record.kind == NodeKind::Parameter {
            around.learned.clone()
        } else if calls_regions(op) {
            through(op, tell(node, &learned, vec![false; record.n_results as usize])).learned
        } else {
            let is_learned = multiplies(node) || record.operands.iter().any(|&value| learned[value as usize]);
            vec![is_learned; record.n_results as usize]
        };
        record.results().zip(are_learned).for_each(|(value, is_learned)| learned[value as usize] = is_learned);
    }
    let mut leads_to_product = vec![false; n];
    if kind == RegionKind::Body {
        graph.results.iter().for_each(|&value| leads_to_product[graph.producer(value) as usize] = true);
    }
    for node in (0..n as NodeId).rev() {
        if is_product(node) || multiplies(node) || leads_to_product[node as usize] {
            producers(node).for_each(|producer| leads_to_product[producer as usize] = true);
        }
    }
    let numbers = numbers(graph, &leads_to_product);
    let leads_on = |node: NodeId| multiplies(node) || leads_to_product[node as usize];
    let masks = masks::masks(graph, kind, [&learned, &is_constant], &is_backward, &leads_on, &|node| {
        is_choice(graph, graph.node(node), &learned)
    });
    let mut choices = Choices { of_node: vec![None; n], ..Choices::default() };
    let mut is_read = vec![false; graph.values.len()];
    for (&value, _) in graph.results.iter().zip(&around.scores).filter(|(_, is_score)| **is_score) {
        let producer = graph.producer(value);
        if graph.value(value).is_f32() && learned[value as usize] {
            is_read[value as usize] = true;
            choices.of_node[producer as usize].get_or_insert(producer);
        }
    }
    for node in (0..n as NodeId).rev() {
        let record = graph.node(node);
        let op = &graph.instr(record).op;
        let known = choices.of_node[node as usize];
        let is_choice = || {
            leads_to_product[node as usize] && is_choice(graph, record, &learned)
                || masks[node as usize]
                || numbers[node as usize] && matches!(op, Op::Compare { .. })
        };
        // An op that computes scores: all its operands count, but not the numbers by which it looks rows up.
        let computes = || !is_product(node) && !matches!(record.kind, NodeKind::Fixed(_) | NodeKind::Parameter);
        let mut operand_scores = None;
        if calls_regions(op) {
            let result_scores: Vec<bool> = record.results().map(|value| is_read[value as usize]).collect();
            let op_result = through(op, tell(node, &learned, result_scores.clone()));
            choices.around.insert(node, op_result.around);
            choices.of_regions.insert(node, (op_result.scores.clone(), result_scores));
            operand_scores = Some(op_result.scores);
        } else if !(known.is_some() && computes() || is_choice()) {
            continue;
        }
        let choice = known.unwrap_or(node);
        for (place, &value) in record.operands.iter().enumerate() {
            let is_score = operand_scores.as_ref().is_none_or(|scores| scores.get(place) == Some(&true));
            if is_score && graph.value(value).is_f32() && learned[value as usize] {
                is_read[value as usize] = true;
                choices.of_node[graph.producer(value) as usize].get_or_insert(choice);
            }
        }
    }
    choices.scores = graph.parameters().map(|value| is_read[value as usize]).collect();
    choices.learned = flags(&mut graph.results.iter().copied(), &learned);
    choices
}

/// Whether a node chooses by its operands, whatever its result is used for.
fn is_choice(graph: &Dataflow<'_>, node: &Node, learned: &[bool]) -> bool {
    let op = &graph.instr(node).op;
    match choice(op) {
        Choice::Never => false,
        Choice::Always => true,
        Choice::OfSeveral => node.n_results > 1,
        Choice::OfIntegers => graph.value(node.first_result).dtype.is_some_and(DType::is_integer),
        Choice::OfOrder => {
            let is_equality = matches!(op, Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. });
            !is_equality && node.operands.iter().all(|&value| learned[value as usize])
        }
    }
}

/// For each node whether its truth values become integers that reach a product. A single truth value does not count:
/// it says whether a step is taken, not which way each element goes.
fn numbers(graph: &Dataflow<'_>, leads_to_product: &[bool]) -> Vec<bool> {
    let mut numbers = vec![false; graph.nodes.len()];
    for node in (0..graph.nodes.len() as NodeId).rev() {
        let record = graph.node(node);
        numbers[node as usize] = record.results().any(|value| {
            let is_truth = graph.value(value).dtype == Some(DType::Pred) && graph.value(value).n_elements > 1;
            let makes_integers = |&user: &NodeId| {
                let user_node = graph.node(user);
                let dtype = graph.value(user_node.first_result).dtype;
                let decides = match graph.instr(user_node).op {
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
