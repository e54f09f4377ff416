//! Adamax: Adam with the largest gradient in the place of the mean square.

use super::adamw::one_minus_power;
use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use bf16scope_hlo::ops::UnaryOp;
use serde::{Deserialize, Serialize};

/// The settings of Adamax. `w` is the variable, `g` its gradient, `lr` the learning rate, `t` is 1 at the first step; slots
/// start at 0.
///
/// ```text
/// m ← beta1·m + (1 − beta1)·g                            the slot adamax_m
/// u ← max(beta2·u, |g|)                                  the slot adamax_u
/// w ← w − lr·(m / (1 − beta1^t)) / (u + epsilon)
/// ```
///
/// `u` is no mean, and so has no correction.
///
/// # Source
/// Kingma & Ba 2015, algorithm 2; Keras' `Adamax`, and TensorFlow's `ApplyAdaMax`. PyTorch adds `epsilon` to `|g|`
/// inside of the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adamax {
    /// The share of the mean that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the largest gradient that is kept. Default 0.999.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// Added to the largest gradient. Default 1e-7.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// The dtype in which `m` is stored. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Default for Adamax {
    fn default() -> Adamax {
        Adamax { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, momentum_dtype: MomentumDtype::F32 }
    }
}

impl Rule for Adamax {
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
        let gradient = inputs.gradient;
        let (slot_m, slot_u) = (inputs.first_moment("adamax_m", self.momentum_dtype), inputs.slot("adamax_u"));
        let m = &slot_m.value * self.beta1 + gradient * (1.0 - self.beta1);
        let u = (&slot_u.value * self.beta2).maximum(&gradient.unary(UnaryOp::Abs));
        slot_m.store(&m);
        slot_u.store(&u);
        let corrected = m / one_minus_power(self.beta1, &inputs.t());
        inputs.learning_rate * corrected / (u + self.epsilon)
    }
}
