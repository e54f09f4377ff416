//! Losses by name, one line of the table each.
//!
//! To add a loss, write a function in `nn`, and a line here.

use super::choice::{Choice, Names};
use super::objective::{Labels, NameElsewhere, default_labels, unknown_name};
use super::{constant, keras_options};
use crate::document::{self, Node, ReadError};
use crate::graph::Tensor;
use crate::nn::options::unit_interval;
use crate::nn::{self, Activation, Focal};
use bf16scope_data::Alignment;
use serde::de::Deserializer;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// The form of a loss: its activation, its labels.
#[derive(Clone, Copy)]
struct LossForm {
    /// The activation that it applies to the output itself.
    takes: Option<Activation>,
    labels: Labels,
    /// Whether it is a cross entropy: such a loss has label smoothing and, with classes, class weights.
    is_cross_entropy: bool,
}

/// Cross entropies with class numbers, with distributions over classes, and with independent answers.
const OF_CLASSES: LossForm =
    LossForm { takes: Some(Activation::Softmax), labels: Labels::Classes, is_cross_entropy: true };
const OF_DISTRIBUTIONS: LossForm = LossForm { labels: Labels::Probabilities, ..OF_CLASSES };
const OF_ANSWERS: LossForm = LossForm { takes: Some(Activation::Sigmoid), ..OF_DISTRIBUTIONS };
/// Losses with sequences of classes.
const OF_SEQUENCES: LossForm = LossForm { is_cross_entropy: false, ..OF_CLASSES };
/// Losses on the overlap of regions.
const OF_REGIONS: LossForm = LossForm { is_cross_entropy: false, ..OF_ANSWERS };
/// Losses with distributions over classes that are not cross entropies.
const OF_SOFT_CLASSES: LossForm = LossForm { is_cross_entropy: false, ..OF_DISTRIBUTIONS };
/// Margin losses: with labels 0 or 1, and with embeddings, whose labels are any whole numbers.
const OF_MARGINS: LossForm = LossForm { takes: None, labels: Labels::Probabilities, is_cross_entropy: false };
const OF_IDENTITIES: LossForm = LossForm { takes: None, labels: Labels::Identities, is_cross_entropy: false };
/// Losses on distances between numbers.
const OF_NUMBERS: LossForm = LossForm { takes: None, labels: Labels::Numbers, is_cross_entropy: false };

/// Options that only some losses have.
trait OwnOptions: Sized {
    const KEYS: &'static [&'static str];

    /// Takes them from the written options.
    fn take(choice: &mut Choice<'_>) -> Result<Self, ReadError>;

    /// Their values, in the order of [`OwnOptions::KEYS`]; `None` is written as null.
    fn values(&self) -> Vec<Option<f64>>;
}

/// Names, forms, names in other frameworks, and the loss of each example, or of each of its rows.
macro_rules! losses {
    ($($(#[$doc:meta])* $Kind:ident $(($own:ident: $Own:ty))? = $name:literal, $form:ident, [$($elsewhere:literal),*],
        |$output:ident, $labels:ident, $smoothing:pat_param| $of:expr;)*) => {
        /// The name of a loss, and its own options.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum LossKind {
            $($(#[$doc])* $Kind $(($Own))?,)*
        }

        const NAMES: &[&str] = &[$($name),*];
        const ELSEWHERE: &[NameElsewhere] = &[$($(NameElsewhere { theirs: $elsewhere, ours: $name },)*)*];
        const OWN_KEYS: &[&[&str]] = &[$($(<$Own>::KEYS,)?)*];

        impl LossKind {
            fn read(name: &str, choice: &mut Choice<'_>) -> Result<LossKind, ReadError> {
                match name {
                    $($name => Ok(LossKind::$Kind $((<$Own>::take(choice)?))?),)*
                    _ => Err(unknown_name("loss", NAMES, ELSEWHERE, choice)),
                }
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(LossKind::$Kind { .. } => $name,)*
                }
            }

            fn form(&self) -> LossForm {
                match self {
                    $(LossKind::$Kind { .. } => $form,)*
                }
            }

            fn own_keys(&self) -> &'static [&'static str] {
                match self {
                    $(LossKind::$Kind { .. } => {
                        const KEYS: &[&[&str]] = &[$(<$Own>::KEYS)?];
                        KEYS.first().copied().unwrap_or_default()
                    })*
                }
            }

            fn own_values(&self) -> Vec<Option<f64>> {
                match self {
                    $(LossKind::$Kind { $(0: $own,)? .. } => {
                        let values: &[Vec<Option<f64>>] = &[$($own.values())?];
                        values.concat()
                    })*
                }
            }

            fn per_example(&self, output: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
                match self {
                    $(LossKind::$Kind { $(0: $own,)? .. } => {
                        let ($output, $labels, $smoothing) = (output, labels, label_smoothing);
                        $of
                    })*
                }
            }
        }
    };
}

