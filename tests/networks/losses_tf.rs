//! Losses and metrics beside Keras', through an experiment's own words for them, padding and all; each loss's value beside their
//! sum, in training too.
//!
//! The bounds are half ulps of f32 ([`U`]) of the largest term, for as many roundings as are written at each: ours and the
//! recording's.

use crate::run;

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::document;
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::Model;
use bf16scope::optim::Update;
use bf16scope::train::checkpoint::{Checkpoint, Position};
use bf16scope::train::{Evaluator, Objective, Session, Spec, Totals};
use bf16scope::tuning::Tuning;
use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadableElement};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

const U: f64 = 1.0 / (1u64 << 24) as f64;
const N: usize = 40;

/// A network whose logits are its input.
const MODEL: &str = "kind: layers
inputs: {logits: [6], scores: [2]}
labels: {targets: [2], mixed: [6], one_hot: [6], weights: []}
layers: [{flatten: , inputs: logits, name: rows}, {expression: abs(scores), name: rates}]
outputs: {rows: rows, scores: scores, rates: rates}
loss:
  - {log_cosh: , output: scores, labels: targets, name: log_cosh}
  - {cosine_similarity: , output: scores, labels: targets, name: cosine_loss}
  - {hinge: , output: scores, labels: answers, name: hinge}
  - {quantile: , tau: 0.9, output: scores, labels: targets, name: quantile}
  - {contrastive: , margin: 1.5, output: scores, labels: answers, name: contrastive}
  - {triplet: , margin: 2, output: rows, labels: labels, name: triplet}
  - {squared_hinge: , output: scores, labels: answers, name: squared_hinge}
  - {categorical_hinge: , output: rows, labels: one_hot, name: categorical_hinge}
  - {kl_divergence: , output: rows, labels: mixed, name: kl_divergence}
  - {mean_absolute_percentage_error: , output: scores, labels: targets, name: mape}
  - {mean_squared_logarithmic_error: , output: scores, labels: targets, name: msle}
  - {poisson: , output: rates, labels: answers, name: poisson}
  - {sparse_softmax_cross_entropy: , output: rows, example_weights: weights, reduction: weighted_mean, name: masked, weight: 2}
  - {softmax_cross_entropy: , output: rows, labels: mixed, weight: 0.5}
metrics:
  - {f1: , output: scores, labels: answers}
  - {macro_f1: , output: rows, example_weights: null}
  - {r2: , output: scores, labels: targets}
  - {cosine_similarity: , output: scores, labels: targets, name: cosine}
  - {accuracy: , output: rows, labels: mixed, example_weights: null}
  - {top_k: 3, output: rows, labels: mixed, example_weights: null}
";

fn recorded<T: ReadableElement + Copy>(name: &str) -> Vec<T> {
    let path = format!("{}/tests/data/metrics_tf/losses.npz", env!("CARGO_MANIFEST_DIR"));
    let array: ArrayD<T> = NpzReader::new(File::open(path).unwrap()).unwrap().by_name(name).unwrap();
    array.iter().copied().collect()
}

fn examples() -> Arrays {
    let f32s = |name: &str| {
        let values: Vec<f32> = recorded(&format!("in/{name}"));
        let dims: Vec<i64> = if name == "weights" { Vec::new() } else { vec![(values.len() / N) as i64] };
        (ArrayInfo::new(name, DType::F32, dims), values.iter().flat_map(|value| value.to_le_bytes()).collect())
    };
    let labels: Vec<i32> = recorded("in/labels");
    let one_hot = labels.iter().flat_map(|&label| (0..6).map(move |class| f32::from(u8::from(class == label))));
    let one_hot: Vec<u8> = one_hot.flat_map(f32::to_le_bytes).collect();
    let labels = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
    let mut arrays: Vec<_> = ["logits", "scores", "targets", "mixed", "answers", "weights"].map(f32s).to_vec();
    arrays.push((ArrayInfo::new("labels", DType::S32, []), labels));
    arrays.push((ArrayInfo::new("one_hot", DType::F32, [6]), one_hot));
    Arrays::new(Path::new("examples"), arrays).unwrap()
}

