//! Data movement at run-time indices: dynamic-slice, dynamic-update-slice, gather, scatter.
//!
//! # Shapes
//! - `dynamic-slice`: `[n0, n1]`, two scalar starts → `slice_sizes`, each at most the operand's.
//! - `dynamic-update-slice`: `[n0, n1]`, update of the same rank and no larger, two scalar starts → `[n0, n1]`.
//! - `gather`: operand, indices → the dims of the indices without `index_vector_dim`, with the box dims (the operand
//!   axes that are neither collapsed nor batching, of `slice_sizes`) put in at `offset_dims`. Collapsed and batching axes
//!   have box size 0 or 1. `index_vector_dim` equal to the indices' rank means scalar indices.
//! - `scatter`: N operands of equal dims, indices, N updates of equal dims → the operands. Updates are shaped like the
//!   result of a `gather` with the same numbers, whose boxes may be smaller than the operand.
//! - Batching dims pair an operand axis with an axis of the indices of the same size, which advance together.
//!
//! # Types
//! Indices are integers (starts all of one dtype). Operand, update and result have one dtype, any. Bits move unchanged,
//! except in `scatter`, where `to_apply(old, update)` (2N scalars → N) makes the new value: with bf16 operands every
//! addition rounds to bf16, in an order the back end chooses.
//!
//! # Out of range
//! `dynamic-slice`, `dynamic-update-slice` and `gather` move an out-of-range box back inside; `scatter` skips an
//! update whose window would be out of range.
//!
//! # Errors
//! `operands/*`, `dynamic-slice/arity`, `dynamic-update-slice/arity`, `indexing/*`, `gather/collapsed-size`, `scatter/*`.
//!
//! # Source
//! XLA's operation semantics; `InferDynamicSliceShape`, `InferDynamicUpdateSliceShape`, `InferGatherShape`,
//! `InferScatterShape` of `shape_inference.cc`. Sizes of batching dims and their overlap with others are not checked
//! there: here they are.

pub(crate) mod grad;

use super::{Callees, RuleError, operands};
use crate::{ArrayShape, CompId, DType, Shape};

/// Dimension numbers of `gather`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct GatherDims {
    /// Result dimensions that are box dimensions.
    pub offset_dims: Vec<i64>,
    /// Operand dimensions of box size 1, absent from the result.
    pub collapsed_slice_dims: Vec<i64>,
    /// The operand dimension of each component of an index vector.
    pub start_index_map: Vec<i64>,
    /// Operand dimensions that are paired with a dimension of the indices.
    pub operand_batching_dims: Vec<i64>,
    /// The dimensions of the indices that they are paired with.
    pub start_indices_batching_dims: Vec<i64>,
    /// The dimension of the indices that holds index vectors; equal to their rank if indices are scalars.
    pub index_vector_dim: i64,
    /// Size of the box.
    pub slice_sizes: Vec<i64>,
    /// A promise that indices ascend.
    pub indices_are_sorted: bool,
}

/// Dimension numbers of `scatter`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ScatterDims {
    /// Dimensions of the updates that are window dimensions.
    pub update_window_dims: Vec<i64>,
    /// Operand dimensions of window size 1, absent from the updates.
    pub inserted_window_dims: Vec<i64>,
    /// The operand dimension of each component of an index vector.
    pub scatter_dims_to_operand_dims: Vec<i64>,
    /// Operand dimensions that are paired with a dimension of the indices.
    pub input_batching_dims: Vec<i64>,
    /// The dimensions of the indices that they are paired with.
    pub scatter_indices_batching_dims: Vec<i64>,
    /// The dimension of the indices that holds index vectors; equal to their rank if indices are scalars.
    pub index_vector_dim: i64,
    /// A promise that indices ascend.
    pub indices_are_sorted: bool,
    /// A promise that all updates are disjoint.
    pub unique_indices: bool,
}

