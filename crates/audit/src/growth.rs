//! Where error grows: an instruction that gives more of it than it was handed and than is born at it.
//!
//! What is born at an instruction is measured on right operands, so a difference of two nearly equal numbers, or `e` to a
//! large one, has nothing to say for itself: it is exact, and makes of an error of 2^-10 one of a fifth. What it *grew* is
//! seen beside what it read. Let `e(i)` be the scaled error at `i`, 1 at most (then nothing is right), and `h(i)` the sum of
//! those of its operands, an operand that is read twice twice: a product has that, to first order, and a sum of numbers of
//! one sign less. So `e(i) − h(i)`, less what is born at `i`, is what it added by what it computes.
//!
//! Four things are no growth, and count as none:
//! - what no reader has: the mean of numbers around zero is all wrong beside itself, and not beside what it is taken from.
//!   For `e(i)` stands the largest error of those that read `i`, if that is less and `i` is no result;
//! - what f32 does not know either: where `e(i)` is over 2^15 `h(i)`, f32's own rounding of 2^-24 becomes over 2^-9, which is
//!   noise (see `judge`);
//! - a jump: a `select`, a sign or a rounding to whole numbers gives another number where its condition changes, whatever
//!   the size of the change; so does what calls a computation with one;
//! - an optimizer's first, sign-like update, and the root that it is divided by (see `judge`).

use std::collections::{BTreeMap, BTreeSet};

use super::AuditRow;
use bf16scope_hlo::{Computation, InstrId, Module, Op};

/// An instruction that makes more than so many times of its operands' error makes noise of f32's rounding: 2^-9 / 2^-24.
const NOISE_FACTOR: f64 = 32768.0;

/// Opcodes of what is not continuous.
const JUMPS: [&str; 7] = ["select", "compare", "sign", "floor", "ceil", "round-nearest-even", "round-nearest-afz"];

/// Writes into each row what its error grew. The `updates` are names of first updates of an optimizer.
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
        // What is not compared hands on what it reads.
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
        let kept = match read[id] {
            Some(read) if !is_result[id] => errors[id].min(read),
            _ => errors[id],
        };
        let is_noise = handed > 0.0 && row.errors.scaled > NOISE_FACTOR * handed;
        let is_none = is_noise || updates.contains(&row.instruction) || jumps(module, &instr.op);
        row.grown = if is_none { 0.0 } else { (kept - handed - row.born.scaled).max(0.0) };
    }
}

/// The instruction that makes a result, or those that the tuple of all holds.
fn mark_results(entry: &Computation, id: InstrId, is_result: &mut [bool]) {
    is_result[id.idx()] = true;
    let instr = entry.instr(id);
    if matches!(instr.op, Op::Tuple) {
        instr.operands.iter().for_each(|&operand| mark_results(entry, operand, is_result));
    }
}

/// Whether an instruction is not continuous, or calls what is not.
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
