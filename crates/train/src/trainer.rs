//! Training in one call: a task, options and arrays in, a trained model out.
//!
//! [`Trainer`] describes what is trained and for how long, [`Trainer::fit`] trains, and [`Trained`] evaluates and
//! predicts. It is a thin layer over [`Session`] and [`run`](super::run()): use those for a custom loop, or for a
//! session that stays on the device between runs.
//!
//! Errors use the program's names of options: `--resume` is [`Trainer::resume`], `--checkpoint` is
//! [`Trainer::checkpoint`], `--batch` is [`Trainer::batch`], `--other-function` and the like are
//! [`Trainer::resumption`].

use super::batches::Data;
use super::callbacks::Callbacks;
use super::change::Change;
use super::checkpoint::{Checkpoint, Place};
use super::epoch_report::EpochReport;
use super::error::TrainError;
use super::evaluation::{Evaluation, Evaluator, Predictor};
use super::initialize::InitializeFrom;
use super::mesh::Mesh;
use super::objective::Objective;
use super::predictions::Predictions;
use super::program_error::ProgramError;
use super::resume::{Resumption, check_data};
use super::session::Session;
use super::spec::Spec;
use super::training_loop::{Event, RunPlan, Summary, check, check_average, evaluation_batch, run_until};
use bf16scope_data::{NamedArray, Source};
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_model::optim::{LearningRate, Optimizer, WeightDecay};
use bf16scope_model::task::Task;
use bf16scope_pjrt::Client;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// A task and its training options. Defaults: one epoch in bf16, in batches of 32, with the default [`Objective`], on
/// the CPU.
///
/// The example of this [crate](crate) trains one.
#[must_use = "`fit` trains"]
pub struct Trainer<'a> {
    spec: Spec,
    n_epochs: u64,
    client: Option<Client>,
    checkpoint: Option<PathBuf>,
    resume: Option<PathBuf>,
    initialize_from: Option<InitializeFrom>,
    resumption: Resumption,
    callbacks: Callbacks,
    stop: Option<&'a AtomicBool>,
    observe: Box<dyn FnMut(Event<'_>) + 'a>,
    is_enough: Box<dyn FnMut(&EpochReport) -> bool + 'a>,
    /// An invalid option, which `fit` reports.
    impossible: Option<ProgramError>,
}

impl fmt::Debug for Trainer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trainer { spec, n_epochs, client, checkpoint, resume, initialize_from, resumption, stop, .. } = self;
        f.debug_struct("Trainer")
            .field("spec", spec)
            .field("n_epochs", n_epochs)
            .field("client", client)
            .field("checkpoint", checkpoint)
            .field("resume", resume)
            .field("initialize_from", initialize_from)
            .field("resumption", resumption)
            .field("stop", stop)
            .finish_non_exhaustive()
    }
}

impl<'a> Trainer<'a> {
    /// A task with default options.
    pub fn new(task: impl Task + 'static) -> Trainer<'a> {
        Trainer::from_spec(Spec::new(task))
    }

    /// The training of a [`Spec`], such as that of an experiment.
    pub fn from_spec(spec: Spec) -> Trainer<'a> {
        Trainer {
            spec,
            n_epochs: 1,
            client: None,
            checkpoint: None,
            resume: None,
            initialize_from: None,
            resumption: Resumption::default(),
            callbacks: Callbacks::default(),
            stop: None,
            observe: Box::new(|_| {}),
            is_enough: Box::new(|_| false),
            impossible: None,
        }
    }

