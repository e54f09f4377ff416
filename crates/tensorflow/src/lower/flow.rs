//! Lowers control flow: v1 branches (`Switch`, `Merge`) by gates, v2 branches as `conditional`, loops as `loops` writes them;
//! function calls are inlined.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::call::Outputs;
use super::carried::{Carried, Form, flat, promoted};
use super::frames::Frames;
use super::list::Join;
use super::{Call, Gates, Lowering, MAX_CALLS, Scope, Value};
use crate::error::{GraphError, Problem, counted};
use crate::graph::{Body, Function, Graph};
use crate::host::takes_batch;
use crate::messages::AttrKind;
use crate::node::{Edge, Node};
use bf16scope_hlo::ops::Conditional;
use bf16scope_hlo::{CompId, Emitter, InstrId, Op, Shape};

/// How often a loop or branch is rewritten at most, until the forms of its carried values no longer change.
pub(super) const MAX_FORMS: usize = 8;

/// A branch's results, and the stores after it.
type Outcome = (Vec<Value>, Vec<Value>);

/// The forms of a branch's results, and of the stores after it.
type Forms = (Vec<Form>, Vec<Form>);

/// Branches as they are written: a computation and an outcome for each.
#[derive(Debug, Default)]
struct Branches {
    comps: Vec<CompId>,
    outcomes: Vec<Outcome>,
}

impl<'g> Lowering<'g> {
    /// The current value of a variable.
    pub(crate) fn read(&self, variable: usize) -> Result<InstrId, Problem> {
        let state = &self.variables[variable];
        state.value.ok_or_else(|| {
            Problem::new(format!("variable `{}` is read in a loop or branch that it is not handed to", state.name))
        })
    }

    /// Assigns a variable; it keeps its old value where the gates do not hold.
    pub(crate) fn assign(&mut self, variable: usize, value: InstrId, gates: &Gates) -> Result<(), Problem> {
        let shape = self.variables[variable].shape.clone();
        let assigned = self.array_shape(value);
        if (assigned.dtype, &assigned.dims) != (shape.dtype, &shape.dims) {
            let name = &self.variables[variable].name;
            return Err(Problem::new(format!("variable `{name}` is {shape}, and {assigned} is assigned to it")));
        }
        let mut value = value;
        for (pred, is_true) in gates.iter() {
            let old = self.read(variable)?;
            value = match is_true {
                true => self.select(*pred, value, old),
                false => self.select(*pred, old, value),
            };
        }
        self.variables[variable].value = Some(value);
        self.variables[variable].is_assigned = true;
        Ok(())
    }

    /// A v1 branch: each output is computed under its condition.
    pub(super) fn switch(
        &mut self,
        scope: &mut Scope,
        node: &Node,
        idx: usize,
        gates: Gates,
    ) -> Result<(), GraphError> {
        let value = |number: usize| node.inputs.get(number).and_then(|edge| scope.values.get(edge)).cloned();
        let (data, pred) = (value(0).unwrap_or(Value::Nothing), value(1));
        let Some(Value::Array(pred)) = pred else {
            return Err(self.error(node, Problem::new("its condition is no array")));
        };
        for output in [0, 1] {
            scope.values.insert(Edge { node: idx, output }, data.clone());
        }
        scope.gates.insert(idx, gates);
        // Readers get the gate of the output that they read: see `gates_of_edge`.
        scope.switches.insert(idx, pred);
        scope.done.insert(idx);
        Ok(())
    }

    /// The end of a v1 branch: the value of the branch that was taken.
    pub(super) fn merge(&mut self, scope: &mut Scope, node: &Node, idx: usize) -> Result<(), GraphError> {
        let inputs: Vec<(Value, Gates)> = node
            .inputs
            .iter()
            .filter_map(|edge| Some((scope.values.get(edge)?.clone(), super::gates_of_edge(scope, *edge))))
            .collect();
        self.e.set_metadata(super::metadata(node));
        let (value, gates) = match &inputs[..] {
            [(value, gates)] => (value.clone(), gates.clone()),
            [(a, a_gates), (b, b_gates)] => {
                let meets = a_gates.iter().find(|(pred, is_true)| b_gates.contains(&(*pred, !is_true)));
                let Some(&(pred, is_a)) = meets else {
                    return Err(self.error(node, Problem::new("nothing says which of its inputs is taken")));
                };
                let common: Vec<_> = a_gates.iter().filter(|gate| b_gates.contains(gate)).copied().collect();
                let (on_true, on_false) = if is_a { (a, b) } else { (b, a) };
                let value = self.chosen(pred, on_true, on_false).map_err(|problem| self.error(node, problem))?;
                (value, Rc::new(common))
            }
            _ => {
                return Err(
                    self.error(node, Problem::new(format!("{} values meet in it, expected 1 or 2", inputs.len())))
                );
            }
        };
        if let Some(error) = self.e.error() {
            return Err(self.error(node, Problem::new(error.error.message)));
        }
        scope.values.insert(Edge { node: idx, output: 0 }, value);
        scope.gates.insert(idx, gates);
        scope.done.insert(idx);
        Ok(())
    }

