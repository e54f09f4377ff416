//! XLA's HLO in Rust: read, check, rewrite and write modules as text and as `HloModuleProto`, without XLA.
//!
//! A [`Module`] is plain data with public fields: computations of [`Instruction`]s, each with an [`Op`] (which holds
//! all its attributes), operands, a [`Shape`] and metadata. [`text`] reads both dialects that XLA prints and writes
//! one of them; [`proto`] reads and writes `HloModuleProto`. Opcodes that this crate does not model are preserved.
//! [`verify()`] checks shapes, attributes and structure: a module that passes is printed, encoded and rewritten
//! without a panic, and does not make XLA abort. [`numerics`] has float formats with exact arithmetic, down to f8. The
//! crate needs no `protoc`, no C++ and no `unsafe`.
//!
//! ```
//! use bf16scope_hlo::{BinaryOp, Op, text, verify};
//!
//! let mut module = text::parse(
//!     "HloModule example
//!      ENTRY main {
//!        x = f32[8,64] parameter(0)
//!        y = f32[8,64] parameter(1)
//!        ROOT sum = f32[8,64] add(x, y)
//!      }",
//!     "example.hlo",
//! )?;
//! let entry = module.entry;
//! for instr in &mut module.computations[entry.idx()].instructions {
//!     if instr.op == Op::Binary(BinaryOp::Add) {
//!         instr.op = Op::Binary(BinaryOp::Maximum);
//!     }
//! }
//! verify(&module)?;
//! assert!(text::print(&module, &Default::default()).contains("f32[8,64]{1,0} maximum("));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each op has one shape rule ([`ops`]), used by the builder ([`Emitter`]) and by the verifier. The rules for gradients and
//! for precision stand beside it; `bf16scope-passes` acts on them.
//!
//! This crate depends on no other crate of the workspace.

#![forbid(unsafe_code)]

pub mod alone;
pub mod array;
pub mod devices;
pub mod dtype;
pub mod element;
pub mod emit;
pub mod frames;
pub mod graphviz;
mod ids;
pub mod literal;
pub mod module;
pub mod module_shards;
pub mod numerics;
pub mod ops;
mod parameters;
pub mod proto;
mod repair;
pub mod round;
pub mod shape;
pub mod sharding;
pub mod shards;
pub mod text;
mod unmodelled;
pub mod verify;
pub mod words;

pub use array::{Array, ArrayError};
pub use dtype::{DType, DTypeClass};
pub use element::{Element, ElementVisitor, Float, FloatVisitor};
pub use emit::{CustomVjp, EmitError, Emitter, POISON, Value, VjpRule};
pub use frames::{FileLocation, StackFrame, StackFrames};
pub use ids::{CompId, InstrId};
pub use literal::Literal;
pub use module::{Alias, AliasKind, Computation, EntryLayout, Instruction, Metadata, Module, Unmodelled};
pub use ops::{BinaryOp, Op, UnaryOp};
pub use shape::{ArrayShape, Layout, Shape, Tile};
pub use sharding::{DeviceOrder, Sharding, TileAssignment};
pub use unmodelled::{Lost, lost_in_text};
pub use verify::{MAX_CALL_DEPTH, MAX_TUPLE_DEPTH, VerifyError, VerifyErrors, verify};
