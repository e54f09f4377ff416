//! Gradients of `convolution`: two more convolutions.
//!
//! With stride s, padding (lo, hi), kernel dilation d and input dilation b along one spatial dimension,
//! `y[o] = Σ_j x_b[o s + j d - lo] w[j]`, where `x_b` is x with b - 1 zeros between elements. So
//! - the input's cotangent slides the reversed kernel over g: stride b, input dilation s, kernel dilation d;
//! - the kernel's slides g over the input: stride d, input dilation b, kernel dilation s; batch and feature swap roles.
//!
//! Groups: with `feature_group_count` n, the input's cotangent has n feature groups again (the kernel's groups move from
//! output to input features), the kernel's has n batch groups, as the batch there is the input's features. With
//! `batch_group_count` n it is the other way round. Convolutions run in the operands' dtype, as TensorFlow's
//! `Conv2DBackpropInput` and `Conv2DBackpropFilter` do; if the result is wider, in the wider one.

use super::{Convolution, ConvolutionDims};
use crate::ops::WindowDim;
use crate::ops::dot::grad::to_widest;
use crate::ops::grad::{Cotangents, Vjp};
use crate::ops::window::grad::{dilated, transposed_padding};
use crate::{DType, Emitter, InstrId, Op, POISON, Shape};

/// See the module's documentation.
pub(crate) fn convolution(vjp: &Vjp<'_>, attributes: &Convolution) -> Cotangents {
    let at = At { e: vjp.e, g: vjp.g(), operands: [vjp.operand(0), vjp.operand(1)], result: vjp.result };
    vjp.each(|idx| at.cotangent(idx, attributes))
}

/// The cotangents of both operands of a convolution with these attributes, whichever instructions computed its
/// `result`; [`POISON`] for those that are not wanted.
pub fn cotangents(
    e: &Emitter,
    operands: [InstrId; 2],
    result: InstrId,
    attributes: &Convolution,
    g: InstrId,
    wanted: &[bool],
) -> Vec<InstrId> {
    let at = At { e, g, operands, result };
    (0..2).zip(wanted).map(|(idx, wanted)| if *wanted { at.cotangent(idx, attributes) } else { POISON }).collect()
}

/// A convolution with the cotangent `g` of its result.
struct At<'a> {
    e: &'a Emitter,
    g: InstrId,
    operands: [InstrId; 2],
    result: InstrId,
}

impl At<'_> {
    fn cotangent(&self, idx: usize, attributes: &Convolution) -> InstrId {
        if self.e.dims(self.g).contains(&0) {
            // Nothing was summed, and a window over nothing would have no positions.
            return self.e.zeros_like(self.operands[idx]);
        }
        if idx == 0 { to_input(self, attributes) } else { to_kernel(self, attributes) }
    }
}

/// The cotangent of the input.
fn to_input(at: &At<'_>, attributes: &Convolution) -> InstrId {
    let (e, g, input) = (at.e, at.g, at.operands[0]);
    let dims = &attributes.dims;
    let sizes = Sizes::new(at, dims);
    let window = (attributes.window.iter().enumerate())
        .map(|(axis, dim)| {
            let (padding_low, padding_high) = transposed_padding(dim, sizes.input[axis], sizes.output[axis]);
            WindowDim {
                stride: dim.base_dilation,
                padding_low,
                padding_high,
                base_dilation: dim.stride,
                reversal: false,
                ..*dim
            }
        })
        .collect();
    let n_groups = attributes.feature_group_count * attributes.batch_group_count;
    let kernel = flipped_kernel(e, at.operands[1], attributes);
    let kernel = move_groups(e, kernel, n_groups, dims.kernel_output_feature, dims.kernel_input_feature);
    let backward = Convolution {
        window,
        dims: ConvolutionDims {
            input_batch: dims.output_batch,
            input_feature: dims.output_feature,
            input_spatial: dims.output_spatial.clone(),
            kernel_input_feature: dims.kernel_output_feature,
            kernel_output_feature: dims.kernel_input_feature,
            kernel_spatial: dims.kernel_spatial.clone(),
            output_batch: dims.input_batch,
            output_feature: dims.input_feature,
            output_spatial: dims.input_spatial.clone(),
        },
        feature_group_count: n_groups,
        batch_group_count: 1,
        precision: attributes.precision.clone(),
    };
    let cotangent = convolve(e, [g, kernel], backward, e.dtype(input));
    // Batch groups are features of this result: each belongs to its part of the batch.
    move_groups(e, cotangent, attributes.batch_group_count, dims.input_feature, dims.input_batch)
}

