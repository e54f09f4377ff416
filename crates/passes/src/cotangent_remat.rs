//! Rematerialises cotangents of the residual stream where they are added.
//!
//! A residual block with a norm after its addition is `norm(x + branch(x))`. The cotangent of that addition is the
//! elementwise tail of a layer norm's gradient, and it has four readers: the product that takes it back through the
//! branch, the gradients of the kernel and the bias at the end of the branch, and the addition of the branch's
//! cotangent, `sum = cotangent + product`. A compiler writes it to memory in a separate pass. [`run`] rewrites the
//! readers so that no such pass is needed:
//!
//! - The product on the way back through the branch becomes the only reader of the original, so the compiler fuses the
//!   cotangent into it.
//! - The addition reads a copy. It is computed from the same arrays and the same numbers per row, but those are behind
//!   a barrier, so that the compiler does not merge it with the original.
//! - Readers that the addition does not depend on read the copy through `sum = sum ? copy : sum`, so that it is
//!   written where the product is computed. Products read that behind another barrier, or the compiler would fuse it
//!   into them, too.
//!
//! Values are bitwise the same, except that the copy is NaN where the sum is NaN. That loses nothing: the sum reaches
//! every gradient before it.
//!
//! The pass applies if the cotangent is rounded to a narrower dtype, if it is computed from one or two arrays of its
//! size, and if only another addition reads the sum. It does not apply to feed-forward blocks: the norm before one
//! takes its statistics from their sum, and compilers for cores with two matrix units gain more from that product than
//! the pass over memory costs. Only the entry computation is rewritten. `benches/tpu/transformer.md` has figures.

use super::order::in_order;
use super::{PassError, taken_or_awaited};
use bf16scope_hlo::ops::{BinaryOp, Comparison};
use bf16scope_hlo::{Emitter, InstrId, Instruction, Module, Op};
use std::collections::{BTreeMap, BTreeSet};

/// The pass has no options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config;

/// The report of [`run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CotangentRematReport {
    /// The names of the rematerialised cotangents.
    pub rematerialised: Vec<String>,
    /// The new id of each instruction of the entry; empty if nothing changed.
    pub renamed: BTreeMap<InstrId, InstrId>,
}

/// Rematerialises such cotangents. Instructions keep their order, unless one must precede its user. The module must be
/// verified.
///
/// # Errors
/// It never fails.
pub fn run(module: &Module, _: &Config) -> Result<(Module, CotangentRematReport), PassError> {
    Ok(rematerialised(module).unwrap_or_else(|| (module.clone(), CotangentRematReport::default())))
}

/// The rewritten module; `None` if nothing changes.
fn rematerialised(module: &Module) -> Option<(Module, CotangentRematReport)> {
    let entry = module.entry();
    let instructions = &entry.instructions;
    let sites = find(instructions, entry.root);
    if sites.is_empty() {
        return None;
    }
    let late: BTreeMap<InstrId, usize> =
        sites.iter().enumerate().flat_map(|(idx, site)| site.late.iter().map(move |&id| (id, idx))).collect();
    let operands_of = |id: InstrId| {
        let instr = &instructions[id.idx()];
        // A reader of the copy comes after the sum, with which the copy is written.
        let sum = late.get(&id).map(|&idx| sites[idx].sum);
        taken_or_awaited(instr).chain(sum).collect()
    };
    // `find` ensures that a sum does not wait for its own late readers; if that fails, nothing changes.
    let order = in_order(entry.ids(), operands_of)?;
    let by_sum: BTreeMap<InstrId, usize> = sites.iter().enumerate().map(|(idx, site)| (site.sum, idx)).collect();
    let mut copy = module.clone();
    copy.computations[module.entry.idx()].instructions.clear();
    let e = Emitter::new(copy, module.entry);
    let mut report = CotangentRematReport::default();
    // For each site the copy as it stands after the sum: for products, and for other readers.
    let mut after: BTreeMap<usize, [InstrId; 2]> = BTreeMap::new();
    for id in order {
        let mut instr = instructions[id.idx()].clone();
        let copy_at_sum = by_sum.get(&id).map(|&idx| {
            let site = &sites[idx];
            e.set_metadata(instructions[site.cotangent.idx()].metadata.clone());
            report.rematerialised.push(instructions[site.cotangent.idx()].name.clone());
            (idx, site, site.rematerialise(&e, instructions, &report.renamed))
        });
        for operand in &mut instr.operands {
            let old = *operand;
            *operand = match (&copy_at_sum, late.get(&id)) {
                (Some((_, site, copy)), _) if site.cotangent == old => *copy,
                (_, Some(idx)) if sites[*idx].cotangent == old => after[idx][usize::from(!is_product(&instr.op))],
                _ => report.renamed[&old],
            };
        }
        instr.control_predecessors = instr.control_predecessors.iter().map(|id| report.renamed[id]).collect();
        let new = push(&e, instr);
        report.renamed.insert(id, new);
        if let Some((idx, site, copy)) = copy_at_sum {
            let is_number = e.compare(Comparison::Eq, new, new);
            let with_sum = e.select(is_number, copy, new);
            let [behind] = e.barrier([with_sum]);
            // They have the cotangent's dims, and so its sharding.
            for id in [is_number, with_sum, behind] {
                change(&e, id, |instr| instr.sharding.clone_from(&instructions[site.cotangent.idx()].sharding));
            }
            after.insert(idx, [behind, with_sum]);
        }
    }
    // Copies of a verified module's instructions break no rule.
    let mut written = e.finish().ok()?;
    written.computations[module.entry.idx()].root = report.renamed[&entry.root];
    Some((written, report))
}

