//! Finite f32 numbers that would overflow to infinity in the narrow dtype, and the clamp that keeps them finite.

use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use bf16scope_hlo::ops::decisions::precision_class;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{DType, Literal, Op};
use half::{bf16, f16};
use std::collections::BTreeSet;

/// For each value whether a finite element of it may be beyond the largest of the narrow dtype, so that a cast must
/// saturate: f32's least number, which programs use for "minus infinity, but no NaN".
///
/// Known to be within the range are results of products, exponentials and other functions, which are that large only
/// close to f32's own overflow; constants, which are rounded here; and parameters that are weights or biases: those
/// that only products read, those of one axis, and those that the program updates. An array that is added to something
/// is not known to be.
pub(super) fn beyond(graph: &Dataflow<'_>) -> Vec<bool> {
    let largest = largest(graph.low);
    let is_beyond = |literal: &Literal| {
        let elements = literal.elements::<f32>();
        elements.is_some_and(|all| all.iter().any(|x| x.is_finite() && x.abs() > largest))
    };
    let is_added = added(graph);
    let results: BTreeSet<_> =
        graph.results.iter().map(|&value| graph.dims(graph.node(graph.producer(value)))).collect();
    let is_data = |value: ValueId| {
        let dims = graph.dims(graph.node(graph.producer(value)));
        is_added.contains(&value) && dims.is_some_and(|dims| dims.len() > 1) && !results.contains(&dims)
    };
    // How many computing ops may still pass a large number on: one behind a parameter, any number behind a constant.
    let parameters = graph.parameters().map(|value| if is_data(value) { 2 } else { 0 });
    let room = graph.derived(parameters, |node, room: &[u8]| {
        let (record, op) = (graph.node(node), graph.op(node));
        let floats = record.operands.iter().filter(|&&value| graph.value(value).is_f32());
        let most = floats.map(|&value| room[value as usize]).max().unwrap_or(0);
        let is_bounded =
            matches!(op, Op::Unary(UnaryOp::Tanh | UnaryOp::Logistic | UnaryOp::Erf | UnaryOp::Sign | UnaryOp::Sqrt));
        match (&record.kind, op) {
            (NodeKind::Constant, Op::Constant(literal)) if is_beyond(literal) => u8::MAX,
            (NodeKind::Op(Class::Clear), _) if !is_guard(graph, node) => most,
            (NodeKind::Op(Class::Infer), _) if !is_bounded && most < u8::MAX => most.saturating_sub(1),
            (NodeKind::Op(Class::Infer), _) if !is_bounded => most,
            _ => 0,
        }
    });
    graph.values.iter().zip(room).map(|(value, room)| value.is_f32() && room > 0).collect()
}

/// The largest finite number of a narrow dtype.
pub(super) fn largest(low: DType) -> f32 {
    if low == DType::F16 { f16::MAX.to_f32() } else { bf16::MAX.to_f32() }
}

/// Whether a node keeps finite numbers within the narrow dtype's range, as this pass writes it before a cast: a clamp
/// to the range, or a `select` of the clamped number if it is finite, else of the number. A cast before that would
/// come too early.
pub(super) fn is_guard(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let record = graph.node(node);
    let is_end = |value: ValueId| {
        let Op::Constant(literal) = graph.op(graph.producer(value)) else { return false };
        literal.elements::<f32>().is_some_and(|all| all.iter().all(|x| x.abs() == largest(graph.low)))
    };
    match (graph.op(node), &record.operands[..]) {
        (Op::Clamp, &[least, _, most]) => is_end(least) && is_end(most),
        (Op::Select, &[condition, within, number]) => {
            let (asks, within) = (graph.producer(condition), graph.producer(within));
            let is_finite = matches!(graph.op(asks), Op::Unary(UnaryOp::IsFinite));
            is_finite && graph.node(asks).operands.first() == Some(&number) && is_guard(graph, within)
        }
        _ => false,
    }
}

/// The values that, directly or moved, are added to something or compared in size with it.
fn added(graph: &Dataflow<'_>) -> BTreeSet<ValueId> {
    let adds = |record: &&Node| {
        let op = &graph.instr(record).op;
        matches!(op, Op::Binary(BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Maximum | BinaryOp::Minimum))
    };
    let moves = |value: ValueId| {
        let record = graph.node(graph.producer(value));
        let op = &graph.instr(record).op;
        // A lookup reads a table that was learned.
        record.is_clear() && !matches!(op, Op::Gather(_))
            || record.class().is_none() && precision_class(graph.module, op) == Class::Clear
    };
    graph.behind(graph.nodes.iter().filter(adds).flat_map(|record| record.operands.iter().copied()), moves)
}
