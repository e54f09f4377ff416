//! Two-tower models: one tower encodes an image, the other its words. They learn the class of both together, or which
//! words belong to which image.

use super::classification::of_logits;
use super::layout::{dims_of_rank, image_dims};
use super::{ModelKind, cnn};
use crate::document::{self, Mark, Node, Origin, kind};
use crate::graph::{Scope, Tensor};
use crate::nn::{self, DataFormat, Dense, Embedding, dense, dropout, embedding, global_avg_pool, relu};
use crate::task::{Feature, Features, Identity, Loss, Metric, Mode, Outputs, Task};
use bf16scope_hlo::DType;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

/// Configuration of [`TwoTower`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[height, width, channels]` of an image.
    #[serde(deserialize_with = "image_dims")]
    pub pictures: Vec<i64>,
    /// The words of an image.
    pub words: Words,
    /// The objective.
    pub loss: Joined,
    /// Filters of each block of the image tower. Default 32, 64, 128.
    #[serde(default = "filters", deserialize_with = "document::positives")]
    pub filters: Vec<i64>,
    /// Height and width of the kernels. Default 3.
    #[serde(default = "kernel", deserialize_with = "document::positive")]
    pub kernel: i64,
    /// Units of the dense layer of the word tower. Default 128.
    #[serde(default = "units", deserialize_with = "document::positive")]
    pub units: i64,
    /// Dropout rate at the end of each tower. Default 0.
    #[serde(default, deserialize_with = "document::fraction")]
    pub dropout: f64,
}

/// The form of an image's words.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Words {
    /// Ids of words.
    Ids(Ids),
    /// Vectors that were computed from words before.
    Vectors(Vectors),
}

/// The feature `words`, `s32[length]`: the id of each word, below `vocabulary`; 0 is padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    /// The most words of an example.
    #[serde(deserialize_with = "document::positive")]
    pub length: i64,
    /// The number of ids, including 0.
    #[serde(deserialize_with = "document::positive")]
    pub vocabulary: i64,
    /// Elements of a word's learned vector. Default 64.
    #[serde(default = "features", deserialize_with = "document::positive")]
    pub features: i64,
}

/// The feature `word_vectors`, in the compute dtype.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    /// `[elements]` is one vector for an example; for `[words, elements]` the mean is taken, without vectors that are
    /// all 0.
    #[serde(deserialize_with = "vector_dims")]
    pub dims: Vec<i64>,
}

/// The objective.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Joined {
    /// The class of image and words together.
    Classification(Classification),
    /// Which words of a batch belong to an image, and which image to words.
    Matching(Matching),
}

/// Both towers, concatenated, then dense layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Classification {
    /// Number of classes.
    #[serde(deserialize_with = "document::positive")]
    pub n_classes: i64,
    /// Units of each dense layer before the last. Default one layer of 128.
    #[serde(default = "hidden", deserialize_with = "document::positives")]
    pub hidden: Vec<i64>,
}

/// A dense layer without bias after each tower, and the cosine of their outputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matching {
    /// Elements of the compared vectors. Default 128.
    #[serde(default = "units", deserialize_with = "document::positive")]
    pub features: i64,
    /// The divisor of cosines. Default 0.07.
    #[serde(default = "temperature", deserialize_with = "divisor")]
    pub temperature: f64,
}

fn filters() -> Vec<i64> {
    vec![32, 64, 128]
}

fn kernel() -> i64 {
    3
}

fn units() -> i64 {
    128
}

fn features() -> i64 {
    64
}

fn hidden() -> Vec<i64> {
    vec![128]
}

/// CLIP's initial temperature (Radford et al. 2021).
fn temperature() -> f64 {
    0.07
}

fn divisor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let is_divisor = |value: f64| value > 0.0 && (value as f32).is_normal() && (1.0 / value as f32).is_normal();
    document::number(deserializer, is_divisor, "a number above 0 that f32 can divide by")
}

fn vector_dims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    dims_of_rank(deserializer, 1..=2, "[elements] or [words, elements]")
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Words, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind {
            Ids(Ids),
            Vectors(Vectors),
        }
        Ok(match kind::read(deserializer)? {
            Kind::Ids(config) => Words::Ids(config),
            Kind::Vectors(config) => Words::Vectors(config),
        })
    }
}