fn change(e: &Emitter, id: InstrId, change: impl FnOnce(&mut Instruction)) {
    e.with_module_mut(|module| {
        module.computations[e.comp().idx()].instructions.get_mut(id.idx()).map(change);
    });
}

/// Appends an instruction unchanged.
fn push(e: &Emitter, instr: Instruction) -> InstrId {
    e.with_module_mut(|module| {
        let computation = &mut module.computations[e.comp().idx()];
        computation.instructions.push(instr);
        InstrId(computation.instructions.len() as u32 - 1)
    })
}

/// A cotangent to rematerialise.
struct Site {
    cotangent: InstrId,
    /// The sum of the cotangent and a product that depends on it.
    sum: InstrId,
    /// Readers of the cotangent on which the sum does not depend.
    late: BTreeSet<InstrId>,
    /// The numbers per row that it is computed from, results of reductions.
    rows: Vec<InstrId>,
}

impl Site {
    /// Writes a copy of the cotangent.
    fn rematerialise(
        &self,
        e: &Emitter,
        instructions: &[Instruction],
        renamed: &BTreeMap<InstrId, InstrId>,
    ) -> InstrId {
        let rows: Vec<InstrId> = self.rows.iter().map(|id| renamed[id]).collect();
        let barrier = e.emit(Op::OptimizationBarrier, &[e.tuple(&rows)], None);
        let mut copies: BTreeMap<InstrId, InstrId> = BTreeMap::new();
        for (index, &id) in self.rows.iter().enumerate() {
            let behind = e.get_tuple_element(barrier, index);
            change(e, behind, |instr| instr.sharding.clone_from(&instructions[id.idx()].sharding));
            copies.insert(id, behind);
        }
        let (functions, _) = made_from(instructions, self.cotangent);
        // In the order of the original, so that operands come first.
        for id in functions {
            let instr = &instructions[id.idx()];
            let operands = instr.operands.iter().map(|id| copies.get(id).copied().unwrap_or(renamed[id])).collect();
            let control_predecessors = instr.control_predecessors.iter().map(|id| renamed[id]).collect();
            let metadata = instructions[self.cotangent.idx()].metadata.clone();
            let copy = Instruction { operands, control_predecessors, metadata, ..instr.clone() };
            copies.insert(id, e.with_module_mut(|module| module.append_copy(e.comp(), copy)));
        }
        copies[&self.cotangent]
    }
}

/// The elementwise functions that compute an array, itself included, and their sources: arrays of its size that are
/// narrower than the functions' results, and smaller ones that are broadcast.
fn made_from(instructions: &[Instruction], array: InstrId) -> (BTreeSet<InstrId>, BTreeSet<InstrId>) {
    let (mut functions, mut sources) = (BTreeSet::from([array]), BTreeSet::new());
    let mut pending: Vec<InstrId> = instructions[array.idx()].operands.clone();
    while let Some(id) = pending.pop() {
        let instr = &instructions[id.idx()];
        match instr.op {
            Op::Broadcast { .. } | Op::Convert => sources.extend(&instr.operands),
            Op::Unary(_) | Op::Binary(_) if !functions.contains(&id) => pending.extend(&instr.operands),
            Op::Unary(_) | Op::Binary(_) => {}
            _ => {
                sources.insert(id);
                continue;
            }
        }
        functions.insert(id);
    }
    (functions, sources)
}

/// The most arrays of its size from which a cotangent is rematerialised: a layer norm's is computed from its data and
/// its cotangent.
const N_ARRAYS: usize = 2;

