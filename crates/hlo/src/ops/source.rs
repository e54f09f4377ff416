//! Ops without operands that supply values, and random bits: parameter, constant, iota, rng-bit-generator.
//!
//! # Shapes
//! - `parameter`: the declared shape, of any kind.
//! - `constant`: the shape of its literal, whose arrays have exactly the bytes of their shape.
//! - `iota`: the declared array, of rank 1 or more; element `i` along `iota_dimension` is `i`.
//! - `rng-bit-generator`: state `u64[2]` (philox and the default also `u64[3]`) → the declared `(state, bits)`.
//!
//! # Types
//! `iota` takes integers, floats and complex; a float rounds each index to nearest even, so bf16 repeats values above
//! 256. Random bits are `u8`, `u16`, `u32` or `u64`, every value equally likely.
//!
//! # Errors
//! `operands/*`, `constant/bytes`, `rng-bit-generator/state`, `rng-bit-generator/result`.
//!
//! # Source
//! XLA's operation semantics; `HandleConstant`, `HandleIota`, `HandleRngBitGenerator` of `hlo_verifier.cc`. The last
//! one also accepts other states, other dtypes of bits and a result of bits alone; XLA's expander refuses the first
//! two and aborts on the third: here all are errors.

use super::{RuleError, operands};
use crate::{ArrayShape, DType, Literal, Shape};

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

/// No operands → the declared shape.
pub(super) fn parameter(operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let [] = operands::arity("parameter", operands)?;
    let declared = operands::declared("parameter", declared)?;
    operands::sane("parameter", "result", declared)?;
    Ok(declared.without_layout())
}

/// No operands → the literal's shape.
pub(super) fn constant(literal: &Literal, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [] = operands::arity("constant", operands)?;
    check_literal(literal)?;
    Ok(literal.shape().without_layout())
}

/// Checks that every array of a literal has the bytes of its shape.
fn check_literal(literal: &Literal) -> Result<(), RuleError> {
    match literal {
        Literal::Array { shape, bytes } => {
            operands::check_size("constant", "literal", shape)?;
            if bytes.len() as i64 == shape.n_bytes() {
                return Ok(());
            }
            let (shape, expected) = (operands::show(shape), shape.n_bytes());
            let message = format!("constant literal {shape} has {} bytes, expected {expected}", bytes.len());
            Err(RuleError::new("constant/bytes", message))
        }
        Literal::Tuple(elements) => elements.iter().try_for_each(check_literal),
        Literal::Token => Ok(()),
    }
}

/// No operands → the declared shape.
pub(super) fn iota(dimension: i64, operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    let [] = operands::arity("iota", operands)?;
    let declared = operands::declared_array("iota", declared)?;
    operands::dtype("iota", "result", declared, |dtype| dtype != DType::Pred, "an integer, float or complex dtype")?;
    operands::axis("iota", "iota_dimension", dimension, declared.rank())?;
    Ok(operands::like(declared, declared.dtype).into())
}

/// State (u64 vector) → the declared tuple (new state, bits).
pub(super) fn rng_bit_generator(
    algorithm: RngAlgorithm,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let op = "rng-bit-generator";
    let [state] = operands::arity(op, operands)?;
    let state = operands::array(op, "state", state)?;
    let (sizes, expected): (&[i64], &str) = match algorithm {
        RngAlgorithm::ThreeFry => (&[2], "u64[2]"),
        RngAlgorithm::Philox | RngAlgorithm::Default => (&[2, 3], "u64[2] or u64[3]"),
    };
    if state.dtype != DType::U64 || state.rank() != 1 || !sizes.contains(&state.dims[0]) {
        let message = format!("{op} state of {} is {}, expected {expected}", algorithm.name(), operands::show(state));
        return Err(RuleError::new("rng-bit-generator/state", message));
    }
    let declared = operands::declared(op, declared)?;
    let bits = match declared.as_tuple() {
        Some([Shape::Array(new_state), bits]) if new_state.dtype == state.dtype && new_state.dims == state.dims => bits,
        _ => return Err(rng_result_error(state, declared)),
    };
    let bits = operands::array(op, "bits", bits)?;
    let is_whole = |dtype| matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    operands::dtype(op, "bits", bits, is_whole, "u8, u16, u32 or u64")?;
    Ok(declared.without_layout())
}

fn rng_result_error(state: &ArrayShape, declared: &Shape) -> RuleError {
    let declared = declared.without_layout();
    let message =
        format!("rng-bit-generator result is {declared}, expected the tuple ({}, bits)", operands::show(state));
    RuleError::new("rng-bit-generator/result", message)
}

#[cfg(test)]
mod tests;
