//! Bounds the trip counts of loops whose condition compares a counter.

use std::rc::Rc;

use super::carried::Form;
use super::list::Same;
use super::{Lowering, Value};
use crate::error::Problem;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, CompId, InstrId, Module, Op};

/// A loop's condition, its body, and the state before it.
type Trip<'a> = (CompId, CompId, &'a [InstrId]);

impl Lowering<'_> {
    /// An upper bound on a loop's trip count: the least bound among the comparisons in its condition that all have to hold.
    /// Each compares an element of the state that every trip changes by a constant with a known number.
    pub(super) fn n_trips(&self, condition: CompId, body: CompId, state: &[InstrId]) -> Option<i64> {
        let (comparisons, _) = self.comparisons(condition);
        comparisons.into_iter().filter_map(|comparison| self.bound(condition, body, state, comparison, false)).min()
    }

    /// A loop's exact trip count, if its condition consists of such comparisons only.
    fn exact_trips(&self, (condition, body, state): Trip<'_>) -> Option<i64> {
        let (comparisons, is_all) = self.comparisons(condition);
        let bounds = comparisons.into_iter().map(|comparison| self.bound(condition, body, state, comparison, true));
        bounds.collect::<Option<Vec<i64>>>()?.into_iter().min().filter(|_| is_all)
    }

    /// Whether an index is an element of the state of the loop whose body is being written. The element is recorded, and
    /// [`Lowering::settle_grown`] checks how it counts.
    pub(crate) fn grows_by(&mut self, index: InstrId) -> bool {
        let comp = self.e.comp();
        let at = self
            .e
            .with_module(|module| element(module, comp, index).filter(|_| module.comp(comp).name.contains("_body")));
        self.grown.extend(at.map(|at| (comp, at)));
        at.is_some()
    }

    /// Sets the length of `TensorArray`s that grew in a loop: each trip wrote one element, starting at the old end.
    pub(super) fn settle_grown(
        &self,
        trip: Trip<'_>,
        originals: &[Form],
        results: &mut [Value],
    ) -> Result<(), Problem> {
        let (_, body, state) = trip;
        let counters: Vec<usize> = self.grown.iter().filter(|(comp, _)| *comp == body).map(|(_, at)| *at).collect();
        if counters.is_empty() {
            return Ok(());
        }
        for (result, original) in results.iter_mut().zip(originals) {
            let (Value::List(list), Form::List(original)) = (result, original) else { continue };
            let (Some(n), None, Same::Several) = (original.n, list.kind.n, &original.same) else { continue };
            let is_next = |at: &usize| {
                self.step(body, *at) == Some(1)
                    && state.get(*at).and_then(|id| self.whole(self.e.comp(), *id)) == Some(n)
            };
            let length = self.exact_trips(trip).and_then(|n_trips| n_trips.checked_add(n));
            match length {
                Some(length) if length == list.kind.size() && counters.iter().all(is_next) => {
                    let list = Rc::make_mut(list);
                    (list.kind.n, list.kind.capacity, list.len) = (Some(length), None, None);
                }
                _ => {
                    return Err(Problem::new("a TensorArray grows in a loop, and how far is not known before it runs")
                        .with_help("write it at the loop's counter from its end on, or give it its size"));
                }
            }
        }
        Ok(())
    }

    /// The comparisons that all have to hold for a loop to continue, and whether the condition consists only of them.
    fn comparisons(&self, condition: CompId) -> (Vec<(Comparison, InstrId, InstrId)>, bool) {
        let (mut comparisons, mut is_all) = (Vec::new(), true);
        self.e.with_module(|module| {
            let mut pending = vec![module.comp(condition).root];
            while let Some(id) = pending.pop() {
                let instr = module.comp(condition).instr(id);
                match &instr.op {
                    Op::Binary(BinaryOp::And) => pending.extend(&instr.operands),
                    Op::Compare { direction, .. } => {
                        comparisons.push((*direction, instr.operands[0], instr.operands[1]))
                    }
                    _ => is_all = false,
                }
            }
        });
        (comparisons, is_all)
    }

    /// Upper bounds after a loop for the elements of its state that count up, by their index.
    pub(super) fn counts(&self, condition: CompId, body: CompId, state: &[InstrId]) -> Vec<(usize, i64)> {
        let Some(n_trips) = self.n_trips(condition, body, state) else { return Vec::new() };
        let count = |at: usize| {
            let start = self.whole(self.e.comp(), state[at])?;
            let step = self.step(body, at).filter(|step| *step > 0)?;
            Some((at, n_trips.checked_mul(step)?.checked_add(start)?))
        };
        (0..state.len()).filter_map(count).collect()
    }

    fn bound(
        &self,
        condition: CompId,
        body: CompId,
        state: &[InstrId],
        (direction, lhs, rhs): (Comparison, InstrId, InstrId),
        is_exact: bool,
    ) -> Option<i64> {
        let (counter, limit, direction) = match self.e.with_module(|module| element(module, condition, lhs)) {
            Some(at) => (at, rhs, direction),
            None => (self.e.with_module(|module| element(module, condition, rhs))?, lhs, direction.mirrored()),
        };
        let step = self.step(body, counter)?;
        // A loop that counts down from another loop's counter starts at most at that counter's bound.
        let start = *state.get(counter)?;
        let counted = |id: InstrId| self.counts.get(&(self.e.comp(), id)).copied().filter(|_| !is_exact);
        let most = |id: InstrId| self.whole(self.e.comp(), id).or_else(|| counted(id));
        let start = if step < 0 { most(start)? } else { self.whole(self.e.comp(), start)? };
        let limit = match self.whole(condition, limit) {
            Some(limit) => limit,
            None => {
                let at = self.e.with_module(|module| element(module, condition, limit))?;
                let is_same = self.e.with_module(|module| {
                    let root = module.comp(body).instr(module.comp(body).root);
                    root.operands.get(at).and_then(|id| element(module, body, *id)) == Some(at)
                });
                let limit = *state.get(at).filter(|_| is_same)?;
                if step > 0 { most(limit)? } else { self.whole(self.e.comp(), limit)? }
            }
        };
        let (distance, step) = match direction {
            Comparison::Lt if step > 0 => (limit.checked_sub(start)?, step),
            Comparison::Le if step > 0 => (limit.checked_sub(start)?.checked_add(1)?, step),
            Comparison::Gt if step < 0 => (start.checked_sub(limit)?, step.checked_neg()?),
            Comparison::Ge if step < 0 => (start.checked_sub(limit)?.checked_add(1)?, step.checked_neg()?),
            _ => return None,
        };
        Some((distance.max(0) as u64).div_ceil(step as u64) as i64)
    }

    /// The constant by which a trip changes an element of the state.
    fn step(&self, body: CompId, at: usize) -> Option<i64> {
        let (x, y) = self.e.with_module(|module| {
            let comp = module.comp(body);
            let next = comp.instr(*comp.instr(comp.root).operands.get(at)?);
            let is_it = |id: &InstrId| element(module, body, *id) == Some(at);
            match (&next.op, &next.operands[..]) {
                (Op::Binary(BinaryOp::Add), [x, y]) if is_it(x) => Some((Some(*y), None)),
                (Op::Binary(BinaryOp::Add), [x, y]) if is_it(y) => Some((Some(*x), None)),
                (Op::Binary(BinaryOp::Subtract), [x, y]) if is_it(x) => Some((None, Some(*y))),
                _ => None,
            }
        })?;
        match (x, y) {
            (Some(added), _) => self.whole(body, added),
            (_, Some(taken)) => self.whole(body, taken)?.checked_neg(),
            _ => None,
        }
    }

    /// The integer value of an instruction, if it is known.
    fn whole(&self, comp: CompId, id: InstrId) -> Option<i64> {
        let known = self.e.with_module(|module| self.memory.borrow_mut().value(module, comp, id))?;
        known.values.first()?.whole()
    }
}

/// The index of an instruction among the elements of its computation's state, if it is one.
fn element(module: &Module, comp: CompId, id: InstrId) -> Option<usize> {
    match &module.comp(comp).instr(id).op {
        Op::GetTupleElement { index } => usize::try_from(*index).ok(),
        _ => None,
    }
}
