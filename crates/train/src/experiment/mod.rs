//! An experiment: a YAML file that says what is trained, on what, and how.
//!
//! ```yaml
//! model: {kind: mlp, input: [8, 8, 1], n_classes: 10}
//! data: {csv: data/digits.csv.gz, scale: 0.0625, n_test: 360}
//! train:
//!   batch: 32
//!   epochs: 10
//!   optimizer: {kind: momentum, momentum: 0.9, nesterov: true}
//!   learning_rate: {kind: constant, value: 0.1}
//! ```
//!
//! [`DataConfig`] says what `data` may be. Paths in the file are relative to the file. Precision is not in it: it is a switch of the run.

pub mod data;
mod elsewhere;
mod groups;
mod lines;
mod mesh;
mod schedule;
mod watch;

pub use data::{
    ClassNames, DataConfig, DataSource, Examples, NameList, PartSize, Patterns, Scale, Stratify, Tolerance,
};
pub use groups::OptimizerGroup;
pub use mesh::MeshConfig;
pub use schedule::{Schedule, Timed};
pub use watch::WatchConfig;

use self::schedule::{beside_the_end, unreached};
use crate::InitializeFrom;
use crate::Objective;
use crate::RunPlan;
use crate::Spec;
use crate::StepsPerCall;
use crate::callbacks::{self, Callbacks, EarlyStopping, KeepBest, ReduceOnPlateau};
use crate::checkpoint::{Checkpoint, Place};
use crate::predicted_from;
use crate::weight_names::families;
use crate::{TrainError, TrainErrorKind};
use bf16scope_data::Source;
use bf16scope_data::table::Learnt;
use bf16scope_files as files;
use bf16scope_model::document::{self, kind};
use bf16scope_model::document::{ConfigProblem, Document, Node, NodeError, Origin, ReadError, Step};
use bf16scope_model::graph::{Numbers, Precision, Storage};
use bf16scope_model::models::Model;
use bf16scope_model::optim::{
    Average, Clip, DecayForm, LearningRate, LossScale, Optimizer, SlotStorage, Update, WarmUp, WeightDecay,
};
use bf16scope_model::task::{Feature, Task};
use bf16scope_passes::tuning::{Tune, Tuning};
use bf16scope_pjrt::Setup;
use serde::Deserialize;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The network.
    pub model: Model,
    /// What it is trained and tested on; compiling needs none.
    pub data: Option<DataConfig>,
    /// How it is trained.
    #[serde(default)]
    pub train: TrainConfig,
    /// The devices that share a step's work. Default one.
    #[serde(default)]
    pub mesh: MeshConfig,
    /// How its programs are made cheaper on their target. Default `auto`.
    #[serde(default)]
    pub tune: Tune,
    /// Where it was read.
    #[serde(skip)]
    pub origin: Origin,
}

