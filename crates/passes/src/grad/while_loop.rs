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
//! A loop invariant (weights) has a sum of cotangents, in f32 if its dtype is narrower, rounded once behind the loop;
//! there it may be one product or one sum of stacks instead (`stack_product`).
//! An array that each trip reads a slice of (inputs over time), or writes a slice of (outputs over time), has the
//! slices' cotangents, and no sum.

mod loop_pair;
mod stack_product;
mod stack_sum;

use super::called::{Called, in_original, write_copy};
use super::residuals::{Body, Partition};
use super::trips::{Trips, constant, disjoint_starts, element, is_invariant, leaf};
use super::{inline, passes_variation, reverse};
use bf16scope_hlo::ops::grad::{Cotangent, Cotangents, Vjp, Why};
use bf16scope_hlo::{CompId, Computation, DType, Emitter, InstrId, Instruction, Module, Op, Shape};
use loop_pair::LoopPair;
use std::collections::BTreeMap;

/// How the cotangent of an element of the state goes from trip to trip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
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
    let reversed_body = e.with_module(|module| module.comp(reversed.comp).clone());
    let remat = e.with_module(|module| is_rematerialised(module.comp(e.comp()).instr(vjp.result)));
    let pair = LoopPair {
        e,
        state,
        trips,
        leaves: &leaves,
        roles: &roles,
        behind_loop: &behind_loop,
        partition: reversed.split(&reversed_body, &roles, trips.counter, remat),
        reversed: &reversed,
        body: &reversed_body,
    };
    let stacks = pair.run_forwards(vjp.result)?;
    let sums = pair.run_backwards(&stacks)?;
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
pub(super) struct Reversed {
    pub comp: CompId,
    /// The state behind the trip.
    pub results: Vec<InstrId>,
    /// For each element of the state whether it is a loop invariant.
    pub is_invariant: Vec<bool>,
    /// The parameters that hold cotangents of the state behind the trip, by element.
    pub seeds: BTreeMap<usize, InstrId>,
    /// The cotangents of the state before the trip, or of the slice that is read, by element.
    pub cotangents: BTreeMap<usize, InstrId>,
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
pub(super) fn direct_leaf(computation: &Computation, id: InstrId) -> Option<usize> {
    let instr = computation.instr(id);
    let Op::GetTupleElement { index } = instr.op else { return None };
    matches!(computation.instr(instr.operands[0]).op, Op::Parameter { number: 0, .. }).then_some(index as usize)
}
