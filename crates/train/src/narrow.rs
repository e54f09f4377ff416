//! Replays the interval between two records of a watched run and watches every step: finds the first step with an
//! anomaly, and the setting that changed there.
//!
//! Watching every fifty steps shows a fault up to fifty steps late, after it has spread. Each step of the interval is
//! compared with the step before, and with the record at the start of the interval: a value that grows tenfold over an
//! interval need not grow tenfold in a step.
//! need not grow tenfold in a step.

use super::batches::{Data, loader_of_host};
use super::error::TrainError;
use super::observer::{Observer, check_watch};
use super::replay::{ReplayFrom, StepToMake, state_at};
use super::session::Session;
use super::watch::{Anomaly, WatchRecord, anomalies};
use bf16scope_model::optim::Update;
use serde::Serialize;

/// The anomalies and changed settings in an interval.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Narrowed {
    /// The first and the last watched step.
    pub steps: [u64; 2],
    /// The anomalies of the first step that has new ones.
    pub anomalies: Vec<Anomaly>,
    /// Settings that changed in the interval, up to that step: the latest first.
    pub settings: Vec<SettingChange>,
    /// The records of the watched steps.
    #[serde(skip)]
    pub records: Vec<WatchRecord>,
}

/// A setting of the run whose value changed at a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SettingChange {
    /// The first step with the new value, counted from 1.
    pub step: u64,
    /// `learning_rate` or `loss_scale`.
    pub setting: &'static str,
    /// Its value at the step before.
    pub before: f64,
    /// Its value at this step.
    pub now: f64,
    /// For a learning rate, the part of the schedule that ends with the step before and the one that begins: `warm_up`,
    /// `changes[0]`.
    pub phases: Option<[String; 2]>,
}

impl std::fmt::Display for SettingChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SettingChange { step, setting, before, now, .. } = self;
        write!(f, "`{setting}` is {now:.3e} from step {step} on, and was {before:.3e}")?;
        match &self.phases {
            Some([before, now]) => write!(f, ": `{now}` follows `{before}`"),
            None => Ok(()),
        }
    }
}

/// Smaller changes are normal from step to step of a schedule.
const LEAST_CHANGE: f64 = 1.1;

/// Replays the interval before the first anomaly in `records` and watches every step. It starts two records before the
/// one with the anomaly, because some rules compare two records. `None` if there is no anomaly, or if it is in the
/// first record. `made_again` receives each step that is made on the way, and the last step of the interval.
///
/// `session` must be of the run's [`Spec`](super::Spec), `records` the run's records by ascending step, and `from` a state
/// before the step [`interval_of`] them.
///
/// # Errors
/// A run that cannot be watched or replayed; errors of the data, the plugin and `made_again`.
pub fn narrow<E: From<TrainError>>(
    session: &mut Session,
    data: Data<'_>,
    from: &ReplayFrom,
    records: &[WatchRecord],
    mut made_again: impl FnMut(u64, u64) -> Result<(), E>,
) -> Result<Option<Narrowed>, E> {
    let Some(interval) = interval(records) else { return Ok(None) };
    let [first, last] = [interval.first.step, interval.last.step];
    check_watch(session.spec(), session.host().1)?;
    let observer = session.observer()?;
    let step_to_make = state_at(session, data, from, first, |step, _| made_again(step, last))?;
    let mut looks: Vec<WatchRecord> = Vec::new();
    let mut new = Vec::new();
    let looking = Looking { observer: &observer, replica: 0, until: last };
    look_at_each(
        session,
        looking,
        data,
        step_to_make,
        |_| first,
        |record| {
            made_again(record.step, last)?;
            if record.step > first {
                new = interval.new_in(&looks, &record);
            }
            looks.push(record);
            Ok::<bool, E>(new.is_empty())
        },
    )?;
    let until = looks.last().map_or(last, |look| look.step);
    let settings = changes(&looks, &session.spec().objective.update);
    Ok(Some(Narrowed { steps: [first, until], anomalies: new, settings, records: looks }))
}

/// The step, counted from 1, at which [`narrow`] starts to watch; `None` if there is nothing to narrow.
pub fn interval_of(records: &[WatchRecord]) -> Option<u64> {
    interval(records).map(|interval| interval.first.step)
}