/// How a network is trained.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Examples in a batch. Default 32.
    #[serde(deserialize_with = "count")]
    pub batch: u32,
    /// Passes over the data; 0 saves the initial state. Default 10.
    #[serde(deserialize_with = "count_or_none")]
    pub epochs: u32,
    /// Of initial values and of the order of examples. Default 0.
    pub seed: u64,
    /// How many pixels images are shifted by at most, at random, half of them not at all. Default 0.
    pub shift: u32,
    /// How variables change. Default momentum 0.9.
    #[serde(deserialize_with = "optimizer")]
    pub optimizer: Optimizer,
    /// Variables that change by another rule or at another rate. Default none.
    #[serde(deserialize_with = "groups::groups")]
    pub optimizers: Vec<OptimizerGroup>,
    /// How fast; a number alone is constant. Default 0.1.
    pub learning_rate: Timed<LearningRate>,
    /// The lowest learning rate after the warm-up. Default 0.
    #[serde(deserialize_with = "rate_floor")]
    pub learning_rate_floor: f64,
    /// What the rate is before. Default nothing.
    pub warm_up: Option<Timed<WarmUp>>,
    /// Training examples, as far as they are known: with `batch` they say how many steps an epoch has. [`Experiment::read`]
    /// takes them from `data`, where that says `n_train`; who reads the data knows better.
    #[serde(skip)]
    pub n_train: Option<u64>,
    /// L2 regularisation. Default none.
    #[serde(deserialize_with = "weight_decay")]
    pub weight_decay: WeightDecay,
    /// What gradients that are too large become. Default none.
    #[serde(deserialize_with = "clip")]
    pub clip: Option<Clip>,
    /// How variables are averaged over steps. Default not at all.
    #[serde(deserialize_with = "average")]
    pub average: Option<Average>,
    /// What variables are stored in: `f32`, `bf16_stochastic`, `bf16_compensated`, or, to see what is lost, `bf16_nearest`.
    /// Default f32.
    pub variables: Storage,
    /// What the optimizer's slots are stored in: `f32`, `bf16`, `bf16_stochastic`. Default f32.
    pub slots: SlotStorage,
    /// The weights that a fresh run starts from: a checkpoint, or a file of weights, relative to the experiment's file. Default
    /// its own.
    #[serde(deserialize_with = "local")]
    pub initialize_from: Option<PathBuf>,
    /// Patterns of variables that start afresh nevertheless.
    pub except: Vec<String>,
    /// Rules for the names in that file: a family, or a file relative to the experiment's. Default the family that fits best.
    #[serde(deserialize_with = "local")]
    pub rules: Option<PathBuf>,
    /// Patterns of the variables that train; others are frozen. Default all train.
    #[serde(deserialize_with = "some_patterns")]
    pub trainable: Vec<String>,
    /// Label smoothing. Default 0.
    #[serde(deserialize_with = "document::fraction")]
    pub label_smoothing: f64,
    /// How the loss is scaled: `none`, `static:1024`, `dynamic`. Default `dynamic` in f16, `none` in bf16 and f32, which
    /// do not need it.
    pub loss_scale: Option<LossScale>,
    /// In how many micro-batches a batch is gone through before the update; it must divide `batch`. Default 1.
    #[serde(deserialize_with = "count")]
    pub accumulate: u32,
    /// How many steps a call of the device makes: `N`, one step's program after the other, or `while:N`, a loop. Default 1.
    pub steps_per_call: StepsPerCall,
    /// After how many steps there is a checkpoint, beside those after each epoch and when the run is stopped. Default never.
    #[serde(deserialize_with = "some_count")]
    pub save_checkpoints_steps: Option<u32>,
    /// After how many seconds there is one, at the end of a step. Default never.
    #[serde(deserialize_with = "some_count")]
    pub save_checkpoints_secs: Option<u32>,
    /// How many of the run's last checkpoints stay: the newest at its place, older ones beside it as
    /// `NAME-STEP.safetensors`. Default 1.
    #[serde(deserialize_with = "count")]
    pub keep_checkpoint_max: u32,
    /// When the numbers of each layer are looked at; a number alone is every so many steps. Default never.
    #[serde(deserialize_with = "watch::watch")]
    pub watch: Option<WatchConfig>,
    /// When the run ends early. Default never.
    #[serde(deserialize_with = "callbacks::early_stopping")]
    pub early_stopping: Option<EarlyStopping>,
    /// When the learning rate is lowered, beside its schedule. Default never.
    #[serde(deserialize_with = "callbacks::reduce_on_plateau")]
    pub reduce_on_plateau: Option<ReduceOnPlateau>,
    /// By which loss or metric the best checkpoint is kept beside the last one. Default none is.
    #[serde(deserialize_with = "callbacks::keep_best")]
    pub keep_best: Option<KeepBest>,
}

