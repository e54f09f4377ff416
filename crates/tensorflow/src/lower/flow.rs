//! Lowers control flow: v1 branches (`Switch`, `Merge`) by gates, v1 and v2 loops as `while`, v2 branches as `conditional`;
//! function calls are inlined.

use std::rc::Rc;

use super::call::Outputs;
use super::carried::{Effects, Form, Store, flat, promoted};
use super::frames::Frames;
use super::list::Join;
use super::{Call, Gates, Lowering, MAX_CALLS, Scope, Value};
use crate::error::{GraphError, Problem};
use crate::graph::{Body, Function};
use crate::node::{Edge, Node};
use bf16scope_hlo::ops::Conditional;
use bf16scope_hlo::{CompId, Emitter, InstrId, Op, Shape};

/// How often a loop or branch is rewritten at most, until the forms of its carried values no longer change.
const MAX_FORMS: usize = 8;

/// A loop's condition or body, as a function of the values at the start of a trip.
type Inside<'a, 'g, T> = &'a dyn Fn(&mut Lowering<'g>, Vec<Value>) -> Result<T, GraphError>;

/// A branch's results, and the stores after it.
type Outcome = (Vec<Value>, Vec<Value>);

impl<'g> Lowering<'g> {
    /// The current value of a variable.
    pub(crate) fn read(&mut self, variable: usize) -> Result<InstrId, Problem> {
        let state = &mut self.variables[variable];
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
        let frames = Frames::from_body(&function.body);
        let targets: Vec<usize> =
            function.returns.iter().map(|edge| edge.node).chain(function.effects.iter().copied()).collect();
        self.run(&function.body, &frames, &mut scope, &targets)?;
        self.n_calls -= 1;
        let value = |edge: &Edge| scope.values.get(edge).cloned().unwrap_or(Value::Nothing);
        Ok(function.returns.iter().map(value).collect())
    }

    /// Writes a new computation: `write` gets the elements of its parameter and returns its results.
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

