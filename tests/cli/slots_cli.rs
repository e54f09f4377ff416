//! `bf16scope weights --model` on files with optimizer state: training continues from it like in the other framework.

use crate::train_cli::{Folder, text};

use bf16scope::hlo::Literal;
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::weights;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/imported/slots").join(name)
}

/// The network of tests/data/imported/make_slots.py with an optimizer; `dtype` is appended to its last layer.
fn experiment(train: &str, dtype: &str) -> String {
    format!(
        "model:\n  kind: layers\n  inputs:\n    images: {{shape: [8, 8, 3]}}\n  layers:\n    \
         - {{conv: 4, kernel_size: 3, padding: same, use_bias: false, name: conv}}\n    \
         - {{batch_norm: , momentum: 0.9, epsilon: 1.0e-3, name: bn}}\n    - {{activation: relu}}\n    - global_avg_pool\n    \
         - {{dense: 5, name: logits{dtype}}}\n  loss: sparse_softmax_cross_entropy\ndata: {{npz: {}, n_test: 1}}\n\
         train: {{batch: 16, epochs: 25, {train}}}\n",
        data("examples.npz").display()
    )
}

/// The losses of twenty steps, with one step per epoch: 6 to 25, or the first ones if the file counts no steps.
fn losses(folder: &Folder, file: &str, precision: &str) -> Vec<f64> {
    let file = data(file).display().to_string();
    let all = ["--model", "net.yaml", "--precision", precision, "-o", "in.safetensors", "--json"];
    let report = folder.json(&[&["weights", file.as_str()], &all[..]].concat());
    // PyTorch's SGD counts no steps.
    let about = match file.ends_with("torch_sgd.pt") {
        true => "the file says no number of updates: the run goes on from step 0, and so do schedules".into(),
        false => Value::Null,
    };
    assert_eq!((&report["has_slots"], &report["about_slots"]), (&true.into(), &about), "{report}");
    let run = format!("run-{precision}");
    let train = ["train", "net.yaml", "--precision", precision, "--resume=in.safetensors", "--log-every", "1"];
    folder.stdout(
        &[&train[..], &["--epochs", "25", "--checkpoint", "out.safetensors", "--overwrite", "--run", &run]].concat(),
    );
    let lines = std::fs::read_to_string(folder.path(&run).join("metrics.jsonl")).unwrap();
    let recorded_losses =
        lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64());
    recorded_losses.take(20).collect()
}

/// TensorFlow 1's RMSProp, whose second slot is its momentum.
const RMSPROP: &str = "learning_rate: 0.01, optimizer: {kind: rmsprop, decay: 0.9, momentum: 0.9, epsilon: 1.0e-3}";

/// Keras' RMSProp.
const CENTERED: &str = "learning_rate: 0.01, optimizer: {kind: rmsprop, decay: 0.9, momentum: 0.9, epsilon: 1.0e-3, \
     centered: true}";

