//! The dataflow graph of a region, with one node per op and one value per array: the form on which `assign` works.
//!
//! A region is a computation whose parameters and result keep their types: the entry, the body of a loop, the branch
//! of a conditional. Calls inside a region are followed once per call site, so dtypes are assigned to a callee
//! separately for each caller. Tuples, their elements and the parameters of callees are aliases of values. A [`Node`]
//! is an op on values; nodes are ordered so that operands come first.

use super::decided::StoredAs;
use super::equal_expressions::{Expression, Expressions};
pub(super) use super::ids::{FrameId, NodeId, ValueId};
use super::narrow;
use super::policy::{Because, Classes, LowDType};
use bf16scope_hlo::ops::decisions::{DotForm, dot_form, is_placement, is_retypable, keeps_dtypes};
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{CompId, DType, InstrId, Instruction, Literal, Module, Op, Shape};
use std::collections::BTreeMap;

/// The most instructions and values of callees that calls may add to all regions of a module together; a call that
/// would add more is not followed. A chain of calls, each twice, has 2^n of them.
pub(super) const CALL_ROOM: usize = 1_000_000;
/// The room that an empty callee takes.
const EMPTY_CALLEE: usize = 16;

/// A value.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The node that computes it.
    pub node: NodeId,
    /// Its dtype in the original module.
    pub dtype: Option<DType>,
    /// Its number of elements.
    pub n_elements: i64,
    /// Whether the narrow dtype represents each of its elements exactly.
    pub is_exact: bool,
    /// Whether all its elements are zero.
    pub is_zero: bool,
    /// Whether it is computed from integers, truth values and constants alone: positions, counts, masks.
    pub is_data: bool,
}

impl Value {
    pub(super) fn is_f32(&self) -> bool {
        self.dtype == Some(DType::F32)
    }
}

/// How lowering treats an op.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeKind {
    /// It can be retyped; its class decides.
    Op(Class),
    /// A constant.
    Constant,
    /// Conversion to f32 from the narrow dtype: the same numbers.
    FromLow,
    /// Conversion to f32 from a dtype whose values the narrow dtype represents exactly.
    FromExact,
    /// Conversion from f32 to the narrow dtype.
    ToLow,
    /// Conversion from f32 to another dtype, which rounds (or truncates) any operand.
    FromF32,
    /// A parameter of the region.
    Parameter,
    /// It keeps its dtypes, for this reason.
    Fixed(&'static str),
}

/// An op on values.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The frame of its instruction.
    pub frame: FrameId,
    /// The instruction; the first of several equal ones.
    pub instr: InstrId,
    /// How lowering treats it.
    pub kind: NodeKind,
    /// Why it has its class.
    pub because: Because,
    /// The policy's decision on it, which overrides the rules.
    pub decided: Option<StoredAs>,
    /// Whether its result is f32 even if its operands and its value are narrow, because devices may sum the result: a
    /// cast follows then.
    pub gives_f32: bool,
    /// The arrays of all operands, depth first.
    pub operands: Vec<ValueId>,
    /// The first of its `n_results` results, which are numbered consecutively.
    pub first_result: ValueId,
    /// The number of its results.
    pub n_results: u32,
}

impl Node {
    pub(super) fn results(&self) -> std::ops::Range<ValueId> {
        self.first_result..self.first_result + self.n_results
    }

    pub(super) fn class(&self) -> Option<Class> {
        match &self.kind {
            NodeKind::Op(class) => Some(*class),
            NodeKind::Constant
            | NodeKind::FromLow
            | NodeKind::FromExact
            | NodeKind::ToLow
            | NodeKind::FromF32
            | NodeKind::Parameter
            | NodeKind::Fixed(_) => None,
        }
    }
}