    /// A loop over values. It is rewritten until its inputs and outputs have the same forms, since only a trip shows what lists
    /// hold.
    fn looped(
        &mut self,
        name: &str,
        mut values: Vec<Value>,
        is_invariant: &[bool],
        condition: Inside<'_, 'g, InstrId>,
        body: Inside<'_, 'g, Vec<Value>>,
        error: &dyn Fn(&Self, Problem) -> GraphError,
    ) -> Result<Vec<Value>, GraphError> {
        // The loop's bound does not apply to pushes after the loop.
        let is_bounded = |value: &Value| matches!(value, Value::List(list) if list.kind.is_bounded);
        let were_bounded: Vec<bool> = values.iter().map(is_bounded).collect();
        let stores_were: Vec<bool> = self.stores.iter().map(Store::is_bounded).collect();
        let originals: Vec<Form> = values.iter().map(Form::from_value).collect();
        let store_form = |store: &Store| store.list.as_ref().map(|list| Form::List(Box::new(list.kind.clone())));
        let original_stores: Vec<Option<Form>> = self.stores.iter().map(store_form).collect();
        for _ in 0..MAX_FORMS {
            let carried = self.carried(&values, is_invariant).map_err(|problem| error(self, problem))?;
            let shapes = self.shapes(&carried);
            let mark = self.mark();
            let written_condition = self.inside(&format!("{name}_condition"), &shapes, |this, elements| {
                Ok(vec![this.with_carried(&carried, elements, condition)?.0])
            })?;
            let mut results: Vec<Value> = Vec::new();
            let mut effects = Effects::default();
            let written_body = self.inside(&format!("{name}_body"), &shapes, |this, elements| {
                (results, effects) = this.with_carried(&carried, elements, body)?;
                let states = carried.is_state().zip(&results).filter(|(is_state, _)| *is_state);
                let mut arrays: Vec<InstrId> = states.flat_map(|(_, value)| flat(&this.e, value)).collect();
                arrays.extend(&effects.variables);
                arrays.extend(effects.stores.iter().flat_map(|store| flat(&this.e, store)));
                Ok(arrays)
            })?;
            let n_trips = || self.n_trips(written_condition, written_body, &carried.state);
            // The form that each value and each store needs before the first trip.
            let joined = |before: Form, original: &Form, after: &Value| match before == Form::from_value(after) {
                true => Ok(before),
                false => before.forgetful(original).joined(&Form::from_value(after), Join::Loop(n_trips())),
            };
            let pairs = values.iter().zip(&originals).zip(carried.is_state()).zip(&results);
            let forms = pairs.map(|(((before, original), is_state), after)| match is_state {
                true => joined(Form::from_value(before), original, after),
                false => Ok(Form::from_value(before)),
            });
            let forms = forms.collect::<Result<Vec<Form>, Problem>>().map_err(|problem| error(self, problem))?;
            let stores = carried.stores.iter().zip(&effects.stores);
            let stores = stores.map(|((store, kind), after)| {
                let before = Form::List(Box::new(kind.clone()));
                let original = original_stores.get(*store).cloned().flatten().unwrap_or_else(|| before.clone());
                joined(before, &original, after)
            });
            let stores = stores.collect::<Result<Vec<Form>, Problem>>().map_err(|problem| error(self, problem))?;
            let is_fixed = |before: &Form, after: &Form, value: Option<&Value>| {
                before == after && value.is_none_or(|value| Form::from_value(value) == *after)
            };
            let values_are =
                values.iter().zip(carried.is_state()).zip(&forms).enumerate().all(|(at, ((value, is_state), form))| {
                    !is_state || is_fixed(&Form::from_value(value), form, results.get(at))
                });
            let stores_are = carried
                .stores
                .iter()
                .zip(&stores)
                .zip(&effects.stores)
                .all(|(((_, kind), form), after)| is_fixed(&Form::List(Box::new(kind.clone())), form, Some(after)));
            if !values_are || !stores_are {
                self.go_back(mark);
                values = values.iter().zip(&forms).map(|(value, form)| promoted(&self.e, value, form)).collect();
                for ((store, _), form) in carried.stores.iter().zip(&stores) {
                    let list = Value::List(self.store(*store).map_err(|problem| error(self, problem))?);
                    if let Value::List(list) = promoted(&self.e, &list, form) {
                        self.stores[*store].list = Some(list);
                    }
                }
                continue;
            }
            let last = self.e.emit(
                Op::While { condition: written_condition, body: written_body },
                &[self.e.tuple(&carried.state)],
                None,
            );
            let elements: Vec<InstrId> =
                (0..carried.state.len()).map(|index| self.e.get_tuple_element(last, index)).collect();
            let counts = self.counts(written_condition, written_body, &carried.state);
            let comp = self.e.comp();
            self.counts.extend(counts.into_iter().map(|(at, most)| ((comp, elements[at]), most)));
            let mut elements = elements.into_iter();
            let mut results = self.after(&carried, values, &mut elements);
            results.iter_mut().zip(were_bounded).for_each(|(value, was)| {
                if let Value::List(list) = value {
                    Rc::make_mut(list).kind.is_bounded = was;
                }
            });
            let trip = (written_condition, written_body, &carried.state[..]);
            self.settle_grown(trip, &originals, &mut results).map_err(|problem| error(self, problem))?;
            for (store, _) in &carried.stores {
                self.stores[*store].set_bounded(stores_were.get(*store) == Some(&true));
            }
            return Ok(results);
        }
        let problem = Problem::new(format!("its lists change their form on {MAX_FORMS} trips"));
        Err(error(self, problem.with_help("write elements of one shape to a TensorArray")))
    }

