//! The two loops that replace a counted loop: the forward loop, which also stores each trip's residuals in stacks, and
//! the backward loop, which reads them from the last trip to the first.
//!
//! The backward loop's state is the loop invariants that it reads, the stacks, the cotangents, and the number of
//! finished trips.

use super::super::called::{lend, within};
use super::super::residuals::{Partition, sum_dtype};
use super::super::trips::{Trips, element};
use super::stack_sum::StackSums;
use super::{Reversed, Role, direct_leaf};
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::grad::Why;
use bf16scope_hlo::{CompId, Computation, DType, Emitter, InstrId, Instruction, Op, POISON, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// A counted loop, and its body with the body's reverse, split into a forward and a backward trip.
pub(super) struct LoopPair<'a> {
    pub e: &'a Emitter,
    /// The state before the loop.
    pub state: InstrId,
    pub trips: Trips,
    /// The shapes of the state's elements.
    pub leaves: &'a [Shape],
    pub roles: &'a [Role],
    /// The cotangents of the state's elements behind the loop.
    pub behind_loop: &'a [Option<InstrId>],
    pub reversed: &'a Reversed,
    /// The body with its reverse.
    pub body: &'a Computation,
    pub partition: Partition,
}

/// The residuals of all trips.
pub(super) struct Stacks {
    /// The forward loop's result: the state, the stacks, the trip; `None` if there are no residuals.
    result: Option<InstrId>,
    /// The shapes of single residuals, in order.
    shapes: Vec<Shape>,
}

/// The state before the backward loop; numbers are positions in `parts`.
#[derive(Default)]
struct BackwardState {
    parts: Vec<InstrId>,
    /// Loop invariants that the backward trip reads, by element of the forward loop's state.
    invariants: BTreeMap<usize, usize>,
    /// The stack of each residual.
    stacks: Vec<usize>,
    /// Stacks of values of the backward trip.
    stacked: BTreeMap<InstrId, usize>,
    /// Cotangents, by element of the forward loop's state.
    cotangents: BTreeMap<usize, usize>,
}

impl BackwardState {
    fn push(&mut self, id: InstrId) -> usize {
        self.parts.push(id);
        self.parts.len() - 1
    }
}

