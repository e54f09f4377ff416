//! Errors of training: a kind, a place, a sentence and a help.
//!
//! The sentence is written where the fault is found. Programs act on the kind and the place. Errors of the crates below
//! are passed on unchanged: [`TrainError::cause`] returns them.

use super::checkpoint::CheckpointError;
use super::program::ProgramError;
use crate::weight_names::WeightNameError;
use bf16scope_data::DataError;
use bf16scope_hlo::proto::ProtoError;
use bf16scope_hlo::verify::VerifyErrors;
use bf16scope_model::document::ConfigError;
use bf16scope_pjrt::PjrtError;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why training stopped or did not start: the place, the measured and the expected value, and what to do.
///
/// ```
/// use bf16scope_train::experiment::Experiment;
/// use bf16scope_train::{TrainErrorKind, TrainPlace};
///
/// let error = Experiment::read("no such file.yaml").unwrap_err();
/// assert_eq!(error.kind(), &TrainErrorKind::Experiment);
/// assert_eq!(error.place(), &TrainPlace::File("no such file.yaml".into()));
/// assert!(error.to_string().starts_with("no such file.yaml: cannot read the experiment"));
/// ```
#[derive(Debug)]
pub struct TrainError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: TrainErrorKind,
    place: TrainPlace,
    text: String,
    /// Empty if there is no advice.
    help: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
    /// Whether this error only repeats its cause.
    is_passed_on: bool,
}

/// The kind of a training error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrainErrorKind {
    /// The experiment cannot be read, or contradicts itself.
    Experiment,
    /// The data cannot be read, or do not fit the model.
    Data,
    /// The model cannot be built, differentiated or compiled, or cannot do what was requested.
    Model,
    /// The session does not take the batch, or can make no further step.
    Session,
    /// A checkpoint or a weights file cannot be read or written, or belongs to another run.
    Checkpoint,
    /// The machine has less memory than training needs.
    Memory,
    /// Devices are missing, or a plugin refuses an operation.
    Device,
    /// The hosts of a slice would not make the same steps, or one of them ended the run.
    Hosts,
    /// Training has diverged.
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// `the loss (NaN)`, or a variable.
        what: String,
    },
    /// The run was asked to stop.
    Interrupted {
        /// Steps made.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
    },
}

/// The place of a training error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrainPlace {
    /// No particular place.
    Nowhere,
    /// A file.
    File(PathBuf),
    /// A step, counted from 1, and its epoch where that is known.
    Step {
        /// The step.
        step: u64,
        /// The epoch, counted from 1.
        epoch: Option<u64>,
    },
    /// A task, by its name.
    Task(String),
    /// Keys of the experiment, as paths of keys: the first one that the file has is meant. The sentence names it.
    Keys(Vec<&'static [&'static str]>),
}

impl TrainError {
    pub(crate) fn new(kind: TrainErrorKind, place: TrainPlace, text: impl Into<String>) -> TrainError {
        let (text, help) = (text.into(), String::new());
        TrainError(Box::new(Parts { kind, place, text, help, cause: None, is_passed_on: false }))
    }

    /// An error about this key of the experiment.
    pub(crate) fn of_key(way: &'static [&'static str], text: impl Into<String>) -> TrainError {
        TrainError::new(TrainErrorKind::Experiment, TrainPlace::Keys(vec![way]), text)
    }

    /// The same error with advice.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> TrainError {
        self.0.help = help.into();
        self
    }

    /// The same error with its cause.
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> TrainError {
        self.0.cause = Some(cause.into());
        self
    }

    fn passed_on(kind: TrainErrorKind, cause: impl Error + Send + Sync + 'static) -> TrainError {
        let mut error = TrainError::new(kind, TrainPlace::Nowhere, cause.to_string()).because(cause);
        error.0.is_passed_on = true;
        error
    }

    /// The kind.
    pub fn kind(&self) -> &TrainErrorKind {
        &self.0.kind
    }

    /// The place.
    pub fn place(&self) -> &TrainPlace {
        &self.0.place
    }

    /// The sentence: what was measured and what was expected.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The advice, if there is any.
    pub fn help(&self) -> Option<&str> {
        Some(self.0.help.as_str()).filter(|help| !help.is_empty())
    }

    /// The cause, or the error that is passed on, if it is an `E`: a [`DataError`], a [`ProgramError`], a
    /// [`CheckpointError`].
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.0.cause.as_ref().and_then(|cause| cause.downcast_ref())
    }
}

// Errors with several callers.
impl TrainError {
    /// A batch that the program does not take, after `step` steps. Nothing was done with it.
    pub(crate) fn batch(step: u64, measured: &str, expected: &str) -> TrainError {
        let place = TrainPlace::Step { step: step + 1, epoch: None };
        TrainError::new(TrainErrorKind::Session, place, format!("the batch has {measured}, expected {expected}"))
            .with_help("the session is as it was: give it a batch like that")
    }

    /// A session that has made as many steps as its program can count.
    pub(crate) fn counted(step: u64) -> TrainError {
        let text = format!("the session has made {step} steps, and its program counts in 32 bits");
        TrainError::new(TrainErrorKind::Session, TrainPlace::Nowhere, text)
            .with_help("start again from its weights, with larger batches")
    }

