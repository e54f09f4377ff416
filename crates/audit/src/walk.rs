//! Walks both entries: computes each instruction in either module, and its lowered form on the f32 module's values.
//!
//! The f32 module leads, in its order; the lowered module follows as far as a row needs. A value is dropped after its
//! last reader, so only values that are alive in the two programs are held.
//!
//! Born values skip inserted instructions (those without a pair): a cast of a value is the f32 module's value in the
//! cast's dtype, whatever its dtype in the lowered module, so that a rounding counts where the value was computed.
//! Other insertions (constants repeated in another dtype, tuple elements) are computed as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::AuditError;
use super::device::Held;
use super::groups::{Group, alone, groups};
use super::machine::{Machine, ProgramId, Value};
use super::pairs::{Pair, Pairs};
use bf16scope_hlo::{InstrId, Module, Op};

/// Work is counted in bytes read and written. The call of an instruction costs this many.
const CALL_BYTES: u64 = 1 << 20;
/// Compiling its program costs this many: about 15 ms, in which a core moves as many.
const COMPILE_BYTES: u64 = 64 << 20;

/// A planned group of one side.
#[derive(Debug)]
struct Planned {
    group: Group,
    /// Its instructions whose values are read outside; empty if the values are parts of others.
    gives: Vec<InstrId>,
    program: Option<ProgramId>,
    is_needed: bool,
    work: u64,
}

/// One of the two modules, and the progress in it.
#[derive(Debug)]
struct Side<'m> {
    module: &'m Module,
    groups: Vec<Planned>,
    group_of: Vec<usize>,
    inputs: Vec<Value>,
    values: Vec<Option<Value>>,
    /// The number of remaining readers.
    n_readers: Vec<usize>,
    next: usize,
}

