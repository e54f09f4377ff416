//! A training run: epochs over the data, evaluations, checkpoints, and every way to end.
//!
//! The loss is looked at after every step: it is on the host then anyway, and one more look costs nothing. A step whose
//! loss is not finite ends the run; so does a state that is not finite when it is to be saved. A checkpoint therefore
//! never holds a NaN, and the one before stays. Nothing is printed here: who wants to show progress is told of
//! [`Event`]s.

mod callbacks;

use super::batches::{Data, asks, loader, loader_of_host};
use super::beginning::{Again, Beginning, OnTheWay, beginning};
use super::callbacks::{CallbackState, Callbacks};
use super::checkpoint::{Checkpoint, DataIdentity, Fault, Place, Series, best_of};
use super::ended::{Kept, diverged, idle_average, interrupted, too_long};
use super::epoch_report::{EpochReport, entries, value_of};
use super::error::TrainError;
use super::evaluation::Evaluator;
use super::l2::with_total;
use super::observer::{Observer, check_watch};
use super::replay::ReplayFrom;
use super::session::{Call, Session, Wish};
use super::spec::Spec;
use super::totals::Totals;
use super::watch::{Watch, WatchRecord};
use bf16scope_data::{Ask, Loader, Source, Supply};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a run is, and what it leaves.
#[derive(Debug)]
pub struct RunPlan {
    /// Epochs in all, those before a resumption included. Of none, the checkpoint is of the initial state.
    pub n_epochs: u64,
    /// Where the checkpoint goes, after each epoch and when the run is stopped. No other run saves there meanwhile.
    pub checkpoint: Option<Place>,
    /// A checkpoint also after every so many steps.
    pub save_checkpoints_steps: Option<NonZeroU32>,
    /// A checkpoint also after the step at whose end so many seconds have passed since the last one.
    pub save_checkpoints_secs: Option<NonZeroU32>,
    /// How many checkpoints stay: the newest at its place, older ones beside it as `NAME-STEP.safetensors`. What this run,
    /// or the one it goes on from, has not written is neither replaced nor removed.
    pub keep_checkpoint_max: NonZeroU32,
    /// When the numbers of each layer are looked at; none is never.
    pub watch: Option<Watch>,
    /// Its callbacks. Default none.
    pub callbacks: Callbacks,
    /// Whether what epochs are evaluated on is for validation, and so called: testing comes when training is over. Default
    /// false.
    pub is_validated: bool,
}

impl RunPlan {
    /// So many epochs; one checkpoint stays, of the last epoch or of where the run was stopped.
    pub fn new(n_epochs: u64, checkpoint: Option<Place>) -> RunPlan {
        RunPlan {
            n_epochs,
            checkpoint,
            save_checkpoints_steps: None,
            save_checkpoints_secs: None,
            keep_checkpoint_max: NonZeroU32::MIN,
            watch: None,
            callbacks: Callbacks::default(),
            is_validated: false,
        }
    }
}

