//! A flight recorder for training: statistics of each layer's numbers at an interval of steps, and the anomalies in
//! them.
//!
//! An *observing program* is made of the same parts as the training step, has the same parameters and returns one small
//! array: counts for each layer's activations, cotangents, gradients and updates. It runs before the step that it
//! watches, with the same state and batch, and changes nothing. So a watched run has the bits of one that is not
//! watched.
//!
//! [`WatchRecord`] is the record of one watched step, and [`anomalies`] judges a series of them by a table of
//! [`RULES`].

mod anomaly;
mod causes;
mod forward;
mod look;
mod program;
mod row;
mod statistics;

pub use anomaly::{Anomaly, RULES, Rule, anomalies, anomalies_of_last, explains, telling_steps};
pub(super) use causes::scale::note_columns;
pub(super) use program::{Observing, observing, words_of};
pub use row::{Bins, Function, Quantity, RateJump, RecordedClip, Role, WatchRecord, WatchRow};
pub(super) use statistics::{RowOf, read_row};

use std::num::NonZeroU32;

/// How often a run is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The interval in steps, the first step of a run included.
    pub every: NonZeroU32,
}

impl Watch {
    /// The default interval.
    pub const DEFAULT_EVERY: u32 = 50;

    /// Whether the step after `step` steps is watched.
    pub fn is_due(self, step: u64) -> bool {
        step.is_multiple_of(u64::from(self.every.get()))
    }
}
