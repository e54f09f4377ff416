//! Gradient descent with momentum.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use serde::{Deserialize, Serialize};

/// The settings of momentum. `w` is the variable, `g` its gradient, `lr` the learning rate.
///
/// ```text
/// a ← momentum·a + g                                     the slot momentum, 0 at first
/// w ← w − lr·a                                           with nesterov: w − lr·(g + momentum·a)
/// ```
///
/// # Source
/// TensorFlow's `MomentumOptimizer` and optax's `sgd`. Keras 2's has the learning rate inside the slot instead, which
/// differs once the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Momentum {
    /// The share of the slot that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub momentum: f64,
    /// Whether to look ahead, as Nesterov does. Default false.
    pub nesterov: bool,
    /// The storage of the slot. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Default for Momentum {
    fn default() -> Momentum {
        Momentum { momentum: 0.9, nesterov: false, momentum_dtype: MomentumDtype::F32 }
    }
}

impl Rule for Momentum {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.momentum)
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::StoredAs(&mut self.momentum_dtype)
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let slot = inputs.first_moment("momentum", self.momentum_dtype);
        let accumulated = &slot.value * self.momentum + inputs.gradient;
        slot.store(&accumulated);
        match self.nesterov {
            true => inputs.learning_rate * (inputs.gradient + &accumulated * self.momentum),
            false => inputs.learning_rate * accumulated,
        }
    }
}
