//! Slots: an optimizer's state about one variable, and what it is stored in.

use super::storage::Updated;
use crate::graph::{Graph, Init, Part, Tensor};
use crate::hlo::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What first moments (the slots `momentum` and `adam_m`) are stored in. As text: `f32`, `bf16`.
///
/// In bf16 a slot takes half the memory. It is read as f32, the update is computed in f32, the weights move by the
/// unrounded value, and what is stored for the next step is that value rounded to nearest even.
///
/// # What rounding loses
/// A stored first moment is off by at most 2^-8 of itself at each step, and what is off decays with the rest of the
/// moment: the errors of all steps together are at most `2^-8 · Σ β^i = 2^-8 / (1 − β)` of the largest moment, 4 % for
/// `β` = 0.9, and far less where they do not all point one way. A first moment loses a tenth of itself at every step,
/// far more than half an ulp, so it does not stall.
///
/// # Why there is no such thing for Adam's second moment
/// It changes by at most `1 − β2` = 0.001 of itself where gradients get smaller, and half an ulp of bf16 is 2^-9 to 2^-8
/// of it (0.002 to 0.004): every such step is rounded away, so a second moment in bf16 never falls, and weights whose
/// gradients were once large hardly move again. From zero, under equal gradients `g`, it stops rising at 0.20 to 0.34 of
/// g², and Adam's steps are 1.7 to 2.3 times too long. `numerics::accumulate` is this experiment on a weight;
/// `tests/training/slots.rs` has it for the second moment.
///
/// # Source
/// optax's `accumulator_dtype` of `sgd` and `mu_dtype` of `adam`, which know no dtype of the second moment either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MomentumDtype {
    /// The variable's own, which is f32 (f64 where gradients are checked).
    #[default]
    F32,
    /// bf16.
    Bf16,
}

impl MomentumDtype {
    /// The dtype of a slot of a variable of `variable`.
    pub(super) fn of(self, variable: DType) -> DType {
        match self {
            MomentumDtype::F32 => variable,
            MomentumDtype::Bf16 => DType::BF16,
        }
    }
}

/// What all slots are stored in, whatever the optimizer. As text: `f32`, `bf16`, `bf16_stochastic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotStorage {
    /// f32, but for first moments of which a [`MomentumDtype`] says bf16.
    #[default]
    F32,
    /// First moments in bf16, as [`MomentumDtype::Bf16`] has them, of any optimizer. The others stay f32: rounded to nearest
    /// they would stall, as described there.
    Bf16,
    /// Every slot in bf16, rounded up or down at random as [`Storage::Bf16Stochastic`](crate::graph::Storage) has it: a slot
    /// that changes by less than an ulp changes once in a while, and does not stall.
    Bf16Stochastic,
}

/// Slots that lose a tenth of themselves at every step, or so.
const FIRST_MOMENTS: [&str; 2] = ["momentum", "adam_m"];

impl SlotStorage {
    /// Every way.
    pub const ALL: [SlotStorage; 3] = [SlotStorage::F32, SlotStorage::Bf16, SlotStorage::Bf16Stochastic];

    /// As text.
    pub fn name(self) -> &'static str {
        match self {
            SlotStorage::F32 => "f32",
            SlotStorage::Bf16 => "bf16",
            SlotStorage::Bf16Stochastic => "bf16_stochastic",
        }
    }

    /// The dtype of the slot called `name`, which the optimizer would store in `dtype`.
    pub(super) fn of(self, name: &str, dtype: DType) -> DType {
        match self {
            SlotStorage::Bf16 if dtype == DType::F32 && FIRST_MOMENTS.contains(&name) => DType::BF16,
            SlotStorage::Bf16Stochastic if dtype == DType::F32 => DType::BF16,
            SlotStorage::F32 | SlotStorage::Bf16 | SlotStorage::Bf16Stochastic => dtype,
        }
    }
}

impl fmt::Display for SlotStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A slot of a program under construction.
pub(super) struct Slot<'a> {
    graph: &'a Graph,
    variable: &'a Updated<'a>,
    /// Its name under the variable's.
    name: String,
    number: usize,
    stored: DType,
    /// How it lies over replicas, if each has a part.
    pub part: Option<Part>,
    /// Before the step, in the variable's dtype.
    pub value: Tensor,
}

impl<'a> Slot<'a> {
    /// Makes `<variable>/<name>`, of the variable's dims, zeros at first.
    #[track_caller]
    pub fn new(graph: &'a Graph, variable: &'a Updated<'a>, name: &str, stored: DType) -> Slot<'a> {
        Slot::starting(graph, variable, name, stored, (variable.whole_dims(), variable.part), Init::Zeros)
    }

    /// Makes `<variable>/<name>`, of the variable's dims without `axis`, zeros at first. Where that axis is the one that the
    /// variable is split along, it is whole on all replicas.
    #[track_caller]
    pub fn without_axis(
        graph: &'a Graph,
        variable: &'a Updated<'a>,
        name: &str,
        stored: DType,
        axis: usize,
    ) -> Slot<'a> {
        let mut dims = variable.whole_dims();
        dims.remove(axis);
        let part = variable.part.and_then(|part| part.without(axis));
        Slot::starting(graph, variable, name, stored, (dims, part), Init::Zeros)
    }

    /// Makes `<variable>/<name>`, of the variable's dims and dtype, `value` all over at first.
    #[track_caller]
    pub fn filled(graph: &'a Graph, variable: &'a Updated<'a>, name: &str, value: f64) -> Slot<'a> {
        let shape = (variable.whole_dims(), variable.part);
        Slot::starting(graph, variable, name, variable.dtype, shape, Init::Constant(value))
    }

    #[track_caller]
    fn starting(
        graph: &'a Graph,
        variable: &'a Updated<'a>,
        name: &str,
        stored: DType,
        (dims, part): (Vec<i64>, Option<Part>),
        init: Init,
    ) -> Slot<'a> {
        let stored = variable.slot_dtype(name, stored);
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
