//! The last checkpoints of a run: the newest at its [`Place`], older ones beside it.
//!
//! For `run.safetensors` an older one is `run-1200.safetensors`, after step 1,200: a second link to the same file, made
//! before the newer one replaces it. The list `.run.safetensors.older` has a line for each that this run wrote: its
//! step, its bytes, and when it was written. A file that is not in the list, or differs from its line, is neither
//! replaced nor removed. A run that resumes from one of these checkpoints takes over the list; another run starts its
//! own.
//! replaced nor removed; a run that goes on from one of these checkpoints has the list, and another run begins its own.

use super::place::{Place, directory_of};
use super::{Checkpoint, CheckpointError};
use bf16scope_files as files;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The most bytes of a list that are read.
const MAX_LIST: u64 = 1 << 20;

/// An older checkpoint, with its file's size and time as this run wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Older {
    step: u64,
    n_bytes: u64,
    /// Nanoseconds since 1970.
    written: u128,
}

/// The last checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Series<'a> {
    place: &'a Place,
    keep: NonZeroU32,
    /// The step of the checkpoint at the place, if it is this run's.
    newest: Option<u64>,
    /// This run's older checkpoints beside it, as they were written.
    older: Vec<Older>,
}

impl<'a> Series<'a> {
    /// The checkpoints of a run that keeps the last `keep` at `place`; `resumed` is the checkpoint that it resumes
    /// from, and its step.
    pub fn begin(place: &'a Place, keep: NonZeroU32, resumed: Option<(&Path, u64)>) -> Series<'a> {
        let mut series = Series { place, keep, newest: None, older: Vec::new() };
        let Some((from, step)) = resumed else { return series };
        let older = series.read_list();
        let is_at =
            |path: &Path| fs::canonicalize(path).is_ok_and(|at| fs::canonicalize(from).is_ok_and(|it| it == at));
        let is_newest = is_at(place.target());
        if is_newest || older.iter().any(|older| is_at(&series.path_of(older.step))) {
            series.newest = is_newest.then_some(step);
            series.older = older;
        }
        series
    }

    /// Writes a checkpoint to the place, keeps the previous one beside it, and then removes those beyond `keep`.
    ///
    /// # Errors
    /// As [`Place::write`], and where the list or the older name cannot be written; the previous checkpoint is then
    /// still at the place.
    pub fn write(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let failed = |source| CheckpointError::Write {
            path: self.place.path().to_path_buf(),
            doing: "keeping the checkpoint before it",
            source,
        };
        let before = self.newest.filter(|_| self.keep.get() > 1).and_then(|step| self.before(step));
        if let Some(before) = before {
            self.older.retain(|older| older.step != before.step);
            self.older.push(before);
        }
        // The list first: it then knows every file, whatever fails from here on.
        self.write_list().map_err(failed)?;
        if let Some(before) = before {
            link(self.place.target(), &self.path_of(before.step)).map_err(failed)?;
        }
        self.place.write(checkpoint)?;
        self.newest = Some(checkpoint.position.step);
        let n_kept = self.keep.get() as usize - 1;
        let n_surplus = self.older.len().saturating_sub(n_kept);
        if n_surplus > 0 {
            for older in self.older.drain(..n_surplus).collect::<Vec<_>>() {
                self.remove(older);
            }
            self.write_list().map_err(failed)?;
        }
        Ok(())
    }

    /// Replaces the checkpoint at the place by another one of the same step.
    ///
    /// # Errors
    /// As [`Place::write`].
    pub fn rewrite(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.place.write(checkpoint)?;
        self.newest = Some(checkpoint.position.step);
        Ok(())
    }

    /// The checkpoint at the place, as an older one; `None` where a foreign file has the name that it would get.
    fn before(&self, step: u64) -> Option<Older> {
        let path = self.path_of(step);
        let before = older(step, &fs::metadata(self.place.target()).ok()?)?;
        let is_ours =
            |metadata: &Metadata| older(step, metadata).is_some_and(|metadata| self.older.contains(&metadata));
        match fs::symlink_metadata(&path) {
            Ok(metadata) if !is_ours(&metadata) && older(step, &metadata) != Some(before) => {
                tracing::warn!(
                    "{}: this run has not written it, so the checkpoint of its step is not kept",
                    path.display()
                );
                None
            }
            Ok(_) | Err(_) => Some(before),
        }
    }

    /// Removes an older checkpoint, if its file is unchanged.
    fn remove(&self, it: Older) {
        let path = self.path_of(it.step);
        let metadata = fs::symlink_metadata(&path).ok();
        if metadata.is_some_and(|metadata| older(it.step, &metadata) == Some(it))
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!("{}: this older checkpoint cannot be removed: {error}", path.display());
        }
    }

    /// `NAME-STEP.safetensors` beside `NAME.safetensors`.
    fn path_of(&self, step: u64) -> PathBuf {
        beside(self.place.target(), &step.to_string())
    }

    fn list_path(&self) -> PathBuf {
        let target = self.place.target();
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(".older");
        directory_of(target).join(name)
    }

    /// The entries of the list; empty if there is no valid list, so that nothing is removed.
    fn read_list(&self) -> Vec<Older> {
        let parse = |line: &str| {
            let mut words = line.split(' ');
            let (step, n_bytes, written) = (words.next()?, words.next()?, words.next()?);
            let older =
                Older { step: step.parse().ok()?, n_bytes: n_bytes.parse().ok()?, written: written.parse().ok()? };
            words.next().is_none().then_some(older)
        };
        let text = files::read_text(&self.list_path(), MAX_LIST).unwrap_or_default();
        text.lines().map(parse).collect::<Option<_>>().unwrap_or_default()
    }

    fn write_list(&self) -> io::Result<()> {
        let path = self.list_path();
        if self.older == self.read_list() && !(self.older.is_empty() && path.exists()) {
            return Ok(());
        }
        if self.older.is_empty() {
            return fs::remove_file(path);
        }
        let line = |older: &Older| format!("{} {} {}\n", older.step, older.n_bytes, older.written);
        files::replace(&path, self.older.iter().map(line).collect::<String>().as_bytes())
    }
}

/// `NAME-WORD.safetensors` beside `NAME.safetensors`.
pub(crate) fn beside(path: &Path, word: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{word}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The list's entry for a regular file.
fn older(step: u64, metadata: &Metadata) -> Option<Older> {
    let written = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    metadata.is_file().then_some(Older { step, n_bytes: metadata.len(), written })
}

/// Links a file to a second name, replacing a file of ours; copies it where the file system has no links.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if fs::hard_link(target, path).is_ok() {
        return Ok(());
    }
    let written = fs::metadata(target)?.modified()?;
    let mut copy = files::Replacement::begin(path)?;
    io::copy(&mut files::open(target)?, &mut copy)?;
    copy.finish()?;
    // The copy gets the time that the list has.
    fs::File::options().write(true).open(path)?.set_modified(written)
}

#[cfg(test)]
mod tests;
