//! Two-dimensional convolution.

use super::options::{glorot_uniform, is_default, one, pair, single, yes, zeros};
use super::window::{DataFormat, Padding, Sliding};
use super::{Activation, at_least, is_float, of_rank};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::{Convolution, ConvolutionDims, PrecisionConfig, RuleError, WindowDim};
use serde::{Deserialize, Serialize};

/// Configuration of [`conv2d`]. The defaults are Keras'; `filters` and `kernel_size` have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    /// Channels of the output.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Height and width of the kernel.
    #[serde(deserialize_with = "pair")]
    pub kernel_size: [i64; 2],
    /// Strides down and right. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub strides: [i64; 2],
    /// The padding. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// The dilation of the kernel. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub dilation_rate: [i64; 2],
    /// Groups of input channels and filters: each filter reads one group. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub groups: i64,
    /// The order of axes in x and in the output. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
    /// The activation. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether there is a bias. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// The bias initializer. Default `zeros`.
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

/// Cross-correlation of an image with a kernel (deep learning's convolution), plus a bias, followed by an activation.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → `[b, h', w', filters]` (or `[b, filters, h', w']`); kernel
/// `[kh, kw, c / groups, filters]` in both formats, bias `[filters]`. With SAME padding `h' = ceil(h / stride)`, else
/// `h' = floor((h + padding - (kh - 1)·dilation - 1) / stride) + 1`.
///
/// # Types
/// Everything in the dtype of x, in which variables are requested. The product is rounded to it once, and so is the sum
/// with the bias. The back end chooses the precision in which products are summed: f32 on TPU and on XLA's CPU.
///
/// # Errors
/// x not of rank 4 or not floating; filters, kernel, strides, dilation or groups below 1; channels or filters not
/// divisible by groups; a window larger than the padded image.
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
    config.activation.apply(&y)
}

/// The variable `kernel`.
#[track_caller]
pub(super) fn kernel(s: &Scope, x: &Tensor, config: &Conv2d) -> Tensor {
    let channels = x.dims()[config.data_format.channels() as usize];
    let dims = [config.kernel_size[0], config.kernel_size[1], channels / config.groups, config.filters];
    s.variable("kernel", x.dtype(), dims, config.kernel_initializer).value
}

/// The convolution op.
#[track_caller]
pub(super) fn convolution(x: &Tensor, kernel: &Tensor, window: [WindowDim; 2], config: &Conv2d) -> Tensor {
    let op = Op::Convolution(Box::new(attributes(window, config)));
    x.emit("convolution", &[kernel], |e| e.emit(op, &[x.id, kernel.id], None))
}

/// The attributes of the op.
pub(super) fn attributes(window: [WindowDim; 2], config: &Conv2d) -> Convolution {
    Convolution {
        window: window.to_vec(),
        dims: dims(config.data_format),
        feature_group_count: config.groups,
        batch_group_count: 1,
        precision: PrecisionConfig::default(),
    }
}

/// The product plus the variable `bias`, if configured.
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

/// [`check`] for an image, or for a sequence as an image of one column.
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
