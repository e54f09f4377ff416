//! What can be wrong with data: a place, a kind, what was found and what to do about it.
//!
//! The sentence is written where the fault is found. What a program can act on is in the place and in the kind.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bf16scope_hlo::words::{listed, nearest};

/// What is wrong with the data: where, what was found, what was expected, and what to do.
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
    found: String,
    /// Empty where there is nothing to say.
    help: String,
    /// Whether it ended what it was found in because no example may be left out.
    is_stop: bool,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

/// Where data are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataPlace {
    /// Nowhere in a file: what was asked for is wrong, or a part is, of which only the caller knows where it is.
    Nowhere,
    /// An argument, by its name.
    Argument(&'static str),
    /// A file or a folder.
    File(PathBuf),
    /// A line of a file, from 1.
    Line(PathBuf, u64),
    /// A record or an example, as its source names it, or the name of an object of a store.
    Example(String),
}

/// What kind of thing is wrong with data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataErrorKind {
    /// A file, a folder or an object of a store that cannot be found, opened or read, or not by this build.
    Read,
    /// A file that cannot be written, in the cache or elsewhere.
    Write,
    /// Another kind of file than is read.
    Format,
    /// A file that is damaged, ends early, or has changed since it was opened.
    Damaged,
    /// More than is read, unpacked or kept.
    TooLarge,
    /// A row with more or fewer columns than its features have.
    Columns,
    /// A value that its feature does not take.
    Value {
        /// The feature.
        feature: String,
        /// The value, as text.
        value: String,
    },
    /// Something that is asked for and is not there: an array, a field, an example.
    Missing,
    /// Something that is there, and not of the type or the size that is asked for.
    Mismatch,
    /// The request cannot be met: a batch of more examples than there are, a shift beyond the image.
    Request,
}

impl DataError {
    pub(crate) fn new(kind: DataErrorKind, place: impl Into<DataPlace>, found: impl Into<String>) -> DataError {
        let (place, found) = (place.into(), found.into());
        DataError(Box::new(Parts { kind, place, found, help: String::new(), is_stop: false, cause: None }))
    }

    /// The same error, with what to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> DataError {
        self.0.help = help.into();
        self
    }

    /// The same error, with what caused it.
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> DataError {
        self.0.cause = Some(cause.into());
        self
    }

    /// The same error, at this place if it has none: of a part, where it is known what it is a part of.
    pub(crate) fn or_at(mut self, place: impl Into<DataPlace>) -> DataError {
        if self.0.place == DataPlace::Nowhere {
            self.0.place = place.into();
        }
        self
    }

    /// The same error, which ends what it was found in because no example may be left out.
    pub(super) fn stop(mut self) -> DataError {
        self.0.is_stop = true;
        self
    }

    /// An example that its source cannot read: for sources that are written elsewhere.
    pub fn unreadable(place: impl Into<DataPlace>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> DataError {
        DataError::new(DataErrorKind::Read, place, "the example cannot be read").because(cause)
    }

    /// That no example has this number; `place` says which.
    pub fn no_example(place: impl Into<DataPlace>, n_examples: u64) -> DataError {
        let found = format!("there is no such example; expected one of {n_examples}, from 0");
        DataError::new(DataErrorKind::Missing, place, found)
    }

    /// The kind.
    pub fn kind(&self) -> &DataErrorKind {
        &self.0.kind
    }

    /// The place.
    pub fn place(&self) -> &DataPlace {
        &self.0.place
    }

    /// Of an error that ended what it was found in because no example may be left out: what is wrong, without how examples
    /// are left out.
    pub fn stopped(&self) -> Option<String> {
        self.0.is_stop.then(|| self.alone())
    }

    fn alone(&self) -> String {
        let Parts { place, found, help, .. } = &*self.0;
        let place = match place {
            DataPlace::Nowhere | DataPlace::Argument(_) => String::new(),
            place => format!("{place}: "),
        };
        let help = if help.is_empty() { String::new() } else { format!("\nhelp: {help}") };
        format!("{place}{found}{help}")
    }
}

