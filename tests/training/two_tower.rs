//! Two towers: images and words, with real data in every precision; and padding of words and of batches.

use super::storage::{all_but_plain_bf16_learn, learnt as learnt_of};
use crate::{examples, run};

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::document;
use bf16scope::experiment::{Examples, Experiment};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, two_tower};
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::{Evaluator, Predictor, RunPlan, Session, Spec, TrainError};
use bf16scope::tuning::Tuning;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_tower.yaml")
}

/// The drawings: training and test.
fn drawings() -> &'static Examples {
    static DRAWINGS: OnceLock<Examples> = OnceLock::new();
    DRAWINGS.get_or_init(|| {
        Experiment::read(example()).unwrap().read_data(example(), &bf16scope::pjrt::Setup::from_env()).unwrap()
    })
}

/// Drawings for testing.
const N_TEST: usize = 391;

/// The example with an image tower of these filters and the objective `loss`, as in a model's YAML.
fn spec_of(filters: &[u32], loss: &str, precision: Precision) -> Spec {
    let mut experiment = Experiment::read(example()).unwrap();
    let words = "{kind: ids, length: 8, vocabulary: 459}";
    let text =
        format!("{{kind: two_tower, pictures: [32, 32, 3], words: {words}, filters: {filters:?}, loss: {loss}}}");
    experiment.model = document::from_str("small", &text).unwrap();
    experiment.spec(precision, &Tuning::none()).unwrap()
}

fn spec(loss: &str, precision: Precision) -> Spec {
    spec_of(&[8, 16], loss, precision)
}

const CLASSES: &str = "{kind: classification, n_classes: 11, hidden: [32]}";
const MATCHING: &str = "{kind: matching, features: 32}";

/// A metric of the test drawings after some epochs of training.
fn learnt(loss: &str, precision: Precision, n_epochs: u64, metric: &str) -> f64 {
    let mut session = Session::new(run::optimized_client(), spec(loss, precision)).unwrap();
    let plan = RunPlan::new(n_epochs, None);
    let stop = AtomicBool::new(false);
    let summary = bf16scope::train::run(&mut session, drawings().data(), &plan, &stop, &mut |_| {}).unwrap();
    summary.value(metric).unwrap()
}

/// The largest class has 60 of the 391 test drawings, 15.3 %: always naming it is right so often, with a standard
/// deviation of √(0.153 · 0.847 / 391), 1.8 points: five of them above is 24.5 %.
#[test]
fn classes_of_drawings_are_learnt() {
    learns_classes(Precision::Bf16);
}

fn learns_classes(precision: Precision) {
    let accuracy = learnt(CLASSES, precision, 2, "accuracy");
    assert!(accuracy > 0.245, "{precision}: {accuracy}");
}

