//! A session: a task's compiled training program, and its state, which stays on the device between steps.
//!
//! A step donates the state and gets the new state back in its place; only the loss and metrics come to the host. This
//! file implements single steps and evaluations; [`run`](super::run) adds epochs, checkpoints on disk and stopping.

mod checkpoints;
mod hosts;
mod used;

use super::callback_state::CallbackState;
use super::checkpoint::{DataIdentity, FunctionHash};
use super::device::{Fed, Loaded, Results, check_memory, initial_state, n_bytes, n_elements, upload_to_all};
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::hosts::{Exchange, Site};
use super::model_axis::over_model_axis;
use super::objective::Objective;
use super::observer::Observer;
use super::program::{self, TaskProgram};
use super::resume::function_of;
use super::spec::Spec;
use super::steps_per_call::several_steps;
use super::totals::Totals;
use super::watch::{RateJump, RecordedClip, WatchRecord, note_columns};
use bf16scope_data::{Batch, DrawVersion, Source};
use bf16scope_model::graph::{Program, VariableInfo};
use bf16scope_model::optim::{LossScale, Update};
use bf16scope_pjrt::{Arg, Buffer, Client};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A task on a device, ready to train.
#[derive(Debug)]
pub struct Session {
    spec: Spec,
    client: Client,
    /// The program of a call, which may make several steps.
    training: Arc<Loaded>,
    /// The program of one step, if a call makes several; compiled on demand.
    single: Option<Arc<Loaded>>,
    state: State,
    /// The results of the last call beside the state; `None` before the first.
    last: Option<Results>,
    last_was_single: bool,
    step: u64,
    /// The value of the variable that scales a reducible learning rate.
    reduced: Option<f32>,
    /// The callbacks' counters and the epoch's sums in the checkpoint that it resumed from.
    callbacks: Option<CallbackState>,
    /// The version of random draws with which the run began.
    draws: DrawVersion,
    resumed: Option<Resumed>,
    /// The record of the weights that the run was initialized from, if it was.
    initialized: Option<serde_json::Value>,
    function: Option<FunctionHash>,
    site: Site,
    /// The exchange between hosts, if there are several.
    exchange: Option<Exchange>,
}

/// The requests of a host of a slice before the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// Save and end the run, because it was asked to.
    pub stop: bool,
    /// Save, because it is time.
    pub save: bool,
    /// Lower the learning rate.
    pub reduce: bool,
    /// It has failed and cannot continue.
    pub failed: bool,
}

/// The data and the state that a resumed run must match.
#[derive(Clone, Debug)]
struct Resumed {
    path: PathBuf,
    steps_per_epoch: u64,
    data: Option<DataIdentity>,
    /// A hash of its state.
    state: [u8; 32],
}

/// The variables on the device of each replica of this host, in the program's order, whole or sharded. Replica 0's copy
/// of whole variables is saved, evaluated and used: other replicas differ from it in their own batch norm statistics
/// and random states.
#[derive(Debug)]
enum State {
    Held(Vec<Vec<Buffer>>),
    /// An execution that failed had the state: which one, and why.
    Lost(String),
}

impl State {
    /// Each replica's buffers.
    fn buffers(&self) -> Result<&[Vec<Buffer>], TrainError> {
        match self {
            State::Held(replicas) => Ok(replicas),
            State::Lost(why) => {
                let text = format!("the session has no state: {why}");
                let help = "restore a checkpoint, or make another session; nothing was saved";
                Err(TrainError::new(TrainErrorKind::Session, TrainPlace::Nowhere, text).with_help(help))
            }
        }
    }
}

/// Puts batches on the devices of a session.
#[derive(Debug)]
pub(super) struct Feeder {
    training: Arc<Loaded>,
    single: Option<Arc<Loaded>>,
}

/// A batch on the devices, and the program that reads it.
#[derive(Debug)]
pub(super) struct Call {
    program: Arc<Loaded>,
    fed: Fed,
    /// Whether it is for one step, while calls make several.
    is_single: bool,
}

impl Feeder {
    /// Uploads the batch of `n` steps, starting with `step`.
    pub fn put(&self, batch: &Batch, step: u64, n: u32) -> Result<Call, TrainError> {
        let single = self.single.as_ref().filter(|_| n == 1);
        let program = Arc::clone(single.unwrap_or(&self.training));
        let fed = program.put(batch, step, false)?;
        Ok(Call { program, fed, is_single: single.is_some() })
    }
}

