//! Elementwise layers: `activation`, `leaky_relu`, `elu`, `rescaling`, `gaussian_noise`.

use super::layer_options::LayerOptions;
use crate::graph::{Scope, Tensor};
use crate::nn;
use crate::nn::options::above_zero;
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
        s.layer(name, |_| self.activation.apply(inputs[0]))
    }
}

/// Options of `rescaling`: `x · scale + offset`, in the dtype of x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rescaling {
    /// The factor.
    pub scale: f64,
    /// The offset. Default 0.
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

/// Options of `leaky_relu`; see [`nn::leaky_relu`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeakyRelu {
    /// The slope below 0. Default that of the activation.
    #[serde(alias = "alpha", default = "negative_slope")]
    pub negative_slope: f64,
}

fn negative_slope() -> f64 {
    nn::Activation::NEGATIVE_SLOPE
}

impl LayerOptions for LeakyRelu {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::leaky_relu(inputs[0], self.negative_slope))
    }
}

/// Options of `gaussian_noise`; see [`nn::gaussian_noise`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianNoise {
    /// The standard deviation of the noise in training.
    #[serde(deserialize_with = "above_zero")]
    pub stddev: f64,
}

impl LayerOptions for GaussianNoise {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        nn::gaussian_noise(s, inputs[0], name, self.stddev)
    }
}