    /// A loss or a metric that is NaN or infinite, over `360 test examples` or `the batch of step 12`.
    pub(crate) fn metric(name: &str, value: f64, over: &str) -> TrainError {
        let text = format!("{name} over {over} is {value}, which is not a number");
        TrainError::new(TrainErrorKind::Model, TrainPlace::Nowhere, text).with_help(match value.is_nan() {
            true => "its weights may add up to 0, or one of its terms be 0/0: leave such examples out by their weight",
            false => "one of its terms is infinite, such as a logarithm of 0: bound it in the task",
        })
    }

    /// A file that the run cannot use in its present state.
    pub(crate) fn of_file(kind: TrainErrorKind, path: &Path, text: impl Into<String>) -> TrainError {
        TrainError::new(kind, TrainPlace::File(path.to_path_buf()), text)
    }
}

/// Errors of the crates below, passed on unchanged.
macro_rules! passes_on {
    ($($error:ty => $kind:ident),* $(,)?) => {$(
        impl From<$error> for TrainError {
            fn from(error: $error) -> TrainError {
                TrainError::passed_on(TrainErrorKind::$kind, error)
            }
        }
    )*};
}

passes_on! {
    ConfigError => Experiment,
    DataError => Data,
    ProgramError => Model,
    ProtoError => Model,
    PjrtError => Device,
    CheckpointError => Checkpoint,
    WeightNameError => Checkpoint,
}

/// A program that we built does not verify: a bug in bf16scope.
impl From<VerifyErrors> for TrainError {
    fn from(errors: VerifyErrors) -> TrainError {
        let text = format!("a program of bf16scope's own does not verify, which is a bug: {errors}");
        TrainError::new(TrainErrorKind::Model, TrainPlace::Nowhere, text).because(errors)
    }
}

impl fmt::Display for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { place, text, help, .. } = &*self.0;
        match place {
            TrainPlace::Nowhere | TrainPlace::Keys(_) => {}
            place => write!(f, "{place}: ")?,
        }
        f.write_str(text)?;
        if !help.is_empty() {
            write!(f, "\nhelp: {help}")?;
        }
        Ok(())
    }
}

impl Error for TrainError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let cause = self.0.cause.as_deref()?;
        if self.0.is_passed_on { cause.source() } else { Some(cause) }
    }
}

impl fmt::Display for TrainPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrainPlace::Nowhere => f.write_str("nowhere"),
            TrainPlace::File(path) => path.display().fmt(f),
            TrainPlace::Step { step, epoch: None } => write!(f, "step {step}"),
            TrainPlace::Step { step, epoch: Some(epoch) } => write!(f, "step {step} (epoch {epoch})"),
            TrainPlace::Task(name) => f.write_str(name),
            TrainPlace::Keys(ways) => f.write_str(&ways.first().map_or(String::new(), |way| way.join("."))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_that_is_no_number_says_what_to_do_about_it() {
        assert_eq!(
            TrainError::metric("loss", f64::NAN, "360 test examples").to_string(),
            "loss over 360 test examples is NaN, which is not a number\nhelp: its weights may add up to 0, or one of its terms \
             be 0/0: leave such examples out by their weight"
        );
        assert_eq!(
            TrainError::metric("perplexity", f64::INFINITY, "the batch of step 12").to_string(),
            "perplexity over the batch of step 12 is inf, which is not a number\nhelp: one of its terms is infinite, such as a \
             logarithm of 0: bound it in the task"
        );
    }

    #[test]
    fn a_step_in_f32_names_what_the_run_does_not_have() {
        let error = |measured: &str| TrainError::batch(2, measured, "w f32[2]").to_string();
        let help = "\nhelp: the session is as it was: give it a batch like that";
        assert_eq!(
            error("a state without it"),
            format!("step 3: the batch has a state without it, expected w f32[2]{help}")
        );
        assert_eq!(
            error("a batch without it"),
            format!("step 3: the batch has a batch without it, expected w f32[2]{help}")
        );
    }

    #[test]
    fn an_error_of_a_room_below_is_passed_on_as_it_is() {
        let text = "HloModule m\n\nENTRY m {\n  ROOT x = f32[2] parameter(0)\n}\n";
        let mut module = bf16scope_hlo::text::parse(text, "m.txt").unwrap();
        module.computations[0].instructions[0].name.clear();
        let errors = bf16scope_hlo::verify(&module).unwrap_err();
        assert_eq!(
            TrainError::from(errors.clone()).to_string(),
            format!("a program of bf16scope's own does not verify, which is a bug: {errors}")
        );
        let program = ProgramError::Statistics { across: 3, n: 4 };
        let error = TrainError::from(program.clone());
        assert_eq!(error.to_string(), program.to_string());
        assert_eq!(error.cause(), Some(&program));
        assert_eq!((error.kind(), error.cause::<DataError>().is_none()), (&TrainErrorKind::Model, true));
        assert!(error.source().is_none(), "a chain of causes says it once");
    }
}
