//! `watch.jsonl`: the records of watched steps, a JSON object on each line with its `step`.
//!
//! The caller chooses the other keys. If the number of records is limited, the file is shortened when it has twice as
//! many; marked records stay whatever their age.

use super::metrics::MAX_STEP;
use super::{RunError, WATCH};
use bf16scope_files as files;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 30;

/// The records of a run in progress.
#[derive(Debug)]
pub(super) struct Watched {
    path: PathBuf,
    /// The number of newest records that stay; `None` keeps all.
    keep: Option<NonZeroU32>,
    /// Steps whose records stay.
    marked: BTreeSet<u64>,
    /// Lines in the file that may be dropped.
    n_unmarked: usize,
}

impl Watched {
    pub(super) fn new(folder: &Path) -> Watched {
        Watched { path: folder.join(WATCH), keep: None, marked: BTreeSet::new(), n_unmarked: 0 }
    }

    /// Keeps this many of the newest records, and those of `marked` steps.
    pub(super) fn keep(&mut self, keep: Option<NonZeroU32>) {
        self.keep = keep;
        self.n_unmarked = files::read(&self.path, MAX_BYTES).map_or(0, |bytes| lines_of(&bytes).count());
    }

    /// Keeps the record of this step.
    pub(super) fn mark(&mut self, step: u64) {
        self.marked.insert(step);
    }

    /// Appends a record.
    pub(super) fn push(&mut self, line: &str) -> Result<(), RunError> {
        let file = OpenOptions::new().append(true).create(true).open(&self.path);
        let mut file = file.map_err(RunError::io(&self.path, "open it"))?;
        file.write_all(format!("{line}\n").as_bytes()).map_err(RunError::io(&self.path, "write to it"))?;
        self.n_unmarked += 1;
        match self.keep {
            Some(keep) if self.n_unmarked > 2 * keep.get() as usize => self.cut(keep.get() as usize),
            _ => Ok(()),
        }
    }

    /// Drops records that are neither among the `n` newest nor marked.
    fn cut(&mut self, n: usize) -> Result<(), RunError> {
        let bytes = files::read(&self.path, MAX_BYTES).map_err(RunError::io(&self.path, "read it"))?;
        let lines: Vec<&[u8]> = lines_of(&bytes).collect();
        let n_old = lines.len().saturating_sub(n);
        let is_marked = |line: &[u8]| step_of(line).is_some_and(|step| self.marked.contains(&step));
        let remaining = lines.iter().enumerate().filter(|(at, line)| *at >= n_old || is_marked(line));
        let remaining: Vec<&[u8]> = remaining.map(|(_, line)| *line).collect();
        files::replace(&self.path, &remaining.concat()).map_err(RunError::io(&self.path, "drop old looks"))?;
        self.n_unmarked = n;
        Ok(())
    }
}

/// Drops the records of `watch.jsonl` after `step`, and a truncated line.
pub(super) fn drop_later(folder: &Path, step: u64) -> Result<(), RunError> {
    let path = folder.join(WATCH);
    let bytes = match files::read(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(RunError::io(&path, "read it")(error)),
    };
    let remaining: Vec<&[u8]> =
        lines_of(&bytes).filter(|line| step_of(line).is_some_and(|line_step| line_step <= step)).collect();
    files::replace(&path, &remaining.concat()).map_err(RunError::io(&path, "drop what it has of later steps"))
}

/// The records in the folder of a run by ascending step, with messages about what could not be read. If a step was
/// watched twice, the later record counts. A folder without records gives none.
///
/// # Errors
/// [`RunError::NoRun`] for a path that is not a folder; errors of the system.
pub fn read_watched<T: DeserializeOwned>(path: &Path) -> Result<(Vec<T>, Vec<String>), RunError> {
    if !path.is_dir() {
        return Err(super::read::no_run(path));
    }
    let file = path.join(WATCH);
    let bytes = match files::read(&file, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(RunError::io(&file, "read it")(error)),
    };
    let (mut looks, mut remarks): (Vec<(u64, T)>, _) = (Vec::new(), Vec::new());
    for (number, line) in lines_of(&bytes).enumerate() {
        match step_of(line).zip(serde_json::from_slice::<T>(line).ok()) {
            Some((step, look)) => match looks.binary_search_by_key(&step, |(step, _)| *step) {
                Ok(at) => looks[at] = (step, look),
                Err(at) => looks.insert(at, (step, look)),
            },
            None if !line.ends_with(b"\n") => {
                remarks.push(format!("{WATCH}: the last line is cut short, and is left out"))
            }
            None => remarks.push(format!("{WATCH}: line {} is no look, and is left out", number + 1)),
        }
    }
    Ok((looks.into_iter().map(|(_, look)| look).collect(), remarks))
}

/// Lines with their ends.
fn lines_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|&byte| byte == b'\n')
}

/// The step of a line.
fn step_of(line: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Step {
        step: u64,
    }
    serde_json::from_slice::<Step>(line).ok().map(|Step { step }| step).filter(|step| *step <= MAX_STEP)
}

#[cfg(test)]
mod tests;
