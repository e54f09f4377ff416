//! Metrics by name: a line of the table each.
//!
//! A metric is added in two places: what it is of each example, a function of `nn`, and its line here.

use super::choice::{Choice, Names};
use super::objective::{Labels, NameElsewhere, default_labels, of_rows, unknown_name};
use crate::document::{self, Node, ReadError};
use crate::graph::Tensor;
use crate::nn::{self, Activation};
use crate::task;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::BinaryOp;
use serde::de::Deserializer;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// What a metric makes of an output, and of which labels.
#[derive(Clone, Copy)]
struct MetricForm {
    /// What it takes of the output itself. Of the largest logit a softmax is the largest, too.
    takes: Option<Activation>,
    labels: Labels,
    /// Of a metric that must not judge logits of classes: what does.
    of_classes: Option<&'static str>,
}

const OF_CLASSES: MetricForm = MetricForm { takes: None, labels: Labels::Classes, of_classes: None };
const OF_LOGITS: MetricForm = MetricForm { takes: Some(Activation::Softmax), ..OF_CLASSES };
const OF_ANSWERS: MetricForm =
    MetricForm { takes: Some(Activation::Sigmoid), labels: Labels::Probabilities, of_classes: None };
const OF_ANSWERS_NOT_F1: MetricForm = MetricForm { of_classes: Some("macro_f1"), ..OF_ANSWERS };
const OF_ANSWERS_NOT_MEAN_IOU: MetricForm = MetricForm { of_classes: Some("mean_iou"), ..OF_ANSWERS };
const OF_ANSWERS_NOT_CLASSES: MetricForm = MetricForm { of_classes: Some("mean_per_class_accuracy"), ..OF_ANSWERS };
const OF_NUMBERS: MetricForm = MetricForm { takes: None, labels: Labels::Numbers, of_classes: None };