fn recorded(file: &str, name: &str) -> Vec<f64> {
    let Literal::Array { bytes, .. } = weights::open(data(file)).unwrap().read(name).unwrap() else { panic!("{name}") };
    bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

fn rms(left: &[f64], right: &[f64]) -> f64 {
    (left.iter().zip(right).map(|(l, r)| (l - r) * (l - r)).sum::<f64>() / left.len() as f64).sqrt()
}

/// Numbered slots, one for the step count; slots by name; PyTorch's by variable.
#[test]
fn training_goes_on_from_slots_as_the_other_framework_did() {
    goes_on("keras_rmsprop.keras", &["f32", "bf16"]);
    goes_on("tf1_momentum", &["f32"]);
    goes_on("torch_adam.pt", &["f32"]);
}

/// Twenty steps from a file's slots, in the given precisions, compared with the framework that wrote it.
fn goes_on(file: &str, precisions: &[&str]) {
    let sgd = "learning_rate: 0.1, optimizer: {kind: momentum, momentum: 0.9, nesterov: true}";
    let momentum = "learning_rate: 0.1, optimizer: {kind: momentum, momentum: 0.9}";
    let adam = |epsilon: &str, hat: bool| {
        format!("learning_rate: 0.01, optimizer: {{kind: adam, epsilon: {epsilon}, epsilon_hat: {hat}}}")
    };
    let keras_adam = adam("1.0e-7", true);
    let tf1_adam = adam("1.0e-3", true);
    let torch_adam = adam("1.0e-6", false);
    let (train, name): (&str, &str) = match file {
        "keras_sgd.keras" | "keras_sgd.h5" => (sgd, "keras_sgd"),
        "keras_adam.keras" | "keras_adam_objects" => (&keras_adam, "keras_adam"),
        "keras_rmsprop.keras" => (CENTERED, "keras_rmsprop"),
        "tf1_momentum" => (momentum, "tf1_momentum"),
        "tf1_adam" => (&tf1_adam, "tf1_adam"),
        "tf1_rmsprop" => (RMSPROP, "tf1_rmsprop"),
        "torch_adam.pt" => (&torch_adam, "torch_adam"),
        "torch_sgd.pt" => (sgd, "torch_sgd"),
        other => panic!("{other} has no recording"),
    };
    let framework = name.split('_').next().unwrap();
    let recording = format!("losses_{framework}.npz");
    let folder = Folder::new();
    // Keras' logits are computed in f32, as in its guide to mixed precision.
    let dtype = if framework == "keras" { ", dtype: float32" } else { "" };
    std::fs::write(folder.path("net.yaml"), experiment(train, dtype)).unwrap();
    let [theirs, theirs_bf16] = ["f32", "bf16"].map(|key| recorded(&recording, &format!("{name}_{key}")));
    for &precision in precisions {
        let ours = losses(&folder, file, precision);
        assert_eq!((ours.len(), theirs.len()), (20, 20), "{file}");
        let (error, other) = (rms(&ours, &theirs), rms(&theirs_bf16, &theirs));
        println!("{file}: {precision} {error:.1e}, theirs in bf16 {other:.1e}");
        // Sums of up to 1,024 numbers in another order differ by at most 2^-24 of them for each addition, and twenty
        // steps add up their changes, in a mean over 16 examples; a difference as large as a rounding to bf16, 2^-9 of
        // a loss near 1, would mean another optimizer. In bf16 the difference from f32 may be that of the other
        // framework's own bf16, and half as much again: roundings are different.
        let bound = if precision == "f32" { 20.0 * 1024.0 / (1 << 24) as f64 / 16.0 } else { 1.5 * other };
        assert!(error <= bound, "{file} in {precision}: {error:e}, expected at most {bound:e}");
    }
}

/// Keras' old `.h5` of a whole model has slots by name; they equal the numbered ones of its `.keras`.
#[test]
fn slots_of_keras_whole_h5_are_those_of_its_keras() {
    let folder = Folder::new();
    let sgd = "learning_rate: 0.1, optimizer: {kind: momentum, momentum: 0.9, nesterov: true}";
    std::fs::write(folder.path("net.yaml"), experiment(sgd, "")).unwrap();
    let variables = |file: &str| {
        let (from, out) = (data(file).display().to_string(), format!("of_{file}.safetensors"));
        let report = folder.json(&["weights", &from, "--model", "net.yaml", "-o", &out, "--json"]);
        let expected = (&Value::from(true), &Value::Null, &Value::from(5), &Value::Array(Vec::new()));
        assert_eq!(
            (&report["has_slots"], &report["about_slots"], &report["step"], &report["left_over"]),
            expected,
            "{file}"
        );
        Checkpoint::read(folder.path(&out)).unwrap().variables
    };
    assert_eq!(variables("keras_sgd.h5"), variables("keras_sgd.keras"));
}

/// The data determine the steps per epoch: a checkpoint made without data used to have one step per epoch, and no run
/// could resume it.
#[test]
fn slots_without_data_go_no_further() {
    let folder = Folder::new();
    let train = "learning_rate: 0.01, optimizer: {kind: adam, epsilon: 1.0e-3, epsilon_hat: true}";
    let net = experiment(train, "").replace("batch: 16", "batch: 4");
    std::fs::write(folder.path("net.yaml"), net.replace("examples.npz", "gone.npz")).unwrap();
    let file = data("tf1_adam").display().to_string();
    let import = ["weights", &file, "--model", "net.yaml", "-o", "in.safetensors", "--json"];
    let report = folder.json(&import);
    let about = report["about_slots"].as_str().unwrap();
    assert!(report["has_slots"] == false && about.contains("gone.npz: cannot open the archive"), "{about}");
    assert!(about.ends_with("name the data, and make the checkpoint again"), "{about}");
    // With data it resumes, in the middle of an epoch.
    std::fs::write(folder.path("net.yaml"), &net).unwrap();
    assert_eq!(folder.json(&import)["has_slots"], true);
    let resume = [
        "train",
        "net.yaml",
        "--resume=in.safetensors",
        "--epochs",
        "2",
        "--no-run",
        "--checkpoint",
        "out.safetensors",
    ];
    let output = folder.run(&resume);
    assert!(text(&output.stderr).contains("going on from in.safetensors after step 5"), "{}", text(&output.stderr));
}

/// Keras' `.weights.h5` is the member inside its `.keras`, without the order of layers: slots are in the model's order.
#[test]
fn slots_of_keras_weights_alone_are_in_the_models_order() {
    let folder = Folder::new();
    let mut archive = zip::ZipArchive::new(std::fs::File::open(data("keras_adam.keras")).unwrap()).unwrap();
    let mut member = archive.by_name("model.weights.h5").unwrap();
    std::io::copy(&mut member, &mut std::fs::File::create(folder.path("model.weights.h5")).unwrap()).unwrap();
    let adam = "learning_rate: 0.01, optimizer: {kind: adam, epsilon: 1.0e-7, epsilon_hat: true}";
    std::fs::write(folder.path("net.yaml"), experiment(adam, "")).unwrap();
    let import = |file: &str, out: &str| folder.json(&["weights", file, "--model", "net.yaml", "-o", out, "--json"]);
    let report = import("model.weights.h5", "of_h5.safetensors");
    assert_eq!(
        (&report["has_slots"], report["about_slots"].as_str().unwrap()),
        (&true.into(), "slots are numbered there, and are taken in the order of this model's variables")
    );
    import(&data("keras_adam.keras").display().to_string(), "of_keras.safetensors");
    let variables = |name: &str| Checkpoint::read(folder.path(name)).unwrap().variables;
    assert_eq!(variables("of_h5.safetensors"), variables("of_keras.safetensors"));
}

#[test]
fn slots_that_are_not_taken_are_said_to_start_afresh() {
    let folder = Folder::new();
    let about = |train: &str, file: &str| {
        std::fs::write(folder.path("net.yaml"), experiment(train, "")).unwrap();
        let file = data(file).display().to_string();
        let report = folder.json(&["weights", &file, "--model", "net.yaml", "-o", "in.safetensors", "--json"]);
        assert_eq!(report["has_slots"], false);
        text(report["about_slots"].as_str().unwrap_or_default().as_bytes())
    };
    let momentum = "learning_rate: 0.1, optimizer: {kind: momentum, momentum: 0.9}";
    assert_eq!(
        about(momentum, "keras_adam.keras"),
        "its optimizer has 12 arrays, expected 6 or 7 of 5 variables that train with the slots momentum: its slots start afresh"
    );
    let message = about(momentum, "tf1_adam");
    assert!(
        message.starts_with("the file has state of an optimizer, such as ") && message.ends_with("start afresh"),
        "{message}"
    );
    // `RMSProp_1` is its momentum, because there is no `RMSProp_2`.
    assert_eq!(
        about(CENTERED, "tf1_rmsprop"),
        "10 of 15 slots of rmsprop are in the file, and all start afresh: conv/kernel/rms_mean is not there"
    );
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Training_goes_on_from_slots_as_the_other_framework_did is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn training_goes_on_from_slots_of_every_optimizer() {
        for file in [
            "keras_sgd.keras",
            "keras_sgd.h5",
            "keras_adam.keras",
            "keras_adam_objects",
            "keras_rmsprop.keras",
            "tf1_momentum",
            "tf1_adam",
            "tf1_rmsprop",
            "torch_adam.pt",
            "torch_sgd.pt",
        ] {
            goes_on(file, &["f32", "bf16"]);
        }
    }
}