// What many readers say.
impl DataError {
    pub(super) fn open(path: &Path, cause: io::Error) -> DataError {
        DataError::new(DataErrorKind::Read, path, "cannot open the data file").because(cause)
    }

    pub(super) fn read(place: impl Into<DataPlace>, cause: io::Error) -> DataError {
        DataError::new(DataErrorKind::Read, place, "cannot be read").because(cause)
    }

    pub(super) fn changed(path: &Path) -> DataError {
        let found = "the file has changed since this run began; expected it as it was: start the run again";
        DataError::new(DataErrorKind::Damaged, path, found)
    }

    pub(super) fn empty(path: &Path, found: &str) -> DataError {
        DataError::new(DataErrorKind::Missing, path, found)
    }

    /// A record, or a part of one, that is not read into memory.
    pub(super) fn too_long(place: impl Into<DataPlace>, measured: u64, limit: u64) -> DataError {
        let found = format!("{measured} bytes; expected at most {limit} in a record");
        DataError::new(DataErrorKind::TooLarge, place, found)
    }

    /// An array that is not read into memory.
    pub(super) fn array_too_large(path: &Path, name: &str, measured: u64, limit: u64) -> DataError {
        let found =
            format!("array `{name}` has {measured} bytes; expected at most {limit}: a data set that fits in memory");
        DataError::new(DataErrorKind::TooLarge, path, found)
    }

    /// A feature of a record, or a field of a text, of another kind.
    pub(super) fn mismatch(place: impl Into<DataPlace>, what: &str, measured: &str, expected: &str) -> DataError {
        DataError::new(DataErrorKind::Mismatch, place, format!("{what} is {measured}; expected {expected}"))
    }

    /// An array of other dims than asked for.
    pub(super) fn other_dims(place: impl Into<DataPlace>, name: &str, measured: &[i64], expected: &[i64]) -> DataError {
        let found = format!("array `{name}` has dims {measured:?} in each example; expected {expected:?}");
        DataError::new(DataErrorKind::Mismatch, place, found)
    }

    /// A scale that makes nothing of numbers.
    pub(super) fn scale(path: &Path, name: &str, scale: f32) -> DataError {
        let found = format!("array `{name}` cannot be multiplied with {scale}; expected a finite scale other than 0");
        DataError::new(DataErrorKind::Request, path, found)
    }

    pub(super) fn dims(dims: &[i64]) -> DataError {
        DataError::request(format!("feature dimensions {dims:?} do not make an example; expected positive ones"))
    }

    pub(super) fn request(found: impl Into<String>) -> DataError {
        DataError::new(DataErrorKind::Request, DataPlace::Nowhere, found)
    }

    pub(super) fn batch(batch: usize, n_examples: u64) -> DataError {
        let found =
            format!("a batch of {batch} does not fit: expected 1 to {n_examples}, as many as there are examples");
        DataError::new(DataErrorKind::Request, DataPlace::Argument("batch"), found)
    }

    /// A part of `n_examples` that would be empty; `why` follows.
    pub(super) fn split(n_test: u64, n_examples: impl fmt::Display, why: &str) -> DataError {
        let found =
            format!("cannot keep {n_test} examples for testing; {n_examples}, and one must be left to train on{why}");
        DataError::new(DataErrorKind::Request, DataPlace::Argument("n_test"), found)
    }

    /// That there is no array `name` at `place`, with what there is and what may be meant.
    pub(super) fn no_array(place: impl Into<DataPlace>, name: &str, names: &[String]) -> DataError {
        let nearest = nearest(name, names.iter().map(String::as_str));
        let help = nearest.map_or("name one of these".to_string(), |name| format!("did you mean `{name}`?"));
        let found = format!("there is no array `{name}`; it has {}", listed(names, MAX_LISTED));
        DataError::new(DataErrorKind::Missing, place, found).help(help)
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

/// Names listed at most: an archive may have thousands.
pub(super) const MAX_LISTED: usize = 20;

/// What is to be done about a file that is damaged.
pub(super) const COPY_AGAIN: &str = "copy or download the file again";