/// Names, forms, names elsewhere, and what is reported of a batch. A number is the first option, `{top_k: 3}`.
macro_rules! metrics {
    ($($(#[$doc:meta])* $Kind:ident $(($main:ident: $Main:ty))? = $name:literal, $form:ident, [$($elsewhere:literal),*],
        |$batch:ident| $of:expr;)*) => {
        /// What a metric is called.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum MetricKind {
            $($(#[$doc])* $Kind $(($Main))?,)*
        }

        const NAMES: &[&str] = &[$($name),*];
        const ELSEWHERE: &[NameElsewhere] = &[$($(NameElsewhere { theirs: $elsewhere, ours: $name },)*)*];
        const MAIN_KEYS: &[&str] = &[$($(<$Main>::KEY,)?)*];

        impl MetricKind {
            fn read(name: &str, choice: &mut Choice<'_>) -> Result<MetricKind, ReadError> {
                match name {
                    $($name => Ok(MetricKind::$Kind $((choice.take_main::<$Main>(<$Main>::KEY)?.unwrap_or_default()))?),)*
                    _ => Err(unknown_name("metric", NAMES, ELSEWHERE, choice)),
                }
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(MetricKind::$Kind { .. } => $name,)*
                }
            }

            fn form(&self) -> MetricForm {
                match self {
                    $(MetricKind::$Kind { .. } => $form,)*
                }
            }

            /// Its first option, of one that has a number.
            fn main(&self) -> Option<i64> {
                match self {
                    $(MetricKind::$Kind { $(0: $main,)? .. } => {
                        let main: &[i64] = &[$($main.0,)?];
                        main.first().copied()
                    })*
                }
            }

            fn of_batch(&self, judged: &Judged<'_>) -> task::Metric {
                match self {
                    $(MetricKind::$Kind { $(0: $main,)? .. } => {
                        let $batch = judged;
                        $of
                    })*
                }
            }
        }
    };
}

metrics! {
    /// The part of rows whose largest logit is their label's.
    Accuracy = "accuracy", OF_CLASSES, ["acc", "sparse_categorical_accuracy", "categorical_accuracy"],
        |batch| batch.mean(&nn::is_correct(batch.output, batch.labels));
    /// The part of rows whose label is among so many of the largest.
    TopK(k: TopK) = "top_k", OF_CLASSES, ["top_k_accuracy", "sparse_top_k_categorical_accuracy"],
        |batch| batch.mean(&nn::is_in_top_k(batch.output, batch.labels, k.0));
    /// The mean over classes of the part of each whose largest logit is its own.
    MeanPerClassAccuracy = "mean_per_class_accuracy", OF_CLASSES, ["balanced_accuracy"], |batch| {
        let counts = nn::class_counts(batch.output, batch.labels, batch.counted(batch.labels).as_ref());
        task::Metric::mean_of_ratios(&counts.hits, &counts.labelled)
    };
    /// The mean over classes of intersection over union.
    MeanIou = "mean_iou", OF_CLASSES, ["mean_io_u", "miou"], |batch| {
        let counts = nn::class_counts(batch.output, batch.labels, batch.counted(batch.labels).as_ref());
        task::Metric::mean_of_ratios(&counts.hits, &counts.unions())
    };
    /// e to the mean cross-entropy.
    Perplexity = "perplexity", OF_LOGITS, [], |batch| {
        let each = nn::sparse_softmax_cross_entropy_per_example(batch.output, batch.labels, 0.0);
        batch.mean(&each).exponential()
    };
    /// The area under the ROC curve, from so many thresholds.
    Auc(n: Thresholds) = "auc", OF_ANSWERS_NOT_CLASSES, ["roc_auc"], |batch| {
        let counted = batch.counted(batch.labels);
        let (above, of) = nn::above_thresholds(batch.output, batch.labels, counted.as_ref(), n.0);
        task::Metric::area(&above, &of)
    };
    /// Of logits above 0 and labels above 1/2, the part that is both.
    Iou = "iou", OF_ANSWERS_NOT_MEAN_IOU, ["binary_iou"], |batch| {
        let (said, truth) = nn::sides(batch.output, batch.labels);
        batch.part(&said.binary(BinaryOp::And, &truth), &said.binary(BinaryOp::Or, &truth))
    };
    /// The part of logits that are above 0 where the label is 1, and below where it is 0.
    BinaryAccuracy = "binary_accuracy", OF_ANSWERS, [],
        |batch| batch.mean(&nn::is_on_side(batch.output, batch.labels));
    /// Of logits above 0, the part whose label is above 1/2: of the answers yes, the right ones.
    Precision = "precision", OF_ANSWERS, [], |batch| {
        let (said, truth) = nn::sides(batch.output, batch.labels);
        batch.part(&truth, &said)
    };
    /// Of labels above 1/2, the part whose logit is above 0: of the true, those that were found.
    Recall = "recall", OF_ANSWERS, [], |batch| {
        let (said, truth) = nn::sides(batch.output, batch.labels);
        batch.part(&said, &truth)
    };
    /// The harmonic mean of precision and recall.
    F1 = "f1", OF_ANSWERS_NOT_F1, ["f1_score", "dice_coefficient"], |batch| {
        let (said, truth) = nn::sides(batch.output, batch.labels);
        batch.harmonic(&said, &truth)
    };
    /// The mean over classes of the F1 of each.
    MacroF1 = "macro_f1", OF_CLASSES, ["f1_macro"], |batch| {
        let counts = nn::class_counts(batch.output, batch.labels, batch.counted(batch.labels).as_ref());
        task::Metric::mean_of_ratios(&(&counts.hits + &counts.hits), &(&counts.unions() + &counts.hits))
    };
    /// The mean of the cosine along the last axis.
    CosineSimilarity = "cosine_similarity", OF_NUMBERS, [],
        |batch| batch.mean(&nn::cosine_per_example(batch.output, batch.labels).negate());
    /// The share of the labels' variance that is predicted.
    R2 = "r2", OF_NUMBERS, ["r2_score", "coefficient_of_determination"], |batch| batch.determination();
    /// The mean of squared differences.
    MeanSquaredError = "mean_squared_error", OF_NUMBERS, ["mse", "l2"],
        |batch| batch.mean(&nn::mean_squared_error_per_example(batch.output, batch.labels));
    /// The mean of absolute differences.
    MeanAbsoluteError = "mean_absolute_error", OF_NUMBERS, ["mae", "l1"],
        |batch| batch.mean(&nn::mean_absolute_error_per_example(batch.output, batch.labels));
}

/// Among how many of the largest logits a label is to be. Default 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct TopK(#[serde(deserialize_with = "document::positive")] pub i64);

impl TopK {
    const KEY: &'static str = "k";
}

impl Default for TopK {
    fn default() -> TopK {
        TopK(5)
    }
}

/// How many thresholds a batch is compared with, each. Default 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Thresholds(#[serde(deserialize_with = "thresholds")] pub i64);

impl Thresholds {
    const KEY: &'static str = "num_thresholds";
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds(200)
    }
}

fn thresholds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let fits = |n: f64| n.fract() == 0.0 && (2.0..=10_000.0).contains(&n);
    Ok(document::number(deserializer, fits, "a whole number from 2 to 10000")? as i64)
}

