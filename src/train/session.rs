//! A model on a device: its compiled programs, and its state, which stays there between steps.
//!
//! A step donates the state and gets the new state back in its place; only the loss and a count come to the host. This
//! file knows one step and one evaluation; epochs, checkpoints on disk and stopping are [`run`](super::run)'s.

use super::checkpoint::{Checkpoint, HostArray, Position};
use super::error::TrainError;
use super::program::{self, Objective};
use crate::data::{Batch, Batches, Dataset};
use crate::graph::{Precision, Program, VariableInfo};
use crate::hlo::{ArrayShape, DType, Literal, Module, proto, verify};
use crate::models::Model;
use crate::pjrt::{Arg, Buffer, Client, CompileOptions, Executable};
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
    state: Vec<Buffer>,
    step: u64,
    resumed: Option<(PathBuf, u64)>,
}

/// What a step says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The mean loss of the batch, before the update.
    pub loss: f32,
    /// How many of the batch were classified right, before the update.
    pub n_correct: u32,
}

/// What an evaluation says.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
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
        check_memory(&program.variables)?;
        let training = compile(client, &program.module)?;
        let _span = tracing::info_span!("initialise", seed = spec.seed).entered();
        let state = initial_state(client, &program.variables, spec.seed)?;
        let Program { variables, .. } = program;
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

    /// Updates made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.spec.objective.update.learning_rate.at(u32::try_from(self.step).unwrap_or(u32::MAX))
    }

    /// One update. The batch must have the session's size and dtype.
    ///
    /// # Errors
    /// Where the plugin fails; the state is lost then.
    pub fn train(&mut self, batch: &Batch) -> Result<StepReport, TrainError> {
        let _span = tracing::debug_span!("step", step = self.step).entered();
        let images = self.upload_images(batch, i64::from(self.spec.batch))?;
        let labels = upload_i32s(&self.client, &batch.labels, &[batch.labels.len() as i64])?;
        let step = upload_i32s(&self.client, &[self.step as i32], &[])?;
        let mut args: Vec<Arg<'_>> = self.state.drain(..).map(Arg::Donate).collect();
        args.extend([images, labels, step].map(Arg::Donate));
        let mut results = self.training.execute(args)?;
        let others = results.split_off(self.variables.len());
        self.state = results;
        self.step += 1;
        let (loss, n_correct) = read_results(&others)?;
        Ok(StepReport { loss, n_correct })
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
        self.variables.iter().zip(&self.state).map(download).collect()
    }

    /// A checkpoint of this moment.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn checkpoint(&self, steps_per_epoch: u64) -> Result<Checkpoint, TrainError> {
        let Spec { model, precision, batch, seed, .. } = &self.spec;
        let position = Position { step: self.step, steps_per_epoch, batch: *batch, seed: *seed, precision: *precision };
        let model = serde_json::to_value(model).expect("a model's configuration has a JSON form");
        Ok(Checkpoint { position, model, variables: self.state()? })
    }

    /// Goes on from a checkpoint, read from `path`.
    ///
    /// # Errors
    /// A checkpoint of another model, or of a run with another seed, batch or precision.
    pub fn restore(&mut self, path: &Path, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let wanted = self.variables.iter().map(|variable| (variable.name.as_str(), shape_of(variable)));
        let arrays = checkpoint.select(path, wanted, true)?;
        let Position { batch, seed, precision, .. } = &checkpoint.position;
        let same = |setting, flag, measured: String, expected: String| match measured == expected {
            true => Ok(()),
            false => Err(TrainError::Resume { path: path.to_path_buf(), setting, measured, expected, flag }),
        };
        same("batch", "--batch", batch.to_string(), self.spec.batch.to_string())?;
        same("seed", "--seed", seed.to_string(), self.spec.seed.to_string())?;
        same("precision", "--precision", precision.to_string(), self.spec.precision.to_string())?;
        self.state = upload(&self.client, &arrays)?;
        self.step = checkpoint.position.step;
        self.resumed = Some((path.to_path_buf(), checkpoint.position.steps_per_epoch));
        Ok(())
    }

    /// Whether data of so many steps an epoch are those that the checkpoint it goes on from was made with.
    ///
    /// # Errors
    /// Other data.
    pub fn check_resumed(&self, steps_per_epoch: u64) -> Result<(), TrainError> {
        match &self.resumed {
            Some((path, measured)) if *measured != steps_per_epoch => {
                Err(TrainError::OtherData { path: path.clone(), measured: *measured, expected: steps_per_epoch })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// An evaluator of this session's model, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the program cannot be built or compiled.
    pub fn evaluator(&self, batch: u32) -> Result<Evaluator, TrainError> {
        Evaluator::new(&self.client, &self.spec.model, self.spec.precision, batch)
    }

    /// Evaluates the state of this moment.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn evaluate(&self, evaluator: &Evaluator, dataset: &Dataset) -> Result<Evaluation, TrainError> {
        let buffer_of = |name: &str| {
            let number = self.variables.iter().position(|variable| variable.name == name);
            &self.state[number.expect("a training program has its model's variables")]
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
    pub fn new(client: &Client, model: &Model, precision: Precision, batch: u32) -> Result<Evaluator, TrainError> {
        let program = program::evaluation(model, precision, i64::from(batch))?;
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

/// Whether the state fits in memory twice, as it must when it starts: asked before, because an allocation that fails
/// ends the process.
fn check_memory(variables: &[VariableInfo]) -> Result<(), TrainError> {
    let n_bytes = |variable: &VariableInfo| {
        let n_elements: u128 = variable.dims.iter().map(|&dim| dim.max(0) as u128).product();
        n_elements * variable.dtype.n_bytes() as u128
    };
    let needed = variables.iter().map(n_bytes).sum();
    match (memory_of_machine(), variables.iter().rev().max_by_key(|variable| n_bytes(variable))) {
        (Some(available), Some(largest)) if 2 * needed > available => {
            let largest = format!("{} {}", largest.name, shape_of(largest));
            Err(TrainError::TooLarge { needed, available, largest })
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// In bytes; none where the system does not say it as Linux does.
fn memory_of_machine() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.trim().parse::<u128>().ok()? * 1024)
}

fn initial_state(client: &Client, variables: &[VariableInfo], seed: u64) -> Result<Vec<Buffer>, TrainError> {
    let arrays: Result<Vec<HostArray>, TrainError> = variables
        .iter()
        .map(|variable| Ok(HostArray { shape: shape_of(variable), bytes: initial_bytes(variable, seed)? }))
        .collect();
    upload(client, &arrays?.iter().collect::<Vec<_>>())
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