    /// Passes over the training examples, including those before a resumption; with 0, the checkpoint holds the initial
    /// state. Default 1.
    pub fn epochs(self, n: u64) -> Trainer<'a> {
        Trainer { n_epochs: n, ..self }
    }

    /// Examples in a batch. Default 32.
    pub fn batch(mut self, n: u32) -> Trainer<'a> {
        self.spec.batch = n;
        self
    }

    /// The seed of initial values, of the order of examples and of all random draws. Default 0.
    pub fn seed(mut self, seed: u64) -> Trainer<'a> {
        self.spec.seed = seed;
        self
    }

    /// The dtype that the network computes in. Default bf16.
    pub fn precision(mut self, precision: Precision) -> Trainer<'a> {
        self.spec.precision = precision;
        self
    }

    /// The storage of variables. Default f32.
    pub fn variables(mut self, storage: Storage) -> Trainer<'a> {
        self.spec.variables = storage;
        self
    }

    /// The number of pixels by which training images are shifted at most, at random. Default 0.
    pub fn shift(mut self, n_pixels: u32) -> Trainer<'a> {
        self.spec.shift = n_pixels;
        self
    }

    /// The optimizer, such as `Momentum { momentum: 0.9, ..Momentum::default() }`.
    pub fn optimizer(mut self, optimizer: impl Into<Optimizer>) -> Trainer<'a> {
        self.spec.objective.update.optimizer = optimizer.into();
        self
    }

    /// The learning rate at each step: a schedule, or a number such as `1e-3`.
    pub fn learning_rate(mut self, learning_rate: impl Into<LearningRate>) -> Trainer<'a> {
        self.spec.objective.update.learning_rate = learning_rate.into();
        self
    }

    /// Weight decay, added to gradients or subtracted from variables: a [`WeightDecay`], or its factor.
    pub fn weight_decay(mut self, weight_decay: impl Into<WeightDecay>) -> Trainer<'a> {
        self.spec.objective.update.weight_decay = weight_decay.into();
        self
    }

    /// The number of devices that share every batch in equal parts: [`Mesh::replicas`]. Default 1.
    pub fn replicas(self, n: u32) -> Trainer<'a> {
        match NonZeroU32::new(n) {
            Some(n) => self.mesh(Mesh::replicas(n)),
            None => Trainer { impossible: Some(ProgramError::NoReplicas), ..self },
        }
    }

    /// The mesh of devices that share a step. Default one device.
    pub fn mesh(mut self, mesh: Mesh) -> Trainer<'a> {
        self.spec.objective.mesh = mesh;
        self
    }

    /// The whole objective: also clipping, the loss scale, micro-batches, averages of variables and tuning. It replaces
    /// earlier settings of optimizer, learning rate, weight decay and devices.
    pub fn objective(mut self, objective: Objective) -> Trainer<'a> {
        self.spec.objective = objective;
        self
    }

    /// The client on whose devices it trains. Default [`Client::cpu`], which installs its plugin on first use.
    pub fn on(self, client: &Client) -> Trainer<'a> {
        Trainer { client: Some(client.clone()), ..self }
    }

    /// The file of checkpoints: one is written after each epoch, and when the run is asked to stop. Default none.
    pub fn checkpoint(self, path: impl Into<PathBuf>) -> Trainer<'a> {
        Trainer { checkpoint: Some(path.into()), ..self }
    }

    /// Resumes from this checkpoint, with the same bits as if the run that wrote it had not stopped. It may be the file
    /// of [`checkpoint`](Trainer::checkpoint).
    pub fn resume(self, path: impl Into<PathBuf>) -> Trainer<'a> {
        Trainer { resume: Some(path.into()), ..self }
    }

    /// Starts from weights of another run or another framework. A run that [resumes](Trainer::resume) from a checkpoint
    /// is not initialized again.
    pub fn initialize_from(self, weights: InitializeFrom) -> Trainer<'a> {
        Trainer { initialize_from: Some(weights), ..self }
    }

    /// How strictly a checkpoint must match this task.
    pub fn resumption(self, resumption: Resumption) -> Trainer<'a> {
        Trainer { resumption, ..self }
    }

    /// A flag that ends the run after the current step or epoch, with a checkpoint if there is a place for it.
    /// [`fit`](Trainer::fit) then returns [`TrainErrorKind::Interrupted`](crate::TrainErrorKind::Interrupted);
    /// [`stop_when`](Trainer::stop_when) ends it as a success.
    pub fn stop(self, stop: &'a AtomicBool) -> Trainer<'a> {
        Trainer { stop: Some(stop), ..self }
    }

    /// Early stopping: the epoch whose report makes this true is the last, and the training ends as after its last
    /// epoch. Its checkpoint can be [resumed](Trainer::resume).
    ///
    /// ```no_run
    /// # use bf16scope_train::Trainer;
    /// # fn fit(trainer: Trainer<'_>, training: bf16scope_data::Arrays, test: bf16scope_data::Arrays) -> Result<(), bf16scope_train::TrainError> {
    /// // No better for three epochs.
    /// let (mut best, mut since) = (f64::INFINITY, 0);
    /// let model = trainer
    ///     .epochs(100)
    ///     .stop_when(move |epoch| {
    ///         let loss = epoch.test_value("loss").unwrap_or(f64::NAN);
    ///         (best, since) = if loss < best { (loss, 0) } else { (best, since + 1) };
    ///         since == 3
    ///     })
    ///     .fit(&training, &test)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stop_when(self, is_enough: impl FnMut(&EpochReport) -> bool + 'a) -> Trainer<'a> {
        Trainer { is_enough: Box::new(is_enough), ..self }
    }

    /// Callbacks for the report of each epoch: early stopping, a learning rate that is lowered on a plateau, the best
    /// checkpoint kept beside the last.
    ///
    /// ```no_run
    /// # use bf16scope_train::Trainer;
    /// use bf16scope_train::callbacks::{Callbacks, EarlyStopping, ReduceOnPlateau};
    /// # fn with_callbacks(trainer: Trainer<'_>) -> Trainer<'_> {
    /// trainer.callbacks(Callbacks {
    ///     early_stopping: Some(EarlyStopping { patience: 5, restore_best: true, ..EarlyStopping::default() }),
    ///     reduce_on_plateau: Some(ReduceOnPlateau { patience: 2, ..ReduceOnPlateau::default() }),
    ///     ..Callbacks::default()
    /// })
    /// # }
    /// ```
    pub fn callbacks(self, callbacks: Callbacks) -> Trainer<'a> {
        Trainer { callbacks, ..self }
    }

    /// Callback for each epoch's report, which can be printed. It replaces [`on_event`](Trainer::on_event), and vice
    /// versa.
    pub fn on_epoch(self, mut observe: impl FnMut(&EpochReport) + 'a) -> Trainer<'a> {
        self.on_event(move |event| {
            if let Event::Epoch(report) = event {
                observe(report);
            }
        })
    }

    /// Callback for each step, epoch and checkpoint.
    pub fn on_event(self, observe: impl FnMut(Event<'_>) + 'a) -> Trainer<'a> {
        Trainer { observe: Box::new(observe), ..self }
    }

    /// Trains on `training`, and evaluates on `test` after each epoch. Checks as much as possible before anything is
    /// compiled.
    ///
    /// # Errors
    /// As [`run`](super::run()), [`Session::new`] and [`Session::restore`]: a task that cannot be built, examples that
    /// do not fit it, a checkpoint of another run, a loss that is not finite, a run that was asked to stop; errors of
    /// the plugin and the disk.
    pub fn fit(mut self, training: &dyn Source, test: &dyn Source) -> Result<Trained, TrainError> {
        if let Some(error) = self.impossible.take() {
            return Err(error.into());
        }
        self.spec.objective.update.reducible |= self.callbacks.reduce_on_plateau.is_some();
        let data = Data { training, test };
        // On a slice, only the first host writes.
        let is_first = self.client.as_ref().is_none_or(|client| client.processes().rank().0 == 0);
        let path = self.checkpoint.as_deref().filter(|_| is_first);
        // Locked before anything is read from there: another run could still be replacing the file.
        let place = path.map(Place::claim).transpose()?;
        let resumed = self.resume.as_ref().map(|path| Ok::<_, TrainError>((path, Checkpoint::read(path)?)));
        let resumed = resumed.transpose()?;
        check(&self.spec, data)?;
        check_average(&self.spec, data, self.n_epochs)?;
        self.callbacks.check(&self.spec, 1)?;
        if let Some((path, checkpoint)) = &resumed {
            self.resumption.check(path, checkpoint, &self.spec)?;
            checkpoint.data.as_ref().map_or(Ok(()), |before| check_data(path, before, &data.identity()))?;
        }
        let initialization = self.initialize_from.as_ref().filter(|_| resumed.is_none());
        let initialization = initialization.map(|from| from.read(&self.spec)).transpose()?;
        let client = self.client.take().map_or_else(Client::cpu, Ok)?;
        let mut session = Session::new(&client, self.spec)?;
        let mut changes = Vec::new();
        if let Some((path, checkpoint)) = &resumed {
            changes = session.restore(path, checkpoint, self.resumption)?;
            for change in &changes {
                tracing::warn!("{}: {change}", path.display());
            }
        }
        if let Some(initialization) = initialization {
            tracing::info!("{}: {}", initialization.file().display(), initialization.summary());
            session.initialize(initialization)?;
        }
        let never = AtomicBool::new(false);
        let plan = RunPlan { callbacks: self.callbacks, ..RunPlan::new(self.n_epochs, place) };
        let stop = self.stop.unwrap_or(&never);
        let summary = run_until(&mut session, data, &plan, stop, &mut self.observe, &mut self.is_enough)?;
        if let Some((path, _)) = resumed.as_ref().filter(|_| summary.epochs.is_empty() && self.n_epochs > 0) {
            let n = self.n_epochs;
            tracing::warn!(
                "{}: nothing is left to train: it has the {n} epochs that are asked for, or more",
                path.display()
            );
        }
        Ok(Trained {
            summary,
            changes,
            state: State::Session(Box::new(session)),
            evaluators: ByBatch::default(),
            predictors: ByBatch::default(),
        })
    }

    /// A model that evaluates and predicts with the variables of this checkpoint, or its averages if it has any,
    /// without training.
    ///
    /// # Errors
    /// A file that is not a checkpoint of this task; a plugin that is not available.
    pub fn load(self, path: impl AsRef<Path>) -> Result<Trained, TrainError> {
        let path = path.as_ref();
        let checkpoint = Checkpoint::read(path)?;
        let changes = self.resumption.check_task(path, &checkpoint, &*self.spec.task)?;
        for change in &changes {
            tracing::warn!("{}: {change}", path.display());
        }
        let summary = Summary::of_checkpoint(path, &checkpoint);
        let client = self.client.map_or_else(Client::cpu, Ok)?;
        let (path, spec) = (path.to_path_buf(), self.spec);
        let state = State::Checkpoint(Box::new(Loaded { client, spec, path, checkpoint }));
        Ok(Trained { summary, changes, state, evaluators: ByBatch::default(), predictors: ByBatch::default() })
    }
}

