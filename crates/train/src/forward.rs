//! Calls a task in a graph: its inputs, its outputs, and the results that are reported.

use super::program_error::{ProgramError, some_of};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{DType, InstrId};
use bf16scope_model::graph::{Graph, Numbers, Storage, Tensor};
use bf16scope_model::task::{Feature, Features, Loss, LossGroup, Metric, Mode, Outputs, RESERVED, Task, Value, Weight};
use bf16scope_passes::grad::gradients_observed;
use bf16scope_passes::name_matches;
use bf16scope_passes::remat::remat;
use bf16scope_passes::tuning::Tuning;
use std::collections::BTreeSet;

/// How the host computes a reported value from `Σ sum` and `Σ weight` over batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// `loss`, or a metric's name.
    pub name: String,
    /// Index of the result that holds the sum, not counting state.
    pub sum: usize,
    /// The divisor of the sum.
    pub weight: Weighting,
    /// The function of sum and weight.
    pub value: Value,
}

/// The divisor of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighting {
    /// The same number for every batch.
    Constant(f64),
    /// A result, by its index not counting state.
    Result(usize),
    /// The number of examples in the batch that are not padding; the result is a mean over them, not a sum.
    Valid,
}

/// A task's checked outputs.
#[derive(Debug)]
pub(super) struct Called {
    /// `None` if the graph has an error.
    pub loss: Option<Loss>,
    pub metrics: Vec<(String, Metric)>,
    pub predictions: Vec<(String, Tensor)>,
    pub scalars: Vec<(String, Tensor)>,
    pub groups: Vec<LossGroup>,
}

/// A program's graph with these numbers and this tuning.
pub(super) fn graph_of(graph: Graph, numbers: Numbers, tuning: &Tuning) -> Graph {
    graph.tuned(tuning).computing_in(numbers.precision).storing(numbers.variables)
}

/// The features that predictions read: all but labels, unless some features are drawn at random. A task that draws,
/// such as a GAN, reads the others in training only, and predictions should not require them.
pub fn predicted_from(task: &dyn Task) -> Vec<Feature> {
    let mut features = task.features();
    features.retain(|feature| !feature.is_label);
    if features.iter().any(|feature| feature.random.is_some()) {
        let graph = Graph::new("predicted_from");
        let _ = task.call(&graph.scope(), &Features::new(&graph, &features, 1, Mode::Predict), Mode::Predict);
        let inputs = graph.inputs();
        features.retain(|feature| inputs.iter().any(|input| input.name == feature.name));
    }
    features
}

/// Calls the task for a batch in `graph`, whose precision, mode and tuning are set; inputs are declared in the task's
/// order.
#[track_caller]
pub(super) fn call(graph: &Graph, task: &dyn Task, batch: i64, mode: Mode) -> Called {
    let described = task.features();
    called(graph, task, &Features::new(graph, &described, batch, mode), mode)
}

/// As [`call`], in a training step, which counts steps; also returns the count, `s32[]`.
#[track_caller]
pub fn call_step(graph: &Graph, task: &dyn Task, batch: i64) -> (Called, Tensor) {
    let described = task.features();
    let features = Features::new(graph, &described, batch, Mode::Train).counting_steps();
    let called = called(graph, task, &features, Mode::Train);
    let step = features.step();
    graph.order_inputs(&names(&described));
    (called, step)
}

fn names(features: &[Feature]) -> Vec<&str> {
    features.iter().map(|feature| feature.name.as_str()).chain(["weight"]).collect()
}

#[track_caller]
fn called(graph: &Graph, task: &dyn Task, features: &Features<'_>, mode: Mode) -> Called {
    let described = features.described();
    for feature in described {
        if RESERVED.contains(&feature.name.as_str()) {
            let message = format!("a feature is called {}, which programs call an input of their own", feature.name);
            let error = RuleError::new("task/feature", message).with_help("give it another name");
            graph.fail_without_place("features", &[], error);
        }
    }
    let outputs = task.call(&graph.scope(), features, mode);
    graph.order_inputs(&names(described));
    check(graph, task, &outputs, features.batch(), mode);
    let Outputs { loss, metrics, predictions, scalars, groups } = outputs;
    Called { loss, metrics, predictions, scalars, groups }
}

