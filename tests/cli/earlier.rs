//! Compatibility: today's program evaluates and resumes a checkpoint of 0.1.0, and runs a package of it (tests/data/v0_1).

use crate::train_cli::Folder;

use bf16scope::data::npz::NpzReader;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/v0_1").join(name)
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(recorded("expected.json")).unwrap()).unwrap()
}

/// Two units of bf16 of a number below two: another processor adds up the six numbers of a hidden unit and the eight of a logit
/// in another order, and either sum may be rounded to the next number of bf16.
const ROUNDED: f64 = 2.0 * 0.0078125;

#[test]
fn a_checkpoint_of_0_1_is_evaluated_and_gone_on_from() {
    let folder = Folder::new();
    for name in ["experiment.yaml", "small.csv", "run.safetensors"] {
        std::fs::copy(recorded(name), folder.path(name)).unwrap();
    }
    let (expected, arguments) = (expected(), ["experiment.yaml", "--checkpoint", "run.safetensors"]);
    let evaluated = folder.json(&[&["eval"], &arguments[..], &["--json"]].concat());
    for key in ["steps", "n_examples"] {
        assert_eq!(evaluated[key], expected[key], "{key}");
    }
    let losses = [&evaluated, &expected].map(|of| of["loss"].as_f64().unwrap());
    // A cross-entropy moves by at most twice as much as its logits.
    assert!((losses[0] - losses[1]).abs() <= 2.0 * ROUNDED, "{losses:?}");

    let text = folder.stdout(&[&["train"], &arguments[..], &["--resume", "--epochs", "5"]].concat());
    assert!(text.contains("after 45 steps"), "{text}");
    let trained = folder.json(&[&["eval"], &arguments[..], &["--json"]].concat());
    assert_eq!(trained["steps"], 45);
}

#[test]
fn a_package_of_0_1_runs() {
    let folder = Folder::new();
    let (package, inputs) = (recorded("package"), recorded("inputs.npz"));
    let [package, inputs] = [&package, &inputs].map(|path| path.to_str().unwrap());
    folder.stdout(&["run", package, "--inputs", inputs, "--outputs", "out.npz"]);
    let bytes = NpzReader::open(folder.path("out.npz")).unwrap().entry("logits").unwrap().unwrap().read().unwrap();
    let logits: Vec<f32> = bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(logits.len(), 8 * 3);
    let expected = expected();
    let rows = expected["logits_of_the_first_eight"].as_array().unwrap();
    let recorded = rows.iter().flat_map(|row| row.as_array().unwrap()).map(|it| it.as_f64().unwrap());
    for (at, (logit, recorded)) in logits.iter().zip(recorded).enumerate() {
        assert!((f64::from(*logit) - recorded).abs() <= ROUNDED, "{at}: {logit} for {recorded}");
    }
}
