//! The spec of a session: what it trains, and how.

use super::objective::Objective;
use super::steps_per_call::StepsPerCall;
use bf16scope_data::Feature;
use bf16scope_model::graph::{Numbers, Precision, Storage};
use bf16scope_model::task::Task;
use std::sync::Arc;

/// Everything that a training's numbers depend on except the data.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The task to train.
    pub task: Arc<dyn Task>,
    /// The dtype that it computes in.
    pub precision: Precision,
    /// The storage of its variables.
    pub variables: Storage,
    /// Examples in a batch.
    pub batch: u32,
    /// The seed of initial values and of the order of examples.
    pub seed: u64,
    /// The number of pixels by which training images are shifted at most, at random.
    pub shift: u32,
    /// How the loss is minimised.
    pub objective: Objective,
    /// How many steps a call of the device makes.
    pub steps_per_call: StepsPerCall,
}

impl Spec {
    /// A task in bf16 with f32 variables, in batches of 32, with seed 0, the default objective and one step a call.
    pub fn new(task: impl Task + 'static) -> Spec {
        let (objective, steps_per_call) = (Objective::default(), StepsPerCall::default());
        let (precision, variables) = (Precision::Bf16, Storage::F32);
        Spec { task: Arc::new(task), precision, variables, batch: 32, seed: 0, shift: 0, objective, steps_per_call }
    }

    /// The precision and the storage.
    pub fn numbers(&self) -> Numbers {
        Numbers { precision: self.precision, variables: self.variables }
    }

    /// Examples uploaded for one call.
    pub(super) fn examples_per_call(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.steps_per_call.n().get())
    }

    /// Bytes of one example in the program.
    pub(super) fn n_example_bytes(&self) -> u128 {
        self.task.features().iter().map(|feature| n_bytes(feature, self.precision)).sum()
    }
}

fn n_bytes(feature: &Feature, precision: Precision) -> u128 {
    let n_elements: u128 = feature.dims.iter().map(|&dim| dim.max(0) as u128).product();
    n_elements * feature.dtype_in(precision.compute()).n_bytes() as u128
}