/// What happens in a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step was made.
    Step {
        /// After the step; where a call makes several, after all of them.
        session: &'a Session,
        /// The epoch, counted from 1.
        epoch: u64,
        /// The step within the epoch, counted from 1.
        step: u64,
        /// Steps in an epoch.
        steps_per_epoch: u64,
        /// The loss and the metrics of the batch, before the update.
        totals: &'a Totals,
        /// The learning rate of the update.
        learning_rate: f64,
        /// Training examples a second, in this epoch so far.
        examples_per_second: f64,
    },
    /// A step was looked at, before it was made. Where a loss is not finite, the last steps before it are made again and looked
    /// at too: those may come before steps that were looked at.
    Watched(&'a WatchRecord),
    /// A step was made again, after the loss of a later one was not finite: to find where that began.
    MadeAgain {
        /// The step, counted from 1.
        step: u64,
        /// Steps that what it is made again from has.
        from_step: u64,
        /// The step whose loss is not finite.
        until: u64,
    },
    /// An epoch is over and evaluated.
    Epoch(&'a EpochReport),
    /// A checkpoint was written.
    Saved {
        /// The path.
        path: &'a Path,
        /// After which step.
        step: u64,
    },
    /// The checkpoint of the best epoch so far was written (`keep_best`).
    Best {
        /// The path.
        path: &'a Path,
        /// After which step.
        step: u64,
        /// The monitored metric.
        monitor: &'a str,
        /// Its value.
        value: f64,
    },
    /// The learning rate was lowered, from the next step on (`reduce_on_plateau`).
    Reduced {
        /// The epoch that ended, counted from 1.
        epoch: u64,
        /// The rate of the next step.
        learning_rate: f64,
    },
    /// The run ends early (`early_stopping`).
    Stopped {
        /// The last epoch, counted from 1.
        epoch: u64,
        /// The monitored metric.
        monitor: &'a str,
        /// Its best value, if it had any.
        best: Option<f64>,
        /// Updates made when that was measured.
        best_step: u64,
        /// Whether the state after that step is restored.
        is_restored: bool,
    },
}

/// What came of a run.
///
/// As JSON `test_NAME` for each value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// Its epochs, those before a resumption not included.
    pub epochs: Vec<EpochReport>,
    /// The loss and the metrics of the state at the end, on the test data.
    pub test: Vec<(String, f64)>,
    /// Updates made in all.
    pub steps: u64,
    /// The last checkpoint: where nothing was left to train, the one that was resumed.
    pub checkpoint: Option<PathBuf>,
    /// The checkpoint of the best epoch (`keep_best`), and the value by which it is.
    pub best: Option<(PathBuf, f64)>,
    /// The epoch, counted from 1, after which early stopping ended the run.
    pub stopped: Option<u64>,
}

impl Summary {
    /// Of a checkpoint, read from `path`, that nothing was done with.
    pub(super) fn of_checkpoint(path: &Path, checkpoint: &Checkpoint) -> Summary {
        let (steps, checkpoint) = (checkpoint.position.step, Some(path.to_path_buf()));
        Summary { epochs: Vec::new(), test: Vec::new(), steps, checkpoint, best: None, stopped: None }
    }

    /// The test data's value of this name, if it is reported.
    pub fn value(&self, name: &str) -> Option<f64> {
        value_of(&self.test, name)
    }
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("epochs", &self.epochs)?;
        entries(&mut map, "test", &self.test)?;
        map.serialize_entry("steps", &self.steps)?;
        map.serialize_entry("checkpoint", &self.checkpoint)?;
        if let Some((path, value)) = &self.best {
            map.serialize_entry("best_checkpoint", path)?;
            map.serialize_entry("best_value", value)?;
        }
        if let Some(epoch) = self.stopped {
            map.serialize_entry("stopped_after_epoch", &epoch)?;
        }
        map.end()
    }
}

/// Whether `data` are what a session of `spec` can be trained on: better asked before a minute of compiling. Every example is
/// read once.
///
/// # Errors
/// Features that the data lack, or have in other dims or dtypes; fewer examples than a batch, or a batch that does not split
/// in equal micro-batches; calls of more steps than an epoch has; integers out of their range; a feature that the cast to bf16 or f16 makes infinite; a shift
/// where there are no images.
pub fn check(spec: &Spec, data: Data<'_>) -> Result<(), TrainError> {
    spec.objective.check_batch(spec.batch.into())?;
    let (features, compute) = (spec.task.features(), spec.precision.compute());
    let training = loader(spec, data.training)?;
    let (calls, steps_per_epoch) = (spec.steps_per_call, training.n_steps());
    if u64::from(calls.n().get()) > steps_per_epoch {
        let text = format!("steps_per_call is {calls}, and an epoch has {steps_per_epoch} steps");
        let error = TrainError::of_key(&["train", "steps_per_call"], text);
        return Err(error.with_help("at most that many; a number that divides it needs no second program"));
    }
    training.check()?;
    Ok(Loader::new(data.test, &features, compute, 1, 0)?.check()?)
}

