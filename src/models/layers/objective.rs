//! Losses and metrics by name.

use super::choice::Choice;
use crate::document::{self, Node, ReadError};
use crate::graph::Tensor;
use crate::hlo::DType;
use crate::hlo::ops::BinaryOp;
use crate::nn::{self, Focal};
use crate::task::{self, Feature};
use serde::de::{self, Deserializer};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// What a loss is called, and the options of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossKind {
    /// [`nn::sparse_softmax_cross_entropy_per_example`]: labels are classes.
    SparseSoftmaxCrossEntropy,
    /// [`nn::softmax_cross_entropy_per_example`]: labels are distributions.
    SoftmaxCrossEntropy,
    /// [`nn::sigmoid_cross_entropy_per_example`]: labels are 0 or 1.
    SigmoidCrossEntropy,
    /// [`nn::sparse_softmax_focal_cross_entropy_per_example`]: labels are classes.
    SparseSoftmaxFocalCrossEntropy(Focal),
    /// [`nn::softmax_focal_cross_entropy_per_example`]: labels are distributions.
    SoftmaxFocalCrossEntropy(Focal),
    /// [`nn::sigmoid_focal_cross_entropy_per_example`]: labels are 0 or 1.
    SigmoidFocalCrossEntropy(Focal),
    /// [`nn::sigmoid_dice_per_example`]: labels are 0 or 1.
    SigmoidDice,
    /// [`nn::softmax_dice_per_example`]: labels are one-hot.
    SoftmaxDice,
    /// [`nn::huber_per_example`].
    Huber {
        /// Where squares end.
        delta: f64,
    },
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
    /// The mean over classes of the part of each whose greatest logit is its own.
    MeanPerClassAccuracy,
    /// The mean over classes of intersection over union.
    MeanIou,
    /// e to the mean cross-entropy.
    Perplexity,
    /// The area under the ROC curve, from so many thresholds.
    Auc(i64),
    /// Of logits above 0 and labels above 1/2, the part that is both.
    Iou,
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

const FOCAL: Focal = Focal { gamma: 2.0, alpha: Some(0.25) };

const LOSSES: [(&str, LossKind); 11] = [
    ("sparse_softmax_cross_entropy", LossKind::SparseSoftmaxCrossEntropy),
    ("softmax_cross_entropy", LossKind::SoftmaxCrossEntropy),
    ("sigmoid_cross_entropy", LossKind::SigmoidCrossEntropy),
    ("sparse_softmax_focal_cross_entropy", LossKind::SparseSoftmaxFocalCrossEntropy(FOCAL)),
    ("softmax_focal_cross_entropy", LossKind::SoftmaxFocalCrossEntropy(FOCAL)),
    ("sigmoid_focal_cross_entropy", LossKind::SigmoidFocalCrossEntropy(FOCAL)),
    ("sigmoid_dice", LossKind::SigmoidDice),
    ("softmax_dice", LossKind::SoftmaxDice),
    ("mean_squared_error", LossKind::MeanSquaredError),
    ("mean_absolute_error", LossKind::MeanAbsoluteError),
    // Which has no delta that fits all targets: it must be said.
    ("huber", LossKind::Huber { delta: f64::NAN }),
];

