//! A black box for training: what the numbers of each layer look like, every so many steps, and what is wrong with them.
//!
//! An *observing program* is made of the same parts as the training step, takes the same parameters and gives
//! one small array: counts of each layer's activations, cotangents, gradients and updates. It runs before the step that it
//! looks at, with the same state and batch, and changes nothing. So a watched run has the bits of one that is not watched.
//!
//! [`WatchRecord`] is what one look gives, [`anomalies`] judges a row of them by a table of [`RULES`].

mod anomaly;
mod causes;
mod forward;
mod look;
mod program;
mod row;
mod statistics;

pub use anomaly::{Anomaly, RULES, Rule, anomalies, explains, telling_steps};
pub(super) use program::{Observing, observing, words_of};
pub use row::{Bins, Function, Quantity, RateJump, Role, WatchRecord, WatchRow};
pub(super) use statistics::{RowOf, read_row};

use std::num::NonZeroU32;

/// When a run is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Every so many steps, the first of a run included.
    pub every: NonZeroU32,
}

impl Watch {
    /// Every 50 steps.
    pub const DEFAULT_EVERY: u32 = 50;

    /// Whether the step that so many come before is looked at.
    pub fn is_due(self, step: u64) -> bool {
        step.is_multiple_of(u64::from(self.every.get()))
    }
}
