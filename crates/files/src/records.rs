//! A folder of records, a cache: each is written atomically, losing one only costs time, and the oldest are removed
//! above a size limit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::{Untrusted, check_output, check_trusted, put, read, sums, sweep};

/// The first bytes of a record with length and hash; changes with the format.
const SEAL: &[u8; 8] = b"bfkept1\n";
/// The size of a record's header: the seal, the hash, the length.
const N_SEAL: usize = 8 + 32 + 8;

/// Records of one kind in a folder of ours. Other processes may write and remove there at the same time.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    ending: &'static str,
    max_bytes: u64,
}

impl Records {
    /// The records `KEY.ending` of a folder; above `max_bytes` the oldest are removed. Folders are created only when
    /// something is stored.
    pub fn new(dir: PathBuf, ending: &'static str, max_bytes: u64) -> Records {
        Records { dir, ending, max_bytes }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of a record.
    pub fn path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}.{}", self.ending))
    }

    /// Refuses a folder, or its parent, that another user owns or may write, and a record that another user owns: such
    /// a user could store any content, with a valid hash.
    ///
    /// # Errors
    /// [`Untrusted`], with a remedy.
    pub fn check(&self, key: &str) -> Result<(), Untrusted> {
        self.dir.parent().map_or(Ok(()), check_trusted)?;
        check_trusted(&self.dir)?;
        let path = self.path(key);
        // A link or a FIFO is not a record, and is replaced.
        match fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            true => check_trusted(&path),
            false => Ok(()),
        }
    }

    /// Writes a record atomically, makes room for it, and removes the remains of killed writers. Any other object in
    /// its place is removed.
    ///
    /// # Errors
    /// A folder that cannot be created, listed or written; one that others may write ([`Untrusted`]).
    pub fn keep(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        check_output(&self.dir)?;
        self.dir.parent().map_or(Ok(()), check_trusted)?;
        check_trusted(&self.dir)?;
        fs::create_dir_all(&self.dir)?;
        put(&self.path(key), bytes)?;
        self.make_room(&BTreeSet::new())
    }

    /// Like [`keep`](Records::keep), with length and hash, for [`find`](Records::find).
    ///
    /// # Errors
    /// Those of [`keep`](Records::keep).
    pub fn keep_whole(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let mut whole = SEAL.to_vec();
        whole.extend(self.hash(key, bytes));
        whole.extend((bytes.len() as u64).to_le_bytes());
        whole.extend(bytes);
        self.keep(key, &whole)
    }

    /// Reads a record written by [`keep_whole`](Records::keep_whole), of at most `limit` bytes. A damaged record,
    /// another key's, or an object that is not a regular file counts as missing, and is reported once.
    pub fn find(&self, key: &str, limit: u64) -> Option<Vec<u8>> {
        let path = self.path(key);
        let metadata = fs::symlink_metadata(&path).ok()?;
        if let Err(error) = self.check(key) {
            tracing::warn!("{error}");
            return None;
        }
        let whole = || {
            let mut bytes = read(&path, limit.saturating_add(N_SEAL as u64)).ok().filter(|_| metadata.is_file())?;
            let (hash, rest) = bytes.strip_prefix(SEAL)?.split_at_checked(32)?;
            let (n_bytes, body) = rest.split_first_chunk::<8>()?;
            let is_whole = u64::from_le_bytes(*n_bytes) == body.len() as u64 && self.hash(key, body)[..] == *hash;
            is_whole.then(|| bytes.split_off(N_SEAL))
        };
        let whole = whole();
        if whole.is_none() {
            tracing::warn!("{} is damaged, and is made again", path.display());
        }
        whole
    }

    /// The hash covers the key too, so that no record can replace another.
    fn hash(&self, key: &str, bytes: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [self.ending.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(bytes);
        hash.finalize().into()
    }

    /// Removes the remains of killed writers, and the oldest records above the size limit, except for the keys
    /// `spared`, which count first.
    ///
    /// # Errors
    /// A folder that cannot be listed, a record that cannot be removed.
    pub fn make_room(&self, spared: &BTreeSet<String>) -> io::Result<()> {
        sweep(&self.dir)?;
        let mut entries = self.entries()?;
        let is_spared = |entry: &Entry| {
            entry.path.file_stem().is_some_and(|key| key.to_str().is_some_and(|key| spared.contains(key)))
        };
        entries.sort_by(|a, b| (is_spared(b), b.changed, &b.path).cmp(&(is_spared(a), a.changed, &a.path)));
        let mut n_bytes = 0;
        for entry in entries {
            n_bytes += entry.n_bytes;
            if n_bytes > self.max_bytes && !is_spared(&entry) {
                remove(&entry.path)?;
            }
        }
        Ok(())
    }

    /// The number of records, and their total size.
    ///
    /// # Errors
    /// A folder that cannot be read; a missing one has no records.
    pub fn size(&self) -> io::Result<(usize, u64)> {
        let entries = self.entries()?;
        Ok((entries.len(), entries.iter().map(|entry| entry.n_bytes).sum()))
    }

    /// Removes every record; returns their number and total size.
    ///
    /// # Errors
    /// A folder or file that cannot be read or removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let entries = self.entries()?;
        for entry in &entries {
            remove(&entry.path)?;
        }
        // Checksums whose file was removed separately.
        self.remove_sums_without_file()?;
        Ok((entries.len(), entries.iter().map(|entry| entry.n_bytes).sum()))
    }

    fn remove_sums_without_file(&self) -> io::Result<()> {
        let Ok(listed) = fs::read_dir(&self.dir) else { return Ok(()) };
        for entry in listed {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "sums") && !path.with_extension("").exists() {
                remove_one(&path)?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let listed = match fs::read_dir(&self.dir) {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut entries = Vec::new();
        for entry in listed {
            let path = entry?.path();
            // Another process may have removed it since.
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if path.extension().is_some_and(|ending| ending == self.ending) && !metadata.is_dir() {
                let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                entries.push(Entry { path, n_bytes: metadata.len(), changed });
            }
        }
        Ok(entries)
    }
}

struct Entry {
    path: PathBuf,
    n_bytes: u64,
    changed: SystemTime,
}

/// Removes a file and its checksums, unless another process did. Processes that have it open can still read it.
fn remove(path: &Path) -> io::Result<()> {
    remove_one(&sums::place(path))?;
    remove_one(path)
}

/// Removes a file; succeeds if it does not exist.
///
/// # Errors
/// An error of the operating system.
pub fn remove_one(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Replacement;
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_oldest_go_when_there_are_too_many_and_what_killed_runs_left() {
        let dir = tempfile::tempdir().unwrap();
        let mut records = Records::new(dir.path().to_path_buf(), "record", u64::MAX);
        let age = |path: &Path, seconds: u64| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            fs::File::options().append(true).open(path).unwrap().set_modified(then).unwrap();
        };
        for (key, seconds) in [("oldest", 300), ("old", 200), ("new", 100)] {
            records.keep(key, b"a program").unwrap();
            age(&records.path(key), seconds);
        }
        assert_eq!(records.size().unwrap(), (3, 27));
        let left = dir.path().join(".k.record.writing-dead");
        fs::write(&left, b"half").unwrap();
        let busy = Replacement::begin(&records.path("busy")).unwrap();
        // Room for three: the fourth pushes out the oldest.
        records.max_bytes = 27 + 8;
        records.keep("newest", b"a program").unwrap();
        let existing = ["oldest", "old", "new", "newest"].map(|key| records.path(key).exists());
        assert_eq!(existing, [false, true, true, true]);
        assert!(!left.exists());
        busy.finish().unwrap();
        assert!(records.path("busy").exists(), "what another process writes stays");
        assert_eq!(records.clear().unwrap(), (4, 27));
        assert_eq!(records.size().unwrap(), (0, 0));
    }

    #[test]
    fn a_record_is_whole_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().to_path_buf(), "record", u64::MAX);
        assert_eq!(records.find("a", 100), None);
        records.keep_whole("a", b"a program").unwrap();
        records.keep_whole("b", b"b program").unwrap();
        assert_eq!(records.find("a", 9).unwrap(), b"a program");
        assert_eq!(records.find("a", 8), None, "more than is read");
        let (path, whole) = (records.path("a"), fs::read(records.path("a")).unwrap());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            for bytes in [&damaged[..], &whole[..at]] {
                fs::write(&path, bytes).unwrap();
                assert_eq!(records.find("a", 100), None, "byte {at}");
            }
        }
        fs::copy(records.path("b"), &path).unwrap();
        assert_eq!(records.find("a", 100), None, "another's");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(records.path("b"), &path).unwrap();
        assert_eq!(records.find("a", 100), None, "a link");
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(records.find("a", 100), None, "a FIFO");
        records.keep_whole("a", b"a program").unwrap();
        assert_eq!(records.find("a", 100).unwrap(), b"a program");
        assert_eq!(records.find("b", 100).unwrap(), b"b program", "what a link led to is as it was");
    }

    /// A record stored by another user, with a valid hash, used to be accepted.
    #[cfg(unix)]
    #[test]
    fn a_record_in_a_folder_that_others_may_write_is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let records = Records::new(root.path().join("records"), "record", u64::MAX);
        records.keep_whole("a", b"a program").unwrap();
        for (place, closed, open) in
            [(root.path(), 0o700, 0o777), (records.dir(), 0o755, 0o777), (&*records.path("a"), 0o644, 0o646)]
        {
            fs::set_permissions(place, fs::Permissions::from_mode(open)).unwrap();
            assert_eq!(records.find("a", 100), None, "{}", place.display());
            assert!(records.check("a").is_err());
            let result = records.keep_whole("a", b"a program");
            assert_eq!(result.is_err(), place.is_dir(), "{}", place.display());
            fs::set_permissions(place, fs::Permissions::from_mode(closed)).unwrap();
            assert_eq!(records.find("a", 100).unwrap(), b"a program");
        }
    }

    #[test]
    fn sums_go_with_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().to_path_buf(), "record", 10);
        for key in ["a", "b"] {
            fs::write(records.path(key), b"a program").unwrap();
            super::super::Summing::default().finish().keep(&records.path(key), key).unwrap();
        }
        records.make_room(&BTreeSet::from(["b".to_string()])).unwrap();
        let sums = |key: &str| sums::place(&records.path(key));
        assert_eq!((sums("a").exists(), sums("b").exists()), (false, true));
        fs::remove_file(records.path("b")).unwrap();
        records.clear().unwrap();
        assert!(!sums("b").exists());
    }

    #[test]
    fn a_folder_that_is_not_there_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("nowhere"), "record", 1);
        assert_eq!((records.size().unwrap(), records.clear().unwrap()), ((0, 0), (0, 0)));
    }
}
