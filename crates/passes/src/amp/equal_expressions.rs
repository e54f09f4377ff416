//! Merges equal expressions of a region into one node.
//!
//! A compiler computes equal expressions once if they have one dtype, as the forward pass that two losses share. Two
//! decisions would make two computations, so one decision is made, for a value with the readers of both. Constants and
//! their broadcasts stay separate nodes, each decided by its own readers: they are written in the dtype of each.

use super::ids::{NodeId, ValueId};
use crate::{hash_debug, is_tied};
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::{calls_regions, has_side_effect, is_placement};
use bf16scope_hlo::{CompId, Instruction, Literal, Module, Op};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The most instructions in which the computations that two reductions apply are compared.
const MAX_APPLIED: usize = 16;

/// An instruction and the values that it reads.
#[derive(Clone, Copy)]
pub(super) struct Expression<'a> {
    pub instr: &'a Instruction,
    pub operands: &'a [ValueId],
}

/// The expressions of a region so far.
#[derive(Debug, Default)]
pub(super) struct Expressions {
    /// Nodes by a hash of their expression.
    nodes: HashMap<u64, Vec<NodeId>>,
    /// A hash of each applied computation, of its first [`MAX_APPLIED`] instructions.
    applied: HashMap<CompId, u64>,
    /// For each constant's value that equals an earlier one, that earlier value.
    first: HashMap<ValueId, ValueId>,
    /// For each such value the nodes that stand for an expression which reads it, though the node itself reads the
    /// earlier value.
    readers: BTreeMap<ValueId, Vec<NodeId>>,
}

impl Expressions {
    /// The hash of an expression; `None` if the instruction may be more than a function of its operands.
    pub(super) fn hash(&mut self, module: &Module, instr: &Instruction, operands: &[ValueId]) -> Option<u64> {
        if !is_function(instr) || matches!(instr.op, Op::Parameter { .. }) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        self.firsts(operands).for_each(|value| value.hash(&mut hasher));
        instr.shape.hash(&mut hasher);
        match (&instr.op, instr.op.called()) {
            (Op::Constant(Literal::Array { shape, bytes }), _) => (shape, bytes).hash(&mut hasher),
            (op, called) if called.is_empty() => hash_debug(&mut hasher, op),
            (op, called) => {
                let mut nameless = op.clone();
                nameless.for_each_called_mut(&mut |callee| *callee = module.entry);
                hash_debug(&mut hasher, &nameless);
                called.iter().for_each(|&comp| self.of_applied(module, comp).hash(&mut hasher));
            }
        }
        Some(hasher.finish())
    }

    fn of_applied(&mut self, module: &Module, comp: CompId) -> u64 {
        *self.applied.entry(comp).or_insert_with(|| {
            let mut hasher = DefaultHasher::new();
            for instr in module.comp(comp).instructions.iter().take(MAX_APPLIED) {
                (instr.op.opcode(), &instr.shape, &instr.operands).hash(&mut hasher);
            }
            hasher.finish()
        })
    }

    /// For each value the first that is equal to it.
    fn firsts(&self, values: &[ValueId]) -> impl Iterator<Item = ValueId> {
        values.iter().map(|value| self.first.get(value).copied().unwrap_or(*value))
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

    /// The values of separate constants, each with the merged nodes that also read it.
    pub(super) fn readers(self) -> impl Iterator<Item = (ValueId, Vec<NodeId>)> {
        self.readers.into_iter()
    }

    /// Whether two expressions are equal.
    pub(super) fn are_equal(&self, module: &Module, a: Expression<'_>, b: Expression<'_>) -> bool {
        self.firsts(a.operands).eq(self.firsts(b.operands))
            && a.instr.shape == b.instr.shape
            && is_equal_op(module, &a.instr.op, &b.instr.op)
    }

    /// Nodes whose expression has this hash.
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = NodeId> {
        self.nodes.get(&hash).into_iter().flatten().copied()
    }

    /// Records the node of an expression.
    pub(super) fn add(&mut self, hash: u64, node: NodeId) {
        self.nodes.entry(hash).or_default().push(node);
    }
}

fn is_equal_op(module: &Module, a: &Op, b: &Op) -> bool {
    let (called_by_a, called_by_b) = (a.called(), b.called());
    if called_by_a == called_by_b {
        return a == b;
    }
    let mut renamed = b.clone();
    let mut names = called_by_a.iter();
    renamed.for_each_called_mut(&mut |callee| *callee = names.next().copied().unwrap_or(*callee));
    called_by_a.len() == called_by_b.len()
        && renamed == *a
        && called_by_a.iter().zip(&called_by_b).all(|(&a, &b)| is_equal_computation(module, a, b))
}

fn is_equal_computation(module: &Module, a: CompId, b: CompId) -> bool {
    let (a, b) = (module.comp(a), module.comp(b));
    let is_equal_instruction = |a: &Instruction, b: &Instruction| {
        is_function(a) && is_function(b) && a.shape == b.shape && a.operands == b.operands && {
            match (&a.op, &b.op) {
                (Op::Parameter { number: a, .. }, Op::Parameter { number: b, .. }) => a == b,
                (a, b) => a.called().is_empty() && a == b,
            }
        }
    };
    let n = a.instructions.len();
    n <= MAX_APPLIED
        && n == b.instructions.len()
        && a.root == b.root
        && a.instructions.iter().zip(&b.instructions).all(|(a, b)| is_equal_instruction(a, b))
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
