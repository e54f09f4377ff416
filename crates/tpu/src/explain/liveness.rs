//! The lifetime of each buffer of a scheduled module, and the bytes of HBM alive at each step.
//!
//! A *value* is an array that an instruction makes. Values that share memory form a *buffer*: a loop's state before, in
//! and after the loop; an operand and the result that takes its place; an argument and the output that overwrites it.
//! Called computations (`while`, `conditional`, `call`) are walked where they are called, so a step is one instruction
//! of one call, and the steps are in the order of execution. A fusion is one step: values inside it have no buffer.
//!
//! Which operand's memory a result takes is read from `aliasing_operands` in the compiler's `backend_config`, otherwise
//! from `output_to_operand_aliasing`; a `dynamic-update-slice` overwrites an operand that is not used afterwards.
//! Tables of tuples (8 bytes per element) are left out.
//!
//! Source: `HloDataflowAnalysis`, `HloLiveRange` and `HeapSimulator` in XLA, for the lifetimes.

use super::ExplainError;
use super::backend::{self, Aliasing};
use super::layout::{is_in_hbm, leaves, padded_bytes, unpadded_bytes};
use bf16scope_hlo::{ArrayShape, CompId, InstrId, Instruction, Module, Op, Shape};

/// The largest number of steps of a program, with calls expanded.
pub const MAX_STEPS: usize = 1_000_000;

/// The kind of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BufferKind {
    /// Provided by the caller, and possibly overwritten by an output.
    Argument,
    /// Returned to the caller in memory of its own.
    Output,
    /// Part of the program.
    Constant,
    /// Everything in between.
    Temporary,
    /// Not in HBM: a memory on the chip, or the host's.
    Elsewhere,
}

/// A call of a computation.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The computation.
    pub computation: CompId,
    /// The caller's frame and instruction; `None` for the entry.
    pub caller: Option<(usize, InstrId)>,
}

/// An executed instruction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index into [`Liveness::frames`].
    pub frame: usize,
    /// The instruction.
    pub instruction: InstrId,
}

/// An array that a step makes.
#[derive(Clone, Debug)]
pub struct Value {
    /// The step that makes it.
    pub made_at: usize,
    /// Which array of a tuple result, counted over all its arrays.
    pub leaf: usize,
    /// Shape and layout.
    pub shape: ArrayShape,
    /// Its buffer.
    pub buffer: usize,
    /// Steps that read it.
    pub read_at: Vec<usize>,
    /// Whether the program returns it.
    pub is_output: bool,
}

/// Memory of one value, or of several in turn.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its kind.
    pub kind: BufferKind,
    /// Bytes including the padding of tiles.
    pub n_bytes: u64,
    /// Bytes of the elements alone, of its largest value.
    pub n_unpadded: u64,
    /// The first step at which it is alive.
    pub first: usize,
    /// The last step at which it is alive.
    pub last: usize,
    /// Its values, in the order of creation.
    pub values: Vec<usize>,
}

/// A program's buffers over its steps.
#[derive(Clone, Debug)]
pub struct Liveness {
    /// The entry, followed by each call.
    pub frames: Vec<Frame>,
    /// In the order of execution.
    pub steps: Vec<Step>,
    /// For each step, the values it reads, in the order of its operands' arrays; empty if it only names them.
    pub reads: Vec<Vec<usize>>,
    /// In the order of creation.
    pub values: Vec<Value>,
    /// In the order in which they become alive.
    pub buffers: Vec<Buffer>,
    /// For each step, the bytes of temporaries alive.
    pub live: Vec<u64>,
    /// The step with the most bytes alive.
    pub peak: usize,
}

impl Liveness {
    /// Bytes of temporaries at the peak.
    pub fn peak_bytes(&self) -> u64 {
        self.live.get(self.peak).copied().unwrap_or(0)
    }

    /// Bytes of all buffers of a kind.
    pub fn bytes_of(&self, kind: BufferKind) -> u64 {
        self.buffers.iter().filter(|buffer| buffer.kind == kind).map(|buffer| buffer.n_bytes).sum()
    }