impl<'m> Side<'m> {
    /// Plans the computation of the instructions that `n_readers` counts.
    fn new(
        module: &'m Module,
        inputs: &[Arc<Held>],
        mut n_readers: Vec<usize>,
        n_more_runs: &[usize],
        flush_subnormals: bool,
        machine: &mut Machine<'_>,
    ) -> Result<Side<'m>, AuditError> {
        let entry = module.entry();
        let mut arrays = inputs.iter().cloned();
        let inputs =
            entry.parameters().into_iter().map(|id| Value::from_arrays(&entry.instr(id).shape, &mut arrays)).collect();
        let mut planned = Vec::new();
        for group in groups(module).into_iter().rev() {
            let gives: Vec<InstrId> = group.ids.iter().copied().filter(|id| n_readers[id.idx()] > 0).collect();
            if !gives.is_empty() {
                group.inputs.iter().for_each(|id| n_readers[id.idx()] += 1);
            }
            planned.push(Planned { is_needed: !gives.is_empty(), group, gives, program: None, work: 0 });
        }
        planned.reverse();
        let mut group_of = vec![0; entry.instructions.len()];
        for (place, planned) in planned.iter_mut().enumerate() {
            planned.group.ids.iter().for_each(|id| group_of[id.idx()] = place);
            let is_apart = |id: &InstrId| {
                matches!(entry.instr(*id).op, Op::Parameter { .. } | Op::Tuple | Op::GetTupleElement { .. })
            };
            if !planned.is_needed || matches!(&planned.group.ids[..], [id] if is_apart(id)) {
                continue;
            }
            let first = entry.instr(planned.group.ids[0]);
            let program = alone(module, &planned.group, &planned.gives, flush_subnormals);
            let program = program.ok_or_else(|| AuditError::Apart { instruction: first.name.clone() })?;
            let n_runs = 1 + planned.group.ids.iter().map(|id| n_more_runs[id.idx()]).sum::<usize>();
            let (id, is_new) = machine.plan(&program, n_runs)?;
            let moved = planned.group.inputs.iter().chain(&planned.gives).map(|id| entry.instr(*id).shape.n_bytes());
            let moved = moved.fold(CALL_BYTES, |sum, n_bytes| sum.saturating_add(n_bytes.unsigned_abs()));
            planned.program = Some(id);
            planned.work = moved.saturating_mul(n_runs as u64).saturating_add(u64::from(is_new) * COMPILE_BYTES);
        }
        let values = vec![None; entry.instructions.len()];
        Ok(Side { module, groups: planned, group_of, inputs, values, n_readers, next: 0 })
    }

    fn value(&self, id: InstrId) -> &Value {
        self.values[id.idx()].as_ref().expect("a value is there until its last reader has been")
    }

    /// Counts down a value's readers.
    fn has_read(&mut self, id: InstrId) {
        self.n_readers[id.idx()] -= 1;
        if self.n_readers[id.idx()] == 0 {
            self.values[id.idx()] = None;
        }
    }

    /// Computes groups until this instruction has its value; returns the completed work.
    fn go_to(&mut self, id: InstrId, machine: &mut Machine<'_>) -> Result<u64, AuditError> {
        let (mut work, wanted) = (0u64, self.group_of[id.idx()]);
        while self.next <= wanted {
            work = work.saturating_add(self.groups[self.next].work);
            if self.groups[self.next].is_needed {
                self.compute(self.next, machine)?;
            }
            self.next += 1;
        }
        Ok(work)
    }

    fn compute(&mut self, place: usize, machine: &mut Machine<'_>) -> Result<(), AuditError> {
        let planned = &self.groups[place];
        let shape = |id: InstrId| &self.module.entry().instr(id).shape;
        let first = planned.group.ids[0];
        match (planned.program, &self.module.entry().instr(first).op) {
            (Some(program), _) => {
                let args: Vec<&Arc<Held>> =
                    planned.group.inputs.iter().flat_map(|&id| self.value(id).arrays()).collect();
                let mut arrays = machine.run(program, &args)?.into_iter();
                for &id in &planned.gives {
                    self.values[id.idx()] = Some(Value::from_arrays(shape(id), &mut arrays));
                }
            }
            (None, op) => {
                let operands = &self.module.entry().instr(first).operands;
                let value = match op {
                    Op::Parameter { number, .. } => self.inputs[*number as usize].clone(),
                    Op::GetTupleElement { index } => self.value(operands[0]).element(*index),
                    _ => Value::Tuple(operands.iter().map(|&operand| self.value(operand).clone()).collect()),
                };
                self.values[first.idx()] = Some(value);
            }
        }
        for id in self.groups[place].group.inputs.clone() {
            self.has_read(id);
        }
        Ok(())
    }
}

/// The values of a row.
pub(super) struct RowValues {
    pub reference: Value,
    pub lowered: Value,
    /// `None` if the lowered instruction cannot be a program of its own.
    pub born: Option<Value>,
    /// The completed work.
    pub work: u64,
}

/// The state of the walk through both modules.
#[derive(Debug)]
pub(super) struct Walk<'m, 'c> {
    reference: Side<'m>,
    lowered: Side<'m>,
    pairs: &'m Pairs,
    pub machine: Machine<'c>,
}

