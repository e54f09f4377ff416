//! The observing program: a training step that returns only statistics.

use super::forward::{Forward, is_target};
use super::row::{Function, Quantity, Role};
use super::statistics::{LastWord, N_WORDS, RowOf, emit};
use crate::objective::Objective;
use crate::program::{Step, TaskProgram, emit_step, say_replicas};
use crate::program_error::ProgramError;
use bf16scope_hlo::ops::{BinaryOp, Comparison};
use bf16scope_hlo::{DType, InstrId, Module};
use bf16scope_model::graph::{Graph, Numbers, Program, Storage, Tensor, VariableInfo};
use bf16scope_model::optim::LOW;
use bf16scope_model::task::Task;
use std::collections::{BTreeMap, BTreeSet};
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
    let choose = |graph: &Graph, loss: &Tensor| {
        let chosen = graph.emitter().with_module(|module| {
            let labels = label_names(graph, module, loss.id, &is_label);
            forward(graph, module, &labels).chosen()
        });
        chosen.into_iter().chain([loss.id]).collect()
    };
    let Step { graph, gradients, observed, .. } = emit_step(task, numbers, batch, objective, &choose)?;
    let mut rows = Rows { graph: &graph, variables: graph.variables(), rows: Vec::new(), words: Vec::new() };
    // The row of each value.
    let loss = observed.last().map_or(InstrId(0), |&(loss, _)| loss);
    let labels = graph.emitter().with_module(|module| label_names(&graph, module, loss, &is_label));
    let mut places = rows.push_inputs(&labels);
    let n_inputs = rows.rows.len();
    places.extend(observed.iter().enumerate().map(|(at, &(id, _))| (id, n_inputs + at)));
    // The forward pass again, with names and roles: the same values were chosen above.
    let Described { values, is_gated, statistics } = graph
        .emitter()
        .with_module(|module| describe(&forward(&graph, module, &labels), &rows.variables, &observed, &places));
    rows.push_values(&values);
    rows.push_gradients(&gradients, &is_gated);
    rows.push_updates(&gradients, numbers.precision.compute());
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

/// The names of the inputs that are labels: those that the task says, and those that only the loss reads.
fn label_names(graph: &Graph, module: &Module, loss: InstrId, is_label: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let computation = module.comp(graph.emitter().comp());
    let inputs = graph.inputs();
    let all: Vec<InstrId> = inputs.iter().map(|input| input.instr).collect();
    let labels = inputs.into_iter().filter(|input| {
        is_label(&input.name) || input.dtype.is_float() && is_target(computation, &all, input.instr, loss)
    });
    labels.map(|input| input.name.clone()).collect()
}

/// The forward pass of a graph.
fn forward<'a>(graph: &Graph, module: &'a Module, labels: &BTreeSet<String>) -> Forward<'a> {
    let inputs = graph.inputs();
    let inputs: Vec<(InstrId, bool)> = inputs.iter().map(|input| (input.instr, labels.contains(&input.name))).collect();
    Forward::new(module.comp(graph.emitter().comp()), &inputs)
}

/// Names and roles in the forward pass.
struct Described {
    values: Vec<Value>,
    /// For each variable whether the loss depends on it only through gates.
    is_gated: Vec<bool>,
    /// Running statistics, with the share that a step keeps of them.
    statistics: Vec<(String, f64)>,
}

/// An observed value.
struct Value {
    id: InstrId,
    cotangent: Option<InstrId>,
    layer: String,
    role: Option<Role>,
    /// The rows that it depends on.
    takes: Vec<u32>,
    function: Option<Function>,
}

/// Describes observed values and variables; `places` are the rows of values.
fn describe(
    forward: &Forward<'_>,
    variables: &[VariableInfo],
    observed: &[(InstrId, Option<InstrId>)],
    places: &BTreeMap<InstrId, usize>,
) -> Described {
    let loss = InstrId(observed.iter().map(|(id, _)| id.idx()).max().unwrap_or(0) as u32);
    let value = |&(id, cotangent): &(InstrId, Option<InstrId>)| {
        let (layer, role) = forward.described(id, id == loss);
        Value { id, cotangent, layer, role, takes: forward.takes(id, places), function: forward.function(id) }
    };
    let open = forward.without_gates(loss);
    let statistic =
        |variable: &VariableInfo| Some((variable.name.clone(), forward.kept(variable.instr, variable.update?)?));
    Described {
        values: observed.iter().map(value).collect(),
        is_gated: variables.iter().map(|variable| !open[variable.instr.idx()]).collect(),
        statistics: variables.iter().filter(|variable| !variable.trainable).filter_map(statistic).collect(),
    }
}