    /// Temporaries alive at a step, largest first.
    pub fn alive_at(&self, step: usize) -> Vec<usize> {
        let is_alive =
            |buffer: &Buffer| buffer.kind == BufferKind::Temporary && buffer.first <= step && step <= buffer.last;
        let mut alive: Vec<usize> = (0..self.buffers.len()).filter(|&id| is_alive(&self.buffers[id])).collect();
        alive.sort_by_key(|&id| (std::cmp::Reverse(self.buffers[id].n_bytes), id));
        alive
    }

    /// The value in a buffer at a step: the last one made so far.
    pub fn value_at(&self, buffer: usize, step: usize) -> usize {
        let values = &self.buffers[buffer].values;
        let latest = values.iter().rev().find(|&&value| self.values[value].made_at <= step);
        *latest.unwrap_or(&values[0])
    }

    /// The instruction of a step.
    pub fn instruction<'m>(&self, module: &'m Module, step: usize) -> &'m Instruction {
        let Step { frame, instruction } = self.steps[step];
        module.comp(self.frames[frame].computation).instr(instruction)
    }
}

/// Analyses a module with valid ids (`hlo::verify::verify_ids`) whose instructions are in the order of execution.
///
/// # Errors
/// A module that is not scheduled, takes a tuple element that does not exist, or has more than [`MAX_STEPS`] steps.
pub fn analyse(module: &Module) -> Result<Liveness, ExplainError> {
    if !module.is_scheduled {
        return Err(ExplainError::NotScheduled { module: module.name.clone() });
    }
    let mut walk =
        Walk { module, frames: Vec::new(), steps: Vec::new(), reads: Vec::new(), values: Vec::new(), same: Vec::new() };
    let root = walk.frame(module.entry, None, None)?;
    Ok(walk.finish(&root))
}

struct Walk<'m> {
    module: &'m Module,
    frames: Vec<Frame>,
    steps: Vec<Step>,
    reads: Vec<Vec<usize>>,
    values: Vec<Value>,
    /// For each value, another that shares its memory, or itself: a union-find forest.
    same: Vec<usize>,
}