fn find(instructions: &[Instruction], root: InstrId) -> Vec<Site> {
    let mut users: Vec<Vec<InstrId>> = vec![Vec::new(); instructions.len()];
    for (idx, instr) in instructions.iter().enumerate() {
        taken_or_awaited(instr).for_each(|operand| users[operand.idx()].push(InstrId(idx as u32)));
    }
    let mut sites = Vec::new();
    // Late readers wait for their sum: that sum must not wait for them through a later site.
    let mut waits = BTreeMap::new();
    for id in (0..instructions.len() as u32).map(InstrId).filter(|&id| id != root) {
        if let Some(site) = site(instructions, &users, &waits, id) {
            waits.extend(site.late.iter().map(|&late| (late, site.sum)));
            sites.push(site);
        }
    }
    sites
}

/// The site where this cotangent is added to a product, if it is to be rematerialised there.
fn site(
    instructions: &[Instruction],
    users: &[Vec<InstrId>],
    waits: &BTreeMap<InstrId, InstrId>,
    cotangent: InstrId,
) -> Option<Site> {
    let instr = |id: InstrId| &instructions[id.idx()];
    let n_bits = |id: InstrId| instr(id).shape.dtype().map_or(0, |dtype| dtype.bits());
    let is_rounded =
        matches!(instr(cotangent).op, Op::Convert) && n_bits(cotangent) < n_bits(instr(cotangent).operands[0]);
    if !is_rounded {
        return None;
    }
    let is_sum = |id: &InstrId| matches!(instr(*id).op, Op::Binary(BinaryOp::Add));
    let has_product = |id: &InstrId| instr(*id).operands.iter().any(|&operand| is_product(&instr(operand).op));
    let readers = &users[cotangent.idx()];
    let &sum = readers.iter().find(|id| is_sum(id) && has_product(id))?;
    let [next] = users[sum.idx()][..] else { return None };
    if !is_sum(&next) {
        return None;
    }
    let (_, sources) = made_from(instructions, cotangent);
    let dims = instr(cotangent).shape.dims();
    let (arrays, smaller): (Vec<InstrId>, Vec<InstrId>) =
        sources.into_iter().partition(|&id| instr(id).shape.dims() == dims);
    let is_input = |id: InstrId| matches!(instr(id).op, Op::Parameter { .. } | Op::Constant(_));
    let rows: Vec<InstrId> = smaller.into_iter().filter(|&id| !is_input(id)).collect();
    if arrays.len() > N_ARRAYS || rows.is_empty() {
        return None;
    }
    let needed = needed_for(instructions, waits, sum);
    let (way_back, late): (Vec<InstrId>, Vec<InstrId>) =
        readers.iter().filter(|&&id| id != sum).partition(|id| needed.contains(id));
    let has_product = |ids: &[InstrId]| ids.iter().any(|&id| is_product(&instr(id).op));
    let is_site = has_product(&way_back) && has_product(&late);
    is_site.then(|| Site { cotangent, sum, late: late.into_iter().collect(), rows })
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::Dot { .. })
}

