//! Rematerialisation: the backward pass recomputes values of the forward pass instead of keeping them.
//!
//! [`remat`] runs after [`gradients`](super::grad::gradients), on the same computation. Instructions before a given
//! position are the forward pass, those after it the backward pass. Where the backward pass uses a rematerialised
//! value, it then uses a copy, computed from *residuals*: values that are kept. Something goes through an `opt-barrier`
//! first, because a compiler merges equal computations otherwise: the mean of a rematerialised normalisation,
//! else the residual. A barrier of a large array fixes its layout, and convolutions of other layouts then copy it
//! (`benches/keras/compiled.md` has figures). If computing the copy costs more than reading it, the residual's barrier
//! also takes the latest sum or product of the backward pass, so that the copy is not computed before it is needed (as
//! in JAX's `checkpoint`).
//!
//! These values are rematerialised:
//! - elementwise functions of one or two residuals, including batch normalisation with known statistics. Reading the
//!   residuals and applying the function costs little more than reading its result, and often nothing, because the
//!   compiler fuses it into its consumer, in the forward pass too;
//! - a variable's cast to a narrower dtype that is a convolution's kernel, if the kernel is much larger than the
//!   resulting image: the variable is live anyway, and otherwise the casts for a network's last layers would all be
//!   live where the backward pass begins;
//! - instructions whose name matches a pattern of the [`Remat`], including convolutions and products. The operands of
//!   a matched scope are residuals.
//!
//! Parameters, statistics and other results much smaller than their operands, random bits, calls, communication, and
//! results that are not arrays are always kept.
//!
//! A copy is the same op on the same values, so gradients are bitwise the same if the compiler rounds each instruction
//! as written.

use super::name_pattern::matches;
use super::{PassError, PassErrorKind};
use crate::tuning::Remat;
use bf16scope_hlo::ops::batch_norm::normalisation::Normalisation;
use bf16scope_hlo::ops::{BatchNorm, decisions};
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{CompId, Emitter, InstrId, Instruction, Metadata, Module, Op, Shape};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The report of [`remat`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RematReport {
    /// The scoped name and shape of each rematerialised value.
    pub rematerialised: Vec<(String, String)>,
    /// The same for each residual that was put behind a barrier.
    pub residuals: Vec<(String, String)>,
}

/// The values that the backward pass of a whole module rematerialises.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The number of the entry's instructions, from the first, that are the forward pass.
    pub n_forward: usize,
    /// The choice of rematerialised values.
    pub remat: Remat,
}

/// The most residuals from which an elementwise function is rematerialised. With two, the backward pass keeps every
/// other one of the sums along a chain of residual blocks, and reads two arrays for each one in between.
const N_SOURCES: usize = 2;

/// An array is small if it has this many times fewer elements than its result, or than its operand: keeping and
/// reading it costs nothing. Statistics and scales are small; a pooled image (4 or 9 times) is not.
const SMALL: i64 = 16;

/// A kernel with more than this many times the elements of its convolution's result is recast.
const LARGE: i64 = 2;

/// Rewrites the backward pass of a module (all instructions of the entry after the forward pass) so that it
/// rematerialises values.
///
/// # Errors
/// As [`remat`].
pub fn run(module: &Module, config: &Config) -> Result<(Module, RematReport), PassError> {
    let entry = module.entry();
    let n_forward = config.n_forward.min(entry.instructions.len());
    let e = Emitter::new(module.clone(), module.entry);
    let (results, report) = remat(&e, n_forward, &[entry.root], &config.remat)?;
    let mut module = e.finish()?;
    let entry = module.entry;
    module.computations[entry.idx()].root = results[0];
    Ok((module, report))
}

