//! Writes the lowered module: regions and their call sites, with the casts that the assignment asks for.
//!
//! A computation is written once for each call site, instruction by instruction, each in the dtype that its node was
//! assigned. Values keep that dtype through tuples and calls, and are cast where a reader wants the other one: once
//! per value and direction in a computation. A computation that does not change stays shared with its other callers;
//! one that changes becomes a copy. In the end, computations without a caller are dropped and names are made unique.

use super::assign::assign;
use super::assignment::{Assignment, Crossing, RegionKind};
use super::branches::{self, Branch};
use super::dataflow::{CALL_ROOM, Dataflow, FrameId, NodeId};
use super::discrete_choices::Choices;
use super::frame::{Callees, FrameWriter, Origin};
use super::loops::{self, Loop, Use};
use super::loss::{self, TakenLoss};
use super::narrow;
use super::needs::{Needs, needs};
use super::policy::{Boundary, Classes, Policy};
use super::regions::Regions;
use super::report::{ComputationReport, Decision, decisions};
use super::surroundings::RegionContext;
use bf16scope_hlo::ops::decisions::calls_regions;
use bf16scope_hlo::{CompId, Computation, DType, Module, Op, Shape};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

/// A written computation.
#[derive(Debug)]
struct Written {
    original: CompId,
    computation: Computation,
    part: ComputationReport,
}

/// A region whose dtypes are assigned, with the surroundings of the regions that its nodes run.
struct Assigned<'r, 'm> {
    graph: &'r Dataflow<'m>,
    assignment: &'r Assignment,
    around: &'r BTreeMap<NodeId, Vec<RegionContext>>,
}

/// Rewrites regions of one module.
pub(super) struct Rewriter<'m> {
    module: &'m Module,
    policy: &'m Policy,
    /// The regions of the original module.
    originals: Regions<'m>,
    /// The computations written so far; their ids follow the original's.
    written: Vec<Written>,
    /// For each original computation the indices of its copies in `written`.
    copies: BTreeMap<CompId, Vec<usize>>,
    /// How much calls may still add to regions (`CALL_ROOM`).
    call_room: usize,
    /// The written regions, by the original, what crosses its border narrow, and its surroundings.
    regions: BTreeMap<(CompId, Crossing, RegionContext), CompId>,
    /// Loops, by body and condition, and by which arrays of the state are computed from products.
    loops: BTreeMap<(CompId, CompId, Vec<bool>), Loop>,
    /// Branches, by computation.
    branches: BTreeMap<CompId, Branch>,
    /// The decisions in regions that did not change.
    unchanged: BTreeMap<CompId, Vec<Decision>>,
    /// Retyped reductions.
    reducers: BTreeMap<CompId, CompId>,
    /// Whether the entry has a backward pass.
    pub differentiates: bool,
    /// The results of the entry that are treated as losses.
    pub losses: Vec<TakenLoss>,
}