losses! {
    /// [`nn::sparse_softmax_cross_entropy_per_example`]: labels are classes.
    SparseSoftmaxCrossEntropy = "sparse_softmax_cross_entropy", OF_CLASSES,
        ["sparse_categorical_crossentropy", "sparse_categorical_cross_entropy",
         "sparse_softmax_cross_entropy_with_logits", "cross_entropy", "cross_entropy_loss"],
        |output, labels, smoothing| nn::sparse_softmax_cross_entropy_per_example(output, labels, smoothing);
    /// [`nn::softmax_cross_entropy_per_example`]: labels are distributions.
    SoftmaxCrossEntropy = "softmax_cross_entropy", OF_DISTRIBUTIONS,
        ["categorical_crossentropy", "categorical_cross_entropy"],
        |output, labels, smoothing| nn::softmax_cross_entropy_per_example(output, labels, smoothing);
    /// [`nn::kl_divergence_per_example`]: labels are distributions.
    KlDivergence = "kl_divergence", OF_SOFT_CLASSES, ["kullback_leibler_divergence", "kld", "kl_div", "kl_div_loss"],
        |output, labels, _| nn::kl_divergence_per_example(output, labels);
    /// [`nn::sigmoid_cross_entropy_per_example`]: labels are 0 or 1.
    SigmoidCrossEntropy = "sigmoid_cross_entropy", OF_ANSWERS,
        ["binary_crossentropy", "binary_cross_entropy", "bce", "bce_with_logits_loss"],
        |output, labels, smoothing| nn::sigmoid_cross_entropy_per_example(output, labels, smoothing);
    /// [`nn::sparse_softmax_focal_cross_entropy_per_example`]: labels are classes.
    SparseSoftmaxFocalCrossEntropy(focal: Focal) = "sparse_softmax_focal_cross_entropy", OF_CLASSES, [],
        |output, labels, smoothing| nn::sparse_softmax_focal_cross_entropy_per_example(output, labels, focal, smoothing);
    /// [`nn::softmax_focal_cross_entropy_per_example`]: labels are distributions.
    SoftmaxFocalCrossEntropy(focal: Focal) = "softmax_focal_cross_entropy", OF_DISTRIBUTIONS,
        ["categorical_focal_crossentropy"],
        |output, labels, smoothing| nn::softmax_focal_cross_entropy_per_example(output, labels, focal, smoothing);
    /// [`nn::sigmoid_focal_cross_entropy_per_example`]: labels are 0 or 1.
    SigmoidFocalCrossEntropy(focal: Focal) = "sigmoid_focal_cross_entropy", OF_ANSWERS,
        ["focal", "focal_loss", "binary_focal_crossentropy"],
        |output, labels, smoothing| nn::sigmoid_focal_cross_entropy_per_example(output, labels, focal, smoothing);
    /// [`nn::sigmoid_dice_per_example`]: labels are 0 or 1.
    SigmoidDice = "sigmoid_dice", OF_REGIONS, ["dice", "dice_loss"],
        |output, labels, _| nn::sigmoid_dice_per_example(output, labels);
    /// [`nn::softmax_dice_per_example`]: labels are one-hot.
    SoftmaxDice = "softmax_dice", OF_SOFT_CLASSES, [],
        |output, labels, _| nn::softmax_dice_per_example(output, labels);
    /// [`nn::mean_squared_error_per_example`].
    MeanSquaredError = "mean_squared_error", OF_NUMBERS, ["mse", "mse_loss", "l2"],
        |output, labels, _| nn::mean_squared_error_per_example(output, labels);
    /// [`nn::mean_absolute_error_per_example`].
    MeanAbsoluteError = "mean_absolute_error", OF_NUMBERS, ["mae", "l1", "l1_loss"],
        |output, labels, _| nn::mean_absolute_error_per_example(output, labels);
    /// [`nn::mean_absolute_percentage_error_per_example`].
    MeanAbsolutePercentageError = "mean_absolute_percentage_error", OF_NUMBERS, ["mape"],
        |output, labels, _| nn::mean_absolute_percentage_error_per_example(output, labels);
    /// [`nn::mean_squared_logarithmic_error_per_example`].
    MeanSquaredLogarithmicError = "mean_squared_logarithmic_error", OF_NUMBERS, ["msle"],
        |output, labels, _| nn::mean_squared_logarithmic_error_per_example(output, labels);
    /// [`nn::poisson_per_example`]: labels are counts.
    Poisson = "poisson", OF_NUMBERS, ["poisson_loss", "poisson_nll_loss"],
        |output, labels, _| nn::poisson_per_example(output, labels);
    /// [`nn::quantile_per_example`].
    Quantile(quantile: Quantile) = "quantile", OF_NUMBERS, ["quantile_loss", "pinball", "pinball_loss"],
        |output, labels, _| nn::quantile_per_example(output, labels, quantile.quantile);
    /// [`nn::log_cosh_per_example`].
    LogCosh = "log_cosh", OF_NUMBERS, ["logcosh"],
        |output, labels, _| nn::log_cosh_per_example(output, labels);
    /// [`nn::cosine_per_example`].
    CosineSimilarity = "cosine_similarity", OF_NUMBERS, ["cosine_similarity_loss", "cosine_embedding_loss"],
        |output, labels, _| nn::cosine_per_example(output, labels);
    /// [`nn::hinge_per_example`]: labels are 0 or 1.
    Hinge = "hinge", OF_MARGINS, ["hinge_loss"],
        |output, labels, _| nn::hinge_per_example(output, labels);
    /// [`nn::squared_hinge_per_example`]: labels are 0 or 1.
    SquaredHinge = "squared_hinge", OF_MARGINS, [],
        |output, labels, _| nn::squared_hinge_per_example(output, labels);
    /// [`nn::categorical_hinge_per_example`]: labels are one-hot.
    CategoricalHinge = "categorical_hinge", OF_MARGINS, ["multi_margin_loss"],
        |output, labels, _| nn::categorical_hinge_per_example(output, labels);
    /// [`nn::contrastive_per_example`]: the output is a distance, and a label of 1 marks a matching pair.
    Contrastive(margin: Margin) = "contrastive", OF_MARGINS, ["contrastive_loss"],
        |output, labels, _| nn::contrastive_per_example(output, labels, margin.margin);
    /// [`nn::triplet_per_example`]: the output is an embedding, and equal labels mark matching examples.
    Triplet(margin: Margin) = "triplet", OF_IDENTITIES, ["triplet_loss", "triplet_hard_loss", "triplet_margin_loss"],
        |output, labels, _| nn::triplet_per_example(output, labels, margin.margin);
    /// [`nn::ctc_per_example`]: labels are sequences of classes.
    Ctc(ctc: Ctc) = "ctc", OF_SEQUENCES, ["ctc_loss", "ctc_batch_cost"],
        |output, labels, _| nn::ctc_per_example(output, labels, ctc.blank);
    /// [`nn::matching_per_example`]: the output is one vector of each example, and another output the other.
    Matching(matching: Matching) = "matching", OF_NUMBERS,
        ["retrieval", "in_batch_negatives", "multiple_negatives_ranking_loss", "info_nce", "nt_xent", "clip"],
        |output, _labels, _| nn::matching_per_example(output, output, matching.temperature, None);
    /// [`nn::crf_per_example`]: labels are sequences of tags.
    Crf = "crf", OF_SEQUENCES, ["crf_loss", "crf_log_likelihood"],
        |output, _labels, _| output.clone();
    /// [`nn::huber_per_example`].
    Huber(huber: Huber) = "huber", OF_NUMBERS, ["huber_loss", "smooth_l1", "smooth_l1_loss"],
        |output, labels, _| nn::huber_per_example(output, labels, huber.delta);
    /// [`nn::value_per_example`]: the output itself; labels are 0 unless they are named.
    Value = "value", OF_NUMBERS, ["add_loss", "identity_loss"],
        |output, labels, _| nn::value_per_example(output, labels);
}

