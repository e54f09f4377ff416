//! Tidying: folds exact converts, merges common subexpressions, removes dead code.
//!
//! The three steps run in this order; [`Config`] switches each of them. Each is linear in the module, and tidying a
//! tidied module changes nothing. No step changes a result, not even in the last bit: `f32 → bf16 → f32` rounds and
//! stays, `bf16 → f32 → bf16` is the identity and is removed. (A signalling NaN, which a conversion would make quiet,
//! counts as the same value.) Instructions keep their names and metadata; of two that are merged, the first stays.
//!
//! The pass does not simplify algebra, fold constants or fuse: compilers do that better.

use super::{PassError, hash_debug, is_tied, taken_or_awaited};
use bf16scope_hlo::ops::decisions::{is_effective, side_effects};
use bf16scope_hlo::{CompId, Computation, DType, DTypeClass, InstrId, Instruction, Literal, Module, Op};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Which steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Removes conversions that change nothing, and shortens chains whose first link is exact.
    pub fold_converts: bool,
    /// Merges instructions that compute the same value.
    pub merge_common: bool,
    /// Removes instructions that nothing uses, and computations that nothing calls.
    pub remove_dead: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { fold_converts: true, merge_common: true, remove_dead: true }
    }
}

/// The changes, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TidyReport {
    /// One per changed instruction or computation.
    pub changes: Vec<Change>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A convert now reads an earlier value of its chain, or is replaced by it.
    FoldedConvert {
        /// Computation and instruction.
        at: (String, String),
        /// The instruction that is converted, or used, instead.
        from: String,
    },
    /// An instruction computed the same value as an earlier one.
    Merged {
        /// Computation and instruction.
        at: (String, String),
        /// The earlier one.
        into: String,
    },
    /// An instruction was unused.
    Dead {
        /// Computation and instruction.
        at: (String, String),
    },
    /// A computation had no caller.
    Uncalled {
        /// Its name.
        computation: String,
    },
}

/// Tidies a verified module.
///
/// # Errors
/// It never fails.
pub fn run(module: &Module, config: &Config) -> Result<(Module, TidyReport), PassError> {
    let mut module = module.clone();
    let mut report = TidyReport::default();
    let has_effects = side_effects(&module);
    for idx in 0..module.computations.len() {
        let computation = &mut module.computations[idx];
        if config.fold_converts {
            fold_converts(computation, &mut report);
        }
        if config.merge_common {
            merge_common(computation, &has_effects, &mut report);
        }
        if config.remove_dead {
            remove_dead(computation, &has_effects, &mut report);
        }
    }
    if config.remove_dead {
        remove_uncalled(&mut module, &mut report);
    }
    Ok((module, report))
}

/// Replaces every use of `id`, also by the root and by control edges, by `replacement[id]`.
fn replace_uses(computation: &mut Computation, replacement: &[InstrId]) {
    for instr in &mut computation.instructions {
        let uses = instr.operands.iter_mut().chain(&mut instr.control_predecessors);
        uses.for_each(|id| *id = replacement[id.idx()]);
    }
    computation.root = replacement[computation.root.idx()];
}

/// Whether `to` represents every value of `from`, so that converting loses nothing.
fn is_exact(from: DType, to: DType) -> bool {
    match (from.class(), to.class()) {
        _ if from == to => true,
        (DTypeClass::Float, DTypeClass::Float) => {
            matches!((from, to), (DType::F16 | DType::BF16, DType::F32 | DType::F64) | (DType::F32, DType::F64))
        }
        (DTypeClass::Signed, DTypeClass::Signed)
        | (DTypeClass::Unsigned, DTypeClass::Unsigned | DTypeClass::Signed) => from.bits() < to.bits(),
        // Between integers and floats, conversions of values out of range depend on the path.
        _ => false,
    }
}

/// Replaces `convert(convert(x))`, if the inner one is exact, by `convert(x)`, and a convert to a value's own dtype by
/// the value.
fn fold_converts(computation: &mut Computation, report: &mut TidyReport) {
    let mut replacement: Vec<InstrId> = computation.ids().collect();
    for id in computation.ids() {
        let instr = computation.instr(id);
        if !is_plain_convert(instr) {
            continue;
        }
        // Operands were folded before, so looking one step up the chain is enough.
        let mut source = replacement[instr.operands[0].idx()];
        let inner = computation.instr(source);
        if is_plain_convert(inner) {
            let origin = inner.operands[0];
            if let (Some(from), Some(to)) = (computation.instr(origin).shape.dtype(), inner.shape.dtype())
                && is_exact(from, to)
            {
                source = origin;
            }
        }
        let origin = computation.instr(source);
        let at = (computation.name.clone(), instr.name.clone());
        let from = origin.name.clone();
        if origin.shape == instr.shape || origin.shape == instr.shape.without_layout() {
            replacement[id.idx()] = source;
            report.changes.push(Change::FoldedConvert { at, from });
        } else if source != instr.operands[0] {
            if source != replacement[instr.operands[0].idx()] {
                report.changes.push(Change::FoldedConvert { at, from });
            }
            computation.instructions[id.idx()].operands[0] = source;
        }
    }
    replace_uses(computation, &replacement);
}

/// Whether an instruction is a convert that nothing but its operand determines.
fn is_plain_convert(instr: &Instruction) -> bool {
    matches!(instr.op, Op::Convert) && !is_tied(instr) && !instr.metadata.is_custom_vjp()
}

