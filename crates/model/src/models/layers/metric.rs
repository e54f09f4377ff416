//! Metrics by name, one line of the table each.
//!
//! To add a metric, write a function of each example in `nn`, and a line here.

use super::choice::{Choice, Names};
use super::keras_options;
use super::objective::{Labels, NameElsewhere, of_rows, unknown_name};
use crate::document::{self, Node, ReadError};
use crate::graph::Tensor;
use crate::nn::{self, Activation};
use crate::task;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::BinaryOp;
use serde::de::Deserializer;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// The form of a metric: its activation, its labels.
#[derive(Clone, Copy)]
struct MetricForm {
    /// The activation that it applies to the output itself. The largest logit is also the largest softmax.
    takes: Option<Activation>,
    labels: Labels,
    /// For a metric that cannot evaluate logits of classes: the metric that can.
    of_classes: Option<&'static str>,
}

const OF_CLASSES: MetricForm = MetricForm { takes: None, labels: Labels::Classes, of_classes: None };
const OF_LOGITS: MetricForm = MetricForm { takes: Some(Activation::Softmax), ..OF_CLASSES };
const OF_ANSWERS: MetricForm =
    MetricForm { takes: Some(Activation::Sigmoid), labels: Labels::Probabilities, of_classes: None };
const OF_ANSWERS_NOT_F1: MetricForm = MetricForm { of_classes: Some("macro_f1"), ..OF_ANSWERS };
const OF_ANSWERS_NOT_MEAN_IOU: MetricForm = MetricForm { of_classes: Some("mean_iou"), ..OF_ANSWERS };
const OF_ANSWERS_NOT_ACCURACY: MetricForm = MetricForm { of_classes: Some("accuracy"), ..OF_ANSWERS };
const OF_ANSWERS_NOT_CLASSES: MetricForm = MetricForm { of_classes: Some("mean_per_class_accuracy"), ..OF_ANSWERS };
const OF_NUMBERS: MetricForm = MetricForm { takes: None, labels: Labels::Numbers, of_classes: None };

