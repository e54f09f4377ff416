//! `bf16scope curves` on runs that `train` recorded and on others; TensorBoard's reading of them; the page in Chromium.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bf16scope::run_folder::{About, RunFolder, Start, read};
use expect_test::expect_file;
use unicode_width::UnicodeWidthStr as _;

use crate::binary;
use crate::support::browser;

/// A folder with an experiment whose epoch takes a fraction of a second, and runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
        let yaml = format!(
            "model: {{kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [32]}}\n\
             data: {{csv: {}, scale: 0.0625, n_test: 360}}\n\
             train: {{epochs: 2, learning_rate: {{kind: constant, value: 0.05}}}}\n",
            csv.display()
        );
        fs::write(folder.path().join("mlp.yaml"), yaml).unwrap();
        Place(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = binary::bf16scope(args);
        // Tables at this width; sentences are wrapped too, and the output of `train` is tested elsewhere.
        let columns = if args[0] == "curves" { "80" } else { "1000" };
        command.current_dir(self.0.path()).env("LC_ALL", "C.UTF-8").env("COLUMNS", columns).output().unwrap()
    }

    /// Standard output and error of a command that succeeds.
    fn run(&self, args: &[&str]) -> (String, String) {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    /// A run with a seed and a final loss.
    fn seeded(&self, name: &str, seed: u64, loss: f64) {
        let about = About { seed, precision: "bf16".to_string(), ..About::default() };
        let mut folder = RunFolder::create(self.path(name), about, None).unwrap();
        folder.scalars(10, &[("test/loss", loss), ("learning_rate", 0.1)]).unwrap();
    }

    /// A run with values that do not depend on the machine.
    fn record(&self, name: &str, precision: &str, n_steps: u64, loss: impl Fn(u64) -> f64) {
        let about = About {
            experiment: "net.yaml".to_string(),
            precision: precision.to_string(),
            batch: 32,
            starts: vec![Start { date: "2026-11-22T15:04:05Z".to_string(), ..Start::default() }],
            ..About::default()
        };
        let mut folder = RunFolder::create(self.path(name), about, None).unwrap();
        for step in 1..=n_steps {
            let rates = [("loss", loss(step)), ("learning_rate", 0.1), ("examples_per_second", 4000.0)];
            folder.scalars(step, &rates).unwrap();
            if step % 50 == 0 {
                let epoch = [("train/loss", loss(step)), ("test/loss", 1.5 * loss(step)), ("test/accuracy", 0.9875)];
                folder.scalars(step, &epoch).unwrap();
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn jsonl(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn train_leaves_a_folder_that_says_what_happened() {
    let place = Place::new();
    let device = binary::device();
    let (stdout, _) = place.run(&["train", "mlp.yaml", "--seed", "5"]);
    assert!(
        stdout.ends_with(
            "recorded in runs/mlp-bf16: `bf16scope curves runs/mlp-bf16`, or `tensorboard --logdir runs/mlp-bf16`\n"
        ),
        "{stdout}"
    );
    let lines = jsonl(&place.path("runs/mlp-bf16"));
    assert_eq!(lines.len(), 88 + 2);
    let keys = |line: &serde_json::Value| line.as_object().unwrap().keys().cloned().collect::<Vec<String>>();
    assert_eq!(keys(&lines[0]), ["accuracy", "examples_per_second", "learning_rate", "loss", "step", "time"]);
    assert_eq!((&lines[43]["step"], &lines[43]["learning_rate"]), (&44.into(), &0.05.into()));
    assert_eq!(lines[44]["step"], 44);
    // The printed values are those recorded.
    let of_epoch = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap();
    let shown = format!(
        "loss {:.4} (test {:.4})  accuracy {:.2} % (test {:.2} %)",
        of_epoch(&lines[89], "train/loss"),
        of_epoch(&lines[89], "test/loss"),
        100.0 * of_epoch(&lines[89], "train/accuracy"),
        100.0 * of_epoch(&lines[89], "test/accuracy")
    );
    assert!(stdout.contains(&shown), "{shown}: {stdout}");

    let run: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(place.path("runs/mlp-bf16/run.json")).unwrap()).unwrap();
    assert_eq!((&run["precision"], &run["seed"], &run["batch"]), (&"bf16".into(), &5.into(), &32.into()));
    assert_eq!(run["settings"]["train"]["optimizer"]["kind"], "momentum");
    let start = &run["starts"][0];
    assert_eq!((&start["step"], &start["device"]), (&0.into(), &device.as_str().into()));
    assert_eq!(start["bf16scope"], env!("CARGO_PKG_VERSION"));
    // The experiment with the flags in it repeats the run.
    let yaml = fs::read_to_string(place.path("runs/mlp-bf16/experiment.yaml")).unwrap();
    assert!(yaml.contains("\n  seed: 5\n") && yaml.starts_with("# mlp.yaml, as it was trained"), "{yaml}");
    fs::write(place.path("again.yaml"), yaml).unwrap();
    let (again, _) = place.run(&["train", "again.yaml", "--run", "elsewhere"]);
    let losses =
        |text: &str| text.lines().filter_map(|line| Some(line.split("  ").nth(1)?.to_string())).collect::<Vec<_>>();
    assert_eq!(losses(&again), losses(&stdout));

    // Nothing is overwritten: a later run gets a new folder, and naming an existing folder is an error.
    let (stdout, _) = place.run(&["train", "mlp.yaml", "--log-every", "10", "--overwrite"]);
    assert!(stdout.contains("\nrecorded in runs/mlp-bf16-2: "), "{stdout}");
    let steps: Vec<u64> =
        jsonl(&place.path("runs/mlp-bf16-2")).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 10, 20, 30, 40, 44, 50, 60, 70, 80, 88]);
    assert_eq!(
        place.refused(&["train", "mlp.yaml", "--run", "elsewhere", "--overwrite"]),
        "bf16scope: elsewhere/checkpoint.safetensors will be replaced after the first epoch, as --overwrite says\n\
         bf16scope: the run cannot be recorded\n\
         help: name another folder with --run, or record nothing with --no-run\n  \
         caused by: elsewhere: another run is recorded here\n\
         help: name another folder, or go on with that run\n"
    );
    let (stdout, _) = place.run(&["train", "mlp.yaml", "--no-run", "--checkpoint", "none.safetensors"]);
    assert!(!stdout.contains("recorded in"), "{stdout}");
    assert_eq!(fs::read_dir(place.path("runs")).unwrap().count(), 2);
}

#[test]
fn a_resumption_goes_on_in_the_folder_of_its_checkpoint() {
    let place = Place::new();
    place.run(&["train", "mlp.yaml", "--epochs", "1"]);
    // The records of a run that was killed in its second epoch.
    let path = place.path("runs/mlp-bf16");
    let mut file = fs::OpenOptions::new().append(true).open(path.join("metrics.jsonl")).unwrap();
    file.write_all(b"{\"step\":45,\"time\":1.5,\"loss\":7.0}\n{\"step\":46,\"ti").unwrap();
    // A run that was killed before its first checkpoint.
    let about = About { starts: vec![Start::now(0, "cpu", "")], ..About::default() };
    drop(RunFolder::create(place.path("runs/mlp-bf16-2"), about, None).unwrap());
    let (stdout, stderr) = place.run(&["train", "mlp.yaml", "--resume"]);
    assert!(stdout.contains("\nrecorded in runs/mlp-bf16: "), "{stdout}");
    let expected = "bf16scope: going on from runs/mlp-bf16/checkpoint.safetensors after step 44\n\
                    bf16scope: runs/mlp-bf16: 1 record of steps after 44 is dropped\n";
    assert_eq!(stderr, expected);
    let run = read(&path).unwrap();
    let loss = &run.curves[0];
    assert_eq!(loss.points.iter().map(|point| point.step).collect::<Vec<u64>>(), (1..=88).collect::<Vec<u64>>());
    assert!(loss.points.iter().all(|point| point.value < 7.0));
    let starts = run.about.unwrap().starts;
    assert_eq!(starts.iter().map(|start| start.step).collect::<Vec<u64>>(), [0, 44]);
    // A curve is a function of the step: it equals that of an uninterrupted run.
    place.run(&["train", "mlp.yaml", "--checkpoint", "whole.safetensors", "--run", "whole"]);
    let values =
        |path: &Path| -> Vec<f64> { read(path).unwrap().curves[0].points.iter().map(|point| point.value).collect() };
    assert_eq!(values(&place.path("whole")), values(&path));
    // A checkpoint whose run is not recorded starts a new folder, with a message.
    fs::rename(path.join("checkpoint.safetensors"), place.path("alone.safetensors")).unwrap();
    fs::remove_dir_all(place.path("runs")).unwrap();
    let (_, stderr) = place.run(&["train", "mlp.yaml", "--resume=alone.safetensors", "--epochs", "3"]);
    assert!(
        stderr.ends_with("bf16scope: no folder records the run up to step 88: runs/mlp-bf16 begins there\n"),
        "{stderr}"
    );
}

#[test]
fn a_training_outlives_its_folder() {
    let place = Place::new();
    // A limit on the size of files simulates a full disk: the checkpoint fits, and the records of 40 epochs do not. A
    // shell's unit is 512 bytes or 1,024.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$@\"";
    let args = ["train", "mlp.yaml", "--epochs", "40"];
    let mut command = binary::started_by(&["sh", "-c", script, "sh"], &args);
    let output = command.current_dir(place.0.path()).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let message = "bf16scope: runs/mlp-bf16/metrics.jsonl: cannot write to it: File too large (os error 27); the training goes \
                on, and is not recorded any more\n";
    assert!(stderr.starts_with(message), "{stderr}");
    assert!(stdout.contains("epoch 40/40") && stdout.contains("after 1,760 steps"), "{stdout}");
    let run = read(place.path("runs/mlp-bf16")).unwrap();
    assert!(run.remarks.is_empty() && run.curves[0].points.len() > 50, "{:?}", run.remarks);
}

#[test]
fn a_table_on_80_columns_and_json() {
    let place = Place::new();
    place.record("runs/net-f32", "f32", 200, |step| 1.0 / step as f64);
    place.record("runs/net-bf16", "bf16", 100, |step| if step == 100 { f64::NAN } else { 1.5 / step as f64 });
    let args = ["curves", "runs/net-f32", "runs/net-bf16"];
    let (stdout, stderr) = place.run(&args);
    assert_eq!(stderr, "");
    assert!(stdout.lines().all(|line| line.width() <= 80), "{stdout}");
    expect_file!["screens/curves.txt"].assert_eq(&format!("$ bf16scope {}\n{stdout}", args.join(" ")));
    let json: serde_json::Value = serde_json::from_str(&place.run(&[&args[..], &["--json"]].concat()).0).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!((&runs[0]["path"], &runs[1]["about"]["precision"]), (&"runs/net-f32".into(), &"bf16".into()));
    let loss = &runs[1]["curves"][0];
    assert_eq!(
        (&loss["name"], &loss["n_values"], &loss["last"]["value"]),
        (&"loss".into(), &100.into(), &"NaN".into())
    );
    assert_eq!((&loss["least"]["step"], &loss["greatest"]["value"]), (&99.into(), &1.5.into()));
}

#[test]
fn wrong_input_says_what_to_name() {
    let place = Place::new();
    place.record("runs/net-f32", "f32", 3, |step| step as f64);
    let name = "help: name the folder of a run, such as `train` makes: runs/EXPERIMENT-PRECISION\n";
    let cases = [
        ("none", format!("none: no such folder\n{name}")),
        ("runs", "runs: no run itself, but a folder of runs\nhelp: name those: runs/net-f32\n".to_string()),
        ("mlp.yaml", format!("mlp.yaml: a file, expected the folder of a run\n{name}")),
        (
            "runs/net-f32/run.json",
            "runs/net-f32/run.json: a file, expected the folder of a run\nhelp: name the folder that it is in: \
             runs/net-f32\n"
                .to_string(),
        ),
        (".", format!(".: the folder of no run: it has no metrics.jsonl and no event files\n{name}")),
    ];
    for (run, expected) in cases {
        assert_eq!(place.refused(&["curves", run]), format!("bf16scope: {expected}"));
    }
    let many = [&["curves"][..], &["runs/net-f32"; 25]].concat();
    assert!(place.refused(&many).starts_with("bf16scope: 25 runs, expected 24 at most"), "{}", place.refused(&many));
    assert_eq!(
        place.refused(&["curves", "runs/net-f32", "--html", "no/page.html"]),
        "bf16scope: cannot write no/page.html\n  caused by: its folder is not there\nhelp: make it (`mkdir -p`), or name another place\n"
    );
    // A damaged run is drawn up to the damage, which is reported.
    let lines = place.path("runs/net-f32/metrics.jsonl");
    let whole = fs::read_to_string(&lines).unwrap();
    fs::write(&lines, format!("\0\0\n{}", &whole[..whole.len() - 10])).unwrap();
    let (stdout, stderr) = place.run(&["curves", "runs/net-f32"]);
    assert_eq!(
        stderr,
        "bf16scope: warning: runs/net-f32: metrics.jsonl: line 1 is not a record, and is left out\n\
         bf16scope: warning: runs/net-f32: metrics.jsonl: the last line is cut short, and is left out\n"
    );
    assert!(stdout.contains(" 2 ┆"), "{stdout}");
}

#[test]
fn the_page_of_several_runs_works_in_a_browser() {
    let place = Place::new();
    place.record("runs/net-f32", "f32", 200, |step| 1.0 / step as f64);
    place.record("runs/net-bf16", "bf16", 100, |step| if step == 40 { f64::INFINITY } else { 1.5 / step as f64 });
    // Long enough to be drawn by columns, with a peak that must be kept.
    place.record("runs/<long>-f16", "f16", 5000, |step| if step == 1234 { 96.5 } else { 2.0 });
    place.run(&["curves", "runs/net-f32", "runs/net-bf16", "runs/<long>-f16", "--html", "page.html"]);
    let page = place.path("page.html");
    let html = fs::read_to_string(&page).unwrap();
    for elsewhere in ["http", "src=", "href=", "@import", "url("] {
        assert!(!html.contains(elsewhere), "the page loads from elsewhere: {elsewhere}");
    }
    let parts = [
        "<title>Training: net-f32, net-bf16, &lt;long&gt;-f16</title>",
        "<b>5,000</b><span>&lt;long&gt;-f16: steps in f16</span>",
        "<figcaption>loss (logarithmic scale)</figcaption>",
        "<figcaption>learning_rate</figcaption>",
        "<figcaption>examples_per_second</figcaption>",
        "<figcaption>test/accuracy</figcaption>",
        "of 400 columns shows its least and its greatest one",
        "&lt;long&gt;-f16  step 1250: 2",
    ];
    for part in parts {
        assert!(html.contains(part), "{part} is not in\n{html}");
    }
    // A line for each run in each of the six plots, and the infinity as a cross.
    assert_eq!(html.matches("data-name=\"net-bf16\"").count(), 6);
    assert_eq!(html.matches("class=\"cross\"").count(), 1);
    assert!(html.len() < 400_000, "{}", html.len());
    let Some(seen) = browser::dom(&page) else { return };
    for part in parts {
        assert!(seen.contains(part), "{part} is not in\n{seen}");
    }
    // The script shows the search fields, so it ran.
    assert!(!seen.contains("hidden=\"\""), "{seen}");
    // A user hovers over the fourth strip of the loss, measures the height of the peak, and sorts by the last value.
    let user = "<script>
      const figure = [...document.querySelectorAll('figure')].find(f => f.querySelector('figcaption').textContent.startsWith('loss'));
      const box = name => figure.querySelector(`path[data-name='${name}']`).getBBox();
      const peak = box('<long>-f16').y <= box('net-f32').y;
      figure.querySelectorAll('.moment')[3].dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
      const table = document.querySelector('section');
      table.querySelectorAll('th')[2].click();
      const first = table.querySelector('tbody tr').cells;
      document.title = [peak, first[0].textContent, first[1].textContent].join(' | ');
    </script>\n</body>";
    fs::write(&page, html.replace("</body>", user)).unwrap();
    let seen = browser::dom(&page).expect("asked for, as above");
    assert!(seen.contains("<title>true | examples_per_second | net-f32</title>"), "{seen}");
    assert!(seen.contains(">net-f32     step 167: 0.006\n"), "{seen}");
}

/// Names a Python with TensorBoard; `ci/tensorboard` prints it.
const PYTHON: &str = "BF16SCOPE_TEST_TENSORBOARD";

/// A Python with TensorBoard; without one a message is printed.
fn python_with_tensorboard() -> Option<std::ffi::OsString> {
    let python = std::env::var_os(PYTHON).filter(|python| !python.is_empty());
    if python.is_none() {
        let line = "TensorBoard is not asked what it reads: ci/check does, and sets BF16SCOPE_TEST_TENSORBOARD";
        drop(writeln!(std::io::stderr(), "{line}"));
    }
    python
}

#[test]
fn tensorboard_reads_every_value() {
    let place = Place::new();
    place.run(&["train", "mlp.yaml", "--epochs", "1"]);
    place.run(&["train", "mlp.yaml", "--resume"]);
    place.run(&["train", "mlp.yaml", "--precision", "f32"]);
    // A run that resumed at a step before its last, and names and values of all kinds.
    let about = || About { starts: vec![Start::now(0, "cpu", "")], ..About::default() };
    let path = place.path("runs/mixed");
    let mut folder = RunFolder::create(&path, about(), None).unwrap();
    let values = [f64::NAN, f64::INFINITY, -f64::INFINITY, 0.1, 1e300, 5e-324, -0.0, 1.0];
    let record = |folder: &mut RunFolder, steps: std::ops::RangeInclusive<u64>, factor: f64| {
        for step in steps {
            let value = values[step as usize % values.len()];
            folder.scalars(step, &[("Verlust/größter", factor * value), ("a b<c>", step as f64 / 3.0)]).unwrap();
        }
    };
    record(&mut folder, 0..=100, 1.0);
    drop(folder);
    let (mut folder, _) = RunFolder::resume(&path, 60, about(), None).unwrap();
    record(&mut folder, 61..=80, 2.0);
    drop(folder);

    // Steps, and values as f32.
    type Found = BTreeMap<String, BTreeMap<String, Vec<(u64, String)>>>;
    let mut expected = Found::new();
    for name in ["mlp-bf16", "mlp-f32", "mixed"] {
        let run = read(place.path("runs").join(name)).unwrap();
        assert!(run.remarks.is_empty());
        let points = |curve: &bf16scope::run_folder::Curve| -> Vec<(u64, String)> {
            curve.points.iter().map(|point| (point.step, f64::from(point.value as f32).to_string())).collect()
        };
        expected.insert(name.to_string(), run.curves.iter().map(|curve| (curve.name.clone(), points(curve))).collect());
    }
    let n_scalars: usize = expected.values().flat_map(|run| run.values()).map(Vec::len).sum();
    assert_eq!(n_scalars, 2 * (88 * 4 + 2 * 6) + 81 * 2);
    let Some(python) = python_with_tensorboard() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/read_by_tensorboard.py");
    let mut command = Command::new(python);
    command.arg("-I").arg(script).arg(place.path("runs")).arg(n_scalars.to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let by_reader: BTreeMap<String, Found> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(by_reader.keys().collect::<Vec<_>>(), ["accumulator", "server"]);
    // Python prints the same numbers differently.
    let number = |value: &String| value.parse::<f64>().unwrap();
    for (reader, runs) in by_reader {
        assert_eq!(runs.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{reader}");
        for (run, curves) in &expected {
            assert_eq!(runs[run].keys().collect::<Vec<_>>(), curves.keys().collect::<Vec<_>>(), "{reader} {run}");
            for (name, points) in curves {
                let theirs = &runs[run][name];
                assert_eq!(theirs.len(), points.len(), "{reader} {run} {name}");
                for ((step, value), (their_step, their_value)) in points.iter().zip(theirs) {
                    let (value, their_value) = (number(value), number(their_value));
                    let is_same = value.to_bits() == their_value.to_bits() || (value.is_nan() && their_value.is_nan());
                    assert!(
                        step == their_step && is_same,
                        "{reader} {run} {name} {step}: {value}, {their_step}: {their_value}"
                    );
                }
            }
        }
    }
}

/// For a watched run, every row of every look, with a bucket for each bin of exponents, equals `watch.jsonl`.
#[test]
fn tensorboard_reads_the_exponents_of_a_watched_run() {
    let Some(python) = python_with_tensorboard() else { return };
    let place = Place::new();
    place.run(&["train", "mlp.yaml", "--watch=20", "--epochs", "1"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/read_by_tensorboard.py");
    let output = Command::new(python).arg("-I").arg(script).arg(place.path("runs")).arg("histograms").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let histograms: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let histograms = histograms["mlp-bf16"].as_object().unwrap();
    let looks = fs::read_to_string(place.path("runs/mlp-bf16/watch.jsonl")).unwrap();
    let looks: Vec<serde_json::Value> = looks.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((looks.len(), histograms.len()), (3, looks[0]["rows"].as_array().unwrap().len()));
    for (at, look) in looks.iter().enumerate() {
        for row in look["rows"].as_array().unwrap() {
            let role = match row["role"].as_str() {
                Some(role @ ("softmax" | "activated")) => format!(" ({role})"),
                Some("residual") => " (sum)".to_string(),
                _ => String::new(),
            };
            let name = format!("{}/{}{role}", row["quantity"].as_str().unwrap(), row["layer"].as_str().unwrap());
            assert_eq!(histograms[&name][at][0], look["step"], "{name}");
            // TensorBoard omits empty buckets at both ends.
            let buckets = histograms[&name][at][1].as_array().unwrap();
            let n_in = |left: f64| {
                let bucket = buckets.iter().find(|bucket| bucket[0] == left && bucket[1] == left + 4.0);
                bucket.map_or(0.0, |bucket| bucket[2].as_f64().unwrap())
            };
            for (bin, share) in row["bins"].as_array().unwrap().iter().enumerate() {
                let count = share.as_f64().unwrap() * row["n"].as_f64().unwrap();
                assert_eq!(n_in(-44.0 + 4.0 * bin as f64), count.round(), "{name} {bin}: {buckets:?}");
            }
        }
    }
}

/// Six seeds that are all worse by 0.25; then half of the six.
#[test]
fn runs_over_seeds_are_compared_pair_by_pair() {
    let place = Place::new();
    for seed in 0..6 {
        let loss = 1.0 + 0.125 * seed as f64;
        place.seeded(&format!("a{seed}"), seed, loss + 0.25);
        place.seeded(&format!("b{seed}"), seed, loss);
        place.seeded(&format!("c{seed}"), seed, loss + if seed % 2 == 0 { 0.25 } else { -0.25 });
    }
    let runs = |letter: &str, n: u64| (0..n).map(|seed| format!("{letter}{seed}")).collect::<Vec<String>>();
    let compare = |first: &str, n: u64, more: &[&str]| {
        let (first, second) = (runs(first, n), runs("b", n));
        let mut args = vec!["curves"];
        args.extend(first.iter().map(String::as_str));
        args.push("--against");
        args.extend(second.iter().map(String::as_str));
        args.extend(more);
        // At any width of the screen.
        let comparison = place.run(&args).0;
        comparison.split_whitespace().collect::<Vec<&str>>().join(" ")
    };
    let one = ["--scalar", "test/loss"];
    let worse = compare("a", 6, &one);
    let message = "test/loss: the first is higher by 0.2500, which chance does not explain (p = 0.031, 6 seeds)";
    assert!(worse.contains(message) && !worse.contains("learning_rate: "), "{worse}");
    let same = compare("c", 6, &["--difference", "0.1", "--scalar", "test/loss"]);
    // With a known spread it would be 61; six pairs estimate the spread to a third.
    let message = "test/loss: no difference that 6 seeds tell (p = 1.000): it is between -0.2874 and 0.2874 (95 %); about 86 seeds \
                tell a difference of 0.1000 in four of five times, where these 6 are all that says how much seeds spread";
    assert!(same.contains(message), "{same}");
    let few = compare("a", 4, &one);
    let message = "test/loss: 4 seeds cannot tell at 5 %, whatever they give (p is 0.125 at least): the difference is between \
                0.2500 and 0.2500";
    assert!(few.contains(message), "{few}");
    let json: serde_json::Value = serde_json::from_str(&compare("a", 6, &["--json"])).unwrap();
    let loss = &json["compared"][0];
    assert_eq!((loss["scalar"].as_str(), loss["p_value"].as_f64()), (Some("test/loss"), Some(2.0 / 64.0)));
    assert_eq!(loss["difference"]["mean"].as_f64(), Some(0.25));
    let refused = place.refused(&["curves", "a0", "a1", "--against", "b2", "b3"]);
    assert!(refused.contains("both have 0 seeds in common, expected 2 or more: seeds 0, 1 against 2, 3"), "{refused}");
    let refused = place.refused(&["curves", "a0", "c0", "--against", "b0", "b1"]);
    assert!(refused.contains("a0 and c0 have one seed, 0, on one side of --against"), "{refused}");
}
