//! `early_stopping`, `reduce_on_plateau` and `keep_best` of a file, checkpoints in the folder of a named run, and `eval RUN`.

use crate::train_cli::{Folder, text};

/// The digits, with additional keys under `train`.
fn digits(folder: &Folder, train: &str) {
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    let yaml = yaml.replace("train: {epochs: 2", &format!("train: {{{train}epochs: 2"));
    std::fs::write(folder.path("mlp.yaml"), yaml).unwrap();
}

#[test]
fn a_run_ends_early_and_its_folder_has_its_checkpoints() {
    let folder = Folder::new();
    digits(
        &folder,
        "keep_best: accuracy, early_stopping: {monitor: val_loss, patience: 2, min_delta: 9, restore_best_weights: true}, \
         reduce_on_plateau: {patience: 1, min_delta: 9, factor: 0.5, min_lr: 1.0e-6}, ",
    );
    let out = folder.stdout(&["train", "mlp.yaml", "--epochs", "9", "--run", "mine", "--precision", "f32"]);
    let lines: Vec<&str> = out.lines().skip(2).collect();
    assert!(
        lines[0].starts_with("epoch 1/9  loss ") && lines[0].contains(" (test ") && lines[0].contains("  accuracy ")
    );
    assert!(lines[2].starts_with("learning rate ") && lines[2].ends_with(" from epoch 3 on"), "{out}");
    assert!(lines[5].starts_with("stopped early after epoch 3: the best was val loss "), "{out}");
    assert!(lines[5].ends_with(", after step 44, whose weights are restored"), "{out}");
    assert!(lines[6].starts_with("test accuracy ") && lines[6].ends_with(" after 44 steps"), "{out}");
    assert!(
        lines[7].starts_with("best accuracy ") && lines[7].ends_with(": mine/checkpoint-best.safetensors"),
        "{out}"
    );
    assert_eq!(lines[8], "checkpoint mine/checkpoint.safetensors");
    assert!(
        lines[9].starts_with(
            "next: `bf16scope eval mine`, or with a larger `patience` in `early_stopping`, or without it, train on with \
             `bf16scope train mlp.yaml --precision f32"
        ),
        "{out}"
    );
    // The evaluation uses the run's final state and precision, and its own copy of the experiment.
    std::fs::remove_file(folder.path("mlp.yaml")).unwrap();
    let last = folder.stdout(&["eval", "mine"]);
    let accuracy = lines[6].split(' ').nth(2).unwrap();
    assert!(last.starts_with(&format!("mine/checkpoint.safetensors in f32: test accuracy {accuracy} %, ")), "{last}");
    let best = folder.stdout(&["eval", "mine", "--best"]);
    let accuracy = lines[7].split(' ').nth(2).unwrap();
    assert!(
        best.starts_with(&format!("mine/checkpoint-best.safetensors in f32: test accuracy {accuracy} %, ")),
        "{best}"
    );
    let predicted = folder.json(&["predict", "mine", "--best", "--json"]);
    assert_eq!((&predicted["experiment"], &predicted["n_examples"]), (&"mlp.yaml".into(), &360.into()));
    let packaged = folder.stdout(&["package", "mine", "-o", "package"]);
    assert!(
        packaged.starts_with("package: mine after 44 steps, in f32, 32 examples at a time, for cpu\n"),
        "{packaged}"
    );
    // A moved run keeps its checkpoints.
    std::fs::rename(folder.path("mine"), folder.path("moved")).unwrap();
    assert!(folder.stdout(&["eval", "moved"]).starts_with("moved/checkpoint.safetensors in f32: test accuracy "));
}

