//! Events that a run reports to its caller, and the summary at its end.

use crate::checkpoint::Checkpoint;
use crate::epoch_report::{EpochReport, entries, value_of};
use crate::session::Session;
use crate::totals::Totals;
use crate::watch::WatchRecord;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::path::{Path, PathBuf};

/// An event of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step was made.
    Step {
        /// The session after the step; if a call makes several, after all of them.
        session: &'a Session,
        /// The epoch, counted from 1.
        epoch: u64,
        /// The step within the epoch, counted from 1.
        step: u64,
        /// Steps in an epoch.
        steps_per_epoch: u64,
        /// The loss and the metrics of the batch, before the update.
        totals: &'a Totals,
        /// The learning rate of the update.
        learning_rate: f64,
        /// Training examples a second, in this epoch so far.
        examples_per_second: f64,
    },
    /// A step was watched, before it was made. If a loss is not finite, the last steps before it are replayed and
    /// watched too: those may precede steps that were watched earlier.
    Watched(&'a WatchRecord),
    /// A step was replayed to find the origin of a loss that is not finite.
    MadeAgain {
        /// The step, counted from 1.
        step: u64,
        /// Steps of the state at which the replay started.
        from_step: u64,
        /// The step whose loss is not finite.
        until: u64,
    },
    /// An epoch is over and evaluated.
    Epoch(&'a EpochReport),
    /// A checkpoint was written, or written again with what callbacks made of it.
    Saved {
        /// The path.
        path: &'a Path,
        /// The step of its state.
        step: u64,
    },
    /// The checkpoint of the best epoch so far was written (`keep_best`).
    Best {
        /// The path.
        path: &'a Path,
        /// The step of its state.
        step: u64,
        /// The monitored metric.
        monitor: &'a str,
        /// Its value.
        value: f64,
    },
    /// The learning rate was lowered, from the next step on (`reduce_on_plateau`).
    Reduced {
        /// The epoch that ended, counted from 1.
        epoch: u64,
        /// The rate of the next step.
        learning_rate: f64,
    },
    /// The run ends early (`early_stopping`).
    Stopped {
        /// The last epoch, counted from 1.
        epoch: u64,
        /// The monitored metric.
        monitor: &'a str,
        /// Its best value, if there is one.
        best: Option<f64>,
        /// The step of the best value.
        best_step: u64,
        /// Whether the state after that step is restored.
        is_restored: bool,
    },
}

/// The result of a run.
///
/// It serialises as `test_NAME` for each value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The reports of its epochs, without those before a resumption.
    pub epochs: Vec<EpochReport>,
    /// The loss and the metrics of the final state on the test data.
    pub test: Vec<(String, f64)>,
    /// Updates made so far.
    pub steps: u64,
    /// The last checkpoint; if there was nothing left to train, the one that was resumed.
    pub checkpoint: Option<PathBuf>,
    /// The checkpoint of the best epoch (`keep_best`), and its monitored value.
    pub best: Option<(PathBuf, f64)>,
    /// The epoch, counted from 1, after which early stopping ended the run.
    pub stopped: Option<u64>,
}

impl Summary {
    /// The summary of a loaded checkpoint, read from `path`, that was not evaluated.
    pub(crate) fn of_checkpoint(path: &Path, checkpoint: &Checkpoint) -> Summary {
        let (steps, checkpoint) = (checkpoint.position.step, Some(path.to_path_buf()));
        Summary { epochs: Vec::new(), test: Vec::new(), steps, checkpoint, best: None, stopped: None }
    }

    /// The value of this name on the test data, if it is reported.
    pub fn value(&self, name: &str) -> Option<f64> {
        value_of(&self.test, name)
    }
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("epochs", &self.epochs)?;
        entries(&mut map, "test", &self.test)?;
        map.serialize_entry("steps", &self.steps)?;
        map.serialize_entry("checkpoint", &self.checkpoint)?;
        if let Some((path, value)) = &self.best {
            map.serialize_entry("best_checkpoint", path)?;
            map.serialize_entry("best_value", value)?;
        }
        if let Some(epoch) = self.stopped {
            map.serialize_entry("stopped_after_epoch", &epoch)?;
        }
        map.end()
    }
}