impl Session {
    /// Builds and compiles the training program, and uploads the initial state to the devices of its mesh.
    ///
    /// # Errors
    /// When the task cannot be built or compiled, or does not fit in memory.
    pub fn new(client: &Client, spec: Spec) -> Result<Session, TrainError> {
        let mut site = Site::for_mesh(client, spec.objective.mesh)?;
        let program = several_steps(program_of_a_step(client, &spec)?, spec.steps_per_call)?;
        let (program, split) = over_partitions(program, &spec)?;
        site.split = Arc::new(split);
        check_memory(&spec, &site, &program.program.variables, 0)?;
        let training = load(client, program, &spec, &site)?;
        // Clients without memory statistics: only the known part was checked.
        let temporaries = training.executable.compiled().memory_stats().map_or(0, |stats| stats.temporaries.max(0));
        check_memory(&spec, &site, &training.variables, temporaries as u128)?;
        let _span = tracing::info_span!("initialise", seed = spec.seed).entered();
        let state = State::Held(initial_state(client, &training.variables, &spec, &site)?);
        let (client, function) = (client.clone(), function_of(&*spec.task));
        let (last, resumed, initialized, exchange) = (None, None, None, Exchange::between_hosts(&client, &site));
        let update = &spec.objective.update;
        let reduced = update.reducible.then(|| update.unreduced());
        Ok(Session {
            spec,
            client,
            training: Arc::new(training),
            single: None,
            state,
            last,
            last_was_single: false,
            step: 0,
            reduced,
            callbacks: None,
            draws: DrawVersion::default(),
            resumed,
            initialized,
            function,
            site,
            exchange,
        })
    }

    /// The index of this host in its slice, from 0, and the number of hosts: `(0, 1)` if all devices belong to this
    /// process. With several hosts, each has its own session, and all must make the same calls in the same order; the
    /// first evaluates and writes.
    pub fn host(&self) -> (u32, u32) {
        (self.site.host, self.site.n_hosts)
    }

    fn here(&self) -> (&Site, Option<&Exchange>) {
        (&self.site, self.exchange.as_ref())
    }

    /// The optimised program of a call, from its devices' compiler: a serialized `HloModuleProto`.
    ///
    /// # Errors
    /// When the plugin fails, or does not provide it.
    pub fn optimized_program(&self) -> Result<Vec<u8>, TrainError> {
        Ok(self.training.executable.compiled().optimized_program()?)
    }

    /// The replicas on this host, numbered from 0 over all hosts.
    pub fn replicas(&self) -> std::ops::Range<usize> {
        self.site.replicas.clone()
    }

    /// The spec that it trains.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Names of the variables that the optimizer updates.
    pub fn trainable(&self) -> Vec<&str> {
        self.variables().iter().filter(|variable| variable.trainable).map(|variable| variable.name.as_str()).collect()
    }

    /// The number of parameters that the optimizer updates.
    pub fn n_parameters(&self) -> u128 {
        self.variables().iter().filter(|variable| variable.trainable).map(n_elements).sum()
    }

    /// The number of frozen parameters ([`Objective::trainable`]).
    pub fn n_frozen(&self) -> u128 {
        self.variables().iter().filter(|variable| variable.is_frozen).map(n_elements).sum()
    }

    /// Bytes of variables and slots.
    pub fn n_state_bytes(&self) -> u128 {
        self.variables().iter().map(n_bytes).sum()
    }

    fn variables(&self) -> &[VariableInfo] {
        &self.training.variables
    }

