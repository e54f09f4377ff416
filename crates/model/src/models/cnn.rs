//! A small convolutional network: blocks of convolution, batch norm, relu and max pool, then dense layers. A preset of
//! [`layers`](super::layers).

use super::layers::{Dropout, Flatten, LayerKind, MaxPool, RELU, Sequential, dense};
use super::{Classifier, image_dims};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::{BatchNorm, Conv2d, Padding, PoolNd};
use crate::task::Identity;
use bf16scope_passes::tuning::NormGradient;
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
        Identity::new("cnn").with_config(self).changeable(&["dropout"])
    }
}

impl Config {
    /// The network as layers: first the blocks; then the hidden layers, dropout and the logits.
    fn layers(&self) -> Sequential {
        let mut layers = blocks("cnn", self.kernel, &self.filters);
        layers.push("cnn", LayerKind::Flatten(Flatten {}));
        for (number, &units) in (1..).zip(&self.hidden) {
            layers.push(format!("cnn/dense{number}"), dense(units));
            layers.push("cnn", LayerKind::Activation(RELU));
        }
        layers.push("cnn/dropout", LayerKind::Dropout(Dropout { rate: self.dropout }));
        layers.push("cnn/logits", dense(self.n_classes));
        layers
    }
}

/// Images `[batch, height, width, channels]` → logits `[batch, n_classes]`, in their dtype.
pub fn build(s: &Scope, images: &Tensor, config: &Config) -> Tensor {
    config.layers().build(s, images)
}

/// Blocks `block1`, `block2`, … under `name` of convolution (SAME, no bias), batch norm, relu, 2×2 max pool (SAME, so that
/// it halves odd sizes too), with so many filters each.
pub(super) fn blocks(name: &str, kernel: i64, filters: &[i64]) -> Sequential {
    let mut layers = Sequential::default();
    for (number, &filters) in (1..).zip(filters) {
        let block = format!("{name}/block{number}");
        let (kernel_size, padding, kernel_initializer) = ([kernel; 2], Padding::Same, Init::HE_NORMAL);
        let conv = Conv2d { filters, kernel_size, padding, use_bias: false, kernel_initializer, ..Conv2d::default() };
        layers.push(format!("{block}/conv"), LayerKind::Conv(conv));
        // The constants of TensorFlow's ResNet-50, not Keras' defaults as for layers in YAML; and the plain gradient,
        // which TPU programs of these networks have always used.
        let gradient = Some(NormGradient::default());
        let norm = BatchNorm { gradient, ..BatchNorm::RESNET };
        layers.push(format!("{block}/bn"), LayerKind::BatchNorm(norm));
        layers.push(&block, LayerKind::Activation(RELU));
        layers.push(&block, LayerKind::MaxPool(MaxPool(PoolNd { padding, ..PoolNd::default() })));
    }
    layers
}