/// A whole number from 1 up to what fits in an `i32`.
fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(document::positive_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

/// The same from 0 on: what `train --epochs 0` keeps is read again.
fn count_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(document::whole_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

fn optimizer<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Optimizer, D::Error> {
    Node::read(deserializer, |node| kind::of(node).map_err(|error| beside(kind::elsewhere::<Optimizer>(error))))
}

/// The error of a key that stands under `train` itself, with that.
fn beside(error: ReadError) -> ReadError {
    const KEYS: [&str; 6] = ["learning_rate", "warm_up", "weight_decay", "clip", "average", "slots"];
    match &error.problem {
        ConfigProblem::UnknownKey { key, .. } if KEYS.contains(&elsewhere::now(key)) => {
            let help = format!("write `{}` under `train`, beside `optimizer`", elsewhere::now(key));
            error.with_help(help)
        }
        _ => error,
    }
}

/// A file of this machine.
fn local<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = Option::<PathBuf>::deserialize(deserializer)?;
    match path.as_deref().map(bf16scope_files::check_input) {
        Some(Err(error)) => Err(serde::de::Error::custom(error)),
        _ => Ok(path),
    }
}

fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    count(deserializer).map(Some)
}

fn weight_decay<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<WeightDecay, D::Error> {
    Node::read(deserializer, |node| {
        node.is_no_number("value")?;
        WeightDecay::deserialize(node)
    })
}

fn rate_floor<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let fits = |value: f64| value == 0.0 || value as f32 > 0.0 && (value as f32).is_finite();
    document::number(deserializer, fits, "0, or a finite number above 0 in f32")
}

fn clip<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Clip>, D::Error> {
    Node::read(deserializer, |node| {
        node.is_no_number("kind: global_norm, value")?;
        kind::of(node).map(Some)
    })
}

fn average<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Average>, D::Error> {
    Node::read(deserializer, |node| {
        node.is_no_number("decay")?;
        Option::deserialize(node)
    })
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            batch: 32,
            epochs: 10,
            seed: 0,
            shift: 0,
            optimizer: Optimizer::default(),
            optimizers: Vec::new(),
            learning_rate: Timed::Steps(LearningRate::default()),
            learning_rate_floor: 0.0,
            warm_up: None,
            n_train: None,
            weight_decay: WeightDecay::default(),
            clip: None,
            average: None,
            variables: Storage::F32,
            slots: SlotStorage::F32,
            initialize_from: None,
            except: Vec::new(),
            rules: None,
            trainable: Vec::new(),
            label_smoothing: 0.0,
            loss_scale: None,
            accumulate: 1,
            steps_per_call: StepsPerCall::default(),
            save_checkpoints_steps: None,
            save_checkpoints_secs: None,
            keep_checkpoint_max: 1,
            watch: None,
            early_stopping: None,
            reduce_on_plateau: None,
            keep_best: None,
        }
    }
}

impl TrainConfig {
    /// A key that does not go with the optimizer.
    fn misplaced(&self) -> Option<NodeError> {
        let key = |name: &str| Step::Key(name.to_string());
        if self.optimizer.decay_form() == DecayForm::InSlots && self.weight_decay.decoupled {
            let way = vec![key("weight_decay"), Step::KeyItself("decoupled".to_string())];
            let name = self.optimizer.name();
            let message = format!("`decoupled` does not go with {name}, whose rule has the weight decay in it");
            let error = NodeError::new(way, message);
            return Some(error.with_help("leave it out, or write `optimizer: {kind: lamb}`, which decouples"));
        }
        None
    }

    /// Whether a length of the schedule is in epochs.
    pub fn is_by_epoch(&self) -> bool {
        let rates = self.optimizers.iter().filter_map(|group| group.learning_rate.as_ref());
        let is_of_group = rates.into_iter().any(Timed::is_by_epoch);
        is_of_group || self.learning_rate.is_by_epoch() || self.warm_up.as_ref().is_some_and(Timed::is_by_epoch)
    }

    /// Steps in an epoch, where it is known.
    pub fn steps_per_epoch(&self) -> Option<u32> {
        let steps = self.n_train? / u64::from(self.batch.max(1));
        u32::try_from(steps).ok().filter(|steps| *steps > 0)
    }