    /// Updates so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate_of(self.step)
    }

    /// The learning rate of the step after `step` steps.
    pub(super) fn learning_rate_of(&self, step: u64) -> f64 {
        let (update, step) = (&self.spec.objective.update, u32::try_from(step).unwrap_or(u32::MAX));
        self.reduced.map_or_else(|| update.rate_at(step), |reduced| update.reduced_rate_at(step, reduced))
    }

    /// The value of a reducible learning rate's variable
    /// ([`Update::REDUCED`](bf16scope_model::optim::Update::REDUCED)); `None` if the rate is not reducible.
    pub fn reduced(&self) -> Option<f32> {
        self.reduced
    }

    /// Sets the variable of a reducible learning rate, from the next step on.
    ///
    /// # Errors
    /// A rate that is not reducible; a failure of the plugin.
    pub fn set_reduced(&mut self, reduced: f32) -> Result<(), TrainError> {
        let Some(number) = self.variables().iter().position(|variable| variable.name == Update::REDUCED) else {
            let text = "the learning rate of this session is no state of its program";
            let error = TrainError::new(TrainErrorKind::Session, TrainPlace::Nowhere, text);
            return Err(error.with_help("set `Update::reducible` of its objective"));
        };
        self.state.buffers()?;
        let mut values: Vec<Vec<Buffer>> = (0..self.site.n_devices_here()).map(|_| Vec::new()).collect();
        let variable = &self.training.variables[number];
        upload_to_all(&self.client, &self.site, variable, &reduced.to_le_bytes(), &mut values)?;
        if let State::Held(state) = &mut self.state {
            state.iter_mut().zip(values).for_each(|(state, value)| state.splice(number..=number, value).for_each(drop));
        }
        self.reduced = Some(reduced);
        Ok(())
    }

    /// The callbacks' counters and the epoch's sums in the checkpoint that it resumed from.
    pub(super) fn callbacks(&self) -> Option<&CallbackState> {
        self.callbacks.as_ref()
    }

    /// Makes one update. Returns the loss and the metrics of the batch, before the update.
    ///
    /// # Errors
    /// A batch that does not fit the program (size, names, dims, dtypes, an integer out of its range), or, if calls
    /// make several steps, a failure to compile the program of one: the session is then unchanged. After a failure of
    /// the plugin the state is lost, and every later use reports it.
    pub fn train(&mut self, batch: &Batch) -> Result<Totals, TrainError> {
        self.load_single_step()?;
        let fed = self.feeder().put(batch, self.step, 1)?;
        Ok(self.advance(fed)?.remove(0))
    }

    /// Makes as many updates as a call has steps ([`Spec::steps_per_call`]), in one call of the device, with that many
    /// batches in one: the first step's examples first, as in [`Loader::steps`](bf16scope_data::Loader::steps). Returns
    /// the loss and the metrics of each batch, before its update.
    ///
    /// # Errors
    /// As [`Session::train`].
    pub fn train_call(&mut self, batches: &Batch) -> Result<Vec<Totals>, TrainError> {
        let fed = self.feeder().put(batches, self.step, self.spec.steps_per_call.n().get())?;
        self.advance(fed)
    }

    /// A feeder that uploads batches for this session, from another thread too, while a step is running.
    pub(super) fn feeder(&self) -> Feeder {
        Feeder { training: Arc::clone(&self.training), single: self.single.clone() }
    }

    /// Compiles the program of one step, unless it is there already.
    pub(super) fn load_single_step(&mut self) -> Result<(), TrainError> {
        if self.single.is_none() && self.spec.steps_per_call.n().get() > 1 {
            let (program, _) = over_partitions(program_of_a_step(&self.client, &self.spec)?, &self.spec)?;
            self.single = Some(Arc::new(load(&self.client, program, &self.spec, &self.site)?));
        }
        Ok(())
    }

    /// As [`Session::train_call`], with a call that a feeder uploaded: one step or several.
    pub(super) fn advance(&mut self, call: Call) -> Result<Vec<Totals>, TrainError> {
        let Call { program, fed, is_single } = call;
        let n_steps = if is_single { 1 } else { u64::from(self.spec.steps_per_call.n().get()) };
        let _span = tracing::debug_span!("step", step = self.step, n_steps).entered();
        self.state.buffers()?;
        // The count of the step after the last one must fit as well.
        let count = i32::try_from(self.step + n_steps).ok().map(|_| self.step as i32);
        let count = count.ok_or_else(|| TrainError::counted(self.step))?;
        let Fed { parts, n_valid } = fed;
        let inputs = parts.into_iter().enumerate().map(|(replica, part)| program.inputs(part, count, replica));
        let inputs = inputs.collect::<Result<Vec<_>, TrainError>>()?;
        // From here on the execution owns the state, and returns it only if it succeeds.
        let lost = State::Lost(format!("step {} was interrupted", self.step + 1));
        let State::Held(state) = std::mem::replace(&mut self.state, lost) else {
            unreachable!("it was just looked at")
        };
        let of_replica = |(state, inputs): (Vec<Buffer>, Vec<Buffer>)| state.into_iter().chain(inputs).map(Arg::Donate);
        let args = state.into_iter().zip(inputs).map(|both| of_replica(both).collect()).collect();
        let mut results = program.executable.execute_sharded(args).map_err(|error| {
            self.state = State::Lost(format!("step {} failed: {error}", self.step + 1));
            error
        })?;
        let last = results.iter_mut().map(|results| results.split_off(program.variables.len()));
        // All devices of a replica have equal results: the first device's are used.
        let last: Vec<_> = last.collect::<Vec<_>>().into_iter().step_by(self.site.n_partitions as usize).collect();
        self.last_was_single = is_single;
        self.state = State::Held(results);
        self.step += n_steps;
        let last = self.last.insert(match &self.exchange {
            None => Results::Here(last),
            Some(exchange) => {
                let replicas: Vec<Vec<&Buffer>> = last.iter().map(|replica| replica.iter().collect()).collect();
                Results::Gathered(exchange.gather(&replicas)?)
            }
        });
        let mut totals = vec![program.no_totals(); n_steps as usize];
        for replica in 0..last.n_replicas() {
            let steps = program.read(last, replica, n_valid)?;
            totals.iter_mut().zip(&steps).for_each(|(totals, step)| totals.merge(step));
        }
        Ok(totals)
    }

    /// Compiles the program that watches steps of this session.
    pub(super) fn observer(&self) -> Result<Observer, TrainError> {
        Observer::new(&self.client, &self.spec, &objective_on(&self.client, &self.spec)?, self.site.clone())
    }

    /// Watches the next step on a replica, with its batch of `training`, which is not donated. A rise of the learning
    /// rate is searched for after the step `last`, counted from 1.
    pub(super) fn observe(
        &self,
        observer: &Observer,
        call: &Call,
        replica: usize,
        last: u64,
        training: &dyn Source,
    ) -> Result<WatchRecord, TrainError> {
        let state = self.state.buffers()?;
        let step = i32::try_from(self.step).map_err(|_| TrainError::counted(self.step))?;
        let mut rows = observer.observe(state, &call.fed, step, replica)?;
        note_columns(&mut rows, |feature| training.columns(feature));
        let is_scale = |variable: &VariableInfo| variable.name == "loss_scale/scale";
        let loss_scale = match self.variables().iter().position(is_scale) {
            None => match self.spec.objective.loss_scale {
                LossScale::Static { scale } => Some(scale),
                LossScale::None | LossScale::Dynamic { .. } => None,
            },
            Some(number) => {
                let mut word = [0; 4];
                state[0][number].copy_to_host(&mut word)?;
                Some(f64::from(f32::from_le_bytes(word)))
            }
        };
        Ok(WatchRecord {
            step: self.step + 1,
            learning_rate: self.learning_rate(),
            optimizer: self.spec.objective.update.optimizer.name().to_string(),
            variables: self.spec.variables.name().to_string(),
            loss_scale,
            decay: self.learning_rate() * self.spec.objective.update.plain_decay(),
            n_skipped: self.n_skipped()?,
            epsilon: self.spec.objective.update.optimizer.epsilon(),
            momentum: self.spec.objective.update.optimizer.momentum(),
            clip: self.spec.objective.update.clip.map(RecordedClip::from),
            rate_jump: RateJump::steepest(last, self.step + 1, |step| self.learning_rate_of(step - 1)),
            never_moves: (0..=self.step).all(|step| self.learning_rate_of(step) == 0.0),
            slow_statistics: observer.slow_statistics.clone(),
            rows,
        })
    }

    /// Scalars that the task named, of the last step; this call copies them to the host. Empty before the first step.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn scalars(&self) -> Result<Vec<(String, f64)>, TrainError> {
        let Some(last) = &self.last else { return Ok(Vec::new()) };
        match (&self.single, self.last_was_single) {
            (Some(single), true) => single.scalars(last),
            _ => self.training.scalars(last),
        }
    }

    /// Updates skipped because a gradient was not finite; `None` unless the loss scale is dynamic. A skipped step
    /// lowers the loss scale.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn n_skipped(&self) -> Result<Option<u64>, TrainError> {
        let is_count = |variable: &VariableInfo| variable.name == LossScale::N_SKIPPED;
        let Some(number) = self.variables().iter().position(is_count) else { return Ok(None) };
        let mut word = [0; 4];
        self.state.buffers()?[0][number].copy_to_host(&mut word)?;
        Ok(Some(u64::from(u32::from_le_bytes(word))))
    }

    /// The replicas, numbered from 0, on which the loss of a step of the last call, counted from 0, was not finite;
    /// empty if there is one replica.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub(super) fn not_finite_on(&self, step: usize) -> Result<Vec<usize>, TrainError> {
        let program = match (&self.single, self.last_was_single) {
            (Some(single), true) => single,
            _ => &self.training,
        };
        let mut replicas = Vec::new();
        let Some(last) = self.last.as_ref().filter(|last| last.n_replicas() > 1) else { return Ok(replicas) };
        for replica in 0..last.n_replicas() {
            let steps = program.read(last, replica, self.spec.batch as usize)?;
            if steps.get(step).and_then(Totals::loss).is_some_and(|loss| !loss.is_finite()) {
                replicas.push(replica);
            }
        }
        Ok(replicas)
    }

    /// Empty totals, to merge those of steps into.
    pub fn no_totals(&self) -> Totals {
        self.training.no_totals()
    }
}

