//! Layers of each element: `activation`, `rescaling`.

use super::layer_options::LayerOptions;
use crate::graph::{Scope, Tensor};
use crate::nn;
use serde::{Deserialize, Serialize};

/// Options of `activation`; see [`nn::Activation`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activation {
    /// The function.
    pub activation: nn::Activation,
}

/// `max(x, 0)`.
pub(in crate::models) const RELU: Activation = Activation { activation: nn::Activation::Relu };

impl LayerOptions for Activation {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| self.activation.of(inputs[0]))
    }
}

/// Options of `rescaling`: `x · scale + offset`, in the dtype of x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rescaling {
    /// The factor.
    pub scale: f64,
    /// What is added. Default 0.
    #[serde(default)]
    pub offset: f64,
}

impl LayerOptions for Rescaling {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| match self.offset {
            0.0 => inputs[0] * self.scale,
            offset => inputs[0] * self.scale + offset,
        })
    }
}
