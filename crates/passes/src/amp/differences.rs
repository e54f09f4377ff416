//! Differences that may be small beside the rounding of a product before them: 1 − x, read by a function that is
//! singular where x is one, and an array less itself, moved.

use super::dataflow::{Dataflow, NodeId, ValueId};
use bf16scope_hlo::ops::decisions::movement;
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{Literal, Op};

/// How far a constant may be from one: `1 + 1e-6` is.
const NEAR_ONE: f32 = 1.0 / 256.0;

/// For each node whether it is 1 − x or x − 1 that a logarithm or root reads, or such a function of x itself.
pub(super) fn below_one(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_root = |op: &Op| matches!(op, Op::Unary(UnaryOp::Log | UnaryOp::Log1p | UnaryOp::Sqrt | UnaryOp::Rsqrt));
    let leads = graph.leads(&[], |reader, leads| is_root(graph.op(reader)) || leads && scales_or_moves(graph, reader));
    let is_near = |value: ValueId, one: f32| graph.constant(value).is_some_and(|literal| is_near(literal, one));
    let is_negated = |value: ValueId| matches!(graph.op(graph.producer(value)), Op::Unary(UnaryOp::Negate));
    let is_below_one = |node: NodeId| match (graph.op(node), &graph.node(node).operands[..]) {
        (Op::Unary(UnaryOp::Acos | UnaryOp::Acosh | UnaryOp::Asin | UnaryOp::Atanh), _) => true,
        (Op::Unary(UnaryOp::Log1p), &[x]) => is_negated(x),
        (Op::Binary(BinaryOp::Subtract), &[a, b]) => leads[node as usize] && (is_near(a, 1.0) || is_near(b, 1.0)),
        (Op::Binary(BinaryOp::Add), &[a, b]) => {
            let adds = |one, x| is_near(one, -1.0) || is_near(one, 1.0) && is_negated(x);
            leads[node as usize] && (adds(a, b) || adds(b, a))
        }
        _ => false,
    };
    graph.node_ids().map(is_below_one).collect()
}

/// For each node whether it is the difference of an array and itself, moved: one that is squared or read by a root or
/// an exponential, as that of two points, or one of slices that overlap, as that of a time and the next.
pub(super) fn of_moved(graph: &Dataflow<'_>) -> Vec<bool> {
    let amplifies = |node: NodeId| match (graph.op(node), &graph.node(node).operands[..]) {
        (Op::Unary(UnaryOp::Abs | UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Exp), _) => true,
        (Op::Binary(BinaryOp::Power), _) => true,
        (Op::Binary(BinaryOp::Multiply) | Op::Dot { .. }, &[a, b]) => a == b,
        _ => false,
    };
    let leads = graph.leads(&[], |reader, leads| amplifies(reader) || leads && scales_or_moves(graph, reader));
    let moved_from = graph.derived([], |node, moved_from: &[Option<ValueId>]| {
        let (record, movement) = (graph.node(node), movement(graph.op(node)));
        let operand = *record.operands.first()?;
        // Every other element is a half of a scan, which has rules of its own (`recurrences`).
        let is_half = matches!(graph.op(node), Op::Slice(dims) if dims.iter().any(|dim| dim.stride > 1));
        let moves = matches!(movement, Movement::Places | Movement::Repeats | Movement::TakesPart) && !is_half;
        moves.then(|| moved_from[operand as usize].unwrap_or(operand))
    });
    let slice = |value: ValueId| match graph.op(graph.producer(value)) {
        Op::Slice(dims) => Some(dims),
        _ => None,
    };
    let overlaps = |a: ValueId, b: ValueId| {
        let (Some(a), Some(b)) = (slice(a), slice(b)) else { return false };
        a.iter().zip(b).all(|(a, b)| a.start < b.limit && b.start < a.limit)
    };
    let is_of_moved = |node: NodeId| match (graph.op(node), &graph.node(node).operands[..]) {
        (Op::Binary(BinaryOp::Subtract), &[a, b]) => {
            let source = |value: ValueId| moved_from[value as usize].unwrap_or(value);
            source(a) == source(b) && (leads[node as usize] || overlaps(a, b))
        }
        _ => false,
    };
    graph.node_ids().map(is_of_moved).collect()
}

/// Whether a node moves an f32 array, scales it, or adds a constant to it.
fn scales_or_moves(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let record = graph.node(node);
    let is_soft = match graph.op(node) {
        Op::Binary(BinaryOp::Multiply | BinaryOp::Divide) | Op::Unary(UnaryOp::Negate) => true,
        Op::Binary(BinaryOp::Add) => record.operands.iter().any(|&value| graph.constant(value).is_some()),
        _ => record.is_clear(),
    };
    is_soft && graph.value(record.first_result).is_f32()
}

/// Whether all elements of a constant are near `one`.
fn is_near(literal: &Literal, one: f32) -> bool {
    let elements = literal.elements::<f32>().unwrap_or_default();
    !elements.is_empty() && elements.iter().all(|x| (x - one).abs() <= NEAR_ONE)
}
