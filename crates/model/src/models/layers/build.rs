//! Builds a network in a program: layers, losses, metrics and predictions. Infers the network's features by building it
//! once.

mod outputs;

use super::super::written::written_at;
use super::constant::constant;
use super::constraint::Iterations;
use super::kinds::{LayerDType, LayerKind};
use super::objective::{Labels, label_of};
use super::wiring::{Source, Wiring, at};
use super::{Config, Input, Layer, Layers, Network};
use crate::document::{NodeError, Origin, Value};
use crate::graph::{Graph, Precision, Scope, Tensor};
use crate::task::{Feature, FeatureDType, Features, Mode, Outputs};
use bf16scope_hlo::DType;
use std::cell::RefCell;

/// The batch size with which a configuration is built when it is read.
const BATCH: i64 = 32;

/// The task's outputs for a batch.
pub(super) fn call(task: &Layers, s: &Scope, features: &Features<'_>, mode: Mode) -> Result<Outputs, NodeError> {
    let Layers { network, label_smoothing, origin } = task;
    let Network { config, wiring, .. } = network;
    let build = Build { config, wiring, origin, network: Some(network), s, features, mode };
    build.outputs(&build.layers()?, *label_smoothing)
}

/// Infers the features, and the dims of each layer's output for one example, by building the network, its losses and
/// its metrics: once in f32, for training, and once in bf16, where dtypes may differ that are equal in f32.
///
/// # Errors
/// The first mismatch, with the path to it.
pub(super) fn infer(config: &Config, wiring: &Wiring) -> Result<(Vec<Feature>, Vec<Vec<i64>>), NodeError> {
    let (graph, origin) = (Graph::training("check"), Origin::default());
    // First without labels: they follow from the outputs.
    let inputs = inputs(config, wiring);
    let s = graph.scope();
    let features = Features::new(&graph, &inputs, BATCH, Mode::Train);
    let build = Build { config, wiring, origin: &origin, network: None, s: &s, features: &features, mode: Mode::Train };
    let tensors = build.layers()?;
    let all = with_labels(config, wiring, inputs.clone(), &tensors);
    let features = features.described_as(&all);
    Build { config, wiring, origin: &origin, network: None, s: &s, features: &features, mode: Mode::Train }
        .outputs(&tensors, 0.0)?;
    let dims: Vec<Vec<i64>> = tensors.layers.iter().map(|layer| layer.dims().into_iter().skip(1).collect()).collect();
    let graph = Graph::new("check").computing_in(Precision::Bf16);
    let (s, features) = (graph.scope(), Features::new(&graph, &all, BATCH, Mode::Evaluate));
    let build =
        Build { config, wiring, origin: &origin, network: None, s: &s, features: &features, mode: Mode::Evaluate };
    build.outputs(&build.layers()?, 0.0)?;
    Ok((all, dims))
}

/// The inputs, with the bounds of the layers that read them as indices.
fn inputs(config: &Config, wiring: &Wiring) -> Vec<Feature> {
    let mut inputs: Vec<Feature> = config.inputs.iter().map(|input| input.spec.feature(&input.name)).collect();
    for (layer, reads) in config.layers.iter().zip(&wiring.reads) {
        if let (Some(n), [Source::Input(number)]) = (layer.kind.n_values(), &reads[..]) {
            let least = inputs[*number].n_values.map_or(n, |other| other.min(n));
            inputs[*number].n_values = Some(least);
        }
    }
    inputs
}

/// The inputs, then the labels: as described, or else as the losses and metrics that read them need them.
fn with_labels(config: &Config, wiring: &Wiring, inputs: Vec<Feature>, tensors: &Tensors) -> Vec<Feature> {
    let losses = config.loss.iter().zip(&wiring.losses).map(|(l, source)| (&l.options.labels, l.labels(), source));
    let metrics = config.metrics.iter().zip(&wiring.metrics);
    let metrics = metrics.map(|(m, source)| {
        let labels = &m.options.labels;
        let is_distribution = m.counts_classes() && is_distribution(config, labels);
        (labels, if is_distribution { Labels::Probabilities } else { m.labels() }, source)
    });
    let judged: Vec<(&String, Feature)> = losses
        .chain(metrics)
        .filter(|(name, ..)| constant(config, name).is_none())
        .map(|(name, labels, source)| (name, label_of(name, &tensors.get(*source).dims(), labels)))
        .collect();
    let weights = config.weights();
    let mut features = inputs;
    features.extend(config.labels.iter().map(|input| described_label(input, &judged, &weights)));
    for (name, wanted) in &judged {
        match features.iter_mut().find(|feature| feature.name == **name) {
            None => features.push(wanted.clone()),
            // If nothing bounds a label, as for triplets, another loss may know the number of classes.
            Some(feature) if feature.is_label && feature.dtype == wanted.dtype => {
                feature.n_values = feature.n_values.or(wanted.n_values);
            }
            Some(_) => {}
        }
    }
    // At most as many labels or steps as there are.
    for (loss, source) in config.loss.iter().zip(&wiring.losses) {
        let n_labels = judged.iter().find(|(name, _)| **name == loss.options.labels);
        let n_labels = features.iter().find(|it| it.name == loss.options.labels).or(n_labels.map(|(_, it)| it));
        let most = [n_labels.and_then(|it| it.dims.first().copied()), tensors.get(*source).dims().get(1).copied()];
        for ((_, name), most) in loss.lengths().into_iter().zip(most) {
            let (Some(name), Some(most)) = (name, most) else { continue };
            match features.iter_mut().find(|feature| feature.name == *name) {
                None => features.push(Feature::exact(name, DType::S32, []).label().below(most + 1)),
                Some(feature) if feature.dtype == FeatureDType::Exact(DType::S32) => {
                    feature.n_values = feature.n_values.or(Some(most + 1));
                }
                Some(_) => {}
            }
        }
        // Labels that are too many for the steps have no alignment, and an infinite loss.
        let alignment = most[1].and_then(|n_steps| loss.alignment(n_steps));
        if let Some(feature) = features.iter_mut().find(|it| it.name == loss.options.labels) {
            feature.alignments.extend(alignment);
        }
    }
    for name in &weights {
        if !features.iter().any(|feature| feature.name == **name) {
            features.push(Feature::exact(name, DType::F32, []).label());
        }
    }
    for feature in &mut features {
        // Also for an input that a network reconstructs.
        feature.is_probability = judged.iter().any(|(name, wanted)| wanted.is_probability && **name == feature.name);
        feature.is_weight = weights.contains(&&feature.name);
    }
    features
}