/// A computation at one call site.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The computation.
    pub comp: CompId,
    /// For each instruction its values, depth first.
    pub values: Vec<Vec<ValueId>>,
    /// For each instruction the first of its nodes, if it has any.
    pub nodes: Vec<Option<NodeId>>,
    /// For each call that is followed, the callee's frame.
    pub calls: Vec<(InstrId, FrameId)>,
    /// For each tuple that elements are taken from: where the values of each element begin, and the end.
    starts: BTreeMap<InstrId, Vec<usize>>,
}

/// The dataflow graph of a region.
#[derive(Debug)]
pub(super) struct Dataflow<'m> {
    pub module: &'m Module,
    pub low: DType,
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    /// For each value the nodes that read it. Dead code, which a compiler removes, counts as a reader of dead values
    /// only: nothing is stored for it.
    pub users: Vec<Vec<NodeId>>,
    /// The frames; the first is the region's own.
    pub frames: Vec<Frame>,
    /// The values of the region's result.
    pub results: Vec<ValueId>,
    /// For each value whether it is a result.
    pub is_result: Vec<bool>,
    /// The rest of [`CALL_ROOM`].
    pub call_room: usize,
    /// The losses among the results, by number, if the policy names them.
    pub losses: Option<Vec<usize>>,
    expressions: Expressions,
}

