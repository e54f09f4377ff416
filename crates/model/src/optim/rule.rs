//! What an optimizer is to the update: its rule, and what it says about itself.
//!
//! A rule sees a variable as f32 (f64 where gradients are checked), whatever it is stored in, and never the step before:
//! what it remembers it keeps in slots, which [`Given`] makes. This file knows no optimizer.

use super::slot::{Slot, SlotSpec};
use super::slot_storage::{Moment, MomentumDtype};
use super::storage::Updated;
use crate::graph::{Graph, Init, Tensor};
use bf16scope_hlo::DType;

/// The settings of an optimizer, and the rule that they are of.
pub(super) trait Rule {
    /// What it adds to the size of a gradient, the root of a mean of squares, before it divides by it; where ε is inside of the root,
    /// the root of ε.
    fn added_to_size(&self) -> Option<f64> {
        None
    }

    /// What weight decay is in the rule.
    const DECAY: DecayForm = DecayForm::Gradient;

    /// Whether the rule divides by the learning rate, so that a schedule must not start at 0.
    const DIVIDES_BY_RATE: bool = false;

    /// Whether it has any slots.
    const KEEPS_SLOTS: bool = true;

    /// Whether it reads how many updates there were.
    fn reads_step(&self) -> bool {
        false
    }

    /// What its first moments are stored in.
    fn first_moments(&mut self) -> FirstMoments<'_>;

    /// Makes and updates the slots of the variable; gives what is to be subtracted from its value.
    fn emit(&self, given: &Given<'_>) -> Tensor;
}

/// What weight decay is in an optimizer's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayForm {
    /// A term of the gradient, unless [`WeightDecay`](super::WeightDecay) says that it is decoupled.
    Gradient,
    /// Subtracted beside what the rule subtracts: always decoupled.
    Beside,
    /// A part of the rule, which takes norms of it: after the slots, so that they do not see it.
    InRule,
    /// A part of the rule, which takes norms of it: in what the slots see. It cannot be decoupled.
    InSlots,
}

impl DecayForm {
    /// Whether the rule itself makes use of weight decay: its value, and which variables it excepts.
    pub(super) fn is_of_the_rule(self) -> bool {
        matches!(self, DecayForm::InRule | DecayForm::InSlots)
    }
}

/// What an optimizer's first moments, its means of gradients or of steps, are stored in.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstMoments<'a> {
    /// What this setting says.
    StoredAs(&'a mut MomentumDtype),
    /// f32, unless [`SlotStorage`](super::SlotStorage) says otherwise.
    InF32,
    /// It keeps none.
    None {
        /// In words: `sgd keeps no moments`.
        why: &'static str,
    },
}

/// What a rule is given of one variable at one step.
pub(super) struct Given<'a> {
    pub graph: &'a Graph,
    pub variable: &'a Updated<'a>,
    /// The gradient, with weight decay as [`Rule::DECAY`] says, clipped.
    pub gradient: &'a Tensor,
    /// The learning rate of the step, a scalar.
    pub learning_rate: &'a Tensor,
    /// The number of updates made before this one, an s32 scalar.
    pub step: &'a Tensor,
    /// Where decay is a part of the rule: its value, which may be 0, or `None` of a variable that is excepted.
    pub decay: Option<f64>,
}

impl<'a> Given<'a> {
    /// What the variable is before the step.
    pub fn value(&self) -> &'a Tensor {
        &self.variable.value
    }

    /// What the update is computed in.
    pub fn dtype(&self) -> DType {
        self.variable.dtype
    }

    /// A constant.
    #[track_caller]
    pub fn scalar(&self, value: f64) -> Tensor {
        self.graph.scalar(self.dtype(), value)
    }

    /// The number of this update: 1 at the first.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        self.step.cast(self.dtype()) + 1.0
    }

    /// Makes the slot `<variable>/<name>`, zeros at first: a mean of gradients or of steps, of which a tenth or so goes at
    /// every step.
    #[track_caller]
    pub fn first_moment(&self, name: &str, dtype: MomentumDtype) -> Slot<'a> {
        self.make(name, Moment::First(dtype), Init::Zeros, None)
    }

    /// Makes the slot `<variable>/<name>`, zeros at first.
    #[track_caller]
    pub fn slot(&self, name: &str) -> Slot<'a> {
        self.make(name, Moment::Other, Init::Zeros, None)
    }

    /// Makes the slot `<variable>/<name>`, `value` all over at first.
    #[track_caller]
    pub fn filled_slot(&self, name: &str, value: f64) -> Slot<'a> {
        self.make(name, Moment::Other, Init::Constant(value), None)
    }

    /// Makes the slot `<variable>/<name>`, one number, `value` at first.
    #[track_caller]
    pub fn scalar_slot(&self, name: &str, value: f64) -> Slot<'a> {
        let spec = SlotSpec { name, moment: Moment::Scalar, dims: Vec::new(), part: None, init: Init::Constant(value) };
        Slot::new(self.graph, self.variable, spec)
    }

    /// Makes the slot `<variable>/<name>`, of the variable's dims without `axis`, zeros at first. Where that axis is the one
    /// that the variable is split along, it is whole on all replicas.
    #[track_caller]
    pub fn slot_without_axis(&self, name: &str, axis: usize) -> Slot<'a> {
        self.make(name, Moment::Other, Init::Zeros, Some(axis))
    }

    #[track_caller]
    fn make(&self, name: &str, moment: Moment, init: Init, without_axis: Option<usize>) -> Slot<'a> {
        let (mut dims, mut part) = (self.variable.whole_dims(), self.variable.part);
        if let Some(axis) = without_axis {
            dims.remove(axis);
            part = part.and_then(|part| part.without(axis));
        }
        Slot::new(self.graph, self.variable, SlotSpec { name, moment, dims, part, init })
    }
}