    /// A select by a scalar predicate, broadcast because XLA's CPU compiler aborts on some scalar predicates inside fusions.
    fn select(&self, pred: InstrId, on_true: InstrId, on_false: InstrId) -> InstrId {
        let dims = self.e.dims(on_true);
        let pred =
            if dims.is_empty() || !self.e.dims(pred).is_empty() { pred } else { self.e.broadcast(pred, &[], &dims) };
        self.e.select(pred, on_true, on_false)
    }

    /// One of two values by a predicate; no select is emitted if the predicate is known.
    pub(crate) fn chosen(&self, pred: InstrId, on_true: &Value, on_false: &Value) -> Result<Value, Problem> {
        let known = self.known(pred).and_then(|known| known.values.first().and_then(|value| value.whole()));
        match known {
            Some(0) => return Ok(on_false.clone()),
            Some(_) => return Ok(on_true.clone()),
            None => {}
        }
        // References to one variable stay one; others are read where they meet.
        let is_reference = |value: &Value| matches!(value, Value::Variable(_));
        if on_true != on_false && (is_reference(on_true) || is_reference(on_false)) {
            let read = |value: &Value| match value {
                Value::Variable(variable) => self.read(*variable).map(Value::Array),
                value => Ok(value.clone()),
            };
            return self.chosen(pred, &read(on_true)?, &read(on_false)?);
        }
        if let (Value::Array(on_true), Value::Array(on_false)) = (on_true, on_false) {
            return Ok(Value::Array(self.select(pred, *on_true, *on_false)));
        }
        if !matches!((on_true, on_false), (Value::List(_), _) | (_, Value::List(_))) {
            return Ok(on_true.clone());
        }
        let form = Form::from_value(on_true).joined(&Form::from_value(on_false), Join::Branches)?;
        let both = [on_true, on_false].map(|value| flat(&self.e, &promoted(&self.e, value, &form)));
        let leaves = both[0].iter().zip(&both[1]).map(|(a, b)| self.select(pred, *a, *b)).collect::<Vec<_>>();
        Ok(super::carried::taken(&form, &mut leaves.into_iter()))
    }

    /// Inlines a function call.
    pub(super) fn call(
        &mut self,
        node: &'g Node,
        function: &'g Function,
        inputs: Vec<Value>,
        gates: &Gates,
    ) -> Result<Vec<Value>, GraphError> {
        if inputs.len() != function.n_arguments {
            let problem =
                Problem::new(format!("it has {}, expected {}", counted(inputs.len(), "input"), function.n_arguments));
            return Err(self.error(node, problem));
        }
        self.n_calls += 1;
        if self.n_calls > MAX_CALLS {
            return Err(self.error(node, Problem::new(format!("functions call each other more than {MAX_CALLS} deep"))));
        }
        let mut scope = Scope::default();
        for (idx, value) in inputs.into_iter().enumerate() {
            scope.values.insert(Edge { node: idx, output: 0 }, value);
            scope.done.insert(idx);
            if !gates.is_empty() {
                scope.gates.insert(idx, gates.clone());
            }
        }
        let mut frames = Frames::from_body(&function.body);
        let nodes = function.body.nodes.iter().enumerate();
        let fed = nodes.filter(|(_, node)| self.inputs.contains_key(&std::ptr::from_ref(*node)));
        frames.fed = fed.map(|(idx, _)| idx).collect();
        open_fed(self.graph, &function.body, &mut frames);
        let targets: Vec<usize> =
            function.returns.iter().map(|edge| edge.node).chain(function.effects.iter().copied()).collect();
        self.run(&function.body, &frames, &mut scope, &targets)?;
        self.n_calls -= 1;
        let value = |edge: &Edge| scope.values.get(edge).cloned().unwrap_or(Value::Nothing);
        Ok(function.returns.iter().map(value).collect())
    }

