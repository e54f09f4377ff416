//! The observing program: a training step of which only counts come out.

use super::row::{Quantity, Role};
use super::statistics::{N_WORDS, RowOf, emit};
use crate::objective::Objective;
use crate::program::{Step, TaskProgram, emit_step, say_replicas};
use crate::program_error::ProgramError;
use bf16scope_hlo::ops::{BinaryOp, Comparison, UnaryOp};
use bf16scope_hlo::{Computation, DType, Emitter, InstrId, Instruction, Op};
use bf16scope_model::graph::{Graph, Numbers, Program, Storage, Tensor, VariableInfo};
use bf16scope_model::optim::LOW;
use bf16scope_model::task::Task;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// A program that observes, and what its rows are of.
#[derive(Clone, Debug)]
pub(crate) struct Observing {
    pub program: TaskProgram,
    pub rows: Vec<RowOf>,
}

/// The observing program of a training step.
///
/// # Shapes
/// Parameters as those of [`training`](crate::program::training); none is aliased. One result:
/// `s32[rows, N_WORDS]`, the rows of one replica's inputs, activations and cotangents, of gradients as they are updated by, and of
/// updates.
///
/// # Errors
/// As [`training`](crate::program::training); micro-batches, whose activations are inside a loop.
pub(crate) fn observing(
    task: &dyn Task,
    numbers: Numbers,
    batch: i64,
    objective: &Objective,
) -> Result<Observing, ProgramError> {
    let _span = tracing::info_span!("build", program = "observing", task = task.name(), batch).entered();
    let choose = |graph: &Graph, loss: &Tensor| {
        let chosen = graph.emitter().with_module(|module| {
            let inputs: Vec<InstrId> = graph.inputs().iter().map(|input| input.instr).collect();
            Forward::of(module.comp(graph.emitter().comp()), &inputs).chosen()
        });
        chosen.into_iter().map(|(id, _)| id).chain([loss.id]).collect()
    };
    let Step { graph, gradients, observed, .. } = emit_step(task, numbers, batch, objective, &choose)?;
    let mut rows = Rows { e: graph.emitter(), of: Vec::new(), words: Vec::new() };
    // Again, with what they are called: what was chosen is what is there.
    let inputs: Vec<InstrId> = graph.inputs().iter().map(|input| input.instr).collect();
    let n_forward = observed.iter().map(|(id, _)| id.idx() + 1).max().unwrap_or(0);
    let described: BTreeMap<InstrId, (String, Option<Role>)> = graph.emitter().with_module(|module| {
        let forward = Forward::of(module.comp(graph.emitter().comp()), &inputs);
        observed.iter().map(|&(id, _)| (id, forward.described(id, id.idx() + 1 == n_forward))).collect()
    });
    for input in graph.inputs() {
        // The weights of examples are ours.
        if input.dtype.is_float() && input.name != "weight" {
            rows.push(&input.name, Quantity::Activation, Some(Role::Input), input.instr, [None, None]);
        }
    }
    for (id, _) in &observed {
        let (layer, role) = &described[id];
        rows.push(layer, Quantity::Activation, *role, *id, [None, None]);
    }
    for (id, cotangent) in observed.iter().rev() {
        let (layer, role) = &described[id];
        // That of a softmax's exponent is inside a rule of its own, or the logits' again; that of the loss is the scale.
        if let (Some(cotangent), None | Some(Role::Residual)) = (cotangent, role) {
            rows.push(layer, Quantity::Cotangent, *role, *cotangent, [None, None]);
        }
    }
    let variables = graph.variables();
    for (number, gradient) in &gradients {
        rows.push(&variables[*number].name, Quantity::Gradient, None, gradient.id, [None, None]);
    }
    for (number, gradient) in &gradients {
        let Some(Change { old, new }) = Change::of(&graph, &variables, *number) else { continue };
        let is_lost = |old: &Tensor, new: &Tensor| {
            let zeros = graph.full(gradient.dtype(), &gradient.dims(), 0.0);
            let moved = gradient.compare(Comparison::Ne, &zeros);
            old.equal(new).binary(BinaryOp::And, &moved).id
        };
        let compute = numbers.precision.compute();
        let counted = [is_lost(&old, &new), is_lost(&old.cast(compute), &new.cast(compute))];
        let name = &variables[*number].name;
        rows.push(name, Quantity::Update, None, (new - old).id, counted.map(Some));
        rows.said(variables[*number].dtype);
    }
    let Rows { of, words, .. } = rows;
    let all = graph.emitter().concatenate(&words, 0);
    let mut program: Program = graph.finish_for_good(&[("watch", &graph.tensor(all))])?;
    debug_assert_eq!(program.outputs.len(), 1);
    program.module.name = format!("{}_observing", task.name());
    say_replicas(&mut program.module, objective);
    let program = TaskProgram { program, reported: Vec::new(), scalars: Vec::new(), n_steps: NonZeroU32::MIN };
    Ok(Observing { program, rows: of })
}

