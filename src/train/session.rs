//! A task on a device: its compiled training program, and its state, which stays there between steps.
//!
//! A step donates the state and gets the new state back in its place; only the loss and metrics come to the host. This
//! file knows one step and one evaluation; epochs, checkpoints on disk and stopping are [`run`](super::run)'s.

use super::change::Change;
use super::checkpoint::{Checkpoint, CheckpointError, DataIdentity, FunctionHash, HostArray, Position, Settings};
use super::device::{
    Fed, Loaded, Results, check_memory, download, initial_state, n_bytes, n_elements, shape_of, upload_state,
};
use super::error::{DATA, EXPERIMENT, STATE, TrainError, VERSION};
use super::evaluation::{Evaluation, Evaluator, Predictor};
use super::hosts::{Exchange, Site};
use super::initialize::{Initialization, InitializeFrom};
use super::l2::l2;
use super::model_axis::over_model_axis;
use super::objective::Objective;
use super::observer::Observer;
use super::program::{self, TaskProgram};
use super::resume::{
    INITIALIZED, Resumption, check_data as check_resumed_data, function_of, settings, stores_otherwise,
};
use super::spec::Spec;
use super::steps_per_call::several_steps;
use super::totals::Totals;
use super::watch::WatchRecord;
use crate::data::{Batch, DrawVersion, NamedArray, ORDER_VERSION, Source};
use crate::graph::{Numbers, Program, VariableInfo};
use crate::optim::{Average, LossScale};
use crate::pjrt::{Arg, Buffer, Client};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A task on a device.
#[derive(Debug)]
pub struct Session {
    spec: Spec,
    client: Client,
    /// The program of a call.
    training: Arc<Loaded>,
    /// The program of one step, where a call makes several; compiled when it is needed.
    single: Option<Arc<Loaded>>,
    state: State,
    /// What the last call gave beside the state; nothing before the first.
    last: Option<Results>,
    last_was_single: bool,
    step: u64,
    /// Those that the run began with.
    draws: DrawVersion,
    resumed: Option<Resumed>,
    /// What the run began with, where that is not what it begins with by itself.
    initialized: Option<serde_json::Value>,
    function: Option<FunctionHash>,
    site: Site,
    /// Where there are several hosts.
    exchange: Option<Exchange>,
}

/// What one host of a slice wants before the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// To save and end the run: it was asked to.
    pub stop: bool,
    /// To save: it is time.
    pub save: bool,
    /// It cannot go on.
    pub failed: bool,
}

/// What the data of a run that goes on must be.
#[derive(Clone, Debug)]
struct Resumed {
    path: PathBuf,
    steps_per_epoch: u64,
    data: Option<DataIdentity>,
    /// A hash of its state.
    state: [u8; 32],
}

/// The variables on the device of each replica of this host, in the program's order: whole, or its part of them. Of what is whole the first's are those that are kept, evaluated and used:
/// others differ from them in what is of a replica's own, a batch norm's statistics and random states.
#[derive(Debug)]
enum State {
    Held(Vec<Vec<Buffer>>),
    /// Given to an execution that failed: which, and why.
    Lost(String),
}

impl State {
    /// Each replica's.
    fn buffers(&self) -> Result<&[Vec<Buffer>], TrainError> {
        match self {
            State::Held(replicas) => Ok(replicas),
            State::Lost(lost) => Err(TrainError::Lost { lost: lost.clone() }),
        }
    }
}

/// Puts batches on the devices of a session.
#[derive(Debug)]
pub(super) struct Feeder {
    training: Arc<Loaded>,
    single: Option<Arc<Loaded>>,
}

/// A batch on the devices, and the program that it is for.
#[derive(Debug)]
pub(super) struct Call {
    program: Arc<Loaded>,
    fed: Fed,
    /// Whether it is of one step, where calls make several.
    is_single: bool,
}

impl Feeder {
    /// The batch of `n` steps, the first of which is `step`.
    pub fn put(&self, batch: &Batch, step: u64, n: u32) -> Result<Call, TrainError> {
        let single = self.single.as_ref().filter(|_| n == 1);
        let program = Arc::clone(single.unwrap_or(&self.training));
        let fed = program.put(batch, step, false)?;
        Ok(Call { program, fed, is_single: single.is_some() })
    }
}