/// Records an error in the graph for outputs that no program can have. It has no source line: outputs do not carry one.
fn check(graph: &Graph, task: &dyn Task, outputs: &Outputs, batch: i64, mode: Mode) {
    let fail = |operands: &[&Tensor], message: String, help: &str| {
        graph.fail_without_place("task", operands, RuleError::new("task/outputs", message).with_help(help));
    };
    let (name, missing) = (task.name(), "return it from `Task::call` in this mode");
    match mode {
        Mode::Train if outputs.loss.is_none() => fail(&[], format!("{name} gives no loss in Mode::Train"), missing),
        Mode::Evaluate if outputs.loss.is_none() && outputs.metrics.is_empty() => {
            fail(&[], format!("{name} gives neither a loss nor a metric in Mode::Evaluate"), missing);
        }
        Mode::Predict if outputs.predictions.is_empty() => {
            fail(&[], format!("{name} gives no predictions in Mode::Predict"), missing);
        }
        _ => {}
    }
    let scalar = |what: &str, tensor: &Tensor, dtypes: &[DType]| {
        let is_right = tensor.rank() == 0 && dtypes.contains(&tensor.dtype());
        if !is_right && !tensor.is_poison() {
            let dtypes: Vec<String> = dtypes.iter().map(|dtype| format!("{dtype}[]")).collect();
            let message = format!("{what} is {}, expected {}", tensor.shape(), dtypes.join(" or "));
            fail(&[tensor], message, "cast it to f32, and take its mean or its sum");
        }
    };
    let counts = [DType::F32, DType::S32];
    match &outputs.loss {
        Some(Loss::Mean(mean)) => scalar("the loss", mean, &[DType::F32]),
        Some(Loss::Weighted { sum, weight }) => {
            scalar("the sum of the loss", sum, &[DType::F32]);
            scalar("the weight of the loss", weight, &[DType::F32]);
        }
        None => {}
    }
    for group in &outputs.groups {
        scalar(&format!("the loss {}", group.name), &group.loss, &[DType::F32]);
    }
    for (name, Metric { sum, weight, value }) in &outputs.metrics {
        if let Value::Quotient | Value::Exponential | Value::Root = value {
            scalar(&format!("the sum of metric {name}"), sum, &counts);
            if let Weight::Tensor(weight) = weight {
                scalar(&format!("the weight of metric {name}"), weight, &counts);
            }
            continue;
        }
        let poison = sum.is_poison() || matches!(weight, Weight::Tensor(weight) if weight.is_poison());
        let fits = |weight: &Tensor| {
            [sum, weight].iter().all(|tensor| counts.contains(&tensor.dtype()))
                && value.takes(&sum.dims(), &weight.dims())
        };
        if !poison && !matches!(weight, Weight::Tensor(weight) if fits(weight)) {
            let over = match weight {
                Weight::Tensor(weight) => weight.shape().to_string(),
                Weight::Constant(constant) => constant.to_string(),
            };
            let message =
                format!("metric {name} is {} over {over}, which is nothing that {value:?} is made of", sum.shape());
            fail(&[sum], message, "make it with `Metric::mean_of_ratios` or `Metric::area`, from f32 or s32");
        }
    }
    for (name, value) in &outputs.scalars {
        scalar(&format!("scalar {name}"), value, &[DType::F32]);
    }
    for (name, value) in &outputs.predictions {
        if !value.is_poison() && value.dims().first() != Some(&batch) {
            let message = format!("prediction {name} is {}, expected [{batch}, …], the batch first", value.shape());
            fail(&[value], message, "give one row for each example");
        }
    }
    let mut taken = BTreeSet::from(["loss"]);
    let metrics = outputs.metrics.iter().map(|(name, _)| ("metric", name));
    for (what, name) in metrics.chain(outputs.scalars.iter().map(|(name, _)| ("scalar", name))) {
        if !taken.insert(name) || name.is_empty() {
            fail(&[], format!("{what} {name:?} has no name of its own"), "give each metric and scalar another name");
        }
    }
}

