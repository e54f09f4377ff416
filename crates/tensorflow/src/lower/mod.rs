//! Lowers a graph to HLO, node by node, in topological order.
//!
//! Every node is lowered by the rule of its op ([`ops`]). A variable is a parameter of the module and, if it is assigned, a
//! result; in between, its value is the last one assigned. A read that is not ordered after an assignment comes before it.
//! Values of a branch that may not be taken carry the conditions under which they are computed (their *gates*): a `Merge`
//! selects by them, and an assignment keeps the old value where they do not hold.
//!
//! Source: the dataflow semantics of TensorFlow's executor; how TensorFlow's XLA bridge lowers ops (`tf2xla`).

mod call;
mod carried;
mod constant;
mod flow;
mod frames;
mod list;
mod loops;
mod ops;
mod order;
mod program;
#[cfg(test)]
mod tests;
mod trips;

pub use ops::known_ops;
pub use program::{InputInfo, Lowered, ResultInfo, Roles, lower};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use self::call::Call;
use self::carried::Store;
use self::constant::{Known, Memory};
use self::frames::Frames;
use self::list::{Handle, List};
use super::dtypes;
use super::error::{GraphError, Problem};
use super::graph::{Body, Graph};
use super::host::{is_left_out, takes_batch};
use super::index_map::{IndexMap, IndexSet};
use super::node::{Edge, Node};
use bf16scope_hlo::{ArrayShape, CompId, DType, Emitter, InstrId, Metadata, POISON};

/// The deepest nesting of function calls.
const MAX_CALLS: usize = 48;
/// Nodes that are lowered at most; a function's nodes count once for each call.
const MAX_NODES: usize = 1_000_000;

/// The value of a node's output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// An array of the computation that is being written.
    Array(InstrId),
    /// A variable: a resource or a reference.
    Variable(usize),
    /// A list of arrays.
    List(Rc<List>),
    /// A stack's handle: an index into [`Lowering::stores`].
    Store(usize),
    /// A `TensorArray`'s handle; the flow is its value.
    Handle(Rc<Handle>),
    /// A value that no device program reads: text, an iterator, or no value.
    Nothing,
}

/// The conditions under which a value is computed: predicates and their required values.
pub(crate) type Gates = Rc<Vec<(InstrId, bool)>>;

/// A variable while the graph is lowered.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: String,
    pub shape: ArrayShape,
    /// Its value in the computation that is being written.
    pub value: Option<InstrId>,
    pub is_assigned: bool,
}

/// The values of a body that is being lowered: the graph's, or that of a function call.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub values: IndexMap<Edge, Value>,
    pub gates: IndexMap<usize, Gates>,
    /// The predicates of switches.
    pub switches: IndexMap<usize, InstrId>,
    pub done: IndexSet<usize>,
}

/// A graph that is being lowered.
pub(crate) struct Lowering<'g> {
    pub graph: &'g Graph,
    pub e: Emitter,
    pub variables: Vec<Variable>,
    pub variable_of: BTreeMap<String, usize>,
    /// The parameters of inputs: for each node one for each of its outputs.
    pub inputs: IndexMap<*const Node, Vec<InstrId>>,
    /// The number of ops that were left out, by op.
    pub left_out: BTreeMap<String, usize>,
    /// The state of the random number generator, a variable of ours, if an op draws from it.
    pub random: Option<usize>,
    /// Stacks.
    pub stores: Vec<Store>,
    /// The number of `TensorArray`s.
    pub n_arrays: usize,
    /// The largest values of loop counters after their loops.
    counts: IndexMap<(CompId, InstrId), i64>,
    /// Elements of loop states at which `TensorArray`s are written beyond their end.
    grown: Vec<(CompId, usize)>,
    memory: RefCell<Memory>,
    n_calls: usize,
    n_nodes: usize,
}

impl<'g> Lowering<'g> {
    /// The numbers of a value, if they are known at compile time.
    pub(crate) fn known(&self, id: InstrId) -> Option<Rc<Known>> {
        let comp = self.e.comp();
        self.e.with_module(|module| self.memory.borrow_mut().value(module, comp, id))
    }

    /// The error of a node.
    pub(crate) fn error(&self, node: &Node, problem: Problem) -> GraphError {
        GraphError::Node {
            file: self.graph.file.clone(),
            node: node.name.clone(),
            op: node.op.clone(),
            place: node.place(),
            message: problem.message,
            help: problem
                .help
                .unwrap_or_else(|| "check the graph: TensorFlow itself runs it only with such inputs".to_string()),
        }
    }

    /// Lowers the nodes of a body that `targets` need; their values are in `scope` afterwards.
    fn run(&mut self, body: &'g Body, frames: &Frames, scope: &mut Scope, targets: &[usize]) -> Result<(), GraphError> {
        let order = order::order(body, frames, scope, targets)
            .map_err(|node| self.error(&body.nodes[node], Problem::new("its inputs depend on itself")))?;
        for node in order {
            self.node(body, frames, scope, node)?;
        }
        Ok(())
    }

