//! Reads files that users name, up to a size limit, and replaces files atomically.
//!
//! All reading and writing goes through this crate, so that `/dev/zero` and FIFOs are errors at once, a killed run
//! leaves no half-written file, and the target of a link is never lost. The caller interprets the bytes. Errors are
//! [`std::io::Error`]s; if the system has no error for the problem, they hold a [`FileError`].
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("bf16scope-files-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let path = folder.join("settings.yaml");
//! bf16scope_files::replace(&path, b"batch: 32\n")?; // written, synced, renamed: whole or not at all
//! assert_eq!(bf16scope_files::read_text(&path, 1 << 20)?, "batch: 32\n"); // at most a mebibyte
//! assert!(bf16scope_files::read_text(&path, 4).is_err());
//! assert!(bf16scope_files::read("/dev/zero".as_ref(), 1 << 20).is_err()); // not a regular file
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod archive;
mod cache;
pub mod framing;
mod local;
mod offline;
mod read;
mod records;
mod replace;
mod sums;
mod trust;

pub use archive::{MAX_UNPACKED_RATIO, UNPACKED_WITHOUT_QUESTION, ZipError, has_zip_end, is_bomb, stored_of_hollow};
pub use cache::{BytesDone, Cache, OnBytes};
pub use local::{NotLocal, check_input, check_output};
pub use offline::{is_offline, refuse_downloads};
pub use read::{folders_in, is_pipe, open, read, read_text};
pub use records::{Records, remove_one as remove_file};
pub use replace::{
    Doomed, Placed, Replacement, check_replaceable, doom, make_way, open_lock, put, remove_unnamed, replace, sweep,
};
pub use sums::{Damage, Summing, Sums, read_exact_at};
pub use trust::{Untrusted, check_trusted, check_trusted_or};

use std::io;
use std::path::Path;

/// Bytes in hexadecimal, as hashes are written.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Problems with a file that the operating system itself would accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A device, a FIFO or a directory in a file's place.
    #[error("not a regular file but {kind}\nhelp: {}", remedy(kind))]
    NotRegular {
        /// The kind of the object there.
        kind: &'static str,
    },
    /// An object that cannot be replaced by a file.
    #[error("there is {kind}, which a file does not replace\nhelp: name another place")]
    Taken {
        /// The kind of the object there.
        kind: &'static str,
    },
    /// A name that only a directory can have, for a file.
    #[error("the name ends as a directory's does\nhelp: name a file in it")]
    Directory,
    /// Larger than the limit.
    #[error("it has more than {limit} bytes, the most that is read of it")]
    TooLarge {
        /// Bytes.
        limit: u64,
    },
    /// The file is not text.
    #[error("byte {at} is not UTF-8\nhelp: it may be another kind of file, or damaged")]
    NotText {
        /// Bytes before it.
        at: usize,
    },
    /// A file in a cache whose bytes are not those that were written.
    #[error("it is damaged at byte {at} or after it")]
    Damaged {
        /// Where the damaged block begins.
        at: u64,
    },
    /// The file is read-only.
    #[error("the file is read-only\nhelp: `chmod u+w` it, or name another one")]
    ReadOnly,
    /// A file that claims to be regular and has no end: a read of it waits for more.
    #[error(
        "a read of it would wait for data that may never come\nhelp: save to a file what it gives, and name that file"
    )]
    Waits,
    /// A name that other programs use for standard input or output.
    #[error("`-` is not a file name here\nhelp: name /dev/stdin or /dev/stdout, or ./- for a file called so")]
    Dash,
    /// The folder to write to does not exist.
    #[error("its folder is not there\nhelp: make it (`mkdir -p`), or name another place")]
    NoFolder,
    /// Symbolic links in a cycle, or a dangling one.
    #[error("a symbolic link that leads to no file")]
    Link,
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        let kind = match error {
            FileError::NotRegular { .. }
            | FileError::Taken { .. }
            | FileError::Directory
            | FileError::Waits
            | FileError::Dash
            | FileError::Link => io::ErrorKind::InvalidInput,
            FileError::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            FileError::NotText { .. } | FileError::Damaged { .. } => io::ErrorKind::InvalidData,
            FileError::ReadOnly => io::ErrorKind::PermissionDenied,
            FileError::NoFolder => io::ErrorKind::NotFound,
        };
        io::Error::new(kind, error)
    }
}

/// The remedy where a file or its folder cannot be made: to make room, unless a file is in the way.
pub fn room_for(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory if error.raw_os_error().is_some() => {
            "move the file away that is where the path has a folder"
        }
        _ => "make room",
    }
}

const FIFO: &str = "a FIFO";
/// A FIFO where a file is read at any place, so that `/dev/stdin` helps no more.
const PIPE: &str = "a pipe, which gives each byte once";
const CHARACTER_DEVICE: &str = "a character device";

fn remedy(message: &str) -> &'static str {
    match message {
        FIFO => "save to a file what comes through it, or use /dev/stdin",
        PIPE => "save to a file what comes through it, and name that file",
        _ => "name a file",
    }
}

/// The kind of an object that is not a regular file, in words; `None` for a regular file.
fn not_regular(kind: std::fs::FileType) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return Some(FIFO);
        } else if kind.is_char_device() {
            return Some(CHARACTER_DEVICE);
        } else if kind.is_block_device() {
            return Some("a block device");
        } else if kind.is_socket() {
            return Some("a socket");
        }
    }
    if kind.is_dir() {
        Some("a directory")
    } else if kind.is_file() {
        None
    } else {
        Some("something else")
    }
}

fn check_name(path: &Path) -> Result<(), FileError> {
    if path == Path::new("-") { Err(FileError::Dash) } else { Ok(()) }
}

/// Whether the path names an open descriptor of the process: `/dev/stdin`, `/dev/fd/63` (from a shell's `<(…)` and
/// `>(…)`). Such a pipe was passed deliberately, and both of its ends are open.
fn is_descriptor(path: &Path) -> bool {
    let standard = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    standard.iter().any(|name| path == Path::new(name))
        || ["/dev/fd", "/proc/self/fd"].iter().any(|folder| path.parent() == Some(Path::new(folder)))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_what_to_do() {
        assert_eq!(FileError::Damaged { at: 512 }.to_string(), "it is damaged at byte 512 or after it");
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("new/");
        let error = replace(&name, b"").unwrap_err();
        assert_eq!(error.to_string(), "the name ends as a directory's does\nhelp: name a file in it");
    }
}
