//! Replays a run up to one of its steps: the state before the step's update, and its batch.
//!
//! A batch is a function of seed, epoch and step, and a resumed run has the bits of one that did not stop. So any step
//! of a run can be replayed, from its newest checkpoint before that step or from the start. Evaluations and checkpoints
//! are skipped on the way: they change no bit.
//!
//! The replay uses the run's calls ([`Spec::steps_per_call`](super::Spec)), but makes the steps of the last call one by
//! one. Where calls are loops, these may differ in the last bits ([`StepsPerCall::While`]).

use super::batches::{Data, asks, loader_of_host};
use super::checkpoint::Checkpoint;
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::resume::Resumption;
use super::session::Session;
use super::steps_per_call::StepsPerCall;
use super::totals::Totals;
use bf16scope_data::{Ask, Batch};
use std::path::{Path, PathBuf};

/// The start of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// The start of the run: initial values of its seed, or the weights that it was initialized from.
    Start,
    /// A checkpoint of it, of a step before the requested one.
    Checkpoint(PathBuf),
}

/// A step that is ready to be replayed: the session has the state before its update.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepToMake {
    /// The step in the run, counted from 1.
    pub step: u64,
    /// Its epoch, counted from 1.
    pub epoch: u64,
    /// Its batch, for one step.
    pub batch: Batch,
    /// The step at which the replay started.
    pub from_step: u64,
    /// Whether the state has the bits of the run. False where calls are loops and the step is not the first of its
    /// call.
    pub is_exact: bool,
}

/// Replays the run of `session` on `data` up to `step`, counted from 1: the session gets the state before that step's
/// update, and the step's batch is returned; [`Session::train`] then makes the step. `observe` receives each step that
/// is made on the way: its number, counted from 1, and its report. Evaluations and checkpoints of the run are skipped,
/// which changes no bit.
///
/// The session must be of the run's [`Spec`](super::Spec). On a slice of several hosts, every host must call it at the
/// same time.
///
/// # Errors
/// A step below 1, or not after the checkpoint's (it cannot be replayed from there); a checkpoint of another run, or
/// other data; weights that the run was initialized from, if they have changed; errors of the data, the plugin and
/// `observe`. After an error of the plugin, the state is lost.
pub fn state_at<E: From<TrainError>>(
    session: &mut Session,
    data: Data<'_>,
    from: &ReplayFrom,
    step: u64,
    mut observe: impl FnMut(u64, &Totals) -> Result<(), E>,
) -> Result<StepToMake, E> {
    match from {
        ReplayFrom::Start => session.restart()?,
        ReplayFrom::Checkpoint(path) => {
            let checkpoint = Checkpoint::read(path).map_err(TrainError::from)?;
            session.restore(path, &checkpoint, Resumption::default())?;
        }
    }
    let from_step = session.step();
    if step <= from_step {
        return Err(not_made_again(step, from, from_step).into());
    }
    let spec = session.spec().clone();
    let loader = loader_of_host(&spec, data.training, session.host(), session.draws())?;
    let (calls, steps_per_epoch) = (spec.steps_per_call, loader.n_steps());
    session.check_resumed(steps_per_epoch, &data.identity())?;
    if session.reduced().is_some() && (step - 1) / steps_per_epoch > from_step / steps_per_epoch {
        return Err(over_a_reduction(step, from, from_step).into());
    }
    let mut n_singles_in_a_call = 0;
    while session.step() < step - 1 {
        let epoch = session.step() / steps_per_epoch;
        let before = epoch * steps_per_epoch;
        let end = (step - 1 - before).min(steps_per_epoch);
        let mut whole: Vec<(u64, u32)> = Vec::new();
        for ask in asks(calls, epoch, session.step() - before, steps_per_epoch) {
            match ask {
                Ask::Steps { step, n, .. } if step + u64::from(n) <= end => whole.push((step, n)),
                Ask::Steps { step, .. } if step < end => {
                    n_singles_in_a_call = end - step;
                    whole.extend((step..end).map(|step| (step, 1)));
                    break;
                }
                _ => break,
            }
        }
        if whole.iter().any(|&(_, n)| n != calls.n().get()) {
            session.load_single_step()?;
        }
        let feeder = session.feeder();
        let put = |ask, batch| match ask {
            Ask::Steps { step, n, .. } => feeder.put(&batch, before + step, n),
            Ask::InOrder { .. } => unreachable!("an epoch of training is asked for"),
        };
        let wanted = whole.into_iter().map(|(step, n)| Ask::Steps { epoch, step, n });
        loader.put_ahead(wanted, put, |supply| {
            for call in supply.by_ref() {
                let first = session.step();
                let steps = session.advance(call?)?;
                (first + 1..).zip(&steps).try_for_each(|(step, totals)| observe(step, totals))?;
            }
            Ok::<(), E>(())
        })?;
    }
    let (epoch, within) = ((step - 1) / steps_per_epoch, (step - 1) % steps_per_epoch);
    let batch = loader.steps(epoch, within, 1).map_err(TrainError::from)?;
    let is_exact = n_singles_in_a_call == 0 || !matches!(calls, StepsPerCall::While(_));
    Ok(StepToMake { step, epoch: epoch + 1, batch, from_step, is_exact })
}

