//! Reverse mode of counted loops.
//!
//! The loop is replaced by two: the forward loop, which also stores for each trip what the reverse needs (residuals),
//! and the backward loop, from the last trip to the first, with the cotangents of the carried state. The body is
//! reversed as a separate computation, which is then split: instructions that depend on a cotangent go into the
//! backward loop, all others into the forward loop, and a value that crosses is a residual. A residual is stored, or
//! recomputed where that is cheap: from loop invariants, from the counter, from other residuals by an add or a cast. A
//! loop with the mark of [`rematerialise_trips`] stores only its state before each trip, and recomputes the rest. With
//! nested loops that have the mark, the outer stores its state before each segment, and the inner stores the residuals
//! of one segment.
//!
//! A loop invariant (weights) has a sum of cotangents, in f32 if its dtype is narrower, rounded once behind the loop.
//! An array that each trip reads a slice of (inputs over time), or writes a slice of (outputs over time), has the
//! slices' cotangents, and no sum.

use super::called::{Called, in_original, lend, within, write_copy};
use super::residuals::{Body, Partition, sum_dtype};
use super::trips::{Trips, constant, disjoint_starts, element, is_invariant, leaf};
use super::{inline, passes_variation, reverse};
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::ops::grad::{Cotangent, Cotangents, Vjp, Why};
use bf16scope_hlo::{CompId, Computation, DType, Emitter, InstrId, Instruction, Module, Op, POISON, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// How the cotangent of an element of the state goes from trip to trip.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    /// It has no cotangent.
    Inactive,
    /// Each trip computes the cotangent of the value before it from that of the value behind it.
    Carried,
    /// A loop invariant: each trip adds its part.
    Summed,
    /// A loop invariant that each trip reads one slice of, the slices being disjoint; with the instruction that reads
    /// it.
    Sliced(InstrId),
    /// Each trip writes a slice, the slices being disjoint, and does not read it: the cotangent is the same in all
    /// trips.
    Filled,
}

/// The cotangents of the loop's state before it, given those behind it.
pub(super) fn cotangents(called: &Called<'_>, vjp: &Vjp<'_>, condition: CompId, body: CompId) -> Cotangents {
    let e = vjp.e;
    let state = vjp.operand(0);
    let shape = e.shape(state);
    let leaves: Vec<Shape> = match shape.as_tuple() {
        Some(leaves) if leaves.iter().all(|leaf| leaf.as_array().is_some()) => {
            leaves.iter().map(Shape::without_layout).collect()
        }
        _ => return Err(format!("its state is {shape}, expected a tuple of arrays").into()),
    };
    e.with_module_mut(|module| {
        inline::calls(module, body);
        take_from_tuples(&mut module.computations[body.idx()]);
    });
    let trips = e.with_module(|module| Trips::count(module, e.comp(), state, condition, body))?;
    if trips.n == 0 {
        return Ok(vec![vjp.cotangent.clone()]);
    }
    let is_varied = varied_before(e, state, called.varied, leaves.len());
    let behind_loop: Vec<Option<InstrId>> = (0..leaves.len()).map(|idx| vjp.cotangent.element(idx).array()).collect();
    let roles = e.with_module(|module| {
        let before = |idx: usize| constant_before(module, e.comp(), state, idx);
        roles(module.comp(body), trips, &before, &leaves, &is_varied, &behind_loop)
    });
    let reversed = Reversed::write(called, body, &leaves, &roles)?;
    let partition = e.with_module(|module| {
        let remat = is_rematerialised(module.comp(e.comp()).instr(vjp.result));
        reversed.split(module.comp(reversed.comp), &roles, trips.counter, remat)
    });
    let stored = keep(e, state, vjp.result, trips, &reversed, &partition)?;
    let sums = run_backwards(e, state, trips, &leaves, &roles, &behind_loop, &reversed, &partition, &stored)?;
    let leaf_cotangent = |(idx, role): (usize, &Role)| {
        let behind = || vjp.cotangent.element(idx);
        match role {
            Role::Inactive if reversed.is_invariant[idx] => behind(),
            Role::Inactive | Role::Filled => Cotangent::Zero,
            Role::Carried => sums.get(&idx).map_or(Cotangent::Zero, |&id| Cotangent::Array(id)),
            Role::Summed => match sums.get(&idx) {
                Some(&sum) => Cotangent::Array(e.convert(sum, leaves[idx].dtype().unwrap_or(DType::F32))),
                None => behind(),
            },
            // A loop invariant is a result as well.
            Role::Sliced(_) => sums.get(&idx).map_or(Cotangent::Zero, |&id| Cotangent::Array(id)).add(behind(), e),
        }
    };
    Ok(vec![Cotangent::Tuple(roles.iter().enumerate().map(leaf_cotangent).collect())])
}