impl LossKind {
    /// The labels of a loss that names none.
    fn labels_unnamed(self) -> String {
        let is_without = matches!(self, LossKind::Value | LossKind::Matching(_));
        if is_without { "0".to_string() } else { default_labels() }
    }
}

/// Options of `huber`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Huber {
    /// Where the quadratic part ends, in the unit of the output. It has no default, because none fits all targets.
    pub delta: f64,
}

impl OwnOptions for Huber {
    const KEYS: &'static [&'static str] = &["delta"];

    fn take(choice: &mut Choice<'_>) -> Result<Huber, ReadError> {
        match choice.take("delta")? {
            Some(Above(delta)) => Ok(Huber { delta }),
            None => {
                let error = ReadError::new("huber does not say where its squares end").or_at(choice.mark);
                Err(error.with_help("add `delta`, in the unit of the output: `{huber: , delta: 1.0}`"))
            }
        }
    }

    fn values(&self) -> Vec<Option<f64>> {
        vec![Some(self.delta)]
    }
}

/// Options of `ctc`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ctc {
    /// The blank class, which also terminates shorter labels. Default 0.
    pub blank: i64,
}

impl OwnOptions for Ctc {
    const KEYS: &'static [&'static str] = &["blank"];

    fn take(choice: &mut Choice<'_>) -> Result<Ctc, ReadError> {
        Ok(Ctc { blank: choice.take::<u32>("blank")?.map_or(0, i64::from) })
    }

    fn values(&self) -> Vec<Option<f64>> {
        vec![Some(self.blank as f64)]
    }
}

