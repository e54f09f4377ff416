//! Convolutions of sequences, images and volumes: `conv3d`, transposed and separable ones.

use super::options::{glorot_uniform, is_default, ones, single, some_sizes, yes, zeros};
use super::sizes::Sizes;
use super::window::Padding;
use super::{Activation, at_least, is_float};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::{Convolution, ConvolutionDims, PrecisionConfig, RuleError, WindowDim};
use serde::{Deserialize, Serialize};

/// Configuration of [`conv3d`]. The defaults are Keras'; `filters` and `kernel_size` have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv3d {
    /// Channels of the output.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Depth, height and width of the kernel.
    pub kernel_size: Sizes,
    /// The stride along each axis. Default 1.
    #[serde(default = "ones")]
    pub strides: Sizes,
    /// The padding. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// The dilation of the kernel. Default 1.
    #[serde(default = "ones")]
    pub dilation_rate: Sizes,
    /// Groups of input channels and filters. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub groups: i64,
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

impl Default for Conv3d {
    fn default() -> Conv3d {
        Conv3d {
            filters: 0,
            kernel_size: Sizes::from(1),
            strides: Sizes::from(1),
            padding: Padding::Valid,
            dilation_rate: Sizes::from(1),
            groups: 1,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// Configuration of [`conv_transpose`]. The defaults are Keras'; `filters` and `kernel_size` have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvTranspose {
    /// Channels of the output.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Sizes of the kernel.
    pub kernel_size: Sizes,
    /// The factor by which each axis grows. Default 1.
    #[serde(default = "ones")]
    pub strides: Sizes,
    /// `same`: exactly by the strides; `valid`: plus what the kernel exceeds them by. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// Output padding at the end of each axis, below the strides. Default: `padding` decides.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_sizes")]
    pub output_padding: Option<Sizes>,
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

impl Default for ConvTranspose {
    fn default() -> ConvTranspose {
        ConvTranspose {
            filters: 0,
            kernel_size: Sizes::from(1),
            strides: Sizes::from(1),
            padding: Padding::Valid,
            output_padding: None,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// Configuration of [`separable_conv`]. The defaults are Keras'; `filters` and `kernel_size` have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeparableConv {
    /// Channels of the output.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Sizes of the depthwise kernels.
    pub kernel_size: Sizes,
    /// The stride along each axis. Default 1.
    #[serde(default = "ones")]
    pub strides: Sizes,
    /// The padding. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// The dilation of the kernels. Default 1.
    #[serde(default = "ones")]
    pub dilation_rate: Sizes,
    /// The number of depthwise kernels per channel. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub depth_multiplier: i64,
    /// The activation. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether there is a bias. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// The initializer of the depthwise kernels. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub depthwise_initializer: Init,
    /// The initializer of the pointwise kernel. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub pointwise_initializer: Init,
    /// The bias initializer. Default `zeros`.
    #[serde(default = "zeros")]
    pub bias_initializer: Init,
}

impl Default for SeparableConv {
    fn default() -> SeparableConv {
        SeparableConv {
            filters: 0,
            kernel_size: Sizes::from(1),
            strides: Sizes::from(1),
            padding: Padding::Valid,
            dilation_rate: Sizes::from(1),
            depth_multiplier: 1,
            activation: Activation::Linear,
            use_bias: true,
            depthwise_initializer: Init::GLOROT_UNIFORM,
            pointwise_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// Cross-correlation of a volume with a kernel, plus a bias, followed by an activation.
///
/// # Shapes
/// x `[b, d, h, w, c]` → `[b, d', h', w', filters]`, sizes as in [`conv2d`](super::conv2d); kernel
/// `[kd, kh, kw, c / groups, filters]`, bias `[filters]`.
///
/// # Types
/// As [`conv2d`](super::conv2d).
///
/// # Errors
/// x not of rank 5 or not floating; channels or filters not divisible by groups; a window larger than the padded
/// volume.
///
/// # Source
/// Keras' `Conv3D`.
#[track_caller]
pub fn conv3d(s: &Scope, x: &Tensor, name: &str, config: &Conv3d) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let windows = n_places("conv3d/rank", x, 3..=3).and_then(|n| {
            super::of_rank("conv3d/rank", "x", x, 5, "[batch, depth, height, width, channels]")?;
            groups(x, config.groups, config.filters)?;
            let sizes = |sizes: &Sizes, what: &str| sizes.of_axes("conv3d/sizes", what, n);
            let (size, strides) = (sizes(&config.kernel_size, "kernel_size")?, sizes(&config.strides, "strides")?);
            forward(x, &size, &strides, &sizes(&config.dilation_rate, "dilation_rate")?, config.padding)
        });
        let windows = match windows {
            Ok(windows) => windows,
            Err(error) => return s.graph().fail("conv3d", &[x], error),
        };
        let channels = x.dims()[4] / config.groups;
        let dims: Vec<i64> = windows.iter().map(|dim| dim.size).chain([channels, config.filters]).collect();
        let kernel = s.variable("kernel", x.dtype(), dims, config.kernel_initializer).value;
        let y = convolution(x, &kernel, windows, config.groups, false);
        biased(s, y, config.use_bias.then_some(config.bias_initializer), config.filters)
    });
    config.activation.apply(&y)
}

/// Transposed convolution, which inserts positions between those of x, plus a bias, followed by an activation.
///
/// # Shapes
/// x `[b, …places, c]` of a sequence, an image or a volume → `[b, …places', filters]`; kernel `[…sizes, filters, c]`, bias
/// `[filters]`. With `same` padding `n' = n · stride`, else `n' = n · stride + max(size - stride, 0)`; with `output_padding`
/// `n' = (n - 1) · stride + size - 2 · pad + output_padding`, pad being `floor(size / 2)` with `same` padding, else 0.
///
/// # Types
/// As [`conv2d`](super::conv2d).
///
/// # Errors
/// x not of rank 3, 4 or 5, or not floating; `output_padding` of at least the strides; an empty output.
///
/// # Source
/// Keras' `Conv1DTranspose`, `Conv2DTranspose` and `Conv3DTranspose`.
#[track_caller]
pub fn conv_transpose(s: &Scope, x: &Tensor, name: &str, config: &ConvTranspose) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let windows = n_places("conv_transpose/rank", x, 1..=3).and_then(|n| transposed(x, n, config));
        let windows = match windows {
            Ok(windows) => windows,
            Err(error) => return s.graph().fail("conv_transpose", &[x], error),
        };
        let channels = x.dims()[x.rank() - 1];
        let dims: Vec<i64> = windows.iter().map(|dim| dim.size).chain([config.filters, channels]).collect();
        let kernel = s.variable("kernel", x.dtype(), dims, config.kernel_initializer).value;
        let y = convolution(x, &kernel, windows, 1, true);
        biased(s, y, config.use_bias.then_some(config.bias_initializer), config.filters)
    });
    config.activation.apply(&y)
}

/// A depthwise convolution, then a 1×1 convolution over all channels, plus a bias, followed by an activation.
///
/// # Shapes
/// x `[b, …places, c]` of a sequence, an image or a volume → `[b, …places', filters]`; variables `depthwise_kernel`
/// `[…sizes, c, depth_multiplier]`, `pointwise_kernel` `[…1, c · depth_multiplier, filters]`, `bias` `[filters]`.
///
/// # Types
/// As [`conv2d`](super::conv2d); the intermediate result is rounded to the dtype.
///
/// # Errors
/// As [`conv3d`], x of rank 3, 4 or 5.
///
/// # Source
/// Keras' `SeparableConv1D` and `SeparableConv2D`; Chollet 2016.
#[track_caller]
pub fn separable_conv(s: &Scope, x: &Tensor, name: &str, config: &SeparableConv) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let windows = n_places("separable_conv/rank", x, 1..=3).and_then(|n| {
            at_least("separable_conv/multiplier", "depth_multiplier", config.depth_multiplier, 1)?;
            let sizes = |sizes: &Sizes, what: &str| sizes.of_axes("separable_conv/sizes", what, n);
            let (size, strides) = (sizes(&config.kernel_size, "kernel_size")?, sizes(&config.strides, "strides")?);
            forward(x, &size, &strides, &sizes(&config.dilation_rate, "dilation_rate")?, config.padding)
        });
        let windows = match windows {
            Ok(windows) => windows,
            Err(error) => return s.graph().fail("separable_conv", &[x], error),
        };
        let (n, channels, dtype) = (windows.len(), x.dims()[x.rank() - 1], x.dtype());
        let sizes: Vec<i64> = windows.iter().map(|dim| dim.size).collect();
        let wide = channels.saturating_mul(config.depth_multiplier);
        let depthwise_dims = [&sizes[..], &[channels, config.depth_multiplier]].concat();
        let depthwise = s.variable("depthwise_kernel", dtype, depthwise_dims, config.depthwise_initializer).value;
        let depthwise = depthwise.reshape([&sizes[..], &[1, wide]].concat());
        let between = convolution(x, &depthwise, windows, channels, false);
        let pointwise_dims = [vec![1; n], vec![wide, config.filters]].concat();
        let pointwise = s.variable("pointwise_kernel", dtype, pointwise_dims, config.pointwise_initializer).value;
        let y = convolution(&between, &pointwise, vec![WindowDim::of_size(1); n], 1, false);
        biased(s, y, config.use_bias.then_some(config.bias_initializer), config.filters)
    });
    config.activation.apply(&y)
}

