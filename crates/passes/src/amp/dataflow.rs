//! The dataflow graph of a region, with one node per op and one value per array: the form on which `assign` works.
//!
//! A region is a computation whose parameters and result keep their types: the entry, the body of a loop, the branch
//! of a conditional. Calls inside a region are followed once per call site, so dtypes are assigned to a callee
//! separately for each caller. Tuples, their elements and the parameters of callees are aliases of values. A [`Node`]
//! is an op on values; nodes are ordered so that operands come first.

use super::decided::StoredAs;
use super::equal_expressions::Expressions;
pub(super) use super::ids::{FrameId, NodeId, ValueId};
use super::policy::{Because, Classes};
use bf16scope_hlo::ops::decisions::{
    DotForm, calls_regions, dot_form, is_exact_on_integers, is_placement, is_retypable, keeps_dtypes, list_names,
};
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{CompId, DType, InstrId, Instruction, Literal, Module, Op, Shape};
use std::collections::BTreeMap;
use std::ops::Range;

/// The most instructions and values of callees that calls may add to all regions of a module together; a call that
/// would add more is not followed. A chain of calls, each twice, has 2^n of them.
pub(super) const CALL_ROOM: usize = 1_000_000;
/// The most ops behind each other by which constant integers are computed.
const MAX_INTEGER_OPS: u32 = 6;
/// The most ops between a logarithm and a product that adds it up.
const MAX_LOGARITHM_OPS: u32 = 12;
/// The room that an empty callee takes.
const EMPTY_CALLEE: usize = 16;

/// A value.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub node: NodeId,
    /// Its dtype in the original module.
    pub dtype: Option<DType>,
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

    /// Whether it is f32, and more than a single number.
    pub(super) fn is_f32_array(&self) -> bool {
        self.is_f32() && self.n_elements > 1
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
    pub frame: FrameId,
    /// The instruction; the first of several equal ones.
    pub instr: InstrId,
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
    pub n_results: u32,
}

impl Node {
    pub(super) fn results(&self) -> Range<ValueId> {
        self.first_result..self.first_result + self.n_results
    }

    pub(super) fn class(&self) -> Option<Class> {
        if let NodeKind::Op(class) = self.kind { Some(class) } else { None }
    }

    pub(super) fn is_product(&self) -> bool {
        self.kind == NodeKind::Op(Class::Allow)
    }

    pub(super) fn is_clear(&self) -> bool {
        self.kind == NodeKind::Op(Class::Clear)
    }

    /// Whether it may be lowered between products: its class is infer or clear.
    pub(super) fn is_soft(&self) -> bool {
        matches!(self.kind, NodeKind::Op(Class::Infer | Class::Clear))
    }

    /// Whether a way between two products may go through it: its class is infer, clear or deny.
    pub(super) fn passes(&self) -> bool {
        matches!(self.kind, NodeKind::Op(Class::Infer | Class::Clear | Class::Deny { .. }))
    }

    /// Whether an operand is marked.
    pub(super) fn reads(&self, is_marked: &[bool]) -> bool {
        self.operands.iter().any(|&value| is_marked[value as usize])
    }

    /// Whether a result is marked.
    pub(super) fn gives(&self, is_marked: &[bool]) -> bool {
        self.results().any(|value| is_marked[value as usize])
    }

    /// Whether its class is deny, by its op alone.
    pub(super) fn is_denied_by_op(&self) -> bool {
        matches!(self.kind, NodeKind::Op(Class::Deny { .. })) && self.because == Because::Op
    }
}

/// A computation at one call site.
#[derive(Clone, Debug)]
pub(super) struct Frame {
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
    /// The room that calls had ([`CALL_ROOM`]).
    room: usize,
    /// The room that calls took.
    pub taken_room: usize,
    /// Whether a call was not followed, as too little room was left.
    is_cut: bool,
    /// The losses among the results, by number, if the policy names them.
    pub losses: Option<Vec<usize>>,
    expressions: Expressions<'m>,
}