/// The platform whose bf16 `all-reduce` sums in a wider dtype.
const CPU: &str = "cpu";

fn program_of_a_step(client: &Client, spec: &Spec) -> Result<TaskProgram, TrainError> {
    Ok(program::training(&*spec.task, spec.numbers(), i64::from(spec.batch), &objective_on(client, spec)?)?)
}

/// The objective as the devices of a client compute it.
fn objective_on(client: &Client, spec: &Spec) -> Result<Objective, TrainError> {
    let mut objective = spec.objective.clone();
    if objective.mesh.has_replicas() && client.platform_name()? == CPU {
        objective.mesh = objective.mesh.written_out();
    }
    Ok(objective)
}

/// The program partitioned over the devices of each replica, and the axis along which each parameter is split.
fn over_partitions(program: TaskProgram, spec: &Spec) -> Result<(TaskProgram, BTreeMap<String, usize>), TrainError> {
    let Objective { mesh, split, .. } = &spec.objective;
    if mesh.model.get() == 1 {
        return Ok((program, BTreeMap::new()));
    }
    let laid = over_model_axis(&program.program.module, mesh.model.get(), split, mesh.sum);
    let (module, report) = laid.map_err(program::ProgramError::from)?;
    let program = TaskProgram { program: Program { module, ..program.program }, ..program };
    Ok((program, report.split.into_iter().collect()))
}

