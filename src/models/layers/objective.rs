//! Losses and metrics by name.

use super::choice::Choice;
use crate::graph::Tensor;
use crate::hlo::DType;
use crate::models::yaml::{self, Node, NodeError};
use crate::nn;
use crate::task::Feature;
use serde::de::{self, Deserializer};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// What a loss is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// [`nn::sparse_softmax_cross_entropy_per_example`]: labels are classes.
    SparseSoftmaxCrossEntropy,
    /// [`nn::softmax_cross_entropy_per_example`]: labels are distributions.
    SoftmaxCrossEntropy,
    /// [`nn::sigmoid_cross_entropy_per_example`]: labels are 0 or 1.
    SigmoidCrossEntropy,
    /// [`nn::mean_squared_error_per_example`].
    MeanSquaredError,
    /// [`nn::mean_absolute_error_per_example`].
    MeanAbsoluteError,
}

/// What a metric is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The part of rows whose greatest logit is their label's.
    Accuracy,
    /// The part of rows whose label is among so many of the greatest.
    TopK(i64),
    /// The part of logits that are above 0 where the label is 1, and below where it is 0.
    BinaryAccuracy,
    /// Of logits above 0, the part whose label is above 1/2: of the answers yes, the right ones.
    Precision,
    /// Of labels above 1/2, the part whose logit is above 0: of the true, those that were found.
    Recall,
    /// The mean of squared differences.
    MeanSquaredError,
    /// The mean of absolute differences.
    MeanAbsoluteError,
}

/// What a loss or metric judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Labels {
    /// A class of each row.
    Classes,
    /// A number from 0 to 1 for each of the output's.
    Probabilities,
    /// A number for each of the output's.
    Numbers,
}

const LOSSES: [(&str, LossKind); 5] = [
    ("sparse_softmax_cross_entropy", LossKind::SparseSoftmaxCrossEntropy),
    ("softmax_cross_entropy", LossKind::SoftmaxCrossEntropy),
    ("sigmoid_cross_entropy", LossKind::SigmoidCrossEntropy),
    ("mean_squared_error", LossKind::MeanSquaredError),
    ("mean_absolute_error", LossKind::MeanAbsoluteError),
];

/// What losses are called in Keras, PyTorch and by many.
const LOSSES_ELSEWHERE: [(&str, &str); 17] = [
    ("sparse_categorical_crossentropy", "sparse_softmax_cross_entropy"),
    ("sparse_categorical_cross_entropy", "sparse_softmax_cross_entropy"),
    ("sparse_softmax_cross_entropy_with_logits", "sparse_softmax_cross_entropy"),
    ("cross_entropy", "sparse_softmax_cross_entropy"),
    ("cross_entropy_loss", "sparse_softmax_cross_entropy"),
    ("categorical_crossentropy", "softmax_cross_entropy"),
    ("categorical_cross_entropy", "softmax_cross_entropy"),
    ("binary_crossentropy", "sigmoid_cross_entropy"),
    ("binary_cross_entropy", "sigmoid_cross_entropy"),
    ("bce", "sigmoid_cross_entropy"),
    ("bce_with_logits_loss", "sigmoid_cross_entropy"),
    ("mse", "mean_squared_error"),
    ("mse_loss", "mean_squared_error"),
    ("l2", "mean_squared_error"),
    ("mae", "mean_absolute_error"),
    ("l1", "mean_absolute_error"),
    ("l1_loss", "mean_absolute_error"),
];

/// What metrics are called there.
const METRICS_ELSEWHERE: [(&str, &str); 9] = [
    ("acc", "accuracy"),
    ("sparse_categorical_accuracy", "accuracy"),
    ("categorical_accuracy", "accuracy"),
    ("top_k_accuracy", "top_k"),
    ("sparse_top_k_categorical_accuracy", "top_k"),
    ("mse", "mean_squared_error"),
    ("l2", "mean_squared_error"),
    ("mae", "mean_absolute_error"),
    ("l1", "mean_absolute_error"),
];

const METRICS: [(&str, MetricKind); 7] = [
    ("accuracy", MetricKind::Accuracy),
    ("top_k", MetricKind::TopK(5)),
    ("binary_accuracy", MetricKind::BinaryAccuracy),
    ("precision", MetricKind::Precision),
    ("recall", MetricKind::Recall),
    ("mean_squared_error", MetricKind::MeanSquaredError),
    ("mean_absolute_error", MetricKind::MeanAbsoluteError),
];

/// A loss of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Which.
    pub kind: LossKind,
    /// Its options.
    pub options: LossOptions,
}