impl<'m> Dataflow<'m> {
    /// Builds the graph of the region `comp` of a verified module.
    pub(super) fn build(
        module: &'m Module,
        comp: CompId,
        classes: &Classes<'_>,
        low: LowDType,
        call_room: usize,
    ) -> Dataflow<'m> {
        let mut graph = Dataflow {
            module,
            low: low.dtype(),
            values: Vec::new(),
            nodes: Vec::new(),
            users: Vec::new(),
            frames: Vec::new(),
            results: Vec::new(),
            is_result: Vec::new(),
            call_room,
            losses: classes.policy().losses.clone().filter(|_| comp == module.entry),
            expressions: Expressions::default(),
        };
        graph.results = graph.add_frame(comp, None, classes);
        graph.is_result = vec![false; graph.values.len()];
        graph.results.iter().for_each(|&value| graph.is_result[value as usize] = true);
        let expressions = std::mem::take(&mut graph.expressions);
        let is_live = graph.live(classes);
        let mut users = vec![Vec::new(); graph.values.len()];
        for (idx, node) in graph.nodes.iter().enumerate() {
            let counts = |operand: ValueId| is_live[idx] || !is_live[graph.producer(operand) as usize];
            for &operand in node.operands.iter().filter(|&&operand| counts(operand)) {
                users[operand as usize].push(idx as NodeId);
            }
        }
        for (value, readers) in expressions.readers() {
            let users = &mut users[value as usize];
            users.extend(readers);
            users.sort_unstable();
            users.dedup();
        }
        graph.users = users;
        for exponential in sigmoids(&graph) {
            graph.nodes[exponential as usize].kind = NodeKind::Op(Class::Infer);
        }
        graph
    }

    /// For each node whether a result or a side effect is computed from it.
    fn live(&self, classes: &Classes<'_>) -> Vec<bool> {
        let mut is_live = vec![false; self.nodes.len()];
        self.results.iter().for_each(|&value| is_live[self.producer(value) as usize] = true);
        for (idx, node) in self.nodes.iter().enumerate().rev() {
            let instr = self.instr(node);
            is_live[idx] |= classes.is_effective(instr);
            if is_live[idx] {
                let waits_for = instr.control_predecessors.iter();
                let waits_for = waits_for.filter_map(|id| self.frames[node.frame as usize].nodes[id.idx()]);
                let used = node.operands.iter().map(|&value| self.producer(value)).chain(waits_for);
                used.for_each(|node| is_live[node as usize] = true);
            }
        }
        is_live
    }

    pub(super) fn value(&self, value: ValueId) -> &Value {
        &self.values[value as usize]
    }

    pub(super) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node as usize]
    }

    /// The node that computes a value.
    pub(super) fn producer(&self, value: ValueId) -> NodeId {
        self.value(value).node
    }

    /// For each value whether it is in `open`, or is computed from such a value through nodes that satisfy `passes`.
    pub(super) fn reached(&self, mut open: Vec<ValueId>, passes: impl Fn(NodeId) -> bool) -> Vec<bool> {
        let mut is_reached = vec![false; self.values.len()];
        let mut is_passed = vec![false; self.nodes.len()];
        while let Some(value) = open.pop() {
            if !std::mem::replace(&mut is_reached[value as usize], true) {
                let users = self.users[value as usize].iter().filter(|&&user| passes(user));
                let users = users.filter(|&&user| !std::mem::replace(&mut is_passed[user as usize], true));
                open.extend(users.flat_map(|&user| self.node(user).results()));
            }
        }
        is_reached
    }

    /// For each node whether a product is computed from its result.
    pub(super) fn leads_to_product(&self) -> Vec<bool> {
        let mut leads = vec![false; self.nodes.len()];
        for (idx, node) in self.nodes.iter().enumerate().rev() {
            let mut users = node.results().flat_map(|value| &self.users[value as usize]);
            leads[idx] = users.any(|&user| self.node(user).class() == Some(Class::Allow) || leads[user as usize]);
        }
        leads
    }

    /// For each node whether it comes from a node that `begins`, through arrays at least as large as its own result,
    /// so that nothing was summed between. `begins` returns `Some(true)` for a node that begins, `Some(false)` for one
    /// that passes such an array on, and `None` for one that ends it.
    pub(super) fn of_arrays(&self, begins: impl Fn(NodeId) -> Option<bool>) -> Vec<bool> {
        let mut is_passed_on = vec![false; self.nodes.len()];
        for (idx, node) in self.nodes.iter().enumerate() {
            let n_elements = |value: ValueId| self.value(value).n_elements;
            let n_results = node.results().map(n_elements).max().unwrap_or(0);
            let is_whole =
                |&value: &ValueId| is_passed_on[self.producer(value) as usize] && n_elements(value) >= n_results;
            is_passed_on[idx] = match begins(idx as NodeId) {
                Some(true) => true,
                Some(false) => node.operands.iter().any(is_whole),
                None => false,
            };
        }
        is_passed_on
    }

    /// The region's parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = ValueId> {
        self.nodes.iter().filter(|node| node.kind == NodeKind::Parameter).flat_map(Node::results)
    }

    /// The instruction of a node.
    pub(super) fn instr(&self, node: &Node) -> &'m Instruction {
        self.module.comp(self.frames[node.frame as usize].comp).instr(node.instr)
    }

    /// Adds a computation, whose parameters are `arguments` unless it is the region itself, and returns its result.
    fn add_frame(&mut self, comp: CompId, arguments: Option<&[Vec<ValueId>]>, classes: &Classes<'_>) -> Vec<ValueId> {
        let frame = self.frames.len() as FrameId;
        let n = self.module.comp(comp).instructions.len();
        self.frames.push(Frame {
            comp,
            values: Vec::with_capacity(n),
            nodes: Vec::with_capacity(n),
            calls: Vec::new(),
            starts: BTreeMap::new(),
        });
        for id in self.module.comp(comp).ids() {
            let (node, values) = self.add_instruction(frame, id, arguments, classes);
            self.frames[frame as usize].values.push(values);
            self.frames[frame as usize].nodes.push(node);
        }
        self.frames[frame as usize].values[self.module.comp(comp).root.idx()].clone()
    }

    /// Whether a callee may be followed; if so, its room is subtracted.
    fn makes_room(&mut self, comp: CompId) -> bool {
        let size = |instr: &Instruction| 1 + instr.shape.leaves().len();
        let room: usize = self.module.comp(comp).instructions.iter().map(size).sum();
        let left = self.call_room.checked_sub(EMPTY_CALLEE + room);
        self.call_room = left.unwrap_or(self.call_room);
        left.is_some()
    }

    /// Adds an instruction; returns its node (the first if it has several) and its values.
    fn add_instruction(
        &mut self,
        frame: FrameId,
        id: InstrId,
        arguments: Option<&[Vec<ValueId>]>,
        classes: &Classes<'_>,
    ) -> (Option<NodeId>, Vec<ValueId>) {
        let instr = self.module.comp(self.frames[frame as usize].comp).instr(id);
        let values_of =
            |graph: &Dataflow<'_>, operand: InstrId| graph.frames[frame as usize].values[operand.idx()].clone();
        match (&instr.op, arguments) {
            (Op::Parameter { number, .. }, Some(arguments)) => {
                return (None, arguments[*number as usize].clone());
            }
            (Op::Tuple, _) => {
                return (None, instr.operands.iter().flat_map(|&operand| values_of(self, operand)).collect());
            }
            (Op::GetTupleElement { index }, _) => return (None, self.element(frame, instr, *index)),
            (Op::Call { to_apply }, _) if self.makes_room(*to_apply) => {
                let arguments: Vec<Vec<ValueId>> =
                    instr.operands.iter().map(|&operand| values_of(self, operand)).collect();
                let callee = self.frames.len() as FrameId;
                let result = self.add_frame(*to_apply, Some(&arguments), classes);
                self.frames[frame as usize].calls.push((id, callee));
                return (None, result);
            }
            (Op::OptimizationBarrier | Op::Unary(UnaryOp::Copy), _) => {
                // One node per value, as their dtypes may differ.
                let operands = values_of(self, instr.operands[0]);
                let leaves = instr.shape.leaves();
                let nodes: Vec<NodeId> = (operands.iter().zip(leaves))
                    .map(|(&operand, leaf)| {
                        self.add_node(frame, id, vec![operand], std::slice::from_ref(&leaf), classes)
                    })
                    .collect();
                let values = nodes.iter().flat_map(|&node| self.node(node).results());
                return (nodes.first().copied(), values.collect());
            }
            _ => {}
        }
        let operands = instr.operands.iter().flat_map(|&operand| values_of(self, operand)).collect();
        let node = self.add_node(frame, id, operands, &instr.shape.leaves(), classes);
        (Some(node), self.node(node).results().collect())
    }

    /// The values of element `index` of the tuple an instruction reads.
    fn element(&mut self, frame: FrameId, instr: &Instruction, index: i64) -> Vec<ValueId> {
        let frame = &mut self.frames[frame as usize];
        let tuple = instr.operands[0];
        let computation = self.module.comp(frame.comp);
        // Computed once for all elements that are taken from this tuple.
        let starts = frame.starts.entry(tuple).or_insert_with(|| {
            let elements = computation.instr(tuple).shape.as_tuple().unwrap_or_default();
            let ends = elements.iter().scan(0, |end, element| {
                *end += element.leaves().len();
                Some(*end)
            });
            [0].into_iter().chain(ends).collect()
        });
        frame.values[tuple.idx()][starts[index as usize]..starts[index as usize + 1]].to_vec()
    }

    /// Adds a node, unless there is one with an equal expression.
    fn add_node(
        &mut self,
        frame: FrameId,
        id: InstrId,
        operands: Vec<ValueId>,
        results: &[&Shape],
        classes: &Classes<'_>,
    ) -> NodeId {
        let instr = self.module.comp(self.frames[frame as usize].comp).instr(id);
        let (kind, because) = self.kind(instr, &operands, results, classes);
        let decided = classes.decided(instr);
        let hash = self.expressions.hash(self.module, instr, &operands);
        let is_same = |&node: &NodeId| {
            let earlier = self.node(node);
            let other = Expression { instr: self.instr(earlier), operands: &earlier.operands };
            (&earlier.kind, &earlier.because, earlier.decided) == (&kind, &because, decided)
                && self.expressions.are_equal(self.module, other, Expression { instr, operands: &operands })
        };
        let same = hash.and_then(|hash| self.expressions.candidates(hash).find(is_same));
        // A constant is written in the dtype of each reader.
        let is_constant = match &instr.op {
            Op::Constant(_) => true,
            Op::Broadcast { .. } => matches!(self.instr(self.node(self.producer(operands[0]))).op, Op::Constant(_)),
            _ => false,
        };
        match same {
            Some(node) if is_constant => {
                let (value, first) = (self.values.len() as ValueId, self.node(node).first_result);
                self.expressions.equate(value, first);
            }
            Some(node) => {
                self.expressions.also_read(&operands, node);
                return node;
            }
            None => {}
        }
        let hash = hash.filter(|_| same.is_none());
        let of_all = |property: fn(&Value) -> bool| {
            let mut floats = operands.iter().map(|&v| self.value(v)).filter(|v| v.is_f32()).peekable();
            floats.peek().is_some() && floats.all(property)
        };
        let (is_exact, is_zero) = match (&kind, &instr.op) {
            (NodeKind::Constant, Op::Constant(value)) => (narrow::is_exact(value, self.low), narrow::is_zero(value)),
            (NodeKind::FromLow | NodeKind::FromExact, _) => (true, false),
            (NodeKind::Op(Class::Clear), _) => (of_all(|value| value.is_exact), of_all(|value| value.is_zero)),
            _ => (false, false),
        };
        let is_of_data = match &instr.op {
            Op::Constant(_) | Op::Iota { .. } => true,
            Op::Parameter { number, .. } if self.frames[frame as usize].comp == self.module.entry => {
                classes.policy().data.iter().any(|&data| data as i64 == *number)
            }
            Op::Parameter { .. } | Op::Opaque(_) | Op::While { .. } | Op::Conditional(_) => false,
            Op::CustomCall(_) if !is_placement(&instr.op) => false,
            _ => !operands.is_empty() && operands.iter().all(|&value| self.value(value).is_data),
        };
        let node = self.nodes.len() as NodeId;
        hash.into_iter().for_each(|hash| self.expressions.add(hash, node));
        let first_result = self.values.len() as ValueId;
        self.values.extend(results.iter().map(|shape| Value {
            node,
            dtype: shape.dtype(),
            n_elements: shape.as_array().map_or(0, |array| array.n_elements()),
            is_exact,
            is_zero,
            is_data: is_of_data || shape.dtype().is_some_and(|dtype| dtype.is_integer() || dtype == DType::Pred),
        }));
        if results.is_empty() {
            // A branch that only has effects has no result; code that looks at the first result finds a value without
            // dtype and readers.
            let nothing = Value { node, dtype: None, n_elements: 0, is_exact: false, is_zero: false, is_data: false };
            self.values.push(nothing);
        }
        let n_results = results.len() as u32;
        let sums = self.form(instr, &operands) != DotForm::Multiply;
        let gives_f32 = sums && classes.sum_in_f32(self.module, &instr.op) == DeviceSum::Own;
        let added = Node { frame, instr: id, kind, because, decided, gives_f32, operands, first_result, n_results };
        self.nodes.push(added);
        node
    }

    fn kind(
        &self,
        instr: &Instruction,
        operands: &[ValueId],
        results: &[&Shape],
        classes: &Classes<'_>,
    ) -> (NodeKind, Because) {
        let by_op = |kind| (kind, Because::Op);
        let is_f32 = |shape: &&Shape| shape.dtype() == Some(DType::F32);
        let has_f32 = results.iter().any(is_f32) || operands.iter().any(|&v| self.value(v).is_f32());
        match &instr.op {
            Op::Parameter { .. } => return by_op(NodeKind::Parameter),
            _ if !has_f32 => return by_op(NodeKind::Fixed("it holds no f32")),
            Op::Constant(Literal::Array { .. }) => return by_op(NodeKind::Constant),
            Op::Constant(Literal::Tuple(_) | Literal::Token) => {
                return by_op(NodeKind::Fixed("it is a constant tuple"));
            }
            Op::Convert => {
                let from = operands.first().and_then(|&v| self.value(v).dtype);
                let to = instr.shape.dtype();
                match (from, to) {
                    (Some(DType::F32), Some(DType::F32)) => {}
                    (Some(DType::F32), Some(to)) if to == self.low => return by_op(NodeKind::ToLow),
                    (Some(DType::F32), _) => return by_op(NodeKind::FromF32),
                    (Some(from), _) if from == self.low => return by_op(NodeKind::FromLow),
                    (Some(DType::Pred | DType::S8 | DType::U8), _) => return by_op(NodeKind::FromExact),
                    _ => return by_op(NodeKind::Fixed("f32 is converted to here, by a rounding of its own")),
                }
            }
            Op::Iota { .. } => return by_op(NodeKind::Fixed("it counts further than a narrow dtype does")),
            Op::Call { .. } => return by_op(NodeKind::Fixed("the module has too many call sites to follow each")),
            _ => {}
        }
        if let Some(why) = self.why_fixed(instr, operands, results) {
            return by_op(NodeKind::Fixed(why));
        }
        let arrays = operands.iter().map(|&v| (self.value(v).is_f32(), self.value(v).n_elements));
        let arrays = arrays.chain(results.iter().map(|r| (is_f32(r), r.as_array().map_or(0, |a| a.n_elements()))));
        let n_elements = arrays.filter(|(is_f32, _)| *is_f32).map(|(_, n)| n).max().unwrap_or(0);
        let (class, because) = classes.classify(self.module, instr, n_elements, self.form(instr, operands));
        let is_of_data = operands.iter().all(|&value| self.value(value).is_data);
        if class == Class::Allow && because == Because::Op && is_of_data {
            let why =
                "it multiplies positions, counts, constants or masks alone, and integers past 256 are not all bf16";
            return by_op(NodeKind::Op(Class::Deny { why, spreads: false }));
        }
        let is_lowerable =
            |comp: &CompId| self.module.comp(*comp).instructions.iter().all(|instr| is_retypable(&instr.op));
        if matches!(class, Class::Allow | Class::Infer | Class::Clear) && !instr.op.called().iter().all(is_lowerable) {
            let why = "the computation it applies holds ops that cannot be retyped";
            return by_op(NodeKind::Op(Class::Deny { why, spreads: true }));
        }
        (NodeKind::Op(class), because)
    }

    /// The form of a dot by its sizes; `Product` for any other op.
    pub(super) fn dot_form(&self, node: NodeId) -> DotForm {
        let record = self.node(node);
        self.form(self.instr(record), &record.operands)
    }

    fn form(&self, instr: &Instruction, operands: &[ValueId]) -> DotForm {
        match (&instr.op, operands) {
            (Op::Dot { dims, .. }, &[lhs, rhs]) => {
                dot_form(dims, [lhs, rhs].map(|value| self.value(value).n_elements), &instr.shape)
            }
            _ => DotForm::Product,
        }
    }

    /// Why an instruction cannot be retyped, whatever its class.
    fn why_fixed(&self, instr: &Instruction, operands: &[ValueId], results: &[&Shape]) -> Option<&'static str> {
        let is_other = |dtype: Option<DType>| {
            dtype.is_some_and(|dtype| (dtype.is_float() && dtype != DType::F32) || dtype.is_complex())
        };
        let is_dot = matches!(instr.op, Op::Dot { .. });
        let operand_mixes = |&v: &ValueId| match self.value(v).dtype {
            // A product of f32 and the narrow dtype is lowered by rounding its f32 operand. One operand of a lookup is
            // of integers, too; integer operands of a product would be rounded with the floats.
            dtype if is_dot => dtype != Some(DType::F32) && dtype != Some(self.low),
            dtype => is_other(dtype),
        };
        if is_placement(&instr.op) && (operands.len(), results.len()) != (1, 1) {
            return Some("it places several arrays over devices at once");
        }
        let mixes = operands.iter().any(operand_mixes) || results.iter().any(|shape| is_other(shape.dtype()));
        keeps_dtypes(&instr.op).or(mixes.then_some("it mixes f32 with another dtype"))
    }
}

