//! Writes one computation, at one call site, in its assigned dtypes.

mod casts;

use super::assignment::{Assignment, Parts, RegionKind};
use super::dataflow::{Dataflow, FrameId, NodeId, NodeKind, ValueId};
use super::decided::StoredAs;
use super::decision::Rule;
use super::policy::Boundary;
use crate::tidy::keep_only;
use crate::{is_tied, taken_or_awaited};
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp, infer_shape};
use bf16scope_hlo::{CompId, Computation, DType, InstrId, Instruction, Op, Shape};
use std::collections::BTreeMap;

/// The dtype in which a reader wants an f32 value of the original module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// The dtype in which it is computed.
    AsMade,
    /// f32.
    Wide,
    /// The narrow dtype.
    Narrow,
}

/// Where an instruction of a written computation comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Origin {
    /// An instruction of the original computation.
    Original(InstrId),
    /// A cast, or a copy of a constant or broadcast in the other dtype.
    Cast {
        /// Name of the instruction whose value this is.
        of: String,
        /// Name of the first instruction that needs it.
        wanted_by: String,
    },
    /// Another instruction that lowering added: of a tuple that is rebuilt with other dtypes, a barrier, a sum of
    /// parts, or the clamp that keeps finite numbers finite before a cast.
    Added,
}

/// For each instruction that calls computations its new callees, in the order of its attributes; other instructions
/// keep theirs.
pub(super) type Callees = BTreeMap<InstrId, Vec<CompId>>;

pub(super) struct FrameWriter<'a, 'm> {
    graph: &'a Dataflow<'m>,
    assignment: &'a Assignment,
    frame: FrameId,
    original: &'m Computation,
    callees: Callees,
    out: Computation,
    origins: Vec<Origin>,
    /// For each original instruction the written one that has its value, in the dtype in which it is computed.
    written: Vec<InstrId>,
    /// For each value the instruction that has it in the other dtype.
    casts: BTreeMap<ValueId, InstrId>,
    /// The original instruction that is being written; the root while the result is.
    reader: InstrId,
}

impl<'a, 'm> FrameWriter<'a, 'm> {
    pub(super) fn new(
        graph: &'a Dataflow<'m>,
        assignment: &'a Assignment,
        frame: FrameId,
        callees: Callees,
    ) -> FrameWriter<'a, 'm> {
        let original = graph.module.comp(graph.frames[frame as usize].comp);
        let (name, unmodelled) = (original.name.clone(), original.unmodelled.clone());
        let out = Computation { unmodelled, ..Computation::new(name) };
        let (origins, written, casts) = (Vec::new(), Vec::new(), BTreeMap::new());
        let reader = original.root;
        FrameWriter { graph, assignment, frame, original, callees, out, origins, written, casts, reader }
    }

    /// Writes the computation, and returns it with the origin of each instruction. The result of a region has the
    /// types that its caller expects; that of an entry has those that `results` asks for.
    pub(super) fn write(mut self, region: Option<RegionKind>, results: Boundary) -> (Computation, Vec<Origin>) {
        for id in self.original.ids() {
            self.reader = id;
            let written = self.instruction(id);
            self.written.push(written);
        }
        let want = match region {
            None => Want::AsMade,
            Some(RegionKind::Entry) if results == Boundary::Lower => Want::Narrow,
            Some(RegionKind::Entry | RegionKind::Body) => Want::Wide,
        };
        self.reader = self.original.root;
        let n = self.values(self.original.root).len();
        let is_narrow = |leaf: usize| region.is_some() && self.assignment.narrow_results.get(leaf) == Some(&true);
        let wants: Vec<Want> = (0..n).map(|leaf| if is_narrow(leaf) { Want::Narrow } else { want }).collect();
        self.out.root = self.operand(self.original.root, &wants);
        self.drop_unused();
        (self.out, self.origins)
    }

