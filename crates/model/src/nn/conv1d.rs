//! One-dimensional convolution over sequences.

use super::conv::{self, Conv2d};
use super::options::{glorot_uniform, is_default, single, yes, zeros};
use super::window::Padding as ImagePadding;
use super::{Activation, is_float, of_rank};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::{PadDim, RuleError};
use serde::{Deserialize, Serialize};

/// Configuration of [`conv1d`]. The defaults are Keras'; `filters` and `kernel_size` have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv1d {
    /// Channels of the output.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Length of the kernel.
    #[serde(deserialize_with = "document::positive")]
    pub kernel_size: i64,
    /// The stride along the sequence. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub strides: i64,
    /// The padding. Default `valid`.
    #[serde(default)]
    pub padding: Padding1d,
    /// The dilation of the kernel. Default 1.
    #[serde(default = "single", deserialize_with = "document::positive")]
    pub dilation_rate: i64,
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

/// The padding of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding1d {
    /// No padding.
    #[default]
    Valid,
    /// As much as gives `ceil(length / stride)` positions; an odd one is at the end.
    Same,
    /// Zeros at the start only, so that no position depends on a later one.
    Causal,
}

impl Default for Conv1d {
    fn default() -> Conv1d {
        Conv1d {
            filters: 0,
            kernel_size: 0,
            strides: 1,
            padding: Padding1d::Valid,
            dilation_rate: 1,
            groups: 1,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// Cross-correlation of a sequence with a kernel, plus a bias, followed by an activation.
///
/// # Shapes
/// x `[b, length, c]` → `[b, length', filters]`; kernel `[kernel_size, c / groups, filters]`, bias `[filters]`. With `same`
/// and `causal` padding `length' = ceil(length / strides)`, else `floor((length - (kernel_size - 1)·dilation_rate - 1) / strides) + 1`.
///
/// # Types
/// As [`conv2d`](super::conv2d), applied to images that are one pixel wide.
///
/// # Errors
/// x not of rank 3 or not floating; the errors of [`conv2d`](super::conv2d).
///
/// # Source
/// Keras' `Conv1D`.
#[track_caller]
pub fn conv1d(s: &Scope, x: &Tensor, name: &str, config: &Conv1d) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        match image(x, config).and_then(|(image, two)| Ok((conv::check_along(&image, &two, 1)?, image, two))) {
            Err(error) => s.graph().fail("conv1d", &[x], error),
            Ok((window, image, two)) => {
                let dims = [config.kernel_size, x.dims()[2] / config.groups, config.filters];
                let kernel = s.variable("kernel", x.dtype(), dims, config.kernel_initializer).value;
                let kernel = kernel.reshape([dims[0], 1, dims[1], dims[2]]);
                let y = conv::add_bias(s, conv::convolution(&image, &kernel, window, &two), &two);
                match y.dims()[..] {
                    [batch, length, _, filters] if !y.is_poison() => y.reshape([batch, length, filters]),
                    _ => y,
                }
            }
        }
    });
    config.activation.apply(&y)
}

/// The sequence as an image one pixel wide, and the configuration of its convolution.
#[track_caller]
fn image(x: &Tensor, config: &Conv1d) -> Result<(Tensor, Conv2d), RuleError> {
    is_float("conv1d/dtype", "x", x)?;
    of_rank("conv1d/rank", "x", x, 3, "[batch, length, channels]")?;
    let [batch, length, channels] = [0, 1, 2].map(|axis| x.dims()[axis]);
    let image = x.reshape([batch, length, 1, channels]);
    let before = (config.kernel_size - 1).saturating_mul(config.dilation_rate);
    let image = match config.padding {
        Padding1d::Causal if before > 0 => {
            let none = PadDim { low: 0, high: 0, interior: 0 };
            image.pad(0.0, &[none, PadDim { low: before, ..none }, none, none])
        }
        _ => image,
    };
    let padding = match config.padding {
        Padding1d::Same => ImagePadding::Same,
        Padding1d::Valid | Padding1d::Causal => ImagePadding::Valid,
    };
    let two = Conv2d {
        filters: config.filters,
        kernel_size: [config.kernel_size, 1],
        strides: [config.strides, 1],
        padding,
        dilation_rate: [config.dilation_rate, 1],
        groups: config.groups,
        use_bias: config.use_bias,
        bias_initializer: config.bias_initializer,
        ..Conv2d::default()
    };
    Ok((image, two))
}