impl Walk<'_> {
    /// Executes a computation; returns the values of its root. The entry has no `arguments`.
    fn frame(
        &mut self,
        computation: CompId,
        caller: Option<(usize, InstrId)>,
        arguments: Option<&[Vec<usize>]>,
    ) -> Result<Vec<usize>, ExplainError> {
        let frame = self.frames.len();
        self.frames.push(Frame { computation, caller });
        let module = self.module;
        let comp = module.comp(computation);
        let mut values_of: Vec<Vec<usize>> = Vec::with_capacity(comp.instructions.len());
        for id in comp.ids() {
            let instruction = comp.instr(id);
            let operands: Vec<&[usize]> =
                instruction.operands.iter().map(|operand| &values_of[operand.idx()][..]).collect();
            let values = self.instruction(frame, id, instruction, &operands, arguments)?;
            values_of.push(values);
        }
        Ok(values_of.swap_remove(comp.root.idx()))
    }

    fn instruction(
        &mut self,
        frame: usize,
        id: InstrId,
        instruction: &Instruction,
        operands: &[&[usize]],
        arguments: Option<&[Vec<usize>]>,
    ) -> Result<Vec<usize>, ExplainError> {
        let caller = Some((frame, id));
        let owned = || operands.iter().map(|values| values.to_vec()).collect::<Vec<Vec<usize>>>();
        match &instruction.op {
            Op::While { condition, body } => {
                let state = owned();
                self.frame(*condition, caller, Some(&state))?;
                let after = self.frame(*body, caller, Some(&state))?;
                let step = self.step(frame, id)?;
                let values = self.make(step, instruction);
                for ((&before, &after), &value) in state.iter().flatten().zip(&after).zip(&values) {
                    self.join(before, after);
                    self.join(before, value);
                }
                Ok(values)
            }
            Op::Conditional(conditional) => {
                let operands = owned();
                let mut results = Vec::new();
                for (branch, argument) in conditional.branches.iter().zip(operands.get(1..).unwrap_or_default()) {
                    results.push(self.frame(*branch, caller, Some(std::slice::from_ref(argument)))?);
                }
                let step = self.step(frame, id)?;
                self.read(operands.first().map_or(&[][..], |selector| selector), step);
                let values = self.make(step, instruction);
                for result in &results {
                    values.iter().zip(result).for_each(|(&value, &result)| self.join(value, result));
                }
                Ok(values)
            }
            Op::Call { to_apply } => {
                let values = self.frame(*to_apply, caller, Some(&owned()))?;
                self.step(frame, id)?;
                Ok(values)
            }
            Op::Parameter { number, .. } if arguments.is_some() => {
                self.step(frame, id)?;
                let argument = arguments.and_then(|arguments| arguments.get(usize::try_from(*number).ok()?));
                argument.cloned().ok_or_else(|| self.malformed(frame, instruction, "has no argument"))
            }
            op => {
                let step = self.step(frame, id)?;
                if let Some(values) = self.forwarded(frame, instruction, operands)? {
                    // An asynchronous operation reads its operands, and writes its results, until it is done.
                    if op.opcode().ends_with("-done") {
                        operands.iter().for_each(|values| self.read(values, step));
                    }
                    return Ok(values);
                }
                operands.iter().for_each(|values| self.read(values, step));
                let values = self.make(step, instruction);
                self.share(op, instruction, operands, &values, step);
                Ok(values)
            }
        }
    }

    /// The operand's own values, for instructions that only name or unpack them.
    fn forwarded(
        &self,
        frame: usize,
        instruction: &Instruction,
        operands: &[&[usize]],
    ) -> Result<Option<Vec<usize>>, ExplainError> {
        let part = |index: usize| {
            let operand = instruction.operands.first().copied();
            let comp = self.module.comp(self.frames[frame].computation);
            let elements = operand.and_then(|operand| comp.instr(operand).shape.as_tuple());
            let counts: Option<Vec<usize>> =
                elements.map(|elements| elements.iter().map(|element| leaves(element).len()).collect());
            let range = counts.filter(|counts| index < counts.len()).map(|counts| {
                let first: usize = counts[..index].iter().sum();
                first..first + counts[index]
            });
            let values = range.and_then(|range| operands.first()?.get(range));
            values.map(<[usize]>::to_vec).ok_or_else(|| {
                self.malformed(frame, instruction, &format!("takes element {index}, which its operand has not"))
            })
        };
        Ok(match &instruction.op {
            Op::Tuple => Some(operands.concat()),
            Op::GetTupleElement { index } => Some(part(usize::try_from(*index).unwrap_or(usize::MAX))?),
            Op::OptimizationBarrier => Some(operands.concat()),
            Op::Opaque(opaque) => match opaque.opcode.as_str() {
                "bitcast" | "domain" | "async-update" | "all-reduce-done" => Some(operands.concat()),
                "copy-done" => Some(part(0)?),
                "async-done" | "all-gather-done" | "collective-permute-done" => Some(part(1)?),
                _ => None,
            },
            _ => None,
        })
    }

    /// Makes results share operands' memory, as the compiler decided.
    fn share(&mut self, op: &Op, instruction: &Instruction, operands: &[&[usize]], values: &[usize], step: usize) {
        let flat: Vec<usize> = operands.concat();
        let opcode = op.opcode();
        if opcode.ends_with("-start") {
            // (operands, results, context …): the first part aliases the operands; for `copy-start`, the second.
            let skipped = usize::from(opcode == "copy-start");
            if opcode != "all-reduce-start" {
                values.iter().skip(skipped).zip(&flat).for_each(|(&value, &operand)| self.join(operand, value));
            }
            return;
        }
        match backend::aliasing(instruction) {
            Aliasing::Pairs(pairs) => {
                for (operand, result) in pairs {
                    if let (Some(&operand), Some(&value)) = (flat.get(operand), values.get(result)) {
                        self.join(operand, value);
                    }
                }
            }
            Aliasing::Unsaid => {
                if let (Op::DynamicUpdateSlice, [array, ..], [value]) = (op, operands, values)
                    && let [array] = array[..]
                    && self.is_last_use(array, step)
                {
                    self.join(array, *value);
                }
            }
        }
    }

    /// Whether no instruction of its own computation reads a value after this step.
    fn is_last_use(&self, value: usize, step: usize) -> bool {
        let Step { frame, instruction } = self.steps[self.values[value].made_at];
        let here = self.steps[step];
        let comp = self.module.comp(self.frames[frame].computation);
        frame == here.frame
            && !matches!(comp.instr(instruction).op, Op::Parameter { .. } | Op::Constant(_))
            && comp.root != instruction
            && !comp.ids().any(|id| id > here.instruction && comp.instr(id).operands.contains(&instruction))
    }

    fn step(&mut self, frame: usize, instruction: InstrId) -> Result<usize, ExplainError> {
        if self.steps.len() == MAX_STEPS {
            return Err(ExplainError::TooLong { module: self.module.name.clone() });
        }
        self.steps.push(Step { frame, instruction });
        self.reads.push(Vec::new());
        Ok(self.steps.len() - 1)
    }

    fn make(&mut self, step: usize, instruction: &Instruction) -> Vec<usize> {
        let first = self.values.len();
        for (leaf, shape) in leaves(&instruction.shape).into_iter().enumerate() {
            self.same.push(self.values.len());
            let shape = shape.clone();
            self.values.push(Value { made_at: step, leaf, shape, buffer: 0, read_at: Vec::new(), is_output: false });
        }
        (first..self.values.len()).collect()
    }

    fn read(&mut self, values: &[usize], step: usize) {
        for &value in values {
            let read_at = &mut self.values[value].read_at;
            if read_at.last() != Some(&step) {
                read_at.push(step);
            }
        }
        self.reads[step].extend_from_slice(values);
    }

    fn find(&mut self, mut value: usize) -> usize {
        while self.same[value] != value {
            self.same[value] = self.same[self.same[value]];
            value = self.same[value];
        }
        value
    }

    /// Makes two values share memory. The earlier one represents both.
    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.find(one), self.find(other));
        self.same[one.max(other)] = one.min(other);
    }

    fn malformed(&self, frame: usize, instruction: &Instruction, what: &str) -> ExplainError {
        let computation = self.module.comp(self.frames[frame].computation).name.clone();
        ExplainError::Malformed { place: format!("{computation}/%{}", instruction.name), what: what.to_string() }
    }

    fn finish(mut self, root: &[usize]) -> Liveness {
        let end = self.steps.len().saturating_sub(1);
        for &value in root {
            self.values[value].is_output = true;
        }
        self.alias_outputs(root);
        let roots: Vec<usize> = (0..self.values.len()).map(|value| self.find(value)).collect();
        let mut buffer_of = vec![usize::MAX; self.values.len()];
        let mut buffers: Vec<Buffer> = Vec::new();
        for (id, &root) in roots.iter().enumerate() {
            if buffer_of[root] == usize::MAX {
                buffer_of[root] = buffers.len();
                let first = self.values[id].made_at;
                let kind = BufferKind::Temporary;
                buffers.push(Buffer { kind, n_bytes: 0, n_unpadded: 0, first, last: first, values: Vec::new() });
            }
            let buffer = &mut buffers[buffer_of[root]];
            let value = &mut self.values[id];
            value.buffer = buffer_of[root];
            buffer.values.push(id);
            buffer.last = buffer.last.max(value.made_at).max(value.read_at.last().copied().unwrap_or(0));
            buffer.n_bytes = buffer.n_bytes.max(padded_bytes(&value.shape));
            buffer.n_unpadded = buffer.n_unpadded.max(unpadded_bytes(&value.shape));
        }
        let mut liveness = Liveness {
            frames: self.frames,
            steps: self.steps,
            reads: self.reads,
            values: self.values,
            buffers,
            live: Vec::new(),
            peak: 0,
        };
        for id in 0..liveness.buffers.len() {
            liveness.buffers[id].kind = kind(self.module, &liveness, id);
            if matches!(liveness.buffers[id].kind, BufferKind::Argument | BufferKind::Output | BufferKind::Constant) {
                (liveness.buffers[id].first, liveness.buffers[id].last) = (0, end);
            }
        }
        liveness.live = timeline(self.module, &liveness);
        let most = liveness.live.iter().copied().max().unwrap_or(0);
        liveness.peak = liveness.live.iter().position(|&n_bytes| n_bytes == most).unwrap_or(0);
        liveness
    }

    /// Outputs that overwrite arguments.
    fn alias_outputs(&mut self, root: &[usize]) {
        let entry = self.module.entry();
        let parameters = entry.parameters();
        for alias in &self.module.input_output_alias {
            let output = leaf_at(&entry.instr(entry.root).shape, &alias.output_index);
            let parameter = usize::try_from(alias.parameter_number).ok().and_then(|n| parameters.get(n));
            let argument =
                parameter.and_then(|&id| Some((id, leaf_at(&entry.instr(id).shape, &alias.parameter_index)?)));
            if let (Some(output), Some((id, leaf))) = (output, argument) {
                // The entry's frame is the first, and its values are made step by step.
                let is_argument = |value: &Value| self.steps[value.made_at] == Step { frame: 0, instruction: id };
                let argument = self.values.iter().position(|value| is_argument(value) && value.leaf == leaf);
                if let (Some(&value), Some(argument)) = (root.get(output), argument) {
                    self.join(argument, value);
                }
            }
        }
    }
}

