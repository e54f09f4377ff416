//! Writes one computation, at one call site, in its assigned dtypes.

mod casts;

use super::assignment::{Assignment, RegionKind};
use super::dataflow::{Dataflow, FrameId, NodeId, NodeKind, ValueId};
use super::decided::StoredAs;
use super::decision::Rule;
use super::narrow;
use super::parts::{self, Parts};
use super::policy::Boundary;
use crate::is_tied;
use crate::tidy::keep_only;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, PadDim, UnaryOp};
use bf16scope_hlo::{CompId, Computation, DType, InstrId, Instruction, Op, Shape, Sharding, Unmodelled};
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// A tuple that was taken apart and rebuilt with other dtypes.
    Tuple,
    /// A barrier between a value and its readers: the lookups of a table, or all of them.
    Barrier,
    /// Part of a sum that is written as sums of parts.
    Part,
    /// Part of the clamp that keeps finite numbers finite before a cast.
    Range,
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
    /// The original instruction that is being written; `None` while the result is.
    reader: Option<InstrId>,
}

impl<'a, 'm> FrameWriter<'a, 'm> {
    pub(super) fn new(
        graph: &'a Dataflow<'m>,
        assignment: &'a Assignment,
        frame: FrameId,
        callees: Callees,
    ) -> FrameWriter<'a, 'm> {
        let original = graph.module.comp(graph.frames[frame as usize].comp);
        let out = Computation {
            name: original.name.clone(),
            instructions: Vec::with_capacity(original.instructions.len()),
            root: original.root,
            unmodelled: original.unmodelled.clone(),
        };
        let (origins, written, casts) = (Vec::new(), Vec::new(), BTreeMap::new());
        FrameWriter { graph, assignment, frame, original, callees, out, origins, written, casts, reader: None }
    }

    /// Writes the computation, and returns it with the origin of each instruction. The result of a region has the
    /// types that its caller expects; that of an entry has those that `results` asks for.
    pub(super) fn write(mut self, region: Option<RegionKind>, results: Boundary) -> (Computation, Vec<Origin>) {
        for id in self.original.ids() {
            self.reader = Some(id);
            let written = self.instruction(id);
            self.written.push(written);
        }
        let want = match region {
            None => Want::AsMade,
            Some(RegionKind::Entry) if results == Boundary::Lower => Want::Narrow,
            Some(RegionKind::Entry | RegionKind::Body) => Want::Wide,
        };
        self.reader = None;
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
        narrow::shape(&self.original.instr(id).shape, self.graph.low, &mut |leaf| {
            values.get(leaf).is_some_and(|&value| self.is_low(value))
        })
    }

    fn push(&mut self, instr: Instruction, origin: Origin) -> InstrId {
        self.out.instructions.push(instr);
        self.origins.push(origin);
        InstrId(self.out.instructions.len() as u32 - 1)
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
        let low_operand = |writer: &Self| {
            let operand = original.operands[0];
            let is_low = writer.values(operand).first().is_some_and(|&value| writer.is_low(value));
            is_low.then(|| writer.written[operand.idx()])
        };
        match kind {
            // An instruction with more tied to it than its value is written, even if it no longer converts anything.
            _ if is_tied(original) => {}
            // A value that is narrow already, or that was converted from the narrow dtype, needs no cast to it.
            Some(NodeKind::ToLow) => {
                if let Some(same) = low_operand(self).or_else(|| self.came_from_low(original.operands[0])) {
                    return same;
                }
                let value = self.values(original.operands[0])[0];
                if let Some(&cast) = self.casts.get(&value) {
                    return cast;
                }
            }
            Some(NodeKind::FromLow) if self.is_low(self.values(id)[0]) => {
                return self.written[original.operands[0].idx()];
            }
            _ => {}
        }
        let sums_parts = node.filter(|&node| {
            // The parts are instructions of the frame that has the sum first.
            self.assignment.rule[node as usize] == Rule::SumOfParts && self.graph.node(node).frame == self.frame
        });
        if let Some(parts) = sums_parts.and_then(|node| parts::of_node(self.graph, node)) {
            return self.sum_of_parts(id, &parts);
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
            return self.convert_to(original, low, within);
        }
        if gives_f32 && low != original.shape {
            return self.round_behind(id, written);
        }
        if kind == Some(&NodeKind::ToLow) && low_operand(self).is_none() {
            self.casts.insert(self.values(original.operands[0])[0], written);
        }
        written
    }

