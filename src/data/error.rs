//! What can be wrong with data.

use std::io;
use std::path::PathBuf;

use crate::hlo::DType;

/// What is wrong with the data, where, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be opened.
    #[error("{}: cannot open the data file", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Reading failed on the way: a disk error, text that is not UTF-8 or a damaged gzip stream.
    #[error("{}:{line}: cannot read on from here", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The line that could not be read, counted from 1.
        line: u64,
        /// What the reader says.
        source: io::Error,
    },
    /// A gzip stream without its end.
    #[error("{}:{line}: the gzip stream ends early, at this line; copy or download the file again", path.display())]
    TruncatedGzip {
        /// The file.
        path: PathBuf,
        /// The line that could not be read whole, counted from 1.
        line: u64,
    },
    /// No rows at all.
    #[error("{}: no rows; expected one example a line: {n_columns} numbers, then a label", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Features in a row.
        n_columns: usize,
    },
    /// A row with too many or too few columns.
    #[error("{}:{line}: {found} columns; expected {expected}: {} features and a label", path.display(), expected - 1)]
    ColumnCount {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Columns found.
        found: usize,
        /// Columns expected.
        expected: usize,
    },
    /// A feature that is not a finite number.
    #[error("{}:{line}: column {column} is `{text}`; expected a finite number", path.display())]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: usize,
        /// What stands there.
        text: String,
    },
    /// A label that is no class.
    #[error("{}:{line}: the label is `{text}`; expected a whole number from 0 to {}", path.display(), n_classes - 1)]
    Label {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What stands there.
        text: String,
        /// How many classes there are.
        n_classes: usize,
    },
    /// A row without an end.
    #[error(
        "{}:{line}: a row of more than {limit} bytes; expected lines of numbers: name a CSV file, plain or gzip",
        path.display()
    )]
    RowTooLong {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// In bytes.
        limit: u64,
    },
    /// Nothing, for too long.
    #[error(
        "{}:{line}: more than {limit} empty lines after one another; expected lines of numbers: name a CSV file, plain or \
         gzip",
        path.display()
    )]
    EmptyLines {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// How many are passed over.
        limit: u64,
    },
    /// More than is read into memory.
    #[error("{}: more than {limit} bytes of text; expected a data set that fits in memory: split it", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// In bytes, after decompression.
        limit: u64,
    },
    /// Dimensions that no example can have.
    #[error("feature dimensions {dims:?} do not make an example; expected positive ones")]
    FeatureDims {
        /// As given.
        dims: Vec<i64>,
    },
    /// More test examples asked for than there are.
    #[error(
        "cannot keep {n_test} examples for testing; the data set has {n_examples}, and one must be left to train on"
    )]
    Split {
        /// Asked for.
        n_test: usize,
        /// There are.
        n_examples: usize,
    },
    /// A feature that is a number in f32, and an infinity in what the network reads.
    #[error(
        "example {example}: feature {feature} is {value:e}, which the cast to {dtype} makes infinite: expected at most {greatest:e}\nhelp: scale the features (`scale` under `data`), or train in f32 (--precision f32)"
    )]
    Overflows {
        /// The example, from 0, of its part of the data.
        example: usize,
        /// The feature, from 0.
        feature: usize,
        /// What it is.
        value: f32,
        /// What it is cast to.
        dtype: DType,
        /// The greatest number of that dtype.
        greatest: f32,
    },
    /// A batch of nothing, or of more than there is.
    #[error("a batch of {batch} does not fit: expected 1 to {n_examples}, as many as there are examples")]
    BatchSize {
        /// Asked for.
        batch: usize,
        /// There are.
        n_examples: usize,
    },
    /// Features in a type that the host does not cast to.
    #[error("features cannot be cast to {dtype} on the host; expected f32, bf16 or f16")]
    FeatureType {
        /// Asked for.
        dtype: DType,
    },
    /// Shifts asked for on what is no image.
    #[error("examples of dims {dims:?} cannot be shifted; expected images: [height, width, channels]")]
    NotImages {
        /// The dims of an example.
        dims: Vec<i64>,
    },
    /// Shifts that leave nothing of an image.
    #[error(
        "images of {height}×{width} pixels cannot be shifted by up to {shift}: some would be all 0\nhelp: set `shift` to less than \
         {}, or to 0",
        height.min(width)
    )]
    Shift {
        /// Pixels asked for.
        shift: u32,
        /// Rows of an image.
        height: usize,
        /// Columns of an image.
        width: usize,
    },
    /// A feature that f32 cannot hold once it is scaled.
    #[error(
        "{}:{line}: column {column} is {value}, which times the scale {scale} is not a finite number\nhelp: make `scale` smaller",
        path.display()
    )]
    Scaled {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column, counted from 1.
        column: usize,
        /// What stands there.
        value: f32,
        /// What it is multiplied with.
        scale: f32,
    },
}
