//! The programs of a task: a training step, an evaluation, a prediction.
//!
//! Each is a function from a task and a batch to a [`TaskProgram`]; nothing is compiled here. One code path serves
//! every precision: the host casts features, the task opens the low-precision scope and casts what leaves it, and
//! everything from there on is f32. Gradients of variables arrive as f32 through the casts; those of variables stored
//! in a narrower dtype are cast to f32 here. All programs of a task take the same [`Numbers`], so they read the same
//! state.

use super::accumulation::{Accumulated, MicroBatch, missing_loss};
pub use super::forward::{Reported, Weighting};
use super::forward::{Sums, call, call_step, differentiate, freeze, graph_of, quotient, trained};
pub use super::objective::Objective;
pub use super::program_error::ProgramError;
use bf16scope_hlo::{Alias, AliasKind, DType, InstrId, Module};
use bf16scope_model::graph::{Graph, Numbers, Program, Tensor};
use bf16scope_model::optim::Clip;
use bf16scope_model::task::{Loss, Mode, Task};
use bf16scope_passes::tuning::Tuning;
use bf16scope_passes::{cotangent_remat, pace};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A program of a task, and the meaning of its results.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskProgram {
    /// The program.
    pub program: Program,
    /// The loss and the metrics, in the task's order.
    pub reported: Vec<Reported>,
    /// Scalars by name, with their index in the results, not counting state.
    pub scalars: Vec<(String, usize)>,
    /// Steps that a call makes; with more than 1, each result beside the state has one element per step.
    pub n_steps: NonZeroU32,
}

/// One step of training.
///
/// # Shapes
/// Parameters: the state (the task's variables, then the optimizer's slots, then averages); then the features that the task reads, in
/// its order, `[batch, dims…]`, those to compute with in the dtype the network computes in; `weight` `f32[batch]`, if the
/// task reads it; `step` `s32[]` (calls made before this one). Results: the new state in the same order, then sums and
/// weights of the loss (before the update) and of metrics, and scalars. Result `i` may alias parameter `i`, so a donated
/// state is updated in place.
///
/// With several replicas ([`Objective::mesh`]) it is the program of each: features and `weight` are `[batch / N,
/// dims…]`, gradients are summed over replicas as the mesh says, by default in f32, and sums and weights are of the
/// replica's own part. Where the state is sharded ([`StateOf::Sharded`](super::StateOf)), sharded variables, their
/// slots and averages have a shard's dims.
///
/// # Errors
/// A task that cannot be built or gives no loss; an op without a gradient; a batch that does not split in equal parts for
/// replicas and micro-batches.
pub fn training(
    task: &dyn Task,
    numbers: impl Into<Numbers>,
    batch: i64,
    objective: &Objective,
) -> Result<TaskProgram, ProgramError> {
    training_with(task, numbers.into(), batch, objective, false)
}

/// [`training`], optionally with each variable's gradient as a result: `gradient/mlp/logits/kernel`.
pub(super) fn training_with(
    task: &dyn Task,
    numbers: Numbers,
    batch: i64,
    objective: &Objective,
    gives_gradients: bool,
) -> Result<TaskProgram, ProgramError> {
    let _span = tracing::info_span!("build", program = "training", task = task.name(), batch).entered();
    let Step { graph, sums, gradients, .. } = emit_step(task, numbers, batch, objective, &|_, _| Vec::new())?;
    if graph.tuning().transpose_input && graph.inputs().iter().all(|input| input.transposed.is_none()) {
        graph.warn(format!(
            "`transpose_input` changes nothing in {}: no feature is an image of three dims, height, width and channels, in a float",
            task.name()
        ));
    }
    let mut others = sums.tensors;
    if gives_gradients {
        let variables = graph.variables();
        let name = |number: usize| format!("gradient/{}", variables[number].name);
        others.extend(gradients.into_iter().map(|(number, gradient)| (name(number), gradient)));
    }
    let mut program = finish_with_state(&graph, &others)?;
    say_replicas(&mut program.module, objective);
    Ok(TaskProgram { program, reported: sums.reported, scalars: sums.scalars, n_steps: NonZeroU32::MIN })
}

