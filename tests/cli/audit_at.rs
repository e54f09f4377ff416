//! `audit EXPERIMENT --at STEP`: repeats steps of recorded runs with the same losses, to the bit, and audits them.

use crate::train_cli::{Folder, kill, text, wait_for};
use bf16scope::train::checkpoint::Checkpoint;
use serde_json::Value;
use std::process::Stdio;

/// Images from records, read by three threads, with dropout and averages; six steps per epoch.
const RECORDS: &str = "model:
  kind: layers
  inputs: {images: [16, 16, 3]}
  layers:
    - {conv: 4, kernel_size: 3, padding: same, activation: relu}
    - max_pool
    - flatten
    - {dropout: 0.3}
    - {dense: 4}
  loss: sparse_softmax_cross_entropy
data:
  tfrecord: INPUT/clipart.train
  test: {tfrecord: INPUT/clipart.test}
  workers: 3
  features:
    images: {key: image/encoded, resize: bilinear, random_flip: true, mean: [215.2, 209.0, 200.4], std: [71.2, 75.3, 86.2]}
    labels: {key: image/class/label, offset: -1}
train: {batch: 16, epochs: 3, optimizer: adam, learning_rate: 0.003, average: {decay: 0.9}, save_checkpoints_steps: 4,
        keep_checkpoint_max: 3}
";

/// `n` steps from 1 to `last`, drawn by a linear congruential generator.
fn steps(seed: u64, n: usize, last: u64) -> Vec<u64> {
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(next(&seed), next).map(|state| 1 + (state >> 33) % last).take(n).collect()
}

fn audit(folder: &Folder, subject: &str, step: u64, more: &[&str]) -> Value {
    folder.json(&[&["audit", subject, "--at", &step.to_string(), "--json"], more].concat())
}

/// Audits steps of an experiment's run: each has the recorded loss, and instructions. Returns the last audit.
fn check(folder: &Folder, experiment: &str, steps: &[u64], more: &[&str]) -> Value {
    let mut last = Value::Null;
    for &step in steps {
        let report = audit(folder, experiment, step, more);
        let at = &report["at"];
        assert_eq!((at["step"].as_u64(), at["is_exact"].as_bool()), (Some(step), Some(true)), "{at}");
        let loss = |name: &str| at[name].as_f64().map(f64::to_bits);
        assert!(loss("loss").is_some() && loss("loss") == loss("recorded_loss"), "{experiment} {step}: {at}");
        assert!(report["rows"].as_array().unwrap().len() > 20, "{experiment} {step}");
        assert!(report["results"].as_array().unwrap().iter().any(|row| row["name"] == "loss"), "{experiment} {step}");
        last = report;
    }
    last
}

/// The digits, with additional keys under `train`.
fn digits(folder: &Folder, name: &str, train: &str, more: &str) {
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    std::fs::write(folder.path(name), yaml.replace("train: {", &format!("train: {{{train}, ")) + more).unwrap();
}

/// From the checkpoint that the run resumed, in the run's arithmetic.
#[test]
fn a_step_of_a_run_that_went_on_is_made_again() {
    let folder = Folder::new();
    digits(&folder, "on.yaml", "optimizer: adam, average: {decay: 0.9}, keep_checkpoint_max: 2", "");
    folder.stdout(&["train", "on.yaml", "--epochs", "1", "--as", "tpu-v3", "--log-every", "1"]);
    folder.stdout(&["train", "on.yaml", "--as", "tpu-v3", "--resume", "--log-every", "1"]);
    let report = check(&folder, "on.yaml", &[47], &["--gradients", "--results", "gradient/*"]);
    assert_eq!(report["at"]["from_step"], 44, "{}", report["at"]);
    // Two kernels and two biases, whose gradients have relative errors of some hundredths in bf16: the cosine of such a
    // small angle.
    let results = report["results"].as_array().unwrap();
    let gradients = results.iter().filter(|row| row["name"].as_str().unwrap().starts_with("gradient/"));
    let cosines: Vec<f64> = gradients.map(|row| row["errors"]["cosine"].as_f64().unwrap()).collect();
    assert!(cosines.len() == 4 && cosines.iter().all(|cosine| (0.99..1.0).contains(cosine)), "{cosines:?}");
    assert!(results.iter().any(|row| row["name"] == "loss" && row["judgement"] == "ignored"), "{results:?}");
}

