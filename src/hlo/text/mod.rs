//! HLO text: modules printed as XLA prints them.
//!
//! [`print`](print()) writes today's dialect (no `%`, no operand shapes); [`PrintOptions::long`] writes the older one,
//! which TensorFlow still dumps. How each op's attributes are spelled is in `attributes`.
//!
//! Source: XLA's `HloModule::Print`, `HloComputation::Print` and `HloInstruction::Print`, their options
//! `ShortParsable` and `Default`, at openxla/xla of November 2025.

mod attributes;
mod literal;
mod number;
mod print;
mod sharding;

pub use print::{PrintOptions, print, print_instruction};
