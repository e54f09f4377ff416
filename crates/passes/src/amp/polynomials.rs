//! Polynomials of one array, such as those that a framework computes `erfc` by.
//!
//! JAX writes `erfc`, which HLO has no op for, or `erf_inv` as polynomials in Horner's form, and computes them in f32 whatever
//! dtype it is given: rounded at each term, they would be off by more than what they read. In a module that was written in
//! f32 nothing says so any more; a chain of at least [`MIN_DEGREE`] multiplications by one value, each with a constant added,
//! does. All that is computed of one array elementwise to make such a chain, or of the chain, is f32, up to where something
//! else reads it; as a back end computes it in one fusion, none of it is stored. A polynomial whose terms something else reads,
//! as its gradient by that value does, is none: it is stored term by term.

use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::painted::{Painted, Rule};
use super::unstored::Unstored;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::BinaryOp;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;

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
pub(super) fn polynomials(graph: &Dataflow<'_>, painted: &Painted) -> Vec<Unstored> {
    let sources = sources(graph);
    let nodes = || 0..graph.nodes.len() as NodeId;
    let users = |node: NodeId| graph.node(node).results().flat_map(|value| graph.users[value as usize].iter().copied());
    let source = |node: NodeId| match sources[graph.node(node).first_result as usize] {
        // What is no function of another is its own source.
        Source::One(value) if graph.producer(value) != node => Some(value),
        _ => None,
    };
    let is_inside: Vec<bool> = nodes().map(|node| users(node).all(|user| source(user) == source(node))).collect();
    let mut open = chains(graph, &sources, &is_inside);
    let mut found = vec![false; graph.nodes.len()];
    open.iter().for_each(|&node| found[node as usize] = true);
    while let Some(node) = open.pop() {
        let before = graph.node(node).operands.iter().map(|&value| graph.producer(value));
        let behind = users(node).filter(|_| is_inside[node as usize]);
        for next in before.filter(|&maker| is_inside[maker as usize]).chain(behind) {
            if source(next) == source(node) && !std::mem::replace(&mut found[next as usize], true) {
                open.push(next);
            }
        }
    }
    let mut is_read_narrow = vec![false; graph.nodes.len()];
    for node in nodes().rev() {
        is_read_narrow[node as usize] = users(node).filter(|&user| !found[user as usize]).any(|user| {
            let is_move = graph.node(user).class() == Some(Class::Clear);
            painted.low[user as usize] || is_move && is_read_narrow[user as usize]
        });
    }
    let is_kept = |&node: &NodeId| {
        let of = graph.node(node);
        let is_open = match of.class() {
            Some(Class::Infer) => painted.low[node as usize],
            Some(Class::Clear) => graph.value(of.first_result).is_f32(),
            _ => false,
        };
        found[node as usize] && is_open
    };
    let unstored = |node: NodeId| {
        let is_stored = is_read_narrow[node as usize] && users(node).count() > 1;
        Unstored { node, from: None, rule: if is_stored { Rule::Rounded } else { Rule::Polynomial } }
    };
    nodes().filter(is_kept).map(unstored).collect()
}

/// What each value is computed of.
fn sources(graph: &Dataflow<'_>) -> Vec<Source> {
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
fn chains(graph: &Dataflow<'_>, sources: &[Source], is_inside: &[bool]) -> Vec<NodeId> {
    let is_constant = |value: ValueId| sources[value as usize] == Source::Constants;
    // One number, or one of two.
    let is_coefficient = |value: ValueId| {
        let of = graph.node(graph.producer(value));
        let is_choice = of.operands.len() == 3 && graph.instr(of).op == Op::Select;
        is_constant(value) || is_choice && of.operands[1..].iter().all(|&value| is_constant(value))
    };
    let binary = |node: NodeId, wanted: BinaryOp| {
        let of = graph.node(node);
        let is_wanted = of.class() == Some(Class::Infer) && graph.instr(of).op == Op::Binary(wanted);
        <[ValueId; 2]>::try_from(&of.operands[..]).ok().filter(|_| is_wanted)
    };
    // The two values of which a coefficient is one, in this order.
    let taken_apart = |[x, y]: [ValueId; 2]| match (is_coefficient(x), is_coefficient(y)) {
        (true, false) => Some([x, y]),
        (false, true) => Some([y, x]),
        _ => None,
    };
    let mut chains: Vec<Option<Chain>> = vec![None; graph.nodes.len()];
    for node in 0..graph.nodes.len() as NodeId {
        let Some([_, product]) = binary(node, BinaryOp::Add).and_then(taken_apart) else { continue };
        let maker = graph.producer(product);
        let Some(factors) = binary(maker, BinaryOp::Multiply).filter(|_| is_inside[maker as usize]) else { continue };
        let goes_on = |sum: ValueId, by: ValueId| {
            let maker = graph.producer(sum) as usize;
            chains[maker].filter(|chain| chain.by == by && is_inside[maker])
        };
        chains[node as usize] = match taken_apart(factors) {
            Some([_, by]) => Some(Chain { by, degree: 1 }),
            None => {
                let [x, y] = factors;
                let before = goes_on(x, y).or_else(|| goes_on(y, x));
                before.map(|chain| Chain { degree: chain.degree + 1, ..chain })
            }
        };
    }
    let is_long = |&node: &NodeId| chains[node as usize].is_some_and(|chain| chain.degree >= MIN_DEGREE);
    (0..graph.nodes.len() as NodeId).filter(is_long).collect()
}