    /// A v1 loop whose frame this node leaves.
    pub(super) fn exit(
        &mut self,
        body: &'g Body,
        frames: &Frames,
        scope: &mut Scope,
        idx: usize,
    ) -> Result<(), GraphError> {
        if scope.done.contains(&idx) {
            // Another exit of the loop has already written it.
            return Ok(());
        }
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
        // The values that enter: first the loop variables, which reach a merge, then the loop invariants.
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
        let condition = |this: &mut Self, values: Vec<Value>| {
            let mut inner = preset(values);
            this.run(body, frames, &mut inner, &[condition_edge.node])?;
            match inner.values.get(&condition_edge) {
                Some(Value::Array(pred)) => Ok(*pred),
                _ => Err(this.error(node, Problem::new("the condition of its loop is no array"))),
            }
        };
        let next = |merge: &usize| {
            body.nodes[*merge].inputs.iter().find(|edge| body.nodes[edge.node].op.ends_with("NextIteration")).copied()
        };
        let nexts: Vec<Edge> = frame.merges.iter().filter_map(next).collect();
        let targets: Vec<usize> = nexts.iter().map(|edge| edge.node).collect();
        let trip = |this: &mut Self, values: Vec<Value>| {
            let mut inner = preset(values.clone());
            this.run(body, frames, &mut inner, &targets)?;
            let results = nexts.iter().map(|edge| inner.values.get(edge).cloned().unwrap_or(Value::Nothing));
            Ok(results.chain(values.into_iter().skip(nexts.len())).collect::<Vec<_>>())
        };
        let error = |this: &Self, problem: Problem| this.error(node, problem);
        let results = self.looped(&name, values, &is_invariant, &condition, &trip, &error)?;
        // An exit reads a switch's other output, directly or behind nodes that run only on the last trip (a gradient's
        // identities).
        let mut last = preset(results);
        for &exit in &frame.exits {
            let Some(input) = body.nodes[exit].inputs.first() else { continue };
            self.run(body, frames, &mut last, &[input.node])?;
            if let Some(value) = last.values.get(input) {
                scope.values.insert(Edge { node: exit, output: 0 }, value.clone());
                scope.done.insert(exit);
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
        let trip = |this: &mut Lowering<'g>, values: Vec<Value>| {
            let n = values.len();
            let results = this.call(node, body, values, &none)?;
            match results.len() == n {
                true => Ok(results),
                false => Err(this.error(node, Problem::new(format!("its body gives {} values of {n}", results.len())))),
            }
        };
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
        let none = Gates::default();
        // The common forms of results and of stores, once the branches are known to differ.
        let mut forms: Option<(Vec<Form>, Vec<Form>)> = None;
        for _ in 0..MAX_FORMS {
            let carried = this.carried(&values, &vec![true; values.len()])?;
            let shapes = this.shapes(&carried);
            let mark = this.mark();
            let mut comps = Vec::new();
            let mut outcomes: Vec<Outcome> = Vec::new();
            for function in &functions {
                let written = this.inside("branch", &shapes, |this, elements| {
                    let (mut results, mut effects) =
                        this.with_carried(&carried, elements, |this, values| this.call(node, function, values, &none))?;
                    if let Some((result_forms, store_forms)) = &forms {
                        let fitted = |(value, form): (&Value, &Form)| promoted(&this.e, value, form);
                        results = results.iter().zip(result_forms).map(fitted).collect();
                        effects.stores = effects.stores.iter().zip(store_forms).map(fitted).collect();
                    }
                    let arrays: Vec<InstrId> = results.iter().flat_map(|value| flat(&this.e, value)).collect();
                    let stores = effects.stores.iter().flat_map(|store| flat(&this.e, store));
                    let all = arrays.into_iter().chain(effects.variables).chain(stores).collect();
                    outcomes.push((results, effects.stores));
                    Ok(all)
                });
                comps.push(written.map_err(nested)?);
            }
            let common_forms = |which: fn(&Outcome) -> &Vec<Value>| {
                let n = outcomes.iter().map(|outcome| which(outcome).len()).min().unwrap_or(0);
                (0..n)
                    .map(|at| {
                        let mut all = outcomes.iter().map(|outcome| Form::from_value(&which(outcome)[at]));
                        let first = all.next().unwrap_or(Form::Array);
                        // Forms grow with each branch: in a second round every branch has the common form.
                        all.try_fold(first, |form, other| form.joined(&other, Join::Branches))
                    })
                    .collect::<Result<Vec<Form>, Problem>>()
            };
            let (result_forms, store_forms) =
                (common_forms(|outcome| &outcome.0)?, common_forms(|outcome| &outcome.1)?);
            let are = |values: &[Value], forms: &[Form]| {
                values.iter().zip(forms).all(|(value, form)| Form::from_value(value) == *form)
            };
            let is_uniform =
                outcomes.iter().all(|(results, stores)| are(results, &result_forms) && are(stores, &store_forms));
            if !is_uniform {
                this.go_back(mark);
                forms = Some((result_forms, store_forms));
                continue;
            }
            let operand = this.e.tuple(&carried.state);
            let operands: Vec<InstrId> = [selector].into_iter().chain(comps.iter().map(|_| operand)).collect();
            let chosen = this.e.emit(Op::Conditional(Conditional { branches: comps }), &operands, None);
            let n = this.e.shape(chosen).as_tuple().map_or(0, <[Shape]>::len);
            let elements: Vec<InstrId> = (0..n).map(|index| this.e.get_tuple_element(chosen, index)).collect();
            let mut elements = elements.into_iter();
            let (results, _) = outcomes.pop().unwrap_or_default();
            let results = results.into_iter().map(|value| match value {
                Value::Array(_) | Value::List(_) => super::carried::taken(&Form::from_value(&value), &mut elements),
                other => other,
            });
            let results = results.collect();
            let stores = carried.stores.iter().zip(store_forms).filter_map(|((store, _), form)| match form {
                Form::List(kind) => Some((*store, *kind)),
                Form::Array => None,
            });
            this.write_back(&carried.variables, &stores.collect::<Vec<_>>(), &mut elements);
            return Ok(results);
        }
        Err(Problem::new("its branches give lists of forms that no list holds"))
    }
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

/// The error of a node inside a function, as a problem of the calling node.
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
