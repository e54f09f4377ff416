//! Adagrad.

use super::number;
use super::slot::Slot;
use super::storage::Updated;
use crate::graph::{Graph, Tensor};
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
    /// The sum at first. Default 0.1.
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

impl Adagrad {
    /// Makes and updates the slot of `variable`; gives what is to be subtracted from it.
    #[track_caller]
    pub(super) fn emit(
        &self,
        graph: &Graph,
        variable: &Updated<'_>,
        gradient: &Tensor,
        learning_rate: &Tensor,
    ) -> Tensor {
        let slot = Slot::filled(graph, variable, "adagrad", self.initial_accumulator_value);
        let sum = &slot.value + gradient * gradient;
        slot.store(&sum);
        let root = if self.epsilon == 0.0 { sum.sqrt() } else { (sum + self.epsilon).sqrt() };
        learning_rate * gradient / root
    }
}
