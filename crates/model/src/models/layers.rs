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
//! A layer is its kind alone, its kind with the first of its options (`{dense: 128}`), or with options by the names that
//! Keras gives them (`{dense: {units: 128, activation: relu}}`); more options and `name` may stand beside the kind. It
//! reads the layer before it, or what `inputs` names; `{add: [a, b]}` reads two. Kinds also go by Keras' names.
//!
//! `outputs` says what is predicted (default: the last layer, as `logits` where a softmax loss judges it, else as
//! `output`); losses and metrics judge the only output, or the output or layer that they name, by `labels`, or the label
//! or input that they name. A label that `labels` does not describe is what the loss wants: classes below the output's
//! last dim, or f32 numbers of the output's dims.
//!
//! A file is checked when it is read, by building its programs: whatever does not fit is an error with line and column.

mod block;
mod build;
mod choice;
mod direct;
mod elementwise;
mod kinds;
mod layer_options;
mod llama;
mod loss;
mod merge;
mod metric;
mod objective;
mod sequential;
mod shape;
mod wiring;

pub use block::*;
pub use direct::*;
pub(super) use elementwise::RELU;
pub use elementwise::{Activation, Rescaling};
pub use kinds::{Layer, LayerDType, LayerKind};
pub use layer_options::Arity;
pub use llama::*;
pub use loss::{Huber, Loss, LossKind, LossOptions};
pub use merge::*;
pub use metric::{Metric, MetricKind, MetricOptions, MetricWeights, Thresholds, TopK};
pub(super) use sequential::{Sequential, dense};
pub use shape::*;

use super::written::Lines;
use crate::document::{self, Mark, Node, ReadError, Step, Value};
use crate::graph::Scope;
use crate::nn::options::some_positive;
use crate::task::{Feature, Features, Identity, Mode, Outputs, Task};
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::RuleError;
use serde::de::{self, Deserializer};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use wiring::Wiring;

/// A network of layers, and what it learns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// What one example holds, by name.
    #[serde(serialize_with = "as_map")]
    pub inputs: Vec<Input>,
    /// Labels that losses do not say enough about.
    #[serde(serialize_with = "as_map", skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Input>,
    /// The layers, each after what it reads.
    pub layers: Vec<Layer>,
    /// What is predicted: names, and the layers that make it. Default: the last layer, as `logits` where a softmax loss
    /// judges it, else as `output`.
    #[serde(serialize_with = "as_map", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    /// What training minimises: the sum of these.
    pub loss: Vec<Loss>,
    /// What is reported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Where a file says this, for what is built of it.
    #[serde(skip)]
    pub lines: Lines,
}

/// An input or a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub spec: InputSpec,
}

/// What an input holds for one example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Its dims, without the batch.
    #[serde(deserialize_with = "document::positives")]
    pub shape: Vec<i64>,
    /// What its numbers are.
    #[serde(default)]
    pub dtype: InputDType,
    /// Of whole numbers: what they are below. Default: what the `embedding` that reads them says.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub below: Option<i64>,
}

/// What an input's numbers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputDType {
    /// Numbers that are cast on the host to what the network computes in.
    #[default]
    Compute,
    /// f32 in any precision.
    #[serde(alias = "f32")]
    Float32,
    /// s32: indices, classes.
    #[serde(alias = "s32")]
    Int32,
}

/// What is predicted under a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The prediction's name.
    pub name: String,
    /// The layer, or input, that makes it.
    pub layer: String,
}

/// A thing with a name, as an entry of a map.
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

/// The keys of a configuration, before anything is looked up.
/// The keys beside `kind`.
pub(super) fn keys() -> Vec<&'static str> {
    document::kind::keys_of::<Keys>()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    inputs: Inputs,
    #[serde(default)]
    labels: Inputs,
    layers: Vec<Layer>,
    #[serde(default)]
    outputs: OutputList,
    loss: OneOrMore<Loss>,
    #[serde(default)]
    metrics: OneOrMore<Metric>,
}

/// Inputs by name: dims, or dims and more.
#[derive(Default)]
struct Inputs(Vec<Input>);

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Inputs, D::Error> {
        let spec = |node: &Node| match &node.value {
            Value::List(_) => {
                let shape = document::positives(node)?;
                Ok(InputSpec { shape, dtype: InputDType::default(), below: None })
            }
            Value::Map(_) => InputSpec::deserialize(node),
            _ => Err(node.wrong("dims, such as [28, 28, 1], or {shape: [28, 28, 1], dtype: int32}")),
        };
        Node::read(deserializer, |node| {
            let Value::Map(map) = &node.value else {
                return Err(node.wrong("names with the dims of one example, such as `{images: [28, 28, 1]}`"));
            };
            let input = |(name, node): &(document::Key, Node)| Ok(Input { name: name.to_string(), spec: spec(node)? });
            map.iter().map(input).collect::<Result<_, _>>().map(Inputs)
        })
    }
}

/// Names of layers, or names of predictions and the layers that make them.
#[derive(Default)]
struct OutputList(Vec<Output>);

