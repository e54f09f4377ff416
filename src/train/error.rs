//! What can go wrong in training.

use super::checkpoint::CheckpointError;
use super::program::ProgramError;
use crate::data::DataError;
use crate::graph::Precision;
use crate::hlo::DType;
use crate::hlo::proto::ProtoError;
use crate::hlo::verify::VerifyErrors;
use crate::models::ConfigError;
use crate::pjrt::PjrtError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why training stopped, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The experiment's file cannot be read.
    #[error("{}: cannot read the experiment", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The experiment's file is not right.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The experiment names no data.
    #[error("{}: the experiment has no `data`, which training and evaluation need\nhelp: add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml", path.display())]
    NoData {
        /// The file.
        path: PathBuf,
    },
    /// A model of tokens, which data sets of one class an example cannot train.
    #[error("{}: the model reads tokens and names one at each position, and `data` holds one class for each example\nhelp: it can be compiled, emitted, lowered and audited; to train it, drive `train::program::training` with batches of your own", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
    },
    /// The data are not right.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Examples of other dims, or with other classes, than the model takes.
    #[error(
        "the data have {measured}, but the model takes {expected}\nhelp: change `input` or `n_classes` of the model, or name other data"
    )]
    Fit {
        /// What the data have.
        measured: String,
        /// What the model takes.
        expected: String,
    },
    /// A label that is no class.
    #[error("example {example}: its label is {label}, expected 0 to {}", n_classes - 1)]
    Label {
        /// The example's index.
        example: usize,
        /// The label.
        label: i32,
        /// How many classes there are.
        n_classes: i64,
    },
    /// The model cannot be built or differentiated.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A variable of a dtype that nothing can fill.
    #[error("variable {name} is {dtype}, which has no initial values\nhelp: make it f32")]
    Variable {
        /// The variable.
        name: String,
        /// Its dtype.
        dtype: DType,
    },
    /// A program that we built does not verify: a bug of ours.
    #[error("a program of bf16scope's own does not verify, which is a bug: {0}")]
    Verify(#[from] VerifyErrors),
    /// A program has no proto form.
    #[error(transparent)]
    Proto(#[from] ProtoError),
    /// The plugin cannot be had, or refuses something.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint of the same model, but of a run with other settings, which could not go on as it began.
    #[error("{}: the checkpoint was made with {setting} {measured}, this run has {expected}\nhelp: give {flag} {measured}, or leave --resume out to start again", path.display())]
    Resume {
        /// The checkpoint.
        path: PathBuf,
        /// Which setting.
        setting: &'static str,
        /// What the checkpoint has.
        measured: String,
        /// What this run has.
        expected: String,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// A checkpoint of a run on other data, whose epochs were cut in other batches.
    #[error("{}: the checkpoint was made with {measured} steps an epoch, this run has {expected}\nhelp: use the data and `n_test` it was made with, or leave --resume out to start again", path.display())]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
        /// Its steps in an epoch.
        measured: u64,
        /// This run's.
        expected: u64,
    },
    /// A state that the machine cannot hold.
    #[error(
        "the model's state is {needed} bytes, needed on the host and on the device, and this machine has {available} bytes of memory; the largest variable is {largest}\nhelp: make the model smaller"
    )]
    TooLarge {
        /// Bytes of all variables and slots.
        needed: u128,
        /// The machine's memory.
        available: u128,
        /// The largest variable and its shape.
        largest: String,
    },
    /// More steps than the programs can count.
    #[error(
        "{n_epochs} epochs of {steps_per_epoch} steps are more than 2147483647 steps\nhelp: train fewer epochs or use larger batches"
    )]
    TooLong {
        /// Epochs asked for.
        n_epochs: u64,
        /// Steps in each.
        steps_per_epoch: u64,
    },
    /// Training has diverged.
    #[error("step {step} (epoch {epoch}): {what} is not finite, at learning rate {learning_rate}\n{kept}\nhelp: {}", diverged_help(*precision))]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// `the loss (NaN)`, or a variable.
        what: String,
        /// The learning rate of that step.
        learning_rate: f64,
        /// What the network computed in.
        precision: Precision,
        /// What is left.
        kept: Kept,
    },
    /// Someone asked to stop.
    #[error("stopped after step {step} (epoch {epoch}), as asked\n{kept}{}", if kept.0.is_some() { "\nhelp: --resume goes on from there, to the same weights as if it had not stopped" } else { "" })]
    Interrupted {
        /// Steps made.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// What is left.
        kept: Kept,
    },
}

/// The last checkpoint of a run that ended early: its file, and the step it was made after.
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

fn diverged_help(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 | Precision::Bf16 => "lower the learning rate, or warm it up",
        Precision::F16 => "f16 ends at 65504: use --precision bf16, or lower the learning rate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_where_what_and_what_to_do() {
        let kept = Kept(Some((PathBuf::from("checkpoints/digits-f16.safetensors"), 88)));
        let diverged = TrainError::Diverged {
            step: 101,
            epoch: 3,
            what: "the loss (NaN)".to_string(),
            learning_rate: 1e6,
            precision: Precision::F16,
            kept: kept.clone(),
        };
        assert_eq!(
            diverged.to_string(),
            "step 101 (epoch 3): the loss (NaN) is not finite, at learning rate 1000000\n\
             the last good checkpoint is checkpoints/digits-f16.safetensors (after step 88)\n\
             help: f16 ends at 65504: use --precision bf16, or lower the learning rate"
        );
        assert_eq!(
            TrainError::Interrupted { step: 5, epoch: 1, kept }.to_string(),
            "stopped after step 5 (epoch 1), as asked\n\
             the last good checkpoint is checkpoints/digits-f16.safetensors (after step 88)\n\
             help: --resume goes on from there, to the same weights as if it had not stopped"
        );
        assert_eq!(
            TrainError::Interrupted { step: 5, epoch: 1, kept: Kept::default() }.to_string(),
            "stopped after step 5 (epoch 1), as asked\nthis run has saved no checkpoint"
        );
        let resume = TrainError::Resume {
            path: PathBuf::from("a.safetensors"),
            setting: "batch",
            measured: "32".to_string(),
            expected: "64".to_string(),
            flag: "--batch",
        };
        assert_eq!(
            resume.to_string(),
            "a.safetensors: the checkpoint was made with batch 32, this run has 64\n\
             help: give --batch 32, or leave --resume out to start again"
        );
    }
}