    /// Writes a new computation: `write` gets the elements of its parameter and returns its results.
    pub(super) fn inside(
        &mut self,
        name: &str,
        state: &[Shape],
        write: impl FnOnce(&mut Self, &[InstrId]) -> Result<Vec<InstrId>, GraphError>,
    ) -> Result<CompId, GraphError> {
        let mut module = self.e.take_module();
        let comp = module.add_computation(name);
        let outer = std::mem::replace(&mut self.e, Emitter::new(module, comp));
        let tuple = self.e.parameter(0, &Shape::Tuple(state.to_vec()));
        let elements: Vec<InstrId> = (0..state.len()).map(|index| self.e.get_tuple_element(tuple, index)).collect();
        let results = write(self, &elements);
        let root = results.map(|results| match results[..] {
            [one] if name.ends_with("condition") => one,
            _ => self.e.tuple(&results),
        });
        let module = self.e.take_module();
        let inner_error = self.e.error();
        self.e = outer;
        self.e.with_module_mut(|empty| *empty = module);
        let root = root?;
        if let Some(error) = inner_error {
            self.e.fail(&error.opcode, &[], error.error);
        } else {
            self.e.with_module_mut(|module| module.computations[comp.idx()].root = root);
        }
        Ok(comp)
    }

    /// Writes each branch as a computation over the same values; results and stores get `forms` once they are known.
    fn write_branches(
        &mut self,
        node: &'g Node,
        functions: &[&'g Function],
        carried: &Carried,
        forms: Option<&Forms>,
    ) -> Result<Branches, GraphError> {
        let shapes = self.shapes(carried);
        let none = Gates::default();
        let mut branches = Branches::default();
        for function in functions {
            let comp = self.inside("branch", &shapes, |this, elements| {
                let (mut results, mut effects) =
                    this.with_carried(carried, elements, |this, values| this.call(node, function, values, &none))?;
                if let Some((result_forms, store_forms)) = forms {
                    let fitted = |(value, form): (&Value, &Form)| promoted(&this.e, value, form);
                    results = results.iter().zip(result_forms).map(fitted).collect();
                    effects.stores = effects.stores.iter().zip(store_forms).map(fitted).collect();
                }
                let arrays: Vec<InstrId> = results.iter().flat_map(|value| flat(&this.e, value)).collect();
                let stores = effects.stores.iter().flat_map(|store| flat(&this.e, store));
                let all = arrays.into_iter().chain(effects.variables).chain(stores).collect();
                branches.outcomes.push((results, effects.stores));
                Ok(all)
            })?;
            branches.comps.push(comp);
        }
        Ok(branches)
    }

    /// The values after the branch that `selector` chooses.
    fn choose_branch(
        &mut self,
        selector: InstrId,
        carried: &Carried,
        branches: Branches,
        stores: &[Form],
    ) -> Vec<Value> {
        let operand = self.e.tuple(&carried.state);
        let operands: Vec<InstrId> = [selector].into_iter().chain(branches.comps.iter().map(|_| operand)).collect();
        let chosen = self.e.emit(Op::Conditional(Conditional { branches: branches.comps }), &operands, None);
        let n = self.e.shape(chosen).as_tuple().map_or(0, <[Shape]>::len);
        let elements: Vec<InstrId> = (0..n).map(|index| self.e.get_tuple_element(chosen, index)).collect();
        let mut elements = elements.into_iter();
        let (results, _) = branches.outcomes.into_iter().next_back().unwrap_or_default();
        let results = results.into_iter().map(|value| match value {
            Value::Array(_) | Value::List(_) => super::carried::taken(&Form::from_value(&value), &mut elements),
            other => other,
        });
        let results = results.collect();
        let stores = carried.stores.iter().zip(stores).filter_map(|((store, _), form)| match form {
            Form::List(kind) => Some((*store, (**kind).clone())),
            Form::Array => None,
        });
        self.write_back(&carried.variables, &stores.collect::<Vec<_>>(), &mut elements);
        results
    }
}

impl<'g> Call<'_, 'g> {
    fn function(&self, name: &str) -> Result<&'g Function, Problem> {
        let function = self.node.function(name).unwrap_or_default();
        let graph = self.lowering.graph;
        graph
            .functions
            .get(function)
            .ok_or_else(|| Problem::new(format!("its `{name}` is `{function}`, and the graph has no such function")))
    }

    /// Inlines the function that an attribute names, with the inputs from `first` on.
    pub(crate) fn inline(&mut self, name: &str, first: usize) -> Outputs {
        let function = self.function(name)?;
        let inputs = self.inputs[first.min(self.inputs.len())..].to_vec();
        let gates = self.gates.clone();
        self.lowering.call(self.node, function, inputs, &gates).map_err(nested)
    }

    /// `While`: the condition's and the body's functions over the same values.
    pub(crate) fn while_loop(&mut self) -> Outputs {
        let (condition, body) = (self.function("cond")?, self.function("body")?);
        let values = self.inputs.clone();
        // A value that the body returns unchanged is the same on every trip.
        let is_invariant: Vec<bool> = (0..values.len()).map(|at| function_passes(body, at)).collect();
        let node = self.node;
        let none = Gates::default();
        let written_condition =
            |this: &mut Lowering<'g>, values: Vec<Value>| match this.call(node, condition, values, &none)?[..] {
                [Value::Array(pred)] => Ok(pred),
                _ => Err(this.error(node, Problem::new("its condition gives no array"))),
            };
        let step = |this: &mut Lowering<'g>, values: Vec<Value>, gates: &Gates| {
            let n = values.len();
            let results = this.call(node, body, values, gates)?;
            match results.len() == n {
                true => Ok(results),
                false => Err(this.error(node, Problem::new(format!("its body gives {} values of {n}", results.len())))),
            }
        };
        if takes_batches(self.lowering.graph, node) {
            // A loop with a batch of its own for each trip is lowered as a step.
            let (gates, this) = (self.gates.clone(), &mut *self.lowering);
            return step(this, values, &gates).map_err(nested);
        }
        let trip = |this: &mut Lowering<'g>, values: Vec<Value>| step(this, values, &none);
        let error = |this: &Lowering<'g>, problem: Problem| this.error(node, problem);
        self.lowering.looped("while", values, &is_invariant, &written_condition, &trip, &error).map_err(nested)
    }

    /// `If` and `Case`: one of several functions of the same values.
    pub(crate) fn branches(&mut self, names: &[String]) -> Outputs {
        let selector = self.array(0)?;
        let graph = self.lowering.graph;
        let functions = names.iter().map(|name| {
            graph.functions.get(name).ok_or_else(|| Problem::new(format!("the graph has no function `{name}`")))
        });
        let functions = functions.collect::<Result<Vec<&'g Function>, Problem>>()?;
        let values = self.inputs[1..].to_vec();
        let is_pred = self.dtype(selector) == bf16scope_hlo::DType::Pred;
        if let Some(chosen) = self.lowering.known(selector).and_then(|known| known.values.first()?.whole()) {
            let last = functions.len() - 1;
            let at = if is_pred { usize::from(chosen == 0) } else { usize::try_from(chosen).unwrap_or(last).min(last) };
            let gates = self.gates.clone();
            return self.lowering.call(self.node, functions[at], values, &gates).map_err(nested);
        }
        let node = self.node;
        let this = &mut *self.lowering;
        // The common forms of results and of stores, once the branches are known to differ.
        let mut forms: Option<Forms> = None;
        for _ in 0..MAX_FORMS {
            let carried = this.carried(&values, &vec![true; values.len()])?;
            let mark = this.mark();
            let branches = this.write_branches(node, &functions, &carried, forms.as_ref()).map_err(nested)?;
            let common = (
                common_forms(&branches.outcomes, |outcome| &outcome.0)?,
                common_forms(&branches.outcomes, |outcome| &outcome.1)?,
            );
            let are = |values: &[Value], forms: &[Form]| {
                values.iter().zip(forms).all(|(value, form)| Form::from_value(value) == *form)
            };
            if branches.outcomes.iter().all(|(results, stores)| are(results, &common.0) && are(stores, &common.1)) {
                return Ok(this.choose_branch(selector, &carried, branches, &common.1));
            }
            this.go_back(mark);
            forms = Some(common);
        }
        Err(Problem::new("one of its branches gives a list where another gives a handle, expected lists or handles"))
    }
}

