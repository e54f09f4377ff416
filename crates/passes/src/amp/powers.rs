//! Large powers: a number that is multiplied by itself many times, as in `sigmoid(x) ** 1000` or (1 + x/n)ⁿ.
//!
//! The relative error of xⁿ is n times that of x. A framework writes an integer power as squares of squares, so no op
//! of the program has n as an operand: each square doubles the error before it.

use super::dataflow::{Dataflow, NodeId};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{Literal, Op};

/// From this power on a rounding to bf16, 2^-9, becomes an error of 3 %. Squares and cubes are common in losses and
/// activations, and programs written for bf16 round their operands.
const LARGE: f64 = 16.0;

/// For each node the square, or power, that raises its result to a large power, with only factors between.
pub(super) fn powers(graph: &Dataflow<'_>) -> Vec<Option<NodeId>> {
    let mut power = vec![1.0_f64; graph.values.len()];
    let mut raised_by: Vec<Option<NodeId>> = vec![None; graph.values.len()];
    let mut by_node = vec![None; graph.nodes.len()];
    for node in graph.node_ids().rev() {
        let record = graph.node(node);
        if !record.passes() {
            continue;
        }
        let highest = record.results().max_by(|&a, &b| power[a as usize].total_cmp(&power[b as usize]));
        let Some(value) = highest else { continue };
        if power[value as usize] >= LARGE {
            by_node[node as usize] = raised_by[value as usize];
        }
        // A sum, or another function, changes the relative error: the chain ends there.
        let raised = match (&graph.instr(record).op, &record.operands[..]) {
            (Op::Binary(BinaryOp::Multiply), &[a, b]) if a == b => 2.0,
            (Op::Binary(BinaryOp::Power), &[_, exponent]) => graph.constant(exponent).map_or(1.0, largest),
            (Op::Binary(BinaryOp::Multiply | BinaryOp::Divide) | Op::Unary(UnaryOp::Negate | UnaryOp::Abs), _) => 1.0,
            _ if record.is_clear() => 1.0,
            _ => continue,
        };
        // Only the base counts: the exponent's error is not relative.
        let n_read =
            if matches!(graph.instr(record).op, Op::Binary(BinaryOp::Power)) { 1 } else { record.operands.len() };
        for &operand in &record.operands[..n_read] {
            let raised = raised * power[value as usize];
            if raised > power[operand as usize] {
                power[operand as usize] = raised;
                raised_by[operand as usize] =
                    if raised > power[value as usize] { Some(node) } else { raised_by[value as usize] };
            }
        }
    }
    by_node
}

/// The largest magnitude among the elements of an exponent, and 1 at least.
fn largest(literal: &Literal) -> f64 {
    let elements = literal.elements::<f32>().unwrap_or_default();
    elements.into_iter().map(|x| f64::from(x.abs())).fold(1.0, f64::max)
}
