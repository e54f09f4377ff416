//! The observing program: a training step that returns only statistics.

use super::forward::Forward;
use super::row::{Function, Quantity, Role};
use super::statistics::{N_WORDS, RowOf, emit};
use crate::objective::Objective;
use crate::program::{Step, TaskProgram, emit_step, say_replicas};
use crate::program_error::ProgramError;
use bf16scope_hlo::ops::{BinaryOp, Comparison};
use bf16scope_hlo::{DType, Emitter, InstrId};
use bf16scope_model::graph::{Graph, Numbers, Program, Storage, Tensor, VariableInfo};
use bf16scope_model::optim::LOW;
use bf16scope_model::task::Task;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// An observing program, and the description of its rows.
#[derive(Clone, Debug)]
pub(crate) struct Observing {
    pub program: TaskProgram,
    pub rows: Vec<RowOf>,
    /// Running statistics, with the share that a step keeps of them.
    pub statistics: Vec<(String, f64)>,
}

/// The observing program of a training step.
///
/// # Shapes
/// Parameters as those of [`training`](crate::program::training); none is aliased. One result: `s32[rows, N_WORDS]`,
/// the rows of one replica's inputs, activations and cotangents, of the gradients that the optimizer receives, and of
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
    let features = task.features();
    let is_label =
        |name: &str| name == WEIGHT || features.iter().any(|feature| feature.name == name && feature.is_label);
    let inputs_of = |graph: &Graph| -> Vec<(InstrId, bool)> {
        graph.inputs().iter().map(|input| (input.instr, is_label(&input.name))).collect()
    };
    let choose = |graph: &Graph, loss: &Tensor| {
        let chosen = graph
            .emitter()
            .with_module(|module| Forward::new(module.comp(graph.emitter().comp()), &inputs_of(graph)).chosen());
        chosen.into_iter().chain([loss.id]).collect()
    };
    let Step { graph, gradients, observed, .. } = emit_step(task, numbers, batch, objective, &choose)?;
    let mut rows = Rows { e: graph.emitter(), rows: Vec::new(), words: Vec::new() };
    // The forward pass again, with names and roles: the same values were chosen above.
    let n_forward = observed.iter().map(|(id, _)| id.idx() + 1).max().unwrap_or(0);
    let variables = graph.variables();
    // The row of each value.
    let mut places: BTreeMap<InstrId, usize> = BTreeMap::new();
    for input in graph.inputs() {
        // The weights of examples are not a feature of the model.
        if input.dtype.is_float() && input.name != WEIGHT {
            places.insert(input.instr, rows.rows.len());
            let role = if is_label(&input.name) { Role::Label } else { Role::Input };
            rows.push(&input.name, Quantity::Activation, Some(role), input.instr, [None, None]);
        }
    }
    let n_inputs = rows.rows.len();
    places.extend(observed.iter().enumerate().map(|(at, &(id, _))| (id, n_inputs + at)));
    let (described, is_gated, statistics) = graph.emitter().with_module(|module| {
        let forward = Forward::new(module.comp(graph.emitter().comp()), &inputs_of(&graph));
        let described: BTreeMap<InstrId, Described> = observed
            .iter()
            .map(|&(id, _)| {
                let (layer, role) = forward.described(id, id.idx() + 1 == n_forward);
                (id, Described { layer, role, takes: forward.takes(id, &places), function: forward.function(id) })
            })
            .collect();
        let loss = InstrId(n_forward.saturating_sub(1) as u32);
        let open = forward.without_gates(loss);
        let is_gated: Vec<bool> = variables.iter().map(|variable| !open[variable.instr.idx()]).collect();
        let statistic =
            |variable: &VariableInfo| Some((variable.name.clone(), forward.kept(variable.instr, variable.update?)?));
        let statistics: Vec<(String, f64)> =
            variables.iter().filter(|variable| !variable.trainable).filter_map(statistic).collect();
        (described, is_gated, statistics)
    });
    for (id, _) in &observed {
        let Described { layer, role, takes, function } = &described[id];
        rows.push(layer, Quantity::Activation, *role, *id, [None, None]);
        if let Some(row) = rows.rows.last_mut() {
            (row.takes, row.function) = (takes.clone(), *function);
        }
    }
    for (id, cotangent) in observed.iter().rev() {
        let Described { layer, role, .. } = &described[id];
        // A softmax exponent's cotangent is inside a gradient rule, or equals the logits'; that of the loss is the loss
        // scale.
        if let (Some(cotangent), None | Some(Role::Residual | Role::Activated)) = (cotangent, role) {
            rows.push(layer, Quantity::Cotangent, *role, *cotangent, [None, None]);
        }
    }
    for (number, gradient) in &gradients {
        rows.push(&variables[*number].name, Quantity::Gradient, None, gradient.id, [None, None]);
        if let Some(row) = rows.rows.last_mut() {
            row.is_gated = is_gated[*number];
        }
    }
    for (number, gradient) in &gradients {
        let Some(Change { old, new }) = Change::from_update(&graph, &variables, *number) else { continue };
        let is_lost = |old: &Tensor, new: &Tensor| {
            let zeros = graph.full(gradient.dtype(), &gradient.dims(), 0.0);
            let moved = gradient.compare(Comparison::Ne, &zeros);
            old.equal(new).binary(BinaryOp::And, &moved).id
        };
        let compute = numbers.precision.compute();
        let counted = [is_lost(&old, &new), is_lost(&old.cast(compute), &new.cast(compute))];
        let name = &variables[*number].name;
        rows.push_beside(name, Quantity::Update, None, (&new - &old).id, counted.map(Some), Some(old.id));
        rows.set_reported_dtype(variables[*number].dtype);
    }
    let Rows { rows, words, .. } = rows;
    let all = graph.emitter().concatenate(&words, 0);
    let mut program: Program = graph.finish_for_good(&[("watch", &graph.tensor(all))])?;
    debug_assert_eq!(program.outputs.len(), 1);
    program.module.name = format!("{}_observing", task.name());
    say_replicas(&mut program.module, objective);
    let program = TaskProgram { program, reported: Vec::new(), scalars: Vec::new(), n_steps: NonZeroU32::MIN };
    Ok(Observing { program, rows, statistics })
}

