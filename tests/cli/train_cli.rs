//! `bf16scope train` and `bf16scope eval` as a user runs them: output, files, Ctrl-C, bad input.

use crate::{binary, run};

use bf16scope::train::checkpoint::Checkpoint;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory with an experiment: a small network on the digits, which trains an epoch in a fraction of a second.
pub struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    pub fn new() -> Folder {
        let folder = Folder { folder: tempfile::tempdir().unwrap() };
        folder.write("mlp.yaml", "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [32]}");
        folder
    }

    /// Writes an experiment with this model.
    pub fn write(&self, name: &str, model: &str) {
        let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
        let text = format!(
            "{model}\ndata: {{csv: {}, scale: 0.0625, n_test: 360}}\n\
             train: {{epochs: 2, learning_rate: {{kind: constant, value: 0.05}}}}\n",
            csv.display()
        );
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command, in this directory.
    fn command(&self, args: &[&str]) -> Command {
        self.command_by(&[], args)
    }

    /// The command, started by a launcher that execs it.
    pub fn command_by(&self, launcher: &[&str], args: &[&str]) -> Command {
        let mut command = binary::started_by(launcher, args);
        command.current_dir(self.folder.path());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// A terminal's view of a command, and whether it succeeds.
    pub fn on_a_terminal(&self, args: &[&str]) -> (String, bool) {
        let spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
        let mut command = self.command_by(&["python3", "-c", spawn], args);
        let output = command.env("TERM", "xterm").stdin(std::process::Stdio::null()).output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
    }

    /// Standard output of a command that succeeds.
    pub fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Standard error of a command that fails.
    pub fn stderr(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.stdout(args)).unwrap()
    }
}

pub fn text(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).unwrap().to_string()
}

#[test]
fn a_run_says_what_it_does_and_leaves_a_checkpoint_to_go_on_from() {
    let folder = Folder::new();
    let out = folder.stdout(&["train", "mlp.yaml"]);
    let lines: Vec<&str> = out.lines().collect();
    let device = binary::device();
    let start = "mlp.yaml: mlp with 2,410 parameters (19,280 bytes of state), in a bf16 scope, f32 master weights";
    let option = if device == "cpu" { String::new() } else { format!(" --device {device}") };
    assert_eq!(lines[..2], [&format!("{start}, on {device}"), "1,437 training and 360 test examples, batches of 32",]);
    assert!(lines[2].starts_with("epoch 1/2  loss ") && lines[2].ends_with(" examples/s"), "{out}");
    assert!(lines[3].starts_with("epoch 2/2  loss "), "{out}");
    assert!(lines[4].starts_with("test accuracy ") && lines[4].ends_with(" after 88 steps"), "{out}");
    assert_eq!(
        lines[5..],
        [
            "checkpoint runs/mlp-bf16/checkpoint.safetensors",
            &format!(
                "next: `bf16scope eval mlp.yaml{option}`, or train on with `bf16scope train mlp.yaml{option} --resume \
                 --epochs 4`"
            ),
            "recorded in runs/mlp-bf16: `bf16scope curves runs/mlp-bf16`, or `tensorboard --logdir runs/mlp-bf16`",
        ]
    );
    // The command that it suggests works, and evaluation matches training.
    let accuracy = lines[4].split(' ').nth(2).unwrap();
    let evaluation = folder.stdout(&["eval", "mlp.yaml"]);
    let start = format!("runs/mlp-bf16/checkpoint.safetensors in bf16: test accuracy {accuracy} %, ");
    assert!(evaluation.starts_with(&start) && evaluation.ends_with(", after 88 steps\n"), "{evaluation}");
    let resumed = folder.run(&["train", "mlp.yaml", "--resume", "--epochs", "3"]);
    assert_eq!(text(&resumed.stderr), "bf16scope: going on from runs/mlp-bf16/checkpoint.safetensors after step 88\n");
    let resumed = text(&resumed.stdout);
    assert!(resumed.contains("\nepoch 3/3  loss ") && !resumed.contains("epoch 2/3"), "{resumed}");
}

