//! Carries values into and out of loops and branches: as elements of their state, as constants, or unchanged (handles).

use std::rc::Rc;

use super::list::{Join, List, ListKind};
use super::{Lowering, Value};
use crate::error::{GraphError, Problem};
use bf16scope_hlo::{DType, Emitter, InstrId, Literal, Op, Shape};

/// A list that is reached through handles: a `Stack`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    /// `None` in a loop or branch that the stack is not passed to.
    pub list: Option<Rc<List>>,
}

impl Store {
    pub(super) fn is_bounded(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.kind.is_bounded)
    }

    pub(super) fn set_bounded(&mut self, is_bounded: bool) {
        if let Some(list) = &mut self.list {
            Rc::make_mut(list).kind.is_bounded = is_bounded;
        }
    }
}

/// The form of a value in a state.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Array,
    List(Box<ListKind>),
}

/// How an outer value is passed into a loop or branch.
#[derive(Clone, Debug)]
pub(super) enum Handed {
    State(Form),
    /// The same constant, written again inside.
    Constant(Literal),
    /// A handle, which is the same inside.
    Same(Value),
}

/// The inputs of a loop or branch: values, and the variables and stores that they refer to.
#[derive(Debug)]
pub(super) struct Carried {
    pub values: Vec<Handed>,
    pub variables: Vec<usize>,
    pub stores: Vec<(usize, ListKind)>,
    /// The elements of the state: those of values, then of variables, then of stores.
    pub state: Vec<InstrId>,
}

/// Variables and stores after a loop or branch.
#[derive(Clone, Debug, Default)]
pub(super) struct Effects {
    pub variables: Vec<InstrId>,
    pub stores: Vec<Value>,
}

/// A point in the writing of a module to roll back to.
pub(super) struct Mark {
    n_computations: usize,
    n_stores: usize,
    n_arrays: usize,
    left_out: std::collections::BTreeMap<String, usize>,
}

impl Carried {
    /// For each value whether it is in the state.
    pub(super) fn is_state(&self) -> impl Iterator<Item = bool> + '_ {
        self.values.iter().map(|handed| matches!(handed, Handed::State(_)))
    }
}

impl Form {
    pub(super) fn from_value(value: &Value) -> Form {
        match value {
            Value::List(list) => Form::List(Box::new(list.kind.clone())),
            _ => Form::Array,
        }
    }

    /// The same form, without facts that `original` does not know yet.
    pub(super) fn forgetful(self, original: &Form) -> Form {
        match (self, original) {
            (Form::List(kind), Form::List(original)) => Form::List(Box::new(kind.forgetful(original))),
            // A flow of zero: the trip determines the form.
            (Form::List(_), Form::Array) => Form::Array,
            (form, _) => form,
        }
    }

    /// The form that holds values of both.
    pub(super) fn joined(&self, other: &Form, by: Join) -> Result<Form, Problem> {
        Ok(match (self, other) {
            (Form::Array, Form::Array) => Form::Array,
            // A flow of zero is a list of zeros.
            (Form::List(kind), Form::Array) | (Form::Array, Form::List(kind)) => Form::List(kind.clone()),
            (Form::List(a), Form::List(b)) => Form::List(Box::new(a.joined(b, by)?)),
        })
    }
}

/// The arrays of a value.
pub(super) fn flat(e: &Emitter, value: &Value) -> Vec<InstrId> {
    match value {
        Value::Array(id) => vec![*id],
        Value::List(list) => list.carried(e),
        Value::Variable(_) | Value::Store(_) | Value::Handle(_) | Value::Nothing => Vec::new(),
    }
}

/// A value in a form that holds it.
pub(super) fn promoted(e: &Emitter, value: &Value, form: &Form) -> Value {
    match (value, form) {
        (Value::List(list), Form::List(kind)) => Value::List(Rc::new(list.promoted(e, kind))),
        (Value::Array(_), Form::List(kind)) => {
            let mut list = List::zeros((**kind).clone());
            list.len = kind.n.is_none().then(|| e.scalar(DType::S32, 0.0));
            Value::List(Rc::new(list))
        }
        (value, _) => value.clone(),
    }
}

/// The next value of a form, from the next elements of a state.
pub(super) fn taken(form: &Form, elements: &mut impl Iterator<Item = InstrId>) -> Value {
    match form {
        Form::Array => elements.next().map_or(Value::Nothing, Value::Array),
        Form::List(kind) => {
            let leaves = elements.take(kind.leaves().len()).collect();
            Value::List(Rc::new(List::from_carried(kind, leaves)))
        }
    }
}

impl<'g> Lowering<'g> {
    /// How values are passed in. A value that is the same on every trip may be a constant inside.
    pub(super) fn carried(&mut self, values: &[Value], is_invariant: &[bool]) -> Result<Carried, Problem> {
        let mut carried = Carried { values: Vec::new(), variables: Vec::new(), stores: Vec::new(), state: Vec::new() };
        for (value, is_invariant) in values.iter().zip(is_invariant) {
            carried.values.push(match value {
                Value::Array(id) => match is_invariant.then(|| self.literal(*id)).flatten() {
                    Some(literal) => Handed::Constant(literal),
                    None => Handed::State(Form::Array),
                },
                Value::List(_) => Handed::State(Form::from_value(value)),
                other => Handed::Same(other.clone()),
            });
            if let Some(Handed::State(_)) = carried.values.last() {
                carried.state.extend(flat(&self.e, value));
            }
            match value {
                Value::Variable(variable) if !carried.variables.contains(variable) => carried.variables.push(*variable),
                Value::Store(store) if !carried.stores.iter().any(|(known, _)| known == store) => {
                    let list = self.store(*store)?;
                    carried.stores.push((*store, list.kind.clone()));
                }
                _ => {}
            }
        }
        carried.variables.extend(self.random);
        for variable in &carried.variables {
            let value = self.read(*variable)?;
            carried.state.push(value);
        }
        for (store, _) in &carried.stores {
            let list = self.store(*store)?;
            carried.state.extend(list.carried(&self.e));
        }
        Ok(carried)
    }

