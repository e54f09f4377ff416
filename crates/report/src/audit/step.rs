//! The step of a run that an audit repeated.

use std::path::PathBuf;

use serde::Serialize;

use bf16scope_model::graph::Precision;

/// The audited step, and how it was repeated.
#[derive(Clone, Debug, Serialize)]
pub struct AtStep {
    /// Counted from 1.
    pub step: u64,
    /// The epoch that it is in.
    pub epoch: u64,
    /// The run's compute precision.
    pub precision: Precision,
    /// The folder of the run, if it was recorded.
    pub run: Option<PathBuf>,
    /// The checkpoint from which it was repeated; `null` is the beginning.
    pub from: Option<PathBuf>,
    /// The step of that checkpoint.
    pub from_step: u64,
    /// The loss of the repeated step.
    pub loss: Option<f64>,
    /// The loss that the run recorded, if any: equal to the bit, unless `is_exact` is false.
    pub recorded_loss: Option<f64>,
    /// Whether the state equals the run's to the bit: not in the middle of a call that is a loop.
    pub is_exact: bool,
}

impl AtStep {
    /// The repetition, in a line.
    pub fn line(&self) -> String {
        let from = match &self.from {
            Some(path) => format!("from {} after step {}", path.display(), self.from_step),
            None => "from the beginning".to_string(),
        };
        let loss = match (self.loss, self.recorded_loss) {
            (Some(loss), Some(recorded)) if is_same(loss, recorded) => format!(": loss {loss}, as recorded"),
            (Some(loss), Some(recorded)) => format!(
                ": loss {loss}, recorded as {recorded} by a loop of several steps, which may order sums otherwise than one step"
            ),
            (Some(loss), None) => format!(": loss {loss}; the run recorded none to compare"),
            (None, _) => String::new(),
        };
        let inexact = match self.is_exact {
            true => "",
            false => "; the loop's state before it never left the device: the one taken is that of single steps",
        };
        let run = self.run.as_ref().map_or(String::new(), |run| format!(" of {}", run.display()));
        format!(
            "step {} (epoch {}, {}){run} was made again {from}{loss}{inexact}",
            self.step, self.epoch, self.precision
        )
    }
}

/// Whether two numbers have the same value; NaNs are equal.
pub fn is_same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits() || one.is_nan() && other.is_nan()
}