impl<'m> Rewriter<'m> {
    pub(super) fn new(module: &'m Module, policy: &'m Policy) -> Rewriter<'m> {
        Rewriter {
            module,
            policy,
            originals: Regions::new(Classes::new(policy, module)),
            written: Vec::new(),
            copies: BTreeMap::new(),
            call_room: CALL_ROOM,
            regions: BTreeMap::new(),
            loops: BTreeMap::new(),
            branches: BTreeMap::new(),
            unchanged: BTreeMap::new(),
            reducers: BTreeMap::new(),
            differentiates: false,
            losses: Vec::new(),
        }
    }

    /// Lowers a region and its callees; returns the written computation.
    pub(super) fn region(
        &mut self,
        comp: CompId,
        kind: RegionKind,
        crossing: &Crossing,
        around: &RegionContext,
    ) -> CompId {
        let key = (comp, crossing.clone(), around.clone());
        if let Some(&done) = self.regions.get(&key) {
            return done;
        }
        let graph = self.graph(comp);
        self.call_room -= graph.taken_room;
        if kind == RegionKind::Entry {
            self.losses = loss::taken(&graph);
        }
        let regards_needs = self.policy.regards_needs();
        let choices = match self.policy.choices {
            Boundary::Keep => self.originals.choices(&graph, kind, around),
            Boundary::Lower if regards_needs => self.originals.choices(&graph, kind, around).without_scores(),
            Boundary::Lower => Choices { of_node: vec![None; graph.nodes.len()], ..Choices::default() },
        };
        let loops = self.loops_of(&graph, &choices);
        let branches = self.branches_of(&graph, &choices);
        let needs = if regards_needs {
            needs(&graph, &choices.of_node, &loops, around)
        } else {
            Needs::of_choices(&graph, &choices.of_node)
        };
        let assignment = assign(&graph, &self.originals.classes, kind, crossing, &loops, &branches, &needs);
        self.differentiates |= assignment.differentiates;
        let region = Assigned { graph: &graph, assignment: &assignment, around: &choices.around };
        let done = self.frame(&region, 0, Some(kind));
        self.regions.insert(key, done);
        done
    }

    fn graph(&mut self, comp: CompId) -> Rc<Dataflow<'m>> {
        self.originals.graph(comp, self.call_room)
    }

    /// Describes what the loops of a graph do with their state. Scores are carried in their own dtype.
    fn loops_of(&mut self, graph: &Dataflow<'m>, choices: &Choices) -> BTreeMap<NodeId, Loop> {
        let mut loops = BTreeMap::new();
        for (node, record) in (0..).zip(&graph.nodes) {
            let &Op::While { body, condition } = &graph.instr(record).op else { continue };
            let around = choices.last_around(node);
            let taken = around.map(|around| &around.operands[..]).unwrap_or_default();
            let key = (body, condition, taken.iter().map(|array| array.is_of_products_alone).collect::<Vec<bool>>());
            if !self.loops.contains_key(&key) {
                let its_loop = loops::of_body(&self.graph(body), &self.graph(condition), taken);
                self.loops.insert(key.clone(), its_loop);
            }
            let mut its_loop = self.loops[&key].clone();
            let uses = its_loop.uses.iter_mut().zip(around.into_iter().flat_map(|around| &around.scores));
            uses.filter(|(_, is_score)| **is_score).for_each(|(its_use, _)| *its_use = Use::AS_IT_IS);
            loops.insert(node, its_loop);
        }
        loops
    }

    /// Describes the branches of a graph's `conditional`s. Scores are returned in their own dtype.
    fn branches_of(&mut self, graph: &Dataflow<'m>, choices: &Choices) -> BTreeMap<NodeId, Vec<Branch>> {
        let mut branches_of_node = BTreeMap::new();
        for (node, record) in (0..).zip(&graph.nodes) {
            let op = &graph.instr(record).op;
            if !matches!(op, Op::Conditional(_)) {
                continue;
            }
            let mut all = Vec::new();
            for comp in op.called() {
                if !self.branches.contains_key(&comp) {
                    let branch = branches::of_region(&self.graph(comp));
                    self.branches.insert(comp, branch);
                }
                let mut branch = self.branches[&comp].clone();
                let result_scores = choices.last_around(node).into_iter().flat_map(|around| &around.scores);
                for (leaf, _) in result_scores.enumerate().filter(|(_, is_score)| **is_score) {
                    (branch.of_product[leaf], branch.of_taken[leaf]) = (false, false);
                }
                all.push(branch);
            }
            branches_of_node.insert(node, all);
        }
        branches_of_node
    }

    /// Writes a frame; returns its computation.
    fn frame(&mut self, region: &Assigned<'_, 'm>, frame: FrameId, kind: Option<RegionKind>) -> CompId {
        let &Assigned { graph, assignment, .. } = region;
        let original = graph.frames[frame as usize].comp;
        let callees = self.callees(region, frame);
        let writer = FrameWriter::new(graph, assignment, frame, callees);
        let (computation, origins) = writer.write(kind, self.policy.results);
        let decided = decisions(graph, assignment, frame, self.policy);
        if computation == *self.module.comp(original) {
            self.unchanged.entry(original).or_insert(decided);
            return original;
        }
        let mut copies = self.copies.get(&original).into_iter().flatten().copied();
        if let Some(known) = copies.find(|&idx| self.written[idx].computation == computation) {
            return self.id_of_written(known);
        }
        self.add(Written { original, computation, part: ComputationReport { decisions: decided, origins } })
    }

    /// Writes the callees of a frame: first the calls that are followed, then regions and reductions.
    fn callees(&mut self, region: &Assigned<'_, 'm>, frame: FrameId) -> Callees {
        let &Assigned { graph, assignment, around } = region;
        let frame_data = &graph.frames[frame as usize];
        let mut callees = Callees::new();
        for &(call, callee) in &frame_data.calls {
            callees.insert(call, vec![self.frame(region, callee, None)]);
        }
        let module = self.module;
        for (id, node) in module.comp(frame_data.comp).ids().zip(&frame_data.nodes) {
            let op = &module.comp(frame_data.comp).instr(id).op;
            let called = op.called();
            if called.is_empty() || callees.contains_key(&id) {
                continue;
            }
            if calls_regions(op) {
                let crossing = node.and_then(|node| assignment.crossings.get(&node)).cloned().unwrap_or_default();
                let crossings = self.of_callees(op, &crossing);
                let around = node.and_then(|node| around.get(&node)).cloned();
                let around = around.unwrap_or_else(|| vec![RegionContext::default(); called.len()]);
                let regions = called.into_iter().zip(crossings).zip(&around);
                let lower = |((comp, crossing), around): ((CompId, Crossing), &RegionContext)| {
                    self.region(comp, RegionKind::Body, &crossing, around)
                };
                callees.insert(id, regions.map(lower).collect());
            } else if node.is_some_and(|node| assignment.low[node as usize]) {
                callees.insert(id, called.into_iter().map(|comp| self.reducer(comp)).collect());
            }
        }
        callees
    }

    /// The crossing of each region that an op runs.
    fn of_callees(&self, op: &Op, crossing: &Crossing) -> Vec<Crossing> {
        let called = op.called();
        if crossing.taken.is_empty() || matches!(op, Op::While { .. }) {
            return vec![crossing.clone(); called.len()];
        }
        // The first operand selects the branch.
        let mut first = 1;
        let of_branch = |comp: &CompId| {
            let n_taken = self.branches[comp].n_taken;
            let taken = crossing.taken[first..first + n_taken].to_vec();
            first += n_taken;
            Crossing { taken, given: crossing.given.clone() }
        };
        called.iter().map(of_branch).collect()
    }

    fn id_of_written(&self, idx: usize) -> CompId {
        CompId((self.module.computations.len() + idx) as u32)
    }

    fn add(&mut self, written: Written) -> CompId {
        self.copies.entry(written.original).or_default().push(self.written.len());
        self.written.push(written);
        self.id_of_written(self.written.len() - 1)
    }

    /// The copy of a reduction that works on the narrow dtype.
    pub(super) fn reducer(&mut self, comp: CompId) -> CompId {
        if let Some(&done) = self.reducers.get(&comp) {
            return done;
        }
        let computation = narrow::computation(self.module.comp(comp), self.policy.dtype.dtype());
        let origins = computation.ids().map(Origin::Original).collect();
        let part = ComputationReport { decisions: Vec::new(), origins };
        let done = self.add(Written { original: comp, computation, part });
        self.reducers.insert(comp, done);
        done
    }

    /// Returns the module with the written entry, without computations that have no caller, and each computation's
    /// part of the report.
    pub(super) fn finish(mut self, entry: CompId) -> (Module, Vec<ComputationReport>) {
        let n_original = self.module.computations.len();
        let written = |id: CompId| Some(&self.written[id.idx().checked_sub(n_original)?]);
        let mut reached = BTreeSet::new();
        let mut pending = vec![entry];
        while let Some(id) = pending.pop() {
            if reached.insert(id) {
                let computation = written(id).map_or_else(|| self.module.comp(id), |written| &written.computation);
                pending.extend(computation.instructions.iter().flat_map(|instr| instr.op.called()));
            }
        }
        // Each copy stands behind its original, whether that remains or not.
        let mut order: Vec<CompId> = reached.into_iter().collect();
        order.sort_by_key(|&id| (written(id).map_or(id, |written| written.original), id));
        let new_ids: BTreeMap<CompId, CompId> =
            order.iter().enumerate().map(|(place, &id)| (id, CompId(place as u32))).collect();
        let mut all_written: Vec<Option<Written>> = self.written.into_iter().map(Some).collect();
        let take = |&id: &CompId| match id.idx().checked_sub(n_original).and_then(|idx| all_written[idx].take()) {
            Some(Written { computation, part, .. }) => (computation, part),
            None => {
                let decisions = self.unchanged.remove(&id).unwrap_or_default();
                (self.module.comp(id).clone(), ComputationReport { decisions, origins: Vec::new() })
            }
        };
        let (computations, parts) = order.iter().map(take).unzip();
        let mut module = Module::new(self.module.name.clone());
        module.computations = computations;
        module.entry = new_ids[&entry];
        module.input_output_alias.clone_from(&self.module.input_output_alias);
        module.buffer_donors.clone_from(&self.module.buffer_donors);
        module.entry_layout.clone_from(&self.module.entry_layout);
        module.stack_frames.clone_from(&self.module.stack_frames);
        module.frontend_attributes.clone_from(&self.module.frontend_attributes);
        module.unmodelled.clone_from(&self.module.unmodelled);
        module.next_name = self.module.next_name;
        for instr in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
            instr.op.for_each_called_mut(&mut |callee| *callee = new_ids[callee]);
        }
        make_names_unique(&mut module);
        fit_boundary(&mut module, self.policy.dtype.dtype());
        (module, parts)
    }
}

