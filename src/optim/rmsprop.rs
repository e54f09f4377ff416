//! RMSProp as TensorFlow has it.

use super::number;
use super::slot::Slot;
use super::storage::Updated;
use crate::graph::{Graph, Tensor};
use serde::{Deserialize, Serialize};

/// The settings of RMSProp. In the formulas `w` is the variable, `g` its gradient, `lr` the learning rate.
///
/// ```text
/// s ← decay·s + (1 − decay)·g²                           the slot rms, initial_accumulator_value at first
/// c ← decay·c + (1 − decay)·g                            only if centered: the slot rms_mean, 0 at first
/// u ← lr·g / √(s + epsilon)                              centered: lr·g / √(max(s − c², 0) + epsilon)
/// m ← momentum·m + u                                     only with momentum: the slot momentum, 0 at first
/// w ← w − m                                              without momentum: w − u
/// ```
///
/// `epsilon` is inside the root: EfficientNet's 0.001 stands for a root mean square of 0.03. The learning rate is inside
/// the momentum, so that a change of it reaches the weights slowly.
///
/// # Source
/// TensorFlow's `tf.compat.v1.train.RMSPropOptimizer`, which the official TPU models use; its defaults, and `s` from 1 as
/// there. Keras' `RMSprop` starts at 0 and has an `epsilon` of 1e-7. TensorFlow does not take the maximum with 0, and has
/// NaN where rounding leaves `s − c²` below `-epsilon`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RmsProp {
    /// The share of the means that stays. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub decay: f64,
    /// The share of the momentum that stays; 0 is no momentum, which takes no memory. Default 0.
    #[serde(deserialize_with = "number::fraction")]
    pub momentum: f64,
    /// Added to the mean square. Default 1e-10.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// Whether the mean square is about the mean. Default false.
    pub centered: bool,
    /// The mean square at first. Default 1.
    #[serde(deserialize_with = "number::not_negative")]
    pub initial_accumulator_value: f64,
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp { decay: 0.9, momentum: 0.0, epsilon: 1e-10, centered: false, initial_accumulator_value: 1.0 }
    }
}

impl RmsProp {
    /// Makes and updates the slots of `variable`; gives what is to be subtracted from it.
    #[track_caller]
    pub(super) fn emit(
        &self,
        graph: &Graph,
        variable: &Updated<'_>,
        gradient: &Tensor,
        learning_rate: &Tensor,
    ) -> Tensor {
        let moved = |slot: &Slot<'_>, new: &Tensor| {
            let moved = &slot.value * self.decay + new * (1.0 - self.decay);
            slot.store(&moved);
            moved
        };
        let slot = Slot::filled(graph, variable, "rms", self.initial_accumulator_value);
        let mut square = moved(&slot, &(gradient * gradient));
        if self.centered {
            let mean = moved(&Slot::new(graph, variable, "rms_mean", variable.dtype), gradient);
            square = (square - &mean * &mean).maximum(&graph.scalar(variable.dtype, 0.0));
        }
        let change = learning_rate * gradient / (square + self.epsilon).sqrt();
        if self.momentum == 0.0 {
            return change;
        }
        let slot = Slot::new(graph, variable, "momentum", variable.dtype);
        let accumulated = &slot.value * self.momentum + change;
        slot.store(&accumulated);
        accumulated
    }
}