    fn node(&mut self, body: &'g Body, frames: &Frames, scope: &mut Scope, idx: usize) -> Result<(), GraphError> {
        let node = &body.nodes[idx];
        self.n_nodes += 1;
        if self.n_nodes > MAX_NODES {
            let problem =
                Problem::new(format!("its functions are more than {MAX_NODES} nodes, each as often as it is called"));
            return Err(self.error(node, problem));
        }
        if node.op == "Exit" || node.op == "RefExit" {
            return self.exit(body, frames, scope, idx);
        }
        let inputs: Vec<Value> =
            node.inputs.iter().map(|edge| scope.values.get(edge).cloned().unwrap_or(Value::Nothing)).collect();
        if node.op == "Merge" || node.op == "RefMerge" {
            return self.merge(scope, node, idx);
        }
        let mut gates = gates_of(scope, node);
        self.e.set_metadata(metadata(node));
        if matches!(node.op.as_str(), "Switch" | "RefSwitch") && !frames.is_loop_switch(idx) {
            return self.switch(scope, node, idx, gates);
        }
        let outputs = match self.inputs.get(&std::ptr::from_ref(node)) {
            Some(parameters) => parameters.iter().copied().map(Value::Array).collect(),
            None => self.outputs(node, inputs, &gates)?,
        };
        if let Some(error) = self.e.error() {
            // TensorFlow runs what only lacks a constant of its dtype here.
            let not_lowered = (error.error.rule == "constant/dtype")
                .then(|| "it is not lowered here in this dtype: cut the graph behind it".to_string());
            let help = error.error.help.clone().or(not_lowered);
            let problem = Problem { message: format!("{}: {}", error.opcode, error.error.message), help };
            return Err(self.error(node, problem));
        }
        // A reference to a variable stands for its value, which is read under the conditions of its node.
        let is_reference = node.op.ends_with("Identity") && node.type_number("T") != Some(dtypes::RESOURCE)
            || node.op.starts_with("Assign") && node.kind("T").is_some();
        let is_handle = |value: &Value| match value {
            Value::Variable(_) => !is_reference,
            Value::Store(_) | Value::Handle(_) => true,
            _ => false,
        };
        if outputs.iter().all(is_handle) && !outputs.is_empty() {
            // A handle is valid in every branch; operations on it are gated by their control inputs.
            gates = if node.controls.is_empty() { Rc::default() } else { gates };
        }
        for (output, value) in outputs.into_iter().enumerate() {
            scope.values.insert(Edge { node: idx, output }, value);
        }
        if !gates.is_empty() {
            scope.gates.insert(idx, gates);
        }
        scope.done.insert(idx);
        Ok(())
    }

    /// The values of a node's outputs.
    fn outputs(&mut self, node: &'g Node, inputs: Vec<Value>, gates: &Gates) -> Result<Vec<Value>, GraphError> {
        if let Some(function) = self.graph.functions.get(&node.op) {
            return self.call(node, function, inputs, gates);
        }
        if is_left_out(&node.op) {
            *self.left_out.entry(node.op.clone()).or_default() += 1;
            return Ok(Vec::new());
        }
        let Some(rule) = ops::rule(&node.op) else { return Err(self.unknown(node)) };
        let mut call = Call { lowering: self, node, inputs, gates: gates.clone() };
        match rule(&mut call) {
            Ok(values) => Ok(values),
            // The emitter's own error is better: the rule saw only poison.
            Err(_) if self.e.error().is_some() => Ok(vec![Value::Array(POISON)]),
            Err(problem) => Err(self.error(node, problem)),
        }
    }

    fn unknown(&self, node: &Node) -> GraphError {
        let help = match ops::nearest(&node.op) {
            _ if takes_batch(&node.op) && program::input_shapes(node).is_some() => {
                "a batch is an input where one node takes it once: outside of branches, conditions of loops and functions \
                 that are called twice; take it there, and hand it in"
                    .to_string()
            }
            Some(why) => why.to_string(),
            None => "leave it out of what is asked for, or freeze a graph without it; an input pipeline runs on the host, so \
                     cut the graph behind it"
                .to_string(),
        };
        GraphError::UnknownOp {
            file: self.graph.file.clone(),
            node: node.name.clone(),
            place: node.place(),
            op: node.op.clone(),
            help,
        }
    }

    /// The dtype and dims of a value that is an array.
    pub(crate) fn array_shape(&self, id: InstrId) -> ArrayShape {
        self.e.array(id).unwrap_or_else(|| ArrayShape::new(DType::F32, []))
    }
}

/// The conditions of a node: those of its inputs and of its control inputs.
fn gates_of(scope: &Scope, node: &Node) -> Gates {
    let input_gates = node.inputs.iter().map(|edge| gates_of_edge(scope, *edge));
    let control_gates = node.controls.iter().filter_map(|node| scope.gates.get(node).cloned());
    let mut all: Vec<Gates> = input_gates.chain(control_gates).filter(|gates| !gates.is_empty()).collect();
    all.dedup_by(|a, b| Rc::ptr_eq(a, b));
    match &all[..] {
        [] => Rc::default(),
        [one] => one.clone(),
        _ => {
            let mut gates: Vec<(InstrId, bool)> = all.iter().flat_map(|gates| gates.iter().copied()).collect();
            gates.sort();
            gates.dedup();
            Rc::new(gates)
        }
    }
}

/// The conditions of an output: those of its node, and for a switch its predicate with the output's index.
fn gates_of_edge(scope: &Scope, edge: Edge) -> Gates {
    let gates = scope.gates.get(&edge.node).cloned().unwrap_or_default();
    let Some(pred) = scope.switches.get(&edge.node) else { return gates };
    let mut gates = (*gates).clone();
    gates.push((*pred, edge.output == 1));
    gates.sort();
    gates.dedup();
    Rc::new(gates)
}

/// The metadata of a node's instructions.
fn metadata(node: &Node) -> Metadata {
    let place = node.source().and_then(|source| source.rsplit_once(':'));
    let (source_file, source_line) =
        place.map_or((String::new(), 0), |(file, line)| (file.to_string(), line.parse().unwrap_or(0)));
    Metadata { op_type: node.op.clone(), op_name: node.name.clone(), source_file, source_line, ..Metadata::default() }
}
