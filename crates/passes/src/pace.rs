//! Pace: lets in-place updates run before the end of the program.
//!
//! The product that computes a variable's gradient reads residuals of the forward pass, and compilers fuse the
//! optimizer's arithmetic into it. Nothing depends on the result, so a scheduler may postpone it, and the residuals
//! stay live. A scheduler that counts its results as new memory, although they overwrite the old values, tends to.
//! [`run`] makes the optimization barriers of the backward pass, behind which values are rematerialised, wait for the
//! updates whose gradients are available by then.
//!
//! A barrier counts if it takes a parameter and another value, as those of a layer's rematerialised product do. An
//! update is a result that may alias a parameter. It is attached to the first barrier after the last one that it
//! depends on, so there are no cycles. No value changes, as a barrier passes its operands on. A barrier or tuple with
//! a sharding or an attribute is left as it is, and so is a module in which an instruction reads the results.

use super::order::in_order;
use super::{PassError, taken_or_awaited};
use bf16scope_hlo::{InstrId, Instruction, Module, Op, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// The pass has no options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config;

/// The report of [`run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PaceReport {
    /// For each update that a barrier waits for, by name, the name of the barrier.
    pub paced: Vec<(String, String)>,
    /// The new id of each instruction of the entry; empty if none moved.
    pub renamed: BTreeMap<InstrId, InstrId>,
}

/// Makes barriers wait for updates. Instructions keep their order, unless one must precede a barrier. The module must
/// be verified.
///
/// # Errors
/// It never fails.
pub fn run(module: &Module, _: &Config) -> Result<(Module, PaceReport), PassError> {
    Ok(paced(module).unwrap_or_else(|| (module.clone(), PaceReport::default())))
}

/// The rewritten module; `None` if no barrier is to wait.
fn paced(module: &Module) -> Option<(Module, PaceReport)> {
    let plan = PacePlan::new(module);
    if plan.waits.is_empty() {
        return None;
    }
    let mut report = PaceReport::default();
    let entry = module.entry();
    for (&barrier, updates) in &plan.waits {
        for update in updates {
            report.paced.push((entry.instr(*update).name.clone(), entry.instr(barrier).name.clone()));
        }
    }
    // A barrier that waits gets a longer tuple, which leaves the old one unused.
    let mut left_over: BTreeSet<InstrId> = plan.waits.keys().map(|&barrier| entry.instr(barrier).operands[0]).collect();
    for user in entry.ids() {
        let instr = entry.instr(user);
        let operands = if plan.waits.contains_key(&user) { &[][..] } else { &instr.operands };
        operands.iter().chain(&instr.control_predecessors).for_each(|id| _ = left_over.remove(id));
    }
    let ids = entry.ids().filter(|&id| id != entry.root && !left_over.contains(&id));
    let order = in_order(ids, |id| plan.taken(&entry.instructions, id))?;
    let mut paced = module.clone();
    let computation = &mut paced.computations[module.entry.idx()];
    computation.instructions.clear();
    let mut writer =
        Writer { module: &mut paced, original: &entry.instructions, plan: &plan, renamed: BTreeMap::new() };
    for id in order {
        let new = writer.copy(id);
        writer.renamed.insert(id, new);
    }
    writer.write_root(entry.root);
    report.renamed = writer.renamed;
    Some((paced, report))
}

struct PacePlan {
    /// For each barrier the updates that it is to wait for, in the order of the results.
    waits: BTreeMap<InstrId, Vec<InstrId>>,
    /// For each update its barrier and its index in the barrier's tuple.
    places: BTreeMap<InstrId, (InstrId, usize)>,
}

impl PacePlan {
    fn new(module: &Module) -> PacePlan {
        let entry = module.entry();
        let mut plan = PacePlan { waits: BTreeMap::new(), places: BTreeMap::new() };
        let root = entry.instr(entry.root);
        let waits_for_root = |instr: &Instruction| taken_or_awaited(instr).any(|id| id == entry.root);
        if !matches!(root.op, Op::Tuple) || entry.instructions.iter().any(waits_for_root) {
            return plan;
        }
        // For each instruction the number of the last barrier, counted in order, that it may depend on.
        let mut barriers = Vec::new();
        let mut last = vec![0; entry.instructions.len()];
        for (idx, instr) in entry.instructions.iter().enumerate() {
            last[idx] = taken_or_awaited(instr).map(|id| last[id.idx()]).max().unwrap_or(0);
            if n_taken(&entry.instructions, instr) >= 2 {
                barriers.push(InstrId(idx as u32));
                last[idx] = barriers.len();
            }
        }
        for alias in &module.input_output_alias {
            let [index] = alias.output_index[..] else { continue };
            let Some(&update) = usize::try_from(index).ok().and_then(|index| root.operands.get(index)) else {
                continue;
            };
            let is_new = !matches!(entry.instr(update).op, Op::Parameter { .. }) && !plan.places.contains_key(&update);
            // An update that depends on no barrier might come before the first one, which may be of the forward pass.
            if let Some(&barrier) = barriers.get(last[update.idx()]).filter(|_| is_new) {
                let waits = plan.waits.entry(barrier).or_default();
                plan.places.insert(update, (barrier, n_taken(&entry.instructions, entry.instr(barrier)) + waits.len()));
                waits.push(update);
            }
        }
        plan
    }

