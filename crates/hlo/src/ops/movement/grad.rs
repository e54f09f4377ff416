//! Gradients of data movement at constant indices: each element's cotangent goes back to the element's origin.

use super::{PadDim, SliceDim};
use crate::ops::grad::{Cotangents, Vjp, sum, sum_all};
use crate::{Emitter, InstrId};

/// The sum over the new dimensions.
pub(crate) fn broadcast(vjp: &Vjp<'_>, dimensions: &[i64]) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    let new: Vec<i64> = (0..e.dims(g).len() as i64).filter(|axis| !dimensions.contains(axis)).collect();
    // The remaining dimensions are in ascending order of `dimensions`; operand dimension i is the one at its rank
    // there.
    let rank_of = |axis: i64| dimensions.iter().filter(|&&other| other < axis).count() as i64;
    let permutation: Vec<i64> = dimensions.iter().map(|&axis| rank_of(axis)).collect();
    vjp.each(|_| e.transpose(sum(e, g, &new), &permutation))
}

/// Reshapes back.
pub(crate) fn reshape(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    vjp.each(|_| e.reshape(vjp.g(), &e.dims(vjp.operand(0))))
}

/// Transposes back.
pub(crate) fn transpose(vjp: &Vjp<'_>, permutation: &[i64]) -> Cotangents {
    vjp.each(|_| vjp.e.transpose(vjp.g(), &inverse(permutation)))
}

/// The permutation that undoes `permutation`.
pub(crate) fn inverse(permutation: &[i64]) -> Vec<i64> {
    let mut inverse = vec![0; permutation.len()];
    for (idx, &axis) in permutation.iter().enumerate() {
        inverse[axis as usize] = idx as i64;
    }
    inverse
}

/// Pads with zeros: before, after, and between where the slice had a stride.
pub(crate) fn slice(vjp: &Vjp<'_>, dims: &[SliceDim]) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    let sizes = e.dims(vjp.operand(0));
    let taken = e.dims(g);
    let pads: Vec<PadDim> = (dims.iter().zip(&sizes).zip(&taken))
        .map(|((dim, size), taken)| {
            let span = if *taken == 0 { 0 } else { (taken - 1) * dim.stride + 1 };
            PadDim { low: dim.start, high: size - dim.start - span, interior: dim.stride - 1 }
        })
        .collect();
    vjp.each(|_| e.pad(g, e.scalar(e.dtype(g), 0.0), &pads))
}

/// The array: `g` without the padding (zeros where elements were cut off). The padding value: the sum over the
/// padding.
pub(crate) fn pad(vjp: &Vjp<'_>, dims: &[PadDim]) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    let sizes = e.dims(vjp.operand(0));
    let zero = e.scalar(e.dtype(g), 0.0);
    vjp.each(|idx| {
        if idx == 0 {
            unpad(e, g, zero, dims, &sizes)
        } else {
            let is_padding = e.pad(e.full(e.dtype(g), &sizes, 0.0), e.scalar(e.dtype(g), 1.0), dims);
            sum_all(e, e.mul(g, is_padding))
        }
    })
}

/// Removes the padding `dims` from `g`, to `sizes`.
fn unpad(e: &Emitter, g: InstrId, zero: InstrId, dims: &[PadDim], sizes: &[i64]) -> InstrId {
    let edges: Vec<PadDim> = dims.iter().map(|dim| PadDim { low: -dim.low, high: -dim.high, interior: 0 }).collect();
    let dilated = if edges.iter().all(|edge| *edge == PadDim::default()) { g } else { e.pad(g, zero, &edges) };
    if dims.iter().all(|dim| dim.interior == 0) {
        return dilated;
    }
    let spans: Vec<SliceDim> = (dims.iter().zip(sizes))
        .map(|(dim, &size)| SliceDim {
            start: 0,
            limit: if size == 0 { 0 } else { (size - 1) * (dim.interior + 1) + 1 },
            stride: dim.interior + 1,
        })
        .collect();
    e.slice(dilated, &spans)
}

/// Each operand's part.
pub(crate) fn concatenate(vjp: &Vjp<'_>, dimension: i64) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    let axis = dimension as usize;
    let mut part: Vec<SliceDim> = e.dims(g).iter().map(|&size| SliceDim { start: 0, limit: size, stride: 1 }).collect();
    let sizes: Vec<i64> = vjp.operands.iter().map(|&operand| e.dims(operand)[axis]).collect();
    vjp.each(|idx| {
        let start: i64 = sizes[..idx].iter().sum();
        part[axis] = SliceDim { start, limit: start + sizes[idx], stride: 1 };
        e.slice(g, &part)
    })
}

/// Reverses again.
pub(crate) fn reverse(vjp: &Vjp<'_>, dimensions: &[i64]) -> Cotangents {
    vjp.each(|_| vjp.e.reverse(vjp.g(), dimensions))
}
