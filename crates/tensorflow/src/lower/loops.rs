//! Lowers loops of version 1 (frames) and 2 (functions) as `while` over the values, variables and stores that they carry.

use std::rc::Rc;

use super::carried::{Carried, Effects, Form, Store, flat, promoted};
use super::flow::MAX_FORMS;
use super::frames::{Frame, Frames};
use super::list::Join;
use super::{Lowering, Scope, Value};
use crate::error::{GraphError, Problem};
use crate::graph::Body;
use crate::node::{Edge, Node};
use bf16scope_hlo::{CompId, InstrId, Op};

/// A loop's condition or body, as a function of the values at the start of a trip.
type Inside<'a, 'g, T> = &'a dyn Fn(&mut Lowering<'g>, Vec<Value>) -> Result<T, GraphError>;

/// A loop as it is written: its computations, and values, variables and stores after a trip.
struct Written {
    condition: CompId,
    body: CompId,
    results: Vec<Value>,
    effects: Effects,
}

/// Facts about values and stores before the loop: their forms, and whether pushes on them stay within a bound.
struct Before {
    forms: Vec<Form>,
    stores: Vec<Option<Form>>,
    are_bounded: Vec<bool>,
    stores_are_bounded: Vec<bool>,
}

impl Before {
    fn new(values: &[Value], stores: &[Store]) -> Before {
        let store_form = |store: &Store| store.list.as_ref().map(|list| Form::List(Box::new(list.kind.clone())));
        let is_bounded = |value: &Value| matches!(value, Value::List(list) if list.kind.is_bounded);
        Before {
            forms: values.iter().map(Form::from_value).collect(),
            stores: stores.iter().map(store_form).collect(),
            are_bounded: values.iter().map(is_bounded).collect(),
            stores_are_bounded: stores.iter().map(Store::is_bounded).collect(),
        }
    }
}

/// A frame of version 1, and the nodes by which values enter it: first those of loop variables, which reach a merge, then
/// those of loop invariants.
struct Entry<'f> {
    frame: &'f Frame,
    enters: Vec<usize>,
}

impl<'f> Entry<'f> {
    fn new(body: &Body, frame: &'f Frame) -> Result<Entry<'f>, Problem> {
        let mut enters = Vec::new();
        for &merge in &frame.merges {
            let is_enter = |edge: &&Edge| body.nodes[edge.node].op.ends_with("Enter");
            match body.nodes[merge].inputs.iter().find(is_enter) {
                Some(enter) => enters.push(enter.node),
                None => return Err(Problem::new("a value of its loop enters nowhere")),
            }
        }
        let others: Vec<usize> = frame.enters.iter().filter(|enter| !enters.contains(enter)).copied().collect();
        enters.extend(others);
        Ok(Entry { frame, enters })
    }

    /// A scope in which the loop has these values.
    fn scope(&self, values: Vec<Value>) -> Scope {
        let mut inner = Scope::default();
        for (at, value) in values.into_iter().enumerate() {
            for node in [Some(self.enters[at]), self.frame.merges.get(at).copied()].into_iter().flatten() {
                inner.values.insert(Edge { node, output: 0 }, value.clone());
                inner.done.insert(node);
            }
        }
        inner
    }
}

impl<'g> Lowering<'g> {
    /// A loop over values. It is rewritten until its inputs and outputs have the same forms, since only a trip shows what lists
    /// hold.
    pub(super) fn looped(
        &mut self,
        name: &str,
        mut values: Vec<Value>,
        is_invariant: &[bool],
        condition: Inside<'_, 'g, InstrId>,
        body: Inside<'_, 'g, Vec<Value>>,
        error: &dyn Fn(&Self, Problem) -> GraphError,
    ) -> Result<Vec<Value>, GraphError> {
        let before = Before::new(&values, &self.stores);
        for _ in 0..MAX_FORMS {
            let carried = self.carried(&values, is_invariant).map_err(|problem| error(self, problem))?;
            let mark = self.mark();
            let written = self.write_loop(name, &carried, condition, body)?;
            let forms = self.forms_needed(&carried, &written, &values, &before);
            let (forms, stores) = forms.map_err(|problem| error(self, problem))?;
            if is_settled(&carried, &written, &values, &forms, &stores) {
                let results = self.emit_loop(&carried, &written, values, &before);
                return results.map_err(|problem| error(self, problem));
            }
            self.go_back(mark);
            values = values.iter().zip(&forms).map(|(value, form)| promoted(&self.e, value, form)).collect();
            for ((store, _), form) in carried.stores.iter().zip(&stores) {
                let list = Value::List(self.store(*store).map_err(|problem| error(self, problem))?);
                if let Value::List(list) = promoted(&self.e, &list, form) {
                    self.stores[*store].list = Some(list);
                }
            }
        }
        let problem = Problem::new(format!("its lists change their form on {MAX_FORMS} trips"));
        Err(error(self, problem.with_help("write elements of one shape to a TensorArray")))
    }

