//! Slots: an optimizer's state of one variable, in a program under construction.

use super::slot_storage::Moment;
use super::storage::Updated;
use crate::graph::{Graph, Init, Tensor, VariableShard};
use bf16scope_hlo::DType;

/// A slot of a program under construction.
pub(super) struct Slot<'a> {
    graph: &'a Graph,
    variable: &'a Updated<'a>,
    /// The last level of its name.
    name: String,
    number: usize,
    stored: DType,
    /// Its sharding over replicas, if it is sharded.
    pub part: Option<VariableShard>,
    /// The value before the step, in the variable's dtype.
    pub value: Tensor,
}

/// The specification of a slot.
pub(super) struct SlotSpec<'n> {
    /// The last level of its name.
    pub name: &'n str,
    /// The kind of its content.
    pub moment: Moment,
    /// Dims of the whole.
    pub dims: Vec<i64>,
    /// Its sharding over replicas, if it is sharded.
    pub part: Option<VariableShard>,
    /// Its initial values.
    pub init: Init,
}

impl<'a> Slot<'a> {
    /// Declares it as state of the graph.
    #[track_caller]
    pub fn new(graph: &'a Graph, variable: &'a Updated<'a>, spec: SlotSpec<'_>) -> Slot<'a> {
        let SlotSpec { name, moment, dims, part, init } = spec;
        let stored = variable.slot_dtype(moment);
        let slot = graph.scope().within(&variable.name, |s| s.state_in_parts(name, stored, dims, init, part));
        let value = slot.value.cast(variable.dtype);
        Slot { graph, variable, name: name.to_string(), number: slot.number, stored, part, value }
    }

    /// Sets the value after the step, rounded to the slot's storage.
    #[track_caller]
    pub fn store(&self, value: &Tensor) {
        let full = format!("{}/{}", self.variable.name, self.name);
        self.graph.set_update(self.number, &self.variable.slot_value(&full, value, self.stored, self.part));
    }
}