/// Options of a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossOptions {
    /// The output or layer that it judges. Default the only output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What that should be: a label, or an input. Default `labels`.
    #[serde(default = "labels")]
    pub labels: String,
    /// What it is multiplied by in the sum of losses. Default 1.
    #[serde(default = "one", deserialize_with = "not_negative")]
    pub weight: f64,
    /// Label smoothing in training. Default that of `train`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "smoothing")]
    pub label_smoothing: Option<f64>,
}

/// A metric of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Which.
    pub kind: MetricKind,
    /// Its options.
    pub options: MetricOptions,
}

/// Options of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricOptions {
    /// The output or layer that it judges. Default the only output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What that should be: a label, or an input. Default `labels`.
    #[serde(default = "labels")]
    pub labels: String,
    /// What it is reported as. Default its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Options of `top_k`, whose first is how many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopKOptions {
    #[serde(default = "five", deserialize_with = "yaml::positive")]
    k: i64,
    #[serde(default)]
    output: Option<String>,
    #[serde(default = "labels")]
    labels: String,
    #[serde(default)]
    name: Option<String>,
}

fn labels() -> String {
    "labels".to_string()
}

fn one() -> f64 {
    1.0
}

fn five() -> i64 {
    5
}

fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    yaml::number(deserializer, |weight| weight.is_finite() && weight >= 0.0, "a number of at least 0")
}

fn smoothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    yaml::fraction(deserializer).map(Some)
}

/// The entry of `table` that `choice` names; `also` are names that others have for them.
fn named<T: Copy>(what: &str, table: &[(&str, T)], also: &[(&str, &str)], choice: &Choice<'_>) -> Result<T, NodeError> {
    if let Some((_, value)) = table.iter().find(|(name, _)| *name == choice.name) {
        return Ok(*value);
    }
    let plain = |name: &str| name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let given = plain(choice.name);
    let own = table.iter().map(|(name, _)| (*name, *name));
    let meant = also.iter().copied().chain(own).find(|(name, _)| plain(name) == given).map(|(_, own)| own);
    let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
    Err(choice.unknown(&names, meant, |name| {
        format!("a {what} is its name, or with options `{{{name}: , labels: NAME, output: NAME}}`")
    }))
}

impl From<LossKind> for Loss {
    fn from(kind: LossKind) -> Loss {
        let options = LossOptions { output: None, labels: labels(), weight: 1.0, label_smoothing: None };
        Loss { kind, options }
    }
}

impl From<MetricKind> for Metric {
    fn from(kind: MetricKind) -> Metric {
        Metric { kind, options: MetricOptions { output: None, labels: labels(), name: None } }
    }
}

impl Loss {
    fn read(node: &Node) -> Result<Loss, NodeError> {
        let choice = Choice::read(
            node,
            &["output", "labels", "weight", "label_smoothing"],
            "a loss, such as `mean_squared_error` or `{mean_squared_error: , labels: y}`",
        )?;
        Ok(Loss { kind: named("loss", &LOSSES, &LOSSES_ELSEWHERE, &choice)?, options: choice.options(&[])? })
    }

    /// Whether label smoothing changes it.
    pub fn is_smoothed(&self) -> bool {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy | LossKind::SoftmaxCrossEntropy | LossKind::SigmoidCrossEntropy => true,
            LossKind::MeanSquaredError | LossKind::MeanAbsoluteError => false,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        LOSSES.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name)
    }

    /// Whether it takes a softmax or a sigmoid of the output itself.
    pub(super) fn takes(&self) -> Option<nn::Activation> {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy | LossKind::SoftmaxCrossEntropy => Some(nn::Activation::Softmax),
            LossKind::SigmoidCrossEntropy => Some(nn::Activation::Sigmoid),
            LossKind::MeanSquaredError | LossKind::MeanAbsoluteError => None,
        }
    }

    /// What its labels are.
    pub(super) fn labels(&self) -> Labels {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy => Labels::Classes,
            LossKind::SoftmaxCrossEntropy | LossKind::SigmoidCrossEntropy => Labels::Probabilities,
            LossKind::MeanSquaredError | LossKind::MeanAbsoluteError => Labels::Numbers,
        }
    }

    /// Whether what it judges are logits of classes, of which one is right.
    pub(super) fn is_of_classes(&self) -> bool {
        matches!(self.kind, LossKind::SparseSoftmaxCrossEntropy | LossKind::SoftmaxCrossEntropy)
    }

    /// The loss of each example, or of each of its rows: `[batch, …]`.
    pub(super) fn per_example(&self, output: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy => {
                nn::sparse_softmax_cross_entropy_per_example(output, labels, label_smoothing)
            }
            LossKind::SoftmaxCrossEntropy => nn::softmax_cross_entropy_per_example(output, labels, label_smoothing),
            LossKind::SigmoidCrossEntropy => nn::sigmoid_cross_entropy_per_example(output, labels, label_smoothing),
            LossKind::MeanSquaredError => nn::mean_squared_error_per_example(output, labels),
            LossKind::MeanAbsoluteError => nn::mean_absolute_error_per_example(output, labels),
        }
    }
}