impl<'de> Deserialize<'de> for Joined {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Joined, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind {
            Classification(Classification),
            Matching(Matching),
        }
        Ok(match kind::read(deserializer)? {
            Kind::Classification(config) => Joined::Classification(config),
            Kind::Matching(config) => Joined::Matching(config),
        })
    }
}

/// An image and its words.
///
/// Features: `pictures` `[height, width, channels]`; `words` or `word_vectors`, see [`Words`]; for a classification
/// `labels`, `s32[]`.
///
/// The image tower consists of blocks of convolution (SAME, no bias), batch norm, relu and 2×2 max pool (SAME, so that
/// it halves odd sizes too), then the mean over height and width. The word tower is the mean of the words' vectors,
/// summed in f32, then a dense layer and relu. An example without words has a mean of 0.
///
/// For a classification, both are concatenated, followed by dense layers with relu and one to the logits; loss, metrics
/// and predictions are those of [`super::Classification`].
///
/// For matching, vectors leave the scope before they are normalised. The score of each pair in a batch is the cosine
/// over the temperature, multiplied in f32 on a TPU too. The loss is the mean of two cross-entropies, of the words
/// given an image and of the image given words, over the examples of the batch; the metric `matching_accuracy` is the
/// share of images whose own words score highest. Both depend on the size of the batch, and of the micro-batch where
/// gradients are accumulated: among more examples, the right one is harder to find. Padding is neither a candidate nor
/// counted. Predictions: `picture_embedding` and `word_embedding`, `f32[batch, features]`, of length 1.
///
/// # Source
/// In-batch matching: Radford et al. 2021 (CLIP), with a temperature that is not learnt.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoTower {
    /// The network.
    pub network: Config,
    /// The weight of the uniform distribution in targets, in `[0, 1)`, in training.
    pub label_smoothing: f64,
}

impl ModelKind for Config {
    fn task(&self, label_smoothing: f64, _origin: &Origin) -> Arc<dyn Task> {
        Arc::new(TwoTower { network: self.clone(), label_smoothing })
    }

    fn place_of_range(&self, feature: &Feature, node: &Node) -> Option<Mark> {
        let [block, key] = if feature.is_label { ["loss", "n_classes"] } else { ["words", "vocabulary"] };
        node.get(block)?.get(key).map(|node| node.mark)
    }
}

impl Task for TwoTower {
    fn name(&self) -> &str {
        "two_tower"
    }

    fn features(&self) -> Vec<Feature> {
        let words = match &self.network.words {
            Words::Ids(ids) => Feature::exact("words", DType::S32, [ids.length]).below(ids.vocabulary),
            Words::Vectors(vectors) => Feature::compute("word_vectors", &vectors.dims[..]),
        };
        let mut features = vec![Feature::compute("pictures", &self.network.pictures[..]), words];
        if let Joined::Classification(classes) = &self.network.loss {
            features.push(Feature::exact("labels", DType::S32, []).below(classes.n_classes).label());
        }
        features
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let pictures = features.get("pictures");
        let words = match &self.network.words {
            Words::Ids(_) => features.get("words"),
            Words::Vectors(_) => features.get("word_vectors"),
        };
        let towers = |s: &Scope| {
            let pictures = picture_tower(s, &pictures, &self.network);
            let words = word_tower(s, &words, &self.network);
            let dropped = |x: &Tensor, name: &str| dropout(s, x, name, self.network.dropout);
            (dropped(&pictures, "picture_dropout"), dropped(&words, "word_dropout"))
        };
        match &self.network.loss {
            Joined::Classification(classes) => {
                let logits = s.low_precision(|s| {
                    s.within("two_tower", |s| {
                        let (pictures, words) = towers(s);
                        classify(s, &pictures, &words, classes)
                    })
                });
                of_logits(&logits.cast(DType::F32), features, classes.n_classes, self.label_smoothing, mode)
            }
            Joined::Matching(matching) => {
                let (pictures, words) = s.low_precision(|s| {
                    s.within("two_tower", |s| {
                        let (pictures, words) = towers(s);
                        let layer = Dense { units: matching.features, use_bias: false, ..Dense::default() };
                        (dense(s, &pictures, "picture_embedding", &layer), dense(s, &words, "word_embedding", &layer))
                    })
                });
                let [pictures, words] = [pictures, words].map(|x| normalised(&x.cast(DType::F32)));
                self.matched(&pictures, &words, features, matching.temperature, mode)
            }
        }
    }

