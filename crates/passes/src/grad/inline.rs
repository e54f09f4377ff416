//! Inlines the calls in a loop's body.
//!
//! The reverse of a call is a computation that recomputes the forward pass, but uses its values if both are in one
//! computation. The two directions of a loop are in two, so a callee would be computed twice.

use bf16scope_hlo::{CompId, InstrId, Instruction, Module, Op};

/// The most instructions that a body may grow to.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// Inlines the calls of a computation, and those of its callees; does nothing if they are too many. Calls marked as
/// not inlineable stay.
pub(super) fn calls(module: &mut Module, comp: CompId) {
    let is_small = size(module, comp).is_some_and(|size| size <= MAX_INSTRUCTIONS);
    if !is_small || !module.comp(comp).instructions.iter().any(|instr| called(instr).is_some()) {
        return;
    }
    let original = std::mem::take(&mut module.computations[comp.idx()].instructions);
    let root = module.comp(comp).root;
    let places = write(module, comp, &original, None);
    module.computations[comp.idx()].root = places[root.idx()];
}

/// The computation that an instruction calls, if the call can be inlined.
fn called(instr: &Instruction) -> Option<CompId> {
    let is_kept = instr.frontend_attributes.iter().any(|(name, value)| name == "inlineable" && value == "false");
    match instr.op {
        Op::Call { to_apply } if !is_kept && instr.control_predecessors.is_empty() => Some(to_apply),
        _ => None,
    }
}

/// The number of instructions with all calls inlined; `None` if it cannot be counted.
fn size(module: &Module, comp: CompId) -> Option<usize> {
    // Callees stand in the module's list in any order: sizes by depth, each computation once.
    fn inlined_size(module: &Module, comp: CompId, sizes: &mut Vec<Option<usize>>, depth: usize) -> Option<usize> {
        if depth > 64 {
            return None;
        }
        if let Some(size) = sizes[comp.idx()] {
            return Some(size);
        }
        let mut sum = 0usize;
        for instr in &module.comp(comp).instructions {
            let more = called(instr).map_or(Some(1), |callee| inlined_size(module, callee, sizes, depth + 1))?;
            sum = sum.saturating_add(more);
        }
        sizes[comp.idx()] = Some(sum);
        Some(sum)
    }
    inlined_size(module, comp, &mut vec![None; module.computations.len()], 0)
}

/// Appends instructions with inlined calls, and returns the new id of each. Instructions of a callee get new names,
/// and its parameters are `arguments`.
fn write(module: &mut Module, comp: CompId, original: &[Instruction], arguments: Option<&[InstrId]>) -> Vec<InstrId> {
    let mut new_ids: Vec<InstrId> = Vec::with_capacity(original.len());
    for instr in original {
        let mut instr = instr.clone();
        instr.operands.iter_mut().chain(&mut instr.control_predecessors).for_each(|id| *id = new_ids[id.idx()]);
        let new_id = match (called(&instr), &instr.op, arguments) {
            (Some(callee), ..) => {
                let (body, root) = (module.comp(callee).instructions.clone(), module.comp(callee).root);
                write(module, comp, &body, Some(&instr.operands))[root.idx()]
            }
            (None, Op::Parameter { number, .. }, Some(arguments)) => arguments[*number as usize],
            (None, _, Some(_)) => module.append_copy(comp, instr),
            (None, _, None) => {
                let computation = &mut module.computations[comp.idx()];
                computation.instructions.push(instr);
                InstrId(computation.instructions.len() as u32 - 1)
            }
        };
        new_ids.push(new_id);
    }
    new_ids
}