impl<'de> Deserialize<'de> for OutputList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OutputList, D::Error> {
        let same = |name: &String| Output { name: name.clone(), layer: name.clone() };
        let read = |node: &Node| match &node.value {
            Value::Text(name) => Ok(vec![Output { name: "logits".to_string(), layer: name.clone() }]),
            Value::List(_) => Ok(Vec::<String>::deserialize(node)?.iter().map(same).collect()),
            Value::Map(map) => {
                let output = |(name, node): &(document::Key, Node)| {
                    Ok(Output { name: name.to_string(), layer: String::deserialize(node)? })
                };
                map.iter().map(output).collect()
            }
            _ => Err(node.wrong("a layer's name, a list of them, or {NAME: LAYER}")),
        };
        Node::read(deserializer, read).map(OutputList)
    }
}

/// One thing, or a list of them.
struct OneOrMore<T>(Vec<T>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        OneOrMore(Vec::new())
    }
}

impl<'de, T: de::DeserializeOwned> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |node: &Node| match &node.value {
            Value::List(_) => Vec::<T>::deserialize(node),
            _ => T::deserialize(node).map(|one| vec![one]),
        };
        Node::read(deserializer, read).map(OneOrMore)
    }
}

impl Config {
    /// The features that losses and metrics name as what examples weigh.
    fn weights(&self) -> Vec<&String> {
        let of_losses = self.loss.iter().filter_map(|loss| loss.options.example_weights.as_ref());
        let of_metrics = self.metrics.iter().filter_map(|metric| match &metric.options.example_weights {
            MetricWeights::Feature(name) => Some(name),
            MetricWeights::AsInLoss | MetricWeights::Alike => None,
        });
        of_losses.chain(of_metrics).collect()
    }

    fn read(node: &Node) -> Result<Config, ReadError> {
        let Keys { inputs, labels, layers, outputs, loss, metrics } = Keys::deserialize(node)?;
        let (inputs, labels, outputs) = (inputs.0, labels.0, outputs.0);
        let (loss, metrics, lines) = (loss.0, metrics.0, Lines::default());
        let config = Config { inputs, labels, layers, outputs, loss, metrics, lines };
        build::check(&config).map_err(|mut error| {
            error.path = way_in(node, &error.path);
            node.error(error)
        })?;
        Ok(config)
    }
}

impl Config {
    /// Where `node`, which it was read from, says what the numbers of a feature are below: with the feature, or in the layer
    /// that reads them or, of classes, makes them.
    pub(super) fn place_of_range(&self, feature: &Feature, node: &Node) -> Option<Mark> {
        let list = if feature.is_label { "labels" } else { "inputs" };
        let below = node.get(list).and_then(|list| list.get(&feature.name)).and_then(|node| node.get("below"));
        if let Some(Node { value: Value::Whole(n), mark, .. }) = below
            && i64::try_from(*n).ok() == feature.n_values
        {
            return Some(*mark);
        }
        let wiring = Wiring::new(self).ok()?;
        let number = match feature.is_label {
            true => wiring.maker_of_classes(self, &feature.name),
            false => wiring.reader_of(self, feature),
        }?;
        let Value::List(layers) = &node.get("layers")?.value else { return None };
        Some(self.layers[number].place_of_size(layers.get(number)?))
    }
}

/// The way in `node` to where a way leads that knows one form of losses and metrics: an option may stand beside the kind or
/// in it, or be the kind's value, and a list of one may be none.
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

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        Node::read(deserializer, Config::read)
    }
}

/// A network of layers as a task.
///
/// Features: its inputs and labels. The loss is the mean over the batch of the weighted sum of its losses; label
/// smoothing is for training. Metrics and predictions are those of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    config: Config,
    label_smoothing: f64,
    features: Vec<Feature>,
}

impl Layers {
    /// The task, with label smoothing in `[0, 1)` for losses that do not say.
    pub fn new(config: Config, label_smoothing: f64) -> Layers {
        let features = build::features(&config);
        Layers { config, label_smoothing, features }
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl Task for Layers {
    fn name(&self) -> &str {
        "layers"
    }

    fn features(&self) -> Vec<Feature> {
        self.features.clone()
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        build::call(&self.config, self.label_smoothing, s, features, mode).unwrap_or_else(|error| {
            // Where the graph has no error yet, there was nothing to build.
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
        build::independent_logits(&self.config)
    }

    fn identity(&self) -> Identity {
        let mut function = self.config.clone();
        let mut rates = Vec::new();
        for layer in &mut function.layers {
            match &mut layer.kind {
                LayerKind::Dropout(dropout) => rates.push(std::mem::take(&mut dropout.rate)),
                LayerKind::StochasticDepth(depth) => rates.push(std::mem::take(&mut depth.rate)),
                LayerKind::TransformerBlock(block) => rates.push(std::mem::take(&mut block.dropout)),
                LayerKind::MbConv(block) => rates.extend(std::mem::take(&mut block.stochastic_depth).0),
                _ => {}
            }
        }
        let identity = Identity::new("layers").of(&function).changeable(&["labels", "loss", "metrics"]);
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
        Feature { n_values: self.below, ..feature }
    }
}
