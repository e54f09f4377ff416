//! A session's compiled observing program: see [`watch`](super::watch).

use super::device::{Fed, Loaded};
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::hosts::Site;
use super::objective::Objective;
use super::spec::Spec;
use super::watch::{Observing, RowOf, WatchRow, observing, read_row, words_of};
use bf16scope_pjrt::{Buffer, Client};

/// Checks that a run of `spec` on `n_hosts` hosts can be watched, before a minute of compiling.
///
/// # Errors
/// A run that cannot be watched.
pub fn check_watch(spec: &Spec, n_hosts: u32) -> Result<(), TrainError> {
    if n_hosts > 1 {
        let why = format!("{n_hosts} hosts share each step, and a look is one host's");
        return Err(not_watched(WATCH, &why, "train it on one host, or do not watch it"));
    }
    let per_call = spec.steps_per_call.n().get();
    if per_call > 1 {
        let why = format!("a call makes {per_call} steps, whose state between them stays on the device");
        return Err(not_watched(&["train", "steps_per_call"], &why, "watch it with `steps_per_call: 1`"));
    }
    check_observed(&spec.objective)
}

fn check_observed(objective: &Objective) -> Result<(), TrainError> {
    if objective.accumulate.get() > 1 {
        let why = "activations of micro-batches are inside a loop";
        return Err(not_watched(&["train", "accumulate"], why, "watch it with `accumulate: 1`"));
    }
    if objective.mesh.model.get() > 1 {
        let why = "each replica is split over a model axis";
        return Err(not_watched(&["mesh", "model"], why, "watch it with `model: 1`, on as many replicas"));
    }
    Ok(())
}

/// The key that turns watching on.
const WATCH: &[&str] = &["train", "watch"];

/// The error of a run that cannot be watched; `way` leads to the key that conflicts. Flags may set either.
fn not_watched(way: &'static [&'static str], why: &str, help: &str) -> TrainError {
    let ways = if way == WATCH { vec![WATCH] } else { vec![way, WATCH] };
    let text = format!("the run cannot be watched: {why}");
    TrainError::new(TrainErrorKind::Experiment, TrainPlace::Keys(ways), text).with_help(help)
}

/// Compiled observation of training steps.
#[derive(Debug)]
pub(super) struct Observer {
    loaded: Loaded,
    rows: Vec<RowOf>,
    /// Running statistics that keep more than 0.999 in a step, and the share that they keep.
    pub slow_statistics: Vec<(String, f64)>,
}

/// A running statistic is reported as slow if a step keeps more than this share: it then averages over a thousand
/// steps.
const SLOW: f64 = 0.999;

impl Observer {
    /// Compiles the observing program of `spec`, with the objective `objective` on these devices.
    ///
    /// # Errors
    /// A run that cannot be watched; a task that cannot be built or compiled.
    pub fn new(client: &Client, spec: &Spec, objective: &Objective, site: Site) -> Result<Observer, TrainError> {
        check_observed(objective)?;
        let Observing { program, rows, mut statistics } =
            observing(&*spec.task, spec.numbers(), i64::from(spec.batch), objective)?;
        let loaded = Loaded::new(client, program, 0, spec.task.features(), spec.batch, site)?;
        // `kept` has been rounded to f32.
        statistics.retain(|(_, kept)| *kept > SLOW + 1e-6);
        Ok(Observer { loaded, rows, slow_statistics: statistics })
    }

    /// The rows of a replica at the step after `before` steps, with its state and batch, which are not donated.
    pub fn observe(
        &self,
        state: &[Vec<Buffer>],
        fed: &Fed,
        step: i32,
        replica: usize,
    ) -> Result<Vec<WatchRow>, TrainError> {
        let results = self.loaded.run_keeping(state, fed, step)?;
        let bytes = results[replica][0].to_host()?;
        let words = words_of(&self.rows, &bytes);
        Ok(self.rows.iter().zip(&words).map(|(row, words)| read_row(row, words)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepsPerCall;
    use bf16scope_model::models::{Model, mlp};
    use std::num::NonZeroU32;

    #[test]
    fn runs_that_cannot_be_watched_say_what_to_change() {
        let two = NonZeroU32::new(2).unwrap();
        let refused = |change: &dyn Fn(&mut Spec)| {
            let model = Model::Mlp(mlp::Config { hidden: vec![3], ..mlp::Config::new([4], 2) });
            let mut spec = Spec::new(model.task(0.0));
            change(&mut spec);
            check_watch(&spec, 1).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&|spec| spec.objective.accumulate = two),
            "the run cannot be watched: activations of micro-batches are inside a loop\nhelp: watch it with `accumulate: 1`"
        );
        assert_eq!(
            refused(&|spec| spec.objective.mesh.model = two),
            "the run cannot be watched: each replica is split over a model axis\nhelp: watch it with `model: 1`, on as many \
             replicas"
        );
        assert_eq!(
            refused(&|spec| spec.steps_per_call = StepsPerCall::While(two)),
            "the run cannot be watched: a call makes 2 steps, whose state between them stays on the device\nhelp: watch it \
             with `steps_per_call: 1`"
        );
    }
}
