//! ResNet v1.5, in 18, 34, 50, 101 and 152 layers.
//!
//! Source: He et al. 2015 (v1), with the stride on the 3×3 convolution of a bottleneck (v1.5), as TensorFlow's official
//! TPU model and Flax's ImageNet example have it.

use super::{Classifier, image_dims};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::{
    BatchNorm, Conv2d, ConvNormPool, DataFormat, Dense, Padding, Pool, batch_norm, conv_norm_pool, conv2d,
    conv2d_paired, conv2d_space_to_depth, dense, global_avg_pool, max_pool, relu,
};
use crate::task::Identity;
use bf16scope_passes::tuning::Stem;
use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

pub use self::v1 as build;

/// Configuration of [`v1`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[height, width, channels]` of an image. Default 224, 224, 3.
    #[serde(deserialize_with = "image_dims")]
    pub input: Vec<i64>,
    /// Number of classes. Default 1000.
    #[serde(deserialize_with = "document::positive")]
    pub n_classes: i64,
    /// Number of layers. Default 50.
    pub depth: Depth,
    /// Filters of the first stage; each stage doubles them. Default 64.
    #[serde(deserialize_with = "document::positive")]
    pub width: i64,
    /// The padding of strided convolutions. Default `same`.
    pub padding: StridedPadding,
    /// The order of axes inside the network; images are `[batch, height, width, channels]` either way. Default `nhwc`.
    #[serde(with = "Format")]
    pub format: DataFormat,
    /// Whether the last batch norm of each block starts with scale 0, so that blocks start as the identity. Default
    /// true, as in TensorFlow's official model and Goyal et al. 2017.
    pub zero_init_residual: bool,
    /// The share of the running statistics that a step keeps. Default 0.9.
    #[serde(deserialize_with = "document::fraction")]
    pub momentum: f64,
    /// Added to variances; above 0. Default 1e-5.
    #[serde(deserialize_with = "epsilon")]
    pub epsilon: f32,
}

/// [`DataFormat`] with the names of the key `format`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "DataFormat", rename_all = "lowercase")]
enum Format {
    #[serde(rename = "nhwc")]
    ChannelsLast,
    #[serde(rename = "nchw")]
    ChannelsFirst,
}

/// An epsilon: a number above 0, also in f32.
fn epsilon<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let is_epsilon = |value: f64| value > 0.0 && (value as f32).is_normal();
    Ok(document::number(deserializer, is_epsilon, "a finite number above 0")? as f32)
}

impl Default for Config {
    fn default() -> Config {
        Config {
            input: vec![224, 224, 3],
            n_classes: 1000,
            depth: Depth::D50,
            width: 64,
            padding: StridedPadding::Same,
            format: DataFormat::ChannelsLast,
            zero_init_residual: true,
            momentum: 0.9,
            epsilon: 1e-5,
        }
    }
}

/// The padding of strided convolutions. Others pad SAME.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StridedPadding {
    /// SAME: depends on the image's size, as in Flax's example.
    #[default]
    Same,
    /// `(k - 1) / 2` before and the rest after, independent of the image's size, as in TensorFlow's official model.
    Fixed,
}

/// Number of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// 18: basic blocks, 2-2-2-2.
    D18,
    /// 34: basic blocks, 3-4-6-3.
    D34,
    /// 50: bottlenecks, 3-4-6-3.
    D50,
    /// 101: bottlenecks, 3-4-23-3.
    D101,
    /// 152: bottlenecks, 3-8-36-3.
    D152,
}

impl Depth {
    /// Every depth.
    pub const ALL: [Depth; 5] = [Depth::D18, Depth::D34, Depth::D50, Depth::D101, Depth::D152];

    /// Its number of layers.
    pub fn n_layers(self) -> u64 {
        match self {
            Depth::D18 => 18,
            Depth::D34 => 34,
            Depth::D50 => 50,
            Depth::D101 => 101,
            Depth::D152 => 152,
        }
    }

    /// Blocks of each stage.
    fn blocks(self) -> [usize; 4] {
        match self {
            Depth::D18 => [2, 2, 2, 2],
            Depth::D34 | Depth::D50 => [3, 4, 6, 3],
            Depth::D101 => [3, 4, 23, 3],
            Depth::D152 => [3, 8, 36, 3],
        }
    }

    fn has_bottlenecks(self) -> bool {
        match self {
            Depth::D18 | Depth::D34 => false,
            Depth::D50 | Depth::D101 | Depth::D152 => true,
        }
    }
}

impl Serialize for Depth {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.n_layers())
    }
}

