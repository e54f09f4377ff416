//! Opcodes the IR does not model, carried unharmed.
//!
//! Nothing is known of such an op: its result is what it declares, and only the sizes of its shapes are checked
//! (`operands/negative-dim`, `operands/size`, `operands/declared`).

use super::{RuleError, operands};
use crate::hlo::{CompId, Shape};

/// An op as it came. Its text attributes and proto fields are in [`Instruction::unmodelled`](crate::hlo::Instruction).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Opaque {
    /// Its opcode.
    pub opcode: String,
    /// Computations it calls, by attribute (`calls`, `to_apply`, …).
    pub called: Vec<(String, Vec<CompId>)>,
}

/// Any → the declared shape.
pub(super) fn opaque(opaque: &Opaque, operands: &[&Shape], declared: Option<&Shape>) -> Result<Shape, RuleError> {
    for (i, shape) in operands.iter().enumerate() {
        operands::sane(&opaque.opcode, format_args!("operand {i}"), shape)?;
    }
    let declared = operands::declared(&opaque.opcode, declared)?;
    operands::sane(&opaque.opcode, "result", declared)?;
    Ok(declared.without_layout())
}

#[cfg(test)]
mod tests;
