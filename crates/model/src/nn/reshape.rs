//! Layers that move elements: reshaping examples, padding, cropping and enlarging images.

use super::window::DataFormat;
use super::{at_least, of_rank};
use crate::graph::Tensor;
use bf16scope_hlo::ops::{PadDim, RuleError, SliceDim};

/// Reshapes each example; one of the dims may be -1, and is inferred.
///
/// # Shapes
/// x `[batch, …]` → `[batch, dims…]`.
///
/// # Types
/// Any; nothing is computed.
///
/// # Errors
/// Dims that hold another number of elements, or several that are -1.
///
/// # Source
/// Keras' `Reshape`.
#[track_caller]
pub fn reshape_example(x: &Tensor, dims: &[i64]) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    match reshaped(x, dims) {
        Ok(dims) => x.reshape(dims),
        Err(message) => x.graph().fail("reshape", &[x], RuleError::new("reshape/size", message)),
    }
}

/// The dims of x with each example reshaped, or the error.
fn reshaped(x: &Tensor, dims: &[i64]) -> Result<Vec<i64>, String> {
    let input_dims = x.dims();
    let Some((&batch, example)) = input_dims.split_first() else {
        return Err(format!("x {} has rank 0, expected at least 1: [batch, …]", x.shape()));
    };
    let n_elements: i64 = example.iter().product();
    let known = dims.iter().filter(|&&dim| dim != -1).try_fold(1i64, |n, &dim| n.checked_mul(dim));
    let n_open = dims.iter().filter(|&&dim| dim == -1).count();
    let fits = match (known, n_open) {
        (Some(known), 0) => known == n_elements,
        (Some(known), 1) => known > 0 && n_elements % known == 0,
        _ => false,
    };
    if !fits || dims.iter().any(|&dim| dim < 1 && dim != -1) {
        return Err(format!(
            "an example of {example:?} has {n_elements} elements, expected dims of as many, found {dims:?}"
        ));
    }
    let rest = n_elements / known.unwrap_or(1);
    let target = dims.iter().map(|&dim| if dim == -1 { rest } else { dim });
    Ok(std::iter::once(batch).chain(target).collect())
}

/// The positions from `bounds[0]` up to, not including, `bounds[1]` of an axis. Negative bounds count from the end;
/// `None` is the start or the end of the axis.
///
/// # Shapes
/// `[batch, …]` → the same rank; the axis has `bounds[1] - bounds[0]` positions.
///
/// # Types
/// Any dtype; elements are copied.
///
/// # Errors
/// The batch's axis, or one that x does not have; a range that is empty or exceeds the axis.
#[track_caller]
pub fn slice(x: &Tensor, bounds: [Option<i64>; 2], axis: i64) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let dims = x.dims();
    let at = x.axis(axis);
    if !(1..dims.len() as i64).contains(&at) {
        let message = format!("axis is {axis}, expected one of {} after the batch", x.shape());
        return x.graph().fail("slice", &[x], RuleError::new("slice/axis", message));
    }
    let size = dims[at as usize];
    let from_start = |bound: i64| if bound < 0 { bound + size } else { bound };
    let (start, limit) = (bounds[0].map_or(0, from_start), bounds[1].map_or(size, from_start));
    if !(0 <= start && start < limit && limit <= size) {
        let shown = bounds.map(|bound| bound.map_or("null".to_string(), |bound| bound.to_string())).join(", ");
        let message = format!("bounds are [{shown}], expected a range within the {size} positions of axis {at}");
        return x.graph().fail("slice", &[x], RuleError::new("slice/bounds", message));
    }
    let whole = |&size: &i64| SliceDim { start: 0, limit: size, stride: 1 };
    let mut slices: Vec<SliceDim> = dims.iter().map(whole).collect();
    slices[at as usize] = SliceDim { start, limit, stride: 1 };
    x.slice(&slices)
}

/// The slice at `index` of `axis`, which is removed. The batch is axis 0, and cannot be taken. Indices below 0 count
/// from the end.
///
/// # Shapes
/// x `[batch, a, b, …]` → for axis 1 `[batch, b, …]`.
///
/// # Types
/// Any; nothing is computed.
///
/// # Errors
/// An axis that x does not have, or the batch; an index that the axis does not have.
#[track_caller]
pub fn take(x: &Tensor, index: i64, axis: i64) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let mut dims = x.dims();
    let at = x.axis(axis);
    if !(1..dims.len() as i64).contains(&at) {
        let message = format!("axis is {axis}, expected one of {} after the batch", x.shape());
        return x.graph().fail("take", &[x], RuleError::new("take/axis", message));
    }
    let size = dims[at as usize];
    let written = index;
    let index = if index < 0 { index + size } else { index };
    if !(0..size).contains(&index) {
        let message = format!("index is {written}, expected {} up to {} of {}", -size, size - 1, x.shape());
        return x.graph().fail("take", &[x], RuleError::new("take/index", message));
    }
    let slice_of = |(number, &size): (usize, &i64)| match number as i64 == at {
        true => SliceDim { start: index, limit: index + 1, stride: 1 },
        false => SliceDim { start: 0, limit: size, stride: 1 },
    };
    let slices: Vec<SliceDim> = dims.iter().enumerate().map(slice_of).collect();
    let slice = x.slice(&slices);
    dims.remove(at as usize);
    slice.reshape(dims)
}