/// Tensors that are summed over micro-batches, and how the host reads them.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Names and tensors, f32 or s32, scalars but for metrics that are arrays, in the order of the program's results.
    pub tensors: Vec<(String, Tensor)>,
    pub reported: Vec<Reported>,
    /// Scalars by name, with their index in the results.
    pub scalars: Vec<(String, usize)>,
    /// Indices of those that are means, not sums.
    pub means: Vec<usize>,
}

impl Sums {
    /// The sums of one (micro-)batch.
    pub fn from_called(called: &Called, mode: Mode) -> Sums {
        let mut sums = Sums::default();
        match &called.loss {
            Some(Loss::Mean(mean)) => {
                let sum = sums.push("loss", mean);
                sums.means.push(sum);
                let weight = if mode == Mode::Train { Weighting::Constant(1.0) } else { Weighting::Valid };
                sums.reported.push(Reported { name: "loss".to_string(), sum, weight, value: Value::Quotient });
            }
            Some(Loss::Weighted { sum, weight }) => {
                let sum = sums.push("loss", sum);
                let weight = Weighting::Result(sums.push("loss/weight", weight));
                sums.reported.push(Reported { name: "loss".to_string(), sum, weight, value: Value::Quotient });
            }
            None => {}
        }
        for (name, metric) in &called.metrics {
            let sum = sums.push(name, &metric.sum);
            let weight = match &metric.weight {
                Weight::Constant(n) => Weighting::Constant(*n),
                Weight::Tensor(weight) => Weighting::Result(sums.push(&format!("{name}/weight"), weight)),
            };
            sums.reported.push(Reported { name: name.clone(), sum, weight, value: metric.value });
        }
        for (name, value) in &called.scalars {
            let result = sums.push(name, value);
            sums.means.push(result);
            sums.scalars.push((name.clone(), result));
        }
        sums
    }

    fn push(&mut self, name: &str, tensor: &Tensor) -> usize {
        self.tensors.push((name.to_string(), tensor.clone()));
        self.tensors.len() - 1
    }

    /// The sums of `n` micro-batches whose tensors were added to `totals`.
    pub fn over(mut self, n: u32, totals: &[Tensor]) -> Sums {
        let n = f64::from(n);
        for (number, ((_, tensor), total)) in self.tensors.iter_mut().zip(totals).enumerate() {
            *tensor = if self.means.contains(&number) { total / n } else { total.clone() };
        }
        for Reported { sum, weight, .. } in &mut self.reported {
            match weight {
                Weighting::Constant(constant) if !self.means.contains(sum) => *constant *= n,
                Weighting::Constant(_) | Weighting::Result(_) | Weighting::Valid => {}
            }
        }
        self
    }
}

/// `sum / weight`, and 0 where the weight is 0.
pub(super) fn quotient(sum: &Tensor, weight: &Tensor) -> Tensor {
    sum / safe(weight)
}

/// The weight, or 1 where it is 0: the sum is 0 there too.
pub(super) fn safe(weight: &Tensor) -> Tensor {
    let full = |value| weight.graph().full(DType::F32, &[], value);
    weight.equal(&full(0.0)).select(&full(1.0), weight)
}

/// Freezes variables whose names match no pattern: they get no gradient and no slots. Without patterns all train.
pub(super) fn freeze(graph: &Graph, trainable: &[String]) -> Result<(), ProgramError> {
    if trainable.is_empty() {
        return Ok(());
    }
    let variables = graph.variables();
    let names = || variables.iter().filter(|variable| variable.trainable).map(|variable| variable.name.as_str());
    if let Some(pattern) = trainable.iter().find(|pattern| !names().any(|name| name_matches(pattern, name))) {
        let near = nearest(pattern, names()).map(str::to_string);
        return Err(ProgramError::Trainable { pattern: pattern.clone(), near });
    }
    graph.freeze(|name| !trainable.iter().any(|pattern| name_matches(pattern, name)));
    Ok(())
}

