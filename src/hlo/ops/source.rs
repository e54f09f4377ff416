//! Ops that make values from nothing: parameter, constant, iota, rng-bit-generator.

use super::RuleError;
use crate::hlo::{Literal, Shape};

super::elementwise::named! {
/// Algorithms of `rng-bit-generator`.
RngAlgorithm {
    /// The back end's choice.
    Default = "rng_default";
    /// Three-fry 2x32.
    ThreeFry = "rng_three_fry";
    /// Philox 4x32.
    Philox = "rng_philox";
}}

/// Nothing → the declared shape.
pub(super) fn parameter(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let _ = (operands, declared);
    todo!()
}

/// Nothing → the literal's shape.
pub(super) fn constant(literal: &Literal, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (literal, operands);
    todo!()
}

/// Nothing → the declared shape.
pub(super) fn iota(dimension: i64, operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let _ = (dimension, operands, declared);
    todo!()
}

/// State (u64 vector) → the declared tuple (new state, bits) or array.
pub(super) fn rng_bit_generator(
    algorithm: RngAlgorithm,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let _ = (algorithm, operands, declared);
    todo!()
}