/// The forms that hold the results of every branch, or the stores after it. Forms grow with each branch: in a second round
/// every branch has the common form.
fn common_forms(outcomes: &[Outcome], which: fn(&Outcome) -> &Vec<Value>) -> Result<Vec<Form>, Problem> {
    let n = outcomes.iter().map(|outcome| which(outcome).len()).min().unwrap_or(0);
    (0..n)
        .map(|at| {
            let mut all = outcomes.iter().map(|outcome| Form::from_value(&which(outcome)[at]));
            let first = all.next().unwrap_or(Form::Array);
            all.try_fold(first, |form, other| form.joined(&other, Join::Branches))
        })
        .collect()
}

/// Whether a function returns argument `at` as result `at`, directly or through identities.
fn function_passes(function: &Function, at: usize) -> bool {
    let Some(mut edge) = function.returns.get(at).copied() else { return false };
    for _ in 0..64 {
        let node = &function.body.nodes[edge.node];
        match (node.op.as_str(), node.inputs.first()) {
            ("_Arg", _) => return edge.node == at,
            ("Identity", Some(input)) => edge = *input,
            _ => return false,
        }
    }
    false
}

/// The functions that a node names, each with whether its body is written in the node's place.
pub(super) fn called<'g>(graph: &'g Graph, node: &'g Node) -> Vec<(&'g str, bool)> {
    if graph.functions.is_empty() {
        return Vec::new();
    }
    let by_op = graph.functions.get_key_value(&node.op).map(|(name, _)| (name.as_str(), true));
    let mut all: Vec<(&str, bool)> = by_op.into_iter().collect();
    for (key, value) in &node.attrs {
        let is_written = matches!(
            (node.op.as_str(), key.as_str()),
            ("PartitionedCall" | "StatefulPartitionedCall" | "RemoteCall", "f") | ("While" | "StatelessWhile", "body")
        );
        match &value.value {
            Some(AttrKind::Func(function)) => all.push((function.name.as_str(), is_written)),
            Some(AttrKind::List(list)) => all.extend(list.func.iter().map(|one| (one.name.as_str(), false))),
            _ => {}
        }
    }
    all
}

