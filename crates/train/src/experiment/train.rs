//! The keys of `train`: what a run of training does, and the objective, the plan and the callbacks that follow from
//! them.

use super::schedule::{Timed, beside_the_end, unreached};
use super::{OptimizerGroup, WatchConfig, elsewhere, groups, watch};
use crate::callbacks::{self, Callbacks, EarlyStopping, KeepBest, ReduceOnPlateau};
use crate::checkpoint::Place;
use crate::{Objective, RunPlan, StepsPerCall, TrainError};
use bf16scope_model::document::{self, ConfigProblem, Node, NodeError, ReadError, Step, kind};
use bf16scope_model::graph::{Numbers, Precision, Storage};
use bf16scope_model::optim::{
    Average, Clip, DecayForm, LearningRate, LossScale, Optimizer, SlotStorage, Update, WarmUp, WeightDecay,
};
use serde::Deserialize;
use std::num::NonZeroU32;
use std::path::PathBuf;

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
pub(super) fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(document::positive_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

/// The same from 0 on: `train --epochs 0` saves 0, and that must be readable again.
fn count_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(document::whole_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

fn optimizer<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Optimizer, D::Error> {
    Node::read(deserializer, |node| kind::from_node(node).map_err(|error| beside(kind::elsewhere::<Optimizer>(error))))
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

pub(super) fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
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
    pub(super) fn misplaced(&self) -> Option<NodeError> {
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
    pub(super) fn schedule_problem(&self) -> Option<(Vec<Step>, ReadError)> {
        let (key, error) = self.schedule().err()?;
        Some((["train", key].map(|key| Step::Key(key.to_string())).to_vec(), error))
    }

    /// A schedule that a training of this many epochs does not complete, or whose end is not the training's, with its
    /// place if the remark lacks one.
    pub(super) fn schedule_remark(&self) -> Option<(Vec<Step>, ReadError)> {
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

/// At least one pattern: an empty list would read as if nothing trained.
pub(super) fn some_patterns<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let patterns = Vec::<String>::deserialize(deserializer)?;
    match patterns.is_empty() {
        true => Err(serde::de::Error::custom(
            "found no pattern, expected one at least; without the key all variables train",
        )),
        false => Ok(patterns),
    }
}