/// The attribute of a loop whose backward trips recompute the forward trip.
const REMAT: (&str, &str) = ("rematerialise", "trips");

fn is_rematerialised(instr: &Instruction) -> bool {
    instr.frontend_attributes.iter().any(|(name, value)| (name.as_str(), value.as_str()) == REMAT)
}

/// Lets reverse mode rematerialise the trips of a loop: it stores only the state before each trip, and the backward
/// trip recomputes the forward trip. Values are the same. Instructions other than `while` are not changed.
pub fn rematerialise_trips(instr: &mut Instruction) {
    if matches!(instr.op, Op::While { .. }) && !is_rematerialised(instr) {
        instr.frontend_attributes.push((REMAT.0.to_string(), REMAT.1.to_string()));
    }
}

/// Replaces reads of a tuple's elements by the elements themselves, so that reverse mode can tell them apart.
fn take_from_tuples(computation: &mut Computation) {
    let mut source: Vec<InstrId> = Vec::with_capacity(computation.instructions.len());
    for idx in 0..computation.instructions.len() {
        let instr = &mut computation.instructions[idx];
        instr.operands.iter_mut().for_each(|operand| *operand = source[operand.idx()]);
        let instr = &computation.instructions[idx];
        source.push(match instr.op {
            Op::GetTupleElement { index } => {
                let tuple = computation.instr(instr.operands[0]);
                if matches!(tuple.op, Op::Tuple) { tuple.operands[index as usize] } else { InstrId(idx as u32) }
            }
            _ => InstrId(idx as u32),
        });
    }
}

/// Which elements of the state depend on a variable before the loop.
fn varied_before(e: &Emitter, state: InstrId, varied: &[bool], n: usize) -> Vec<bool> {
    e.with_module(|module| {
        let computation = module.comp(e.comp());
        let is_varied =
            |idx| element(computation, state, idx).is_none_or(|id| varied.get(id.idx()).is_none_or(|varies| *varies));
        (0..n).map(is_varied).collect()
    })
}

/// The value of an element of the state before the loop, if it is a constant integer.
fn constant_before(module: &Module, comp: CompId, state: InstrId, idx: usize) -> Option<i64> {
    let computation = module.comp(comp);
    constant(computation, element(computation, state, idx)?)
}

/// The roles of the elements of the state.
fn roles(
    body: &Computation,
    trips: Trips,
    before: &dyn Fn(usize) -> Option<i64>,
    leaves: &[Shape],
    is_varied: &[bool],
    behind_loop: &[Option<InstrId>],
) -> Vec<Role> {
    let active = active(body, leaves, is_varied, behind_loop);
    let uses = Uses::new(body, leaves.len());
    let constant = |idx: usize| if is_invariant(body, idx) { before(idx) } else { None };
    let starts = |instr: &Instruction, first: usize, part: &[i64], whole: &[i64]| {
        disjoint_starts(body, trips, &constant, &instr.operands[first..], (whole, part))
    };
    let role = |idx: usize| {
        let whole = leaves[idx].dims();
        match (active[idx], is_invariant(body, idx)) {
            (false, _) => Role::Inactive,
            (true, true) => match uses.only(idx) {
                Some(id) if matches!(&body.instr(id).op, Op::DynamicSlice { .. }) => {
                    let instr = body.instr(id);
                    let is_read = leaf(body, instr.operands[0]) == Some(idx);
                    let is_apart = is_read && starts(instr, 1, instr.shape.dims(), whole);
                    if is_apart { Role::Sliced(id) } else { Role::Summed }
                }
                _ => Role::Summed,
            },
            (true, false) => match (uses.only(idx), element(body, body.root, idx)) {
                (Some(id), Some(next)) if id == next && matches!(body.instr(id).op, Op::DynamicUpdateSlice) => {
                    let instr = body.instr(id);
                    let part = body.instr(instr.operands[1]).shape.dims();
                    let is_filled = leaf(body, instr.operands[0]) == Some(idx)
                        && !is_varied[idx]
                        && uses.only_the_result(id)
                        && starts(instr, 2, part, whole);
                    if is_filled { Role::Filled } else { Role::Carried }
                }
                _ => Role::Carried,
            },
        }
    };
    (0..leaves.len()).map(role).collect()
}

