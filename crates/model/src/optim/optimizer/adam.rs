//! Adam.

use super::adamw::AdamW;
use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use serde::{Deserialize, Serialize};

/// The settings of Adam: [`AdamW`] with weight decay as a term of the gradient. `w` is the variable, `g` its gradient,
/// `lr` the learning rate, `t` is 1 at the first step; slots start at 0.
///
/// ```text
/// m ← beta1·m + (1 − beta1)·g                            the slot adam_m
/// v ← beta2·v + (1 − beta2)·g²                           the slot adam_v
/// w ← w − lr·(m / (1 − beta1^t)) / (√(v / (1 − beta2^t)) + epsilon)
/// ```
///
/// `1 − β^t` is computed as `−expm1(t·ln β)`: `1 − 0.999^t` in f32 would lose up to 15 of its 24 bits.
///
/// # Source
/// Kingma & Ba 2015, algorithm 1; optax's `adam`. TensorFlow's `AdamOptimizer` adds `ε` to `√v` before the correction
/// (the paper's "ε̂"), which differs little for small ε; `epsilon_hat` selects this form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adam {
    /// The share of the mean that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean square that is kept. Default 0.999.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// Added to the root. Default 1e-8.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// Whether `epsilon` is added to `√v` before the correction: [`AdamW::epsilon_hat`]. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub epsilon_hat: bool,
    /// Whether the largest `v` so far takes the place of `v`: [`AdamW::amsgrad`]. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub amsgrad: bool,
    /// The storage of `m`; `v` is never stored in bf16, for the reason in [`MomentumDtype`]. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Adam {
    /// The paper's constants.
    pub const PAPER: Adam = Adam {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        epsilon_hat: false,
        amsgrad: false,
        momentum_dtype: MomentumDtype::F32,
    };
}

impl Default for Adam {
    fn default() -> Adam {
        Adam::PAPER
    }
}

impl Rule for Adam {
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
        let Adam { beta1, beta2, epsilon, epsilon_hat, amsgrad, momentum_dtype } = *self;
        AdamW { beta1, beta2, epsilon, bias_correction: true, epsilon_hat, amsgrad, momentum_dtype }.emit(inputs)
    }
}