/// Sets the number of replicas in the module.
pub(super) fn say_replicas(module: &mut Module, objective: &Objective) {
    if objective.mesh.has_replicas() {
        let count = ("replica_count".to_string(), objective.mesh.data.to_string());
        module.unmodelled.attributes.push(count);
    }
}

/// The graph of a training step, before it becomes a program.
pub(super) struct Step {
    /// The graph, in which every trained variable has its update.
    pub graph: Graph,
    /// The sums that it reports.
    pub sums: Sums,
    /// Gradients of the unscaled loss by variable number, summed over replicas; a shard's part where the replica
    /// updates a shard.
    pub gradients: Vec<(usize, Tensor)>,
    /// The observed values with their cotangents, which are those of the scaled loss on one replica.
    pub observed: Vec<(InstrId, Option<InstrId>)>,
}

/// Emits a step. `choose` receives one replica's share of the loss before differentiation, and selects the values of the
/// forward pass to observe. With micro-batches, whose forward pass is inside a loop, it is not called.
pub(super) fn emit_step(
    task: &dyn Task,
    numbers: Numbers,
    batch: i64,
    objective: &Objective,
    choose: &dyn Fn(&Graph, &Tensor) -> Vec<InstrId>,
) -> Result<Step, ProgramError> {
    let (mesh, batch) = (objective.mesh, objective.check_batch(batch)?);
    let name = format!("{}_training_step", task.name());
    let graph = graph_of(Graph::training(&name), numbers, &objective.tuning).for_replicas(mesh.of_program());
    let (sums, gradients, scaling, n_of_task);
    let mut observed = Vec::new();
    if objective.accumulate == NonZeroU32::MIN {
        let (called, step) = call_step(&graph, task, batch);
        freeze(&graph, &objective.trainable)?;
        let loss = match &called.loss {
            Some(Loss::Mean(mean)) => mesh.share(mean),
            Some(Loss::Weighted { sum, weight }) => quotient(sum, &mesh.sum(weight)),
            None => return Err(missing_loss(&graph)),
        };
        sums = Sums::from_called(&called, Mode::Train);
        n_of_task = graph.variables().len();
        scaling = objective.loss_scale.begin(&graph, &step);
        let losses = trained(&called.groups, || scaling.scale(&loss), |mean| scaling.scale(&mesh.share(mean)));
        let chosen = choose(&graph, &loss);
        let (of_variables, cotangents) = differentiate(&graph, &losses, &chosen)?;
        observed = chosen.into_iter().zip(cotangents).collect();
        gradients = of_variables;
    } else {
        let micro_batch = MicroBatch::new(task, numbers, batch, objective)?;
        let inputs = micro_batch.inputs(&graph);
        let step = graph.input("step", DType::S32, []);
        n_of_task = graph.variables().len();
        scaling = objective.loss_scale.begin(&graph, &step);
        Accumulated { sums, gradients } = micro_batch.emit(&graph, &inputs, &scaling, mesh);
    }
    let (numbers, gradients): (Vec<usize>, Vec<Tensor>) = gradients.into_iter().unzip();
    let per_replica = objective.update.clip.filter(|clip| matches!(clip, Clip::GlobalNorm { per_replica: true, .. }));
    // Each gradient is unscaled and summed before the next one, unless a norm needs all of them.
    let gradients = match per_replica {
        Some(clip) => clip.of_replica(gradients.iter().map(|gradient| scaling.unscale(gradient)).collect()),
        None => gradients,
    };
    let summed = |(number, gradient): (usize, Tensor)| {
        let unscaled = if per_replica.is_some() { gradient } else { scaling.unscale(&gradient) };
        // Collectives carry the variable's name, for readers of the compiled program.
        let sum = graph.scope().within(&graph.variable(number).name, |_| mesh.sum_gradient(&unscaled));
        (number, sum)
    };
    let gradients: Vec<_> = numbers.into_iter().zip(gradients).map(summed).collect();
    let in_parts: Vec<_> =
        gradients.iter().map(|(number, gradient)| (*number, own_part(&graph, *number, gradient))).collect();
    objective.update.emit(&graph, scaling.step(), &in_parts);
    if let Some(average) = &objective.average {
        average.emit(&graph, n_of_task, &(scaling.step() + &graph.scalar(DType::S32, 1.0)));
    }
    scaling.finish(&graph, &gradients);
    Ok(Step { graph, sums, gradients: in_parts, observed })
}

