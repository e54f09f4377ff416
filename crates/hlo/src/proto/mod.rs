//! `HloModuleProto`: the messages, and modules to and from them.
//!
//! [`encode`] and [`decode`] are the doors; [`messages`] holds XLA's schema. Which attribute of which op goes in which
//! field is in `op`, and the attribute structs' fields are in [`attributes`].
//!
//! Source: XLA's `hlo.proto` and `xla_data.proto`; what goes in which field as `HloInstruction::ToProto` has it.

pub mod assignment;
pub mod attributes;
mod cost;
pub mod decode;
pub mod encode;
mod error;
mod literal;
pub mod messages;
mod op;
pub(super) mod order;
pub(crate) mod shape;
pub mod sharding;

/// Bytes of memory that a module may take while it is read, its message among them: as text may.
pub const MAX_BYTES: u64 = super::text::MAX_BYTES as u64;

pub use error::{ProtoError, WireError};
