//! Residuals of a loop: values of each forward trip that the backward trip reads.
//!
//! The body and its reverse are in one computation. Instructions that depend on a cotangent run in the backward trip.
//! Other values that those read are stored, or recomputed if that is cheap: if they depend on loop invariants, or are
//! cheap functions of the counter or of stored values.

use super::trips::leaf;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{Computation, DType, InstrId, Op, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// The most cheap steps from stored values to a recomputed one.
const MAX_CHEAP: usize = 4;

/// A stored array: the result of an instruction, or an element of its tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Residual {
    pub id: InstrId,
    pub element: Option<usize>,
}

impl Residual {
    pub(super) fn shape(self, computation: &Computation) -> &Shape {
        let shape = &computation.instr(self.id).shape;
        match (self.element, shape.as_tuple()) {
            (Some(idx), Some(elements)) => &elements[idx],
            _ => shape,
        }
    }
}

/// The split of a body and its reverse into a forward and a backward trip.
#[derive(Debug)]
pub(super) struct Partition {
    /// The instructions of the backward trip in order: those that depend on a cotangent, and recomputed ones.
    pub backwards: Vec<InstrId>,
    /// Values stored by each forward trip.
    pub residuals: Vec<Residual>,
    /// Tuples that are rebuilt from their residuals.
    pub tuples: BTreeSet<InstrId>,
}

/// A body with its reverse, and the invariants of its state.
pub(super) struct Body<'a> {
    pub computation: &'a Computation,
    /// For each element of the state whether no trip changes it.
    pub is_invariant: &'a [bool],
    /// The element of the state that is the counter.
    pub counter: usize,
    /// Whether the backward trip recomputes the whole forward trip from the state before it.
    pub remat: bool,
}

impl Body<'_> {
    /// Splits the instructions that `outputs` need into those that depend on the cotangents `seeds` and the rest.
    pub(super) fn split(&self, outputs: &[InstrId], seeds: &BTreeSet<InstrId>) -> Partition {
        let n = self.computation.instructions.len();
        let mut depends = vec![false; n];
        for id in self.computation.ids() {
            let operands = &self.computation.instr(id).operands;
            depends[id.idx()] = seeds.contains(&id) || operands.iter().any(|operand| depends[operand.idx()]);
        }
        let mut needs = Needs { body: self, free: self.free(), split: Partition::empty(), again: BTreeSet::new() };
        let mut live = vec![false; n];
        outputs.iter().for_each(|id| live[id.idx()] = true);
        for id in (0..n as u32).rev().map(InstrId).filter(|id| !seeds.contains(id)) {
            if !live[id.idx()] {
                continue;
            }
            match depends[id.idx()] {
                true => {
                    needs.split.backwards.push(id);
                    self.computation.instr(id).operands.iter().for_each(|operand| live[operand.idx()] = true);
                }
                false => needs.need(id),
            }
        }
        needs.finish()
    }

    /// For each instruction whether it can be recomputed from loop invariants, or cheaply from the counter.
    fn free(&self) -> Vec<bool> {
        let n = self.computation.instructions.len();
        let (mut free, mut counts) = (vec![false; n], vec![false; n]);
        for id in self.computation.ids() {
            let instr = self.computation.instr(id);
            let element = match instr.op {
                Op::GetTupleElement { .. } => leaf(self.computation, id),
                _ => None,
            };
            (free[id.idx()], counts[id.idx()]) = match element {
                Some(idx) => (self.is_invariant[idx] || idx == self.counter, idx == self.counter),
                None => {
                    let counts = instr.operands.iter().any(|operand| counts[operand.idx()]);
                    let is_free = is_pure(&instr.op)
                        && instr.operands.iter().all(|operand| free[operand.idx()])
                        && (!counts || is_cheap(&instr.op) || matches!(instr.op, Op::DynamicSlice { .. }));
                    (is_free, counts)
                }
            };
        }
        free
    }
}

/// The values that the backward trip is known to read.
struct Needs<'a> {
    body: &'a Body<'a>,
    free: Vec<bool>,
    split: Partition,
    /// Values to recompute.
    again: BTreeSet<InstrId>,
}

