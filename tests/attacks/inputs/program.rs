//! The same inputs with the real program: exit code 2 with the place, or training that ends as it should.

use crate::door::Folder;

const EXPERIMENT: &str = "model: {kind: mlp, input: [2], n_classes: 3, hidden: [2], dropout: 0.25}
data: {csv: rows.csv, n_test: 2}
train:
  batch: 2
  epochs: 1
  learning_rate: {kind: constant, value: 0.1}
";
const ROWS: &str = "1,2,0\n3,4,1\n5,6,2\n7,8,0\n1,1,1\n2,2,2\n";

fn folder(experiment: &str, rows: &str) -> Folder {
    let folder = Folder::new();
    folder.write("e.yaml", experiment);
    folder.write("rows.csv", rows);
    folder
}

#[test]
fn what_is_wrong_in_a_file_is_named_before_anything_is_trained() {
    let refused = |experiment: &str, rows: &str, expected: &str| {
        let folder = folder(experiment, rows);
        let text = folder.refused(&["train", "e.yaml", "--checkpoint", "c.safetensors"]);
        assert!(text.starts_with("bf16scope: ") && text.contains(expected), "expected {expected}, not\n{text}");
        assert_eq!(folder.names(), ["e.yaml", "m.txt", "m.yaml", "rows.csv"]);
    };
    let with = |from: &str, to: &str| EXPERIMENT.replace(from, to);
    refused(&with("0.25", ".nan"), ROWS, "e.yaml:1:68: found floating point `NaN`, expected a number from 0");
    refused(&with("batch: 2", "batch: 0"), ROWS, "e.yaml:4:10: found integer `0`, expected a whole number from 1");
    refused(
        &with("value: 0.1", "value: -1"),
        ROWS,
        "e.yaml:6:42: found integer `-1`, expected 0, or a finite number above 0 in f32",
    );
    refused(&with("hidden: [2]", "hidden: [4611686018427387904]"), ROWS, "bf16scope: ");
    refused(&with("batch: 2", "batch: 2147483647"), ROWS, "bf16scope: ");
    refused(&with("epochs: 1", "epochs: 1\n  shift: 1"), ROWS, "no feature can be shifted: `images` has dims [2]");
    refused(&with("n_test: 2", "n_test: 6"), ROWS, "cannot keep 6 examples for testing");
    refused(
        EXPERIMENT,
        &ROWS.replace("5,6,2", "5,6,3"),
        "rows.csv:3: column 3, of `labels`, is `3`; expected a whole number from 0 to 2",
    );
    refused(
        EXPERIMENT,
        &ROWS.replace("7,8", "7,inf"),
        "rows.csv:4: column 2, of `images`, is `inf`; expected a finite number",
    );
    refused(EXPERIMENT, "", "rows.csv: no rows");
}

#[test]
fn files_as_other_systems_write_them_train() {
    let folder = folder(&format!("\u{FEFF}{}", EXPERIMENT.replace('\n', "\r\n")), &ROWS.replace('\n', "\r\n"));
    let ended = folder.run(&["train", "e.yaml", "--checkpoint", "c.safetensors", "--quiet"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(folder.path("c.safetensors").exists());
}

#[test]
fn training_that_leaves_the_numbers_of_f32_says_so_and_saves_nothing_of_it() {
    let experiment = EXPERIMENT.replace("value: 0.1", "value: 1.0e+38").replace("epochs: 1", "epochs: 20");
    let folder = folder(&experiment, ROWS);
    let ended = folder.run(&["train", "e.yaml", "--checkpoint", "c.safetensors", "--quiet"]);
    assert!(matches!(ended.code, Some(1 | 2)), "{:?}: {}", ended.code, ended.stderr);
    assert!(ended.stderr.contains("is not finite, at learning rate"), "{}", ended.stderr);
}

#[test]
fn arrays_and_policies_that_are_none_are_named() {
    let folder = Folder::new();
    folder.write("a.npz", b"PK\x03\x04 no archive");
    let text = folder.refused(&["run", "m.txt", "--inputs", "a.npz"]);
    assert!(text.contains("a.npz: an archive without its end: it was cut off"), "{text}");
    folder.write("p.yaml", "dtype: f32\n");
    let text = folder.refused(&["lower", "m.txt", "-o", "out.txt", "--policy", "p.yaml"]);
    assert!(text.contains("p.yaml:1:8: unknown value `f32`, expected one of bf16, f16"), "{text}");
    folder.write("p.yaml", "allow: [dot]\ndeny: [dot]\n");
    let text = folder.refused(&["lower", "m.txt", "-o", "out.txt", "--policy", "p.yaml"]);
    assert!(text.contains("`dot` is in the lists `allow` and `deny`"), "{text}");
    assert!(!folder.path("out.txt").exists());
}