/// Rewrites the backward pass, which is the emitter's computation from instruction `n_forward` on, so that it
/// rematerialises what `config` says. Ids below `n_forward` stay valid; later `results` are returned with their new
/// ids.
///
/// # Errors
/// A pattern matches nothing, or the emitter had failed before. The computation is then unchanged.
pub fn remat(
    e: &Emitter,
    n_forward: usize,
    results: &[InstrId],
    config: &Remat,
) -> Result<(Vec<InstrId>, RematReport), PassError> {
    if let Some(error) = e.error() {
        return Err(Box::new(error).into());
    }
    let comp = e.comp();
    if !e.with_module(|module| applies(config, &module.comp(comp).instructions[..n_forward])) {
        return Ok((results.to_vec(), RematReport::default()));
    }
    let plan = e.with_module(|module| RematPlan::new(module, comp, n_forward, config))?;
    if !e.with_module(|module| plan.changes(module, comp)) {
        return Ok((results.to_vec(), RematReport::default()));
    }
    // The emitter lends its module to another one, which rewrites the backward pass.
    let original = e.with_module_mut(|module| std::mem::replace(module, Module::new("")));
    let mut copy = original.clone();
    let backward = copy.computations[comp.idx()].instructions.split_off(n_forward);
    let mut writer = Writer::new(Emitter::new(copy, comp), &plan, n_forward);
    for (idx, instr) in backward.iter().enumerate() {
        writer.rewrite(instr, &plan.scopes[n_forward + idx]);
    }
    let Writer { e: inner, renamed, report, .. } = writer;
    let (module, result) = match inner.finish() {
        Ok(module) => {
            let renamed = |id: &InstrId| if id.idx() < n_forward { *id } else { renamed[id.idx() - n_forward] };
            (module, Ok((results.iter().map(renamed).collect(), report)))
        }
        Err(error) => (original, Err(error.into())),
    };
    e.with_module_mut(|lent| *lent = module);
    e.forget_from(n_forward);
    result
}

/// Whether `config` may apply to this forward pass.
fn applies(config: &Remat, forward: &[Instruction]) -> bool {
    match config {
        Remat::None => false,
        Remat::Elementwise | Remat::Scopes(_) => true,
        Remat::Convolutional => forward.iter().any(|instr| matches!(instr.op, Op::Convolution(_))),
    }
}

/// How the backward pass gets a value of the forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It uses the value directly: that is live anyway, is small, or is not an array.
    Used,
    /// It uses the kept value, through a barrier.
    Residual,
    /// It computes the value again.
    Rematerialised,
}

/// The plan for each value of the forward pass.
struct RematPlan {
    fates: Vec<Fate>,
    /// The matched scope of each instruction, of either pass.
    scopes: Vec<Option<String>>,
    /// For each value whether rematerialising it costs more than elementwise functions.
    costs: Vec<bool>,
    /// For each value how its copies are kept distinct from it.
    marks: Vec<Mark>,
}

/// The way in which a copy is kept distinct from the original, so that the compiler does not merge the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// The residuals that it is computed from go through barriers.
    Residuals,
    /// It is a kept residual, such as a convolution, or its conversion: it can be read as it is where something else
    /// marks what reads it.
    Plain,
    /// It has an operand that is marked, or a mean that goes through a barrier.
    Marked,
}