    /// Writes a loop's condition and body as computations.
    fn write_loop(
        &mut self,
        name: &str,
        carried: &Carried,
        condition: Inside<'_, 'g, InstrId>,
        body: Inside<'_, 'g, Vec<Value>>,
    ) -> Result<Written, GraphError> {
        let shapes = self.shapes(carried);
        let condition = self.inside(&format!("{name}_condition"), &shapes, |this, elements| {
            Ok(vec![this.with_carried(carried, elements, condition)?.0])
        })?;
        let mut results: Vec<Value> = Vec::new();
        let mut effects = Effects::default();
        let body = self.inside(&format!("{name}_body"), &shapes, |this, elements| {
            (results, effects) = this.with_carried(carried, elements, body)?;
            let states = carried.is_state().zip(&results).filter(|(is_state, _)| *is_state);
            let mut arrays: Vec<InstrId> = states.flat_map(|(_, value)| flat(&this.e, value)).collect();
            arrays.extend(&effects.variables);
            arrays.extend(effects.stores.iter().flat_map(|store| flat(&this.e, store)));
            Ok(arrays)
        })?;
        Ok(Written { condition, body, results, effects })
    }

    /// The forms that values and stores need before the first trip.
    fn forms_needed(
        &self,
        carried: &Carried,
        written: &Written,
        values: &[Value],
        before: &Before,
    ) -> Result<(Vec<Form>, Vec<Form>), Problem> {
        let n_trips = || self.n_trips(written.condition, written.body, &carried.state);
        let joined = |form: Form, original: &Form, after: &Value| match form == Form::from_value(after) {
            true => Ok(form),
            false => form.forgetful(original).joined(&Form::from_value(after), Join::Loop(n_trips())),
        };
        let pairs = values.iter().zip(&before.forms).zip(carried.is_state()).zip(&written.results);
        let forms = pairs.map(|(((value, original), is_state), after)| match is_state {
            true => joined(Form::from_value(value), original, after),
            false => Ok(Form::from_value(value)),
        });
        let forms = forms.collect::<Result<Vec<Form>, Problem>>()?;
        let stores = carried.stores.iter().zip(&written.effects.stores).map(|((store, kind), after)| {
            let form = Form::List(Box::new(kind.clone()));
            let original = before.stores.get(*store).cloned().flatten().unwrap_or_else(|| form.clone());
            joined(form, &original, after)
        });
        Ok((forms, stores.collect::<Result<Vec<Form>, Problem>>()?))
    }