impl Session {
    /// Builds and compiles the training program, and puts the initial state on the devices of its mesh.
    ///
    /// # Errors
    /// Where the task cannot be built, compiled or held.
    pub fn new(client: &Client, spec: Spec) -> Result<Session, TrainError> {
        let mut site = Site::of(client, spec.objective.mesh)?;
        let program = several_steps(program_of_a_step(client, &spec)?, spec.steps_per_call)?;
        let (program, split) = over_partitions(program, &spec)?;
        site.split = Arc::new(split);
        check_memory(&spec, &site, &program.program.variables, 0)?;
        let training = load(client, program, &spec, &site)?;
        // A client that does not say has been asked for what is sure.
        let temporaries = training.executable.compiled().memory_stats().map_or(0, |stats| stats.temporaries.max(0));
        check_memory(&spec, &site, &training.variables, temporaries as u128)?;
        let _span = tracing::info_span!("initialise", seed = spec.seed).entered();
        let state = State::Held(initial_state(client, &training.variables, &spec, &site)?);
        let (client, function) = (client.clone(), function_of(&*spec.task));
        let (last, resumed, initialized, exchange) = (None, None, None, Exchange::of(&client, &site));
        Ok(Session {
            spec,
            client,
            training: Arc::new(training),
            single: None,
            state,
            last,
            last_was_single: false,
            step: 0,
            draws: DrawVersion::default(),
            resumed,
            initialized,
            function,
            site,
            exchange,
        })
    }

    /// Which host of a slice this is, from 0, and how many there are: `(0, 1)` where all devices are of this process. Of
    /// several, each has a session of its own, and all must ask the same of theirs, in the same order; the first evaluates and
    /// writes.
    pub fn host(&self) -> (u32, u32) {
        (self.site.host, self.site.n_hosts)
    }

    fn here(&self) -> (&Site, Option<&Exchange>) {
        (&self.site, self.exchange.as_ref())
    }

    /// The program of a call as the compiler of its devices made it: a serialized `HloModuleProto`.
    ///
    /// # Errors
    /// Where the plugin fails, or gives none.
    pub fn optimized_program(&self) -> Result<Vec<u8>, TrainError> {
        Ok(self.training.executable.compiled().optimized_program()?)
    }

    /// The replicas whose devices are of this host, numbered from 0 over all hosts.
    pub fn replicas(&self) -> std::ops::Range<usize> {
        self.site.replicas.clone()
    }

    /// Makes the wishes of all hosts one: any may stop or end the run, the first says when it is time to save.
    ///
    /// # Errors
    /// [`TrainError::OtherHost`] where another cannot go on; where the plugin fails.
    pub(super) fn agree(&self, own: Wish) -> Result<Wish, TrainError> {
        let Some(exchange) = &self.exchange else { return Ok(own) };
        let all = exchange.say([own.stop, own.save, own.failed].map(i32::from))?;
        let is_own = |host: usize| host == self.site.host as usize;
        match all.iter().position(|&[_, _, failed]| failed != 0) {
            // Whoever failed has a better error.
            Some(_) if own.failed => Ok(own),
            Some(host) if !is_own(host) => Err(TrainError::OtherHost { host }),
            _ => Ok(Wish { stop: all.iter().any(|&[stop, ..]| stop != 0), save: all[0][1] != 0, failed: false }),
        }
    }

    /// What one host did, once all know whether they all could.
    ///
    /// # Errors
    /// Its own; [`TrainError::OtherHost`].
    pub(super) fn together<T>(&self, own: Result<T, TrainError>) -> Result<T, TrainError> {
        let agreed = self.agree(Wish { failed: own.is_err(), ..Wish::default() });
        let own = own?;
        agreed.map(|_| own)
    }

