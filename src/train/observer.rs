//! The compiled observing program of a session: see [`watch`](super::watch).

use super::device::{Fed, Loaded};
use super::error::TrainError;
use super::hosts::Site;
use super::objective::Objective;
use super::spec::Spec;
use super::watch::{Observing, RowOf, WatchRow, observing, read_row, words_of};
use crate::pjrt::{Buffer, Client};

/// What looks at steps.
#[derive(Debug)]
pub(super) struct Observer {
    loaded: Loaded,
    rows: Vec<RowOf>,
}

impl Observer {
    /// Compiles the observing program of `spec`, whose objective is as `objective` has it on these devices.
    ///
    /// # Errors
    /// [`TrainError::Watch`]; a task that cannot be built or compiled.
    pub fn new(client: &Client, spec: &Spec, objective: &Objective, site: Site) -> Result<Observer, TrainError> {
        let cannot = |what: &str, help: &'static str| Err(TrainError::Watch { what: what.to_string(), help });
        if objective.accumulate.get() > 1 {
            return cannot("activations of micro-batches are inside a loop", "watch it with `accumulate: 1`");
        }
        if objective.mesh.model.get() > 1 {
            return cannot("each replica is split over a model axis", "watch it with `model: 1`, on as many replicas");
        }
        let Observing { program, rows } = observing(&*spec.task, spec.numbers(), i64::from(spec.batch), objective)?;
        let loaded = Loaded::new(client, program, 0, spec.task.features(), spec.batch, site)?;
        Ok(Observer { loaded, rows })
    }

    /// The rows of a replica, of the step that so many come before, with its state and batch, which stay.
    pub fn observe(
        &self,
        state: &[Vec<Buffer>],
        fed: &Fed,
        step: i32,
        replica: usize,
    ) -> Result<Vec<WatchRow>, TrainError> {
        let results = self.loaded.run_keeping(state, fed, step)?;
        let bytes = results[replica][0].to_host()?;
        let words = words_of(&self.rows, &bytes);
        Ok(self.rows.iter().zip(&words).map(|(row, words)| read_row(row, words)).collect())
    }
}