    /// How variables change in a step.
    ///
    /// # Errors
    /// Lengths in epochs of which nobody knows the steps, or that are less than a step.
    pub fn update(&self) -> Result<Update, TrainError> {
        let (learning_rate, warm_up) = self.schedule().map_err(|(key, error)| {
            let way: &[&str] = if key == "warm_up" { &["train", "warm_up"] } else { &["train", "learning_rate"] };
            let error = error.problem;
            TrainError::of_key(way, format!("`{key}`: {error}")).with_help(error.help().unwrap_or_default())
        })?;
        let (optimizer, weight_decay, clip) = (self.optimizer, self.weight_decay.clone(), self.clip);
        let reducible = self.reduce_on_plateau.is_some();
        let groups = self.groups()?;
        let floor = self.learning_rate_floor;
        Ok(Update {
            groups,
            floor,
            optimizer,
            learning_rate,
            weight_decay,
            warm_up,
            clip,
            slots: self.slots,
            reducible,
        })
    }

    /// The schedule in steps; an error with the key that it is under.
    fn schedule(&self) -> Result<(LearningRate, Option<WarmUp>), (&'static str, ReadError)> {
        let steps = match (self.steps_per_epoch(), self.is_by_epoch()) {
            (Some(steps), _) => steps,
            (None, false) => 1,
            (None, true) => {
                let key = if self.learning_rate.is_by_epoch() { "learning_rate" } else { "warm_up" };
                let (problem, help) = match self.n_train {
                    None => (
                        "lengths are in epochs, and nothing says how many steps an epoch has".to_string(),
                        "add `n_train: N` under `data`, the number of training examples, or give lengths in steps",
                    ),
                    Some(n) => (
                        format!(
                            "lengths are in epochs, and an epoch of {n} examples has no whole batch of {}",
                            self.batch
                        ),
                        "make `batch` smaller",
                    ),
                };
                return Err((key, ReadError::new(problem).with_help(help)));
            }
        };
        let learning_rate = self.learning_rate.in_steps(steps).map_err(|error| ("learning_rate", error))?;
        let warm_up = self.warm_up.as_ref().map(|warm_up| warm_up.in_steps(steps)).transpose();
        Ok((learning_rate, warm_up.map_err(|error| ("warm_up", error))?))
    }

    /// What of the schedule is wrong; an error, and where it is if it does not say.
    fn schedule_problem(&self) -> Option<(Vec<Step>, ReadError)> {
        let (key, error) = self.schedule().err()?;
        Some((["train", key].map(|key| Step::Key(key.to_string())).to_vec(), error))
    }

    /// What never comes in a training of so many epochs, or where the schedule's end is not the training's, and where that is
    /// if it does not say.
    fn schedule_remark(&self) -> Option<(Vec<Step>, ReadError)> {
        let (learning_rate, warm_up) = self.schedule().ok()?;
        let steps_per_epoch = self.steps_per_epoch()?;
        let n_steps = u64::from(steps_per_epoch) * u64::from(self.epochs);
        if n_steps == 0 {
            return None;
        }
        let unit = if self.learning_rate.is_by_epoch() { steps_per_epoch } else { 1 };
        let (key, remark) = unreached(&learning_rate, warm_up.as_ref(), n_steps)
            .or_else(|| Some(("learning_rate", beside_the_end(&learning_rate, warm_up.as_ref(), n_steps, unit)?)))?;
        Some(self.as_written(key, remark))
    }

    /// An error from the key of a schedule on, as one of the experiment; with its place where the schedule knows it.
    fn as_written(&self, key: &str, error: NodeError) -> (Vec<Step>, ReadError) {
        let mark = match (key, &self.warm_up) {
            ("warm_up", Some(warm_up)) => warm_up.place_of(&error.path),
            _ => self.learning_rate.place_of(&error.path),
        };
        let NodeError { path, message, help } =
            error.within(Step::Key(key.to_string())).within(Step::Key("train".to_string()));
        let error = ReadError::of(ConfigProblem::Together { message, help });
        (path, ReadError { mark, ..error })
    }