    /// The dependencies of an instruction; for a barrier that waits, those of its new tuple.
    fn taken(&self, instructions: &[Instruction], id: InstrId) -> Vec<InstrId> {
        let instr = &instructions[id.idx()];
        let Some(waits) = self.waits.get(&id) else { return taken_or_awaited(instr).collect() };
        let tuple = &instructions[instr.operands[0].idx()];
        taken_or_awaited(tuple).chain(instr.control_predecessors.iter().chain(waits).copied()).collect()
    }
}

/// The number of values in a barrier's tuple, if one of them is a parameter; else 0. Also 0 if a sharding, a layout or
/// another attribute on the tuple or the barrier would be wrong for a longer tuple.
fn n_taken(instructions: &[Instruction], instr: &Instruction) -> usize {
    let is_plain = |instr: &Instruction| {
        let says_more = instr.sharding.is_some()
            || !instr.frontend_attributes.is_empty()
            || !instr.backend_config.is_empty()
            || instr.unmodelled.has_meaning();
        !says_more && instr.shape == instr.shape.without_layout()
    };
    let tuple = match (&instr.op, &instr.operands[..]) {
        (Op::OptimizationBarrier, &[tuple]) if is_plain(instr) => &instructions[tuple.idx()],
        _ => return 0,
    };
    if !matches!(tuple.op, Op::Tuple) || !is_plain(tuple) {
        return 0;
    }
    let elements = &tuple.operands;
    let is_parameter = |id: &InstrId| matches!(instructions[id.idx()].op, Op::Parameter { .. });
    if elements.iter().any(is_parameter) { elements.len() } else { 0 }
}

struct Writer<'a> {
    module: &'a mut Module,
    original: &'a [Instruction],
    plan: &'a PacePlan,
    renamed: BTreeMap<InstrId, InstrId>,
}