/// The instructions that read each element of the state, except the result.
struct Uses {
    of_leaf: Vec<Vec<InstrId>>,
    readers: BTreeMap<InstrId, usize>,
}

impl Uses {
    fn new(body: &Computation, n: usize) -> Uses {
        let mut of_leaf = vec![Vec::new(); n];
        let mut readers = BTreeMap::new();
        for id in Partition::forwards(body, [body.root].into_iter()) {
            let instr = body.instr(id);
            for &operand in &instr.operands {
                *readers.entry(operand).or_default() += 1;
            }
            if id == body.root && matches!(instr.op, Op::Tuple) {
                continue;
            }
            let is_state = |id: InstrId| matches!(body.instr(id).op, Op::Parameter { .. });
            match &instr.op {
                Op::GetTupleElement { .. } if is_state(instr.operands[0]) => {}
                // It reads the whole state.
                _ if instr.operands.iter().any(|&operand| is_state(operand)) => {
                    of_leaf.iter_mut().for_each(|uses: &mut Vec<InstrId>| uses.extend([id, id]));
                }
                _ => {
                    for idx in instr.operands.iter().filter_map(|&operand| leaf(body, operand)) {
                        of_leaf[idx].push(id);
                    }
                }
            }
        }
        Uses { of_leaf, readers }
    }