/// A trained task: the result of [`Trainer::fit`] and [`Trainer::load`].
#[derive(Debug)]
pub struct Trained {
    summary: Summary,
    changes: Vec<Change>,
    state: State,
    evaluators: ByBatch<Evaluator>,
    predictors: ByBatch<Predictor>,
}

/// The place of its variables.
#[derive(Debug)]
enum State {
    /// On the devices where it was trained.
    Session(Box<Session>),
    /// In a checkpoint.
    Checkpoint(Box<Loaded>),
}

#[derive(Debug)]
struct Loaded {
    client: Client,
    spec: Spec,
    path: PathBuf,
    checkpoint: Checkpoint,
}

/// Compiled programs by the size of their batches.
type ByBatch<T> = Mutex<BTreeMap<u32, Arc<T>>>;

/// The program for batches of `batch`, compiled on first use.
fn compiled<T>(
    all: &ByBatch<T>,
    batch: u32,
    compile: impl FnOnce() -> Result<T, TrainError>,
) -> Result<Arc<T>, TrainError> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = all.get(&batch) {
        return Ok(Arc::clone(program));
    }
    let program = Arc::new(compile()?);
    all.insert(batch, Arc::clone(&program));
    Ok(program)
}

impl Trained {
    /// The run's epochs, and the loss and the metrics on the test examples at its end. For a loaded checkpoint, only
    /// its number of steps: nothing was evaluated.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Allowed changes of settings since the checkpoint that it resumed from or was loaded from.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The session that trained it; `None` for a loaded checkpoint.
    pub fn session(&self) -> Option<&Session> {
        match &self.state {
            State::Session(session) => Some(session),
            State::Checkpoint(_) => None,
        }
    }

