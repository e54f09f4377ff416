//! Adafactor: Adam's scale without Adam's memory.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use crate::optim::slot_storage::MomentumDtype;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The settings of Adafactor. In the formulas `w` is the variable, `g` its gradient, `lr` the learning rate, `t` is 1 at
/// the first step, `RMS(x) = √(mean x²)`, and slots start at 0.
///
/// ```text
/// β ← 1 − t^−decay_exponent
/// v ← β·v + (1 − β)·(g² + ε1)                            the slot adafactor_v
/// u ← g / √v
/// u ← u / max(1, RMS(u) / clipping_threshold)
/// w ← w − lr·max(ε2, RMS(w))·u                            without scale_by_parameter: w − lr·u
/// ```
///
/// If the two largest dims of a variable both have at least `min_dim_size_to_factor` elements, `v` is *factored*: only
/// its means over the largest dim and over the second largest are kept (`adafactor_row`, `adafactor_col`), and `v` is
/// approximated by their product over the mean of both, `row · col / mean(row)`. An `[n, m]` matrix then needs `n + m`
/// numbers. Other dims are kept in both: a 3×3 convolution with enough channels has nine factored matrices. Of equal
/// dims the last counts as the larger.
///
/// With `momentum`, `m ← momentum·m + (1 − momentum)·(the change)`, and `m` is subtracted.
///
/// Adafactor's usual rate is that of [`LearningRate::InverseSqrt`](crate::optim::LearningRate::InverseSqrt), the paper's
/// "relative step": `min(0.01, 1/√t)` with `value: 1` and `constant_until: 10000`.
///
/// # Source
/// Shazeer & Stern 2018, algorithms 4 to 6, with the constants of Mesh TensorFlow and T5; factoring of more than two
/// dims, the threshold of 128 and the order of the steps as in optax's `adafactor`, with which
/// `tests/training/adafactor.rs` compares. Weight decay is a term of the gradient, as for the other optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adafactor {
    /// How fast β approaches 1. Default 0.8.
    #[serde(deserialize_with = "number::positive")]
    pub decay_exponent: f64,
    /// The RMS above which an update is scaled down; `null` disables it. Default 1.
    #[serde(deserialize_with = "number::positive_or_none")]
    pub clipping_threshold: Option<f64>,
    /// Whether the rate is relative to the size of the variable. Default true.
    pub scale_by_parameter: bool,
    /// The share of the momentum that is kept; `null` is no momentum, which takes no memory. Default none.
    #[serde(deserialize_with = "number::fraction_or_none")]
    pub momentum: Option<f64>,
    /// The storage of the momentum. Default f32.
    pub momentum_dtype: MomentumDtype,
    /// The least size of the two largest dims for which `v` is factored. Default 128.
    pub min_dim_size_to_factor: NonZeroU32,
    /// ε1, added to squared gradients. Default 1e-30.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon1: f64,
    /// ε2, the least size that a variable counts as. Default 1e-3.
    #[serde(deserialize_with = "number::positive")]
    pub epsilon2: f64,
}

impl Default for Adafactor {
    fn default() -> Self {
        Adafactor {
            decay_exponent: 0.8,
            clipping_threshold: Some(1.0),
            scale_by_parameter: true,
            momentum: None,
            momentum_dtype: MomentumDtype::F32,
            min_dim_size_to_factor: const { NonZeroU32::new(128).expect("128 is not 0") },
            epsilon1: 1e-30,
            epsilon2: 1e-3,
        }
    }
}

/// The largest and the second largest dim of a variable whose second moment is factored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Factored {
    largest: usize,
    second: usize,
}

impl Adafactor {
    fn factored(&self, dims: &[i64]) -> Option<Factored> {
        let mut axes: Vec<usize> = (0..dims.len()).collect();
        axes.sort_by_key(|&axis| dims[axis]);
        let [.., second, largest] = axes[..] else { return None };
        (dims[second] >= i64::from(self.min_dim_size_to_factor.get())).then_some(Factored { largest, second })
    }
}

impl Rule for Adafactor {
    fn reads_step(&self) -> bool {
        true
    }

    fn first_moments(&mut self) -> FirstMoments<'_> {
        match self.momentum {
            None => FirstMoments::None { why: "adafactor without momentum keeps no first moments" },
            Some(_) => FirstMoments::StoredAs(&mut self.momentum_dtype),
        }
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let (variable, gradient) = (inputs.variable, inputs.gradient);
        // 1 − β, which has more significant digits than β.
        let share = inputs.t().power(&inputs.scalar(-self.decay_exponent));
        let moved = |old: &Tensor, new: &Tensor| old * (inputs.scalar(1.0) - &share) + new * &share;
        let squares = gradient * gradient + self.epsilon1;
        let mut change = match self.factored(&variable.whole_dims()) {
            Some(Factored { largest, second }) => {
                let slot = |name: &str, axis: usize| {
                    let slot = inputs.slot_without_axis(name, axis);
                    let moved = moved(&slot.value, &squares.mean_along(axis, variable.part));
                    slot.store(&moved);
                    (moved, slot.part)
                };
                let ((row, row_part), (col, _)) = (slot("adafactor_row", largest), slot("adafactor_col", second));
                let second_of_row = if second > largest { second - 1 } else { second };
                let mean = spread(&row.mean_along(second_of_row, row_part), &row.dims(), second_of_row);
                let [by_row, by_col] = [((row / mean).rsqrt(), largest), (col.rsqrt(), second)]
                    .map(|(factor, axis)| spread(&factor, &variable.dims, axis));
                gradient * by_row * by_col
            }
            None => {
                let slot = inputs.slot("adafactor_v");
                let v = moved(&slot.value, &squares);
                slot.store(&v);
                gradient * v.rsqrt()
            }
        };
        if let Some(threshold) = self.clipping_threshold {
            change = &change / (variable.rms(&change) / threshold).maximum(&inputs.scalar(1.0));
        }
        change = change * inputs.learning_rate;
        if self.scale_by_parameter {
            change = change * variable.rms(inputs.value()).maximum(&inputs.scalar(self.epsilon2));
        }
        match self.momentum {
            Some(momentum) => {
                let slot = inputs.first_moment("momentum", self.momentum_dtype);
                let accumulated = &slot.value * momentum + change * (1.0 - momentum);
                slot.store(&accumulated);
                accumulated
            }
            None => change,
        }
    }
}

/// `x`, which lacks dimension `axis`, repeated along it to `dims`.
#[track_caller]
fn spread(x: &Tensor, dims: &[i64], axis: usize) -> Tensor {
    let remaining: Vec<i64> = (0..dims.len() as i64).filter(|&remaining| remaining != axis as i64).collect();
    x.broadcast_in_dim(dims, &remaining)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_largest_dims_are_factored_where_both_are_large() {
        let factored = |dims: &[i64]| Adafactor::default().factored(dims).map(|f| (f.largest, f.second));
        assert_eq!(factored(&[]), None);
        assert_eq!(factored(&[1000]), None);
        assert_eq!(factored(&[128, 127]), None);
        assert_eq!(factored(&[128, 129]), Some((1, 0)));
        assert_eq!(factored(&[129, 128]), Some((0, 1)));
        assert_eq!(factored(&[128, 128]), Some((1, 0)));
        assert_eq!(factored(&[3, 3, 256, 128]), Some((2, 3)));
        assert_eq!(factored(&[7, 7, 3, 64]), None);
        assert_eq!(factored(&[200, 3, 128]), Some((0, 2)));
    }
}
