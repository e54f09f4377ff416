//! Slots: an optimizer's state about one variable, in a program under construction.

use super::slot_storage::Moment;
use super::storage::Updated;
use crate::graph::{Graph, Init, Tensor, VariableShard};
use bf16scope_hlo::DType;

/// A slot of a program under construction.
pub(super) struct Slot<'a> {
    graph: &'a Graph,
    variable: &'a Updated<'a>,
    /// Its name under the variable's.
    name: String,
    number: usize,
    stored: DType,
    /// How it lies over replicas, if each has a part.
    pub part: Option<VariableShard>,
    /// Before the step, in the variable's dtype.
    pub value: Tensor,
}

/// What a slot is to be.
pub(super) struct SlotSpec<'n> {
    /// Its name under the variable's.
    pub name: &'n str,
    /// What it holds.
    pub moment: Moment,
    /// Its dims, whole.
    pub dims: Vec<i64>,
    /// How it lies over replicas, if each has a part.
    pub part: Option<VariableShard>,
    /// What it is at first.
    pub init: Init,
}

impl<'a> Slot<'a> {
    /// Makes it, as state of the graph.
    #[track_caller]
    pub fn new(graph: &'a Graph, variable: &'a Updated<'a>, spec: SlotSpec<'_>) -> Slot<'a> {
        let SlotSpec { name, moment, dims, part, init } = spec;
        let stored = variable.slot_dtype(moment);
        let slot = graph.scope().within(&variable.name, |s| s.state_in_parts(name, stored, dims, init, part));
        let value = slot.value.cast(variable.dtype);
        Slot { graph, variable, name: name.to_string(), number: slot.number, stored, part, value }
    }

    /// Sets the value after the step, rounded to what the slot is stored in.
    #[track_caller]
    pub fn store(&self, value: &Tensor) {
        let full = format!("{}/{}", self.variable.name, self.name);
        self.graph.set_update(self.number, &self.variable.slot_value(&full, value, self.stored, self.part));
    }
}
