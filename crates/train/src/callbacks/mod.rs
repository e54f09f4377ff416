//! Callbacks at the end of an epoch: early stopping, learning rate reduction, keeping the best checkpoint.
//!
//! The arithmetic is that of Keras 2.15's `EarlyStopping` and `ReduceLROnPlateau`, in f64. The counters are in every
//! checkpoint ([`CallbackState`]), so a resumed run decides like one that never stopped.

mod state;

pub use crate::callback_state::{CallbackState, Followed, Mode};
pub(crate) use state::{Verdict, lowered};

use crate::error::TrainError;
use crate::l2::TOTAL_LOSS;
use crate::program;
use crate::spec::Spec;
use bf16scope_model::document::{self, Node, ReadError, Value};
use bf16scope_passes::tuning::Tuning;
use serde::{Deserialize, Deserializer, Serialize};

/// Ends a run whose monitored value has not improved for `patience` epochs: Keras' `EarlyStopping`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStopping {
    /// A loss or metric: `test_NAME` or NAME alone on the test (or validation) data, `train_NAME` over the epoch's
    /// batches. Default `test_loss`.
    #[serde(deserialize_with = "name")]
    pub monitor: String,
    /// Epochs without improvement after which the run ends. Default 0: the first such epoch ends it.
    pub patience: u32,
    /// Which way it improves.
    pub mode: Mode,
    /// A change that is not larger than this is no improvement. Default 0.
    #[serde(deserialize_with = "not_negative")]
    pub min_delta: f64,
    /// While the value is not better than this, patience keeps counting. Default none.
    #[serde(deserialize_with = "some_number")]
    pub baseline: Option<f64>,
    /// Epochs at the beginning that are ignored. Default 0.
    pub start_from_epoch: u32,
    /// Whether a run that ends early restores the state after its best epoch. Default false: it keeps the last.
    #[serde(alias = "restore_best_weights")]
    pub restore_best: bool,
}

impl Default for EarlyStopping {
    fn default() -> EarlyStopping {
        EarlyStopping {
            monitor: DEFAULT_MONITOR.to_string(),
            patience: 0,
            mode: Mode::Auto,
            min_delta: 0.0,
            baseline: None,
            start_from_epoch: 0,
            restore_best: false,
        }
    }
}

/// Lowers the learning rate when the monitored value has not improved for `patience` epochs: Keras' `ReduceLROnPlateau`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReduceOnPlateau {
    /// As in [`EarlyStopping::monitor`].
    #[serde(deserialize_with = "name")]
    pub monitor: String,
    /// The factor of the learning rate. Default 0.1.
    #[serde(deserialize_with = "inner_fraction")]
    pub factor: f64,
    /// Epochs without improvement after which the rate is lowered. Default 10.
    pub patience: u32,
    /// Which way the value improves.
    pub mode: Mode,
    /// A change that is not larger than this is no improvement. Default 1e-4.
    #[serde(deserialize_with = "not_negative")]
    pub min_delta: f64,
    /// Epochs after a reduction that are not counted. Default 0.
    pub cooldown: u32,
    /// The lowest rate that a reduction leads to. Default 0.
    #[serde(alias = "min_lr", deserialize_with = "not_negative")]
    pub min_rate: f64,
}

impl Default for ReduceOnPlateau {
    fn default() -> ReduceOnPlateau {
        ReduceOnPlateau {
            monitor: DEFAULT_MONITOR.to_string(),
            factor: 0.1,
            patience: 10,
            mode: Mode::Auto,
            min_delta: 1e-4,
            cooldown: 0,
            min_rate: 0.0,
        }
    }
}

/// Keeps the checkpoint of the best epoch beside the last one, as `NAME-best.safetensors`: Keras' `ModelCheckpoint` with
/// `save_best_only`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepBest {
    /// As in [`EarlyStopping::monitor`].
    #[serde(deserialize_with = "name")]
    pub monitor: String,
    /// Which way the value improves.
    #[serde(default)]
    pub mode: Mode,
}