impl LoopPair<'_> {
    /// Lets the loop of `result` store the residuals of each trip.
    pub(super) fn run_forwards(&self, result: InstrId) -> Result<Stacks, Why> {
        let residuals = &self.partition.residuals;
        if residuals.is_empty() {
            return Ok(Stacks { result: None, shapes: Vec::new() });
        }
        let shapes: Vec<Shape> = residuals.iter().map(|it| it.shape(self.body).without_layout()).collect();
        let stacks: Vec<Shape> = shapes.iter().map(|shape| stacked(shape, self.trips.n)).collect();
        let (body, ()) = within(self.e, &format!("{}_kept", self.body.name), |inner| {
            self.write_forward_trip(inner, &shapes, &stacks);
            Ok(())
        })?;
        let state = self.e.shape(self.state);
        let (whole, ()) = within(self.e, &format!("{}_loop", self.body.name), |inner| {
            let parameter = inner.parameter(0, &state);
            let mut all = self.elements(inner, parameter);
            let zeros = |stack: &Shape| inner.full(stack.dtype().unwrap_or(DType::F32), stack.dims(), 0.0);
            all.extend(stacks.iter().map(zeros));
            all.push(inner.scalar(DType::S32, 0.0));
            let all = inner.tuple(&all);
            let condition = counting(inner, &inner.shape(all), self.trips.n)?;
            inner.emit(Op::While { condition, body }, &[all], None);
            Ok(())
        })?;
        Ok(Stacks { result: Some(self.replace_by_call(result, whole)), shapes })
    }

    /// Writes the forward trip: the body, then a row of each stack.
    fn write_forward_trip(&self, inner: &Emitter, shapes: &[Shape], stacks: &[Shape]) {
        let (n, residuals) = (self.leaves.len(), &self.partition.residuals);
        let all = self.leaves.iter().chain(stacks).cloned().chain([Shape::scalar(DType::S32)]);
        let parameter = inner.parameter(0, &Shape::Tuple(all.collect()));
        let mut copies = Copies::new(self.body);
        let outputs = self.reversed.results.iter().copied().chain(residuals.iter().map(|residual| residual.id));
        for id in Partition::forwards(self.body, outputs) {
            let copy = match direct_leaf(self.body, id) {
                Some(idx) => inner.get_tuple_element(parameter, idx),
                // The whole state.
                None if matches!(self.body.instr(id).op, Op::Parameter { .. }) => {
                    inner.tuple(&self.elements(inner, parameter))
                }
                None => copies.copy(inner, id),
            };
            copies.set(id, copy);
        }
        let trip = inner.get_tuple_element(parameter, n + stacks.len());
        let mut next: Vec<InstrId> = self.reversed.results.iter().map(|&id| copies.get(id)).collect();
        for (number, (residual, shape)) in residuals.iter().zip(shapes).enumerate() {
            let stack = inner.get_tuple_element(parameter, n + number);
            let value = match residual.element {
                None => copies.get(residual.id),
                Some(idx) => inner.get_tuple_element(copies.get(residual.id), idx),
            };
            let row = inner.reshape(value, &[&[1], shape.dims()].concat());
            next.push(inner.emit(Op::DynamicUpdateSlice, &at_trip(inner, &[stack, row], trip, shape), None));
        }
        next.push(inner.add(trip, inner.scalar(DType::S32, 1.0)));
        inner.tuple(&next);
    }

    /// The elements of the forward loop's state, read from a tuple that begins with them.
    fn elements(&self, inner: &Emitter, tuple: InstrId) -> Vec<InstrId> {
        (0..self.leaves.len()).map(|idx| inner.get_tuple_element(tuple, idx)).collect()
    }

    /// The call of the forward loop: in the place of the loop of `result` if only single elements of that are read.
    fn replace_by_call(&self, result: InstrId, to_apply: CompId) -> InstrId {
        let e = self.e;
        let is_taken_apart = e.with_module(|module| {
            let reads = |instr: &&Instruction| instr.operands.contains(&result);
            let all = &module.comp(e.comp()).instructions;
            all.iter().filter(reads).all(|instr| matches!(instr.op, Op::GetTupleElement { .. }))
        });
        let call = Op::Call { to_apply };
        match is_taken_apart {
            false => e.emit(call, &[self.state], None),
            // In place: the first elements of its result are still those of the state.
            true => e.with_module_mut(|module| {
                let shape = module.comp(to_apply).result_shape().clone();
                let instr = &mut module.computations[e.comp().idx()].instructions[result.idx()];
                (instr.op, instr.shape) = (call, shape);
                result
            }),
        }
    }

    /// Writes the loop from the last trip to the first, in the computation of the reversed body. Returns the cotangents
    /// by element, those of loop invariants in the dtype of sums.
    pub(super) fn run_backwards(&self, stacks: &Stacks) -> Result<BTreeMap<usize, InstrId>, Why> {
        let (e, body) = (self.e, self.reversed.comp);
        e.with_module_mut(|module| module.computations[body.idx()] = Computation::new(self.body.name.clone()));
        let sums = self.stack_sums();
        let state = self.backward_state(stacks, &sums);
        let all = e.tuple(&state.parts);
        let shape = e.shape(all);
        lend(e, body, |inner| {
            let mut trip = BackwardTrip::begin(self, &state, inner, &shape);
            trip.read_residuals(&stacks.shapes);
            trip.copy_instructions();
            trip.finish();
            Ok(())
        })?;
        let condition = counting(e, &shape, self.trips.n)?;
        let result = e.emit(Op::While { condition, body }, &[all], None);
        let parts = state.cotangents.iter().map(|(&idx, &part)| (idx, e.get_tuple_element(result, part)));
        let mut cotangents: BTreeMap<usize, InstrId> = parts.collect();
        let residuals: Vec<InstrId> = state.stacks.iter().map(|&part| state.parts[part]).collect();
        let stacked = sums.stacked.iter().map(|id| e.get_tuple_element(result, state.stacked[id]));
        let stacked: Vec<InstrId> = stacked.collect();
        self.sum_stacks(&sums, (&residuals, &stacked), &mut cotangents);
        Ok(cotangents)
    }

    fn backward_state(&self, stacks: &Stacks, sums: &StackSums) -> BackwardState {
        let e = self.e;
        let mut state = BackwardState::default();
        for idx in self.elements_read().into_iter().filter(|&idx| self.reversed.is_invariant[idx]) {
            let id = e.with_module(|module| element(module.comp(e.comp()), self.state, idx));
            let part = state.push(id.unwrap_or_else(|| e.get_tuple_element(self.state, idx)));
            state.invariants.insert(idx, part);
        }
        for number in 0..stacks.shapes.len() {
            let stack = e.get_tuple_element(stacks.result.unwrap_or(self.state), self.leaves.len() + number);
            let part = state.push(stack);
            state.stacks.push(part);
        }
        for &id in &sums.stacked {
            let stack = stacked(&self.body.instr(id).shape, self.trips.n);
            let part = state.push(e.full(stack.dtype().unwrap_or(DType::F32), stack.dims(), 0.0));
            state.stacked.insert(id, part);
        }
        for idx in 0..self.leaves.len() {
            if let Some(cotangent) = self.first_cotangent(idx, sums) {
                let part = state.push(cotangent);
                state.cotangents.insert(idx, part);
            }
        }
        state.push(e.scalar(DType::S32, 0.0));
        state
    }

    /// The elements of the forward loop's state that the backward trip reads.
    fn elements_read(&self) -> BTreeSet<usize> {
        let is_state = |id: &InstrId| matches!(self.body.instr(*id).op, Op::Parameter { .. });
        match self.partition.tuples.iter().any(is_state) {
            true => (0..self.leaves.len()).collect(),
            false => self.partition.backwards.iter().filter_map(|&id| direct_leaf(self.body, id)).collect(),
        }
    }

    /// The cotangent of an element before the first backward trip, if the backward loop has one.
    fn first_cotangent(&self, idx: usize, sums: &StackSums) -> Option<InstrId> {
        let dtype = self.leaves[idx].dtype().unwrap_or(DType::F32);
        let zeros = |dtype: DType| self.e.full(dtype, self.leaves[idx].dims(), 0.0);
        let has_part = self.reversed.cotangents.contains_key(&idx) && !sums.contains(idx);
        match (&self.roles[idx], self.behind_loop[idx]) {
            (Role::Carried | Role::Filled, behind_loop) => Some(behind_loop.unwrap_or_else(|| zeros(dtype))),
            // A loop invariant is a result as well.
            (Role::Summed, Some(behind_loop)) if has_part => Some(self.e.convert(behind_loop, sum_dtype(dtype))),
            (Role::Summed, None) if has_part => Some(zeros(sum_dtype(dtype))),
            (Role::Sliced(_), _) if has_part => Some(zeros(dtype)),
            (Role::Inactive | Role::Summed | Role::Sliced(_), _) => None,
        }
    }
}