/// The start of a replay of the run whose checkpoints are at `place`, up to the update of `step`, counted from 1: the
/// newest checkpoint of an earlier step, with that step, or else the start of the run, with 0. Older checkpoints are
/// beside the place, as `NAME-STEP.safetensors`. Other files are ignored; [`state_at`] checks that a checkpoint is of
/// this run.
pub fn newest_before(place: &Path, step: u64) -> (ReplayFrom, u64) {
    let beside = older_beside(place);
    let checkpoints = [place.to_path_buf()].into_iter().chain(beside).filter_map(|path| {
        let position = Checkpoint::read_position(&path).ok()?;
        (position.step < step).then_some((position.step, path))
    });
    match checkpoints.max_by_key(|(step, _)| *step) {
        Some((0, _)) | None => (ReplayFrom::Start, 0),
        Some((step, path)) => (ReplayFrom::Checkpoint(path), step),
    }
}

/// `NAME-STEP.EXTENSION` beside `NAME.EXTENSION`.
fn older_beside(place: &Path) -> Vec<PathBuf> {
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Some(stem), Ok(entries)) = (place.file_stem().and_then(|stem| stem.to_str()), folder.read_dir()) else {
        return Vec::new();
    };
    let is_older = |path: &PathBuf| {
        let name = path.file_stem().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(stem)?.strip_prefix('-'));
        path.extension() == place.extension() && number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_older).collect();
    paths.sort();
    paths
}

/// The error of a replay across the end of an epoch whose report may have lowered the learning rate, before `step`,
/// counted from 1: replays skip evaluations.
fn over_a_reduction(step: u64, from: &ReplayFrom, from_step: u64) -> TrainError {
    let from = match from {
        ReplayFrom::Start => "the beginning of the run".to_string(),
        ReplayFrom::Checkpoint(path) => format!("{} (after step {from_step})", path.display()),
    };
    let text = format!(
        "step {step} is in a later epoch than {from}, and `reduce_on_plateau` may lower the learning rate between"
    );
    let error = TrainError::new(TrainErrorKind::Checkpoint, TrainPlace::Nowhere, text);
    error.with_help("make it again from a checkpoint of its own epoch: `keep_checkpoint_max` keeps more of them")
}

/// The error of a step, counted from 1, that cannot be replayed from `from`, which is after `from_step` steps.
fn not_made_again(step: u64, from: &ReplayFrom, from_step: u64) -> TrainError {
    let from = match from {
        ReplayFrom::Start => "from the beginning of the run: steps are counted from 1".to_string(),
        ReplayFrom::Checkpoint(path) => format!("from {}, which is after step {from_step}", path.display()),
    };
    let text = format!("step {step} cannot be made again {from}");
    TrainError::new(TrainErrorKind::Checkpoint, TrainPlace::Nowhere, text).with_help(match step {
        0 => "ask for step 1 or a later one",
        _ => "make it again from a checkpoint before the step, or from the beginning",
    })
}
