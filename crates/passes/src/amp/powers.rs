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

/// The nodes whose result is raised to a large power, with only factors between, each with the square, or power, that
/// raises it.
pub(super) fn powers(graph: &Dataflow<'_>) -> Vec<(NodeId, NodeId)> {
    let mut raised = Vec::new();
    // For each value the power to which it is raised, and the node that raises it.
    let mut powers = vec![(1.0_f64, NodeId::MAX); graph.values.len()];
    for node in graph.node_ids().rev().filter(|&node| graph.node(node).passes()) {
        let record = graph.node(node);
        let of_results = record.results().map(|value| powers[value as usize]);
        let Some((power, raiser)) = of_results.max_by(|(a, _), (b, _)| a.total_cmp(b)) else { continue };
        if power >= LARGE {
            raised.push((node, raiser));
        }
        // A sum, or another function, changes the relative error: the chain ends there.
        let (exponent, bases) = match (graph.op(node), &record.operands[..]) {
            (Op::Binary(BinaryOp::Multiply), &[a, b]) if a == b => (2.0, &record.operands[..]),
            // Only the base counts: the exponent's error is not relative.
            (Op::Binary(BinaryOp::Power), &[_, exponent]) => {
                (graph.constant(exponent).map_or(1.0, largest), &record.operands[..1])
            }
            (Op::Binary(BinaryOp::Multiply | BinaryOp::Divide) | Op::Unary(UnaryOp::Negate | UnaryOp::Abs), all) => {
                (1.0, all)
            }
            (_, all) if record.is_clear() => (1.0, all),
            _ => continue,
        };
        for &base in bases {
            if exponent * power > powers[base as usize].0 {
                powers[base as usize] = (exponent * power, if exponent > 1.0 { node } else { raiser });
            }
        }
    }
    raised
}

/// The largest magnitude among the elements of an exponent, and 1 at least.
fn largest(literal: &Literal) -> f64 {
    let elements = literal.elements::<f32>().unwrap_or_default();
    elements.into_iter().map(|x| f64::from(x.abs())).fold(1.0, f64::max)
}
