//! Reads a regular file, up to a limit.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{FIFO, FileError, PIPE, check_input, check_name, is_descriptor, not_regular};

/// Opens a regular file for reading. A file that could block or never end, such as a FIFO or a device, is not opened.
///
/// # Errors
/// An error of the operating system; [`FileError::NotRegular`].
pub fn open(path: &Path) -> io::Result<File> {
    check(path, false)?;
    let file = opened(path)?;
    // Checked again, because it may have been replaced meanwhile.
    let metadata = file.metadata()?;
    if let Some(kind) = not_regular(metadata.file_type()) {
        return Err(FileError::NotRegular { kind }.into());
    }
    // Files in /proc report no size, those that wait among them.
    if metadata.len() == 0 {
        opened(path)?.take(1).read_to_end(&mut Vec::new()).map_err(explained)?;
    }
    Ok(file)
}

/// Opens a file so that reads do not block: some files in /proc, such as /proc/kmsg, claim to be regular, and wait for
/// more data. A read that would block is an error, which [`explained`] puts into words.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        /// From Linux's `fcntl.h` for x86, Arm and RISC-V.
        const O_NONBLOCK: i32 = 0o4000;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, O_NONBLOCK);
    }
    options.open(path)
}

/// The error of a read, in words where the system's say nothing about the file.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => FileError::Waits.into(),
        _ => error,
    }
}

/// Reads a whole file of at most `limit` bytes. A pipe is read like a file if the path names an open descriptor:
/// `/dev/stdin`, or a shell's `<(…)`. Its content is kept, because it comes only once, so that a second read, for
/// example after detecting the format, returns the same. A FIFO with a name in the file system is refused: its writer
/// may never come.
///
/// # Errors
/// An error of the operating system; [`FileError::NotRegular`]; [`FileError::TooLarge`], which takes no more memory
/// than the limit.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let Some(n_bytes) = check(path, true)? else {
        return read_pipe(path, limit);
    };
    if n_bytes > limit {
        return Err(FileError::TooLarge { limit }.into());
    }
    let mut bytes = Vec::with_capacity(n_bytes as usize);
    // A file may grow, and files in /proc report no size.
    opened(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(explained)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { limit }.into());
    }
    Ok(bytes)
}

/// The folders in a folder, unordered; only some if there are very many, and none if it cannot be listed.
pub fn folders_in(path: &Path) -> Vec<PathBuf> {
    const MOST: usize = 10_000;
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MOST);
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Whether [`read`] treats the path as an open pipe.
pub fn is_pipe(path: &Path) -> bool {
    matches!(check(path, true), Ok(None))
}

/// The content of pipes, by their names: at most the largest limit so far plus a byte.
static PIPED: Mutex<Vec<(PathBuf, Vec<u8>)>> = Mutex::new(Vec::new());

fn read_pipe(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut piped = PIPED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = match piped.iter().position(|(name, _)| name == path) {
        Some(at) => at,
        None => {
            piped.push((path.to_path_buf(), Vec::new()));
            piped.len() - 1
        }
    };
    let bytes = &mut piped[at].1;
    // After the writer has ended there is nothing more to read, so reading again does no harm.
    let more = limit.saturating_add(1).saturating_sub(bytes.len() as u64);
    File::open(path)?.take(more).read_to_end(bytes)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { limit }.into());
    }
    Ok(bytes.clone())
}

/// Like [`read`], for text.
///
/// # Errors
/// Those of [`read`]; [`FileError::NotText`].
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit)?);
    text.map_err(|error| FileError::NotText { at: error.utf8_error().valid_up_to() }.into())
}

/// The size of the file, if it may be read; `None` for a pipe, which has no known size.
fn check(path: &Path, takes_pipes: bool) -> io::Result<Option<u64>> {
    check_name(path)?;
    check_input(path)?;
    let metadata = fs::metadata(path)?;
    match not_regular(metadata.file_type()) {
        None => Ok(Some(metadata.len())),
        Some(FIFO) if takes_pipes && is_descriptor(path) => Ok(None),
        Some(FIFO) if !takes_pipes => Err(FileError::NotRegular { kind: PIPE }.into()),
        Some(kind) => Err(FileError::NotRegular { kind }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(result: io::Result<impl std::fmt::Debug>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_regular_file_is_said_at_once() {
        let zero = Path::new("/dev/zero");
        assert_eq!(text(open(zero)), "not a regular file but a character device\nhelp: name a file");
        assert_eq!(text(read(zero, 10)), "not a regular file but a character device\nhelp: name a file");
        assert_eq!(text(read(Path::new("/"), 10)), "not a regular file but a directory\nhelp: name a file");
        assert_eq!(text(open(Path::new("/nowhere"))), "No such file or directory (os error 2)");
        // Only what is read from its beginning to its end may come from `/dev/stdin`.
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(
            text(open(&fifo)),
            "not a regular file but a pipe, which gives each byte once\nhelp: save to a file what comes through it, and name that \
             file"
        );
        assert_eq!(
            text(read(&fifo, 10)),
            "not a regular file but a FIFO\nhelp: save to a file what comes through it, or use /dev/stdin"
        );
    }

    #[test]
    fn a_file_that_would_wait_is_refused_with_what_to_do() {
        let expected = "a read of it would wait for data that may never come\nhelp: save to a file what it gives, and name that \
             file";
        assert_eq!(explained(io::ErrorKind::WouldBlock.into()).to_string(), expected);
        assert_eq!(explained(io::ErrorKind::NotFound.into()).kind(), io::ErrorKind::NotFound);
        // Only root may open it, and not every system has one.
        let kmsg = Path::new("/proc/kmsg");
        if File::open(kmsg).is_ok() {
            assert_eq!(text(read(kmsg, 1 << 28)), expected);
            // The kernel may have written a line meanwhile.
            if let Err(error) = open(kmsg) {
                assert_eq!(error.to_string(), expected);
            }
        }
    }

    #[test]
    fn sizes_are_bounded_whatever_the_system_says_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(text(read(&path, 4)), "it has more than 4 bytes, the most that is read of it");
        // The system reports that it is empty.
        assert_eq!(
            text(read(Path::new("/proc/self/status"), 4)),
            "it has more than 4 bytes, the most that is read of it"
        );
        fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(text(read_text(&path, 9)), "byte 2 is not UTF-8\nhelp: it may be another kind of file, or damaged");
    }
}
