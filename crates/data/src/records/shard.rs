//! A file of a data set: its identity, and where its bytes are.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::compression::Compression;
use crate::error::DataError;
use bf16scope_files::{self as files, Sums};
use sha2::{Digest, Sha256};

/// A file on disk.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) n_bytes: u64,
    /// Its modification time in nanoseconds since 1970; for an object, a number that identifies its version.
    pub(super) changed: u128,
    /// Distinguishes it from a replacement with the same size and modification time: the inode, and the inode's change
    /// time, which no program can set back. Zeros for an object.
    pub(super) state: [u64; 3],
    /// Where it was downloaded to, if it is an object of a store.
    pub(super) fetched: Option<Cached>,
    /// Where it was unpacked to, if it is compressed.
    pub(super) unpacked: Option<(Cached, Compression)>,
}

/// A file in the cache. Its bytes are verified when they are read, and it is made again if it is damaged or missing.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) path: PathBuf,
    pub(super) sums: Arc<Sums>,
}

impl Shard {
    pub(crate) fn from_path(path: &Path) -> Result<Shard, DataError> {
        let failed = |cause| DataError::open(path, cause);
        Shard::of_open(path, &files::open(path).map_err(failed)?).map_err(failed)
    }

    pub(super) fn of_open(path: &Path, file: &File) -> io::Result<Shard> {
        let metadata = file.metadata()?;
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let (n_bytes, state) = (metadata.len(), state(&metadata));
        Ok(Shard { path: path.to_path_buf(), n_bytes, changed, state, fetched: None, unpacked: None })
    }

    /// Whether it is unchanged. A new name or new permissions do not count as a change.
    pub(super) fn is_as(&self, before: &Shard) -> bool {
        self.n_bytes == before.n_bytes && self.changed == before.changed
    }

    /// Its file in the cache, if that is the file to read.
    pub(super) fn cached(&self) -> Option<&Cached> {
        self.unpacked.as_ref().map(|(cached, _)| cached).or(self.fetched.as_ref())
    }

    /// The file to read.
    pub(super) fn stored(&self) -> &Path {
        self.cached().map_or(&self.path, |cached| &cached.path)
    }

    /// The file before unpacking.
    pub(super) fn whole(&self) -> &Path {
        self.fetched.as_ref().map_or(&self.path, |cached| &cached.path)
    }

    /// The size of the file to read.
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

/// The cache key for data derived from files: a hash of their names, sizes, times and inodes.
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

/// The checksums of a file that is in the cache under `key`; marks it as used. A damaged file is reported, and made
/// again.
pub(super) fn cached_sums(path: &Path, key: &str) -> Option<Sums> {
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

/// The URL in a name, if it is one.
pub(crate) fn url(name: &Path) -> Option<&str> {
    let schemes = ["gs://", "s3://", "http://", "https://"];
    name.to_str().filter(|name| schemes.iter().any(|scheme| name.starts_with(scheme)))
}
