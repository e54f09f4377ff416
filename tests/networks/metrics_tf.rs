//! Metrics of whole evaluations beside TensorFlow's, through an experiment's own words for them, padding and all.
//!
//! Where TensorFlow's arithmetic is a quotient of counts, ours rounded to f32 is TensorFlow's to the bit. Else the bound is
//! half ulps of f32 ([`U`]), written at each metric: ours adds batches in f64 and TensorFlow in f32.

use crate::run;

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::document;
use bf16scope::graph::{Graph, Precision};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn;
use bf16scope::task::{Metric, Weight};
use bf16scope::train::Evaluator;
use bf16scope::train::checkpoint::{Checkpoint, Position};
use bf16scope::tuning::Tuning;
use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadableElement};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

const U: f64 = 1.0 / (1u64 << 24) as f64;
const N_BATCHES: usize = 3;
const BATCH: usize = 40;

/// A network whose logits are its input.
const MODEL: &str = "kind: layers
inputs: {logits: [6], scores: [2]}
layers: [{flatten: , inputs: logits, name: rows}]
outputs: {rows: rows, scores: scores}
loss:
  - {sparse_softmax_cross_entropy: , output: rows}
  - {sigmoid_cross_entropy: , output: scores, labels: answers}
metrics:
  - {accuracy: , output: rows}
  - {top_k: 3, output: rows}
  - {mean_per_class_accuracy: , output: rows}
  - {mean_iou: , output: rows}
  - {perplexity: , output: rows}
  - {auc: , output: scores, labels: answers}
  - {auc: 50, output: scores, labels: answers, name: auc_50}
  - {iou: , output: scores, labels: answers}
  - {binary_accuracy: , output: scores, labels: answers}
  - {precision: , output: scores, labels: answers}
  - {recall: , output: scores, labels: answers}
  - {mean_squared_error: , output: scores, labels: answers}
  - {mean_absolute_error: , output: scores, labels: answers}
  - {root_mean_squared_error: , output: scores, labels: answers}
";

fn recorded<T: ReadableElement + Copy>(name: &str) -> Vec<T> {
    let path = format!("{}/tests/data/metrics_tf/metrics.npz", env!("CARGO_MANIFEST_DIR"));
    let array: ArrayD<T> = NpzReader::new(File::open(path).unwrap()).unwrap().by_name(name).unwrap();
    array.iter().copied().collect()
}

/// The first `n` examples of the recording.
fn examples(n: usize) -> Arrays {
    let f32s = |name: &str| {
        let values: Vec<f32> = recorded(&format!("in/{name}"));
        let width = values.len() / (N_BATCHES * BATCH);
        let bytes = values[..n * width].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        (ArrayInfo::new(name, DType::F32, [width as i64]), bytes)
    };
    let labels: Vec<i32> = recorded("in/labels");
    let labels = labels[..n].iter().flat_map(|label| label.to_le_bytes()).collect();
    let labels = (ArrayInfo::new("labels", DType::S32, []), labels);
    Arrays::new(Path::new("examples"), vec![f32s("logits"), f32s("scores"), labels, f32s("answers")]).unwrap()
}

#[test]
fn metrics_over_batches_are_tensorflows() {
    let model: Model = document::from_str("model.yaml", MODEL).unwrap();
    // 40 examples are a batch of 32, and one of 8 and padding.
    let evaluator = Evaluator::new(run::client(), &model.task(0.0), Precision::F32, 32, &Tuning::none()).unwrap();
    let position =
        Position { step: 1, steps_per_epoch: 1, batch: 1, seed: 0, precision: Precision::F32, order: 1, draws: 1 };
    let (settings, variables) = ("{}".parse().unwrap(), BTreeMap::new());
    let untrained = Checkpoint { position, settings, function: None, data: None, callbacks: None, variables };
    for batch in 0..N_BATCHES {
        let n = (batch + 1) * BATCH;
        let totals = evaluator.evaluate(Path::new("none"), &untrained, &examples(n)).unwrap().totals;
        let n = n as f64;
        for (name, roundings) in [
            ("accuracy", None),
            // TensorFlow's is `top_3_accuracy`, too.
            ("top_3_accuracy", None),
            // A quotient, and the mean of one.
            ("iou", Some(3.0)),
            ("binary_accuracy", None),
            ("precision", None),
            ("recall", None),
            // A quotient of each of six classes, their sum, a quotient: all are parts, of at most 1.
            ("mean_per_class_accuracy", Some(6.0 + 6.0 * 6.0 + 1.0)),
            ("mean_iou", Some(6.0 + 6.0 * 6.0 + 1.0)),
            // A trapezoid: two quotients a side, a difference, a sum, a product; and the sum of all.
            ("auc", Some(200.0 * (4.0 + 3.0) + 200.0)),
            ("auc_50", Some(50.0 * (4.0 + 3.0) + 50.0)),
            // Sums of 2n positive terms, ours and theirs, of at most 5² each on average.
            ("mean_squared_error", Some(2.0 * (2.0 * n + 3.0) * 25.0)),
            ("mean_absolute_error", Some(2.0 * (2.0 * n + 3.0) * 5.0)),
            // The error of a mean is what e to it is off by, relative: a cross-entropy of six classes with logits up to 4
            // (six terms, four functions of 8 half ulps), at most 12, and a sum of n; e to it once more.
            ("perplexity", Some(2.0 * ((36.0 + 32.0 + 8.0) * 5.0 + n * 12.0 + 8.0) * 50.0)),
        ] {
            let theirs = recorded::<f64>(name)[batch];
            let ours = totals.value(name).unwrap_or_else(|| panic!("no {name}"));
            match roundings {
                None => assert_eq!(ours as f32, theirs as f32, "{name}, {n} examples"),
                Some(roundings) => {
                    let off = (ours - theirs).abs();
                    assert!(off <= roundings * U, "{name}, {n} examples: {ours} is {off:e} from {theirs}");
                    assert!(roundings * U < 1e-2 * theirs.abs(), "{name}: the bound means nothing");
                }
            }
        }
        // From the same sums.
        let [mean, root] = ["mean_squared_error", "root_mean_squared_error"].map(|name| totals.value(name).unwrap());
        assert_eq!(root, mean.sqrt());
    }
}

