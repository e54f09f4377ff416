//! Evaluation and prediction: programs that read variables and do not change them.

use super::checkpoint::Checkpoint;
use super::device::{Loaded, Results, Whole, upload};
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::forward::predicted_from;
use super::hosts::{Exchange, Site};
use super::l2::l2;
use super::program;
use super::totals::Totals;
use bf16scope_data::{Batch, Loader, NamedArray, Source};
use bf16scope_model::graph::{Numbers, Precision, VariableInfo};
use bf16scope_model::optim::Update;
use bf16scope_model::task::{Feature, Task};
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::{Buffer, Client};
use std::path::Path;
use std::sync::Arc;

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// The loss, without label smoothing and without what L2 adds ([`Evaluator::l2`], [`Session::l2`](super::Session::l2)),
    /// and the metrics.
    pub totals: Totals,
    /// The number of examples.
    pub n_examples: u64,
}

impl Evaluation {
    /// The loss or the metric of this name, if it is reported.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.totals.value(name)
    }
}

/// The compiled evaluation of a task.
#[derive(Debug)]
pub struct Evaluator {
    loaded: Loaded,
    task: Arc<dyn Task>,
    precision: Precision,
    batch: u32,
}

impl Evaluator {
    /// Builds and compiles the evaluation program.
    ///
    /// When the program cannot be built or compiled.
    /// Where the program cannot be built or compiled.
    pub fn new(
        client: &Client,
        task: &Arc<dyn Task>,
        numbers: impl Into<Numbers>,
        batch: u32,
        tuning: &Tuning,
    ) -> Result<Evaluator, TrainError> {
        let numbers = numbers.into();
        let program = program::evaluation(&**task, numbers, i64::from(batch), tuning)?;
        let loaded = Loaded::new(client, program, 0, task.features(), batch, Site::alone(client))?;
        Ok(Evaluator { loaded, task: Arc::clone(task), precision: numbers.precision, batch })
    }

    /// Evaluates a checkpoint that was read from `path`, by its averages where it has any. Its precision may differ.
    /// Where this evaluator reads f32 and the checkpoint has bf16, the same numbers are read.
    ///
    /// # Errors
    /// A checkpoint of another task; examples that it does not take; a metric that is not finite.
    pub fn evaluate(
        &self,
        path: &Path,
        checkpoint: &Checkpoint,
        source: &dyn Source,
    ) -> Result<Evaluation, TrainError> {
        let checkpoint = checkpoint.read_as(self.loaded.wanted());
        let arrays = checkpoint.exported(path, self.loaded.wanted())?;
        let buffers = upload(&self.loaded.client, &arrays)?;
        self.run(&buffers.iter().collect::<Vec<_>>(), source)
    }

    /// The L2 term of the loss of a checkpoint that was read from `path`, for a run with this update rule; `None`
    /// without L2.
    ///
    /// # Errors
    /// A checkpoint of another task.
    pub fn l2(&self, path: &Path, checkpoint: &Checkpoint, update: &Update) -> Result<Option<f64>, TrainError> {
        let checkpoint = checkpoint.read_as(self.loaded.wanted());
        let arrays = checkpoint.exported(path, self.loaded.wanted())?;
        l2(update, &self.loaded.variables, |number| Ok((arrays[number].shape.dtype, &arrays[number].bytes)))
    }

    /// Evaluates a state; hosts other than the first only take part in gathering it.
    pub(super) fn of_state(
        &self,
        variables: &[VariableInfo],
        state: &[Vec<Buffer>],
        by_averages: bool,
        source: &dyn Source,
        here: (&Site, Option<&Exchange>),
    ) -> Result<Evaluation, TrainError> {
        let picked = self.loaded.pick(variables, state, by_averages, here)?;
        if !here.0.is_first() {
            return Ok(Evaluation { totals: self.loaded.no_totals(), n_examples: 0 });
        }
        self.run(&picked.iter().map(Whole::buffer).collect::<Vec<_>>(), source)
    }