/// What losses are called in Keras, PyTorch and by many.
const LOSSES_ELSEWHERE: [(&str, &str); 26] = [
    ("focal", "sigmoid_focal_cross_entropy"),
    ("focal_loss", "sigmoid_focal_cross_entropy"),
    ("binary_focal_crossentropy", "sigmoid_focal_cross_entropy"),
    ("categorical_focal_crossentropy", "softmax_focal_cross_entropy"),
    ("dice", "sigmoid_dice"),
    ("dice_loss", "sigmoid_dice"),
    ("huber_loss", "huber"),
    ("smooth_l1", "huber"),
    ("smooth_l1_loss", "huber"),
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
const METRICS_ELSEWHERE: [(&str, &str); 14] = [
    ("balanced_accuracy", "mean_per_class_accuracy"),
    ("mean_io_u", "mean_iou"),
    ("miou", "mean_iou"),
    ("binary_iou", "iou"),
    ("roc_auc", "auc"),
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

const METRICS: [(&str, MetricKind); 12] = [
    ("accuracy", MetricKind::Accuracy),
    ("top_k", MetricKind::TopK(5)),
    ("mean_per_class_accuracy", MetricKind::MeanPerClassAccuracy),
    ("mean_iou", MetricKind::MeanIou),
    ("perplexity", MetricKind::Perplexity),
    ("auc", MetricKind::Auc(200)),
    ("iou", MetricKind::Iou),
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
    /// What each class weighs, of losses of classes. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<Vec<f64>>,
    /// The feature that says what each example, or each of its rows, weighs. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_weights: Option<String>,
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

/// Options of `auc`, whose first is from how many thresholds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AucOptions {
    #[serde(default = "two_hundred", deserialize_with = "thresholds")]
    num_thresholds: i64,
    #[serde(default)]
    output: Option<String>,
    #[serde(default = "labels")]
    labels: String,
    #[serde(default)]
    name: Option<String>,
}

/// A finite number of at least 0.
#[derive(Deserialize)]
struct NotNegative(#[serde(deserialize_with = "not_negative")] f64);

/// A number from 0 to 1.
#[derive(Deserialize)]
struct Part(#[serde(deserialize_with = "part")] f64);

/// A finite number above 0.
#[derive(Deserialize)]
struct Above(#[serde(deserialize_with = "above")] f64);

/// Options of `top_k`, whose first is how many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopKOptions {
    #[serde(default = "five", deserialize_with = "document::positive")]
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
    document::number(deserializer, |weight| weight.is_finite() && weight >= 0.0, "a number of at least 0")
}

fn part<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |alpha| (0.0..=1.0).contains(&alpha), "a number from 0 to 1")
}

fn above<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let fits = |delta: f64| delta as f32 > 0.0 && (delta as f32).is_finite();
    document::number(deserializer, fits, "a finite number above 0")
}

fn two_hundred() -> i64 {
    200
}

/// Thresholds that a batch is compared with, each.
fn thresholds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let fits = |n: f64| n.fract() == 0.0 && (2.0..=10_000.0).contains(&n);
    Ok(document::number(deserializer, fits, "a whole number from 2 to 10000")? as i64)
}

fn smoothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    document::fraction(deserializer).map(Some)
}

/// The entry of `table` that `choice` names; `also` are names that others have for them.
fn named<T: Copy>(what: &str, table: &[(&str, T)], also: &[(&str, &str)], choice: &Choice<'_>) -> Result<T, ReadError> {
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
        let options = LossOptions {
            output: None,
            labels: labels(),
            weight: 1.0,
            label_smoothing: None,
            class_weights: None,
            example_weights: None,
        };
        Loss { kind, options }
    }
}

impl From<MetricKind> for Metric {
    fn from(kind: MetricKind) -> Metric {
        Metric { kind, options: MetricOptions { output: None, labels: labels(), name: None } }
    }
}

