//! What a kind of layer is to the table: options, and what is built of them.

use crate::graph::{Scope, Tensor};

/// How many tensors a layer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// One.
    One,
    /// One, or two.
    OneOrTwo,
    /// One to three.
    UpToThree,
    /// Two or more; they are the layer's main option: `{add: [a, b]}`.
    Several,
    /// Those that it names itself.
    Named,
}

/// What a kind of layer is: options, and what is built of them.
pub(super) trait LayerOptions {
    /// How many tensors it reads.
    const ARITY: Arity = Arity::One;

    /// How many plain layers it is, about, where a network's are counted.
    fn n_layers(&self) -> i64 {
        1
    }

    /// Of a layer that reads indices: what they are below.
    fn n_values(&self) -> Option<i64> {
        None
    }

    /// Builds it under `name`. Wrong shapes are errors of the graph.
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor;
}
