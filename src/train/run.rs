//! A training run: epochs over the data, evaluations, checkpoints, and every way to end.
//!
//! The loss is looked at after every step: it is on the host then anyway, and one more look costs nothing. A step whose
//! loss is not finite ends the run; so does a state that is not finite when it is to be saved. A checkpoint therefore
//! never holds a NaN, and the one before stays. Nothing is printed here: who wants to show progress is told of
//! [`Event`]s.

use super::checkpoint::{DataIdentity, Fault, Place};
use super::error::{Kept, TrainError};
use super::session::{Evaluation, Session, Spec, check_data};
use crate::data::{Batches, Dataset, Fingerprint};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The data of a run.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// What is trained on.
    pub training: &'a Dataset,
    /// What is evaluated on after each epoch.
    pub test: &'a Dataset,
}

impl Data<'_> {
    /// What tells these data from others.
    pub fn identity(&self) -> DataIdentity {
        DataIdentity { training: Fingerprint::of(self.training), test: Fingerprint::of(self.test) }
    }
}

/// How long a run is, and what it leaves.
#[derive(Debug)]
pub struct Plan {
    /// Epochs in all, those before a resumption included.
    pub n_epochs: u64,
    /// Where the checkpoint goes, after each epoch and when the run is stopped. No other run saves there meanwhile.
    pub checkpoint: Option<Place>,
}

/// What happens in a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step was made.
    Step {
        /// The epoch, counted from 1.
        epoch: u64,
        /// The step within the epoch, counted from 1.
        step: u64,
        /// Steps in an epoch.
        steps_per_epoch: u64,
        /// The mean loss of the batch.
        loss: f32,
        /// Training examples a second, in this epoch so far.
        examples_per_second: f64,
    },
    /// An epoch is over and evaluated.
    Epoch(&'a EpochReport),
    /// A checkpoint was written.
    Saved {
        /// Where.
        path: &'a Path,
        /// After which step.
        step: u64,
    },
}

/// What an epoch brought.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: u64,
    /// Updates made in all.
    pub step: u64,
    /// Mean loss over the epoch's batches (those since a resumption), each before its update.
    pub train_loss: f64,
    /// Part of them classified right.
    pub train_accuracy: f64,
    /// Mean loss on the test data.
    pub test_loss: f64,
    /// Part of the test data classified right.
    pub test_accuracy: f64,
    /// Training examples a second, without the evaluation.
    pub examples_per_second: f64,
}

/// What a run brought.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Its epochs, those before a resumption not included.
    pub epochs: Vec<EpochReport>,
    /// The state at the end, on the test data.
    pub test_loss: f64,
    /// Part of the test data classified right at the end.
    pub test_accuracy: f64,
    /// Updates made in all.
    pub steps: u64,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
}

/// Whether `data` are what a session of `spec` can be trained on: better asked before a minute of compiling.
///
/// # Errors
/// Data of other dims or classes; fewer examples than a batch, or a batch that does not split in equal micro-batches;
/// images to be shifted that are none; a feature that the cast to bf16 or f16 makes infinite.
pub fn check(spec: &Spec, data: Data<'_>) -> Result<(), TrainError> {
    spec.objective.check_batch(spec.batch.into())?;
    check_data(&spec.model, data.training)?;
    check_data(&spec.model, data.test)?;
    data.test.check_range(spec.precision.compute())?;
    batches(spec, data.training).map(drop)
}

fn batches<'a>(spec: &Spec, training: &'a Dataset) -> Result<Batches<'a>, TrainError> {
    let batches = Batches::new(training, spec.batch as usize, spec.seed)?;
    Ok(batches.cast(spec.precision.compute())?.shifted(spec.shift)?)
}

