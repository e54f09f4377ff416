//! The CTC loss and its gradient compared with TensorFlow's (`tests/data/ctc_tf/make.py`), directly and through an
//! experiment.
//!
//! Both sum logarithms over 7 steps of at most 9 states each: 3 exponentials and a logarithm of at most 4 half ulps a state, of numbers
//! below 32, `7 · 16 · 32 · 2^-24 = 2.1e-4` if all pulled the same way. The gradient is a softmax, 1 at most, times a weight of 1.5
//! at most, and such exponentials.

use crate::run;
use bf16scope::data::Alignment;
use bf16scope::document;
use bf16scope::graph::{Graph, Precision};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn::{CtcLengths, ctc_per_example, ctc_with_lengths};
use bf16scope::passes::grad;
use bf16scope::train::program::evaluation;
use bf16scope::tuning::Tuning;
use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadableElement};
use std::fs::File;

const TOLERANCE: f32 = 2.1e-4;

fn recorded<T: ReadableElement + Copy>(name: &str) -> (Vec<i64>, Vec<T>) {
    recorded_in("ctc", name)
}

fn recorded_in<T: ReadableElement + Copy>(file: &str, name: &str) -> (Vec<i64>, Vec<T>) {
    let path = format!("{}/tests/data/ctc_tf/{file}.npz", env!("CARGO_MANIFEST_DIR"));
    let array: ArrayD<T> = NpzReader::new(File::open(path).unwrap()).unwrap().by_name(name).unwrap();
    (array.shape().iter().map(|&dim| dim as i64).collect(), array.iter().copied().collect())
}

#[test]
fn ctc_is_tensorflows_with_its_gradient() {
    for blank in [0, 4] {
        let g = Graph::training("ctc");
        let logits = g.input("logits", DType::F32, [5, 7, 5]);
        let labels = g.input("labels", DType::S32, [5, 4]);
        let weights = g.input("weights", DType::F32, [5]);
        let each = ctc_per_example(&logits, &labels, blank);
        let loss = (&each * &weights).sum(&[0]);
        let gradients = grad::gradients(g.emitter(), loss.id, &[logits.id]).unwrap();
        let gradient = g.tensor(gradients[0]);
        let program = g.finish(&[("loss", &each), ("gradient", &gradient)]).unwrap();
        let results = run::run(&program, |name| match name {
            "labels" => {
                let (dims, labels) = recorded::<i32>(&format!("labels{blank}"));
                Literal::from_elements(dims, &labels)
            }
            name => {
                let (dims, values) = recorded::<f32>(name);
                Literal::from_elements(dims, &values)
            }
        });
        for (name, result) in ["loss", "gradient"].into_iter().zip(&results) {
            let (_, expected) = recorded::<f32>(&format!("{name}{blank}"));
            let result = run::f32s(result);
            assert_eq!(result.len(), expected.len(), "{name}");
            for (number, (ours, theirs)) in result.iter().zip(&expected).enumerate() {
                let off = (ours - theirs).abs();
                assert!(off <= TOLERANCE, "blank {blank}: {name}[{number}] is {ours}, {off:e} from {theirs}");
            }
        }
    }
}

/// `tests/data/ctc_tf/make_lengths.py`. Steps and labels beyond a length are ignored, and their gradient is exactly 0.
#[test]
fn ctc_with_lengths_is_tensorflows_with_its_gradient() {
    let g = Graph::training("ctc");
    let logits = g.input("logits", DType::F32, [5, 7, 5]);
    let labels = g.input("labels", DType::S32, [5, 4]);
    let weights = g.input("weights", DType::F32, [5]);
    let [of_labels, of_logits] = ["label_lengths", "logit_lengths"].map(|name| g.input(name, DType::S32, [5]));
    let lengths = CtcLengths { labels: Some(&of_labels), logits: Some(&of_logits) };
    let each = ctc_with_lengths(&logits, &labels, lengths, 0);
    let loss = (&each * &weights).sum(&[0]);
    let gradients = grad::gradients(g.emitter(), loss.id, &[logits.id]).unwrap();
    let gradient = g.tensor(gradients[0]);
    let program = g.finish(&[("loss", &each), ("gradient", &gradient)]).unwrap();
    let results = run::run(&program, |name| match name {
        "labels" | "label_lengths" | "logit_lengths" => {
            let (dims, values) = recorded_in::<i32>("lengths", name);
            Literal::from_elements(dims, &values)
        }
        name => {
            let (dims, values) = recorded_in::<f32>("lengths", name);
            Literal::from_elements(dims, &values)
        }
    });
    for (name, result) in ["loss", "gradient"].into_iter().zip(&results) {
        let (_, expected) = recorded_in::<f32>("lengths", name);
        for (number, (ours, theirs)) in run::f32s(result).iter().zip(&expected).enumerate() {
            let off = (ours - theirs).abs();
            assert!(off <= TOLERANCE, "{name}[{number}] is {ours}, {off:e} from {theirs}");
        }
    }
    let (_, lengths) = recorded_in::<i32>("lengths", "logit_lengths");
    for (row, steps) in run::f32s(&results[1]).chunks_exact(5).enumerate() {
        let is_counted = (row % 7) < lengths[row / 7] as usize;
        assert!(is_counted || steps.iter().all(|&number| number == 0.0), "row {row}: {steps:?}");
    }
}

