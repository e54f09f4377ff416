//! Ops along whole dimensions: reduce, sort.

use super::RuleError;
use crate::hlo::{CompId, Module, Shape};

/// N arrays of equal dims, N scalars → the other dims (a tuple if N > 1). The order of application is the back end's.
pub(super) fn reduce(
    module: &Module,
    dimensions: &[i64],
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let _ = (module, dimensions, to_apply, operands);
    todo!()
}

/// N arrays of equal dims → the same (a tuple if N > 1).
pub(super) fn sort(module: &Module, dimension: i64, to_apply: CompId, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let _ = (module, dimension, to_apply, operands);
    todo!()
}
