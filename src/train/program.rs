//! The programs of a model: a training step, an evaluation, an inference.
//!
//! Each is one function from a model and a batch to a [`Program`]; nothing is compiled here. One code path for every
//! precision: the host casts features, [`forward`] opens the low-precision scope and casts logits, and everything from
//! the logits on is f32. Gradients of variables come back f32 through the casts.

use super::accumulation::{Accumulated, MicroBatch};
use crate::graph::{BuildError, Graph, Precision, Program, Tensor};
use crate::hlo::{Alias, AliasKind, DType, InstrId, Module};
use crate::models::{Forward, Model, Reads, forward};
use crate::nn;
use crate::optim::{LossScale, Update};
use crate::passes::grad::{GradError, gradients};
use crate::passes::remat::{RematError, remat};
use crate::passes::{cotangent_remat, pace};
use crate::tuning::Tuning;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// What a training program minimises, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// How variables change.
    pub update: Update,
    /// How far the target distribution is from the label towards uniform, in `[0, 1)`.
    pub label_smoothing: f64,
    /// How the loss is scaled before it is differentiated; the loss reported is not.
    pub loss_scale: LossScale,
    /// In how many micro-batches a batch is gone through, one after the other, before the update. 1 is all at once.
    pub accumulate: NonZeroU32,
    /// How the program is made cheaper on its target.
    pub tuning: Tuning,
}

impl Default for Objective {
    fn default() -> Self {
        let (update, loss_scale) = (Update::default(), LossScale::default());
        Objective { update, label_smoothing: 0.0, loss_scale, accumulate: NonZeroU32::MIN, tuning: Tuning::none() }
    }
}

