//! The interface between an optimizer and the update: its rule, and its properties.
//!
//! A rule sees a variable as f32 (f64 where gradients are checked), whatever its storage, and never the previous step:
//! its memory is in slots, which [`RuleInputs`] declares. This file knows no particular optimizer.

use super::slot::{Slot, SlotSpec};
use super::slot_storage::{Moment, MomentumDtype};
use super::storage::Updated;
use crate::graph::{Graph, Init, Tensor};
use bf16scope_hlo::DType;

/// The settings of an optimizer, with its rule.
pub(super) trait Rule {
    /// The ε that it adds to the size of a gradient, the root of a mean of squares, before dividing by it; if ε is
    /// inside the root, √ε.
    fn added_to_size(&self) -> Option<f64> {
        None
    }

    /// The share of its sum or mean of gradients that it keeps in a step.
    fn kept_of_gradients(&self) -> Option<f64> {
        None
    }

    /// The form of weight decay in the rule.
    const DECAY: DecayForm = DecayForm::Gradient;

    /// Whether the rule divides by the learning rate, so that a schedule must not start at 0.
    const DIVIDES_BY_RATE: bool = false;

    /// Whether it has slots.
    const KEEPS_SLOTS: bool = true;

    /// Whether it reads the number of updates.
    fn reads_step(&self) -> bool {
        false
    }

    /// The storage of its first moments.
    fn first_moments(&mut self) -> FirstMoments<'_>;

    /// Declares and updates the slots of the variable; returns the value to subtract from the variable.
    fn emit(&self, inputs: &RuleInputs<'_>) -> Tensor;
}

/// The form of weight decay in an optimizer's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayForm {
    /// A term of the gradient, unless [`WeightDecay`](super::WeightDecay) is decoupled.
    Gradient,
    /// Subtracted in addition to the rule's change: always decoupled.
    Beside,
    /// A part of the rule, whose norms include it, but after the slots, which do not see it.
    InRule,
    /// A part of the rule, whose norms include it, in the input of the slots. It cannot be decoupled.
    InSlots,
}

impl DecayForm {
    /// Whether the rule itself reads the weight decay: its value, and whether the variable is excepted.
    pub(super) fn is_of_the_rule(self) -> bool {
        matches!(self, DecayForm::InRule | DecayForm::InSlots)
    }
}

/// The storage of an optimizer's first moments, its means of gradients or of steps.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstMoments<'a> {
    /// Chosen by this setting.
    StoredAs(&'a mut MomentumDtype),
    /// f32, unless [`SlotStorage`](super::SlotStorage) says otherwise.
    InF32,
    /// The optimizer has none.
    None {
        /// The reason, as a sentence: `sgd keeps no moments`.
        why: &'static str,
    },
}

/// The inputs of a rule for one variable at one step.
pub(super) struct RuleInputs<'a> {
    pub graph: &'a Graph,
    pub variable: &'a Updated<'a>,
    /// The gradient, with weight decay if [`Rule::DECAY`] adds it, clipped.
    pub gradient: &'a Tensor,
    /// The learning rate of the step, a scalar.
    pub learning_rate: &'a Tensor,
    /// The number of updates before this one, an s32 scalar.
    pub step: &'a Tensor,
    /// If decay is a part of the rule: its value, which may be 0, or `None` for an excepted variable.
    pub decay: Option<f64>,
}

impl<'a> RuleInputs<'a> {
    /// The variable before the step.
    pub fn value(&self) -> &'a Tensor {
        &self.variable.value
    }

    /// The dtype in which the update is computed.
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

    /// Declares the slot `<variable>/<name>`, initially zeros: a mean of gradients or of steps, which loses about a
    /// tenth of itself at every step.
    #[track_caller]
    pub fn first_moment(&self, name: &str, dtype: MomentumDtype) -> Slot<'a> {
        self.make(name, Moment::First(dtype), Init::Zeros, None)
    }

    /// Declares the slot `<variable>/<name>`, initially zeros.
    #[track_caller]
    pub fn slot(&self, name: &str) -> Slot<'a> {
        self.make(name, Moment::Other, Init::Zeros, None)
    }

    /// Declares the slot `<variable>/<name>`, initially filled with `value`.
    #[track_caller]
    pub fn filled_slot(&self, name: &str, value: f64) -> Slot<'a> {
        self.make(name, Moment::Other, Init::Constant(value), None)
    }

    /// Declares the slot `<variable>/<name>`, a scalar, initially `value`.
    #[track_caller]
    pub fn scalar_slot(&self, name: &str, value: f64) -> Slot<'a> {
        let spec = SlotSpec { name, moment: Moment::Scalar, dims: Vec::new(), part: None, init: Init::Constant(value) };
        Slot::new(self.graph, self.variable, spec)
    }

    /// Declares the slot `<variable>/<name>`, with the variable's dims without `axis`, initially zeros. If the variable
    /// is sharded along that axis, the slot is whole on all replicas.
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
