//! LARS, for large batches: momentum with steps that are a fixed share of the variable.

use super::trust::trusted;
use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{DecayForm, FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use serde::{Deserialize, Serialize};

/// The settings of LARS: momentum with steps that are a fixed share of the variable. `w` is the variable, `g` its
/// gradient, `lr` the learning rate.
///
/// ```text
/// r ← lr·trust_coefficient·‖w‖ / (‖g‖ + decay·‖w‖ + epsilon)     lr where a norm is 0
/// a ← momentum·a + r·(g + decay·w)                       the slot momentum, 0 at first
/// w ← w − a
/// ```
///
/// For variables that `weight_decay` excepts, `r` is `lr`, and there is no decay.
///
/// # Source
/// You et al. 2017; `lars_util.py` of TensorFlow's TPU models, which train ResNet-50 with it at batches of 32,768. optax's
/// `lars` takes the norm of `g + decay·w` instead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lars {
    /// The share of the momentum that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub momentum: f64,
    /// The share of a variable's norm in a step at rate 1. Default 0.001.
    #[serde(deserialize_with = "number::positive")]
    pub trust_coefficient: f64,
    /// Added to the norms. Default 0.
    #[serde(deserialize_with = "number::not_negative")]
    pub epsilon: f64,
}

impl Default for Lars {
    fn default() -> Lars {
        Lars { momentum: 0.9, trust_coefficient: 0.001, epsilon: 0.0 }
    }
}

impl Rule for Lars {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.momentum)
    }

    const DECAY: DecayForm = DecayForm::InSlots;

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::InF32
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let (value, gradient, learning_rate) = (inputs.value(), inputs.gradient, inputs.learning_rate);
        let slot = inputs.first_moment("momentum", MomentumDtype::F32);
        let change = match inputs.decay {
            None => learning_rate * gradient,
            Some(decay) => {
                let (size, of_step) = (inputs.variable.norm(value), inputs.variable.norm(gradient));
                let below = match decay {
                    0.0 => of_step.clone(),
                    decay => &of_step + &size * decay,
                };
                let ratio = &size * self.trust_coefficient / (below + self.epsilon);
                let gradient = if decay == 0.0 { gradient.clone() } else { gradient + value * decay };
                learning_rate * &trusted(&ratio, &size, &of_step) * gradient
            }
        };
        let accumulated = &slot.value * self.momentum + change;
        slot.store(&accumulated);
        accumulated
    }
}