#[test]
fn json_is_one_object() {
    let folder = Folder::new();
    let train = folder.json(&["train", "mlp.yaml", "--json", "--precision", "f32", "--seed", "5", "--batch", "64"]);
    for (key, expected) in [("precision", "f32"), ("platform", &binary::device())] {
        assert_eq!(train[key], expected, "{key}");
    }
    assert_eq!((&train["seed"], &train["batch"]), (&5.into(), &64.into()));
    assert_eq!(train["epochs"].as_array().unwrap().len(), 2);
    assert_eq!(train["steps"], 2 * (1437 / 64));
    assert_eq!(train["checkpoint"], "runs/mlp-f32/checkpoint.safetensors");
    let eval = folder.json(&["eval", "mlp.yaml", "--json", "--precision", "f32"]);
    assert_eq!(eval["n_examples"], 360);
    // The evaluation's batch is different, and thereby the order of some sums; no example is near a tie.
    assert_eq!(eval["accuracy"], train["test_accuracy"]);
}

/// Waits until `done`, for at most a minute.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(120), "no {what} within two minutes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn kill(signal: &str, child: &Child) {
    let status = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn ctrl_c_saves_a_checkpoint_from_which_training_goes_on_bitwise() {
    let folder = Folder::new();
    let args = ["train", "mlp.yaml", "--checkpoint", "stopped.safetensors", "--epochs", "1000000"];
    let child = folder.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("checkpoint", || folder.path("stopped.safetensors").exists());
    kill("INT", &child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let position = Checkpoint::read(folder.path("stopped.safetensors")).unwrap().position;
    let (step, epoch) = (position.step, (position.step - 1) / position.steps_per_epoch + 1);
    let stderr = text(&output.stderr);
    let expected = format!(
        "bf16scope: stopping after this step\n\
         bf16scope: stopped after step {step} (epoch {epoch}), as asked\n\
         the last good checkpoint is stopped.safetensors (after step {step})\n\
         help: --resume goes on from there, to the same weights as if it had not stopped\n"
    );
    assert_eq!(stderr, expected);
    assert!(std::fs::read_dir(folder.folder.path()).unwrap().count() == 3, "no temporary file is left");

    // Two epochs further, compared with as many without a stop.
    let epochs = (epoch + 2).to_string();
    folder.stdout(&["train", "mlp.yaml", "--checkpoint", "stopped.safetensors", "--resume", "--epochs", &epochs]);
    folder.stdout(&["train", "mlp.yaml", "--checkpoint", "whole.safetensors", "--epochs", &epochs]);
    let [stopped, whole] = ["stopped", "whole"].map(|name| std::fs::read(folder.path(&format!("{name}.safetensors"))));
    assert!(stopped.unwrap() == whole.unwrap(), "the checkpoints differ");
}

#[test]
fn a_terminal_that_closes_stops_it_unless_nohup_said_otherwise() {
    let folder = Folder::new();
    let spawn = |launcher: &[&str], checkpoint: &str| {
        let args = ["train", "mlp.yaml", "--checkpoint", checkpoint, "--epochs", "1000000"];
        let child = folder
            .command_by(launcher, &args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{launcher:?}: {error}"));
        wait_for("checkpoint", || folder.path(checkpoint).exists());
        child
    };
    let step = |checkpoint: &str| Checkpoint::read(folder.path(checkpoint)).unwrap().position.step;

    // Independent of how the tests themselves were started.
    let child = spawn(&["env", "--default-signal=HUP"], "closed.safetensors");
    kill("HUP", &child);
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(129), "{stderr}");
    let expected =
        format!("as asked\nthe last good checkpoint is closed.safetensors (after step {})", step("closed.safetensors"));
    assert!(stderr.contains(&expected), "{stderr}");

    let mut child = spawn(&["nohup"], "kept.safetensors");
    kill("HUP", &child);
    let before = step("kept.safetensors");
    wait_for("later checkpoint", || step("kept.safetensors") > before + 100);
    assert!(child.try_wait().unwrap().is_none(), "it ended though SIGHUP was ignored");
    kill("INT", &child);
    let stderr = text(&child.wait_with_output().unwrap().stderr);
    assert!(stderr.contains("stopping after this step"), "{stderr}");
}

#[test]
fn divergence_ends_with_the_step_and_code_2() {
    if !run::has_f16() {
        return;
    }
    let folder = Folder::new();
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    std::fs::write(folder.path("mlp.yaml"), yaml.replace("value: 0.05", "value: 1.0e+38")).unwrap();
    let stderr = folder.stderr(&["train", "mlp.yaml", "--precision", "f16"]);
    assert!(stderr.contains("\nbf16scope: step 2 (epoch 1): the loss ("), "{stderr}");
    assert!(
        stderr.starts_with("bf16scope: what the numbers were before it: `bf16scope watch runs/mlp-f16`\n"),
        "{stderr}"
    );
    assert!(stderr.contains("which began in mlp/dense1, forward: "), "{stderr}");
    assert!(
        stderr.ends_with("help: f16 ends at 65504: use --precision bf16, or lower the learning rate\n"),
        "{stderr}"
    );
    assert!(!folder.path("runs/mlp-f16/checkpoint.safetensors").exists());
}

#[test]
fn a_processor_without_f16c_is_told_what_it_lacks() {
    let folder = Folder::new();
    // On the plugin, whichever device the tests use: its library lacks a function.
    let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
    command.args(["train", "mlp.yaml", "--precision", "f16"]).current_dir(folder.folder.path());
    let output = command.env("XLA_FLAGS", "--xla_cpu_max_isa=SSE4_2").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("Failed to materialize symbols"), "{stderr}");
    assert!(stderr.ends_with("an --xla_cpu_max_isa in XLA_FLAGS hides it): use bf16 or f32\n"), "{stderr}");
}

