//! Convolutions that compute two neighbouring columns at a time.
//!
//! A TPU's matrix unit (MXU) computes 128 columns of a product at once, so a convolution with 64 filters leaves half of
//! it idle. Here the window is one stride wider and moves by two: the kernel appears twice side by side, the second
//! copy one stride further, with zeros where only the other copy reads. The output `[b, h, w/2, 2·filters]` has its
//! elements in the order of `[b, h, w, filters]`. With a batch that is a multiple of 128, the TPU compiler keeps images
//! of few channels with the batch innermost, so the two shapes share one memory layout too.
//!
//! The gradients are those of the plain convolution: in the backward pass the compiler fuses a batch norm's gradient
//! into the convolution, which it does not do across the two shapes.

use super::conv::{self, Conv2d};
use super::window::DataFormat;
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::convolution::grad::cotangents;
use bf16scope_hlo::ops::{PadDim, WindowDim};

/// The number of columns of a TPU's matrix unit, and of examples in a tile.
const N_LANES: i64 = 128;

/// [`conv2d`](super::conv2d), two columns at a time where that saves work on a TPU: at most 64 filters, a kernel wider
/// than 1, an even number of columns, a batch that is a multiple of 128; NHWC, without dilation and groups. All other
/// convolutions are plain.
///
/// # Shapes
/// As `conv2d`, with the same variables.
///
/// # Types
/// As `conv2d`. The products are the same, zeros are added to them, and the order of sums may differ. An infinite or
/// NaN pixel also affects a neighbouring column, because 0 · ∞ is NaN.
///
/// # Errors
/// As `conv2d`.
#[track_caller]
pub fn conv2d_paired(s: &Scope, x: &Tensor, name: &str, config: &Conv2d) -> Tensor {
    let y = s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let window = match conv::check(x, config) {
            Ok(window) => window,
            Err(error) => return s.graph().fail("conv2d", &[x], error),
        };
        let kernel = conv::kernel(s, x, config);
        conv::add_bias(s, convolution(x, &kernel, window, config), config)
    });
    config.activation.apply(&y)
}

/// The convolution op, two columns at a time where that saves work.
#[track_caller]
pub(super) fn convolution(x: &Tensor, kernel: &Tensor, window: [WindowDim; 2], config: &Conv2d) -> Tensor {
    match pair(&x.dims(), window, config) {
        Some(paired) => of_pairs(x, kernel, window, paired, config),
        None => conv::convolution(x, kernel, window, config),
    }
}

/// The window over two columns, if it saves work.
fn pair(x: &[i64], window: [WindowDim; 2], config: &Conv2d) -> Option<WindowDim> {
    let &[batch, _, width, channels] = x else { return None };
    let [rows, columns] = window;
    let is_plain =
        config.data_format == DataFormat::ChannelsLast && config.dilation_rate == [1, 1] && config.groups == 1;
    let n_columns = columns.n_positions(width);
    if !is_plain || batch % N_LANES != 0 || 2 * config.filters > N_LANES || columns.size == 1 || n_columns % 2 != 0 {
        return None;
    }
    let (size, stride) = (columns.size + columns.stride, 2 * columns.stride);
    // The matrix unit reads a window in blocks of 128 numbers; two columns must take fewer than twice as many as one.
    let n_blocks = |size: i64| (rows.size * size * channels + N_LANES - 1) / N_LANES;
    let padding_high = (n_columns / 2 - 1) * stride + size - columns.padding_low - width;
    (n_blocks(size) < 2 * n_blocks(columns.size)).then_some(WindowDim { size, stride, padding_high, ..columns })
}

#[track_caller]
fn of_pairs(x: &Tensor, kernel: &Tensor, window: [WindowDim; 2], paired: WindowDim, config: &Conv2d) -> Tensor {
    let stride = window[1].stride;
    let shifted = |low: i64, high: i64| {
        let columns = PadDim { low, high, interior: 0 };
        kernel.pad(0.0, &[PadDim::default(), columns, PadDim::default(), PadDim::default()])
    };
    let both = Tensor::concatenate(&[&shifted(0, stride), &shifted(stride, 0)], -1);
    let pairs = conv::convolution(x, &both, [window[0], paired], config);
    let y = match pairs.dims()[..] {
        [batch, height, width, features] => pairs.reshape([batch, height, 2 * width, features / 2]),
        // Only after an error, which the graph records.
        _ => return pairs,
    };
    let (operands, result) = ([x.id, kernel.id], y.id);
    let plain = conv::attributes(window, config);
    y.with_layer_vjp(&[x, kernel], move |e, g, wanted| cotangents(e, operands, result, &plain, g, wanted))
}