/// Rows under construction.
struct Rows<'a> {
    e: &'a Emitter,
    of: Vec<RowOf>,
    words: Vec<InstrId>,
}

impl Rows<'_> {
    fn push(
        &mut self,
        layer: &str,
        quantity: Quantity,
        role: Option<Role>,
        values: InstrId,
        counted: [Option<InstrId>; 2],
    ) {
        let dtype = self.e.dtype(values);
        let n = self.e.dims(values).iter().product::<i64>().max(0) as u64;
        self.of.push(RowOf { layer: layer.to_string(), quantity, role, dtype, said: dtype, n });
        self.words.push(emit(self.e, values, counted));
    }

    /// The dtype that the last row is said to be in.
    fn said(&mut self, dtype: DType) {
        if let Some(last) = self.of.last_mut() {
            last.said = dtype;
        }
    }
}

/// A variable before and after the step, in f32 where it is narrower, with what it lacks where that is kept.
struct Change {
    old: Tensor,
    new: Tensor,
}

impl Change {
    /// Nothing for a variable without an update.
    fn of(graph: &Graph, variables: &[VariableInfo], number: usize) -> Option<Change> {
        let both = |variable: &VariableInfo| {
            let wide = |id: InstrId| match variable.dtype {
                DType::BF16 | DType::F16 => graph.tensor(id).cast(DType::F32),
                _ => graph.tensor(id),
            };
            Some((wide(variable.instr), wide(variable.update?)))
        };
        let variable = &variables[number];
        let (mut old, mut new) = both(variable)?;
        if graph.storage() == Storage::Bf16Compensated {
            let low = format!("{}/{LOW}", variable.name);
            if let Some((old_low, new_low)) = variables.iter().find(|it| it.name == low).and_then(both) {
                (old, new) = (old + old_low, new + new_low);
            }
        }
        Some(Change { old, new })
    }
}

/// Instructions of an activation function at most: a GELU by its formula has a dozen.
const LONGEST_FUNCTION: usize = 40;

/// The forward pass, by instruction.
struct Forward<'a> {
    computation: &'a Computation,
    /// Depends on an input.
    is_fed: Vec<bool>,
}