/// A backward trip under construction.
struct BackwardTrip<'a> {
    pair: &'a LoopPair<'a>,
    state: &'a BackwardState,
    inner: &'a Emitter,
    parameter: InstrId,
    /// The number of finished backward trips.
    done: InstrId,
    /// The number of the forward trip.
    trip: InstrId,
    copies: Copies<'a>,
}

impl<'a> BackwardTrip<'a> {
    fn begin(pair: &'a LoopPair<'a>, state: &'a BackwardState, inner: &'a Emitter, shape: &Shape) -> BackwardTrip<'a> {
        let parameter = inner.parameter(0, shape);
        let done = inner.get_tuple_element(parameter, state.parts.len() - 1);
        let trip = inner.sub(inner.scalar(DType::S32, (pair.trips.n - 1) as f64), done);
        BackwardTrip { pair, state, inner, parameter, done, trip, copies: Copies::new(pair.body) }
    }

    /// A part of the backward loop's state.
    fn part(&self, part: usize) -> InstrId {
        self.inner.get_tuple_element(self.parameter, part)
    }

    /// An element of the forward loop's state that is the same in all trips, or the counter.
    fn element(&self, idx: usize) -> InstrId {
        match self.state.invariants.get(&idx) {
            Some(&part) => self.part(part),
            None => self.counter(self.pair.leaves[idx].dtype().unwrap_or(DType::S32)),
        }
    }

    /// The counter before the forward trip.
    fn counter(&self, dtype: DType) -> InstrId {
        let (inner, Trips { start, step, .. }) = (self.inner, self.pair.trips);
        let steps = inner.convert(self.trip, dtype);
        let steps = if step == 1 { steps } else { inner.mul(steps, inner.scalar(dtype, step as f64)) };
        if start == 0 { steps } else { inner.add(steps, inner.scalar(dtype, start as f64)) }
    }

    /// Reads the forward trip's rows of the stacks, and rebuilds the tuples that the backward trip reads.
    fn read_residuals(&mut self, shapes: &[Shape]) {
        let (pair, inner) = (self.pair, self.inner);
        let mut elements: BTreeMap<InstrId, BTreeMap<usize, InstrId>> = BTreeMap::new();
        for ((residual, shape), &part) in pair.partition.residuals.iter().zip(shapes).zip(&self.state.stacks) {
            let slice_sizes = [&[1], shape.dims()].concat();
            let operands = at_trip(inner, &[self.part(part)], self.trip, shape);
            let row = inner.emit(Op::DynamicSlice { slice_sizes }, &operands, None);
            let value = inner.reshape(row, shape.dims());
            match residual.element {
                None => self.copies.set(residual.id, value),
                Some(idx) => {
                    elements.entry(residual.id).or_default().insert(idx, value);
                }
            }
        }
        for &id in &pair.partition.tuples {
            let n = pair.body.instr(id).shape.as_tuple().map_or(0, <[Shape]>::len);
            let stored = elements.remove(&id).unwrap_or_default();
            let all = (0..n).map(|idx| stored.get(&idx).copied().unwrap_or_else(|| self.element(idx)));
            let tuple = inner.tuple(&all.collect::<Vec<_>>());
            self.copies.set(id, tuple);
        }
    }

    /// Copies the instructions of the backward trip.
    fn copy_instructions(&mut self) {
        for (idx, &seed) in &self.pair.reversed.seeds {
            self.copies.set(seed, self.part(self.state.cotangents[idx]));
        }
        for &id in &self.pair.partition.backwards {
            let copy = match direct_leaf(self.pair.body, id) {
                Some(idx) if !self.copies.has(self.pair.body.instr(id).operands[0]) => self.element(idx),
                _ => self.copies.copy(self.inner, id),
            };
            self.copies.set(id, copy);
        }
    }

    /// Writes the state behind the backward trip.
    fn finish(&self) {
        let n = self.state.parts.len();
        let mut next: Vec<InstrId> = (0..n).map(|part| self.part(part)).collect();
        for (&idx, &part) in &self.state.cotangents {
            next[part] = self.next_cotangent(idx, next[part]);
        }
        for (&id, &part) in &self.state.stacked {
            let shape = &self.pair.body.instr(id).shape;
            let row = self.inner.reshape(self.copies.get(id), &[&[1], shape.dims()].concat());
            let operands = at_trip(self.inner, &[next[part], row], self.trip, shape);
            next[part] = self.inner.emit(Op::DynamicUpdateSlice, &operands, None);
        }
        next[n - 1] = self.inner.add(self.done, self.inner.scalar(DType::S32, 1.0));
        self.inner.tuple(&next);
    }

    /// The cotangent of an element behind the backward trip, given that before it.
    fn next_cotangent(&self, idx: usize, before: InstrId) -> InstrId {
        let (inner, copies) = (self.inner, &self.copies);
        let cotangent = self.pair.reversed.cotangents.get(&idx).map(|&id| copies.get(id));
        match (&self.pair.roles[idx], cotangent) {
            (Role::Carried, Some(cotangent)) => cotangent,
            (Role::Carried, None) => inner.zeros_like(before),
            (Role::Summed, Some(cotangent)) => inner.add(before, inner.convert(cotangent, inner.dtype(before))),
            (Role::Sliced(read), Some(cotangent)) => {
                let indices = self.pair.body.instr(*read).operands[1..].iter().map(|&id| copies.get(id));
                let operands: Vec<InstrId> = [before, cotangent].into_iter().chain(indices).collect();
                inner.emit(Op::DynamicUpdateSlice, &operands, None)
            }
            _ => before,
        }
    }
}