/// Names, forms, names in other frameworks, and the report of a batch. A number is the first option, `{top_k: 3}`.
macro_rules! metrics {
    ($($(#[$doc:meta])* $Kind:ident $(($main:ident: $Main:ty))? = $name:literal, $form:ident, [$($elsewhere:literal),*],
        |$batch:ident| $of:expr;)*) => {
        /// The kind of a metric.
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

            /// Its first option, if it has a number.
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
    /// The share of rows whose largest logit is their label's.
    Accuracy = "accuracy", OF_CLASSES, ["acc", "sparse_categorical_accuracy", "categorical_accuracy"],
        |batch| batch.mean(&nn::is_correct(batch.output, batch.labels));
    /// The share of rows whose label is among the k largest.
    TopK(k: TopK) = "top_k", OF_CLASSES, ["top_k_accuracy", "sparse_top_k_categorical_accuracy"],
        |batch| batch.mean(&nn::is_in_top_k(batch.output, batch.labels, k.0));
    /// The mean over classes of each class's share of rows whose largest logit is its own.
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
    /// The area under the ROC curve, from a number of thresholds.
    Auc(n: Thresholds) = "auc", OF_ANSWERS_NOT_CLASSES, ["roc_auc"], |batch| {
        let counted = batch.counted(batch.labels);
        let (above, of) = nn::above_thresholds(batch.output, batch.labels, counted.as_ref(), n.0);
        task::Metric::area(&above, &of)
    };
    /// Intersection over union of logits above 0 and labels above 1/2.
    Iou = "iou", OF_ANSWERS_NOT_MEAN_IOU, ["binary_iou"], |batch| {
        let (predicted, truth) = nn::sides(batch.output, batch.labels);
        batch.part(&predicted.binary(BinaryOp::And, &truth), &predicted.binary(BinaryOp::Or, &truth))
    };
    /// The share of logits that are above 0 where the label is 1, and below where it is 0.
    BinaryAccuracy = "binary_accuracy", OF_ANSWERS_NOT_ACCURACY, [],
        |batch| batch.mean(&nn::is_on_side(batch.output, batch.labels));
    /// The share of logits above 0 whose label is above 1/2: correct ones among positive predictions.
    Precision = "precision", OF_ANSWERS_NOT_F1, [], |batch| {
        let (predicted, truth) = nn::sides(batch.output, batch.labels);
        batch.part(&truth, &predicted)
    };
    /// The share of labels above 1/2 whose logit is above 0: detected ones among positives.
    Recall = "recall", OF_ANSWERS_NOT_F1, [], |batch| {
        let (predicted, truth) = nn::sides(batch.output, batch.labels);
        batch.part(&predicted, &truth)
    };
    /// The harmonic mean of precision and recall.
    F1 = "f1", OF_ANSWERS_NOT_F1, ["f1_score", "dice_coefficient"], |batch| {
        let (predicted, truth) = nn::sides(batch.output, batch.labels);
        batch.harmonic(&predicted, &truth)
    };
    /// The mean of the F1 of all classes.
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
    /// The root of the mean of squared differences.
    RootMeanSquaredError = "root_mean_squared_error", OF_NUMBERS, ["rmse"],
        |batch| batch.mean(&nn::mean_squared_error_per_example(batch.output, batch.labels)).root();
}

/// The number of largest logits among which a label should be. Default 5.
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

/// The number of thresholds. Default 200.
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

/// The data of a metric in a batch.
pub(super) struct Judged<'a> {
    /// The network's output.
    pub output: &'a Tensor,
    /// The target.
    pub labels: &'a Tensor,
    /// In an evaluation: 1 for examples that count and 0 for padding, `f32[batch]`.
    pub weight: Option<Tensor>,
    /// The weights of examples, or of each of their rows: `f32[batch, …]`. Default 1.
    pub example_weights: Option<Tensor>,
}

impl Judged<'_> {
    /// Which elements of an array with the dims of `x` count (pred), or their weights (f32); `None` if all count
    /// equally.
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

    /// The mean of a value per example, or per row.
    fn mean(&self, each: &Tensor) -> task::Metric {
        match (&self.weight, &self.example_weights) {
            // As in the zoo: f32 counts the examples of a batch exactly, but not all rows of large ones.
            (Some(weight), None) if each.rank() <= 1 => task::Metric::weighted(each, weight),
            _ => match self.counted(each) {
                Some(counted) => task::Metric::weighted(each, &counted),
                None => task::Metric::mean(each),
            },
        }
    }

    /// Twice the count where both hold, over the sum of both counts: F1 for predictions and truths.
    fn harmonic(&self, predicted: &Tensor, truth: &Tensor) -> task::Metric {
        let both = predicted.binary(BinaryOp::And, truth);
        let ratio = |is: &Tensor| match self.counted(is) {
            None => self.sum(is, None),
            Some(counted) => self.sum(is, Some(&counted)),
        };
        let hits = ratio(&both);
        task::Metric::ratio(&(&hits + &hits), &(ratio(predicted) + ratio(truth)))
    }

    /// The number of counted truths, or the sum of their weights: `s32[]` or `f32[]`.
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

    /// Sums for R² over each number of the output: of squared differences, of labels and their squares, and of weights.
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

    /// The share of elements where `is` holds among those where `of` does.
    fn part(&self, is: &Tensor, among: &Tensor) -> task::Metric {
        match self.counted(among) {
            None => task::Metric::weighted(is, among),
            Some(counted) if counted.dtype() == DType::Pred => {
                task::Metric::weighted(is, &among.binary(BinaryOp::And, &counted))
            }
            Some(weights) => {
                let zeros = weights.graph().full(DType::F32, &weights.dims(), 0.0);
                task::Metric::weighted(is, &among.select(&weights, &zeros))
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
    /// The output or layer to evaluate. Default the only output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The target: a label, an input, or a constant; if empty, that of the losses on the same output where they have one,
    /// else `labels`.
    #[serde(default, deserialize_with = "super::constant::labels")]
    pub labels: String,
    /// The name in reports. Default its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The weights of examples, or of each of their rows. Default those of the loss on the same output.
    #[serde(default, skip_serializing_if = "MetricWeights::is_as_in_loss")]
    pub example_weights: MetricWeights,
}

/// The keys of [`MetricOptions`].
const COMMON: [&str; 4] = ["output", "labels", "name", "example_weights"];

/// The weights of examples in a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetricWeights {
    /// Those of the loss on the same output.
    #[default]
    AsInLoss,
    /// All equal. In YAML `null`.
    Alike,
    /// Those in the feature of this name.
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
        let (labels, example_weights) = (String::new(), MetricWeights::AsInLoss);
        Metric { kind, options: MetricOptions { output: None, labels, name: None, example_weights } }
    }
}

/// Whether it is a name of a metric here or elsewhere.
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
        let options = choice.options(&[]).map_err(keras_options::of_objective)?;
        Ok(Metric { kind, options })
    }

    /// Its kind's name.
    pub(super) fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        match (&self.options.name, self.kind) {
            (Some(name), _) => name.clone(),
            (None, MetricKind::TopK(TopK(k))) => format!("top_{k}_accuracy"),
            (None, _) => self.kind_name().to_string(),
        }
    }

    /// The kind of its labels.
    pub(super) fn labels(&self) -> Labels {
        self.kind.form().labels
    }

    /// The activation that it applies to the output itself.
    pub(super) fn takes(&self) -> Option<Activation> {
        self.kind.form().takes
    }

    /// Whether it compares the class of the largest logit, or of the largest few, with the label.
    pub(super) fn counts_classes(&self) -> bool {
        self.labels() == Labels::Classes && self.takes().is_none()
    }

    /// The metric to use for logits of classes, if this one cannot evaluate them.
    pub(super) fn of_classes(&self) -> Option<&'static str> {
        self.kind.form().of_classes
    }

    /// Whether it judges, of an output that `matching` trains, if an example's vector finds its own among those of the batch.
    pub(super) fn judges_pairs(&self) -> bool {
        matches!(self.kind, MetricKind::Accuracy | MetricKind::TopK(_) | MetricKind::Perplexity)
    }

    /// The report of a batch.
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
