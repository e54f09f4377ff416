//! What branches of a `conditional` give, and of what it is computed.
//!
//! A back end stores what a branch takes and what it gives, as a branch is a program of its own. Between products both are
//! rounded for that, as anything else is that is stored. JAX's backward pass of a `cond` gives of each branch what its
//! gradient needs, and zeros for what the other branches' gradients need: so a result is of a product if it is in one.

use super::graph::{Graph, NodeId, NodeKind, ValueId};
use crate::hlo::ops::precision::Class;

/// What a branch gives, for each of its results.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// How many values it takes.
    pub n_taken: usize,
    /// Whether a result is computed from a product of the branch.
    pub of_product: Vec<bool>,
    /// Whether a result is computed from an array of f32 that it takes.
    pub of_taken: Vec<bool>,
}

/// The branch that this region is.
pub(super) fn of_region(graph: &Graph<'_>) -> Branch {
    let taken: Vec<ValueId> = (graph.nodes.iter().filter(|node| node.kind == NodeKind::Parameter))
        .flat_map(super::graph::Node::results)
        .collect();
    let products = (0..graph.nodes.len() as NodeId).filter(|&node| graph.node(node).class() == Some(Class::Allow));
    let of_product = reached(graph, products.flat_map(|node| graph.node(node).results()).collect());
    let arrays =
        taken.iter().copied().filter(|&value| graph.value(value).is_f32() && graph.value(value).n_elements > 1);
    let of_taken = reached(graph, arrays.collect());
    let of_results = |found: &[bool]| graph.results.iter().map(|&value| found[value as usize]).collect();
    Branch { n_taken: taken.len(), of_product: of_results(&of_product), of_taken: of_results(&of_taken) }
}

/// For each value whether it is one of these or is computed from them.
fn reached(graph: &Graph<'_>, mut open: Vec<ValueId>) -> Vec<bool> {
    let mut found = vec![false; graph.values.len()];
    while let Some(value) = open.pop() {
        if !std::mem::replace(&mut found[value as usize], true) {
            open.extend(graph.users[value as usize].iter().flat_map(|&user| graph.node(user).results()));
        }
    }
    found
}