/// The instructions that an instruction depends on or waits for.
fn needed_for(instructions: &[Instruction], waits: &BTreeMap<InstrId, InstrId>, id: InstrId) -> BTreeSet<InstrId> {
    let (mut needed, mut pending) = (BTreeSet::new(), vec![id]);
    while let Some(id) = pending.pop() {
        let instr = &instructions[id.idx()];
        for operand in taken_or_awaited(instr).chain(waits.get(&id).copied()) {
            if needed.insert(operand) {
                pending.push(operand);
            }
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::{PrintOptions, parse, print};
    use bf16scope_hlo::verify::verify;

    /// Rows less their means are a cotangent, which goes back through `%w` and is added to the resulting product.
    const STEP: &str = "HloModule step

add {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %both = f32[] add(%a, %b)
}

ENTRY step {
  %g = bf16[8,4] parameter(0)
  %w = bf16[4,4] parameter(1)
  %h = bf16[8,4] parameter(2)
  %wide = f32[8,4] convert(%g)
  %zero = f32[] constant(0)
  %mean = f32[8] reduce(%wide, %zero), dimensions={1}, to_apply=%add
  %means = f32[8,4] broadcast(%mean), dimensions={0}
  %centred = f32[8,4] subtract(%wide, %means)
  %cotangent = bf16[8,4] convert(%centred)
  %kernel = bf16[4,4] dot(%h, %cotangent), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %of_bias = f32[8,4] convert(%cotangent)
  %bias = f32[4] reduce(%of_bias, %zero), dimensions={0}, to_apply=%add
  %back = bf16[8,4] dot(%cotangent, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = bf16[8,4] add(%cotangent, %back)
  %more = bf16[8,4] dot(%h, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %total = bf16[8,4] add(%sum, %more)
  ROOT %results = (bf16[4,4], f32[4], bf16[8,4]) tuple(%kernel, %bias, %total)
}
";

    fn rewritten(text: &str) -> (Module, CotangentRematReport) {
        let module = parse(text, "step").unwrap();
        verify(&module).unwrap();
        let (rewritten, report) = run(&module, &Config).unwrap();
        verify(&rewritten).unwrap();
        (rewritten, report)
    }

    #[test]
    fn each_reader_has_the_cotangent_as_it_needs_it() {
        let (module, report) = rewritten(STEP);
        assert_eq!(report.rematerialised, ["cotangent"]);
        let entry = module.entry();
        let named = |name: &str| entry.instructions.iter().find(|instr| instr.name == name).unwrap();
        let operand = |instr: &Instruction, index: usize| entry.instr(instr.operands[index]);
        assert_eq!(operand(named("back"), 0).name, "cotangent");
        // The addition reads the same operations on the same array, but means behind a barrier.
        let copy = operand(named("sum"), 0);
        let centred = operand(copy, 0);
        assert_eq!((&copy.op, &centred.op), (&Op::Convert, &Op::Binary(BinaryOp::Subtract)));
        assert_eq!(operand(operand(centred, 0), 0).name, "g");
        let means = operand(operand(centred, 1), 0);
        assert_eq!((&means.op, &operand(means, 0).op), (&Op::GetTupleElement { index: 0 }, &Op::OptimizationBarrier));
        assert_eq!(operand(operand(operand(means, 0), 0), 0).name, "mean");
        // Late readers read the copy if the sum is a number; the product reads it behind a barrier.
        let with_sum = operand(named("of_bias"), 0);
        assert_eq!(with_sum.op, Op::Select);
        assert_eq!([1, 2].map(|index| &operand(with_sum, index).name), [&copy.name, &named("sum").name]);
        let compare = operand(with_sum, 0);
        assert_eq!([0, 1].map(|index| operand(compare, index).name.as_str()), ["sum", "sum"]);
        let behind = operand(named("kernel"), 1);
        let barrier = operand(behind, 0);
        assert_eq!((&behind.op, &barrier.op), (&Op::GetTupleElement { index: 0 }, &Op::OptimizationBarrier));
        assert_eq!(operand(operand(barrier, 0), 0).name, with_sum.name);
    }

    #[test]
    fn renamed_says_where_each_instruction_is() {
        let (module, report) = rewritten(STEP);
        let original = parse(STEP, "step").unwrap();
        assert_eq!(report.renamed.len(), original.entry().instructions.len());
        for (old, new) in &report.renamed {
            assert_eq!(original.entry().instr(*old).name, module.entry().instr(*new).name);
        }
        assert_eq!(module.entry().instr(module.entry().root).name, "results");
    }

    #[test]
    fn nothing_changes_elsewhere() {
        let statistics = STEP.replace("add(%sum, %more)", "multiply(%sum, %more)");
        let not_rounded = STEP.replace("bf16", "f32");
        let nothing_late = STEP.replace("dot(%h, %cotangent)", "dot(%h, %g)");
        let no_product = STEP.replace("dot(%cotangent, %w)", "dot(%g, %w)");
        let no_rows = STEP.replace("broadcast(%mean), dimensions={0}", "broadcast(%zero), dimensions={}");
        for text in [statistics, not_rounded, nothing_late, no_product, no_rows] {
            assert_ne!(text, STEP);
            let (module, report) = rewritten(&text);
            assert_eq!(report, CotangentRematReport::default());
            let text_of = |module: &Module| print(module, &PrintOptions::default());
            assert_eq!(text_of(&module), text_of(&parse(&text, "step").unwrap()));
        }
    }

    /// Two cotangents, each of whose ways back takes the gradient of a kernel computed from the other. If both
    /// gradients waited for their sums, they would wait for each other.
    #[test]
    fn nothing_waits_for_itself() {
        let second = "  %again = f32[8,4] multiply(%centred, %means)
  %other = bf16[8,4] convert(%again)
  %kernel = bf16[4,4] dot(%h, %cotangent), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %other_kernel = bf16[4,4] dot(%h, %other), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %other_back = bf16[8,4] dot(%other, %kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %other_sum = bf16[8,4] add(%other, %other_back)
";
        let kernel = STEP.lines().find(|line| line.contains("%kernel = ")).unwrap();
        let text = STEP
            .replace(&format!("{kernel}\n"), second)
            .replace("dot(%cotangent, %w)", "dot(%cotangent, %other_kernel)")
            .replace(
                "%more = bf16[8,4] dot(%h, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
                "%more = bf16[8,4] add(%other_sum, %g)",
            );
        assert_eq!(rewritten(&text).1.rematerialised, ["cotangent"]);
    }
}