impl Loss {
    fn read(node: &Node) -> Result<Loss, ReadError> {
        let mut choice = Choice::read(
            node,
            &[
                "output",
                "labels",
                "weight",
                "label_smoothing",
                "class_weights",
                "example_weights",
                "gamma",
                "alpha",
                "delta",
            ],
            "a loss, such as `mean_squared_error` or `{mean_squared_error: , labels: y}`",
        )?;
        let mut kind = named("loss", &LOSSES, &LOSSES_ELSEWHERE, &choice)?;
        let own: &'static [&'static str] = match &mut kind {
            LossKind::SparseSoftmaxFocalCrossEntropy(focal)
            | LossKind::SoftmaxFocalCrossEntropy(focal)
            | LossKind::SigmoidFocalCrossEntropy(focal) => {
                if let Some(NotNegative(gamma)) = choice.take("gamma")? {
                    focal.gamma = gamma;
                }
                if let Some(alpha) = choice.take::<Option<Part>>("alpha")? {
                    focal.alpha = alpha.map(|Part(alpha)| alpha);
                }
                &["gamma", "alpha"]
            }
            LossKind::Huber { delta } => {
                let Some(Above(given)) = choice.take("delta")? else {
                    let error = ReadError::new("huber does not say where its squares end").or_at(choice.mark);
                    return Err(error.with_help("add `delta`, in the unit of the output: `{huber: , delta: 1.0}`"));
                };
                *delta = given;
                &["delta"]
            }
            LossKind::SparseSoftmaxCrossEntropy
            | LossKind::SoftmaxCrossEntropy
            | LossKind::SigmoidCrossEntropy
            | LossKind::SigmoidDice
            | LossKind::SoftmaxDice
            | LossKind::MeanSquaredError
            | LossKind::MeanAbsoluteError => &[],
        };
        Ok(Loss { kind, options: choice.options(own)? })
    }

    /// Whether label smoothing changes it.
    pub fn is_smoothed(&self) -> bool {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy
            | LossKind::SoftmaxCrossEntropy
            | LossKind::SigmoidCrossEntropy
            | LossKind::SparseSoftmaxFocalCrossEntropy(_)
            | LossKind::SoftmaxFocalCrossEntropy(_)
            | LossKind::SigmoidFocalCrossEntropy(_) => true,
            LossKind::SigmoidDice
            | LossKind::SoftmaxDice
            | LossKind::Huber { .. }
            | LossKind::MeanSquaredError
            | LossKind::MeanAbsoluteError => false,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        let same = |other: &LossKind| std::mem::discriminant(other) == std::mem::discriminant(&self.kind);
        LOSSES.iter().find(|(_, kind)| same(kind)).map_or("", |(name, _)| name)
    }

    /// Whether it takes a softmax or a sigmoid of the output itself.
    pub(super) fn takes(&self) -> Option<nn::Activation> {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy
            | LossKind::SoftmaxCrossEntropy
            | LossKind::SparseSoftmaxFocalCrossEntropy(_)
            | LossKind::SoftmaxFocalCrossEntropy(_)
            | LossKind::SoftmaxDice => Some(nn::Activation::Softmax),
            LossKind::SigmoidCrossEntropy | LossKind::SigmoidFocalCrossEntropy(_) | LossKind::SigmoidDice => {
                Some(nn::Activation::Sigmoid)
            }
            LossKind::Huber { .. } | LossKind::MeanSquaredError | LossKind::MeanAbsoluteError => None,
        }
    }

    /// What its labels are.
    pub(super) fn labels(&self) -> Labels {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy | LossKind::SparseSoftmaxFocalCrossEntropy(_) => Labels::Classes,
            LossKind::SoftmaxCrossEntropy
            | LossKind::SigmoidCrossEntropy
            | LossKind::SoftmaxFocalCrossEntropy(_)
            | LossKind::SigmoidFocalCrossEntropy(_)
            | LossKind::SigmoidDice
            | LossKind::SoftmaxDice => Labels::Probabilities,
            LossKind::Huber { .. } | LossKind::MeanSquaredError | LossKind::MeanAbsoluteError => Labels::Numbers,
        }
    }

    /// Whether what it judges are logits of classes, of which one is right.
    pub(super) fn is_of_classes(&self) -> bool {
        self.takes() == Some(nn::Activation::Softmax)
    }

    /// Whether each of its rows is of one class, which may have a weight.
    pub(super) fn weighs_classes(&self) -> bool {
        self.is_of_classes() && self.kind != LossKind::SoftmaxDice
    }

    /// The loss of each example, or of each of its rows: `[batch, …]`.
    pub(super) fn per_example(&self, output: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
        match self.kind {
            LossKind::SparseSoftmaxCrossEntropy => {
                nn::sparse_softmax_cross_entropy_per_example(output, labels, label_smoothing)
            }
            LossKind::SoftmaxCrossEntropy => nn::softmax_cross_entropy_per_example(output, labels, label_smoothing),
            LossKind::SigmoidCrossEntropy => nn::sigmoid_cross_entropy_per_example(output, labels, label_smoothing),
            LossKind::SparseSoftmaxFocalCrossEntropy(focal) => {
                nn::sparse_softmax_focal_cross_entropy_per_example(output, labels, &focal, label_smoothing)
            }
            LossKind::SoftmaxFocalCrossEntropy(focal) => {
                nn::softmax_focal_cross_entropy_per_example(output, labels, &focal, label_smoothing)
            }
            LossKind::SigmoidFocalCrossEntropy(focal) => {
                nn::sigmoid_focal_cross_entropy_per_example(output, labels, &focal, label_smoothing)
            }
            LossKind::SigmoidDice => nn::sigmoid_dice_per_example(output, labels),
            LossKind::SoftmaxDice => nn::softmax_dice_per_example(output, labels),
            LossKind::Huber { delta } => nn::huber_per_example(output, labels, delta),
            LossKind::MeanSquaredError => nn::mean_squared_error_per_example(output, labels),
            LossKind::MeanAbsoluteError => nn::mean_absolute_error_per_example(output, labels),
        }
    }
}

