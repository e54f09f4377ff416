//! Opcodes that the IR does not model, preserved as they came.
//!
//! The meaning of such an op is unknown: its result is the declared shape, and only the sizes of its shapes are
//! checked (`operands/negative-dim`, `operands/size`, `operands/declared`). Two of them have a result of fixed shape,
//! for which XLA aborts otherwise: they must declare that shape (`opaque/id`).

use super::{RuleError, operands};
use crate::{ArrayShape, CompId, DType, Shape};

/// An opaque op. Its text attributes and proto fields are in [`Instruction::unmodelled`](crate::Instruction).
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
    let is_id = matches!(opaque.opcode.as_str(), "partition-id" | "replica-id");
    let id = Shape::Array(ArrayShape::new(DType::U32, []));
    if is_id && declared.without_layout() != id {
        return Err(RuleError::new("opaque/id", format!("{} declares {declared}, expected {id}", opaque.opcode)));
    }
    Ok(declared.without_layout())
}

#[cfg(test)]
mod tests;