impl<'m> Dataflow<'m> {
    /// Builds the graph of the region `comp` of a verified module, to which calls may add `room`.
    pub(super) fn build(classes: &Classes<'m>, comp: CompId, room: usize) -> Dataflow<'m> {
        let mut graph = Dataflow {
            module: classes.module,
            low: classes.policy.dtype.dtype(),
            values: Vec::new(),
            nodes: Vec::new(),
            users: Vec::new(),
            frames: Vec::new(),
            results: Vec::new(),
            is_result: Vec::new(),
            room,
            taken_room: 0,
            is_cut: false,
            losses: classes.policy.losses.clone().filter(|_| comp == classes.module.entry),
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
        for (value, readers) in expressions.readers {
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
                let nodes = &self.frames[node.frame as usize].nodes;
                let waits_for = instr.control_predecessors.iter().filter_map(|id| nodes[id.idx()]);
                self.makers(idx as NodeId).chain(waits_for).for_each(|node| is_live[node as usize] = true);
            }
        }
        is_live
    }

    /// Whether the graph would be the same if calls had this room.
    pub(super) fn fits(&self, room: usize) -> bool {
        if self.is_cut { room == self.room } else { room >= self.taken_room }
    }

    pub(super) fn value(&self, value: ValueId) -> &Value {
        &self.values[value as usize]
    }

    pub(super) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node as usize]
    }

    /// All nodes; operands come first.
    pub(super) fn node_ids(&self) -> Range<NodeId> {
        0..self.nodes.len() as NodeId
    }

    /// The op of a node.
    pub(super) fn op(&self, node: NodeId) -> &'m Op {
        &self.instr(self.node(node)).op
    }

    /// The node that computes a value.
    pub(super) fn producer(&self, value: ValueId) -> NodeId {
        self.value(value).node
    }

    /// Whether a value is a parameter of the region.
    pub(super) fn is_parameter(&self, value: ValueId) -> bool {
        self.node(self.producer(value)).kind == NodeKind::Parameter
    }

    /// The nodes that compute the operands of a node.
    pub(super) fn makers(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.node(node).operands.iter().map(move |&value| self.producer(value))
    }

    /// The nodes that read results of a node.
    pub(super) fn readers(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.node(node).results().flat_map(move |value| self.users[value as usize].iter().copied())
    }

    /// The only node that reads results of a node.
    pub(super) fn only_reader(&self, node: NodeId) -> Option<NodeId> {
        let mut readers = self.readers(node);
        let first = readers.next()?;
        readers.all(|reader| reader == first).then_some(first)
    }

    /// Whether a node computes a product, or calls regions that may.
    pub(super) fn multiplies(&self, node: &Node) -> bool {
        node.is_product() || calls_regions(&self.instr(node).op)
    }

    /// The value from which nodes that satisfy `passes` computed `value`, each by its first operand.
    pub(super) fn origin(&self, mut value: ValueId, passes: impl Fn(&Node, ValueId) -> bool) -> ValueId {
        loop {
            let maker = self.node(self.producer(value));
            match maker.operands.first() {
                Some(&operand) if passes(maker, operand) => value = operand,
                _ => return value,
            }
        }
    }

    /// The constant that a value holds, behind ops that place it.
    pub(super) fn constant(&self, value: ValueId) -> Option<&'m Literal> {
        let places = |maker: &Node, _| matches!(self.instr(maker).op, Op::Broadcast { .. } | Op::Reshape);
        let Op::Constant(literal) = self.op(self.producer(self.origin(value, places))) else { return None };
        Some(literal)
    }

    /// Whether a list of a policy may hold the op of a node by this name.
    pub(super) fn is_called(&self, node: NodeId, name: &str) -> bool {
        list_names(self.module, self.op(node)).iter().any(|op_name| op_name == name)
    }

    /// The dims of an operand of a node's instruction.
    pub(super) fn operand_dims(&self, node: NodeId, nth: usize) -> &'m [i64] {
        let record = self.node(node);
        let operand = self.instr(record).operands[nth];
        self.module.comp(self.frames[record.frame as usize].comp).instr(operand).shape.dims()
    }

    /// The region's parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = ValueId> {
        self.nodes.iter().filter(|node| node.kind == NodeKind::Parameter).flat_map(Node::results)
    }

    /// The instruction of a node.
    pub(super) fn instr(&self, node: &Node) -> &'m Instruction {
        self.module.comp(self.frames[node.frame as usize].comp).instr(node.instr)
    }

    /// The dims of a node's result, if that is one array.
    pub(super) fn dims(&self, node: &Node) -> Option<&'m Vec<i64>> {
        self.instr(node).shape.as_array().map(|array| &array.dims)
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

    /// Whether a callee may be followed; if so, it takes its room.
    fn makes_room(&mut self, comp: CompId) -> bool {
        let size = |instr: &Instruction| 1 + instr.shape.leaves().len();
        let needed = EMPTY_CALLEE + self.module.comp(comp).instructions.iter().map(size).sum::<usize>();
        let is_followed = needed <= self.room - self.taken_room;
        self.taken_room += if is_followed { needed } else { 0 };
        self.is_cut |= !is_followed;
        is_followed
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
        let expression = self.expressions.expression(self.module, instr, &operands, &(&kind, &because, decided));
        let same = expression.as_ref().and_then(|expression| self.expressions.nodes.get(expression)).copied();
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
        let of_all = |property: fn(&Value) -> bool| {
            let mut floats = operands.iter().map(|&v| self.value(v)).filter(|v| v.is_f32()).peekable();
            floats.peek().is_some() && floats.all(property)
        };
        let is_integer = |&v: &ValueId| {
            let is_constant = matches!(self.instr(self.node(self.producer(v))).op, Op::Constant(_));
            is_constant && self.rounds_integers(v, 1) == Some(false)
        };
        let (is_exact, is_zero) = match (&kind, &instr.op) {
            (NodeKind::Constant, Op::Constant(value)) => (value.is_exact_in(self.low), holds(value, 0.0)),
            (NodeKind::FromLow | NodeKind::FromExact, _) => (true, false),
            (NodeKind::Fixed(_), Op::Convert) => (operands.iter().all(is_integer), false),
            (NodeKind::Op(Class::Clear), _) => (of_all(|value| value.is_exact), of_all(|value| value.is_zero)),
            _ => (false, false),
        };
        let is_of_data = match &instr.op {
            Op::Constant(_) | Op::Iota { .. } => true,
            Op::Parameter { number, .. } if self.frames[frame as usize].comp == self.module.entry => {
                classes.policy.data.iter().any(|&data| data as i64 == *number)
            }
            Op::Parameter { .. } | Op::Opaque(_) | Op::While { .. } | Op::Conditional(_) => false,
            Op::CustomCall(_) if !is_placement(&instr.op) => false,
            _ => !operands.is_empty() && operands.iter().all(|&value| self.value(value).is_data),
        };
        let node = self.nodes.len() as NodeId;
        let expression = expression.filter(|_| same.is_none());
        self.expressions.nodes.extend(expression.map(|expression| (expression, node)));
        let first_result = self.values.len() as ValueId;
        // A branch that only has effects has no result; code that looks at the first result finds a value without
        // dtype and readers.
        let leaves: &[&Shape] = if results.is_empty() { &[&Shape::Token] } else { results };
        self.values.extend(leaves.iter().map(|shape| Value {
            node,
            dtype: shape.dtype(),
            n_elements: shape.as_array().map_or(0, |array| array.n_elements()),
            is_exact,
            is_zero,
            is_data: is_of_data || shape.dtype().is_some_and(|dtype| dtype.is_integer() || dtype == DType::Pred),
        }));
        let n_results = results.len() as u32;
        let sums = self.form(instr, &operands) != DotForm::Multiply;
        let gives_f32 = sums && classes.sum_in_f32(&instr.op) == DeviceSum::Own;
        let added = Node { frame, instr: id, kind, because, decided, gives_f32, operands, first_result, n_results };
        self.nodes.push(added);
        node
    }

    /// How lowering treats an instruction, and why.
    fn kind(
        &self,
        instr: &Instruction,
        operands: &[ValueId],
        results: &[&Shape],
        classes: &Classes<'_>,
    ) -> (NodeKind, Because) {
        if let Some(kind) = self.kind_without_class(instr, operands, results) {
            return (kind, Because::Op);
        }
        let sizes = operands.iter().map(|&v| self.value(v)).filter(|v| v.is_f32()).map(|v| v.n_elements);
        let arrays = results.iter().filter(|shape| shape.dtype() == Some(DType::F32)).filter_map(|r| r.as_array());
        let n_elements = sizes.chain(arrays.map(|array| array.n_elements())).max().unwrap_or(0);
        let (class, because) = classes.classify(instr, n_elements, self.form(instr, operands));
        let denied = |why, spreads| (NodeKind::Op(Class::Deny { why, spreads }), Because::Op);
        let is_of_counts = || {
            operands.iter().all(|&value| self.value(value).is_data)
                || operands.iter().any(|&value| self.rounds_integers(value, MAX_INTEGER_OPS) == Some(true))
        };
        if class == Class::Allow && because == Because::Op && is_of_counts() {
            let why =
                "it multiplies positions, counts, constants or masks alone, or by integers past 256: not all are bf16";
            return denied(why, false);
        }
        if class == Class::Allow && because == Because::Op && self.sums_logarithms(instr, operands) {
            return denied("it looks up or adds up logarithms by a mask, as a loss of likelihoods does", false);
        }
        let is_lowerable =
            |comp: &CompId| self.module.comp(*comp).instructions.iter().all(|instr| is_retypable(&instr.op));
        if matches!(class, Class::Allow | Class::Infer | Class::Clear) && !instr.op.called().iter().all(is_lowerable) {
            return denied("the computation it applies holds ops that cannot be retyped", true);
        }
        (NodeKind::Op(class), because)
    }

    /// The kind of an instruction that no class decides.
    fn kind_without_class(&self, instr: &Instruction, operands: &[ValueId], results: &[&Shape]) -> Option<NodeKind> {
        let has_f32 = results.iter().any(|shape| shape.dtype() == Some(DType::F32))
            || operands.iter().any(|&v| self.value(v).is_f32());
        let from = operands.first().and_then(|&v| self.value(v).dtype);
        Some(match &instr.op {
            Op::Parameter { .. } => NodeKind::Parameter,
            _ if !has_f32 => NodeKind::Fixed("it holds no f32"),
            Op::Constant(Literal::Array { .. }) => NodeKind::Constant,
            Op::Constant(Literal::Tuple(_) | Literal::Token) => NodeKind::Fixed("it is a constant tuple"),
            Op::Convert => match (from, instr.shape.dtype()) {
                (Some(DType::F32), Some(DType::F32)) => return None,
                (Some(DType::F32), Some(to)) if to == self.low => NodeKind::ToLow,
                (Some(DType::F32), _) => NodeKind::FromF32,
                (Some(from), _) if from == self.low => NodeKind::FromLow,
                (Some(DType::Pred | DType::S8 | DType::U8), _) => NodeKind::FromExact,
                _ => NodeKind::Fixed("f32 is converted to here, by a rounding of its own"),
            },
            Op::Iota { .. } => NodeKind::Fixed("it counts further than a narrow dtype does"),
            Op::Call { .. } => NodeKind::Fixed("the module has too many call sites to follow each"),
            _ => NodeKind::Fixed(self.why_fixed(instr, operands, results)?),
        })
    }

    /// Whether a dot multiplies logarithms, or sums of these, by zeros and ones or other exact data.
    fn sums_logarithms(&self, instr: &Instruction, operands: &[ValueId]) -> bool {
        let is_mask = |&value: &ValueId| self.value(value).is_data && self.value(value).is_exact;
        let terms = |record: &Node, op: &Op| match op {
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate) => record.operands.clone(),
            _ if record.is_clear() => record.operands.iter().take(1).copied().collect(),
            _ => Vec::new(),
        };
        let is_logarithm = |&value: &ValueId| {
            let mut open = vec![value];
            for _ in 0..MAX_LOGARITHM_OPS {
                let Some(value) = open.pop() else { break };
                let record = self.node(self.producer(value));
                match &self.instr(record).op {
                    Op::Unary(UnaryOp::Log) if self.value(value).is_f32() => return true,
                    op => open.extend(terms(record, op)),
                }
            }
            false
        };
        matches!(instr.op, Op::Dot { .. }) && operands.iter().any(is_mask) && operands.iter().any(is_logarithm)
    }

    /// Whether the narrow dtype would round some of a value's integers, if these are constants and all that it holds.
    fn rounds_integers(&self, value: ValueId, depth: u32) -> Option<bool> {
        let (record, data) = (self.node(self.producer(value)), self.value(value));
        let instr = self.instr(record);
        let past = if self.low == DType::F16 { 2048 } else { 256 };
        let rounds = |operand: &ValueId| self.rounds_integers(*operand, depth - 1);
        match &instr.op {
            _ if !data.is_data || depth == 0 => None,
            Op::Constant(literal) if data.is_f32() => {
                let is_integer = |elements: Vec<f32>| elements.iter().all(|x| x.fract() == 0.0);
                literal.elements::<f32>().is_some_and(is_integer).then_some(!data.is_exact)
            }
            Op::Constant(literal) => {
                literal.elements::<i32>().map(|elements| elements.iter().any(|x| x.unsigned_abs() > past))
            }
            Op::Iota { dimension } => Some(instr.shape.dims()[*dimension as usize] > i64::from(past) + 1),
            // With at most two operands each, six ops have few paths.
            op if is_exact_on_integers(op) && matches!(record.operands.len(), 1 | 2) => {
                let all: Vec<bool> = record.operands.iter().map(rounds).collect::<Option<_>>()?;
                Some(all.contains(&true))
            }
            _ => None,
        }
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

/// Whether each element of an f32 array is this number.
fn holds(literal: &Literal, number: f32) -> bool {
    literal.elements::<f32>().is_some_and(|elements| elements.iter().all(|&x| x == number))
}

/// Exponentials within a sigmoid, 1 / (1 + e^x), that no other op reads. The sigmoid's error is at most that of x,
/// whatever the exponential's, so it is lowered as `logistic` is; a TPU's compiler rewrites it to that.
fn sigmoids(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let is_one = |value: ValueId| graph.constant(value).is_some_and(|literal| holds(literal, 1.0));
    let is_sigmoid = |&exponential: &NodeId| {
        let is_exponential = matches!(graph.op(exponential), Op::Unary(UnaryOp::Exp));
        if !is_exponential || !graph.node(exponential).is_denied_by_op() {
            return false;
        }
        let Some(sum) = graph.only_reader(exponential) else { return false };
        let (adds, Some(divides)) = (graph.node(sum), graph.only_reader(sum)) else { return false };
        let divides = graph.node(divides);
        let is_sum =
            matches!(graph.instr(adds).op, Op::Binary(BinaryOp::Add)) && adds.operands.iter().any(|&v| is_one(v));
        let is_quotient = matches!(graph.instr(divides).op, Op::Binary(BinaryOp::Divide));
        is_sum && is_quotient && divides.operands[1] == adds.first_result && is_one(divides.operands[0])
    };
    graph.node_ids().filter(is_sigmoid).collect()
}