/// What a metric judges in a batch.
pub(super) struct Judged<'a> {
    /// What the network made.
    pub output: &'a Tensor,
    /// What it should have made.
    pub labels: &'a Tensor,
    /// In an evaluation: 1 for examples that count and 0 for padding, `f32[batch]`.
    pub weight: Option<Tensor>,
    /// What each example, or each of its rows, weighs: `f32[batch, …]`. Default 1.
    pub example_weights: Option<Tensor>,
}

impl Judged<'_> {
    /// Which elements of what has the dims of `x` count, pred, or what each counts, f32; nothing if all count alike.
    fn counted(&self, x: &Tensor) -> Option<Tensor> {
        let is_example = |weight: &Tensor| weight.greater(&weight.graph().full(weight.dtype(), &weight.dims(), 0.0));
        let is_counted = self.weight.as_ref().map(|weight| of_rows(&is_example(weight), x));
        let Some(weights) = &self.example_weights else { return is_counted };
        if let Some(poison) = [x, weights].into_iter().find(|tensor| tensor.is_poison()) {
            return Some(poison.clone());
        }
        let axes: Vec<i64> = (0..weights.rank() as i64).collect();
        let weights = weights.broadcast_in_dim(&x.dims(), &axes);
        let zeros = weights.graph().full(DType::F32, &x.dims(), 0.0);
        Some(is_counted.map_or(weights.clone(), |is_counted| is_counted.select(&weights, &zeros)))
    }

    /// The mean of what is said of each example, or of its rows.
    fn mean(&self, each: &Tensor) -> task::Metric {
        match (&self.weight, &self.example_weights) {
            // As the zoo's: f32 counts the examples of a batch, but not all rows of large ones.
            (Some(weight), None) if each.rank() <= 1 => task::Metric::weighted(each, weight),
            _ => match self.counted(each) {
                Some(counted) => task::Metric::weighted(each, &counted),
                None => task::Metric::mean(each),
            },
        }
    }

    /// Twice where both hold, over where either does, each counted: of what is said and what is true, F1.
    fn harmonic(&self, said: &Tensor, truth: &Tensor) -> task::Metric {
        let both = said.binary(BinaryOp::And, truth);
        let ratio = |is: &Tensor| match self.counted(is) {
            None => self.sum(is, None),
            Some(counted) => self.sum(is, Some(&counted)),
        };
        let hits = ratio(&both);
        task::Metric::ratio(&(&hits + &hits), &(ratio(said) + ratio(truth)))
    }

    /// How many of these truths count, or what they weigh: `s32[]` or `f32[]`.
    fn sum(&self, is: &Tensor, counted: Option<&Tensor>) -> Tensor {
        let axes: Vec<i64> = (0..is.rank() as i64).collect();
        match counted {
            None => is.cast(DType::S32).sum(&axes),
            Some(counted) if counted.dtype() == DType::Pred => {
                is.binary(BinaryOp::And, counted).cast(DType::S32).sum(&axes)
            }
            Some(weights) => {
                let zeros = weights.graph().full(DType::F32, &weights.dims(), 0.0);
                is.select(weights, &zeros).sum(&axes)
            }
        }
    }

    /// Sums for R² over each number of the output: of squared differences, of labels and of their squares, and of weights.
    fn determination(&self) -> task::Metric {
        let (output, labels) = (self.output, self.labels);
        if let Some(poison) = [output, labels].into_iter().find(|tensor| tensor.is_poison()) {
            return task::Metric::mean(poison);
        }
        let n: i64 = labels.dims()[1..].iter().product();
        let flat = |x: &Tensor| x.reshape([labels.dims()[0], n]);
        let (output, labels) = (flat(output), flat(labels));
        let ones = labels.graph().full(DType::F32, &labels.dims(), 1.0);
        let weights = match self.counted(self.labels) {
            None => ones,
            Some(counted) => flat(&counted.cast(DType::F32)),
        };
        let difference = &output - &labels;
        let sum = |x: Tensor| {
            let zeros = x.graph().full(DType::F32, &x.dims(), 0.0);
            weights.greater(&zeros).select(&(x * &weights), &zeros).sum(&[0]).reshape([1, n])
        };
        let sums = [sum(&difference * &difference), sum(labels.clone()), sum(&labels * &labels)];
        let sums = Tensor::concatenate(&[&sums[0], &sums[1], &sums[2]], 0);
        task::Metric::determination(&sums, &weights.sum(&[0]))
    }

    /// Of those where `of` holds, the part where `is` does.
    fn part(&self, is: &Tensor, of: &Tensor) -> task::Metric {
        match self.counted(of) {
            None => task::Metric::weighted(is, of),
            Some(counted) if counted.dtype() == DType::Pred => {
                task::Metric::weighted(is, &of.binary(BinaryOp::And, &counted))
            }
            Some(weights) => {
                let zeros = weights.graph().full(DType::F32, &weights.dims(), 0.0);
                task::Metric::weighted(is, &of.select(&weights, &zeros))
            }
        }
    }
}

