//! Reading a regular file, never more than a bound.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{FIFO, FileError, check_input, check_name, is_descriptor, not_regular};

/// Opens a regular file for reading. Nothing is opened that could block or never end: a FIFO, a device.
///
/// # Errors
/// What the system says; [`FileError::NotRegular`].
pub fn open(path: &Path) -> io::Result<File> {
    check(path, false)?;
    let file = opened(path)?;
    // Somebody may have put another one in its place.
    match not_regular(file.metadata()?.file_type()) {
        Some(found) => Err(FileError::NotRegular { found }.into()),
        None => Ok(file),
    }
}

/// Opens a file of which no read waits: some of /proc, such as /proc/kmsg, say that they are regular, and wait for more. A
/// read that would wait is an error.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        /// As `fcntl.h` of Linux has it on x86, Arm and RISC-V.
        const O_NONBLOCK: i32 = 0o4000;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, O_NONBLOCK);
    }
    options.open(path)
}

/// Reads a whole file of at most `limit` bytes. A pipe is read as a file where the path names a descriptor that is open
/// already: `/dev/stdin`, or what a shell makes of `<(…)`. What came through it is kept, as it comes once: who reads it
/// again, as one who asked first what it is, gets the same. A FIFO with a name of its own is refused: its writer may
/// never come.
///
/// # Errors
/// What the system says; [`FileError::NotRegular`]; [`FileError::TooLarge`], which costs no more memory than the limit.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let Some(n_bytes) = check(path, true)? else {
        return read_pipe(path, limit);
    };
    if n_bytes > limit {
        return Err(FileError::TooLarge { limit }.into());
    }
    let mut bytes = Vec::with_capacity(n_bytes as usize);
    // A file may grow, and those of /proc do not say how long they are.
    opened(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { limit }.into());
    }
    Ok(bytes)
}

/// The folders in a folder, in no order; of very many the first. Of what cannot be listed there are none.
pub fn folders_in(path: &Path) -> Vec<PathBuf> {
    const MOST: usize = 10_000;
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MOST);
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Whether [`read`] takes the path for a pipe that is open already.
pub fn is_pipe(path: &Path) -> bool {
    matches!(check(path, true), Ok(None))
}

/// What came through pipes, by their names: no more than was asked for and a byte.
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
    // A writer that has ended leaves nothing more to read, so asking again is no harm.
    let more = limit.saturating_add(1).saturating_sub(bytes.len() as u64);
    File::open(path)?.take(more).read_to_end(bytes)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { limit }.into());
    }
    Ok(bytes.clone())
}

/// As [`read`], of text.
///
/// # Errors
/// Those of [`read`]; [`FileError::NotText`].
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit)?);
    text.map_err(|error| FileError::NotText { at: error.utf8_error().valid_up_to() }.into())
}

/// Bytes of the file, if it is one that may be read; none of a pipe, which does not say.
fn check(path: &Path, takes_pipes: bool) -> io::Result<Option<u64>> {
    check_name(path)?;
    check_input(path)?;
    let metadata = fs::metadata(path)?;
    match not_regular(metadata.file_type()) {
        None => Ok(Some(metadata.len())),
        Some(FIFO) if takes_pipes && is_descriptor(path) => Ok(None),
        Some(found) => Err(FileError::NotRegular { found }.into()),
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
    }

    #[test]
    fn sizes_are_bounded_whatever_the_system_says_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(text(read(&path, 4)), "it has more than 4 bytes, the most that is read of it");
        // The system says that it is empty.
        assert_eq!(
            text(read(Path::new("/proc/self/status"), 4)),
            "it has more than 4 bytes, the most that is read of it"
        );
        fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(text(read_text(&path, 9)), "byte 2 is not UTF-8\nhelp: it may be another kind of file, or damaged");
    }
}