    /// Whether all hosts are about to make the same steps.
    ///
    /// # Errors
    /// [`TrainError::HostsDiffer`].
    pub(super) fn check_hosts(&self, n_epochs: u64, data: &DataIdentity) -> Result<(), TrainError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let all = exchange.say(self.identity_of_run(n_epochs, data))?;
        for (what, words) in [VERSION, EXPERIMENT, DATA, STATE].into_iter().zip(0..) {
            let digest = |host: &[i32; N_IDENTITY_WORDS]| host.as_chunks::<N_DIGEST_WORDS>().0[words];
            if let Some(host) = all.iter().position(|host| digest(host) != digest(&all[0])) {
                return Err(TrainError::HostsDiffer { host, what });
            }
        }
        Ok(())
    }

    /// What a host is about to do, for others to compare: digests of the version, of what was asked for, of the data and of the
    /// state. What is hashed is canonical JSON, whose keys are sorted, and no text that a compiler makes.
    fn identity_of_run(&self, n_epochs: u64, data: &DataIdentity) -> [i32; N_IDENTITY_WORDS] {
        let Spec { precision, batch, seed, steps_per_call, .. } = &self.spec;
        let asked = json!({
            "settings": settings(&self.spec),
            "precision": precision.to_string(),
            "batch": batch,
            "seed": seed,
            "n_epochs": n_epochs,
            "steps_per_call": steps_per_call.to_string(),
        });
        let state = self.resumed.as_ref().map_or([0; 32], |resumed| resumed.state);
        let initialized = self.initialized.as_ref().map(|record| record["sha256"].to_string()).unwrap_or_default();
        let start = [self.step.to_le_bytes().as_slice(), &state, initialized.as_bytes()].concat();
        let digests = [
            Sha256::digest(env!("CARGO_PKG_VERSION")),
            Sha256::digest(asked.to_string()),
            Sha256::digest(json!(data).to_string()),
            Sha256::digest(start),
        ];
        let mut words = [0; N_IDENTITY_WORDS];
        let bytes: Vec<u8> = digests.into_iter().flatten().collect();
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = i32::from_le_bytes(*bytes);
        }
        words
    }

    /// What it trains.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What an evaluation reads: averages are f32, whatever their variables are stored in.
    fn numbers_read(&self, by_averages: bool) -> Numbers {
        if by_averages { self.spec.precision.into() } else { self.spec.numbers() }
    }

    /// Names of the variables that the optimizer updates.
    pub fn trainable(&self) -> Vec<&str> {
        self.variables().iter().filter(|variable| variable.trainable).map(|variable| variable.name.as_str()).collect()
    }

    /// How many numbers the optimizer updates.
    pub fn n_parameters(&self) -> u128 {
        self.variables().iter().filter(|variable| variable.trainable).map(n_elements).sum()
    }

    /// How many numbers would be updated, but that they are frozen ([`Objective::trainable`]).
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

    /// Updates made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate_of(self.step)
    }

    /// The learning rate of the step that so many come before.
    pub(super) fn learning_rate_of(&self, step: u64) -> f64 {
        self.spec.objective.update.rate_at(u32::try_from(step).unwrap_or(u32::MAX))
    }

    /// One update. Gives the loss and the metrics of the batch, before the update.
    ///
    /// # Errors
    /// [`TrainError::Batch`] where the batch is not what the program takes (size, names, dims, dtypes, an integer out of
    /// its range): the session is then as it was, as it is where a session whose calls make several steps cannot compile
    /// the program of one. Where the plugin fails, the state is lost, and the session says so from then on.
    pub fn train(&mut self, batch: &Batch) -> Result<Totals, TrainError> {
        self.load_single_step()?;
        let fed = self.feeder().put(batch, self.step, 1)?;
        Ok(self.advance(fed)?.remove(0))
    }

    /// As many updates as a call makes ([`Spec::steps_per_call`]), in one call of the device, with as many batches as one:
    /// the first step's examples first, as [`Loader::steps`](crate::data::Loader::steps) gives them. Gives the loss and the
    /// metrics of each batch, before its update.
    ///
    /// # Errors
    /// As [`Session::train`].
    pub fn train_call(&mut self, batches: &Batch) -> Result<Vec<Totals>, TrainError> {
        let fed = self.feeder().put(batches, self.step, self.spec.steps_per_call.n().get())?;
        self.advance(fed)
    }

    /// What puts batches on the devices of this session: from another thread too, while a step is made.
    pub(super) fn feeder(&self) -> Feeder {
        Feeder { training: Arc::clone(&self.training), single: self.single.clone() }
    }

    /// Compiles the program of one step, where there is none yet.
    pub(super) fn load_single_step(&mut self) -> Result<(), TrainError> {
        if self.single.is_none() && self.spec.steps_per_call.n().get() > 1 {
            let (program, _) = over_partitions(program_of_a_step(&self.client, &self.spec)?, &self.spec)?;
            self.single = Some(Arc::new(load(&self.client, program, &self.spec, &self.site)?));
        }
        Ok(())
    }

    /// As [`Session::train_call`], with what a feeder put on the devices: of one step or of several.
    pub(super) fn advance(&mut self, call: Call) -> Result<Vec<Totals>, TrainError> {
        let Call { program, fed, is_single } = call;
        let n_steps = if is_single { 1 } else { u64::from(self.spec.steps_per_call.n().get()) };
        let _span = tracing::debug_span!("step", step = self.step, n_steps).entered();
        self.state.buffers()?;
        // The step after the last of these is counted too.
        let count = i32::try_from(self.step + n_steps).ok().map(|_| self.step as i32);
        let count = count.ok_or(TrainError::Counted { step: self.step })?;
        let Fed { parts, n_valid } = fed;
        let inputs = parts.into_iter().enumerate().map(|(replica, part)| program.inputs(part, count, replica));
        let inputs = inputs.collect::<Result<Vec<_>, TrainError>>()?;
        // From here on the state belongs to the execution, and comes back only if that succeeds.
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
        // What all devices of a replica have is its first's.
        let last: Vec<_> = last.collect::<Vec<_>>().into_iter().step_by(self.site.n_partitions as usize).collect();
        self.last_was_single = is_single;
        self.state = State::Held(results);
        self.step += n_steps;
        let last = self.last.insert(match &self.exchange {
            None => Results::Here(last),
            Some(exchange) => {
                let own: Vec<Vec<&Buffer>> = last.iter().map(|replica| replica.iter().collect()).collect();
                Results::Gathered(exchange.gather(&own)?)
            }
        });
        let mut totals = vec![program.no_totals(); n_steps as usize];
        for replica in 0..last.n_replicas() {
            let steps = program.read(last, replica, n_valid)?;
            totals.iter_mut().zip(&steps).for_each(|(totals, step)| totals.merge(step));
        }
        Ok(totals)
    }

    /// What looks at steps of this session.
    pub(super) fn observer(&self) -> Result<Observer, TrainError> {
        Observer::new(&self.client, &self.spec, &objective_on(&self.client, &self.spec)?, self.site.clone())
    }

    /// Looks at what a replica has of the step that is about to be made with a batch of one step, which stays.
    pub(super) fn observe(&self, observer: &Observer, call: &Call, replica: usize) -> Result<WatchRecord, TrainError> {
        let state = self.state.buffers()?;
        let step = i32::try_from(self.step).map_err(|_| TrainError::Counted { step: self.step })?;
        let rows = observer.observe(state, &call.fed, step, replica)?;
        let is_scale = |variable: &VariableInfo| variable.name == "loss_scale/scale";
        let loss_scale = match self.variables().iter().position(is_scale) {
            None => None,
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
            rows,
        })
    }

    /// Scalars that the task named, of the last step: only now they come to the host. Nothing before the first step.
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

    /// Steps whose update was left out, because a gradient was not finite; only of a dynamic loss scale, which tries again
    /// with a smaller one.
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

    /// The replicas, numbered from 0, on which the loss of a step of the last call, counted from 0, was not finite; nothing
    /// of one replica.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub(super) fn not_finite_on(&self, step: usize) -> Result<Vec<usize>, TrainError> {
        let program = match (&self.single, self.last_was_single) {
            (Some(single), true) => single,
            _ => &self.training,
        };
        let mut found = Vec::new();
        let Some(last) = self.last.as_ref().filter(|last| last.n_replicas() > 1) else { return Ok(found) };
        for replica in 0..last.n_replicas() {
            let steps = program.read(last, replica, self.spec.batch as usize)?;
            if steps.get(step).and_then(Totals::loss).is_some_and(|loss| !loss.is_finite()) {
                found.push(replica);
            }
        }
        Ok(found)
    }

    /// Totals of no step, to merge those of steps into.
    pub fn no_totals(&self) -> Totals {
        self.training.no_totals()
    }

    /// The state on the host: variables and slots by name.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn state(&self) -> Result<BTreeMap<String, HostArray>, TrainError> {
        let (state, here) = (self.state.buffers()?, self.here());
        let host = |(number, variable): (usize, &VariableInfo)| {
            let array = HostArray { shape: shape_of(variable), bytes: download(variable, number, state, here)? };
            Ok((variable.name.clone(), array))
        };
        self.variables().iter().enumerate().map(host).collect()
    }

    /// A checkpoint of this moment.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn checkpoint(&self, steps_per_epoch: u64) -> Result<Checkpoint, TrainError> {
        let Spec { precision, batch, seed, .. } = &self.spec;
        let (order, draws, precision) = (ORDER_VERSION, self.draws.number(), *precision);
        let position =
            Position { step: self.step, steps_per_epoch, batch: *batch, seed: *seed, precision, order, draws };
        let (settings, function) = (self.settings(), self.function.clone());
        Ok(Checkpoint { position, settings, function, data: None, variables: self.state()? })
    }

    /// The settings of the run, and what it began with.
    pub fn settings(&self) -> Settings {
        let mut settings = settings(&self.spec);
        if let Some(initialized) = &self.initialized {
            settings.0["train"][INITIALIZED] = initialized.clone();
        }
        settings
    }

    /// Begins with weights of another run or another framework instead of its own: before the first step. Slots and averages
    /// are as at the beginning of any run; averages start from these weights.
    ///
    /// # Errors
    /// A number that is too large for what it is stored in. Where the plugin fails, the state is lost.
    pub fn initialize(&mut self, initialization: Initialization) -> Result<(), TrainError> {
        let (file, record) = (initialization.file().display().to_string(), initialization.record().clone());
        let initial = self.checkpoint(1)?;
        let state = initialization.into_state(self.variables(), initial, self.spec.seed)?;
        let arrays: Vec<&HostArray> = self.variables().iter().map(|variable| &state[&variable.name]).collect();
        self.state = State::Lost(format!("initializing from {file} failed"));
        self.state = State::Held(upload_state(&self.client, self.variables(), &arrays, &self.site)?);
        self.initialized = Some(record);
        Ok(())
    }

    /// Back to the beginning of its run: to initial values of its seed, or to the weights that it was initialized from, which
    /// are read again.
    ///
    /// # Errors
    /// Weights that cannot be read, or are others now. Where the plugin fails, the state is lost.
    pub fn restart(&mut self) -> Result<(), TrainError> {
        let before = self.initialized.take();
        let initialization =
            before.as_ref().map(|record| InitializeFrom::of_record(record).read(&self.spec)).transpose();
        let initialization = initialization.inspect_err(|_| self.initialized.clone_from(&before))?;
        if let Some((before, now)) = before.as_ref().zip(initialization.as_ref())
            && before["sha256"] != now.record()["sha256"]
        {
            let text = |record: &serde_json::Value| record["sha256"].as_str().unwrap_or_default().to_string();
            let change = Change::new("train.initialize_from.sha256", text(before), text(now.record()));
            let path = now.file().to_path_buf();
            self.initialized.clone_from(&Some(before.clone()));
            return Err(TrainError::Resume { path, changes: vec![change] });
        }
        self.state = State::Lost("going back to the initial state failed".to_string());
        self.state = State::Held(initial_state(&self.client, self.variables(), &self.spec, &self.site)?);
        (self.step, self.draws, self.resumed, self.last) = (0, DrawVersion::default(), None, None);
        initialization.map_or(Ok(()), |initialization| self.initialize(initialization))
    }

    /// As [`Session::checkpoint`], on the first host of a slice; the others do their part in gathering what is sharded.
    pub(super) fn checkpoint_of_first(&self, steps_per_epoch: u64) -> Result<Option<Checkpoint>, TrainError> {
        if self.site.is_first() {
            return self.checkpoint(steps_per_epoch).map(Some);
        }
        let (state, here) = (self.state.buffers()?, self.here());
        for (number, variable) in self.variables().iter().enumerate().filter(|(_, variable)| variable.part.is_some()) {
            download(variable, number, state, here)?;
        }
        Ok(None)
    }

    /// Goes on from a checkpoint, read from `path`. Gives the settings that have changed since, and may; with `resumption`
    /// one can let a task's settings change that otherwise may not. Where `variables` or `slots` are stored in another way
    /// now, they are converted: f32 rounded to nearest, bf16 as it is.
    ///
    /// # Errors
    /// A checkpoint that no run leaves, of another task, or of a run with other settings that may not change; the session is
    /// then as it was. Where the plugin fails, the state is lost.
    pub fn restore(
        &mut self,
        path: &Path,
        checkpoint: &Checkpoint,
        resumption: Resumption,
    ) -> Result<Vec<Change>, TrainError> {
        checkpoint.check().map_err(|fault| CheckpointError::Unsound { path: path.to_path_buf(), fault })?;
        let converted = match stores_otherwise(checkpoint, &self.spec) {
            true => Some(checkpoint.stored_as(path, self.variables(), self.spec.seed)?),
            false => None,
        };
        let checkpoint = converted.as_ref().unwrap_or(checkpoint);
        let wanted = self.variables().iter().map(|variable| (variable.name.as_str(), shape_of(variable)));
        let average = self.spec.objective.average.as_ref();
        let arrays = checkpoint.resumed(path, &wanted.collect::<Vec<_>>(), average)?;
        let changes = resumption.check(path, checkpoint, &self.spec)?;
        // What was there goes first: there is memory for two states, and the checkpoint is one of them.
        self.state = State::Lost(format!("restoring {} failed", path.display()));
        self.state = State::Held(upload_state(&self.client, self.variables(), &arrays, &self.site)?);
        self.step = checkpoint.position.step;
        self.draws = DrawVersion::of(checkpoint.position.draws).unwrap_or_default();
        self.initialized = checkpoint.settings.0["train"].get(INITIALIZED).cloned();
        self.last = None;
        let steps_per_epoch = checkpoint.position.steps_per_epoch;
        let data = checkpoint.data.clone();
        let state = match &self.exchange {
            None => [0; 32],
            Some(_) => {
                arrays.iter().fold(Sha256::new(), |hash, array| hash.chain_update(&array.bytes)).finalize().into()
            }
        };
        self.resumed = Some(Resumed { path: path.to_path_buf(), steps_per_epoch, data, state });
        Ok(changes)
    }

    /// How the run draws crops, flips and masks: as it began.
    pub(super) fn draws(&self) -> DrawVersion {
        self.draws
    }

    /// The checkpoint that it goes on from, where one was restored.
    pub(super) fn resumed_from(&self) -> Option<&Path> {
        self.resumed.as_ref().map(|resumed| resumed.path.as_path())
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
                let changes = vec![Change::new("data.steps_per_epoch", before, now)];
                Err(TrainError::Resume { path: resumed.path.clone(), changes })
            }
        }
    }

    /// An evaluator of this session's task, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the program cannot be built or compiled.
    pub fn evaluator(&self, batch: u32) -> Result<Evaluator, TrainError> {
        let Spec { task, objective, .. } = &self.spec;
        let by_averages = objective.average.is_some_and(|average| average.evaluate);
        Evaluator::new(&self.client, task, self.numbers_read(by_averages), batch, &objective.tuning)
    }

    /// Evaluates the state of this moment, on the first host of a slice (on others, the evaluation is of no examples): averages of variables where there are any, unless
    /// [`Average::evaluate`](crate::optim::Average::evaluate) says otherwise.
    ///
    /// # Errors
    /// Examples that the task does not take; [`TrainError::Metric`]; where the plugin fails.
    pub fn evaluate(&self, evaluator: &Evaluator, source: &dyn Source) -> Result<Evaluation, TrainError> {
        let by_averages = self.spec.objective.average.is_some_and(|average| average.evaluate);
        evaluator.of_state(self.variables(), self.state.buffers()?, by_averages, source, self.here())
    }

    /// What L2 adds to the loss, with the variables that [`Session::evaluate`] reads; none where there is no L2: weight decay
    /// that is a term of the loss ([`Update::l2`](crate::optim::Update::l2)). All hosts of a slice must ask.
    ///
    /// # Errors
    /// Where the plugin fails.
    pub fn l2(&self) -> Result<Option<f64>, TrainError> {
        let (state, variables) = (self.state.buffers()?, self.variables());
        let by_averages = self.spec.objective.average.is_some_and(|average| average.evaluate);
        l2(&self.spec.objective.update, variables, |number| {
            let average = Average::name_of(&variables[number].name);
            let average = variables.iter().position(|variable| by_averages && variable.name == average);
            let number = average.unwrap_or(number);
            Ok((variables[number].dtype, download(&variables[number], number, state, self.here())?))
        })
    }

    /// A predictor of this session's task, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the program cannot be built or compiled.
    pub fn predictor(&self, batch: u32) -> Result<Predictor, TrainError> {
        let Spec { task, objective, .. } = &self.spec;
        Predictor::new(&self.client, &**task, self.numbers_read(objective.average.is_some()), batch, &objective.tuning)
    }

    /// Predicts all examples of `source` in order, with the state of this moment, averages of variables where there are any;
    /// see [`Predictor::predict`].
    ///
    /// # Errors
    /// Examples that the task does not take; where the plugin fails; whatever `take` gives.
    pub fn predict<E: From<TrainError>>(
        &self,
        predictor: &Predictor,
        source: &dyn Source,
        take: impl FnMut(Vec<NamedArray>) -> Result<(), E>,
    ) -> Result<(), E> {
        let by_averages = self.spec.objective.average.is_some();
        predictor.of_state(self.variables(), self.state.buffers()?, by_averages, source, self.here(), take)
    }
}

