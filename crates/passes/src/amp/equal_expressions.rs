//! Merges equal expressions of a region into one node.
//!
//! A compiler computes equal expressions once if they have one dtype, as the forward pass that two losses share. Two
//! decisions would make two computations, so one decision is made, for a value with the readers of both. Constants and
//! their broadcasts stay separate nodes, each decided by its own readers: they are written in the dtype of each.

use super::ids::{NodeId, ValueId};
use crate::is_tied;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::{calls_regions, has_side_effect, is_placement};
use bf16scope_hlo::{ArrayShape, CompId, Instruction, Literal, Module, Op, Shape};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

/// The most instructions in which the computations that two reductions apply are compared.
const MAX_APPLIED: usize = 16;

/// An expression; equal ones compute the same.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Expression<'m> {
    /// The op, with the computations that it applies, and what was decided about it.
    text: String,
    constant: Option<(&'m ArrayShape, &'m [u8])>,
    shape: &'m Shape,
    operands: Vec<ValueId>,
}

/// The expressions of a region so far.
#[derive(Debug, Default)]
pub(super) struct Expressions<'m> {
    /// The first node of each.
    pub nodes: HashMap<Expression<'m>, NodeId>,
    /// A text of each applied computation.
    applied: HashMap<CompId, String>,
    /// For each constant's value that equals an earlier one, that earlier value.
    first: HashMap<ValueId, ValueId>,
    /// For each such value the nodes that stand for an expression which reads it, though the node itself reads the
    /// earlier value.
    pub readers: BTreeMap<ValueId, Vec<NodeId>>,
}

impl<'m> Expressions<'m> {
    /// The expression of an instruction on these values, about which this was decided; `None` if the instruction may be
    /// more than a function of its operands.
    pub(super) fn expression(
        &mut self,
        module: &Module,
        instr: &'m Instruction,
        operands: &[ValueId],
        decided: &dyn Debug,
    ) -> Option<Expression<'m>> {
        if !is_function(instr) || matches!(instr.op, Op::Parameter { .. }) {
            return None;
        }
        let (mut text, mut constant) = (format!("{decided:?}"), None);
        match (&instr.op, instr.op.called()) {
            (Op::Constant(Literal::Array { shape, bytes }), _) => constant = Some((shape, &bytes[..])),
            (op, called) if called.is_empty() => text += &format!("{op:?}"),
            (op, called) => {
                let mut nameless = op.clone();
                nameless.for_each_called_mut(&mut |callee| *callee = module.entry);
                text += &format!("{nameless:?}");
                called.iter().for_each(|&comp| text += self.of_applied(module, comp));
            }
        }
        let operands = operands.iter().map(|value| self.first.get(value).copied().unwrap_or(*value)).collect();
        Some(Expression { text, constant, shape: &instr.shape, operands })
    }

    /// A text that is equal for short computations that compute the same.
    fn of_applied(&mut self, module: &Module, comp: CompId) -> &str {
        self.applied.entry(comp).or_insert_with(|| {
            let computation = module.comp(comp);
            let instructions = &computation.instructions;
            let is_plain = |instr: &Instruction| is_function(instr) && instr.op.called().is_empty();
            if instructions.len() > MAX_APPLIED || !instructions.iter().all(is_plain) {
                return format!("{comp:?}");
            }
            let text = |instr: &Instruction| match &instr.op {
                Op::Parameter { number, .. } => format!("{number} {:?}", instr.shape),
                op => format!("{op:?} {:?} {:?}", instr.shape, instr.operands),
            };
            format!("{:?} {:?}", computation.root, instructions.iter().map(text).collect::<Vec<_>>())
        })
    }

    /// Records that a constant's value equals an earlier one.
    pub(super) fn equate(&mut self, value: ValueId, first: ValueId) {
        self.first.insert(value, first);
    }

    /// Records that an expression on these values was merged into a node.
    pub(super) fn also_read(&mut self, operands: &[ValueId], node: NodeId) {
        for operand in operands.iter().filter(|operand| self.first.contains_key(operand)) {
            self.readers.entry(*operand).or_default().push(node);
        }
    }
}

/// Whether an instruction is only a function of its operands, with nothing else tied to it.
fn is_function(instr: &Instruction) -> bool {
    let is_call = matches!(instr.op, Op::Call { .. } | Op::AllReduce(_) | Op::Opaque(_));
    let is_copy = matches!(instr.op, Op::OptimizationBarrier | Op::Unary(UnaryOp::Copy));
    let is_custom_call = matches!(instr.op, Op::CustomCall(_)) && !is_placement(&instr.op);
    !is_tied(instr)
        && !has_side_effect(&instr.op)
        && !calls_regions(&instr.op)
        && !is_call
        && !is_copy
        && !is_custom_call
        && instr.unmodelled == Default::default()
}
