//! Nadam: Adam with Nesterov's look-ahead.

use super::adamw::one_minus_power;
use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use serde::{Deserialize, Serialize};

/// The settings of Nadam. `w` is the variable, `g` its gradient, `lr` the learning rate, `t` is 1 at the first step; slots
/// start at 0, and `p` at 1.
///
/// ```text
/// u(t) = beta1·(1 − 0.5·0.96^t)
/// p ← p·u(t)                                             the slot nadam_p, one number
/// m ← beta1·m + (1 − beta1)·g                            the slot nadam_m
/// v ← beta2·v + (1 − beta2)·g²                           the slot nadam_v
/// d ← u(t+1)·m / (1 − p·u(t+1)) + (1 − u(t))·g / (1 − p)
/// w ← w − lr·d / (√(v / (1 − beta2^t)) + epsilon)
/// ```
///
/// # Source
/// Dozat 2015; Keras' `Nadam`, operation for operation except `1 − beta2^t`, which is computed without cancellation.
/// PyTorch's `NAdam` has another schedule of `u`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nadam {
    /// The share of the mean that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean square that is kept. Default 0.999.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// Added to the root. Default 1e-7.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// The dtype in which `m` is stored. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Default for Nadam {
    fn default() -> Nadam {
        Nadam { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, momentum_dtype: MomentumDtype::F32 }
    }
}

/// The decay of the momentum schedule for each step, in Keras and the paper.
const DECAY: f64 = 0.96;

impl Rule for Nadam {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.beta1)
    }

    fn added_to_size(&self) -> Option<f64> {
        Some(self.epsilon)
    }

    fn reads_step(&self) -> bool {
        true
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::StoredAs(&mut self.momentum_dtype)
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let (gradient, t) = (inputs.gradient, inputs.t());
        let (slot_m, slot_v) = (inputs.first_moment("nadam_m", self.momentum_dtype), inputs.slot("nadam_v"));
        let slot_p = inputs.scalar_slot("nadam_p", 1.0);
        let share = |t: &Tensor| (inputs.scalar(DECAY).power(t) * -0.5 + 1.0) * self.beta1;
        let (now, next) = (share(&t), share(&(&t + 1.0)));
        let product = &slot_p.value * &now;
        let m = &slot_m.value * self.beta1 + gradient * (1.0 - self.beta1);
        let v = &slot_v.value * self.beta2 + gradient * gradient * (1.0 - self.beta2);
        slot_p.store(&product);
        slot_m.store(&m);
        slot_v.store(&v);
        let rest = |x: &Tensor| inputs.scalar(1.0) - x;
        let ahead = m * (&next / rest(&(&product * &next)));
        let direction = ahead + gradient * (rest(&now) / rest(&product));
        let corrected = v / one_minus_power(self.beta2, &t);
        inputs.learning_rate * direction / (corrected.sqrt() + self.epsilon)
    }
}
