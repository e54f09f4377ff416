//! Gradients of data movement at run-time indices.
//!
//! A gather moves out-of-range boxes back inside, a scatter drops them. So the reverse of a gather clamps its indices
//! before it scatters, and the reverse of a scatter masks what it gathers.

use super::{GatherDims, ScatterDims};
use crate::ops::grad::{Combiner, Cotangent, Cotangents, Vjp, Why, accum_dtype, combiner};
use crate::ops::{BinaryOp, Comparison};
use crate::{ArrayShape, CompId, DType, Emitter, InstrId, Literal, Op};

/// Writes `g` into zeros at the same indices, which both ops clamp alike.
pub(crate) fn dynamic_slice(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    vjp.each(|_| {
        let zeros = e.zeros_like(vjp.operand(0));
        e.emit(Op::DynamicUpdateSlice, &[&[zeros, vjp.g()], &vjp.operands[1..]].concat(), None)
    })
}

/// The array: `g` with zeros where the box was written. The box: `g` there.
pub(crate) fn dynamic_update_slice(vjp: &Vjp<'_>) -> Cotangents {
    let (e, g, update, indices) = (vjp.e, vjp.g(), vjp.operand(1), &vjp.operands[2..]);
    vjp.each(|idx| {
        if idx == 0 {
            e.emit(Op::DynamicUpdateSlice, &[&[g, e.zeros_like(update)], indices].concat(), None)
        } else {
            e.emit(Op::DynamicSlice { slice_sizes: e.dims(update) }, &[&[g], indices].concat(), None)
        }
    })
}

/// Adds the boxes of `g` up at their origins, in f32 if the dtype is narrower.
pub(crate) fn gather(vjp: &Vjp<'_>, dims: &GatherDims) -> Cotangents {
    let (e, g, operand, indices) = (vjp.e, vjp.g(), vjp.operand(0), vjp.operand(1));
    let backward = ScatterDims {
        update_window_dims: dims.offset_dims.clone(),
        inserted_window_dims: dims.collapsed_slice_dims.clone(),
        scatter_dims_to_operand_dims: dims.start_index_map.clone(),
        input_batching_dims: dims.operand_batching_dims.clone(),
        scatter_indices_batching_dims: dims.start_indices_batching_dims.clone(),
        index_vector_dim: dims.index_vector_dim,
        // Clamping keeps ascending indices ascending.
        indices_are_sorted: dims.indices_are_sorted,
        unique_indices: false,
    };
    let sizes = e.dims(operand);
    let last_starts: Vec<i64> =
        (dims.start_index_map.iter()).map(|&axis| sizes[axis as usize] - dims.slice_sizes[axis as usize]).collect();
    vjp.each(|_| {
        let (dtype, accum) = (e.dtype(g), accum_dtype(e.dtype(g)));
        let zeros = e.full(accum, &sizes, 0.0);
        let inside = clamp_indices(e, indices, dims.index_vector_dim, &last_starts);
        let op = Op::Scatter { dims: backward.clone(), to_apply: e.scalar_computation(BinaryOp::Add, accum) };
        e.convert(e.emit(op, &[zeros, inside, e.convert(g, accum)], None), dtype)
    })
}

/// Index vectors moved to between 0 and `last_starts`.
fn clamp_indices(e: &Emitter, indices: InstrId, vector_dim: i64, last_starts: &[i64]) -> InstrId {
    let bounds = per_component(e, indices, vector_dim, last_starts);
    e.emit(Op::Clamp, &[e.zeros_like(indices), indices, bounds], None)
}

/// `values`, one per component of an index vector, repeated to the dims of `indices`. A bound that the dtype cannot
/// represent is no restriction: it becomes the dtype's largest value.
fn per_component(e: &Emitter, indices: InstrId, vector_dim: i64, values: &[i64]) -> InstrId {
    let (dtype, dims) = (e.dtype(indices), e.dims(indices));
    let mut bytes = Vec::new();
    for &value in values {
        match Literal::scalar_of(dtype, value as f64) {
            Some(Literal::Array { bytes: scalar, .. }) => bytes.extend(scalar),
            Some(Literal::Tuple(_) | Literal::Token) | None => {
                // Indices under 8 bits have no literals here; the emitter records the error.
                return e.scalar(dtype, value as f64);
            }
        }
    }
    if vector_dim as usize == dims.len() {
        let shape = ArrayShape::new(dtype, []);
        return e.broadcast(e.constant(Literal::Array { shape, bytes }), &[], &dims);
    }
    let shape = ArrayShape::new(dtype, [values.len() as i64]);
    e.broadcast(e.constant(Literal::Array { shape, bytes }), &[vector_dim], &dims)
}

