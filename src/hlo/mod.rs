//! HLO as plain data: the one IR of the crate.
//!
//! `hlo` knows nobody else in the crate. Everything here is public data and functions over it.

pub mod dtype;
pub mod proto;
pub mod shape;

pub use dtype::{DType, DTypeClass};
pub use shape::{ArrayShape, Layout, Shape, Tile};
