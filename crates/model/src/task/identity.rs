//! What a task is, for a checkpoint to agree on.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a task is: a kind, and settings by name. A checkpoint keeps it; who goes on from that, evaluates or predicts with
/// it must have the same, but for settings that may change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    settings: Map<String, Value>,
    may_change: Vec<String>,
}

impl Identity {
    /// A task of this kind, without settings.
    pub fn new(kind: &str) -> Identity {
        let settings = Map::from_iter([("kind".to_string(), Value::from(kind))]);
        Identity { settings, may_change: Vec::new() }
    }

    /// All fields of a configuration that serde writes as a map, beside what is there.
    ///
    /// # Panics
    /// Where serde cannot write it, or not as a map: that is a bug of the caller.
    #[must_use]
    pub fn of(mut self, config: &impl Serialize) -> Identity {
        match serde_json::to_value(config) {
            Ok(Value::Object(fields)) => self.settings.extend(fields),
            other => panic!("a configuration is a map, not {other:?}"),
        }
        self
    }

    /// With a setting that changes the function.
    ///
    /// # Panics
    /// Where serde cannot write the value as JSON: that is a bug of the caller.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Identity {
        let value = serde_json::to_value(value).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.settings.insert(name.to_string(), value);
        self
    }

    /// With a setting that matters to how it is learnt or computed, but not to what is computed from trained variables,
    /// such as a dropout rate: it may change between a checkpoint and what goes on from it, and is then said.
    #[must_use]
    pub fn with_changeable(self, name: &str, value: impl Serialize) -> Identity {
        self.with(name, value).changeable(&[name])
    }

    /// Lets settings that are there change.
    #[must_use]
    pub fn changeable(mut self, names: &[&str]) -> Identity {
        self.may_change.extend(names.iter().map(|name| name.to_string()));
        self
    }

    /// Whether a setting may change.
    pub fn may_change(&self, name: &str) -> bool {
        self.may_change.iter().any(|other| other == name)
    }
}
