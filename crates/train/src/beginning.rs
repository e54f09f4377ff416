//! Finds where a non-finite loss began, by making the last steps before it again and watching them.

use super::batches::Data;
use super::checkpoint::Checkpoint;
use super::error::TrainError;
use super::narrow::{Looking, look_at_each};
use super::observer::Observer;
use super::replay::{ReplayFrom, state_at};
use super::session::Session;
use super::watch::{Anomaly, WatchRecord, anomalies, explains};
use std::sync::atomic::{AtomicBool, Ordering};

/// How many steps before the one with the non-finite loss are watched too, if the replay starts before them: a value
/// that grows tenfold per step is then seen while it grows.
const WINDOW: u64 = 8;

/// The result of the search.
#[derive(Debug)]
pub(super) enum Beginning {
    /// The first anomaly.
    Found(Anomaly),
    /// All numbers are finite when the step is made again.
    Nothing,
    /// The run was asked to stop before the search ended.
    Stopped,
}

/// Progress of the search.
#[derive(Debug)]
pub(super) enum OnTheWay<'a> {
    /// A step was watched.
    Watched(&'a WatchRecord),
    /// A step was made again.
    Made {
        /// The step, counted from 1.
        step: u64,
        /// Steps of the state from which the replay started.
        from_step: u64,
    },
}

/// Why the search ended early.
#[derive(Debug)]
enum Ended {
    Stopped,
    Failed(TrainError),
}

impl From<TrainError> for Ended {
    fn from(error: TrainError) -> Ended {
        Ended::Failed(error)
    }
}

/// The search: the run, the step and the replica.
#[derive(Clone, Copy)]
pub(super) struct Again<'a> {
    pub data: Data<'a>,
    pub from: &'a ReplayFrom,
    /// The step whose loss is not finite, counted from 1.
    pub step: u64,
    /// The replica whose loss is not finite.
    pub replica: usize,
}

/// Replays the run up to a step and watches the steps before it and the step itself. The session then has the state
/// before the step. `is_known` says which steps were watched already: they are not reported again.
///
/// # Errors
/// When the run cannot be replayed.
pub(super) fn beginning(
    session: &mut Session,
    observer: &Observer,
    again: Again<'_>,
    is_known: impl Fn(u64) -> bool,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(OnTheWay<'_>),
) -> Result<Beginning, TrainError> {
    match look_again(session, observer, again, is_known, stop, observe) {
        Ok(found) => Ok(found.map_or(Beginning::Nothing, Beginning::Found)),
        Err(Ended::Stopped) => Ok(Beginning::Stopped),
        Err(Ended::Failed(error)) => Err(error),
    }
}

fn look_again(
    session: &mut Session,
    observer: &Observer,
    Again { data, from, step, replica }: Again<'_>,
    is_known: impl Fn(u64) -> bool,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(OnTheWay<'_>),
) -> Result<Option<Anomaly>, Ended> {
    let from_step = match from {
        ReplayFrom::Start => 0,
        ReplayFrom::Checkpoint(path) => Checkpoint::read_position(path).map_err(TrainError::from)?.step,
    };
    let first = step.saturating_sub(WINDOW).max(from_step + 1);
    tracing::info!("step {step} is made again from step {from_step}, to find where it began");
    let is_asked = || if stop.load(Ordering::Relaxed) { Err(Ended::Stopped) } else { Ok(()) };
    let step_to_make = state_at(session, data, from, first, |step_to_make, _| {
        observe(OnTheWay::Made { step: step_to_make, from_step });
        is_asked()
    })?;
    let first = step_to_make.step;
    let mut anomaly = None;
    let looking = Looking { observer, replica, until: step };
    look_at_each(
        session,
        looking,
        data,
        step_to_make,
        |before| before.saturating_sub(WINDOW),
        |record| {
            if record.step > first {
                observe(OnTheWay::Made { step: record.step - 1, from_step });
            }
            is_asked()?;
            if replica != 0 || !is_known(record.step) {
                observe(OnTheWay::Watched(&record));
            }
            anomaly = first_cause(anomaly.take(), record, step);
            Ok::<bool, Ended>(true)
        },
    )?;
    Ok(anomaly)
}

/// The cause of the non-finite loss of `step`, with one more record. A step before may have made variables infinite or
/// NaN in its backward pass or its update, so the first of those counts that are not finite up to `step`.
fn first_cause(before: Option<Anomaly>, record: WatchRecord, step: u64) -> Option<Anomaly> {
    if record.step < step && record.first_harmful().is_none() {
        return None;
    }
    // Or a rule that explains non-finite numbers.
    let is_it = |rule: &str| rule == "not_finite" || explains(rule, "not_finite");
    before.or_else(|| anomalies(&[record]).into_iter().find(|anomaly| is_it(anomaly.rule)))
}
