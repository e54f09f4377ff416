//! `train: {watch: …}`: how often the numbers of each layer are watched, and how many records the run's folder keeps.

use super::{count, some_count};
use crate::watch::Watch;
use bf16scope_model::document::{Node, ReadError, Value};
use serde::{Deserialize, Deserializer};
use std::num::NonZeroU32;

/// How often a run is watched, and how many records are kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchConfig {
    /// The interval in steps, the first step of a run included. Default 50.
    #[serde(deserialize_with = "count")]
    pub every: u32,
    /// The number of newest records that the run's folder keeps at least; it has at most twice as many, plus those with
    /// a new anomaly. Default all.
    #[serde(deserialize_with = "some_count")]
    pub keep: Option<u32>,
}

impl Default for WatchConfig {
    fn default() -> Self {
        WatchConfig { every: Watch::DEFAULT_EVERY, keep: None }
    }
}

impl WatchConfig {
    /// The interval as a [`Watch`].
    pub fn watch(&self) -> Watch {
        Watch { every: NonZeroU32::new(self.every).unwrap_or(NonZeroU32::MIN) }
    }

    /// `{every: 50, keep: 20}`, as in a file.
    pub fn to_line(&self) -> String {
        let keep = self.keep.map_or(String::new(), |keep| format!(", keep: {keep}"));
        format!("{{every: {}{keep}}}", self.every)
    }
}

/// The keys, or a number alone, which is `every`.
pub(super) fn watch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WatchConfig>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Whole(_) | Value::Negative(_) => Ok(Some(WatchConfig { every: count(node)?, ..WatchConfig::default() })),
        Value::Map(_) => WatchConfig::deserialize(node).map(Some),
        _ => Err::<_, ReadError>(node.wrong("a whole number of steps, such as 50, or keys `every` and `keep`")),
    })
}