/// Whether averages of variables, where `spec` has any, come to something in so many epochs: half of an average at the end is
/// of the steps, not of initial values.
///
/// # Errors
/// Averages that hold more of initial values.
pub fn check_average(spec: &Spec, data: Data<'_>, n_epochs: u64) -> Result<(), TrainError> {
    let Some(average) = spec.objective.average.filter(|_| n_epochs > 0) else { return Ok(()) };
    let n_steps = n_epochs.saturating_mul(loader(spec, data.training)?.n_steps());
    match average.initial_share(n_steps) {
        initial_share if initial_share > 0.5 => Err(idle_average(&average, n_steps, initial_share)),
        _ => Ok(()),
    }
}

/// Trains `session` on `data` until `plan` is done, `stop` is set, or the loss is not finite.
///
/// The order of examples depends on the session's seed and the epoch alone, so a session restored from a checkpoint
/// goes on exactly as one that never stopped.
///
/// # Errors
/// [`TrainErrorKind::Diverged`](crate::TrainErrorKind::Diverged) (the session then has the state before that step, if it could be made again),
/// [`TrainErrorKind::Interrupted`](crate::TrainErrorKind::Interrupted) (a checkpoint was written first, where there is a place for it), averages that nothing comes
/// of or that are never used, and whatever data, plugin and disk say.
pub fn run(
    session: &mut Session,
    data: Data<'_>,
    plan: &RunPlan,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<Summary, TrainError> {
    run_until(session, data, plan, stop, observe, &mut |_| false)
}

/// As [`run()`], and the epoch for whose report `is_enough` is true is the last.
pub(super) fn run_until(
    session: &mut Session,
    data: Data<'_>,
    plan: &RunPlan,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(Event<'_>),
    is_enough: &mut dyn FnMut(&EpochReport) -> bool,
) -> Result<Summary, TrainError> {
    let spec = session.spec().clone();
    check_plan(&spec, data, plan, session.host().1)?;
    plan.callbacks.check(&spec, session.host().1)?;
    let loader = loader_of_host(&spec, data.training, session.host(), session.draws())?;
    let steps_per_epoch = loader.n_steps();
    let identity = data.identity();
    session.check_resumed(steps_per_epoch, &identity)?;
    session.check_hosts(plan.n_epochs, &identity)?;
    // The first host writes for all.
    let is_saved = session.agree(Wish { save: plan.checkpoint.is_some(), ..Wish::default() })?.save;
    if plan.n_epochs.checked_mul(steps_per_epoch).is_none_or(|steps| steps > i32::MAX as u64) {
        return Err(too_long(plan.n_epochs, steps_per_epoch));
    }
    let per_call = u64::from(spec.steps_per_call.n().get());
    // Before hours of training, not after its first epoch.
    if !steps_per_epoch.is_multiple_of(per_call) || !(session.step() % steps_per_epoch).is_multiple_of(per_call) {
        session.load_single_step()?;
    }
    let evaluator = session.evaluator(evaluation_batch(&spec, data.test))?;
    let n_epochs_before = session.step() / steps_per_epoch;
    let callbacks = CallbackState::begin(&plan.callbacks, session.callbacks(), n_epochs_before);
    let resumed = session.resumed_from().map(|path| (path.to_path_buf(), session.step()));
    let resumed = resumed.as_ref().map(|(path, step)| (path.as_path(), *step));
    let session_has_counters = session.callbacks().is_some();
    let totals = session.no_totals();
    let mut run = Run {
        data,
        observer: plan.watch.map(|_| session.observer()).transpose()?,
        session,
        plan,
        series: plan.checkpoint.as_ref().map(|place| Series::begin(place, plan.keep_checkpoint_max, resumed)),
        last_save: if is_saved { LastSave::NotYet } else { LastSave::Never },
        saved: Instant::now(),
        steps_per_epoch,
        identity,
        kept: Kept::default(),
        has_counters: session_has_counters,
        callbacks,
        totals,
        to_restore: None,
        resumed: resumed.map(|(path, _)| path.to_path_buf()),
        observe,
    };
    let epochs = run.epochs(&loader, &evaluator, stop, is_enough)?;
    run.summary(epochs, &evaluator)
}

/// What `plan` asks for and cannot be, whatever is known of the session.
fn check_plan(spec: &Spec, data: Data<'_>, plan: &RunPlan, n_hosts: u32) -> Result<(), TrainError> {
    check(spec, data)?;
    check_average(spec, data, plan.n_epochs)?;
    if spec.objective.average.is_some_and(|average| !average.evaluate) && plan.checkpoint.is_none() {
        let text = "train.average is never used: `evaluate` is false and there is no checkpoint";
        let help = "leave `average` out, write `evaluate: true`, or give the run a place for its checkpoints";
        return Err(TrainError::of_key(&["train", "average", "evaluate"], text).with_help(help));
    }
    if plan.watch.is_some() {
        check_watch(spec, n_hosts)?;
    }
    Ok(())
}

/// Examples in a batch of an evaluation: as in training, or all there are.
pub(super) fn evaluation_batch(spec: &Spec, test: &dyn Source) -> u32 {
    u32::try_from(test.n_examples()).map_or(spec.batch, |n| spec.batch.min(n))
}

/// A run under way.
struct Run<'a> {
    session: &'a mut Session,
    data: Data<'a>,
    /// What looks at steps, where the run is watched.
    observer: Option<Observer>,
    plan: &'a RunPlan,
    series: Option<Series<'a>>,
    last_save: LastSave,
    /// When it last saved, or began.
    saved: Instant,
    steps_per_epoch: u64,
    identity: DataIdentity,
    kept: Kept,
    /// The counters of callbacks.
    callbacks: CallbackState,
    /// Whether the checkpoint that it went on from had counters.
    has_counters: bool,
    /// Totals of the epoch's batches so far.
    totals: Totals,
    /// The state that an early end restores, where no checkpoint is written.
    to_restore: Option<Checkpoint>,
    /// The checkpoint that it went on from.
    resumed: Option<PathBuf>,
    observe: &'a mut dyn FnMut(Event<'_>),
}