impl Metric {
    fn read(node: &Node) -> Result<Metric, NodeError> {
        let choice = Choice::read(
            node,
            &["output", "labels", "name", "k"],
            "a metric, such as `accuracy`, `{top_k: 3}` or `{accuracy: , labels: y}`",
        )?;
        let kind = named("metric", &METRICS, &METRICS_ELSEWHERE, &choice)?;
        if let MetricKind::TopK(_) = kind {
            let TopKOptions { k, output, labels, name } = choice.options(&[])?;
            return Ok(Metric { kind: MetricKind::TopK(k), options: MetricOptions { output, labels, name } });
        }
        Ok(Metric { kind, options: choice.options(&[])? })
    }

    /// Its kind's name.
    pub(super) fn kind_name(&self) -> &'static str {
        let same = |other: &MetricKind| std::mem::discriminant(other) == std::mem::discriminant(&self.kind);
        METRICS.iter().find(|(_, kind)| same(kind)).map_or("", |(name, _)| name)
    }

    /// What it is reported as.
    pub fn name(&self) -> String {
        match (&self.options.name, self.kind) {
            (Some(name), _) => name.clone(),
            (None, MetricKind::TopK(k)) => format!("top_{k}_accuracy"),
            (None, _) => self.kind_name().to_string(),
        }
    }

    /// What its labels are.
    pub(super) fn labels(&self) -> Labels {
        match self.kind {
            MetricKind::Accuracy | MetricKind::TopK(_) => Labels::Classes,
            MetricKind::BinaryAccuracy | MetricKind::Precision | MetricKind::Recall => Labels::Probabilities,
            MetricKind::MeanSquaredError | MetricKind::MeanAbsoluteError => Labels::Numbers,
        }
    }

    /// The value of each example, or of each of its rows, pred or f32, `[batch, …]`; and which of them count, pred of those
    /// dims, where not all do.
    pub(super) fn per_example(&self, output: &Tensor, labels: &Tensor) -> (Tensor, Option<Tensor>) {
        let all = match self.kind {
            MetricKind::Precision => {
                let (said, truth) = nn::sides(output, labels);
                return (truth, Some(said));
            }
            MetricKind::Recall => {
                let (said, truth) = nn::sides(output, labels);
                return (said, Some(truth));
            }
            MetricKind::Accuracy => nn::is_correct(output, labels),
            MetricKind::TopK(k) => nn::is_in_top_k(output, labels, k),
            MetricKind::BinaryAccuracy => nn::is_on_side(output, labels),
            MetricKind::MeanSquaredError => nn::mean_squared_error_per_example(output, labels),
            MetricKind::MeanAbsoluteError => nn::mean_absolute_error_per_example(output, labels),
        };
        (all, None)
    }
}

/// The label that an output of `[batch, dims…]` is judged by: its class along the last axis, or numbers like it.
pub(super) fn label_of(name: &str, dims: &[i64], labels: Labels) -> Feature {
    let dims = dims.get(1..).unwrap_or_default();
    match (labels, dims) {
        (Labels::Classes, [leading @ .., n_classes]) => {
            Feature::exact(name, DType::S32, leading).below(*n_classes).label()
        }
        // Which the loss refuses.
        (Labels::Classes, []) => Feature::exact(name, DType::S32, []).label(),
        (Labels::Probabilities, dims) => Feature::exact(name, DType::F32, dims).label().probability(),
        (Labels::Numbers, dims) => Feature::exact(name, DType::F32, dims).label(),
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Loss, D::Error> {
        Loss::read(&Node::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metric, D::Error> {
        Metric::read(&Node::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.name(), &self.options)?;
        map.end()
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.kind {
            MetricKind::TopK(k) => {
                map.serialize_entry("top_k", &k)?;
                let MetricOptions { output, labels, name } = &self.options;
                if let Some(output) = output {
                    map.serialize_entry("output", output)?;
                }
                map.serialize_entry("labels", labels)?;
                if let Some(name) = name {
                    map.serialize_entry("name", name)?;
                }
            }
            _ => map.serialize_entry(self.kind_name(), &self.options)?,
        }
        map.end()
    }
}
