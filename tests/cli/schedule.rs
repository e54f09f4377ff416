//! `bf16scope schedule`, and errors in an experiment that are noticed after it is parsed, each with its line.

use crate::binary;
use expect_test::{Expect, expect};
use std::path::Path;

const MODEL: &str = "model: {kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [4]}\n";

/// A command's message on an experiment with these lines after the model.
#[track_caller]
fn check(command: &[&str], lines: &str, expected: Expect) {
    check_whole(command, &format!("{MODEL}{lines}"), expected);
}

#[track_caller]
fn check_whole(command: &[&str], yaml: &str, expected: Expect) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    std::fs::copy(csv, folder.path().join("digits.csv.gz")).unwrap();
    std::fs::write(&path, yaml).unwrap();
    let args = [&command[..1], &["e.yaml"], &command[1..]].concat();
    let output = binary::bf16scope(&args).current_dir(folder.path()).env("COLUMNS", "200").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    expected.assert_eq(&String::from_utf8(output.stderr).unwrap());
}

const DATA: &str = "data: {csv: digits.csv.gz, scale: 0.0625, n_test: 360}\n";

#[test]
fn errors_of_schedules_show_the_line() {
    check(
        &["schedule"],
        "train: {learning_rate: {kind: cosine, value: 1, decay_epochs: 3}}\n",
        expect![[r#"
        bf16scope: e.yaml:2:24: lengths are in epochs, and nothing says how many steps an epoch has
          2 | train: {learning_rate: {kind: cosine, value: 1, decay_epochs: 3}}
            |                        ^^^^^
          help: add `n_train: N` under `data`, the number of training examples, or give lengths in steps
    "#]],
    );
    check(
        &["compile"],
        "train: {warm_up: {epochs: 3}}\n",
        expect![[r#"
        bf16scope: e.yaml:2:18: lengths are in epochs, and nothing says how many steps an epoch has
          2 | train: {warm_up: {epochs: 3}}
            |                  ^^^^^^^
          help: add `n_train: N` under `data`, the number of training examples, or give lengths in steps
    "#]],
    );
    check(
        &["schedule"],
        "data: {n_train: 10}\ntrain: {batch: 64, learning_rate: {kind: cosine, value: 1, decay_epochs: 3}}\n",
        expect![[r#"
        bf16scope: e.yaml:3:35: lengths are in epochs, and an epoch of 10 examples has no whole batch of 64
          3 | train: {batch: 64, learning_rate: {kind: cosine, value: 1, decay_epochs: 3}}
            |                                   ^^^^^
          help: make `batch` smaller
    "#]],
    );
    check(
        &["schedule"],
        "train: {epochs: 3}\n",
        expect![[r#"
        bf16scope: e.yaml: nothing says how many steps training takes
        help: give --steps N, or add `n_train: N` under `data`, the number of training examples
    "#]],
    );
    let wrong = "data: {csv: digits.csv.gz, scale: 0.0625, n_test: 360, n_train: 1438}\n";
    check(
        &["train", "--no-run"],
        wrong,
        expect![[r#"
            bf16scope: e.yaml:2:56: `data` has `n_train: 1438`, expected 1437, as many as there are, or no `n_train`
              2 | data: {csv: digits.csv.gz, scale: 0.0625, n_test: 360, n_train: 1438}
                |                                                        ^^^^^^^
        "#]],
    );
}

/// Also with `--epochs` instead of the file's length: a recipe of ninety epochs tried for one.
#[test]
fn what_a_training_never_reaches_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    std::fs::copy(csv, folder.path().join("digits.csv.gz")).unwrap();
    let message = |command: &[&str], lines: &str| {
        std::fs::write(folder.path().join("e.yaml"), format!("{MODEL}{DATA}train:\n{lines}")).unwrap();
        let output = binary::bf16scope(&[&command[..1], &["e.yaml"], &command[1..]].concat());
        let output = { output }.current_dir(folder.path()).env("COLUMNS", "200").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let warm_up = message(&["schedule"], "  epochs: 10\n  warm_up: {epochs: 12}\n");
    expect![[r#"
        bf16scope: warning: e.yaml:5:21: the warm-up of 528 steps is longer than the training, which has 440
          5 |   warm_up: {epochs: 12}
            |                     ^^
          help: make it shorter, or train more epochs
    "#]]
    .assert_eq(&warm_up);
    let change = "  epochs: 10\n  learning_rate: {kind: piecewise, value: 1, changes: [{step: 44, value: 0.5}, {step: 500, \
                  value: 0.1}]}\n";
    expect![[r#"
        bf16scope: warning: e.yaml:5:87: the change at step 500 never comes: the training has 440 steps
          5 |   learning_rate: {kind: piecewise, value: 1, changes: [{step: 44, value: 0.5}, {step: 500, value: 0.
            |                                                                                       ^^^
          help: leave it out, or train more epochs
    "#]]
    .assert_eq(&message(&["schedule"], change));
    let lines = "  epochs: 1\n  warm_up: {epochs: 12}\n";
    let of_flag = "  epochs: 10\n  warm_up: {epochs: 12}\n";
    for message in [
        message(&["train", "--no-run"], lines),
        message(&["train", "--no-run", "--epochs", "1", "--overwrite"], of_flag),
    ] {
        let warning = "warning: e.yaml:5:21: the warm-up of 528 steps is longer than the training, which has 44\n";
        assert!(message.contains(warning), "{message}");
    }
}

#[test]
fn a_rate_that_ends_before_the_training_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        "data: {n_train: 320}\ntrain:\n  epochs: 10\n  learning_rate: {kind: cosine, value: 1, decay_steps: 40}\n";
    std::fs::write(folder.path().join("e.yaml"), format!("{MODEL}{lines}")).unwrap();
    let output = binary::bf16scope(&["schedule", "e.yaml", "--json"]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    expect![[r#"
        bf16scope: warning: e.yaml:5:56: the rate is 0 from step 40 on: the last 60 of 100 steps learn nothing
          5 |   learning_rate: {kind: cosine, value: 1, decay_steps: 40}
            |                                                        ^^
          help: write `decay_steps: 100`, if the rate is to fall until the end
    "#]]
    .assert_eq(&String::from_utf8(output.stderr).unwrap());
}

#[test]
fn errors_that_are_found_late_show_the_line() {
    let train = ["train", "--no-run"];
    let few = format!("model: {{kind: mlp, input: [8, 8, 1], n_classes: 5}}\n{DATA}");
    check_whole(
        &train,
        &few,
        expect![[r#"
            bf16scope: e.yaml:1:49: digits.csv.gz:6: column 65, of `labels`, is `5`; expected a whole number from 0 to 4
              1 | model: {kind: mlp, input: [8, 8, 1], n_classes: 5}
                |                                                 ^
              help: write 6 or more here, or leave such examples out; where the data count from 1, subtract 1 from `labels` in the file
        "#]],
    );
    check(
        &train,
        &format!("{DATA}train: {{batch: 32, accumulate: 5}}\n"),
        expect![[r#"
        bf16scope: e.yaml:3:32: accumulate is 5, which does not divide the batch of 32
          3 | train: {batch: 32, accumulate: 5}
            |                                ^
          help: make the batch a multiple of it, such as 30
    "#]],
    );
    check(
        &train,
        &format!("{DATA}train: {{epochs: 1, average: {{decay: 0.9999}}}}\n"),
        expect![[r#"
            bf16scope: e.yaml:3:37: train.average: after all 44 steps an average of decay 0.9999 is still 100 % the initial values
              3 | train: {epochs: 1, average: {decay: 0.9999}}
                |                                     ^^^^^^
              help: write `average: {decay: 0.9999, num_updates: true}`, a decay such as 0.7727, or train longer
        "#]],
    );
    check(
        &train,
        &format!("{DATA}train: {{optimizer: {{kind: adam, weight_decay: 0.1}}}}\n"),
        expect![[r#"
            bf16scope: e.yaml:3:33: unknown key `weight_decay`, expected one of beta1, beta2, epsilon, epsilon_hat, amsgrad, momentum_dtype
              3 | train: {optimizer: {kind: adam, weight_decay: 0.1}}
                |                                 ^^^^^^^^^^^^
              help: write `weight_decay` under `train`, beside `optimizer`
        "#]],
    );
    check(
        &train,
        &format!("{DATA}train: {{shift: 8}}\n"),
        expect![[r#"
        bf16scope: e.yaml:3:16: images of 8×8 pixels cannot be shifted by up to 8: some would be all 0
          3 | train: {shift: 8}
            |                ^
          help: set `shift` to less than 8, or to 0
    "#]],
    );
    check(
        &train,
        "data: {csv: digits.csv.gz, scale: 0.0625, n_test: 1797}\n",
        expect![[r#"
        bf16scope: e.yaml:2:51: cannot keep 1797 examples for testing; the data set has 1797, and one must be left to train on
          2 | data: {csv: digits.csv.gz, scale: 0.0625, n_test: 1797}
            |                                                   ^^^^
    "#]],
    );
    check(
        &train,
        "data: {npz: missing.npz, n_test: 3}\n",
        expect![[r#"
        bf16scope: e.yaml:2:13: missing.npz: cannot open the archive: No such file or directory (os error 2)
          2 | data: {npz: missing.npz, n_test: 3}
            |             ^^^^^^^^^^^
    "#]],
    );
    check(
        &train,
        "data: {csv: digits.csv.gz, test: {csv: other.csv}}\n",
        expect![[r#"
        bf16scope: e.yaml:2:40: other.csv: cannot open the data file: No such file or directory (os error 2)
          2 | data: {csv: digits.csv.gz, test: {csv: other.csv}}
            |                                        ^^^^^^^^^
    "#]],
    );
    let decay = "train:\n  weight_decay: {value: 0.1, except: [/bn, /bais]}\n";
    check(
        &train,
        &format!("{DATA}{decay}"),
        expect![[r#"
        bf16scope: e.yaml:4:44: weight decay excepts `/bais`, and no variable's name holds that
          4 |   weight_decay: {value: 0.1, except: [/bn, /bais]}
            |                                            ^^^^^
          help: name a part of one, such as of `cnn/block1/conv/kernel`
    "#]],
    );
    check(
        &["emit", "-o", "x.hlo"],
        decay,
        expect![[r#"
        bf16scope: e.yaml cannot be built
          caused by: e.yaml:3:44: weight decay excepts `/bais`, and no variable's name holds that
          3 |   weight_decay: {value: 0.1, except: [/bn, /bais]}
            |                                            ^^^^^
          help: name a part of one, such as of `cnn/block1/conv/kernel`
    "#]],
    );
    let lars = "train: {optimizer: lars, weight_decay: {value: 0.1, decoupled: true}}\n";
    check(
        &["emit", "-o", "x.hlo"],
        lars,
        expect![[r#"
        bf16scope: e.yaml:2:53: `decoupled` does not go with lars, whose rule has the weight decay in it
          2 | train: {optimizer: lars, weight_decay: {value: 0.1, decoupled: true}}
            |                                                     ^^^^^^^^^
          help: leave it out, or write `optimizer: {kind: lamb}`, which decouples
    "#]],
    );
}

/// The rates of every step as JSON equal those of the table, and of the selected steps.
#[test]
fn rates_as_json_and_as_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{MODEL}data: {{n_train: 512}}\ntrain: {{epochs: 3, warm_up: {{epochs: 1}}, learning_rate: {{kind: linear, value: 1, \
         decay_epochs: 2}}}}\n"
    );
    std::fs::write(folder.path().join("e.yaml"), text).unwrap();
    let args = ["schedule", "e.yaml", "--json", "--every", "8", "--html", "page.html"];
    let output = binary::bf16scope(&args).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["n_steps"], &json["steps_per_epoch"], &json["every"]), (&48.into(), &16.into(), &8.into()));
    let rates: Vec<(u64, f64)> = (json["rates"].as_array().unwrap().iter())
        .map(|rate| (rate["step"].as_u64().unwrap(), rate["rate"].as_f64().unwrap()))
        .collect();
    assert_eq!(rates, [(0, 0.0), (8, 0.5), (16, 1.0), (24, 0.75), (32, 0.5), (40, 0.25)]);
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("warm-up ends") && page.contains("<svg"));
}