    /// The session that trained it, to continue by hand; `None` for a loaded checkpoint.
    pub fn into_session(self) -> Option<Session> {
        match self.state {
            State::Session(session) => Some(*session),
            State::Checkpoint(_) => None,
        }
    }

    fn spec(&self) -> &Spec {
        match &self.state {
            State::Session(session) => session.spec(),
            State::Checkpoint(loaded) => &loaded.spec,
        }
    }

    /// The loss and the metrics over all examples of a source.
    ///
    /// # Errors
    /// Examples that do not fit the task; a metric that is not finite; a program that cannot be compiled; a failure of
    /// the plugin.
    pub fn evaluate(&self, source: &dyn Source) -> Result<Evaluation, TrainError> {
        let batch = evaluation_batch(self.spec(), source);
        match &self.state {
            State::Session(session) => {
                let evaluator = compiled(&self.evaluators, batch, || session.evaluator(batch))?;
                session.evaluate(&evaluator, source)
            }
            State::Checkpoint(loaded) => {
                let Loaded { client, spec, path, checkpoint } = &**loaded;
                let evaluator = compiled(&self.evaluators, batch, || {
                    Evaluator::new(client, &spec.task, spec.precision, batch, &spec.objective.tuning)
                })?;
                evaluator.evaluate(path, checkpoint, source)
            }
        }
    }

    /// The task's predictions for each example of a source, in order. Labels may be missing.
    ///
    /// # Errors
    /// A task without predictions; examples that do not fit it; a program that cannot be compiled; a failure of the
    /// plugin.
    pub fn predict(&self, source: &dyn Source) -> Result<Predictions, TrainError> {
        let batch = evaluation_batch(self.spec(), source);
        let mut predictions = Predictions::default();
        let take = |arrays: Vec<NamedArray>| {
            predictions.append(arrays);
            Ok::<(), TrainError>(())
        };
        match &self.state {
            State::Session(session) => {
                let predictor = compiled(&self.predictors, batch, || session.predictor(batch))?;
                session.predict(&predictor, source, take)?;
            }
            State::Checkpoint(loaded) => {
                let Loaded { client, spec, path, checkpoint } = &**loaded;
                let predictor = compiled(&self.predictors, batch, || {
                    Predictor::new(client, &*spec.task, spec.precision, batch, &spec.objective.tuning)
                })?;
                predictor.predict(path, checkpoint, source, take)?;
            }
        }
        Ok(predictions)
    }
}
