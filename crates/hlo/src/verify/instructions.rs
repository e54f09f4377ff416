//! Step two: every instruction by itself. Ids are valid here, and shapes do not nest too deep.

use super::Errors;
use super::ids::comps;
use crate::ops::{RuleError, check_size, infer_shape};
use crate::{ArrayShape, CompId, Computation, InstrId, Module, Op, Shape, Tile};

pub(super) fn check(module: &Module, errors: &mut Errors<'_>) {
    for (comp, computation) in comps(module) {
        check_computation(module, comp, computation, errors);
    }
}

fn check_computation(module: &Module, comp: CompId, computation: &Computation, errors: &mut Errors<'_>) {
    // A rule that reads a shape without a sane size would repeat the error of that shape.
    let mut sound = Vec::with_capacity(computation.instructions.len());
    for id in computation.ids() {
        if errors.is_full() {
            return;
        }
        let instruction = computation.instr(id);
        let shape = check_shape(&instruction.op.opcode(), &instruction.shape);
        sound.push(shape.is_ok());
        if let Err(error) = shape {
            errors.instruction(comp, id, error);
            continue;
        }
        let operands_sound = instruction.operands.iter().all(|operand| sound[operand.idx()]);
        if operands_sound && let Err(error) = check_instruction(module, computation, id) {
            errors.instruction(comp, id, error);
        }
    }
}

fn check_instruction(module: &Module, computation: &Computation, id: InstrId) -> Result<(), RuleError> {
    let instruction = computation.instr(id);
    match &instruction.op {
        Op::Constant(literal) => check_shape("constant", &literal.shape())?,
        Op::Parameter { replication, .. } => check_replication(replication, &instruction.shape)?,
        _ => {}
    }
    let operands: Vec<&Shape> = instruction.operands.iter().map(|&id| &computation.instr(id).shape).collect();
    let inferred = infer_shape(module, &instruction.op, &operands, Some(&instruction.shape))?;
    if inferred.is_compatible(&instruction.shape) {
        return Ok(());
    }
    let message = format!("shape is {}, expected {inferred}", instruction.shape.without_layout());
    Err(RuleError::new("instruction/shape", message))
}

/// Checks that sizes are sane, and that layouts are layouts of their arrays.
pub(super) fn check_shape(op: &str, shape: &Shape) -> Result<(), RuleError> {
    for leaf in shape.leaves() {
        let Some(array) = leaf.stored() else {
            continue;
        };
        check_size(op, "result", array)?;
        if array.dtype.bits() == 1 {
            // Its literals are a fatal error there, and algebraic simplification may turn anything into a literal.
            let message = format!("shape has dtype {}, expected one of 2 bits or more: xla aborts on it", array.dtype);
            return Err(RuleError::new("shape/one-bit", message));
        }
        if !array.dynamic.is_empty() && array.dynamic.len() != array.rank() {
            let message = format!("shape has {} dynamic flags, expected {} or none", array.dynamic.len(), array.rank());
            return Err(RuleError::new("shape/dynamic", message));
        }
        check_layout(array)?;
    }
    Ok(())
}

fn check_layout(array: &ArrayShape) -> Result<(), RuleError> {
    let Some(layout) = &array.layout else {
        return Ok(());
    };
    let rank = array.rank();
    let mut sorted = layout.minor_to_major.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank as i64) {
        let message = format!(
            "layout of {} has minor_to_major={:?}, expected each 0 <= dimension < {rank} once",
            ArrayShape { layout: None, ..array.clone() },
            layout.minor_to_major
        );
        return Err(RuleError::new("shape/layout", message));
    }
    let tile_sizes = layout.tiles.iter().flat_map(|Tile(sizes)| sizes);
    if let Some(size) = tile_sizes.copied().find(|&size| size < 1 && size != Tile::COMBINE) {
        return Err(RuleError::new("shape/tile", format!("layout has a tile of size {size}, expected 1 or more")));
    }
    for (name, value) in [("element size", layout.element_size_in_bits), ("memory space", layout.memory_space)] {
        if value < 0 {
            return Err(RuleError::new("shape/layout", format!("layout has {name} {value}, expected 0 or more")));
        }
    }
    Ok(())
}

fn check_replication(replication: &[bool], shape: &Shape) -> Result<(), RuleError> {
    let n_leaves = shape.leaves().len();
    if replication.is_empty() || replication.len() == n_leaves {
        return Ok(());
    }
    let message = format!("parameter_replication has {} flags, expected {n_leaves} or none", replication.len());
    Err(RuleError::new("parameter/replication", message))
}