impl Metric {
    fn read(node: &Node) -> Result<Metric, ReadError> {
        let choice = Choice::read(
            node,
            &["output", "labels", "name", "k", "num_thresholds"],
            "a metric, such as `accuracy`, `{top_k: 3}` or `{accuracy: , labels: y}`",
        )?;
        let kind = named("metric", &METRICS, &METRICS_ELSEWHERE, &choice)?;
        if let MetricKind::TopK(_) = kind {
            let TopKOptions { k, output, labels, name } = choice.options(&[])?;
            return Ok(Metric { kind: MetricKind::TopK(k), options: MetricOptions { output, labels, name } });
        }
        if let MetricKind::Auc(_) = kind {
            let AucOptions { num_thresholds, output, labels, name } = choice.options(&[])?;
            return Ok(Metric {
                kind: MetricKind::Auc(num_thresholds),
                options: MetricOptions { output, labels, name },
            });
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
            MetricKind::Accuracy
            | MetricKind::TopK(_)
            | MetricKind::MeanPerClassAccuracy
            | MetricKind::MeanIou
            | MetricKind::Perplexity => Labels::Classes,
            MetricKind::BinaryAccuracy
            | MetricKind::Precision
            | MetricKind::Recall
            | MetricKind::Auc(_)
            | MetricKind::Iou => Labels::Probabilities,
            MetricKind::MeanSquaredError | MetricKind::MeanAbsoluteError => Labels::Numbers,
        }
    }

    /// Whether it takes a softmax or a sigmoid of the output itself. Of the greatest logit a softmax is the greatest, too.
    pub(super) fn takes(&self) -> Option<nn::Activation> {
        match self.kind {
            MetricKind::Perplexity => Some(nn::Activation::Softmax),
            MetricKind::BinaryAccuracy
            | MetricKind::Precision
            | MetricKind::Recall
            | MetricKind::Auc(_)
            | MetricKind::Iou => Some(nn::Activation::Sigmoid),
            MetricKind::Accuracy
            | MetricKind::TopK(_)
            | MetricKind::MeanPerClassAccuracy
            | MetricKind::MeanIou
            | MetricKind::MeanSquaredError
            | MetricKind::MeanAbsoluteError => None,
        }
    }