/// Options of `matching`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matching {
    /// The divisor of products. Default 0.07.
    pub temperature: f64,
}

impl OwnOptions for Matching {
    const KEYS: &'static [&'static str] = &["temperature"];

    fn take(choice: &mut Choice<'_>) -> Result<Matching, ReadError> {
        let temperature = choice.take::<Above>("temperature")?.map_or(0.07, |Above(temperature)| temperature);
        Ok(Matching { temperature })
    }

    fn values(&self) -> Vec<Option<f64>> {
        vec![Some(self.temperature)]
    }
}

/// Options of `quantile`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantile {
    /// The quantile to estimate. Default 0.5: the median.
    pub quantile: f64,
}

impl OwnOptions for Quantile {
    const KEYS: &'static [&'static str] = &["tau"];

    fn take(choice: &mut Choice<'_>) -> Result<Quantile, ReadError> {
        let quantile = choice.take::<Inner>("tau")?.map_or(0.5, |Inner(tau)| tau);
        Ok(Quantile { quantile })
    }

    fn values(&self) -> Vec<Option<f64>> {
        vec![Some(self.quantile)]
    }
}

/// Options of `contrastive` and `triplet`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// The distance beyond which pairs are not pushed apart. Default 1.
    pub margin: f64,
}

impl OwnOptions for Margin {
    const KEYS: &'static [&'static str] = &["margin"];

    fn take(choice: &mut Choice<'_>) -> Result<Margin, ReadError> {
        let margin = choice.take::<Above>("margin")?.map_or(1.0, |Above(margin)| margin);
        Ok(Margin { margin })
    }

    fn values(&self) -> Vec<Option<f64>> {
        vec![Some(self.margin)]
    }
}

impl OwnOptions for Focal {
    const KEYS: &'static [&'static str] = &["gamma", "alpha"];

    fn take(choice: &mut Choice<'_>) -> Result<Focal, ReadError> {
        let mut focal = Focal { gamma: 2.0, alpha: Some(0.25) };
        if let Some(NotNegative(gamma)) = choice.take("gamma")? {
            focal.gamma = gamma;
        }
        if let Some(alpha) = choice.take::<Option<Share>>("alpha")? {
            focal.alpha = alpha.map(|Share(alpha)| alpha);
        }
        Ok(focal)
    }

    fn values(&self) -> Vec<Option<f64>> {
        vec![Some(self.gamma), self.alpha]
    }
}

/// A loss of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The loss.
    pub kind: LossKind,
    /// Its options.
    pub options: LossOptions,
}

/// Options of a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossOptions {
    /// The output or layer to compare. Default the only output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The target: a label, an input, or a constant. Default `labels`, and of `value` 0.
    #[serde(default = "default_labels", deserialize_with = "constant::labels")]
    pub labels: String,
    /// Its factor in the sum of losses. Default 1.
    #[serde(default = "one", deserialize_with = "not_negative")]
    pub weight: f64,
    /// Label smoothing in training. Default that of `train`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "smoothing")]
    pub label_smoothing: Option<f64>,
    /// The weight of each class, for losses with classes. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<Vec<f64>>,
    /// The feature with the weight of each example, or of each of its rows. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_weights: Option<String>,
    /// The divisor of the sum of weighted losses. Default their number.
    #[serde(default, skip_serializing_if = "Reduction::is_default")]
    pub reduction: Reduction,
    /// The name of its reported value, if there are several losses. Default the output's name and `_loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Patterns of the variables that it trains (`*` is any text, `?` any character). Default all that no other loss
    /// names.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "patterns")]
    pub variables: Vec<String>,
    /// For `crf`: the layer with the scores of transitions between neighbours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transitions: Option<String>,
    /// For `matching`: the layer with the other vector of each example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// For `ctc` and `crf`: the feature with the number of labels of each example. Default those before the first blank,
    /// and all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_lengths: Option<String>,
    /// For `ctc`: the feature with the number of steps of each example. Default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_lengths: Option<String>,
}

