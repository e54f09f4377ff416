//! A file of known length, read by offset. Nothing is allocated for bytes that the file does not have, whatever count a
//! header claims.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::WeightsError;
use bf16scope_files as files;

/// The largest piece held in memory when an array is streamed.
pub(super) const PIECE: usize = 1 << 20;

/// Takes an array's bytes, piece by piece.
pub(super) type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), WeightsError> + 'a;

/// A file, or the part of one from `start` on (an uncompressed member of an archive).
#[derive(Debug)]
pub(super) struct Region {
    path: PathBuf,
    file: File,
    start: u64,
    n_bytes: u64,
}

impl Region {
    /// A whole file.
    pub fn open(path: &Path) -> Result<Region, WeightsError> {
        let file = files::open(path).map_err(|cause| WeightsError::open(path, cause))?;
        let n_bytes = file.metadata().map_err(|cause| WeightsError::open(path, cause))?.len();
        Ok(Region { path: path.to_path_buf(), file, start: 0, n_bytes })
    }

    /// An uncompressed member of an archive, from `start` on.
    pub fn part(self, name: &str, start: u64, n_bytes: u64) -> Result<Region, WeightsError> {
        self.check(start, n_bytes, name)?;
        Ok(Region { path: self.path.join(name), file: self.file, start: self.start + start, n_bytes })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Reads bytes from `at` on; `what` names them in the error for a file that ends before.
    pub fn read(&self, at: u64, n_bytes: u64, what: &str) -> Result<Vec<u8>, WeightsError> {
        self.check(at, n_bytes, what)?;
        let mut bytes = vec![0; n_bytes as usize];
        files::read_exact_at(&self.file, &mut bytes, self.start + at)
            .map_err(|cause| WeightsError::read(&self.path, cause))?;
        Ok(bytes)
    }

    /// Streams bytes to `sink`, at most [`PIECE`] at once.
    pub fn pass(&self, at: u64, n_bytes: u64, what: &str, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        self.check(at, n_bytes, what)?;
        let mut piece = vec![0; PIECE.min(n_bytes as usize)];
        let mut done = 0;
        while done < n_bytes {
            let n = (n_bytes - done).min(PIECE as u64);
            let piece = &mut piece[..n as usize];
            files::read_exact_at(&self.file, piece, self.start + at + done)
                .map_err(|cause| WeightsError::read(&self.path, cause))?;
            sink(piece)?;
            done += n;
        }
        Ok(())
    }

    /// Checks that the file has these bytes.
    pub fn check(&self, at: u64, n_bytes: u64, what: &str) -> Result<(), WeightsError> {
        match at.checked_add(n_bytes) {
            Some(end) if end <= self.n_bytes => Ok(()),
            end => Err(WeightsError::cut(&self.path, self.n_bytes, end.unwrap_or(u64::MAX), what)),
        }
    }
}
