//! A multi-layer perceptron: dense layers with relu between them. A preset of [`layers`](super::layers).

use super::Classifier;
use super::layers::{Dropout, Flatten, LayerKind, RELU, Sequential, dense};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::task::Identity;
use serde::{Deserialize, Serialize};

/// Configuration of [`build`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Dims of one example; more than one axis is flattened.
    #[serde(deserialize_with = "document::positives")]
    pub input: Vec<i64>,
    /// Number of classes.
    #[serde(deserialize_with = "document::positive")]
    pub n_classes: i64,
    /// Units of each hidden layer. Default one layer of 128.
    #[serde(default = "hidden", deserialize_with = "document::positives")]
    pub hidden: Vec<i64>,
    /// Dropout rate after each hidden layer. Default 0.
    #[serde(default, deserialize_with = "document::fraction")]
    pub dropout: f64,
}

fn hidden() -> Vec<i64> {
    vec![128]
}

impl Config {
    /// The default for examples of dims `input` in `n_classes` classes.
    pub fn new(input: impl Into<Vec<i64>>, n_classes: i64) -> Config {
        Config { input: input.into(), n_classes, hidden: hidden(), dropout: 0.0 }
    }
}

impl Classifier for Config {
    fn kind(&self) -> &str {
        "mlp"
    }

    fn input(&self) -> &[i64] {
        &self.input
    }

    fn n_classes(&self) -> i64 {
        self.n_classes
    }

    fn build(&self, s: &Scope, images: &Tensor) -> Tensor {
        build(s, images, self)
    }

    fn identity(&self) -> Identity {
        Identity::new("mlp").with_config(self).changeable(&["dropout"])
    }
}

impl Config {
    /// The network as layers.
    fn layers(&self) -> Sequential {
        let mut layers = Sequential::default();
        if self.input.len() > 1 {
            layers.push("mlp", LayerKind::Flatten(Flatten {}));
        }
        for (number, &units) in (1..).zip(&self.hidden) {
            layers.push(format!("mlp/dense{number}"), dense(units));
            layers.push("mlp", LayerKind::Activation(RELU));
            layers.push(format!("mlp/dropout{number}"), LayerKind::Dropout(Dropout { rate: self.dropout }));
        }
        layers.push("mlp/logits", dense(self.n_classes));
        layers
    }
}

/// x `[batch, input…]` → logits `[batch, n_classes]`, in the dtype of x.
pub fn build(s: &Scope, x: &Tensor, config: &Config) -> Tensor {
    config.layers().build(s, x)
}
