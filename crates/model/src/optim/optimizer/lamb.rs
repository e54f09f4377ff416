//! LAMB, for large batches: the rate of a variable is scaled by the ratio of its norm to its step's.

use super::adamw::AdamW;
use super::trust::trusted;
use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{DecayForm, FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use serde::{Deserialize, Serialize};

/// The settings of LAMB: AdamW with steps relative to the variable's norm. `w` is the variable, `u` AdamW's direction,
/// `lr` the learning rate.
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
    /// The share of the mean that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean square that is kept. Default 0.999.
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

impl Rule for Lamb {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.beta1)
    }

    fn added_to_size(&self) -> Option<f64> {
        Some(self.epsilon)
    }

    const DECAY: DecayForm = DecayForm::InRule;

    fn reads_step(&self) -> bool {
        self.bias_correction
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::InF32
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let Lamb { beta1, beta2, epsilon, bias_correction } = *self;
        let adam =
            AdamW { beta1, beta2, epsilon, bias_correction, momentum_dtype: MomentumDtype::F32, ..AdamW::default() };
        let direction = adam.direction(inputs);
        match inputs.decay {
            None => inputs.learning_rate * direction,
            Some(decay) => {
                let direction = if decay == 0.0 { direction } else { direction + inputs.value() * decay };
                let (size, of_step) = (inputs.variable.norm(inputs.value()), inputs.variable.norm(&direction));
                inputs.learning_rate * &trusted(&(&size / &of_step), &size, &of_step) * direction
            }
        }
    }
}