/// Array, one scalar integer per dimension → a box of `slice_sizes`, moved inside the array if it is out of range.
pub(super) fn dynamic_slice(slice_sizes: &[i64], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "dynamic-slice";
    let Some((operand, starts)) = operands.split_first() else {
        return Err(RuleError::new(
            "dynamic-slice/arity",
            "dynamic-slice takes an array and its start indices, got 0 operands",
        ));
    };
    let operand = operands::array(op, "operand", operand)?;
    check_starts(op, operand, starts)?;
    operands::per_dimension(op, "dynamic_slice_sizes", slice_sizes.len(), operand)?;
    for (axis, (&size, &n)) in slice_sizes.iter().zip(&operand.dims).enumerate() {
        check_box_size(op, "dynamic_slice_sizes", axis, size, n)?;
    }
    let dynamic = operands::dynamic_flags(operand.rank(), |axis| {
        operand.is_dynamic(axis) && slice_sizes[axis] == operand.dims[axis]
    });
    Ok(ArrayShape { dims: slice_sizes.to_vec(), dynamic, ..operands::like(operand, operand.dtype) }.into())
}

/// Array, box, one scalar integer per dimension → the shape of the array.
pub(super) fn dynamic_update_slice(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "dynamic-update-slice";
    let [operand, update, starts @ ..] = operands else {
        let message = format!("{op} takes an array, an update and its start indices, got {} operands", operands.len());
        return Err(RuleError::new("dynamic-update-slice/arity", message));
    };
    let operand = operands::array(op, "operand", operand)?;
    let update = operands::array(op, "update", update)?;
    operands::same_dtype(op, ("operand", operand), ("update", update))?;
    operands::per_dimension(op, "update", update.rank(), operand)?;
    for (axis, (&size, &n)) in update.dims.iter().zip(&operand.dims).enumerate() {
        check_box_size(op, "update", axis, size, n)?;
    }
    check_starts(op, operand, starts)?;
    Ok(operands::like(operand, operand.dtype).into())
}

/// One scalar integer per dimension, all of one dtype.
fn check_starts(op: &str, operand: &ArrayShape, starts: &[&Shape]) -> Result<(), RuleError> {
    operands::per_dimension(op, "start indices", starts.len(), operand)?;
    let mut first: Option<&ArrayShape> = None;
    for (i, start) in starts.iter().enumerate() {
        let role = format!("start index {i}");
        let start = operands::scalar(op, &role, start)?;
        operands::integers(op, &role, start)?;
        let first = *first.get_or_insert(start);
        operands::same_dtype(op, ("start index 0", first), (&role, start))?;
    }
    Ok(())
}

/// Checks that a box fits in an array.
fn check_box_size(op: &str, attribute: &str, axis: usize, size: i64, n: i64) -> Result<(), RuleError> {
    if (0..=n).contains(&size) {
        return Ok(());
    }
    let message = format!("{op} {attribute}[{axis}] is {size}, expected 0 to {n}, the size of operand axis {axis}");
    Err(RuleError::new("indexing/box-size", message))
}

/// The dimension numbers that `gather` and `scatter` share, each list with its name in that op.
struct Indexing<'a> {
    op: &'static str,
    index_vector_dim: i64,
    index_map: (&'static str, &'a [i64]),
    dropped: (&'static str, &'a [i64]),
    operand_batching: (&'static str, &'a [i64]),
    indices_batching: (&'static str, &'a [i64]),
}

/// The result of applying dimension numbers to an operand and its indices.
struct Indexed {
    /// Sizes of the indices without the index vectors, each with its dynamic flag.
    batch: Vec<(i64, bool)>,
    /// Operand axes that are box dimensions: neither dropped nor batching.
    window: Vec<usize>,
}