/// 32-bit words in a SHA-256.
const N_DIGEST_WORDS: usize = 8;

/// Words of the digests that hosts compare: of version, experiment, data and state.
const N_IDENTITY_WORDS: usize = 4 * N_DIGEST_WORDS;

/// The platform of a plugin that sums a bf16 `all-reduce` in more.
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

/// The program over the devices of each replica, which sum as the replicas do, and what they split along which axis.
fn over_partitions(program: TaskProgram, spec: &Spec) -> Result<(TaskProgram, BTreeMap<String, usize>), TrainError> {
    let Objective { mesh, split, .. } = &spec.objective;
    if mesh.model.get() == 1 {
        return Ok((program, BTreeMap::new()));
    }
    let laid = over_model_axis(program.program.module, mesh.model.get(), split, mesh.sum);
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
    use crate::data::{ArrayInfo, Arrays, Fingerprint};
    use crate::graph::Precision;
    use crate::hlo::DType;
    use crate::models::{Model, mlp};
    use crate::pjrt::{Platform, Setup};

    /// Earlier, 32 bits of each, of what the compiler prints of a type.
    #[test]
    fn hosts_compare_whole_digests_of_canonical_text() {
        let client = Client::of(&Platform::cpu(), &Setup::from_env()).unwrap();
        let model = Model::Mlp(mlp::Config { hidden: vec![3], ..mlp::Config::new([4], 2) });
        let session = Session::new(&client, Spec { batch: 2, ..Spec::new(model.task(0.0)) }).unwrap();
        let fingerprint = |hash: &str| {
            let arrays = [("a".to_string(), hash.to_string())];
            Fingerprint { n_examples: 2, arrays: arrays.into_iter().collect() }
        };
        let data = |hash| DataIdentity { training: fingerprint(hash), test: fingerprint("1f") };
        let digests = |n_epochs, hash| {
            let words = session.identity_of_run(n_epochs, &data(hash));
            words.as_chunks::<N_DIGEST_WORDS>().0.iter().map(|digest| digest.map(i32::to_le_bytes)).collect::<Vec<_>>()
        };
        let own = digests(3, "0e");
        let text = concat!(
            r#"{"test":{"arrays":{"a":"1f"},"n_examples":2},"#,
            r#""training":{"arrays":{"a":"0e"},"n_examples":2}}"#
        );
        assert_eq!(own[2].as_flattened(), &Sha256::digest(text)[..]);
        let same = |other: Vec<_>| (0..4).map(|number| own[number] == other[number]).collect::<Vec<_>>();
        assert_eq!(same(digests(3, "0e")), [true; 4]);
        assert_eq!(same(digests(4, "0e")), [true, false, true, true]);
        assert_eq!(same(digests(3, "0f")), [true, true, false, true]);
    }

    #[test]
    fn a_step_that_fails_loses_the_state_and_says_so_until_it_is_restored() {
        let client = Client::of(&Platform::cpu(), &Setup::from_env()).unwrap();
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
        // The program of another model stands in for an execution that fails: it has the state by then.
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