impl Objective {
    /// Whether a batch of so many examples can be gone through so.
    ///
    /// # Errors
    /// A batch that does not split in equal micro-batches.
    pub fn check_batch(&self, batch: i64) -> Result<(), ProgramError> {
        let n = self.accumulate.get();
        match batch % i64::from(n) {
            0 => Ok(()),
            _ => Err(ProgramError::Accumulate { n, batch }),
        }
    }
}

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The model cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The loss has no gradient.
    #[error(transparent)]
    Grad(#[from] GradError),
    /// Micro-batches would differ in size.
    #[error("accumulate is {n}, which does not divide the batch of {batch}\nhelp: make the batch a multiple of it, such as {}", nearest_multiple(*.n, *.batch))]
    Accumulate {
        /// How many micro-batches were asked for.
        n: u32,
        /// Examples in the batch.
        batch: i64,
    },
    /// What was to be computed again is not there.
    #[error(transparent)]
    Remat(#[from] RematError),
}

/// The multiple of `n` nearest to `batch`, but not 0.
fn nearest_multiple(n: u32, batch: i64) -> i64 {
    let n = i64::from(n);
    ((batch + n / 2) / n).max(1).saturating_mul(n)
}

/// Names of a training program's results after the state.
pub const TRAINING_RESULTS: [&str; 2] = ["loss", "n_correct"];

/// One step of training.
///
/// # Shapes
/// Parameters: the state (the model's variables, then the optimizer's slots), then `images` `[batch, input…]` in the
/// dtype the network computes in, `labels` `s32[batch]`, `step` `s32[]` (calls made before this one). A model of tokens
/// has `tokens` and `labels` `s32[batch, length]` instead.
/// Results: the new state in the same order, `loss` `f32[]` (the mean over all labels, before the update), `n_correct`
/// `s32[]`. Result `i` may alias parameter `i`, so a donated state is updated in place.
///
/// # Errors
/// A model that does not fit its input; an op without a gradient; a batch that does not split in equal micro-batches.
pub fn training(
    model: &Model,
    precision: Precision,
    batch: i64,
    objective: &Objective,
) -> Result<Program, ProgramError> {
    let _span = tracing::info_span!("build", program = "training", model = model.kind(), batch).entered();
    let graph = Graph::training(&format!("{}_training_step", model.kind())).tuned(&objective.tuning);
    let (loss, n_correct, gradients, scaling);
    if objective.accumulate == NonZeroU32::MIN {
        let (forward, labels) = network(&graph, model, precision, batch);
        let step = graph.input("step", DType::S32, []);
        (loss, n_correct) = losses(&forward, &labels, objective);
        scaling = objective.loss_scale.begin(&graph, &step);
        gradients = differentiate(&graph, &scaling.scale(&loss))?;
    } else {
        let micro_batch = MicroBatch::new(model, precision, batch, objective)?;
        let inputs = micro_batch.inputs(&graph);
        let step = graph.input("step", DType::S32, []);
        scaling = objective.loss_scale.begin(&graph, &step);
        Accumulated { loss, n_correct, gradients } = micro_batch.emit(&graph, &inputs, &scaling);
    }
    let unscaled = gradients.into_iter().map(|(number, gradient)| (number, scaling.unscale(&gradient)));
    let gradients: Vec<_> = unscaled.collect();
    objective.update.emit(&graph, scaling.step(), &gradients);
    scaling.finish(&graph, &gradients);
    let [loss_name, count_name] = TRAINING_RESULTS;
    finish_with_state(&graph, [(loss_name, &loss), (count_name, &n_correct)])
}

/// The network in a program with its input, and its labels.
pub(super) fn network(graph: &Graph, model: &Model, precision: Precision, batch: i64) -> (Forward, Tensor) {
    let forward = forward(graph, model, precision, batch);
    let labels = graph.input("labels", DType::S32, forward.label_dims());
    (forward, labels)
}

/// The mean loss, and how many are classified right.
pub(super) fn losses(forward: &Forward, labels: &Tensor, objective: &Objective) -> (Tensor, Tensor) {
    let smoothing = objective.label_smoothing;
    match forward.reads {
        Reads::Images => {
            let loss = nn::sparse_softmax_cross_entropy(&forward.logits, labels, smoothing);
            (loss, count(&nn::is_correct(&forward.logits, labels)))
        }
        // Logits for a vocabulary at every position are too large for passes that can be spared.
        Reads::Tokens => {
            let rows = nn::token_loss(&forward.network, labels, smoothing, forward.softmax);
            (rows.loss.mean(&all_axes(&rows.loss)), count(&rows.is_correct))
        }
    }
}

/// The gradients of `loss` with respect to the variables that train, by their numbers, with the rematerialisation that the
/// graph's tuning asks for.
pub(super) fn differentiate(graph: &Graph, loss: &Tensor) -> Result<Vec<(usize, Tensor)>, ProgramError> {
    let trainable: Vec<_> = (0..).zip(graph.variables()).filter(|(_, v)| v.trainable).collect();
    let wrt: Vec<_> = trainable.iter().map(|(_, variable)| variable.instr).collect();
    let n_forward = graph.emitter().n_instructions();
    let gradients = {
        let _span = tracing::info_span!("pass", name = "grad").entered();
        gradients(graph.emitter(), loss.id, &wrt)?
    };
    let _span = tracing::info_span!("pass", name = "remat").entered();
    let (gradients, report) = remat(graph.emitter(), n_forward, &gradients, &graph.tuning().remat)?;
    tracing::debug!(n_rematerialised = report.rematerialised.len(), n_residuals = report.residuals.len(), "remat");
    Ok(trainable.into_iter().zip(gradients).map(|((number, _), id)| (number, graph.tensor(id))).collect())
}

/// The program whose results are the new state and then `others`, with state aliased to state.
fn finish_with_state(graph: &Graph, others: [(&str, &Tensor); 2]) -> Result<Program, ProgramError> {
    let variables = graph.variables();
    // A variable that nothing assigns keeps its value.
    let state: Vec<Tensor> = variables.iter().map(|v| graph.tensor(v.update.unwrap_or(v.instr))).collect();
    let mut results: Vec<(&str, &Tensor)> = variables.iter().map(|v| v.name.as_str()).zip(&state).collect();
    results.extend(others);
    let mut program = graph.finish_for_good(&results)?;
    program.module.input_output_alias = (0..variables.len() as i64)
        .map(|number| Alias {
            output_index: vec![number],
            parameter_number: number,
            parameter_index: Vec::new(),
            kind: AliasKind::May,
        })
        .collect();
    rewrite_backward_pass(&mut program, &graph.tuning());
    Ok(program)
}

/// The passes over the whole program that its tuning asks for.
fn rewrite_backward_pass(program: &mut Program, tuning: &Tuning) {
    let rematerialised = if tuning.cotangent_remat { cotangent_remat::rematerialised(&program.module) } else { None };
    if let Some((module, report)) = rematerialised {
        replace(program, module, &report.renamed);
        tracing::debug!(n_rematerialised = report.rematerialised.len(), "cotangent_remat");
    }
    let paced = if tuning.pace { pace::paced(&program.module) } else { None };
    if let Some((module, report)) = paced {
        replace(program, module, &report.renamed);
        tracing::debug!(n_paced = report.paced.len(), "pace");
    }
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
/// Parameters: the model's variables (those of [`training`] by name, without slots), `images` or `tokens`, `labels`,
/// `n_valid` `s32[]`: examples from that index on are padding and count for nothing. Results: `loss` `f32[]` (the **sum** over
/// valid examples, without label smoothing), `n_correct` `s32[]`.
///
/// # Errors
/// A model that does not fit its input.
pub fn evaluation(model: &Model, precision: Precision, batch: i64, tuning: &Tuning) -> Result<Program, ProgramError> {
    let _span = tracing::info_span!("build", program = "evaluation", model = model.kind(), batch).entered();
    let graph = Graph::new(&format!("{}_evaluation", model.kind())).tuned(tuning);
    let forward = forward(&graph, model, precision, batch);
    let label_dims = forward.label_dims();
    let labels = graph.input("labels", DType::S32, label_dims.clone());
    let logits = forward.logits;
    let n_valid = graph.input("n_valid", DType::S32, []);
    let is_valid = graph.iota(DType::S32, &label_dims, 0).less(&n_valid);
    let losses = nn::sparse_softmax_cross_entropy_per_example(&logits, &labels, 0.0);
    let zeros = graph.full(DType::F32, &label_dims, 0.0);
    let losses = is_valid.select(&losses, &zeros);
    let loss = losses.sum(&all_axes(&losses));
    let none = graph.full(DType::Pred, &label_dims, 0.0);
    let n_correct = count(&is_valid.select(&nn::is_correct(&logits, &labels), &none));
    Ok(graph.finish(&[("loss", &loss), ("n_correct", &n_correct)])?)
}

/// Logits of a batch.
///
/// # Shapes
/// Parameters: the model's variables (those of [`training`] by name, without slots), `images` or `tokens`. Results:
/// `logits` `f32[batch, n_classes]` or `f32[batch, length, n_classes]`.
///
/// # Errors
/// A model that does not fit its input.
pub fn inference(model: &Model, precision: Precision, batch: i64, tuning: &Tuning) -> Result<Program, ProgramError> {
    let _span = tracing::info_span!("build", program = "inference", model = model.kind(), batch).entered();
    let graph = Graph::new(&format!("{}_inference", model.kind())).tuned(tuning);
    let logits = forward(&graph, model, precision, batch).logits;
    Ok(graph.finish(&[("logits", &logits)])?)
}

/// How many are true, `s32[]`.
fn count(truths: &Tensor) -> Tensor {
    truths.cast(DType::S32).sum(&all_axes(truths))
}

fn all_axes(x: &Tensor) -> Vec<i64> {
    (0..x.rank() as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::verify::verify;
    use crate::models::{cnn, mlp, transformer};
    use crate::optim::{LearningRate, Optimizer, WeightDecay};

    fn models() -> [Model; 3] {
        [Model::Mlp(mlp::Config::new([8, 8, 1], 10)), Model::Cnn(cnn::Config::new([8, 8, 1], 10)), transformer()]
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
        let weight_decay = WeightDecay { value: 1e-4, except: Vec::new() };
        let learning_rate = LearningRate::resnet(256, 10, 90);
        Objective {
            update: Update { optimizer: Optimizer::ADAM, learning_rate, weight_decay },
            label_smoothing: 0.1,
            ..Objective::default()
        }
    }

    #[test]
    fn state_goes_in_and_comes_out_in_place_in_f32() {
        for model in models() {
            for precision in Precision::ALL {
                let program = training(&model, precision, 4, &objective()).unwrap();
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
                let first = (model.reads().name(), model.reads().dtype(precision));
                let expected = [first, ("labels", DType::S32), ("step", DType::S32)];
                assert_eq!(inputs, expected);
                assert_eq!(program.outputs[n_state..], TRAINING_RESULTS);
                assert_eq!(program.warnings, [""; 0]);
            }
        }
    }

    #[test]
    fn every_trainable_variable_and_slot_is_updated() {
        for model in models() {
            let program = training(&model, Precision::Bf16, 4, &objective()).unwrap();
            let unchanged = program.variables.iter().filter(|v| v.update.is_none()).map(|v| &v.name);
            assert_eq!(unchanged.collect::<Vec<_>>(), [""; 0]);
        }
    }

    #[test]
    fn evaluation_and_inference_want_the_training_programs_variables() {
        for model in models() {
            let training = training(&model, Precision::Bf16, 4, &objective()).unwrap();
            let tuning = Tuning::none();
            let evaluation = evaluation(&model, Precision::F16, 6, &tuning);
            for program in [evaluation, inference(&model, Precision::F32, 1, &tuning)] {
                let program = program.unwrap();
                verify(&program.module).unwrap();
                for variable in &program.variables {
                    let same = training.variables.iter().find(|v| v.name == variable.name).unwrap();
                    assert_eq!((same.dtype, &same.dims), (variable.dtype, &variable.dims));
                }
            }
        }
    }
}
