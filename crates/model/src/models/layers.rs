//! Networks in YAML, without Rust: inputs by name, a list of layers, losses and metrics by name.
//!
//! ```yaml
//! kind: layers
//! inputs: {images: [28, 28, 1]}
//! layers:
//!   - flatten
//!   - {dense: 128, activation: relu}
//!   - {dense: 10}
//! loss: sparse_softmax_cross_entropy
//! metrics: [accuracy]
//! ```
//!
//! A layer is its kind alone, its kind with its first option (`{dense: 128}`), or with options by their Keras names
//! (`{dense: {units: 128, activation: relu}}`); more options and `name` may stand beside the kind. It reads the
//! previous layer, or the layers in `inputs`; `{add: [a, b]}` reads two. Kinds also have their Keras names.
//!
//! `outputs` lists the predictions (default: the last layer, as `logits` if it has a softmax loss, else as `output`).
//! Losses and metrics compare the only output, or the output or layer that they name, with `labels`, or the label or
//! input that they name. A label that `labels` does not describe has the form that its loss needs: classes below the
//! output's last dim, or f32 numbers of the output's dims.
//!
//! A file's network is built once when it is read, by the code that builds its programs: every mismatch is an error
//! with line and column, and inferred values are kept in the [`Network`].

mod arithmetic;
mod block;
mod build;
mod choice;
mod constant;
mod constraint;
mod direct;
mod elementwise;
mod expansion;
mod expression;
mod fourier;
mod gradient;
mod indices;
mod keras_options;
mod kinds;
mod layer_options;
mod llama;
mod loss;
mod loss_groups;
mod margins;
mod merge;
mod metric;
mod metric_defaults;
mod numbers;
mod objective;
mod order;
mod owners;
mod parameters;
mod reductions;
mod regularizer;
mod sequential;
mod shape;
mod variables;
mod wiring;

pub use arithmetic::Expression;
pub use block::*;
pub use constraint::{Constraints, Iterations};
pub use direct::*;
pub(super) use elementwise::RELU;
pub use elementwise::{Activation, GaussianNoise, LeakyRelu, Rescaling};
pub use gradient::Gradient;
pub use indices::{Cast, CastTo, Gather, Masking, OneHot};
pub use kinds::{Layer, LayerDType, LayerKind};
pub use layer_options::Arity;
pub use llama::*;
pub use loss::{Ctc, Huber, Loss, LossKind, LossOptions, Margin, Quantile, Reduction};
pub use margins::{Crop, Margins, ZeroPadding};
pub use merge::*;
pub use metric::{Metric, MetricKind, MetricOptions, MetricWeights, Thresholds, TopK};
pub use order::{Cumsum, Sort, SortDirection, TopKOfLayer};
pub use reductions::{Cosine, Dot, Reduce, Softmax, UnitNorm};
pub use regularizer::{Regularizer, Regularizers};
pub(super) use sequential::{Sequential, dense};
pub use shape::*;

use super::ModelKind;
use crate::document::{self, Mark, Node, NodeError, Origin, ReadError, Step, Value, kind};
use crate::graph::Scope;
use crate::nn;
use crate::nn::options::some_positive;
use crate::task::{Feature, Features, Identity, Mode, NetworkLayer, Outputs, Task};
use bf16scope_data::Random;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::RuleError;
use serde::de::{DeserializeOwned, Deserializer};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use wiring::Wiring;

/// A network of layers with its losses and metrics, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The features of an example, by name.
    #[serde(serialize_with = "as_map", deserialize_with = "inputs")]
    pub inputs: Vec<Input>,
    /// Labels that need more description than their losses give.
    #[serde(default, serialize_with = "as_map", deserialize_with = "inputs", skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Input>,
    /// The layers, each after those that it reads.
    pub layers: Vec<Layer>,
    /// The predictions: names, and the layers that compute them. Default: the last layer, as `logits` if it has a
    /// softmax loss, else as `output`.
    #[serde(default, serialize_with = "as_map", deserialize_with = "outputs", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    /// The losses, whose sum training minimises.
    #[serde(deserialize_with = "one_or_more")]
    pub loss: Vec<Loss>,
    /// The reported metrics.
    #[serde(default, deserialize_with = "one_or_more", skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
}

/// An input or a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its content.
    pub spec: InputSpec,
}

/// The content of an input for one example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Its dims, without the batch.
    #[serde(deserialize_with = "document::positives")]
    pub shape: Vec<i64>,
    /// The kind of its numbers.
    #[serde(default)]
    pub dtype: InputDType,
    /// For whole numbers: their exclusive upper bound. Default: that of the `embedding` that reads them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub below: Option<i64>,
    /// The distribution from which it is drawn, if the data have no array of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<Random>,
}

