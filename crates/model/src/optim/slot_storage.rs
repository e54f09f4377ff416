//! The storage of slots.

use bf16scope_hlo::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The storage of first moments (the slots `momentum` and `adam_m`). As text: `f32`, `bf16`.
///
/// In bf16 a slot takes half the memory. It is read as f32, the update is computed in f32, and the weights move by the
/// unrounded value; the value stored for the next step is rounded to nearest even.
///
/// # What rounding loses
/// A stored first moment has an error of at most 2^-8 of itself at each step, which decays with the moment: the errors
/// of all steps together are at most `2^-8 · Σ β^i = 2^-8 / (1 − β)` of the largest moment, 4 % for `β` = 0.9, and far
/// less if they do not all have the same sign. A first moment loses a tenth of itself at every step, far more than half
/// an ulp, so it does not stall.
///
/// # Why Adam's second moment has no such option
/// It changes by at most `1 − β2` = 0.001 of itself when gradients get smaller, and half an ulp of bf16 is 2^-9 to 2^-8
/// of it (0.002 to 0.004): every such step is rounded away, so a second moment in bf16 never falls, and weights whose
/// gradients were once large hardly move again. From zero, with constant gradients `g`, it stops rising at 0.20 to 0.34
/// of g², and Adam's steps are 1.7 to 2.3 times too long. `numerics::accumulate` is this experiment on a weight;
/// `tests/training/slots.rs` has it for the second moment.
///
/// # Source
/// optax's `accumulator_dtype` of `sgd` and `mu_dtype` of `adam`, which have no dtype of the second moment either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MomentumDtype {
    /// The variable's dtype, which is f32 (f64 where gradients are checked).
    #[default]
    F32,
    /// bf16.
    Bf16,
}

impl MomentumDtype {
    /// The dtype of a slot of a variable with dtype `variable`.
    fn dtype_for(self, variable: DType) -> DType {
        match self {
            MomentumDtype::F32 => variable,
            MomentumDtype::Bf16 => DType::BF16,
        }
    }
}

/// The storage of all slots of any optimizer. As text: `f32`, `bf16`, `bf16_stochastic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotStorage {
    /// f32, except first moments with a [`MomentumDtype`] of bf16.
    #[default]
    F32,
    /// First moments of any optimizer in bf16, as [`MomentumDtype::Bf16`]. Others stay f32: rounded to nearest they
    /// would stall, as described there.
    Bf16,
    /// Every slot in bf16 with stochastic rounding, as [`Storage::Bf16Stochastic`](crate::graph::Storage): a slot that
    /// changes by less than an ulp changes now and then, and does not stall.
    Bf16Stochastic,
}

/// The content of a slot, which decides whether it may be rounded to nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// A mean of gradients or of steps, which loses about a tenth of itself at every step, with its optimizer's
    /// storage.
    First(MomentumDtype),
    /// Anything else. Means of squares and sums change by less than half an ulp of bf16 in a step, and would stall.
    Other,
    /// A scalar, which takes no memory.
    Scalar,
}

impl SlotStorage {
    /// Every storage.
    pub const ALL: [SlotStorage; 3] = [SlotStorage::F32, SlotStorage::Bf16, SlotStorage::Bf16Stochastic];

    /// As text.
    pub fn name(self) -> &'static str {
        match self {
            SlotStorage::F32 => "f32",
            SlotStorage::Bf16 => "bf16",
            SlotStorage::Bf16Stochastic => "bf16_stochastic",
        }
    }

    /// The dtype of a slot that holds `moment`, for a variable with dtype `variable`.
    pub(super) fn dtype_for(self, moment: Moment, variable: DType) -> DType {
        let default_dtype = match moment {
            Moment::First(dtype) => dtype.dtype_for(variable),
            Moment::Other | Moment::Scalar => variable,
        };
        let is_low = match self {
            SlotStorage::F32 => false,
            SlotStorage::Bf16 => matches!(moment, Moment::First(_)),
            SlotStorage::Bf16Stochastic => moment != Moment::Scalar,
        };
        if is_low && default_dtype == DType::F32 { DType::BF16 } else { default_dtype }
    }
}

impl fmt::Display for SlotStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages and files use the same words.
    #[test]
    fn names_are_what_files_say() {
        for slots in SlotStorage::ALL {
            assert_eq!(serde_json::to_value(slots).unwrap(), slots.name());
            assert_eq!(format!("{slots:>16}"), format!("{:>16}", slots.name()));
        }
    }
}