/// The position of the array at an index among all arrays of a shape.
fn leaf_at(shape: &Shape, index: &[i64]) -> Option<usize> {
    let mut shape = shape;
    let mut leaf = 0;
    for &at in index {
        let elements = shape.as_tuple()?;
        let at = usize::try_from(at).ok()?;
        leaf += elements.get(..at)?.iter().map(|element| leaves(element).len()).sum::<usize>();
        shape = elements.get(at)?;
    }
    Some(leaf)
}

fn kind(module: &Module, liveness: &Liveness, buffer: usize) -> BufferKind {
    let values = || liveness.buffers[buffer].values.iter().map(|&value| &liveness.values[value]);
    let made_by = |value: &Value| &liveness.instruction(module, value.made_at).op;
    let is_in_entry = |value: &Value| liveness.steps[value.made_at].frame == 0;
    if values().any(|value| is_in_entry(value) && matches!(made_by(value), Op::Parameter { .. })) {
        BufferKind::Argument
    } else if values().any(|value| value.is_output) {
        BufferKind::Output
    } else if values().any(|value| matches!(made_by(value), Op::Constant(_))) {
        BufferKind::Constant
    } else if values().all(|value| is_in_hbm(&value.shape)) {
        BufferKind::Temporary
    } else {
        BufferKind::Elsewhere
    }
}

/// Bytes of temporaries alive at each step, including the step's own scratch memory.
fn timeline(module: &Module, liveness: &Liveness) -> Vec<u64> {
    let n_steps = liveness.steps.len();
    let mut born = vec![0u64; n_steps];
    let mut freed = vec![0u64; n_steps];
    for buffer in liveness.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Temporary) {
        born[buffer.first] = born[buffer.first].saturating_add(buffer.n_bytes);
        freed[buffer.last] = freed[buffer.last].saturating_add(buffer.n_bytes);
    }
    let mut live = 0u64;
    (0..n_steps)
        .map(|step| {
            live = live.saturating_add(born[step]);
            let here = live.saturating_add(backend::scratch_in_hbm(liveness.instruction(module, step)));
            live = live.saturating_sub(freed[step]);
            here
        })
        .collect()
}

#[cfg(test)]
mod tests;