/// A scatter that adds is linear in both operands. One that replaces: the array gets `g` where nothing was written,
/// and, if all updates are disjoint, an update gets `g` from its place. Dropped updates get zeros.
pub(crate) fn scatter(vjp: &Vjp<'_>, dims: &ScatterDims, to_apply: CompId) -> Cotangents {
    let e = vjp.e;
    if vjp.operands.len() != 3 {
        return Err("a scatter of several arrays has no rule; scatter them one by one".into());
    }
    let (g, indices, updates) = (vjp.g(), vjp.operand(1), vjp.operand(2));
    let replaces = match e.with_module(|module| combiner(module, to_apply)) {
        Combiner::Binary(BinaryOp::Add) => false,
        Combiner::Second => true,
        Combiner::Binary(_) | Combiner::Compare(_) | Combiner::Other => {
            return Err("only a scatter that adds or replaces has a rule".into());
        }
    };
    if replaces && vjp.wants(2) && !dims.unique_indices {
        return Err("which of several updates to one element stays is not defined; promise unique_indices".into());
    }
    let to_array = || {
        if !replaces {
            return g;
        }
        e.emit(Op::Scatter { dims: dims.clone(), to_apply }, &[g, indices, e.zeros_like(updates)], None)
    };
    Ok(vec![
        if vjp.wants(0) { Cotangent::Array(to_array()) } else { Cotangent::Zero },
        Cotangent::Zero,
        if vjp.wants(2) { Cotangent::Array(gather_updates(vjp, dims)?) } else { Cotangent::Zero },
    ])
}

/// `g` at the places of the updates; zeros for those that were dropped.
fn gather_updates(vjp: &Vjp<'_>, dims: &ScatterDims) -> Result<InstrId, Why> {
    let (e, g, indices, updates) = (vjp.e, vjp.g(), vjp.operand(1), vjp.operand(2));
    let (sizes, update_sizes) = (e.dims(g), e.dims(updates));
    let mut window_sizes = dims.update_window_dims.iter().map(|&axis| update_sizes[axis as usize]);
    let slice_sizes: Vec<i64> = (0..sizes.len() as i64)
        .map(|axis| {
            let is_whole = !dims.inserted_window_dims.contains(&axis) && !dims.input_batching_dims.contains(&axis);
            if is_whole { window_sizes.next().unwrap_or(1) } else { 1 }
        })
        .collect();
    let last_starts: Vec<i64> = (dims.scatter_dims_to_operand_dims.iter())
        .map(|&axis| sizes[axis as usize] - slice_sizes[axis as usize])
        .collect();
    let backward = GatherDims {
        offset_dims: dims.update_window_dims.clone(),
        collapsed_slice_dims: dims.inserted_window_dims.clone(),
        start_index_map: dims.scatter_dims_to_operand_dims.clone(),
        operand_batching_dims: dims.input_batching_dims.clone(),
        start_indices_batching_dims: dims.scatter_indices_batching_dims.clone(),
        index_vector_dim: dims.index_vector_dim,
        slice_sizes,
        indices_are_sorted: dims.indices_are_sorted,
    };
    let gathered = e.emit(Op::Gather(backward), &[g, indices], None);
    let is_kept = kept_updates(e, indices, dims.index_vector_dim, &last_starts)?;
    let scatter_dims: Vec<i64> =
        (0..update_sizes.len() as i64).filter(|axis| !dims.update_window_dims.contains(axis)).collect();
    let mask = e.broadcast(is_kept, &scatter_dims, &update_sizes);
    Ok(e.select(mask, gathered, e.zeros_like(gathered)))
}

/// For each index vector whether its whole window is inside.
fn kept_updates(e: &Emitter, indices: InstrId, vector_dim: i64, last_starts: &[i64]) -> Result<InstrId, Why> {
    if last_starts.iter().any(|&last| last < 0) {
        return Err("its window is greater than the array, so every update is dropped".into());
    }
    let bounds = per_component(e, indices, vector_dim, last_starts);
    let not_before = e.compare(Comparison::Ge, indices, e.zeros_like(indices));
    let inside = e.binary(BinaryOp::And, not_before, e.compare(Comparison::Le, indices, bounds));
    if vector_dim as usize == e.dims(indices).len() {
        return Ok(inside);
    }
    let to_apply = e.scalar_computation(BinaryOp::And, DType::Pred);
    let all = e.constant(Literal::scalar(true));
    Ok(e.emit(Op::Reduce { dimensions: vec![vector_dim], to_apply }, &[inside, all], None))
}
