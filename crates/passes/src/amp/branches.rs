//! What branches of a `conditional` give, and of what it is computed.
//!
//! A back end stores what a branch takes and what it gives, as a branch is a program of its own. Between products both are
//! rounded for that, as anything else is that is stored. JAX's backward pass of a `cond` gives of each branch what its
//! gradient needs, and zeros for what the other branches' gradients need: so a result is of a product if it is in one.

use super::dataflow::{Dataflow, NodeId, ValueId};
use bf16scope_hlo::ops::precision::Class;

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
pub(super) fn of_region(graph: &Dataflow<'_>) -> Branch {
    let taken: Vec<ValueId> = graph.parameters().collect();
    let products = (0..graph.nodes.len() as NodeId).filter(|&node| graph.node(node).class() == Some(Class::Allow));
    let of_product = graph.reached(products.flat_map(|node| graph.node(node).results()).collect(), |_| true);
    let arrays =
        taken.iter().copied().filter(|&value| graph.value(value).is_f32() && graph.value(value).n_elements > 1);
    let of_taken = graph.reached(arrays.collect(), |_| true);
    let of_results = |found: &[bool]| graph.results.iter().map(|&value| found[value as usize]).collect();
    Branch { n_taken: taken.len(), of_product: of_results(&of_product), of_taken: of_results(&of_taken) }
}
