//! The interface of a layer kind to the table: its options, and how to build it.

use crate::graph::{Scope, Tensor};

/// The number of tensors that a layer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Nothing.
    Nothing,
    /// One.
    One,
    /// One, or two.
    OneOrTwo,
    /// One to three.
    UpToThree,
    /// Two or more; their list is the layer's main option: `{add: [a, b]}`.
    Several,
    /// Those that its formula names.
    Named,
}

/// The options of a layer kind, and how to build it.
pub(super) trait LayerOptions {
    /// The number of tensors that it reads.
    const ARITY: Arity = Arity::One;

    /// The approximate number of plain layers in it.
    fn n_layers(&self) -> i64 {
        1
    }

    /// For a layer that reads indices: their exclusive upper bound.
    fn n_values(&self) -> Option<i64> {
        None
    }

    /// Builds it under `name`. Wrong shapes are errors of the graph.
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor;
}
