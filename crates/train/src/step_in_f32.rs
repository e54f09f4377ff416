//! A step of a run as an f32 module, with the run's state and batch: the input of an audit.
//!
//! The module is the step of one device on the whole batch: no replicas, no micro-batches, no loss scale (f32 needs
//! none), no tuning. It computes the same function as the run's step, except for values that each part of a batch
//! computes by itself: batch norm statistics, and random numbers of each replica.

use super::batches::{Data, loader_of_host};
use super::error::TrainError;
use super::mesh::Mesh;
use super::objective::Objective;
use super::program;
use super::session::Session;
use super::spec::Spec;
use super::steps_per_call::StepsPerCall;
use bf16scope_hlo::{ArrayShape, DType, Literal, Module};
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_model::optim::{LossScale, SlotStorage, Update};
use bf16scope_passes::tuning::Tuning;
use std::num::NonZeroU32;
use std::path::Path;

/// A training step in f32, with its arguments.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepInF32 {
    /// The step. Its parameters and results are those of [`program::training`], all in f32, whatever the run's storage
    /// is.
    pub module: Module,
    /// The arguments in order: the state before the step, then the batch.
    pub inputs: Vec<Literal>,
    /// Names of its results, in order: variables, then the loss, metrics and scalars, then gradients if requested.
    pub results: Vec<String>,
}

/// The step that `session` would make next on `data`. The session does not change. Variables stored in bf16 are widened
/// exactly, with the remainder of bf16_compensated; features are passed as the data have them, not rounded.
///
/// # Errors
/// A task that cannot be built; data that do not fit it; a failure of the plugin.
pub fn step_in_f32(session: &Session, data: Data<'_>) -> Result<StepInF32, TrainError> {
    step_with(session, data, false)
}

/// The same step with the gradient of each variable, as `gradient/` before the variable's name: an audit reports the
/// cosine between f32 gradients and those of a lowered form.
///
/// # Errors
/// As [`step_in_f32`].
pub fn step_with_gradients_in_f32(session: &Session, data: Data<'_>) -> Result<StepInF32, TrainError> {
    step_with(session, data, true)
}

/// The name of the state in errors: it comes from no file.
const STATE_OF_RUN: &str = "the state of the run";

fn step_with(session: &Session, data: Data<'_>, gives_gradients: bool) -> Result<StepInF32, TrainError> {
    let spec = in_f32(session.spec());
    let batch = i64::from(spec.batch);
    let program = program::training_with(&*spec.task, spec.numbers(), batch, &spec.objective, gives_gradients)?.program;
    let loader = loader_of_host(&spec, data.training, session.host(), session.draws())?;
    let (step, steps_per_epoch) = (session.step(), loader.n_steps());
    let batch = loader.steps(step / steps_per_epoch, step % steps_per_epoch, 1).map_err(TrainError::from)?;
    let state = session.checkpoint(steps_per_epoch)?;
    let state = state.stored_as(Path::new(STATE_OF_RUN), &program.variables, spec.seed)?;
    // Steps that a loss scale skipped do not count.
    let n_skipped = session.n_skipped()?.unwrap_or_default();
    let count = i32::try_from(step - n_skipped.min(step)).map_err(|_| TrainError::counted(step))?;
    let unfit = |expected: String, measured: &str| TrainError::batch(step, measured, &expected);
    let mut inputs = Vec::with_capacity(program.variables.len() + program.inputs.len());
    for variable in &program.variables {
        let wanted = ArrayShape::new(variable.dtype, variable.dims.clone());
        match state.variables.get(&variable.name).filter(|array| array.shape == wanted) {
            Some(array) => inputs.push(Literal::Array { shape: wanted, bytes: array.bytes.clone() }),
            None => return Err(unfit(format!("{} {wanted}", variable.name), "a state without it")),
        }
    }
    for input in &program.inputs {
        let shape = ArrayShape::new(input.dtype, input.dims.clone());
        let bytes = match input.name.as_str() {
            "step" => count.to_le_bytes().to_vec(),
            "weight" => (0..spec.batch).flat_map(|_| 1f32.to_le_bytes()).collect(),
            name => match batch.arrays.iter().find(|array| array.name == name) {
                Some(array) if (array.dtype, &array.dims) == (input.dtype, &input.dims) => array.bytes.clone(),
                _ => return Err(unfit(format!("{name} {shape}"), "a batch without it")),
            },
        };
        inputs.push(Literal::Array { shape, bytes });
    }
    debug_assert!(program.inputs.iter().all(|input| input.dtype != DType::BF16), "nothing is computed in bf16");
    Ok(StepInF32 { module: program.module, inputs, results: program.outputs })
}

/// A run's spec for one device, all in f32.
fn in_f32(spec: &Spec) -> Spec {
    let objective = Objective {
        update: Update { slots: SlotStorage::F32, ..spec.objective.update.clone() },
        loss_scale: LossScale::None,
        accumulate: NonZeroU32::MIN,
        mesh: Mesh::default(),
        split: Vec::new(),
        tuning: Tuning::none(),
        ..spec.objective.clone()
    };
    let (precision, variables, steps_per_call) = (Precision::F32, Storage::F32, StepsPerCall::default());
    Spec { precision, variables, objective, steps_per_call, ..spec.clone() }
}