impl RematPlan {
    fn new(module: &Module, comp: CompId, n_forward: usize, config: &Remat) -> Result<RematPlan, PassError> {
        let instructions = &module.comp(comp).instructions;
        let forward = &instructions[..n_forward];
        let scopes = matched_scopes(instructions, n_forward, config)?;
        let casts = large_casts(forward);
        let mut plan = RematPlan { fates: Vec::new(), scopes, costs: Vec::new(), marks: Vec::new() };
        // Residuals that must have a barrier: variables of large kernels.
        let variables: BTreeSet<InstrId> = casts.iter().map(|id| forward[id.idx()].operands[0]).collect();
        // For each value the kept arrays, other than small ones, that its copy would be computed from.
        let mut sources: Vec<BTreeSet<InstrId>> = Vec::new();
        for (idx, instr) in forward.iter().enumerate() {
            let operands = remat_operands(forward, instr);
            let operand_sources = || operands.iter().flat_map(|operand| sources[operand.idx()].iter().copied());
            let from: BTreeSet<InstrId> =
                operand_sources().filter(|&id| !is_small(&forward[id.idx()], instr)).collect();
            let in_scope = plan.scopes[idx].is_some();
            let is_map = is_map(forward, instr);
            let is_there = matches!(instr.op, Op::Parameter { .. } | Op::Constant(_) | Op::Iota { .. })
                || instr.shape.as_array().is_none();
            let is_reduced = operands.iter().any(|operand| is_small(instr, &forward[operand.idx()]));
            let fate = if is_there || (is_reduced && !in_scope) {
                Fate::Used
            } else if (in_scope && (is_map || decisions::is_repeatable(&instr.op)) && !is_reduced)
                || (is_map && from.len() <= N_SOURCES && !widens(forward, &from, instr))
            {
                // A value that is computed from parameters and constants alone is cheap to keep.
                if from.is_empty() && !in_scope { Fate::Used } else { Fate::Rematerialised }
            } else if is_reduced {
                Fate::Used
            } else {
                Fate::Residual
            };
            let fate = if casts.contains(&InstrId(idx as u32)) {
                // The variable is live anyway, but without a barrier the compiler keeps the forward pass's cast.
                plan.fates[instr.operands[0].idx()] = Fate::Residual;
                Fate::Rematerialised
            } else {
                fate
            };
            let is_copied = fate == Fate::Rematerialised;
            plan.costs.push(is_copied && (!is_map || operands.iter().any(|operand| plan.costs[operand.idx()])));
            let has = |mark: Mark| operands.iter().any(|operand| plan.marks[operand.idx()] == mark);
            plan.marks.push(match fate {
                _ if variables.contains(&InstrId(idx as u32)) || casts.contains(&InstrId(idx as u32)) || in_scope => {
                    Mark::Residuals
                }
                // A kept map has a barrier, or the compiler would recompute that from more than was kept.
                Fate::Residual if !is_map => Mark::Plain,
                Fate::Rematerialised if has(Mark::Marked) || normalisation(forward, instr).is_some() => Mark::Marked,
                Fate::Rematerialised if matches!(instr.op, Op::Convert) && has(Mark::Plain) => Mark::Plain,
                Fate::Used | Fate::Residual | Fate::Rematerialised => Mark::Residuals,
            });
            sources.push(match fate {
                Fate::Used => BTreeSet::new(),
                Fate::Residual => BTreeSet::from([InstrId(idx as u32)]),
                Fate::Rematerialised => from,
            });
            plan.fates.push(fate);
        }
        Ok(plan)
    }

    /// Whether the backward pass uses a rematerialised value.
    fn changes(&self, module: &Module, comp: CompId) -> bool {
        let n_forward = self.fates.len();
        let backward = &module.comp(comp).instructions[n_forward..];
        let mut used = backward.iter().flat_map(|instr| &instr.operands).filter(|id| id.idx() < n_forward);
        used.any(|id| self.fates[id.idx()] == Fate::Rematerialised)
    }
}

/// The operands of an instruction's copy: its own, or those of the batch norm if it extracts the normalised result.
fn remat_operands(forward: &[Instruction], instr: &Instruction) -> Vec<InstrId> {
    match normalisation(forward, instr) {
        Some((norm, _)) => norm.operands.clone(),
        None => instr.operands.clone(),
    }
}

/// The batch norm whose normalised data an instruction extracts.
fn normalisation<'a>(forward: &'a [Instruction], instr: &Instruction) -> Option<(&'a Instruction, BatchNorm)> {
    let Op::GetTupleElement { index: 0 } = instr.op else { return None };
    let norm = &forward[instr.operands[0].idx()];
    match norm.op {
        Op::BatchNormTraining(attributes) => Some((norm, attributes)),
        _ => None,
    }
}

