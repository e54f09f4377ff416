//! How long a run is and what it saves, checked before it begins.

use crate::batches::{Data, loader};
use crate::callbacks::Callbacks;
use crate::checkpoint::Place;
use crate::ended::idle_average;
use crate::error::TrainError;
use crate::observer::check_watch;
use crate::spec::Spec;
use crate::watch::Watch;
use bf16scope_data::{Loader, Source};
use std::num::NonZeroU32;

/// The length of a run, and what it saves.
#[derive(Debug)]
pub struct RunPlan {
    /// Epochs in all, including those before a resumption. With 0, the checkpoint holds the initial state.
    pub n_epochs: u64,
    /// The place of checkpoints, after each epoch and when the run is stopped. No other run can save there meanwhile.
    pub checkpoint: Option<Place>,
    /// The number of steps between additional checkpoints.
    pub save_checkpoints_steps: Option<NonZeroU32>,
    /// Also saves a checkpoint after the step that ends this many seconds after the last one.
    pub save_checkpoints_secs: Option<NonZeroU32>,
    /// The number of checkpoints to keep: the newest at its place, older ones beside it as `NAME-STEP.safetensors`.
    /// Files that were not written by this run, or the one it resumed from, are neither replaced nor removed.
    pub keep_checkpoint_max: NonZeroU32,
    /// When the numbers of each layer are watched; `None` is never.
    pub watch: Option<Watch>,
    /// Its callbacks. Default none.
    pub callbacks: Callbacks,
    /// Whether epochs are evaluated on validation examples, and reported as such: testing follows when training is
    /// over. Default false.
    pub is_validated: bool,
}

impl RunPlan {
    /// A plan for `n_epochs`; one checkpoint is kept, of the last epoch or of the step where the run was stopped.
    pub fn new(n_epochs: u64, checkpoint: Option<Place>) -> RunPlan {
        RunPlan {
            n_epochs,
            checkpoint,
            save_checkpoints_steps: None,
            save_checkpoints_secs: None,
            keep_checkpoint_max: NonZeroU32::MIN,
            watch: None,
            callbacks: Callbacks::default(),
            is_validated: false,
        }
    }
}

/// Checks that a session of `spec` can be trained on `data`, before a minute of compiling. Every example is read once.
///
/// # Errors
/// Features that the data lack, or have in other dims or dtypes; fewer examples than a batch, or a batch that does not
/// split into equal micro-batches; more steps per call than an epoch has; integers out of their range; a feature that
/// the cast to bf16 or f16 makes infinite; a shift without images.
pub fn check(spec: &Spec, data: Data<'_>) -> Result<(), TrainError> {
    spec.objective.check_batch(spec.batch.into())?;
    let (features, compute) = (spec.task.features(), spec.precision.compute());
    let training = loader(spec, data.training)?;
    let (calls, steps_per_epoch) = (spec.steps_per_call, training.n_steps());
    if u64::from(calls.n().get()) > steps_per_epoch {
        let text = format!("steps_per_call is {calls}, and an epoch has {steps_per_epoch} steps");
        let error = TrainError::of_key(&["train", "steps_per_call"], text);
        return Err(error.with_help("at most that many; a number that divides it needs no second program"));
    }
    training.check()?;
    Ok(Loader::new(data.test, &features, compute, 1, 0)?.check()?)
}

/// Checks that averages of variables, if `spec` has any, are useful after `n_epochs`: at least half of an average must
/// come from training steps, not from initial values.
///
/// # Errors
/// Averages dominated by initial values.
pub fn check_average(spec: &Spec, data: Data<'_>, n_epochs: u64) -> Result<(), TrainError> {
    let Some(average) = spec.objective.average.filter(|_| n_epochs > 0) else { return Ok(()) };
    let n_steps = n_epochs.saturating_mul(loader(spec, data.training)?.n_steps());
    match average.initial_share(n_steps) {
        initial_share if initial_share > 0.5 => Err(idle_average(&average, n_steps, initial_share)),
        _ => Ok(()),
    }
}

/// Checks what a plan requests, as far as that does not depend on the session.
pub(super) fn check_plan(spec: &Spec, data: Data<'_>, plan: &RunPlan, n_hosts: u32) -> Result<(), TrainError> {
    check(spec, data)?;
    check_average(spec, data, plan.n_epochs)?;
    if spec.objective.average.is_some_and(|average| !average.evaluate) && plan.checkpoint.is_none() {
        let text = "train.average is never used: `evaluate` is false and there is no checkpoint";
        let help = "leave `average` out, write `evaluate: true`, or give the run a place for its checkpoints";
        return Err(TrainError::of_key(&["train", "average", "evaluate"], text).with_help(help));
    }
    if plan.watch.is_some() {
        check_watch(spec, n_hosts)?;
    }
    Ok(())
}

/// The batch size of an evaluation: that of training, or all examples if there are fewer.
pub(crate) fn evaluation_batch(spec: &Spec, test: &dyn Source) -> u32 {
    u32::try_from(test.n_examples()).map_or(spec.batch, |n| spec.batch.min(n))
}
