//! Which axis of a module's parameters is the batch.

use std::str::FromStr;

/// Which axis of which parameter of a module is the batch. As text: `0:0` or `images:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchDim {
    /// A number, or a name.
    pub parameter: String,
    /// Which of its axes.
    pub axis: usize,
}

/// A module without the batch that was said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchDimError {
    /// A parameter that is not there.
    #[error("no parameter `{parameter}`: it has {there}")]
    NoParameter {
        /// Its name.
        parameter: String,
        /// What there is.
        there: String,
    },
    /// An axis that is not there.
    #[error("parameter `{parameter}` has {rank} axes, and axis {axis} was named: it has {there}")]
    NoAxis {
        /// The parameter.
        parameter: String,
        /// How many it has.
        rank: usize,
        /// Which was named.
        axis: usize,
        /// What there is.
        there: String,
    },
    /// An axis that has no size of a batch.
    #[error("parameter `{parameter}` has size {size} on axis {axis}, which is not a batch")]
    NoBatch {
        /// The parameter.
        parameter: String,
        /// The size.
        size: i64,
        /// Which axis.
        axis: usize,
    },
}

impl FromStr for BatchDim {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchDim, String> {
        let parts = text.rsplit_once(':').and_then(|(parameter, axis)| Some((parameter, axis.parse().ok()?)));
        match parts {
            Some((parameter, axis)) if !parameter.is_empty() => Ok(BatchDim { parameter: parameter.to_string(), axis }),
            _ => Err("expected a parameter and an axis, such as 0:0 or images:0".to_string()),
        }
    }
}
