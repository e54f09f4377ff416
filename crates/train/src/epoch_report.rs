//! The report of an epoch: losses and metrics in training and in evaluation.

use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt;

/// The report of an epoch.
///
/// It serialises as `train_NAME` and `test_NAME` (or `validation_NAME`) for each value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: u64,
    /// Updates made so far in the run.
    pub step: u64,
    /// The loss and the metrics over the epoch's batches, each measured before its update. Where weight decay is L2, which
    /// the loss leaves out, `total_loss` is the loss plus the L2 term at the epoch's end.
    pub train: Vec<(String, f64)>,
    /// The same on the test data, whose loss has no label smoothing either.
    pub test: Vec<(String, f64)>,
    /// The step after which `train` begins, if the run was resumed inside the epoch, from a checkpoint that has no sums of
    /// the epoch's batches before.
    pub train_since_step: Option<u64>,
    /// Training examples a second, without the evaluation.
    pub examples_per_second: f64,
    /// The share of that time in which the device waited for data that are read from disk.
    pub waited_for_data: Option<f64>,
    /// With a dynamic loss scale: all updates skipped so far because a gradient was not finite.
    pub n_skipped: Option<u64>,
    /// Whether `test` holds values on validation examples ([`RunPlan::is_validated`](super::RunPlan)).
    pub is_validated: bool,
}

impl EpochReport {
    /// The value of this name over the epoch's batches, if the report has it.
    pub fn train_value(&self, name: &str) -> Option<f64> {
        value_of(&self.train, name)
    }

    /// The value of this name on the test data, if the report has it.
    pub fn test_value(&self, name: &str) -> Option<f64> {
        value_of(&self.test, name)
    }

    /// The evaluated part: `test` or `validation`.
    pub fn evaluated_on(&self) -> &'static str {
        if self.is_validated { "validation" } else { "test" }
    }
}

pub(super) fn value_of(values: &[(String, f64)], name: &str) -> Option<f64> {
    values.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
}

impl fmt::Display for EpochReport {
    /// A line: `epoch 3: loss 0.2103, accuracy 0.9367; test loss 0.1402, accuracy 0.9611`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &[(String, f64)]| {
            let values: Vec<String> = values.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
            values.join(", ")
        };
        write!(f, "epoch {}: {}", self.epoch, list(&self.train))?;
        if let Some(step) = self.train_since_step {
            write!(f, " (since step {step})")?;
        }
        write!(f, "; {} {}", self.evaluated_on(), list(&self.test))
    }
}

impl Serialize for EpochReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("epoch", &self.epoch)?;
        map.serialize_entry("step", &self.step)?;
        entries(&mut map, "train", &self.train)?;
        if let Some(step) = self.train_since_step {
            map.serialize_entry("train_since_step", &step)?;
        }
        entries(&mut map, self.evaluated_on(), &self.test)?;
        map.serialize_entry("examples_per_second", &self.examples_per_second)?;
        if let Some(waited) = self.waited_for_data {
            map.serialize_entry("waited_for_data", &waited)?;
        }
        if let Some(n_skipped) = self.n_skipped {
            map.serialize_entry("n_skipped", &n_skipped)?;
        }
        map.end()
    }
}

/// Values as `PREFIX_NAME`.
pub(super) fn entries<M: SerializeMap>(map: &mut M, prefix: &str, values: &[(String, f64)]) -> Result<(), M::Error> {
    values.iter().try_for_each(|(name, value)| map.serialize_entry(&format!("{prefix}_{name}"), value))
}