/// 2^24 + 1, which f32 does not hold: a sum of ones ends at 2^24.
#[test]
fn counts_are_exact_beyond_what_f32_counts() {
    const DIMS: [i64; 2] = [673, 24_929];
    let graph = Graph::new("counts");
    let ones = graph.full(DType::Pred, &DIMS, 1.0);
    let metric = Metric::weighted(&ones, &ones);
    let Weight::Tensor(weight) = &metric.weight else { panic!("a count is a tensor") };
    let results = [("sum", &metric.sum), ("weight", weight)];
    let program = graph.finish(&results).unwrap();
    for literal in run::run(&program, |name| panic!("no input {name}")) {
        assert_eq!(literal, Literal::from_elements([], &[16_777_217i32]));
    }
}

/// The counts of each class by hand, with a row that is not counted and one with NaN logits.
#[test]
fn class_counts_leave_out_what_does_not_count() {
    let graph = Graph::new("counts");
    let logits = graph.input("logits", DType::F32, [5, 3]);
    let labels = graph.input("labels", DType::S32, [5]);
    let counted = graph.input("counted", DType::S32, [5]);
    let counted = counted.greater(&graph.full(DType::S32, &[5], 0.0));
    let counts = nn::class_counts(&logits, &labels, Some(&counted));
    let (x, answers) = (graph.input("x", DType::F32, [5]), graph.input("answers", DType::F32, [5]));
    let (above, of) = nn::above_thresholds(&x, &answers, Some(&counted), 3);
    let unions = counts.unions();
    let results = [
        ("hits", &counts.hits),
        ("labelled", &counts.labelled),
        ("said", &counts.predicted),
        ("unions", &unions),
        ("above", &above),
        ("of", &of),
    ];
    let program = graph.finish(&results).unwrap();
    let nan = f32::NAN;
    #[rustfmt::skip]
    let values = [2.0, 1.0, 0.0,  2.0, 1.0, 0.0,  0.0, 1.0, 2.0,  nan, 1.0, 0.0,  0.0, 1.0, 0.0];
    let literals = run::run(&program, |name| match name {
        "logits" => Literal::from_elements([5, 3], &values),
        "x" => Literal::from_elements([5], &[1.0, -1.0, nan, 2.0, 0.0]),
        "answers" => Literal::from_elements([5], &[1.0f32, 0.0, 1.0, 0.0, 0.0]),
        "labels" => Literal::from_elements([5], &[0, 1, 2, 0, 1]),
        _ => Literal::from_elements([5], &[1, 1, 1, 1, 0]),
    });
    let expected: [&[i32]; 4] = [&[1, 0, 1], &[2, 1, 1], &[2, 0, 1], &[3, 1, 1]];
    for (literal, expected) in literals.iter().zip(expected) {
        assert_eq!(*literal, Literal::from_elements([3], expected));
    }
    // One of the two true examples is above 1/2 and the other is NaN; one of the two false ones is above.
    assert_eq!(literals[4], Literal::from_elements([2, 3], &[1, 1, 0, 2, 1, 0]));
    assert_eq!(literals[5], Literal::from_elements([2], &[2, 2]));
}
