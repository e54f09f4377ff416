//! Optimizers for large batches: the rate of a variable follows the ratio of its size to its step's.

use super::adamw::AdamW;
use super::number;
use super::slot::Slot;
use super::storage::Updated;
use crate::graph::{Graph, Tensor};
use crate::hlo::ops::BinaryOp;
use serde::{Deserialize, Serialize};

/// The settings of LAMB: AdamW, with steps as large as the variable. `w` is the variable, `u` AdamW's direction, `lr` the
/// learning rate.
///
/// ```text
/// u ← AdamW's u + decay·w                                the slots are AdamW's
/// w ← w − lr·(‖w‖ / ‖u‖)·u                               the ratio is 1 where a norm is 0
/// ```
///
/// Variables that `weight_decay` excepts have a ratio of 1 too.
///
/// # Source
/// You et al. 2020, whose code for BERT excepts norms and biases from both; optax's `lamb`, Keras' `Lamb`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lamb {
    /// The share of the mean that stays. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean square that stays. Default 0.999.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// Added to the root. Default 1e-6.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// Whether both means are corrected for their start at 0. Default true.
    pub bias_correction: bool,
}

impl Default for Lamb {
    fn default() -> Lamb {
        Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, bias_correction: true }
    }
}

impl Lamb {
    /// Makes and updates the slots of `variable`; gives what is to be subtracted from its `value`. `decay` is `None` for a
    /// variable that is excepted.
    #[track_caller]
    pub(super) fn emit(
        &self,
        graph: &Graph,
        variable: &Updated<'_>,
        [value, gradient]: [&Tensor; 2],
        decay: Option<f64>,
        learning_rate: &Tensor,
        step: &Tensor,
    ) -> Tensor {
        let Lamb { beta1, beta2, epsilon, bias_correction } = *self;
        let adam = AdamW { beta1, beta2, epsilon, bias_correction, ..AdamW::default() };
        let direction = adam.direction(graph, variable, gradient, step);
        match decay {
            None => learning_rate * direction,
            Some(decay) => {
                let direction = if decay == 0.0 { direction } else { direction + value * decay };
                let (size, of_step) = (variable.norm(value), variable.norm(&direction));
                learning_rate * &ratio(&(&size / &of_step), &size, &of_step) * direction
            }
        }
    }
}

/// The settings of LARS: momentum, with steps of a fixed share of the variable. `w` is the variable, `g` its gradient, `lr`
/// the learning rate.
///
/// ```text
/// r ← lr·trust_coefficient·‖w‖ / (‖g‖ + decay·‖w‖ + epsilon)     lr where a norm is 0
/// a ← momentum·a + r·(g + decay·w)                       the slot momentum, 0 at first
/// w ← w − a
/// ```
///
/// For variables that `weight_decay` excepts `r` is `lr`, and nothing decays.
///
/// # Source
/// You et al. 2017; `lars_util.py` of TensorFlow's TPU models, which train ResNet-50 with it at batches of 32,768. optax's
/// `lars` takes the norm of `g + decay·w` instead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lars {
    /// The share of the momentum that stays. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub momentum: f64,
    /// The share of a variable that a step at rate 1 has. Default 0.001.
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

impl Lars {
    /// Makes and updates the slot of `variable`; gives what is to be subtracted from its `value`. `decay` is `None` for a
    /// variable that is excepted.
    #[track_caller]
    pub(super) fn emit(
        &self,
        graph: &Graph,
        variable: &Updated<'_>,
        [value, gradient]: [&Tensor; 2],
        decay: Option<f64>,
        learning_rate: &Tensor,
    ) -> Tensor {
        let slot = Slot::new(graph, variable, "momentum", variable.dtype);
        let change = match decay {
            None => learning_rate * gradient,
            Some(decay) => {
                let (size, of_step) = (variable.norm(value), variable.norm(gradient));
                let below = match decay {
                    0.0 => of_step.clone(),
                    decay => &of_step + &size * decay,
                };
                let trust = &size * self.trust_coefficient / (below + self.epsilon);
                let gradient = if decay == 0.0 { gradient.clone() } else { gradient + value * decay };
                learning_rate * &ratio(&trust, &size, &of_step) * gradient
            }
        };
        let accumulated = &slot.value * self.momentum + change;
        slot.store(&accumulated);
        accumulated
    }
}

/// `ratio` where both norms are above 0, else 1.
#[track_caller]
fn ratio(ratio: &Tensor, size: &Tensor, of_step: &Tensor) -> Tensor {
    let (zero, one) = (ratio.graph().scalar(ratio.dtype(), 0.0), ratio.graph().scalar(ratio.dtype(), 1.0));
    let is_positive = size.greater(&zero).binary(BinaryOp::And, &of_step.greater(&zero));
    is_positive.select(ratio, &one)
}