/// The divisor of a sum of weighted losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// The number of losses, as in Keras: also those of weight 0.
    #[default]
    SumOverBatchSize,
    /// The sum of their weights and 1e-5, as in BERT's masked language model.
    WeightedMean,
}

impl Reduction {
    /// The epsilon added to the sum of weights, as in BERT.
    pub const EPSILON: f64 = 1e-5;

    fn is_default(&self) -> bool {
        *self == Reduction::default()
    }
}

/// The keys of [`LossOptions`].
const COMMON: [&str; 13] = [
    "output",
    "labels",
    "weight",
    "label_smoothing",
    "class_weights",
    "example_weights",
    "reduction",
    "name",
    "variables",
    "transitions",
    "with",
    "label_lengths",
    "logit_lengths",
];

/// The keys of [`COMMON`] with numbers of labels and steps, which only `ctc` and `crf` have.
const LENGTHS: [&str; 2] = ["label_lengths", "logit_lengths"];
/// The keys of [`COMMON`] that most losses do not have, so that errors do not list them.
const OF_OTHERS: &[&str] = &["label_lengths", "logit_lengths", "transitions", "with"];

impl From<LossKind> for Loss {
    fn from(kind: LossKind) -> Loss {
        let options = LossOptions {
            output: None,
            labels: kind.labels_unnamed(),
            weight: 1.0,
            label_smoothing: None,
            class_weights: None,
            example_weights: None,
            reduction: Reduction::default(),
            name: None,
            variables: Vec::new(),
            transitions: None,
            with: None,
            label_lengths: None,
            logit_lengths: None,
        };
        Loss { kind, options }
    }
}

/// Whether it is a name of a loss here or elsewhere.
fn is_known(name: &str) -> bool {
    NAMES.contains(&name) || ELSEWHERE.iter().any(|elsewhere| elsewhere.theirs == name)
}

