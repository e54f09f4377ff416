//! Trains tasks: builds their programs, runs them on a device, writes checkpoints.
//!
//! Start with [`Trainer`]: a [`Task`](bf16scope_model::task::Task), options and arrays, and one call trains it. Its
//! parts can be used alone: a [`Spec`] describes what is trained, [`program`] builds its programs, a [`Session`] holds
//! the state on a device and makes steps, [`run`](run()) trains over epochs of a [`Source`](bf16scope_data::Source) and
//! handles stops, divergence and failed writes, and [`checkpoint`] stores the state. [`experiment`] turns a YAML file
//! into a `Spec`.
//!
//! The result is a function of the spec and the data: on one processor the same run gives bitwise the same weights,
//! also across a stop and a resumption. Settings come in as values: only [`experiment`] reads configuration files, and
//! nothing reads environment variables. It does IO but prints nothing.

#![forbid(unsafe_code)]

mod accumulation;
mod batches;
mod beginning;
mod callback_state;
pub mod callbacks;
mod change;
pub mod checkpoint;
mod device;
mod ended;
mod epoch_report;
mod error;
mod evaluation;
pub mod experiment;
mod find_rate;
mod forward;
mod generation;
mod hosts;
mod imported;
mod initialize;
mod l2;
mod memory;
mod mesh;
mod model_axis;
mod narrow;
mod network_summary;
mod objective;
mod observer;
pub mod package;
mod predictions;
pub mod program;
mod program_error;
mod rates;
pub mod replay;
pub mod resume;
pub mod run_folder;
mod session;
mod spec;
mod step_in_f32;
mod steps_per_call;
mod totals;
mod trainer;
mod training_loop;
pub mod watch;
pub mod weight_names;

pub use batches::Data;
pub use change::Change;
pub use device::compile;
pub use ended::Kept;
pub use epoch_report::EpochReport;
pub use error::{TrainError, TrainErrorKind, TrainPlace};
pub use evaluation::{Evaluation, Evaluator, Predictor};
pub use find_rate::{RateSearch, RateTrial, find_rate};
pub use forward::predicted_from;
pub use generation::{Completer, Sampling};
pub use imported::{Imported, wanted_of};
pub use initialize::{Initialization, InitializeFrom};
pub use l2::{TOTAL_LOSS, with_total};
pub use mesh::{MAX_REPLICAS, Mesh, StateOf, Statistics, SumOf};
pub use model_axis::over_model_axis;
pub use narrow::{Narrowed, SettingChange, interval_of, narrow};
pub use network_summary::{LayerSummary, NetworkSummary};
pub use objective::Objective;
pub use observer::check_watch;
pub use predictions::Predictions;
pub use program_error::ProgramError;
pub use rates::rates;
pub use resume::Resumption;
pub use session::Session;
pub use spec::Spec;
pub use step_in_f32::{StepInF32, step_in_f32, step_with_gradients_in_f32};
pub use steps_per_call::{StepsPerCall, UnknownStepsPerCall, several_steps};
pub use totals::Totals;
pub use trainer::{Trained, Trainer};
pub use training_loop::{Event, RunPlan, Summary, check, check_average, run};