/// Gradients by variable number, and the cotangents of the observed values.
pub(super) type Differentiated = (Vec<(usize, Tensor)>, Vec<Option<InstrId>>);

/// A scaled loss to differentiate, and the group of variables that it trains; `None` if it trains all.
pub(super) type Trained<'a> = (Tensor, Option<&'a LossGroup>);

/// The losses of a step, each `scaled` from a mean over the batch: those of groups, or else `loss`.
pub(super) fn trained<'a>(
    groups: &'a [LossGroup],
    loss: impl FnOnce() -> Tensor,
    scaled: impl Fn(&Tensor) -> Tensor,
) -> Vec<Trained<'a>> {
    match groups {
        [] => vec![(loss(), None)],
        groups => groups.iter().map(|group| (scaled(&group.loss), Some(group))).collect(),
    }
}

/// The gradients of each loss with respect to the variables that it trains, by their numbers, with the
/// rematerialisation that the graph's tuning asks for. Gradients are f32 for variables stored in bf16, and else have
/// the variable's dtype. Also the cotangents of the `observed` values: with several losses, that of the loss whose
/// variables' names are most like the value's.
pub(super) fn differentiate(
    graph: &Graph,
    losses: &[Trained<'_>],
    observed: &[InstrId],
) -> Result<Differentiated, ProgramError> {
    let n_forward = graph.emitter().n_instructions();
    let mut gradients: Vec<(usize, InstrId)> = Vec::new();
    let mut all_cotangents = Vec::new();
    let variables = graph.variables();
    for (loss, group) in losses {
        let is_trained = |name: &String| group.is_none_or(|group| group.variables.contains(name));
        let trainable: Vec<_> =
            (0..).zip(&variables).filter(|(_, variable)| variable.trainable && is_trained(&variable.name)).collect();
        if let (Some(_), []) = (group, &trainable[..]) {
            // All its variables are frozen.
            continue;
        }
        let numbers: Vec<usize> = trainable.iter().map(|(number, _)| *number).collect();
        let wrt = graph.differentiables(&numbers);
        let (reached, cotangents) = {
            let _span = tracing::info_span!("pass", name = "grad").entered();
            gradients_observed(graph.emitter(), loss.id, &wrt, observed)?
        };
        let missing = || trainable.iter().zip(&reached).filter(|(_, (_, is_reached))| !is_reached);
        let names = || missing().map(|((_, variable), _)| variable.name.clone()).collect::<Vec<_>>();
        let depends_on = || read_by(graph, loss);
        match group {
            None if missing().count() == reached.len() => {
                return Err(ProgramError::NoGradient { variables: names(), depends_on: depends_on() });
            }
            Some(group) if missing().next().is_some() && (group.is_strict || missing().count() == reached.len()) => {
                let (loss, variables, depends_on) = (group.name.clone(), names(), depends_on());
                return Err(ProgramError::NoGradientOf { loss, variables, depends_on });
            }
            _ if missing().next().is_some() => warn_of_stopped(graph, names(), &depends_on()),
            _ => {}
        }
        gradients.extend(trainable.iter().zip(&reached).map(|((number, _), (gradient, _))| (*number, *gradient)));
        all_cotangents.push((*group, cotangents));
    }
    if gradients.is_empty() {
        let depends_on = losses.first().map(|(loss, _)| read_by(graph, loss)).unwrap_or_default();
        return Err(ProgramError::NoGradient { variables: Vec::new(), depends_on });
    }
    gradients.sort_by_key(|(number, _)| *number);
    let cotangents = nearest_cotangents(graph, observed, all_cotangents);
    let (numbers, gradients): (Vec<usize>, Vec<InstrId>) = gradients.into_iter().unzip();
    let _span = tracing::info_span!("pass", name = "remat").entered();
    let all: Vec<InstrId> = gradients.iter().chain(cotangents.iter().flatten()).copied().collect();
    let (all, report) = remat(graph.emitter(), n_forward, &all, &graph.tuning().remat)?;
    tracing::debug!(n_rematerialised = report.rematerialised.len(), n_residuals = report.residuals.len(), "remat");
    let (gradients, of_observed) = all.split_at(gradients.len());
    let mut of_observed = of_observed.iter();
    let cotangents = cotangents.iter().map(|cotangent| cotangent.and(of_observed.next().copied())).collect();
    let in_f32 = |gradient: Tensor| match gradient.dtype() {
        DType::BF16 if graph.storage() != Storage::F32 => gradient.cast(DType::F32),
        _ => gradient,
    };
    let gradients = numbers.into_iter().zip(gradients).map(|(number, id)| (number, in_f32(graph.tensor(*id))));
    Ok((gradients.collect(), cotangents))
}

/// Warns of variables without a gradient on which the loss depends: a forward pass reads them, and they never change.
fn warn_of_stopped(graph: &Graph, without: Vec<String>, depends_on: &[String]) {
    let stopped: Vec<String> = without.into_iter().filter(|name| depends_on.contains(name)).collect();
    if !stopped.is_empty() {
        graph.warn(format!(
            "no gradient reaches {}: all that the loss reads of them stands behind `stop_gradient`, a comparison or an index; if \
             they are not meant to train, freeze them by `trainable` under `train`",
            some_of(&stopped, "")
        ));
    }
}

/// The cotangent of each observed value: if several losses have one, that of the loss whose variables share the longest
/// name prefix with it, the first on a tie.
fn nearest_cotangents(
    graph: &Graph,
    observed: &[InstrId],
    mut all: Vec<(Option<&LossGroup>, Vec<Option<InstrId>>)>,
) -> Vec<Option<InstrId>> {
    if all.len() == 1 {
        return all.remove(0).1;
    }
    let entry = graph.emitter().comp();
    let name =
        |id: InstrId| graph.emitter().with_module(|module| module.comp(entry).instr(id).metadata.op_name.clone());
    let likeness = |group: Option<&LossGroup>, name: &str| {
        let n_same = |other: &String| other.split('/').zip(name.split('/')).take_while(|(a, b)| a == b).count();
        group.map_or(0, |group| group.variables.iter().map(n_same).max().unwrap_or(0))
    };
    let nearest = |(number, id): (usize, &InstrId)| {
        let name = name(*id);
        let there = all.iter().filter_map(|(group, of_group)| Some((likeness(*group, &name), of_group[number]?)));
        // `max_by_key` returns the last of equal elements.
        there.rev().max_by_key(|(likeness, _)| *likeness).map(|(_, cotangent)| cotangent)
    };
    observed.iter().enumerate().map(nearest).collect()
}

/// Names of the inputs and of the trainable variables that a value depends on.
fn read_by(graph: &Graph, value: &Tensor) -> Vec<String> {
    let read = graph.emitter().with_module(|module| {
        let computation = module.comp(graph.emitter().comp());
        let mut is_read = vec![false; value.id.idx() + 1];
        is_read[value.id.idx()] = true;
        for id in (0..is_read.len()).rev() {
            if is_read[id] {
                computation.instr(InstrId(id as u32)).operands.iter().for_each(|operand| is_read[operand.idx()] = true);
            }
        }
        is_read
    });
    let is_read = |id: InstrId| read.get(id.idx()).copied().unwrap_or(false);
    let inputs = graph.inputs().into_iter().filter(|input| is_read(input.instr)).map(|input| input.name);
    let variables = graph.variables().into_iter().filter(|it| it.trainable && is_read(it.instr)).map(|it| it.name);
    inputs.filter(|name| !RESERVED.contains(&name.as_str())).chain(variables).collect()
}
