//! RMSProp as in TensorFlow.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot::Slot;
use crate::optim::slot_storage::MomentumDtype;
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
/// `epsilon` is inside the root: EfficientNet's 0.001 corresponds to a root mean square of 0.03. The learning rate is
/// inside the momentum, so a change of the rate reaches the weights slowly.
///
/// `slots: bf16` stores `momentum` in bf16, and leaves `rms_mean` in f32: `c²` is subtracted from `s`, so the rounding
/// error of `c` is not small beside the difference. Rounding by 2^-9 of itself at every step accumulates with `decay`
/// to up to `2^-9 / (1 − decay)` = 2 % of `c`, or 4 % of `c²`: if the standard deviation of gradients is less than a
/// fifth of their mean, the difference would be only rounding error. The test below has an example.
///
/// # Source
/// TensorFlow's `tf.compat.v1.train.RMSPropOptimizer`, which the official TPU models use; its defaults, and its initial
/// `s` of 1. Keras' `RMSprop` starts at 0 and has an `epsilon` of 1e-7. TensorFlow does not take the maximum with 0,
/// and gives NaN where rounding leaves `s − c²` below `-epsilon`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RmsProp {
    /// The share of the means that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub decay: f64,
    /// The share of the momentum that is kept; 0 is no momentum, which takes no memory. Default 0.
    #[serde(deserialize_with = "number::fraction")]
    pub momentum: f64,
    /// Added to the mean square. Default 1e-10.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// Whether the mean square is centered on the mean. Default false.
    pub centered: bool,
    /// The initial mean square. Default 1.
    #[serde(deserialize_with = "number::not_negative")]
    pub initial_accumulator_value: f64,
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp { decay: 0.9, momentum: 0.0, epsilon: 1e-10, centered: false, initial_accumulator_value: 1.0 }
    }
}

impl Rule for RmsProp {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.momentum)
    }

    fn added_to_size(&self) -> Option<f64> {
        Some(self.epsilon.sqrt())
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        match self.momentum {
            0.0 => FirstMoments::None { why: "rmsprop without momentum keeps no first moments" },
            _ => FirstMoments::InF32,
        }
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let gradient = inputs.gradient;
        let moved = |slot: &Slot<'_>, new: &Tensor| {
            let moved = &slot.value * self.decay + new * (1.0 - self.decay);
            slot.store(&moved);
            moved
        };
        let slot = inputs.filled_slot("rms", self.initial_accumulator_value);
        let mut square = moved(&slot, &(gradient * gradient));
        if self.centered {
            let mean = moved(&inputs.slot("rms_mean"), gradient);
            square = (square - &mean * &mean).maximum(&inputs.scalar(0.0));
        }
        let change = inputs.learning_rate * gradient / (square + self.epsilon).sqrt();
        if self.momentum == 0.0 {
            return change;
        }
        let slot = inputs.first_moment("momentum", MomentumDtype::F32);
        let accumulated = &slot.value * self.momentum + change;
        slot.store(&accumulated);
        accumulated
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    /// `√(s − c²)` after 200 steps of gradients that alternate between 1 + 0.02 and 1 - 0.02, with `c` rounded by
    /// `store`.
    fn deviation(store: impl Fn(f32) -> f32) -> f32 {
        let (mut s, mut c) = (1f32, 0f32);
        for step in 0..200 {
            let g = if step % 2 == 0 { 1.02 } else { 0.98 };
            s = 0.9 * s + 0.1 * g * g;
            c = store(0.9 * c + 0.1 * g);
        }
        (s - c * c).max(0.0).sqrt()
    }

    #[test]
    fn the_mean_of_gradients_in_bf16_would_be_the_whole_of_the_deviation() {
        let (in_f32, in_bf16) = (deviation(|c| c), deviation(|c| bf16::from_f32(c).to_f32()));
        assert!((in_f32 - 0.02).abs() < 1e-3, "{in_f32}");
        // c stalls about half an ulp (2^-9) below 1, which c² doubles: √(2 · 2^-9 + 0.02²) = 0.066. It stalls farther
        // off if a tenth of the difference is below half an ulp.
        assert!(in_bf16 > 3.0 * in_f32, "{in_bf16} is near {in_f32}");
    }
}
