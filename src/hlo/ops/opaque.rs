//! Opcodes the IR does not model, carried unharmed.

use super::RuleError;
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
    let _ = (opaque, operands, declared);
    todo!()
}
