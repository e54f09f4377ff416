//! Runs the callbacks at the end of an epoch, and keeps their state in checkpoints.

use super::{Event, Run, Trained};
use crate::callbacks::{ReduceOnPlateau, Verdict, lowered};
use crate::checkpoint::{Checkpoint, CheckpointError, beside, best_of};
use crate::epoch_report::EpochReport;
use crate::error::TrainError;
use crate::evaluation::Evaluator;
use crate::resume::Resumption;
use crate::session::Wish;
use std::path::{Path, PathBuf};

impl Run<'_> {
    /// Carries out the callbacks' verdict on a report: lowers the rate, saves checkpoints, restores the state of the
    /// best epoch. Returns whether the run ends.
    pub(super) fn call_back(&mut self, report: &EpochReport) -> Result<bool, TrainError> {
        let callbacks = &self.plan.callbacks;
        if callbacks.is_empty() {
            return Ok(false);
        }
        // Only the first host has evaluated.
        let is_first = self.session.host().0 == 0;
        let next = callbacks.reduce_on_plateau.as_ref().and_then(|config| self.lowered(config));
        let verdict = match is_first {
            true => self.callbacks.look(callbacks, report, next.is_some()),
            false => Verdict::default(),
        };
        let agreed = self.session.agree(Wish { stop: verdict.stop, reduce: verdict.reduce, ..Wish::default() })?;
        if let (true, Some(next)) = (agreed.reduce, next) {
            self.session.set_reduced(next)?;
            let learning_rate = self.session.learning_rate();
            (self.observe)(Event::Reduced { epoch: report.epoch, learning_rate });
        }
        let written = self.keep(verdict);
        self.session.together(written)?;
        if verdict.stop {
            self.end_early(report)?;
        }
        Ok(agreed.stop)
    }

    /// The report of an epoch that callbacks have not seen, because the run ended between its checkpoint and its
    /// evaluation.
    pub(super) fn catch_up(&mut self, evaluator: &Evaluator) -> Result<Option<EpochReport>, TrainError> {
        let (step, per_epoch) = (self.session.step(), self.steps_per_epoch);
        let is_missed = self.has_counters && step > 0 && step.is_multiple_of(per_epoch);
        if !is_missed || self.callbacks.n_epochs >= step / per_epoch || self.plan.callbacks.is_empty() {
            return Ok(None);
        }
        let mut totals = self.session.no_totals();
        self.callbacks.recall(&mut totals);
        let training = Trained { totals, examples_per_second: 0.0, waited: 0.0 };
        let report = self.report(step / per_epoch - 1, &training, evaluator)?;
        (self.observe)(Event::Epoch(&report));
        self.call_back(&report)?;
        Ok(Some(report))
    }

    /// The learning rate after a reduction.
    fn lowered(&self, config: &ReduceOnPlateau) -> Option<f32> {
        let step = u32::try_from(self.session.step()).unwrap_or(u32::MAX);
        lowered(config, &self.session.spec().objective.update, self.session.reduced()?, step)
    }

    /// Writes the counters into the last checkpoint, and the best checkpoints beside it.
    fn keep(&mut self, verdict: Verdict) -> Result<(), TrainError> {
        let Some(checkpoint) = self.checkpoint()? else { return Ok(()) };
        let Some(path) = self.plan.checkpoint.as_ref().map(|place| place.path().to_path_buf()) else {
            if verdict.is_to_restore {
                self.to_restore = Some(checkpoint);
            }
            return Ok(());
        };
        self.series.iter_mut().try_for_each(|series| series.rewrite(&checkpoint))?;
        (self.observe)(Event::Saved { path: &path, step: checkpoint.position.step });
        if verdict.is_to_restore {
            checkpoint.write(restored_at(&path))?;
        }
        if verdict.is_best
            && let Some(followed) = &self.callbacks.keep_best
        {
            let best = best_of(&path);
            checkpoint.write(&best)?;
            let (monitor, value) = (followed.monitor.as_str(), followed.best.unwrap_or(f64::NAN));
            (self.observe)(Event::Best { path: &best, step: self.session.step(), monitor, value });
        }
        Ok(())
    }

    /// Ends the run for early stopping, with the state of its best epoch if that is to be restored.
    fn end_early(&mut self, report: &EpochReport) -> Result<(), TrainError> {
        let (config, followed) = (&self.plan.callbacks.early_stopping, &self.callbacks.early_stopping);
        let (Some(config), Some(followed)) = (config, followed) else { return Ok(()) };
        let expected = followed.best_step;
        (self.observe)(Event::Stopped {
            epoch: report.epoch,
            monitor: &followed.monitor,
            best: followed.best,
            best_step: expected,
            is_restored: config.restore_best,
        });
        if !config.restore_best {
            return Ok(());
        }
        let place = self.plan.checkpoint.as_ref().map(|place| restored_at(place.path()));
        let (path, mut checkpoint) = match (place, self.to_restore.take()) {
            (Some(path), _) => (path.clone(), Checkpoint::read(&path)?),
            (None, Some(checkpoint)) => (PathBuf::from("the best epoch"), checkpoint),
            // No checkpoint was written, and the best epoch was before the resumption.
            (None, None) => return Ok(()),
        };
        let step = checkpoint.position.step;
        if step != expected {
            return Err(CheckpointError::OtherStep { path, step, expected }.into());
        }
        checkpoint.callbacks = Some(self.callbacks.clone());
        self.session.restore(&path, &checkpoint, Resumption::default())?;
        self.series.iter_mut().try_for_each(|series| series.rewrite(&checkpoint))?;
        if let Some(place) = &self.plan.checkpoint {
            (self.observe)(Event::Saved { path: place.path(), step });
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!("{}: the checkpoint that was restored cannot be removed: {error}", path.display());
            }
        }
        Ok(())
    }
}

/// The file of the state that an early end restores: `NAME-restore.safetensors` beside `NAME.safetensors`.
fn restored_at(path: &Path) -> PathBuf {
    beside(path, "restore")
}