/// The callbacks of a run, called with each epoch's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Callbacks {
    /// Ends the run early.
    pub early_stopping: Option<EarlyStopping>,
    /// Lowers the learning rate; [`Update::reducible`](bf16scope_model::optim::Update::reducible) must be set.
    pub reduce_on_plateau: Option<ReduceOnPlateau>,
    /// The metric that picks the checkpoint to keep.
    pub keep_best: Option<KeepBest>,
}

/// The default metric of [`EarlyStopping`] and [`ReduceOnPlateau`].
const DEFAULT_MONITOR: &str = "test_loss";

/// A monitor's key under `train`, its name and its mode.
type Monitored<'a> = (&'static [&'static str], &'a str, Mode);

impl Callbacks {
    /// Whether there are no callbacks.
    pub fn is_empty(&self) -> bool {
        *self == Callbacks::default()
    }

    /// If a run with these counters was ended by early stopping and is not resumed by these callbacks: the epoch after
    /// which it ended, counted from 1, and the epochs that it had waited.
    pub fn ended(&self, before: &CallbackState) -> Option<(u64, u32)> {
        let state = CallbackState::begin(self, Some(before), before.n_epochs);
        Some((state.stopped?, state.early_stopping?.wait))
    }

    fn monitored(&self) -> Vec<Monitored<'_>> {
        let Callbacks { early_stopping, reduce_on_plateau, keep_best } = self;
        let stopping = early_stopping.as_ref().map(|it| (STOPPING, it.monitor.as_str(), it.mode));
        let reducing = reduce_on_plateau.as_ref().map(|it| (REDUCING, it.monitor.as_str(), it.mode));
        let keeping = keep_best.as_ref().map(|it| (KEEPING, it.monitor.as_str(), it.mode));
        [stopping, reducing, keeping].into_iter().flatten().collect()
    }

    /// Checks that a run of `spec` can have these callbacks: every monitored value is reported, and the direction in
    /// which it improves is known.
    ///
    /// # Errors
    /// A name that no report has; a mode that must be given; a learning rate that is not reducible; a best checkpoint
    /// to keep or restore with several hosts.
    pub fn check(&self, spec: &Spec, n_hosts: u32) -> Result<(), TrainError> {
        let monitored = self.monitored();
        if monitored.is_empty() {
            return Ok(());
        }
        let reported = program::evaluation(&*spec.task, spec.numbers(), 1, &Tuning::none())?.reported;
        let mut names: Vec<String> = reported.iter().map(|reported| reported.name.clone()).collect();
        let update = &spec.objective.update;
        if update.weight_decay.value != 0.0 && !update.weight_decay.decoupled {
            names.push(TOTAL_LOSS.to_string());
        }
        for (way, monitor, mode) in monitored {
            let (_, name) = split(monitor);
            if !names.iter().any(|other| other == name) {
                let would = if name == monitor { String::new() } else { format!(", which `{monitor}` would be") };
                let text = format!("no `{name}` is reported{would}");
                let help =
                    format!("monitor one of {}; `train_` before it is that of the epoch's batches", list(&names));
                return Err(TrainError::of_key(way, text).with_help(help));
            }
            if is_maximised(name, mode).is_none() {
                let text = format!("whether more or less of `{name}` is better is not known");
                return Err(TrainError::of_key(way, text).with_help("say it: `mode: max` or `mode: min`"));
            }
        }
        if self.reduce_on_plateau.is_some() && !update.reducible {
            let text = "the learning rate of this run is no state that can be lowered";
            return Err(TrainError::of_key(REDUCING, text).with_help("set `Update::reducible`"));
        }
        if n_hosts > 1 && self.early_stopping.as_ref().is_some_and(|stopping| stopping.restore_best) {
            let text = format!("`restore_best` over {n_hosts} hosts, of which only the first reads checkpoints");
            let help = "leave it out and write `keep_best` beside `early_stopping`";
            return Err(TrainError::of_key(STOPPING, text).with_help(help));
        }
        Ok(())
    }
}

