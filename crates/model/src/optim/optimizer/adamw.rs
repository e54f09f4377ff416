//! AdamW, with and without bias correction.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{DecayForm, FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use bf16scope_hlo::ops::UnaryOp;
use serde::{Deserialize, Serialize};

/// The settings of AdamW: Adam with decoupled weight decay. `w` is the variable, `g` its gradient, `lr` the learning
/// rate, `t` is 1 at the first step; slots start at 0.
///
/// ```text
/// m ← beta1·m + (1 − beta1)·g                            the slot adam_m
/// v ← beta2·v + (1 − beta2)·g²                           the slot adam_v
/// u ← (m / (1 − beta1^t)) / (√(v / (1 − beta2^t)) + epsilon)
///                                                        without bias_correction: m / (√v + epsilon)
///                                                        with epsilon_hat: √(1 − beta2^t)·(m / (1 − beta1^t)) / (√v + epsilon)
///                                                        with amsgrad, u has x for v: x ← max(x, v), the slot adam_v_max
/// w ← w − lr·u − lr·decay·w                              decay is weight_decay's value
/// ```
///
/// BERT's is `{kind: adamw, bias_correction: false, epsilon: 1.0e-6}` with `weight_decay: {value: 0.01, except: [norm,
/// bias]}`: its first steps are up to `(1 − beta1) / √(1 − beta2)` = 3.2 times as long, which its warm-up compensates.
///
/// # Source
/// Loshchilov & Hutter 2019; optax's `adamw`; without correction `AdamWeightDecayOptimizer` of BERT's `optimization.py`.
/// With `amsgrad` Reddi et al. 2018, algorithm 2, as Keras and PyTorch have it: the largest `v` before the correction.
/// optax' `amsgrad` takes the largest after it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamW {
    /// The share of the mean that is kept. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean square that is kept. Default 0.999.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// Added to the root. Default 1e-8.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// Whether both means are corrected for their start at 0. Default true.
    pub bias_correction: bool,
    /// Whether `epsilon` is added to `√v` before the correction, as in TensorFlow and Keras (the paper's ε̂): at step t
    /// that equals an epsilon `1 / √(1 − beta2^t)` times as large. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub epsilon_hat: bool,
    /// Whether the largest `v` so far takes the place of `v`, so that steps do not grow again. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub amsgrad: bool,
    /// The storage of `m`. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            bias_correction: true,
            epsilon_hat: false,
            amsgrad: false,
            momentum_dtype: MomentumDtype::F32,
        }
    }
}

impl Rule for AdamW {
    fn kept_of_gradients(&self) -> Option<f64> {
        Some(self.beta1)
    }

    fn added_to_size(&self) -> Option<f64> {
        Some(self.epsilon)
    }

    const DECAY: DecayForm = DecayForm::Beside;

    fn reads_step(&self) -> bool {
        self.bias_correction
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::StoredAs(&mut self.momentum_dtype)
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        inputs.learning_rate * self.direction(inputs)
    }
}

impl AdamW {
    /// Declares and updates the slots of the variable; returns `u`.
    #[track_caller]
    pub(super) fn direction(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let gradient = inputs.gradient;
        let (slot_m, slot_v) = (inputs.first_moment("adam_m", self.momentum_dtype), inputs.slot("adam_v"));
        let m = &slot_m.value * self.beta1 + gradient * (1.0 - self.beta1);
        let v = &slot_v.value * self.beta2 + gradient * gradient * (1.0 - self.beta2);
        slot_m.store(&m);
        slot_v.store(&v);
        let v = match self.amsgrad {
            true => {
                let largest = inputs.slot("adam_v_max");
                let v = largest.value.maximum(&v);
                largest.store(&v);
                v
            }
            false => v,
        };
        if !self.bias_correction {
            return m / (v.sqrt() + self.epsilon);
        }
        let t = inputs.t();
        let corrected = |moment: Tensor, beta: f64| moment / one_minus_power(beta, &t);
        if self.epsilon_hat {
            let root = one_minus_power(self.beta2, &t).sqrt();
            return root * corrected(m, self.beta1) / (v.sqrt() + self.epsilon);
        }
        corrected(m, self.beta1) / (corrected(v, self.beta2).sqrt() + self.epsilon)
    }
}

/// `1 − β^t`, without cancellation: as `−expm1(t·ln β)`.
#[track_caller]
pub(super) fn one_minus_power(beta: f64, t: &Tensor) -> Tensor {
    (t * beta.ln()).unary(UnaryOp::Expm1).negate()
}
