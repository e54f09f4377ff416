//! The files of a data set: reads at any offset of any file.
//!
//! An object of a store is read from its downloaded copy ([`super::remote`]), a compressed file from its unpacked copy
//! ([`super::unpack`]); messages name both as the user did.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::compression::Compression;
use super::shard::Shard;
use super::{remote, unpack};
use crate::error::DataError;
use bf16scope_files::{self as files, Cache, Sums, read_exact_at};

/// The largest number of files open at a time: a data set of a thousand must not exhaust the process's limit.
pub(super) const MAX_OPEN: usize = 64;

/// The files of a data set; some are kept open.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) shards: Vec<Shard>,
    cache: Cache,
    open: Mutex<Open>,
}

/// Open files, with their numbers, the least recently used first.
type Open = VecDeque<(usize, Arc<Opened>)>;

#[derive(Debug)]
struct Opened {
    file: File,
    /// Checksums, for a file in the cache.
    sums: Option<Arc<Sums>>,
}

impl Opened {
    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        match &self.sums {
            Some(sums) => sums.read_exact_at(&self.file, into, at),
            None => read_exact_at(&self.file, into, at),
        }
    }
}

impl Shards {
    /// The files on disk or in the cache; those that `compression` recognises as compressed, by their first bytes, are
    /// unpacked into the cache unless they are there already.
    ///
    /// # Errors
    /// A file that cannot be opened, or unpacked.
    pub(super) fn open(
        files: &[PathBuf],
        cache: &Cache,
        compression: fn(&[u8]) -> Option<Compression>,
    ) -> Result<Shards, DataError> {
        let mut shards = remote::shards(files, cache)?;
        unpack::unpack(&mut shards, cache, compression)?;
        Ok(Shards { shards, cache: cache.clone(), open: Mutex::default() })
    }

    /// Fills `into` with the bytes of a file from `at` on, for a record at `place`. A file in the cache that is damaged
    /// or missing is made again.
    ///
    /// # Errors
    /// A file that cannot be opened or read, or that has changed since the shards were made.
    pub(super) fn read_exact_at(
        &self,
        file_idx: usize,
        into: &mut [u8],
        at: u64,
        place: impl Fn() -> String,
    ) -> Result<(), DataError> {
        let opened = self.opened(file_idx)?;
        let read = match opened.read_exact_at(into, at) {
            Err(error) if opened.sums.is_some() => self.again(file_idx, &opened, &error)?.read_exact_at(into, at),
            read => read,
        };
        read.map_err(|cause| DataError::read(place(), cause))
    }

    /// The bytes of a file, sequentially.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub(super) fn reader(&self, file_idx: usize) -> Result<Reader<'_>, DataError> {
        let shard = &self.shards[file_idx];
        if shard.cached().is_some() {
            return Ok(Reader::Cached { shards: self, file_idx, at: 0 });
        }
        let file = files::open(&shard.path);
        Ok(Reader::Plain(file.map_err(|cause| DataError::open(&shard.path, cause))?))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, file_idx: usize) -> Result<Arc<Opened>, DataError> {
        let mut open = self.lock();
        if let Some(at) = open.iter().position(|(other, _)| *other == file_idx) {
            let entry = open.remove(at).expect("it was found there");
            let opened = Arc::clone(&entry.1);
            open.push_back(entry);
            return Ok(opened);
        }
        let shard = &self.shards[file_idx];
        let file = match open_file(shard) {
            // Another run made room, or the cache was cleared.
            Err(error) if shard.cached().is_some() => {
                again(shard, &self.cache, &error)?;
                open_file(shard)
            }
            file => file,
        };
        let file = file.map_err(|cause| DataError::open(shard.stored(), cause))?;
        let sums = shard.cached().map(|cached| Arc::clone(&cached.sums));
        if sums.is_none() {
            let failed = |cause| DataError::open(&shard.path, cause);
            if !Shard::of_open(&shard.path, &file).map_err(failed)?.is_as(shard) {
                return Err(DataError::changed(&shard.path));
            }
        }
        Ok(push(&mut open, file_idx, Opened { file, sums }))
    }

    /// The replacement of a file that could not be read because of `why`.
    fn again(&self, file_idx: usize, failed: &Arc<Opened>, why: &dyn Display) -> Result<Arc<Opened>, DataError> {
        let mut open = self.lock();
        if let Some(at) = open.iter().position(|(other, _)| *other == file_idx) {
            // Another thread has already replaced it.
            if !Arc::ptr_eq(&open[at].1, failed) {
                return Ok(Arc::clone(&open[at].1));
            }
            open.remove(at);
        }
        let shard = &self.shards[file_idx];
        again(shard, &self.cache, why)?;
        let file = open_file(shard).map_err(|cause| DataError::open(shard.stored(), cause))?;
        Ok(push(&mut open, file_idx, Opened { file, sums: failed.sums.clone() }))
    }

    /// The number of open files.
    #[cfg(test)]
    pub(super) fn n_open(&self) -> usize {
        self.open.lock().unwrap().len()
    }

    #[cfg(test)]
    pub(super) fn plain(shards: Vec<Shard>) -> Shards {
        Shards { shards, cache: Cache::default(), open: Mutex::default() }
    }
}

fn push(open: &mut Open, file_idx: usize, opened: Opened) -> Arc<Opened> {
    if open.len() >= MAX_OPEN {
        open.pop_front();
    }
    let opened = Arc::new(opened);
    open.push_back((file_idx, Arc::clone(&opened)));
    opened
}

/// Opens the file to read for a shard. In the cache, only a regular file is opened.
fn open_file(shard: &Shard) -> io::Result<File> {
    if shard.cached().is_some() && !std::fs::symlink_metadata(shard.stored())?.is_file() {
        return Err(io::Error::other(files::Damage::Kind));
    }
    files::open(shard.stored())
}

/// Makes a file in the cache again: downloads it, unpacks it, or both.
fn again(shard: &Shard, cache: &Cache, why: &dyn Display) -> Result<(), DataError> {
    tracing::warn!("{}: {why}; it is made again of {}", shard.stored().display(), shard.path.display());
    match &shard.unpacked {
        Some((cached, kind)) => unpack::again(shard, cached, *kind, cache),
        None => remote::again(shard, cache),
    }
}

/// Reads a file sequentially.
pub(super) enum Reader<'s> {
    /// A user's file.
    Plain(File),
    /// A file in the cache, which is made again if it is damaged.
    Cached { shards: &'s Shards, file_idx: usize, at: u64 },
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Reader::Plain(file) => file.read(into),
            Reader::Cached { shards, file_idx, at } => {
                let shard = &shards.shards[*file_idx];
                let n = (into.len() as u64).min(shard.stored_bytes().saturating_sub(*at)) as usize;
                let place = || shard.path.display().to_string();
                shards.read_exact_at(*file_idx, &mut into[..n], *at, place).map_err(io::Error::other)?;
                *at += n as u64;
                Ok(n)
            }
        }
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Reader::Plain(file) => file.seek(to),
            Reader::Cached { shards, file_idx, at } => {
                let from = match to {
                    SeekFrom::Start(place) => Some(place),
                    SeekFrom::Current(by) => at.checked_add_signed(by),
                    SeekFrom::End(by) => shards.shards[*file_idx].stored_bytes().checked_add_signed(by),
                };
                *at = from.ok_or(io::ErrorKind::InvalidInput)?;
                Ok(*at)
            }
        }
    }
}
