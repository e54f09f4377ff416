//! Products whose results decide something discrete that the program computes on with, as a router's scores decide which
//! experts a token goes to.
//!
//! Rounding scores by 2^-9 moves no number far, but where two are near each other it changes which is the greater one, and
//! with it everything that is computed from the choice. So the products from which scores are made stay f32, and so does
//! what is computed between them and the choice. What is computed from the choice is lowered as anything else is, and a
//! choice from which no product is computed, such as an accuracy that a step reports, is nobody's concern.
//!
//! A choice is a `sort`, a `topk`, a reduction of several arrays together (`argmax`), a conversion to integers, or a
//! comparison of two values that are both computed from products, other than for equality: that is how gradients find which
//! operand was the maximum. What a loop's step or a branch gives may go to a product outside, so there it counts as going to
//! one; and so does what a loop or a branch reads, and a product of any dtype. A choice in a loop of scores that were made
//! outside is not seen.

use super::graph::{Graph, Node, NodeId, NodeKind, ValueId};
use super::painted::RegionKind;
use crate::hlo::ops::Comparison;
use crate::hlo::ops::decisions::{calls_regions, precision_class};
use crate::hlo::ops::precision::Class;
use crate::hlo::{DType, Op};

/// For each node of a region the choice that it is computed for, with no product between.
pub(super) fn decides(graph: &Graph<'_>, kind: RegionKind) -> Vec<Option<NodeId>> {
    let n = graph.nodes.len();
    let is_product = |node: NodeId| graph.node(node).class() == Some(Class::Allow);
    let producers = |node: NodeId| graph.node(node).operands.iter().map(|&value| graph.producer(value));
    let mut of_product = vec![false; n];
    for node in 0..n as NodeId {
        of_product[node as usize] = is_product(node) || producers(node).any(|producer| of_product[producer as usize]);
    }
    let mut leads_to_product = vec![false; n];
    if kind == RegionKind::Body {
        graph.results.iter().for_each(|&value| leads_to_product[graph.producer(value) as usize] = true);
    }
    let multiplies = |node: NodeId| {
        let op = &graph.instr(graph.node(node)).op;
        precision_class(graph.module, op) == Class::Allow || calls_regions(op)
    };
    for node in (0..n as NodeId).rev() {
        if is_product(node) || multiplies(node) || leads_to_product[node as usize] {
            producers(node).for_each(|producer| leads_to_product[producer as usize] = true);
        }
    }
    let mut found: Vec<Option<NodeId>> = vec![None; n];
    for node in (0..n as NodeId).rev() {
        let of = graph.node(node);
        let scores: &[ValueId] = match found[node as usize] {
            // What computes scores, but not what it looks up by number or is told by another choice.
            Some(_) if is_product(node) || matches!(of.kind, NodeKind::Fixed(_) | NodeKind::Parameter) => continue,
            Some(_) => &of.operands,
            None if leads_to_product[node as usize] => scores(graph, of, &of_product),
            None => continue,
        };
        let choice = found[node as usize].unwrap_or(node);
        for &value in scores.iter().filter(|&&value| graph.value(value).is_f32()) {
            let producer = graph.producer(value) as usize;
            if of_product[producer] {
                found[producer].get_or_insert(choice);
            }
        }
    }
    found
}

/// What a choice compares; nothing of what is none.
fn scores<'g>(graph: &'g Graph<'_>, node: &'g Node, of_product: &[bool]) -> &'g [ValueId] {
    let is_learned = |value: &ValueId| of_product[graph.producer(*value) as usize];
    match &graph.instr(node).op {
        Op::Sort { .. } => &node.operands,
        Op::Opaque(opaque) if opaque.opcode == "topk" => &node.operands,
        Op::CustomCall(call) if call.target == "TopK" => &node.operands,
        Op::Reduce { .. } if node.n_results > 1 => &node.operands,
        Op::Convert if graph.value(node.first_result).dtype.is_some_and(DType::is_integer) => &node.operands,
        Op::Compare { direction, .. } if !matches!(direction, Comparison::Eq | Comparison::Ne) => {
            let learned = node.operands.iter().all(is_learned);
            if learned { &node.operands } else { &[] }
        }
        _ => &[],
    }
}