impl<'a> Forward<'a> {
    fn of(computation: &'a Computation, inputs: &[InstrId]) -> Forward<'a> {
        let mut is_fed = vec![false; computation.instructions.len()];
        inputs.iter().for_each(|input| is_fed[input.idx()] = true);
        for (idx, instr) in computation.instructions.iter().enumerate() {
            let any = instr.operands.iter().any(|operand| is_fed[operand.idx()]);
            is_fed[idx] |= any;
        }
        Forward { computation, is_fed }
    }

    /// What each layer gives, in program order: the last array of floats in its scope that another scope reads; what an
    /// activation function outside of it makes of that; sums of residual blocks; and what softmaxes raise e to.
    fn chosen(&self) -> Vec<(InstrId, Option<Role>)> {
        let instructions = &self.computation.instructions;
        let mut last_of: BTreeMap<&str, InstrId> = BTreeMap::new();
        let mut activated: BTreeSet<InstrId> = BTreeSet::new();
        for instr in instructions {
            for &operand in &instr.operands {
                let (given, scope) = (&instructions[operand.idx()], scope_of(&instructions[operand.idx()]));
                if scope != scope_of(instr) && self.is_value(operand, given) {
                    let last = last_of.entry(scope).or_insert(operand);
                    *last = operand.max(*last);
                    if self.role(operand) == Some(Role::Activated) {
                        activated.insert(operand);
                    }
                }
            }
        }
        let all = last_of.into_values().chain(activated);
        let mut chosen: BTreeMap<InstrId, Option<Role>> = all.map(|id| (id, self.role(id))).collect();
        for (idx, instr) in instructions.iter().enumerate() {
            let id = InstrId(idx as u32);
            if let (Op::Unary(UnaryOp::Exp), true) = (&instr.op, self.is_fed[idx])
                && self.is_shifted(instr.operands[0])
            {
                chosen.insert(instr.operands[0], Some(Role::Softmax));
            } else if self.role(id) == Some(Role::Residual) && self.is_value(id, instr) {
                chosen.insert(id, Some(Role::Residual));
            }
        }
        chosen.into_iter().collect()
    }

    fn described(&self, id: InstrId, is_last: bool) -> (String, Option<Role>) {
        if is_last {
            return ("loss".to_string(), Some(Role::Loss));
        }
        let role = self.role(id);
        let of_layer = self.activates(id).filter(|_| role == Some(Role::Activated));
        let layer = match of_layer.unwrap_or(scope_of(self.computation.instr(id))) {
            "" => "(in no scope)".to_string(),
            scope => scope.to_string(),
        };
        (layer, role)
    }

    fn role(&self, id: InstrId) -> Option<Role> {
        let instructions = &self.computation.instructions;
        let instr = &instructions[id.idx()];
        let is_raised = |user: &Instruction| user.op == Op::Unary(UnaryOp::Exp) && user.operands[0] == id;
        if self.is_shifted(id) && instructions[id.idx()..].iter().any(is_raised) {
            return Some(Role::Softmax);
        }
        // Both summands have the input in them and neither is a bias, which is broadcast.
        let is_branch = |operand: &InstrId| {
            self.is_fed[operand.idx()] && !matches!(instructions[operand.idx()].op, Op::Broadcast { .. })
        };
        let is_sum = instr.op == Op::Binary(BinaryOp::Add) && instr.operands.iter().all(is_branch);
        if is_sum && self.reads(instr.operands[0], instr.operands[1]) {
            return Some(Role::Residual);
        }
        self.activates(id).map(|_| Role::Activated)
    }

    /// The layer whose result an activation function takes: what is computed element by element from one value of a scope
    /// below its own.
    fn activates(&self, id: InstrId) -> Option<&'a str> {
        let instr = self.computation.instr(id);
        let own = scope_of(instr);
        let (mut pending, mut taken, mut n_left) = (vec![id], None, LONGEST_FUNCTION);
        while let Some(next) = pending.pop() {
            let instr = self.computation.instr(next);
            let is_elementwise = matches!(
                instr.op,
                Op::Unary(_) | Op::Binary(_) | Op::Clamp | Op::Select | Op::Compare { .. } | Op::Convert
            );
            n_left -= 1;
            if !is_elementwise || n_left == 0 {
                return None;
            }
            for &operand in instr.operands.iter().filter(|operand| self.is_fed[operand.idx()]) {
                match scope_of(self.computation.instr(operand)) == own {
                    true => pending.push(operand),
                    false if taken.is_none_or(|taken| taken == operand) => taken = Some(operand),
                    false => return None,
                }
            }
        }
        let taken = self.computation.instr(taken?);
        let inner = scope_of(taken).strip_prefix(own)?;
        let is_below = if own.is_empty() { !inner.is_empty() } else { inner.starts_with('/') };
        (is_below && taken.shape.dims() == instr.shape.dims()).then(|| scope_of(taken))
    }

    /// Whether one of two values is computed from the other.
    fn reads(&self, one: InstrId, other: InstrId) -> bool {
        let (early, late) = (one.min(other), one.max(other));
        let mut is_read = vec![false; late.idx() + 1];
        is_read[late.idx()] = true;
        for idx in (early.idx() + 1..=late.idx()).rev().filter(|&idx| self.is_fed[idx]) {
            if is_read[idx] {
                self.computation.instructions[idx].operands.iter().for_each(|operand| is_read[operand.idx()] = true);
            }
        }
        early != late && is_read[early.idx()]
    }

    /// Whether it is a difference from something along an axis: `x - max x`.
    fn is_shifted(&self, id: InstrId) -> bool {
        let instr = self.computation.instr(id);
        let is_along = |operand: &InstrId| {
            let along = self.computation.instr(*operand);
            matches!(&along.op, Op::Broadcast { dimensions } if !dimensions.is_empty()) && self.is_fed[operand.idx()]
        };
        instr.op == Op::Binary(BinaryOp::Subtract) && instr.operands.get(1).is_some_and(is_along)
    }

    /// Whether it is an array of floats that depends on an input, and not where a mask put infinities.
    fn is_value(&self, id: InstrId, instr: &Instruction) -> bool {
        let is_masked =
            matches!(instr.op, Op::Select) && instr.operands[1..].iter().any(|operand| !self.is_fed[operand.idx()]);
        let is_array = instr.shape.as_array().is_some_and(|array| array.dtype.is_float() && array.n_elements() > 1);
        is_array && self.is_fed[id.idx()] && !is_masked && !matches!(instr.op, Op::Parameter { .. })
    }
}

/// The levels of an instruction's name.
fn scope_of(instr: &Instruction) -> &str {
    instr.metadata.op_name.rsplit_once('/').map_or("", |(scope, _)| scope)
}

/// Words in a result of so many rows.
pub(crate) fn words_of(rows: &[RowOf], bytes: &[u8]) -> Vec<Vec<i32>> {
    let words: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
    words.chunks_exact(N_WORDS).take(rows.len()).map(<[i32]>::to_vec).collect()
}
