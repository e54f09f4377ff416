//! `batch_norm`, `layer_norm`, `rms_norm`, `dropout` and `stochastic_depth`: Keras' `BatchNormalization`,
//! `LayerNormalization`, `RMSNormalization` and `Dropout`, and dropout of whole examples.

use super::layer_options::LayerOptions;
use super::options::{Initializer, above_zero};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn;
use bf16scope_passes::tuning::NormGradient;
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

/// Options of `batch_norm`; see [`nn::batch_norm`]. Defaults are Keras'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNorm {
    /// How much of the running statistics a step keeps. Default 0.99.
    #[serde(default = "momentum", deserialize_with = "unit_interval")]
    pub momentum: f64,
    /// Added to the variance. Default 0.001.
    #[serde(default = "epsilon", deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// The axis of features. Default -1, the last.
    #[serde(default = "last")]
    pub axis: i64,
    /// How the offset starts. Default `zeros`.
    #[serde(default = "Initializer::zeros")]
    pub beta_initializer: Initializer,
    /// How the scale starts. Default `ones`.
    #[serde(default = "Initializer::ones")]
    pub gamma_initializer: Initializer,
    /// How the gradient is computed, in Rust alone. Default as the graph's tuning says.
    #[serde(skip)]
    pub gradient: Option<NormGradient>,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm {
            momentum: momentum(),
            epsilon: epsilon(),
            axis: last(),
            beta_initializer: Initializer::Zeros,
            gamma_initializer: Initializer::Ones,
            gradient: None,
        }
    }
}

fn momentum() -> f64 {
    0.99
}

fn epsilon() -> f64 {
    0.001
}

fn last() -> i64 {
    -1
}

fn unit_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

impl LayerOptions for BatchNorm {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::BatchNorm {
            axis: self.axis,
            momentum: self.momentum,
            epsilon: self.epsilon as f32,
            gamma_init: self.gamma_initializer.init(),
            beta_init: self.beta_initializer.init(),
            gradient: self.gradient.unwrap_or(s.tuning().norm_gradient),
        };
        nn::batch_norm(s, inputs[0], name, &config)
    }
}

/// Options of `layer_norm`; see [`nn::layer_norm`]. It normalises the last axis. Defaults are Keras'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    /// Added to the variance. Default 0.001.
    #[serde(default = "epsilon", deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// How the offset starts. Default `zeros`.
    #[serde(default = "Initializer::zeros")]
    pub beta_initializer: Initializer,
    /// How the scale starts. Default `ones`.
    #[serde(default = "Initializer::ones")]
    pub gamma_initializer: Initializer,
}

impl LayerOptions for LayerNorm {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::LayerNorm {
            epsilon: self.epsilon,
            gamma_init: self.gamma_initializer.init(),
            beta_init: self.beta_initializer.init(),
            ..nn::LayerNorm::default()
        };
        nn::layer_norm(s, inputs[0], name, &config)
    }
}

/// Options of `rms_norm`; see [`nn::rms_norm`]. It normalises the last axis. Defaults are Keras'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    /// Added to the mean square. Default 1e-6.
    #[serde(default = "millionth", deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// How the scale starts. Default `ones`.
    #[serde(default = "Initializer::ones")]
    pub scale_initializer: Initializer,
}

fn millionth() -> f64 {
    1e-6
}

impl LayerOptions for RmsNorm {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::RmsNorm { epsilon: self.epsilon, scale_init: self.scale_initializer.init() };
        nn::rms_norm(s, inputs[0], name, &config)
    }
}

/// Options of `dropout`; see [`nn::dropout`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// The part that is set to 0 in training.
    #[serde(deserialize_with = "document::fraction")]
    pub rate: f64,
}

impl LayerOptions for Dropout {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        nn::dropout(s, inputs[0], name, self.rate)
    }
}

/// Options of `stochastic_depth`; see [`nn::stochastic_depth`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StochasticDepth {
    /// The part of the examples that are set to 0 in training.
    #[serde(deserialize_with = "document::fraction")]
    pub rate: f64,
}

impl LayerOptions for StochasticDepth {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        nn::stochastic_depth(s, inputs[0], name, self.rate)
    }
}