/// Each value, and the sum of the losses times their weights; of several batches, whose triplets and masks are each batch's
/// own, without those.
fn compare(totals: &Totals, case: &str, is_whole: bool) {
    let n = N as f64;
    for (ours, theirs, roundings) in [
        // Means of 2n terms of at most 4, with an exp and a log of 8 half ulps each.
        ("log_cosh", "log_cosh", 4.0 * (2.0 * n + 24.0) * 2.0),
        // Three sums of two, a root, products; a mean of n of at most 1.
        ("cosine_loss", "cosine_similarity", (n + 24.0) * 2.0),
        ("hinge", "hinge", 4.0 * (2.0 * n + 4.0) * 2.0),
        ("quantile", "quantile", 4.0 * (2.0 * n + 4.0)),
        ("contrastive", "contrastive", 16.0 * (2.0 * n + 6.0)),
        // Sums of six squares of at most 8², n terms.
        ("triplet", "triplet", 2.0 * 6.0 * 64.0 * (8.0 + n)),
        // Means of 2n squares of at most 3², of n margins of at most 9, and of n sums of six terms of at most 12.
        ("squared_hinge", "squared_hinge", 9.0 * (2.0 * n + 8.0) * 2.0),
        ("categorical_hinge", "categorical_hinge", 9.0 * (n + 12.0) * 2.0),
        ("kl_divergence", "kl_divergence", 12.0 * (n + 40.0) * 2.0),
        // Targets are above 0.0198, so that a term is at most 60 times the mean, 83.
        ("mape", "mape", 60.0 * (2.0 * n + 8.0) * 2.0),
        // Two logarithms of 8 half ulps each, of at most 1.4; a rate is above 1e-7, and its logarithm above -17.
        ("msle", "msle", 2.0 * (2.0 * n + 24.0) * 2.0),
        ("poisson", "poisson", 19.0 * (2.0 * n + 12.0) * 2.0),
        // Six terms, functions; at most 12 each, weights up to 2.5.
        ("masked", "masked", 30.0 * (n + 40.0) * 2.0),
        ("f1", "f1", 2.0),
        ("macro_f1", "macro_f1", 6.0 + 36.0),
        // Sums of n of at most 16, over a variance of 1 n at least: differences of what is n times as large.
        ("r2", "r2", 16.0 * (2.0 * n + 8.0) * 2.0),
        ("cosine", "cosine", (n + 24.0) * 2.0),
        ("accuracy", "accuracy", 1.0),
        ("top_3_accuracy", "top_3_accuracy", 1.0),
    ] {
        if ours == "triplet" && !is_whole {
            continue;
        }
        let theirs = recorded::<f64>(theirs)[0];
        let ours_value = totals.value(ours).unwrap_or_else(|| panic!("{case}: no {ours} in {totals:?}"));
        let off = (ours_value - theirs).abs();
        assert!(off <= roundings * U * theirs.abs().max(1.0), "{case}, {ours}: {ours_value} is {off:e} from {theirs}");
        assert!(roundings * U < 1e-2 * theirs.abs(), "{ours}: the bound means nothing");
    }
    if !is_whole {
        return;
    }
    let value = |name: &str| totals.value(name).unwrap();
    let plain = ["log_cosh", "cosine_loss", "hinge", "quantile", "contrastive", "triplet"].into_iter();
    let plain = plain.chain(["squared_hinge", "categorical_hinge", "kl_divergence", "mape", "msle", "poisson"]);
    let mixed = "rows_softmax_cross_entropy";
    let sum = plain.map(value).sum::<f64>() + 2.0 * value("masked") + 0.5 * value(mixed);
    assert!((value("loss") - sum).abs() <= 64.0 * U * sum.abs(), "{case}: {} and {sum}", value("loss"));
}

#[test]
fn losses_and_metrics_are_keras_and_each_loss_is_reported() {
    let model: Model = document::from_str("model.yaml", MODEL).unwrap();
    let task = model.task(0.0);
    let position =
        Position { step: 1, steps_per_epoch: 1, batch: 1, seed: 0, precision: Precision::F32, order: 1, draws: 1 };
    let (settings, variables) = ("{}".parse().unwrap(), BTreeMap::new());
    let untrained = Checkpoint { position, settings, function: None, data: None, callbacks: None, variables };
    // Whole, and in two batches, the second with 24 of padding.
    for batch in [40, 32] {
        let evaluator = Evaluator::new(run::client(), &task, Precision::F32, batch, &Tuning::none()).unwrap();
        let totals = evaluator.evaluate(Path::new("none"), &untrained, &examples()).unwrap().totals;
        compare(&totals, &format!("batch {batch}"), batch == 40);
    }
}

/// The same with a layer that trains, whose kernel is the identity and whose rate is 0.
#[test]
fn a_training_step_reports_them_too() {
    let model = MODEL.replace("{flatten: , inputs: logits, name: rows}", DENSE);
    let model: Model = document::from_str("model.yaml", &model).unwrap();
    let update = Update { learning_rate: 0.0.into(), ..Update::default() };
    let spec = Spec {
        precision: Precision::F32,
        batch: N as u32,
        objective: Objective { update, ..Objective::default() },
        task: model.task(0.0),
        ..Spec::new(model.task(0.0))
    };
    let mut session = Session::new(run::client(), spec.clone()).unwrap();
    let mut checkpoint = session.checkpoint(1).unwrap();
    let identity: Vec<u8> = (0..36u8).flat_map(|at| f32::from(u8::from(at % 7 == 0)).to_le_bytes()).collect();
    let kernels = checkpoint.variables.iter_mut().filter(|(name, _)| name.ends_with("/kernel"));
    kernels.for_each(|(_, array)| array.bytes.clone_from(&identity));
    session.restore(Path::new("identity"), &checkpoint, bf16scope::train::Resumption::default()).unwrap();
    let examples = examples();
    let loader = bf16scope::data::Loader::new(&examples, &spec.task.features(), DType::F32, N, 0).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    compare(&session.train(&batch).unwrap(), "training", true);
}

const DENSE: &str = "{dense: 6, inputs: logits, name: rows, use_bias: false}";

#[test]
fn what_a_loss_cannot_take_is_said_where_it_is_written() {
    let refused = |loss: &str| {
        let text = format!("kind: layers\ninputs: {{x: [4]}}\nlayers: [{{dense: 3}}]\nloss: {loss}\n");
        document::from_str::<Model>("m.yaml", &text).unwrap_err().to_string()
    };
    for (loss, expected) in [
        ("{quantile: , tau: 1}", "m.yaml:4:25: found integer `1`, expected a number above 0 and below 1"),
        ("{contrastive: , margin: 0}", "expected a finite number above 0"),
        (
            "{mean_squared_error: , reduction: weighted_mean}",
            "`reduction: weighted_mean` of examples that all weigh alike",
        ),
        ("{mean_squared_error: , reduction: mean}", "`mean`"),
        ("pinball", "quantile"),
    ] {
        let error = refused(loss);
        assert!(error.contains(expected), "{loss}: {error}");
    }
}
