//! A model on a device: its compiled programs, and its state, which stays there between steps.
//!
//! A step donates the state and gets the new state back in its place; only the loss and a count come to the host. This
//! file knows one step and one evaluation; epochs, checkpoints on disk and stopping are [`run`](super::run)'s.

use super::checkpoint::{Checkpoint, CheckpointError, DataIdentity, HostArray, Position};
use super::error::TrainError;
use super::memory::memory_of_machine;
use super::program::{self, Objective};
use super::resume::{Change, check_data as check_resumed_data, check_settings, settings};
use crate::data::{Batch, Batches, Dataset};
use crate::graph::{Precision, Program, VariableInfo};
use crate::hlo::{ArrayShape, DType, Literal, Module, proto, verify};
use crate::models::Model;
use crate::pjrt::{Arg, Buffer, Client, CompileOptions, Executable};
use crate::tuning::Tuning;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a session trains, and how: everything its numbers depend on but the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The network.
    pub model: Model,
    /// What it computes in.
    pub precision: Precision,
    /// Examples in a batch.
    pub batch: u32,
    /// Of initial values and of the order of examples.
    pub seed: u64,
    /// How many pixels training images are shifted by at most, at random.
    pub shift: u32,
    /// What is minimised, and how.
    pub objective: Objective,
}

/// A model on a device.
#[derive(Debug)]
pub struct Session {
    spec: Spec,
    client: Client,
    training: Executable,
    variables: Vec<VariableInfo>,
    state: State,
    step: u64,
    resumed: Option<Resumed>,
}

/// What the data of a run that goes on must be.
#[derive(Clone, Debug)]
struct Resumed {
    path: PathBuf,
    steps_per_epoch: u64,
    data: Option<DataIdentity>,
}

/// The variables on the device, in the program's order.
#[derive(Debug)]
enum State {
    Held(Vec<Buffer>),
    /// Given to an execution that failed: which, and why.
    Lost(String),
}

impl State {
    fn buffers(&self) -> Result<&[Buffer], TrainError> {
        match self {
            State::Held(buffers) => Ok(buffers),
            State::Lost(lost) => Err(TrainError::Lost { lost: lost.clone() }),
        }
    }
}

/// What a step says.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// The mean loss of the batch, before the update.
    pub loss: f32,
    /// How many of the batch were classified right, before the update.
    pub n_correct: u32,
}

/// What an evaluation says.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Evaluation {
    /// The mean loss, without label smoothing.
    pub loss: f64,
    /// Examples classified right.
    pub n_correct: u64,
    /// Examples.
    pub n_examples: u64,
}

impl Evaluation {
    /// The part classified right.
    pub fn accuracy(&self) -> f64 {
        self.n_correct as f64 / self.n_examples as f64
    }
}

/// Verifies, encodes and compiles a module for the first device of `client`.
///
/// # Errors
/// Where the module does not verify, or the plugin refuses it.
pub fn compile(client: &Client, module: &Module) -> Result<Executable, TrainError> {
    let _span = tracing::info_span!("compile", module = module.name).entered();
    verify::verify(module)?;
    let bytes = proto::encode::to_bytes(module)?;
    Ok(client.compile(&bytes, &CompileOptions::default())?)
}

impl Session {
    /// Builds and compiles the training program, and puts the initial state on the first device.
    ///
    /// # Errors
    /// Where the model cannot be built, compiled or held.
    pub fn new(client: &Client, spec: Spec) -> Result<Session, TrainError> {
        let program = program::training(&spec.model, spec.precision, i64::from(spec.batch), &spec.objective)?;
        check_memory(&spec, &program.variables, 0)?;
        let training = compile(client, &program.module)?;
        // A client that does not say has been asked for what is sure.
        let temporaries = training.compiled().memory_stats().map_or(0, |stats| stats.temporaries.max(0));
        check_memory(&spec, &program.variables, temporaries as u128)?;
        let _span = tracing::info_span!("initialise", seed = spec.seed).entered();
        let state = initial_state(client, &program.variables, spec.seed)?;
        let Program { variables, .. } = program;
        let state = State::Held(state);
        Ok(Session { spec, client: client.clone(), training, variables, state, step: 0, resumed: None })
    }

    /// What it trains.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Names of the variables that the optimizer updates.
    pub fn trainable(&self) -> Vec<&str> {
        self.variables.iter().filter(|variable| variable.trainable).map(|variable| variable.name.as_str()).collect()
    }