#[test]
fn bad_checkpoints_are_refused_and_left_as_they_are() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    let path = folder.path("runs/mlp-bf16/checkpoint.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let cut = &whole[..whole.len() / 2];
    std::fs::write(&path, cut).unwrap();
    for args in [&["train", "mlp.yaml", "--resume"][..], &["eval", "mlp.yaml"]] {
        assert_eq!(
            folder.stderr(args),
            format!(
                "bf16scope: runs/mlp-bf16/checkpoint.safetensors: the checkpoint is cut off: {} bytes, expected {}\n\
                 help: copy it again, or go on from an earlier one; this file is left as it is\n",
                cut.len(),
                whole.len()
            )
        );
        assert_eq!(std::fs::read(&path).unwrap(), cut);
    }

    std::fs::write(&path, &whole).unwrap();
    folder.write("wide.yaml", "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [64]}");
    let resume = format!("--resume={}", path.display());
    let stderr = folder.stderr(&["train", "wide.yaml", &resume]);
    assert_eq!(
        stderr,
        format!(
            "bf16scope: {}: the checkpoint is of another run:\n  model.hidden was [32], is [64] now\n\
             help: set the experiment as it was, or leave --resume out to start again\n",
            path.display()
        )
    );
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    let checkpoint = path.display().to_string();
    let stderr = folder.stderr(&["eval", "wide.yaml", "--checkpoint", &checkpoint]);
    let refused = format!(
        "bf16scope: {}: the checkpoint is of another function:\n  model.hidden was [32], is [64] now\n\
         help: set `model` as it was, or give --other-function where its variables fit\n",
        path.display()
    );
    assert_eq!(stderr, refused);
    let stderr = folder.stderr(&["eval", "wide.yaml", "--checkpoint", &checkpoint, "--other-function"]);
    let refused = format!("bf16scope: {}: the checkpoint is of another model:", path.display());
    assert!(stderr.contains(&refused), "{stderr}");
    assert!(stderr.contains("mlp/dense1/kernel is f32[64,32], not f32[64,64]"), "{stderr}");
}

