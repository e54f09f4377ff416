//! A small convolutional network: blocks of convolution, batch norm, relu and max pool, then dense layers.

use super::{Classifier, image_dims};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::{BatchNorm, Conv2d, Dense, Padding, Pool, batch_norm, conv2d, dense, dropout, flatten, max_pool, relu};
use crate::task::Identity;
use serde::{Deserialize, Serialize};

/// Configuration of [`build`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[height, width, channels]` of an image.
    #[serde(deserialize_with = "image_dims")]
    pub input: Vec<i64>,
    /// Number of classes.
    #[serde(deserialize_with = "document::positive")]
    pub n_classes: i64,
    /// Filters of each block. Default 32, 64.
    #[serde(default = "filters", deserialize_with = "document::positives")]
    pub filters: Vec<i64>,
    /// Height and width of the kernels. Default 3.
    #[serde(default = "kernel", deserialize_with = "document::positive")]
    pub kernel: i64,
    /// Units of each dense layer before the last. Default none.
    #[serde(default, deserialize_with = "document::positives")]
    pub hidden: Vec<i64>,
    /// Dropout rate before the last layer. Default 0.
    #[serde(default, deserialize_with = "document::fraction")]
    pub dropout: f64,
}

fn filters() -> Vec<i64> {
    vec![32, 64]
}

fn kernel() -> i64 {
    3
}

impl Config {
    /// The default for images of `[height, width, channels]` in `n_classes` classes.
    pub fn new(input: [i64; 3], n_classes: i64) -> Config {
        let (filters, kernel) = (filters(), kernel());
        Config { input: input.to_vec(), n_classes, filters, kernel, hidden: Vec::new(), dropout: 0.0 }
    }
}

impl Classifier for Config {
    fn kind(&self) -> &str {
        "cnn"
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
        Identity::new("cnn").of(self).changeable(&["dropout"])
    }
}

/// Images `[batch, height, width, channels]` → logits `[batch, n_classes]`, in their dtype.
///
/// First the blocks; then the hidden layers, dropout and the logits.
pub fn build(s: &Scope, images: &Tensor, config: &Config) -> Tensor {
    s.within("cnn", |s| {
        let x = blocks(s, images, config.kernel, &config.filters);
        let mut x = flatten(&x);
        for (number, &units) in (1..).zip(&config.hidden) {
            x = relu(&dense(s, &x, &format!("dense{number}"), &Dense { units, ..Dense::default() }));
        }
        let x = dropout(s, &x, "dropout", config.dropout);
        dense(s, &x, "logits", &Dense { units: config.n_classes, ..Dense::default() })
    })
}

/// Blocks `block1`, `block2`, … of convolution (SAME, no bias), batch norm, relu, 2×2 max pool (SAME, so that it halves odd
/// sizes too), with so many filters each: images `[batch, height, width, channels]`, in their dtype.
pub(super) fn blocks(s: &Scope, images: &Tensor, kernel: i64, filters: &[i64]) -> Tensor {
    let mut x = images.clone();
    for (number, &filters) in (1..).zip(filters) {
        x = s.within(&format!("block{number}"), |s| {
            let conv = Conv2d {
                filters,
                kernel: [kernel; 2],
                padding: Padding::Same,
                use_bias: false,
                kernel_init: Init::HE_NORMAL,
                ..Conv2d::default()
            };
            let x = conv2d(s, &x, "conv", &conv);
            let x = relu(&batch_norm(s, &x, "bn", &BatchNorm::default()));
            max_pool(&x, &Pool { padding: Padding::Same, ..Pool::default() })
        });
    }
    x
}
