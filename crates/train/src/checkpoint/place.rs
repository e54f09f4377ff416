//! The place of a checkpoint: a file that is replaced whole or not at all, locked by one run at a time.
//!
//! A run that saves to `run.safetensors` keeps a lock file `.run.safetensors.lock` beside it while it runs. While it
//! saves, [`files`](bf16scope_files) writes a temporary file there and renames it; it also removes those that killed
//! runs left. The lock is advisory, and the system releases it when its process ends, however that ends.

use super::{Checkpoint, CheckpointError, file};
use bf16scope_files::{self as files, Replacement};
use fs4::fs_std::FileExt;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A place for checkpoints that this run holds until it is dropped.
#[derive(Debug)]
pub struct Place {
    /// The path as the user wrote it, for messages.
    path: PathBuf,
    /// The file to replace: `path`, or the target of the link at `path`.
    target: PathBuf,
    /// `None` where the file system has no locks.
    _lock: Option<Lock>,
}

impl Place {
    /// Locks the place, creates its directory if necessary, and tests whether a checkpoint can be written there: it is
    /// better to know before an hour of training than after it. It removes what killed runs left there.
    ///
    /// # Errors
    /// Another run that holds it; a file there that is not a checkpoint; any error of writing.
    pub fn claim(path: impl AsRef<Path>) -> Result<Place, CheckpointError> {
        let path = path.as_ref();
        let failed = |doing| move |source| CheckpointError::Write { path: path.to_path_buf(), doing, source };
        files::check_output(path).map_err(|error| failed(BEGINNING)(error.into()))?;
        fs::create_dir_all(directory_of(path)).map_err(failed("making its directory"))?;
        let target = Replacement::begin(path).map_err(failed(BEGINNING))?.place().to_path_buf();
        if is_something_else(&target) {
            let source = io::Error::from(io::ErrorKind::AlreadyExists);
            return Err(failed("there is a file that is not a checkpoint")(source));
        }
        let _lock = Lock::take(path, &target)?;
        Ok(Place { path: path.to_path_buf(), target, _lock })
    }

    /// Whether a checkpoint is at `path`, by its first bytes: a run that starts afresh there would replace it.
    pub fn holds_checkpoint(path: impl AsRef<Path>) -> bool {
        start_of(path.as_ref()).is_some_and(|start| start[8] == b'{')
    }

    /// The path as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that is replaced: the path, or the target of the link there.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Writes a checkpoint, whole or not at all.
    ///
    /// # Errors
    /// A state that no run has, or a system error; the previous file is then unchanged.
    pub fn write(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let encoded = file::encode(&self.path, checkpoint)?;
        let failed = |doing| move |source| CheckpointError::Write { path: self.path.clone(), doing, source };
        let mut file = Replacement::begin(&self.target).map_err(failed(BEGINNING))?;
        encoded.write_to(&mut file).map_err(failed("writing"))?;
        file.finish().map_err(failed("putting it in its place"))
    }
}

/// The first operation, for messages.
const BEGINNING: &str = "making a file in its directory";

/// A lock that is held until it is dropped, or the process ends.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock; `None`, with a warning, where the file system has no locks.
    fn take(path: &Path, target: &Path) -> Result<Option<Lock>, CheckpointError> {
        let failed = |source| CheckpointError::Write { path: path.to_path_buf(), doing: "making its lock", source };
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(".lock");
        let lock_path = directory_of(target).join(name);
        loop {
            if fs::symlink_metadata(&lock_path).is_ok_and(|metadata| !metadata.is_file()) {
                let text = format!("{} is not a file: remove it", lock_path.display());
                return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, text)));
            }
            let file = files::open_lock(&lock_path).map_err(failed)?;
            match file.try_lock_exclusive() {
                // The previous holder removed the file when it ended: another run would lock a new one.
                Ok(true) if !is_at(&file, &lock_path) => {}
                Ok(true) => return Ok(Some(Lock { file, path: lock_path })),
                Ok(false) => {
                    return Err(CheckpointError::InUse { path: path.to_path_buf(), holder: holder_of(&file) });
                }
                Err(error) => {
                    tracing::warn!(
                        "{}: this file system has no locks ({error}): see that no other run saves there",
                        path.display()
                    );
                    return Ok(None);
                }
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A remaining file is taken over by the next run. A lock file that has content was not written by us, so it
        // stays.
        if is_at(&self.file, &self.path) && self.file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Whether an open file is still the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        match (file.metadata(), fs::symlink_metadata(path)) {
            (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
            (_, _) => false,
        }
    }
    #[cfg(not(unix))]
    {
        file.metadata().is_ok() && path.exists()
    }
}

