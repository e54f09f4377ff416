//! Gradient descent.

use crate::graph::Tensor;
use crate::optim::rule::{FirstMoments, Rule, RuleInputs};
use serde::{Deserialize, Serialize};

/// `w ← w − lr·g`: gradient descent, which has no settings and no slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sgd {}

impl Rule for Sgd {
    const KEEPS_SLOTS: bool = false;

    fn first_moments(&mut self) -> FirstMoments<'_> {
        FirstMoments::None { why: "sgd keeps no moments" }
    }

    #[track_caller]
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor {
        inputs.learning_rate * inputs.gradient
    }
}
