//! AdamW, with and without bias correction.

use super::number;
use super::optimizer::one_minus_power;
use super::slot::{MomentumDtype, Slot};
use super::storage::Updated;
use crate::graph::{Graph, Tensor};
use serde::{Deserialize, Serialize};

/// The settings of AdamW: Adam, whose weight decay is decoupled. `w` is the variable, `g` its gradient, `lr` the learning
/// rate, `t` is 1 at the first step; slots start at 0.
///
/// ```text
/// m ← beta1·m + (1 − beta1)·g                            the slot adam_m
/// v ← beta2·v + (1 − beta2)·g²                           the slot adam_v
/// u ← (m / (1 − beta1^t)) / (√(v / (1 − beta2^t)) + epsilon)
///                                                        without bias_correction: m / (√v + epsilon)
/// w ← w − lr·u − lr·decay·w                              decay is weight_decay's value
/// ```
///
/// BERT's is `{kind: adamw, bias_correction: false, epsilon: 1.0e-6}` with
/// `weight_decay: {value: 0.01, except: [norm, bias]}`: its first steps are up to `(1 − beta1) / √(1 − beta2)` = 3.2 times
/// as long, which its warm-up makes up for.
///
/// # Source
/// Loshchilov & Hutter 2019; optax's `adamw`; without correction `AdamWeightDecayOptimizer` of BERT's `optimization.py`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamW {
    /// The share of the mean that stays. Default 0.9.
    #[serde(deserialize_with = "number::fraction")]
    pub beta1: f64,
    /// The share of the mean square that stays. Default 0.999.
    #[serde(deserialize_with = "number::fraction")]
    pub beta2: f64,
    /// Added to the root. Default 1e-8.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon: f64,
    /// Whether both means are corrected for their start at 0. Default true.
    pub bias_correction: bool,
    /// What `m` is stored in. Default f32.
    pub momentum_dtype: MomentumDtype,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, bias_correction: true, momentum_dtype: MomentumDtype::F32 }
    }
}

impl AdamW {
    /// Makes and updates the slots of `variable`; gives `u`.
    #[track_caller]
    pub(super) fn direction(&self, graph: &Graph, variable: &Updated<'_>, gradient: &Tensor, step: &Tensor) -> Tensor {
        let dtype = variable.dtype;
        let slot_m = Slot::new(graph, variable, "adam_m", self.momentum_dtype.of(dtype));
        let slot_v = Slot::new(graph, variable, "adam_v", dtype);
        let m = &slot_m.value * self.beta1 + gradient * (1.0 - self.beta1);
        let v = &slot_v.value * self.beta2 + gradient * gradient * (1.0 - self.beta2);
        slot_m.store(&m);
        slot_v.store(&v);
        if !self.bias_correction {
            return m / (v.sqrt() + self.epsilon);
        }
        let t = step.cast(dtype) + 1.0;
        let corrected = |moment: Tensor, beta: f64| moment / one_minus_power(beta, &t);
        corrected(m, self.beta1) / (corrected(v, self.beta2).sqrt() + self.epsilon)
    }
}
