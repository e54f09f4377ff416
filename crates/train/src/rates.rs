//! Learning rates of given steps, as the training program computes them.

use super::device::compile;
use super::error::TrainError;
use super::program::ProgramError;
use bf16scope_hlo::DType;
use bf16scope_model::graph::Graph;
use bf16scope_model::optim::Update;
use bf16scope_pjrt::{Arg, Client};

/// The learning rate of each of `steps`, computed on the first device of `client` by the instructions that a training
/// program has for it, compiled alone.
///
/// # Errors
/// Errors of the plugin.
pub fn rates(client: &Client, update: &Update, steps: &[u32]) -> Result<Vec<f32>, TrainError> {
    let graph = Graph::training("learning_rate");
    let step = graph.input("step", DType::S32, []);
    let schedule = Update {
        learning_rate: update.learning_rate.clone(),
        warm_up: update.warm_up,
        floor: update.floor,
        ..Update::default()
    };
    let rate = schedule.emit(&graph, &step, &[]);
    let program = graph.finish(&[("rate", &rate)]).map_err(ProgramError::from)?;
    let executable = compile(client, &program.module)?;
    let at = |step: &u32| -> Result<f32, TrainError> {
        let step = i32::try_from(*step).unwrap_or(i32::MAX);
        // A constant does not read the step.
        let arguments = match program.inputs.is_empty() {
            true => vec![],
            false => vec![Arg::Donate(client.buffer_from_host(&step.to_le_bytes(), DType::S32, &[], 0)?)],
        };
        let results = executable.execute(arguments)?;
        let mut bytes = [0; 4];
        for (to, from) in
            bytes.iter_mut().zip(results.first().map(|rate| rate.to_host()).transpose()?.unwrap_or_default())
        {
            *to = from;
        }
        Ok(f32::from_le_bytes(bytes))
    };
    steps.iter().map(at).collect()
}
