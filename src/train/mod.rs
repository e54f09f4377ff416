//! Training: experiments, programs, the loop, checkpoints.
//!
//! An [`Experiment`] (a YAML file) or a [`Spec`] says what is trained: any [`Task`](crate::task::Task). [`program`] makes its
//! programs, [`Session`] holds it on a device and makes steps, [`run`] trains it over epochs of a
//! [`Source`](crate::data::Source) and ends well whatever happens, [`checkpoint`] keeps its state.
//!
//! Everything is a function of the experiment, the precision and the data: on one processor the same run gives bitwise
//! the same weights, also across a stop and a resumption. This room does IO but prints nothing.

mod accumulation;
mod change;
pub mod checkpoint;
mod device;
mod error;
mod evaluation;
mod forward;
mod generation;
mod hosts;
mod memory;
mod mesh;
mod model_axis;
mod objective;
pub mod package;
pub mod program;
mod rates;
pub mod resume;
mod run;
mod session;
mod spec;
mod steps_per_call;
mod totals;

pub use change::Change;
pub use device::compile;
pub use error::{Kept, TrainError};
pub use evaluation::{Evaluation, Evaluator, Predictor};
pub use generation::{Completer, Sampling};
pub use mesh::{MAX_REPLICAS, Mesh, MeshConfig, StateOf, Statistics, SumOf};
pub use model_axis::over_model_axis;
pub use objective::{Objective, ProgramError};
pub use rates::rates;
pub use resume::Resumption;
pub use run::{Data, EpochReport, Event, Plan, Summary, check, check_average, run};
pub use session::Session;
pub use spec::Spec;
pub use steps_per_call::{StepsPerCall, UnknownStepsPerCall, several_steps};
pub use totals::Totals;