    /// The values after a loop whose forms are settled.
    fn emit_loop(
        &mut self,
        carried: &Carried,
        written: &Written,
        values: Vec<Value>,
        before: &Before,
    ) -> Result<Vec<Value>, Problem> {
        let (condition, body) = (written.condition, written.body);
        let last = self.e.emit(Op::While { condition, body }, &[self.e.tuple(&carried.state)], None);
        let elements: Vec<InstrId> =
            (0..carried.state.len()).map(|index| self.e.get_tuple_element(last, index)).collect();
        let counts = self.counts(condition, body, &carried.state);
        let comp = self.e.comp();
        self.counts.extend(counts.into_iter().map(|(at, most)| ((comp, elements[at]), most)));
        let mut results = self.after(carried, values, &mut elements.into_iter());
        // The loop's bound does not apply to pushes after the loop.
        results.iter_mut().zip(&before.are_bounded).for_each(|(value, was)| {
            if let Value::List(list) = value {
                Rc::make_mut(list).kind.is_bounded = *was;
            }
        });
        self.settle_grown((condition, body, &carried.state[..]), &before.forms, &mut results)?;
        for (store, _) in &carried.stores {
            self.stores[*store].set_bounded(before.stores_are_bounded.get(*store) == Some(&true));
        }
        Ok(results)
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
        if frames.is_opened(idx) {
            let edge = frames.after_step(body, idx).or(node.inputs.first().copied());
            let value = edge.and_then(|edge| scope.values.get(&edge)).cloned();
            scope.values.insert(Edge { node: idx, output: 0 }, value.unwrap_or(Value::Nothing));
            scope.done.insert(idx);
            return Ok(());
        }
        let Some(frame) = frames.of_node.get(&idx).map(|frame| &frames.frames[*frame]) else {
            return Err(self.error(node, Problem::new("it leaves a loop that nothing enters")));
        };
        let entry = Entry::new(body, frame).map_err(|problem| self.error(node, problem))?;
        let results = self.frame_loop(body, frames, scope, node, &entry)?;
        // An exit reads a switch's other output, directly or behind nodes that run only on the last trip (a gradient's
        // identities).
        let mut last = entry.scope(results);
        for &exit in &frame.exits {
            let Some(input) = body.nodes[exit].inputs.first() else { continue };
            self.run(body, frames, &mut last, &[input.node])?;
            if let Some(value) = last.values.get(input) {
                scope.values.insert(Edge { node: exit, output: 0 }, value.clone());
                scope.done.insert(exit);
            }
        }
        match scope.done.contains(&idx) {
            true => Ok(()),
            false => {
                Err(self.error(node, Problem::new("it leaves its loop with a value that the loop does not carry")))
            }
        }
    }

    /// The values that a frame's loop carries, after its last trip.
    fn frame_loop(
        &mut self,
        body: &'g Body,
        frames: &Frames,
        scope: &Scope,
        node: &'g Node,
        entry: &Entry<'_>,
    ) -> Result<Vec<Value>, GraphError> {
        let (frame, enters) = (entry.frame, &entry.enters);
        let Some(condition) = frame.condition else {
            return Err(self.error(node, Problem::new("its loop has no condition")));
        };
        let Some(condition_edge) = body.nodes[condition].inputs.first().copied() else {
            return Err(self.error(node, Problem::new("its condition has no input")));
        };
        let entering = |enter: &usize| {
            let value = body.nodes[*enter].inputs.first().and_then(|edge| scope.values.get(edge));
            value.cloned().unwrap_or(Value::Nothing)
        };
        let values: Vec<Value> = enters.iter().map(entering).collect();
        let is_invariant: Vec<bool> = (0..enters.len()).map(|at| at >= frame.merges.len()).collect();
        let name = frame.name.rsplit('/').next().unwrap_or("while").to_string();
        let condition = |this: &mut Self, values: Vec<Value>| {
            let mut inner = entry.scope(values);
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
            let mut inner = entry.scope(values.clone());
            this.run(body, frames, &mut inner, &targets)?;
            let results = nexts.iter().map(|edge| inner.values.get(edge).cloned().unwrap_or(Value::Nothing));
            Ok(results.chain(values.into_iter().skip(nexts.len())).collect::<Vec<_>>())
        };
        let error = |this: &Self, problem: Problem| this.error(node, problem);
        self.looped(&name, values, &is_invariant, &condition, &trip, &error)
    }
}

/// Whether values and stores had the forms before the first trip that they have after one.
fn is_settled(carried: &Carried, written: &Written, values: &[Value], forms: &[Form], stores: &[Form]) -> bool {
    let is_fixed = |before: &Form, after: &Form, value: Option<&Value>| {
        before == after && value.is_none_or(|value| Form::from_value(value) == *after)
    };
    let mut pairs = values.iter().zip(carried.is_state()).zip(forms).enumerate();
    let values_are = pairs.all(|(at, ((value, is_state), form))| {
        !is_state || is_fixed(&Form::from_value(value), form, written.results.get(at))
    });
    let kinds = carried.stores.iter().map(|(_, kind)| Form::List(Box::new(kind.clone())));
    let mut stores = kinds.zip(stores).zip(&written.effects.stores);
    values_are && stores.all(|((kind, form), after)| is_fixed(&kind, form, Some(after)))
}
