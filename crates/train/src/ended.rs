//! Errors of runs that end early or would be useless, with the checkpoint that is left.

use super::error::{TrainError, TrainErrorKind, TrainPlace};
use bf16scope_model::graph::Precision;
use bf16scope_model::optim::Average;
use std::fmt;
use std::path::PathBuf;

/// The last checkpoint of a run that ended early: its file and its step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept(pub Option<(PathBuf, u64)>);

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((path, step)) => write!(f, "the last good checkpoint is {} (after step {step})", path.display()),
            None => write!(f, "this run has saved no checkpoint"),
        }
    }
}

/// Training diverged at a step of an epoch, both counted from 1. `what` is not finite: `the loss (NaN)`, or a variable.
pub(crate) fn diverged(
    step: u64,
    epoch: u64,
    what: String,
    learning_rate: f64,
    precision: Precision,
    kept: &Kept,
) -> TrainError {
    let text = format!("{what} is not finite, at learning rate {learning_rate}\n{kept}");
    let place = TrainPlace::Step { step, epoch: Some(epoch) };
    TrainError::new(TrainErrorKind::Diverged { step, epoch, what }, place, text).with_help(match precision {
        Precision::F32 | Precision::Bf16 => "lower the learning rate, or warm it up",
        Precision::F16 => "f16 ends at 65504: use --precision bf16, or lower the learning rate",
    })
}

/// The run was stopped on request after this many steps, in an epoch counted from 1.
pub(crate) fn interrupted(step: u64, epoch: u64, kept: &Kept) -> TrainError {
    let text = format!("stopped after step {step} (epoch {epoch}), as asked\n{kept}");
    let error = TrainError::new(TrainErrorKind::Interrupted { step, epoch }, TrainPlace::Nowhere, text);
    match kept.0 {
        Some(_) => error.with_help("--resume goes on from there, to the same weights as if it had not stopped"),
        None => error,
    }
}

/// The error of an average in which, after `n_steps` steps, the share `initial_share` (of 1) still comes from initial
/// values: more than from training.
pub(crate) fn idle_average(average: &Average, n_steps: u64, initial_share: f64) -> TrainError {
    let text = format!(
        "train.average: after all {n_steps} steps an average of decay {} is still {:.0} % the initial values",
        average.decay,
        100.0 * initial_share
    );
    TrainError::of_key(&["train", "average", "decay"], text).with_help(average_help(average, n_steps))
}

/// More steps than the programs can count.
pub(crate) fn too_long(n_epochs: u64, steps_per_epoch: u64) -> TrainError {
    let text = format!("{n_epochs} epochs of {steps_per_epoch} steps are more than 2147483647 steps");
    TrainError::new(TrainErrorKind::Experiment, TrainPlace::Nowhere, text)
        .with_help("train fewer epochs or use larger batches")
}

/// The advice: the ramp of `num_updates`, unless it is set, and the largest decay that is useful.
fn average_help(average: &Average, n_steps: u64) -> String {
    // In this many steps, an average over the last tenth forgets all but 1/20,000 of the initial values.
    let decay = (1.0 - 10.0 / n_steps.max(20) as f64).max(0.5);
    let decay = (decay * 1e4).floor() / 1e4;
    match average.num_updates {
        false => format!(
            "write `average: {{decay: {}, num_updates: true}}`, a decay such as {decay}, or train longer",
            average.decay
        ),
        true => format!("write a decay such as {decay}, or train longer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_where_what_and_what_to_do() {
        let checkpoint = Kept(Some((PathBuf::from("checkpoints/digits-f16.safetensors"), 88)));
        let diverged = diverged(101, 3, "the loss (NaN)".to_string(), 1e6, Precision::F16, &checkpoint);
        assert_eq!(
            diverged.to_string(),
            "step 101 (epoch 3): the loss (NaN) is not finite, at learning rate 1000000\n\
             the last good checkpoint is checkpoints/digits-f16.safetensors (after step 88)\n\
             help: f16 ends at 65504: use --precision bf16, or lower the learning rate"
        );
        assert_eq!(
            interrupted(5, 1, &checkpoint).to_string(),
            "stopped after step 5 (epoch 1), as asked\n\
             the last good checkpoint is checkpoints/digits-f16.safetensors (after step 88)\n\
             help: --resume goes on from there, to the same weights as if it had not stopped"
        );
        assert_eq!(
            interrupted(5, 1, &Kept::default()).to_string(),
            "stopped after step 5 (epoch 1), as asked\nthis run has saved no checkpoint"
        );
    }
}
