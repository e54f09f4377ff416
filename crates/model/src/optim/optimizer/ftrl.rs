//! Ftrl: follow the regularized leader.

use crate::graph::Tensor;
use crate::optim::number;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use bf16scope_hlo::ops::BinaryOp;
use serde::{Deserialize, Serialize};

/// The settings of Ftrl, for linear models with sparse weights. `w` is the variable, `g` its gradient, `lr` the
/// learning rate, `p` is `−learning_rate_power`, `l1` … are the strengths.
///
/// ```text
/// n' ← n + g²                                            the slot ftrl_square, initial_accumulator_value at first
/// z ← z + g + 2·l2_shrinkage·w − (n'^p − n^p)/lr·w       the slot ftrl_linear, 0 at first
/// q ← n'^p/lr + 2·l2 + beta/lr
/// w ← (clamp(z, −l1, l1) − z) / q                        0 wherever |z| is at most l1
/// ```
///
/// The learning rate must be above 0, because it is a divisor. A schedule that starts at 0 is refused.
///
/// # Source
/// McMahan et al. 2013; TensorFlow's `ApplyFtrlV2`, the op of `tf.compat.v1.train.FtrlOptimizer` and Keras' `Ftrl`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ftrl {
    /// How the rate falls as squared gradients add up; 0 keeps it constant. Default -0.5.
    #[serde(deserialize_with = "number::not_positive")]
    pub learning_rate_power: f64,
    /// The initial sum of squared gradients. Default 0.1.
    #[serde(deserialize_with = "number::positive")]
    pub initial_accumulator_value: f64,
    /// The L1 strength, below which a variable is 0. Default 0.
    #[serde(deserialize_with = "number::not_negative")]
    pub l1_regularization_strength: f64,
    /// The L2 strength, which shrinks variables. Default 0.
    #[serde(deserialize_with = "number::not_negative")]
    pub l2_regularization_strength: f64,
    /// An L2 term of the gradient that does not enter `n`. Default 0.
    #[serde(deserialize_with = "number::not_negative")]
    pub l2_shrinkage_regularization_strength: f64,
    /// The paper's β. Default 0.
    #[serde(deserialize_with = "number::not_negative")]
    pub beta: f64,
}

impl Default for Ftrl {
    fn default() -> Ftrl {
        Ftrl {
            learning_rate_power: -0.5,
            initial_accumulator_value: 0.1,
            l1_regularization_strength: 0.0,
            l2_regularization_strength: 0.0,
            l2_shrinkage_regularization_strength: 0.0,
            beta: 0.0,
        }
    }
}

impl Rule for Ftrl {
    const DIVIDES_BY_RATE: bool = true;

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::None { why: "ftrl keeps sums, and no first moments" }
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        let (value, gradient, learning_rate) = (inputs.value(), inputs.gradient, inputs.learning_rate);
        let squares = inputs.filled_slot("ftrl_square", self.initial_accumulator_value);
        let linear = inputs.slot("ftrl_linear");
        let power = |x: &Tensor| match self.learning_rate_power {
            -0.5 => x.sqrt(),
            other => x.power(&inputs.scalar(-other)),
        };
        let sum = &squares.value + gradient * gradient;
        squares.store(&sum);
        let shrinking = match self.l2_shrinkage_regularization_strength {
            0.0 => gradient.clone(),
            strength => gradient + value * (2.0 * strength),
        };
        let (old, new) = (power(&squares.value), power(&sum));
        let z = &linear.value + shrinking - (&new - old) / learning_rate * value;
        linear.store(&z);
        let l2 = inputs.scalar(self.beta) / learning_rate + 2.0 * self.l2_regularization_strength;
        let l1 = self.l1_regularization_strength;
        let clamped = z.binary_scalar(BinaryOp::Maximum, -l1).binary_scalar(BinaryOp::Minimum, l1);
        value - (clamped - z) / (new / learning_rate + l2)
    }
}
