//! Models: configuration (serde) and a function that builds it.
pub mod yaml;

pub use yaml::{ConfigError, ConfigProblem};