    fn identity(&self) -> Identity {
        let identity = Identity::new("two_tower").with_config(&self.network).changeable(&["dropout"]);
        identity.with_changeable("label_smoothing", self.label_smoothing)
    }
}

impl TwoTower {
    /// The outputs for vectors of length 1, `[batch, features]` each.
    fn matched(
        &self,
        pictures: &Tensor,
        words: &Tensor,
        features: &Features<'_>,
        temperature: f64,
        mode: Mode,
    ) -> Outputs {
        if mode == Mode::Predict {
            return Outputs::new().prediction("picture_embedding", pictures).prediction("word_embedding", words);
        }
        let scores = nn::products(pictures, words) / temperature;
        let own_rows = scores.graph().iota(DType::S32, &[features.batch()], 0);
        let losses = |smoothing: f64, scores: &Tensor| {
            let cross_entropy = nn::sparse_softmax_cross_entropy_per_example;
            let given_picture = cross_entropy(scores, &own_rows, smoothing);
            (given_picture + cross_entropy(&scores.transpose(&[1, 0]), &own_rows, smoothing)) / 2.0
        };
        if mode == Mode::Train {
            let accuracy = Metric::mean(&nn::is_correct(&scores, &own_rows));
            let loss = losses(self.label_smoothing, &scores).mean(&[0]);
            return Outputs::new().loss(loss).metric("matching_accuracy", accuracy);
        }
        let weight = features.weight();
        let scores = nn::among_real(&scores, &weight);
        let accuracy = Metric::weighted(&nn::is_correct(&scores, &own_rows), &weight);
        let loss = Loss::weighted(&losses(0.0, &scores), &weight);
        Outputs::new().loss(loss).metric("matching_accuracy", accuracy)
    }
}

/// Pictures `[batch, height, width, channels]` → `[batch, filters of the last block]`, in their dtype.
fn picture_tower(s: &Scope, pictures: &Tensor, config: &Config) -> Tensor {
    let x = cnn::blocks("picture_tower", config.kernel, &config.filters).build(s, pictures);
    s.within("picture_tower", |_| global_avg_pool(&x, DataFormat::ChannelsLast))
}

/// Ids of words, or their vectors → `[batch, units]`, in the dtype of the open low-precision scope, else f32.
fn word_tower(s: &Scope, words: &Tensor, config: &Config) -> Tensor {
    s.within("word_tower", |s| {
        let mean = match &config.words {
            Words::Ids(ids) => {
                let (input_dim, output_dim) = (ids.vocabulary, ids.features);
                let table = Embedding { input_dim, output_dim, ..Embedding::default() };
                let zeros = words.graph().full(DType::S32, &words.dims(), 0.0);
                masked_mean(&embedding(s, words, "embedding", &table), &words.not_equal(&zeros))
            }
            Words::Vectors(vectors) if vectors.dims.len() == 2 => {
                let is_word = words.abs().max(&[2]);
                let zeros = words.graph().full(words.dtype(), &is_word.dims(), 0.0);
                masked_mean(words, &is_word.not_equal(&zeros))
            }
            Words::Vectors(_) => words.clone(),
        };
        relu(&dense(s, &mean, "dense", &Dense { units: config.units, ..Dense::default() }))
    })
}

/// The mean of the rows where `is_row` holds, in f32 and rounded once; 0 if no row counts.
///
/// # Shapes
/// rows `[batch, n, elements]`, is_row `pred[batch, n]` → `[batch, elements]`.
fn masked_mean(rows: &Tensor, is_row: &Tensor) -> Tensor {
    let (graph, dims) = (rows.graph(), rows.dims());
    if rows.is_poison() {
        return rows.clone();
    }
    let zeros = graph.full(DType::F32, &dims, 0.0);
    let sum = is_row.broadcast_in_dim(&dims, &[0, 1]).select(&rows.cast(DType::F32), &zeros).sum(&[1]);
    let ones = graph.full(DType::F32, &dims[..1], 1.0);
    let count = is_row.cast(DType::F32).sum(&[1]).maximum(&ones);
    (&sum / count.broadcast_in_dim(&sum.dims(), &[0])).cast(rows.dtype())
}

