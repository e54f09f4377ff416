//! Errors in files of weights: where, what was measured, what was expected, and what to do.
//!
//! The sentence is written where the error is found. Programs can act on the kind, the file and the offset.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error in a file of weights.
///
/// ```
/// use bf16scope_data::weights::{self, WeightsErrorKind};
///
/// let error = weights::open("no such file.npz").unwrap_err();
/// assert_eq!(error.kind(), WeightsErrorKind::Read);
/// assert_eq!(error.to_string(), "no such file.npz: cannot open the file of weights");
/// ```
#[derive(Debug)]
pub struct WeightsError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: WeightsErrorKind,
    path: PathBuf,
    at: Option<u64>,
    message: String,
    /// Empty if there is no advice.
    help: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

/// The kind of an error in a file of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightsErrorKind {
    /// The file cannot be opened or read.
    Read,
    /// The file cannot be written.
    Write,
    /// The file has another format.
    Format,
    /// The file has weights in an unsupported form.
    Unsupported,
    /// The file is truncated, or its bytes are not those that were written.
    Damaged,
    /// Larger than the limit.
    TooLarge,
    /// Another file that belongs to this one is missing.
    NoShard,
    /// No array has this name, or several have it.
    NoArray,
    /// The array exists but cannot be converted to, or written in, the requested form.
    DType,
}

impl WeightsError {
    pub(super) fn new(kind: WeightsErrorKind, path: &Path, message: impl Into<String>) -> WeightsError {
        let (path, message) = (path.to_path_buf(), message.into());
        WeightsError(Box::new(Parts { kind, path, at: None, message, help: String::new(), cause: None }))
    }

    /// The same error with a byte offset in the file.
    pub(super) fn at(mut self, at: u64) -> WeightsError {
        self.0.at = Some(at);
        self
    }

    /// The same error with a remedy.
    pub(super) fn help(mut self, help: impl Into<String>) -> WeightsError {
        self.0.help = help.into();
        self
    }

    /// The same error with its cause.
    pub(super) fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> WeightsError {
        self.0.cause = Some(cause.into());
        self
    }

    pub(super) fn open(path: &Path, cause: io::Error) -> WeightsError {
        WeightsError::new(WeightsErrorKind::Read, path, "cannot open the file of weights").because(cause)
    }

    pub(super) fn read(path: &Path, cause: io::Error) -> WeightsError {
        WeightsError::new(WeightsErrorKind::Read, path, "cannot be read").because(cause)
    }

    pub(super) fn write(path: &Path, cause: io::Error) -> WeightsError {
        WeightsError::new(WeightsErrorKind::Write, path, "cannot write the file of weights").because(cause)
    }

    pub(super) fn format(path: &Path, message: impl Into<String>) -> WeightsError {
        WeightsError::new(WeightsErrorKind::Format, path, message)
    }

    pub(super) fn unsupported(path: &Path, message: impl Into<String>) -> WeightsError {
        WeightsError::new(WeightsErrorKind::Unsupported, path, message)
    }

    /// The bytes are not those that were written.
    pub(super) fn damaged(path: &Path, at: u64, message: impl Into<String>) -> WeightsError {
        WeightsError::new(WeightsErrorKind::Damaged, path, message).at(at).help("the file is damaged: copy it again")
    }

    /// A file of `n_bytes` that ends before `end`.
    pub(super) fn cut(path: &Path, n_bytes: u64, end: u64, what: &str) -> WeightsError {
        let message = format!("the file is cut off: it has {n_bytes} bytes, and {what} ends at byte {end}");
        WeightsError::new(WeightsErrorKind::Damaged, path, message).help("copy it again")
    }

    pub(super) fn too_large(path: &Path, what: &str, measured: u64, limit: u64) -> WeightsError {
        let message = format!("{what} has {measured} bytes; expected at most {limit}");
        WeightsError::new(WeightsErrorKind::TooLarge, path, message)
    }

    /// The kind.
    pub fn kind(&self) -> WeightsErrorKind {
        self.0.kind
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The byte offset of the error in the file, if known.
    pub fn offset(&self) -> Option<u64> {
        self.0.at
    }
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { path, at, message, help, .. } = &*self.0;
        write!(f, "{}: ", path.display())?;
        if let Some(at) = at {
            write!(f, "at byte {at}: ")?;
        }
        f.write_str(message)?;
        if !help.is_empty() {
            write!(f, "\nhelp: {help}")?;
        }
        Ok(())
    }
}

impl Error for WeightsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}
