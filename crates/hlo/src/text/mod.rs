//! HLO text: modules printed as XLA prints them, and read back.
//!
//! [`print`](print()) writes today's dialect (no `%`, no operand shapes); [`PrintOptions::long`] writes the older one,
//! which TensorFlow still dumps. The spelling of each op, both ways, is in `op`.
//!
//! Source: XLA's `HloModule::Print`, `HloComputation::Print` and `HloInstruction::Print`, their options
//! `ShortParsable` and `Default`, at openxla/xla of November 2025.

mod computation;
pub(super) mod error;
pub(super) mod forms;
mod frames;
pub(super) mod lex;
mod literal;
mod names;
pub(super) mod number;
pub(super) mod op;
mod parse;
pub(super) mod print;
mod read_common;
mod read_literal;
mod sharding;
mod syntax;
#[cfg(test)]
mod tests;
mod values;

/// The most memory, in bytes, that a module may take while it is read, including its text. A text of a few bytes per
/// element grows to hundreds of times its size; a network of 140,000 instructions in 20 MB of text takes a fifth of
/// this.
pub const MAX_BYTES: usize = 1 << 30;

pub use error::{ParseError, ParseErrorKind};

use super::Sharding;

/// A sharding as XLA writes it, `{devices=[2,1]<=[2]}`; `None` for one without a text form.
pub fn sharding_text(sharding: &Sharding) -> Option<String> {
    let mut text = String::new();
    sharding::write(&mut text, sharding);
    sharding::has_text(sharding).then_some(text)
}

pub use parse::parse;
pub use print::{PrintOptions, print, print_instruction};