impl Indexing<'_> {
    fn check(&self, operand: &ArrayShape, indices: &ArrayShape) -> Result<Indexed, RuleError> {
        let op = self.op;
        operands::integers(op, "indices", indices)?;
        let vector_dim = usize::try_from(self.index_vector_dim).ok().filter(|&dim| dim <= indices.rank());
        let Some(vector_dim) = vector_dim else {
            let (dim, rank) = (self.index_vector_dim, indices.rank());
            let message = format!("{op} index_vector_dim is {dim}, expected 0 to {rank}, the rank of the indices");
            return Err(RuleError::new("indexing/index-vector-dim", message));
        };
        let (map_name, map) = self.index_map;
        let n_components = indices.dims.get(vector_dim).copied().unwrap_or(1);
        if map.len() as i64 != n_components {
            let message = format!(
                "{op} {map_name} has {} entries, expected {n_components}, the size of index_vector_dim={vector_dim} of {}",
                map.len(),
                operands::show(indices)
            );
            return Err(RuleError::new("indexing/index-map", message));
        }
        let map = operands::axes(op, map_name, map, operand.rank())?;
        let dropped = operands::sorted_axes(op, self.dropped.0, self.dropped.1, operand.rank())?;
        let batching = self.check_batching(operand, indices, vector_dim)?;
        self.check_disjoint(self.dropped.0, &dropped, &batching)?;
        self.check_disjoint(map_name, &map, &batching)?;
        Ok(Indexed {
            batch: (0..indices.rank())
                .filter(|&axis| axis != vector_dim)
                .map(|axis| (indices.dims[axis], indices.is_dynamic(axis)))
                .collect(),
            window: (0..operand.rank()).filter(|axis| !dropped.contains(axis) && !batching.contains(axis)).collect(),
        })
    }

    /// Batching dims pair an operand dimension with a dimension of the indices of equal size.
    fn check_batching(
        &self,
        operand: &ArrayShape,
        indices: &ArrayShape,
        vector_dim: usize,
    ) -> Result<Vec<usize>, RuleError> {
        let (operand_name, operand_dims) = self.operand_batching;
        let (indices_name, indices_dims) = self.indices_batching;
        let of_operand = operands::sorted_axes(self.op, operand_name, operand_dims, operand.rank())?;
        let of_indices = operands::axes(self.op, indices_name, indices_dims, indices.rank())?;
        if of_operand.len() != of_indices.len() {
            let message = format!(
                "{} {operand_name} has {} entries, {indices_name} has {}, expected as many",
                self.op,
                of_operand.len(),
                of_indices.len()
            );
            return Err(RuleError::new("indexing/batching-counts", message));
        }
        if of_indices.contains(&vector_dim) {
            let message = format!(
                "{} {indices_name} names axis {vector_dim}, expected another than index_vector_dim={vector_dim}",
                self.op
            );
            return Err(RuleError::new("indexing/batching-vector-dim", message));
        }
        for (&a, &b) in of_operand.iter().zip(&of_indices) {
            let (m, n) = (operand.dims[a], indices.dims[b]);
            if m != n {
                let message = format!("{} batching sizes differ: operand[{a}]={m}, indices[{b}]={n}", self.op);
                return Err(RuleError::new("indexing/batching-sizes", message));
            }
        }
        Ok(of_operand)
    }

    fn check_disjoint(&self, name: &str, axes: &[usize], batching: &[usize]) -> Result<(), RuleError> {
        let Some(axis) = axes.iter().find(|axis| batching.contains(axis)) else {
            return Ok(());
        };
        let batching = self.operand_batching.0;
        let message = format!("{} axis {axis} is in {name} and in {batching}, expected it in at most one", self.op);
        Err(RuleError::new("indexing/batching-overlap", message))
    }

    /// Checks that as many box dimensions are named as the operand has.
    fn check_window(
        &self,
        name: &str,
        n_named: usize,
        indexed: &Indexed,
        operand: &ArrayShape,
    ) -> Result<(), RuleError> {
        let expected = indexed.window.len();
        if n_named == expected {
            return Ok(());
        }
        let message = format!(
            "{} {name} has {n_named} entries, expected {expected}: the axes of {} that are in neither {} nor {}",
            self.op,
            operands::show(operand),
            self.dropped.0,
            self.operand_batching.0
        );
        Err(RuleError::new("indexing/window-dims", message))
    }
}

/// Array, integer indices → batch dims of the indices, with the `offset_dims` inserted.
pub(super) fn gather(dims: &GatherDims, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "gather";
    let [operand, indices] = operands::arity(op, operands)?;
    let operand = operands::array(op, "operand", operand)?;
    let indices = operands::array(op, "indices", indices)?;
    let indexing = Indexing {
        op,
        index_vector_dim: dims.index_vector_dim,
        index_map: ("start_index_map", &dims.start_index_map),
        dropped: ("collapsed_slice_dims", &dims.collapsed_slice_dims),
        operand_batching: ("operand_batching_dims", &dims.operand_batching_dims),
        indices_batching: ("start_indices_batching_dims", &dims.start_indices_batching_dims),
    };
    let indexed = indexing.check(operand, indices)?;
    indexing.check_window("offset_dims", dims.offset_dims.len(), &indexed, operand)?;
    operands::per_dimension(op, "slice_sizes", dims.slice_sizes.len(), operand)?;
    for (axis, (&size, &n)) in dims.slice_sizes.iter().zip(&operand.dims).enumerate() {
        check_box_size(op, "slice_sizes", axis, size, n)?;
        if !indexed.window.contains(&axis) && size > 1 {
            let message = format!(
                "gather slice_sizes[{axis}] is {size}, expected at most 1: axis {axis} is collapsed or batching"
            );
            return Err(RuleError::new("gather/collapsed-size", message));
        }
    }
    let rank = indexed.batch.len() + indexed.window.len();
    let offset_dims = operands::sorted_axes(op, "offset_dims", &dims.offset_dims, rank)?;
    let mut batch = indexed.batch.iter().copied();
    let mut window = indexed.window.iter().map(|&axis| {
        let size = dims.slice_sizes[axis];
        (size, operand.is_dynamic(axis) && size == operand.dims[axis])
    });
    let sizes: Vec<(i64, bool)> =
        (0..rank).filter_map(|i| if offset_dims.contains(&i) { window.next() } else { batch.next() }).collect();
    let mut result = operands::result(op, operand.dtype, sizes.iter().map(|&(size, _)| size).collect())?;
    result.dynamic = operands::dynamic_flags(rank, |i| sizes[i].1);
    Ok(result.into())
}

