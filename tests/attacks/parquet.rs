//! Training on Parquet files and on text: killed within an epoch and resumed with other numbers of workers; files that are
//! damaged or do not match the experiment; and the same files in `data` and `predict`.

use super::binary;
use super::records::killed_and_gone_on_with;
use super::streams::text;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input/parquet").join(name)
}

/// An experiment `e.yaml` in a folder with a separate cache.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(files: &[&str]) -> Place {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            std::fs::copy(fixture(name), folder.path().join(name)).unwrap();
        }
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, experiment: &str) {
        std::fs::write(self.path("e.yaml"), experiment).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = binary::bf16scope(args);
        command.current_dir(self.folder.path());
        command
    }

    fn train(&self, args: &[&str]) -> Command {
        self.command(&[&["train", "e.yaml", "--no-run"], args].concat())
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

/// Eleven drawings in two files, two of them to test on: four steps an epoch.
fn shapes(more: &str) -> String {
    format!(
        "model: {{kind: mlp, input: [16, 16, 3], n_classes: 3, hidden: [4]}}\ndata:\n  parquet: shapes-*.parquet\n  n_test: 2\n\
         {more}  features:\n    images: {{key: image, random_resized_crop: {{}}, center_crop: {{crop_padding: 8}}, resize: \
         bicubic, random_flip: true}}\n    labels: {{key: label}}\n  scale: 0.004\n\
         train: {{batch: 2, save_checkpoints_steps: 3}}\n"
    )
}

#[test]
fn a_killed_run_on_parquet_goes_on_with_other_workers() {
    let place = Place::new(&["shapes-0.parquet", "shapes-1.parquet"]);
    let write = |n: u32| place.write(&shapes(&format!("  workers: {n}\n")));
    killed_and_gone_on_with(place.folder.path(), write, |args| place.train(args));
}

/// Texts in packs or windows of 16 tokens, and a network that predicts the next token from the previous one.
fn tokens(shape: &str, n: u32) -> String {
    format!(
        "model: {{kind: layers, inputs: {{tokens: {{shape: [16], dtype: int32}}}}, layers: [{{embedding: {{input_dim: 256, \
         output_dim: 8}}}}, {{dense: 256}}], loss: sparse_softmax_cross_entropy}}\n\
         data: {{text: lines.txt, tokens: {{tokenizer: bytes, by: line, {shape}: 16}}, n_test: 4, workers: {n}}}\n\
         train: {{batch: 4, save_checkpoints_steps: 3}}\n"
    )
}

fn killed_run_on_text(shape: &str) {
    let place = Place::new(&[]);
    let lines: String = (0..16).map(|n| format!("line {n} of {}\n", "text ".repeat(n % 5))).collect();
    std::fs::write(place.path("lines.txt"), lines).unwrap();
    killed_and_gone_on_with(place.folder.path(), |n| place.write(&tokens(shape, n)), |args| place.train(args));
}

#[test]
fn a_killed_run_on_packs_goes_on_with_other_workers() {
    killed_run_on_text("pack");
}

#[test]
fn what_is_wrong_is_named_by_file_row_and_column_and_left_out_if_asked() {
    let place = Place::new(&["shapes-0.parquet", "shapes-1.parquet", "odd.parquet"]);
    let refused = |experiment: &str| {
        place.write(experiment);
        let output = place.train(&["--checkpoint", "run.safetensors"]).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        // The first run that reads a file reports that it was unpacked.
        let is_said = |line: &&str| !line.starts_with("bf16scope: warning: files whose records");
        stderr.split_inclusive('\n').filter(is_said).collect::<String>()
    };
    let error = refused(&shapes("").replace("key: label", "key: lable"));
    assert_eq!(
        error,
        "bf16scope: shapes-0.parquet, row 0: there is no feature `lable`; it has `caption`, `image`, `image.path`, `label`, \
         `objects.area`, `objects.bbox`\nhelp: name another one with `key`: `label`?\n"
    );
    let error = refused(&shapes("").replace("key: label", "key: caption"));
    assert!(error.starts_with("bf16scope: shapes-0.parquet, row 0: "), "{error}");
    // Row 1 has no class. With one left out the run goes on.
    let odd = |more: &str| {
        format!(
            "model: {{kind: mlp, input: [3], n_classes: 3, hidden: []}}\ndata: {{parquet: odd.parquet, n_test: 2, {more}features: \
             {{images: {{key: fixed}}, labels: {{key: class, offset: 1}}}}}}\ntrain: {{batch: 2, epochs: 1}}\n"
        )
    };
    let error = refused(&odd(""));
    assert!(
        error.starts_with("bf16scope: odd.parquet, row 1: column `class` is null; expected a value\nhelp: "),
        "{error}"
    );
    place.write(&odd("on_error: {skip: 1}, "));
    let output = place.train(&["--checkpoint", "run.safetensors"]).output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("left out, 1 of at most 1: odd.parquet, row 1: column `class` is null"), "{stderr}");

    // The columns of the files, and an experiment's rows.
    let output = place.run(&["data", "shapes-0.parquet", "shapes-1.parquet"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", text(&output.stderr));
    for part in ["11 records, all of them looked at", "objects.bbox", "0 (disc): 36.4 %"] {
        assert!(stdout.contains(part), "{part} is not in\n{stdout}");
    }
    let output = place.run(&["data", "odd.parquet"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(
        stdout.contains("4 broken:\n  odd.parquet, row 3: column `tokens`: null at place 1 of its list"),
        "{stdout}"
    );
    // For other kinds: the features of `data` describe them.
    place.write(&odd("on_error: {skip: 1}, ").replace("odd.parquet", "nowhere.parquet"));
    let args = ["predict", "e.yaml", "--checkpoint", "run.safetensors", "--inputs", "odd.parquet", "--json"];
    let output = place.run(&args);
    let json: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(json["n_examples"], 8, "{}", text(&output.stderr));
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// As a_killed_run_on_packs_goes_on_with_other_workers.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_killed_run_on_windows_goes_on_with_other_workers() {
        killed_run_on_text("window");
    }
}