/// Each replica has two devices, which share a kernel.
#[test]
fn a_step_over_a_model_axis_is_made_again() {
    let folder = Folder::new();
    digits(&folder, "axis.yaml", "optimizer: adam", "mesh: {data: 1, model: 2, split: {mlp/dense1/kernel: 1}}\n");
    folder.stdout(&["train", "axis.yaml", "--epochs", "1", "--log-every", "1"]);
    check(&folder, "axis.yaml", &[9], &[]);
}

#[test]
fn a_loss_that_is_not_the_recorded_one_is_an_error_with_both() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    let shown = folder.stdout(&["audit", "mlp.yaml", "--at", "9", "--top", "3"]);
    let head = "step 9 (epoch 1, bf16) of runs/mlp-bf16 was made again from the beginning: loss ";
    assert!(shown.starts_with(head) && shown.lines().next().unwrap().ends_with(", as recorded"), "{shown}");
    let path = folder.path("runs/mlp-bf16/metrics.jsonl");
    let metrics = std::fs::read_to_string(&path).unwrap();
    let lines = metrics.lines().map(|line| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        if record["step"] == 7 {
            record["loss"] = Value::from(0.125);
        }
        record.to_string() + "\n"
    });
    let changed: String = lines.collect();
    std::fs::write(&path, changed).unwrap();
    let message = folder.stderr(&["audit", "mlp.yaml", "--at", "9"]);
    assert!(
        message.contains("step 7 of runs/mlp-bf16: loss is ") && message.contains(" was recorded as 0.125\n"),
        "{message}"
    );
    assert!(message.contains("help: versions and device are those of the run"), "{message}");
    // An earlier step is unaffected.
    audit(&folder, "mlp.yaml", 6, &[]);
    // A different version is named.
    let about = folder.path("runs/mlp-bf16/run.json");
    let other = std::fs::read_to_string(&about).unwrap().replace("\"bf16scope\": \"", "\"bf16scope\": \"9");
    std::fs::write(&about, other).unwrap();
    let message = folder.stderr(&["audit", "mlp.yaml", "--at", "9"]);
    assert!(message.contains("bf16scope was 9"), "{message}");
}

#[test]
fn the_first_step_beyond_is_found_in_no_more_audits_than_said() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    let output = folder.run(&["audit", "mlp.yaml", "--first-beyond", "1", "--json", "--top", "1"]);
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let beyond = &report["first_beyond"];
    let measured = beyond["measured"].as_array().unwrap();
    let error = |step: u64| measured.iter().find(|look| look["step"] == step).unwrap()["error"].as_f64().unwrap();
    let step = beyond["step"].as_u64().unwrap();
    assert!(error(step) > error(1) && (step == 2 || error(step - 1) <= error(1)), "{beyond}");
    assert_eq!(report["at"]["step"], step);
    // The search's figure equals the audit's.
    assert_eq!(report["error"].as_f64(), Some(error(step)));
    // 44 steps: step 1, six doublings, the last from 32 to 44, whose halvings are four.
    assert!(text(&output.stderr).contains("11 audits of results at most") && measured.len() <= 11, "{beyond}");
    let none = folder.stdout(&["audit", "mlp.yaml", "--first-beyond", "1e30"]);
    assert!(none.starts_with("none of the 7 steps that were audited is over "), "{none}");
}