/// The kind of an input's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputDType {
    /// Numbers that the host casts to the dtype that the network computes in.
    #[default]
    Compute,
    /// f32 in any precision.
    #[serde(alias = "f32")]
    Float32,
    /// s32: indices, classes.
    #[serde(alias = "s32")]
    Int32,
}

/// A named prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The prediction's name.
    pub name: String,
    /// The layer, or input, that computes it.
    pub layer: String,
}

/// A named item, as an entry of a map.
trait Named {
    type Value: Serialize;
    fn entry(&self) -> (&str, &Self::Value);
}

impl Named for Input {
    type Value = InputSpec;
    fn entry(&self) -> (&str, &InputSpec) {
        (&self.name, &self.spec)
    }
}

impl Named for Output {
    type Value = String;
    fn entry(&self) -> (&str, &String) {
        (&self.name, &self.layer)
    }
}

fn as_map<T: Named, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(list.len()))?;
    for (name, value) in list.iter().map(Named::entry) {
        map.serialize_entry(name, value)?;
    }
    map.end()
}

/// Inputs by name: dims, or dims and more keys.
fn inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Input>, D::Error> {
    let spec = |node: &Node| match &node.value {
        Value::List(_) => {
            let shape = document::positives(node)?;
            Ok(InputSpec { shape, dtype: InputDType::default(), below: None, random: None })
        }
        Value::Map(_) => InputSpec::deserialize(node),
        _ => Err(node.wrong("dims, such as [28, 28, 1], or {shape: [28, 28, 1], dtype: int32}")),
    };
    Node::read(deserializer, |node| {
        let Value::Map(map) = &node.value else {
            return Err(node.wrong("names with the dims of one example, such as `{images: [28, 28, 1]}`"));
        };
        let input = |(name, node): &(document::Key, Node)| Ok(Input { name: name.to_string(), spec: spec(node)? });
        map.iter().map(input).collect()
    })
}

/// Names of layers, or names of predictions with their layers.
fn outputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Output>, D::Error> {
    let same = |name: &String| Output { name: name.clone(), layer: name.clone() };
    Node::read(deserializer, |node| match &node.value {
        Value::Text(name) => Ok(vec![Output { name: "logits".to_string(), layer: name.clone() }]),
        Value::List(_) => Ok(Vec::<String>::deserialize(node)?.iter().map(same).collect()),
        Value::Map(map) => {
            let output = |(name, node): &(document::Key, Node)| {
                Ok(Output { name: name.to_string(), layer: String::deserialize(node)? })
            };
            map.iter().map(output).collect()
        }
        _ => Err(node.wrong("a layer's name, a list of them, or {NAME: LAYER}")),
    })
}

/// One item, or a list of items.
fn one_or_more<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::List(_) => Vec::<T>::deserialize(node),
        _ => T::deserialize(node).map(|one| vec![one]),
    })
}

impl Config {
    /// The features that losses and metrics name as weights of examples.
    fn weights(&self) -> Vec<&String> {
        let of_losses = self.loss.iter().filter_map(|loss| loss.options.example_weights.as_ref());
        let of_metrics = self.metrics.iter().filter_map(|metric| match &metric.options.example_weights {
            MetricWeights::Feature(name) => Some(name),
            MetricWeights::AsInLoss | MetricWeights::Alike => None,
        });
        of_losses.chain(of_metrics).collect()
    }
}

/// A configuration that was built once: its names are resolved, its features are inferred, and its programs can be
/// built.
#[derive(Clone)]
pub struct Network {
    config: Config,
    wiring: Wiring,
    features: Vec<Feature>,
    /// The dims of each layer's output for one example.
    dims: Vec<Vec<i64>>,
    /// The document's value, its blocks expanded, with the place of each layer; none for a network made by a program.
    written: Option<Arc<Node>>,
}

impl Network {
    /// Builds a configuration in f32 and in bf16, and keeps the inferred features.
    ///
    /// # Errors
    /// The first mismatch, with the path to it.
    pub fn new(mut config: Config) -> Result<Network, NodeError> {
        metric_defaults::fill_in(&mut config);
        let wiring = Wiring::new(&config)?;
        let (features, dims) = build::infer(&config, &wiring)?;
        Ok(Network { config, wiring, features, dims, written: None })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn read(node: &Node) -> Result<Network, ReadError> {
        let (node, config) = expansion::read(node)?;
        let network = Network::new(config).map_err(|mut error| {
            error.path = way_in(&node, &error.path);
            node.error(error)
        })?;
        Ok(Network { written: Some(Arc::new(node)), ..network })
    }

    /// The document's value of a layer; none for a network made by a program.
    fn written_layer(&self, number: usize) -> Option<&Node> {
        self.written.as_ref()?.get("layers")?.after(&Step::Index(number))
    }
}

/// Without the places of the document: two networks that compare equal look the same.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Network { config, wiring, features, dims: _, written: _ } = self;
        let mut fields = f.debug_struct("Network");
        fields.field("config", config).field("wiring", wiring).field("features", features).finish()
    }
}