/// Whether the label is a distribution over classes, for a loss with logits or with scores of classes.
fn is_distribution(config: &Config, labels: &str) -> bool {
    config.loss.iter().any(|loss| loss.options.labels == *labels && loss.is_of_distributions())
}

/// A described label, completed by the losses and metrics that read it.
fn described_label(input: &Input, judged: &[(&String, Feature)], weights: &[&String]) -> Feature {
    let mut label = input.spec.feature(&input.name).label();
    if let Some((_, wanted)) = judged.iter().find(|(name, _)| **name == input.name) {
        // Labels are never rounded to the compute dtype, nor scaled like inputs.
        if label.dtype == FeatureDType::Compute {
            label.dtype = wanted.dtype;
        }
        if label.dtype == wanted.dtype {
            label.n_values = label.n_values.or(wanted.n_values);
        }
    }
    if label.dtype == FeatureDType::Compute && weights.contains(&&input.name) {
        label.dtype = FeatureDType::Exact(DType::F32);
    }
    label
}

/// The tensors of inputs and layers, and the f32 casts of those that losses and metrics read.
pub(super) struct Tensors {
    inputs: Vec<Option<Tensor>>,
    layers: Vec<Tensor>,
    /// The last states of each layer.
    states: Vec<Vec<Tensor>>,
    /// Penalties that regularizers add to the loss, with their layers.
    terms: Vec<(usize, Tensor)>,
    /// Numbers of the variables that each layer declares.
    variables: Vec<std::ops::Range<usize>>,
    casts: RefCell<Vec<(Source, Tensor)>>,
}

impl Tensors {
    pub(super) fn get(&self, source: Source) -> Tensor {
        match source {
            Source::Layer(number) => self.layers[number].clone(),
            // The list is empty after an error of the graph.
            Source::State(number, state) => self.states[number].get(state).unwrap_or(&self.layers[number]).clone(),
            Source::Input(number) => match &self.inputs[number] {
                Some(input) => input.clone(),
                None => unreachable!("an input that is read was made: `layers` makes those that outputs are"),
            },
        }
    }

    /// The tensor of a source in f32: one cast for all losses and metrics.
    fn in_f32(&self, source: Source) -> Tensor {
        let mut casts = self.casts.borrow_mut();
        if let Some((_, cast)) = casts.iter().find(|(other, _)| *other == source) {
            return cast.clone();
        }
        let cast = self.get(source).cast(DType::F32);
        casts.push((source, cast.clone()));
        cast
    }
}

/// The context of building a network in a program.
pub(super) struct Build<'a> {
    pub(super) config: &'a Config,
    pub(super) wiring: &'a Wiring,
    /// The origin of the configuration.
    origin: &'a Origin,
    /// The network, once it is built: it knows where its layers are written.
    network: Option<&'a Network>,
    s: &'a Scope,
    features: &'a Features<'a>,
    mode: Mode,
}

