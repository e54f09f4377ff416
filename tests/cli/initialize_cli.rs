//! `bf16scope train` starting from weights: its messages, the run's folder, and errors with their places.

use crate::train_cli::Folder;

use bf16scope::train::checkpoint::Checkpoint;
use std::process::Output;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn stderr(output: &Output) -> String {
    text(&output.stderr)
}

#[test]
fn a_run_starts_from_weights_says_so_and_keeps_it() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--no-run", "--epochs", "1"]);
    let before = "checkpoints/mlp-bf16.safetensors";
    let started = folder.run(&[
        "train",
        "mlp.yaml",
        "--epochs",
        "0",
        "--seed",
        "5",
        "--initialize-from",
        before,
        "--checkpoint",
        "now.safetensors",
        "--run",
        "run",
    ]);
    assert!(started.status.success(), "{}", stderr(&started));
    let message = format!("starting from {before}: 4 of 4 variables taken by their own names\n");
    assert!(stderr(&started).contains(&message), "{}", stderr(&started));
    let (old, now) = (folder.path(before), folder.path("now.safetensors"));
    let (old, now) = (Checkpoint::read(&old).unwrap(), Checkpoint::read(&now).unwrap());
    assert_eq!(now.variables["mlp/logits/kernel"], old.variables["mlp/logits/kernel"]);
    // The run's folder shows how to repeat it.
    let experiment = std::fs::read_to_string(folder.path("run/experiment.yaml")).unwrap();
    assert!(
        experiment.contains("initialize_from: /") && experiment.contains("/checkpoints/mlp-bf16.safetensors\n"),
        "{experiment}"
    );
    // It can be evaluated and resumed like any other; resumed at the same epoch, it has no message on its initial
    // weights.
    folder.stdout(&["eval", "mlp.yaml", "--checkpoint", "now.safetensors"]);
    let resumed = folder.run(&[
        "train",
        "mlp.yaml",
        "--epochs",
        "1",
        "--seed",
        "5",
        "--resume",
        "--checkpoint",
        "now.safetensors",
        "--no-run",
    ]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(!stderr(&resumed).contains("starting from"), "{}", stderr(&resumed));
}

#[test]
fn what_is_wrong_has_its_line() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--no-run", "--epochs", "0", "--checkpoint", "w.safetensors"]);
    let fails = |train: &str, model: &str, flags: &[&str]| {
        folder.write("other.yaml", model);
        let path = folder.path("other.yaml");
        let yaml = std::fs::read_to_string(&path).unwrap().replace("train: {", &format!("train: {{{train}, "));
        std::fs::write(path, yaml).unwrap();
        let output = folder.run(&[&["train", "other.yaml", "--no-run"], flags].concat());
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let model = "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [32]}";
    let error = fails("except: ['*/logits/*']", model, &[]);
    assert!(
        error.starts_with(
            "bf16scope: other.yaml:3:9: `except` is about the weights that a run starts from, and there are none\n"
        ) && error.contains("help: add `initialize_from: FILE` beside it, or --initialize-from, or leave it out"),
        "{error}"
    );
    let error = fails("initialize_from: w.safetensors, except: ['*/logit/*']", model, &[]);
    assert!(error.contains("other.yaml:3:50: `*/logit/*` under `except` is the name of no variable"), "{error}");
    let error = fails("trainable: ['*/logit/*']", model, &[]);
    assert!(error.contains("other.yaml:3:21: `*/logit/*` under `trainable` is the name of no variable"), "{error}");
    // A pattern without a list has its place too, and so has that of a group.
    let error = fails("trainable: '*/logit/*'", model, &[]);
    assert!(error.contains("other.yaml:3:20: `*/logit/*` under `trainable` is the name of no variable"), "{error}");
    for (variables, column) in [("'*/logit/*'", 34), ("['*/bias', '*/logit/*']", 45)] {
        let error = fails(&format!("optimizers: [{{variables: {variables}, optimizer: sgd}}]"), model, &[]);
        let expected = format!("other.yaml:3:{column}: `optimizers` has the pattern `*/logit/*`, and no variable that");
        assert!(error.contains(&expected) && !error.contains("operand"), "{error}");
        assert!(error.contains("help: write one that matches, such as `mlp/"), "{error}");
    }
    let error = fails("initialize_from: w.safetensors, rules: gtp2", model, &[]);
    assert!(error.contains("there are no rules `gtp2`: did you mean `gpt2`?"), "{error}");
    let classes = "model: {kind: mlp, input: [8, 8, 1], n_classes: 12, hidden: [32]}";
    let error = fails("initialize_from: w.safetensors", classes, &[]);
    assert!(
        error.contains("w.safetensors does not fit the model: 2 of its 4 variables\n")
            && error.contains("  mlp/logits/kernel is 10 along axis 1, expected 12")
            && error.contains("start them afresh: `except: ['mlp/logits/*']` under `train`"),
        "{error}"
    );
    // The error for a missing file used to lack the line that names it.
    let error = fails("initialize_from: none.npz", model, &[]);
    assert!(
        error.starts_with("bf16scope: other.yaml:3:26: none.npz: cannot open the file of weights: No such file")
            && error.contains("  3 | train: {initialize_from: none.npz, "),
        "{error}"
    );
    let error = fails("initialize_from: w.safetensors", model, &["--initialize-from", "none.npz"]);
    assert!(error.starts_with("bf16scope: none.npz: cannot open the file of weights"), "{error}");
    let error = fails("seed: 1", model, &["--initialize-from", "none.npz"]);
    assert!(error.contains("none.npz: cannot open the file of weights"), "{error}");
}