/// The number of spatial axes of x, if it is floating and has a supported rank.
pub(super) fn n_places(
    rule: &'static str,
    x: &Tensor,
    expected: std::ops::RangeInclusive<usize>,
) -> Result<usize, RuleError> {
    is_float(rule, "x", x)?;
    let n = x.rank().saturating_sub(2);
    if expected.contains(&n) {
        return Ok(n);
    }
    let shapes =
        ["[batch, length, channels]", "[batch, height, width, channels]", "[batch, depth, height, width, channels]"];
    let expected = expected.map(|n| shapes[n - 1]).collect::<Vec<&str>>().join(" or ");
    Err(RuleError::new(rule, format!("x {} has rank {}, expected {expected}", x.shape(), x.rank())))
}

fn groups(x: &Tensor, groups: i64, filters: i64) -> Result<(), RuleError> {
    at_least("conv/groups", "groups", groups, 1)?;
    at_least("conv/filters", "filters", filters, 1)?;
    for (what, n) in [("channels", x.dims()[x.rank() - 1]), ("filters", filters)] {
        if n % groups != 0 {
            let message = format!("{n} {what} do not split in {groups} groups, expected a multiple");
            return Err(RuleError::new("conv/groups", message));
        }
    }
    Ok(())
}

/// The windows of a convolution over the spatial axes of x `[batch, …, channels]`.
pub(super) fn forward(
    x: &Tensor,
    size: &[i64],
    strides: &[i64],
    dilation: &[i64],
    padding: Padding,
) -> Result<Vec<WindowDim>, RuleError> {
    let dims = x.dims();
    let dim = |at: usize| {
        super::window::along(dims[at + 1], (size[at], strides[at], dilation[at]), padding, (at, size.len()))
    };
    (0..size.len()).map(dim).collect()
}