const STOPPING: &[&str] = &["train", "early_stopping"];
const REDUCING: &[&str] = &["train", "reduce_on_plateau"];
const KEEPING: &[&str] = &["train", "keep_best"];

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Whether a monitor is measured on the epoch's batches, and its name in the report. `val_` is Keras' word for
/// `validation_`.
fn split(monitor: &str) -> (bool, &str) {
    let of_evaluation = ["test_", "validation_", "val_"].iter().find_map(|prefix| monitor.strip_prefix(prefix));
    match (monitor.strip_prefix("train_"), of_evaluation) {
        (Some(name), _) => (true, name),
        (None, Some(name)) => (false, name),
        (None, None) => (false, monitor),
    }
}

/// Parts of the names of metrics that should rise, and of those that should fall.
const RISING: [&str; 9] =
    ["accuracy", "auc", "precision", "recall", "iou", "f1", "r2", "similarity", "explained_variance"];
const FALLING: [&str; 4] = ["loss", "error", "perplexity", "distance"];

/// Whether a higher value is better; `None` where neither mode nor name says.
pub(crate) fn is_maximised(name: &str, mode: Mode) -> Option<bool> {
    match mode {
        Mode::Min => Some(false),
        Mode::Max => Some(true),
        Mode::Auto => {
            // The last word decides: `huber_loss` falls, whatever precedes `loss`.
            let last = |parts: &[&str]| parts.iter().filter_map(|part| name.rfind(part)).max();
            match (last(&RISING), last(&FALLING)) {
                (None, None) => None,
                (rising, falling) => Some(rising > falling),
            }
        }
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Text(name) if !name.is_empty() => Ok(name.clone()),
        _ => Err::<_, ReadError>(node.wrong("the name of a loss or metric, such as `test_loss` or `accuracy`")),
    })
}

fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |value| value >= 0.0 && value.is_finite(), "0, or a finite number above 0")
}

fn inner_fraction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |value| value > 0.0 && value < 1.0, "a number above 0 and below 1")
}

fn some_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    document::number(deserializer, f64::is_finite, "a finite number").map(Some)
}

/// `keep_best: accuracy`, or a map of its keys.
pub(crate) fn keep_best<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<KeepBest>, D::Error> {
    const EXPECTED: &str = "the name of a loss or metric, such as `accuracy`, or `{monitor: accuracy, mode: max}`";
    Node::read(deserializer, |node| match &node.value {
        Value::Text(monitor) if !monitor.is_empty() => {
            Ok(Some(KeepBest { monitor: monitor.clone(), mode: Mode::Auto }))
        }
        Value::Map(_) => KeepBest::deserialize(node).map(Some),
        _ => Err::<_, ReadError>(node.wrong(EXPECTED)),
    })
}

/// `early_stopping: {patience: 3}`; an empty value gives the defaults.
pub(crate) fn early_stopping<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<EarlyStopping>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Map(_) => EarlyStopping::deserialize(node).map(Some),
        _ => Err::<_, ReadError>(node.wrong("keys such as `{monitor: test_loss, patience: 3, restore_best: true}`")),
    })
}

/// `reduce_on_plateau: {factor: 0.1, patience: 3}`.
pub(crate) fn reduce_on_plateau<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ReduceOnPlateau>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Map(_) => ReduceOnPlateau::deserialize(node).map(Some),
        _ => Err::<_, ReadError>(node.wrong("keys such as `{monitor: test_loss, factor: 0.1, patience: 3}`")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_way_is_better_and_their_last_word_counts() {
        let auto = |name| is_maximised(name, Mode::Auto);
        for name in ["accuracy", "top_5_accuracy", "auc", "mean_iou", "f1_score", "r2", "cosine_similarity"] {
            assert_eq!(auto(name), Some(true), "{name}");
        }
        for name in ["loss", "total_loss", "mean_squared_error", "perplexity", "accuracy_loss"] {
            assert_eq!(auto(name), Some(false), "{name}");
        }
        assert_eq!((auto("entropy_bonus"), is_maximised("entropy_bonus", Mode::Min)), (None, Some(false)));
        assert_eq!((split("val_loss"), split("accuracy"), split("train_loss")).0, (false, "loss"));
        assert_eq!((split("accuracy"), split("train_loss")), ((false, "accuracy"), (true, "loss")));
    }
}