/// The input with the weights of examples.
const WEIGHT: &str = "weight";

/// The description of an observed value.
struct Described {
    layer: String,
    role: Option<Role>,
    takes: Vec<u32>,
    function: Option<Function>,
}

/// Rows under construction.
struct Rows<'a> {
    e: &'a Emitter,
    rows: Vec<RowOf>,
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
        self.push_beside(layer, quantity, role, values, counted, None);
    }

    /// The same, with the largest magnitude of another array: for an update, of the variable.
    fn push_beside(
        &mut self,
        layer: &str,
        quantity: Quantity,
        role: Option<Role>,
        values: InstrId,
        counted: [Option<InstrId>; 2],
        beside: Option<InstrId>,
    ) {
        let dtype = self.e.dtype(values);
        let n = self.e.dims(values).iter().product::<i64>().max(0) as u64;
        let layer = layer.to_string();
        let (takes, function, is_gated) = (Vec::new(), None, false);
        self.rows.push(RowOf { layer, quantity, role, dtype, reported_dtype: dtype, n, takes, function, is_gated });
        self.words.push(emit(self.e, values, counted, beside));
    }

    /// Sets the dtype that the last row reports.
    fn set_reported_dtype(&mut self, dtype: DType) {
        if let Some(last) = self.rows.last_mut() {
            last.reported_dtype = dtype;
        }
    }
}

/// A variable before and after the step, in f32 if it is stored narrower, with its remainder if that is stored.
struct Change {
    old: Tensor,
    new: Tensor,
}

impl Change {
    /// `None` for a variable without an update.
    fn from_update(graph: &Graph, variables: &[VariableInfo], number: usize) -> Option<Change> {
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

/// The words of each row, from a result's bytes.
pub(crate) fn words_of(rows: &[RowOf], bytes: &[u8]) -> Vec<Vec<i32>> {
    let words: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
    words.chunks_exact(N_WORDS).take(rows.len()).map(<[i32]>::to_vec).collect()
}
