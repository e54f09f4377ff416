//! The folder of a training run: what was trained and with what, and how its loss and metrics went, step by step.
//!
//! ```text
//! runs/digits-bf16/
//!   run.json                  what was trained, with which settings, versions and device
//!   experiment.yaml           the experiment, with the command line's flags applied
//!   metrics.jsonl             the scalars: one JSON object for each recorded step
//!   watch.jsonl               what the numbers of each layer looked like, where the run is watched
//!   events.out.tfevents.…     scalars, and histograms of looks, for TensorBoard
//! ```
//!
//! [`RunFolder`] writes one and [`read()`] reads one; a folder that has TensorBoard's event files alone, of another
//! program, is read too. What the scalars are called is the caller's business. Every record goes to the system in one
//! write, so that a killed process loses none of them, and what a full disk or a dead machine cut short is read past
//! with a remark. A resumption drops what is recorded after its step: a curve is a function of the step.
//!
//! This room draws nothing and knows neither models nor devices.

mod about;
mod error;
mod events;
mod folder;
mod metrics;
mod read;
mod watched;

pub use about::{About, Saved, Start};
pub use error::RunError;
pub use events::Histogram;
pub use folder::{Resumed, RunFolder};
pub use read::{Curve, Point, Run, read};
pub use watched::read_watched;

/// What was trained, and with what.
pub const ABOUT: &str = "run.json";
/// The experiment, with the command line's flags applied.
pub const EXPERIMENT: &str = "experiment.yaml";
/// Looks at the numbers of each layer.
const WATCH: &str = "watch.jsonl";
/// The scalars.
/// The checkpoint of a run that is not told another place for it, in its folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
const METRICS: &str = "metrics.jsonl";
/// In the names of TensorBoard's files.
const EVENTS: &str = "tfevents";
