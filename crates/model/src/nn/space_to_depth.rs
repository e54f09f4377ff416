//! Convolutions of stride 2, computed on an image of half the size and four times the channels.
//!
//! A TPU's matrix unit (MXU) multiplies 128 channels at a time, and a first layer with 3 channels leaves most of it
//! idle. Here four neighbouring pixels become the channels of one (*space to depth*), and the kernel, padded to an even
//! size, is rearranged the same way: a 7×7 convolution of stride 2 on 224×224×3 becomes a 4×4 one of stride 1 on
//! 112×112×12. The variable remains the 7×7 kernel and is rearranged in the program at almost no cost, so checkpoints
//! do not change.
//!
//! Source: the ResNet-50 of Google's MLPerf v0.6 submissions.

use super::conv::{self, Conv2d};
use super::window::DataFormat;
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::{PadDim, RuleError, WindowDim};

/// [`conv2d`](super::conv2d) of stride 2, by way of space to depth.
///
/// # Shapes
/// As `conv2d`, with the same variables.
///
/// # Types
/// As `conv2d`. The products are the same, some zeros are added to them, and the order of sums differs.
///
/// # Errors
/// As `conv2d`; strides other than 2, dilation or groups; an image of odd height or width.
#[track_caller]
pub fn conv2d_space_to_depth(s: &Scope, x: &Tensor, name: &str, config: &Conv2d) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let windows = match conv::check(x, config).and_then(|window| halve(x, config, window)) {
            Ok(windows) => windows,
            Err(error) => return s.graph().fail("conv2d_space_to_depth", &[x], error),
        };
        let kernel = conv::kernel(s, x, config);
        let kernel = rearrange_kernel(&kernel, &windows);
        let product = conv::convolution(&rearrange(x, config.data_format), &kernel, windows.map(|w| w.halved), config);
        conv::add_bias(s, product, config)
    });
    config.activation.apply(&y)
}

/// A window of stride 2 along one axis, on the halved image.
#[derive(Clone, Copy, Debug)]
struct Halved {
    /// Zeros before and after the kernel.
    kernel_padding: [i64; 2],
    /// The window of stride 1.
    halved: WindowDim,
}

fn halve(x: &Tensor, config: &Conv2d, window: [WindowDim; 2]) -> Result<[Halved; 2], RuleError> {
    let Conv2d { strides, dilation_rate: dilation, groups, data_format: format, .. } = *config;
    if (strides, dilation, groups) != ([2, 2], [1, 1], 1) {
        let message = format!("strides are {strides:?}, dilation {dilation:?}, groups {groups}");
        return Err(
            RuleError::new("conv2d_space_to_depth/stride", message).with_help("expected strides [2, 2], else 1")
        );
    }
    let dims = x.dims();
    let size = format.spatial().map(|axis| dims[axis as usize]);
    if size.iter().any(|size| size % 2 != 0) {
        let message = format!("the image is {}x{}, expected an even height and width", size[0], size[1]);
        return Err(RuleError::new("conv2d_space_to_depth/even", message).with_help("use the plain convolution"));
    }
    let halve = |axis: usize| {
        let (window, size) = (window[axis], size[axis]);
        // Element k of the kernel multiplies pixel 2·o + k − low: with zeros before it that make low even, its pairs
        // are those of the image.
        let before = window.padding_low % 2;
        let after = (window.size + before) % 2;
        let (n, low) = ((window.size + before + after) / 2, (window.padding_low + before) / 2);
        let high = window.n_positions(size) + n - 1 - low - size / 2;
        let halved = WindowDim { padding_low: low, padding_high: high, ..WindowDim::of_size(n) };
        Halved { kernel_padding: [before, after], halved }
    };
    Ok([halve(0), halve(1)])
}

/// `[b, h, w, c]` → `[b, h/2, w/2, 4·c]`, or `[b, c, h, w]` → `[b, 4·c, h/2, w/2]`. Channels are (row, column, channel).
fn rearrange(x: &Tensor, format: DataFormat) -> Tensor {
    let dims = x.dims();
    match (format, &dims[..]) {
        (DataFormat::ChannelsLast, &[b, h, w, c]) => {
            x.reshape([b, h / 2, 2, w / 2, 2, c]).transpose(&[0, 1, 3, 2, 4, 5]).reshape([b, h / 2, w / 2, 4 * c])
        }
        (DataFormat::ChannelsFirst, &[b, c, h, w]) => {
            x.reshape([b, c, h / 2, 2, w / 2, 2]).transpose(&[0, 3, 5, 1, 2, 4]).reshape([b, 4 * c, h / 2, w / 2])
        }
        // Only after an error, which the graph records.
        _ => x.clone(),
    }
}

/// `[k, k', c, f]` → `[n, n', 4·c, f]`.
fn rearrange_kernel(kernel: &Tensor, windows: &[Halved; 2]) -> Tensor {
    let pad = |[low, high]: [i64; 2]| PadDim { low, high, interior: 0 };
    let [rows, columns] = windows.map(|window| pad(window.kernel_padding));
    let none = || pad([0, 0]);
    let padded = kernel.pad(0.0, &[rows, columns, none(), none()]);
    let [n, m] = windows.map(|window| window.halved.size);
    let dims = kernel.dims();
    let [_, _, c, f] = dims[..] else { return padded };
    padded.reshape([n, 2, m, 2, c, f]).transpose(&[0, 2, 1, 3, 4, 5]).reshape([n, m, 4 * c, f])
}
