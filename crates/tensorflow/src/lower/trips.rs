//! How often a loop runs at most, where its condition counts.

use super::Lowering;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, CompId, InstrId, Module, Op};

impl Lowering<'_> {
    /// The least bound among the comparisons that all have to hold for a loop to go on: of an element of its state, which every
    /// trip changes by a constant, with a number that is known.
    pub(super) fn n_trips(&self, condition: CompId, body: CompId, state: &[InstrId]) -> Option<i64> {
        let mut comparisons = Vec::new();
        self.e.with_module(|module| {
            let mut pending = vec![module.comp(condition).root];
            while let Some(id) = pending.pop() {
                let instr = module.comp(condition).instr(id);
                match &instr.op {
                    Op::Binary(BinaryOp::And) => pending.extend(&instr.operands),
                    Op::Compare { direction, .. } => {
                        comparisons.push((*direction, instr.operands[0], instr.operands[1]))
                    }
                    _ => {}
                }
            }
        });
        comparisons.into_iter().filter_map(|comparison| self.bound(condition, body, state, comparison)).min()
    }

    /// What elements of the state that count up are at most behind a loop, by their index.
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
    ) -> Option<i64> {
        let (counter, limit, direction) = match self.e.with_module(|module| element(module, condition, lhs)) {
            Some(at) => (at, rhs, direction),
            None => (self.e.with_module(|module| element(module, condition, rhs))?, lhs, mirrored(direction)),
        };
        let step = self.step(body, counter)?;
        // Where it counts down from what another loop counted, the most that this can be.
        let start = *state.get(counter)?;
        let most =
            |id: InstrId| self.whole(self.e.comp(), id).or_else(|| self.counts.get(&(self.e.comp(), id)).copied());
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

    /// By how much a trip changes an element of the state.
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

    /// A whole number that is known in a computation.
    fn whole(&self, comp: CompId, id: InstrId) -> Option<i64> {
        let known = self.e.with_module(|module| self.memory.borrow_mut().value(module, comp, id))?;
        known.values.first()?.whole()
    }
}

/// Which element of a computation's state this is.
fn element(module: &Module, comp: CompId, id: InstrId) -> Option<usize> {
    match &module.comp(comp).instr(id).op {
        Op::GetTupleElement { index } => usize::try_from(*index).ok(),
        _ => None,
    }
}

fn mirrored(direction: Comparison) -> Comparison {
    match direction {
        Comparison::Lt => Comparison::Gt,
        Comparison::Le => Comparison::Ge,
        Comparison::Gt => Comparison::Lt,
        Comparison::Ge => Comparison::Le,
        other => other,
    }
}