    /// Writes a sum as sums of parts.
    fn sum_of_parts(&mut self, id: InstrId, parts: &Parts) -> InstrId {
        let original = self.original.instr(id);
        let start = self.operand(original.operands[1], &[Want::Wide]);
        let part = |op: Op, dims: Vec<i64>, operands: Vec<InstrId>| {
            let (name, shape) = (format!("{}.part", original.name), Shape::array(DType::F32, dims));
            Instruction { name, op, shape, operands, ..plain(original) }
        };
        let mut sums = Vec::new();
        let mut dims: Vec<i64> = Vec::new();
        for (part_value, zeros) in &parts.parts {
            let wide = self.operand(*part_value, &[Want::Wide]);
            let axes = (0..).zip(self.out.instr(wide).shape.dims());
            let part_dims: Vec<i64> = axes.filter(|(axis, _)| !parts.reduced.contains(axis)).map(|(_, &n)| n).collect();
            let mut op = self.op(id);
            if let Op::Reduce { dimensions, .. } = &mut op {
                *dimensions = parts.reduced.clone();
            }
            let sum = self.push(part(op, part_dims.clone(), vec![wide, start]), Origin::Part);
            if let Some(zeros) = zeros {
                let padded = |(n, zeros): (&i64, &PadDim)| n + zeros.low + zeros.high + (n - 1).max(0) * zeros.interior;
                dims = part_dims.iter().zip(zeros).map(padded).collect();
                sums.push(self.push(part(Op::Pad(zeros.clone()), dims.clone(), vec![sum, start]), Origin::Part));
            } else {
                let along = parts.dimension.unwrap_or(0) as usize;
                let n_before = dims.get(along).copied().unwrap_or(0);
                dims = part_dims;
                dims[along] += n_before;
                sums.push(sum);
            }
        }
        let all = match (parts.dimension, &sums[..]) {
            (None, [first, others @ ..]) => others.iter().fold(*first, |sum, &other| {
                self.push(part(Op::Binary(BinaryOp::Add), dims.clone(), vec![sum, other]), Origin::Part)
            }),
            (dimension, _) => {
                let op = Op::Concatenate { dimension: dimension.unwrap_or(0) };
                self.push(part(op, dims, sums), Origin::Part)
            }
        };
        let moved = (parts.moves.iter())
            .fold(all, |sum, (op, dims)| self.push(part(op.clone(), dims.clone(), vec![sum]), Origin::Part));
        let control_predecessors = self.predecessors(original);
        let whole = Instruction { op: Op::Reshape, operands: vec![moved], control_predecessors, ..original.clone() };
        self.push(whole, Origin::Original(id))
    }

    /// Whether a node computes in f32 and rounds its result, once for all readers.
    fn is_rounded(&self, node: NodeId) -> bool {
        let record = self.graph.node(node);
        let class = record.class().filter(|class| *class != Class::Allow);
        class.is_some() && !self.assignment.low[node as usize] && record.results().any(|value| self.is_low(value))
    }

    /// Puts a barrier between a value and its readers.
    fn behind_barrier(&mut self, id: InstrId, written: InstrId, what_for: &str) -> InstrId {
        let shape = self.out.instr(written).shape.clone();
        let sharding = self.out.instr(written).sharding.clone();
        let instr = self.original.instr(id);
        let (name, op) = (format!("{}.{what_for}", instr.name), Op::OptimizationBarrier);
        self.push(Instruction { name, op, shape, operands: vec![written], sharding, ..plain(instr) }, Origin::Barrier)
    }

