//! Regressions: each case starts with a line that describes the former behaviour.
//!
//! Found by hand with wrong and odd input. All go through the binary, like a user's input.

use crate::binary;

use bf16scope::data::npz::{Header, NpzWriter};
use bf16scope::hlo::DType;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with a small experiment.
struct Folder(tempfile::TempDir);

const MODEL: &str = "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [8]}";
const TRAIN: &str = "train: {epochs: 1, learning_rate: {kind: constant, value: 0.05}}";

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("e.yaml", &[MODEL, &data(360), TRAIN]);
        folder
    }

    fn write(&self, name: &str, lines: &[&str]) {
        std::fs::write(self.path(name), lines.join("\n")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        binary::bf16scope(args).current_dir(self.0.path()).output().unwrap()
    }

    /// Standard error of a command that could not run.
    fn stderr(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.run(args);
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{args:?}: {stderr}{}", String::from_utf8_lossy(&stdout));
        stderr
    }

    fn succeeds(&self, args: &[&str]) {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn data(n_test: usize) -> String {
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    format!("data: {{csv: {}, scale: 0.0625, n_test: {n_test}}}", csv.display())
}

/// Uses a new pipe, not a device of the system, which a regression would destroy.
fn pipe(folder: &Folder) {
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
}

fn is_file(folder: &Folder, name: &str) -> bool {
    std::fs::symlink_metadata(folder.path(name)).unwrap().is_file()
}

#[test]
fn what_is_no_file_is_not_replaced() {
    // As root, `--checkpoint /dev/null`, `--trace /dev/full` and `emit -o /dev/stdout` replaced the device by a file.
    let folder = Folder::new();
    pipe(&folder);
    let error = folder.stderr(&["train", "e.yaml", "--checkpoint", "pipe"]);
    assert!(error.contains("there is a FIFO, which a file does not replace"), "{error}");
    let error = folder.stderr(&["bits", "1", "--trace", "pipe"]);
    assert!(error.contains("--trace: `pipe` is not a regular file; name a file to write"), "{error}");
    assert!(!is_file(&folder, "pipe"));
    let reader = Command::new("cat").arg(folder.path("pipe")).stdout(std::process::Stdio::piped()).spawn().unwrap();
    folder.succeeds(&["emit", "e.yaml", "-o", "pipe"]);
    let read = reader.wait_with_output().unwrap().stdout;
    assert!(read.starts_with(b"HloModule ") && !is_file(&folder, "pipe"));
}

#[test]
#[cfg(unix)]
fn links_stay_links() {
    // Output files replaced the link that led to them, and the link's target was unchanged.
    let folder = Folder::new();
    for name in ["a", "b", "c"] {
        std::fs::write(folder.path(&format!("{name}.real")), "").unwrap();
        std::os::unix::fs::symlink(format!("{name}.real"), folder.path(name)).unwrap();
    }
    folder.succeeds(&["train", "e.yaml", "--checkpoint", "a"]);
    folder.succeeds(&["emit", "e.yaml", "-o", "b"]);
    folder.succeeds(&["bits", "1", "--trace", "c"]);
    for name in ["a", "b", "c"] {
        assert!(!is_file(&folder, name), "{name} is still a link");
        assert!(std::fs::metadata(folder.path(&format!("{name}.real"))).unwrap().len() > 0, "{name} was written");
    }
}

#[test]
fn an_experiment_is_not_overwritten_by_its_checkpoint() {
    // `--checkpoint e.yaml` replaced the experiment.
    let folder = Folder::new();
    let error = folder.stderr(&["train", "e.yaml", "--checkpoint", "e.yaml"]);
    assert!(error.contains("e.yaml: cannot write the checkpoint: there is a file that is not a checkpoint"), "{error}");
    assert!(std::fs::read_to_string(folder.path("e.yaml")).unwrap().starts_with("model:"));
}

#[test]
fn a_place_that_no_checkpoint_can_have_is_found_out_first() {
    // A trailing slash or a name too long was noticed only after the first epoch, and its work was lost.
    let folder = Folder::new();
    let long = "x".repeat(300);
    for (place, what) in [("new/", "the name ends as a directory's does"), (long.as_str(), "File name too long")] {
        let output = folder.run(&["train", "e.yaml", "--checkpoint", place]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(what), "{error}");
        assert!(
            !String::from_utf8(output.stdout).unwrap().contains("epoch 1/1"),
            "{place} was refused before training"
        );
    }
}

#[test]
fn a_state_that_no_machine_holds_is_an_error() {
    // `n_classes: 1000000000000` aborted the process: `memory allocation of 64000000000000 bytes failed`.
    let folder = Folder::new();
    for (hidden, largest) in [
        ("1000000000000", "mlp/dense1/kernel f32[64,1000000000000]"),
        ("1000000, 1000000", "mlp/dense2/kernel f32[1000000,1000000]"),
    ] {
        folder.write("e.yaml", &[&MODEL.replace("[8]}", &format!("[{hidden}]}}")), &data(360), TRAIN]);
        let error = folder.stderr(&["train", "e.yaml"]);
        assert!(error.contains(&format!("the largest variable is {largest}")), "{error}");
    }
}

#[test]
fn a_file_without_line_ends_is_an_error() {
    // `csv: /dev/zero` grew to 8 GB and aborted; as the experiment, it was read until memory ended.
    let folder = Folder::new();
    std::fs::File::create(folder.path("zeros")).unwrap().set_len(1 << 30).unwrap();
    folder.write("e.yaml", &[MODEL, "data: {csv: zeros, n_test: 1}"]);
    let error = folder.stderr(&["train", "e.yaml"]);
    assert!(error.contains("zeros:1: a row of more than 67108864 bytes"), "{error}");
    let error = folder.stderr(&["train", "zeros"]);
    let expected = "bf16scope: zeros: cannot read the experiment\n  caused by: it has more than 1048576 bytes, the most that \
                    is read of it\n";
    assert_eq!(error, expected);
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    // A file saved with one was `not valid yaml: … more than one document`, and its data not finite numbers.
    let folder = Folder::new();
    let row = |label: u8| format!("{}{label}", "1,".repeat(64));
    folder.write("d.csv", &[&format!("\u{FEFF}{}", row(1)), &row(2), &row(3)]);
    let train = TRAIN.replace("{epochs", "{batch: 2, epochs");
    folder.write("e.yaml", &[&format!("\u{FEFF}{MODEL}"), "data: {csv: d.csv, n_test: 1}", &train]);
    folder.succeeds(&["train", "e.yaml"]);
}

#[test]
fn settings_that_can_only_fail_are_errors_of_the_file() {
    // A learning rate of NaN, a momentum of 1.5 or a scale of 0 was trained with; NaN's advice was to lower the rate.
    let folder = Folder::new();
    for (train, place, expected) in [
        (
            "learning_rate: {kind: constant, value: .nan}",
            "3:42",
            "found floating point `NaN`, expected 0, or a finite number above 0 in f32",
        ),
        (
            "learning_rate: {kind: constant, value: -1}",
            "3:42",
            "found integer `-1`, expected 0, or a finite number above 0 in f32",
        ),
        ("learning_rate: {kind: constant, value: 1.0e39}", "3:42", "expected 0, or a finite number above 0 in f32"),
        ("optimizer: {kind: momentum, momentum: 1.5}", "3:41", "expected a number from 0 up to but not including 1"),
        ("optimizer: {kind: adam, beta1: 1}", "3:34", "expected a number from 0 up to but not including 1"),
        ("optimizer: {kind: adam, epsilon: 0}", "3:36", "expected a finite number above 0"),
        // In f32 it is 0: every step would leave every variable as it is.
        ("learning_rate: {kind: constant, value: 1.0e-50}", "3:42", "expected 0, or a finite number above 0 in f32"),
        // In f32 it is 1: the average would never move.
        ("optimizer: {kind: adam, beta2: 0.99999999999}", "3:34", "expected a number from 0 up to but not including 1"),
        ("weight_decay: {value: .inf}", "3:25", "expected 0, or a finite number above 0 in f32"),
        ("epochs: 1000000000000", "3:11", "expected a whole number from 0 to 2147483647"),
    ] {
        folder.write("e.yaml", &[MODEL, "train:", &format!("  {train}")]);
        let error = folder.stderr(&["train", "e.yaml"]);
        assert!(error.contains(&format!("e.yaml:{place}: ")) && error.contains(expected), "{train}: {error}");
    }
    // Errors that do not need a plugin come before one is looked for.
    for (train, expected) in
        [("accumulate: 3", "accumulate is 3, which does not divide the batch of 32"), ("batch: 100000", "100000")]
    {
        folder.write("e.yaml", &[MODEL, &data(360), "train:", &format!("  {train}")]);
        let mut command = binary::bf16scope(&["train", "e.yaml", "--offline"]);
        command.current_dir(folder.0.path()).env("BF16SCOPE_CACHE", folder.0.path()).env_remove("BF16SCOPE_CPU_PLUGIN");
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(expected), "{train}: {error}");
    }
    folder.write("e.yaml", &[MODEL, "data: {csv: d.csv, n_test: 1, scale: 0}"]);
    let error = folder.stderr(&["train", "e.yaml"]);
    assert!(error.contains("e.yaml:2:38: found integer `0`, expected a number other than 0"), "{error}");
}

#[test]
fn a_feature_that_the_cast_makes_infinite_is_named() {
    // The loss became NaN: in training the advice was to lower the learning rate, for the test data there was no
    // message.
    let folder = Folder::new();
    let row = |feature: &str, label: usize| format!("{feature}{},{label}\n", ",1".repeat(63));
    let csv = |odd: usize, value: &str| -> String {
        (0..20).map(|example| row(if example == odd { value } else { "2" }, example % 10)).collect()
    };
    folder.write("e.yaml", &[MODEL, "data: {csv: d.csv, n_test: 4}", "train: {epochs: 1, batch: 4}"]);
    for (odd, value, precision) in [(3, "3.4e38", "bf16"), (17, "3.4e38", "bf16"), (17, "70000", "f16")] {
        std::fs::write(folder.path("d.csv"), csv(odd, value)).unwrap();
        let error = folder.stderr(&["train", "e.yaml", "--precision", precision]);
        let start = format!("bf16scope: d.csv:{}: number 0 of `images` is ", odd + 1);
        let why = format!("the cast to {precision} makes infinite");
        assert!(error.starts_with(&start) && error.contains(&why), "{error}");
    }
    std::fs::write(folder.path("d.csv"), csv(3, "3.38e38")).unwrap();
    let error = folder.run(&["train", "e.yaml"]).stderr;
    assert!(!String::from_utf8_lossy(&error).contains("makes infinite"));
}

#[test]
fn a_run_on_other_data_does_not_go_on() {
    // With another `n_test`, --resume misinterpreted the step as one of the new data's epochs and resumed in the middle
    // of one.
    let folder = Folder::new();
    folder.succeeds(&["train", "e.yaml", "--checkpoint", "c"]);
    folder.write("e.yaml", &[MODEL, &data(500), TRAIN]);
    let error = folder.stderr(&["train", "e.yaml", "--checkpoint", "c", "--resume", "--epochs", "2"]);
    assert!(
        error.contains("c: the checkpoint is of another run:\n  data.training.examples was 1437, is 1297 now"),
        "{error}"
    );
}

#[test]
fn an_explanation_of_nothing_in_hbm_says_so() {
    // For two products whose values stay on the chip, empty tables were shown.
    let folder = Folder::new();
    let text = "HloModule two, is_scheduled=true\n\nENTRY main {\n  x = f32[8,128]{1,0:T(8,128)} parameter(0)\n  y = \
                f32[8,128]{1,0:T(8,128)S(1)} negate(x)\n  ROOT z = f32[8,128]{1,0:T(8,128)} negate(y)\n}\n";
    folder.write("two.hlo", &[text]);
    let output = folder.run(&["explain", "two.hlo", "--target", "tpu-v3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("No temporary is in HBM: "), "{text}");
    assert!(!text.contains("Alive at the peak") && !text.contains("By layer: 0"), "{text}");
}

#[test]
fn an_element_that_a_parameter_does_not_hold_is_refused() {
    // 9 was -7 as s4, and 70000 infinite as f16.
    let folder = Folder::new();
    for (parameter, dtype, bytes, value, range) in [
        ("s4", DType::S8, vec![9, 1], "9", "-8 to 7"),
        ("s4", DType::S8, vec![0xf7, 1], "-9", "-8 to 7"),
        ("u4", DType::U8, vec![16, 1], "16", "0 to 15"),
        ("f16", DType::F32, [70_000f32, 1.0].map(f32::to_le_bytes).concat(), "70000", "-65504 to 65504"),
    ] {
        let text = format!("HloModule m\n\nENTRY m {{\n  ROOT x = {parameter}[2] parameter(0)\n}}\n");
        folder.write("m.txt", &[&text]);
        let mut npz = NpzWriter::create(folder.path("in.npz")).unwrap();
        npz.add("in0", &Header::for_dtype(dtype, vec![2]), &bytes).unwrap();
        npz.finish().unwrap();
        assert_eq!(
            folder.stderr(&["run", "m.txt", "--inputs", "in.npz"]),
            format!(
                "bf16scope: in.npz: element 0 of `in0` is {value}; expected {range}, which is what in0 (`x`, \
                 {parameter}[2]) holds\nhelp: clip the array, or scale it\n"
            )
        );
    }
}

#[test]
fn constants_are_lifted_out_and_baked_in_again() {
    // There was no way to take weights out of a module, or to put others in.
    let folder = Folder::new();
    let module = "HloModule m\n\nENTRY m {\n  x = f32[4] parameter(0)\n  c = f32[4] constant({1, 2, 3, 4})\n  ROOT s = \
                  f32[4] add(x, c)\n}\n";
    folder.write("m.txt", &[module]);
    folder.succeeds(&["emit", "m.txt", "--lift-constants", "16", "--weights", "w.npz", "-o", "lifted.txt"]);
    let text = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    assert!(text("lifted.txt").contains("  c = f32[4]{0} parameter(1)\n"), "{}", text("lifted.txt"));
    folder.succeeds(&["emit", "lifted.txt", "--bake", "w.npz", "-o", "baked.txt"]);
    assert!(text("baked.txt").contains("  c = f32[4]{0} constant({1, 2, 3, 4})\n"), "{}", text("baked.txt"));
    assert_eq!(
        folder.stderr(&["emit", "m.txt", "--lift-constants", "17", "--weights", "v.npz"]),
        "bf16scope: m.txt: the entry has no constant of 17 bytes or more\nhelp: name fewer bytes; what loops and branches \
         have as constants stays there\n"
    );
    let error = folder.stderr(&["emit", "m.txt", "--bake", "w.npz"]);
    assert!(error.contains("bf16scope: w.npz: no array has the name of a parameter of m.txt\nhelp: "), "{error}");
}