/// The casts of variables to narrower dtypes that are kernels much larger than the images of their convolutions.
fn large_casts(forward: &[Instruction]) -> BTreeSet<InstrId> {
    let n_bits = |instr: &Instruction| instr.shape.dtype().map_or(0, |dtype| dtype.bits());
    let is_cast_of_variable = |instr: &Instruction| {
        let instruction_of = |id: &InstrId| &forward[id.idx()];
        let is_wider = |operand: &Instruction| n_bits(operand) > n_bits(instr);
        matches!(instr.op, Op::Convert)
            && instr
                .operands
                .iter()
                .map(instruction_of)
                .all(|operand| matches!(operand.op, Op::Parameter { .. }) && is_wider(operand))
    };
    let kernels = forward.iter().filter(|instr| matches!(instr.op, Op::Convolution(_))).filter_map(|convolution| {
        let kernel = *convolution.operands.get(1)?;
        let (n, n_results) = (n_elements(&forward[kernel.idx()].shape)?, n_elements(&convolution.shape)?);
        (n > n_results.saturating_mul(LARGE)).then_some(kernel)
    });
    kernels.filter(|id| is_cast_of_variable(&forward[id.idx()])).collect()
}

/// Whether an instruction is elementwise, including a batch norm with known statistics.
fn is_map(forward: &[Instruction], instr: &Instruction) -> bool {
    decisions::is_map(&instr.op) || normalisation(forward, instr).is_some()
}

/// Whether `instr` is much smaller than `other`.
fn is_small(instr: &Instruction, other: &Instruction) -> bool {
    match (n_elements(&instr.shape), n_elements(&other.shape)) {
        (Some(n), Some(n_other)) => n.saturating_mul(SMALL) <= n_other,
        _ => false,
    }
}

/// The number of elements of an array, or of the largest array of a tuple.
fn n_elements(shape: &Shape) -> Option<i64> {
    let n_of = |leaf: &Shape| leaf.dims().iter().fold(1i64, |n, &size| n.saturating_mul(size));
    shape.leaves().into_iter().map(n_of).max()
}

/// Whether a value is narrower than the random bits that it comes from: a dropout's mask is kept, not its bits.
fn widens(forward: &[Instruction], from: &BTreeSet<InstrId>, instr: &Instruction) -> bool {
    let n_bits = |instr: &Instruction| instr.shape.dtype().map_or(0, |dtype| dtype.bits());
    let is_random = |id: &InstrId| {
        let source = &forward[id.idx()];
        let is_tuple_element = matches!(source.op, Op::GetTupleElement { .. });
        is_tuple_element && matches!(forward[source.operands[0].idx()].op, Op::RngBitGenerator(_))
    };
    from.iter().any(|id| is_random(id) && n_bits(&forward[id.idx()]) > n_bits(instr))
}

/// The scope of each instruction that a pattern matches: its name up to the last matched level. A gradient is in the
/// scope of its primal.
fn matched_scopes(
    instructions: &[Instruction],
    n_forward: usize,
    config: &Remat,
) -> Result<Vec<Option<String>>, PassError> {
    let mut hits = vec![false; config.patterns().len()];
    let mut cache: BTreeMap<&str, Option<String>> = BTreeMap::new();
    let mut scopes = Vec::new();
    for (idx, instr) in instructions.iter().enumerate() {
        let name = instr.metadata.op_name.as_str();
        let name = if idx < n_forward { name } else { name.strip_prefix("gradient/").unwrap_or_default() };
        let scope = cache.entry(name).or_insert_with(|| {
            let levels: Vec<&str> = name.split('/').collect();
            let ends = config.patterns().iter().zip(&mut hits).filter_map(|(pattern, hit)| {
                let end = last_level(pattern, &levels)?;
                *hit = true;
                Some(end)
            });
            // The outermost scope: it is rematerialised as a whole.
            ends.min().map(|end| levels[..end].join("/"))
        });
        scopes.push(scope.clone());
    }
    match hits.iter().position(|hit| !hit) {
        None => Ok(scopes),
        Some(idx) => {
            let pattern = config.patterns()[idx].clone();
            let forward = instructions[..n_forward].iter();
            let levels: BTreeSet<&str> = forward.flat_map(|instr| instr.metadata.op_name.split('/')).collect();
            let plain = pattern.replace(['*', '?'], "");
            let help = match nearest(&plain, levels) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "`bf16scope emit` shows the names, as op_name".to_string(),
            };
            let text = format!("remat: no scope of the network matches `{pattern}`");
            Err(PassError::new(PassErrorKind::NoMatch(pattern), text).with_help(help))
        }
    }
}

