//! What can be wrong with data.

use std::io;
use std::path::PathBuf;

use super::npz::NpzError;
use super::records::RecordError;
use super::text::TextError;
use super::words::WordsError;
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
    /// An archive that cannot be read.
    #[error(transparent)]
    Npz(#[from] NpzError),
    /// An array of an archive that is not examples.
    #[error(
        "{}: array `{name}` is {found}; expected examples along its first axis, of NumPy's bool, integers, floats of 16 to \
         64 bits or complex numbers",
        path.display()
    )]
    NpzArray {
        /// The file.
        path: PathBuf,
        /// The array.
        name: String,
        /// Its type and dims.
        found: String,
    },
    /// Reading binary data failed on the way: a disk error or a damaged gzip stream.
    #[error("{}: cannot read on from byte {at}; copy or download the file again", path.display())]
    ReadByte {
        /// The file.
        path: PathBuf,
        /// Bytes before it, after decompression.
        at: u64,
        /// What the reader says.
        source: io::Error,
    },
    /// A file that is not IDX.
    #[error(
        "{}: begins with {found:02x?}; expected an IDX file: 00 00, then 08 (u8), 09 (s8), 0b (s16), 0c (s32), 0d (f32) or \
         0e (f64), then how many axes it has",
        path.display()
    )]
    IdxMagic {
        /// The file.
        path: PathBuf,
        /// Its first bytes, four at most.
        found: Vec<u8>,
    },
    /// An IDX file that ends within its header.
    #[error(
        "{}: ends after {measured} bytes, within the sizes of its {n_dims} axes; expected {} bytes before the first element",
        path.display(),
        4 + 4 * usize::from(*n_dims)
    )]
    IdxHeader {
        /// The file.
        path: PathBuf,
        /// Axes that it claims.
        n_dims: u8,
        /// Bytes that it has.
        measured: usize,
    },
    /// An IDX file with fewer or more elements than it says.
    #[error(
        "{}: {} bytes of elements; expected {expected}: {dtype} {dims:?}, as its header says\nhelp: copy or download the file \
         again",
        path.display(),
        if measured > expected { format!("more than {expected}") } else { measured.to_string() }
    )]
    IdxSize {
        /// The file.
        path: PathBuf,
        /// Its elements.
        dtype: DType,
        /// Its dims, examples first.
        dims: Vec<i64>,
        /// Bytes found; when there are too many, one more than expected.
        measured: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// An array that is not read into memory.
    #[error(
        "{}: array `{name}` has {expected} bytes; expected at most {limit}: a data set that fits in memory",
        path.display()
    )]
    ArrayTooLarge {
        /// The file.
        path: PathBuf,
        /// The array.
        name: String,
        /// Bytes that its header claims.
        expected: u64,
        /// Bytes that are read.
        limit: u64,
    },
    /// A first row that is no numbers.
    #[error(
        "{}:1: a header, which begins with `{text}`; expected numbers from the first line on\nhelp: remove it: tail -n +2",
        path.display()
    )]
    HeaderRow {
        /// The file.
        path: PathBuf,
        /// What stands in the first column.
        text: String,
    },
    /// No rows at all, where features say what a row holds.
    #[error("{}: no rows; expected one example a line: {layout}", path.display())]
    NoRows {
        /// The file.
        path: PathBuf,
        /// What a row holds, in words.
        layout: String,
    },
    /// A row with too many or too few columns.
    #[error(
        "{}:{line}: {}{found} {}; expected {expected}: {layout}{}",
        path.display(),
        if *is_all { "" } else { "at least " },
        if *found == 1 { "column" } else { "columns" },
        if *found == 1 { "\nhelp: a comma stands between two columns" } else { "" }
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Columns found; where there are far too many, as many as were counted.
        found: usize,
        /// Whether all were counted.
        is_all: bool,
        /// Columns expected.
        expected: usize,
        /// What a row holds, in words.
        layout: String,
    },
    /// A column that is not what its feature takes.
    #[error("{}:{line}: column {column}, of `{feature}`, is `{text}`; expected {expected}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: usize,
        /// The feature.
        feature: String,
        /// What stands there.
        text: String,
        /// What may.
        expected: String,
    },
    /// A dtype whose numbers are not read from text.
    #[error("{}: `{feature}` is {dtype}, which is not read from text; expected a float for the network, f32, f64, pred or integers of 8 to 64 bits", path.display())]
    TextType {
        /// The file.
        path: PathBuf,
        /// The feature.
        feature: String,
        /// Its dtype.
        dtype: DType,
    },
    /// Two arrays of one name.
    #[error("{}: two arrays are named `{name}`; expected a name for each", file.display())]
    TwoArrays {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// Bytes that are not whole examples.
    #[error(
        "{}: array `{name}` has {measured} bytes, which are not whole examples; expected a multiple of {example}",
        file.display()
    )]
    PartOfExample {
        /// The file.
        file: PathBuf,
        /// The array.
        name: String,
        /// Its bytes.
        measured: usize,
        /// Bytes of an example.
        example: usize,
    },
    /// Arrays of different numbers of examples.
    #[error(
        "{}: array `{name}` has {measured} examples, `{other}` has {expected}; expected as many of each",
        file.display()
    )]
    Unequal {
        /// The file.
        file: PathBuf,
        /// The array.
        name: String,
        /// Its examples.
        measured: u64,
        /// An array before it.
        other: String,
        /// That one's examples.
        expected: u64,
    },
    /// No examples at all.
    #[error("{}: no examples; expected one at least", file.display())]
    NoExamples {
        /// The file.
        file: PathBuf,
    },
    /// An index beyond the last example.
    #[error("{place}: there is no such example; expected one of {n_examples}, from 0")]
    NoExample {
        /// Where it would stand.
        place: String,
        /// There are.
        n_examples: u64,
    },
    /// An array that a source does not have.
    #[error("{place}: there is no array `{name}`; it has {}\nhelp: {}", listed(names), remedy(nearest.as_deref()))]
    NoArray {
        /// The source.
        place: String,
        /// Asked for.
        name: String,
        /// What there is.
        names: Vec<String>,
        /// The one that may be meant.
        nearest: Option<String>,
    },
    /// An array of other dims than the feature's.
    #[error("{place}: array `{name}` has dims {measured:?} in each example; expected {expected:?}")]
    Dims {
        /// The source.
        place: String,
        /// The array.
        name: String,
        /// Its dims.
        measured: Vec<i64>,
        /// The feature's.
        expected: Vec<i64>,
    },
    /// An array whose dtype does not become the feature's.
    #[error(
        "{place}: array `{name}` is {dtype}, which does not become {wanted}; expected {expected}{}",
        in_numpy(name, *wanted)
    )]
    Cast {
        /// The source.
        place: String,
        /// The array.
        name: String,
        /// Its dtype.
        dtype: DType,
        /// The feature's dtype.
        wanted: DType,
        /// Dtypes that do.
        expected: &'static str,
    },
    /// A scale that makes nothing of numbers.
    #[error("{}: array `{name}` cannot be multiplied with {scale}; expected a finite scale other than 0", file.display())]
    Scale {
        /// The file.
        file: PathBuf,
        /// The array.
        name: String,
        /// Asked for.
        scale: f32,
    },
    /// A scale where nothing is multiplied.
    #[error(
        "{place}: array `{name}` is multiplied with {scale} where it is cast, and its feature is {dtype} as it stands; \
         expected a feature that is cast, or no scale"
    )]
    ScaledExact {
        /// The source.
        place: String,
        /// The array.
        name: String,
        /// Its scale.
        scale: f32,
        /// The feature's dtype.
        dtype: DType,
    },
    /// Shifts asked for where nothing is an image.
    #[error(
        "no feature can be shifted: {}; expected an image that is cast: [height, width, channels]",
        if features.is_empty() { "there is none" } else { features }
    )]
    NoImages {
        /// Names and dims of the features that are cast.
        features: String,
    },
    /// Two features of one name.
    #[error("two features are named `{name}`; expected a name for each")]
    TwoFeatures {
        /// The name.
        name: String,
    },
    /// A range that no integers have.
    #[error("feature `{feature}` is {dtype} below {n}; expected integers of 8 to 64 bits, and a positive bound")]
    Range {
        /// The feature.
        feature: String,
        /// Its dtype.
        dtype: DType,
        /// The bound.
        n: i64,
    },
    /// A batch that no memory holds.
    #[error("{batch} examples of `{feature}`, {dims:?} each, are more than memory holds; expected a smaller batch")]
    BatchBytes {
        /// Examples asked for.
        batch: usize,
        /// The feature.
        feature: String,
        /// Dims of an example.
        dims: Vec<i64>,
    },
    /// A batch of nothing, or of more than there is, from a source.
    #[error("a batch of {batch} does not fit: expected 1 to {n_examples}, as many as there are examples")]
    Batch {
        /// Asked for.
        batch: usize,
        /// There are.
        n_examples: u64,
    },
    /// A host that is none of those that share an epoch.
    #[error("host {number} of {n_hosts}; expected a number below {n_hosts}: hosts are counted from 0")]
    Host {
        /// Which.
        number: u32,
        /// There are.
        n_hosts: u32,
    },
    /// An integer beyond its range or its dtype.
    #[error("{place}: number {element} of `{feature}` is {value}; expected a whole number from {least} to {greatest}")]
    Integer {
        /// The example.
        place: String,
        /// The feature.
        feature: String,
        /// Which number of it, from 0, row-major.
        element: usize,
        /// What it is.
        value: i128,
        /// The least that it may be.
        least: i128,
        /// The greatest.
        greatest: i128,
    },
    /// A number that is no probability, where one is wanted.
    #[error(
        "{place}: number {element} of `{feature}` is {value}{}; expected a probability, from 0 to 1",
        if *scale == 1.0 { String::new() } else { format!(", and {} times the scale {scale}", *value as f32 * scale) }
    )]
    Probability {
        /// The example.
        place: String,
        /// The feature.
        feature: String,
        /// Which number of it, from 0, row-major.
        element: usize,
        /// What it is.
        value: f64,
        /// What it is multiplied with.
        scale: f32,
    },
    /// A float that is no finite number.
    #[error("{place}: number {element} of `{feature}` is {value}; expected a finite number")]
    NotFinite {
        /// The example.
        place: String,
        /// The feature.
        feature: String,
        /// Which number of it, from 0, row-major.
        element: usize,
        /// What it is.
        value: f64,
    },
    /// A number that the cast makes infinite.
    #[error(
        "{place}: number {element} of `{feature}` is {value:e}, which{} the cast to {dtype} makes infinite: expected at most \
         {greatest:e}\nhelp: scale the features (`scale` under `data`){}",
        scaled(*scale),
        if *dtype == DType::F32 { "" } else { ", or train in f32 (--precision f32)" }
    )]
    BeyondRange {
        /// The example.
        place: String,
        /// The feature.
        feature: String,
        /// Which number of it, from 0, row-major.
        element: usize,
        /// What it is.
        value: f64,
        /// What it is multiplied with.
        scale: f32,
        /// What it is cast to.
        dtype: DType,
        /// The greatest number of that dtype.
        greatest: f32,
    },
    /// A byte of `pred` other than 0 and 1.
    #[error("{place}: number {element} of `{feature}` is {value}; expected 0 or 1, which `pred` has")]
    NotPred {
        /// The example.
        place: String,
        /// The feature.
        feature: String,
        /// Which number of it, from 0, row-major.
        element: usize,
        /// What it is.
        value: u8,
    },
    /// A source that returned other bytes than its arrays say.
    #[error("{place}: array `{name}` came with {measured} bytes; expected {expected}, as its dims and dtype say")]
    ExampleBytes {
        /// The example.
        place: String,
        /// The array.
        name: String,
        /// Bytes that came; 0 where the array did not.
        measured: usize,
        /// Bytes of an example.
        expected: usize,
    },
    /// What is wrong with examples on disk.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An example that cannot be used, where none may be left out.
    #[error("{source}{}", skip_help(source))]
    Stopped {
        /// What is wrong with it.
        source: Box<DataError>,
    },
    /// Text, or what makes ids of it.
    #[error(transparent)]
    Text(#[from] TextError),
    /// What is wrong with a table of word vectors.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// An example that its source could not read.
    #[error("{place}: the example cannot be read")]
    Unreadable {
        /// The example.
        place: String,
        /// What the source says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DataError {
    /// That there is no array `name` at `place`, with what there is and what may be meant.
    pub(super) fn no_array(place: String, name: &str, names: Vec<String>) -> DataError {
        let score = |other: &String| strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase());
        let nearest = names.iter().max_by(|a, b| score(a).total_cmp(&score(b))).filter(|other| score(other) > 0.7);
        DataError::NoArray { place, name: name.to_string(), nearest: nearest.cloned(), names }
    }
}

