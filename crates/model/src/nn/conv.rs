//! Two-dimensional convolution.

use super::options::{glorot_uniform, is_default, one, pair, single, yes, zeros};
use super::window::{DataFormat, Padding, Sliding};
use super::{Activation, at_least, is_float, of_rank};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::{Convolution, ConvolutionDims, PrecisionConfig, RuleError, WindowDim};
use serde::{Deserialize, Serialize};

/// Configuration of [`conv2d`]. The default is Keras', but for `filters` and `kernel_size`, which must be given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    /// Channels of the result.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Height and width of the kernel.
    #[serde(deserialize_with = "pair")]
    pub kernel_size: [i64; 2],
    /// Steps down and right. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub strides: [i64; 2],
    /// What stands around the image. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// Distances of the kernel's elements. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub dilation_rate: [i64; 2],
    /// Groups that input channels and filters split in: each filter sees one group. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub groups: i64,
    /// Where the axes of x and of the result stand. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
    /// Applied to the result. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether a bias is added. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// How the kernel starts. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// How the bias starts. Default `zeros`.
    #[serde(default = "zeros")]
    pub bias_initializer: Init,
}

impl Default for Conv2d {
    fn default() -> Conv2d {
        Conv2d {
            filters: 0,
            kernel_size: [0, 0],
            strides: [1, 1],
            padding: Padding::Valid,
            dilation_rate: [1, 1],
            groups: 1,
            data_format: DataFormat::ChannelsLast,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// Cross-correlation of an image with a kernel, as deep learning calls convolution, plus a bias, and the activation of it.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → `[b, h', w', filters]` (or `[b, filters, h', w']`); kernel
/// `[kh, kw, c / groups, filters]` in both formats, bias `[filters]`. With SAME padding `h' = ceil(h / stride)`, else
/// `h' = floor((h + padding - (kh - 1)·dilation - 1) / stride) + 1`.
///
/// # Types
/// Everything in the dtype of x; variables are asked for in it. The product is rounded to it once, the sum with the
/// bias again. In which precision products are summed is the back end's choice: f32 on TPU and on XLA's CPU.
///
/// # Errors
/// x not of rank 4 or not floating; filters, kernel, strides, dilation or groups below 1; channels or filters that
/// groups do not divide; a window larger than the padded image.
///
/// # Source
/// TensorFlow's `Conv2D` and `BiasAdd`.
#[track_caller]
pub fn conv2d(s: &Scope, x: &Tensor, name: &str, config: &Conv2d) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let window = match check(x, config) {
            Ok(window) => window,
            Err(error) => return s.graph().fail("conv2d", &[x], error),
        };
        let kernel = kernel(s, x, config);
        add_bias(s, convolution(x, &kernel, window, config), config)
    });
    config.activation.of(&y)
}

/// The variable `kernel`.
#[track_caller]
pub(super) fn kernel(s: &Scope, x: &Tensor, config: &Conv2d) -> Tensor {
    let channels = x.dims()[config.data_format.channels() as usize];
    let dims = [config.kernel_size[0], config.kernel_size[1], channels / config.groups, config.filters];
    s.variable("kernel", x.dtype(), dims, config.kernel_initializer).value
}

/// The op itself.
#[track_caller]
pub(super) fn convolution(x: &Tensor, kernel: &Tensor, window: [WindowDim; 2], config: &Conv2d) -> Tensor {
    let op = Op::Convolution(Box::new(attributes(window, config)));
    x.emit("convolution", &[kernel], |e| e.emit(op, &[x.id, kernel.id], None))
}

/// What the op says beside its operands.
pub(super) fn attributes(window: [WindowDim; 2], config: &Conv2d) -> Convolution {
    Convolution {
        window: window.to_vec(),
        dims: dims(config.data_format),
        feature_group_count: config.groups,
        batch_group_count: 1,
        precision: PrecisionConfig::default(),
    }
}

/// The product plus the variable `bias`, if there is one.
#[track_caller]
pub(super) fn add_bias(s: &Scope, product: Tensor, config: &Conv2d) -> Tensor {
    if !config.use_bias {
        return product;
    }
    let bias = s.variable("bias", product.dtype(), [config.filters], config.bias_initializer).value;
    let bias = bias.broadcast_in_dim(&product.dims(), &[config.data_format.channels()]);
    product + bias
}

pub(super) fn check(x: &Tensor, config: &Conv2d) -> Result<[WindowDim; 2], RuleError> {
    check_along(x, config, 2)
}

/// [`check`] of an image, or of a sequence that is one of a single column.
pub(super) fn check_along(x: &Tensor, config: &Conv2d, n_axes: usize) -> Result<[WindowDim; 2], RuleError> {
    is_float("conv2d/dtype", "x", x)?;
    of_rank("conv2d/rank", "x", x, 4, config.data_format.axes())?;
    at_least("conv2d/filters", "filters", config.filters, 1)?;
    at_least("conv2d/groups", "groups", config.groups, 1)?;
    let dims = x.dims();
    let channels = dims[config.data_format.channels() as usize];
    for (what, n) in [("channels", channels), ("filters", config.filters)] {
        if n % config.groups != 0 {
            let message = format!("{n} {what} do not split in {} groups, expected a multiple", config.groups);
            return Err(RuleError::new("conv2d/groups", message));
        }
    }
    let Conv2d { kernel_size: size, strides, dilation_rate: dilation, padding, .. } = *config;
    Sliding { size, strides, dilation, padding, n_axes }.dims(&dims, config.data_format)
}

/// Dimension numbers: `b01f_01io->b01f` or `bf01_01io->bf01`.
fn dims(format: DataFormat) -> ConvolutionDims {
    let spatial = format.spatial().to_vec();
    ConvolutionDims {
        input_batch: 0,
        input_feature: format.channels(),
        input_spatial: spatial.clone(),
        kernel_input_feature: 2,
        kernel_output_feature: 3,
        kernel_spatial: vec![0, 1],
        output_batch: 0,
        output_feature: format.channels(),
        output_spatial: spatial,
    }
}
