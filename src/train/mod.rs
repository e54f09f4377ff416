//! Training.
pub mod checkpoint;