/// Renames every computation and instruction whose name an earlier one has, to the first free `name.1`, `name.2`, …
fn make_names_unique(module: &mut Module) {
    let computations = module.computations.iter().map(|computation| &computation.name[..]);
    for (at, name) in renamed(computations) {
        module.computations[at].name = name;
    }
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let mut new_names = renamed(instructions.map(|instr| &instr.name[..])).into_iter().peekable();
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    for (at, instr) in instructions.enumerate() {
        if let Some((_, name)) = new_names.next_if(|(renamed, _)| *renamed == at) {
            instr.name = name;
        }
    }
}

/// New names for all but the first of equal names, with their positions, in order.
fn renamed<'n>(names: impl Iterator<Item = &'n str>) -> Vec<(usize, String)> {
    let names: Vec<&str> = names.collect();
    let mut taken: HashSet<&str> = HashSet::with_capacity(names.len());
    let twice: Vec<usize> = (0..names.len()).filter(|&at| !taken.insert(names[at])).collect();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut new_names: BTreeSet<String> = BTreeSet::new();
    let mut rename = |at: usize| {
        let count = counts.entry(names[at]).or_insert(0);
        loop {
            *count += 1;
            let candidate = format!("{}.{count}", names[at]);
            if !taken.contains(&candidate[..]) && new_names.insert(candidate.clone()) {
                return (at, candidate);
            }
        }
    };
    twice.into_iter().map(&mut rename).collect()
}

