//! Reads experiments: a YAML file that describes a model, its data and its training.
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
//! [`DataConfig`] lists the keys of `data`. Paths in the file are relative to the file. The file has no precision: it
//! is a switch of the run.

pub mod data;
mod elsewhere;
mod groups;
mod keras;
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
    /// The training and test examples; compiling needs none.
    pub data: Option<DataConfig>,
    /// The training options.
    #[serde(default)]
    pub train: TrainConfig,
    /// The devices that share a step's work. Default one.
    #[serde(default)]
    pub mesh: MeshConfig,
    /// The optimisations for the target. Default `auto`.
    #[serde(default)]
    pub tune: Tune,
    /// The place of the document.
    #[serde(skip)]
    pub origin: Origin,
}

/// The training options.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Examples in a batch. Default 32.
    #[serde(deserialize_with = "count")]
    pub batch: u32,
    /// Passes over the data; 0 saves the initial state. Default 10.
    #[serde(deserialize_with = "count_or_none")]
    pub epochs: u32,
    /// Seed of initial values and of the order of examples. Default 0.
    pub seed: u64,
    /// Images are shifted at random by up to this many pixels, half of them not at all. Default 0.
    pub shift: u32,
    /// The optimizer. Default momentum 0.9.
    #[serde(deserialize_with = "optimizer")]
    pub optimizer: Optimizer,
    /// Variables with another optimizer or learning rate. Default none.
    #[serde(deserialize_with = "groups::groups")]
    pub optimizers: Vec<OptimizerGroup>,
    /// The learning rate; a number alone is constant. Default 0.1.
    pub learning_rate: Timed<LearningRate>,
    /// The lowest learning rate after the warm-up. Default 0.
    #[serde(deserialize_with = "rate_floor")]
    pub learning_rate_floor: f64,
    /// The learning rate during the warm-up. Default no warm-up.
    pub warm_up: Option<Timed<WarmUp>>,
    /// The number of training examples, if known: with `batch` it gives the steps of an epoch. [`Experiment::read`]
    /// takes it from `data`, if that has `n_train`; a program that reads the data can set it.
    #[serde(skip)]
    pub n_train: Option<u64>,
    /// L2 regularisation. Default none.
    #[serde(deserialize_with = "weight_decay")]
    pub weight_decay: WeightDecay,
    /// How large gradients are clipped. Default not at all.
    #[serde(deserialize_with = "clip")]
    pub clip: Option<Clip>,
    /// The average of variables over steps. Default none.
    #[serde(deserialize_with = "average")]
    pub average: Option<Average>,
    /// The storage of variables: `f32`, `bf16_stochastic`, `bf16_compensated`, or, to see what is lost, `bf16_nearest`.
    /// Default f32.
    pub variables: Storage,
    /// The storage of the optimizer's slots: `f32`, `bf16`, `bf16_stochastic`. Default f32.
    pub slots: SlotStorage,
    /// The weights that a fresh run starts from: a checkpoint, or a file of weights, relative to the experiment's file.
    /// Default the task's initial values.
    #[serde(deserialize_with = "local")]
    pub initialize_from: Option<PathBuf>,
    /// Patterns of variables that keep their initial values nevertheless.
    pub except: Vec<String>,
    /// Rules for the names in that file: a family, or a file relative to the experiment's. Default the family that
    /// matches best.
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
    /// The number of micro-batches of a batch; it must divide `batch`. Default 1.
    #[serde(deserialize_with = "count")]
    pub accumulate: u32,
    /// Steps per call of the device: `N`, which unrolls the steps, or `while:N`, which loops. Default 1.
    pub steps_per_call: StepsPerCall,
    /// Steps between checkpoints, beside those after each epoch and when the run is stopped. Default none.
    #[serde(deserialize_with = "some_count")]
    pub save_checkpoints_steps: Option<u32>,
    /// Seconds between checkpoints, each at the end of a step. Default none.
    #[serde(deserialize_with = "some_count")]
    pub save_checkpoints_secs: Option<u32>,
    /// How many checkpoints are kept: the newest at its place, older ones beside it as `NAME-STEP.safetensors`. Default
    /// 1.
    #[serde(deserialize_with = "count")]
    pub keep_checkpoint_max: u32,
    /// When the numbers of each layer are watched; a number alone is the interval in steps. Default never.
    #[serde(deserialize_with = "watch::watch")]
    pub watch: Option<WatchConfig>,
    /// Ends the run early. Default never.
    #[serde(deserialize_with = "callbacks::early_stopping")]
    pub early_stopping: Option<EarlyStopping>,
    /// Lowers the learning rate, beside its schedule. Default never.
    #[serde(deserialize_with = "callbacks::reduce_on_plateau")]
    pub reduce_on_plateau: Option<ReduceOnPlateau>,
    /// The loss or metric by which the best checkpoint is kept beside the last one. Default none is kept.
    #[serde(deserialize_with = "callbacks::keep_best")]
    pub keep_best: Option<KeepBest>,
}

