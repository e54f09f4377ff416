//! Counted loops: the trip count of a `while`, and the values of integers in each trip.
//!
//! The trip count is known if an integer of the state starts at a constant, each trip adds a constant, and the
//! condition compares it with a constant. `Graph::scan`, `lax.scan`, `lax.fori_loop` and TensorFlow's counted loops
//! have this form.

use bf16scope_hlo::element::integers;
use bf16scope_hlo::ops::grad::Why;
use bf16scope_hlo::ops::{BinaryOp, Comparison, UnaryOp};
use bf16scope_hlo::{CompId, Computation, DType, InstrId, Literal, Module, Op};

/// The most trips for which integers are computed one by one.
const MAX_COUNTED: i64 = 1 << 20;

/// The most operands that are followed for one integer.
const MAX_DEPTH: usize = 32;

/// Why reverse mode refuses a loop whose trip count is not known.
const UNKNOWN: &str = "its trip count is not known, and reverse mode keeps values of every trip; count an integer of its state \
                       from a constant by a constant up to a constant, as scan and fori_loop do, or unroll it";

/// A counted loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trips {
    /// The trip count.
    pub n: i64,
    /// The element of the state that is the counter.
    pub counter: usize,
    /// The counter in the first trip.
    pub start: i64,
    /// The increment of each trip.
    pub step: i64,
}

impl Trips {
    /// Counts the trips of a loop over `state`, an instruction of `comp`.
    ///
    /// # Errors
    /// The trip count is not known.
    pub(super) fn count(
        module: &Module,
        comp: CompId,
        state: InstrId,
        condition: CompId,
        body: CompId,
    ) -> Result<Trips, Why> {
        let before =
            |leaf: usize| element(module.comp(comp), state, leaf).and_then(|id| constant(module.comp(comp), id));
        counted(module.comp(condition), module.comp(body), &before).ok_or(Why::from(UNKNOWN))
    }

    /// The value of the counter in trip `trip`.
    fn counter_in(self, trip: i64) -> i64 {
        self.start + self.step * trip
    }
}

/// The trips, from the condition, the body, and the elements of the state that are constant before the loop.
fn counted(condition: &Computation, body: &Computation, before: &dyn Fn(usize) -> Option<i64>) -> Option<Trips> {
    let root = without_copies(condition, condition.root);
    let (Op::Compare { direction, .. }, &[lhs, rhs]) = (&condition.instr(root).op, &condition.instr(root).operands[..])
    else {
        return None;
    };
    let bound = |id: InstrId| match leaf(condition, id) {
        Some(leaf) if is_invariant(body, leaf) => before(leaf),
        Some(_) => None,
        None => constant(condition, id),
    };
    let (counter, end, direction) = match (bound(lhs), bound(rhs)) {
        (None, Some(end)) => (leaf(condition, lhs)?, end, *direction),
        (Some(end), None) => (leaf(condition, rhs)?, end, direction.mirrored()),
        _ => return None,
    };
    let (start, step) = (before(counter)?, step(body, counter, before)?);
    let n = match (direction, step) {
        (Comparison::Lt, 1..) => ceil(end.checked_sub(start)?, step),
        (Comparison::Le, 1..) => ceil(end.checked_sub(start)?.checked_add(1)?, step),
        (Comparison::Gt, ..=-1) => ceil(start.checked_sub(end)?, -step),
        (Comparison::Ge, ..=-1) => ceil(start.checked_sub(end)?.checked_add(1)?, -step),
        (Comparison::Ne, step) if step != 0 => {
            let distance = end.checked_sub(start)?;
            (distance % step == 0 && distance / step >= 0).then(|| distance / step)?
        }
        _ => return None,
    };
    // The counter must not overflow behind the last trip, either.
    start.checked_add(step.checked_mul(n)?)?;
    i32::try_from(n).ok()?;
    Some(Trips { n, counter, start, step })
}

/// `distance / step`, rounded up; 0 if `distance` is negative.
fn ceil(distance: i64, step: i64) -> i64 {
    if distance <= 0 { 0 } else { (distance - 1) / step + 1 }
}

/// The increment of an element of the state in each trip.
fn step(body: &Computation, counter: usize, before: &dyn Fn(usize) -> Option<i64>) -> Option<i64> {
    let next = body.instr(without_copies(body, element(body, body.root, counter)?));
    let &[lhs, rhs] = &next.operands[..] else { return None };
    let known = |id: InstrId| match leaf(body, id) {
        Some(leaf) if leaf != counter && is_invariant(body, leaf) => before(leaf),
        Some(_) => None,
        None => constant(body, id),
    };
    match &next.op {
        Op::Binary(BinaryOp::Add) if leaf(body, lhs) == Some(counter) => known(rhs),
        Op::Binary(BinaryOp::Add) if leaf(body, rhs) == Some(counter) => known(lhs),
        Op::Binary(BinaryOp::Subtract) if leaf(body, lhs) == Some(counter) => known(rhs)?.checked_neg(),
        _ => None,
    }
}

/// Whether a body returns an element of its state unchanged.
pub(super) fn is_invariant(body: &Computation, element_idx: usize) -> bool {
    element(body, body.root, element_idx).is_some_and(|id| leaf(body, id) == Some(element_idx))
}