/// When a run wrote its last checkpoint, on this host or on the first of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastSave {
    /// It writes none.
    Never,
    /// It has not written one.
    NotYet,
    /// After this step.
    After(u64),
}

/// An epoch's training.
struct Trained {
    totals: Totals,
    examples_per_second: f64,
    /// The share of the time in which the device had nothing to do but wait for data.
    waited: f64,
}

impl Run<'_> {
    /// Trains the rest of an epoch, which a resumption may have begun in its middle.
    fn epoch(&mut self, epoch: u64, loader: &Loader<'_>, stop: &AtomicBool) -> Result<Trained, TrainError> {
        let _span = tracing::info_span!("epoch", epoch = epoch + 1).entered();
        let before = epoch * self.steps_per_epoch;
        let calls = self.session.spec().steps_per_call;
        let asks = asks(calls, epoch, self.session.step() - before, self.steps_per_epoch);
        let feeder = self.session.feeder();
        let put = |ask, batch| match ask {
            Ask::Steps { step, n, .. } => feeder.put(&batch, before + step, n),
            Ask::InOrder { .. } => unreachable!("an epoch of training is asked for"),
        };
        loader.put_ahead(asks, put, |calls| self.steps(epoch, before, calls, stop))
    }

    /// Makes the steps of an epoch, whose first one is `before`, for as many batches as there are.
    fn steps(
        &mut self,
        epoch: u64,
        before: u64,
        calls: &mut Supply<'_, Call, TrainError>,
        stop: &AtomicBool,
    ) -> Result<Trained, TrainError> {
        let batch_size = f64::from(self.session.spec().batch);
        let began = Instant::now();
        let mut n_steps = 0.0;
        self.totals = self.session.no_totals();
        // Those before a resumption in the middle of an epoch.
        if self.session.step() != before {
            self.callbacks.recall(&mut self.totals);
        }
        let is_one = self.session.host().1 == 1;
        let mut next = calls.next();
        let wish =
            |next: &Option<Result<Call, TrainError>>| Wish { failed: matches!(next, Some(Err(_))), ..Wish::default() };
        self.session.agree(wish(&next))?;
        while let Some(call) = next {
            let first = self.session.step();
            let call = call?;
            self.watch(&call)?;
            let of_steps = self.session.advance(call)?;
            n_steps += of_steps.len() as f64;
            let examples_per_second = n_steps * batch_size / began.elapsed().as_secs_f64();
            for (step, of_step) in (first..).zip(&of_steps) {
                let learning_rate = self.session.learning_rate_of(step);
                match of_step.not_finite() {
                    Some(("loss", loss)) => {
                        let place = self.place_of_loss((step - first) as usize)?;
                        let replica = self.session.not_finite_on((step - first) as usize)?.first().copied();
                        let began = self.beginning(step + 1, replica.unwrap_or(0), stop);
                        let what = format!("the loss ({loss}{place}{began})");
                        return Err(self.diverged(step + 1, what, learning_rate));
                    }
                    Some((name, value)) => {
                        self.save()?;
                        return Err(TrainError::metric(name, value, &format!("the batch of step {}", step + 1)));
                    }
                    None => {}
                }
                self.totals.merge(of_step);
                (self.observe)(Event::Step {
                    session: &*self.session,
                    epoch: epoch + 1,
                    step: step - before + 1,
                    steps_per_epoch: self.steps_per_epoch,
                    totals: of_step,
                    learning_rate,
                    examples_per_second,
                });
            }
            // Several hosts make a step together or not at all: whether each has its batch is known before it.
            let ahead = (!is_one).then(|| calls.next());
            let own = Wish {
                stop: stop.load(Ordering::Relaxed),
                save: self.is_time_to_save(first),
                ..ahead.as_ref().map_or(Wish::default(), wish)
            };
            let agreed = self.session.agree(own)?;
            if agreed.save || agreed.stop {
                self.save()?;
            }
            if agreed.stop {
                return Err(self.interrupted(epoch));
            }
            next = ahead.unwrap_or_else(|| calls.next());
        }
        let seconds = began.elapsed().as_secs_f64();
        let waited = calls.waited().as_secs_f64();
        tracing::debug!("epoch {}: {waited:.3} of {seconds:.3} seconds were spent waiting for data", epoch + 1);
        let totals = self.totals.clone();
        Ok(Trained { totals, examples_per_second: n_steps * batch_size / seconds, waited: waited / seconds })
    }

    /// Trains epoch after epoch, until the plan is done or `is_enough` is true of a report.
    fn epochs(
        &mut self,
        loader: &Loader<'_>,
        evaluator: &Evaluator,
        stop: &AtomicBool,
        is_enough: &mut dyn FnMut(&EpochReport) -> bool,
    ) -> Result<Vec<EpochReport>, TrainError> {
        if self.plan.n_epochs == 0 && self.resumed.is_none() {
            self.save()?;
        }
        let mut epochs = Vec::new();
        if let Some(report) = self.catch_up(evaluator)? {
            epochs.push(report);
        }
        if self.callbacks.stopped.is_some() {
            return Ok(epochs);
        }
        for epoch in self.session.step() / self.steps_per_epoch..self.plan.n_epochs {
            let training = self.epoch(epoch, loader, stop)?;
            // Before the evaluation: whatever it meets, this is not lost.
            self.save()?;
            let report = self.report(epoch, &training, evaluator)?;
            (self.observe)(Event::Epoch(&report));
            let stops = self.call_back(&report)?;
            // Whatever one host says holds for all.
            let is_last = self.session.agree(Wish { stop: stops || is_enough(&report), ..Wish::default() })?.stop;
            epochs.push(report);
            if is_last {
                break;
            }
            if epoch + 1 < self.plan.n_epochs {
                self.end_if_asked(epoch, stop)?;
            }
        }
        Ok(epochs)
    }

    /// Evaluates after an epoch, counted from 0, and says what came of both.
    fn report(&self, epoch: u64, training: &Trained, evaluator: &Evaluator) -> Result<EpochReport, TrainError> {
        let test = self.session.together(self.session.evaluate(evaluator, self.data.test))?;
        let l2 = self.session.l2()?;
        Ok(EpochReport {
            epoch: epoch + 1,
            step: self.session.step(),
            train: with_total(training.totals.to_values(), l2),
            test: with_total(test.totals.to_values(), l2),
            examples_per_second: training.examples_per_second,
            waited_for_data: self.data.training.reading().is_costly.then_some(training.waited),
            n_skipped: self.session.n_skipped()?,
            is_validated: self.plan.is_validated,
        })
    }

    /// What came of the run. Resumed at its end, there was nothing to train, but there is something to say.
    fn summary(self, epochs: Vec<EpochReport>, evaluator: &Evaluator) -> Result<Summary, TrainError> {
        let test = match epochs.last() {
            // What an early end has restored is of another epoch.
            Some(report) if report.step == self.session.step() => report.test.clone(),
            Some(_) | None => {
                let end = self.session.together(self.session.evaluate(evaluator, self.data.test))?;
                with_total(end.totals.to_values(), self.session.l2()?)
            }
        };
        let steps = self.session.step();
        // Resumed at the end, it is the one that it came from.
        let checkpoint = self.kept.0.map(|(path, _)| path).or(self.resumed);
        let followed = self.callbacks.keep_best.as_ref().filter(|followed| followed.best.is_some());
        let best = followed.and_then(|followed| Some((best_of(self.plan.checkpoint.as_ref()?.path()), followed.best?)));
        Ok(Summary { epochs, test, steps, checkpoint, best, stopped: self.callbacks.stopped })
    }

    /// Ends between two epochs, after this one, if that was asked for on any host: what there is is saved.
    fn end_if_asked(&self, epoch: u64, stop: &AtomicBool) -> Result<(), TrainError> {
        let own = Wish { stop: stop.load(Ordering::Relaxed), ..Wish::default() };
        if self.session.agree(own)?.stop { Err(self.interrupted(epoch)) } else { Ok(()) }
    }

    fn interrupted(&self, epoch: u64) -> TrainError {
        interrupted(self.session.step(), epoch + 1, &self.kept)
    }

    /// Looks at the step that is about to be made, if it is time to.
    fn watch(&mut self, call: &Call) -> Result<(), TrainError> {
        if let (Some(observer), Some(watch)) = (&self.observer, self.plan.watch)
            && watch.is_due(self.session.step())
        {
            // What changed at the step of a look is seen at the next one.
            let last = (self.session.step() + 1).saturating_sub(2 * u64::from(watch.every.get()));
            let record = self.session.observe(observer, call, 0, last)?;
            (self.observe)(Event::Watched(&record));
        }
        Ok(())
    }

    /// Where what is not finite began in a step, counted from 1, in words: the step is made again from the last checkpoint,
    /// or from the beginning, and looked at. Nothing where that cannot be: an error is on its way that says more.
    fn beginning(&mut self, step: u64, replica: usize, stop: &AtomicBool) -> String {
        if self.session.host().1 > 1 {
            return String::new();
        }
        match self.look_again(step, replica, stop) {
            Ok(Beginning::Found(found)) => {
                format!(", which began in {}, {}: {}", found.layer, found.direction, found.found)
            }
            Ok(Beginning::Nothing) => ", though nothing is infinite or NaN where the step is made again".to_string(),
            Ok(Beginning::Stopped) => "; where it began was not looked for to the end, as asked".to_string(),
            Err(error) => {
                tracing::debug!("where it began is not known: {error}");
                String::new()
            }
        }
    }

    fn look_again(&mut self, step: u64, replica: usize, stop: &AtomicBool) -> Result<Beginning, TrainError> {
        let observer = match self.observer.take() {
            Some(observer) => observer,
            None => self.session.observer()?,
        };
        let from = match (&self.kept.0, &self.resumed) {
            (Some((path, _)), _) | (None, Some(path)) => ReplayFrom::Checkpoint(path.clone()),
            (None, None) => ReplayFrom::Start,
        };
        let watch = self.plan.watch;
        let is_known = |step: u64| watch.is_some_and(|watch| watch.is_due(step - 1));
        let again = Again { data: self.data, from: &from, step, replica };
        let observe = &mut self.observe;
        beginning(self.session, &observer, again, is_known, stop, &mut |event| match event {
            OnTheWay::Watched(record) => observe(Event::Watched(record)),
            OnTheWay::Made { step: made, from_step } => {
                observe(Event::MadeAgain { step: made, from_step, until: step })
            }
        })
    }

    /// Whether the steps since `before`, or time since the last checkpoint, ask for one, within an epoch.
    fn is_time_to_save(&self, before: u64) -> bool {
        let RunPlan { save_checkpoints_steps, save_checkpoints_secs, .. } = self.plan;
        let passed = |n: NonZeroU32| self.session.step() / u64::from(n.get()) > before / u64::from(n.get());
        let of_steps = save_checkpoints_steps.is_some_and(passed);
        let has_passed = |n: NonZeroU32| self.saved.elapsed() >= Duration::from_secs(u64::from(n.get()));
        of_steps || save_checkpoints_secs.is_some_and(has_passed)
    }

    /// Writes a checkpoint of a state that is good, unless the last one is of this step.
    fn save(&mut self) -> Result<(), TrainError> {
        let step = self.session.step();
        if [LastSave::Never, LastSave::After(step)].contains(&self.last_save) {
            return Ok(());
        }
        let _span = tracing::info_span!("checkpoint").entered();
        let written = self.write();
        self.session.together(written)?;
        (self.last_save, self.saved) = (LastSave::After(step), Instant::now());
        if let Some(place) = &self.plan.checkpoint {
            let path = place.path();
            self.kept = Kept(Some((path.to_path_buf(), step)));
            (self.observe)(Event::Saved { path, step });
        }
        Ok(())
    }

    /// Writes it, on the first host.
    fn write(&mut self) -> Result<(), TrainError> {
        if !self.plan.callbacks.is_empty() {
            self.callbacks.remember(&self.totals);
        }
        let Some(checkpoint) = self.checkpoint()? else { return Ok(()) };
        if let Err(Fault::NotFinite { name, .. }) = checkpoint.check_finite() {
            let step = self.session.step();
            return Err(self.diverged(step, name, self.session.learning_rate_of(step)));
        }
        Ok(self.series.iter_mut().try_for_each(|series| series.write(&checkpoint))?)
    }

    /// The state of this moment, on the first host.
    fn checkpoint(&self) -> Result<Option<Checkpoint>, TrainError> {
        let Some(mut checkpoint) = self.session.checkpoint_of_first(self.steps_per_epoch)? else { return Ok(None) };
        checkpoint.data = Some(self.identity.clone());
        checkpoint.callbacks = (!self.plan.callbacks.is_empty()).then(|| self.callbacks.clone());
        Ok(Some(checkpoint))
    }

    /// Which replicas' loss was not finite in a step of the last call, where there are several.
    fn place_of_loss(&self, step: usize) -> Result<String, TrainError> {
        let n = self.session.spec().objective.mesh.data.get();
        let replicas = self.session.not_finite_on(step)?;
        Ok(match replicas.as_slice() {
            [] => String::new(),
            [one] => format!(", on replica {one} of 0 to {}", n - 1),
            all if all.len() == n as usize => format!(", on all {n} replicas"),
            [first, rest @ ..] => format!(", on replicas {first} and {} more of 0 to {}", rest.len(), n - 1),
        })
    }

    /// The error of a step, counted from 1.
    fn diverged(&self, step: u64, what: String, learning_rate: f64) -> TrainError {
        let epoch = (step - 1) / self.steps_per_epoch + 1;
        diverged(step, epoch, what, learning_rate, self.session.spec().precision, &self.kept)
    }
}