/// A whole number from 1 up to what fits in an `i32`.
fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(document::positive_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

/// The same from 0 on: `train --epochs 0` saves 0, and that must be readable again.
fn count_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(document::whole_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

fn optimizer<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Optimizer, D::Error> {
    Node::read(deserializer, |node| kind::from_node(node).map_err(|error| beside(of_optimizer(error))))
}

/// The error of an optimizer, with what an unknown name or key means.
fn of_optimizer(error: ReadError) -> ReadError {
    match keras::help(&error.problem) {
        Some(help) => error.with_help(help),
        None => kind::elsewhere::<Optimizer>(error),
    }
}

/// The error of a key that belongs to `train` itself, with a hint.
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

/// A path that is not a URL.
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
        kind::from_node(node).map(Some)
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
    /// The error of a key that does not fit the optimizer.
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

    /// Steps in an epoch, if known.
    pub fn steps_per_epoch(&self) -> Option<u32> {
        let steps = self.n_train? / u64::from(self.batch.max(1));
        u32::try_from(steps).ok().filter(|steps| *steps > 0)
    }

    /// The update rule in steps.
    ///
    /// # Errors
    /// Lengths in epochs when the steps of an epoch are unknown, or that are shorter than a step.
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

    /// The schedule in steps, or the error and its key.
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

    /// The error in the schedule, with its place if the error lacks one.
    fn schedule_problem(&self) -> Option<(Vec<Step>, ReadError)> {
        let (key, error) = self.schedule().err()?;
        Some((["train", key].map(|key| Step::Key(key.to_string())).to_vec(), error))
    }

    /// A schedule that a training of this many epochs does not complete, or whose end is not the training's, with its
    /// place if the remark lacks one.
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

    /// Puts a schedule's error below its key in the experiment, with its place if the schedule knows it.
    fn as_written(&self, key: &str, error: NodeError) -> (Vec<Step>, ReadError) {
        let mark = match (key, &self.warm_up) {
            ("warm_up", Some(warm_up)) => warm_up.place_of(&error.path),
            _ => self.learning_rate.place_of(&error.path),
        };
        let NodeError { path, message, help } =
            error.within(Step::Key(key.to_string())).within(Step::Key("train".to_string()));
        let error = ReadError::from_problem(ConfigProblem::Together { message, help });
        (path, ReadError { mark, ..error })
    }

    /// The objective of the training program in this precision; not tuned.
    ///
    /// # Errors
    /// As [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision) -> Result<Objective, TrainError> {
        let update = self.update()?;
        let loss_scale = self.loss_scale.unwrap_or(LossScale::usual(precision));
        let accumulate = NonZeroU32::new(self.accumulate).unwrap_or(NonZeroU32::MIN);
        let (average, trainable) = (self.average, self.trainable.clone());
        Ok(Objective { update, loss_scale, accumulate, average, trainable, ..Objective::default() })
    }

    /// The storage of a network that computes in this precision.
    pub fn numbers(&self, precision: Precision) -> Numbers {
        Numbers { precision, variables: self.variables }
    }

    /// The callbacks of the run.
    pub fn callbacks(&self) -> Callbacks {
        let TrainConfig { early_stopping, reduce_on_plateau, keep_best, .. } = self;
        let (early_stopping, reduce_on_plateau) = (early_stopping.clone(), reduce_on_plateau.clone());
        Callbacks { early_stopping, reduce_on_plateau, keep_best: keep_best.clone() }
    }

    /// The length of a run, and what it saves at `checkpoint`.
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
    /// A file that cannot be read, or is invalid: then with the line. A schedule that does not fit the number of
    /// examples is only reported by [`Experiment::check_schedule`], once they are counted.
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
        let mut experiment: Experiment =
            document.read().map_err(|error| elsewhere::with_its_block(&document, error))?;
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

    /// Checks that the schedule of an experiment that was read from `path` fits the number of examples. It passes if
    /// the number is unknown and all lengths are in steps.
    ///
    /// # Errors
    /// With the line: lengths in epochs when the steps of an epoch are unknown, or that are shorter than a step.
    pub fn check_schedule(&self, path: &Path) -> Result<(), TrainError> {
        match self.train.schedule_problem() {
            Some((way, error)) => Err(self.origin.read_error(path, &way, error).into()),
            None => Ok(()),
        }
    }

    /// A probable mistake in the schedule of an experiment that was read from `path`, with the line: a warm-up longer
    /// than the training, or a change of the rate after its end, as where a long recipe is tried for one epoch; a rate
    /// that is still high when training ends, or is 0 long before. These need the number of examples. Or a rate that the
    /// file leaves at its default, which is momentum's, for an optimizer whose steps are as large as the rate.
    pub fn schedule_remark(&self, path: &Path) -> Option<TrainError> {
        let (way, remark) = self.unset_rate().or_else(|| self.train.schedule_remark())?;
        Some(self.origin.read_error(path, &way, remark).into())
    }

    /// The remark on a default rate, with the way to the optimizer.
    fn unset_rate(&self) -> Option<(Vec<Step>, ReadError)> {
        const BY_THE_RATE: [&str; 5] = ["adam", "adamw", "adamax", "nadam", "lion"];
        let name = self.train.optimizer.name();
        let train = self.origin.at("train");
        let is_set = train.node().is_none_or(|train| train.get("learning_rate").is_some());
        if is_set || !BY_THE_RATE.contains(&name) {
            return None;
        }
        let message =
            format!("`learning_rate` is 0.1, its default, and a step of {name} moves each weight by about as much");
        let way = ["train", "optimizer"].map(|key| Step::Key(key.to_string())).to_vec();
        Some((way, ReadError::new(message).with_help("write `learning_rate: 0.001` beside it")))
    }

    /// Counts the training examples if lengths are in epochs and the number is unknown; the experiment was read from
    /// `path`.
    ///
    /// # Errors
    /// Data that are missing or cannot be read.
    pub fn count_examples(&mut self, path: &Path, setup: &Setup) -> Result<(), TrainError> {
        if self.train.n_train.is_none() && self.train.is_by_epoch() && self.data.is_some() {
            self.train.n_train = Some(self.read_data(path, setup)?.training.n_examples());
        }
        if self.train.is_by_epoch() { self.check_schedule(path) } else { Ok(()) }
    }

    /// The task to train.
    pub fn task(&self) -> Arc<dyn Task> {
        self.model.task_written_at(self.origin.at("model"), self.train.label_smoothing)
    }

    /// Reads the training and test data of the experiment that was read from `path`. What is derived from the files
    /// once is kept in the cache of `setup`.
    ///
    /// # Errors
    /// No data, or an invalid file, with its place.
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
    /// [`DataConfig::read_other`]), without labels.
    ///
    /// # Errors
    /// An invalid file, with its place.
    pub fn read_other(&self, path: &Path, file: &Path, setup: &Setup) -> Result<Box<dyn Source>, TrainError> {
        self.read_others(path, file, &predicted_from(&*self.task()), setup)
    }

    /// As [`Experiment::read_other`], with labels.
    ///
    /// # Errors
    /// As [`Experiment::read_other`].
    pub fn read_other_labelled(&self, path: &Path, file: &Path, setup: &Setup) -> Result<Box<dyn Source>, TrainError> {
        self.read_others(path, file, &self.task().features(), setup)
    }

    /// Reads these features of other examples. Warns of arrays that are neither feature nor label.
    fn read_others(
        &self,
        path: &Path,
        file: &Path,
        features: &[Feature],
        setup: &Setup,
    ) -> Result<Box<dyn Source>, TrainError> {
        let default = || DataConfig { cache: setup.cache(), ..DataConfig::default() };
        let data = self.data_in(setup).unwrap_or_else(default);
        let source = data.read_other(path, file, features)?;
        if let Some(remark) = data.unused_of(file, &self.task().features()) {
            tracing::warn!("{remark}");
        }
        Ok(source)
    }

    /// The same experiment, with the statistics and vocabularies that the run of this checkpoint learnt.
    #[must_use]
    pub fn as_learnt(mut self, checkpoint: &Checkpoint) -> Experiment {
        if let (Some(data), Some(identity)) = (&mut self.data, &checkpoint.data) {
            data.learnt.clone_from(&identity.learnt);
        }
        self
    }

    /// The same experiment, with these statistics and vocabularies.
    #[must_use]
    pub fn with_learnt(mut self, learnt: Option<&Learnt>) -> Experiment {
        if let (Some(data), Some(learnt)) = (&mut self.data, learnt) {
            data.learnt = Some(learnt.clone());
        }
        self
    }

    /// The tokenizer file that `data` of the experiment that was read from `path` names.
    pub fn tokenizer_file(&self, path: &Path) -> Option<PathBuf> {
        let tokens = self.data.as_ref()?.tokens.as_ref()?;
        let folder = path.parent().unwrap_or(Path::new(""));
        (tokens.tokenizer != "bytes").then(|| folder.join(&tokens.tokenizer))
    }

    /// Its data, with the cache of `setup`.
    fn data_in(&self, setup: &Setup) -> Option<DataConfig> {
        self.data.clone().map(|data| DataConfig { cache: setup.cache(), ..data })
    }

    /// The same experiment with any number of broken examples on disk skipped, for callers that count them.
    pub fn leaving_out_broken(mut self) -> Experiment {
        if let Some(data) = self.data.as_mut().filter(|data| data.is_on_disk()) {
            data.on_error = Tolerance::Skip(u64::MAX);
        }
        self
    }

    /// The objective of the training program in this precision, for a target whose tuning is `auto`.
    ///
    /// # Errors
    /// As [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision, auto: &Tuning) -> Result<Objective, TrainError> {
        let MeshConfig { mesh, split } = self.mesh.clone();
        Ok(Objective { tuning: self.tune.tuning(auto), mesh, split, ..self.train.objective(precision)? })
    }

    /// The spec that a session trains on a device whose tuning is `auto`; on a CPU that is [`Tuning::none`].
    ///
    /// # Errors
    /// As [`TrainConfig::update`].
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

    /// The weights that a fresh run of the experiment, which was read from `path`, starts from; `file` replaces the
    /// experiment's.
    ///
    /// # Errors
    /// `except` or `rules` without weights to start from, with the line.
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

    /// An error in the experiment that was read from `path`, with the line that the error's steps lead to.
    pub fn error(&self, path: &Path, error: NodeError) -> TrainError {
        self.origin.error(path, error).into()
    }

    /// The error with the line of the key that it is about, if it is about a key of the experiment.
    #[must_use]
    pub fn with_its_line(&self, error: TrainError) -> TrainError {
        lines::with_its_line(self, error)
    }
}

/// The features that files hold for a task: all but those that the host draws.
fn of_files(task: &dyn Task) -> Vec<Feature> {
    task.features().into_iter().filter(|feature| feature.random.is_none()).collect()
}

/// The checkpoint of a run of the experiment at `path` that no folder records: `checkpoints/NAME-PRECISION.safetensors`
/// in the current directory. Other runs have theirs in their folders.
pub fn default_checkpoint(path: &Path, precision: Precision) -> PathBuf {
    // The name byte by byte: two names that are displayed alike (`\xff` and `\xfe`) are two experiments.
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{precision}.safetensors"));
    Path::new("checkpoints").join(name)
}

/// One pattern, or a list of one at least: an empty list would read as if nothing trained.
fn some_patterns<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    const HELP: &str = "leave the key out, or give patterns: without it all variables train";
    Node::read(deserializer, |node| node.patterns(HELP))
}

#[cfg(test)]
mod tests;
