//! A setting that changed between a checkpoint and the run that resumes from it.

use bf16scope_passes::tuning::{Choice, Effect};
use std::fmt;

/// A setting that differs between a checkpoint and the run that resumes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key, as in an experiment.
    pub key: String,
    /// Its value in the checkpoint.
    pub before: String,
    /// Its value in this run.
    pub now: String,
}

impl Change {
    pub(super) fn new(key: &str, before: String, now: String) -> Change {
        Change { key: key.to_string(), before, now }
    }
}

/// How an absent setting is shown.
pub(super) const NOT_SET: &str = "not set";

impl Change {
    /// For a setting that changes how state is stored: how the checkpoint's state is converted.
    fn becomes(&self) -> Option<&'static str> {
        const LOW: &str = "bf16_compensated";
        let (before, now) = (self.before.as_str(), self.now.as_str());
        match self.key.as_str() {
            "train.average" if now == NOT_SET => Some("the checkpoint's averages are left out"),
            "train.average" if before == NOT_SET => Some("averages begin where the checkpoint's variables are"),
            "train.variables" | "train.slots" => Some(match (before, now) {
                ("f32", LOW) => "what was f32 and is bf16 now is rounded to nearest, and low parts keep the rest",
                ("f32", _) | ("bf16", "bf16_stochastic") => "what was f32 and is bf16 now is rounded to nearest",
                (LOW, "f32") => "what was bf16 is the same number in f32, with its low part",
                (_, "f32") | ("bf16_stochastic", "bf16") => "what was bf16 is the same number in f32",
                (LOW, _) => "the same numbers, without their low parts",
                (_, LOW) => "the same numbers, with low parts that begin at 0",
                _ => "the same numbers",
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, before, now } = self;
        write!(f, "{key} was {before}, is {now} now")?;
        if let Some(what) = self.becomes() {
            return write!(f, ": {what}");
        }
        let choice = key.strip_prefix("tune.").and_then(|key| Choice::from_key(key.split('.').next()?));
        match choice.map(|choice| choice.effect) {
            Some(Effect::Exact) => f.write_str(": the same bits"),
            Some(Effect::Reassociating) => f.write_str(": the same function, with other last bits from here on"),
            None => Ok(()),
        }
    }
}