/// Where the first run of levels that a pattern matches ends.
fn last_level(pattern: &str, levels: &[&str]) -> Option<usize> {
    let n_levels = pattern.split('/').count();
    (n_levels..=levels.len()).find(|&end| {
        let run = &levels[end - n_levels..end];
        pattern.split('/').zip(run).all(|(pattern, level)| matches(pattern, level))
    })
}

/// Rewrites the backward pass.
struct Writer<'a> {
    e: Emitter,
    plan: &'a RematPlan,
    n_forward: usize,
    /// The new ids of the backward pass so far.
    renamed: Vec<InstrId>,
    /// The copies so far, by original and by the scope that uses them: each scope is rematerialised separately.
    copies: BTreeMap<(InstrId, Option<String>), InstrId>,
    /// The last sum or product of the backward pass.
    latest: Option<InstrId>,
    report: RematReport,
}

impl Writer<'_> {
    fn new(e: Emitter, plan: &RematPlan, n_forward: usize) -> Writer<'_> {
        let (renamed, copies) = (Vec::new(), BTreeMap::new());
        Writer { e, plan, n_forward, renamed, copies, latest: None, report: RematReport::default() }
    }

    /// Appends an instruction of the backward pass, on copies of the rematerialised values that it uses.
    fn rewrite(&mut self, instr: &Instruction, scope: &Option<String>) {
        let operands: Vec<InstrId> = instr.operands.iter().map(|&id| self.operand(id, scope)).collect();
        let renamed = |id: &InstrId| id.idx().checked_sub(self.n_forward).map_or(*id, |idx| self.renamed[idx]);
        let control_predecessors = instr.control_predecessors.iter().map(renamed).collect();
        let id = self.append(Instruction { operands, control_predecessors, ..instr.clone() });
        self.renamed.push(id);
        if matches!(instr.op, Op::Reduce { .. }) {
            self.latest = Some(id);
        }
    }

    fn operand(&mut self, id: InstrId, scope: &Option<String>) -> InstrId {
        if id.idx() >= self.n_forward {
            return self.renamed[id.idx() - self.n_forward];
        }
        if self.plan.marks[id.idx()] == Mark::Plain && scope.is_none() {
            return id;
        }
        self.value(id, scope, self.plan.costs[id.idx()])
    }

    /// Whether a copy reads plain operands as they are.
    fn reads_plain(&self, id: InstrId, scope: &Option<String>, late: bool) -> bool {
        self.plan.marks[id.idx()] == Mark::Marked && scope.is_none() && !late
    }

    /// The value that the backward pass uses in place of `id`, within a scope; `late` if its user is expensive.
    fn value(&mut self, id: InstrId, scope: &Option<String>, late: bool) -> InstrId {
        // A stack rather than recursion: a chain of rematerialised values may be as long as the program.
        let mut pending = vec![(id, scope.clone(), false)];
        while let Some((id, scope, was_open)) = pending.pop() {
            if self.known(id, &scope).is_some() {
                continue;
            }
            let instr = self.e.with_module(|module| module.comp(self.e.comp()).instr(id).clone());
            let inner = self.scope_of(id, &scope);
            let copy = if self.is_kept(id, &scope) {
                self.keep(&instr, id, late)
            } else {
                if !was_open {
                    self.report.rematerialised.push((instr.metadata.op_name.clone(), instr.shape.to_string()));
                }
                let operands = self.remat_operands(&instr);
                let reads_plain = self.reads_plain(id, &inner, late);
                let is_plain = |operand: InstrId| reads_plain && self.plan.marks[operand.idx()] == Mark::Plain;
                let missing = |&&operand: &&InstrId| !is_plain(operand) && self.known(operand, &inner).is_none();
                let missing = operands.iter().rev().filter(missing).map(|&id| (id, inner.clone(), false));
                let missing: Vec<_> = missing.collect();
                if !missing.is_empty() {
                    pending.push((id, scope, true));
                    pending.extend(missing);
                    continue;
                }
                let copied = |&operand: &InstrId| match is_plain(operand) {
                    true => operand,
                    false => self.known(operand, &inner).expect("what was missing has been made"),
                };
                let operands = operands.iter().map(copied).collect();
                self.copy_of(&instr, operands, reads_plain)
            };
            self.copies.insert((id, inner), copy);
        }
        self.known(id, scope).expect("it was made last")
    }

    /// The scope for which a value is rematerialised: its own scope, if it has one and the user is not in another.
    fn scope_of(&self, id: InstrId, scope: &Option<String>) -> Option<String> {
        let own_scope = &self.plan.scopes[id.idx()];
        if own_scope.is_some() && !self.crosses(id, scope) { own_scope.clone() } else { scope.clone() }
    }

    /// Whether a value is in another scope than its user.
    fn crosses(&self, id: InstrId, scope: &Option<String>) -> bool {
        let own_scope = &self.plan.scopes[id.idx()];
        scope.is_some() && own_scope.is_some() && own_scope != scope
    }

    fn is_kept(&self, id: InstrId, scope: &Option<String>) -> bool {
        match self.plan.fates[id.idx()] {
            Fate::Used => false,
            Fate::Residual => true,
            Fate::Rematerialised => self.crosses(id, scope) && self.plan.costs[id.idx()],
        }
    }

    /// The value that stands for one of the forward pass, if it was written already.
    fn known(&self, id: InstrId, scope: &Option<String>) -> Option<InstrId> {
        match self.plan.fates[id.idx()] {
            Fate::Used => Some(id),
            Fate::Residual | Fate::Rematerialised => self.copies.get(&(id, self.scope_of(id, scope))).copied(),
        }
    }

    /// Puts a kept value behind a barrier.
    fn keep(&mut self, instr: &Instruction, id: InstrId, late: bool) -> InstrId {
        self.report.residuals.push((instr.metadata.op_name.clone(), instr.shape.to_string()));
        self.e.set_metadata(copy_metadata(instr));
        let behind = match self.latest.filter(|_| late) {
            None => self.e.emit(Op::OptimizationBarrier, &[id], None),
            Some(latest) => {
                let both = self.e.tuple(&[id, latest]);
                let both = self.e.emit(Op::OptimizationBarrier, &[both], None);
                self.e.get_tuple_element(both, 0)
            }
        };
        self.shard(behind, instr);
        behind
    }

    /// The operands of an instruction's copy.
    fn remat_operands(&self, instr: &Instruction) -> Vec<InstrId> {
        self.e.with_module(|module| remat_operands(&module.comp(self.e.comp()).instructions[..self.n_forward], instr))
    }

    /// A copy of an instruction, and a barrier of a normalisation's mean if that marks the copy.
    fn copy_of(&self, instr: &Instruction, operands: Vec<InstrId>, is_marked: bool) -> InstrId {
        let attributes = self.e.with_module(|module| {
            let forward = &module.comp(self.e.comp()).instructions[..self.n_forward];
            normalisation(forward, instr).map(|(_, attributes)| attributes)
        });
        let metadata = copy_metadata(instr);
        let Some(attributes) = attributes else {
            // Its control predecessors are in the forward pass, which stays.
            return self.append(Instruction { operands, metadata, ..instr.clone() });
        };
        self.e.set_metadata(metadata);
        let [mut mean, variance] = [1, 2].map(|index| self.e.get_tuple_element(instr.operands[0], index));
        if is_marked {
            mean = self.e.emit(Op::OptimizationBarrier, &[mean], None);
        }
        let n_before = self.e.n_instructions();
        let norm = Normalisation { scale: operands[1], mean, variance, attributes };
        let result = norm.apply(&self.e, operands[0], operands[2]);
        for id in (n_before..self.e.n_instructions()).map(|idx| InstrId(idx as u32)) {
            self.shard(id, instr);
        }
        result
    }

    /// Copies the sharding of an instruction with the same dims.
    fn shard(&self, id: InstrId, like: &Instruction) {
        self.e.with_module_mut(|module| {
            let instr = module.computations[self.e.comp().idx()].instructions.get_mut(id.idx());
            if let Some(instr) = instr.filter(|instr| instr.shape.dims() == like.shape.dims()) {
                instr.sharding.clone_from(&like.sharding);
            }
        });
    }

    fn append(&self, instr: Instruction) -> InstrId {
        self.e.with_module_mut(|module| module.append_copy(self.e.comp(), instr))
    }
}

