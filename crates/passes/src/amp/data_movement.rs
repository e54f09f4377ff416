//! Values that are moved: what a TPU's compiler stores of them, where their readers stand.
//!
//! Back ends fuse an elementwise op into whatever reads it, so that it matters little on which side of it a cast stands.
//! Gathers and the like are no part of such fusions: what they give is stored, and in the dtype that they give. So their
//! dtype is decided by who reads it, not by which side of them is smaller. Which ops these are stands in `hlo/ops/decisions`.
//!
//! A *sum of rows*, a `scatter` that adds rows to zeros, stores both what it adds and what it gives. Between two products,
//! as where a graph's edges send messages to its nodes, it is computed in bf16, as in a network that was written for it.
//! So is one behind the last product that adds no more rows than it gives.
//!
//! A *sum over windows* of few numbers, as of an average pool or its gradient, stores what it sums and what it gives, as no
//! fusion makes what windows read. Between two products it is computed in bf16, as in a network that was written for it.

use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::policy::{Because, Classes};
use bf16scope_hlo::ops::WindowDim;
use bf16scope_hlo::ops::decisions::{is_stored, list_names};
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
use bf16scope_hlo::{DType, Op};

/// Terms that a sum in bf16 may have: a row on average, or a residual over the layers of a loop. A sum of n terms of one
/// sign has up to n roundings of 2^-9, so that beyond this many its last terms would weigh less than what is lost of the
/// first.
pub(super) const MAX_TERMS: i64 = 64;

/// Terms that a sum over a window in bf16 has at most: those of a pool of 3×3.
const WINDOW_TERMS: i64 = 9;

/// Whether a node reshapes an array to another last axis, which is the one that lies along a tile's lanes: a copy on a TPU.
pub(super) fn changes_lanes(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let of = graph.node(node);
    let instr = graph.instr(of);
    if instr.op != Op::Reshape {
        return false;
    }
    let computation = graph.module.comp(graph.frames[of.frame as usize].comp);
    let lanes = |dims: &[i64]| dims.iter().copied().rfind(|&size| size != 1);
    lanes(computation.instr(instr.operands[0]).shape.dims()) != lanes(instr.shape.dims())
}

/// Whether a node reshapes what a convolution gives, and merges a dimension along which that pads: a group norm's first op.
/// Between such a reshape and one in the backward pass, both of bf16, libtpu 0.0.52 merges windows that it cannot, and ends its
/// process.
pub(super) fn merges_padded_windows(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let reshape = graph.node(node);
    let (instr, &[operand]) = (graph.instr(reshape), &reshape.operands[..]) else { return false };
    let producer = graph.instr(graph.node(graph.producer(operand)));
    let (Op::Reshape, Op::Convolution(convolution)) = (&instr.op, &producer.op) else { return false };
    // How many elements stand before each dimension, and its size.
    let starts = |dims: &[i64]| -> Vec<(i64, i64)> {
        let before = dims.iter().scan(1_i64, |product, &size| {
            let before = *product;
            *product = product.saturating_mul(size);
            Some((before, size))
        });
        before.collect()
    };
    let (given, reshaped) = (starts(producer.shape.dims()), starts(instr.shape.dims()));
    let spatial = convolution.window.iter().zip(&convolution.dims.output_spatial);
    let is_padded = |dim: &WindowDim| dim.padding_low != 0 || dim.padding_high != 0;
    let mut padded = spatial.filter(|(dim, _)| is_padded(dim)).map(|(_, &axis)| given[axis as usize]);
    padded.any(|place| place.1 != 1 && !reshaped.contains(&place))
}

/// For each node whether it gives what is stored because it was moved: by the node itself, or by one before it that this
/// one moves on, as does the `select` behind a lookup that leaves out what is out of bounds.
pub(super) fn moved(graph: &Dataflow<'_>) -> Vec<bool> {
    let mut moved = vec![false; graph.nodes.len()];
    for node in 0..graph.nodes.len() as NodeId {
        let of = graph.node(node);
        let n_given = of.results().map(|value| graph.value(value).n_elements).max().unwrap_or(0);
        let is_moved_on = |&value: &u32| {
            let producer = graph.producer(value);
            graph.value(value).is_f32() && moved[producer as usize] && graph.value(value).n_elements >= n_given
        };
        let is_clear = of.kind == NodeKind::Op(Class::Clear);
        moved[node as usize] = is_clear && (is_stored(graph.instr(of)) || of.operands.iter().any(is_moved_on));
    }
    moved
}

/// Whether what a node moves is a parameter, which is stored already.
pub(super) fn is_of_parameter(graph: &Dataflow<'_>, node: NodeId) -> bool {
    graph.node(graph.producer(moved_from(graph, graph.node(node).first_result))).kind == NodeKind::Parameter
}

/// What ops of class clear moved, or a part of, to make a value.
pub(super) fn moved_from(graph: &Dataflow<'_>, mut value: ValueId) -> ValueId {
    loop {
        let maker = graph.node(graph.producer(value));
        match (&maker.kind, maker.operands.first()) {
            (NodeKind::Op(Class::Clear), Some(&operand)) => value = operand,
            _ => return value,
        }
    }
}

/// The zeros and the rows of a node that adds rows to zeros, if it may compute in bf16.
pub(super) fn rows_into_zeros(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId) -> Option<(ValueId, ValueId)> {
    let of = graph.node(node);
    let instr = graph.instr(of);
    let [zeros, _, rows] = of.operands[..] else { return None };
    // In f16 a sum of rows may be infinite.
    let is_sum = graph.low == DType::BF16
        && matches!(of.kind, NodeKind::Op(Class::Deny { .. }))
        && of.because == Because::Op
        && matches!(instr.op, Op::Scatter { .. })
        && list_names(graph.module, &instr.op).iter().any(|name| name == "scatter:add")
        && classes.sum_in_f32(graph.module, &instr.op) == DeviceSum::Never
        && graph.value(zeros).is_zero;
    is_sum.then_some((zeros, rows))
}

/// Whether a node gives one array by the op of a name, a sum that is always f32 for no other reason, and that no devices share.
fn is_sum_called(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId, name: &str) -> bool {
    let of = graph.node(node);
    let op = &graph.instr(of).op;
    of.n_results == 1
        && matches!(of.kind, NodeKind::Op(Class::Deny { .. }))
        && of.because == Because::Op
        && list_names(graph.module, op).iter().any(|called| called == name)
        && classes.sum_in_f32(graph.module, op) == DeviceSum::Never
}

/// Whether a node sums over windows of few numbers, and may compute in bf16. In f16 such a sum may be infinite.
pub(super) fn is_sum_over_windows(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId) -> bool {
    let Op::ReduceWindow { window, .. } = &graph.instr(graph.node(node)).op else { return false };
    let n_terms = window.iter().map(|dim| dim.size).fold(1, i64::saturating_mul);
    graph.low == DType::BF16 && n_terms <= WINDOW_TERMS && is_sum_called(graph, classes, node, "reduce-window:add")
}
