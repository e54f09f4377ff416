//! The network of a configuration, its loss, metrics and predictions; and the check that all of it fits.

use super::super::written::WrittenPart;
use super::kinds::LayerDType;
use super::metric::{Judged, MetricKind, TopK};
use super::objective::{Labels, label_of, of_rows};
use super::wiring::{Source, Wiring, at};
use super::{Config, Input, Layer, Layers};
use crate::document::{NodeError, Step};
use crate::graph::{Graph, Precision, Scope, Tensor};
use crate::nn;
use crate::task::{Feature, FeatureDType, Features, Loss, Mode, Outputs, Task};
use bf16scope_hlo::DType;
use std::cell::RefCell;

/// The batch that a configuration is checked with.
const BATCH: i64 = 32;

/// Builds what training and evaluation would, in both precisions that differ in their dtypes.
///
/// # Errors
/// The first thing that does not fit, with the way to it.
pub(super) fn check(config: &Config) -> Result<(), NodeError> {
    // First, and without labels: what they are follows from the outputs.
    let wiring = Wiring::new(config)?;
    let described: Vec<Feature> = config.inputs.iter().map(|input| input.spec.feature(&input.name)).collect();
    let graph = Graph::new("check");
    network(config, &wiring, &graph.scope(), &Features::new(&graph, &described, BATCH, Mode::Predict))?;
    let task = Layers::new(config.clone(), 0.0);
    for (precision, mode) in [(Precision::F32, Mode::Train), (Precision::Bf16, Mode::Evaluate)] {
        let graph = if mode == Mode::Train { Graph::training("check") } else { Graph::new("check") };
        let graph = graph.computing_in(precision);
        let described = task.features();
        call(config, 0.0, &graph.scope(), &Features::new(&graph, &described, BATCH, mode), mode)?;
    }
    Ok(())
}

/// What an example holds: inputs, then labels; of labels that are not described, what losses want.
pub(super) fn features(config: &Config) -> Vec<Feature> {
    let mut features: Vec<Feature> = config.inputs.iter().map(|input| input.spec.feature(&input.name)).collect();
    let label = |input: &Input| input.spec.feature(&input.name).label();
    // What is wrong is said when programs are built.
    let Ok(wiring) = Wiring::new(config) else {
        features.extend(config.labels.iter().map(label));
        return features;
    };
    for (layer, reads) in config.layers.iter().zip(&wiring.reads) {
        if let (Some(n), [Source::Input(number)]) = (layer.kind.n_values(), &reads[..]) {
            let least = features[*number].n_values.map_or(n, |other| other.min(n));
            features[*number].n_values = Some(least);
        }
    }
    let graph = Graph::new("features");
    let tensors = network(config, &wiring, &graph.scope(), &Features::new(&graph, &features, 1, Mode::Predict));
    let Ok(tensors) = tensors else {
        features.extend(config.labels.iter().map(label));
        return features;
    };
    let of_losses = config.loss.iter().zip(&wiring.losses).map(|(l, source)| (&l.options.labels, l.labels(), source));
    let of_metrics =
        config.metrics.iter().zip(&wiring.metrics).map(|(m, source)| (&m.options.labels, m.labels(), source));
    let judged = of_losses.chain(of_metrics);
    let judged = judged.map(|(name, labels, of)| (name, label_of(name, &tensors.of(*of).dims(), labels)));
    let judged: Vec<(&String, Feature)> = judged.collect();
    let wanted_as_probability = judged.iter().filter(|(_, wanted)| wanted.is_probability);
    let wanted_as_probability: Vec<String> = wanted_as_probability.map(|(name, _)| name.to_string()).collect();
    let weights = config.weights();
    for input in &config.labels {
        let wanted = judged.iter().find(|(name, _)| **name == input.name).map(|(_, wanted)| wanted);
        let mut described = label(input);
        if let Some(wanted) = wanted {
            // Labels are never rounded to what the network computes in, nor scaled as what it reads.
            if described.dtype == FeatureDType::Compute {
                described.dtype = wanted.dtype;
            }
            if described.dtype == wanted.dtype {
                described.n_values = described.n_values.or(wanted.n_values);
            }
        }
        if described.dtype == FeatureDType::Compute && weights.contains(&&input.name) {
            described.dtype = FeatureDType::Exact(DType::F32);
        }
        features.push(described);
    }
    for (name, wanted) in judged {
        if !features.iter().any(|feature| feature.name == *name) {
            features.push(wanted);
        }
    }
    for name in &weights {
        if !features.iter().any(|feature| feature.name == **name) {
            features.push(Feature::exact(name, DType::F32, []).label());
        }
    }
    for feature in &mut features {
        // An input too, where a network is to say again what it reads.
        feature.is_probability = wanted_as_probability.contains(&feature.name);
        feature.is_weight = weights.contains(&&feature.name);
    }
    features
}