    fn values(&self, id: InstrId) -> &'a [ValueId] {
        &self.graph.frames[self.frame as usize].values[id.idx()]
    }

    fn node(&self, id: InstrId) -> Option<NodeId> {
        self.graph.frames[self.frame as usize].nodes[id.idx()]
    }

    fn is_low(&self, value: ValueId) -> bool {
        self.assignment.value_low[value as usize]
    }

    /// Whether a value has the wanted dtype where it is computed.
    fn is_as_wanted(&self, value: ValueId, want: Want) -> bool {
        let is_float = self.graph.value(value).is_f32();
        !is_float || want == Want::AsMade || (want == Want::Narrow) == self.is_low(value)
    }

    /// The written instructions that an original one waits for.
    fn predecessors(&self, instr: &Instruction) -> Vec<InstrId> {
        instr.control_predecessors.iter().map(|id| self.written[id.idx()]).collect()
    }

    /// The shape of an original instruction, with each value in the dtype in which it is computed.
    fn shape(&self, id: InstrId) -> Shape {
        let values = self.values(id);
        let is_low = |leaf: usize| values.get(leaf).is_some_and(|&value| self.is_low(value));
        self.original.instr(id).shape.with_dtype(DType::F32, self.graph.low, is_low)
    }

    fn push(&mut self, instr: Instruction, origin: Origin) -> InstrId {
        self.out.instructions.push(instr);
        self.origins.push(origin);
        InstrId(self.out.instructions.len() as u32 - 1)
    }

    /// Adds an instruction with the metadata of an original one, and with the sharding of its operands.
    fn add(
        &mut self,
        instr: &Instruction,
        name: String,
        op: Op,
        operands: Vec<InstrId>,
        shape: Shape,
        origin: Origin,
    ) -> InstrId {
        let sharding = operands.iter().find_map(|&id| self.out.instr(id).sharding.clone());
        let plain = Instruction::plain(name, op, shape, operands, instr.metadata.clone());
        self.push(Instruction { sharding, ..plain }, origin)
    }

    /// Writes an instruction of the original; returns the instruction that has its value, in the dtype in which it is
    /// computed.
    fn instruction(&mut self, id: InstrId) -> InstrId {
        let written = self.plainly(id);
        let is_apart = self.node(id).is_some_and(|node| {
            let record = self.graph.node(node);
            record.decided == Some(StoredAs::Barrier) && matches!(record.kind, NodeKind::Op(_)) && record.n_results == 1
        });
        if is_apart { self.behind_barrier(id, written, "stored") } else { written }
    }

    /// As `instruction`, without a barrier behind it.
    fn plainly(&mut self, id: InstrId) -> InstrId {
        let original = self.original.instr(id);
        let node = self.node(id);
        let kind = node.map(|node| &self.graph.node(node).kind);
        // A value that is narrow already, or that was converted from the narrow dtype, needs no cast to it. But an
        // instruction with more tied to it than its value is written, even if it no longer converts anything.
        let converted = kind.filter(|kind| **kind == NodeKind::ToLow).map(|_| self.values(original.operands[0])[0]);
        let same = converted.and_then(|value| {
            let operand = original.operands[0];
            let narrow = self.is_low(value).then(|| self.written[operand.idx()]);
            narrow.or_else(|| self.came_from_low(operand)).or_else(|| self.casts.get(&value).copied())
        });
        let widened = kind.filter(|kind| **kind == NodeKind::FromLow && self.is_low(self.values(id)[0]));
        let same = same.or_else(|| widened.map(|_| self.written[original.operands[0].idx()]));
        if let Some(same) = same.filter(|_| !is_tied(original)) {
            return same;
        }
        // The parts are instructions of the frame that has the sum first.
        let is_here = |node: &NodeId| self.graph.node(*node).frame == self.frame;
        if let Some(parts) = node.filter(is_here).and_then(|node| self.assignment.parts.get(&node)) {
            return self.sum_of_parts(id, parts);
        }
        let mut operands: Vec<InstrId> = (original.operands.iter().enumerate())
            .map(|(place, &operand)| {
                // Without a node (a tuple whose elements are taken one by one) the operands stay in the dtype in which
                // they are computed.
                let Some(node) = node else { return self.written[operand.idx()] };
                let wants = self.wants(id, node, place, operand);
                self.operand(operand, &wants)
            })
            .collect();
        if node.is_some_and(|node| self.assignment.rule[node as usize] == Rule::Lookup) {
            operands[0] = self.behind_barrier(original.operands[0], operands[0], "lookup");
        }
        let control_predecessors = self.predecessors(original);
        let op = self.op(id);
        let is_rounded = node.is_some_and(|node| self.is_rounded(node));
        let gives_f32 = node.is_some_and(|node| self.graph.node(node).gives_f32);
        let low = self.shape(id);
        let shape = if is_rounded || gives_f32 { original.shape.clone() } else { low.clone() };
        let instr = Instruction { op, shape, operands, control_predecessors, ..original.clone() };
        let written = self.push(instr, Origin::Original(id));
        if is_rounded {
            let within = self.within_range(original, self.values(id)[0], written);
            return self.convert_to(original, low, within, &original.name);
        }
        if gives_f32 && low != original.shape {
            let users = &self.graph.users[self.values(id)[0] as usize];
            let reader = users.iter().find(|&&user| self.assignment.low[user as usize]);
            let reader = reader.map_or(original, |&user| self.graph.instr(self.graph.node(user)));
            return self.convert_to(original, low, written, &reader.name);
        }
        if let Some(value) = converted.filter(|&value| !self.is_low(value)) {
            self.casts.insert(value, written);
        }
        written
    }

    /// Writes a sum as sums of parts.
    fn sum_of_parts(&mut self, id: InstrId, parts: &Parts) -> InstrId {
        let original = self.original.instr(id);
        let start = self.operand(original.operands[1], &[Want::Wide]);
        let mut sums = Vec::new();
        for (part, zeros) in &parts.parts {
            let wide = self.operand(*part, &[Want::Wide]);
            let mut sum = self.part(original, parts.sum.clone(), vec![wide, start], &[]);
            if let Some(zeros) = zeros {
                sum = self.part(original, Op::Pad(zeros.clone()), vec![sum, start], &[]);
            }
            sums.push(sum);
        }
        let mut all = match parts.dimension {
            Some(dimension) => self.part(original, Op::Concatenate { dimension }, sums, &[]),
            None => {
                let add = Op::Binary(BinaryOp::Add);
                let others = sums.split_off(1);
                others.into_iter().fold(sums[0], |sum, other| self.part(original, add.clone(), vec![sum, other], &[]))
            }
        };
        for (op, dims) in &parts.moves {
            all = self.part(original, op.clone(), vec![all], dims);
        }
        let control_predecessors = self.predecessors(original);
        let whole = Instruction { op: Op::Reshape, operands: vec![all], control_predecessors, ..original.clone() };
        self.push(whole, Origin::Original(id))
    }

    /// Writes an op of a sum that is written as sums of parts; `dims` are those of a reshape's result.
    fn part(&mut self, original: &Instruction, op: Op, operands: Vec<InstrId>, dims: &[i64]) -> InstrId {
        let shapes: Vec<&Shape> = operands.iter().map(|&operand| &self.out.instr(operand).shape).collect();
        let reshaped = Shape::array(DType::F32, dims);
        let shape =
            infer_shape(self.graph.module, &op, &shapes, Some(&reshaped)).expect("sums of parts are well typed");
        let name = format!("{}.part", original.name);
        self.push(Instruction::plain(name, op, shape, operands, original.metadata.clone()), Origin::Added)
    }

    /// Whether a node computes in f32 and rounds its result, once for all readers.
    fn is_rounded(&self, node: NodeId) -> bool {
        let record = self.graph.node(node);
        let class = record.class().filter(|class| *class != Class::Allow);
        class.is_some() && !self.assignment.low[node as usize] && record.results().any(|value| self.is_low(value))
    }

    /// Puts a barrier between a value and its readers.
    fn behind_barrier(&mut self, id: InstrId, written: InstrId, what_for: &str) -> InstrId {
        let (instr, shape) = (self.original.instr(id), self.out.instr(written).shape.clone());
        let name = format!("{}.{what_for}", instr.name);
        self.add(instr, name, Op::OptimizationBarrier, vec![written], shape, Origin::Added)
    }

    /// The dtypes in which an instruction wants the values of its operand at `place`.
    fn wants(&self, id: InstrId, node: NodeId, place: usize, operand: InstrId) -> Vec<Want> {
        let op = &self.original.instr(id).op;
        let n = self.values(operand).len();
        let narrow = |is_narrow: bool| if is_narrow { Want::Narrow } else { Want::Wide };
        match (op, &self.graph.node(node).kind) {
            (Op::OptimizationBarrier | Op::Unary(UnaryOp::Copy), _) if place == 0 => {
                // Each of its values has a separate node.
                self.values(id).iter().map(|&value| narrow(self.is_low(value))).collect()
            }
            (Op::While { .. } | Op::Conditional(_), _) if self.assignment.crossings.contains_key(&node) => {
                let before = &self.original.instr(id).operands[..place];
                let first: usize = before.iter().map(|&operand| self.values(operand).len()).sum();
                self.assignment.crossings[&node].taken[first..first + n].iter().copied().map(narrow).collect()
            }
            (_, NodeKind::FromF32 | NodeKind::FromExact | NodeKind::FromLow | NodeKind::ToLow) => vec![Want::AsMade; n],
            _ => vec![narrow(self.assignment.low[node as usize]); n],
        }
    }

    /// The op in its new dtype, with its new callees.
    fn op(&self, id: InstrId) -> Op {
        let mut op = self.original.instr(id).op.clone();
        if let Op::Constant(constant) = &mut op
            && self.values(id).first().is_some_and(|&value| self.is_low(value))
            && let Some(narrow) = constant.saturated_to(self.graph.low)
        {
            *constant = narrow;
        }
        if let Some(callees) = self.callees.get(&id) {
            let mut callees = callees.iter();
            op.for_each_called_mut(&mut |callee| *callee = callees.next().copied().unwrap_or(*callee));
        }
        op
    }

    /// The instruction that has the values of an original one in the wanted dtypes.
    fn operand(&mut self, id: InstrId, wants: &[Want]) -> InstrId {
        let values = self.values(id);
        if values.iter().zip(wants).all(|(&value, &want)| self.is_as_wanted(value, want)) {
            return self.written[id.idx()];
        }
        let original = self.original.instr(id);
        match (&original.shape, &original.op) {
            (Shape::Tuple(_), Op::Tuple) => {
                let mut start = 0;
                let mut elements = Vec::with_capacity(original.operands.len());
                for &element in &original.operands {
                    let n = self.values(element).len();
                    elements.push(self.operand(element, &wants[start..start + n]));
                    start += n;
                }
                self.tuple(id, elements)
            }
            (Shape::Tuple(_), _) => {
                let written = self.written[id.idx()];
                self.take_apart(original, written, values, wants)
            }
            (Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => self.cast(id, values[0], 0),
        }
    }

    /// Writes an original tuple over written elements, each in its current dtype.
    fn tuple(&mut self, id: InstrId, elements: Vec<InstrId>) -> InstrId {
        let original = self.original.instr(id);
        let leaves: Vec<&Shape> = elements.iter().flat_map(|id| self.out.instr(*id).shape.leaves()).collect();
        let is_low = |leaf: usize| leaves[leaf].dtype() == Some(self.graph.low);
        let shape = original.shape.with_dtype(DType::F32, self.graph.low, is_low);
        let control_predecessors = self.predecessors(original);
        let instr = Instruction { shape, operands: elements, control_predecessors, ..original.clone() };
        self.push(instr, Origin::Original(id))
    }

    /// Rebuilds a value of `original` with its arrays in the wanted dtypes.
    fn take_apart(&mut self, original: &Instruction, written: InstrId, values: &[ValueId], wants: &[Want]) -> InstrId {
        let Shape::Tuple(shapes) = self.out.instr(written).shape.clone() else {
            let is_as_wanted = self.is_as_wanted(values[0], wants[0]);
            return if is_as_wanted { written } else { self.convert(original, values[0], written) };
        };
        let sharding = self.out.instr(written).sharding.clone();
        let plain = |op: Op, shape: Shape, operands: Vec<InstrId>| {
            Instruction::plain(original.name.clone(), op, shape, operands, original.metadata.clone())
        };
        let mut elements = Vec::with_capacity(shapes.len());
        let mut n_leaves = 0;
        for (index, shape) in (0..).zip(shapes) {
            let leaves = n_leaves..n_leaves + shape.leaves().len();
            n_leaves = leaves.end;
            let sharding = sharding.as_deref().and_then(|all| all.of_element(&shape, leaves.clone())).map(Box::new);
            let element = plain(Op::GetTupleElement { index }, shape, vec![written]);
            let element = self.push(Instruction { sharding, ..element }, Origin::Added);
            elements.push(self.take_apart(original, element, &values[leaves.clone()], &wants[leaves]));
        }
        let shape = Shape::Tuple(elements.iter().map(|e| self.out.instr(*e).shape.clone()).collect());
        self.push(Instruction { sharding, ..plain(Op::Tuple, shape, elements) }, Origin::Added)
    }

    /// Drops written instructions without a reader: casts and tuples that this pass added, and originals that had a
    /// reader before.
    fn drop_unused(&mut self) {
        let mut was_read = vec![false; self.original.instructions.len()];
        let read = self.original.instructions.iter().flat_map(taken_or_awaited).chain([self.original.root]);
        read.for_each(|id| was_read[id.idx()] = true);
        let mut is_used = vec![false; self.out.instructions.len()];
        is_used[self.out.root.idx()] = true;
        for (idx, (instr, origin)) in self.out.instructions.iter().zip(&self.origins).enumerate().rev() {
            let is_kept = |id: &InstrId| !was_read[id.idx()] || !is_pure(&instr.op);
            if is_used[idx] || matches!(origin, Origin::Original(id) if is_kept(id)) {
                is_used[idx] = true;
                taken_or_awaited(instr).for_each(|id| is_used[id.idx()] = true);
            }
        }
        let mut keep = is_used.iter();
        self.origins.retain(|_| keep.next() == Some(&true));
        keep_only(&mut self.out, &is_used);
    }
}

/// Whether an instruction may be dropped once it has no reader: ops that lowering itself makes redundant.
fn is_pure(op: &Op) -> bool {
    matches!(
        op,
        Op::Tuple | Op::GetTupleElement { .. } | Op::Convert | Op::Constant(_) | Op::Broadcast { .. } | Op::Reshape
    )
}
