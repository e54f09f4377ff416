//! The results of a `conditional`'s branches, and the values from which they are computed.
//!
//! A back end materialises the operands and results of a branch, as a branch is a program of its own. Between products
//! both are rounded for that, as any other materialised value is. JAX's backward pass of a `cond` returns from each
//! branch what its own gradient needs, and zeros for what the gradients of other branches need: so a result counts as
//! computed from a product if it is in any branch.

use super::dataflow::{Dataflow, Node, ValueId};

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
pub(super) fn of_region(graph: &Dataflow<'_>, scores: &[bool]) -> Branch {
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