/// The interval to watch.
struct Interval<'a> {
    /// The record at its start.
    first: &'a WatchRecord,
    /// The record before the anomaly, for rules that compare two records.
    middle: &'a WatchRecord,
    last: &'a WatchRecord,
    /// The anomalies at its start.
    known: Vec<Anomaly>,
}

/// The interval before the first anomaly.
fn interval(records: &[WatchRecord]) -> Option<Interval<'_>> {
    let first = anomalies(records).into_iter().next()?;
    // An anomaly may only be visible in a later record, because it compares two.
    let at = (0..records.len()).find(|&at| anomalies(&records[..=at]).contains(&first))?;
    let middle = at.checked_sub(1)?;
    let begin = middle.saturating_sub(1);
    let known = anomalies(&records[..=begin]);
    Some(Interval { first: &records[begin], middle: &records[middle], last: &records[at], known })
}

impl Interval<'_> {
    /// The anomalies of a step that the interval did not start with.
    fn new_in(&self, looks: &[WatchRecord], now: &WatchRecord) -> Vec<Anomaly> {
        let coarse = if now.step > self.middle.step { self.middle } else { self.first };
        let beside = looks.last().into_iter().chain([coarse]);
        let mut all: Vec<Anomaly> = Vec::new();
        for before in beside {
            for anomaly in anomalies(&[before.clone(), now.clone()]) {
                let is_same = |other: &Anomaly| (other.rule, &other.layer) == (anomaly.rule, &anomaly.layer);
                // The earlier of the two records is judged as well.
                if anomaly.step > before.step && !self.known.iter().chain(&all).any(is_same) {
                    all.push(anomaly);
                }
            }
        }
        all
    }
}

/// The settings that differ from those of the step before.
fn changes(looks: &[WatchRecord], update: &Update) -> Vec<SettingChange> {
    let mut changes = Vec::new();
    for pair in looks.windows(2).rev() {
        let [before, now] = [&pair[0], &pair[1]];
        let phases = [before, now].map(|look| update.phase_at(u32::try_from(look.step - 1).unwrap_or(u32::MAX)));
        let has_begun = phases[0] != phases[1];
        let differs =
            |before: f64, now: f64| before != now && (now >= LEAST_CHANGE * before || before >= LEAST_CHANGE * now);
        let step = now.step;
        if differs(before.learning_rate, now.learning_rate) || has_begun {
            let (before, now) = (before.learning_rate, now.learning_rate);
            let phases = has_begun.then_some(phases);
            changes.push(SettingChange { step, setting: "learning_rate", before, now, phases });
        }
        if let Some((before, now)) = before.loss_scale.zip(now.loss_scale).filter(|(before, now)| before != now) {
            changes.push(SettingChange { step, setting: "loss_scale", before, now, phases: None });
        }
    }
    changes
}

/// How the steps of a replay are watched.
pub(super) struct Looking<'a> {
    pub observer: &'a Observer,
    /// The watched replica.
    pub replica: usize,
    /// The last step, counted from 1.
    pub until: u64,
}

/// Watches each step of a replay, from the one that `made` holds to the last, or while `each` returns true for a
/// record: the session then has the state before the last watched step. A rise of the learning rate before the step
/// `before` is searched for after the step `since(before)`.
pub(super) fn look_at_each<E: From<TrainError>>(
    session: &mut Session,
    Looking { observer, replica, until }: Looking<'_>,
    data: Data<'_>,
    made: StepToMake,
    since: impl Fn(u64) -> u64,
    mut each: impl FnMut(WatchRecord) -> Result<bool, E>,
) -> Result<(), E> {
    session.load_single_step()?;
    let spec = session.spec().clone();
    let loader = loader_of_host(&spec, data.training, session.host(), session.draws())?;
    let steps_per_epoch = loader.n_steps();
    let mut batch = made.batch;
    loop {
        let before = session.step();
        let call = session.feeder().put(&batch, before, 1)?;
        let record = session.observe(observer, &call, replica, since(before), data.training)?;
        if !each(record)? || before + 1 >= until {
            return Ok(());
        }
        session.advance(call)?;
        let (epoch, within) = ((before + 1) / steps_per_epoch, (before + 1) % steps_per_epoch);
        batch = loader.steps(epoch, within, 1).map_err(TrainError::from)?;
    }
}