    /// How many numbers the optimizer updates.
    pub fn n_parameters(&self) -> u128 {
        self.variables.iter().filter(|variable| variable.trainable).map(n_elements).sum()
    }

    /// Bytes of variables and slots.
    pub fn n_state_bytes(&self) -> u128 {
        self.variables.iter().map(n_bytes).sum()
    }

    /// Updates made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.spec.objective.update.learning_rate.at(u32::try_from(self.step).unwrap_or(u32::MAX))
    }

    /// One update.
    ///
    /// # Errors
    /// [`TrainError::Batch`] where the batch is not of the session's size, dims and dtype or a label is no class: the
    /// session is then as it was. Where the plugin fails, the state is lost, and the session says so from then on.
    pub fn train(&mut self, batch: &Batch) -> Result<StepReport, TrainError> {
        let _span = tracing::debug_span!("step", step = self.step).entered();
        self.state.buffers()?;
        self.check_batch(batch)?;
        let count = i32::try_from(self.step).ok().filter(|&count| count < i32::MAX);
        let count = count.ok_or(TrainError::Counted { step: self.step })?;
        let images = self.upload_images(batch, i64::from(self.spec.batch))?;
        let labels = upload_i32s(&self.client, &batch.labels, &[batch.labels.len() as i64])?;
        let step = upload_i32s(&self.client, &[count], &[])?;
        // From here on the state belongs to the execution, and comes back only if that succeeds.
        let lost = State::Lost(format!("step {} was interrupted", self.step + 1));
        let State::Held(state) = std::mem::replace(&mut self.state, lost) else {
            unreachable!("it was just looked at")
        };
        let mut args: Vec<Arg<'_>> = state.into_iter().map(Arg::Donate).collect();
        args.extend([images, labels, step].map(Arg::Donate));
        let mut results = self.training.execute(args).map_err(|error| {
            self.state = State::Lost(format!("step {} failed: {error}", self.step + 1));
            error
        })?;
        let others = results.split_off(self.variables.len());
        self.state = State::Held(results);
        self.step += 1;
        let (loss, n_correct) = read_results(&others)?;
        Ok(StepReport { loss, n_correct })
    }

    /// Whether the program takes this batch: asked before the state is given to it.
    fn check_batch(&self, batch: &Batch) -> Result<(), TrainError> {
        let Spec { model, precision, batch: n, .. } = &self.spec;
        let n_classes = model.n_classes();
        let dims: Vec<i64> = [i64::from(*n)].into_iter().chain(model.input().iter().copied()).collect();
        let n_bytes = dims.iter().product::<i64>() as usize * precision.compute().n_bytes();
        let same = |measured: String, expected: String| match measured == expected {
            true => Ok(()),
            false => Err(TrainError::Batch { step: self.step, measured, expected }),
        };
        let features = |dtype: DType, dims: &[i64]| format!("features {}", ArrayShape::new(dtype, dims.to_vec()));
        same(features(batch.dtype, &batch.dims), features(precision.compute(), &dims))?;
        same(format!("{} bytes of features", batch.features.len()), format!("{n_bytes} bytes of features"))?;
        same(format!("{} labels", batch.labels.len()), format!("{n} labels"))?;
        // Padding is for evaluations: here it would be trained on.
        same(format!("{} valid examples", batch.n_valid), format!("{n} valid examples"))?;
        match (0..).zip(&batch.labels).find(|&(_, &label)| !(0..n_classes).contains(&i64::from(label))) {
            Some((example, label)) => {
                let measured = format!("label {label} at example {example}");
                let expected = format!("labels from 0 to {}", n_classes - 1);
                Err::<(), _>(TrainError::Batch { step: self.step, measured, expected })
            }
            None => Ok(()),
        }
    }

    fn upload_images(&self, batch: &Batch, n: i64) -> Result<Buffer, TrainError> {
        upload_images(&self.client, &self.spec.model, self.spec.precision, batch, n)
    }

    /// The state on the host: variables and slots by name.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn state(&self) -> Result<BTreeMap<String, HostArray>, TrainError> {
        let download = |(variable, buffer): (&VariableInfo, &Buffer)| {
            let array = HostArray { shape: shape_of(variable), bytes: buffer.to_host()? };
            Ok((variable.name.clone(), array))
        };
        self.variables.iter().zip(self.state.buffers()?).map(download).collect()
    }

    /// A checkpoint of this moment.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn checkpoint(&self, steps_per_epoch: u64) -> Result<Checkpoint, TrainError> {
        let Spec { precision, batch, seed, .. } = &self.spec;
        let position = Position { step: self.step, steps_per_epoch, batch: *batch, seed: *seed, precision: *precision };
        Ok(Checkpoint { position, settings: settings(&self.spec), data: None, variables: self.state()? })
    }

    /// Goes on from a checkpoint, read from `path`. Gives the settings that have changed since, and may.
    ///
    /// # Errors
    /// A checkpoint that no run leaves, of another model, or of a run with other settings that may not change; the session is
    /// then as it was. Where the plugin fails, the state is lost.
    pub fn restore(&mut self, path: &Path, checkpoint: &Checkpoint) -> Result<Vec<Change>, TrainError> {
        checkpoint.check().map_err(|fault| CheckpointError::Unsound { path: path.to_path_buf(), fault })?;
        let wanted = self.variables.iter().map(|variable| (variable.name.as_str(), shape_of(variable)));
        let arrays = checkpoint.select(path, wanted, true)?;
        let changes = check_settings(path, checkpoint, &self.spec)?;
        // What was there goes first: there is memory for two states, and the checkpoint is one of them.
        self.state = State::Lost(format!("restoring {} failed", path.display()));
        self.state = State::Held(upload(&self.client, &arrays)?);
        self.step = checkpoint.position.step;
        let steps_per_epoch = checkpoint.position.steps_per_epoch;
        self.resumed = Some(Resumed { path: path.to_path_buf(), steps_per_epoch, data: checkpoint.data.clone() });
        Ok(changes)
    }

    /// Whether the data of a run are those that the checkpoint it goes on from was made with.
    ///
    /// # Errors
    /// Other data: other examples, the same in another order, or cut in another number of batches.
    pub fn check_resumed(&self, steps_per_epoch: u64, data: &DataIdentity) -> Result<(), TrainError> {
        let Some(resumed) = &self.resumed else { return Ok(()) };
        if let Some(before) = &resumed.data {
            check_resumed_data(&resumed.path, before, data)?;
        }
        match resumed.steps_per_epoch == steps_per_epoch {
            true => Ok(()),
            false => {
                let (before, now) = (resumed.steps_per_epoch.to_string(), steps_per_epoch.to_string());
                let changes = vec![Change { key: "data.steps_per_epoch".to_string(), before, now }];
                Err(TrainError::Resume { path: resumed.path.clone(), changes })
            }
        }
    }

    /// An evaluator of this session's model, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the program cannot be built or compiled.
    pub fn evaluator(&self, batch: u32) -> Result<Evaluator, TrainError> {
        Evaluator::new(&self.client, &self.spec.model, self.spec.precision, batch, &self.spec.objective.tuning)
    }

    /// Evaluates the state of this moment.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn evaluate(&self, evaluator: &Evaluator, dataset: &Dataset) -> Result<Evaluation, TrainError> {
        let state = self.state.buffers()?;
        let buffer_of = |name: &str| {
            let number = self.variables.iter().position(|variable| variable.name == name);
            &state[number.expect("a training program has its model's variables")]
        };
        let variables: Vec<&Buffer> = evaluator.variables.iter().map(|variable| buffer_of(&variable.name)).collect();
        evaluator.run(&variables, dataset)
    }
}

