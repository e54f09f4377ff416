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
//!
//! ```
//! use bf16scope_data::Arrays;
//! use bf16scope_hlo::Array;
//! use bf16scope_model::prelude::*;
//! use bf16scope_train::Trainer;
//!
//! #[derive(Debug)]
//! struct Line;
//! impl Task for Line {
//!     fn name(&self) -> &str { "line" }
//!     fn features(&self) -> Vec<Feature> {
//!         vec![Feature::compute("x", [1]), Feature::exact("y", DType::F32, [1]).label()]
//!     }
//!     fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
//!         let x = features.get("x");
//!         let y = s.low_precision(|s| nn::dense(s, &x, "dense", &Dense { units: 1, ..Dense::default() }));
//!         let y = y.cast(DType::F32);
//!         if mode == Mode::Predict {
//!             return Outputs::new().prediction("y", &y);
//!         }
//!         let error = &y - features.get("y");
//!         let squared = (&error * &error).reshape([features.batch()]);
//!         Outputs::new().loss(Loss::weighted(&squared, &features.weight()))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("line.safetensors");
//! // y = 2x + 1, at 64 places; `csv::read`, `npz::read` and `idx::read` read arrays from files.
//! let x: Vec<f32> = (0..64).map(|i| i as f32 / 32.0 - 1.0).collect();
//! let y: Vec<f32> = x.iter().map(|x| 2.0 * x + 1.0).collect();
//! let arrays = [("x", Array::from_vec(x, [-1, 1])?), ("y", Array::from_vec(y, [-1, 1])?)];
//! let (training, test) = Arrays::from_arrays(arrays)?.split_tail(16)?;
//!
//! let model = Trainer::new(Line) // any `Task`
//!     .epochs(100)
//!     .batch(16)
//!     .optimizer(Optimizer::ADAM)
//!     .learning_rate(0.05)
//!     .checkpoint(&path) // `.resume(&path)` goes on from it
//!     .on_epoch(|epoch| println!("{epoch}"))
//!     .fit(&training, &test)?;
//!
//! let y = model.predict(&test)?.to_vec::<f32>("y")?; // for each example of `test`
//! assert!(y.iter().zip(48..).all(|(y, i)| (y - (2.0 * (i as f32 / 32.0 - 1.0) + 1.0)).abs() < 0.1));
//! let again = Trainer::new(Line).load(&path)?; // elsewhere, later
//! assert_eq!(again.evaluate(&test)?.value("loss"), model.summary().value("loss"));
//! # Ok(())
//! # }
//! ```

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
