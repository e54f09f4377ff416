//! Errors in data: a place, a kind, a sentence with the measured and expected values, and a remedy.
//!
//! The sentence is written where the error is found. Programs can act on the place and the kind.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bf16scope_hlo::words::{listed, nearest};

/// An error in data: where it is, what was measured, what was expected, and what to do.
///
/// ```
/// use bf16scope_data::{DataErrorKind, csv};
///
/// let error = csv::read("no such file.csv", &[]).unwrap_err();
/// assert_eq!(error.to_string(), "no such file.csv: cannot open the data file");
/// assert_eq!(error.kind(), &DataErrorKind::Read);
/// ```
#[derive(Debug)]
pub struct DataError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: DataErrorKind,
    place: DataPlace,
    message: String,
    /// Empty if there is no advice.
    help: String,
    /// Whether reading stopped because no (further) example may be skipped.
    is_stop: bool,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

/// The place of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataPlace {
    /// No place in a file: the request itself is wrong, or only the caller knows which file the faulty part belongs to.
    Nowhere,
    /// An argument, by its name.
    Argument(&'static str),
    /// A file or a folder.
    File(PathBuf),
    /// A line of a file, from 1.
    Line(PathBuf, u64),
    /// A record or an example, by its source's name for it, or the name of an object in a store.
    Example(String),
}

/// The kind of a data error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataErrorKind {
    /// A file, a folder or an object in a store cannot be found, opened or read, or this build cannot read it.
    Read,
    /// A file cannot be written, in the cache or elsewhere.
    Write,
    /// The file has another format than expected.
    Format,
    /// The file is damaged, truncated, or has changed since it was opened.
    Damaged,
    /// Larger than the limit for reading, unpacking or keeping.
    TooLarge,
    /// The row has more or fewer columns than its features.
    Columns,
    /// A value that its feature does not accept.
    Value {
        /// The feature.
        feature: String,
        /// The value, as text.
        value: String,
    },
    /// Something requested does not exist: an array, a field, an example.
    Missing,
    /// Something exists, but with another type or size than requested.
    Mismatch,
    /// The request cannot be met: a batch larger than the source, a shift beyond the image.
    Request,
}

impl DataError {
    pub(crate) fn new(kind: DataErrorKind, place: impl Into<DataPlace>, message: impl Into<String>) -> DataError {
        let (place, message) = (place.into(), message.into());
        DataError(Box::new(Parts { kind, place, message, help: String::new(), is_stop: false, cause: None }))
    }

    /// The same error with a remedy.
    pub(crate) fn help(mut self, help: impl Into<String>) -> DataError {
        self.0.help = help.into();
        self
    }

    /// The same error with its cause.
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> DataError {
        self.0.cause = Some(cause.into());
        self
    }

    /// The same error with this place, unless it has one: for an error in a part, once the whole is known.
    pub(crate) fn or_at(mut self, place: impl Into<DataPlace>) -> DataError {
        if self.0.place == DataPlace::Nowhere {
            self.0.place = place.into();
        }
        self
    }

    /// Marks that reading stopped because no (further) example may be skipped.
    pub(super) fn stop(mut self) -> DataError {
        self.0.is_stop = true;
        self
    }

    /// The error for an example that its source cannot read: for sources outside this crate.
    pub fn unreadable(place: impl Into<DataPlace>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> DataError {
        DataError::new(DataErrorKind::Read, place, "the example cannot be read").because(cause)
    }

    /// The error for an example number beyond the last; `place` names it.
    pub fn no_example(place: impl Into<DataPlace>, n_examples: u64) -> DataError {
        let message = format!("there is no such example; expected one of {n_examples}, from 0");
        DataError::new(DataErrorKind::Missing, place, message)
    }

    /// The kind.
    pub fn kind(&self) -> &DataErrorKind {
        &self.0.kind
    }

    /// The place.
    pub fn place(&self) -> &DataPlace {
        &self.0.place
    }

    /// If reading stopped because no example may be skipped: the message, without the advice on skipping examples.
    pub fn stopped(&self) -> Option<String> {
        self.0.is_stop.then(|| self.alone())
    }

    fn alone(&self) -> String {
        let Parts { place, message, help, .. } = &*self.0;
        let place = match place {
            DataPlace::Nowhere | DataPlace::Argument(_) => String::new(),
            place => format!("{place}: "),
        };
        let help = if help.is_empty() { String::new() } else { format!("\nhelp: {help}") };
        format!("{place}{message}{help}")
    }
}

// Errors that many readers share.
impl DataError {
    pub(super) fn open(path: &Path, cause: io::Error) -> DataError {
        DataError::new(DataErrorKind::Read, path, "cannot open the data file").because(cause)
    }

    pub(super) fn read(place: impl Into<DataPlace>, cause: io::Error) -> DataError {
        DataError::new(DataErrorKind::Read, place, "cannot be read").because(cause)
    }

    pub(super) fn changed(path: &Path) -> DataError {
        let message = "the file has changed since this run began; expected it as it was: start the run again";
        DataError::new(DataErrorKind::Damaged, path, message)
    }

    /// The error for a text that begins as UTF-16 does, with its byte order mark.
    pub(super) fn utf_16(path: &Path, head: &[u8]) -> Option<DataError> {
        let is_utf_16 = head.starts_with(&[0xFF, 0xFE]) || head.starts_with(&[0xFE, 0xFF]);
        let help = "write it in UTF-8: `iconv -f UTF-16 -t UTF-8 FILE > NEW`, or in a spreadsheet save as CSV UTF-8";
        is_utf_16.then(|| DataError::new(DataErrorKind::Format, path, "text in UTF-16; expected UTF-8").help(help))
    }