/// The compiled evaluation of a model.
#[derive(Debug)]
pub struct Evaluator {
    client: Client,
    executable: Executable,
    model: Model,
    precision: Precision,
    batch: u32,
    variables: Vec<VariableInfo>,
}

impl Evaluator {
    /// Builds and compiles the evaluation program.
    ///
    /// # Errors
    /// Where the program cannot be built or compiled.
    pub fn new(
        client: &Client,
        model: &Model,
        precision: Precision,
        batch: u32,
        tuning: &Tuning,
    ) -> Result<Evaluator, TrainError> {
        let program = program::evaluation(model, precision, i64::from(batch), tuning)?;
        let executable = compile(client, &program.module)?;
        let (client, model, variables) = (client.clone(), model.clone(), program.variables);
        Ok(Evaluator { client, executable, model, precision, batch, variables })
    }

    /// Evaluates a checkpoint, read from `path`. Its precision may be another: variables are f32 in all of them.
    ///
    /// # Errors
    /// A checkpoint of another model.
    pub fn evaluate(&self, path: &Path, checkpoint: &Checkpoint, dataset: &Dataset) -> Result<Evaluation, TrainError> {
        let wanted = self.variables.iter().map(|variable| (variable.name.as_str(), shape_of(variable)));
        let buffers = upload(&self.client, &checkpoint.select(path, wanted, false)?)?;
        self.run(&buffers.iter().collect::<Vec<_>>(), dataset)
    }

