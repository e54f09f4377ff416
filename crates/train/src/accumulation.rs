//! Gradient accumulation: a batch in micro-batches, one after the other, in a loop of the training program.
//!
//! A micro-batch's step (network, loss, reverse mode) is a program of its own and becomes the loop's body, so only one
//! micro-batch's activations are alive at a time. The loop carries f32 sums of the gradients. The result is the mean
//! over the whole batch, summed in another order. Layers that use batch statistics see micro-batches: batch norm
//! normalises by the statistics of each, and updates the running ones once for each.

use super::forward::{Sums, call, differentiate, freeze, graph_of, safe, trained};
use super::mesh::Mesh;
use super::objective::Objective;
use super::program_error::ProgramError;
use bf16scope_hlo::{Computation, DType, InstrId, Instruction, Op};
use bf16scope_model::graph::{Graph, Numbers, Operand, Program, Replicas, Tensor, VariableInfo};
use bf16scope_model::optim::Scaling;
use bf16scope_model::task::{Loss, Mode, Task};

/// The sums over a batch's micro-batches.
pub(super) struct Accumulated {
    /// Sums of the loss and the metrics over the batch.
    pub sums: Sums,
    /// Gradients of the scaled loss, by variable number.
    pub gradients: Vec<(usize, Tensor)>,
}

/// A task's step on a micro-batch, before there is a graph for the whole batch.
pub(super) struct MicroBatch {
    program: Program,
    n: u32,
    /// Numbers of the variables that have gradients, and the gradients' dtypes.
    trainable: Vec<(usize, DType)>,
    /// How many of the inputs are split into micro-batches; they come first.
    n_split: usize,
    /// The results of one micro-batch; the tensors belong to another graph.
    sums: Sums,
    /// The sum that divides the gradients; without one, the number of micro-batches does.
    weight: Option<usize>,
}

impl MicroBatch {
    /// The step on one of `n` micro-batches. Its parameters: the task's variables, the inputs of the batch, then
    /// `loss_scale` and the sums so far. Its results: the same without the inputs of the batch.
    pub fn new(
        task: &dyn Task,
        numbers: Numbers,
        batch: i64,
        objective: &Objective,
    ) -> Result<MicroBatch, ProgramError> {
        let n = objective.accumulate.get();
        // Variables are whole here: sharded ones were gathered before the loop.
        let replicas = Replicas { in_parts: false, ..objective.mesh.of_program() };
        // The inputs are slices of the batch, and its transposition was undone before the loop.
        let tuning = objective.tuning.clone().with(|tuning| tuning.transpose_input = false);
        let graph = graph_of(Graph::training("micro_batch"), numbers, &tuning).for_replicas(replicas);
        let called = call(&graph, task, batch / i64::from(n), Mode::Train);
        freeze(&graph, &objective.trainable)?;
        let n_split = graph.inputs().len();
        let sums = Sums::from_called(&called, Mode::Train);
        let loss_scale = graph.input("loss_scale", DType::F32, []);
        let (target, weight) = match &called.loss {
            Some(Loss::Mean(mean)) => (mean, None),
            Some(Loss::Weighted { sum, .. }) => (sum, Some(1)),
            None => return Err(missing_loss(&graph)),
        };
        let losses = trained(&called.groups, || target * &loss_scale, |mean| mean * &loss_scale);
        let (gradients, _) = differentiate(&graph, &losses, &[])?;
        let mut totals = Vec::new();
        for (name, tensor) in &sums.tensors {
            totals.push(graph.input(&format!("sum/{name}"), tensor.dtype(), tensor.dims()) + tensor);
        }
        let variables = graph.variables();
        for (number, gradient) in &gradients {
            let VariableInfo { name, dims, .. } = &variables[*number];
            totals.push(graph.input(&format!("gradient/{name}"), gradient.dtype(), dims.clone()) + gradient);
        }
        let state: Vec<Tensor> = variables.iter().map(|v| graph.tensor(v.update.unwrap_or(v.instr))).collect();
        let results: Vec<(&str, &Tensor)> =
            state.iter().chain([&loss_scale]).chain(&totals).map(|tensor| ("", tensor)).collect();
        let program = graph.finish(&results)?;
        let trainable = gradients.into_iter().map(|(number, gradient)| (number, gradient.dtype())).collect();
        Ok(MicroBatch { program, n, trainable, n_split, sums, weight })
    }

