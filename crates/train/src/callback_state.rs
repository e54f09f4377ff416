//! The counters of callbacks and the sums of an epoch that is not over, as a checkpoint keeps them.

use super::totals::{Sum, Totals};
use serde::{Deserialize, Serialize};

/// Which way a monitored value improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// As the metric's name says: accuracies, AUC, precision, recall, F1, R², similarities and IoU rise, losses, errors and perplexity fall.
    #[default]
    Auto,
    /// It falls.
    Min,
    /// It rises.
    Max,
}

/// A monitored value and how it developed over epochs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Followed {
    /// Its name, as in the experiment.
    pub monitor: String,
    /// Which way it improves, as in the experiment.
    pub mode: Mode,
    /// The best value so far, if there is one.
    pub best: Option<f64>,
    /// The step of the best value.
    pub best_step: u64,
    /// Epochs since the last improvement; those of a cooldown do not count.
    pub wait: u32,
    /// Epochs of the cooldown that are left.
    #[serde(default)]
    pub cooldown: u32,
}

/// The counters of a run's callbacks, and the sums of an epoch that is not over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallbackState {
    /// Epochs whose reports were evaluated.
    pub n_epochs: u64,
    /// Counters of early stopping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<Followed>,
    /// Counters of learning rate reductions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_on_plateau: Option<Followed>,
    /// The value of the best checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<Followed>,
    /// The epoch, counted from 1, after which early stopping ended the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<u64>,
    /// Sums and weights over the batches of the current epoch, as the bits of f64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sums: Vec<(String, Vec<u64>, Vec<u64>)>,
    /// The step at which those sums begin, if that is inside the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_step: Option<u64>,
}

impl CallbackState {
    /// Stores the sums of the current epoch's batches so far.
    pub(crate) fn remember(&mut self, totals: &Totals) {
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect();
        let sums = totals.sums().map(|(name, sum)| (name.to_string(), bits(&sum.sums), bits(&sum.weights)));
        self.sums = sums.collect();
    }

    /// Adds the stored sums to those of the same names. Returns false, and adds nothing, if a name has none.
    pub(crate) fn recall(&self, totals: &mut Totals) -> bool {
        let values = |bits: &[u64]| bits.iter().copied().map(f64::from_bits).collect();
        let of_name = |name: &str| {
            let (_, sums, weights) = self.sums.iter().find(|(other, ..)| other == name)?;
            Some(Sum { sums: values(sums), weights: values(weights) })
        };
        let sums: Option<Vec<Sum>> = totals.sums().map(|(name, _)| of_name(name)).collect();
        let Some(sums) = sums else { return false };
        totals.add(sums);
        true
    }
}
