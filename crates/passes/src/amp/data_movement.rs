//! Data movement: what a TPU's compiler materialises of it, and in which dtype.
//!
//! Back ends fuse an elementwise op into its consumer, so it matters little on which side of it a cast stands. Gathers
//! and similar ops are not fused that way: their result is materialised, in the dtype that they return. So their dtype
//! is decided by their consumers, not by which side of them is smaller. `hlo/ops/decisions` lists these ops.
//!
//! A *sum of rows*, a `scatter` that adds rows to zeros, as where a graph's edges send messages to its nodes, is f32,
//! but for some of rows that are narrower than a tile (`tiles`).
//!
//! A *sum over windows* of few numbers, as in an average pool or its gradient, has its operand and its result
//! materialised, as compilers do not fuse producers into windows. Between two products it is computed in bf16, as in a
//! network written for bf16.

use super::dataflow::{Dataflow, NodeId, ValueId};
use super::policy::Classes;
use bf16scope_hlo::ops::WindowDim;
use bf16scope_hlo::ops::decisions::is_stored;
use bf16scope_hlo::ops::precision::DeviceSum;
use bf16scope_hlo::{DType, Op};

/// The most terms that a sum in bf16 may have: a residual over the layers of a loop. A sum of n
/// terms of one sign has up to n roundings of 2^-9, so beyond this many its last terms would weigh less than the error
/// of the first.
pub(super) const MAX_TERMS: i64 = 64;

/// The most terms of a sum over a window in bf16: those of a 3×3 pool.
const WINDOW_TERMS: i64 = 9;

/// Whether a node reshapes an array to another last axis (the one along a tile's lanes): a copy on a TPU.
pub(super) fn changes_lanes(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let lanes = |dims: &[i64]| dims.iter().copied().rfind(|&size| size != 1);
    let instr = graph.instr(graph.node(node));
    instr.op == Op::Reshape && lanes(graph.operand_dims(node, 0)) != lanes(instr.shape.dims())
}

/// Whether a node reshapes the result of a convolution, and merges a dimension along which the convolution pads: a
/// group norm's first op. Between such a reshape and one in the backward pass, both of bf16, libtpu 0.0.52 tries to
/// merge incompatible windows, and aborts.
pub(super) fn merges_padded_windows(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let reshape = graph.node(node);
    let (instr, &[operand]) = (graph.instr(reshape), &reshape.operands[..]) else { return false };
    let producer = graph.instr(graph.node(graph.producer(operand)));
    let (Op::Reshape, Op::Convolution(convolution)) = (&instr.op, &producer.op) else { return false };
    // For each dimension the number of elements before it, and its size.
    let starts = |dims: &[i64]| -> Vec<(i64, i64)> {
        let before = |axis: usize| dims[..axis].iter().fold(1_i64, |n, &size| n.saturating_mul(size));
        dims.iter().enumerate().map(|(axis, &size)| (before(axis), size)).collect()
    };
    let (before, reshaped) = (starts(producer.shape.dims()), starts(instr.shape.dims()));
    let spatial = convolution.window.iter().zip(&convolution.dims.output_spatial);
    let is_padded = |dim: &WindowDim| dim.padding_low != 0 || dim.padding_high != 0;
    let mut padded = spatial.filter(|(dim, _)| is_padded(dim)).map(|(_, &axis)| before[axis as usize]);
    padded.any(|place| place.1 != 1 && !reshaped.contains(&place))
}

/// For each value whether it is materialised because data were moved: by the node that computes it, or by one before
/// that whose result it moves on, as does the `select` that masks a lookup's out-of-bounds rows.
pub(super) fn moved(graph: &Dataflow<'_>) -> Vec<bool> {
    graph.of_arrays(|node| {
        let record = graph.node(node);
        let is_float = graph.value(record.first_result).is_f32();
        (record.is_clear() && is_float).then(|| is_stored(graph.instr(record)))
    })
}

/// The value that ops of class clear moved, or took a part of, to compute `value`.
pub(super) fn moved_from(graph: &Dataflow<'_>, value: ValueId) -> ValueId {
    graph.origin(value, |maker, _| maker.is_clear())
}

/// The rows that a node adds to zeros, if it may compute in bf16. In f16 a sum of rows may be infinite.
pub(super) fn rows_into_zeros(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId) -> Option<ValueId> {
    let &[zeros, _, rows] = &graph.node(node).operands[..] else { return None };
    let is_sum = graph.low == DType::BF16
        && graph.value(zeros).is_zero
        && matches!(graph.op(node), Op::Scatter { .. })
        && is_sum_called(graph, classes, node, "scatter:add");
    is_sum.then_some(rows)
}

/// Whether a node is a sum named `name` with one result, is f32 only because of its op, and is not shared by devices.
pub(super) fn is_sum_called(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId, name: &str) -> bool {
    graph.node(node).n_results == 1
        && graph.node(node).is_denied_by_op()
        && graph.is_called(node, name)
        && classes.sum_in_f32(graph.op(node)) == DeviceSum::Never
}

/// Whether a node sums over windows of few numbers, and may compute in bf16. In f16 such a sum may be infinite.
pub(super) fn is_sum_over_windows(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId) -> bool {
    let Op::ReduceWindow { window, .. } = graph.op(node) else { return false };
    let n_terms = window.iter().map(|dim| dim.size).fold(1, i64::saturating_mul);
    graph.low == DType::BF16 && n_terms <= WINDOW_TERMS && is_sum_called(graph, classes, node, "reduce-window:add")
}