/// Exponentials within a sigmoid, 1 / (1 + e^x), that no other op reads. The sigmoid's error is at most that of x,
/// whatever the exponential's, so it is lowered as `logistic` is; a TPU's compiler rewrites it to that.
fn sigmoids(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let is_one = |value: ValueId| {
        let mut node = graph.node(graph.producer(value));
        while let (Op::Broadcast { .. } | Op::Reshape, Some(&operand)) = (&graph.instr(node).op, node.operands.first())
        {
            node = graph.node(graph.producer(operand));
        }
        let Op::Constant(literal) = &graph.instr(node).op else { return false };
        literal.elements::<f32>().is_some_and(|elements| elements.iter().all(|&x| x == 1.0))
    };
    let only_reader = |node: NodeId| match &graph.users[graph.node(node).first_result as usize][..] {
        &[reader] => Some(reader),
        _ => None,
    };
    let is_sigmoid = |&exponential: &NodeId| {
        let record = graph.node(exponential);
        let is_denied = matches!(record.kind, NodeKind::Op(Class::Deny { .. })) && record.because == Because::Op;
        if !is_denied || !matches!(graph.instr(record).op, Op::Unary(UnaryOp::Exp)) {
            return false;
        }
        let Some(sum) = only_reader(exponential) else { return false };
        let (adds, Some(divides)) = (graph.node(sum), only_reader(sum)) else { return false };
        let divides = graph.node(divides);
        let is_sum =
            matches!(graph.instr(adds).op, Op::Binary(BinaryOp::Add)) && adds.operands.iter().any(|&v| is_one(v));
        let is_quotient = matches!(graph.instr(divides).op, Op::Binary(BinaryOp::Divide));
        is_sum && is_quotient && divides.operands[1] == adds.first_result && is_one(divides.operands[0])
    };
    (0..graph.nodes.len() as NodeId).filter(is_sigmoid).collect()
}

