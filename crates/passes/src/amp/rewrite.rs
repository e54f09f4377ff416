//! Writes the lowered module: regions and their call sites, with the casts that the assignment asks for.
//!
//! A computation is written once for each call site, instruction by instruction, each in the dtype that its node was
//! assigned. Values keep that dtype through tuples and calls, and are cast where a reader wants the other one: once
//! per value and direction in a computation. A computation that does not change stays shared with its other callers;
//! one that changes becomes a copy. In the end, computations without a caller are dropped and names are made unique.

use super::assign::assign;
use super::assignment::{Assignment, Crossing, RegionContext, RegionKind};
use super::dataflow::{CALL_ROOM, Dataflow, FrameId, NodeId};
use super::discrete_choices::Choices;
use super::flow::closure;
use super::frame::{Callees, FrameWriter, Origin};
use super::loops::{self, Branch, Loop};
use super::loss::{self, TakenLoss};
use super::needs::{Needs, needs};
use super::policy::{Boundary, Classes, Policy};
use super::regions::Regions;
use super::report::{ComputationReport, Decision, decisions};
use bf16scope_hlo::ops::decisions::calls_regions;
use bf16scope_hlo::{CompId, Computation, DType, Module, Op};
use std::collections::BTreeMap;
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
    /// The decisions in regions that did not change.
    unchanged: BTreeMap<CompId, Vec<Decision>>,
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
            unchanged: BTreeMap::new(),
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

    /// Describes what the loops of a graph do with their state.
    fn loops_of(&mut self, graph: &Dataflow<'m>, choices: &Choices) -> BTreeMap<NodeId, Loop> {
        let mut loops = BTreeMap::new();
        for node in graph.node_ids() {
            let &Op::While { body, condition } = graph.op(node) else { continue };
            let (body, condition, around) = (self.graph(body), self.graph(condition), choices.last_around(node));
            let mut its_loop = loops::of_body(&body, &condition, around);
            if let Some(around) = around.filter(|_| self.policy.regards_needs()) {
                let choices = self.originals.choices(&body, RegionKind::Body, around);
                let loops = self.loops_of(&body, &choices);
                let of_body = needs(&body, &vec![None; body.nodes.len()], &loops, around);
                its_loop.needs.iter_mut().zip(of_body.of_parameters).for_each(|(all, needs)| all.extend(needs));
            }
            loops.insert(node, its_loop);
        }
        loops
    }

    /// Describes the branches of a graph's `conditional`s.
    fn branches_of(&mut self, graph: &Dataflow<'m>, choices: &Choices) -> BTreeMap<NodeId, Vec<Branch>> {
        let mut branches = BTreeMap::new();
        for node in graph.node_ids().filter(|&node| matches!(graph.op(node), Op::Conditional(_))) {
            let scores = choices.last_around(node).map(|around| &around.scores[..]).unwrap_or_default();
            let branch = |comp: CompId| loops::of_branch(&self.graph(comp), scores);
            branches.insert(node, graph.op(node).called().into_iter().map(branch).collect());
        }
        branches
    }

    /// Writes a frame; returns its computation.
    fn frame(&mut self, region: &Assigned<'_, 'm>, frame: FrameId, kind: Option<RegionKind>) -> CompId {
        let &Assigned { graph, assignment, .. } = region;
        let original = graph.frames[frame as usize].comp;
        let callees = self.callees(region, frame);
        let writer = FrameWriter::new(graph, assignment, frame, callees);
        let (computation, origins) = writer.write(kind, self.policy.results);
        let decisions = decisions(graph, assignment, frame, self.policy);
        if computation == *self.module.comp(original) {
            self.unchanged.entry(original).or_insert(decisions);
            return original;
        }
        self.add(Written { original, computation, part: ComputationReport { decisions, origins } })
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
                let crossing = node.and_then(|node| assignment.crossings.get(&node));
                let around = node.and_then(|node| around.get(&node));
                let region = |(nth, comp): (usize, CompId)| {
                    let crossing = crossing.map(|crossing| self.crossing_of(op, nth, crossing)).unwrap_or_default();
                    let around = around.and_then(|around| around.get(nth)).cloned().unwrap_or_default();
                    self.region(comp, RegionKind::Body, &crossing, &around)
                };
                callees.insert(id, called.into_iter().enumerate().map(region).collect());
            } else if node.is_some_and(|node| assignment.low[node as usize]) {
                callees.insert(id, called.into_iter().map(|comp| self.reducer(comp)).collect());
            }
        }
        callees
    }

    /// The values that cross the border of the `nth` region that an op runs.
    fn crossing_of(&self, op: &Op, nth: usize, crossing: &Crossing) -> Crossing {
        if matches!(op, Op::While { .. }) {
            return crossing.clone();
        }
        let n_taken = |&comp: &CompId| {
            let comp = self.module.comp(comp);
            comp.parameters().iter().map(|&id| comp.instr(id).shape.leaves().len()).sum::<usize>()
        };
        let called = op.called();
        // The first operand selects the branch.
        let first = 1 + called[..nth].iter().map(n_taken).sum::<usize>();
        let taken = crossing.taken[first..first + n_taken(&called[nth])].to_vec();
        Crossing { taken, given: crossing.given.clone() }
    }

    /// Adds a written computation, unless an equal one was written; returns its id.
    fn add(&mut self, written: Written) -> CompId {
        let copies = self.copies.entry(written.original).or_default();
        let mut known = copies.iter().copied();
        let known = known.find(|&idx| self.written[idx].computation == written.computation);
        let idx = known.unwrap_or_else(|| {
            copies.push(self.written.len());
            self.written.push(written);
            self.written.len() - 1
        });
        CompId((self.module.computations.len() + idx) as u32)
    }

    /// The copy of a reduction that works on the narrow dtype.
    pub(super) fn reducer(&mut self, comp: CompId) -> CompId {
        let (mut computation, low) = (self.module.comp(comp).clone(), self.policy.dtype.dtype());
        for instr in &mut computation.instructions {
            instr.shape = instr.shape.with_dtype(DType::F32, low, |_| true);
            if let Op::Constant(constant) = &mut instr.op
                && let Some(narrow) = constant.saturated_to(low)
            {
                *constant = narrow;
            }
        }
        let origins = computation.ids().map(Origin::Original).collect();
        let part = ComputationReport { decisions: Vec::new(), origins };
        self.add(Written { original: comp, computation, part })
    }

    /// Returns the module with the written entry, without computations that have no caller, and each computation's
    /// part of the report.
    pub(super) fn finish(mut self, entry: CompId) -> (Module, Vec<ComputationReport>) {
        let n_original = self.module.computations.len();
        let written = |id: CompId| Some(&self.written[id.idx().checked_sub(n_original)?]);
        let called = |id: u32| {
            let (id, written) = (CompId(id), written(CompId(id)));
            let computation = written.map_or_else(|| self.module.comp(id), |written| &written.computation);
            computation.instructions.iter().flat_map(|instr| instr.op.called()).map(|comp| comp.0)
        };
        // Each copy stands behind its original, whether that remains or not.
        let mut order: Vec<CompId> = closure([entry.0], called).into_iter().map(CompId).collect();
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
        let mut module = self.module.with_computations(computations, new_ids[&entry]);
        for instr in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
            instr.op.for_each_called_mut(&mut |callee| *callee = new_ids[callee]);
        }
        module.make_names_unique();
        module.fit_boundary();
        (module, parts)
    }
}
