//! Where a loss that is not finite began: the last steps before it are made again and looked at.

use super::batches::Data;
use super::checkpoint::Checkpoint;
use super::error::TrainError;
use super::narrow::{Looking, look_at_each};
use super::observer::Observer;
use super::replay::{ReplayFrom, state_at};
use super::session::Session;
use super::watch::{Anomaly, WatchRecord, anomalies, explains};
use std::sync::atomic::{AtomicBool, Ordering};

/// So many steps before the one whose loss is not finite are looked at too, where what the run is made again from comes
/// before them: what grows tenfold a step is then seen while it grows.
const WINDOW: u64 = 8;

/// What was found.
#[derive(Debug)]
pub(super) enum Beginning {
    /// Where it began.
    Found(Anomaly),
    /// All numbers are finite where the step is made again.
    Nothing,
    /// Someone asked to stop before it was found.
    Stopped,
}

/// What happens on the way.
#[derive(Debug)]
pub(super) enum OnTheWay<'a> {
    /// A step was looked at.
    Watched(&'a WatchRecord),
    /// A step was made again.
    Made {
        /// The step, counted from 1.
        step: u64,
        /// Steps that what it is made again from has.
        from_step: u64,
    },
}

/// Why it was not looked for to the end.
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

/// What is looked again.
#[derive(Clone, Copy)]
pub(super) struct Again<'a> {
    pub data: Data<'a>,
    pub from: &'a ReplayFrom,
    /// The step whose loss is not finite, counted from 1.
    pub step: u64,
    /// Where it is not.
    pub replica: usize,
}

/// Makes the run again up to a step, looking at the steps before it and at it. The session has the state before the step then.
/// `is_known` says which steps were looked at already: those are not told of again.
///
/// # Errors
/// Where the run cannot be made again.
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
    let made = state_at(session, data, from, first, |made, _| {
        observe(OnTheWay::Made { step: made, from_step });
        is_asked()
    })?;
    let first = made.step;
    let mut anomaly = None;
    let looking = Looking { observer, replica, until: step };
    look_at_each(
        session,
        looking,
        data,
        made,
        |before| before.saturating_sub(WINDOW),
        |record| {
            if record.step > first {
                observe(OnTheWay::Made { step: record.step - 1, from_step });
            }
            is_asked()?;
            if replica != 0 || !is_known(record.step) {
                observe(OnTheWay::Watched(&record));
            }
            if record.step == step {
                // Or what makes numbers infinite.
                let is_it = |rule: &str| rule == "not_finite" || explains(rule, "not_finite");
                anomaly = anomalies(&[record]).into_iter().find(|anomaly| is_it(anomaly.rule));
            }
            Ok::<bool, Ended>(true)
        },
    )?;
    Ok(anomaly)
}