#[test]
fn what_is_no_step_of_a_run_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.path("m.txt"), "HloModule m\n\nENTRY m {\n  ROOT x = f32[] constant(1)\n}\n").unwrap();
    std::fs::create_dir(folder.path("empty")).unwrap();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    for (args, expected) in [
        (
            &["m.txt", "--at", "3"][..],
            "m.txt is a module, and --at and --first-beyond are about steps of a training run",
        ),
        (&["m.txt", "--precision", "f32"], "--precision is about a step of a training run, and m.txt is a module"),
        (&["mlp.yaml"], "mlp.yaml is a model in YAML, and of a run `audit` takes a step"),
        (&["mlp.yaml", "--at", "0"], "expected a whole number from 1 to 18446744073709551615"),
        (&["mlp.yaml", "--at", "45"], "--at 45 is beyond the run, which has 44 steps"),
        (&["empty", "--at", "1"], "empty"),
        (&["runs/mlp-bf16", "--at", "1", "--precision", "f32"], "the run in runs/mlp-bf16 computed in bf16"),
        (&["mlp.yaml", "--at", "3", "--tune", "tpu-v2"], "and is made again as"),
        (&["mlp.yaml", "--first-beyond", "0.5"], "expected a number of 1 or more"),
        (&["mlp.yaml", "--at", "3", "--steps", "2"], "cannot be used with"),
        (
            &["mlp.yaml", "--at", "3", "--device", "tpu"],
            "a step is made again on devices of one host, and --device is tpu\nhelp: leave --device out",
        ),
    ] {
        let message = folder.stderr(&[&["audit"], args].concat());
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// A_step_of_a_run_that_went_on_is_made_again is the short form, tests/training/replay.rs the library's.
    #[cfg_attr(feature = "long-tests", test)]
    fn steps_read_by_workers_with_dropout_and_averages_are_made_again() {
        let folder = Folder::new();
        let input = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/input");
        std::fs::write(folder.path("records.yaml"), RECORDS.replace("INPUT", input)).unwrap();
        folder.stdout(&["train", "records.yaml", "--epochs", "2"]);
        folder.stdout(&["train", "records.yaml", "--resume"]);
        check(&folder, "records.yaml", &steps(1, 2, 18), &[]);
        // The folder of the run is equivalent to the experiment; the newest checkpoint before the step is used.
        let report = audit(&folder, "runs/records-bf16", 18, &[]);
        assert_eq!(report["at"]["from_step"], 16, "{}", report["at"]);
    }

    /// A_step_of_a_run_that_went_on_is_made_again is the short form, tests/training/replay.rs the library's.
    #[cfg_attr(feature = "long-tests", test)]
    fn steps_of_replicas_and_of_several_a_call_are_made_again() {
        let folder = Folder::new();
        digits(&folder, "replicas.yaml", "optimizer: adam", "mesh: {data: 2}\n");
        folder.stdout(&["train", "replicas.yaml", "--epochs", "1"]);
        check(&folder, "replicas.yaml", &steps(2, 2, 44), &[]);
        digits(&folder, "calls.yaml", "steps_per_call: 3", "");
        folder.stdout(&["train", "calls.yaml"]);
        check(&folder, "calls.yaml", &steps(3, 2, 88), &[]);
    }

    /// A_step_of_a_run_that_went_on_is_made_again is the short form, tests/training/replay.rs the library's.
    #[cfg_attr(feature = "long-tests", test)]
    fn steps_of_bf16_variables_and_a_tpus_arithmetic_are_made_again() {
        let folder = Folder::new();
        digits(&folder, "bf16.yaml", "variables: bf16_stochastic", "");
        folder.stdout(&["train", "bf16.yaml", "--as", "tpu-v3"]);
        check(&folder, "bf16.yaml", &steps(4, 1, 88), &[]);
        // The run's arithmetic is kept; the audit's is a column.
        let report = audit(&folder, "bf16.yaml", 50, &["--as", "tpu-v3", "--budget", "1"]);
        assert_eq!(report["f32_as"]["arithmetic"], "tpu-v3");
        folder.stdout(&["train", "mlp.yaml", "--precision", "f32", "--as", "tpu-v2", "--seed", "3", "--batch", "64"]);
        check(&folder, "runs/mlp-f32", &steps(5, 1, 44), &[]);
    }

    /// A_step_of_a_run_that_went_on_is_made_again is the short form, tests/training/replay.rs the library's.
    #[cfg_attr(feature = "long-tests", test)]
    fn steps_of_a_run_that_was_killed_and_went_on_are_made_again() {
        let folder = Folder::new();
        digits(&folder, "killed.yaml", "save_checkpoints_steps: 20, keep_checkpoint_max: 2", "");
        let args = ["train", "killed.yaml", "--epochs", "1000000", "--run", "killed", "--log-every", "1"];
        let mut child = folder.command_by(&[], &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The folder names the checkpoint only after it exists.
        let about = || std::fs::read_to_string(folder.path("killed/run.json")).unwrap_or_default();
        wait_for("checkpoint", || about().contains("killed/checkpoint.safetensors"));
        kill("KILL", &child);
        child.wait().unwrap();
        let position = Checkpoint::read(folder.path("killed/checkpoint.safetensors")).unwrap().position;
        let epochs = position.step / position.steps_per_epoch + 2;
        folder.stdout(&[
            "train",
            "killed.yaml",
            "--resume",
            "--epochs",
            &epochs.to_string(),
            "--run",
            "killed",
            "--log-every",
            "1",
        ]);
        let last = epochs * position.steps_per_epoch;
        // From the checkpoint before one of the last steps, and from the beginning before one of the first.
        let mut chosen = steps(6, 1, 15);
        chosen.extend(steps(7, 2, 40).into_iter().map(|step| last - 40 + step));
        check(&folder, "killed", &chosen, &[]);
    }

    /// Twenty steps of one run with all features at once: images read by three threads, dropout, averages, a mesh of
    /// two replicas, two steps per call, killed and resumed. Each has the recorded loss, to the bit.
    ///
    /// A_step_of_a_run_that_went_on_is_made_again is the short form, tests/training/replay.rs the library's.
    #[cfg_attr(feature = "long-tests", test)]
    fn twenty_steps_of_a_run_of_everything_are_made_again() {
        let folder = Folder::new();
        let input = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/input");
        let yaml = RECORDS
            .replace("INPUT", input)
            .replace("save_checkpoints_steps: 4", "steps_per_call: 2, save_checkpoints_steps: 4");
        let yaml = yaml.replace("keep_checkpoint_max: 3", "keep_checkpoint_max: 8") + "mesh: {data: 2}\n";
        std::fs::write(folder.path("all.yaml"), yaml).unwrap();
        let args = ["train", "all.yaml", "--epochs", "1000000", "--run", "all", "--log-every", "1"];
        let mut child = folder.command_by(&[], &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let about = || std::fs::read_to_string(folder.path("all/run.json")).unwrap_or_default();
        wait_for("checkpoint", || about().contains("all/checkpoint.safetensors"));
        kill("KILL", &child);
        child.wait().unwrap();
        let position = Checkpoint::read(folder.path("all/checkpoint.safetensors")).unwrap().position;
        let epochs = position.step / position.steps_per_epoch + 4;
        let more = ["--resume", "--epochs", &epochs.to_string()];
        folder.stdout(&[&["train", "all.yaml", "--run", "all", "--log-every", "1"], &more[..]].concat());
        let last = epochs * position.steps_per_epoch;
        let before = steps(8, 8, position.step.min(24));
        let after = steps(9, 12, 24).into_iter().map(|step| last - 24 + step);
        check(&folder, "all", &before.into_iter().chain(after).collect::<Vec<u64>>(), &["--top", "1"]);
    }

    /// A_step_of_a_run_that_went_on_is_made_again is the short form, tests/training/replay.rs the library's.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_step_within_a_loop_is_said_not_to_be_exact() {
        let folder = Folder::new();
        digits(&folder, "loop.yaml", "steps_per_call: \"while:4\"", "");
        folder.stdout(&["train", "loop.yaml", "--epochs", "1"]);
        assert_eq!(audit(&folder, "loop.yaml", 5, &[])["at"]["is_exact"], true);
        assert_eq!(audit(&folder, "loop.yaml", 7, &[])["at"]["is_exact"], false);
        let shown = folder.stdout(&["audit", "loop.yaml", "--at", "7"]);
        assert!(shown.contains("the one taken is that of single steps"), "{shown}");
    }
}
