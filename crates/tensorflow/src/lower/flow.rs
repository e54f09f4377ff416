//! Control flow: branches of version 1 by gates, loops of version 1 and 2 as `while`, branches of version 2 as `conditional`,
//! functions in the place of their calls.

use std::rc::Rc;

use super::call::Outputs;
use super::frames::Frames;
use super::{Call, Gates, Lowering, MAX_CALLS, Scope, Value};
use crate::error::{GraphError, Problem};
use crate::graph::{Body, Function};
use crate::node::{Edge, Node};
use bf16scope_hlo::ops::Conditional;
use bf16scope_hlo::{CompId, Emitter, InstrId, Literal, Op, Shape};

/// What a loop or branch is handed: how an outer value is inside.
#[derive(Clone, Debug)]
enum Handed {
    /// An element of the state.
    State,
    /// The same constant inside.
    Constant(Literal),
    Variable(usize),
    /// A variable that no input names: the state of random numbers.
    Hidden(usize),
    Nothing,
}

impl<'g> Lowering<'g> {
    /// The value of a variable, which becomes a parameter if nothing assigned it.
    pub(crate) fn read(&mut self, variable: usize) -> Result<InstrId, Problem> {
        let state = &mut self.variables[variable];
        state.value.ok_or_else(|| {
            Problem::new(format!("variable `{}` is read in a loop or branch that it is not handed to", state.name))
        })
    }

