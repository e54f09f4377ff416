//! What is asked of the TPU compiler about a model or a module: what it takes ([`subject`](self)), which batch fits, which slice
//! to rent, what each option saves.
//!
//! A question is a plain value, an answer is a plain value that serialises, and what happens in between comes by a callback.
//! The program `bf16scope` asks here and prints; another crate asks in the same way. The arithmetic over answers is
//! [`tpu`](bf16scope_tpu)'s (`tpu::fit`, `tpu::plan`, `tpu::verdict`); this room builds programs, asks the compiler for them and
//! puts the answers together. It does not print, and reads no environment.
//!
//! A [`Task`](bf16scope_model::task::Task) of your own is asked about by its training program, as any module is:
//!
//! ```no_run
//! use bf16scope_model::graph::Precision;
//! use bf16scope_pjrt::{Purpose, Setup, prepare_environment};
//! use bf16scope_study::{Asking, Form, Programs, compare};
//! use bf16scope_model::task::Task;
//! use bf16scope_tpu::Target;
//! use bf16scope_train::{Objective, program};
//!
//! fn f32_beside_bf16(task: &dyn Task) -> Result<(), Box<dyn std::error::Error>> {
//!     prepare_environment(Purpose::Compile)?; // first in `main`, before there is a second thread
//!     let target: Target = "tpu-v3".parse()?;
//!     for precision in [Precision::F32, Precision::Bf16] {
//!         let step = program::training(task, precision, 128, &Objective::default())?; // a batch of 128
//!         let module = step.program.module;
//!         let programs = Programs::of_module(module, "step.hlo".as_ref(), &[Form::as_given()])?;
//!         let answer = compare(&programs, &target, &Asking::new(&Setup::from_env()), &mut |_| {})?;
//!         if let Some(report) = answer.reports[0].outcome.report() {
//!             println!("{precision}: {} bytes of HBM", report.hbm.total);
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Of a model in YAML the batch that fits, the slice and what each option saves are [`fit`], [`plan`] and [`levers`], about
//! [`ModelSubject::read`].

#![forbid(unsafe_code)]

mod ask;
mod compare;
mod error;
mod fit;
mod levers;
mod lower;
mod mesh;
mod model;
pub mod module_file;
mod plan;
mod policy;
mod shell;
mod subject;
mod sums;
mod tune;

pub use ask::{Asking, Compiling, Event};
pub use compare::{
    Comparison, CompiledSubject, Explained, Explanations, Judged, OutOfMemory, Stretches, SubjectOutcome, compare,
    explain_programs, explain_scheduled, judge,
};
pub use error::StudyError;
pub use fit::{BatchDim, BatchDimError, FitAnswer, FitQuestion, FitRow, FitSeries, FitSource, Large, Value, fit};
pub use levers::{LEVERS, Lever, LeversAnswer, LeversQuestion, OnTarget, Pulled, Setting, levers};
pub use lower::{LowerAnswer, LowerQuestion, LowerTrial, LoweredCost, TrialEnd, lower_for, n_in_doubt};
pub use mesh::{MeshChoice, check_no_model_axis, check_slice};
pub use model::{ModelProgram, ModelSubject, build, read, unit};
pub use module_file::Converter;
pub use plan::{PlanAnswer, PlanQuestion, TpuLinks, plan, slice};
pub use policy::{policy, policy_of_text};
pub use shell::word;
pub use subject::{AS_GIVEN, Form, Programs, Subject, forms};
pub use sums::{check_sums, sum_in_words};
pub use tune::TuneChoice;
