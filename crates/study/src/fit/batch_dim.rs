//! The batch axis of a module's parameters.

use std::str::FromStr;

/// The batch axis: a parameter of a module and one of its axes. As text: `0:0` or `images:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchDim {
    /// Its number or its name.
    pub parameter: String,
    /// The axis.
    pub axis: usize,
}

/// Why a module lacks the named batch axis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchDimError {
    /// The parameter does not exist.
    #[error("no parameter `{parameter}`: it has {there}")]
    NoParameter {
        /// Its name.
        parameter: String,
        /// The existing ones.
        there: String,
    },
    /// The axis does not exist.
    #[error("parameter `{parameter}` has {rank} axes, and axis {axis} was named: it has {there}")]
    NoAxis {
        /// The parameter.
        parameter: String,
        /// The parameter's rank.
        rank: usize,
        /// The named axis.
        axis: usize,
        /// The existing ones.
        there: String,
    },
    /// The axis has an invalid size for a batch.
    #[error("parameter `{parameter}` has size {size} on axis {axis}, which is not a batch")]
    NoBatch {
        /// The parameter.
        parameter: String,
        /// The size.
        size: i64,
        /// The axis.
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
