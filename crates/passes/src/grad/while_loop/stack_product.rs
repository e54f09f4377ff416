//! Sums of a loop invariant's cotangents that are made behind the loop, from stacks with a row for each trip.
//!
//! The kernel of a recurrent layer has the cotangent `xᵀ·y` in each trip: x is a residual, and y the cotangent of the
//! row that the trip reads of another array. Both are stacks, so one product that contracts the trips too is the sum
//! over trips. It takes fewer cycles than many small products and their sum, and rounds once. The cotangent of a bias is
//! a sum of y's rows: one sum of its stack.
//!
//! An operand of a product that is in no stack, as the GRU's y for the state, gets one if its row is no larger than the
//! sum that each trip would add to, and new stacks no larger than the residuals.

use super::super::residuals::{Residual, n_bits, sum_dtype};
use super::super::trips::is_trip;
use super::loop_pair::LoopPair;
use super::stack_sum::{Factor, StackSums, Sum};
use super::{Role, direct_leaf};
use bf16scope_hlo::ops::{BinaryOp, DotDims};
use bf16scope_hlo::{CompId, DType, InstrId, Literal, Op, POISON, Shape};
use std::collections::BTreeMap;

/// The most instructions from a cotangent to a stack's row.
const MAX_DEPTH: usize = 8;

