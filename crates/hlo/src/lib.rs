//! HLO as plain data: the one IR of the crate.
//!
//! `hlo` knows nobody else in the crate. Everything here is public data and functions over it.

#![forbid(unsafe_code)]

pub mod alone;
pub mod devices;
pub mod dtype;
pub mod emit;
pub mod frames;
pub mod graphviz;
mod ids;
pub mod literal;
pub mod module;
pub mod module_shards;
pub mod numerics;
pub mod ops;
pub mod proto;
pub mod round;
pub mod shape;
pub mod sharding;
pub mod shards;
pub mod text;
mod unmodelled;
pub mod verify;
pub mod words;

pub use dtype::{DType, DTypeClass};
pub use emit::{CustomVjp, EmitError, Emitter, POISON, Value, VjpRule};
pub use frames::{FileLocation, StackFrame, StackFrames};
pub use ids::{CompId, InstrId};
pub use literal::{Element, Literal};
pub use module::{
    Alias, AliasKind, Computation, ComputationNames, EntryLayout, Instruction, Metadata, Module, Unmodelled,
};
pub use ops::Op;
pub use shape::{ArrayShape, Layout, Shape, Tile};
pub use sharding::{DeviceOrder, Sharding, TileAssignment};
pub use unmodelled::{Lost, lost_in_text};
pub use verify::{MAX_CALL_DEPTH, MAX_TUPLE_DEPTH, VerifyError, VerifyErrors, verify};