/// Guessing which words of a batch of 32 belong to a drawing is right once per batch; the training drawings give 50
/// batches. Five standard deviations, of √50, above is 86. (Many test drawings have no known words.)
#[test]
fn words_of_drawings_are_found_among_those_of_a_batch() {
    let spec = spec(MATCHING, Precision::Bf16);
    let (client, task) = (run::client(), spec.task.clone());
    let mut session = Session::new(client, spec).unwrap();
    let plan = RunPlan::new(4, None);
    bf16scope::train::run(&mut session, drawings().data(), &plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let evaluator = Evaluator::new(client, &task, Precision::Bf16, 32, &Tuning::none()).unwrap();
    let checkpoint = session.checkpoint(4).unwrap();
    let evaluation = evaluator.evaluate(Path::new("trained"), &checkpoint, &*drawings().training).unwrap();
    let accuracy = evaluation.totals.value("matching_accuracy").unwrap();
    assert!(accuracy * evaluation.n_examples as f64 > 86.0, "{accuracy}");
}

/// With all variables zero every logit is 0, and so is every cosine: class 0 wins every tie, the first of a batch too. The image
/// tower, which has no part in it, is as small as one can be.
#[test]
fn padding_of_a_batch_counts_for_nothing_in_an_evaluation() {
    let client = run::client();
    let spec = |loss: &str| spec_of(&[1], loss, Precision::Bf16);
    let zeros = |loss: &str| {
        let mut checkpoint = Session::new(client, spec(loss)).unwrap().checkpoint(1).unwrap();
        checkpoint.variables.values_mut().for_each(|array| array.bytes.fill(0));
        checkpoint
    };
    let evaluated = |checkpoint: &Checkpoint, loss: &str, batch: u32| {
        let task = spec(loss).task;
        let evaluator = Evaluator::new(client, &task, Precision::Bf16, batch, &Tuning::none()).unwrap();
        let evaluation = evaluator.evaluate(Path::new("zeros"), checkpoint, &*drawings().test).unwrap();
        assert_eq!(evaluation.n_examples as usize, N_TEST);
        evaluation.totals
    };
    // A logarithm to 4 ulp, and a sum of up to 391 equal terms, each addition to half an ulp.
    let bound = |value: f64| value * f64::from(f32::EPSILON) * (4.0 + N_TEST as f64 / 2.0);
    let n_first = examples::labels(&*drawings().test).iter().filter(|&&label| label == 0).count();
    let checkpoint = zeros(CLASSES);
    for batch in [32, 391] {
        let totals = evaluated(&checkpoint, CLASSES, batch);
        assert_eq!(totals.value("accuracy"), Some(n_first as f64 / N_TEST as f64), "batch {batch}");
        let (loss, expected) = (totals.loss().unwrap(), 11f64.ln());
        assert!((loss - expected).abs() <= bound(expected), "batch {batch}: {loss}");
    }
    // The candidates are those of the batch: 200, then 191 and padding.
    let totals = evaluated(&zeros(MATCHING), MATCHING, 200);
    assert_eq!(totals.value("matching_accuracy"), Some(2.0 / N_TEST as f64));
    let (loss, expected) = (totals.loss().unwrap(), (200.0 * 200f64.ln() + 191.0 * 191f64.ln()) / 391.0);
    assert!((loss - expected).abs() <= bound(expected), "{loss}, expected {expected}");
}

/// Predictions for blank images with these words, given as the bytes of each example.
fn predictions(words: &str, array: ArrayInfo, bytes: Vec<u8>, n: usize) -> Vec<Vec<u8>> {
    let text = format!("kind: two_tower\npictures: [4, 4, 1]\nwords: {words}\nfilters: [4]\nloss: {MATCHING}\n");
    let model: Model = document::from_str("small", &text).unwrap();
    let spec = Spec { batch: n as u32, precision: Precision::F32, ..Spec::new(model.task(0.0)) };
    let (client, task) = (run::client(), spec.task.clone());
    let checkpoint = Session::new(client, spec).unwrap().checkpoint(1).unwrap();
    let pictures = (ArrayInfo::new("pictures", DType::U8, [4, 4, 1]), vec![7; n * 16]);
    let source = Arrays::new(Path::new("words"), vec![pictures, (array, bytes)]).unwrap();
    let predictor = Predictor::new(client, &*task, Precision::F32, n as u32, &Tuning::none()).unwrap();
    let mut rows = Vec::new();
    let take = |arrays: Vec<bf16scope::data::NamedArray>| {
        let names: Vec<&str> = arrays.iter().map(|array| array.name.as_str()).collect();
        assert_eq!(names, ["picture_embedding", "word_embedding"]);
        rows.extend(arrays[1].bytes.chunks(arrays[1].bytes.len() / n).map(<[u8]>::to_vec));
        Ok::<(), TrainError>(())
    };
    predictor.predict(Path::new("new"), &checkpoint, &source, take).unwrap();
    rows
}

/// A sum of two numbers and zeros is the same in every order.
#[test]
fn padding_of_words_counts_for_nothing_in_their_mean() {
    let words = [[5, 7, 0, 0], [0, 5, 0, 7], [5, 7, 7, 0], [0, 0, 0, 0]];
    let bytes = words.iter().flatten().flat_map(|word: &i32| word.to_le_bytes()).collect();
    let array = ArrayInfo::new("words", DType::S32, [4]);
    let rows = predictions("{kind: ids, length: 4, vocabulary: 9}", array, bytes, 4);
    assert_eq!(rows[0], rows[1]);
    assert_ne!(rows[0], rows[2]);
    assert!(rows[3].iter().all(|&byte| byte == 0), "no words make no direction: {:?}", rows[3]);

    let vectors = [[1.5f32, -2.0, 0.0, 0.0], [0.0, 0.0, 1.5, -2.0], [1.5, -2.0, 1.5, -2.0], [1.5, -2.0, 1.0, 0.0]];
    let bytes = vectors.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let array = ArrayInfo::new("word_vectors", DType::F32, [2, 2]);
    let rows = predictions("{kind: vectors, dims: [2, 2]}", array, bytes, 4);
    assert_eq!((&rows[0], &rows[0]), (&rows[1], &rows[2]));
    assert_ne!(rows[0], rows[3]);
}

/// The example is what the documentation says it is.
#[test]
fn the_example_fits_its_data() {
    let Model::TwoTower(two_tower::Config { words: two_tower::Words::Ids(ids), .. }) =
        Experiment::read(example()).unwrap().model
    else {
        panic!("the example has numbers of words")
    };
    let vocabulary = std::fs::read_to_string(example().with_file_name("data/clipart_words.txt")).unwrap();
    assert_eq!(ids.vocabulary as usize, vocabulary.lines().count() + 1);
    assert_eq!((drawings().training.n_examples(), drawings().test.n_examples() as usize), (1582, N_TEST));
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;
    use crate::replicas::precisions;

    #[cfg_attr(feature = "long-tests", test)]
    fn classes_of_drawings_are_learnt_in_every_precision() {
        precisions().for_each(learns_classes);
    }

    /// As `storage` trains a small GPT, with the recipe of most networks: Adam, and a rate that falls to 0. (Adafactor's rate in
    /// `examples/two_tower.yaml` is relative to a variable's size, and ends at about an ulp of bf16: there nothing is lost.)
    ///
    /// Twelve trainings of two small towers; storage::small_updates_are_lost_by_nearest_kept_by_compensation_and_on_average_by_chance is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn two_towers_learn_in_every_storage_but_plain_bf16() {
        let text = "{kind: two_tower, pictures: [32, 32, 3], words: {kind: ids, length: 8, vocabulary: 459, features: 16}, \
                    filters: [8, 16], units: 32, dropout: 0.3, loss: {kind: classification, n_classes: 11, hidden: [32]}}";
        let update = Update {
            optimizer: Optimizer::ADAM,
            learning_rate: LearningRate::Cosine {
                value: 1e-3,
                decay_steps: NonZeroU32::new(12 * 49).unwrap(),
                alpha: 0.0,
            },
            ..Update::default()
        };
        let mut experiment = Experiment::read(example()).unwrap();
        experiment.model = document::from_str("small", text).unwrap();
        all_but_plain_bf16_learn("two towers", |variables, seed| {
            let mut spec = experiment.spec(Precision::Bf16, &Tuning::none()).unwrap();
            spec.objective.update = update.clone();
            learnt_of(Spec { variables, seed, ..spec }, drawings().data(), 12)
        });
    }
}
