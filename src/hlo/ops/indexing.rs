//! Data movement at run-time indices: dynamic-slice, dynamic-update-slice, gather, scatter.

use super::RuleError;
use crate::hlo::{CompId, Module, Shape};

/// Dimension numbers of `gather`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct GatherDims {
    /// Result dimensions that are box dimensions.
    pub offset_dims: Vec<i64>,
    /// Operand dimensions of box size 1, absent from the result.
    pub collapsed_slice_dims: Vec<i64>,
    /// Which operand dimension each component of an index vector starts.
    pub start_index_map: Vec<i64>,
    /// Operand dimensions that go along with a dimension of the indices.
    pub operand_batching_dims: Vec<i64>,
    /// The dimensions of the indices they go along with.
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
    /// Which operand dimension each component of an index vector starts.
    pub scatter_dims_to_operand_dims: Vec<i64>,
    /// Operand dimensions that go along with a dimension of the indices.
    pub input_batching_dims: Vec<i64>,
    /// The dimensions of the indices they go along with.
    pub scatter_indices_batching_dims: Vec<i64>,
    /// The dimension of the indices that holds index vectors; equal to their rank if indices are scalars.
    pub index_vector_dim: i64,
    /// A promise that indices ascend.
    pub indices_are_sorted: bool,
    /// A promise that no two updates meet.
    pub unique_indices: bool,
}

/// Array, one scalar integer per dimension → a box of `slice_sizes`, moved inside the array where it sticks out.
pub(super) fn dynamic_slice(slice_sizes: &[i64], operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (slice_sizes, operands);
    todo!()
}

/// Array, box, one scalar integer per dimension → the shape of the array.
pub(super) fn dynamic_update_slice(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = operands;
    todo!()
}

/// Array, integer indices → batch dims of the indices with `offset_dims` put in.
pub(super) fn gather(dims: &GatherDims, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (dims, operands);
    todo!()
}

/// N arrays, integer indices, N updates → the arrays (a tuple if N > 1).
pub(super) fn scatter(
    module: &Module,
    dims: &ScatterDims,
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let _ = (module, dims, to_apply, operands);
    todo!()
}
