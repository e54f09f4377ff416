//! HLO text: modules printed as XLA prints them, and read back.
//!
//! [`print`](print()) writes today's dialect (no `%`, no operand shapes); [`PrintOptions::long`] writes the older one,
//! which TensorFlow still dumps. How each op's attributes are spelled is in `attributes`.
//!
//! Source: XLA's `HloModule::Print`, `HloComputation::Print` and `HloInstruction::Print`, their options
//! `ShortParsable` and `Default`, at openxla/xla of November 2025.

pub(super) mod attributes;
mod computation;
pub(super) mod error;
pub(super) mod lex;
mod literal;
pub(super) mod number;
mod parse;
pub(super) mod print;
pub(super) mod read;
mod read_common;
mod read_literal;
pub(super) mod sharding;
mod syntax;
#[cfg(test)]
mod tests;

/// Bytes of memory that a module may take while it is read, its text among them. A text of a few bytes an element grows to
/// hundreds of times its size; a network of 140,000 instructions in 20 MB of text takes a fifth of this.
pub const MAX_BYTES: usize = 1 << 30;

pub use error::{ParseError, ParseErrorKind};
pub use parse::parse;
pub use print::{PrintOptions, print, print_instruction};