/// Trains `session` on `data` until `plan` is done, `stop` is set, or the loss is not finite.
///
/// The order of examples depends on the session's seed and the epoch alone, so a session restored from a checkpoint
/// goes on exactly as one that never stopped.
///
/// # Errors
/// [`TrainError::Diverged`], [`TrainError::Interrupted`] (a checkpoint was written first, where there is a place for
/// it), and whatever data, plugin and disk say.
pub fn run(
    session: &mut Session,
    data: Data<'_>,
    plan: &Plan,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<Summary, TrainError> {
    let spec = session.spec().clone();
    check(&spec, data)?;
    let batches = batches(&spec, data.training)?;
    let steps_per_epoch = batches.n_steps() as u64;
    let identity = data.identity();
    session.check_resumed(steps_per_epoch, &identity)?;
    if plan.n_epochs.checked_mul(steps_per_epoch).is_none_or(|steps| steps > i32::MAX as u64) {
        return Err(TrainError::TooLong { n_epochs: plan.n_epochs, steps_per_epoch });
    }
    let evaluator = session.evaluator(spec.batch.min(data.test.n_examples() as u32))?;
    let mut run = Run { session, plan, steps_per_epoch, identity, kept: Kept::default(), observe };
    let mut epochs = Vec::new();
    let mut last: Option<Evaluation> = None;
    for epoch in run.session.step() / steps_per_epoch..plan.n_epochs {
        let training = run.epoch(epoch, &batches, stop)?;
        let test = run.session.evaluate(&evaluator, data.test)?;
        let report = EpochReport {
            epoch: epoch + 1,
            step: run.session.step(),
            train_loss: training.loss,
            train_accuracy: training.accuracy,
            test_loss: test.loss,
            test_accuracy: test.accuracy(),
            examples_per_second: training.examples_per_second,
        };
        (run.observe)(Event::Epoch(&report));
        epochs.push(report);
        last = Some(test);
        run.save()?;
    }
    let end = match last {
        Some(evaluation) => evaluation,
        // Resumed at the end: nothing to train, but something to say.
        None => run.session.evaluate(&evaluator, data.test)?,
    };
    let steps = run.session.step();
    let checkpoint = run.kept.0.map(|(path, _)| path);
    Ok(Summary { epochs, test_loss: end.loss, test_accuracy: end.accuracy(), steps, checkpoint })
}

/// A run under way.
struct Run<'a> {
    session: &'a mut Session,
    plan: &'a Plan,
    steps_per_epoch: u64,
    identity: DataIdentity,
    kept: Kept,
    observe: &'a mut dyn FnMut(Event<'_>),
}

/// An epoch's training.
struct Trained {
    loss: f64,
    accuracy: f64,
    examples_per_second: f64,
}

impl Run<'_> {
    /// Trains the rest of an epoch, which a resumption may have begun in its middle.
    fn epoch(&mut self, epoch: u64, batches: &Batches<'_>, stop: &AtomicBool) -> Result<Trained, TrainError> {
        let _span = tracing::info_span!("epoch", epoch = epoch + 1).entered();
        let batch_size = f64::from(self.session.spec().batch);
        let start = self.session.step() % self.steps_per_epoch;
        let began = Instant::now();
        let (mut loss, mut n_correct, mut n_steps) = (0.0, 0u64, 0.0);
        for (step, batch) in (start + 1..).zip(batches.epoch(epoch).skip(start as usize)) {
            let learning_rate = self.session.learning_rate();
            let report = self.session.train(&batch)?;
            if !report.loss.is_finite() {
                return Err(self.diverged(format!("the loss ({})", report.loss), learning_rate));
            }
            loss += f64::from(report.loss);
            n_correct += u64::from(report.n_correct);
            n_steps += 1.0;
            let examples_per_second = n_steps * batch_size / began.elapsed().as_secs_f64();
            let (epoch, steps_per_epoch) = (epoch + 1, self.steps_per_epoch);
            (self.observe)(Event::Step { epoch, step, steps_per_epoch, loss: report.loss, examples_per_second });
            if stop.load(Ordering::Relaxed) {
                self.save()?;
                return Err(TrainError::Interrupted { step: self.session.step(), epoch, kept: self.kept.clone() });
            }
        }
        let examples_per_second = n_steps * batch_size / began.elapsed().as_secs_f64();
        let accuracy = n_correct as f64 / (n_steps * batch_size);
        Ok(Trained { loss: loss / n_steps, accuracy, examples_per_second })
    }

    /// Writes a checkpoint of a state that is good.
    fn save(&mut self) -> Result<(), TrainError> {
        let Some(place) = &self.plan.checkpoint else { return Ok(()) };
        let _span = tracing::info_span!("checkpoint").entered();
        let mut checkpoint = self.session.checkpoint(self.steps_per_epoch)?;
        checkpoint.data = Some(self.identity.clone());
        if let Err(Fault::NotFinite { name, .. }) = checkpoint.check_finite() {
            return Err(self.diverged(name, self.session.learning_rate()));
        }
        place.write(&checkpoint)?;
        let (path, step) = (place.path(), self.session.step());
        self.kept = Kept(Some((path.to_path_buf(), step)));
        (self.observe)(Event::Saved { path, step });
        Ok(())
    }

    /// The error of the step just made.
    fn diverged(&self, what: String, learning_rate: f64) -> TrainError {
        let step = self.session.step();
        let epoch = (step - 1) / self.steps_per_epoch + 1;
        let (precision, kept) = (self.session.spec().precision, self.kept.clone());
        TrainError::Diverged { step, epoch, what, learning_rate, precision, kept }
    }
}