    fn run(&self, variables: &[&Buffer], dataset: &Dataset) -> Result<Evaluation, TrainError> {
        let _span = tracing::info_span!("evaluate").entered();
        let batches = Batches::new(dataset, self.batch as usize, 0)?.cast(self.precision.compute())?;
        let mut evaluation = Evaluation { loss: 0.0, n_correct: 0, n_examples: 0 };
        for batch in batches.in_order() {
            let n = i64::from(self.batch);
            let images = upload_images(&self.client, &self.model, self.precision, &batch, n)?;
            let labels = upload_i32s(&self.client, &batch.labels, &[n])?;
            let n_valid = upload_i32s(&self.client, &[batch.n_valid as i32], &[])?;
            let mut args: Vec<Arg<'_>> = variables.iter().map(|&buffer| Arg::Keep(buffer)).collect();
            args.extend([images, labels, n_valid].map(Arg::Donate));
            let (loss, n_correct) = read_results(&self.executable.execute(args)?)?;
            evaluation.loss += f64::from(loss);
            evaluation.n_correct += u64::from(n_correct);
            evaluation.n_examples += batch.n_valid as u64;
        }
        evaluation.loss /= evaluation.n_examples as f64;
        Ok(evaluation)
    }
}

/// Whether `dataset` is what `model` takes.
///
/// # Errors
/// Other dims or classes, or a label that is no class.
pub fn check_data(model: &Model, dataset: &Dataset) -> Result<(), TrainError> {
    let (dims, n_classes) = (model.input(), model.n_classes());
    if dataset.feature_dims != dims || dataset.n_classes as i64 != n_classes {
        return Err(TrainError::Fit {
            measured: format!("examples of {:?} in {} classes", dataset.feature_dims, dataset.n_classes),
            expected: format!("{dims:?} in {n_classes}"),
        });
    }
    let bad = dataset.labels.iter().position(|&label| !(0..n_classes).contains(&i64::from(label)));
    match bad {
        Some(example) => Err(TrainError::Label { example, label: dataset.labels[example], n_classes }),
        None => Ok(()),
    }
}

fn shape_of(variable: &VariableInfo) -> ArrayShape {
    ArrayShape::new(variable.dtype, variable.dims.clone())
}

fn n_elements(variable: &VariableInfo) -> u128 {
    variable.dims.iter().map(|&dim| dim.max(0) as u128).product()
}

fn n_bytes(variable: &VariableInfo) -> u128 {
    n_elements(variable) * variable.dtype.n_bytes() as u128
}

/// Whether there is memory for a session: asked before it is made, because an allocation that fails ends the process. The
/// state is on the device all the time; beside it there is what a step needs, or, while saving and
/// resuming, a copy of the state on the host.
fn check_memory(spec: &Spec, variables: &[VariableInfo], temporaries: u128) -> Result<(), TrainError> {
    let state: u128 = variables.iter().map(n_bytes).sum();
    let features: u128 = spec.model.input().iter().map(|&dim| dim.max(0) as u128).product();
    let example = features * spec.precision.compute().n_bytes() as u128 + DType::S32.n_bytes() as u128;
    let batch = u128::from(spec.batch) * example;
    match (memory_of_machine(), variables.iter().rev().max_by_key(|variable| n_bytes(variable))) {
        (Some(available), Some(largest)) if state + (temporaries + batch).max(state) > available => {
            let largest = format!("{} {}", largest.name, shape_of(largest));
            Err(TrainError::TooLarge { state, temporaries, batch, available, largest })
        }
        (Some(_) | None, _) => Ok(()),
    }
}

fn initial_state(client: &Client, variables: &[VariableInfo], seed: u64) -> Result<Vec<Buffer>, TrainError> {
    // One after the other: no copy of the whole is needed.
    let upload = |variable: &VariableInfo| {
        let bytes = initial_bytes(variable, seed)?;
        Ok(client.buffer_from_host(&bytes, variable.dtype, &variable.dims, 0)?)
    };
    variables.iter().map(upload).collect()
}