    /// Casts the result of an instruction that stays f32 to the narrow dtype.
    fn round_behind(&mut self, id: InstrId, written: InstrId) -> InstrId {
        let original = self.original.instr(id);
        let value = self.values(id)[0];
        let takes_narrow = |user: &&NodeId| self.assignment.low[**user as usize];
        let reader = self.graph.users[value as usize].iter().find(takes_narrow);
        let wanted_by = reader.map_or(original, |&user| self.graph.instr(self.graph.node(user))).name.clone();
        let shape = self.shape(id);
        let (name, sharding) = (self.cast_name(original, &shape), original.sharding.clone());
        let convert =
            Instruction { name, op: Op::Convert, shape, operands: vec![written], sharding, ..plain(original) };
        self.push(convert, Origin::Cast { of: original.name.clone(), wanted_by })
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
            && let Some(narrow) = narrow::literal(constant, self.graph.low)
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
                self.take_apart(id, written, &mut values.iter().copied().zip(wants.iter().copied()))
            }
            (Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => self.cast(id, values[0], 0),
        }
    }

    /// Writes an original tuple over written elements, each in its current dtype.
    fn tuple(&mut self, id: InstrId, elements: Vec<InstrId>) -> InstrId {
        let original = self.original.instr(id);
        let leaves: Vec<&Shape> = elements.iter().flat_map(|id| self.out.instr(*id).shape.leaves()).collect();
        let low = self.graph.low;
        let shape = narrow::shape(&original.shape, low, &mut |leaf| leaves[leaf].dtype() == Some(low));
        let control_predecessors = self.predecessors(original);
        let instr = Instruction { shape, operands: elements, control_predecessors, ..original.clone() };
        self.push(instr, Origin::Original(id))
    }

    /// Rebuilds a tuple with its leaves in the wanted dtypes.
    fn take_apart(
        &mut self,
        id: InstrId,
        written: InstrId,
        leaves: &mut dyn Iterator<Item = (ValueId, Want)>,
    ) -> InstrId {
        let original = self.original.instr(id);
        let Shape::Tuple(shapes) = self.out.instr(written).shape.clone() else {
            return match leaves.next() {
                Some((value, want)) if !self.is_as_wanted(value, want) => self.convert(original, value, written),
                _ => written,
            };
        };
        let sharding = self.out.instr(written).sharding.clone();
        let mut elements = Vec::with_capacity(shapes.len());
        let mut n_leaves = 0;
        for (index, shape) in shapes.into_iter().enumerate() {
            let op = Op::GetTupleElement { index: index as i64 };
            let n = shape.leaves().len();
            let sharding = sharding.as_deref().and_then(|all| sharding_of_element(all, &shape, n_leaves..n_leaves + n));
            n_leaves += n;
            let element = Instruction { op, shape, operands: vec![written], sharding, ..plain(original) };
            let element = self.push(element, Origin::Tuple);
            elements.push(self.take_apart(id, element, leaves));
        }
        let shape = Shape::Tuple(elements.iter().map(|e| self.out.instr(*e).shape.clone()).collect());
        let tuple = Instruction { op: Op::Tuple, shape, operands: elements, sharding, ..plain(original) };
        self.push(tuple, Origin::Tuple)
    }

    /// Drops written instructions without a reader: casts and tuples that this pass added, and originals that had a
    /// reader before.
    fn drop_unused(&mut self) {
        let n = self.out.instructions.len();
        let mut was_read = vec![false; self.original.instructions.len()];
        for instr in &self.original.instructions {
            for id in instr.operands.iter().chain(&instr.control_predecessors) {
                was_read[id.idx()] = true;
            }
        }
        was_read[self.original.root.idx()] = true;
        let mut is_used = vec![false; n];
        is_used[self.out.root.idx()] = true;
        for idx in (0..n).rev() {
            let instr = &self.out.instructions[idx];
            let may_go = match &self.origins[idx] {
                Origin::Original(id) => was_read[id.idx()] && is_pure(&instr.op),
                Origin::Cast { .. } | Origin::Tuple | Origin::Barrier | Origin::Part | Origin::Range => true,
            };
            if !may_go || is_used[idx] {
                is_used[idx] = true;
                for id in instr.operands.iter().chain(&instr.control_predecessors) {
                    is_used[id.idx()] = true;
                }
            }
        }
        let mut keep = is_used.iter();
        self.origins.retain(|_| keep.next() == Some(&true));
        keep_only(&mut self.out, &is_used);
    }
}

/// The sharding of an element of a tuple. `leaves` numbers the element's arrays among those of the tuple.
fn sharding_of_element(tuple: &Sharding, element: &Shape, leaves: Range<usize>) -> Option<Box<Sharding>> {
    let element_sharding = match tuple {
        Sharding::Tuple(all) if element.as_tuple().is_some() => Sharding::Tuple(all.get(leaves)?.to_vec()),
        Sharding::Tuple(all) => all.get(leaves.start)?.clone(),
        Sharding::Replicated | Sharding::Maximal { .. } | Sharding::Manual => tuple.clone(),
        // A tuple has a list of shardings; an unparsed text stays with the tuple.
        Sharding::Tiled(_) | Sharding::Raw { .. } => return None,
    };
    Some(Box::new(element_sharding))
}

/// An instruction with the name and metadata of another, and defaults otherwise.
fn plain(instr: &Instruction) -> Instruction {
    Instruction {
        name: instr.name.clone(),
        op: Op::Convert,
        shape: instr.shape.clone(),
        operands: Vec::new(),
        metadata: instr.metadata.clone(),
        sharding: None,
        frontend_attributes: Vec::new(),
        control_predecessors: Vec::new(),
        backend_config: String::new(),
        unmodelled: Unmodelled::default(),
    }
}

/// Whether an instruction may be dropped once it has no reader: ops that lowering itself makes redundant.
fn is_pure(op: &Op) -> bool {
    matches!(
        op,
        Op::Tuple | Op::GetTupleElement { .. } | Op::Convert | Op::Constant(_) | Op::Broadcast { .. } | Op::Reshape
    )
}