/// The windows of a transposed convolution: those of the gradient of the forward convolution.
fn transposed(x: &Tensor, n: usize, config: &ConvTranspose) -> Result<Vec<WindowDim>, RuleError> {
    at_least("conv_transpose/filters", "filters", config.filters, 1)?;
    let sizes = |sizes: &Sizes, what: &str| sizes.of_axes("conv_transpose/sizes", what, n);
    let (size, strides) = (sizes(&config.kernel_size, "kernel_size")?, sizes(&config.strides, "strides")?);
    let output_padding = config.output_padding.as_ref().map(|it| sizes(it, "output_padding")).transpose()?;
    let is_same = match config.padding {
        Padding::Same => true,
        Padding::Valid => false,
        Padding::Explicit(_) => {
            return Err(RuleError::new("conv_transpose/padding", "padding is explicit, expected `same` or `valid`"));
        }
    };
    let dim = |at: usize| {
        let (n, size, stride) = (x.dims()[at + 1], size[at], strides[at]);
        at_least("conv_transpose/sizes", "kernel_size", size, 1)?;
        at_least("conv_transpose/sizes", "strides", stride, 1)?;
        let spread = (n - 1).saturating_mul(stride).saturating_add(1);
        let result = match &output_padding {
            None if is_same => n.saturating_mul(stride),
            None => n.saturating_mul(stride).saturating_add((size - stride).max(0)),
            Some(added) if added[at] >= stride => {
                let message = format!("output_padding is {}, expected less than the strides, {stride}", added[at]);
                return Err(RuleError::new("conv_transpose/output_padding", message));
            }
            Some(added) => spread - 1 + size - if is_same { 2 * (size / 2) } else { 0 } + added[at],
        };
        at_least("conv_transpose/places", "places of the result", result, 1)?;
        // The low padding of the forward convolution.
        let before = if is_same { (spread - 1 + size - result).max(0) / 2 } else { 0 };
        let padding_low = size - 1 - before;
        let padding_high = result + size - 1 - spread - padding_low;
        let dim = WindowDim { padding_low, padding_high, base_dilation: stride, ..WindowDim::of_size(size) };
        Ok(WindowDim { reversal: true, ..dim })
    };
    (0..n).map(dim).collect()
}

/// The convolution op, with x `[batch, …, channels]` and a kernel `[…, channels, filters]`, or a transposed one `[…,
/// filters, channels]`.
#[track_caller]
pub(super) fn convolution(
    x: &Tensor,
    kernel: &Tensor,
    window: Vec<WindowDim>,
    groups: i64,
    is_transposed: bool,
) -> Tensor {
    let n = window.len() as i64;
    let (inputs, outputs) = if is_transposed { (n + 1, n) } else { (n, n + 1) };
    let places: Vec<i64> = (1..=n).collect();
    let op = Convolution {
        window,
        dims: ConvolutionDims {
            input_batch: 0,
            input_feature: n + 1,
            input_spatial: places.clone(),
            kernel_input_feature: inputs,
            kernel_output_feature: outputs,
            kernel_spatial: (0..n).collect(),
            output_batch: 0,
            output_feature: n + 1,
            output_spatial: places,
        },
        feature_group_count: groups,
        batch_group_count: 1,
        precision: PrecisionConfig::default(),
    };
    x.emit("convolution", &[kernel], |e| e.emit(Op::Convolution(Box::new(op)), &[x.id, kernel.id], None))
}

/// The product plus the variable `bias`, if configured.
#[track_caller]
fn biased(s: &Scope, y: Tensor, init: Option<Init>, filters: i64) -> Tensor {
    match init {
        Some(init) if !y.is_poison() => {
            let bias = s.variable("bias", y.dtype(), [filters], init).value;
            let last = y.rank() as i64 - 1;
            let bias = bias.broadcast_in_dim(&y.dims(), &[last]);
            y + bias
        }
        _ => y,
    }
}
