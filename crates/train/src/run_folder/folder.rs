//! Writes the folder of a run.

use super::about::{About, Saved};
use super::entries::check_empty;
use super::events::Histogram;
use super::metrics::{self, Record};
use super::watched::{Watched, drop_later};
use super::{ABOUT, EVENTS, EXPERIMENT, METRICS, RunError, events};
use bf16scope_files as files;
use fs4::fs_std::FileExt as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The folder of a run in progress, locked by this process until it is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    about: About,
    metrics: Growing,
    events: Growing,
    watched: Watched,
    last: Option<u64>,
}

/// The result of a resumption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// The number of dropped records, which are of steps after the resumed one.
    pub n_dropped: u64,
}

impl RunFolder {
    /// Creates the folder of a new run at `path`, and folders above it. `experiment` is saved as `experiment.yaml`.
    ///
    /// # Errors
    /// [`RunError::Exists`] and [`RunError::Taken`]: existing files are never overwritten; errors of the system.
    pub fn create(path: impl AsRef<Path>, about: About, experiment: Option<&str>) -> Result<RunFolder, RunError> {
        let path = path.as_ref();
        files::check_output(path).map_err(|error| RunError::io(path, "make the folder")(error.into()))?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(RunError::io(parent, "make the folder"))?;
        }
        match fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_empty(path)?,
            Err(error) => return Err(RunError::io(path, "make the folder")(error)),
        }
        // If two processes create it, only one succeeds.
        let place = path.join(METRICS);
        let file = match OpenOptions::new().append(true).create_new(true).open(&place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(RunError::Exists { path: path.to_path_buf() });
            }
            file => file.map_err(RunError::io(&place, "make it"))?,
        };
        let metrics = Growing::lock(path, place, file)?;
        let events = new_events(path, None)?;
        let (path, watched) = (path.to_path_buf(), Watched::new(path));
        let folder = RunFolder { path, about, metrics, events, watched, last: None };
        folder.describe(experiment)?;
        Ok(folder)
    }

    /// Resumes the run of a folder after `step` updates. Records of later steps are dropped, and so is a truncated
    /// record. `about` and `experiment` replace the old ones, except for the starts and the checkpoint, which are kept.
    ///
    /// # Errors
    /// [`RunError::NoRun`] if there is no run; [`RunError::Busy`]; errors of the system.
    pub fn resume(
        path: &Path,
        step: u64,
        about: About,
        experiment: Option<&str>,
    ) -> Result<(RunFolder, Resumed), RunError> {
        let before = match path.join(ABOUT).exists() {
            true => About::read(path)?,
            false => About::default(),
        };
        let place = path.join(METRICS);
        // A FIFO would wait for its writer.
        let file = files::open(&place).and_then(|_| OpenOptions::new().read(true).append(true).open(&place));
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RunError::NoRun {
                path: path.to_path_buf(),
                found: format!("there is no {METRICS}, so there is no run to continue"),
                help: "name the folder of a run, or one that is not there for a new run".to_string(),
            },
            _ => RunError::io(&place, "open it")(error),
        })?;
        let mut metrics = Growing::lock(path, place, file)?;
        let (mut last, mut n_dropped, mut end) = (None, 0, None);
        let lines = metrics::read(BufReader::new(&metrics.file), |line| {
            let later = line.record.as_ref().is_some_and(|record| record.step > step);
            if end.is_some() || later || !line.is_whole {
                end = end.or(Some(line.at));
                n_dropped += u64::from(line.is_whole);
            } else if let Some(record) = line.record {
                last = Some(record.step);
            }
        });
        lines.map_err(RunError::io(&metrics.path, "read it"))?;
        if let Some(end) = end {
            metrics.cut(end).map_err(RunError::io(&metrics.path, "drop what it has of later steps"))?;
        }
        drop_later(path, step)?;
        let events = new_events(path, Some(step + 1))?;
        let starts = before.starts.into_iter().chain(about.starts).collect();
        let about = About { starts, saved: before.saved, best: before.best, ..about };
        let (path, watched) = (path.to_path_buf(), Watched::new(path));
        let folder = RunFolder { path, about, metrics, events, watched, last };
        folder.describe(experiment)?;
        Ok((folder, Resumed { n_dropped }))
    }

    /// The description of the run in `path`.
    ///
    /// # Errors
    /// A folder without a run, or with an invalid `run.json`.
    pub fn about(path: &Path) -> Result<About, RunError> {
        About::read(path)
    }

    /// The last checkpoint of the run in `path`, if there is a run that has one.
    pub fn last_checkpoint(path: &Path) -> Option<Saved> {
        About::read(path).ok()?.saved
    }

    /// Refuses a folder that another user may have written: a resumed run replaces the checkpoint that the folder
    /// names.
    ///
    /// # Errors
    /// A folder or file that others own or may write, with `help`.
    pub fn check_trusted(path: &Path, help: &str) -> Result<(), files::Untrusted> {
        files::check_trusted_or(path, help)?;
        files::check_trusted_or(&path.join(ABOUT), help)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records scalars after `step` updates, which must not decrease. They are in the files when this returns, even if
    /// the process dies; if the machine dies, the last seconds may be lost.
    ///
    /// # Errors
    /// [`RunError::Name`] and [`RunError::Order`], after which nothing is recorded; errors of the system.
    pub fn scalars(&mut self, step: u64, scalars: &[(impl AsRef<str>, f64)]) -> Result<(), RunError> {
        metrics::check(scalars.iter().map(|(name, _)| name.as_ref()))?;
        if let Some(last) = self.last.filter(|last| *last > step) {
            return Err(RunError::Order { step, last });
        }
        let scalars = scalars.iter().map(|(name, value)| (name.as_ref().to_string(), *value)).collect();
        let record = Record { step, time: now(), scalars };
        self.metrics.push(metrics::line(&record).as_bytes())?;
        self.events.push(&events::scalars(&record))?;
        self.last = Some(step);
        Ok(())
    }

    /// Limits the records of `watch.jsonl`: at least the `keep` newest stay, at most twice as many, and those that are
    /// marked; all if it is `None`.
    pub fn keep_watched(&mut self, keep: Option<NonZeroU32>) {
        self.watched.keep(keep);
    }

    /// Keeps the record of a step, whatever its age.
    pub fn mark_watched(&mut self, step: u64) {
        self.watched.mark(step);
    }

    /// Appends the record of a watched step, counted from 1, to `watch.jsonl`: a JSON object with `step` and without a
    /// line break. Its histograms go to TensorBoard's file.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn watched(&mut self, step: u64, line: &str, histograms: &[(String, Histogram)]) -> Result<(), RunError> {
        self.watched.push(line)?;
        match histograms {
            [] => Ok(()),
            histograms => self.events.push(&events::histograms(step, now(), histograms)),
        }
    }

    /// Records the run's last checkpoint.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn saved(&mut self, saved: Saved) -> Result<(), RunError> {
        self.about.saved = Some(saved);
        self.about.write(&self.path)
    }

    /// Records the checkpoint of the run's best epoch.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn best(&mut self, best: Saved) -> Result<(), RunError> {
        self.about.best = Some(best);
        self.about.write(&self.path)
    }

    fn describe(&self, experiment: Option<&str>) -> Result<(), RunError> {
        self.about.write(&self.path)?;
        let place = self.path.join(EXPERIMENT);
        match experiment {
            Some(text) => files::replace(&place, text.as_bytes()).map_err(RunError::io(&place, "write it")),
            None => Ok(()),
        }
    }
}

