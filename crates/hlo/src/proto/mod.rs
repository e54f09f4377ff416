//! `HloModuleProto`: the messages, and modules to and from them.
//!
//! [`encode`] and [`decode`] are the entry points; [`messages`] has XLA's schema. The field of each op's attributes is
//! in `op`, and the attribute structs' fields are in [`attributes`].
//!
//! Source: XLA's `hlo.proto` and `xla_data.proto`; the use of fields is that of `HloInstruction::ToProto`.

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

/// The most memory, in bytes, that a module may take while it is read, including its message: the same as for text.
pub const MAX_BYTES: u64 = super::text::MAX_BYTES as u64;

pub use error::{ProtoError, WireError};
