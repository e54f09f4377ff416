//! A training run: epochs over the data, evaluations, checkpoints, and every way to end.
//!
//! The loss is checked after every step: it is on the host anyway, so the check is free. A step whose loss is not
//! finite ends the run, and so does a state that is not finite when it is saved. A checkpoint therefore never holds a
//! NaN, and the previous one stays. Nothing is printed here: callers show progress through [`Event`]s.

mod callbacks;
mod events;
mod plan;

use super::batches::{Data, asks, loader_of_host};
use super::beginning::{Again, Beginning, OnTheWay, beginning};
use super::callbacks::CallbackState;
use super::checkpoint::{Checkpoint, DataIdentity, Fault, Series, best_of};
use super::ended::{Kept, diverged, interrupted, too_long};
use super::epoch_report::EpochReport;
use super::error::TrainError;
use super::evaluation::Evaluator;
use super::l2::with_total;
use super::observer::Observer;
use super::replay::ReplayFrom;
use super::session::{Call, Session, Wish};
use super::totals::Totals;
use bf16scope_data::{Ask, Loader, Supply};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use events::{Event, Summary};
use plan::check_plan;
pub(super) use plan::evaluation_batch;
pub use plan::{RunPlan, check, check_average};

/// Trains `session` on `data` until `plan` is done, `stop` is set, or the loss is not finite.
///
/// The order of examples depends on the session's seed and the epoch alone, so a session restored from a checkpoint
/// goes on exactly as one that never stopped.
///
/// # Errors
/// [`TrainErrorKind::Diverged`](crate::TrainErrorKind::Diverged) (the session then has the state before that step, if
/// it could be replayed), [`TrainErrorKind::Interrupted`](crate::TrainErrorKind::Interrupted) (a checkpoint is written
/// first, if there is a place for it), averages that are useless or never used, and errors of the data, the plugin and
/// the disk.
pub fn run(
    session: &mut Session,
    data: Data<'_>,
    plan: &RunPlan,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<Summary, TrainError> {
    run_until(session, data, plan, stop, observe, &mut |_| false)
}

/// As [`run()`]; the epoch whose report makes `is_enough` true is the last.
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
    // Checked before hours of training, not after the first epoch.
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

/// A run in progress.
struct Run<'a> {
    session: &'a mut Session,
    data: Data<'a>,
    /// The program that watches steps, if the run is watched.
    observer: Option<Observer>,
    plan: &'a RunPlan,
    series: Option<Series<'a>>,
    last_save: LastSave,
    /// The time of the last checkpoint, or of the start.
    saved: Instant,
    steps_per_epoch: u64,
    identity: DataIdentity,
    kept: Kept,
    /// The callbacks' counters.
    callbacks: CallbackState,
    /// Whether the checkpoint that it resumed from had counters.
    has_counters: bool,
    /// Totals over the epoch's batches so far.
    totals: Totals,
    /// The state that an early end restores, if checkpoints are not written.
    to_restore: Option<Checkpoint>,
    /// The checkpoint that it resumed from.
    resumed: Option<PathBuf>,
    observe: &'a mut dyn FnMut(Event<'_>),
}

/// The last checkpoint of the run, on this host or on the first of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastSave {
    /// The run writes none.
    Never,
    /// It has not written one yet.
    NotYet,
    /// It was of this step.
    After(u64),
}

/// The training of an epoch.
struct Trained {
    totals: Totals,
    examples_per_second: f64,
    /// The share of the time in which the device was idle, waiting for data.
    waited: f64,
}