#[test]
fn a_full_disk_leaves_the_checkpoint_before() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    let path = folder.path("runs/mlp-bf16/checkpoint.safetensors");
    let before = std::fs::read(&path).unwrap();
    let n_files = || std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    let n_before = n_files();
    // A limit on the size of files simulates a full disk: writes beyond it fail, once its signal is ignored.
    let limit = ["sh", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh"];
    let output =
        folder.command_by(&limit, &["train", "mlp.yaml", "--resume", "--epochs", "2", "--no-run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    let expected = "bf16scope: going on from runs/mlp-bf16/checkpoint.safetensors after step 44\n\
         bf16scope: runs/mlp-bf16/checkpoint.safetensors: cannot write the checkpoint: writing\n\
         help: make room or name another place with --checkpoint; what was there before is unchanged\n  \
         caused by: File too large (os error 27)";
    assert!(stderr.starts_with(expected), "{stderr}");
    assert!(std::fs::read(&path).unwrap() == before);
    assert_eq!(n_files(), n_before, "no temporary file is left");
}

/// It used to be refused.
#[test]
fn no_epochs_save_the_initial_state() {
    let folder = Folder::new();
    let out = folder.stdout(&["train", "mlp.yaml", "--epochs", "0"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[2].starts_with("test accuracy ") && lines[2].ends_with(" after 0 steps"), "{out}");
    assert!(
        lines[4].contains("or train on with `bf16scope train mlp.yaml") && lines[4].ends_with(" --resume`"),
        "{out}"
    );
    let path = folder.path("runs/mlp-bf16/checkpoint.safetensors");
    assert_eq!(Checkpoint::read(&path).unwrap().position.step, 0);
    what_a_run_without_steps_is_asked(&folder);
    folder.stdout(&["train", "mlp.yaml", "--resume"]);
    folder.stdout(&["train", "mlp.yaml", "--checkpoint", "whole.safetensors"]);
    assert!(std::fs::read(path).unwrap() == std::fs::read(folder.path("whole.safetensors")).unwrap());
}

/// Its folder holds `epochs: 0`, which no command could read.
fn what_a_run_without_steps_is_asked(folder: &Folder) {
    const RUN: &str = "runs/mlp-bf16";
    assert!(folder.stdout(&["eval", RUN]).contains("after 0 steps"));
    folder.stdout(&["predict", RUN, "-o", "predicted.csv"]);
    assert!(
        folder.stdout(&["curves", RUN]).ends_with("no scalar is recorded: a run has scalars from its first steps on\n")
    );
    // The first step of training can be audited, and no later one.
    let audit = folder.json(&["audit", RUN, "--at", "1", "--json"]);
    assert_eq!(audit["at"]["step"], 1);
    let beyond = "bf16scope: --at 2 is beyond the run, which has 0 steps\nhelp: --at 1 audits the step that training begins \
                  with";
    let stderr = folder.stderr(&["audit", RUN, "--at", "2"]);
    assert!(stderr.trim_end().ends_with(beyond), "{stderr}");
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml"))
        .unwrap()
        .replace("epochs: 2", "warm_up: {steps: 9}, epochs: 0");
    assert!(yaml.contains("epochs: 0"), "{yaml}");
    std::fs::write(folder.path("none.yaml"), yaml).unwrap();
    let stderr = folder.stderr(&["schedule", "none.yaml", "--json"]);
    assert!(stderr.contains("the training has 0 steps, and no rate to draw"), "{stderr}");
    // No schedule is too long for a run without training.
    assert!(!stderr.contains("warm-up"), "{stderr}");
}

/// `eval` matches the end of `train`, and shows what its loss leaves out.
#[test]
fn where_there_is_l2_the_total_loss_stands_beside_the_loss() {
    let folder = Folder::new();
    folder.write("mlp.yaml", "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [32]}");
    let text = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    std::fs::write(folder.path("l2.yaml"), text.replace("epochs: 2,", "epochs: 2, weight_decay: {value: 0.01},"))
        .unwrap();
    let trained = folder.json(&["train", "l2.yaml", "--json"]);
    let evaluated = folder.json(&["eval", "l2.yaml", "--json"]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let (loss, total) = (number(&trained["test_loss"]), number(&trained["test_total_loss"]));
    assert!(total > loss + 0.01, "{trained}");
    assert_eq!((number(&evaluated["loss"]), number(&evaluated["total_loss"])), (loss, total));
    let shown = folder.stdout(&["eval", "l2.yaml"]);
    assert!(shown.contains(&format!("loss {loss:.4}, total loss {total:.4} over 360 examples")), "{shown}");
    folder.stdout(&["train", "mlp.yaml"]);
    assert!(!folder.stdout(&["eval", "mlp.yaml"]).contains("total"));
}

#[test]
fn what_is_missing_is_named() {
    let folder = Folder::new();
    assert_eq!(
        folder.stderr(&["train", "none.yaml"]),
        "bf16scope: none.yaml: cannot read the experiment\n\
         help: name an experiment's YAML file, or the folder of a run; `bf16scope init` writes a file to begin with\n  \
         caused by: No such file or directory (os error 2)\n"
    );
    assert_eq!(
        folder.stderr(&["eval", "mlp.yaml"]),
        "bf16scope: runs/mlp-bf16/checkpoint.safetensors: no such checkpoint\n\
         help: train first, or name one with --checkpoint\n"
    );
    assert_eq!(
        folder.stderr(&["train", "mlp.yaml", "--resume"]),
        format!(
            "bf16scope: runs/mlp-bf16/checkpoint.safetensors: no such checkpoint: that is the default place, seen from {}\n\
             help: name the file with --resume=FILE, go to the folder that it was trained in, or leave --resume out to \
             start\n",
            folder.path("").canonicalize().unwrap().display()
        )
    );
    assert!(!folder.path("runs").exists(), "a refusal leaves nothing");
    std::fs::write(folder.path("file"), "").unwrap();
    let stderr = folder.stderr(&["train", "mlp.yaml", "--checkpoint", "file/run.safetensors"]);
    assert!(stderr.starts_with("bf16scope: file/run.safetensors: cannot write the checkpoint: making its"), "{stderr}");
}

/// Earlier, `--resume --run DIR` tried only the default path, and a path with a space was printed as two words.
#[test]
fn a_run_that_was_named_is_gone_on_with_from_its_checkpoint() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("my nets")).unwrap();
    folder.write("my nets/mlp.yaml", "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [8]}");
    let named = ["--checkpoint", "it's.safetensors", "--run", "a run"];
    let out = folder.stdout(&[&["train", "my nets/mlp.yaml", "--epochs", "1", "--batch", "64"][..], &named].concat());
    let lines: Vec<&str> = out.lines().collect();
    let device = binary::device();
    let option = if device == "cpu" { String::new() } else { format!(" --device {device}") };
    assert_eq!(
        lines[lines.len() - 3..],
        [
            "checkpoint it's.safetensors",
            &format!(
                r"next: `bf16scope eval 'my nets/mlp.yaml'{option} --checkpoint 'it'\''s.safetensors'`, or train on with `bf16scope train 'my nets/mlp.yaml'{option} --batch 64 --checkpoint 'it'\''s.safetensors' --run 'a run' --resume --epochs 2`"
            ),
            "recorded in a run: `bf16scope curves 'a run'`, or `tensorboard --logdir 'a run'`",
        ]
    );
    let on = ["train", "my nets/mlp.yaml", "--resume", "--epochs", "2", "--batch", "64"];
    let resumed = folder.run(&[&on[..], &["--run", "a run"]].concat());
    assert_eq!(text(&resumed.stderr), "bf16scope: going on from it's.safetensors after step 22\n");
    assert!(text(&resumed.stdout).contains("checkpoint it's.safetensors\n"), "{}", text(&resumed.stdout));

    std::fs::remove_file(folder.path("it's.safetensors")).unwrap();
    let seen = format!(", seen from {}\n", folder.path("").canonicalize().unwrap().display());
    let refused = folder.stderr(&[&on[..], &["--run", "a run"]].concat());
    let start = "bf16scope: it's.safetensors: no such checkpoint: a run/run.json names it as the last of its run";
    assert!(refused.starts_with(&(start.to_string() + &seen)), "{refused}");
    std::fs::write(folder.path("a run/run.json"), "{}").unwrap();
    let refused = folder.stderr(&[&on[..], &["--run", "a run"]].concat());
    let start = "bf16scope: a run/checkpoint.safetensors: no such checkpoint: that is the default place, and a run/run.json \
                 names no other";
    assert!(refused.starts_with(&(start.to_string() + &seen)), "{refused}");
}

#[test]
fn a_label_out_of_range_is_named_with_its_line() {
    let folder = Folder::new();
    let rows: String =
        (0..400).map(|row| format!("{}{}\n", "0,".repeat(64), if row == 7 { 10 } else { row % 10 })).collect();
    std::fs::write(folder.path("bad.csv"), rows).unwrap();
    let yaml = "model: {kind: mlp, input: [64], n_classes: 10}\ndata: {csv: bad.csv, n_test: 100}\n";
    std::fs::write(folder.path("bad.yaml"), yaml).unwrap();
    assert_eq!(
        folder.stderr(&["train", "bad.yaml"]),
        "bf16scope: bad.yaml:1:44: bad.csv:8: column 65, of `labels`, is `10`; expected a whole number from 0 to 9\n  \
         1 | model: {kind: mlp, input: [64], n_classes: 10}\n    \
         |                                            ^^\n  \
         help: write 11 or more here, or leave such examples out; where the data count from 1, subtract 1 from `labels` in the file\n"
    );
}