impl PartialEq for Network {
    fn eq(&self, other: &Network) -> bool {
        self.config == other.config
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.config.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        Node::read(deserializer, Network::read)
    }
}

impl ModelKind for Network {
    fn task(&self, label_smoothing: f64, origin: &Origin) -> Arc<dyn Task> {
        Arc::new(Layers { network: self.clone(), label_smoothing, origin: origin.clone() })
    }

    /// The place of a feature's range: the feature itself, the layer that reads it, or, for classes, the layer that
    /// computes their logits.
    fn place_of_range(&self, feature: &Feature, node: &Node) -> Option<Mark> {
        let Network { config, wiring, .. } = self;
        let list = if feature.is_label { "labels" } else { "inputs" };
        let below = node.get(list).and_then(|list| list.get(&feature.name)).and_then(|node| node.get("below"));
        if let Some(Node { value: Value::Whole(n), mark, .. }) = below
            && i64::try_from(*n).ok() == feature.n_values
        {
            return Some(*mark);
        }
        let number = match feature.is_label {
            true => wiring.maker_of_classes(config, &feature.name),
            false => wiring.reader_of(config, feature),
        }?;
        Some(config.layers[number].place_of_size(self.written_layer(number)?))
    }

    fn is_smoothed(&self) -> bool {
        self.config.loss.iter().any(Loss::is_smoothed)
    }

    fn keys() -> Vec<&'static str> {
        [kind::keys_of::<Config>(), vec!["blocks", "parameters"]].concat()
    }
}

/// The path in `node` for a path of a configuration whose losses and metrics are in normal form: in the document an
/// option may stand beside the kind or in it, or be the kind's value, and a list of one may be written without
/// brackets.
fn way_in(node: &Node, path: &[Step]) -> Vec<Step> {
    let (mut way, mut nodes) = (Vec::new(), vec![node]);
    for step in path {
        let before = nodes.len().checked_sub(2).map(|at| nodes[at]);
        if let Some(next) = nodes.last().and_then(|node| node.after(step)) {
            nodes.push(next);
        } else if let Some(next) = before.and_then(|node| node.after(step)) {
            way.pop();
            nodes.pop();
            nodes.push(next);
        } else {
            continue;
        }
        way.push(step.clone());
    }
    way
}

/// A network of layers as a task.
///
/// Features: its inputs and labels. The loss is the mean over the batch of the weighted sum of its losses; label
/// smoothing applies in training. Metrics and predictions are those of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    network: Network,
    label_smoothing: f64,
    origin: Origin,
}

impl Layers {
    /// The task; `label_smoothing` in `[0, 1)` is for losses that do not set their own.
    pub fn new(network: Network, label_smoothing: f64) -> Layers {
        Layers { network, label_smoothing, origin: Origin::default() }
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Outputs with such a loss, by the label that it compares them with.
    fn labelled(&self, is_such: fn(&Loss) -> bool) -> Vec<(String, String)> {
        let Network { config, wiring, .. } = &self.network;
        let label_of = |source: &wiring::Source| {
            let mut losses = wiring.losses.iter().zip(&config.loss);
            let (_, loss) = losses.find(|(judged, loss)| *judged == source && is_such(loss))?;
            Some(loss.options.labels.clone())
        };
        let labelled = |(name, source): &(String, wiring::Source)| Some((name.clone(), label_of(source)?));
        wiring.outputs.iter().filter_map(labelled).collect()
    }
}

impl Task for Layers {
    fn name(&self) -> &str {
        "layers"
    }

    fn features(&self) -> Vec<Feature> {
        self.network.features.clone()
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        build::call(self, s, features, mode).unwrap_or_else(|error| {
            // If the graph has no error yet, the network could not be resolved.
            let rule = RuleError::new("layers", error.message);
            let rule = match error.help {
                Some(help) => rule.with_help(help),
                None => rule,
            };
            let poison = s.graph().fail("layers", &[], rule);
            Outputs::new().loss(&poison).prediction("logits", &poison)
        })
    }

