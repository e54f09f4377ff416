//! A session's state of this moment, used: evaluated, predicted with, and what L2 says of it.

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
    /// What an evaluation reads: averages are f32, whatever their variables are stored in.
    fn numbers_read(&self, by_averages: bool) -> Numbers {
        if by_averages { self.spec.precision.into() } else { self.spec.numbers() }
    }

    /// An evaluator of this session's task, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the program cannot be built or compiled.
    pub fn evaluator(&self, batch: u32) -> Result<Evaluator, TrainError> {
        let Spec { task, objective, .. } = &self.spec;
        let by_averages = objective.average.is_some_and(|average| average.evaluate);
        Evaluator::new(&self.client, task, self.numbers_read(by_averages), batch, &objective.tuning)
    }

    /// Evaluates the state of this moment, on the first host of a slice (on others, the evaluation is of no examples): averages of variables where there are any, unless
    /// [`Average::evaluate`](bf16scope_model::optim::Average::evaluate) says otherwise.
    ///
    /// # Errors
    /// Examples that the task does not take; a metric that is no number; where the plugin fails.
    pub fn evaluate(&self, evaluator: &Evaluator, source: &dyn Source) -> Result<Evaluation, TrainError> {
        let by_averages = self.spec.objective.average.is_some_and(|average| average.evaluate);
        evaluator.of_state(self.variables(), self.state.buffers()?, by_averages, source, self.here())
    }

    /// What L2 adds to the loss, with the variables that [`Session::evaluate`] reads; none where there is no L2: weight decay
    /// that is a term of the loss ([`Update::l2`](bf16scope_model::optim::Update::l2)). All hosts of a slice must ask.
    ///
    /// # Errors
    /// Where the plugin fails.
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
    /// Where the program cannot be built or compiled.
    pub fn predictor(&self, batch: u32) -> Result<Predictor, TrainError> {
        let Spec { task, objective, .. } = &self.spec;
        Predictor::new(&self.client, &**task, self.numbers_read(objective.average.is_some()), batch, &objective.tuning)
    }

    /// Predicts all examples of `source` in order, with the state of this moment, averages of variables where there are any;
    /// see [`Predictor::predict`].
    ///
    /// # Errors
    /// Examples that the task does not take; where the plugin fails; whatever `take` gives.
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
