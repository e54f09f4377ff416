//! Upsampling of sequences, images and volumes: repetition, or linear interpolation; and their padding and cropping.

use super::conv_nd::n_places;
use super::sizes::Sizes;
use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{RuleError, SliceDim};
use serde::{Deserialize, Serialize};

/// The interpolation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The nearest element.
    #[default]
    Nearest,
    /// Linear interpolation along each axis.
    Bilinear,
}

/// Upsamples each spatial axis by its factor.
///
/// # Shapes
/// x `[b, …places, c]` of a sequence, an image or a volume → the same, each axis times its size.
///
/// # Types
/// Nearest: any dtype; nothing is computed. Interpolation: in f32 if x is narrower, rounded once at the end. The
/// gradient sums over the elements that one element contributes to.
///
/// # Errors
/// x not of rank 3, 4 or 5, or not floating; sizes of another number of axes.
///
/// # Source
/// Keras' `UpSampling1D`, `UpSampling2D` and `UpSampling3D`; interpolation is TensorFlow's `resize` with half-pixel
/// centres.
#[track_caller]
pub fn upsample_nd(x: &Tensor, size: &Sizes, interpolation: Interpolation) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let _open = x.graph().open_layer();
    let sizes = n_places("upsample/rank", x, 1..=3).and_then(|n| size.of_axes("upsample/sizes", "size", n));
    let sizes = match sizes {
        Ok(sizes) => sizes,
        Err(error) => return x.graph().fail("upsample", &[x], error),
    };
    let dtype = match interpolation {
        Interpolation::Bilinear if x.dtype().bits() < 32 => DType::F32,
        _ => x.dtype(),
    };
    let along = |x: Tensor, (axis, &size): (usize, &i64)| match interpolation {
        _ if size == 1 => x,
        Interpolation::Nearest => interleaved(&vec![x.clone(); size as usize], axis + 1),
        Interpolation::Bilinear => lines(&x, axis + 1, size),
    };
    sizes.iter().enumerate().fold(x.cast(dtype), along).cast(x.dtype())
}

/// Linear interpolation with `size` elements for each one; the ends are constant.
#[track_caller]
fn lines(x: &Tensor, axis: usize, size: i64) -> Tensor {
    let n = x.dims()[axis];
    let from = |start: i64, limit: i64| {
        let mut slices: Vec<SliceDim> = x.dims().iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        (slices[axis].start, slices[axis].limit) = (start, limit);
        x.slice(&slices)
    };
    let beside = |first: Tensor, then: Tensor| Tensor::concatenate(&[&first, &then], axis as i64);
    // The neighbours before and after, or the element itself at the ends.
    let (before, after) = match n {
        1 => (x.clone(), x.clone()),
        _ => (beside(from(0, 1), from(0, n - 1)), beside(from(1, n), from(n - 1, n))),
    };
    let phase = |number: i64| {
        let distance = (number as f64 + 0.5) / size as f64 - 0.5;
        let other = if distance < 0.0 { &before } else { &after };
        x + (other - x) * distance.abs()
    };
    interleaved(&(0..size).map(phase).collect::<Vec<Tensor>>(), axis)
}

/// Interleaves tensors of one shape along an axis.
#[track_caller]
fn interleaved(tensors: &[Tensor], axis: usize) -> Tensor {
    let dims = tensors[0].dims();
    let mut split = dims.clone();
    split.insert(axis + 1, 1);
    let each: Vec<Tensor> = tensors.iter().map(|tensor| tensor.reshape(split.clone())).collect();
    let all = Tensor::concatenate(&each.iter().collect::<Vec<_>>(), axis as i64 + 1);
    let mut joined = dims;
    joined[axis] *= tensors.len() as i64;
    all.reshape(joined)
}

/// Pads a sequence or a volume with zeros before and after each spatial axis; negative margins crop.
///
/// # Shapes
/// x `[b, …places, c]` → the same, each axis longer by its two.
///
/// # Types
/// Any; nothing is rounded.
///
/// # Errors
/// x with another number of axes; margins that leave nothing.
///
/// # Source
/// Keras' `ZeroPadding1D`, `ZeroPadding3D`, `Cropping1D` and `Cropping3D`.
#[track_caller]
pub fn pad_places(x: &Tensor, margins: &[[i64; 2]]) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let mut result = x.dims();
    if result.len() != margins.len() + 2 {
        let message = format!(
            "x {} has rank {}, expected {}: the batch, {} axes of places, channels",
            x.shape(),
            x.rank(),
            margins.len() + 2,
            margins.len()
        );
        return x.graph().fail("pad", &[x], RuleError::new("pad/rank", message));
    }
    let mut dims = vec![bf16scope_hlo::ops::PadDim { low: 0, high: 0, interior: 0 }; x.rank()];
    for (axis, &[low, high]) in (1..).zip(margins) {
        result[axis] = result[axis].saturating_add(low).saturating_add(high);
        if result[axis] < 1 || low.min(high) < -x.dims()[axis] {
            let message = format!("{} and {} of axis {axis} of {} leave nothing", -low, -high, x.shape());
            let error = RuleError::new("pad/margins", message).with_help("cut less, or make what it reads larger");
            return x.graph().fail("pad", &[x], error);
        }
        (dims[axis].low, dims[axis].high) = (low, high);
    }
    x.pad(0.0, &dims)
}