/// For each value of a loop's body whether it is computed from a result of a node that `begins`, or from an array of
/// the state that `is_source`, in the same step or in an earlier one.
pub(super) fn reached(
    body: &Dataflow<'_>,
    state: &[ValueId],
    begins: impl Fn(NodeId) -> bool,
    is_source: impl Fn(usize) -> bool,
) -> Vec<bool> {
    let mut is_reached = vec![false; body.values.len()];
    let mut is_passed = vec![false; body.nodes.len()];
    // Results of the body, with the arrays of the next step's state that each becomes.
    let mut becomes: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for (&before, &after) in state.iter().zip(&body.results) {
        becomes.entry(after).or_default().push(before);
    }
    let of_nodes = (0..body.nodes.len() as NodeId).filter(|&node| begins(node));
    let mut open: Vec<ValueId> = of_nodes.flat_map(|node| body.node(node).results()).collect();
    open.extend(state.iter().enumerate().filter(|(leaf, _)| is_source(*leaf)).map(|(_, &value)| value));
    while let Some(value) = open.pop() {
        if std::mem::replace(&mut is_reached[value as usize], true) {
            continue;
        }
        let users = body.users[value as usize].iter();
        let users = users.filter(|&&user| !std::mem::replace(&mut is_passed[user as usize], true));
        open.extend(users.flat_map(|&user| body.node(user).results()));
        open.extend(becomes.get(&value).into_iter().flatten().filter(|&&before| body.value(before).is_f32()));
    }
    is_reached
}
