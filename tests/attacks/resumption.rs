//! Resuming from a checkpoint with other settings or other data, and evaluating it on them.

use super::binary;
use super::streams::{Tiny, kill, text};
use bf16scope::train::checkpoint::Checkpoint;
use serde_json::Value;
use std::process::{Output, Stdio};

/// The settings that the checkpoint is made with.
const TRAIN: &str = "batch: 8, epochs: 2, learning_rate: {kind: constant, value: 0.05}";

/// An experiment that has trained two epochs.
fn trained() -> Tiny {
    let tiny = Tiny::new();
    tiny.write(TRAIN);
    let output = tiny.train(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    tiny
}

fn resume(tiny: &Tiny, args: &[&str]) -> Output {
    tiny.train(&[&["--resume", "--epochs", "3"], args].concat())
}

fn refused(tiny: &Tiny, args: &[&str], changes: &str, help: &str) {
    let before = std::fs::read(tiny.path("run.safetensors")).unwrap();
    let output = resume(tiny, args);
    let expected = format!(
        "bf16scope: run.safetensors: the checkpoint is of another run:{changes}\n\
         help: {help}, or leave --resume out to start again\n"
    );
    assert_eq!((text(&output.stderr), output.status.code()), (expected, Some(2)));
    assert!(std::fs::read(tiny.path("run.safetensors")).unwrap() == before);
}

#[test]
fn what_may_change_is_said_with_both_values() {
    let tiny = trained();
    tiny.write_all(
        "{kind: mlp, input: [4], n_classes: 2, hidden: [8], dropout: 0.2}",
        "0.1",
        "batch: 8, label_smoothing: 0.1, weight_decay: {value: 0.001}, learning_rate: {kind: constant, value: 0.01}, \
         optimizer: {kind: momentum, momentum: 0.8}",
    );
    let output = resume(&tiny, &[]);
    assert_eq!(
        text(&output.stderr),
        "bf16scope: model.dropout was 0.1, is 0.2 now\n\
         bf16scope: model.label_smoothing was 0.0, is 0.1 now\n\
         bf16scope: train.learning_rate.value was 0.05, is 0.01 now\n\
         bf16scope: train.optimizer.momentum was 0.9, is 0.8 now\n\
         bf16scope: train.weight_decay.value was 0.0, is 0.001 now\n\
         bf16scope: going on from run.safetensors after step 8\n"
    );
    assert_eq!((output.status.code(), tiny.steps()), (Some(0), 12));
    // The checkpoint has the changed value from then on.
    let output = tiny.train(&["--resume", "--epochs", "2"]);
    assert_eq!(text(&output.stderr), "bf16scope: run.safetensors has 3 epochs, --epochs 2 asks for no more\n");
    assert_eq!((output.status.code(), tiny.steps()), (Some(0), 12));
}

#[test]
fn what_may_not_change_is_refused_with_both_values() {
    let tiny = trained();
    let seed = u64::MAX.to_string();
    refused(
        &tiny,
        &["--batch", "4", "--seed", &seed, "--precision", "f32"],
        "\n  batch was 8, is 4 now\n  precision was bf16, is f32 now\n  seed was 0, is 18446744073709551615 now",
        "give --batch 8 --precision bf16 --seed 0",
    );
    tiny.write(&format!("{TRAIN}, optimizer: {{kind: sgd}}"));
    refused(
        &tiny,
        &[],
        "\n  train.optimizer was {kind: momentum, momentum: 0.9, momentum_dtype: f32, nesterov: false}, is {kind: sgd} now",
        "set the experiment as it was",
    );
}

#[test]
fn other_data_are_refused_and_evaluated_with_a_warning() {
    let tiny = trained();
    let hash = |text: &str, key: &str| {
        let (before, now) = text.split_once(&format!("{key} was ")).unwrap().1.split_once(", is ").unwrap();
        assert_ne!(before, now.split_once(" now").unwrap().0);
    };
    let help = "help: use the data, `scale` and `n_test` it was made with, or leave --resume out to start again\n";
    // Turned round, the file's first examples are the test set now: they were trained on.
    tiny.write_data(|row| 39 - row);
    let output = resume(&tiny, &[]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for key in ["data.training.images", "data.training.labels", "data.test.images"] {
        hash(&stderr, key);
    }
    assert!(stderr.ends_with(help), "{stderr}");
    let eval = ["eval", "tiny.yaml", "--checkpoint", "run.safetensors", "--json"];
    let output = binary::bf16scope(&eval).current_dir(tiny.folder()).output().unwrap();
    assert_eq!(
        (text(&output.stderr).as_str(), output.status.code()),
        (
            "bf16scope: warning: run.safetensors: these test data are not those of its training: examples that it was \
             trained on may be among them\n",
            Some(0)
        )
    );
    assert!(text(&output.stdout).contains("\"same_test_data\": false"));

    // The same rows, scaled otherwise: labels are as they were.
    tiny.write_data(|row| row);
    tiny.write_all("{kind: mlp, input: [4], n_classes: 2, hidden: [8], dropout: 0.1}", "0.2", TRAIN);
    let stderr = text(&resume(&tiny, &[]).stderr);
    assert!(stderr.contains("data.training.images was ") && !stderr.contains("labels"), "{stderr}");
    assert!(stderr.ends_with(help), "{stderr}");
    // And as it was again, it goes on, and is evaluated in silence.
    tiny.write(TRAIN);
    assert_eq!(text(&resume(&tiny, &[]).stderr), "bf16scope: going on from run.safetensors after step 8\n");
    let output = binary::bf16scope(&eval).current_dir(tiny.folder()).output().unwrap();
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("", Some(0)));
    assert!(text(&output.stdout).contains("\"same_test_data\": true"));
}

#[test]
fn a_run_that_is_killed_within_an_epoch_goes_on_there_to_the_same_bytes() {
    let tiny = Tiny::new();
    // 32 steps an epoch, and a checkpoint after each: few kills fall between epochs.
    let train = "batch: 1, epochs: 1, learning_rate: {kind: constant, value: 0.001}, save_checkpoints_steps: 1";
    tiny.write(&format!("{train}, keep_checkpoint_max: 3"));
    let mut args = vec!["--epochs", "10000000"];
    let step = loop {
        let mut child = tiny.train_by(&[], &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tiny.wait_for_checkpoint();
        kill("KILL", &child);
        child.wait().unwrap();
        match tiny.steps() {
            step if !step.is_multiple_of(32) => break step,
            _ => args = vec!["--epochs", "10000000", "--resume"],
        }
    };
    // How often it saves, and how much it keeps, may change.
    tiny.write(&format!("{}7, keep_checkpoint_max: 2", train.trim_end_matches('1')));
    let epochs = (step / 32 + 1).to_string();
    let output = tiny.train(&["--resume", "--epochs", &epochs]);
    assert_eq!(
        (text(&output.stderr), output.status.code()),
        (format!("bf16scope: going on from run.safetensors after step {step}\n"), Some(0))
    );
    let names = || {
        let names = std::fs::read_dir(tiny.folder()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("run")).collect::<Vec<_>>()
    };
    assert_eq!(names().len(), 2, "the newest and one older: {:?}", names());
    let killed = std::fs::read(tiny.path("run.safetensors")).unwrap();
    let output = tiny.train(&["--checkpoint", "whole.safetensors", "--epochs", &epochs]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(killed == std::fs::read(tiny.path("whole.safetensors")).unwrap());
}

/// The mean since the resumption stood for the epoch's, and nothing said so.
#[test]
fn an_epoch_that_is_resumed_in_its_middle_is_reported_whole_or_says_since_when() {
    let tiny = Tiny::new();
    // Two epochs of 32 steps.
    let train = "batch: 1, epochs: 2, learning_rate: {kind: constant, value: 0.001}";
    tiny.write(&format!("{train}, save_checkpoints_steps: 9, keep_checkpoint_max: 9"));
    let last_epoch = |args: &[&str]| {
        let output = tiny.train(&[&["--json"], args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let report = summary["epochs"].as_array().unwrap().last().unwrap();
        ["train_loss", "train_accuracy", "train_since_step"].map(|key| report[key].clone())
    };
    let whole = last_epoch(&[]);
    assert!(whole[0].is_f64() && whole[2].is_null(), "{whole:?}");
    let mut middle = Checkpoint::read(tiny.path("run-45.safetensors")).unwrap();
    middle.write(tiny.path("middle.safetensors")).unwrap();
    assert_eq!(last_epoch(&["--checkpoint", "middle.safetensors", "--resume"]), whole);

    // Earlier checkpoints had no sums.
    middle.callbacks = None;
    middle.write(tiny.path("bare.safetensors")).unwrap();
    let since = last_epoch(&["--checkpoint", "bare.safetensors", "--resume"]);
    assert!(since[0] != whole[0] && since[2] == 45, "{since:?}");
    // A second resumption has the sums since the first one.
    let args = ["train", "tiny.yaml", "--run", "record", "--resume=bare-54.safetensors"];
    let output = binary::bf16scope(&args).current_dir(tiny.folder()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("  training since step 45  "), "{}", text(&output.stdout));
    let metrics = std::fs::read_to_string(tiny.path("record/metrics.jsonl")).unwrap();
    let epoch: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!([&epoch["train/loss"], &epoch["train/accuracy"]], [&since[0], &since[1]]);
    assert_eq!(epoch["train/since_step"], 45.0);
}
