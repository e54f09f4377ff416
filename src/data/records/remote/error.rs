//! What can be wrong with an object of a store.

use std::io;
use std::path::PathBuf;

/// Why an object is not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A URL that is not taken.
    #[error(
        "{url}: {found}\nhelp: name it as https://host/name, s3://bucket/name or gs://bucket/name; credentials come from the \
         environment, or copy the file here and name that"
    )]
    Url {
        /// What of it may be shown.
        url: String,
        /// What is wrong.
        found: &'static str,
    },
    /// A build without stores.
    #[error(
        "{url}: this build reads local files only\nhelp: build bf16scope with `--features object-store`, or copy the file \
         here and name that"
    )]
    Feature {
        /// The object.
        url: String,
    },
    /// Fetching is refused.
    #[error(
        "{url}: an object of a store, and this run is offline\nhelp: run without --offline and BF16SCOPE_OFFLINE, or copy \
         the file here and name that"
    )]
    Offline {
        /// The object.
        url: String,
    },
    /// No place to bring it to.
    #[error("{url}: an object of a store, and there is no cache directory to bring it to\nhelp: set BF16SCOPE_CACHE")]
    NoCache {
        /// The object.
        url: String,
    },
    /// A pattern of names where nothing can be listed.
    #[error(
        "{url}: a pattern of names, and a web server lists none; expected a name\nhelp: name each file in a list; patterns \
         are for local files, gs:// and s3://"
    )]
    NoList {
        /// The pattern.
        url: String,
    },
    /// A folder of images that is not on the disk.
    #[error(
        "{url}: a folder of a store, which is not read as one of images\nhelp: copy the folder here, or write its images as \
         tars and name those under `webdataset`"
    )]
    Folder {
        /// The folder.
        url: String,
    },
    /// More names below a folder than are looked at.
    #[error("{url}: more than {limit} names in its folder\nhelp: name a folder with fewer, or the files in a list")]
    TooMany {
        /// The pattern.
        url: String,
        /// Names at most.
        limit: usize,
    },
    /// What the store said in place of the object.
    #[error("{url}: cannot be fetched: {found}\nhelp: {help}")]
    Store {
        /// The object.
        url: String,
        /// What the store said.
        found: String,
        /// What to do.
        help: &'static str,
    },
    /// An object that became another one on the way.
    #[error("{url}: the object changed while it was fetched\nhelp: run again when nobody writes it")]
    Changed {
        /// The object.
        url: String,
    },
    /// More than is kept.
    #[error(
        "{url}: the objects of this data set up to here have {measured} bytes; expected at most {limit}, which is all that \
         is kept\nhelp: name fewer, or copy the files where there is room and name those"
    )]
    Room {
        /// The object.
        url: String,
        /// Bytes.
        measured: u64,
        /// Bytes at most.
        limit: u64,
    },
    /// A cache that does not take it.
    #[error("{url}: cannot be kept in {}\nhelp: make room there, or set BF16SCOPE_CACHE to a roomier directory", dir.display())]
    Keep {
        /// The object.
        url: String,
        /// The folder of the cache.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}
