//! A file of a data set: what tells it from others, and where its bytes are.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::compression::Compression;
use crate::error::DataError;
use bf16scope_files::{self as files, Sums};
use sha2::{Digest, Sha256};

/// A file as it is on the disk.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) n_bytes: u64,
    /// When it was changed: nanoseconds since 1970; of an object what tells this version of it from others.
    pub(super) changed: u128,
    /// What tells it from a file of the same size and time that was put in its place: inode, and when that was changed, which no
    /// program sets back. Of an object nothing.
    pub(super) state: [u64; 3],
    /// Where it is, if it is an object of a store.
    pub(super) fetched: Option<Cached>,
    /// Where its bytes are, if it is compressed.
    pub(super) unpacked: Option<(Cached, Compression)>,
}

/// A file in the cache. Its bytes are checked where they are read, and it is made again when it is damaged or gone.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) path: PathBuf,
    pub(super) sums: Arc<Sums>,
}

impl Shard {
    pub(crate) fn of(path: &Path) -> Result<Shard, DataError> {
        let failed = |cause| DataError::open(path, cause);
        Shard::of_open(path, &files::open(path).map_err(failed)?).map_err(failed)
    }

    pub(super) fn of_open(path: &Path, file: &File) -> io::Result<Shard> {
        let metadata = file.metadata()?;
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let (n_bytes, state) = (metadata.len(), state(&metadata));
        Ok(Shard { path: path.to_path_buf(), n_bytes, changed, state, fetched: None, unpacked: None })
    }

    /// Whether it is as it was. A file that only got another name or other permissions is.
    pub(super) fn is_as(&self, before: &Shard) -> bool {
        self.n_bytes == before.n_bytes && self.changed == before.changed
    }

    /// Its file in the cache, if that is what is read.
    pub(super) fn cached(&self) -> Option<&Cached> {
        self.unpacked.as_ref().map(|(cached, _)| cached).or(self.fetched.as_ref())
    }

    /// The file that is read.
    pub(super) fn stored(&self) -> &Path {
        self.cached().map_or(&self.path, |cached| &cached.path)
    }

    /// The file as it was before it was unpacked.
    pub(super) fn whole(&self) -> &Path {
        self.fetched.as_ref().map_or(&self.path, |cached| &cached.path)
    }

    /// How many bytes the one that is read has.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.cached().map_or(self.n_bytes, |cached| cached.sums.n_bytes())
    }
}

#[cfg(unix)]
fn state(metadata: &Metadata) -> [u64; 3] {
    use std::os::unix::fs::MetadataExt as _;
    [metadata.ino(), metadata.ctime().cast_unsigned(), metadata.ctime_nsec().cast_unsigned()]
}

#[cfg(not(unix))]
fn state(_: &Metadata) -> [u64; 3] {
    [0; 3]
}

/// The name in a cache of what is made of files: of their names, sizes, times and inodes.
pub(crate) fn key(shards: &[Shard]) -> String {
    let mut hash = Sha256::new();
    for Shard { path, n_bytes, changed, state, .. } in shards {
        let whole = match url(path) {
            Some(_) => path.clone(),
            None => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        };
        let name = whole.as_os_str().as_encoded_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update(n_bytes.to_le_bytes());
        hash.update(changed.to_le_bytes());
        state.iter().for_each(|number| hash.update(number.to_le_bytes()));
    }
    bf16scope_files::hex(hash.finalize())
}

/// The sums of a file that is in the cache under `key`, and is now used. One that is damaged is said, and made again.
pub(super) fn found(path: &Path, key: &str) -> Option<Sums> {
    match Sums::find(path, key) {
        Ok(sums) => {
            let sums = sums?;
            if let Ok(file) = File::options().append(true).open(path) {
                drop(file.set_modified(SystemTime::now()));
            }
            Some(sums)
        }
        Err(damage) => {
            tracing::warn!("{}: {damage}; it is made again", path.display());
            None
        }
    }
}

/// The URL that a name is, if it is one.
pub(crate) fn url(name: &Path) -> Option<&str> {
    let schemes = ["gs://", "s3://", "http://", "https://"];
    name.to_str().filter(|name| schemes.iter().any(|scheme| name.starts_with(scheme)))
}