/// Outputs that a loss takes a sigmoid of, by name; none of a network that cannot be built.
pub(super) fn independent_logits(config: &Config) -> Vec<String> {
    let Ok(wiring) = Wiring::new(config) else { return Vec::new() };
    let is_independent = |source: &Source| {
        let mut losses = wiring.losses.iter().zip(&config.loss);
        losses.any(|(of, loss)| of == source && loss.takes() == Some(nn::Activation::Sigmoid))
    };
    wiring.outputs.iter().filter(|(_, source)| is_independent(source)).map(|(name, _)| name.clone()).collect()
}

/// What inputs and layers hold, as the network left them.
struct Tensors {
    inputs: Vec<Option<Tensor>>,
    layers: Vec<Tensor>,
}

impl Tensors {
    fn of(&self, source: Source) -> Tensor {
        match source {
            Source::Layer(number) => self.layers[number].clone(),
            Source::Input(number) => match &self.inputs[number] {
                Some(input) => input.clone(),
                None => unreachable!("an input that is read was made: `network` makes those that outputs are"),
            },
        }
    }
}

/// Builds the layers, in low precision where the graph computes in it.
fn network(config: &Config, wiring: &Wiring, s: &Scope, features: &Features<'_>) -> Result<Tensors, NodeError> {
    s.low_precision(|s| {
        let mut tensors = Tensors { inputs: vec![None; config.inputs.len()], layers: Vec::new() };
        let mut wanted: Vec<Source> = wiring.reads.iter().flatten().copied().collect();
        wanted.extend(wiring.outputs.iter().map(|(_, source)| *source).chain(wiring.losses.iter().copied()));
        wanted.extend(&wiring.metrics);
        for (number, input) in config.inputs.iter().enumerate() {
            if wanted.contains(&Source::Input(number)) {
                tensors.inputs[number] = Some(features.get(&input.name));
            }
        }
        for (number, layer) in config.layers.iter().enumerate() {
            let read: Vec<Tensor> = config.lines.at(WrittenPart::Layer(number), s, |s| {
                wiring.reads[number]
                    .iter()
                    .map(|&source| as_read(config, s, layer, source, tensors.of(source)))
                    .collect()
            });
            let read: Vec<&Tensor> = read.iter().collect();
            let build = |s: &Scope| layer.kind.build(s, &wiring.names[number], &read);
            let made = config.lines.at(WrittenPart::Layer(number), s, |s| match layer.dtype {
                Some(LayerDType::Float32) => s.in_f32(build),
                None => build(s),
            });
            if let Some(error) = s.graph().emitter().error() {
                let (name, kind) = (&wiring.names[number], layer.kind.name());
                let reads = wiring.reads[number].iter().zip(&read);
                let reads: Vec<String> =
                    reads.map(|(&source, x)| format!("`{}` {}", wiring.name_of(config, source), example(x))).collect();
                let message = format!("layer `{name}` ({kind}) reads {}: {}", reads.join(" and "), error.error.message);
                let path = at("layers", number);
                return Err(NodeError { help: error.error.help, ..NodeError::new(path, message) });
            }
            tensors.layers.push(made);
        }
        Ok(tensors)
    })
}

/// What a layer makes of a float that it reads: f32 for one that computes in f32, and what the network computes in for
/// another that reads such a one.
fn as_read(config: &Config, s: &Scope, layer: &Layer, source: Source, x: Tensor) -> Tensor {
    if !x.dtype().is_float() {
        return x;
    }
    let is_f32 = matches!(source, Source::Layer(number) if config.layers[number].dtype.is_some());
    match layer.dtype {
        Some(LayerDType::Float32) => x.cast(DType::F32),
        None if is_f32 => x.cast(s.low_precision_dtype().unwrap_or(DType::F32)),
        None => x,
    }
}

/// A shape whose first dim is the batch, whatever that is: `f32[batch, 28, 28, 1]`.
fn example(x: &Tensor) -> String {
    let dims = x.dims().into_iter().skip(1).map(|dim| format!(", {dim}"));
    format!("{}[batch{}]", x.dtype(), dims.collect::<String>())
}