impl Loss {
    fn read(node: &Node) -> Result<Loss, ReadError> {
        let keys: Vec<&str> = COMMON.iter().chain(OWN_KEYS.iter().copied().flatten()).copied().collect();
        let example = "a loss, such as `mean_squared_error` or `{mean_squared_error: , labels: y}`";
        let names = Names { common: &keys, is_known: &is_known, has_option: &|_, _| true };
        let mut choice = Choice::read(node, &names, example)?;
        let kind = LossKind::read(choice.name, &mut choice)?;
        let choice = choice.unlisted(match kind {
            LossKind::Ctc(_) => &["transitions", "with"],
            LossKind::Crf => &["logit_lengths", "with"],
            LossKind::Matching(_) => &["label_lengths", "logit_lengths", "transitions", "labels"],
            _ => OF_OTHERS,
        });
        let names_labels = choice.value_of("labels").is_some();
        let is_named = choice.value_of("labels").is_some_and(|labels| labels.text() != Some("0"));
        if let (LossKind::Matching(_), Some(mark), true) = (kind, choice.place_of("labels"), is_named) {
            let error =
                ReadError::new("`labels` of matching, which pairs examples by their place in the batch").or_at(mark);
            return Err(error.with_help("leave it out; `triplet` learns from labels"));
        }
        let mut options: LossOptions = choice.options(kind.own_keys()).map_err(keras_options::of_objective)?;
        if !names_labels {
            options.labels = kind.labels_unnamed();
        }
        Ok(Loss { options, kind })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Whether label smoothing changes it.
    pub fn is_smoothed(&self) -> bool {
        self.kind.form().is_cross_entropy
    }

    /// The activation that it applies to the output itself.
    pub(super) fn takes(&self) -> Option<Activation> {
        self.kind.form().takes
    }

    /// The kind of its labels.
    pub(super) fn labels(&self) -> Labels {
        self.kind.form().labels
    }

    /// Whether rows of an example may be judged as examples are: it is a mean over their elements.
    pub(super) fn has_rows(&self) -> bool {
        !matches!(
            self.kind,
            LossKind::Ctc(_)
                | LossKind::Triplet(_)
                | LossKind::Matching(_)
                | LossKind::SigmoidDice
                | LossKind::SoftmaxDice
        ) && !self.is_of_classes()
    }

    /// Whether its output is logits of exclusive classes.
    pub(super) fn is_of_classes(&self) -> bool {
        self.takes() == Some(Activation::Softmax)
    }

    /// Whether its labels are a number from 0 to 1 for each of several exclusive classes.
    pub(super) fn is_of_distributions(&self) -> bool {
        let is_of_classes = self.is_of_classes() || matches!(self.kind, LossKind::CategoricalHinge);
        is_of_classes && self.labels() == Labels::Probabilities
    }

    /// Whether each of its rows has one class, which may have a weight.
    pub(super) fn weighs_classes(&self) -> bool {
        self.is_of_classes() && self.kind.form().is_cross_entropy
    }

    /// The features with the numbers of labels and steps, and their keys.
    pub(super) fn lengths(&self) -> [(&'static str, Option<&String>); 2] {
        let LossOptions { label_lengths, logit_lengths, .. } = &self.options;
        let [of_labels, of_logits] = LENGTHS;
        [(of_labels, label_lengths.as_ref()), (of_logits, logit_lengths.as_ref())]
    }

    /// Whether this loss has lengths of this key.
    pub(super) fn has_lengths(&self, key: &str) -> bool {
        matches!((self.kind, key), (LossKind::Ctc(_), _) | (LossKind::Crf, "label_lengths"))
    }

    /// The keys of a second layer, the losses that read one, and the layer if it is named.
    pub(super) fn others(&self) -> [(&'static str, &'static str, bool, Option<&String>); 2] {
        let LossOptions { transitions, with, .. } = &self.options;
        [
            ("transitions", "crf", self.kind == LossKind::Crf, transitions.as_ref()),
            ("with", "matching", matches!(self.kind, LossKind::Matching(_)), with.as_ref()),
        ]
    }

    /// The steps into which the labels have to fit, of outputs of `n_steps`.
    pub(super) fn alignment(&self, n_steps: i64) -> Option<Alignment> {
        let LossKind::Ctc(ctc) = self.kind else { return None };
        let LossOptions { label_lengths, logit_lengths, .. } = self.options.clone();
        Some(Alignment { n_steps, blank: ctc.blank, label_lengths, logit_lengths })
    }

    /// The loss of each example, or of each of its rows: `[batch, …]`.
    pub(super) fn per_example(&self, output: &Tensor, labels: &Tensor, label_smoothing: f64) -> Tensor {
        self.kind.per_example(output, labels, label_smoothing)
    }
}

/// A finite number of at least 0.
#[derive(Deserialize)]
struct NotNegative(#[serde(deserialize_with = "not_negative")] f64);

/// A number from 0 to 1.
#[derive(Deserialize)]
struct Share(#[serde(deserialize_with = "unit_interval")] f64);

/// A number above 0 and below 1.
#[derive(Deserialize)]
struct Inner(#[serde(deserialize_with = "inner")] f64);

fn inner<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |value| value > 0.0 && value < 1.0, "a number above 0 and below 1")
}

/// A finite number above 0.
#[derive(Deserialize)]
struct Above(#[serde(deserialize_with = "above")] f64);

fn one() -> f64 {
    1.0
}

fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    document::number(deserializer, |weight| weight.is_finite() && weight >= 0.0, "a number of at least 0")
}

fn above<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let fits = |delta: f64| delta as f32 > 0.0 && (delta as f32).is_finite();
    document::number(deserializer, fits, "a finite number above 0")
}

fn smoothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    document::fraction(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Loss, D::Error> {
        Node::read(deserializer, Loss::read)
    }
}

/// A loss's options, common and own.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    options: &'a LossOptions,
    #[serde(flatten)]
    own: OwnWritten<'a>,
}

/// Its own options, in their order. `None` is written explicitly, because it is not the default.
struct OwnWritten<'a>(&'a LossKind);

impl Serialize for OwnWritten<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.0.own_keys().iter().zip(self.0.own_values()) {
            map.serialize_entry(key, &value)?;
        }
        map.end()
    }
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.name(), &Written { options: &self.options, own: OwnWritten(&self.kind) })?;
        map.end()
    }
}

/// A pattern, or a list of them.
fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Node::read(deserializer, |node| node.patterns("leave the key out, or give patterns, such as 'generator/*'"))
}
