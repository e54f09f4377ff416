//! Adadelta.

use super::number;
use super::slot::Slot;
use super::storage::Updated;
use crate::graph::{Graph, Tensor};
use serde::{Deserialize, Serialize};

/// The settings of Adadelta, whose steps have the size of those before. `w` is the variable, `g` its gradient, `lr` the
/// learning rate, for which the paper has 1; slots start at 0.
///
/// ```text
/// s ← rho·s + (1 − rho)·g²                               the slot adadelta_square
/// u ← g·√(d + epsilon) / √(s + epsilon)
/// d ← rho·d + (1 − rho)·u²                               the slot adadelta_change
/// w ← w − lr·u
/// ```
///
/// # Source
/// Zeiler 2012; TensorFlow's `ApplyAdadelta`; the defaults are Keras'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adadelta {
    /// The share of the means that stays. Default 0.95.
    #[serde(deserialize_with = "number::fraction")]
    pub rho: f64,
    /// Added to both means. Default 1e-7.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
}

impl Default for Adadelta {
    fn default() -> Adadelta {
        Adadelta { rho: 0.95, epsilon: 1e-7 }
    }
}

impl Adadelta {
    /// Makes and updates the slots of `variable`; gives what is to be subtracted from it.
    #[track_caller]
    pub(super) fn emit(
        &self,
        graph: &Graph,
        variable: &Updated<'_>,
        gradient: &Tensor,
        learning_rate: &Tensor,
    ) -> Tensor {
        let [squares, changes] =
            ["adadelta_square", "adadelta_change"].map(|name| Slot::new(graph, variable, name, variable.dtype));
        let moved = |slot: &Slot<'_>, new: &Tensor| {
            let moved = &slot.value * self.rho + new * new * (1.0 - self.rho);
            slot.store(&moved);
            moved
        };
        let root = |mean: &Tensor| (mean + self.epsilon).sqrt();
        let change = gradient * root(&changes.value) / root(&moved(&squares, gradient));
        moved(&changes, &change);
        learning_rate * change
    }
}