/// The original's metadata, with its name under `remat/`.
fn copy_metadata(instr: &Instruction) -> Metadata {
    Metadata { op_name: format!("remat/{}", instr.metadata.op_name), ..instr.metadata.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grad;
    use bf16scope_hlo::{text, verify};

    #[test]
    fn a_module_comes_out_with_its_results_and_its_backward_pass_computes_again() {
        let forward = text::parse(
            "HloModule m\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n\
             ENTRY m {\n  x = f32[8,64] parameter(0)\n  w = f32[64,64] parameter(1)\n  \
             p = f32[8,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  \
             t = f32[8,64] tanh(p), metadata={op_name=\"net/tanh\"}\n  zero = f32[] constant(0)\n  \
             ROOT loss = f32[] reduce(t, zero), dimensions={0,1}, to_apply=sum\n}\n",
            "m.txt",
        )
        .unwrap();
        let n_forward = forward.entry().instructions.len();
        let (module, _) = grad::run(&forward, &grad::Config { loss: 0, wrt: vec![1] }).unwrap();
        let config = |remat| Config { n_forward, remat };
        let (same, report) = run(&module, &config(Remat::None)).unwrap();
        assert_eq!((same, report), (module.clone(), RematReport::default()));
        let (rewritten, report) = run(&module, &config(Remat::Elementwise)).unwrap();
        verify(&rewritten).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(report.rematerialised, [("net/tanh".to_string(), "f32[8,64]".to_string())]);
        assert_eq!(rewritten.entry().result_shape(), module.entry().result_shape());
        let n_tanh = |module: &Module| {
            let is_tanh = |instr: &&Instruction| instr.op.opcode() == "tanh";
            module.entry().instructions.iter().filter(is_tanh).count()
        };
        assert_eq!([&module, &rewritten].map(n_tanh), [1, 2]);
        let error = run(&module, &config(Remat::Scopes(vec!["nett".to_string()]))).unwrap_err();
        assert_eq!(error.kind(), &PassErrorKind::NoMatch("nett".to_string()));
        assert_eq!(error.to_string(), "remat: no scope of the network matches `nett`\nhelp: did you mean `net`?");
    }

    /// A barrier of an image would fix its layout.
    #[test]
    fn a_copy_of_a_norm_is_told_apart_by_its_mean() {
        let forward = text::parse(
            "HloModule m\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n\
             ENTRY m {\n  x = f32[2,8,8,3] parameter(0)\n  w = f32[3,3,3,4] parameter(1)\n  \
             c = f32[2,8,8,4] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f\n  \
             scale = f32[4] parameter(2)\n  offset = f32[4] parameter(3)\n  \
             norm = (f32[2,8,8,4], f32[4], f32[4]) batch-norm-training(c, scale, offset), epsilon=0.001, feature_index=3\n  \
             n = f32[2,8,8,4] get-tuple-element(norm), index=0\n  t = f32[2,8,8,4] tanh(n)\n  \
             zero = f32[] constant(0)\n  ROOT loss = f32[] reduce(t, zero), dimensions={0,1,2,3}, to_apply=sum\n}\n",
            "m.txt",
        )
        .unwrap();
        let n_forward = forward.entry().instructions.len();
        let (module, _) = grad::run(&forward, &grad::Config { loss: 0, wrt: vec![1, 2, 3] }).unwrap();
        let (rewritten, report) = run(&module, &Config { n_forward, remat: Remat::Convolutional }).unwrap();
        verify(&rewritten).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(report.rematerialised.len(), 2, "{report:?}");
        assert_eq!(report.residuals, []);
        let entry = rewritten.entry();
        let behind = entry.instructions.iter().filter(|instr| instr.op == Op::OptimizationBarrier);
        assert_eq!(behind.map(|instr| instr.shape.to_string()).collect::<Vec<_>>(), ["f32[4]"]);
    }
}