/// Rows under construction.
struct Rows<'a> {
    graph: &'a Graph,
    variables: Vec<VariableInfo>,
    rows: Vec<RowOf>,
    words: Vec<InstrId>,
}

/// The counts of an update, beside its statistics.
#[derive(Default)]
struct Beside {
    /// Elements that are lost, in f32 and in the compute dtype.
    counted: [Option<InstrId>; 2],
    /// The variable, whose largest magnitude is reported.
    variable: Option<InstrId>,
}

impl Rows<'_> {
    /// Adds a row for each floating-point input; returns the rows.
    fn push_inputs(&mut self, labels: &BTreeSet<String>) -> BTreeMap<InstrId, usize> {
        let mut places = BTreeMap::new();
        for input in self.graph.inputs() {
            // The weights of examples are not a feature of the model.
            if input.dtype.is_float() && input.name != WEIGHT {
                places.insert(input.instr, self.rows.len());
                let role = if labels.contains(&input.name) { Role::Label } else { Role::Input };
                self.push(&input.name, Quantity::Activation, Some(role), input.instr);
            }
        }
        places
    }

    /// Adds a row for each value of the forward pass, then rows of cotangents, from the loss on.
    fn push_values(&mut self, values: &[Value]) {
        for Value { id, layer, role, takes, function, .. } in values {
            let row = self.push(layer, Quantity::Activation, *role, *id);
            (row.takes, row.function) = (takes.clone(), *function);
        }
        for Value { cotangent, layer, role, .. } in values.iter().rev() {
            // A softmax exponent's cotangent is inside a gradient rule, or equals the logits'; that of the loss is the
            // loss scale.
            if let (Some(cotangent), None | Some(Role::Residual | Role::Activated)) = (cotangent, role) {
                self.push(layer, Quantity::Cotangent, *role, *cotangent);
            }
        }
    }

    fn push_gradients(&mut self, gradients: &[(usize, Tensor)], is_gated: &[bool]) {
        for (number, gradient) in gradients {
            let name = self.variables[*number].name.clone();
            self.push(&name, Quantity::Gradient, None, gradient.id).is_gated = is_gated[*number];
        }
    }

    /// Adds a row for each update; elements are also counted that the update does not change in f32, and in `compute`.
    fn push_updates(&mut self, gradients: &[(usize, Tensor)], compute: DType) {
        for (number, gradient) in gradients {
            let Some(Change { old, new }) = Change::from_update(self.graph, &self.variables, *number) else { continue };
            let is_lost = |old: &Tensor, new: &Tensor| {
                let zeros = self.graph.full(gradient.dtype(), &gradient.dims(), 0.0);
                let moved = gradient.compare(Comparison::Ne, &zeros);
                old.equal(new).binary(BinaryOp::And, &moved).id
            };
            let counted = [is_lost(&old, &new), is_lost(&old.cast(compute), &new.cast(compute))].map(Some);
            let beside = Beside { counted, variable: Some(old.id) };
            let VariableInfo { name, dtype, .. } = self.variables[*number].clone();
            let is_constrained = self.graph.is_constrained(*number);
            let row = self.push_beside(&name, Quantity::Update, None, (&new - &old).id, beside);
            (row.reported_dtype, row.is_constrained) = (dtype, is_constrained);
        }
    }

    fn push(&mut self, layer: &str, quantity: Quantity, role: Option<Role>, values: InstrId) -> &mut RowOf {
        self.push_beside(layer, quantity, role, values, Beside::default())
    }

    fn push_beside(
        &mut self,
        layer: &str,
        quantity: Quantity,
        role: Option<Role>,
        values: InstrId,
        beside: Beside,
    ) -> &mut RowOf {
        let e = self.graph.emitter();
        let dtype = e.dtype(values);
        let n = e.dims(values).iter().product::<i64>().max(0) as u64;
        let layer = layer.to_string();
        let (takes, function, is_gated, is_constrained) = (Vec::new(), None, false, false);
        let row =
            RowOf { layer, quantity, role, dtype, reported_dtype: dtype, n, takes, function, is_gated, is_constrained };
        let last = match beside.variable {
            Some(variable) => LastWord::Largest(variable),
            None if row.has_mean() => LastWord::Mean,
            None => LastWord::None,
        };
        self.words.push(emit(e, values, beside.counted, last));
        self.rows.push(row);
        self.rows.last_mut().expect("a row was added")
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
