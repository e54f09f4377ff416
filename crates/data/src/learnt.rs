//! Statistics and vocabularies learnt from the training rows, as checkpoints and packages keep them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Statistics and vocabularies learnt from the training rows, by feature and column: `x.age`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Learnt(pub BTreeMap<String, LearntColumn>);

/// Statistics or the vocabulary of one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearntColumn {
    /// The mean and the standard deviation.
    Scale {
        /// The mean.
        mean: f64,
        /// The standard deviation; 1 if all numbers are equal.
        std: f64,
    },
    /// The categories, in order.
    Categories(Vec<String>),
    /// The words; the first has number 2.
    Words(Vec<String>),
}