/// Drops statements about the entry's buffers that no longer hold: layouts of other shapes, aliases of buffers whose
/// types differ now.
fn fit_boundary(module: &mut Module, low: DType) {
    let entry = module.entry();
    let parameters: Vec<Shape> = entry.parameters().iter().map(|&id| entry.instr(id).shape.clone()).collect();
    let result = entry.result_shape().clone();
    let fit = |layout: &mut Shape, shape: &Shape| {
        let leaves = shape.leaves();
        *layout =
            narrow::shape(layout, low, &mut |leaf| leaves.get(leaf).is_some_and(|leaf| leaf.dtype() == Some(low)));
    };
    if let Some(layout) = &mut module.entry_layout {
        layout.parameters.iter_mut().zip(&parameters).for_each(|(layout, shape)| fit(layout, shape));
        fit(&mut layout.result, &result);
    }
    let part = |shape: &Shape, index: &[i64]| -> Option<Shape> {
        index.iter().try_fold(shape, |shape, &i| shape.as_tuple()?.get(usize::try_from(i).ok()?)).cloned()
    };
    module.input_output_alias.retain(|alias| {
        let parameter = usize::try_from(alias.parameter_number).ok().and_then(|number| parameters.get(number));
        let parameter = parameter.and_then(|shape| part(shape, &alias.parameter_index));
        match (parameter, part(&result, &alias.output_index)) {
            (Some(parameter), Some(output)) => parameter.is_compatible(&output),
            (None, _) | (_, None) => true,
        }
    });
}