    /// The only instruction that reads an element, if it reads it once.
    fn only(&self, idx: usize) -> Option<InstrId> {
        match self.of_leaf[idx][..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// Whether only the result reads an instruction.
    fn only_the_result(&self, id: InstrId) -> bool {
        self.readers.get(&id) == Some(&1)
    }
}

/// Which floating-point elements of the state depend on a variable and have a cotangent, in some trip.
fn active(body: &Computation, leaves: &[Shape], is_varied: &[bool], behind_loop: &[Option<InstrId>]) -> Vec<bool> {
    let is_float = |idx: usize| leaves[idx].dtype().is_some_and(DType::is_float);
    let n = body.instructions.len();
    let result = |idx: usize| element(body, body.root, idx).unwrap_or(body.root);
    let mut varied: Vec<bool> = (0..leaves.len()).map(|idx| is_varied[idx] && is_float(idx)).collect();
    loop {
        let mut depends = vec![false; n];
        for id in body.ids() {
            let instr = body.instr(id);
            depends[id.idx()] = match leaf(body, id) {
                Some(idx) => varied[idx],
                None if matches!(instr.op, Op::Parameter { .. }) => varied.contains(&true),
                None => instr.operands.iter().any(|operand| depends[operand.idx()]) && passes_variation(instr),
            };
        }
        let next: Vec<bool> =
            (0..leaves.len()).map(|idx| varied[idx] || is_float(idx) && depends[result(idx).idx()]).collect();
        if next == varied {
            break;
        }
        varied = next;
    }
    let mut wanted: Vec<bool> = behind_loop.iter().map(Option::is_some).collect();
    loop {
        let mut needed = vec![false; n];
        (0..leaves.len()).filter(|&idx| wanted[idx]).for_each(|idx| needed[result(idx).idx()] = true);
        let mut next = wanted.clone();
        for id in body.ids().rev() {
            if !needed[id.idx()] {
                continue;
            }
            match leaf(body, id) {
                Some(idx) => next[idx] = true,
                None if matches!(body.instr(id).op, Op::Parameter { .. }) => next.fill(true),
                None => body.instr(id).operands.iter().for_each(|operand| needed[operand.idx()] = true),
            }
        }
        if next == wanted {
            break;
        }
        wanted = next;
    }
    varied.iter().zip(wanted).map(|(&varied, wanted)| varied && wanted).collect()
}

/// A body and its reverse, in one computation.
struct Reversed {
    comp: CompId,
    /// The state behind the trip.
    results: Vec<InstrId>,
    /// For each element of the state whether it is a loop invariant.
    is_invariant: Vec<bool>,
    /// The parameters that hold cotangents of the state behind the trip, by element.
    seeds: BTreeMap<usize, InstrId>,
    /// The cotangents of the state before the trip, or of the slice that is read, by element.
    cotangents: BTreeMap<usize, InstrId>,
}

impl Reversed {
    fn write(called: &Called<'_>, body: CompId, leaves: &[Shape], roles: &[Role]) -> Result<Reversed, Why> {
        let is_invariant =
            called.e.with_module(|module| (0..leaves.len()).map(|idx| is_invariant(module.comp(body), idx)).collect());
        let (comp, (results, seeds, cotangents)) = write_copy(called.e, body, |inner, parameters, root| {
            if parameters.len() != 1 {
                return Err(Why::from(format!("its body has {} parameters, expected 1", parameters.len())));
            }
            let elements = inner.with_module(|module| {
                let root = module.comp(inner.comp()).instr(root);
                matches!(root.op, Op::Tuple).then(|| root.operands.clone())
            });
            let results =
                elements.unwrap_or_else(|| (0..leaves.len()).map(|idx| inner.get_tuple_element(root, idx)).collect());
            let mut seeds = BTreeMap::new();
            for (idx, _) in roles.iter().enumerate().filter(|(_, role)| matches!(role, Role::Carried | Role::Filled)) {
                let number = 1 + seeds.len() as i64;
                seeds.insert(idx, inner.parameter(number, &leaves[idx]));
            }
            let seed = |idx: usize| seeds.get(&idx).map_or(Cotangent::Zero, |&id| Cotangent::Array(id));
            let seed = Cotangent::Tuple((0..leaves.len()).map(seed).collect());
            let wrt: Vec<(usize, InstrId)> = inner.with_module(|module| {
                let computation = module.comp(inner.comp());
                let elements_read = computation.ids().filter_map(|id| Some((direct_leaf(computation, id)?, id)));
                let whole = elements_read.filter(|(idx, _)| matches!(roles[*idx], Role::Carried | Role::Summed));
                let slices = roles.iter().enumerate().filter_map(|(idx, role)| match role {
                    Role::Sliced(id) => Some((idx, *id)),
                    _ => None,
                });
                whole.chain(slices).collect()
            });
            let ids: Vec<InstrId> = wrt.iter().map(|(_, id)| *id).collect();
            let all = reverse(inner, root, seed, &ids, called.written)
                .map_err(|error| Why::from(format!("in its body, {}", in_original(inner, body, error))))?;
            let mut cotangents: BTreeMap<usize, Cotangent> = BTreeMap::new();
            for (idx, id) in wrt {
                let one = all.get(id.idx()).cloned().unwrap_or_default();
                let sum = cotangents.remove(&idx).unwrap_or_default();
                cotangents.insert(idx, sum.add(one, inner));
            }
            let arrays = cotangents.into_iter().filter_map(|(idx, cotangent)| Some((idx, cotangent.array()?)));
            Ok((results, seeds, arrays.collect()))
        })?;
        Ok(Reversed { comp, results, is_invariant, seeds, cotangents })
    }

    /// Splits it into instructions of the forward and of the backward trip.
    fn split(&self, computation: &Computation, roles: &[Role], counter: usize, remat: bool) -> Partition {
        let body = Body { computation, is_invariant: &self.is_invariant, counter, remat };
        let places = roles.iter().filter_map(|role| match role {
            Role::Sliced(id) => Some(&computation.instr(*id).operands[1..]),
            _ => None,
        });
        let outputs: Vec<InstrId> = self.cotangents.values().chain(places.flatten()).copied().collect();
        body.split(&outputs, &self.seeds.values().copied().collect())
    }
}

/// The element of the state that a `get-tuple-element` reads.
fn direct_leaf(computation: &Computation, id: InstrId) -> Option<usize> {
    let instr = computation.instr(id);
    let Op::GetTupleElement { index } = instr.op else { return None };
    matches!(computation.instr(instr.operands[0]).op, Op::Parameter { number: 0, .. }).then_some(index as usize)
}

/// The loop that stores residuals.
struct Kept {
    /// Its result: the state, the stacks of residuals, the trip; `None` if there are no residuals.
    result: Option<InstrId>,
    /// The shapes of single residuals, in order.
    shapes: Vec<Shape>,
}

/// Lets the loop of `result` store the residuals of each trip.
fn keep(
    e: &Emitter,
    state: InstrId,
    result: InstrId,
    trips: Trips,
    reversed: &Reversed,
    partition: &Partition,
) -> Result<Kept, Why> {
    if partition.residuals.is_empty() {
        return Ok(Kept { result: None, shapes: Vec::new() });
    }
    let scratch = e.with_module(|module| module.comp(reversed.comp).clone());
    let shape = e.shape(state);
    let shapes: Vec<Shape> =
        partition.residuals.iter().map(|residual| residual.shape(&scratch).without_layout()).collect();
    let (body, _) = within(e, &format!("{}_kept", scratch.name), |inner| {
        let elements: Vec<Shape> = shape.as_tuple().unwrap_or_default().iter().map(Shape::without_layout).collect();
        let stacks = shapes.iter().map(|shape| stacked(shape, trips.n));
        let all = elements.iter().cloned().chain(stacks).chain([Shape::scalar(DType::S32)]);
        let parameter = inner.parameter(0, &Shape::Tuple(all.collect()));
        let mut copies = Copies::new(&scratch);
        let outputs = reversed.results.iter().copied().chain(partition.residuals.iter().map(|residual| residual.id));
        for id in Partition::forwards(&scratch, outputs) {
            let instr = scratch.instr(id);
            let copy = match direct_leaf(&scratch, id) {
                Some(idx) => inner.get_tuple_element(parameter, idx),
                // The whole state.
                None if matches!(instr.op, Op::Parameter { .. }) => {
                    let elements: Vec<InstrId> =
                        (0..elements.len()).map(|idx| inner.get_tuple_element(parameter, idx)).collect();
                    inner.tuple(&elements)
                }
                None => copies.copy(inner, id),
            };
            copies.set(id, copy);
        }
        let trip = inner.get_tuple_element(parameter, elements.len() + shapes.len());
        let mut next: Vec<InstrId> = reversed.results.iter().map(|&id| copies.get(id)).collect();
        for (number, (residual, shape)) in partition.residuals.iter().zip(&shapes).enumerate() {
            let stack = inner.get_tuple_element(parameter, elements.len() + number);
            let value = match residual.element {
                None => copies.get(residual.id),
                Some(idx) => inner.get_tuple_element(copies.get(residual.id), idx),
            };
            let row = inner.reshape(value, &[&[1], shape.dims()].concat());
            next.push(inner.emit(Op::DynamicUpdateSlice, &at_trip(inner, &[stack, row], trip, shape), None));
        }
        next.push(inner.add(trip, inner.scalar(DType::S32, 1.0)));
        inner.tuple(&next);
        Ok(())
    })?;
    let (whole, _) = within(e, &format!("{}_loop", scratch.name), |inner| {
        let parameter = inner.parameter(0, &shape);
        let n = shape.as_tuple().map_or(0, <[Shape]>::len);
        let mut all: Vec<InstrId> = (0..n).map(|idx| inner.get_tuple_element(parameter, idx)).collect();
        all.extend(shapes.iter().map(|shape| {
            let stack = stacked(shape, trips.n);
            inner.full(stack.dtype().unwrap_or(DType::F32), stack.dims(), 0.0)
        }));
        all.push(inner.scalar(DType::S32, 0.0));
        let all = inner.tuple(&all);
        let condition = counting(inner, &inner.shape(all), trips.n)?;
        inner.emit(Op::While { condition, body }, &[all], None);
        Ok(())
    })?;
    let is_taken_apart = e.with_module(|module| {
        let reads = |instr: &&Instruction| instr.operands.contains(&result);
        let all = &module.comp(e.comp()).instructions;
        all.iter().filter(reads).all(|instr| matches!(instr.op, Op::GetTupleElement { .. }))
    });
    let call = Op::Call { to_apply: whole };
    let result = match is_taken_apart {
        false => e.emit(call, &[state], None),
        // In place: the first elements of its result are still those of the state.
        true => e.with_module_mut(|module| {
            let shape = module.comp(whole).result_shape().clone();
            let instr = &mut module.computations[e.comp().idx()].instructions[result.idx()];
            (instr.op, instr.shape) = (call, shape);
            result
        }),
    };
    Ok(Kept { result: Some(result), shapes })
}

/// Writes the loop from the last trip to the first. Returns the cotangents by element, those of loop invariants in the
/// dtype of sums.
#[expect(clippy::too_many_arguments)]
fn run_backwards(
    e: &Emitter,
    state: InstrId,
    trips: Trips,
    leaves: &[Shape],
    roles: &[Role],
    behind_loop: &[Option<InstrId>],
    reversed: &Reversed,
    partition: &Partition,
    stored: &Kept,
) -> Result<BTreeMap<usize, InstrId>, Why> {
    let scratch = e.with_module_mut(|module| {
        let computation = &mut module.computations[reversed.comp.idx()];
        let empty = Computation::new(computation.name.clone());
        std::mem::replace(computation, empty)
    });
    // The parts of the loop's state, and the position of each.
    let mut parts: Vec<InstrId> = Vec::new();
    let mut push = |id: InstrId| {
        parts.push(id);
        parts.len() - 1
    };
    let before = |idx: usize| {
        let element_id = e.with_module(|module| element(module.comp(e.comp()), state, idx));
        element_id.unwrap_or_else(|| e.get_tuple_element(state, idx))
    };
    let is_whole = partition.tuples.iter().any(|&id| matches!(scratch.instr(id).op, Op::Parameter { .. }));
    let read: BTreeSet<usize> = match is_whole {
        true => (0..leaves.len()).collect(),
        false => partition.backwards.iter().filter_map(|&id| direct_leaf(&scratch, id)).collect(),
    };
    let invariants: BTreeMap<usize, usize> =
        (read.into_iter()).filter(|&idx| reversed.is_invariant[idx]).map(|idx| (idx, push(before(idx)))).collect();
    let stacks: Vec<usize> = (0..stored.shapes.len())
        .map(|number| push(e.get_tuple_element(stored.result.unwrap_or(state), leaves.len() + number)))
        .collect();
    let zeros = |dtype: DType, shape: &Shape| e.full(dtype, shape.dims(), 0.0);
    let mut sums: BTreeMap<usize, usize> = BTreeMap::new();
    for (idx, role) in roles.iter().enumerate() {
        let dtype = leaves[idx].dtype().unwrap_or(DType::F32);
        let start = match role {
            Role::Inactive => continue,
            Role::Carried | Role::Filled => behind_loop[idx].unwrap_or_else(|| zeros(dtype, &leaves[idx])),
            // A loop invariant is a result as well.
            Role::Summed if reversed.cotangents.contains_key(&idx) => match behind_loop[idx] {
                Some(behind_loop) => e.convert(behind_loop, sum_dtype(dtype)),
                None => zeros(sum_dtype(dtype), &leaves[idx]),
            },
            Role::Sliced(_) if reversed.cotangents.contains_key(&idx) => zeros(dtype, &leaves[idx]),
            Role::Summed | Role::Sliced(_) => continue,
        };
        sums.insert(idx, push(start));
    }
    push(e.scalar(DType::S32, 0.0));
    let all = e.tuple(&parts);
    let shape = e.shape(all);
    let body = reversed.comp;
    lend(e, body, |inner| {
        let parameter = inner.parameter(0, &shape);
        let take = |part: usize| inner.get_tuple_element(parameter, part);
        let done = take(parts.len() - 1);
        let trip = inner.sub(inner.scalar(DType::S32, (trips.n - 1) as f64), done);
        let counter = |dtype: DType| {
            let steps = inner.convert(trip, dtype);
            let steps = if trips.step == 1 { steps } else { inner.mul(steps, inner.scalar(dtype, trips.step as f64)) };
            if trips.start == 0 { steps } else { inner.add(steps, inner.scalar(dtype, trips.start as f64)) }
        };
        let state_element = |idx: usize| match invariants.get(&idx) {
            Some(&part) => take(part),
            None => counter(leaves[idx].dtype().unwrap_or(DType::S32)),
        };
        let mut copies = Copies::new(&scratch);
        let mut elements: BTreeMap<InstrId, BTreeMap<usize, InstrId>> = BTreeMap::new();
        for ((residual, shape), &part) in partition.residuals.iter().zip(&stored.shapes).zip(&stacks) {
            let slice_sizes = [&[1], shape.dims()].concat();
            let row = inner.emit(Op::DynamicSlice { slice_sizes }, &at_trip(inner, &[take(part)], trip, shape), None);
            let value = inner.reshape(row, shape.dims());
            match residual.element {
                None => copies.set(residual.id, value),
                Some(idx) => {
                    elements.entry(residual.id).or_default().insert(idx, value);
                }
            }
        }
        for &id in &partition.tuples {
            let n = scratch.instr(id).shape.as_tuple().map_or(0, <[Shape]>::len);
            let residual_elements = elements.remove(&id).unwrap_or_default();
            let all: Vec<InstrId> =
                (0..n).map(|idx| residual_elements.get(&idx).copied().unwrap_or_else(|| state_element(idx))).collect();
            copies.set(id, inner.tuple(&all));
        }
        for (idx, &seed) in &reversed.seeds {
            copies.set(seed, take(sums[idx]));
        }
        for &id in &partition.backwards {
            let copy = match direct_leaf(&scratch, id) {
                Some(idx) if !copies.has(scratch.instr(id).operands[0]) => state_element(idx),
                _ => copies.copy(inner, id),
            };
            copies.set(id, copy);
        }
        let mut next: Vec<InstrId> = (0..parts.len()).map(take).collect();
        for (&idx, &part) in &sums {
            let cotangent = reversed.cotangents.get(&idx).map(|&id| copies.get(id));
            next[part] = match (&roles[idx], cotangent) {
                (Role::Carried, Some(cotangent)) => cotangent,
                (Role::Carried, None) => inner.zeros_like(next[part]),
                (Role::Summed, Some(cotangent)) => {
                    inner.add(next[part], inner.convert(cotangent, inner.dtype(next[part])))
                }
                (Role::Sliced(read), Some(cotangent)) => {
                    let indices = scratch.instr(*read).operands[1..].iter().map(|&id| copies.get(id));
                    let operands: Vec<InstrId> = [next[part], cotangent].into_iter().chain(indices).collect();
                    inner.emit(Op::DynamicUpdateSlice, &operands, None)
                }
                _ => next[part],
            };
        }
        let last = next.len() - 1;
        next[last] = inner.add(done, inner.scalar(DType::S32, 1.0));
        inner.tuple(&next);
        Ok(())
    })?;
    let condition = counting(e, &shape, trips.n)?;
    let result = e.emit(Op::While { condition, body }, &[all], None);
    Ok(sums.into_iter().map(|(idx, part)| (idx, e.get_tuple_element(result, part))).collect())
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
