//! Gradient accumulation: a batch in micro-batches, one after the other, in a loop of the training program.
//!
//! A micro-batch's step (network, loss, reverse mode) is a program of its own and becomes the loop's body, so activations
//! of one micro-batch are alive at a time. The loop carries f32 sums of the gradients. What it computes is the mean over
//! the whole batch, with sums in another order; but whatever looks at a batch as a whole sees micro-batches: batch norm
//! normalises by the statistics of each, and moves the running ones once for each.

use super::program::{Objective, ProgramError, differentiate, losses, network};
use crate::graph::{Graph, Operand, Precision, Program, Tensor, VariableInfo};
use crate::hlo::DType;
use crate::models::Model;
use crate::optim::Scaling;

/// What the micro-batches of a batch bring together.
pub(super) struct Accumulated {
    /// The mean over the batch, f32.
    pub loss: Tensor,
    /// Over the batch, s32.
    pub n_correct: Tensor,
    /// Of the scaled loss, by variable number.
    pub gradients: Vec<(usize, Tensor)>,
}

/// The network's step on a micro-batch, before there is a graph for the whole batch.
pub(super) struct MicroBatch {
    program: Program,
    n: u32,
    /// Numbers of the variables that have gradients.
    trainable: Vec<usize>,
    /// How many of the inputs are parts of the batch; they come first.
    n_split: usize,
}

impl MicroBatch {
    /// The step of one of `n` parts. Its parameters: the model's variables, the inputs of the batch, then `loss_scale` and
    /// the sums so far; results: all but the inputs of the batch.
    pub fn new(
        model: &Model,
        precision: Precision,
        batch: i64,
        objective: &Objective,
    ) -> Result<MicroBatch, ProgramError> {
        objective.check_batch(batch)?;
        let n = objective.accumulate.get();
        let graph = Graph::training("micro_batch").tuned(&objective.tuning);
        let (forward, labels) = network(&graph, model, precision, batch / i64::from(n));
        let n_split = graph.inputs().len();
        let (loss, n_correct) = losses(&forward, &labels, objective);
        let loss_scale = graph.input("loss_scale", DType::F32, []);
        let gradients = differentiate(&graph, &(&loss * &loss_scale))?;
        let mut sums =
            vec![graph.input("loss", DType::F32, []) + loss, graph.input("n_correct", DType::S32, []) + n_correct];
        let variables = graph.variables();
        for (number, gradient) in &gradients {
            let VariableInfo { name, dtype, dims, .. } = &variables[*number];
            sums.push(graph.input(&format!("gradient/{name}"), *dtype, dims.clone()) + gradient);
        }
        let state: Vec<Tensor> = variables.iter().map(|v| graph.tensor(v.update.unwrap_or(v.instr))).collect();
        let results: Vec<(&str, &Tensor)> =
            state.iter().chain([&loss_scale]).chain(&sums).map(|tensor| ("", tensor)).collect();
        let program = graph.finish(&results)?;
        let trainable = gradients.into_iter().map(|(number, _)| number).collect();
        Ok(MicroBatch { program, n, trainable, n_split })
    }

    /// Makes the model's variables and the whole batch's inputs in `graph`, as a step without micro-batches has them.
    pub fn inputs(&self, graph: &Graph) -> Vec<Tensor> {
        for VariableInfo { name, dtype, dims, init, trainable, instr, .. } in &self.program.variables {
            let variable = match trainable {
                true => graph.scope().variable(name, *dtype, dims.clone(), *init),
                false => graph.scope().state(name, *dtype, dims.clone(), *init),
            };
            // The layer that made it is the place to name, not this loop.
            let metadata = self.program.module.entry().instr(*instr).metadata.clone();
            graph.emitter().with_module_mut(|module| {
                let entry = module.entry;
                module.computations[entry.idx()].instructions[variable.stored.id.idx()].metadata = metadata;
            });
        }
        let parts = &self.program.inputs[..self.n_split];
        parts.iter().map(|part| graph.input(&part.name, part.dtype, whole(&part.dims, self.n))).collect()
    }

    /// Emits the loop over the micro-batches of `inputs`, and sets the new values of state that the network updates.
    pub fn emit(&self, graph: &Graph, inputs: &[Tensor], scaling: &Scaling) -> Accumulated {
        let variables = &graph.variables()[..self.program.variables.len()];
        let values: Vec<Tensor> = variables.iter().map(|variable| graph.tensor(variable.instr)).collect();
        let scale = scaling.scale(&graph.scalar(DType::F32, 1.0));
        let mut zeros = vec![graph.scalar(DType::F32, 0.0), graph.scalar(DType::S32, 0.0)];
        zeros.extend(self.trainable.iter().map(|&number| {
            let VariableInfo { dtype, dims, .. } = &variables[number];
            graph.full(*dtype, dims, 0.0)
        }));
        let operands: Vec<Operand<'_>> = values
            .iter()
            .map(Operand::Carried)
            .chain(inputs.iter().map(Operand::Split))
            .chain([Operand::Carried(&scale)])
            .chain(zeros.iter().map(Operand::Carried))
            .collect();
        let results = graph.scan(self.n, &self.program.module, &operands);
        let (state, sums) = results.split_at(values.len());
        for (number, variable) in self.program.variables.iter().enumerate() {
            if variable.update.is_some() {
                graph.set_update(number, &state[number]);
            }
        }
        // After the loss scale, which comes back as it went in.
        let n = f64::from(self.n);
        let gradients = self.trainable.iter().zip(&sums[3..]).map(|(&number, sum)| (number, sum / n)).collect();
        Accumulated { loss: &sums[1] / n, n_correct: sums[2].clone(), gradients }
    }
}

/// The dims of the whole of which `part` is an `n`th, along the first dimension.
fn whole(part: &[i64], n: u32) -> Vec<i64> {
    let mut dims = part.to_vec();
    if let Some(first) = dims.first_mut() {
        *first *= i64::from(n);
    }
    dims
}