    /// Creates the task's variables and the whole batch's inputs in `graph`, as a step without micro-batches has them.
    pub fn inputs(&self, graph: &Graph) -> Vec<Tensor> {
        declare_variables(graph, &self.program);
        let parts = &self.program.inputs[..self.n_split];
        parts.iter().map(|part| graph.batch_input(&part.name, part.dtype, whole(&part.dims, self.n))).collect()
    }

    /// Emits the loop over the micro-batches of `inputs`, with one replica's share of the gradients, and sets the new
    /// values of state that the network updates.
    pub fn emit(&self, graph: &Graph, inputs: &[Tensor], scaling: &Scaling, mesh: Mesh) -> Accumulated {
        let variables = &graph.variables()[..self.program.variables.len()];
        let values: Vec<Tensor> = (0..variables.len()).map(|number| graph.whole(number)).collect();
        let scale = scaling.scale(&graph.scalar(DType::F32, 1.0));
        let zero = |(_, tensor): &(String, Tensor)| graph.full(tensor.dtype(), &tensor.dims(), 0.0);
        let mut zeros: Vec<Tensor> = self.sums.tensors.iter().map(zero).collect();
        zeros.extend(self.trainable.iter().map(|&(number, dtype)| graph.full(dtype, &values[number].dims(), 0.0)));
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
        // The first is the loss scale, which the loop does not change.
        let (totals, gradients) = sums[1..].split_at(self.sums.tensors.len());
        let n = f64::from(self.n);
        let gradient = |sum: &Tensor| match self.weight {
            None => mesh.share(&(sum / n)),
            Some(weight) => sum / safe(&mesh.sum(&totals[weight])).broadcast_in_dim(&sum.dims(), &[]),
        };
        let gradients =
            self.trainable.iter().zip(gradients).map(|(&(number, _), sum)| (number, gradient(sum))).collect();
        Accumulated { sums: self.sums.clone().over(self.n, totals), gradients }
    }
}

/// The error of a task that gives no loss: the one that the graph recorded.
pub(super) fn missing_loss(graph: &Graph) -> ProgramError {
    match graph.finish(&[]) {
        Err(error) => error.into(),
        Ok(_) => unreachable!("a call that gives no loss is an error of the graph"),
    }
}

/// Declares the variables of `program` in `graph`.
pub(super) fn declare_variables(graph: &Graph, program: &Program) {
    let entry = program.module.entry();
    for VariableInfo { name, dtype, dims, part, init, trainable, is_frozen, instr, .. } in &program.variables {
        // If every use of a variable casts it, the cast is gathered.
        let cast = graph.replicas().in_parts.then(|| only_cast(entry, *instr)).flatten();
        let number = graph.variables().len();
        match (*trainable || *is_frozen, cast) {
            (true, Some(low)) => {
                graph.low_precision_scope(low, |s| s.variable(name, low, dims.clone(), *init));
            }
            (true, None) => drop(graph.scope().variable(name, *dtype, dims.clone(), *init)),
            (false, _) => drop(graph.scope().state(name, *dtype, dims.clone(), *init)),
        }
        if *is_frozen {
            graph.freeze(|other| other == name);
        }
        if part.is_some() {
            graph.set_part(number, *part);
        }
        // Errors should name the layer that declared the variable, not this loop.
        let (metadata, parameter) = (entry.instr(*instr).metadata.clone(), graph.variable(number).instr);
        graph.emitter().with_module_mut(|module| {
            let entry = module.entry;
            module.computations[entry.idx()].instructions[parameter.idx()].metadata = metadata;
        });
    }
}

/// The dtype to which every use first casts a variable, if all agree on one narrower than f32.
fn only_cast(entry: &Computation, variable: InstrId) -> Option<DType> {
    let mut readers =
        entry.instructions.iter().filter(|instr| instr.operands.contains(&variable) && instr.op != Op::Tuple);
    let cast = |instr: &Instruction| match (&instr.op, instr.shape.dtype()) {
        (Op::Convert, Some(dtype @ (DType::BF16 | DType::F16))) => Some(dtype),
        _ => None,
    };
    let first = cast(readers.next()?)?;
    (entry.instr(variable).shape.dtype() == Some(DType::F32) && readers.all(|reader| cast(reader) == Some(first)))
        .then_some(first)
}

/// Dims of the whole array, from the dims `part` of one of `n` equal parts along the first dimension.
pub(super) fn whole(part: &[i64], n: u32) -> Vec<i64> {
    let mut dims = part.to_vec();
    if let Some(first) = dims.first_mut() {
        *first *= i64::from(n);
    }
    dims
}