/// TensorFlow's classic loss is infinite, too, with a warning that there is no valid path.
#[test]
fn labels_that_do_not_fit_have_an_infinite_loss_without_a_gradient() {
    let g = Graph::training("ctc");
    let logits = g.input("logits", DType::F32, [2, 3, 4]);
    let labels = g.input("labels", DType::S32, [2, 3]);
    let each = ctc_per_example(&logits, &labels, 0);
    let gradients = grad::gradients(g.emitter(), each.sum(&[0]).id, &[logits.id]).unwrap();
    let gradient = g.tensor(gradients[0]);
    let program = g.finish(&[("loss", &each), ("gradient", &gradient)]).unwrap();
    let results = run::run(&program, |name| match name {
        // 1, a blank and 1 are all the steps.
        "labels" => Literal::from_elements([2, 3], &[1, 1, 2, 1, 1, 0]),
        _ => Literal::from_elements([2, 3, 4], &[0.0f32; 24]),
    });
    let (losses, gradients) = (run::f32s(&results[0]), run::f32s(&results[1]));
    assert!(losses[0] == f32::INFINITY && (losses[1] - 3.0 * 4f32.ln()).abs() <= TOLERANCE, "{losses:?}");
    assert!(gradients[..12].iter().all(|&number| number == 0.0), "{gradients:?}");
    assert!(gradients[12..].iter().all(|number| number.is_finite() && *number != 0.0), "{gradients:?}");
}

#[test]
fn an_experiment_names_lengths_and_bounds_them() {
    let read = |loss: &str| {
        let text = format!(
            "kind: layers\ninputs: {{x: [20, 8]}}\nlabels: {{text: {{shape: [6], dtype: int32}}}}\nlayers: [{{dense: 5}}]\nloss: {{{loss}, labels: text}}\n"
        );
        document::from_str::<Model>("m.yaml", &text)
    };
    let model = read("ctc: , label_lengths: n, logit_lengths: steps").unwrap();
    let features = model.task(0.0).features();
    let lengths: Vec<_> = features.iter().map(|it| (it.name.as_str(), &it.dims[..], it.n_values)).collect();
    assert_eq!(lengths[1..], [("text", &[6][..], Some(5)), ("n", &[], Some(7)), ("steps", &[], Some(21))]);
    let [label_lengths, logit_lengths] = ["n", "steps"].map(|name| Some(name.to_string()));
    assert_eq!(features[1].alignments, [Alignment { n_steps: 20, blank: 0, label_lengths, logit_lengths }]);
    let error = read("sparse_softmax_cross_entropy: , label_lengths: n").unwrap_err().to_string();
    assert!(error.contains("sparse_softmax_cross_entropy has no lengths"), "{error}");
}

#[test]
fn an_experiment_has_it_by_its_name_and_says_what_does_not_fit() {
    let read = |labels: &str, loss: &str| {
        let text = format!(
            "kind: layers\ninputs: {{x: [20, 8]}}\nlabels: {{text: {labels}}}\nlayers: [{{dense: 5}}]\nloss: {{{loss}, labels: text}}\n"
        );
        document::from_str::<Model>("m.yaml", &text)
    };
    let model = read("{shape: [6], dtype: int32}", "ctc: , blank: 4").unwrap();
    let labels = model.task(0.0).features().into_iter().find(|feature| feature.is_label).unwrap();
    assert_eq!((labels.dims, labels.n_values), (vec![6], Some(5)));
    let error = read("{shape: [6], dtype: int32}", "ctc: , blank: 5").unwrap_err().to_string();
    assert!(
        error.contains("m.yaml:5:") && error.contains("blank is 5, expected one of 5 classes, from 0 to 4"),
        "{error}"
    );
    let error = read("{shape: [6, 2], dtype: int32}", "ctc: ").unwrap_err().to_string();
    assert!(error.contains("labels are s32[32,6,2], expected whole numbers [32, length]"), "{error}");
}

/// Padding is zeros, which say class 0 in every step where another class is the blank.
#[test]
fn padding_of_an_evaluation_does_not_make_its_loss_infinite() {
    let text = "kind: layers\ninputs: {x: {shape: [3, 4], dtype: float32}}\nlabels: {text: {shape: [3], dtype: int32}}\n\
                layers: [{activation: linear}]\nloss: {ctc: , blank: 3, labels: text}\n";
    let model: Model = document::from_str("m.yaml", text).unwrap();
    let program = evaluation(&*model.task(0.0), Precision::F32, 2, &Tuning::none()).unwrap().program;
    let results = run::run(&program, |name| match name {
        "text" => Literal::from_elements([2, 3], &[1, 2, 3, 0, 0, 0]),
        "x" => Literal::from_elements([2, 3, 4], &[0.0f32; 24]),
        _ => Literal::from_elements([2], &[1.0f32, 0.0]),
    });
    // Two labels in three steps of four equal logits: five alignments of 64.
    let loss = run::f32s(&results[0])[0];
    assert!((loss - (64f32 / 5.0).ln()).abs() <= TOLERANCE, "{loss}");
}
