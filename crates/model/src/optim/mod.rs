//! Optimizers and learning rates, emitted into the training program.
//!
//! [`Update`] is the entry point: from gradients and the step it sets the new value of each variable, and of each
//! *slot*, the optimizer's own state of a variable. The arithmetic is f32, whatever the network computes in. Variables
//! are f32 too, unless the graph's [`Storage`](crate::graph::Storage) says otherwise, and so are slots, unless
//! [`MomentumDtype`] or [`SlotStorage`] makes them bf16. There is no state on the host: the step is an input of the
//! program.
//!
//! An [`Optimizer`] is a file in `optimizer/` and a line of the table in `optimizer.rs`.
//!
//! [`LossScale`] scales the loss of an f16 network. `passes::grad` emits gradients, and `train` runs the program.

mod average;
mod clip;
mod loss_scale;
mod number;
mod optimizer;
mod rounding;
mod rule;
mod schedule;
mod slot;
mod slot_storage;
mod storage;
mod update;
mod weight_decay;

pub use average::Average;
pub use clip::Clip;
pub use loss_scale::{LossScale, Scaling, UnknownLossScale};
pub use optimizer::*;
pub use rounding::{ROUNDING_KEY, RoundingNoise, round_stochastically};
pub use rule::{DecayForm, FirstMoments};
pub use schedule::{Anneal, LearningRate, RateChange, RateDrop, WarmUp};
pub use slot_storage::{MomentumDtype, SlotStorage};
pub use storage::Kept;
pub use storage::LOW;
pub use update::{Update, VariableGroup};
pub use weight_decay::WeightDecay;
