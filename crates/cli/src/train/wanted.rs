//! Where a run saves: the path of its checkpoint, and the folder that holds it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::Args;
use crate::checkpoints;
use crate::trained::seen_from_here;
use bf16scope_train::checkpoint::{CheckpointError, Place, best_of};
use bf16scope_train::experiment::{Experiment, default_checkpoint};
use bf16scope_train::run_folder::{ABOUT, CHECKPOINT, RunFolder};

/// The path for checkpoints.
pub(super) struct Wanted {
    pub(super) path: PathBuf,
    /// Why there, unless the user chose it.
    why: Option<String>,
    /// The run's folder, if its name is a default one and the path is in it.
    folder: Option<PathBuf>,
    /// For a new folder, the name of the experiment's first one. Another run may take the folder until it is claimed.
    first: Option<PathBuf>,
}

/// A place for checkpoints that this process holds.
#[derive(Default)]
pub(super) struct Claimed {
    pub(super) place: Option<Place>,
    /// The run's folder, if its name is a default one and the place is in it.
    pub(super) folder: Option<PathBuf>,
    /// Dropped after the place, whose lock is in the folder.
    pub(super) left: Option<LeftEmpty>,
}

/// The folder of a new run. It is removed if the run ends before it has saved or recorded anything there.
pub(super) struct LeftEmpty(PathBuf);

impl Drop for LeftEmpty {
    fn drop(&mut self) {
        // Only an empty folder can be removed so.
        drop(fs::remove_dir(&self.0));
    }
}

impl Args {
    /// The path of --checkpoint; when resuming the run of --run, the path of its last checkpoint; otherwise the
    /// default.
    pub(super) fn wanted(&self) -> anyhow::Result<Wanted> {
        if let Some(path) = &self.checkpoint {
            return Ok(Wanted { path: path.clone(), why: None, folder: None, first: None });
        }
        match self.record.run() {
            Some(run) => self.wanted_in(run),
            None => Ok(self.wanted_by_default()),
        }
    }

    /// The path in the folder of --run.
    fn wanted_in(&self, run: &Path) -> anyhow::Result<Wanted> {
        let wanted = |path, why| Wanted { path, why: Some(why), folder: None, first: None };
        let default = run.join(CHECKPOINT);
        if self.resume != Some(None) || !run.exists() {
            return Ok(wanted(default, "that is the place of its run".to_string()));
        }
        let record = run.join(ABOUT);
        let about = RunFolder::about(run).unwrap_or_default();
        let Some(saved) = &about.saved else {
            return Ok(wanted(default, format!("that is the default place, and {} names no other", record.display())));
        };
        RunFolder::check_trusted(run, "name the run's checkpoint yourself: --checkpoint FILE")?;
        let path = checkpoints::of_run(run, &about, saved)?;
        checkpoints::check_own(run, &path)?;
        Ok(wanted(path, format!("{} names it as the last of its run", record.display())))
    }

    /// The path without --checkpoint and --run: in the folder of the run that goes on, or in a new one.
    fn wanted_by_default(&self) -> Wanted {
        let why = Some("that is the default place".to_string());
        let of_run = |path: PathBuf| {
            let folder = checkpoints::run_of(&path);
            Wanted { path, why: why.clone(), folder, first: None }
        };
        let unrecorded = default_checkpoint(&self.experiment, self.precision);
        match &self.resume {
            Some(None) => return of_run(checkpoints::newest(&self.experiment, self.precision)),
            Some(Some(from)) => {
                let is_of = |folder: &Path| is_same(from, &folder.join(CHECKPOINT));
                if let Some(run) = RunFolder::newest(&self.experiment, self.precision.name(), is_of) {
                    return of_run(run.join(CHECKPOINT));
                }
                if is_same(from, &unrecorded) {
                    return of_run(unrecorded);
                }
            }
            None => {}
        }
        if !self.record.records() {
            return of_run(unrecorded);
        }
        let first = RunFolder::first_of(&self.experiment, self.precision.name());
        let folder = checkpoints::next_run(&self.experiment, self.precision);
        Wanted { path: folder.join(CHECKPOINT), why, folder: Some(folder), first: Some(first) }
    }
}

/// Whether two paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

impl Wanted {
    /// Claims the place, before anything is read from there. A new run takes the next folder if another one has taken
    /// this since.
    pub(super) fn claim(&self) -> anyhow::Result<Claimed> {
        let Some(first) = &self.first else {
            let place = Some(Place::claim(&self.path)?);
            return Ok(Claimed { place, folder: self.folder.clone(), left: None });
        };
        let mut folders = RunFolder::free(first);
        loop {
            let folder = folders.next().expect("numbers do not end");
            match Place::claim(folder.join(CHECKPOINT)) {
                Ok(place) if RunFolder::is_free(&folder) => {
                    let left = Some(LeftEmpty(folder.clone()));
                    return Ok(Claimed { place: Some(place), folder: Some(folder), left });
                }
                Ok(_) | Err(CheckpointError::InUse { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Refuses to overwrite a checkpoint that the run does not resume, unless requested: it may be the only result of
    /// another run.
    pub(super) fn check_free(&self, args: &Args) -> anyhow::Result<()> {
        let same = |from: &PathBuf| is_same(from, &self.path);
        let goes_on = args.resume.as_ref().is_some_and(|from| from.as_ref().is_none_or(same));
        if goes_on || args.overwrite || self.first.is_some() || !Place::holds_checkpoint(&self.path) {
            return Ok(());
        }
        bail!(
            "{}: a checkpoint is there, and this run would replace it\nhelp: --resume goes on from it, --checkpoint FILE leaves it \
             and writes to another file, --overwrite replaces it",
            self.path.display()
        )
    }

    /// Refuses to overwrite the best checkpoint of another run.
    pub(super) fn check_best_free(&self, args: &Args, experiment: &Experiment) -> anyhow::Result<()> {
        let best = best_of(&self.path);
        let is_kept = experiment.train.keep_best.is_some() && args.resume.is_none() && !args.overwrite;
        if !is_kept || self.first.is_some() || !Place::holds_checkpoint(&best) {
            return Ok(());
        }
        bail!(
            "{}: the best checkpoint of another run is there, and `keep_best` would replace it\nhelp: --checkpoint FILE writes \
             elsewhere, --overwrite replaces it",
            best.display()
        )
    }

    /// The error for a checkpoint that should be resumed and does not exist.
    pub(super) fn check_there(&self, from: &Path) -> anyhow::Result<()> {
        let Some(why) = self.why.as_ref().filter(|_| *from == self.path && !from.exists()) else { return Ok(()) };
        let seen = seen_from_here(from);
        let help = if seen.is_empty() { "" } else { ", go to the folder that it was trained in" };
        bail!(
            "{}: no such checkpoint: {why}{seen}\nhelp: name the file with --resume=FILE{help}, or leave --resume out to \
             start",
            from.display()
        )
    }
}