    fn run(&self, variables: &[&Buffer], source: &dyn Source) -> Result<Evaluation, TrainError> {
        let _span = tracing::info_span!("evaluate").entered();
        let features = self.task.features();
        let loader = Loader::new(source, &features, self.precision.compute(), self.batch as usize, 0)?;
        let mut evaluation = Evaluation { totals: self.loaded.no_totals(), n_examples: 0 };
        // Batches whose examples are all padding are skipped.
        let put = |_, batch: Batch| match batch.n_valid {
            0 => Ok(None),
            _ => self.loaded.put(&batch, 0, true).map(Some),
        };
        loader.put_ahead(loader.asks_in_order(), put, |batches| {
            for fed in batches {
                let Some(fed) = fed? else { continue };
                let n_valid = fed.n_valid;
                let results = self.loaded.run(variables, fed)?;
                let results = Results::Here(vec![results]);
                evaluation.totals.merge(&self.loaded.read(&results, 0, n_valid)?[0]);
                evaluation.n_examples += n_valid as u64;
            }
            Ok::<(), TrainError>(())
        })?;
        if evaluation.n_examples == 0 {
            let n_examples = source.n_examples();
            let text = format!("all {n_examples} examples to evaluate on are left out, because none can be read");
            let error = TrainError::new(TrainErrorKind::Data, TrainPlace::Nowhere, text);
            return Err(error.with_help("mend the files, or look at one with `bf16scope data show`"));
        }
        match evaluation.totals.not_finite() {
            Some((name, value)) => {
                Err(TrainError::metric(name, value, &format!("{} test examples", evaluation.n_examples)))
            }
            None => Ok(evaluation),
        }
    }
}

/// The compiled prediction of a task.
#[derive(Debug)]
pub struct Predictor {
    loaded: Loaded,
    features: Vec<Feature>,
    precision: Precision,
    batch: u32,
}

impl Predictor {
    /// Builds and compiles the prediction program.
    ///
    /// When the program cannot be built or compiled.
    /// Where the program cannot be built or compiled.
    pub fn new(
        client: &Client,
        task: &dyn Task,
        numbers: impl Into<Numbers>,
        batch: u32,
        tuning: &Tuning,
    ) -> Result<Predictor, TrainError> {
        let numbers = numbers.into();
        let program = program::prediction(task, numbers, i64::from(batch), tuning)?;
        let features = predicted_from(task);
        let loaded = Loaded::new(client, program, 0, features.clone(), batch, Site::alone(client))?;
        Ok(Predictor { loaded, features, precision: numbers.precision, batch })
    }

    /// Predicts all examples of `source` in order, from a checkpoint that was read from `path` (its averages, where it
    /// has any). `take` receives the predictions of each batch without padding: `[n, …]` each, in the task's order.
    /// Labels may be missing.
    ///
    /// # Errors
    /// A checkpoint of another task; examples that it does not take; any error of `take`.
    pub fn predict<E: From<TrainError>>(
        &self,
        path: &Path,
        checkpoint: &Checkpoint,
        source: &dyn Source,
        take: impl FnMut(Vec<NamedArray>) -> Result<(), E>,
    ) -> Result<(), E> {
        let checkpoint = checkpoint.read_as(self.loaded.wanted());
        let arrays = checkpoint.exported(path, self.loaded.wanted()).map_err(TrainError::from)?;
        let buffers = upload(&self.loaded.client, &arrays)?;
        self.run(&buffers.iter().collect::<Vec<_>>(), source, take)
    }

    pub(super) fn of_state<E: From<TrainError>>(
        &self,
        variables: &[VariableInfo],
        state: &[Vec<Buffer>],
        by_averages: bool,
        source: &dyn Source,
        here: (&Site, Option<&Exchange>),
        take: impl FnMut(Vec<NamedArray>) -> Result<(), E>,
    ) -> Result<(), E> {
        let picked = self.loaded.pick(variables, state, by_averages, here)?;
        self.run(&picked.iter().map(Whole::buffer).collect::<Vec<_>>(), source, take)
    }

    fn run<E: From<TrainError>>(
        &self,
        variables: &[&Buffer],
        source: &dyn Source,
        mut take: impl FnMut(Vec<NamedArray>) -> Result<(), E>,
    ) -> Result<(), E> {
        let _span = tracing::info_span!("predict").entered();
        let compute = self.precision.compute();
        let loader = Loader::new(source, &self.features, compute, self.batch as usize, 0).map_err(TrainError::from)?;
        // Each example has a row of predictions, so none may be skipped.
        let loader = loader.strict();
        let put = |_, batch| self.loaded.put(&batch, 0, true);
        loader.put_ahead(loader.asks_in_order(), put, |batches| {
            for fed in batches {
                let fed = fed?;
                let n_valid = fed.n_valid;
                let results = self.loaded.run(variables, fed)?;
                let mut arrays = self.loaded.arrays(&results)?;
                for array in &mut arrays {
                    let n_bytes = array.bytes.len() / self.batch as usize;
                    array.bytes.truncate(n_valid * n_bytes);
                    array.dims[0] = n_valid as i64;
                }
                take(arrays)?;
            }
            Ok(())
        })
    }
}
