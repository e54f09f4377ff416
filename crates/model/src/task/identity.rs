//! The identity of a task, which a checkpoint must agree with.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A task's identity: a kind, and settings by name. A checkpoint stores it; a run that resumes from the checkpoint,
/// evaluates or predicts with it must have the same identity, except for settings that may change.
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

    /// Adds all fields of a configuration that serde writes as a map.
    ///
    /// # Panics
    /// If serde cannot write it, or not as a map: a bug of the caller.
    #[must_use]
    pub fn with_config(mut self, config: &impl Serialize) -> Identity {
        match serde_json::to_value(config) {
            Ok(Value::Object(fields)) => self.settings.extend(fields),
            other => panic!("a configuration is a map, not {other:?}"),
        }
        self
    }

    /// Adds a setting that changes the function.
    ///
    /// # Panics
    /// If serde cannot write the value as JSON: a bug of the caller.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Identity {
        let value = serde_json::to_value(value).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.settings.insert(name.to_string(), value);
        self
    }

    /// Adds a setting of training or computation that does not change the function of trained variables, such as a
    /// dropout rate: it may differ from the checkpoint's, and the change is reported.
    #[must_use]
    pub fn with_changeable(self, name: &str, value: impl Serialize) -> Identity {
        self.with(name, value).changeable(&[name])
    }

    /// Lets existing settings change.
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
