//! Errors of questions and of their subjects: a kind, a place, a sentence, and a remedy.
//!
//! Programs can act on the kind and the place. Each sentence is a function in [`sentences`], and `error/tests.rs`
//! compares each.

mod sentences;

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use bf16scope_foreign::ForeignError;
use bf16scope_hlo::text::ParseError;
use bf16scope_model::document::ConfigError;
use bf16scope_passes::amp::PolicyError;
use bf16scope_tensorflow::GraphError;
use bf16scope_tpu::explain::ExplainError;
use bf16scope_tpu::{Target, TargetError, TpuError};
use bf16scope_train::{ProgramError, TrainError};

/// An error of a question, or of its subject.
///
/// ```
/// use bf16scope_study::{StudyErrorKind, StudyPlace, policy};
///
/// let error = policy("no/such.yaml").unwrap_err();
/// assert_eq!(error.kind(), StudyErrorKind::File);
/// assert_eq!(error.place(), &StudyPlace::File("no/such.yaml".into()));
/// assert_eq!((error.text(), error.help()), ("cannot read the policy no/such.yaml", None));
/// ```
#[derive(Debug)]
pub struct StudyError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: StudyErrorKind,
    place: StudyPlace,
    text: String,
    help: Option<String>,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    None,
    /// A cause, added to the sentence.
    Other(Box<dyn Error + Send + Sync>),
    /// An error that is passed on, with its own sentence.
    Same(Box<dyn Error + Send + Sync>),
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StudyErrorKind {
    /// A file or folder cannot be read, or holds something else.
    File,
    /// A module is invalid, or cannot be encoded or placed.
    Module,
    /// A policy is invalid.
    Policy,
    /// The program of a model or task cannot be built.
    Model,
    /// A program cannot be placed on the devices.
    Devices,
    /// A module cannot be lowered, or has nothing to lower.
    Lowering,
    /// The question is invalid.
    Question,
    /// A program does not fit.
    OutOfMemory,
    /// The compiler is missing, or compiles none of the programs.
    Compiler,
    /// A bug in bf16scope: report it.
    Bug,
}

/// The place of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StudyPlace {
    /// The question itself, or a place in the sentence.
    Question,
    /// A file or folder.
    File(PathBuf),
    /// A program, by its name: a precision, a policy, a task.
    Program(String),
    /// A part of the question about a target.
    Target(Target),
}

impl StudyError {
    /// The kind.
    pub fn kind(&self) -> StudyErrorKind {
        self.0.kind
    }

    /// The place.
    pub fn place(&self) -> &StudyPlace {
        &self.0.place
    }

    /// The sentence, including its place.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The remedy, if there is one.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// The error of another crate that this one passes on, with its sentence.
    pub fn inner(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match &self.0.cause {
            Cause::Same(error) => Some(&**error),
            Cause::None | Cause::Other(_) => None,
        }
    }

    /// The error and its causes in a line, for one program among others.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            text += &format!(": {error}");
            source = error.source();
        }
        text
    }

    /// An error without a file.
    fn new(kind: StudyErrorKind, text: impl Into<String>) -> StudyError {
        let place = StudyPlace::Question;
        StudyError(Box::new(Parts { kind, place, text: text.into(), help: None, cause: Cause::None }))
    }

    fn in_file(kind: StudyErrorKind, path: &Path, text: impl Into<String>) -> StudyError {
        StudyError::new(kind, text).at(StudyPlace::File(path.to_path_buf()))
    }

    /// An error that is passed on.
    fn passed_on(kind: StudyErrorKind, error: impl Error + Send + Sync + 'static) -> StudyError {
        let whole = error.to_string();
        let mut study_error = match whole.split_once("\nhelp: ") {
            Some((text, help)) => StudyError::new(kind, text).with_help(help),
            None => StudyError::new(kind, whole),
        };
        study_error.0.cause = Cause::Same(Box::new(error));
        study_error
    }

    /// The error that is passed on, if it has that type.
    pub(crate) fn passed<E: Error + 'static>(mut self) -> Result<E, StudyError> {
        match std::mem::replace(&mut self.0.cause, Cause::None) {
            Cause::Same(error) => error.downcast::<E>().map(|error| *error).map_err(|error| {
                self.0.cause = Cause::Same(error);
                self
            }),
            cause => {
                self.0.cause = cause;
                Err(self)
            }
        }
    }

    fn at(mut self, place: StudyPlace) -> StudyError {
        self.0.place = place;
        self
    }

    fn with_help(mut self, help: impl Into<String>) -> StudyError {
        self.0.help = Some(help.into());
        self
    }

    /// With a remark below its sentence; the remark may end in a help.
    pub(crate) fn with_remark(mut self, remark: &str) -> StudyError {
        let (text, help) = match remark.split_once("\nhelp: ") {
            Some((text, help)) => (text, Some(help.to_string())),
            None => (remark, None),
        };
        self.0.text = format!("{}\n{text}", self.0.text.trim_end());
        self.0.help = help.or(self.0.help);
        self
    }

    fn because(mut self, cause: impl Error + Send + Sync + 'static) -> StudyError {
        self.0.cause = Cause::Other(Box::new(cause));
        self
    }
}

impl fmt::Display for StudyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        self.help().map_or(Ok(()), |help| write!(f, "\nhelp: {help}"))
    }
}

impl Error for StudyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.cause {
            Cause::None => None,
            Cause::Other(error) => Some(&**error),
            Cause::Same(error) => error.source(),
        }
    }
}

impl From<PolicyError> for StudyError {
    fn from(error: PolicyError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Policy, error)
    }
}

impl From<ParseError> for StudyError {
    fn from(error: ParseError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Module, error)
    }
}

impl From<ForeignError> for StudyError {
    fn from(error: ForeignError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Module, error)
    }
}

impl From<GraphError> for StudyError {
    fn from(error: GraphError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Module, error)
    }
}

impl From<ConfigError> for StudyError {
    fn from(error: ConfigError) -> StudyError {
        let path = PathBuf::from(&error.path);
        StudyError::passed_on(StudyErrorKind::Model, error).at(StudyPlace::File(path))
    }
}

impl From<TrainError> for StudyError {
    fn from(error: TrainError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Model, error)
    }
}

impl From<ProgramError> for StudyError {
    fn from(error: ProgramError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Model, error)
    }
}

impl From<TargetError> for StudyError {
    fn from(error: TargetError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Question, error)
    }
}

impl From<TpuError> for StudyError {
    fn from(error: TpuError) -> StudyError {
        let kind = match &error {
            TpuError::OutOfMemory { .. } => StudyErrorKind::OutOfMemory,
            TpuError::NotATpu(_) => StudyErrorKind::Question,
            _ => StudyErrorKind::Compiler,
        };
        StudyError::passed_on(kind, error)
    }
}

impl From<ExplainError> for StudyError {
    fn from(error: ExplainError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Module, error)
    }
}

impl From<Infallible> for StudyError {
    fn from(never: Infallible) -> StudyError {
        match never {}
    }
}

#[cfg(test)]
mod tests;
