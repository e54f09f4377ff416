//! Where checkpoints are: an experiment's newest, and a run's own.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::again;
use bf16scope_model::graph::Precision;
use bf16scope_train::checkpoint::{Checkpoint, CheckpointHead};
use bf16scope_train::experiment::default_checkpoint;
use bf16scope_train::run_folder::{ABOUT, About, CHECKPOINT, RunFolder, Saved};

/// The checkpoint of an experiment that every command takes by default: the one in the folder of its newest run, or the
/// one that no run's folder holds (`--no-run`, and versions before those folders held any), whichever was written last.
/// Without a checkpoint, it is the path that the next run will write.
pub(super) fn newest(experiment: &Path, precision: Precision) -> PathBuf {
    let has_checkpoint = |folder: &Path| folder.join(CHECKPOINT).exists();
    let of_run = RunFolder::newest(experiment, precision.name(), has_checkpoint).map(|run| run.join(CHECKPOINT));
    let elsewhere = default_checkpoint(experiment, precision);
    let written = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    match of_run {
        Some(of_run) if written(&of_run) >= written(&elsewhere) => of_run,
        None if !elsewhere.exists() => next_run(experiment, precision).join(CHECKPOINT),
        Some(_) | None => elsewhere,
    }
}

/// The folder of an experiment's next run.
pub(super) fn next_run(experiment: &Path, precision: Precision) -> PathBuf {
    RunFolder::free(&RunFolder::first_of(experiment, precision.name())).next().expect("numbers do not end")
}

/// The folder that a checkpoint is in, if that is the folder of its run.
pub(super) fn run_of(checkpoint: &Path) -> Option<PathBuf> {
    let is_in_run = checkpoint.file_name().is_some_and(|name| name == CHECKPOINT);
    checkpoint.parent().filter(|_| is_in_run).map(Path::to_path_buf)
}

/// A checkpoint of a run, as its folder records it: in the folder, which may have been moved or copied, or at its
/// original path, which is in another folder then. The original path where it is in neither.
///
/// # Errors
/// Another run's checkpoint in its place.
pub(super) fn of_run(run: &Path, about: &About, saved: &Saved) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(&saved.path);
    let in_folder = path.file_name().map(|name| run.join(name));
    let mut other = None;
    for place in in_folder.into_iter().chain([path.clone()]).filter(|place| place.exists()) {
        // A file that is not a checkpoint is refused where it is read.
        let Ok(head) = Checkpoint::read_head(&place) else { return Ok(place) };
        if is_own(&head, about, saved, is_in(&place, run)) {
            return Ok(place);
        }
        other = other.or(Some((place, head)));
    }
    let Some((place, head)) = other else { return Ok(path) };
    let (shown, record) = (place.display(), run.join(ABOUT));
    let hash = |sha256: &str| format!("SHA-256 {}…", sha256.get(..12).unwrap_or(sha256));
    let recorded = saved.sha256.as_deref().map_or(String::new(), |sha256| format!(" ({})", hash(sha256)));
    bail!(
        "{shown}: the checkpoint of another run is there: {} names the one after step {}{recorded}, and this is after step \
         {} ({})\nhelp: it has been replaced: name a copy of it with --checkpoint, if there is one; `--checkpoint {}` takes \
         this one",
        record.display(),
        saved.step,
        head.position.step,
        hash(&head.sha256),
        again::word(&place)
    )
}

/// Refuses to go on in another run's folder: its checkpoint would be replaced.
///
/// # Errors
/// The checkpoint is in the folder of another run.
pub(super) fn check_own(run: &Path, checkpoint: &Path) -> anyhow::Result<()> {
    let Some(other) = checkpoint.parent().filter(|folder| folder.join(ABOUT).exists() && !is_in(checkpoint, run))
    else {
        return Ok(());
    };
    bail!(
        "{}: {} names it, and it is the checkpoint of another run, which this one would replace\nhelp: to go on in {}, copy it \
         there; `--checkpoint FILE` saves elsewhere, and `--run {}` goes on with the other run",
        checkpoint.display(),
        run.join(ABOUT).display(),
        run.display(),
        again::word(other)
    )
}

/// Whether a checkpoint is the one that a run recorded, or a later one of the run.
fn is_own(head: &CheckpointHead, about: &About, saved: &Saved, is_in_run: bool) -> bool {
    let position = &head.position;
    let is_alike = position.precision.name() == about.precision
        && (position.seed, u64::from(position.batch)) == (about.seed, about.batch);
    match &saved.sha256 {
        Some(sha256) if *sha256 == head.sha256 => true,
        // In its own folder: with --no-run, or by a process that was killed before it recorded it.
        _ if is_in_run => is_alike && position.step >= saved.step,
        Some(_) => false,
        // Earlier versions recorded no hash.
        None => {
            let settings = serde_json::to_value(&head.settings).ok();
            is_alike && position.step == saved.step && settings == serde_json::from_str(&about.settings).ok()
        }
    }
}

/// Whether a file is in a folder.
fn is_in(file: &Path, folder: &Path) -> bool {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parent.canonicalize().is_ok_and(|parent| folder.canonicalize().is_ok_and(|folder| folder == parent))
}