    /// What the training program minimises in this precision, and how; not tuned.
    ///
    /// # Errors
    /// As of [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision) -> Result<Objective, TrainError> {
        let update = self.update()?;
        let loss_scale = self.loss_scale.unwrap_or(LossScale::usual(precision));
        let accumulate = NonZeroU32::new(self.accumulate).unwrap_or(NonZeroU32::MIN);
        let (average, trainable) = (self.average, self.trainable.clone());
        Ok(Objective { update, loss_scale, accumulate, average, trainable, ..Objective::default() })
    }

    /// What a network that computes in this precision is stored in.
    pub fn numbers(&self, precision: Precision) -> Numbers {
        Numbers { precision, variables: self.variables }
    }

    /// The callbacks of the run.
    pub fn callbacks(&self) -> Callbacks {
        let TrainConfig { early_stopping, reduce_on_plateau, keep_best, .. } = self;
        let (early_stopping, reduce_on_plateau) = (early_stopping.clone(), reduce_on_plateau.clone());
        Callbacks { early_stopping, reduce_on_plateau, keep_best: keep_best.clone() }
    }

    /// How long a run is, and what it leaves at `checkpoint`.
    pub fn plan(&self, checkpoint: Option<Place>) -> RunPlan {
        RunPlan {
            save_checkpoints_steps: self.save_checkpoints_steps.and_then(NonZeroU32::new),
            save_checkpoints_secs: self.save_checkpoints_secs.and_then(NonZeroU32::new),
            keep_checkpoint_max: NonZeroU32::new(self.keep_checkpoint_max).unwrap_or(NonZeroU32::MIN),
            watch: self.watch.as_ref().map(WatchConfig::watch),
            callbacks: self.callbacks(),
            ..RunPlan::new(u64::from(self.epochs), checkpoint)
        }
    }
}

impl Experiment {
    /// Reads an experiment.
    ///
    /// # Errors
    /// Where the file cannot be read, or is not right: then with the line. Of a schedule that is not right for as many
    /// examples as there are, [`Experiment::check_schedule`] says so once they are counted.
    pub fn read(path: impl AsRef<Path>) -> Result<Experiment, TrainError> {
        let path = path.as_ref();
        let failed = |cause: std::io::Error| {
            let help = match cause.kind() {
                std::io::ErrorKind::NotFound => {
                    "name an experiment's YAML file, or the folder of a run; `bf16scope init` writes a file to begin with"
                }
                _ => "",
            };
            let error = TrainError::of_file(TrainErrorKind::Experiment, path, "cannot read the experiment");
            error.with_help(help).because(cause)
        };
        let text = files::read_text(path, document::MAX_BYTES as u64).map_err(failed)?;
        let mut included = |path: &Path| files::read_text(path, document::MAX_BYTES as u64);
        let document = Document::parse_with(&path.display().to_string(), &text, &mut included)?;
        let mut experiment: Experiment = document.read().map_err(elsewhere::with_its_block)?;
        if experiment.train.label_smoothing > 0.0 && !experiment.model.is_smoothed() {
            let way = vec![Step::Key("train".to_string()), Step::KeyItself("label_smoothing".to_string())];
            let error = NodeError::new(way, "no loss of `model` has label smoothing");
            return Err(document.error(error.with_help("leave it out: it is for cross entropies")).into());
        }
        if let Some(error) = experiment.train.misplaced() {
            return Err(document.error(error.within(Step::Key("train".to_string()))).into());
        }
        experiment.origin = Origin::from(document);
        if let Some(data) = &mut experiment.data {
            data.origin = experiment.origin.clone();
        }
        experiment.train.n_train = experiment.data.as_ref().and_then(|data| data.n_train);
        if experiment.train.n_train.is_some() {
            experiment.check_schedule(path)?;
        }
        Ok(experiment)
    }

    /// Whether the schedule, of an experiment that was read from `path`, can be had for as many examples as there are. Where
    /// the number of examples is not known, and lengths are in steps, it can.
    ///
    /// # Errors
    /// With the line: lengths in epochs of which nobody knows the steps, or that are less than a step.
    pub fn check_schedule(&self, path: &Path) -> Result<(), TrainError> {
        match self.train.schedule_problem() {
            Some((way, error)) => Err(self.origin.read_error(path, &way, error).into()),
            None => Ok(()),
        }
    }

    /// What is probably not meant in the schedule of an experiment that was read from `path`, with the line: a warm-up longer
    /// than the training, or a change of the rate after its end, as where a long recipe is tried for an epoch; a rate that is
    /// still high when training ends, or 0 long before. Nothing where the number of examples is not known.
    pub fn schedule_remark(&self, path: &Path) -> Option<TrainError> {
        let (way, remark) = self.train.schedule_remark()?;
        Some(self.origin.read_error(path, &way, remark).into())
    }

