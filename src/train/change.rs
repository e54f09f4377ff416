//! A setting that has changed.

use crate::tuning::{Choice, Effect};
use std::fmt;

/// A setting that differs between a checkpoint and the run that goes on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key, as in an experiment.
    pub key: String,
    /// What the checkpoint has.
    pub before: String,
    /// What this run has.
    pub now: String,
}

impl Change {
    pub(super) fn new(key: &str, before: String, now: String) -> Change {
        Change { key: key.to_string(), before, now }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, before, now } = self;
        write!(f, "{key} was {before}, is {now} now")?;
        if ["train.variables", "train.slots"].contains(&key.as_str()) {
            let how = match (before.as_str(), now.as_str()) {
                ("f32", _) => "what was f32 and is bf16 now is rounded to nearest",
                (_, "f32") => "what was bf16 is the same number in f32",
                _ => "the same numbers where the dtype is the same",
            };
            return write!(f, ": {how}");
        }
        let choice = key.strip_prefix("tune.").and_then(|key| Choice::of(key.split('.').next()?));
        match choice.map(|choice| choice.effect) {
            Some(Effect::Exact) => f.write_str(": the same bits"),
            Some(Effect::Reassociating) => f.write_str(": the same function, with other last bits from here on"),
            None => Ok(()),
        }
    }
}