    /// The error for a file of holes: a sparse file may have a tebibyte of them, which takes no space on disk and hours
    /// to read.
    pub(super) fn hollow(path: &Path) -> Option<DataError> {
        let n_stored = bf16scope_files::stored_of_hollow(path)?;
        let n_bytes = std::fs::metadata(path).ok()?.len();
        let message = format!("the file has {n_bytes} bytes, and {n_stored} are stored: the rest are holes");
        Some(DataError::new(DataErrorKind::TooLarge, path, message))
    }

    pub(super) fn empty(path: &Path, message: &str) -> DataError {
        DataError::new(DataErrorKind::Missing, path, message)
    }

    /// A record, or a part of one, is too large to read into memory.
    pub(super) fn too_long(place: impl Into<DataPlace>, measured: u64, limit: u64) -> DataError {
        let message = format!("{measured} bytes; expected at most {limit} in a record");
        DataError::new(DataErrorKind::TooLarge, place, message)
    }

    /// An array is too large to read into memory.
    pub(super) fn array_too_large(path: &Path, name: &str, measured: u64, limit: u64) -> DataError {
        let message =
            format!("array `{name}` has {measured} bytes; expected at most {limit}: a data set that fits in memory");
        DataError::new(DataErrorKind::TooLarge, path, message)
    }

    /// A feature of a record, or a field of a text, has another kind.
    pub(super) fn mismatch(place: impl Into<DataPlace>, what: &str, measured: &str, expected: &str) -> DataError {
        DataError::new(DataErrorKind::Mismatch, place, format!("{what} is {measured}; expected {expected}"))
    }

    /// An array has other dims than requested.
    pub(super) fn other_dims(place: impl Into<DataPlace>, name: &str, measured: &[i64], expected: &[i64]) -> DataError {
        let message = format!("array `{name}` has dims {measured:?} in each example; expected {expected:?}");
        DataError::new(DataErrorKind::Mismatch, place, message)
    }

    /// A scale that is 0, infinite or NaN.
    pub(super) fn scale(path: &Path, name: &str, scale: f32) -> DataError {
        let message = format!("array `{name}` cannot be multiplied with {scale}; expected a finite scale other than 0");
        DataError::new(DataErrorKind::Request, path, message)
    }

    pub(super) fn dims(dims: &[i64]) -> DataError {
        DataError::request(format!("feature dimensions {dims:?} do not make an example; expected positive ones"))
    }

    pub(super) fn request(message: impl Into<String>) -> DataError {
        DataError::new(DataErrorKind::Request, DataPlace::Nowhere, message)
    }

    pub(super) fn batch(batch: usize, n_examples: u64) -> DataError {
        let message =
            format!("a batch of {batch} does not fit: expected 1 to {n_examples}, as many as there are examples");
        DataError::new(DataErrorKind::Request, DataPlace::Argument("batch"), message)
    }

    /// A part of `n_examples` would be empty; `why` follows.
    pub(super) fn split(n_test: u64, n_examples: impl fmt::Display, why: &str) -> DataError {
        let message =
            format!("cannot keep {n_test} examples for testing; {n_examples}, and one must be left to train on{why}");
        DataError::new(DataErrorKind::Request, DataPlace::Argument("n_test"), message)
    }

    /// There is no array `name` at `place`; lists those that exist and suggests a similar name.
    pub(super) fn no_array(place: impl Into<DataPlace>, name: &str, names: &[String]) -> DataError {
        let nearest = nearest(name, names.iter().map(String::as_str));
        let help = nearest.map_or("name one of these".to_string(), |name| format!("did you mean `{name}`?"));
        let message = format!("there is no array `{name}`; it has {}", listed(names, MAX_LISTED));
        DataError::new(DataErrorKind::Missing, place, message).help(help)
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alone = self.alone();
        f.write_str(&alone)?;
        match self.0.is_stop && !alone.contains("\nhelp: ") {
            true => f.write_str("\nhelp: leave such examples out: `on_error: {skip: N}` under `data`"),
            false => Ok(()),
        }
    }
}

impl Error for DataError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl fmt::Display for DataPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataPlace::Nowhere => f.write_str("nowhere"),
            DataPlace::Argument(name) => f.write_str(name),
            DataPlace::File(path) => path.display().fmt(f),
            DataPlace::Line(path, line) => write!(f, "{}:{line}", path.display()),
            DataPlace::Example(place) => f.write_str(place),
        }
    }
}

impl From<&Path> for DataPlace {
    fn from(path: &Path) -> DataPlace {
        DataPlace::File(path.to_path_buf())
    }
}

impl From<&PathBuf> for DataPlace {
    fn from(path: &PathBuf) -> DataPlace {
        DataPlace::File(path.clone())
    }
}

impl From<(&Path, u64)> for DataPlace {
    fn from((path, line): (&Path, u64)) -> DataPlace {
        DataPlace::Line(path.to_path_buf(), line)
    }
}

impl From<String> for DataPlace {
    fn from(place: String) -> DataPlace {
        DataPlace::Example(place)
    }
}

impl From<&str> for DataPlace {
    fn from(place: &str) -> DataPlace {
        DataPlace::Example(place.to_string())
    }
}

/// The largest number of names in a list: an archive may have thousands.
pub(super) const MAX_LISTED: usize = 20;

/// The remedy for a damaged file.
pub(super) const COPY_AGAIN: &str = "copy or download the file again";