/// What the task makes of a batch.
pub(super) fn call(
    config: &Config,
    label_smoothing: f64,
    s: &Scope,
    features: &Features<'_>,
    mode: Mode,
) -> Result<Outputs, NodeError> {
    let wiring = Wiring::new(config)?;
    let tensors = network(config, &wiring, s, features)?;
    let casts = RefCell::new(Vec::<(Source, Tensor)>::new());
    let of = |source: Source| {
        let made = casts.borrow().iter().find(|(other, _)| *other == source).map(|(_, cast)| cast.clone());
        made.unwrap_or_else(|| {
            let cast = tensors.of(source).cast(DType::F32);
            casts.borrow_mut().push((source, cast.clone()));
            cast
        })
    };
    if mode == Mode::Predict {
        let outputs = wiring.outputs.iter();
        return Ok(outputs.fold(Outputs::new(), |all, (name, source)| all.prediction(name, &of(*source))));
    }
    let target = |name: &str, labels: Labels| {
        let target = features.get(name);
        if labels == Labels::Classes || target.is_poison() { target } else { target.cast(DType::F32) }
    };
    let mut total: Option<Tensor> = None;
    for (number, loss) in config.loss.iter().enumerate() {
        let source = wiring.losses[number];
        let (output, labels) = (of(source), target(&loss.options.labels, loss.labels()));
        if mode == Mode::Evaluate {
            // Inputs are made in the order in which the zoo's evaluations make them: labels, then weights.
            features.weight();
        }
        let what = format!("loss `{}`", loss.name());
        if let Some(twice) = taken_twice(config, loss.takes(), source) {
            let name = wiring.name_of(config, source);
            let message = format!("layer `{name}` ends in {twice}, which {what} takes itself: it reads logits");
            let help = format!("leave the activation of `{name}` out, or judge the layer before it with `output: …`");
            return Err(NodeError::new(at("loss", number), message).with_help(help));
        }
        let smoothing = match mode {
            Mode::Train => loss.options.label_smoothing.unwrap_or(label_smoothing),
            Mode::Evaluate | Mode::Predict => 0.0,
        };
        let each = config.lines.at(WrittenPart::Loss(number), s, |_| loss.per_example(&output, &labels, smoothing));
        fits(config, &wiring, s, ("loss", number, &what), source, (&loss.options.labels, &labels))?;
        let each = weighed(loss, number, s, each, (&output, &labels), features)?;
        let each = match mode {
            Mode::Train => each.mean(&axes_from(0, &each)),
            // A sum over examples counts each once, however many rows it has.
            _ if each.rank() > 1 => each.mean(&axes_from(1, &each)),
            _ => each,
        };
        let each = if loss.options.weight == 1.0 { each } else { each * loss.options.weight };
        total = Some(total.map_or(each.clone(), |total| total + &each));
    }
    let Some(total) = total else { return Err(NodeError::new(Vec::new(), "there is no loss")) };
    let mut outputs = Outputs::new();
    for (number, metric) in config.metrics.iter().enumerate() {
        let source = wiring.metrics[number];
        let (output, labels) = (of(source), target(&metric.options.labels, metric.labels()));
        let (name, what) = (metric.name(), format!("metric `{}`", metric.name()));
        judges(config, &wiring, number, metric, source, &output)?;
        let weight = (mode != Mode::Train).then(|| features.weight());
        let weights = wiring.metric_weights[number].as_ref().map(|name| (name, features.get(name)));
        let example_weights = weights.map(|(name, weights)| metric_weights(metric, number, name, weights, &labels));
        let judged = Judged { output: &output, labels: &labels, weight, example_weights: example_weights.transpose()? };
        let of_batch = config.lines.at(WrittenPart::Metric(number), s, |_| metric.of_batch(&judged));
        fits(config, &wiring, s, ("metrics", number, &what), source, (&metric.options.labels, &labels))?;
        outputs = outputs.metric(&name, of_batch);
    }
    Ok(match mode {
        Mode::Train => outputs.loss(total),
        Mode::Evaluate | Mode::Predict => outputs.loss(Loss::weighted(&total, &features.weight())),
    })
}

/// The graph's error, if a loss or metric has just made it.
fn fits(
    config: &Config,
    wiring: &Wiring,
    s: &Scope,
    (list, number, what): (&str, usize, &str),
    source: Source,
    (label, labels): (&str, &Tensor),
) -> Result<(), NodeError> {
    let Some(error) = s.graph().emitter().error() else { return Ok(()) };
    let judged = wiring.name_of(config, source);
    let labels = if labels.is_poison() { String::new() } else { format!(" {}", example(labels)) };
    let message = format!("{what} judges `{judged}` by `{label}`{labels}: {}", error.error.message);
    Err(NodeError { help: error.error.help, ..NodeError::new(at(list, number), message) })
}

