//! Depthwise convolution: every channel has kernels of its own.

use super::at_least;
use super::conv::{self, Conv2d};
use super::window::{Format, Padding};
use crate::graph::{Init, Scope, Tensor};

/// Configuration of [`depthwise_conv2d`]. The default is Keras', but for `kernel`, which must be given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthwiseConv2d {
    /// Height and width of the kernels.
    pub kernel: [i64; 2],
    /// Steps down and right.
    pub strides: [i64; 2],
    /// What stands around the image.
    pub padding: Padding,
    /// Distances of a kernel's elements.
    pub dilation: [i64; 2],
    /// Kernels of each channel.
    pub depth_multiplier: i64,
    /// Where the axes of x and of the result stand.
    pub format: Format,
    /// Whether a bias is added.
    pub use_bias: bool,
    /// How the kernels start.
    pub kernel_init: Init,
    /// How the bias starts.
    pub bias_init: Init,
}

impl Default for DepthwiseConv2d {
    fn default() -> DepthwiseConv2d {
        DepthwiseConv2d {
            kernel: [0, 0],
            strides: [1, 1],
            padding: Padding::Valid,
            dilation: [1, 1],
            depth_multiplier: 1,
            format: Format::Nhwc,
            use_bias: true,
            kernel_init: Init::GLOROT_UNIFORM,
            bias_init: Init::Zeros,
        }
    }
}

/// A convolution in which each channel meets its own `depth_multiplier` kernels, plus a bias.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → `[b, h', w', c · depth_multiplier]` (or `[b, c · depth_multiplier, h', w']`),
/// sizes as in [`conv2d`](super::conv2d); kernel `[kh, kw, c, depth_multiplier]`, bias `[c · depth_multiplier]`. Channel
/// `i` of x makes channels `i · depth_multiplier ..` of the result.
///
/// # Types
/// As [`conv2d`](super::conv2d).
///
/// # Errors
/// x not of rank 4 or not floating; a kernel, strides, dilation or multiplier below 1; a window larger than the padded
/// image.
///
/// # Source
/// TensorFlow's `DepthwiseConv2dNative` and `BiasAdd`, which its XLA bridge compiles to a convolution of `c` groups.
#[track_caller]
pub fn depthwise_conv2d(s: &Scope, x: &Tensor, name: &str, config: &DepthwiseConv2d) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let channels = x.dims().get(config.format.channels() as usize).copied().unwrap_or(1);
        let grouped = Conv2d {
            filters: channels.saturating_mul(config.depth_multiplier),
            kernel: config.kernel,
            strides: config.strides,
            padding: config.padding,
            dilation: config.dilation,
            groups: channels,
            format: config.format,
            use_bias: config.use_bias,
            kernel_init: config.kernel_init,
            bias_init: config.bias_init,
        };
        let is_positive = at_least("depthwise_conv2d/multiplier", "depth_multiplier", config.depth_multiplier, 1);
        let window = match is_positive.and_then(|()| conv::check(x, &grouped)) {
            Ok(window) => window,
            Err(error) => return s.graph().fail("depthwise_conv2d", &[x], error),
        };
        let [height, width] = config.kernel;
        let dims = [height, width, channels, config.depth_multiplier];
        let kernel = s.variable("kernel", x.dtype(), dims, config.kernel_init).value;
        let kernel = kernel.reshape([height, width, 1, grouped.filters]);
        conv::add_bias(s, conv::convolution(x, &kernel, window, &grouped), &grouped)
    })
}