    fn independent_logits(&self) -> Vec<String> {
        self.binary_labels().into_iter().map(|(output, _)| output).collect()
    }

    /// Outputs with a loss that applies a softmax, by the label that it compares them with.
    fn class_labels(&self) -> Vec<(String, String)> {
        self.labelled(Loss::is_of_classes)
    }

    /// Outputs with a loss that applies a sigmoid, by the label that it compares them with.
    fn binary_labels(&self) -> Vec<(String, String)> {
        self.labelled(|loss| loss.takes() == Some(nn::Activation::Sigmoid))
    }

    fn network_layers(&self) -> Vec<NetworkLayer> {
        let Network { wiring: Wiring { names, owners, .. }, dims, .. } = &self.network;
        let all = names.iter().zip(owners).zip(dims);
        all.map(|((name, owner), output)| NetworkLayer {
            name: name.clone(),
            shares: owner.map(|owner| names[owner].clone()),
            output: output.clone(),
        })
        .collect()
    }

    fn identity(&self) -> Identity {
        let mut function = self.network.config.clone();
        let mut rates = Vec::new();
        for layer in &mut function.layers {
            layer.trainable = true;
            match &mut layer.kind {
                LayerKind::Dropout(dropout) => rates.push(std::mem::take(&mut dropout.rate)),
                LayerKind::SpatialDropout(dropout) => rates.push(std::mem::take(&mut dropout.rate)),
                LayerKind::StochasticDepth(depth) => rates.push(std::mem::take(&mut depth.rate)),
                LayerKind::TransformerBlock(block) => rates.push(std::mem::take(&mut block.dropout)),
                LayerKind::GaussianDropout(dropout) => rates.push(std::mem::take(&mut dropout.rate)),
                LayerKind::MbConv(block) => rates.extend(std::mem::take(&mut block.stochastic_depth).0),
                _ => {}
            }
        }
        let identity = Identity::new("layers").with_config(&function).changeable(&["labels", "loss", "metrics"]);
        identity.with_changeable("dropout", rates).with_changeable("label_smoothing", self.label_smoothing)
    }
}

impl InputSpec {
    fn feature(&self, name: &str) -> Feature {
        let shape = self.shape.as_slice();
        let feature = match self.dtype {
            InputDType::Compute => Feature::compute(name, shape),
            InputDType::Float32 => Feature::exact(name, DType::F32, shape),
            InputDType::Int32 => Feature::exact(name, DType::S32, shape),
        };
        Feature { n_values: self.below, random: self.random, ..feature }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Dense;
    use expect_test::expect;

    /// In f32 the two dtypes are equal.
    #[test]
    fn dtypes_that_differ_in_bf16_alone_are_found_when_the_file_is_read() {
        let text =
            "inputs: {a: [4], b: {shape: [4], dtype: float32}}\nlayers: [{add: [a, b]}]\nloss: mean_squared_error\n";
        let error = document::from_str::<Network>("m.yaml", text).unwrap_err().to_string();
        expect![[r#"
            m.yaml:2:10: layer `add` (add) reads `a` bf16[batch, 4] and `b` f32[batch, 4]: bf16[32,4] and f32[32,4] meet, expected equal dtypes
              2 | layers: [{add: [a, b]}]
                |          ^^^^
              help: cast one of them with .cast(dtype), or in YAML with the layer `cast: compute`"#]].assert_eq(&error);
    }

    #[test]
    fn a_network_of_rust_infers_its_labels_or_says_what_does_not_fit() {
        let input = |shape: &[i64]| {
            let spec = InputSpec { shape: shape.to_vec(), dtype: InputDType::Compute, below: None, random: None };
            vec![Input { name: "x".to_string(), spec }]
        };
        let config = |shape: &[i64]| Config {
            inputs: input(shape),
            labels: Vec::new(),
            layers: vec![LayerKind::Dense(Dense { units: 3, ..Dense::default() }).into()],
            outputs: Vec::new(),
            loss: vec![LossKind::SparseSoftmaxCrossEntropy.into()],
            metrics: Vec::new(),
        };
        let network = Network::new(config(&[8])).unwrap();
        let labels = Feature::exact("labels", DType::S32, []).below(3).label();
        assert_eq!(Layers::new(network, 0.0).features(), [Feature::compute("x", [8]), labels]);
        let error = Network::new(config(&[8, 8, 1])).unwrap_err();
        assert_eq!(error.path, wiring::at("layers", 0));
        assert!(error.message.starts_with("layer `dense` (dense) reads `x` f32[batch, 8, 8, 1]"), "{}", error.message);
    }
}