/// The loss of each example, or of its rows, times what its class and it weigh.
fn weighed(
    loss: &super::Loss,
    number: usize,
    s: &Scope,
    each: Tensor,
    (output, labels): (&Tensor, &Tensor),
    features: &Features<'_>,
) -> Result<Tensor, NodeError> {
    let at_option = |option: &str| {
        let inner = vec![Step::Key(loss.name().to_string()), Step::Key(option.to_string())];
        [at("loss", number), inner].concat()
    };
    let wrong = |option: &str, message: String| Err(NodeError::new(at_option(option), message));
    let mut each = each;
    if let Some(weights) = &loss.options.class_weights {
        let n_classes = output.dims().last().copied().unwrap_or_default();
        if weights.len() as i64 != n_classes {
            let message =
                format!("`class_weights` are {} numbers, and the output has {n_classes} classes", weights.len());
            return wrong("class_weights", message);
        }
        each = each * nn::class_weights(labels, weights);
        if let Some(error) = s.graph().emitter().error() {
            return wrong("class_weights", error.error.message);
        }
    }
    if let Some(name) = &loss.options.example_weights {
        let weights = features.get(name).cast(DType::F32);
        if weights.is_poison() {
            return Ok(each);
        }
        let weights = match weights.dims() {
            dims if dims == each.dims() => weights,
            dims if dims.len() == 1 => of_rows(&weights, &each),
            _ => {
                let or_rows = if each.rank() > 1 { format!(" or {}", example(&each)) } else { String::new() };
                let given = example(&weights);
                return wrong(
                    "example_weights",
                    format!("`example_weights: {name}` is {given}, expected f32[batch]{or_rows}"),
                );
            }
        };
        let zeros = s.graph().full(DType::F32, &each.dims(), 0.0);
        // A loss of weight 0 counts for nothing, even where it is NaN.
        each = weights.equal(&zeros).select(&zeros, &(each * &weights));
    }
    Ok(each)
}

/// What examples weigh in a metric that judges by `labels`, f32.
fn metric_weights(
    metric: &super::Metric,
    number: usize,
    name: &str,
    weights: Tensor,
    labels: &Tensor,
) -> Result<Tensor, NodeError> {
    let weights = weights.cast(DType::F32);
    if weights.is_poison() || labels.is_poison() || labels.dims().starts_with(&weights.dims()) {
        return Ok(weights);
    }
    let path = vec![Step::Key(metric.kind_name().to_string()), Step::Key("example_weights".to_string())];
    let (given, labels) = (example(&weights), example(labels));
    let message = format!(
        "`example_weights: {name}` is {given}, and metric `{}` has labels {labels}: expected as many rows",
        metric.name()
    );
    let error = NodeError::new([at("metrics", number), path].concat(), message);
    Err(error.with_help("name others, or write `example_weights: null`: all weigh alike"))
}

/// Whether a metric can judge this output.
fn judges(
    config: &Config,
    wiring: &Wiring,
    number: usize,
    metric: &super::Metric,
    source: Source,
    output: &Tensor,
) -> Result<(), NodeError> {
    let (name, what) = (wiring.name_of(config, source), metric.name());
    let wrong = |message: String, help: String| Err(NodeError::new(at("metrics", number), message).with_help(help));
    if let Some(twice) = taken_twice(config, metric.takes(), source) {
        let message = format!("layer `{name}` ends in {twice}, which metric `{what}` takes itself: it reads logits");
        let help = format!("leave the activation of `{name}` out, or judge the layer before it with `output: …`");
        return wrong(message, help);
    }
    let n_classes = output.dims().last().copied().unwrap_or_default();
    match metric.kind {
        MetricKind::TopK(TopK(k)) if k > n_classes && !output.is_poison() => {
            let path = [at("metrics", number), vec![Step::Key("top_k".to_string())]].concat();
            let message = format!("the label is always among the top {k} of {n_classes} classes");
            Err(NodeError::new(path, message)
                .with_help(format!("write a `top_k` of at most {}", (n_classes - 1).max(1))))
        }
        _ => match metric.of_classes() {
            Some(instead) if of_classes(config, wiring, source) => {
                let message =
                    format!("metric `{what}` is of yes and no, and `{name}` is {n_classes} logits of classes");
                wrong(message, format!("write `{instead}`, or judge an output that a `sigmoid_cross_entropy` trains"))
            }
            Some(_) | None => Ok(()),
        },
    }
}

/// Whether a loss takes what a source makes for logits of classes.
fn of_classes(config: &Config, wiring: &Wiring, source: Source) -> bool {
    config.loss.iter().zip(&wiring.losses).any(|(loss, judged)| *judged == source && loss.is_of_classes())
}

/// What a loss or metric takes of an output that has taken it already.
fn taken_twice(config: &Config, takes: Option<nn::Activation>, source: Source) -> Option<&'static str> {
    use crate::nn::Activation;
    let Source::Layer(number) = source else { return None };
    match (takes?, config.layers[number].kind.activation()?) {
        (Activation::Softmax, Activation::Softmax) => Some("softmax"),
        (Activation::Sigmoid, Activation::Sigmoid) => Some("sigmoid"),
        _ => None,
    }
}

fn axes_from(first: i64, x: &Tensor) -> Vec<i64> {
    (first..x.rank() as i64).collect()
}
