//! A multi-layer perceptron: dense layers with relu between them.

use super::Classifier;
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn::{Dense, dense, dropout, flatten, relu};
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
        Identity::new("mlp").of(self).changeable(&["dropout"])
    }
}

/// x `[batch, …]` → logits `[batch, n_classes]`, in the dtype of x.
pub fn build(s: &Scope, x: &Tensor, config: &Config) -> Tensor {
    s.within("mlp", |s| {
        let mut x = if x.rank() > 2 { flatten(x) } else { x.clone() };
        for (number, &units) in (1..).zip(&config.hidden) {
            x = relu(&dense(s, &x, &format!("dense{number}"), &Dense { units, ..Dense::default() }));
            x = dropout(s, &x, &format!("dropout{number}"), config.dropout);
        }
        dense(s, &x, "logits", &Dense { units: config.n_classes, ..Dense::default() })
    })
}