/// A file that grows by whole records.
#[derive(Debug)]
struct Growing {
    path: PathBuf,
    file: File,
    n_bytes: u64,
}

impl Growing {
    /// Locks a file against other processes, where the file system has locks.
    fn lock(folder: &Path, path: PathBuf, file: File) -> Result<Growing, RunError> {
        if matches!(file.try_lock_exclusive(), Ok(false)) {
            return Err(RunError::Busy { path: folder.to_path_buf() });
        }
        let n_bytes = file.metadata().map_err(RunError::io(&path, "measure it"))?.len();
        Ok(Growing { path, file, n_bytes })
    }

    /// Appends a record in one write. If the disk is full, a partial record is removed.
    fn push(&mut self, record: &[u8]) -> Result<(), RunError> {
        if let Err(error) = self.file.write_all(record) {
            let n_bytes = self.n_bytes;
            // If this fails too, readers report the truncated record.
            drop(self.cut(n_bytes));
            return Err(RunError::io(&self.path, "write to it")(error));
        }
        self.n_bytes += record.len() as u64;
        Ok(())
    }

    fn cut(&mut self, n_bytes: u64) -> io::Result<()> {
        self.file.set_len(n_bytes)?;
        self.n_bytes = n_bytes;
        Ok(())
    }
}

/// A new event file, which TensorBoard reads after the existing ones.
fn new_events(folder: &Path, start: Option<u64>) -> Result<Growing, RunError> {
    let seconds_of = |name: &str| name.split_once("tfevents.")?.1.split('.').next()?.parse::<u64>().ok();
    let entries = fs::read_dir(folder).map_err(RunError::io(folder, "list the folder"))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let last = names.filter_map(|name| seconds_of(&name)).max();
    let time = now();
    let seconds = (time as u64).max(last.map_or(0, |last| last.saturating_add(1)));
    let path = folder.join(format!("events.out.{EVENTS}.{seconds:010}.{}.{}.0", host(), std::process::id()));
    let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(RunError::io(&path, "make it"))?;
    let mut events = Growing { path, file, n_bytes: 0 };
    let mut beginning = events::beginning(time);
    if let Some(step) = start {
        beginning.extend(events::start(time, step));
    }
    events.push(&beginning)?;
    Ok(events)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The machine's name, reduced to characters for file names.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let may = |c: char| c.is_ascii_alphanumeric() || ['-', '_'].contains(&c);
    let name: String = name.chars().take(64).map(|c| if may(c) { c } else { '_' }).collect();
    if name.is_empty() { "localhost".to_string() } else { name }
}

#[cfg(test)]
mod tests;
