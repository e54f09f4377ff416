//! Polynomials of one array, such as those that a framework computes `erfc` by.
//!
//! JAX writes `erfc`, `erf_inv` or `lgamma`, which HLO has no op for, as polynomials in Horner's form, and computes them in
//! f32 whatever dtype it is given: rounded at each term, they would be off by far more than what they read. In a module
//! that was written in f32 nothing says so any more; a chain of at least [`MIN_DEGREE`] multiplications by one value, each
//! with a constant added, does. All that is computed of one array elementwise to make such a chain, or of the chain, is f32,
//! up to where something else reads it; as a back end computes it in one fusion, none of it is stored.

use super::graph::{Graph, NodeId, NodeKind, ValueId};
use super::painted::{Painted, Rule};
use super::unstored::Unstored;
use crate::hlo::Op;
use crate::hlo::ops::BinaryOp;
use crate::hlo::ops::decisions::is_map;
use crate::hlo::ops::precision::Class;

/// Terms beside the first that a polynomial has at least. Of fewer are the approximations of activations that networks
/// written for bf16 compute in it, such as GELU's of degree 3.
const MIN_DEGREE: u32 = 4;

/// What a value is computed of, elementwise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Of constants.
    Constants,
    /// Of constants and this value alone.
    One(ValueId),
}

/// A chain of multiplications by a value, each with a constant added.
#[derive(Clone, Copy)]
struct Chain {
    by: ValueId,
    degree: u32,
}

/// The nodes that belong to polynomials of one array: they compute in f32.
pub(super) fn polynomials(graph: &Graph<'_>, painted: &Painted) -> Vec<Unstored> {
    let sources = sources(graph);
    let users = |node: NodeId| graph.node(node).results().flat_map(|value| graph.users[value as usize].iter().copied());
    let source = |node: NodeId| match sources[graph.node(node).first_result as usize] {
        // What is no function of another is its own source.
        Source::One(value) if graph.producer(value) != node => Some(value),
        _ => None,
    };
    let is_inside = |node: NodeId| users(node).all(|user| source(user) == source(node));
    let mut open = chains(graph, &sources);
    let mut found = vec![false; graph.nodes.len()];
    open.iter().for_each(|&node| found[node as usize] = true);
    while let Some(node) = open.pop() {
        let before = graph.node(node).operands.iter().map(|&value| graph.producer(value));
        let behind = users(node).filter(|_| is_inside(node));
        for next in before.filter(|&maker| is_inside(maker)).chain(behind) {
            if source(next) == source(node) && !std::mem::replace(&mut found[next as usize], true) {
                open.push(next);
            }
        }
    }
    let is_kept = |&node: &NodeId| {
        let of = graph.node(node);
        let is_open = match of.class() {
            Some(Class::Infer) => painted.low[node as usize],
            Some(Class::Clear) => graph.value(of.first_result).is_f32() && is_inside(node),
            _ => false,
        };
        found[node as usize] && is_open
    };
    let unstored = |node: NodeId| {
        let is_read_narrow = users(node).any(|user| painted.low[user as usize] && !found[user as usize]);
        let is_stored = !is_inside(node) && is_read_narrow && users(node).count() > 1;
        Unstored { node, from: None, rule: if is_stored { Rule::Rounded } else { Rule::Polynomial } }
    };
    (0..graph.nodes.len() as NodeId).filter(is_kept).map(unstored).collect()
}

/// What each value is computed of.
fn sources(graph: &Graph<'_>) -> Vec<Source> {
    let mut sources: Vec<Source> = (0..graph.values.len() as ValueId).map(Source::One).collect();
    for of in &graph.nodes {
        let mut varying =
            of.operands.iter().map(|&value| sources[value as usize]).filter(|&source| source != Source::Constants);
        let source = match (&of.kind, varying.next()) {
            (NodeKind::Constant, _) => Some(Source::Constants),
            (NodeKind::Op(_), None) if !of.operands.is_empty() => Some(Source::Constants),
            (NodeKind::Op(_), Some(first)) => {
                let op = &graph.instr(of).op;
                let is_placing = matches!(op, Op::Broadcast { .. } | Op::Reshape);
                Some(first).filter(|_| is_map(op) && !is_placing && varying.all(|source| source == first))
            }
            _ => None,
        };
        if let Some(source) = source {
            of.results().for_each(|value| sources[value as usize] = source);
        }
    }
    sources
}

/// The sums of the terms of chains that are long enough, from the first with as many terms.
fn chains(graph: &Graph<'_>, sources: &[Source]) -> Vec<NodeId> {
    let is_constant = |value: ValueId| sources[value as usize] == Source::Constants;
    let binary = |node: NodeId, wanted: BinaryOp| {
        let of = graph.node(node);
        let is_wanted = of.class() == Some(Class::Infer) && graph.instr(of).op == Op::Binary(wanted);
        <[ValueId; 2]>::try_from(&of.operands[..]).ok().filter(|_| is_wanted)
    };
    let mut chains: Vec<Option<Chain>> = vec![None; graph.nodes.len()];
    for node in 0..graph.nodes.len() as NodeId {
        let Some([x, y]) = binary(node, BinaryOp::Add) else { continue };
        let product = match (is_constant(x), is_constant(y)) {
            (true, false) => y,
            (false, true) => x,
            _ => continue,
        };
        let Some([x, y]) = binary(graph.producer(product), BinaryOp::Multiply) else { continue };
        let goes_on = |sum: ValueId, by: ValueId| chains[graph.producer(sum) as usize].filter(|chain| chain.by == by);
        let chain = match (is_constant(x), is_constant(y)) {
            (true, false) => Some(Chain { by: y, degree: 1 }),
            (false, true) => Some(Chain { by: x, degree: 1 }),
            (false, false) => {
                let before = goes_on(x, y).or_else(|| goes_on(y, x));
                before.map(|chain| Chain { degree: chain.degree + 1, ..chain })
            }
            _ => None,
        };
        chains[node as usize] = chain;
    }
    let is_long = |&node: &NodeId| chains[node as usize].is_some_and(|chain| chain.degree >= MIN_DEGREE);
    (0..graph.nodes.len() as NodeId).filter(is_long).collect()
}