/// Element `idx` of a tuple that the computation builds.
pub(super) fn element(computation: &Computation, tuple: InstrId, idx: usize) -> Option<InstrId> {
    let tuple = computation.instr(without_copies(computation, tuple));
    matches!(tuple.op, Op::Tuple).then(|| tuple.operands.get(idx).copied()).flatten()
}

/// The index of the element of the state (the only parameter) that an instruction reads.
pub(super) fn leaf(computation: &Computation, id: InstrId) -> Option<usize> {
    let instr = computation.instr(without_copies(computation, id));
    let Op::GetTupleElement { index } = instr.op else { return None };
    let state = computation.instr(instr.operands[0]);
    matches!(state.op, Op::Parameter { number: 0, .. }).then_some(index as usize)
}

/// The instruction, or the one that it copies.
fn without_copies(computation: &Computation, mut id: InstrId) -> InstrId {
    while matches!(computation.instr(id).op, Op::Unary(UnaryOp::Copy)) {
        id = computation.instr(id).operands[0];
    }
    id
}

/// The value of an integer scalar, if it is constant.
pub(super) fn constant(computation: &Computation, id: InstrId) -> Option<i64> {
    let nowhere = |_: usize| None;
    integer(computation, id, &nowhere, MAX_DEPTH)
}

/// The value of an integer scalar that is computed from constants and elements of the state.
fn integer(computation: &Computation, id: InstrId, state: &dyn Fn(usize) -> Option<i64>, depth: usize) -> Option<i64> {
    let instr = computation.instr(id);
    let dtype = instr.shape.dtype().filter(|dtype| dtype.is_integer() || *dtype == DType::Pred)?;
    if depth == 0 || instr.shape.as_array()?.dims.iter().product::<i64>() != 1 {
        return None;
    }
    let operand = |idx: usize| integer(computation, instr.operands[idx], state, depth - 1);
    let value = match &instr.op {
        Op::Constant(Literal::Array { bytes, .. }) => i64::try_from(integers(dtype, bytes)?.next()?).ok()?,
        Op::GetTupleElement { .. } => state(leaf(computation, id)?)?,
        Op::Unary(UnaryOp::Copy) | Op::Convert | Op::Reshape | Op::Broadcast { .. } => operand(0)?,
        Op::Unary(UnaryOp::Negate) => operand(0)?.checked_neg()?,
        Op::Binary(BinaryOp::Add) => operand(0)?.checked_add(operand(1)?)?,
        Op::Binary(BinaryOp::Subtract) => operand(0)?.checked_sub(operand(1)?)?,
        Op::Binary(BinaryOp::Multiply) => operand(0)?.checked_mul(operand(1)?)?,
        Op::Binary(BinaryOp::Maximum) => operand(0)?.max(operand(1)?),
        Op::Binary(BinaryOp::Minimum) => operand(0)?.min(operand(1)?),
        Op::Clamp => operand(1)?.max(operand(0)?).min(operand(2)?),
        Op::Select => operand(if operand(0)? != 0 { 1 } else { 2 })?,
        Op::Compare { direction, .. } => i64::from(direction.holds(operand(0)?, operand(1)?)),
        _ => return None,
    };
    fits(dtype, value).then_some(value)
}

/// Whether a dtype can represent an integer; it would wrap at run time otherwise.
fn fits(dtype: DType, value: i64) -> bool {
    match dtype {
        DType::Pred => (0..=1).contains(&value),
        _ if dtype.bits() >= 64 => dtype.is_signed() || value >= 0,
        _ if dtype.is_signed() => (-(1 << (dtype.bits() - 1))..1 << (dtype.bits() - 1)).contains(&value),
        _ => (0..1 << dtype.bits()).contains(&value),
    }
}

/// Whether an integer of the body is the number of the trip, from 0.
pub(super) fn is_trip(computation: &Computation, trips: Trips, index: InstrId) -> bool {
    let is_in = |trip: i64| {
        let state = |leaf: usize| (leaf == trips.counter).then(|| trips.counter_in(trip));
        integer(computation, index, &state, MAX_DEPTH) == Some(trip)
    };
    trips.n <= MAX_COUNTED && (0..trips.n).all(is_in)
}

/// Whether the slices, or updates, at run-time indices are disjoint over all trips, and none of them is clamped.
pub(super) fn disjoint_starts(
    computation: &Computation,
    trips: Trips,
    before: &dyn Fn(usize) -> Option<i64>,
    indices: &[InstrId],
    (whole, part): (&[i64], &[i64]),
) -> bool {
    if trips.n > MAX_COUNTED || indices.len() != whole.len() {
        return false;
    }
    let starts = |index: InstrId| -> Option<Vec<i64>> {
        let one = |trip: i64| {
            let state = |leaf: usize| if leaf == trips.counter { Some(trips.counter_in(trip)) } else { before(leaf) };
            integer(computation, index, &state, MAX_DEPTH)
        };
        (0..trips.n).map(one).collect()
    };
    let mut meets = true;
    for ((&index, &whole), &part) in indices.iter().zip(whole).zip(part) {
        let Some(mut starts) = starts(index) else { return false };
        if starts.iter().any(|start| *start < 0 || start + part > whole) {
            return false;
        }
        starts.sort_unstable();
        meets &= !starts.windows(2).all(|pair| pair[0] + part <= pair[1]);
    }
    !meets || trips.n < 2
}