impl LoopPair<'_> {
    /// The sums to make behind the loop. Sums of another form, and those whose dtype is that of sums, are added in the order
    /// of trips, to the last bit.
    pub(super) fn stack_sums(&self) -> StackSums {
        let is_narrow = |idx: usize| self.leaves[idx].dtype().is_some_and(|dtype| sum_dtype(dtype) != dtype);
        let is_summed =
            |idx: &usize| self.roles[*idx] == Role::Summed && self.behind_loop[*idx].is_none() && is_narrow(*idx);
        let summed = (0..self.leaves.len()).filter(is_summed);
        let cotangents: Vec<(usize, InstrId)> =
            summed.filter_map(|idx| Some((idx, *self.reversed.cotangents.get(&idx)?))).collect();
        let mut stacked: Vec<InstrId> = Vec::new();
        for &(idx, cotangent) in &cotangents {
            let more = self.worth_stacks(idx, cotangent, &stacked);
            stacked.extend(more);
        }
        let sum = |&(idx, cotangent): &(usize, InstrId)| Some((idx, self.sum(cotangent, &stacked, MAX_DEPTH)?));
        StackSums { sums: cotangents.iter().filter_map(sum).collect(), stacked }
    }

    /// Adds to the cotangents behind the loop those that are sums of stacks: of `residuals`, the cotangents of rows, and
    /// `stacked`.
    pub(super) fn sum_stacks(
        &self,
        sums: &StackSums,
        (residuals, stacked): (&[InstrId], &[InstrId]),
        cotangents: &mut BTreeMap<usize, InstrId>,
    ) {
        for (&idx, sum) in &sums.sums {
            let stack = |factor: Factor| match factor {
                Factor::Residual(number) => residuals[number],
                Factor::Rows(idx) => cotangents.get(&idx).copied().unwrap_or(POISON),
                Factor::Stacked(number) => stacked[number],
            };
            let dtype = sum_dtype(self.leaves[idx].dtype().unwrap_or(DType::F32));
            let sum = self.emit_sum(sum, &stack, dtype);
            cotangents.insert(idx, sum);
        }
    }

    /// Emits a sum: a product as the trips have it, all else in `dtype`.
    fn emit_sum(&self, sum: &Sum, stack: &dyn Fn(Factor) -> InstrId, dtype: DType) -> InstrId {
        let e = self.e;
        let wide = |sum: &Sum| e.convert(self.emit_sum(sum, stack, dtype), dtype);
        match sum {
            Sum::Product(op, factors, shape) => e.emit(op.clone(), &factors.map(stack), Some(shape)),
            Sum::Rows(factor, axes) => e.reduce_sum(e.convert(stack(*factor), dtype), axes),
            Sum::Form(Op::Pad(dims), sum, _) => e.pad(wide(sum), e.scalar(dtype, 0.0), dims),
            Sum::Form(Op::Reshape, sum, shape) => e.reshape(wide(sum), shape.dims()),
            Sum::Form(op, sum, _) => e.emit(op.clone(), &[wide(sum)], None),
            Sum::Both([lhs, rhs]) => e.add(wide(lhs), wide(rhs)),
        }
    }

    /// The sum over all trips of a value of the backward trip, if it is made of stacks in `depth` steps.
    fn sum(&self, id: InstrId, stacked: &[InstrId], depth: usize) -> Option<Sum> {
        if let Some(factor) = self.factor(id, stacked) {
            return Some(Sum::Rows(factor, vec![0]));
        }
        let (instr, depth) = (self.body.instr(id), depth.checked_sub(1)?);
        let inner = |id: InstrId| Some(Box::new(self.sum(id, stacked, depth)?));
        match (&instr.op, &instr.operands[..]) {
            (Op::Dot { .. }, _) => self.product(id, stacked),
            (Op::Convert, &[x]) if self.is_float(x) => self.sum(x, stacked, depth),
            (Op::Reduce { dimensions, to_apply }, &[x, init]) if self.is_zero(init) && self.adds(*to_apply) => {
                let factor = self.factor(self.without_casts(x), stacked)?;
                Some(Sum::Rows(factor, and_trips(dimensions)))
            }
            (Op::Reshape | Op::Transpose { .. }, &[x]) => {
                Some(Sum::Form(instr.op.clone(), inner(x)?, instr.shape.clone()))
            }
            (Op::Pad(_), &[x, value]) if self.is_zero(value) => {
                Some(Sum::Form(instr.op.clone(), inner(x)?, instr.shape.clone()))
            }
            (Op::Binary(BinaryOp::Add), &[x, y]) => Some(Sum::Both([inner(x)?, inner(y)?])),
            _ => None,
        }
    }

    /// The product that is the sum over all trips of the product `id`.
    fn product(&self, id: InstrId, stacked: &[InstrId]) -> Option<Sum> {
        let instr = self.body.instr(id);
        let (Op::Dot { dims, precision }, &[lhs, rhs]) = (&instr.op, &instr.operands[..]) else { return None };
        if !dims.lhs_batch.is_empty() {
            return None;
        }
        let factors = [self.factor(lhs, stacked)?, self.factor(rhs, stacked)?];
        let dims = DotDims {
            lhs_contracting: and_trips(&dims.lhs_contracting),
            rhs_contracting: and_trips(&dims.rhs_contracting),
            ..DotDims::default()
        };
        let op = Op::Dot { dims, precision: precision.clone() };
        Some(Sum::Product(op, factors, instr.shape.without_layout()))
    }

    /// The operands of the product `id`, a part of the sum for element `idx`, that are in no stack and get one.
    fn worth_stacks(&self, idx: usize, id: InstrId, stacked: &[InstrId]) -> Vec<InstrId> {
        let instr = self.body.instr(id);
        let Op::Dot { dims, .. } = &instr.op else { return Vec::new() };
        let is_new = |operand: &InstrId| self.factor(*operand, stacked).is_none();
        let mut operands: Vec<InstrId> = instr.operands.iter().copied().filter(is_new).collect();
        operands.dedup();
        let is_of_trip = |id: &InstrId| self.partition.backwards.contains(id) && direct_leaf(self.body, *id).is_none();
        let size = |ids: &[InstrId]| ids.iter().map(|id| n_bits(&self.body.instr(*id).shape)).sum::<i64>();
        let residuals = self.partition.residuals.iter();
        let residual_bits: i64 = residuals.map(|residual| n_bits(residual.shape(self.body))).sum();
        let leaf = &self.leaves[idx];
        let sum = n_bits(&Shape::array(sum_dtype(leaf.dtype().unwrap_or(DType::F32)), leaf.dims()));
        let is_small = size(&operands) <= sum && size(&operands) + size(stacked) <= residual_bits;
        let is_worth = dims.lhs_batch.is_empty() && operands.iter().all(is_of_trip) && is_small;
        if is_worth { operands } else { Vec::new() }
    }

    /// The stack that holds this value of each trip, in the order of trips.
    fn factor(&self, id: InstrId, stacked: &[InstrId]) -> Option<Factor> {
        let is_it = |residual: &Residual| residual.id == id && residual.element.is_none();
        if let Some(number) = self.partition.residuals.iter().position(is_it) {
            return Some(Factor::Residual(number));
        }
        let is_of_rows = |idx: &usize| match (&self.roles[*idx], self.reversed.cotangents.get(idx)) {
            (Role::Sliced(read), Some(&cotangent)) => self.is_row(id, cotangent) && self.reads_by_trip(*idx, *read),
            _ => false,
        };
        let rows = (0..self.leaves.len()).find(is_of_rows).map(Factor::Rows);
        rows.or_else(|| stacked.iter().position(|other| *other == id).map(Factor::Stacked))
    }

    /// Whether `row` is `id` with an axis of one trip before the others.
    fn is_row(&self, id: InstrId, row: InstrId) -> bool {
        let (value, row) = (self.body.instr(id), self.body.instr(row));
        let is_reshaped = matches!(row.op, Op::Reshape) && row.operands[..] == [id];
        is_reshaped && row.shape.dims().split_first() == Some((&1, value.shape.dims()))
    }

    /// Whether each trip reads the row of its number of element `idx`, and there are no others.
    fn reads_by_trip(&self, idx: usize, read: InstrId) -> bool {
        let (instr, whole) = (self.body.instr(read), self.leaves[idx].dims());
        let is_row = instr.shape.dims().first() == Some(&1) && instr.shape.dims().get(1..) == whole.get(1..);
        let is_by_trip = instr.operands.get(1).is_some_and(|&index| is_trip(self.body, self.trips, index));
        whole.first() == Some(&self.trips.n) && is_row && is_by_trip
    }

    fn is_float(&self, id: InstrId) -> bool {
        self.body.instr(id).shape.dtype().is_some_and(DType::is_float)
    }

    /// The value, or the float that it is a cast (of a cast, …) of.
    fn without_casts(&self, mut id: InstrId) -> InstrId {
        while let (Op::Convert, &[x]) = (&self.body.instr(id).op, &self.body.instr(id).operands[..])
            && self.is_float(x)
        {
            id = x;
        }
        id
    }

    fn is_zero(&self, id: InstrId) -> bool {
        let Op::Constant(Literal::Array { bytes, .. }) = &self.body.instr(id).op else { return false };
        bytes.iter().all(|&byte| byte == 0)
    }

    /// Whether a reduction's computation adds its two parameters.
    fn adds(&self, to_apply: CompId) -> bool {
        self.e.with_module(|module| {
            let computation = module.comp(to_apply);
            let root = computation.instr(computation.root);
            let is_parameter = |id: &InstrId| matches!(computation.instr(*id).op, Op::Parameter { .. });
            let is_of_both = root.operands.iter().all(is_parameter) && root.operands.first() != root.operands.get(1);
            matches!(root.op, Op::Binary(BinaryOp::Add)) && is_of_both
        })
    }
}

/// The axis of trips, and these axes of a row.
fn and_trips(axes: &[i64]) -> Vec<i64> {
    let rows = axes.iter().map(|axis| axis + 1);
    std::iter::once(0).chain(rows).collect()
}
