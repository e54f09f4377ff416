//! `run.json`: what a run trained, with which settings, versions and device.

use super::{ABOUT, RunError};
use bf16scope_files as files;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::Path;

/// The most bytes of a `run.json` that are read. A start takes about 200.
const MAX_BYTES: u64 = 16 << 20;

/// The description of a run, for people; a resumed run does not read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The experiment's file, with the name that the caller gave.
    pub experiment: String,
    /// The dtype that the network computed in.
    pub precision: String,
    /// The seed of initial values and of the order of examples.
    pub seed: u64,
    /// Examples in a batch.
    pub batch: u64,
    /// All settings, including defaults, as JSON text.
    #[serde(serialize_with = "as_json", deserialize_with = "as_text")]
    pub settings: String,
    /// The starts of the run.
    pub starts: Vec<Start>,
    /// The last checkpoint.
    pub saved: Option<Saved>,
    /// The checkpoint of the best epoch (`keep_best`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Saved>,
}

/// A start or a resumption of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// Updates before it.
    pub step: u64,
    /// The date in UTC, to the second: `2026-11-22T15:04:05Z`.
    pub date: String,
    /// The version of bf16scope.
    pub bf16scope: String,
    /// The device: `cpu`.
    pub device: String,
    /// The PJRT plugin and its version.
    pub plugin: String,
}

/// A checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Its path, with the name that the caller gave.
    pub path: String,
    /// Its step.
    pub step: u64,
    /// The hash in its header, by which it is known if another run replaces it; earlier versions recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Saved {
    /// Whether both are the same checkpoint, as far as both are known.
    pub fn is_same(&self, other: &Saved) -> bool {
        let is_same_hash = match (&self.sha256, &other.sha256) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        is_same_hash && self.path == other.path && self.step == other.step
    }
}

impl Start {
    /// A start of this version of bf16scope, at the present time.
    pub fn now(step: u64, device: impl Into<String>, plugin: impl Into<String>) -> Start {
        let now = jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default();
        Start {
            step,
            date: now.to_string(),
            bf16scope: env!("CARGO_PKG_VERSION").to_string(),
            device: device.into(),
            plugin: plugin.into(),
        }
    }
}

/// Nests the JSON in the file; text that is not JSON stays text.
fn as_json<S: Serializer>(settings: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match serde_json::from_str::<serde_json::Value>(settings) {
        Ok(value) => value.serialize(serializer),
        Err(_) => settings.serialize(serializer),
    }
}

fn as_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => text,
        value => value.to_string(),
    })
}

impl About {
    /// Writes `run.json`, whole or not at all.
    pub(super) fn write(&self, folder: &Path) -> Result<(), RunError> {
        let path = folder.join(ABOUT);
        let mut text = serde_json::to_string_pretty(self).expect("words and numbers have a JSON form");
        text.push('\n');
        files::replace(&path, text.as_bytes()).map_err(RunError::io(&path, "write it"))
    }

    /// Reads `run.json`.
    pub(super) fn read(folder: &Path) -> Result<About, RunError> {
        let path = folder.join(ABOUT);
        let text = files::read_text(&path, MAX_BYTES).map_err(RunError::io(&path, "read it"))?;
        serde_json::from_str(&text).map_err(|error| RunError::About { path: path.clone(), problem: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_settings_are_nested() {
        let folder = tempfile::tempdir().unwrap();
        let about = About {
            experiment: "a \"b\".yaml".to_string(),
            precision: "bf16".to_string(),
            seed: u64::MAX,
            batch: 32,
            settings: r#"{"model":{"kind":"mlp"}}"#.to_string(),
            starts: vec![Start::now(0, "cpu", "xla-cpu-pjrt 0.0.1"), Start::default()],
            saved: Some(Saved { path: "x".to_string(), step: 44, sha256: Some("ab".to_string()) }),
            best: Some(Saved { path: "x-best".to_string(), step: 22, sha256: None }),
        };
        about.write(folder.path()).unwrap();
        assert_eq!(About::read(folder.path()).unwrap(), about);
        let text = std::fs::read_to_string(folder.path().join(ABOUT)).unwrap();
        assert!(text.contains("\"settings\": {\n    \"model\": {\n"), "{text}");
        let date = &about.starts[0].date;
        assert!(date.len() == "2026-11-22T15:04:05Z".len() && date.ends_with('Z'), "{date}");
        // A later version may add keys, an earlier one lack some.
        std::fs::write(folder.path().join(ABOUT), r#"{"seed": 3, "later": [1]}"#).unwrap();
        assert_eq!(About::read(folder.path()).unwrap(), About { seed: 3, ..About::default() });
    }
}
