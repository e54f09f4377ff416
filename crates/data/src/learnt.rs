//! What was learnt from the rows that are trained on, as checkpoints and packages keep it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What was learnt from the rows that are trained on, by feature and column: `x.age`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Learnt(pub BTreeMap<String, LearntColumn>);

/// What was learnt of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearntColumn {
    /// Its mean, and the standard deviation around it.
    Scale {
        /// The mean.
        mean: f64,
        /// The deviation; 1 where all numbers are equal.
        std: f64,
    },
    /// Its categories, in order.
    Categories(Vec<String>),
    /// Its words, of number 2 first.
    Words(Vec<String>),
}