/// Merges each instruction with the first that has the same op, operands and shape.
fn merge_common(computation: &mut Computation, has_effects: &[bool], report: &mut TidyReport) {
    let mut replacement: Vec<InstrId> = computation.ids().collect();
    // The last of each fingerprint, and for each instruction the one before it of the same: no list for each of thousands.
    let mut last: HashMap<u64, InstrId> = HashMap::with_capacity(replacement.len());
    let mut before: Vec<Option<InstrId>> = vec![None; replacement.len()];
    for id in computation.ids() {
        let instr = &mut computation.instructions[id.idx()];
        instr.operands.iter_mut().for_each(|operand| *operand = replacement[operand.idx()]);
        let instr = computation.instr(id);
        if !is_mergeable(instr) || is_effective(instr, has_effects) {
            continue;
        }
        let fingerprint = fingerprint(instr);
        let mut alike = std::iter::successors(last.get(&fingerprint).copied(), |id| before[id.idx()]);
        match alike.find(|&earlier| computes_the_same(computation.instr(earlier), instr)) {
            Some(earlier) => {
                replacement[id.idx()] = earlier;
                let at = (computation.name.clone(), instr.name.clone());
                report.changes.push(Change::Merged { at, into: computation.instr(earlier).name.clone() });
            }
            None => before[id.idx()] = last.insert(fingerprint, id),
        }
    }
    replace_uses(computation, &replacement);
}

/// Parameters are distinct; ops that only a back end or another device understands are left alone.
fn is_mergeable(instr: &Instruction) -> bool {
    let is_foreign = matches!(instr.op, Op::Parameter { .. } | Op::CustomCall(_) | Op::Opaque(_) | Op::AllReduce(_));
    !is_foreign && instr.control_predecessors.is_empty()
}

fn computes_the_same(a: &Instruction, b: &Instruction) -> bool {
    a.operands == b.operands
        && a.shape == b.shape
        && a.op == b.op
        && a.sharding == b.sharding
        && a.frontend_attributes == b.frontend_attributes
        && a.backend_config == b.backend_config
        && a.unmodelled.without_metadata() == b.unmodelled.without_metadata()
        // One may have a gradient that the other does not have.
        && a.metadata.is_custom_vjp() == b.metadata.is_custom_vjp()
}

/// A hash that is equal for instructions that [`computes_the_same`] accepts, and differs for nearly all others,
/// whatever they differ in: a module may hold a hundred thousand that differ in one attribute.
fn fingerprint(instr: &Instruction) -> u64 {
    let mut hasher = DefaultHasher::new();
    instr.op.opcode().hash(&mut hasher);
    instr.operands.hash(&mut hasher);
    instr.shape.hash(&mut hasher);
    instr.frontend_attributes.hash(&mut hasher);
    instr.backend_config.hash(&mut hasher);
    match &instr.op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Convert | Op::Reshape | Op::Tuple => {}
        Op::Constant(Literal::Array { bytes, .. }) => bytes.hash(&mut hasher),
        op => hash_debug(&mut hasher, op),
    }
    hasher.finish()
}

/// Keeps parameters, instructions that the root needs, and those with effects.
fn remove_dead(computation: &mut Computation, has_effects: &[bool], report: &mut TidyReport) {
    let mut live = vec![false; computation.instructions.len()];
    live[computation.root.idx()] = true;
    for id in computation.ids().rev() {
        let instr = computation.instr(id);
        live[id.idx()] |= matches!(instr.op, Op::Parameter { .. }) || is_effective(instr, has_effects);
        if live[id.idx()] {
            // Ids were verified, so a control predecessor stands before.
            taken_or_awaited(instr).for_each(|used| live[used.idx()] = true);
        }
    }
    let dead = computation.instructions.iter().zip(&live).filter(|(_, is_live)| !**is_live);
    let at = |instr: &Instruction| (computation.name.clone(), instr.name.clone());
    report.changes.extend(dead.map(|(instr, _)| Change::Dead { at: at(instr) }));
    keep_only(computation, &live);
}

/// Removes all instructions but those that are kept, which read none of the others.
pub(super) fn keep_only(computation: &mut Computation, is_kept: &[bool]) {
    let mut renumbered = Vec::with_capacity(is_kept.len());
    let mut n_kept = 0;
    for &is_kept in is_kept {
        renumbered.push(InstrId(n_kept));
        n_kept += u32::from(is_kept);
    }
    let mut keep = is_kept.iter();
    computation.instructions.retain(|_| keep.next() == Some(&true));
    replace_uses(computation, &renumbered);
}

/// Keeps the entry and its callees, direct or not.
fn remove_uncalled(module: &mut Module, report: &mut TidyReport) {
    let mut is_called = vec![false; module.computations.len()];
    let mut pending = vec![module.entry];
    while let Some(comp) = pending.pop() {
        if !std::mem::replace(&mut is_called[comp.idx()], true) {
            pending.extend(module.comp(comp).instructions.iter().flat_map(|instr| instr.op.called()));
        }
    }
    let mut renumbered = Vec::with_capacity(is_called.len());
    let mut n_kept = 0;
    for &is_called in &is_called {
        renumbered.push(CompId(n_kept));
        n_kept += u32::from(is_called);
    }
    let mut keep = is_called.iter();
    module.computations.retain(|computation| {
        let keep = *keep.next().expect("one flag per computation");
        if !keep {
            report.changes.push(Change::Uncalled { computation: computation.name.clone() });
        }
        keep
    });
    module.entry = renumbered[module.entry.idx()];
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    instructions.for_each(|instr| instr.op.for_each_called_mut(&mut |comp| *comp = renumbered[comp.idx()]));
}

#[cfg(test)]
mod tests;