impl<'de> Deserialize<'de> for Depth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Depth, D::Error> {
        struct Layers;
        impl Visitor<'_> for Layers {
            type Value = Depth;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let names: Vec<String> = Depth::ALL.iter().map(|depth| depth.n_layers().to_string()).collect();
                write!(f, "one of {}", names.join(", "))
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Depth, E> {
                let depth = Depth::ALL.into_iter().find(|depth| depth.n_layers() == n);
                depth.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(n), &self))
            }
        }
        deserializer.deserialize_u64(Layers)
    }
}

impl Classifier for Config {
    fn kind(&self) -> &str {
        "resnet"
    }

    fn input(&self) -> &[i64] {
        &self.input
    }

    fn n_classes(&self) -> i64 {
        self.n_classes
    }

    fn build(&self, s: &Scope, images: &Tensor) -> Tensor {
        v1(s, images, self)
    }

    fn identity(&self) -> Identity {
        Identity::new("resnet").with_config(self).changeable(&["format"])
    }
}

/// Images `[batch, height, width, channels]` → logits `[batch, n_classes]`, in their dtype.
///
/// Stem: 7×7 convolution with stride 2, batch norm, relu, 3×3 max pool with stride 2 (SAME). Four stages of blocks; the
/// first block of all but the first stage has stride 2. Then mean over height and width, and a dense layer. Convolutions
/// have no bias and start as TensorFlow's `variance_scaling`; the dense kernel starts normal with deviation 0.01.
///
/// # Examples
/// A `resnet_model_fn` of TensorFlow, ported line for line:
/// ```
/// use bf16scope_model::graph::{Graph, Precision, Scope};
/// use bf16scope_hlo::DType;
/// use bf16scope_model::models::resnet;
///
/// # let (batch, precision, config) = (2, Precision::Bf16, resnet::Config::default());
/// let g = Graph::training("resnet");
/// let images = g.input("images", DType::F32, [batch, 224, 224, 3]).cast(precision.compute());
/// let network = |s: &Scope| resnet::v1(s, &images, &config);
/// let logits = match precision {
///     Precision::F32 => network(&g.scope()),
///     p => g.low_precision_scope(p, network).cast(DType::F32), // bf16_scope is its bf16 form
/// };
/// # let program = g.finish(&[("logits", &logits)]).unwrap();
/// # assert_eq!(program.module.entry().result_shape().to_string(), "(f32[2,1000])");
/// ```
pub fn v1(s: &Scope, images: &Tensor, config: &Config) -> Tensor {
    s.within("resnet", |s| {
        let images = match config.format {
            DataFormat::ChannelsLast => images.clone(),
            DataFormat::ChannelsFirst if images.is_poison() => images.clone(),
            DataFormat::ChannelsFirst => images.transpose(&[0, 3, 1, 2]),
        };
        let mut x = s.within("stem", |s| {
            let conv = strided(config.width, 7, 2, config);
            let (strides, padding, data_format) = (Some([2, 2]), Padding::Same, config.format);
            let pool = Pool { pool_size: [3, 3], strides, padding, data_format };
            let tuning = s.tuning();
            let x = match tuning.stem {
                Stem::Plain if tuning.pair_columns => conv2d_paired(s, &images, "conv", &conv),
                Stem::Plain => conv2d(s, &images, "conv", &conv),
                Stem::SpaceToDepth => conv2d_space_to_depth(s, &images, "conv", &conv),
                Stem::PoolFirst => {
                    let (norm, pair_columns) = (norm_config(Init::Ones, config), tuning.pair_columns);
                    return conv_norm_pool(s, &images, &ConvNormPool { conv, pair_columns, norm, pool });
                }
            };
            max_pool(&relu(&norm(s, &x, "bn", Init::Ones, config)), &pool)
        });
        for (stage, n_blocks) in config.depth.blocks().into_iter().enumerate() {
            let filters = config.width << stage;
            for block in 0..n_blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let name = format!("stage{}/block{}", stage + 1, block + 1);
                x = s.within(&name, |s| residual(s, &x, filters, stride, config));
            }
        }
        let x = global_avg_pool(&x, config.format);
        let kernel_initializer = Init::Normal { stddev: 0.01 };
        dense(s, &x, "logits", &Dense { units: config.n_classes, kernel_initializer, ..Dense::default() })
    })
}

