//! Questions to the TPU compiler about a model or a module: what it takes ([`subject`](self)), which batch fits, which
//! slice to rent, what each option saves.
//!
//! A question is a plain value, its answer is a plain value that serialises, and progress comes through a callback. The
//! program `bf16scope` asks here and prints; another crate asks in the same way. The arithmetic over answers is in
//! [`tpu`](bf16scope_tpu) (`tpu::fit`, `tpu::plan`, `tpu::verdict`); this crate builds programs, compiles them and
//! assembles the answers. It does not print, and does not read the environment, with one exception: a one-call question
//! without a set-up uses [`Setup::or_from_env`](bf16scope_pjrt::Setup::or_from_env).
//!
//! Your own [`Task`](bf16scope_model::task::Task) takes one call, with defaults that work. The example is compiled and
//! not run, for its questions install Google's TPU compiler and take minutes:
//!
//! ```no_run
//! use bf16scope_model::graph::Precision;
//! use bf16scope_model::task::Task;
//! use bf16scope_study::{Compare, Explain, Fit, Plan, StudyError};
//!
//! fn ask(task: &dyn Task) -> Result<(), StudyError> {
//!     let answer = Fit::new(task).target("tpu-v3").precision(Precision::Bf16).run()?; // which batch fits
//!     println!("{answer}");
//!     let answer = Plan::new(task).batch(4096).on_event(|event| println!("{event}")).run()?; // which slice to rent
//!     println!("{answer}");
//!     let answer = Compare::new(task).batch(128).target("tpu-v3").run()?; // f32 beside bf16
//!     println!("{answer}");
//!     let answer = Explain::new(task).batch(128).target("tpu-v3").run()?; // by layer, and by your line
//!     println!("{answer}");
//!     Ok(())
//! }
//! ```
//!
//! Beneath these calls, a task and how it is trained form a [`ModelSubject`], which [`fit`], [`plan`] and [`levers`]
//! take as a plain value, and [`compare`] and [`explain`] as [`Programs`]. [`ModelSubject::read`] reads a model in YAML
//! into the same type.

#![forbid(unsafe_code)]

mod ask;
mod compare;
mod error;
mod explain;
mod fit;
mod levers;
mod lines;
mod lower;
mod mesh;
mod model;
pub mod module_file;
mod one_call;
mod plan;
mod policy;
mod shell;
mod subject;
mod sums;
mod tune;
mod wide;

pub use ask::{Asking, Compiling, Event};
pub use compare::{Comparison, CompiledSubject, Judged, compare, judge};
pub use error::{StudyError, StudyErrorKind, StudyPlace};
pub use explain::{ExplainQuestion, ExplainSource, Explained, Explanations, Stretches, explain};
pub use fit::{BatchDim, BatchDimError, FitAnswer, FitQuestion, FitRow, FitSeries, FitSource, Large, Value, fit};
pub use levers::{LEVERS, Lever, LeversAnswer, LeversQuestion, OnTarget, Pulled, Setting, levers};
pub use lower::{LowerAnswer, LowerQuestion, LowerTrial, LoweredCost, TrialEnd, lower_for, n_in_doubt};
pub use mesh::{MeshChoice, check_slice};
pub use model::{ModelProgram, ModelSubject, SubjectTask, check_no_model_axis, read, unit};
pub use module_file::Converter;
pub use one_call::{Ask, Compare, Explain, Fit, Levers, OfCompare, OfExplain, OfFit, OfLevers, OfPlan, Plan};
pub use plan::{PlanAnswer, PlanQuestion, TpuLinks, plan, slice};
pub use policy::{policy, policy_of_text};
pub use shell::word;
pub use subject::{AS_GIVEN, Form, Programs, Subject, forms};
pub use sums::{check_sums, sum_in_words};
pub use tune::TuneChoice;