    /// Counts the training examples where lengths are in epochs and nobody knows how many there are; the experiment was read
    /// from `path`.
    ///
    /// # Errors
    /// Data that cannot be read, or that are not there.
    pub fn count_examples(&mut self, path: &Path, setup: &Setup) -> Result<(), TrainError> {
        if self.train.n_train.is_none() && self.train.is_by_epoch() && self.data.is_some() {
            self.train.n_train = Some(self.read_data(path, setup)?.training.n_examples());
        }
        if self.train.is_by_epoch() { self.check_schedule(path) } else { Ok(()) }
    }

    /// What is learnt.
    pub fn task(&self) -> Arc<dyn Task> {
        self.model.task_written_at(self.origin.at("model"), self.train.label_smoothing)
    }

    /// Reads the data of the experiment that was read from `path`: for training, and for testing. What is made of them once is
    /// kept in the cache of `setup`.
    ///
    /// # Errors
    /// Where there are none, or a file is not right: then with its place.
    pub fn read_data(&self, path: impl AsRef<Path>, setup: &Setup) -> Result<Examples, TrainError> {
        let path = path.as_ref();
        match &self.data_in(setup) {
            Some(data) => data.read(path, &of_files(&*self.task())).map_err(|error| lines::with_its_line(self, error)),
            None => {
                let text = "the experiment has no `data`, which training and evaluation need";
                let help = "add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml";
                Err(TrainError::of_file(TrainErrorKind::Experiment, path, text).with_help(help))
            }
        }
    }

    /// Reads other examples for the experiment that was read from `path`, by the rules of its data (see
    /// [`DataConfig::read_other`]); those of its task's features that are no labels.
    ///
    /// # Errors
    /// A file that is not right, with its place.
    pub fn read_other(&self, path: &Path, file: &Path, setup: &Setup) -> Result<Box<dyn Source>, TrainError> {
        let features = predicted_from(&*self.task());
        self.data_in(setup)
            .unwrap_or_else(|| DataConfig { cache: setup.cache(), ..DataConfig::default() })
            .read_other(path, file, &features)
    }

    /// As [`Experiment::read_other`], with labels.
    ///
    /// # Errors
    /// As there.
    pub fn read_other_labelled(&self, path: &Path, file: &Path, setup: &Setup) -> Result<Box<dyn Source>, TrainError> {
        self.data_in(setup).unwrap_or_else(|| DataConfig { cache: setup.cache(), ..DataConfig::default() }).read_other(
            path,
            file,
            &self.task().features(),
        )
    }

    /// The same experiment, whose data become numbers by what the run of this checkpoint learnt.
    #[must_use]
    pub fn as_learnt(mut self, checkpoint: &Checkpoint) -> Experiment {
        if let (Some(data), Some(identity)) = (&mut self.data, &checkpoint.data) {
            data.learnt.clone_from(&identity.learnt);
        }
        self
    }

    /// The same experiment, whose data become numbers by what was learnt.
    #[must_use]
    pub fn with_learnt(mut self, learnt: Option<&Learnt>) -> Experiment {
        if let (Some(data), Some(learnt)) = (&mut self.data, learnt) {
            data.learnt = Some(learnt.clone());
        }
        self
    }

    /// The tokenizer's file that `data` of the experiment that was read from `path` names.
    pub fn tokenizer_file(&self, path: &Path) -> Option<PathBuf> {
        let tokens = self.data.as_ref()?.tokens.as_ref()?;
        let folder = path.parent().unwrap_or(Path::new(""));
        (tokens.tokenizer != "bytes").then(|| folder.join(&tokens.tokenizer))
    }

    /// Its data, kept where `setup` says.
    fn data_in(&self, setup: &Setup) -> Option<DataConfig> {
        self.data.clone().map(|data| DataConfig { cache: setup.cache(), ..data })
    }