/// The part of a gradient that updates what a replica holds of variable `number`.
fn own_part(graph: &Graph, number: usize, gradient: &Tensor) -> Tensor {
    match graph.variable(number).part {
        Some(part) => graph.scope().within(&graph.variable(number).name, |_| gradient.part(part)),
        None => gradient.clone(),
    }
}

/// The program whose results are the new state, aliased to the old one, and then `others`.
pub(super) fn finish_with_state(graph: &Graph, others: &[(String, Tensor)]) -> Result<Program, ProgramError> {
    let variables = graph.variables();
    // A variable that nothing assigns keeps its value.
    let state: Vec<Tensor> = variables.iter().map(|v| graph.tensor(v.update.unwrap_or(v.instr))).collect();
    let mut results: Vec<(&str, &Tensor)> = variables.iter().map(|v| v.name.as_str()).zip(&state).collect();
    results.extend(others.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    let mut program = graph.finish_for_good(&results)?;
    program.module.input_output_alias = (0..variables.len() as i64)
        .map(|number| Alias {
            output_index: vec![number],
            parameter_number: number,
            parameter_index: Vec::new(),
            kind: AliasKind::May,
        })
        .collect();
    rewrite_backward_pass(&mut program, &graph.tuning())?;
    Ok(program)
}

/// Applies the passes over the whole program that its tuning selects.
fn rewrite_backward_pass(program: &mut Program, tuning: &Tuning) -> Result<(), ProgramError> {
    if tuning.cotangent_remat {
        let (module, report) = cotangent_remat::run(&program.module, &cotangent_remat::Config)?;
        replace(program, module, &report.renamed);
        tracing::debug!(n_rematerialised = report.rematerialised.len(), "cotangent_remat");
    }
    if tuning.pace {
        let (module, report) = pace::run(&program.module, &pace::Config)?;
        replace(program, module, &report.renamed);
        tracing::debug!(n_paced = report.paced.len(), "pace");
    }
    Ok(())
}

fn replace(program: &mut Program, module: Module, renamed: &BTreeMap<InstrId, InstrId>) {
    program.module = module;
    let renamed = |id: InstrId| renamed.get(&id).copied().unwrap_or(id);
    for variable in &mut program.variables {
        variable.instr = renamed(variable.instr);
        variable.update = variable.update.map(renamed);
    }
    for input in &mut program.inputs {
        input.instr = renamed(input.instr);
    }
}

/// One batch of an evaluation.
///
/// # Shapes
/// Parameters: the task's variables (those of [`training`] by name, without slots), the features and `weight` as
/// there. Results: sums and weights of the loss and of metrics.
///
/// # Errors
/// A task that cannot be built, or gives neither a loss nor a metric.
pub fn evaluation(
    task: &dyn Task,
    numbers: impl Into<Numbers>,
    batch: i64,
    tuning: &Tuning,
) -> Result<TaskProgram, ProgramError> {
    let _span = tracing::info_span!("build", program = "evaluation", task = task.name(), batch).entered();
    let graph = graph_of(Graph::new(&format!("{}_evaluation", task.name())), numbers.into(), tuning);
    let called = call(&graph, task, batch, Mode::Evaluate);
    let sums = Sums::from_called(&called, Mode::Evaluate);
    let results: Vec<(&str, &Tensor)> = sums.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let program = graph.finish(&results)?;
    Ok(TaskProgram { program, reported: sums.reported, scalars: Vec::new(), n_steps: NonZeroU32::MIN })
}

/// Predictions for a batch.
///
/// # Shapes
/// Parameters: the task's variables (those of [`training`] by name, without slots), the features that are not labels.
/// Results: the task's predictions, `[batch, …]` each.
///
/// # Errors
/// A task that cannot be built, gives no predictions, or reads a label for them.
pub fn prediction(
    task: &dyn Task,
    numbers: impl Into<Numbers>,
    batch: i64,
    tuning: &Tuning,
) -> Result<TaskProgram, ProgramError> {
    let _span = tracing::info_span!("build", program = "prediction", task = task.name(), batch).entered();
    let graph = graph_of(Graph::new(&format!("{}_inference", task.name())), numbers.into(), tuning);
    let called = call(&graph, task, batch, Mode::Predict);
    let results: Vec<(&str, &Tensor)> =
        called.predictions.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let program = graph.finish(&results)?;
    Ok(TaskProgram { program, reported: Vec::new(), scalars: Vec::new(), n_steps: NonZeroU32::MIN })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::verify::verify;
    use bf16scope_model::graph::{Init, Precision, Scope};
    use bf16scope_model::models::{Model, cnn, mlp, transformer};
    use bf16scope_model::optim::{LearningRate, Optimizer, Update, WeightDecay};
    use bf16scope_model::task::{Feature, Features, Outputs};
    use std::sync::Arc;

    fn tasks() -> [Arc<dyn Task>; 3] {
        let models =
            [Model::Mlp(mlp::Config::new([8, 8, 1], 10)), Model::Cnn(cnn::Config::new([8, 8, 1], 10)), transformer()];
        models.map(|model| model.task(0.1))
    }

    fn transformer() -> Model {
        let config = transformer::Config {
            vocabulary: 11,
            length: 6,
            max_length: 6,
            layers: 2,
            features: 8,
            heads: 2,
            hidden: 16,
            ..transformer::Config::default()
        };
        Model::Transformer(config)
    }

    fn objective() -> Objective {
        let weight_decay = WeightDecay { value: 1e-4, except: Vec::new(), decoupled: false };
        let learning_rate = LearningRate::resnet(256, 10, 90);
        Objective {
            update: Update { optimizer: Optimizer::ADAM, learning_rate, weight_decay, ..Update::default() },
            ..Objective::default()
        }
    }

    #[test]
    fn state_goes_in_and_comes_out_in_place_in_f32() {
        for task in tasks() {
            for precision in Precision::ALL {
                let program = training(&*task, precision, 4, &objective()).unwrap().program;
                verify(&program.module).unwrap();
                let n_state = program.variables.len();
                let entry = program.module.entry();
                let parameters = entry.parameters();
                let results = &entry.instr(entry.root).operands;
                for (number, variable) in program.variables.iter().enumerate() {
                    assert_eq!(variable.dtype, DType::F32, "{}", variable.name);
                    let (parameter, result) = (entry.instr(parameters[number]), entry.instr(results[number]));
                    assert_eq!(parameter.shape, result.shape, "{}", variable.name);
                    let alias = &program.module.input_output_alias[number];
                    assert_eq!(
                        (alias.parameter_number, &alias.output_index[..]),
                        (number as i64, &[number as i64][..])
                    );
                }
                let inputs: Vec<_> = program.inputs.iter().map(|i| (i.name.as_str(), i.dtype)).collect();
                let first = &task.features()[0];
                let first = (first.name.as_str(), first.dtype_in(precision.compute()));
                let expected = [first, ("labels", DType::S32), ("step", DType::S32)];
                assert_eq!(inputs, expected);
                assert_eq!(program.outputs[n_state..], ["loss", "accuracy"]);
                assert_eq!(program.warnings, [""; 0]);
            }
        }
    }

    /// Its loss ignores the network, or reads its classes, which have no gradient.
    #[derive(Debug)]
    struct Forgetful {
        by_class: bool,
    }

    impl Task for Forgetful {
        fn name(&self) -> &str {
            "forgetful"
        }
        fn features(&self) -> Vec<Feature> {
            vec![Feature::compute("x", [3]), Feature::exact("y", DType::F32, []).label()]
        }
        fn call(&self, s: &Scope, features: &Features<'_>, _mode: Mode) -> Outputs {
            let y = features.get("y");
            let weights = s.variable("weights", DType::F32, [4, 3], Init::Zeros).value;
            let logit = (&features.get("x") * &weights).sum(&[1]);
            let logits = if self.by_class { logit.greater(&y).cast(DType::F32) } else { y.clone() };
            Outputs::new().loss((&logits * &y).mean(&[0]))
        }
    }

    /// TensorFlow: "No gradients provided for any variable". Such a task used to train to nothing without an error.
    #[test]
    fn a_loss_that_no_variable_changes_is_refused() {
        let message = |by_class| {
            training(&Forgetful { by_class }, Precision::F32, 4, &Objective::default()).unwrap_err().to_string()
        };
        let expected = |depends_on: &str| {
            format!(
                "the loss has no gradient for any variable that trains (weights): it depends on {depends_on}\n\
                 help: let the loss judge what the network makes of them, and through floats: a comparison or an index has no \
                 gradient"
            )
        };
        assert_eq!(message(false), expected("y"));
        assert_eq!(message(true), expected("x, y, weights"));
    }

    /// One of its variables stands behind `stop_gradient`.
    #[derive(Debug)]
    struct Stopped;

    impl Task for Stopped {
        fn name(&self) -> &str {
            "stopped"
        }
        fn features(&self) -> Vec<Feature> {
            vec![Feature::compute("x", [3]), Feature::exact("y", DType::F32, []).label()]
        }
        fn call(&self, s: &Scope, features: &Features<'_>, _mode: Mode) -> Outputs {
            let weights = |name: &str| s.variable(name, DType::F32, [4, 3], Init::Ones).value;
            let hidden = (&features.get("x") * &weights("before")).stop_gradient();
            let logit = (&hidden * &weights("after")).sum(&[1]);
            Outputs::new().loss((&logit * &features.get("y")).mean(&[0]))
        }
    }

    /// Such variables used to keep their values without a word.
    #[test]
    fn variables_that_no_gradient_reaches_are_a_warning() {
        let program = training(&Stopped, Precision::F32, 4, &Objective::default()).unwrap().program;
        let expected = "no gradient reaches before: all that the loss reads of them stands behind `stop_gradient`, a \
                        comparison or an index; if they are not meant to train, freeze them by `trainable` under `train`";
        assert_eq!(program.warnings, [expected]);
        let frozen = Objective { trainable: vec!["after".to_string()], ..Objective::default() };
        assert_eq!(training(&Stopped, Precision::F32, 4, &frozen).unwrap().program.warnings, [""; 0]);
    }

    #[test]
    fn every_trainable_variable_and_slot_is_updated() {
        for task in tasks() {
            let program = training(&*task, Precision::Bf16, 4, &objective()).unwrap().program;
            let unchanged = program.variables.iter().filter(|v| v.update.is_none()).map(|v| &v.name);
            assert_eq!(unchanged.collect::<Vec<_>>(), [""; 0]);
        }
    }

    #[test]
    fn evaluation_and_prediction_want_the_training_programs_variables() {
        for task in tasks() {
            let training = training(&*task, Precision::Bf16, 4, &objective()).unwrap().program;
            let tuning = Tuning::none();
            let evaluation = evaluation(&*task, Precision::F16, 6, &tuning);
            for program in [evaluation, prediction(&*task, Precision::F32, 1, &tuning)] {
                let program = program.unwrap().program;
                verify(&program.module).unwrap();
                for variable in &program.variables {
                    let same = training.variables.iter().find(|v| v.name == variable.name).unwrap();
                    assert_eq!((same.dtype, &same.dims), (variable.dtype, &variable.dims));
                }
            }
        }
    }
}