    /// The shapes of a state.
    pub(super) fn shapes(&self, carried: &Carried) -> Vec<Shape> {
        carried.state.iter().map(|id| self.e.shape(*id)).collect()
    }

    /// A small constant that is known, as a literal.
    pub(crate) fn literal(&self, id: InstrId) -> Option<Literal> {
        let known = self.known(id)?;
        let constant = self.e.with_module(|module| match &module.comp(self.e.comp()).instr(id).op {
            Op::Constant(literal) => Some(literal.clone()),
            _ => None,
        });
        constant.or_else(|| {
            let whole = known.values.iter().map(|value| value.whole()).collect::<Option<Vec<i64>>>()?;
            match known.dtype {
                DType::S64 => Some(Literal::from_elements(known.dims.clone(), &whole)),
                DType::S32 => {
                    let narrow = whole.iter().map(|value| i32::try_from(*value).ok()).collect::<Option<Vec<i32>>>()?;
                    Some(Literal::from_elements(known.dims.clone(), &narrow))
                }
                _ => None,
            }
        })
    }

    /// Runs `write` with the values inside a computation; also returns the variables and stores after it.
    pub(super) fn with_carried<T>(
        &mut self,
        carried: &Carried,
        elements: &[InstrId],
        write: impl FnOnce(&mut Self, Vec<Value>) -> Result<T, GraphError>,
    ) -> Result<(T, Effects), GraphError> {
        let variables: Vec<Option<InstrId>> = self.variables.iter_mut().map(|variable| variable.value.take()).collect();
        let stores: Vec<Option<Rc<List>>> = self.stores.iter_mut().map(|store| store.list.take()).collect();
        let mut elements = elements.iter().copied();
        let mut values = Vec::new();
        for handed in &carried.values {
            values.push(match handed {
                Handed::State(form) => taken(form, &mut elements),
                Handed::Constant(literal) => Value::Array(self.e.constant(literal.clone())),
                Handed::Same(value) => value.clone(),
            });
        }
        for variable in &carried.variables {
            self.variables[*variable].value = elements.next();
        }
        for (store, kind) in &carried.stores {
            if let Value::List(list) = taken(&Form::List(Box::new(kind.clone())), &mut elements) {
                self.stores[*store].list = Some(list);
            }
        }
        let written = write(self, values);
        let effects = Effects {
            variables: carried.variables.iter().filter_map(|variable| self.variables[*variable].value).collect(),
            stores: carried
                .stores
                .iter()
                .filter_map(|(store, _)| Some(Value::List(self.stores[*store].list.clone()?)))
                .collect(),
        };
        for (variable, value) in self.variables.iter_mut().zip(variables) {
            variable.value = value;
        }
        for (at, store) in self.stores.iter_mut().enumerate() {
            store.list = stores.get(at).cloned().flatten();
        }
        Ok((written?, effects))
    }

    /// The values after a loop that left `elements` as its state.
    pub(super) fn after(
        &mut self,
        carried: &Carried,
        values: Vec<Value>,
        elements: &mut impl Iterator<Item = InstrId>,
    ) -> Vec<Value> {
        let result = |(handed, outer): (&Handed, Value)| match handed {
            Handed::State(form) => taken(form, elements),
            Handed::Constant(_) | Handed::Same(_) => outer,
        };
        let results = carried.values.iter().zip(values).map(result).collect();
        self.write_back(&carried.variables, &carried.stores, elements);
        results
    }

    /// Sets variables and stores to their values after a loop or branch.
    pub(super) fn write_back(
        &mut self,
        variables: &[usize],
        stores: &[(usize, ListKind)],
        elements: &mut impl Iterator<Item = InstrId>,
    ) {
        for variable in variables {
            self.variables[*variable].value = elements.next();
        }
        for (store, kind) in stores {
            if let Value::List(list) = taken(&Form::List(Box::new(kind.clone())), elements) {
                self.stores[*store].list = Some(list);
            }
        }
    }

    /// The current point in the writing of the module.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            n_computations: self.e.with_module(|module| module.computations.len()),
            n_stores: self.stores.len(),
            n_arrays: self.n_arrays,
            left_out: self.left_out.clone(),
        }
    }

    /// Rolls back to a mark: removes the computations that were written since.
    pub(super) fn go_back(&mut self, mark: Mark) {
        self.e.with_module_mut(|module| module.computations.truncate(mark.n_computations));
        self.memory.borrow_mut().forget(mark.n_computations);
        self.counts.retain(|(comp, _), _| comp.idx() < mark.n_computations);
        self.grown.retain(|(comp, _)| comp.idx() < mark.n_computations);
        self.stores.truncate(mark.n_stores);
        // Lists that are written again get the same numbers, which identify them.
        self.n_arrays = mark.n_arrays;
        self.left_out = mark.left_out;
    }

    /// The list of a store.
    pub(crate) fn store(&self, store: usize) -> Result<Rc<List>, Problem> {
        self.stores.get(store).and_then(|store| store.list.clone()).ok_or_else(|| {
            Problem::new("its stack is used in a loop or branch that it is not handed to")
                .with_help("make the stack where it is used, or hand it to the loop")
        })
    }
}