impl<'m, 'c> Walk<'m, 'c> {
    /// Plans the walk to these rows, which are in the f32 module's order.
    pub(super) fn new(
        (module, inputs): (&'m Module, &[Arc<Held>]),
        (lowered, lowered_inputs): (&'m Module, &[Arc<Held>]),
        pairs: &'m Pairs,
        rows: &[Pair],
        flush_subnormals: bool,
        mut machine: Machine<'c>,
    ) -> Result<Walk<'m, 'c>, AuditError> {
        let n = |module: &Module| vec![0; module.entry().instructions.len()];
        let (mut readers, mut lowered_readers, mut once_more) = (n(module), n(lowered), n(lowered));
        for row in rows {
            readers[row.reference.idx()] += 1;
            lowered_readers[row.lowered.idx()] += 1;
            once_more[row.lowered.idx()] += 1;
            born_reads(lowered, pairs, *row, &mut |id| readers[id.idx()] += 1);
        }
        let none = n(module);
        let reference = Side::new(module, inputs, readers, &none, false, &mut machine)?;
        let lowered = Side::new(lowered, lowered_inputs, lowered_readers, &once_more, flush_subnormals, &mut machine)?;
        Ok(Walk { reference, lowered, pairs, machine })
    }

    /// The total work.
    pub(super) fn work(&self) -> u64 {
        let groups = self.reference.groups.iter().chain(&self.lowered.groups);
        groups.fold(0, |sum, planned| sum.saturating_add(planned.work))
    }

    /// Computes the next row.
    pub(super) fn row(&mut self, row: Pair) -> Result<RowValues, AuditError> {
        let mut work = self.reference.go_to(row.reference, &mut self.machine)?;
        work += self.lowered.go_to(row.lowered, &mut self.machine)?;
        let born = self.born(row)?;
        let values = RowValues {
            reference: self.reference.value(row.reference).clone(),
            lowered: self.lowered.value(row.lowered).clone(),
            born,
            work,
        };
        self.reference.has_read(row.reference);
        self.lowered.has_read(row.lowered);
        let mut read = Vec::new();
        born_reads(self.lowered.module, self.pairs, row, &mut |id| read.push(id));
        read.into_iter().for_each(|id| self.reference.has_read(id));
        Ok(values)
    }

    /// The lowered form of a row on the f32 module's values.
    fn born(&mut self, row: Pair) -> Result<Option<Value>, AuditError> {
        let instr = self.lowered.module.entry().instr(row.lowered);
        // A parameter's conversion belongs to its readers here; in the lowered module the caller converts it.
        if matches!(instr.op, Op::Parameter { .. }) {
            return Ok(Some(self.machine.in_dtypes(self.reference.value(row.reference), &instr.shape)?));
        }
        self.on_wide(row.lowered, &mut BTreeMap::new())
    }

    /// A lowered instruction on operands from the f32 module's values.
    fn on_wide(&mut self, id: InstrId, known: &mut BTreeMap<InstrId, Value>) -> Result<Option<Value>, AuditError> {
        let planned = &self.lowered.groups[self.lowered.group_of[id.idx()]];
        let (Some(program), [_]) = (planned.program, &planned.group.ids[..]) else { return Ok(None) };
        let mut operands = Vec::new();
        for operand in planned.group.inputs.clone() {
            let Some(wide) = self.wide(operand, known)? else { return Ok(None) };
            operands.push(self.machine.in_dtypes(&wide, &self.lowered.module.entry().instr(operand).shape)?);
        }
        let args: Vec<&Arc<Held>> = operands.iter().flat_map(Value::arrays).collect();
        let mut arrays = self.machine.run(program, &args)?.into_iter();
        Ok(Some(Value::from_arrays(&self.lowered.module.entry().instr(id).shape, &mut arrays)))
    }

    /// The f32 module's value for an instruction of the lowered entry.
    fn wide(&mut self, id: InstrId, known: &mut BTreeMap<InstrId, Value>) -> Result<Option<Value>, AuditError> {
        if let Some(done) = known.get(&id) {
            return Ok(Some(done.clone()));
        }
        if let Some(reference) = self.pairs.reference(id) {
            return Ok(Some(self.reference.value(reference).clone()));
        }
        let instr = self.lowered.module.entry().instr(id);
        let wide = match &instr.op {
            Op::Convert => self.wide(instr.operands[0], known)?,
            Op::GetTupleElement { index } => self.wide(instr.operands[0], known)?.map(|tuple| tuple.element(*index)),
            Op::Tuple => {
                let elements = instr.operands.iter().map(|&element| self.wide(element, known));
                elements.collect::<Result<Option<Vec<Value>>, _>>()?.map(Value::Tuple)
            }
            _ => self.on_wide(id, known)?,
        };
        if let Some(wide) = &wide {
            known.insert(id, wide.clone());
        }
        Ok(wide)
    }
}

/// The instructions of the f32 module that a row's born value reads, each once.
fn born_reads(lowered: &Module, pairs: &Pairs, row: Pair, read: &mut dyn FnMut(InstrId)) {
    let mut pending = lowered.entry().instr(row.lowered).operands.clone();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        match pairs.reference(id) {
            Some(reference) => read(reference),
            None => pending.extend(&lowered.entry().instr(id).operands),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{comparable, device::hold};
    use bf16scope_hlo::text;
    use bf16scope_passes::amp::{self, Policy, Reach};
    use bf16scope_pjrt::Client;

    /// Layers of a product, a sum and an exponential; each product and sum is lowered.
    fn layers(n: usize) -> Module {
        let mut text =
            "HloModule m\n\nENTRY m {\n  h0 = f32[4,4] parameter(0)\n  w = f32[4,4] parameter(1)\n".to_string();
        for layer in 1..=n {
            text += &format!(
                "  d{layer} = f32[4,4] dot(h{}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 a{layer} = f32[4,4] add(d{layer}, w)\n  n{layer} = f32[4,4] negate(a{layer})\n  \
                 h{layer} = f32[4,4] exponential(n{layer})\n",
                layer - 1
            );
        }
        text += &format!("  ROOT out = f32[4,4] copy(h{n})\n}}\n");
        text::parse(&text, "m.txt").unwrap_or_else(|error| panic!("{error}"))
    }

    /// The number of compiles and runs of an audit, while checking that the reported work never decreases.
    fn counts(n_layers: usize, client: &Client) -> (usize, usize) {
        let module = layers(n_layers);
        let policy = Policy { allow: vec!["dot".into(), "add".into()], reach: Reach::All, ..Policy::default() };
        let (lowered, _) = amp::run(&module, &policy).unwrap();
        let inputs: Vec<Arc<Held>> = (0..2)
            .map(|input| {
                let bytes: Vec<u8> = (0..16).flat_map(|i| ((i + input) as f32 / 64.0).to_le_bytes()).collect();
                hold(client.buffer_from_host(&bytes, bf16scope_hlo::DType::F32, &[4, 4], 0).unwrap()).unwrap()
            })
            .collect();
        let pairs = Pairs::new(&module, &lowered);
        let (rows, skipped) = comparable(&module, &lowered, &pairs);
        assert_eq!((rows.len(), skipped.len()), (4 * n_layers + 1, 0));
        let machine = Machine::new(client, false);
        let mut walk = Walk::new((&module, &inputs), (&lowered, &inputs), &pairs, &rows, false, machine).unwrap();
        let done: u64 = rows.iter().map(|&row| walk.row(row).unwrap().work).sum();
        assert_eq!(done, walk.work(), "what was said to be work is done");
        let is_held = |side: &Side<'_>| side.values.iter().any(Option::is_some);
        assert!(!is_held(&walk.reference) && !is_held(&walk.lowered), "nothing is held in the end");
        (walk.machine.n_compiles, walk.machine.n_runs)
    }

    /// More layers are more runs, and no more compiles.
    #[test]
    fn compiles_go_by_kinds_of_instructions_and_runs_by_instructions() {
        let client = Client::cpu().unwrap_or_else(|error| panic!("no cpu client: {error}"));
        let ((few, some), (same, more), (still, most)) = (counts(2, &client), counts(4, &client), counts(6, &client));
        assert_eq!((few, few), (same, still));
        // Compiles: five kinds in f32, three in bf16 (negate follows), a cast each way. Runs: four instructions in f32
        // and lowered, the lowered ones once more, and casts: of the operands of either, in the lowered module and for
        // born values, and back.
        assert_eq!(most - more, more - some, "linear");
        assert!(
            few <= 5 + 3 + 2 && (more - some) / 2 <= 4 + 4 + 2 + 6,
            "{few} compiles, {} runs a layer",
            (more - some) / 2
        );
    }
}
