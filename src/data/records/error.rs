//! What can be wrong with examples on disk.

use std::io;
use std::path::PathBuf;

use super::remote::RemoteError;
use crate::data::image::ImageError;

/// What is wrong with records, where, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A file that cannot be opened.
    #[error("{}: cannot open the data file", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// An object of a store that is not fetched.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A folder that cannot be listed.
    #[error("{}: cannot list the folder", path.display())]
    List {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A pattern that is none.
    #[error("`{pattern}` is no pattern of file names: {found}; expected one such as train-*")]
    Pattern {
        /// As written.
        pattern: String,
        /// What is wrong.
        found: &'static str,
    },
    /// A pattern that no file matches.
    #[error("{pattern}: no file has such a name; expected one at least")]
    NoFiles {
        /// As written, below the experiment's folder.
        pattern: String,
    },
    /// Files without one record.
    #[error("{}: no records; expected one at least", path.display())]
    NoRecords {
        /// The first file.
        path: PathBuf,
    },
    /// Reading failed on the way.
    #[error("{place}: cannot be read")]
    Read {
        /// The record.
        place: String,
        /// What the system says.
        source: io::Error,
    },
    /// A compressed file, and no place to unpack it.
    #[error(
        "{}: a {kind} file, whose records are read by number once it is unpacked, and there is no cache directory for that\n\
         help: set BF16SCOPE_CACHE{}",
        path.display(), by_hand.as_ref().map(|by_hand| format!(", or unpack it: {by_hand}")).unwrap_or_default()
    )]
    Compressed {
        /// The file.
        path: PathBuf,
        /// `gzip`, `zlib` or `Parquet`.
        kind: &'static str,
        /// How it is unpacked, where that is one command.
        by_hand: Option<String>,
    },
    /// A compressed file that is damaged.
    #[error(
        "{}: the {kind} stream is damaged or ends early, at or before byte {at}\nhelp: copy or download the file again",
        path.display()
    )]
    Packed {
        /// The file.
        path: PathBuf,
        /// `gzip`, `zlib` or `Parquet`.
        kind: &'static str,
        /// Bytes that were read of it.
        at: u64,
        /// What the reader says.
        source: io::Error,
    },
    /// A compressed file that would fill the disk.
    #[error(
        "{}: a {kind} file of which {n_packed} bytes unpack to {measured} times as many; expected at most {limit} times: it may \
         be made to fill disks\nhelp: if it is not, unpack it yourself and name what comes out",
        path.display()
    )]
    Bomb {
        /// The file.
        path: PathBuf,
        /// `gzip`, `zlib` or `Parquet`.
        kind: &'static str,
        /// Bytes that were read of it.
        n_packed: u64,
        /// How many times more came out.
        measured: u64,
        /// How many times more may.
        limit: u64,
    },
    /// More than is kept unpacked.
    #[error(
        "{}: a {kind} file; with those before it, it unpacks to more than {limit} bytes, which is all that is kept unpacked of a \
         data set\nhelp: {}",
        path.display(),
        match by_hand {
            Some(by_hand) => format!("unpack the files where there is room, and name those: {by_hand}"),
            None => "name fewer files, or write them again without columns that no feature is made of".to_string(),
        }
    )]
    Room {
        /// The file.
        path: PathBuf,
        /// `gzip`, `zlib` or `Parquet`.
        kind: &'static str,
        /// Bytes.
        limit: u64,
        /// How it is unpacked, where that is one command.
        by_hand: Option<String>,
    },
    /// A cache that does not take what is unpacked.
    #[error("{}: cannot be unpacked to {}", path.display(), dir.display())]
    Unpack {
        /// The file.
        path: PathBuf,
        /// The folder of the cache.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A build without Parquet's reader.
    #[error(
        "{}: this build reads no Parquet files\nhelp: build bf16scope with `--features records`, or write the rows as TFRecords",
        path.display()
    )]
    Feature {
        /// The file.
        path: PathBuf,
    },
    /// A file that is no Parquet file, or whose footer is damaged.
    #[error("{}: no Parquet file: {found}\nhelp: copy or download the file again", path.display())]
    NoParquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        found: String,
    },
    /// A Parquet file that only its keys open.
    #[error("{}: an encrypted Parquet file; expected one that is not: there is nowhere to give its keys", path.display())]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// A column of a type that nothing is made of.
    #[error(
        "{place}: column `{key}` is {measured}; expected whole numbers, floats, bools, bytes, text or lists of them"
    )]
    ColumnKind {
        /// The row.
        place: String,
        /// The column.
        key: String,
        /// Its type.
        measured: String,
    },
    /// A value that is not there.
    #[error(
        "{place}: column `{key}` is null; expected a value{}\nhelp: leave such rows out: `on_error: {{skip: N}}` under `data`",
        if *is_elsewhere { ": the row only says where its file was, so write the data set again with files in it" } else { "" }
    )]
    Null {
        /// The row.
        place: String,
        /// The column.
        key: String,
        /// Whether there is a path in its place.
        is_elsewhere: bool,
    },
    /// A value of a column that is not right.
    #[error(
        "{place}: column `{key}`: {found}\nhelp: if the file is damaged, copy or download it again; or leave such rows out: \
         `on_error: {{skip: N}}` under `data`"
    )]
    Cell {
        /// The row.
        place: String,
        /// The column.
        key: String,
        /// What is wrong.
        found: String,
    },
    /// A length whose checksum is another.
    #[error(
        "{place}, at byte {at}: the checksum of its length does not agree; expected a TFRecord file{}\nhelp: copy or \
         download the file again",
        if *at == 0 { ": this may be another kind of file" } else { "" }
    )]
    Length {
        /// The record.
        place: String,
        /// Where it begins.
        at: u64,
    },
    /// A file whose examples only an experiment describes.
    #[error(
        "{}: no TFRecord file, tar, Parquet file or folder of images, which tell what is in them\nhelp: an experiment tells it \
         of this one: `data: {{{key}: {}}}` in a YAML file, whose other keys are in docs/EXPERIMENTS.md",
        path.display(), path.display()
    )]
    Described {
        /// The file.
        path: PathBuf,
        /// The key under which files of such a name are described.
        key: &'static str,
    },
    /// A file that is no tar, or is damaged.
    #[error(
        "{}, at byte {at}: no header of a tar file{}\nhelp: copy or download the file again",
        path.display(),
        if *at == 0 { ": this may be another kind of file" } else { "" }
    )]
    Tar {
        /// The file.
        path: PathBuf,
        /// Where a header should be.
        at: u64,
        /// What the reader says.
        source: io::Error,
    },
    /// Two files of one name in a tar.
    #[error("{}: two files are called `{name}`; expected one of each name and ending", path.display())]
    Twice {
        /// The tar.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A file that ends within a record.
    #[error(
        "{place}, at byte {at}: the file ends after {measured} bytes, within the record; expected {expected} at least\nhelp: \
         copy or download the file again"
    )]
    Cut {
        /// The record.
        place: String,
        /// Where it begins.
        at: u64,
        /// Bytes of the file.
        measured: u64,
        /// Bytes up to the record's end, or to the end of its head where that is cut.
        expected: u64,
    },
    /// A record that is not read into memory.
    #[error("{place}: {measured} bytes; expected at most {limit} in a record")]
    TooLong {
        /// The record.
        place: String,
        /// Its bytes.
        measured: u64,
        /// Bytes at most.
        limit: u64,
    },
    /// Bytes whose checksum is another.
    #[error(
        "{place}: the checksum of its bytes is {measured:#010x}; expected {expected:#010x}: the record is damaged\nhelp: copy or \
         download the file again, or leave such records out: `on_error: {{skip: N}}` under `data`"
    )]
    Checksum {
        /// The record.
        place: String,
        /// What its bytes have.
        measured: u32,
        /// What the file says.
        expected: u32,
    },
    /// A file that is another one than when it was indexed.
    #[error("{}: the file has changed since this run began; expected it as it was: start the run again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A record that is no `tf.train.Example`.
    #[error("{place}: no tf.train.Example: {found}")]
    Example {
        /// The record.
        place: String,
        /// What the reader of messages says.
        found: String,
    },
    /// A feature that a record lacks.
    #[error("{place}: there is no feature `{key}`; it has {}{}", listed(names), key_help(names, key))]
    Missing {
        /// The record.
        place: String,
        /// The name.
        key: String,
        /// What there is.
        names: Vec<String>,
    },
    /// A feature of another kind.
    #[error("{place}: feature `{key}` is {measured}; expected {expected}")]
    Kind {
        /// The record.
        place: String,
        /// The name.
        key: String,
        /// What it is.
        measured: String,
        /// What its use asks for.
        expected: String,
    },
    /// A whole number that its use cannot take.
    #[error("{place}: feature `{key}` is {measured}; expected {expected}")]
    Number {
        /// The record.
        place: String,
        /// The name.
        key: String,
        /// What it is.
        measured: i64,
        /// What it may be.
        expected: String,
    },
    /// An image that cannot be decoded.
    #[error("{place}: feature `{key}`: {source}")]
    Image {
        /// The record.
        place: String,
        /// The name.
        key: String,
        /// What is wrong with it.
        source: ImageError,
    },
    /// A folder without images in folders of classes.
    #[error("{}: {found}; expected a folder for each class, with JPEG or PNG files in it", path.display())]
    NoClasses {
        /// The folder.
        path: PathBuf,
        /// What there is.
        found: String,
    },
    /// A folder without images.
    #[error("{}: no images; expected JPEG or PNG files in it", path.display())]
    NoPictures {
        /// The folder.
        path: PathBuf,
    },
    /// A part that would be empty.
    #[error(
        "cannot keep {n_test} examples for testing; the data set has {n_records}, and one must be left to train on"
    )]
    Split {
        /// Asked for.
        n_test: u64,
        /// There are.
        n_records: u64,
    },
    /// More records left out than are allowed.
    #[error(
        "more than {limit} examples could not be used; the last of them: {last}\nhelp: raise `on_error: {{skip: {limit}}}` under `data` if so many may be left out"
    )]
    TooMany {
        /// How many may be left out.
        limit: u64,
        /// The message of the last one.
        last: String,
    },
}

fn listed(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_string(),
        _ => names.iter().take(20).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

fn key_help(names: &[String], key: &str) -> String {
    let score = |name: &String| strsim::jaro_winkler(&name.to_lowercase(), &key.to_lowercase());
    match names.iter().max_by(|a, b| score(a).total_cmp(&score(b))) {
        Some(name) => format!("\nhelp: name another one with `key`: `{name}`?"),
        None => String::new(),
    }
}