/// Pads images with zeros: `[[above, below], [left, right]]`.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → the same with `h + above + below` and `w + left + right`.
///
/// # Types
/// Any; nothing is rounded.
///
/// # Errors
/// x not of rank 4; padding below 0.
///
/// # Source
/// Keras' `ZeroPadding2D`.
#[track_caller]
pub fn zero_padding(x: &Tensor, padding: [[i64; 2]; 2], format: DataFormat) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let values = padding.iter().flatten();
    let check = of_rank("zero_padding/rank", "x", x, 4, format.axes()).and_then(|()| {
        let mut each = values.map(|&value| at_least("zero_padding/positive", "padding", value, 0));
        each.try_for_each(|result| result)
    });
    if let Err(error) = check {
        return x.graph().fail("zero_padding", &[x], error);
    }
    let mut dims = vec![PadDim { low: 0, high: 0, interior: 0 }; 4];
    for (axis, [low, high]) in format.spatial().into_iter().zip(padding) {
        dims[axis as usize] = PadDim { low, high, interior: 0 };
    }
    x.pad(0.0, &dims)
}

/// Repeats every pixel `size[0]` times down and `size[1]` times right.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → the same with `h · size[0]` and `w · size[1]`.
///
/// # Types
/// Any; nothing is rounded. Its gradient sums over the copies.
///
/// # Errors
/// x not of rank 4; a size below 1.
///
/// # Source
/// Keras' `UpSampling2D` with nearest neighbours.
#[track_caller]
pub fn upsample(x: &Tensor, size: [i64; 2], format: DataFormat) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let check = of_rank("upsample/rank", "x", x, 4, format.axes())
        .and_then(|()| size.iter().try_for_each(|&size| at_least("upsample/size", "size", size, 1)));
    if let Err(error) = check {
        return x.graph().fail("upsample", &[x], error);
    }
    let (input_dims, spatial) = (x.dims(), format.spatial());
    // One axis for the copies after each of height and width.
    let (mut split, mut positions, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (axis, &dim) in (0..).zip(&input_dims) {
        positions.push(split.len() as i64);
        split.push(dim);
        let n_copies = spatial.iter().position(|&other| other == axis).map(|at| size[at]);
        split.extend(n_copies);
        joined.push(dim * n_copies.unwrap_or(1));
    }
    x.broadcast_in_dim(&split, &positions).reshape(joined)
}

/// Permutes the axes of each example, counted from 1.
///
/// # Shapes
/// x `[batch, a, b, …]` → `[batch, …]`, axis `i` of the result being axis `order[i - 1]` of x.
///
/// # Types
/// Any; nothing is computed.
///
/// # Errors
/// An order that does not have each axis of an example once.
///
/// # Source
/// Keras' `Permute`.
#[track_caller]
pub fn permute(x: &Tensor, order: &[i64]) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if sorted != (1..x.rank() as i64).collect::<Vec<i64>>() {
        let message = format!(
            "the order of axes is {order:?}, expected each of 1 to {} once, of {}",
            x.rank() as i64 - 1,
            x.shape()
        );
        return x.graph().fail("permute", &[x], RuleError::new("permute/order", message));
    }
    x.transpose(&[&[0], order].concat())
}

/// Crops images: rows above and below, columns left and right.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → less high and wide.
///
/// # Types
/// Any; nothing is computed.
///
/// # Errors
/// x not of rank 4; margins that leave nothing.
///
/// # Source
/// Keras' `Cropping2D`.
#[track_caller]
pub fn crop(x: &Tensor, margins: [[i64; 2]; 2], format: DataFormat) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    if let Err(error) = super::of_rank("crop/rank", "x", x, 4, format.axes()) {
        return x.graph().fail("crop", &[x], error);
    }
    let whole = |&limit: &i64| SliceDim { start: 0, limit, stride: 1 };
    let mut slices: Vec<SliceDim> = x.dims().iter().map(whole).collect();
    for (axis, [before, after]) in format.spatial().into_iter().zip(margins) {
        let slice = &mut slices[axis as usize];
        if before < 0 || after < 0 || before + after >= slice.limit {
            let message = format!("{before} and {after} of axis {axis} of {} leave nothing", x.shape());
            let error = RuleError::new("crop/margins", message).with_help("cut less, or make what it reads larger");
            return x.graph().fail("crop", &[x], error);
        }
        (slice.start, slice.limit) = (before, slice.limit - after);
    }
    x.slice(&slices)
}
