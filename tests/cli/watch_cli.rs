//! `bf16scope watch` and `train: {watch: …}` from a user's view: a run's records, the screen, the page, and errors.

use std::path::Path;

use bf16scope::run_folder::{About, RunFolder};
use expect_test::{expect, expect_file};
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

use crate::support::browser;
use crate::train_cli::{Folder, text};

/// The digits, with additional keys under `train`.
fn digits(folder: &Folder, train: &str) {
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    let yaml = yaml.replace("train: {epochs: 2", &format!("train: {{{train}epochs: 2"));
    std::fs::write(folder.path("mlp.yaml"), yaml).unwrap();
}

/// The steps of a run's looks.
fn steps(folder: &Folder, run: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(folder.path(run).join("watch.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap()).collect()
}

/// 44 steps per epoch.
#[test]
fn the_key_does_what_the_flag_does_and_the_flag_comes_first() {
    let folder = Folder::new();
    digits(&folder, "watch: {every: 4, keep: 3}, ");
    let stdout = folder.stdout(&["train", "mlp.yaml"]);
    assert!(stdout.contains("recorded in runs/mlp-bf16: `bf16scope watch runs/mlp-bf16`, "), "{stdout}");
    // Looks before steps 1, 5, … 85: 22 of them, cut to three after 7, 11, 15 and 19.
    assert_eq!(steps(&folder, "runs/mlp-bf16"), [65, 69, 73, 77, 81, 85]);
    let stdout = folder.stdout(&["train", "mlp.yaml", "--watch=30", "--overwrite"]);
    assert_eq!(steps(&folder, "runs/mlp-bf16-2"), [1, 31, 61]);
    assert!(stdout.contains(" --watch=30 --resume"), "{stdout}");
    let yaml = std::fs::read_to_string(folder.path("runs/mlp-bf16-2/experiment.yaml")).unwrap();
    assert!(yaml.contains("  watch:\n    every: 30\n    keep: 3\n"), "{yaml}");
    // The flag without a number keeps the file's.
    folder.stdout(&["train", "mlp.yaml", "--watch", "--epochs", "1", "--overwrite"]);
    assert_eq!(steps(&folder, "runs/mlp-bf16-3").last(), Some(&41));
    // A resumed run drops none of its looks, and the checkpoint does not depend on them.
    folder.stdout(&["train", "mlp.yaml", "--resume", "--epochs", "2"]);
    let of_both = steps(&folder, "runs/mlp-bf16-3");
    assert_eq!((of_both.first().map(|step| *step > 4), of_both.last()), (Some(true), Some(&85)));
}

#[test]
fn what_cannot_be_watched_is_refused_where_it_is_written() {
    let folder = Folder::new();
    let refused = |train: &str, flags: &[&str]| {
        folder.write("mlp.yaml", "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [32]}");
        digits(&folder, train);
        let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz").display().to_string();
        let error = folder.stderr(&[&["train", "mlp.yaml"], flags].concat());
        error.replace(&csv, "digits.csv.gz")
    };
    expect![[r#"
        bf16scope: mlp.yaml:3:24: found integer `0`, expected a whole number from 1 to 2147483647
          3 | train: {watch: {every: 0}, epochs: 2, learning_rate: {kind: constant, value: 0.05}}
            |                        ^
    "#]]
    .assert_eq(&refused("watch: {every: 0}, ", &[]));
    expect![[r#"
        bf16scope: mlp.yaml:3:16: found string "often", expected a whole number of steps, such as 50, or keys `every` and `keep`
          3 | train: {watch: often, epochs: 2, learning_rate: {kind: constant, value: 0.05}}
            |                ^^^^^
    "#]].assert_eq(&refused("watch: often, ", &[]));
    expect![[r#"
        bf16scope: mlp.yaml:3:27: unknown key `kept`, expected one of every, keep
          3 | train: {watch: {every: 5, kept: 2}, epochs: 2, learning_rate: {kind: constant, value: 0.05}}
            |                           ^^^^
          help: did you mean `keep`?
    "#]]
    .assert_eq(&refused("watch: {every: 5, kept: 2}, ", &[]));
    expect![[r#"
        bf16scope: mlp.yaml:3:32: the run cannot be watched: activations of micro-batches are inside a loop
          3 | train: {watch: 10, accumulate: 4, epochs: 2, learning_rate: {kind: constant, value: 0.05}}
            |                                ^
          help: watch it with `accumulate: 1`
    "#]]
    .assert_eq(&refused("watch: 10, accumulate: 4, ", &[]));
    expect![[r#"
        bf16scope: mlp.yaml:3:25: the run cannot be watched: a call makes 4 steps, whose state between them stays on the device
          3 | train: {steps_per_call: 4, epochs: 2, learning_rate: {kind: constant, value: 0.05}}
            |                         ^
          help: watch it with `steps_per_call: 1`
    "#]].assert_eq(&refused("steps_per_call: 4, ", &["--watch"]));
    let error = refused("", &["--watch=0"]);
    assert!(error.contains("'0' for '--watch[=<N>]': expected a number of steps, 1 or more, such as 50"), "{error}");
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    let mesh = "mesh: {data: 1, model: 2, split: {mlp/dense1/kernel: 1}}\n";
    std::fs::write(folder.path("mlp.yaml"), yaml + mesh).unwrap();
    expect![[r#"
        bf16scope: mlp.yaml:4:24: the run cannot be watched: each replica is split over a model axis
          4 | mesh: {data: 1, model: 2, split: {mlp/dense1/kernel: 1}}
            |                        ^
          help: watch it with `model: 1`, on as many replicas
    "#]]
    .assert_eq(&folder.stderr(&["train", "mlp.yaml", "--watch"]));
}

/// Labels that are out of reach show beside the run's first look, which is not the look before.
#[test]
fn a_run_that_trains_says_what_watch_says_of_it_later() {
    let folder = Folder::new();
    let layers = "[{dense: 8, activation: relu, name: first}, {dense: 1, name: head}]";
    let model = format!("model: {{kind: layers, inputs: {{x: [4]}}, layers: {layers}, loss: mean_absolute_error}}");
    let train = "train: {batch: 16, epochs: 12, watch: 4, optimizer: adam, learning_rate: 0.001}";
    std::fs::write(folder.path("e.yaml"), format!("{model}\ndata: {{csv: e.csv, n_test: 16}}\n{train}\n")).unwrap();
    let row = |at: u32| {
        let value = |column: u32| f64::from((at * 7919 + column * 1237) % 1009) / 504.5 - 1.0;
        format!("{},{},{},{},{}\n", value(0), value(1), value(2), value(3), 400_000 + 10_000 * (at % 7))
    };
    std::fs::write(folder.path("e.csv"), (0..80).map(row).collect::<String>()).unwrap();
    let trained = folder.run(&["train", "e.yaml"]);
    let live = text(&trained.stderr);
    assert!(live.contains("watch: step 33: label_scale: activation of labels: "), "{live}");
    let report: Value = serde_json::from_slice(&folder.run(&["watch", "runs/e-bf16", "--json"]).stdout).unwrap();
    let first = &report["anomalies"][0];
    assert_eq!((&first["rule"], &first["step"]), (&"label_scale".into(), &33.into()), "{report}");
}

/// A run with looks that do not depend on the machine: of a network whose weights stall from step 11 on.
fn record(folder: &Path) {
    let mut run = RunFolder::create(folder, About::default(), None).unwrap();
    let bins = |bin: usize, share: f64| {
        let mut bins = [0.0; 16];
        bins[bin] = share;
        bins
    };
    let row = |layer: &str, quantity: &str, rms: f64, zero: f64, lost: Option<f64>| {
        let mut row = serde_json::json!({
            "layer": layer, "quantity": quantity, "dtype": "bf16", "n": 4096, "max": 4.0 * rms, "rms": rms, "zero": zero,
            "subnormal": 0.0, "saturated": 0.0, "not_finite": 0.0, "bins": bins(9, 1.0 - zero),
        });
        if let Some(lost) = lost {
            row["lost"] = lost.into();
            row["unseen"] = lost.into();
        }
        row
    };
    for look in 0..60u32 {
        let lost = if look < 2 { 0.05 } else { 0.75 };
        let line = serde_json::json!({
            "step": 1 + 5 * look, "learning_rate": 1e-4, "optimizer": "sgd", "variables": "bf16_nearest",
            "rows": [
                row("transformer/encoder/layer_0/attention/query/projection", "activation", 0.75, 0.0, None),
                row("mlp/logits", "activation", 1.5 + f64::from(look), 0.25, None),
                row("mlp/logits", "cotangent", 0.01, 0.0, None),
                row("mlp/logits/kernel", "gradient", 0.02, 0.0, None),
                row("mlp/logits/kernel", "update", 2e-6, 0.0, Some(lost)),
            ],
        });
        run.watched(u64::from(1 + 5 * look), &line.to_string(), &[]).unwrap();
    }
}

#[test]
fn what_is_wrong_comes_first_on_80_columns_in_json_and_in_a_browser() {
    let folder = Folder::new();
    record(&folder.path("a run"));
    let mut command = folder.command_by(&[], &["watch", "a run", "--html", "watch.html"]);
    let output = command.env("COLUMNS", "80").env("LC_ALL", "C.UTF-8").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let screen = text(&output.stdout);
    assert!(screen.lines().all(|line| line.width() <= 80), "{screen}");
    expect_file!["screens/watch.txt"].assert_eq(&screen);
    let json: Value =
        serde_json::from_slice(&folder.run(&["watch", "a run", "--json", "--step", "30"]).stdout).unwrap();
    let first = &json["anomalies"][0];
    assert_eq!(
        (&first["rule"], &first["step"], &first["layer"]),
        (&"stalled".into(), &16.into(), &"mlp/logits/kernel".into())
    );
    assert_eq!((&json["audit"], &json["look"]["step"]), (&"bf16scope audit 'a run' --at 16".into(), &26.into()));

    let path = folder.path("watch.html");
    let page = std::fs::read_to_string(&path).unwrap();
    for part in [
        "aria-label=\"Updates: share that is lost, below half an ulp of what is stored; a row for each layer, a column for each look\"",
        "`bf16scope audit &#39;a run&#39; --at 16`",
        "step 16: mlp/logits/kernel: rms 2.00e-6, largest 8.00e-6, lost 75.0 %",
        "What went wrong first: exponents of the update of mlp/logits/kernel",
    ] {
        assert!(page.contains(part) || page.contains(&part.replace("&#39;", "'")), "{part} is not in\n{page}");
    }
    assert!(!page.contains("http") && !page.contains("src="));
    // Every colour is defined by the page for the light and for the dark scheme.
    let (light, dark) = page.split_once("prefers-color-scheme: dark").unwrap();
    for color in page.split("var(").skip(1).filter_map(|part| part.split(')').next()) {
        assert!(light.contains(&format!("{color}:")) && dark.contains(&format!("{color}:")), "{color}");
    }
    // In a browser a script finds texts of a map that overlap, or are outside of it.
    let script = "<script>const bad = []; for (const svg of document.querySelectorAll('svg')) {\
        const all = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);\
        const edge = svg.getBoundingClientRect();\
        all.forEach(([one, a], at) => { if (a.left < edge.left || a.right > edge.right) bad.push('outside: ' + one);\
          all.slice(at + 1).forEach(([other, b]) => { if (a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom)\
            bad.push(one + ' over ' + other); }); }); }\
        document.body.dataset.seen = bad.length + ': ' + bad.slice(0, 5).join('; ');</script></body>";
    std::fs::write(&path, page.replace("</body>", script)).unwrap();
    if let Some(dom) = browser::dom(&path) {
        let seen = dom.split("data-seen=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(seen, "0: ");
    }
}

/// Also without --watch, the last steps before a non-finite loss are in the run's folder.
#[test]
fn the_last_window_of_a_run_that_diverges_is_recorded() {
    let folder = Folder::new();
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    std::fs::write(folder.path("mlp.yaml"), yaml.replace("value: 0.05", "value: 1.0e30")).unwrap();
    let message = folder.stderr(&["train", "mlp.yaml"]);
    assert!(message.contains(", which began in mlp/"), "{message}");
    assert!(message.contains("what the numbers were before it: `bf16scope watch runs/mlp-bf16`"), "{message}");
    let steps = steps(&folder, "runs/mlp-bf16");
    assert!(steps[0] == 1 && steps.len() >= 2 && steps.len() <= 9, "{steps:?}");
    let shown = folder.run(&["watch", "runs/mlp-bf16", "--json"]);
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let rules: Vec<&str> =
        report["anomalies"].as_array().unwrap().iter().filter_map(|anomaly| anomaly["rule"].as_str()).collect();
    assert!(rules.contains(&"not_finite"), "{report}");
}

#[test]
fn a_run_that_was_not_watched_says_how_to_watch_it() {
    let folder = Folder::new();
    RunFolder::create(folder.path("run"), About::default(), None).unwrap();
    let error = folder.stderr(&["watch", "run"]);
    expect![[r#"
        bf16scope: run: the run was not watched: there is no look in its folder
        help: train with --watch, or with `watch: 50` under `train`
    "#]]
    .assert_eq(&error);
    let error = folder.stderr(&["watch", "none"]);
    expect![[r#"
        bf16scope: none: no such folder
        help: name the folder of a run, such as `train` makes: runs/EXPERIMENT-PRECISION
    "#]]
    .assert_eq(&error);
    record(&folder.path("a run"));
    let output = folder.run(&["watch", "a run", "--step", "1", "--all"]);
    assert!(text(&output.stdout).contains("the look before step 1:"));
}

/// A rate that rises threefold at eight steps between two looks: its effect is seen late, and narrowed to the step and
/// the setting.
#[test]
fn a_run_is_narrowed_to_a_step_and_to_the_setting_that_changed() {
    let folder = Folder::new();
    let yaml = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    let changes: Vec<String> =
        (0..8).map(|at| format!("{{step: {}, value: {}}}", 33 + at, 0.1 * 3f64.powi(at))).collect();
    let rate = format!("{{kind: piecewise, value: 0.05, changes: [{}]}}", changes.join(", "));
    let yaml = yaml.replace("{kind: constant, value: 0.05}", &rate);
    assert!(yaml.contains("piecewise"), "{yaml}");
    std::fs::write(folder.path("mlp.yaml"), yaml).unwrap();
    folder.run(&["train", "mlp.yaml", "--watch=25", "--epochs", "2"]);
    let report = folder.run(&["watch", "runs/mlp-bf16", "--narrow", "--json"]);
    assert_eq!(report.status.code(), Some(1), "{}", text(&report.stderr));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let (coarse, narrowed) = (&report["anomalies"][0], &report["narrowed"]);
    let step = narrowed["anomalies"][0]["step"].as_u64().unwrap();
    assert!(coarse["step"] == 51 && (35..=43).contains(&step), "{report}");
    let setting = &narrowed["settings"][0];
    assert!(setting["setting"] == "learning_rate" && setting["step"].as_u64().unwrap() <= step, "{narrowed}");
    assert!(setting["phases"][1].as_str().unwrap().starts_with("changes["), "{narrowed}");
    assert_eq!(report["look"]["step"], step);
    assert!(report["audit"].as_str().unwrap().ends_with(&format!(" --at {step}")), "{}", report["audit"]);
    let screen = text(&folder.run(&["watch", "runs/mlp-bf16", "--narrow"]).stdout).to_string();
    assert!(
        screen.contains(&format!("narrowed: step {step}: ")) && screen.contains("  setting: `learning_rate` is "),
        "{screen}"
    );
    let healthy = folder.stderr(&["watch", "runs/mlp-bf16", "--checkpoint", "a.safetensors"]);
    assert!(healthy.contains("--narrow"), "{healthy}");
}