    /// Assigns a variable, where the gates hold.
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
                true => self.e.select(*pred, value, old),
                false => self.e.select(*pred, old, value),
            };
        }
        self.variables[variable].value = Some(value);
        self.variables[variable].is_assigned = true;
        Ok(())
    }

    /// A branch of version 1: each output is there under its condition.
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
        // Readers take the gate of the output that they read: see `gates_of_edge`.
        scope.switches.insert(idx, pred);
        scope.done.insert(idx);
        Ok(())
    }

    /// Where two branches meet: the one that was taken.
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
                let value = match (a, b) {
                    (Value::Array(a), Value::Array(b)) => {
                        let (on_true, on_false) = if is_a { (*a, *b) } else { (*b, *a) };
                        Value::Array(self.chosen(pred, on_true, on_false))
                    }
                    (a, _) => a.clone(),
                };
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

    /// One of two by a predicate; the one itself where the predicate is known.
    fn chosen(&self, pred: InstrId, on_true: InstrId, on_false: InstrId) -> InstrId {
        let known = self.known(pred).and_then(|known| known.values.first().and_then(|value| value.whole()));
        match known {
            Some(0) => on_false,
            Some(_) => on_true,
            None => self.e.select(pred, on_true, on_false),
        }
    }

    /// A function in the place of its call.
    pub(super) fn call(
        &mut self,
        node: &'g Node,
        function: &'g Function,
        inputs: Vec<Value>,
        gates: &Gates,
    ) -> Result<Vec<Value>, GraphError> {
        if inputs.len() != function.n_arguments {
            let problem = Problem::new(format!("it has {} inputs, expected {}", inputs.len(), function.n_arguments));
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
        let frames = Frames::of_body(&function.body);
        let targets: Vec<usize> =
            function.returns.iter().map(|edge| edge.node).chain(function.effects.iter().copied()).collect();
        self.run(&function.body, &frames, &mut scope, &targets)?;
        self.n_calls -= 1;
        let value = |edge: &Edge| scope.values.get(edge).cloned().unwrap_or(Value::Nothing);
        Ok(function.returns.iter().map(value).collect())
    }

    /// Writes a computation of its own: `write` gets its parameter's elements, and gives its results.
    fn inside(
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

    /// How values are handed to a computation, the state that this makes, and the variables among them.
    fn handed(&mut self, values: &[Value], is_invariant: &[bool]) -> Result<(Vec<Handed>, Vec<InstrId>), Problem> {
        let mut state = Vec::new();
        let mut variables: Vec<usize> = Vec::new();
        let mut handed = Vec::new();
        for (value, is_invariant) in values.iter().zip(is_invariant) {
            handed.push(match value {
                Value::Array(id) => match is_invariant.then(|| self.literal(*id)).flatten() {
                    Some(literal) => Handed::Constant(literal),
                    None => {
                        state.push(*id);
                        Handed::State
                    }
                },
                Value::Variable(variable) => {
                    if !variables.contains(variable) {
                        variables.push(*variable);
                    }
                    Handed::Variable(*variable)
                }
                Value::Nothing => Handed::Nothing,
            });
        }
        if let Some(random) = self.random {
            handed.push(Handed::Hidden(random));
            variables.push(random);
        }
        for variable in variables {
            state.push(self.read(variable)?);
        }
        Ok((handed, state))
    }

    /// A small constant that is known, as a literal.
    fn literal(&self, id: InstrId) -> Option<Literal> {
        self.known(id)?;
        self.e.with_module(|module| match &module.comp(self.e.comp()).instr(id).op {
            Op::Constant(literal) => Some(literal.clone()),
            _ => None,
        })
    }

    /// Runs `write` with the variables' values inside a computation, and what they are after it.
    fn with_variables<T>(
        &mut self,
        handed: &[Handed],
        elements: &[InstrId],
        write: impl FnOnce(&mut Self, Vec<Value>) -> Result<T, GraphError>,
    ) -> Result<(T, Vec<InstrId>), GraphError> {
        let outer: Vec<Option<InstrId>> = self.variables.iter_mut().map(|variable| variable.value.take()).collect();
        let n_state = handed.iter().filter(|handed| matches!(handed, Handed::State)).count();
        let (mut state, mut rest) = (elements[..n_state].iter(), elements[n_state..].iter());
        let mut inside: Vec<usize> = Vec::new();
        let mut values = Vec::new();
        for one in handed {
            values.push(match one {
                Handed::State => Value::Array(*state.next().expect("there is one for each")),
                Handed::Constant(literal) => Value::Array(self.e.constant(literal.clone())),
                Handed::Variable(variable) => {
                    if !inside.contains(variable) {
                        inside.push(*variable);
                        self.variables[*variable].value = rest.next().copied();
                    }
                    Value::Variable(*variable)
                }
                Handed::Hidden(variable) => {
                    inside.push(*variable);
                    self.variables[*variable].value = rest.next().copied();
                    continue;
                }
                Handed::Nothing => Value::Nothing,
            });
        }
        let written = write(self, values);
        let after = inside.iter().filter_map(|variable| self.variables[*variable].value).collect();
        for (variable, value) in self.variables.iter_mut().zip(outer) {
            variable.value = value;
        }
        Ok((written?, after))
    }

    /// Gives the variables that were handed their values after a loop or branch.
    fn write_back(&mut self, handed: &[Handed], values: &[InstrId]) {
        let mut done: Vec<usize> = Vec::new();
        let mut values = values.iter();
        for one in handed {
            if let Handed::Variable(variable) | Handed::Hidden(variable) = one
                && !done.contains(variable)
            {
                done.push(*variable);
                self.variables[*variable].value = values.next().copied();
            }
        }
    }

    /// A loop of version 1, whose frame is left by this node.
    pub(super) fn exit(
        &mut self,
        body: &'g Body,
        frames: &Frames,
        scope: &mut Scope,
        idx: usize,
    ) -> Result<(), GraphError> {
        let node = &body.nodes[idx];
        let input = node.inputs.first().copied();
        if frames.is_opened(idx) {
            let value = input.and_then(|edge| scope.values.get(&edge)).cloned().unwrap_or(Value::Nothing);
            scope.values.insert(Edge { node: idx, output: 0 }, value);
            scope.done.insert(idx);
            return Ok(());
        }
        let Some(frame) = frames.of_node.get(&idx).map(|frame| &frames.frames[*frame]) else {
            return Err(self.error(node, Problem::new("it leaves a loop that nothing enters")));
        };
        let problem = |lowering: &Self, message: &str| Err(lowering.error(node, Problem::new(message)));
        let Some(condition) = frame.condition else { return problem(self, "its loop has no condition") };
        let value = |scope: &Scope, edge: Edge| scope.values.get(&edge).cloned().unwrap_or(Value::Nothing);
        // What enters: first the loop's own values, which come to a merge, then what stays the same.
        let mut first = Vec::new();
        for &merge in &frame.merges {
            let is_enter = |edge: &&Edge| body.nodes[edge.node].op.ends_with("Enter");
            match body.nodes[merge].inputs.iter().find(is_enter) {
                Some(enter) => first.push(enter.node),
                None => return problem(self, "a value of its loop enters nowhere"),
            }
        }
        let others: Vec<usize> = frame.enters.iter().filter(|enter| !first.contains(enter)).copied().collect();
        let enters: Vec<usize> = first.iter().chain(&others).copied().collect();
        let values: Vec<Value> = enters
            .iter()
            .map(|enter| body.nodes[*enter].inputs.first().map_or(Value::Nothing, |edge| value(scope, *edge)))
            .collect();
        let is_invariant: Vec<bool> = (0..enters.len()).map(|at| at >= first.len()).collect();
        let (handed, state) = self.handed(&values, &is_invariant).map_err(|problem| self.error(node, problem))?;
        let shapes: Vec<Shape> = state.iter().map(|id| self.e.shape(*id)).collect();
        let preset = |values: Vec<Value>| {
            let mut inner = Scope::default();
            for (at, value) in values.into_iter().enumerate() {
                for node in [Some(enters[at]), frame.merges.get(at).copied()].into_iter().flatten() {
                    inner.values.insert(Edge { node, output: 0 }, value.clone());
                    inner.done.insert(node);
                }
            }
            inner
        };
        let condition_edge = body.nodes[condition].inputs.first().copied();
        let Some(condition_edge) = condition_edge else { return problem(self, "its condition has no input") };
        let name = frame.name.rsplit('/').next().unwrap_or("while").to_string();
        let condition = self.inside(&format!("{name}_condition"), &shapes, |this, elements| {
            let (pred, _) = this.with_variables(&handed, elements, |this, values| {
                let mut inner = preset(values);
                this.run(body, frames, &mut inner, &[condition_edge.node])?;
                match inner.values.get(&condition_edge) {
                    Some(Value::Array(pred)) => Ok(*pred),
                    _ => Err(this.error(node, Problem::new("the condition of its loop is no array"))),
                }
            })?;
            Ok(vec![pred])
        })?;
        let next = |merge: &usize| {
            body.nodes[*merge].inputs.iter().find(|edge| body.nodes[edge.node].op.ends_with("NextIteration")).copied()
        };
        let nexts: Vec<Edge> = frame.merges.iter().filter_map(next).collect();
        let targets: Vec<usize> = nexts.iter().map(|edge| edge.node).collect();
        let n_state = handed.iter().filter(|handed| matches!(handed, Handed::State)).count();
        let written = self.inside(&format!("{name}_body"), &shapes, |this, elements| {
            let (mut results, after) = this.with_variables(&handed, elements, |this, values| {
                let mut inner = preset(values);
                this.run(body, frames, &mut inner, &targets)?;
                let arrays = nexts.iter().filter_map(|edge| match inner.values.get(edge) {
                    Some(Value::Array(id)) => Some(*id),
                    _ => None,
                });
                Ok(arrays.collect::<Vec<_>>())
            })?;
            results.extend_from_slice(&elements[results.len()..n_state]);
            results.extend(after);
            Ok(results)
        })?;
        let last = self.e.emit(Op::While { condition, body: written }, &[self.e.tuple(&state)], None);
        let elements: Vec<InstrId> = (0..state.len()).map(|index| self.e.get_tuple_element(last, index)).collect();
        self.write_back(&handed, &elements[n_state..]);
        let mut at = 0;
        for (merge, (handed, outer)) in frame.merges.iter().zip(handed.iter().zip(&values)) {
            let result = match handed {
                Handed::State => {
                    at += 1;
                    Value::Array(elements[at - 1])
                }
                _ => outer.clone(),
            };
            for &exit in &frame.exits {
                let switch = body.nodes[exit].inputs.first().map(|edge| &body.nodes[edge.node]);
                let from = switch.and_then(|switch| switch.inputs.first()).map(|edge| edge.node);
                if from == Some(*merge) {
                    scope.values.insert(Edge { node: exit, output: 0 }, result.clone());
                    scope.done.insert(exit);
                }
            }
        }
        if !scope.done.contains(&idx) {
            return problem(self, "it leaves its loop with a value that the loop does not carry");
        }
        Ok(())
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

    /// A function's results in the place of the call.
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
        // What the body gives back as it got it is the same on every trip.
        let is_invariant: Vec<bool> = (0..values.len()).map(|at| function_passes(body, at)).collect();
        let node = self.node;
        let this = &mut *self.lowering;
        let (handed, state) = this.handed(&values, &is_invariant)?;
        let shapes: Vec<Shape> = state.iter().map(|id| this.e.shape(*id)).collect();
        let none = Gates::default();
        let written_condition = this.inside("while_condition", &shapes, |this, elements| {
            let (results, _) =
                this.with_variables(&handed, elements, |this, values| this.call(node, condition, values, &none))?;
            match results[..] {
                [Value::Array(pred)] => Ok(vec![pred]),
                _ => Err(this.error(node, Problem::new("its condition gives no array"))),
            }
        });
        let condition = written_condition.map_err(nested)?;
        let written_body = this.inside("while_body", &shapes, |this, elements| {
            let (results, after) =
                this.with_variables(&handed, elements, |this, values| this.call(node, body, values, &none))?;
            let mut out = Vec::new();
            for (handed, value) in handed.iter().zip(results) {
                match (handed, value) {
                    (Handed::State, Value::Array(id)) => out.push(id),
                    (Handed::State, _) => {
                        return Err(this.error(node, Problem::new("its body gives no array for an array")));
                    }
                    _ => {}
                }
            }
            out.extend(after);
            Ok(out)
        });
        let body = written_body.map_err(nested)?;
        let last = this.e.emit(Op::While { condition, body }, &[this.e.tuple(&state)], None);
        let elements: Vec<InstrId> = (0..state.len()).map(|index| this.e.get_tuple_element(last, index)).collect();
        let n_state = handed.iter().filter(|handed| matches!(handed, Handed::State)).count();
        this.write_back(&handed, &elements[n_state..]);
        let mut arrays = elements.into_iter();
        let results = handed.iter().zip(values).map(|(handed, outer)| match handed {
            Handed::State => arrays.next().map_or(Value::Nothing, Value::Array),
            _ => outer,
        });
        Ok(results.collect())
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
        let (handed, state) = this.handed(&values, &vec![true; values.len()])?;
        let shapes: Vec<Shape> = state.iter().map(|id| this.e.shape(*id)).collect();
        let none = Gates::default();
        let mut comps = Vec::new();
        let mut kinds: Vec<Value> = Vec::new();
        for function in functions {
            let written = this.inside("branch", &shapes, |this, elements| {
                let (results, after) =
                    this.with_variables(&handed, elements, |this, values| this.call(node, function, values, &none))?;
                kinds.clone_from(&results);
                let arrays = results.into_iter().filter_map(|value| match value {
                    Value::Array(id) => Some(id),
                    _ => None,
                });
                Ok(arrays.chain(after).collect())
            });
            comps.push(written.map_err(nested)?);
        }
        let operand = this.e.tuple(&state);
        let operands: Vec<InstrId> = [selector].into_iter().chain(comps.iter().map(|_| operand)).collect();
        let chosen = this.e.emit(Op::Conditional(Conditional { branches: comps }), &operands, None);
        let n = this.e.shape(chosen).as_tuple().map_or(0, <[Shape]>::len);
        let elements: Vec<InstrId> = (0..n).map(|index| this.e.get_tuple_element(chosen, index)).collect();
        let n_arrays = kinds.iter().filter(|value| matches!(value, Value::Array(_))).count();
        this.write_back(&handed, &elements[n_arrays.min(n)..]);
        let mut arrays = elements.into_iter();
        let results = kinds.into_iter().map(|value| match value {
            Value::Array(_) => arrays.next().map_or(Value::Nothing, Value::Array),
            other => other,
        });
        Ok(results.collect())
    }
}

/// Whether a function gives its argument back, itself or through identities, in the same place.
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

/// The error of a node inside, as the problem of the one around it.
fn nested(error: GraphError) -> Problem {
    match error {
        GraphError::Node { node, op, message, help, .. } => {
            Problem::new(format!("in its function, `{node}` ({op}): {message}")).with_help(help)
        }
        GraphError::UnknownOp { node, op, help, .. } => {
            Problem::new(format!("in its function, `{node}` is `{op}`, which does not become HLO here")).with_help(help)
        }
        other => Problem::new(other.to_string()),
    }
}