impl Writer<'_> {
    fn copy(&mut self, id: InstrId) -> InstrId {
        let mut instr = self.original[id.idx()].clone();
        if let Some(waits) = self.plan.waits.get(&id) {
            let old_tuple = &self.original[instr.operands[0].idx()];
            let operands = old_tuple.operands.iter().chain(waits).copied().collect();
            let tuple = self.append_tuple(Instruction { operands, ..old_tuple.clone() });
            instr.shape = self.module.entry().instr(tuple).shape.clone();
            instr.operands = vec![tuple];
        } else {
            self.rename(&mut instr.operands);
        }
        self.rename(&mut instr.control_predecessors);
        self.push(instr)
    }

    fn rename(&self, ids: &mut [InstrId]) {
        ids.iter_mut().for_each(|id| *id = self.renamed[id]);
    }

    /// Appends a tuple with more elements than before, under a new name.
    fn append_tuple(&mut self, mut tuple: Instruction) -> InstrId {
        self.rename(&mut tuple.operands);
        self.rename(&mut tuple.control_predecessors);
        let entry = self.module.entry();
        let shapes = tuple.operands.iter().map(|&id| entry.instr(id).shape.without_layout());
        tuple.shape = Shape::Tuple(shapes.collect());
        self.module.append_copy(self.module.entry, tuple)
    }

    fn push(&mut self, instr: Instruction) -> InstrId {
        let computation = &mut self.module.computations[self.module.entry.idx()];
        let id = InstrId(computation.instructions.len() as u32);
        computation.instructions.push(instr);
        computation.root = id;
        id
    }

    /// Writes the results: updates are read behind their barriers.
    fn write_root(&mut self, root: InstrId) {
        let mut instr = self.original[root.idx()].clone();
        self.rename(&mut instr.control_predecessors);
        let mut operands = Vec::new();
        for id in &instr.operands {
            operands.push(match self.plan.places.get(id) {
                None => self.renamed[id],
                Some((barrier, index)) => {
                    let update = &self.original[id.idx()];
                    let (op, shape) = (Op::GetTupleElement { index: *index as i64 }, update.shape.without_layout());
                    let (entry, barrier_result) = (self.module.entry, vec![self.renamed[barrier]]);
                    let new = self.module.append(entry, op, barrier_result, shape, update.metadata.clone());
                    // The value is the same, with the same sharding.
                    let instr = &mut self.module.computations[entry.idx()].instructions[new.idx()];
                    instr.sharding.clone_from(&update.sharding);
                    new
                }
            });
        }
        instr.operands = operands;
        self.push(instr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::{PrintOptions, parse, print};
    use bf16scope_hlo::verify::verify;

    /// Two updates: that of `%w`, whose gradient `%gw` is computed before the barrier in front of `%again`, and that
    /// of `%u`, which depends on that barrier.
    const STEP: &str = "HloModule step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

ENTRY step {
  %w = f32[4] parameter(0)
  %u = f32[4] parameter(1)
  %g = f32[4] parameter(2)
  %gw = f32[4] multiply(%g, %w)
  %both = (f32[4], f32[4]) tuple(%u, %g)
  %barrier = (f32[4], f32[4]) opt-barrier(%both)
  %u_again = f32[4] get-tuple-element(%barrier), index=0
  %again = f32[4] exponential(%u_again)
  %gu = f32[4] multiply(%again, %g)
  %new_w = f32[4] subtract(%w, %gw)
  %new_u = f32[4] subtract(%u, %gu)
  ROOT %results = (f32[4], f32[4], f32[4]) tuple(%new_w, %new_u, %again)
}
";

    fn paced(text: &str) -> (Module, PaceReport) {
        let module = parse(text, "step").unwrap();
        verify(&module).unwrap();
        let (paced, report) = run(&module, &Config).unwrap();
        verify(&paced).unwrap();
        (paced, report)
    }

    #[test]
    fn a_barrier_waits_for_the_update_that_can_be_had_and_for_no_other() {
        let (module, report) = paced(STEP);
        let pairs: Vec<_> = report.paced.iter().map(|(update, barrier)| (update.as_str(), barrier.as_str())).collect();
        assert_eq!(pairs, [("new_w", "barrier")]);
        let entry = module.entry();
        let barrier = entry.instructions.iter().find(|instr| instr.name == "barrier").unwrap();
        let elements = entry.instr(barrier.operands[0]).operands.iter().map(|&id| entry.instr(id).name.as_str());
        assert_eq!(elements.collect::<Vec<_>>(), ["u", "g", "new_w"]);
        let results = &entry.instr(entry.root).operands;
        let result = entry.instr(results[0]);
        assert_eq!((&result.op, result.operands[0]), (&Op::GetTupleElement { index: 2 }, report.renamed[&InstrId(5)]));
        assert_eq!(entry.instr(results[1]).name, "new_u");
        assert_eq!(entry.instr(results[2]).name, "again");
        // The tuple of two is removed.
        assert!(entry.instructions.iter().all(|instr| instr.name != "both"));
        assert_eq!(entry.instructions.len(), parse(STEP, "step").unwrap().entry().instructions.len() + 1);
    }

    #[test]
    fn renamed_says_where_each_instruction_is() {
        let (module, report) = paced(STEP);
        let original = parse(STEP, "step").unwrap();
        for (old, new) in &report.renamed {
            assert_eq!(original.entry().instr(*old).name, module.entry().instr(*new).name);
        }
        assert_eq!(report.renamed.len(), original.entry().instructions.len() - 2);
    }

    /// A sharding of two values would be wrong for three, and so would a layout and other attributes of a tuple.
    #[test]
    fn a_barrier_of_which_more_is_said_takes_nothing_else() {
        for attribute in [
            ", sharding={{replicated}, {replicated}}",
            ", frontend_attributes={kept=\"1\"}",
            ", backend_config=\"kept\"",
            ", statistics={visualizing_index=0,flops=0.5}",
        ] {
            for plain in ["tuple(%u, %g)", "opt-barrier(%both)"] {
                assert!(STEP.contains(plain));
                let (_, report) = paced(&STEP.replace(plain, &format!("{plain}{attribute}")));
                assert_eq!(report, PaceReport::default(), "{plain}{attribute}");
            }
        }
        for instr in ["%both", "%barrier"] {
            let (plain, laid_out) = ("(f32[4], f32[4])", "(f32[4]{0}, f32[4]{0})");
            let text = STEP.replace(&format!("{instr} = {plain}"), &format!("{instr} = {laid_out}"));
            assert_ne!(text, STEP);
            assert_eq!(paced(&text).1, PaceReport::default(), "{instr}");
        }
    }

    /// JAX's debug columns say where a barrier was written; they do not affect it.
    #[test]
    fn a_barrier_with_debug_columns_waits_as_any_other() {
        let columns = ", metadata={op_name=\"step\" source_end_line=9 source_column=3}";
        for plain in ["tuple(%u, %g)", "opt-barrier(%both)"] {
            let (_, report) = paced(&STEP.replace(plain, &format!("{plain}{columns}")));
            assert_eq!(report.paced, paced(STEP).1.paced, "{plain}");
        }
    }

    #[test]
    fn without_such_a_barrier_or_updates_in_place_nothing_changes() {
        let alone = STEP.replace("tuple(%u, %g)", "tuple(%u)").replace("(f32[4], f32[4]) ", "(f32[4]) ");
        let computed = STEP.replace("tuple(%u, %g)", "tuple(%gw, %gw)");
        let elsewhere = STEP.replace(", input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }", "");
        for text in [alone, computed, elsewhere] {
            let (module, report) = paced(&text);
            assert_eq!(report, PaceReport::default());
            assert_eq!(
                print(&module, &PrintOptions::default()),
                print(&parse(&text, "step").unwrap(), &PrintOptions::default())
            );
        }
    }
}