/// The shape of a stack of `n` arrays.
fn stacked(shape: &Shape, n: i64) -> Shape {
    Shape::array(shape.dtype().unwrap_or(DType::F32), [&[n], shape.dims()].concat())
}

/// `operands` and the start indices of a row of a stack.
fn at_trip(e: &Emitter, operands: &[InstrId], trip: InstrId, shape: &Shape) -> Vec<InstrId> {
    let mut all = [operands, &[trip]].concat();
    all.resize(all.len() + shape.dims().len(), e.scalar(DType::S32, 0.0));
    all
}

/// The condition `state → trip < n`, where the trip is the last element of the state.
fn counting(e: &Emitter, state: &Shape, n: i64) -> Result<CompId, Why> {
    let (comp, ()) = within(e, "counts", |inner| {
        let parameter = inner.parameter(0, state);
        let trip = inner.get_tuple_element(parameter, state.as_tuple().map_or(0, |all| all.len() - 1));
        inner.compare(Comparison::Lt, trip, inner.scalar(DType::S32, n as f64));
        Ok(())
    })?;
    Ok(comp)
}

/// Copies instructions of one computation into another.
struct Copies<'a> {
    from: &'a Computation,
    ids: BTreeMap<InstrId, InstrId>,
}

impl<'a> Copies<'a> {
    fn new(from: &'a Computation) -> Copies<'a> {
        Copies { from, ids: BTreeMap::new() }
    }

    fn has(&self, id: InstrId) -> bool {
        self.ids.contains_key(&id)
    }

    fn get(&self, id: InstrId) -> InstrId {
        self.ids.get(&id).copied().unwrap_or(POISON)
    }

    fn set(&mut self, id: InstrId, copy: InstrId) {
        self.ids.insert(id, copy);
    }

    /// Copies an instruction whose operands were copied before.
    fn copy(&self, e: &Emitter, id: InstrId) -> InstrId {
        let mut instr = self.from.instr(id).clone();
        instr.operands.iter_mut().for_each(|id| *id = self.get(*id));
        instr.control_predecessors.clear();
        if instr.operands.contains(&POISON) {
            return POISON;
        }
        e.with_module_mut(|module| module.append_copy(e.comp(), instr))
    }
}