/// A metric of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The metric.
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
    /// What that should be: a label, an input, or a number for all. Default `labels`.
    #[serde(default = "default_labels", deserialize_with = "super::constant::labels")]
    pub labels: String,
    /// What it is reported as. Default its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What each example, or each of its rows, weighs. Default as in the loss of the same output.
    #[serde(default, skip_serializing_if = "MetricWeights::is_as_in_loss")]
    pub example_weights: MetricWeights,
}

/// The keys of [`MetricOptions`].
const COMMON: [&str; 4] = ["output", "labels", "name", "example_weights"];

/// What examples weigh in a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetricWeights {
    /// What they weigh in the loss of the same output.
    #[default]
    AsInLoss,
    /// All alike. In YAML `null`.
    Alike,
    /// What the feature of this name says.
    Feature(String),
}

impl MetricWeights {
    fn is_as_in_loss(&self) -> bool {
        *self == MetricWeights::AsInLoss
    }
}

impl<'de> Deserialize<'de> for MetricWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MetricWeights, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map_or(MetricWeights::Alike, MetricWeights::Feature))
    }
}

impl Serialize for MetricWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            MetricWeights::Feature(name) => serializer.serialize_str(name),
            MetricWeights::AsInLoss | MetricWeights::Alike => serializer.serialize_none(),
        }
    }
}

impl From<MetricKind> for Metric {
    fn from(kind: MetricKind) -> Metric {
        let (labels, example_weights) = (default_labels(), MetricWeights::AsInLoss);
        Metric { kind, options: MetricOptions { output: None, labels, name: None, example_weights } }
    }
}

/// Whether it is a name here or elsewhere.
fn is_known(name: &str) -> bool {
    NAMES.contains(&name) || ELSEWHERE.iter().any(|elsewhere| elsewhere.theirs == name)
}

impl Metric {
    fn read(node: &Node) -> Result<Metric, ReadError> {
        let keys: Vec<&str> = COMMON.iter().chain(MAIN_KEYS).copied().collect();
        let example = "a metric, such as `accuracy`, `{top_k: 3}` or `{accuracy: , labels: y}`";
        let names = Names { common: &keys, is_known: &is_known, has_option: &|_, _| true };
        let mut choice = Choice::read(node, &names, example)?;
        let kind = MetricKind::read(choice.name, &mut choice)?;
        Ok(Metric { kind, options: choice.options(&[])? })
    }

    /// Its kind's name.
    pub(super) fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    /// What it is reported as.
    pub fn name(&self) -> String {
        match (&self.options.name, self.kind) {
            (Some(name), _) => name.clone(),
            (None, MetricKind::TopK(TopK(k))) => format!("top_{k}_accuracy"),
            (None, _) => self.kind_name().to_string(),
        }
    }

    /// What its labels are.
    pub(super) fn labels(&self) -> Labels {
        self.kind.form().labels
    }

    /// Whether it takes a softmax or a sigmoid of the output itself.
    pub(super) fn takes(&self) -> Option<Activation> {
        self.kind.form().takes
    }

    /// Whether it compares the class of the largest logit, or of the largest few, with the label's.
    pub(super) fn counts_classes(&self) -> bool {
        self.labels() == Labels::Classes && self.takes().is_none()
    }

    /// The metric that judges logits of classes in its place, if it must not.
    pub(super) fn of_classes(&self) -> Option<&'static str> {
        self.kind.form().of_classes
    }

    /// What is reported of a batch.
    pub(super) fn of_batch(&self, judged: &Judged<'_>) -> task::Metric {
        self.kind.of_batch(judged)
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metric, D::Error> {
        Node::read(deserializer, Metric::read)
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.kind.main() {
            None => map.serialize_entry(self.kind_name(), &self.options)?,
            Some(main) => {
                map.serialize_entry(self.kind_name(), &main)?;
                let MetricOptions { output, labels, name, example_weights } = &self.options;
                if let Some(output) = output {
                    map.serialize_entry("output", output)?;
                }
                map.serialize_entry("labels", labels)?;
                if let Some(name) = name {
                    map.serialize_entry("name", name)?;
                }
                if !example_weights.is_as_in_loss() {
                    map.serialize_entry("example_weights", example_weights)?;
                }
            }
        }
        map.end()
    }
}