/// The cotangent of the kernel.
fn to_kernel(at: &At<'_>, attributes: &Convolution) -> InstrId {
    let (e, g, kernel) = (at.e, at.g, at.operands[1]);
    let dims = &attributes.dims;
    let sizes = Sizes::new(at, dims);
    let window = (attributes.window.iter().enumerate())
        .map(|(axis, dim)| {
            // The last position reads the last element that some window's last element read.
            let reach = dilated(sizes.output[axis], dim.stride) + dilated(dim.size, dim.window_dilation) - 1;
            WindowDim {
                size: sizes.output[axis],
                stride: dim.window_dilation,
                padding_low: dim.padding_low,
                padding_high: reach - dilated(sizes.input[axis], dim.base_dilation) - dim.padding_low,
                window_dilation: dim.stride,
                base_dilation: dim.base_dilation,
                reversal: false,
            }
        })
        .collect();
    let backward = Convolution {
        window,
        dims: ConvolutionDims {
            input_batch: dims.input_feature,
            input_feature: dims.input_batch,
            input_spatial: dims.input_spatial.clone(),
            kernel_input_feature: dims.output_batch,
            kernel_output_feature: dims.output_feature,
            kernel_spatial: dims.output_spatial.clone(),
            output_batch: dims.kernel_input_feature,
            output_feature: dims.kernel_output_feature,
            output_spatial: dims.kernel_spatial.clone(),
        },
        feature_group_count: attributes.batch_group_count,
        batch_group_count: attributes.feature_group_count,
        precision: attributes.precision.clone(),
    };
    let cotangent = convolve(e, [at.operands[0], g], backward, e.dtype(kernel));
    reverse_where(e, cotangent, attributes, |dim| dim.reversal)
}

/// Spatial sizes, in the window's order.
struct Sizes {
    input: Vec<i64>,
    output: Vec<i64>,
}

impl Sizes {
    fn new(at: &At<'_>, dims: &ConvolutionDims) -> Sizes {
        let sizes = |id: InstrId, axes: &[i64]| {
            let dims = at.e.dims(id);
            axes.iter().map(|&axis| dims[axis as usize]).collect()
        };
        Sizes { input: sizes(at.operands[0], &dims.input_spatial), output: sizes(at.result, &dims.output_spatial) }
    }
}

/// The kernel, reversed along the dimensions the forward pass did not reverse.
fn flipped_kernel(e: &Emitter, kernel: InstrId, attributes: &Convolution) -> InstrId {
    reverse_where(e, kernel, attributes, |dim| !dim.reversal)
}

/// Reverses the kernel's spatial dimensions that `reversed` selects; those of size 1 need no reversal.
fn reverse_where(
    e: &Emitter,
    kernel: InstrId,
    attributes: &Convolution,
    reversed: impl Fn(&WindowDim) -> bool,
) -> InstrId {
    let axes: Vec<i64> = (attributes.window.iter().zip(&attributes.dims.kernel_spatial))
        .filter(|(dim, _)| dim.size > 1 && reversed(dim))
        .map(|(_, &axis)| axis)
        .collect();
    if axes.is_empty() { kernel } else { e.reverse(kernel, &axes) }
}

/// Splits `n_groups` (the major part) off dimension `from` and makes them the major part of dimension `to`.
fn move_groups(e: &Emitter, x: InstrId, n_groups: i64, from: i64, to: i64) -> InstrId {
    if n_groups == 1 {
        return x;
    }
    let mut dims = e.dims(x);
    if dims.is_empty() {
        return x;
    }
    let rank = dims.len() as i64;
    dims[from as usize] /= n_groups;
    // Split: the groups stand before `from`, so later dimensions shift by one.
    let mut split = dims.clone();
    split.insert(from as usize, n_groups);
    let shifted = |axis: i64| if axis >= from { axis + 1 } else { axis };
    let mut permutation: Vec<i64> = (0..rank).map(shifted).collect();
    permutation.insert(to as usize, from);
    dims[to as usize] *= n_groups;
    e.reshape(e.transpose(e.reshape(x, &split), &permutation), &dims)
}

/// A convolution of operands of possibly different dtypes, run in the wider one, with a result of dtype `dtype`.
fn convolve(e: &Emitter, operands: [InstrId; 2], attributes: Convolution, dtype: DType) -> InstrId {
    let operands = to_widest(e, operands);
    let declared: Option<&Shape> = None;
    e.convert(e.emit(Op::Convolution(Box::new(attributes)), &operands, declared), dtype)
}