fn load(client: &Client, program: TaskProgram, spec: &Spec, site: &Site) -> Result<Loaded, TrainError> {
    let n_state = program.program.variables.len();
    Loaded::new(client, program, n_state, spec.task.features(), spec.batch, site.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resumption;
    use bf16scope_data::{ArrayInfo, Arrays, NamedArray};
    use bf16scope_hlo::DType;
    use bf16scope_model::graph::Precision;
    use bf16scope_model::models::{Model, mlp};
    use bf16scope_pjrt::{Platform, Setup};
    use std::path::Path;

    #[test]
    fn a_step_that_fails_loses_the_state_and_says_so_until_it_is_restored() {
        let client = Client::for_platform(&Platform::cpu(), &Setup::from_env()).unwrap();
        let new = |hidden: i64| {
            let model = Model::Mlp(mlp::Config { hidden: vec![hidden], ..mlp::Config::new([4], 2) });
            let spec = Spec { precision: Precision::F32, batch: 2, ..Spec::new(model.task(0.0)) };
            Session::new(&client, spec).unwrap()
        };
        let mut session = new(3);
        let checkpoint = session.checkpoint(1).unwrap();
        let array = |name: &str, dtype, dims: &[i64], bytes| NamedArray {
            name: name.to_string(),
            dtype,
            dims: dims.to_vec(),
            bytes,
        };
        let images = array("images", DType::F32, &[2, 4], vec![0; 2 * 4 * 4]);
        let labels = array("labels", DType::S32, &[2], vec![0, 0, 0, 0, 1, 0, 0, 0]);
        let of_source = |array: &NamedArray| {
            let (name, dims) = (array.name.clone(), array.dims[1..].to_vec());
            (ArrayInfo::new(&name, array.dtype, dims), array.bytes.clone())
        };
        let source = Arrays::new(Path::new("two.npz"), vec![of_source(&images), of_source(&labels)]).unwrap();
        let batch = Batch { arrays: vec![images, labels], n_valid: 2 };
        // The program of another model causes a failure after the state was donated.
        let mut program = new(5).training;
        std::mem::swap(&mut session.training, &mut program);
        let failure = session.train(&batch).unwrap_err().to_string();
        let lost = format!(
            "the session has no state: step 1 failed: {failure}\n\
             help: restore a checkpoint, or make another session; nothing was saved"
        );
        let evaluator = session.evaluator(2).unwrap();
        let later = [
            session.train(&batch).map(drop),
            session.state().map(drop),
            session.checkpoint(1).map(drop),
            session.evaluate(&evaluator, &source).map(drop),
        ];
        assert_eq!(later.map(|result| result.unwrap_err().to_string()), [(); 4].map(|()| lost.clone()));
        std::mem::swap(&mut session.training, &mut program);
        session.restore(Path::new("before"), &checkpoint, Resumption::default()).unwrap();
        assert_eq!(session.checkpoint(1).unwrap(), checkpoint);
        session.train(&batch).unwrap();
    }
}
