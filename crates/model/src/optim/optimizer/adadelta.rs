//! Adadelta.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot::Slot;
use serde::{Deserialize, Serialize};

/// The settings of Adadelta, whose steps have the size of earlier ones. `w` is the variable, `g` its gradient, `lr` the
/// learning rate, which is 1 in the paper; slots start at 0.
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
    /// The share of the means that is kept. Default 0.95.
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

impl Rule for Adadelta {
    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::None { why: "adadelta keeps no first moments" }
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let [squares, changes] = ["adadelta_square", "adadelta_change"].map(|name| inputs.slot(name));
        let moved = |slot: &Slot<'_>, new: &Tensor| {
            let moved = &slot.value * self.rho + new * new * (1.0 - self.rho);
            slot.store(&moved);
            moved
        };
        let root = |mean: &Tensor| (mean + self.epsilon).sqrt();
        let change = inputs.gradient * root(&changes.value) / root(&moved(&squares, inputs.gradient));
        moved(&changes, &change);
        inputs.learning_rate * change
    }
}
