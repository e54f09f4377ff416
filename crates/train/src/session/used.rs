//! Uses of a session's present state: evaluation, prediction, and the L2 term.

use super::Session;
use crate::device::download;
use crate::error::TrainError;
use crate::evaluation::{Evaluation, Evaluator, Predictor};
use crate::l2::l2;
use crate::spec::Spec;
use bf16scope_data::{NamedArray, Source};
use bf16scope_model::graph::Numbers;
use bf16scope_model::optim::Average;

impl Session {
    /// The numbers that an evaluation reads: averages are f32, whatever their variables' storage.
    fn numbers_read(&self, by_averages: bool) -> Numbers {
        if by_averages { self.spec.precision.into() } else { self.spec.numbers() }
    }

    /// An evaluator of this session's task, for batches of `batch` examples.
    ///
    /// # Errors
    /// When the program cannot be built or compiled.
    pub fn evaluator(&self, batch: u32) -> Result<Evaluator, TrainError> {
        let Spec { task, objective, .. } = &self.spec;
        let by_averages = objective.average.is_some_and(|average| average.evaluate);
        Evaluator::new(&self.client, task, self.numbers_read(by_averages), batch, &objective.tuning)
    }

    /// Evaluates the present state on the first host of a slice; on other hosts the evaluation has no examples. Reads
    /// averages of variables if there are any, unless [`Average::evaluate`](bf16scope_model::optim::Average::evaluate)
    /// says otherwise.
    ///
    /// # Errors
    /// Examples that do not fit the task; a metric that is not finite; a failure of the plugin.
    pub fn evaluate(&self, evaluator: &Evaluator, source: &dyn Source) -> Result<Evaluation, TrainError> {
        let by_averages = self.spec.objective.average.is_some_and(|average| average.evaluate);
        evaluator.of_state(self.variables(), self.state.buffers()?, by_averages, source, self.here())
    }

    /// The L2 term of the loss, with the variables that [`Session::evaluate`] reads; `None` without L2, which is weight
    /// decay as a term of the loss ([`Update::l2`](bf16scope_model::optim::Update::l2)). All hosts of a slice must call
    /// it.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn l2(&self) -> Result<Option<f64>, TrainError> {
        let (state, variables) = (self.state.buffers()?, self.variables());
        let by_averages = self.spec.objective.average.is_some_and(|average| average.evaluate);
        l2(&self.spec.objective.update, variables, |number| {
            let average = Average::name_of(&variables[number].name);
            let average = variables.iter().position(|variable| by_averages && variable.name == average);
            let number = average.unwrap_or(number);
            Ok((variables[number].dtype, download(&variables[number], number, state, self.here())?))
        })
    }

    /// A predictor of this session's task, for batches of `batch` examples.
    ///
    /// # Errors
    /// When the program cannot be built or compiled.
    pub fn predictor(&self, batch: u32) -> Result<Predictor, TrainError> {
        let Spec { task, objective, .. } = &self.spec;
        Predictor::new(&self.client, &**task, self.numbers_read(objective.average.is_some()), batch, &objective.tuning)
    }

    /// Predicts all examples of `source` in order with the present state, or with averages of variables if there are
    /// any; see [`Predictor::predict`].
    ///
    /// # Errors
    /// Examples that do not fit the task; a failure of the plugin; errors of `take`.
    pub fn predict<E: From<TrainError>>(
        &self,
        predictor: &Predictor,
        source: &dyn Source,
        take: impl FnMut(Vec<NamedArray>) -> Result<(), E>,
    ) -> Result<(), E> {
        let by_averages = self.spec.objective.average.is_some();
        predictor.of_state(self.variables(), self.state.buffers()?, by_averages, source, self.here(), take)
    }
}