/// Both towers → logits `[batch, n_classes]`, in their dtype.
fn classify(s: &Scope, pictures: &Tensor, words: &Tensor, config: &Classification) -> Tensor {
    let mut x = Tensor::concatenate(&[pictures, words], 1);
    for (number, &units) in (1..).zip(&config.hidden) {
        x = relu(&dense(s, &x, &format!("dense{number}"), &Dense { units, ..Dense::default() }));
    }
    dense(s, &x, "logits", &Dense { units: config.n_classes, ..Dense::default() })
}

/// Normalises rows to length 1; a row of zeros stays zero.
///
/// # Source
/// TensorFlow's `l2_normalize`, whose epsilon this is.
fn normalised(x: &Tensor) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let squared = (x * x).sum(&[1]);
    let least = x.graph().full(DType::F32, &squared.dims(), 1e-12);
    let length = squared.maximum(&least).sqrt();
    x / length.broadcast_in_dim(&x.dims(), &[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    const START: &str = "pictures: [8, 8, 3]\n";
    const WORDS: &str = "words: {kind: ids, length: 4, vocabulary: 9}\n";

    fn parse(rest: &str) -> Result<Config, String> {
        document::from_str("m.yaml", &format!("{START}{rest}")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = parse(&format!("{WORDS}loss: {{kind: classification, n_classes: 5}}\n")).unwrap();
        let expected = Config {
            pictures: vec![8, 8, 3],
            words: Words::Ids(Ids { length: 4, vocabulary: 9, features: 64 }),
            loss: Joined::Classification(Classification { n_classes: 5, hidden: vec![128] }),
            filters: vec![32, 64, 128],
            kernel: 3,
            units: 128,
            dropout: 0.0,
        };
        assert_eq!(config, expected);
        let config = parse("words: {kind: vectors, dims: [50]}\nloss: {kind: matching}\n").unwrap();
        assert_eq!(config.words, Words::Vectors(Vectors { dims: vec![50] }));
        assert_eq!(config.loss, Joined::Matching(Matching { features: 128, temperature: 0.07 }));
    }

    #[test]
    fn errors_point_at_the_line() {
        let check = |rest: &str, expected: Expect| expected.assert_eq(&parse(rest).unwrap_err());
        check(
            &format!("{WORDS}loss: {{kind: matching, temperature: 0}}\n"),
            expect![[r#"
                m.yaml:3:37: found integer `0`, expected a number above 0 that f32 can divide by
                  3 | loss: {kind: matching, temperature: 0}
                    |                                     ^"#]],
        );
        check(
            "words: {kind: vectors, dims: [1, 2, 3]}\n",
            expect![[r#"
                m.yaml:2:30: found 3 sizes, expected [elements] or [words, elements]
                  2 | words: {kind: vectors, dims: [1, 2, 3]}
                    |                              ^"#]],
        );
        check(
            "words: {kind: id, length: 4, vocabulary: 9}\n",
            expect![[r#"
                m.yaml:2:15: unknown value `id`, expected one of ids, vectors
                  2 | words: {kind: id, length: 4, vocabulary: 9}
                    |               ^^
                  help: did you mean `ids`?"#]],
        );
        check(
            &format!("{WORDS}loss: {{kind: classification}}\n"),
            expect![[r#"
                m.yaml:3:7: missing key `n_classes`
                  3 | loss: {kind: classification}
                    |       ^^^^^
                  help: add `n_classes: …` to the block that starts here"#]],
        );
    }

    #[test]
    fn matching_needs_no_labels() {
        let names = |rest: &str| {
            let task = TwoTower { network: parse(rest).unwrap(), label_smoothing: 0.0 };
            task.features().into_iter().map(|feature| feature.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&format!("{WORDS}loss: {{kind: matching}}\n")), ["pictures", "words"]);
        let vectors = "words: {kind: vectors, dims: [3, 50]}\nloss: {kind: classification, n_classes: 5}\n";
        assert_eq!(names(vectors), ["pictures", "word_vectors", "labels"]);
    }
}