    /// The same experiment, in whose data on disk any number of broken examples is left out: for whoever counts them.
    pub fn leaving_out_broken(mut self) -> Experiment {
        if let Some(data) = self.data.as_mut().filter(|data| data.is_on_disk()) {
            data.on_error = Tolerance::Skip(u64::MAX);
        }
        self
    }

    /// What the training program minimises in this precision, and how, for a target on which `auto` pays.
    ///
    /// # Errors
    /// As of [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision, auto: &Tuning) -> Result<Objective, TrainError> {
        let MeshConfig { mesh, split } = self.mesh.clone();
        Ok(Objective { tuning: self.tune.tuning(auto), mesh, split, ..self.train.objective(precision)? })
    }

    /// What a session trains on a device for which `auto` pays: of a CPU [`Tuning::none`].
    ///
    /// # Errors
    /// As of [`TrainConfig::update`].
    pub fn spec(&self, precision: Precision, auto: &Tuning) -> Result<Spec, TrainError> {
        Ok(Spec {
            task: self.task(),
            precision,
            variables: self.train.variables,
            batch: self.train.batch,
            seed: self.train.seed,
            shift: self.train.shift,
            objective: self.objective(precision, auto)?,
            steps_per_call: self.train.steps_per_call,
        })
    }

    /// What a fresh run of the experiment, which was read from `path`, starts from: `file` in the place of the experiment's.
    ///
    /// # Errors
    /// `except` or `rules` where there is nothing to start from, with the line.
    pub fn initialize_from(&self, path: &Path, file: Option<&Path>) -> Result<Option<InitializeFrom>, TrainError> {
        let TrainConfig { initialize_from, except, rules, .. } = &self.train;
        let folder = path.parent().unwrap_or(Path::new(""));
        let beside = |file: &PathBuf| folder.join(file);
        let Some(file) = file.map(Path::to_path_buf).or_else(|| initialize_from.as_ref().map(beside)) else {
            let key = if !except.is_empty() { "except" } else { "rules" };
            if except.is_empty() && rules.is_none() {
                return Ok(None);
            }
            let way = vec![Step::Key("train".to_string()), Step::KeyItself(key.to_string())];
            let error =
                NodeError::new(way, format!("`{key}` is about the weights that a run starts from, and there are none"));
            let help = "add `initialize_from: FILE` beside it, or --initialize-from, or leave it out";
            return Err(self.origin.error(path, error.with_help(help)).into());
        };
        let is_family = |rules: &PathBuf| families().iter().any(|family| Path::new(family) == rules);
        let rules = rules.as_ref().map(|rules| if is_family(rules) { rules.clone() } else { beside(rules) });
        Ok(Some(InitializeFrom { file, except: except.clone(), rules }))
    }

    /// What is wrong in the experiment that was read from `path`, with the line of what the error's steps lead to.
    pub fn error(&self, path: &Path, error: NodeError) -> TrainError {
        self.origin.error(path, error).into()
    }

    /// The error with the line of the key that it is about, where it is one of the experiment's.
    #[must_use]
    pub fn with_its_line(&self, error: TrainError) -> TrainError {
        lines::with_its_line(self, error)
    }
}

/// What files hold for a task: all that the host does not draw.
fn of_files(task: &dyn Task) -> Vec<Feature> {
    task.features().into_iter().filter(|feature| feature.random.is_none()).collect()
}

/// Where the checkpoint of the experiment at `path` goes unless told otherwise: `checkpoints/NAME-PRECISION.safetensors`
/// in the current directory.
pub fn default_checkpoint(path: &Path, precision: Precision) -> PathBuf {
    // Byte by byte as it is: what is shown alike (`\xff` and `\xfe`) is not one experiment.
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{precision}.safetensors"));
    Path::new("checkpoints").join(name)
}

/// Patterns, one at least: a list of none reads as if nothing trained.
fn some_patterns<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let patterns = Vec::<String>::deserialize(deserializer)?;
    match patterns.is_empty() {
        true => Err(serde::de::Error::custom(
            "found no pattern, expected one at least; without the key all variables train",
        )),
        false => Ok(patterns),
    }
}

#[cfg(test)]
mod tests;
