//! Grown error: the error that an instruction adds to the inherited error beyond the error born at it.
//!
//! Born error is measured with exact operands, so a difference of two nearly equal numbers, or `e` to a large power,
//! has none: it is exact, but turns an error of 2^-10 into one of a fifth. *Grown* error compares with the operands'
//! errors. Let `e(i)` be the scaled error at `i`, at most 1 (then nothing is right), and `h(i)` the sum of the scaled
//! errors of its operands, counting an operand that is read twice twice: to first order that is the error of a product,
//! and an upper bound for a sum of numbers of one sign. Then `e(i) − h(i)`, minus the error born at `i`, is the grown
//! error.
//!
//! Four cases do not count as growth:
//! - error that no reader sees: the mean of numbers around zero has a large relative error, but not relative to the
//!   numbers that it is subtracted from. `e(i)` is replaced by the largest error of the readers of `i`, if that is less
//!   and `i` is not a result;
//! - noise of f32: if `e(i)` exceeds 2^15 `h(i)`, f32's own rounding of 2^-24 would exceed 2^-9, which is noise (see
//!   `judge`);
//! - a jump: a `select`, a sign or a rounding to whole numbers gives another number if its condition changes, however
//!   small the change; the same for calls of a computation with one;
//! - an optimizer's first, sign-like update, and the root in its denominator; and a later one whose gradient is noise
//!   in part (see `judge`).

use std::collections::{BTreeMap, BTreeSet};

use super::AuditRow;
use bf16scope_hlo::{Computation, InstrId, Module, Op};

/// An instruction that amplifies its operands' error more than this turns f32's rounding into noise: 2^-9 / 2^-24.
const NOISE_FACTOR: f64 = 32768.0;

/// Opcodes of discontinuous functions.
const JUMPS: [&str; 7] = ["select", "compare", "sign", "floor", "ceil", "round-nearest-even", "round-nearest-afz"];

/// Sets the grown error of each row. `updates` are names of an optimizer's updates that do not count.
pub(super) fn measure(module: &Module, updates: &BTreeSet<String>, rows: &mut [AuditRow]) {
    let entry = module.entry();
    let scaled: BTreeMap<usize, f64> = rows.iter().map(|row| (row.position, row.errors.scaled.min(1.0))).collect();
    let mut errors = vec![0.0; entry.instructions.len()];
    let mut read = vec![None::<f64>; entry.instructions.len()];
    let mut is_result = vec![false; entry.instructions.len()];
    mark_results(entry, entry.root, &mut is_result);
    for id in entry.ids() {
        let instr = entry.instr(id);
        let largest = instr.operands.iter().map(|operand| errors[operand.idx()]).fold(0.0, f64::max);
        // An instruction without a row passes its operands' error on.
        errors[id.idx()] = scaled.get(&id.idx()).copied().unwrap_or(largest);
        if scaled.contains_key(&id.idx()) {
            let error = errors[id.idx()];
            for operand in &instr.operands {
                let most = &mut read[operand.idx()];
                *most = Some(most.map_or(error, |most| most.max(error)));
            }
        }
    }
    for row in rows {
        let id = row.position;
        let instr = &entry.instructions[id];
        let handed: f64 = instr.operands.iter().map(|operand| errors[operand.idx()]).sum();
        let seen_error = match read[id] {
            Some(read) if !is_result[id] => errors[id].min(read),
            _ => errors[id],
        };
        let is_noise = handed > 0.0 && row.errors.scaled > NOISE_FACTOR * handed;
        let is_none = is_noise || updates.contains(&row.instruction) || jumps(module, &instr.op);
        row.grown = if is_none { 0.0 } else { (seen_error - handed - row.born.scaled).max(0.0) };
    }
}

/// Marks the instruction of a result, or of each element of the result tuple.
fn mark_results(entry: &Computation, id: InstrId, is_result: &mut [bool]) {
    is_result[id.idx()] = true;
    let instr = entry.instr(id);
    if matches!(instr.op, Op::Tuple) {
        instr.operands.iter().for_each(|&operand| mark_results(entry, operand, is_result));
    }
}

/// Whether an instruction is discontinuous, or calls a computation that is.
fn jumps(module: &Module, op: &Op) -> bool {
    let is_jump = |op: &Op| JUMPS.contains(&op.opcode().as_ref());
    let mut pending = op.called();
    let mut reached: BTreeSet<_> = pending.iter().copied().collect();
    while let Some(comp) = pending.pop() {
        for instr in &module.comp(comp).instructions {
            if is_jump(&instr.op) {
                return true;
            }
            pending.extend(instr.op.called().into_iter().filter(|&callee| reached.insert(callee)));
        }
    }
    is_jump(op)
}