/// `relu(x + f(x))`; the shortcut is a 1×1 convolution and batch norm where the shape changes.
fn residual(s: &Scope, x: &Tensor, filters: i64, stride: i64, config: &Config) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let out = if config.depth.has_bottlenecks() { filters.saturating_mul(4) } else { filters };
    let last_gamma = if config.zero_init_residual { Init::Zeros } else { Init::Ones };
    let shortcut = if stride != 1 || x.dims()[config.format.channels() as usize] != out {
        let x = conv(s, x, "shortcut_conv", out, 1, stride, config);
        norm(s, &x, "shortcut_bn", Init::Ones, config)
    } else {
        x.clone()
    };
    let x = if config.depth.has_bottlenecks() {
        let x = conv(s, x, "conv1", filters, 1, 1, config);
        let x = relu(&norm(s, &x, "bn1", Init::Ones, config));
        let x = conv(s, &x, "conv2", filters, 3, stride, config);
        let x = relu(&norm(s, &x, "bn2", Init::Ones, config));
        let x = conv(s, &x, "conv3", out, 1, 1, config);
        norm(s, &x, "bn3", last_gamma, config)
    } else {
        let x = conv(s, x, "conv1", filters, 3, stride, config);
        let x = relu(&norm(s, &x, "bn1", Init::Ones, config));
        let x = conv(s, &x, "conv2", out, 3, 1, config);
        norm(s, &x, "bn2", last_gamma, config)
    };
    relu(&(x + shortcut).named("add"))
}

/// A square convolution without bias.
fn conv(s: &Scope, x: &Tensor, name: &str, filters: i64, size: i64, stride: i64, config: &Config) -> Tensor {
    let shape = strided(filters, size, stride, config);
    if s.tuning().pair_columns { conv2d_paired(s, x, name, &shape) } else { conv2d(s, x, name, &shape) }
}

fn strided(filters: i64, size: i64, stride: i64, config: &Config) -> Conv2d {
    let padding = match config.padding {
        StridedPadding::Fixed if stride > 1 => Padding::fixed(size),
        StridedPadding::Fixed | StridedPadding::Same => Padding::Same,
    };
    Conv2d {
        filters,
        kernel_size: [size; 2],
        strides: [stride; 2],
        padding,
        data_format: config.format,
        use_bias: false,
        kernel_initializer: Init::LECUN_NORMAL,
        ..Conv2d::default()
    }
}

fn norm(s: &Scope, x: &Tensor, name: &str, gamma: Init, config: &Config) -> Tensor {
    batch_norm(s, x, name, &norm_config(gamma, config))
}

fn norm_config(gamma_initializer: Init, config: &Config) -> BatchNorm {
    let (axis, momentum, epsilon) = (config.format.channels(), config.momentum, f64::from(config.epsilon));
    BatchNorm { axis, momentum, epsilon, gamma_initializer, ..BatchNorm::RESNET }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use bf16scope_hlo::DType;

    fn n_parameters(config: &Config, training: bool) -> i64 {
        let g = if training { Graph::training("resnet") } else { Graph::new("resnet") };
        let dims: Vec<i64> = [2].into_iter().chain(config.input.iter().copied()).collect();
        let images = g.input("images", DType::BF16, dims);
        let logits = g.bf16_scope(|s| v1(s, &images, config)).cast(DType::F32);
        let program = g.finish(&[("logits", &logits)]).unwrap();
        assert_eq!(logits.dims(), [2, config.n_classes]);
        assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32));
        let trainable = program.variables.iter().filter(|variable| variable.trainable);
        trainable.map(|variable| variable.dims.iter().product::<i64>()).sum()
    }

    /// The published counts: torchvision's model table, whose ResNets are v1.5.
    #[test]
    fn parameters_are_as_many_as_published() {
        for (depth, expected) in [
            (Depth::D18, 11_689_512),
            (Depth::D34, 21_797_672),
            (Depth::D50, 25_557_032),
            (Depth::D101, 44_549_160),
            (Depth::D152, 60_192_808),
        ] {
            assert_eq!(n_parameters(&Config { depth, ..Config::default() }, true), expected, "{depth:?}");
        }
    }

    #[test]
    fn formats_and_paddings_have_the_same_parameters() {
        let small = Config { input: vec![65, 64, 3], n_classes: 10, depth: Depth::D18, width: 8, ..Config::default() };
        let expected = n_parameters(&small, false);
        for format in [DataFormat::ChannelsLast, DataFormat::ChannelsFirst] {
            for padding in [StridedPadding::Same, StridedPadding::Fixed] {
                assert_eq!(n_parameters(&Config { format, padding, ..small.clone() }, false), expected);
            }
        }
    }
}