impl Run<'_> {
    /// Trains the rest of an epoch: a resumption may start in its middle.
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

    /// Makes the steps of an epoch, starting after the step `before`, for as many batches as there are.
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
        // The epoch's batches before a resumption in its middle.
        let start = self.session.step();
        if start == before {
            self.callbacks.since_step = None;
        } else if !self.callbacks.recall(&mut self.totals) {
            self.callbacks.since_step = Some(start);
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
            // Several hosts make a step together or not at all: all know that each has its batch before it starts.
            let ahead = (!is_one).then(|| calls.next());
            let wish = Wish {
                stop: stop.load(Ordering::Relaxed),
                save: self.is_time_to_save(first),
                ..ahead.as_ref().map_or(Wish::default(), wish)
            };
            let agreed = self.session.agree(wish)?;
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

    /// Trains epoch after epoch, until the plan is done or `is_enough` is true for a report.
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
            // Saved before the evaluation, so that its errors lose nothing.
            self.save()?;
            let report = self.report(epoch, &training, evaluator)?;
            (self.observe)(Event::Epoch(&report));
            let stops = self.call_back(&report)?;
            // Any host's answer holds for all.
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

    /// Evaluates after an epoch, counted from 0, and reports its training and its evaluation.
    fn report(&self, epoch: u64, training: &Trained, evaluator: &Evaluator) -> Result<EpochReport, TrainError> {
        let test = self.session.together(self.session.evaluate(evaluator, self.data.test))?;
        let l2 = self.session.l2()?;
        Ok(EpochReport {
            epoch: epoch + 1,
            step: self.session.step(),
            train: with_total(training.totals.to_values(), l2),
            train_since_step: self.callbacks.since_step,
            test: with_total(test.totals.to_values(), l2),
            examples_per_second: training.examples_per_second,
            waited_for_data: self.data.training.reading().is_costly.then_some(training.waited),
            n_skipped: self.session.n_skipped()?,
            is_validated: self.plan.is_validated,
        })
    }

    /// The summary of the run. A run that was resumed at its end had nothing to train, but it still has an evaluation.
    fn summary(self, epochs: Vec<EpochReport>, evaluator: &Evaluator) -> Result<Summary, TrainError> {
        let test = match epochs.last() {
            // A state that an early end restored belongs to another epoch.
            Some(report) if report.step == self.session.step() => report.test.clone(),
            Some(_) | None => {
                let end = self.session.together(self.session.evaluate(evaluator, self.data.test))?;
                with_total(end.totals.to_values(), self.session.l2()?)
            }
        };
        let steps = self.session.step();
        // If resumed at its end, the last checkpoint is the one that it resumed from.
        let checkpoint = self.kept.0.map(|(path, _)| path).or(self.resumed);
        let followed = self.callbacks.keep_best.as_ref().filter(|followed| followed.best.is_some());
        let best = followed.and_then(|followed| Some((best_of(self.plan.checkpoint.as_ref()?.path()), followed.best?)));
        Ok(Summary { epochs, test, steps, checkpoint, best, stopped: self.callbacks.stopped })
    }

    /// Ends the run after this epoch if any host was asked to stop; the state is saved.
    fn end_if_asked(&self, epoch: u64, stop: &AtomicBool) -> Result<(), TrainError> {
        let wish = Wish { stop: stop.load(Ordering::Relaxed), ..Wish::default() };
        if self.session.agree(wish)?.stop { Err(self.interrupted(epoch)) } else { Ok(()) }
    }

    fn interrupted(&self, epoch: u64) -> TrainError {
        interrupted(self.session.step(), epoch + 1, &self.kept)
    }

    /// Watches the next step, if it is due.
    fn watch(&mut self, call: &Call) -> Result<(), TrainError> {
        if let (Some(observer), Some(watch)) = (&self.observer, self.plan.watch)
            && watch.is_due(self.session.step())
        {
            // A change of settings at a watched step only shows in the next record.
            let last = (self.session.step() + 1).saturating_sub(2 * u64::from(watch.every.get()));
            let record = self.session.observe(observer, call, 0, last, self.data.training)?;
            (self.observe)(Event::Watched(&record));
        }
        Ok(())
    }

    /// Describes where a non-finite loss of a step, counted from 1, began: the step is replayed from the last
    /// checkpoint, or from the start, and watched. Empty if that is impossible: the caller's error is more important.
    fn beginning(&mut self, step: u64, replica: usize, stop: &AtomicBool) -> String {
        if self.session.host().1 > 1 {
            return String::new();
        }
        match self.look_again(step, replica, stop) {
            Ok(Beginning::Found(found)) => {
                let of_step = if found.step == step { String::new() } else { format!(" of step {}", found.step) };
                format!(", which began in {}, {}{of_step}: {}", found.layer, found.direction, found.found)
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

    /// Whether a checkpoint is due within an epoch, by the steps since `before` or by the time since the last one.
    fn is_time_to_save(&self, before: u64) -> bool {
        let RunPlan { save_checkpoints_steps, save_checkpoints_secs, .. } = self.plan;
        let passed = |n: NonZeroU32| self.session.step() / u64::from(n.get()) > before / u64::from(n.get());
        let of_steps = save_checkpoints_steps.is_some_and(passed);
        let has_passed = |n: NonZeroU32| self.saved.elapsed() >= Duration::from_secs(u64::from(n.get()));
        of_steps || save_checkpoints_secs.is_some_and(has_passed)
    }

    /// Writes a checkpoint of a valid state, unless the last one is of this step.
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

    /// Writes the checkpoint, on the first host.
    fn write(&mut self) -> Result<(), TrainError> {
        self.callbacks.remember(&self.totals);
        let Some(checkpoint) = self.checkpoint()? else { return Ok(()) };
        if let Err(Fault::NotFinite { name, .. }) = checkpoint.check_finite() {
            let step = self.session.step();
            return Err(self.diverged(step, name, self.session.learning_rate_of(step)));
        }
        Ok(self.series.iter_mut().try_for_each(|series| series.write(&checkpoint))?)
    }

    /// The present state, on the first host.
    fn checkpoint(&self) -> Result<Option<Checkpoint>, TrainError> {
        let Some(mut checkpoint) = self.session.checkpoint_of_first(self.steps_per_epoch)? else { return Ok(None) };
        checkpoint.data = Some(self.identity.clone());
        let is_inside_epoch = !self.session.step().is_multiple_of(self.steps_per_epoch);
        checkpoint.callbacks = (is_inside_epoch || !self.plan.callbacks.is_empty()).then(|| self.callbacks.clone());
        Ok(Some(checkpoint))
    }

    /// The replicas whose loss was not finite in a step of the last call, if there are several.
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
