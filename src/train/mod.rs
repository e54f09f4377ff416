//! Training: experiments, programs, the loop, checkpoints.
//!
//! An [`Experiment`] (a YAML file) says what is trained. [`program`] makes the programs, [`Session`] holds a model on a
//! device and makes steps, [`run`] trains it over epochs and ends well whatever happens, [`checkpoint`] keeps its state.
//!
//! Everything is a function of the experiment, the precision and the data: on one processor the same run gives bitwise
//! the same weights, also across a stop and a resumption. This room does IO but prints nothing.

mod accumulation;
pub mod checkpoint;
mod error;
mod experiment;
mod memory;
pub mod program;
pub mod resume;
mod run;
mod session;

pub use error::{Kept, TrainError};
pub use experiment::{DataConfig, Experiment, TrainConfig, default_checkpoint};
pub use program::{Objective, ProgramError};
pub use run::{Data, EpochReport, Event, Plan, Summary, check, run};
pub use session::{Evaluation, Evaluator, Session, Spec, StepReport, check_data, compile};
