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

/// Describes the branch that is this region.
pub(super) fn of_region(graph: &Dataflow<'_>) -> Branch {
    let taken: Vec<ValueId> = graph.parameters().collect();
    let products = graph.nodes.iter().filter(|node| node.is_product());
    let of_product = graph.reached(products.flat_map(Node::results).collect(), |_| true);
    let arrays = taken.iter().copied().filter(|&value| graph.value(value).is_f32_array());
    let of_taken = graph.reached(arrays.collect(), |_| true);
    let of_results = |is_reached: &[bool]| graph.results.iter().map(|&value| is_reached[value as usize]).collect();
    Branch { n_taken: taken.len(), of_product: of_results(&of_product), of_taken: of_results(&of_taken) }
}