/// How examples are left out, where nothing says what else to do.
fn skip_help(error: &DataError) -> &'static str {
    match error.to_string().contains("\nhelp: ") {
        true => "",
        false => "\nhelp: leave such examples out: `on_error: {skip: N}` under `data`",
    }
}

/// Names listed at most: an archive may have thousands.
const MAX_LISTED: usize = 20;

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MAX_LISTED) {
        _ if names.is_empty() => "none".to_string(),
        Some(n_more) if n_more > 0 => format!("{shown} and {n_more} more"),
        Some(_) | None => shown,
    }
}

fn remedy(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => "name one of these".to_string(),
    }
}

/// How an array is made one of `wanted` before it is saved, where NumPy has that.
fn in_numpy(name: &str, wanted: DType) -> String {
    let name_of = match wanted {
        DType::S8 | DType::S16 | DType::S32 | DType::S64 => format!("int{}", wanted.bits()),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => format!("uint{}", wanted.bits()),
        DType::F16 | DType::F32 | DType::F64 => format!("float{}", wanted.bits()),
        _ => return String::new(),
    };
    let only = if wanted.is_integer() { ", if these are whole numbers" } else { "" };
    format!("\nhelp: save it as {name_of}{only}: in NumPy, `{name}.astype('{name_of}')`")
}

fn scaled(scale: f32) -> String {
    if scale == 1.0 { String::new() } else { format!(", times the scale {scale},") }
}
