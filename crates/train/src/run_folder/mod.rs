//! The folder of a training run: its settings and versions, and its loss and metrics step by step.
//!
//! ```text
//! runs/digits-bf16/
//!   run.json                  what was trained, with which settings, versions and device
//!   experiment.yaml           the experiment, with the command line's flags applied
//!   metrics.jsonl             the scalars: one JSON object for each recorded step
//!   watch.jsonl               what the numbers of each layer looked like, where the run is watched
//!   events.out.tfevents.…     scalars, and histograms of looks, for TensorBoard
//!   checkpoint.safetensors    its last checkpoint, unless the caller has another place for it
//! ```
//!
//! [`RunFolder`] writes one and [`read()`] reads one; a folder of another program with only TensorBoard's event files
//! is read too. The caller chooses the names of scalars. Every record is one write, so a killed process loses none of
//! them; a record truncated by a full disk or a dead machine is skipped with a remark. A resumption drops records after
//! its step: a curve is a function of the step.
//!
//! This module draws no plots, and knows neither models nor devices.

mod about;
mod entries;
mod error;
mod events;
mod folder;
mod metrics;
mod names;
mod read;
mod watched;

pub use about::{About, Saved, Start};
pub use error::RunError;
pub use events::Histogram;
pub use folder::{Resumed, RunFolder};
pub use read::{Curve, Point, Run, read};
pub use watched::read_watched;

/// The description of the run.
pub const ABOUT: &str = "run.json";
/// The experiment, with the command line's flags applied.
pub const EXPERIMENT: &str = "experiment.yaml";
/// The records of watched steps.
const WATCH: &str = "watch.jsonl";
/// The default checkpoint of a run, in its folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// The scalars.
const METRICS: &str = "metrics.jsonl";
/// The word in the names of TensorBoard's files.
const EVENTS: &str = "tfevents";