#[test]
fn a_run_that_ended_early_says_when_it_is_resumed_what_lets_it_go_on() {
    let folder = Folder::new();
    digits(&folder, "early_stopping: {patience: 1, min_delta: 9}, ");
    let out = folder.stdout(&["train", "mlp.yaml", "--epochs", "4", "--run", "mine"]);
    assert!(out.contains("stopped early after epoch 2: "), "{out}");
    assert!(out.contains(" or without it, train on with `bf16scope train mlp.yaml"), "{out}");
    assert!(out.contains(" --resume --epochs 4`\n"), "{out}");
    let resume = ["train", "mlp.yaml", "--epochs", "4", "--run", "mine", "--resume"];
    let again = folder.run(&resume);
    assert!(again.status.success());
    assert_eq!(
        text(&again.stderr),
        "bf16scope: early stopping ended the run of mine/checkpoint.safetensors after epoch 2: it trains no further\n\
         help: to train on, write a `patience` above 1 under `early_stopping` in mlp.yaml, or leave `early_stopping` out\n"
    );
    // As it says.
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    std::fs::write(folder.path("mlp.yaml"), yaml.replace("patience: 1", "patience: 2")).unwrap();
    let further = folder.run(&resume);
    let going_on = "bf16scope: going on from mine/checkpoint.safetensors after step 88\n";
    assert!(text(&further.stderr).contains(going_on), "{}", text(&further.stderr));
    assert!(text(&further.stdout).contains("epoch 3/4  loss "), "{}", text(&further.stdout));
}

#[test]
fn another_run_is_not_replaced_and_what_is_wrong_is_named_where_it_is_written() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1", "--run", "mine"]);
    let again = folder.stderr(&["train", "mlp.yaml", "--epochs", "1", "--run", "mine"]);
    let start = "bf16scope: mine/checkpoint.safetensors: a checkpoint is there, and this run would replace it\n";
    assert!(again.starts_with(start), "{again}");
    let resumed = folder.run(&["train", "mlp.yaml", "--run", "mine", "--resume"]);
    assert_eq!(text(&resumed.stderr), "bf16scope: going on from mine/checkpoint.safetensors after step 44\n");
    assert_eq!(
        folder.stderr(&["eval", "mine", "--best"]),
        "bf16scope: mine: the run has saved no best checkpoint\nhelp: write `keep_best: METRIC` under `train`, or leave --best \
         out\n"
    );
    std::fs::create_dir(folder.path("empty")).unwrap();
    let error = folder.stderr(&["eval", "empty"]);
    assert!(
        error.starts_with("bf16scope: empty: a folder without run.json, expected an experiment's YAML file or"),
        "{error}"
    );
    let plain = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    for (train, expected) in [
        ("keep_best: f1, ", "no `f1` is reported\n"),
        (
            "keep_best: 3, ",
            "found integer `3`, expected the name of a loss or metric, such as `accuracy`, or `{monitor",
        ),
        ("early_stopping: 3, ", "found integer `3`, expected keys such as `{monitor: test_loss, patience: 3, restore"),
        ("early_stopping: {patients: 3}, ", "unknown key `patients`"),
        ("early_stopping: {min_delta: -1}, ", "found integer `-1`, expected 0, or a finite number above 0"),
        ("reduce_on_plateau: {factor: 1}, ", "found integer `1`, expected a number above 0 and below 1"),
        ("reduce_on_plateau: {mode: up}, ", "`up`"),
    ] {
        std::fs::write(folder.path("mlp.yaml"), &plain).unwrap();
        digits(&folder, train);
        let error = folder.stderr(&["train", "mlp.yaml", "--checkpoint", "other.safetensors"]);
        assert!(error.starts_with("bf16scope: mlp.yaml:3:") && error.contains(expected), "{train}: {error}");
    }
}

#[test]
fn rates_are_tried_and_one_is_suggested() {
    let folder = Folder::new();
    let out = folder.stdout(&["find-rate", "mlp.yaml", "--steps", "20"]);
    let last = out.lines().last().unwrap();
    assert!(last.starts_with("the loss falls fastest at ") && last.contains(": try `learning_rate` "), "{out}");
    let answer = folder.json(&["find-rate", "mlp.yaml", "--steps", "20", "--from", "1e-4", "--to", "1", "--json"]);
    let rates: Vec<f64> =
        answer["trials"].as_array().unwrap().iter().map(|step| step["rate"].as_f64().unwrap()).collect();
    // Equal factors from the first to the last, in f32.
    assert!((rates[0] / 1e-4 - 1.0).abs() < 1e-6 && rates.is_sorted() && rates.len() <= 20, "{rates:?}");
    assert!(!folder.path("runs").exists() && !folder.path("checkpoints").exists());
}
