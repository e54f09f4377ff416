//! `train` with output that is not read or cannot be written; and the exit codes of a clean stop.

use super::binary;
use bf16scope::train::checkpoint::Checkpoint;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// An experiment on 40 examples, four steps an epoch.
pub struct Tiny {
    folder: tempfile::TempDir,
}

impl Tiny {
    pub fn new() -> Tiny {
        let tiny = Tiny { folder: tempfile::tempdir().unwrap() };
        tiny.write_data(|row| row);
        tiny.write("batch: 8, epochs: 3, learning_rate: {kind: constant, value: 0.05}");
        tiny
    }

    /// Rows in the order of `place`.
    pub fn write_data(&self, place: impl Fn(usize) -> usize) {
        let row = |row: usize| format!("{},{},{},{},{}\n", row % 7, row % 5, row % 3, row % 11, row % 2);
        std::fs::write(self.path("rows.csv"), (0..40).map(|idx| row(place(idx))).collect::<String>()).unwrap();
    }

    /// The experiment, with these settings of `train`.
    pub fn write(&self, train: &str) {
        self.write_all("{kind: mlp, input: [4], n_classes: 2, hidden: [8], dropout: 0.1}", "0.1", train);
    }

    pub fn write_all(&self, model: &str, scale: &str, train: &str) {
        let text = format!("model: {model}\ndata: {{csv: rows.csv, scale: {scale}, n_test: 8}}\ntrain: {{{train}}}\n");
        std::fs::write(self.path("tiny.yaml"), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `train tiny.yaml` and these arguments, started by a launcher; to `run.safetensors` unless they say otherwise, and
    /// recorded nowhere: the folder has what checkpoints leave there.
    pub fn train_by(&self, launcher: &[&str], args: &[&str]) -> Command {
        let place: &[&str] = match args.contains(&"--checkpoint") {
            true => &[],
            false => &["--checkpoint", "run.safetensors"],
        };
        let args = [&["train", "tiny.yaml", "--no-run"], place, args].concat();
        let mut command = binary::started_by(launcher, &args);
        command.current_dir(self.folder.path());
        command
    }

    pub fn train(&self, args: &[&str]) -> Output {
        self.train_by(&[], args).output().unwrap()
    }

    /// The steps that the checkpoint holds.
    pub fn steps(&self) -> u64 {
        Checkpoint::read(self.path("run.safetensors")).unwrap().position.step
    }

    pub fn wait_for_checkpoint(&self) {
        let began = Instant::now();
        while !self.path("run.safetensors").exists() {
            assert!(began.elapsed() < Duration::from_secs(120), "no checkpoint within two minutes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn kill(signal: &str, child: &Child) {
    let status = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_reader_that_leaves_does_not_end_the_training() {
    let tiny = Tiny::new();
    let args = ["--epochs", "20"];
    let mut child = tiny.train_by(&[], &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // As `| head -1`: the reader is gone after this.
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("tiny.yaml: mlp with "), "{line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert_eq!(tiny.steps(), 80);
}

#[test]
fn a_full_disk_behind_standard_output_costs_the_lines_and_not_the_training() {
    let tiny = Tiny::new();
    for args in [&[][..], &["--json"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = tiny.train_by(&[], args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let stderr = text(&output.stderr);
        let end = "bf16scope: cannot write to standard output\n  caused by: No space left on device (os error 28)\n  \
                   help: free space there, or name another place\n";
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        if args.is_empty() {
            let remark = "bf16scope: cannot write to standard output: No space left on device (os error 28); the training \
                          goes on\n";
            assert_eq!(stderr, format!("{remark}{end}"));
        } else {
            assert!(stderr.contains("No space left on device (os error 28)"), "{stderr}");
        }
        assert_eq!(tiny.steps(), 12, "{stderr}");
        std::fs::remove_file(tiny.path("run.safetensors")).unwrap();
    }
}

#[test]
fn streams_that_are_closed_or_full_lose_nothing_and_panic_nowhere() {
    for (streams, code) in
        [(">&- 2>&-", 0), ("2>&-", 0), ("2>/dev/full", 0), (">/dev/full 2>/dev/full", 2), ("<&- >&- 2>/dev/full", 0)]
    {
        let tiny = Tiny::new();
        let script = format!("exec \"$@\" {streams}");
        let output = tiny.train_by(&["sh", "-c", &script, "sh"], &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{streams}: {}", text(&output.stderr));
        assert_eq!(tiny.steps(), 12, "{streams}");
    }
}

#[test]
fn a_clean_stop_has_the_exit_code_of_its_signal() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let tiny = Tiny::new();
        // Whatever the tests themselves were started by.
        let launcher = ["env", "--default-signal=HUP,INT,TERM"];
        let mut command = tiny.train_by(&launcher, &["--epochs", "10000000"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        tiny.wait_for_checkpoint();
        kill(signal, &child);
        let output = child.wait_with_output().unwrap();
        let (stderr, step) = (text(&output.stderr), tiny.steps());
        assert_eq!(output.status.code(), Some(code), "{signal}: {stderr}");
        let expected = format!(
            "bf16scope: stopping after this step\nbf16scope: stopped after step {step} (epoch {}), as asked\n\
             the last good checkpoint is run.safetensors (after step {step})\n\
             help: --resume goes on from there, to the same weights as if it had not stopped\n",
            (step - 1) / 4 + 1
        );
        assert_eq!(stderr, expected, "{signal}");
    }
}

#[test]
fn a_second_signal_leaves_at_once_with_a_checkpoint_that_is_whole() {
    let tiny = Tiny::new();
    let mut command = tiny.train_by(&["env", "--default-signal=INT"], &["--epochs", "10000000"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    tiny.wait_for_checkpoint();
    kill("INT", &child);
    // It may have ended by itself, as it was asked the first time: the code is the same.
    drop(Command::new("kill").args(["-INT", &child.id().to_string()]).output());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(tiny.steps() > 0);
}