/// The start of a variable: floats from its recipe's values, integers from its words.
fn initial_bytes(variable: &VariableInfo, seed: u64) -> Result<Vec<u8>, TrainError> {
    let VariableInfo { name, dtype, dims, init, .. } = variable;
    if dtype.is_integer() {
        let words = init.words(seed, name, dims);
        return Ok(words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(dtype.n_bytes())).collect());
    }
    let values = init.values(seed, name, dims);
    if *dtype == DType::F32 {
        return Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }
    let mut bytes = Vec::new();
    for value in values {
        match Literal::scalar_of(*dtype, f64::from(value)) {
            Some(Literal::Array { bytes: element, .. }) => bytes.extend(element),
            Some(Literal::Tuple(_) | Literal::Token) | None => {
                return Err(TrainError::Variable { name: name.clone(), dtype: *dtype });
            }
        }
    }
    Ok(bytes)
}

fn upload(client: &Client, arrays: &[&HostArray]) -> Result<Vec<Buffer>, TrainError> {
    let upload =
        |array: &&HostArray| Ok(client.buffer_from_host(&array.bytes, array.shape.dtype, &array.shape.dims, 0)?);
    arrays.iter().map(upload).collect()
}

fn upload_images(
    client: &Client,
    model: &Model,
    precision: Precision,
    batch: &Batch,
    n: i64,
) -> Result<Buffer, TrainError> {
    let dims: Vec<i64> = [n].into_iter().chain(model.input().iter().copied()).collect();
    Ok(client.buffer_from_host(&batch.features, precision.compute(), &dims, 0)?)
}

fn upload_i32s(client: &Client, values: &[i32], dims: &[i64]) -> Result<Buffer, TrainError> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(client.buffer_from_host(&bytes, DType::S32, dims, 0)?)
}

/// The results both programs end with: a loss and a count.
fn read_results(results: &[Buffer]) -> Result<(f32, u32), TrainError> {
    let mut word = [0; 4];
    results[0].copy_to_host(&mut word)?;
    let loss = f32::from_le_bytes(word);
    results[1].copy_to_host(&mut word)?;
    Ok((loss, u32::from_le_bytes(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::mlp;
    use crate::pjrt::{Platform, Setup};

    #[test]
    fn a_step_that_fails_loses_the_state_and_says_so_until_it_is_restored() {
        let client = Client::of(&Platform::cpu(), &Setup::from_env()).unwrap();
        let new = |hidden: i64| {
            let model = Model::Mlp(mlp::Config { hidden: vec![hidden], ..mlp::Config::new([4], 2) });
            let objective = Objective::default();
            let spec = Spec { model, precision: Precision::F32, batch: 2, seed: 0, shift: 0, objective };
            Session::new(&client, spec).unwrap()
        };
        let mut session = new(3);
        let checkpoint = session.checkpoint(1).unwrap();
        let (features, dims) = (vec![0; 2 * 4 * 4], vec![2, 4]);
        let batch = Batch { features, dtype: DType::F32, dims, labels: vec![0, 1], n_valid: 2 };
        // The program of another model stands in for an execution that fails: it has the state by then.
        let mut program = new(5).training;
        std::mem::swap(&mut session.training, &mut program);
        let failure = session.train(&batch).unwrap_err().to_string();
        let lost = format!(
            "the session has no state: step 1 failed: {failure}\n\
             help: restore a checkpoint, or make another session; nothing was saved"
        );
        let evaluator = session.evaluator(2).unwrap();
        let dataset = Dataset { features: vec![0.0; 8], feature_dims: vec![4], labels: vec![0, 1], n_classes: 2 };
        let later = [
            session.train(&batch).map(drop),
            session.state().map(drop),
            session.checkpoint(1).map(drop),
            session.evaluate(&evaluator, &dataset).map(drop),
        ];
        assert_eq!(later.map(|result| result.unwrap_err().to_string()), [(); 4].map(|()| lost.clone()));
        std::mem::swap(&mut session.training, &mut program);
        session.restore(Path::new("before"), &checkpoint).unwrap();
        assert_eq!(session.checkpoint(1).unwrap(), checkpoint);
        session.train(&batch).unwrap();
    }
}