/// The process that holds the lock, where Linux tells.
fn holder_of(file: &File) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        holder_in(&fs::read_to_string("/proc/locks").ok()?, file.metadata().ok()?.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        None
    }
}

/// The process that locked the file with this inode, in the text of `/proc/locks`; `None` if two match, on two disks.
fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    let end = format!(":{inode}");
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, "WRITE", process, place, ..] if place.ends_with(&end) => process.parse().ok(),
            _ => None,
        }
    });
    holders.next().filter(|_| holders.next().is_none())
}

/// Whether a file is there that does not even begin like a safetensors file, such as an experiment given by mistake.
fn is_something_else(target: &Path) -> bool {
    start_of(target).is_some_and(|start| start[8] != b'{')
}

fn start_of(path: &Path) -> Option<[u8; 9]> {
    let mut start = [0; 9];
    // Opening a FIFO would block until it has a writer.
    let is_file = fs::metadata(path).is_ok_and(|there| there.is_file());
    let mut file = is_file.then(|| File::open(path).ok()).flatten()?;
    file.read_exact(&mut start).ok().map(|()| start)
}

pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_the_files_number() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:42 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 fe:00:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 fe:00:42 0 EOF\n3: FLOCK  ADVISORY  WRITE 10 fe:00:142 0 EOF\n";
        assert_eq!(holder_in(locks, 42), Some(8));
        assert_eq!(holder_in(locks, 142), Some(10));
        assert_eq!(holder_in(locks, 2), None);
        assert_eq!(holder_in(&locks.replace(":142 ", ":42 "), 42), None);
    }

    #[test]
    fn a_place_is_one_runs_until_that_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/run.safetensors");
        let lock = folder.path().join("new/.run.safetensors.lock");
        let place = Place::claim(&path).unwrap();
        assert!(lock.is_file());
        match Place::claim(&path) {
            Err(CheckpointError::InUse { path: named, holder }) => {
                assert_eq!(named, path);
                // Where the system reports the holder.
                assert!(holder.is_none_or(|holder| holder == std::process::id()), "{holder:?}");
            }
            other => panic!("{other:?}"),
        }
        // Another file beside it is another place.
        drop(Place::claim(folder.path().join("new/other.safetensors")).unwrap());
        drop(place);
        assert!(!lock.exists());
        // A lock file with foreign content is taken, and stays.
        fs::write(&lock, "mine").unwrap();
        drop(Place::claim(&path).unwrap());
        assert_eq!(fs::read_to_string(&lock).unwrap(), "mine");
    }

    /// A run that ends removes its lock file, which another run may have opened by then: that run must start over.
    #[test]
    fn nobody_has_a_lock_whose_file_was_removed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let is_held = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut n_taken = 0;
                    while n_taken < 100 {
                        if let Ok(lock) = Lock::take(&path, &path) {
                            assert!(!is_held.swap(true, Ordering::SeqCst), "two have it");
                            std::thread::yield_now();
                            is_held.store(false, Ordering::SeqCst);
                            drop(lock);
                            n_taken += 1;
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_file_that_is_no_checkpoint_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        // A missing file, an empty one and one that a crash truncated; then one that begins as safetensors do.
        assert!(Place::claim(&path).is_ok());
        for bytes in [&b""[..], b"01234567", b"01234567{"] {
            fs::write(&path, bytes).unwrap();
            assert!(Place::claim(&path).is_ok(), "{bytes:?}");
        }
        fs::write(&path, "model: {kind: mlp}\n").unwrap();
        let refused = Place::claim(&path).unwrap_err().to_string();
        assert!(refused.contains("cannot write the checkpoint: there is a file that is not a checkpoint"), "{refused}");
    }
}