/// N arrays, integer indices, N updates → the arrays (a tuple if N > 1).
pub(super) fn scatter(
    callees: &dyn Callees,
    dims: &ScatterDims,
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "scatter";
    if operands.len() < 3 || operands.len().is_multiple_of(2) {
        let message = format!("scatter takes N arrays, indices and N updates, got {} operands", operands.len());
        return Err(RuleError::new("scatter/arity", message));
    }
    let arrays = operands::arrays(op, operands)?;
    let n = arrays.len() / 2;
    let (inputs, indices, updates) = (&arrays[..n], arrays[n], &arrays[n + 1..]);
    for i in 0..n {
        let (input, update) = (format!("operand {i}"), format!("update {i}"));
        operands::same_dims(op, ("operand 0", inputs[0]), (&input, inputs[i]))?;
        operands::same_dims(op, ("update 0", updates[0]), (&update, updates[i]))?;
        operands::same_dtype(op, (&input, inputs[i]), (&update, updates[i]))?;
    }
    let indexing = Indexing {
        op,
        index_vector_dim: dims.index_vector_dim,
        index_map: ("scatter_dims_to_operand_dims", &dims.scatter_dims_to_operand_dims),
        dropped: ("inserted_window_dims", &dims.inserted_window_dims),
        operand_batching: ("input_batching_dims", &dims.input_batching_dims),
        indices_batching: ("scatter_indices_batching_dims", &dims.scatter_indices_batching_dims),
    };
    let indexed = indexing.check(inputs[0], indices)?;
    indexing.check_window("update_window_dims", dims.update_window_dims.len(), &indexed, inputs[0])?;
    check_updates(dims, &indexed, inputs[0], updates[0])?;
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype).collect();
    operands::reducer(callees, op, "to_apply", to_apply, &dtypes)?;
    Ok(operands::one_or_tuple(inputs.iter().map(|input| operands::like(input, input.dtype).into()).collect()))
}

/// Checks that updates have the batch dims of the indices, with the windows inserted, which fit the operand.
fn check_updates(
    dims: &ScatterDims,
    indexed: &Indexed,
    operand: &ArrayShape,
    updates: &ArrayShape,
) -> Result<(), RuleError> {
    let rank = indexed.batch.len() + indexed.window.len();
    if updates.rank() != rank {
        let message = format!(
            "scatter updates are {}, expected rank {rank}: {} from the indices and {} window dims",
            operands::show(updates),
            indexed.batch.len(),
            indexed.window.len()
        );
        return Err(RuleError::new("scatter/updates-rank", message));
    }
    let window_dims = operands::sorted_axes("scatter", "update_window_dims", &dims.update_window_dims, rank)?;
    for (&i, &axis) in window_dims.iter().zip(&indexed.window) {
        let (size, n) = (updates.dims[i], operand.dims[axis]);
        if size > n {
            let message = format!("scatter window is too large: updates[{i}]={size}, operand[{axis}]={n}");
            return Err(RuleError::new("scatter/window-size", message));
        }
    }
    let batch_dims = (0..rank).filter(|i| !window_dims.contains(i));
    for (i, &(expected, _)) in batch_dims.zip(&indexed.batch) {
        let size = updates.dims[i];
        if size != expected {
            let message = format!("scatter batch sizes differ: updates[{i}]={size}, indices have {expected} there");
            return Err(RuleError::new("scatter/batch-size", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
