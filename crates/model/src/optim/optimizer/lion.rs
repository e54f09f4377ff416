//! Lion: the sign of a mean of gradients.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{DecayForm, FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use bf16scope_hlo::ops::UnaryOp;
use serde::{Deserialize, Serialize};

/// The settings of Lion. `w` is the variable, `g` its gradient, `lr` the learning rate.
///
/// ```text
/// u ← sign(beta1·m + (1 − beta1)·g)
/// m ← beta2·m + (1 − beta2)·g                            the slot lion_m, 0 at first
/// w ← w − lr·u
/// ```
///
/// Every element moves by the rate, so a tenth to a third of Adam's rate is usual, with a proportionally larger weight
/// decay.
///
/// # Source
/// Chen et al. 2023, algorithm 2; optax's and Keras' `Lion`, whose weight decay is decoupled too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lion {
    /// The share of the mean in the step. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean that is kept. Default 0.99.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// The dtype in which `m` is stored. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Default for Lion {
    fn default() -> Lion {
        Lion { beta1: 0.9, beta2: 0.99, momentum_dtype: MomentumDtype::F32 }
    }
}

impl Rule for Lion {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.beta1)
    }

    const DECAY: DecayForm = DecayForm::Beside;

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::StoredAs(&mut self.momentum_dtype)
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let slot = inputs.first_moment("lion_m", self.momentum_dtype);
        let blend = |beta: f64| &slot.value * beta + inputs.gradient * (1.0 - beta);
        let direction = blend(self.beta1).unary(UnaryOp::Sign);
        slot.store(&blend(self.beta2));
        inputs.learning_rate * direction
    }
}