/// The functions that calls reach, each with whether its body is written exactly once, by [`called`].
pub(super) fn reached<'g>(graph: &'g Graph, mut calls: Vec<(&'g str, bool)>) -> BTreeMap<&'g str, bool> {
    let mut reached = BTreeMap::new();
    while let Some((name, is_written)) = calls.pop() {
        let Some(function) = graph.functions.get(name) else { continue };
        let is_once = is_written && !reached.contains_key(name);
        if reached.insert(name, is_once) != Some(false) {
            let inner = function.body.nodes.iter().flat_map(|node| called(graph, node));
            calls.extend(inner.map(|(name, is_written)| (name, is_written && is_once)));
        }
    }
    reached
}

/// Whether a node takes a batch, itself or in functions that are written in its place.
fn takes_batches(graph: &Graph, node: &Node) -> bool {
    let functions = reached(graph, called(graph, node)).into_iter().filter(|(_, is_once)| *is_once);
    let mut functions = functions.filter_map(|(name, _)| graph.functions.get(name));
    takes_batch(&node.op) || functions.any(|function| function.body.nodes.iter().any(|node| takes_batch(&node.op)))
}

/// Opens the loops of version 1 that take batches: each trip has one of its own, so they are lowered as steps.
pub(super) fn open_fed(graph: &Graph, body: &Body, frames: &mut Frames) {
    let inside = frames.of_node.keys().copied().filter(|idx| takes_batches(graph, &body.nodes[*idx]));
    inside.collect::<Vec<usize>>().into_iter().for_each(|node| frames.open(node));
}

/// The error of a node inside a function, as a problem of the calling node.
pub(super) fn nested(error: GraphError) -> Problem {
    match error {
        GraphError::Node { node, op, place, message, help, .. } => {
            Problem::new(format!("in its function, `{node}` ({op}){place}: {message}")).with_help(help)
        }
        GraphError::UnknownOp { node, op, place, help, .. } => {
            Problem::new(format!("in its function, `{node}`{place} is `{op}`, which does not become HLO here"))
                .with_help(help)
        }
        other => Problem::new(other.to_string()),
    }
}
