//! Verifies that an installed library is the pinned one, by checksum.
//!
//! Its sha256 is computed once for each state of the file, not at every start: a stamp beside the library records the
//! result with the file's size, inode and times. If the stamp is damaged, missing or for another state, the checksum is
//! recomputed; if no stamp can be written, it is computed at every start.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::Pinned;
use bf16scope_files as files;

/// The state of an installed library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installed {
    /// No file.
    Absent,
    /// The pinned library.
    Whole,
    /// Another file.
    Damaged(Damage),
}

/// How an installed file differs from the pinned library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// In size.
    #[error("measured {measured} bytes, expected {expected}")]
    Size {
        /// Its size.
        measured: u64,
        /// The library's size.
        expected: u64,
    },
    /// In content.
    #[error("measured sha256 {measured}, expected {expected}")]
    Content {
        /// Its checksum.
        measured: String,
        /// The library's.
        expected: &'static str,
    },
    /// It cannot be read completely, for example on a failing disk.
    #[error("it cannot be read: {why}")]
    Unreadable {
        /// The system's message.
        why: String,
    },
}

/// Checks an installed library; hashes it if there is no stamp for its present state.
pub(super) fn installed(artifact: &Pinned, path: &Path) -> Installed {
    let Some(metadata) = fs::metadata(path).ok().filter(Metadata::is_file) else { return Installed::Absent };
    // If another user may write the library's folder, that user may also write its stamp.
    if let Err(error) = files::check_trusted(path).and_then(|()| trusted_folders(path)) {
        return Installed::Damaged(Damage::Unreadable { why: error.to_string() });
    }
    let (measured, expected) = (metadata.len(), artifact.library_bytes);
    if measured != expected {
        return Installed::Damaged(Damage::Size { measured, expected });
    }
    let expected = stamp(artifact, &metadata);
    if files::read_text(&stamp_path(path), 4096).is_ok_and(|stamp| stamp == expected) {
        return Installed::Whole;
    }
    let began = std::time::Instant::now();
    match File::open(path).and_then(|file| sha256(file, &mut io::sink())) {
        Err(error) => Installed::Damaged(Damage::Unreadable { why: error.to_string() }),
        Ok(measured) if measured != artifact.library_sha256 => {
            Installed::Damaged(Damage::Content { measured, expected: artifact.library_sha256 })
        }
        Ok(_) => {
            tracing::debug!(seconds = began.elapsed().as_secs_f64(), "measured {}", path.display());
            // For the state before it was read: if it changed since, the stamp fits no file.
            keep(path, &expected);
            Installed::Whole
        }
    }
}

/// Refuses folders of the cache that another user owns or may write: the library's own, that of all plugins, and the
/// cache.
pub(super) fn trusted_folders(path: &Path) -> Result<(), files::Untrusted> {
    path.ancestors().skip(1).take(3).try_for_each(files::check_trusted)
}

/// Records that the library at `path`, in its present state, was just verified.
pub(super) fn keep_measured(artifact: &Pinned, path: &Path) {
    if let Ok(metadata) = fs::metadata(path) {
        keep(path, &stamp(artifact, &metadata));
    }
}

fn keep(path: &Path, stamp: &str) {
    // A cache that cannot be written costs the next start another verification.
    if let Err(error) = files::put(&stamp_path(path), stamp.as_bytes()) {
        tracing::debug!("{}: {error}", stamp_path(path).display());
    }
}

fn stamp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".checked");
    PathBuf::from(name)
}

/// The stamp's text for a pinned library in this state.
fn stamp(artifact: &Pinned, metadata: &Metadata) -> String {
    let nanos =
        metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|age| age.as_nanos());
    let mut text =
        format!("sha256 {} bytes {} modified {}", artifact.library_sha256, metadata.len(), nanos.unwrap_or(0));
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        // The change time is set by the system: no program can set it back.
        let (seconds, nanos) = (metadata.ctime(), metadata.ctime_nsec());
        let _ = write!(text, " inode {} changed {seconds}.{nanos:09}", metadata.ino());
    }
    text.push('\n');
    text
}

/// Copies bytes from a reader to a writer; returns their sha256 in hexadecimal.
pub(super) fn sha256(mut from: impl Read, to: &mut impl io::Write) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n_bytes = match from.read(&mut chunk) {
            Ok(0) => return Ok(files::hex(hasher.finalize())),
            Ok(n_bytes) => n_bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&chunk[..n_bytes]);
        to.write_all(&chunk[..n_bytes])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pinned library of a few bytes.
    fn pinned(bytes: &[u8]) -> (tempfile::TempDir, PathBuf, Pinned) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugin.so");
        fs::write(&path, bytes).unwrap();
        let sum: &'static str = Box::leak(sha256(bytes, &mut io::sink()).unwrap().into_boxed_str());
        let artifact = Pinned { library_sha256: sum, library_bytes: bytes.len() as u64, ..Pinned::CPU };
        (folder, path, artifact)
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let whole: Vec<u8> = (0..125u8).collect();
        let (_folder, path, artifact) = pinned(&whole);
        assert_eq!(installed(&artifact, &path), Installed::Whole);
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &flipped).unwrap();
            // A file system's times may be coarse: this must be a new file.
            fs::remove_file(stamp_path(&path)).ok();
            assert!(matches!(installed(&artifact, &path), Installed::Damaged(Damage::Content { .. })), "bit {bit}");
        }
        fs::write(&path, &whole[1..]).unwrap();
        let damage = Damage::Size { measured: 124, expected: 125 };
        assert_eq!(damage.to_string(), "measured 124 bytes, expected 125");
        assert_eq!(installed(&artifact, &path), Installed::Damaged(damage));
        fs::remove_file(&path).unwrap();
        assert_eq!(installed(&artifact, &path), Installed::Absent);
    }

    #[test]
    fn a_stamp_speaks_of_one_state_of_one_file() {
        let (folder, path, artifact) = pinned(b"library");
        assert_eq!(installed(&artifact, &path), Installed::Whole);
        let stamp = fs::read(stamp_path(&path)).unwrap();
        // Other bytes with the same length and other times: verified again, and refused.
        let damaged = || matches!(installed(&artifact, &path), Installed::Damaged(_));
        fs::write(&path, b"livrary").unwrap();
        File::options().append(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        assert!(damaged());
        // The damaged file has another's stamp, or a stamp that is damaged, empty, or not a file.
        for bytes in [&stamp[..], b"sha256", b"", b"\xff\xfe", &[b'x'; 1 << 16]] {
            fs::write(stamp_path(&path), bytes).unwrap();
            assert!(damaged());
        }
        fs::remove_file(stamp_path(&path)).unwrap();
        // Anything in a stamp's place is removed; a folder with files is moved aside.
        fs::create_dir_all(stamp_path(&path).join("full")).unwrap();
        assert!(damaged());
        fs::write(&path, b"library").unwrap();
        assert_eq!(installed(&artifact, &path), Installed::Whole);
        // A copy under another name has no stamp; the stamp of the old state is replaced.
        assert!(stamp_path(&path).is_file());
        fs::write(stamp_path(&path), &stamp).unwrap();
        File::options().append(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        assert_eq!(installed(&artifact, &path), Installed::Whole);
        assert_ne!(fs::read(stamp_path(&path)).unwrap(), stamp);
        drop(folder);
    }

    #[test]
    fn a_library_that_cannot_be_read_says_why() {
        let damage = Damage::Unreadable { why: "it is on a failing disk".to_string() };
        assert_eq!(damage.to_string(), "it cannot be read: it is on a failing disk");
    }
}
