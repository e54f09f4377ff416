//! BERT's pre-training as YAML has it (`examples/models/bert_pretraining.yaml`, its sizes made small and without dropout), ten steps
//! beside TensorFlow's operations with the same weights, examples and optimizer (`tests/data/bert_tf/make.py`).

use crate::run;
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::pjrt::Setup;
use bf16scope::train::{Event, InitializeFrom, Trainer};
use bf16scope::tuning::Tuning;
use ndarray::Array1;
use ndarray_npy::NpzReader;
use std::fs::File;
use std::path::Path;

/// Sizes of the model, and what they become.
const SMALL: &[(&str, &str)] = &[
    ("transformer_block: 12, intermediate_dim: 3072", "transformer_block: 2, intermediate_dim: 64"),
    ("repeats: 12", "repeats: 2"),
    ("768", "16"),
    ("30522", "60"),
    ("embedding: 16,", "embedding: 2,"),
    ("position_embedding: 512", "position_embedding: 12"),
    ("[128]", "[12]"),
    ("below: 128", "below: 12"),
    ("[20]", "[3]"),
    ("dropout: 0.1", "dropout: 0"),
    (
        "layer_norm: {epsilon: 1.0e-12}}\n    - {dropout: 0, name: embedded}",
        "layer_norm: {epsilon: 1.0e-12}, name: embedded}",
    ),
];

/// A loss of 5 is a mean of 24 terms after about 60 sums of at most 64 products of numbers below 4, `60 · 64 · 2^-24 = 2.3e-4` of it
/// if all roundings pulled the same way; and Adam's steps divide gradients by their own size, so each of ten steps may add as
/// much.
#[test]
fn bert_in_yaml_has_tensorflows_losses_over_ten_steps() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bert_tf");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/bert_pretraining.yaml");
    let mut text = std::fs::read_to_string(file).unwrap();
    for (large, small) in SMALL {
        assert!(text.contains(large), "{large}");
        text = text.replace(large, small);
    }
    text += &format!(
        "data: {{npz: {0}/examples.npz, test: {{npz: {0}/examples.npz}}}}
train:
  batch: 8
  optimizer: {{kind: adamw, bias_correction: false, epsilon: 1.0e-6}}
  learning_rate: 0.002
  weight_decay: {{value: 0.01, decoupled: true, except: [/bias, /gamma, /beta]}}
  clip: {{kind: global_norm, value: 1}}
",
        data.display()
    );
    let path = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(path.path(), text).unwrap();
    let experiment = Experiment::read(path.path()).unwrap_or_else(|error| panic!("{error}"));
    let examples = experiment.read_data(path.path(), &Setup::from_env()).unwrap();
    let expected: Array1<f32> =
        NpzReader::new(File::open(data.join("losses.npz")).unwrap()).unwrap().by_name("losses").unwrap();
    let train = |precision: Precision| {
        let mut losses = Vec::new();
        let spec = experiment.spec(precision, &Tuning::none()).unwrap();
        let trainer = Trainer::from_spec(spec).on(run::client()).epochs(10);
        let trainer = trainer.initialize_from(InitializeFrom::new(data.join("weights.npz"))).on_event(|event| {
            if let Event::Epoch(report) = event {
                losses.push(report.train_value("loss").unwrap() as f32);
            }
        });
        let data = examples.data();
        trainer.fit(data.training, data.test).unwrap_or_else(|error| panic!("{error}"));
        losses
    };
    let f32s = train(Precision::F32);
    for (step, (ours, theirs)) in f32s.iter().zip(&expected).enumerate() {
        let off = (ours - theirs).abs() / theirs;
        assert!(off <= 2.3e-4 * (step + 1) as f32, "step {step}: {ours}, TensorFlow {theirs}, off by {off:e}");
    }
    assert_eq!((f32s.len(), expected.len()), (10, 10));
    // In bf16 as far as a mean of rounded logits is, 2^-9 of numbers up to 8 a step.
    for (step, (ours, theirs)) in train(Precision::Bf16).iter().zip(&expected).enumerate() {
        let off = (ours - theirs).abs();
        assert!(off <= 8.0 * 2f32.powi(-9) * (step + 1) as f32, "step {step} in bf16: {ours}, TensorFlow {theirs}");
    }
}