impl Needs<'_> {
    /// Adds a value that depends on no cotangent and that the backward trip reads.
    fn need(&mut self, id: InstrId) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let instr = self.body.computation.instr(id);
            let is_known = self.again.contains(&id) || self.split.tuples.contains(&id);
            if is_known || self.split.residuals.contains(&Residual { id, element: None }) {
                continue;
            }
            let elements = instr.shape.as_tuple().map(<[Shape]>::len);
            let is_again = self.body.remat && self.can_be_again(id);
            if is_again || self.free[id.idx()] || matches!(instr.op, Op::Tuple) || self.is_larger(id) {
                self.again.insert(id);
                if !self.is_of_state(id) {
                    pending.extend(&instr.operands);
                }
            } else if let Some(n) = elements {
                self.split.tuples.insert(id);
                let is_available = |idx: &usize| {
                    let is_state = matches!(instr.op, Op::Parameter { .. });
                    is_state && (self.body.is_invariant[*idx] || *idx == self.body.counter)
                };
                let element_residuals =
                    (0..n).filter(|idx| !is_available(idx)).map(|idx| Residual { id, element: Some(idx) });
                self.split.residuals.extend(element_residuals);
            } else {
                self.split.residuals.push(Residual { id, element: None });
            }
        }
    }

    fn is_of_state(&self, id: InstrId) -> bool {
        let instr = self.body.computation.instr(id);
        matches!(instr.op, Op::GetTupleElement { .. }) && leaf(self.body.computation, id).is_some()
    }

    /// Whether a second run of the trip computes the same value, without communication between devices and without
    /// effects; this includes loops.
    fn can_be_again(&self, id: InstrId) -> bool {
        let op = &self.body.computation.instr(id).op;
        let is_outside = matches!(op, Op::Parameter { .. } | Op::CustomCall(_) | Op::Opaque(_) | Op::AllReduce(_));
        !is_outside && !self.is_of_state(id)
    }

    /// Whether a value takes at least as many bytes as its operand, of which it is another form.
    fn is_larger(&self, id: InstrId) -> bool {
        let instr = self.body.computation.instr(id);
        let bits = |id: InstrId| n_bits(&self.body.computation.instr(id).shape);
        matches!(instr.op, Op::Convert | Op::Broadcast { .. }) && bits(instr.operands[0]) <= bits(id)
    }

    /// Whether a value is a function, in at most `depth` cheap steps, of stored values and of values that can be
    /// recomputed.
    fn is_made_of(&self, id: InstrId, stored: &BTreeSet<InstrId>, depth: usize) -> bool {
        let instr = self.body.computation.instr(id);
        let is_there = |id: &InstrId| {
            self.free[id.idx()]
                || stored.contains(id)
                || self.again.contains(id)
                || depth > 1 && self.is_made_of(*id, stored, depth - 1)
        };
        is_cheap(&instr.op) && !instr.operands.is_empty() && instr.operands.iter().all(is_there)
    }

    /// Drops residuals that are cheap functions of other residuals.
    fn finish(mut self) -> Partition {
        let computation = self.body.computation;
        self.split.residuals.sort_unstable();
        let mut stored: BTreeSet<InstrId> = self
            .split
            .residuals
            .iter()
            .filter(|residual| residual.element.is_none())
            .map(|residual| residual.id)
            .collect();
        for id in stored.clone() {
            stored.remove(&id);
            if self.is_made_of(id, &stored, MAX_CHEAP) {
                self.again.insert(id);
            } else {
                stored.insert(id);
            }
        }
        self.split.residuals.retain(|residual| residual.element.is_some() || stored.contains(&residual.id));
        // Recomputed values need their operands recomputed as well.
        let mut pending: Vec<InstrId> = self.again.iter().copied().collect();
        while let Some(id) = pending.pop() {
            if self.is_of_state(id) {
                continue;
            }
            for &operand in &computation.instr(id).operands {
                if !stored.contains(&operand) && !self.split.tuples.contains(&operand) && self.again.insert(operand) {
                    pending.push(operand);
                }
            }
        }
        self.split.backwards.extend(&self.again);
        self.split.backwards.sort_unstable();
        self.split
    }
}

impl Partition {
    fn empty() -> Partition {
        Partition { backwards: Vec::new(), residuals: Vec::new(), tuples: BTreeSet::new() }
    }

    /// The instructions of `computation` that `outputs` of the forward trip need, in order.
    pub(super) fn forwards(computation: &Computation, outputs: impl Iterator<Item = InstrId>) -> Vec<InstrId> {
        let mut live: BTreeMap<InstrId, bool> = outputs.map(|id| (id, true)).collect();
        let mut pending: Vec<InstrId> = live.keys().copied().collect();
        while let Some(id) = pending.pop() {
            for &operand in &computation.instr(id).operands {
                if live.insert(operand, true).is_none() {
                    pending.push(operand);
                }
            }
        }
        live.into_keys().collect()
    }
}

/// The size of an array; 0 for anything else.
pub(super) fn n_bits(shape: &Shape) -> i64 {
    let array = shape.as_array();
    array.map_or(0, |array| array.dims.iter().product::<i64>().saturating_mul(array.dtype.bits() as i64))
}

/// Whether an op gives the same result for the same operands, and is not worth storing.
fn is_pure(op: &Op) -> bool {
    !matches!(
        op,
        Op::Parameter { .. }
            | Op::RngBitGenerator(_)
            | Op::While { .. }
            | Op::Conditional(_)
            | Op::Call { .. }
            | Op::CustomCall(_)
            | Op::AllReduce(_)
            | Op::Opaque(_)
    )
}

/// Whether recomputing an op is cheaper than storing its result: elementwise ops without a transcendental function,
/// and other forms of an array.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Compare { .. }
        | Op::Select
        | Op::Clamp
        | Op::Convert
        | Op::Broadcast { .. }
        | Op::Reshape
        | Op::Slice(_)
        | Op::Tuple => true,
        Op::Unary(op) => matches!(op, UnaryOp::Copy | UnaryOp::Negate | UnaryOp::Abs | UnaryOp::Not | UnaryOp::Sign),
        Op::Binary(op) => matches!(
            op,
            BinaryOp::Add
                | BinaryOp::Subtract
                | BinaryOp::Multiply
                | BinaryOp::Maximum
                | BinaryOp::Minimum
                | BinaryOp::And
                | BinaryOp::Or
                | BinaryOp::Xor
        ),
        _ => false,
    }
}

/// The dtype in which cotangents are summed over the trips.
pub(super) fn sum_dtype(dtype: DType) -> DType {
    if dtype.is_float() && dtype.bits() < 32 { DType::F32 } else { dtype }
}
