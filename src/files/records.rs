//! A folder of records that cost only time when they are lost: each is written whole, and the oldest go when there are
//! too many bytes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{replace, sweep};

/// Records of one kind in a folder of ours. Other processes may write and remove there at the same time.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    ending: &'static str,
    max_bytes: u64,
}

impl Records {
    /// The records `KEY.ending` of a folder; beyond `max_bytes` the oldest go. Nothing is made before something is kept.
    pub fn new(dir: PathBuf, ending: &'static str, max_bytes: u64) -> Records {
        Records { dir, ending, max_bytes }
    }

    /// Where they are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of one.
    pub fn path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}.{}", self.ending))
    }

    /// Writes a record whole, makes room for it, and removes what killed writers left.
    ///
    /// # Errors
    /// A folder that cannot be made, listed or written to.
    pub fn keep(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        replace(&self.path(key), bytes)?;
        self.make_room(&BTreeSet::new())
    }

    /// Removes what killed writers left, and the oldest records where there are too many bytes, but none of the keys
    /// `spared`, which come first.
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

    /// Number of records, and their bytes.
    ///
    /// # Errors
    /// A folder that cannot be read; none is no records.
    pub fn size(&self) -> io::Result<(usize, u64)> {
        let entries = self.entries()?;
        Ok((entries.len(), entries.iter().map(|entry| entry.n_bytes).sum()))
    }

    /// Removes every record; returns how many there were, and their bytes.
    ///
    /// # Errors
    /// A folder or file that cannot be read or removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let entries = self.entries()?;
        for entry in &entries {
            remove(&entry.path)?;
        }
        Ok((entries.len(), entries.iter().map(|entry| entry.n_bytes).sum()))
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
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if path.extension().is_some_and(|ending| ending == self.ending) && metadata.is_file() {
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

/// Removes a file, unless somebody else did.
fn remove(path: &Path) -> io::Result<()> {
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
        let kept = ["oldest", "old", "new", "newest"].map(|key| records.path(key).exists());
        assert_eq!(kept, [false, true, true, true]);
        assert!(!left.exists());
        busy.finish().unwrap();
        assert!(records.path("busy").exists(), "what another process writes stays");
        assert_eq!(records.clear().unwrap(), (4, 27));
        assert_eq!(records.size().unwrap(), (0, 0));
    }

    #[test]
    fn a_folder_that_is_not_there_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("nowhere"), "record", 1);
        assert_eq!((records.size().unwrap(), records.clear().unwrap()), ((0, 0), (0, 0)));
    }
}