    /// What is reported of a batch. `weight` is 1 for examples that count and 0 for others, `f32[batch]`; without it, all do.
    pub(super) fn of_batch(&self, output: &Tensor, labels: &Tensor, weight: Option<&Tensor>) -> task::Metric {
        let counts = |weight: &Tensor| weight.greater(&weight.graph().full(weight.dtype(), &weight.dims(), 0.0));
        let over = |x: &Tensor| weight.map(|weight| of_rows(&counts(weight), x));
        let mean = |each: &Tensor| match weight {
            // As the zoo's: f32 counts the examples of a batch, but not all rows of large ones.
            Some(weight) if each.rank() <= 1 => task::Metric::weighted(each, weight),
            Some(weight) => task::Metric::weighted(each, &of_rows(&counts(weight), each)),
            None => task::Metric::mean(each),
        };
        // Of those where `of` holds, the part where `is` does.
        let part = |is: &Tensor, of: &Tensor| match over(of) {
            Some(counted) => task::Metric::weighted(is, &of.binary(BinaryOp::And, &counted)),
            None => task::Metric::weighted(is, of),
        };
        match self.kind {
            MetricKind::Precision => {
                let (said, truth) = nn::sides(output, labels);
                part(&truth, &said)
            }
            MetricKind::Recall => {
                let (said, truth) = nn::sides(output, labels);
                part(&said, &truth)
            }
            MetricKind::Iou => {
                let (said, truth) = nn::sides(output, labels);
                part(&said.binary(BinaryOp::And, &truth), &said.binary(BinaryOp::Or, &truth))
            }
            MetricKind::MeanPerClassAccuracy => {
                let counts = nn::class_counts(output, labels, over(labels).as_ref());
                task::Metric::mean_of_ratios(&counts.hits, &counts.labelled)
            }
            MetricKind::MeanIou => {
                let counts = nn::class_counts(output, labels, over(labels).as_ref());
                task::Metric::mean_of_ratios(&counts.hits, &counts.unions())
            }
            MetricKind::Auc(n_thresholds) => {
                let (above, of) = nn::above_thresholds(output, labels, over(labels).as_ref(), n_thresholds);
                task::Metric::area(&above, &of)
            }
            MetricKind::Perplexity => {
                mean(&nn::sparse_softmax_cross_entropy_per_example(output, labels, 0.0)).exponential()
            }
            MetricKind::Accuracy => mean(&nn::is_correct(output, labels)),
            MetricKind::TopK(k) => mean(&nn::is_in_top_k(output, labels, k)),
            MetricKind::BinaryAccuracy => mean(&nn::is_on_side(output, labels)),
            MetricKind::MeanSquaredError => mean(&nn::mean_squared_error_per_example(output, labels)),
            MetricKind::MeanAbsoluteError => mean(&nn::mean_absolute_error_per_example(output, labels)),
        }
    }
}

/// What is said of each example, for each of its rows in `x`.
pub(super) fn of_rows(each: &Tensor, x: &Tensor) -> Tensor {
    if x.rank() <= 1 || x.is_poison() { each.clone() } else { each.broadcast_in_dim(&x.dims(), &[0]) }
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

/// A loss's options with those of its own.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    options: &'a LossOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    gamma: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alpha: Option<Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<f64>,
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        let focal = match self.kind {
            LossKind::SparseSoftmaxFocalCrossEntropy(focal)
            | LossKind::SoftmaxFocalCrossEntropy(focal)
            | LossKind::SigmoidFocalCrossEntropy(focal) => Some(focal),
            _ => None,
        };
        let written = Written {
            options: &self.options,
            gamma: focal.map(|focal| focal.gamma),
            // Nothing is not the default: it is written.
            alpha: focal.map(|focal| focal.alpha),
            delta: if let LossKind::Huber { delta } = self.kind { Some(delta) } else { None },
        };
        map.serialize_entry(self.name(), &written)?;
        map.end()
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.kind {
            MetricKind::TopK(main) | MetricKind::Auc(main) => {
                map.serialize_entry(self.kind_name(), &main)?;
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
