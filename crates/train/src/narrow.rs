//! An interval between two looks of a watched run, made again and looked at step by step: the first step at which something is
//! wrong, and which setting changed there.
//!
//! A look every fifty steps sees what came of a fault, up to fifty steps late and after it spread. Steps of the interval are
//! judged beside the step before each, and beside the look at which the interval begins: what grows tenfold over an interval
//! need not grow tenfold in a step.

use super::batches::{Data, loader_of_host};
use super::error::TrainError;
use super::observer::{Observer, check_watch};
use super::replay::{ReplayFrom, StepToMake, state_at};
use super::session::Session;
use super::watch::{Anomaly, WatchRecord, anomalies};
use bf16scope_model::optim::Update;
use serde::Serialize;

/// What the interval shows, step by step.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Narrowed {
    /// The first and the last step that were looked at.
    pub steps: [u64; 2],
    /// What is wrong at the first step at which anything is that was not before.
    pub anomalies: Vec<Anomaly>,
    /// Settings that changed in the interval, up to that step: the latest first.
    pub settings: Vec<SettingChange>,
    /// The looks.
    #[serde(skip)]
    pub records: Vec<WatchRecord>,
}

/// A setting of the run that is another from a step on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SettingChange {
    /// The first step that has it, counted from 1.
    pub step: u64,
    /// `learning_rate` or `loss_scale`.
    pub setting: &'static str,
    /// Its value at the step before.
    pub before: f64,
    /// Its value at this step.
    pub now: f64,
    /// Of a learning rate, the part of the schedule that ends with the step before and the one that begins: `warm_up`,
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

/// A change that is smaller is what a schedule does from step to step.
const LEAST_CHANGE: f64 = 1.1;

/// Makes the steps between two looks again and looks at each: from the look two before the one that `records` first show
/// something wrong in, as rules of two looks in a row ask for. Nothing where nothing is wrong, or where it is at the first look.
/// `made_again` is told of each step that is made on the way, and of the last that may be.
///
/// `session` must be of the run's [`Spec`](super::Spec), `records` the run's looks by ascending step, and `from` a place before
/// the step [`interval_of`] them.
///
/// # Errors
/// A run that cannot be watched or made again; whatever data and plugin say, and `made_again` gives.
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

/// The step, counted from 1, from which on [`narrow`] looks at each; nothing where there is nothing to narrow.
pub fn interval_of(records: &[WatchRecord]) -> Option<u64> {
    interval(records).map(|interval| interval.first.step)
}

/// The interval that is looked at.
struct Interval<'a> {
    /// Its first step was looked at.
    first: &'a WatchRecord,
    /// So was one within, where something is wrong only in what comes after it.
    middle: &'a WatchRecord,
    last: &'a WatchRecord,
    /// What was seen at its beginning.
    known: Vec<Anomaly>,
}

/// The looks around the first of which something is wrong.
fn interval(records: &[WatchRecord]) -> Option<Interval<'_>> {
    let first = anomalies(records).into_iter().next()?;
    // A setting may change between two looks.
    let at = (0..records.len()).find(|&at| anomalies(&records[..=at]).contains(&first))?;
    let middle = at.checked_sub(1)?;
    let begin = middle.saturating_sub(1);
    let known = anomalies(&records[..=begin]);
    Some(Interval { first: &records[begin], middle: &records[middle], last: &records[at], known })
}

impl Interval<'_> {
    /// What is wrong at a step and was not when the interval began.
    fn new_in(&self, looks: &[WatchRecord], now: &WatchRecord) -> Vec<Anomaly> {
        let coarse = if now.step > self.middle.step { self.middle } else { self.first };
        let beside = looks.last().into_iter().chain([coarse]);
        let mut all: Vec<Anomaly> = Vec::new();
        for before in beside {
            for anomaly in anomalies(&[before.clone(), now.clone()]) {
                let is_same = |other: &Anomaly| (other.rule, &other.layer) == (anomaly.rule, &anomaly.layer);
                // Of two looks the first is judged as well.
                if anomaly.step > before.step && !self.known.iter().chain(&all).any(is_same) {
                    all.push(anomaly);
                }
            }
        }
        all
    }
}

/// Settings that are not what they were the step before.
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

/// How steps of a run that is made again are looked at.
pub(super) struct Looking<'a> {
    pub observer: &'a Observer,
    /// The replica whose numbers are looked at.
    pub replica: usize,
    /// The last step, counted from 1.
    pub until: u64,
}

/// Looks at each step of a run that is made again, from the one that `made` is about to make to the last, or while `each` of a
/// look is true: the session then has the state before the last of them. A rise of the learning rate before the step `before`
/// is looked for after the step `since(before)`.
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
        let record = session.observe(observer, &call, replica, since(before))?;
        if !each(record)? || before + 1 >= until {
            return Ok(());
        }
        session.advance(call)?;
        let (epoch, within) = ((before + 1) / steps_per_epoch, (before + 1) % steps_per_epoch);
        batch = loader.steps(epoch, within, 1).map_err(TrainError::from)?;
    }
}
