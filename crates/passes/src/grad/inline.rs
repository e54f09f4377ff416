//! Calls written out in a loop's body.
//!
//! A call is reversed as a computation that computes forwards again, and finds the values of the forward pass where both
//! stand in one computation. A loop's two directions do not: what a called computation gives would be computed twice.

use bf16scope_hlo::{CompId, InstrId, Instruction, Module, Op};

/// Instructions that a body may become.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// Writes out the calls of a computation, and those of what it calls; leaves them where they are too many, or are to be kept.
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

/// The computation that an instruction calls and that can stand in its place.
fn called(instr: &Instruction) -> Option<CompId> {
    let is_kept = instr.frontend_attributes.iter().any(|(name, value)| name == "inlineable" && value == "false");
    match instr.op {
        Op::Call { to_apply } if !is_kept && instr.control_predecessors.is_empty() => Some(to_apply),
        _ => None,
    }
}

/// Instructions with all calls written out; `None` where they cannot be counted.
fn size(module: &Module, comp: CompId) -> Option<usize> {
    // What is called stands in a module's list in any order: sizes by depth, each computation once.
    fn of(module: &Module, comp: CompId, sizes: &mut Vec<Option<usize>>, depth: usize) -> Option<usize> {
        if depth > 64 {
            return None;
        }
        if let Some(size) = sizes[comp.idx()] {
            return Some(size);
        }
        let mut sum = 0usize;
        for instr in &module.comp(comp).instructions {
            let more = called(instr).map_or(Some(1), |callee| of(module, callee, sizes, depth + 1))?;
            sum = sum.saturating_add(more);
        }
        sizes[comp.idx()] = Some(sum);
        Some(sum)
    }
    of(module, comp, &mut vec![None; module.computations.len()], 0)
}

/// Appends instructions, those that call replaced by what they call; gives where each stands. Those of a called computation get
/// new names, and its parameters are `arguments`.
fn write(module: &mut Module, comp: CompId, original: &[Instruction], arguments: Option<&[InstrId]>) -> Vec<InstrId> {
    let mut places: Vec<InstrId> = Vec::with_capacity(original.len());
    for instr in original {
        let mut instr = instr.clone();
        instr.operands.iter_mut().chain(&mut instr.control_predecessors).for_each(|id| *id = places[id.idx()]);
        let place = match (called(&instr), &instr.op, arguments) {
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
        places.push(place);
    }
    places
}
