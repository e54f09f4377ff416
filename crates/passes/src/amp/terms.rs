//! The terms of a sum.

use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{DotForm, movement};
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};

/// The most ops that are searched from one sum, and from one of its terms.
pub(super) const MAX_NODES: usize = 48;

/// The terms of a sum.
#[derive(Default)]
pub(super) struct Terms {
    pub between: Vec<NodeId>,
    /// Products, and whether all their elements are added.
    pub products: Vec<(NodeId, bool)>,
    pub others: Vec<NodeId>,
}

impl Terms {
    /// The terms of a sum, and of sums that are added to it; `None` if they are too many.
    pub fn of_sum(graph: &Dataflow<'_>, sum: NodeId) -> Option<Terms> {
        let mut terms = Terms { between: vec![sum], ..Terms::default() };
        let mut open: Vec<(ValueId, bool)> = graph.node(sum).operands.iter().map(|&value| (value, true)).collect();
        while let Some((value, is_whole)) = open.pop() {
            if terms.between.len() + terms.products.len() + terms.others.len() > MAX_NODES {
                return None;
            }
            let maker = graph.producer(value);
            let record = graph.node(maker);
            let op = &graph.instr(record).op;
            match op {
                Op::Dot { .. } if record.is_product() => terms.products.push((maker, is_whole)),
                Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate) => {
                    terms.between.push(maker);
                    open.extend(record.operands.iter().map(|&value| (value, is_whole)));
                }
                _ if is_scaling(graph, record) || record.is_clear() => {
                    terms.between.push(maker);
                    let is_whole = is_whole && movement(op) != Movement::TakesPart;
                    let learned = record.operands.iter().filter(|&&value| !graph.value(value).is_data);
                    open.extend(learned.map(|&value| (value, is_whole)));
                }
                _ => terms.others.push(maker),
            }
        }
        Some(terms)
    }
}

/// Whether an op adds or subtracts.
pub(super) fn adds(op: &Op) -> bool {
    matches!(op, Op::Binary(BinaryOp::Add | BinaryOp::Subtract))
}

/// Whether an op multiplies or divides.
pub(super) fn scales(op: &Op) -> bool {
    matches!(op, Op::Binary(BinaryOp::Multiply | BinaryOp::Divide))
}

/// Whether a node scales its operand by numbers that are the same in every run.
pub(super) fn is_scaling(graph: &Dataflow<'_>, record: &Node) -> bool {
    scales(&graph.instr(record).op) && record.operands.iter().any(|&value| graph.value(value).is_data)
}

/// Whether a node moves, negates, scales or adds up arrays, so that its result is linear in them.
pub(super) fn is_linear(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let record = graph.node(node);
    match graph.op(node) {
        Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate) => true,
        Op::Binary(BinaryOp::Maximum | BinaryOp::Minimum) | Op::Clamp => false,
        _ => record.is_clear() || is_scaling(graph, record) || graph.is_called(node, "reduce:add"),
    }
}

/// Whether a node sums along an axis. A single number for all rows does not cancel the product of one row.
pub(super) fn is_sum(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let sums = graph.is_called(node, "reduce:add") || graph.dot_form(node) == DotForm::Sum;
    sums && !graph.instr(graph.node(node)).shape.dims().is_empty()
}
