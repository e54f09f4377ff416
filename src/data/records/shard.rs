//! The files of a data set: what tells each from others, and reading at any place of any of them.
//!
//! An object of a store is read where it was brought to ([`super::remote`]), a file that is compressed where it was unpacked
//! ([`super::unpack`]); both are named as they were given.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use super::remote;
use super::unpack::{self, Compression};
use crate::data::error::DataError;
use crate::files;
use sha2::{Digest, Sha256};

/// Files that are open at a time: a data set of a thousand must not use up what a process may open.
pub(super) const MAX_OPEN: usize = 64;

/// A file as it is on the disk.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::data) struct Shard {
    pub(in crate::data) path: PathBuf,
    pub(in crate::data) n_bytes: u64,
    /// When it was changed: nanoseconds since 1970; of an object what tells this version of it from others.
    pub(super) changed: u128,
    /// Where it is, if it is an object of a store.
    pub(super) fetched: Option<PathBuf>,
    /// Where its bytes are, and how many, if it is compressed.
    pub(super) unpacked: Option<(PathBuf, u64)>,
}

impl Shard {
    pub(in crate::data) fn of(path: &Path) -> Result<Shard, DataError> {
        let failed = |cause| DataError::open(path, cause);
        Shard::of_open(path, &files::open(path).map_err(failed)?).map_err(failed)
    }

    fn of_open(path: &Path, file: &File) -> io::Result<Shard> {
        let metadata = file.metadata()?;
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Ok(Shard { path: path.to_path_buf(), n_bytes: metadata.len(), changed, fetched: None, unpacked: None })
    }

    /// The file that is read.
    pub(super) fn stored(&self) -> &Path {
        self.unpacked.as_ref().map_or(self.whole(), |(path, _)| path)
    }

    /// The file as it was before it was unpacked.
    pub(super) fn whole(&self) -> &Path {
        self.fetched.as_ref().unwrap_or(&self.path)
    }

    /// How many bytes that one has.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.unpacked.as_ref().map_or(self.n_bytes, |(_, n_bytes)| *n_bytes)
    }
}

/// The name in a cache of what is made of files: of their names, sizes and times.
pub(in crate::data) fn key(shards: &[Shard]) -> String {
    let mut hash = Sha256::new();
    for Shard { path, n_bytes, changed, .. } in shards {
        let whole = match remote::url(path) {
            Some(_) => path.clone(),
            None => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        };
        let name = whole.as_os_str().as_encoded_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update(n_bytes.to_le_bytes());
        hash.update(changed.to_le_bytes());
    }
    crate::files::hex(hash.finalize())
}

/// Files of which some are kept open.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) shards: Vec<Shard>,
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl Shards {
    /// The files as they are on the disk, or in the cache; those that `compression` finds compressed, by their first bytes, are unpacked into
    /// the cache, where they are not there yet.
    ///
    /// # Errors
    /// A file that cannot be opened, or unpacked.
    pub(super) fn of(
        files: &[PathBuf],
        cache: Option<&Path>,
        compression: fn(&[u8]) -> Option<Compression>,
    ) -> Result<Shards, DataError> {
        let mut shards = remote::shards(files, cache)?;
        unpack::unpack(&mut shards, cache, compression)?;
        Ok(Shards { shards, open: Mutex::default() })
    }

    /// A file, opened for reading.
    ///
    /// # Errors
    /// A file that cannot be opened, or is another one than when the shards were made.
    pub(super) fn file(&self, file_idx: usize) -> Result<Arc<File>, DataError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(other, _)| *other == file_idx) {
            // The one that was not used for longest is in front.
            let found = open.remove(at).expect("it was found there");
            let file = Arc::clone(&found.1);
            open.push_back(found);
            return Ok(file);
        }
        let shard = &self.shards[file_idx];
        let failed = |cause| DataError::open(shard.stored(), cause);
        let file = files::open(shard.stored()).map_err(failed)?;
        let now = Shard::of_open(&shard.path, &file).map_err(failed)?;
        let is_same = match shard.stored() == shard.path {
            true => now == *shard,
            // The time of one in the cache says when it was last used.
            false => now.n_bytes == shard.stored_bytes(),
        };
        if !is_same {
            return Err(DataError::changed(&shard.path));
        }
        if open.len() >= MAX_OPEN {
            open.pop_front();
        }
        let file = Arc::new(file);
        open.push_back((file_idx, Arc::clone(&file)));
        Ok(file)
    }

    /// How many files are open.
    #[cfg(test)]
    pub(super) fn n_open(&self) -> usize {
        self.open.lock().unwrap().len()
    }
}

#[cfg(unix)]
pub(in crate::data) fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(not(unix))]
pub(in crate::data) fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    use std::io::{Read as _, Seek as _};
    let mut own = file.try_clone()?;
    own.seek(io::SeekFrom::Start(at))?;
    own.read_exact(into)
}
