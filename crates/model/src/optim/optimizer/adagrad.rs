//! Adagrad.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use serde::{Deserialize, Serialize};

/// The settings of Adagrad, whose steps shrink as squared gradients add up. `w` is the variable, `g` its gradient, `lr` the
/// learning rate.
///
/// ```text
/// s ← s + g²                                             the slot adagrad, initial_accumulator_value at first
/// w ← w − lr·g / √(s + epsilon)
/// ```
///
/// # Source
/// Duchi et al. 2011; Keras' `Adagrad`. With an `epsilon` of 0 it is `tf.compat.v1.train.AdagradOptimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adagrad {
    /// The initial sum. Default 0.1.
    #[serde(deserialize_with = "number::positive")]
    pub initial_accumulator_value: f64,
    /// Added to the sum. Default 1e-7.
    #[serde(deserialize_with = "number::not_negative")]
    pub epsilon: f64,
}

impl Default for Adagrad {
    fn default() -> Adagrad {
        Adagrad { initial_accumulator_value: 0.1, epsilon: 1e-7 }
    }
}

impl Rule for Adagrad {
    fn added_to_size(&self) -> Option<f64> {
        Some(self.epsilon)
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::None { why: "adagrad keeps no first moments" }
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let slot = inputs.filled_slot("adagrad", self.initial_accumulator_value);
        let sum = &slot.value + inputs.gradient * inputs.gradient;
        slot.store(&sum);
        let root = if self.epsilon == 0.0 { sum.sqrt() } else { (sum + self.epsilon).sqrt() };
        inputs.learning_rate * inputs.gradient / root
    }
}