impl Build<'_> {
    /// Builds the layers, in low precision if the graph computes in it.
    fn layers(&self) -> Result<Tensors, NodeError> {
        let Build { config, wiring, .. } = self;
        self.s.low_precision(|s| {
            let (inputs, casts) = (vec![None; config.inputs.len()], RefCell::default());
            let (layers, states, terms, variables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let mut tensors = Tensors { inputs, layers, states, terms, variables, casts };
            let mut wanted: Vec<Source> = wiring.reads.iter().flatten().copied().collect();
            wanted.extend(wiring.outputs.iter().map(|(_, source)| *source).chain(wiring.losses.iter().copied()));
            wanted.extend(wiring.metrics.iter().chain(wiring.others.iter().flatten()));
            for (number, input) in config.inputs.iter().enumerate() {
                if wanted.contains(&Source::Input(number)) {
                    tensors.inputs[number] = Some(self.features.get(&input.name));
                }
            }
            for number in 0..config.layers.len() {
                let first = s.graph().n_variables();
                let (layer, states, term) = self.written("layers", number, s, |s| self.layer(number, s, &tensors))?;
                tensors.layers.push(layer);
                tensors.states.push(states);
                tensors.terms.extend(term.map(|term| (number, term)));
                tensors.variables.push(first..s.graph().n_variables());
            }
            Ok(tensors)
        })
    }

    /// Builds a layer; returns its output, its last states, and the penalty of its regularizers.
    fn layer(
        &self,
        number: usize,
        s: &Scope,
        tensors: &Tensors,
    ) -> Result<(Tensor, Vec<Tensor>, Option<Tensor>), NodeError> {
        let (layer, name, sources) =
            (&self.config.layers[number], &self.wiring.names[number], &self.wiring.reads[number]);
        let n_inputs = sources.len() - layer.initial_state.len();
        let read = sources.iter().enumerate().map(|(at, &source)| match source {
            // In the dtype of the carried state: an LSTM's c is f32.
            Source::State(..) if at >= n_inputs => tensors.get(source),
            _ => self.as_read(s, layer, source, tensors.get(source)),
        });
        let read: Vec<Tensor> = read.collect();
        let read: Vec<&Tensor> = read.iter().collect();
        let (inputs, states) = read.split_at(n_inputs);
        let first = s.graph().n_variables();
        let outer = s;
        let of_kind = |s: &Scope, name: &str| layer.kind.build_from(s, name, inputs, states);
        let build = |s: &Scope| match self.table(number, outer, tensors) {
            Some(table) => (self.tied(number, s, read[0], table), Vec::new()),
            None => self.under_its_name(number, s, |s, name| match layer.spectral_norm {
                Some(Iterations(n)) => s.with_spectral_norm(n, |s| of_kind(s, name)),
                None => of_kind(s, name),
            }),
        };
        let build = |s: &Scope| match layer.dtype {
            Some(LayerDType::Float32) => s.in_f32(build),
            None => build(s),
        };
        let (output, mut last) = if layer.trainable { build(s) } else { s.frozen(build) };
        if self.wiring.gives_state[number]
            && let Some(x) = inputs.first()
        {
            last.extend(layer.kind.indices(s, name, x));
        }
        self.constrained(number, first, s)?;
        let Some(error) = s.graph().emitter().error() else {
            let term = self.regularized(number, first, s, &output)?;
            return Ok((output, last, term));
        };
        let reads = sources.iter().zip(&read);
        let reads = reads.map(|(&source, x)| format!("`{}` {}", self.wiring.name_of(self.config, source), example(x)));
        let (reads, kind) = (reads.collect::<Vec<String>>().join(" and "), layer.kind.name());
        let message = format!("layer `{name}` ({kind}) reads {reads}: {}", error.error.message);
        Err(NodeError { help: error.error.help, ..NodeError::new(at("layers", number), message) })
    }

    /// A float as a layer reads it: f32 for a layer that computes in f32, or cast to the compute dtype for another
    /// layer that reads such an output.
    pub(super) fn as_read(&self, s: &Scope, layer: &Layer, source: Source, x: Tensor) -> Tensor {
        // A gradient is with respect to what other layers read, not to a cast of it.
        if !x.dtype().is_float() || matches!(layer.kind, LayerKind::Gradient(_)) {
            return x;
        }
        let is_f32 = match source {
            Source::Input(_) => false,
            Source::Layer(number) => self.config.layers[number].dtype.is_some(),
            Source::State(..) => true,
        };
        match layer.dtype {
            Some(LayerDType::Float32) => x.cast(DType::F32),
            None if is_f32 => x.cast(s.low_precision_dtype().unwrap_or(DType::F32)),
            None => x,
        }
    }

    /// Runs `body`, whose instructions carry the line of element `number` of a list, or of the single item in its
    /// place.
    fn written<R>(&self, list: &str, number: usize, s: &Scope, body: impl FnOnce(&Scope) -> R) -> R {
        // A layer of a block has the block's line.
        let layer = self.network.filter(|_| list == "layers").and_then(|network| network.written_layer(number));
        if let (Some(layer), Some(document)) = (layer, self.origin.document()) {
            let (path, line) = document.place_of(layer.mark.line);
            return s.written_at(path, u32::try_from(line).unwrap_or(0), body);
        }
        let list = self.origin.at(list);
        let is_list = list.node().is_some_and(|node| matches!(node.value, Value::List(_)));
        written_at(&if is_list { list.at(number) } else { list }, s, body)
    }
}

/// A shape whose first dim is the batch, shown by name: `f32[batch, 28, 28, 1]`.
fn example(x: &Tensor) -> String {
    let dims = x.dims().into_iter().skip(1).map(|dim| format!(", {dim}"));
    format!("{}[batch{}]", x.dtype(), dims.collect::<String>())
}
