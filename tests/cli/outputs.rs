//! Outputs are local files only, and never overwrite another run's checkpoint.

use crate::train_cli::{Folder, text};

use bf16scope::train::checkpoint::Place;
use std::fs;

/// A command for each output argument, with its file at the end. Their inputs do not exist: a URL is refused before
/// they are read.
const OUTPUTS: [&[&str]; 26] = [
    &["train", "none.yaml", "--checkpoint"],
    &["train", "none.yaml", "--resume", "--checkpoint"],
    &["train", "none.yaml", "--run"],
    &["predict", "none.yaml", "-o"],
    &["curves", "none", "-o"],
    &["watch", "none", "--html"],
    &["data", "none.yaml", "--html"],
    &["schedule", "none.yaml", "--html"],
    &["package", "none.yaml", "-o"],
    &["weights", "none.npz", "-o"],
    &["explain", "none.pb", "--html"],
    &["fit", "none.yaml", "--html"],
    &["fit", "none.yaml", "--svg"],
    &["plan", "none.yaml", "--html"],
    &["port", "none.meta", "-o"],
    &["port", "none.meta", "--html"],
    &["emit", "none.pb", "-o"],
    &["run", "none.pb", "--outputs"],
    &["lower", "none.pb", "-o"],
    &["lower", "none.pb", "-o", "x.pb", "--report"],
    &["lower", "none.pb", "-o", "x.pb", "--target", "tpu-v2", "--decisions"],
    &["audit", "none.pb", "--html"],
    &["audit", "none.pb", "--budget", "1", "--save-policy"],
    &["init", "images", "-o"],
    &["bits", "1", "--trace"],
    &["--trace"],
];

#[test]
fn no_output_goes_to_a_url() {
    let folder = Folder::new();
    let mut wrong = Vec::new();
    let urls = ["gs://bucket/x.safetensors", "s3://bucket/x", "http://host/x.html", "file:///tmp/x", "hdfs://x/y"];
    for (number, command) in OUTPUTS.into_iter().enumerate() {
        // Every kind of URL for the first, and one for each of the others.
        let asked = if number == 0 { &urls[..] } else { &urls[number % urls.len()..][..1] };
        for url in asked {
            let output = folder.run(&[command, &[*url][..]].concat());
            let message = text(&output.stderr);
            let is_right = output.status.code() == Some(2)
                && message.contains(&format!("`{url}` is a URL, and bf16scope writes only local files"))
                && message.contains("help: ");
            if !is_right {
                wrong.push(format!("{command:?} {url}: {:?} {message}", output.status.code()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let left: Vec<_> = fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mlp.yaml"], "something was written");
    // As JSON too, with `--json`.
    let output = folder.run(&["train", "mlp.yaml", "--json", "--run", "gs://b/x"]);
    let answer: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert!(answer["error"]["message"].as_str().unwrap().contains("is a URL"), "{answer}");
}

#[test]
fn a_cache_and_keys_of_an_experiment_are_local_too() {
    let folder = Folder::new();
    let mut command = crate::binary::bf16scope(&["cache", "show"]);
    let output = command.current_dir(folder.path("")).env("BF16SCOPE_CACHE", "gs://bucket/cache").output().unwrap();
    let message = text(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("BF16SCOPE_CACHE cannot be used"), "{message}");
    let yaml = fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    for key in ["initialize_from", "rules"] {
        let with_url = yaml.replace("train: {", &format!("train: {{{key}: gs://bucket/w.safetensors, "));
        fs::write(folder.path("url.yaml"), with_url).unwrap();
        let message = folder.stderr(&["train", "url.yaml"]);
        assert!(message.starts_with("bf16scope: url.yaml:3:"), "{message}");
        assert!(
            message.contains("`gs://bucket/w.safetensors` is a URL, and bf16scope reads only local files"),
            "{message}"
        );
        assert!(message.contains("gcloud storage cp"), "{message}");
    }
    // A URL as an input is refused, too.
    let message = folder.stderr(&["eval", "mlp.yaml", "--checkpoint", "s3://bucket/x.safetensors"]);
    assert!(message.contains("is a URL, and bf16scope reads only local files"), "{message}");
    assert!(!folder.path("gs:").exists() && !folder.path("s3:").exists());
}

#[test]
fn no_run_replaces_the_checkpoint_of_another() {
    let folder = Folder::new();
    let checkpoint = folder.path("kept.safetensors");
    let named = ["--checkpoint", "kept.safetensors"];
    let train = |args: &[&'static str]| [&["train", "mlp.yaml"], &named[..], args].concat();
    folder.stdout(&train(&["--epochs", "1"]));
    let before = fs::read(&checkpoint).unwrap();
    let refused = "bf16scope: kept.safetensors: a checkpoint is there, and this run would replace it\n\
                   help: --resume goes on from it, --checkpoint FILE leaves it and writes to another file, --overwrite \
                   replaces it\n";
    // Before the data are read, and before any step: the data file does not exist.
    let yaml = fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    fs::write(folder.path("mlp.yaml"), yaml.replace("digits.csv.gz", "none.csv")).unwrap();
    assert_eq!(folder.stderr(&train(&["--seed", "1"])), refused);
    fs::write(folder.path("mlp.yaml"), yaml).unwrap();
    assert_eq!(folder.stderr(&train(&["--epochs", "0"])), refused);
    let other_name = ["train", "mlp.yaml", "--checkpoint", "runs/../kept.safetensors"];
    assert!(folder.stderr(&other_name).contains("a checkpoint is there, and this run would replace it"));
    // Resuming from elsewhere would overwrite it as well.
    fs::copy(&checkpoint, folder.path("other.safetensors")).unwrap();
    assert_eq!(folder.stderr(&train(&["--resume=other.safetensors", "--epochs", "2"])), refused);
    assert_eq!(fs::read(&checkpoint).unwrap(), before);
    assert!(!folder.path("runs/mlp-bf16-2").exists());
    // Resuming it under any name is not overwriting another run.
    folder.stdout(&train(&["--resume=./kept.safetensors", "--epochs", "2"]));
    folder.stdout(&train(&["--resume", "--epochs", "3"]));
    assert_ne!(fs::read(&checkpoint).unwrap(), before);
    let output = folder.run(&train(&["--epochs", "1", "--overwrite"]));
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("kept.safetensors will be replaced after the first epoch, as --overwrite says"),
        "{message}"
    );
    assert_eq!(fs::read(&checkpoint).unwrap(), before);
}

/// A rerun once replaced the one checkpoint of the experiment, or was refused.
#[test]
fn every_run_keeps_its_own_checkpoint() {
    let folder = Folder::new();
    let steps = |args: &[&str]| folder.json(&[args, &["--json"]].concat())["steps"].clone();
    let train = |args: &[&str]| folder.run(&[&["train", "mlp.yaml"], args].concat());
    assert!(train(&["--epochs", "1"]).status.success());
    let first = fs::read(folder.path("runs/mlp-bf16/checkpoint.safetensors")).unwrap();
    // With --overwrite too.
    let again = train(&["--overwrite"]);
    assert_eq!((again.status.code(), text(&again.stderr).as_str()), (Some(0), ""));
    let shown = text(&again.stdout);
    assert!(shown.contains("\ncheckpoint runs/mlp-bf16-2/checkpoint.safetensors\n"), "{shown}");
    assert!(shown.contains("\nnext: `bf16scope eval mlp.yaml"), "{shown}");
    assert!(fs::read(folder.path("runs/mlp-bf16/checkpoint.safetensors")).unwrap() == first, "it was replaced");
    // An experiment is its newest run; each run is itself.
    assert_eq!(steps(&["eval", "mlp.yaml"]), 88);
    assert_eq!(steps(&["eval", "runs/mlp-bf16"]), 44);
    assert_eq!(steps(&["predict", "runs/mlp-bf16-2"]), 88);
    // A namesake in another folder is another experiment.
    fs::create_dir(folder.path("nets")).unwrap();
    fs::copy(folder.path("mlp.yaml"), folder.path("nets/mlp.yaml")).unwrap();
    let none = folder.stderr(&["eval", "nets/mlp.yaml"]);
    assert!(none.starts_with("bf16scope: runs/mlp-bf16-3/checkpoint.safetensors: no such checkpoint\n"), "{none}");
    folder.stdout(&["train", "nets/mlp.yaml", "--epochs", "0"]);
    assert_eq!((steps(&["eval", "nets/mlp.yaml"]), steps(&["eval", "mlp.yaml"])), (0.into(), 88.into()));
    // A run goes on in its folder, by its name too, and from elsewhere in a new one.
    let resumed = train(&["--resume", "--epochs", "3"]);
    let going_on = "bf16scope: going on from runs/mlp-bf16-2/checkpoint.safetensors after step 88\n";
    assert_eq!(text(&resumed.stderr), going_on);
    assert!(train(&["--resume=./runs/mlp-bf16/checkpoint.safetensors", "--epochs", "2"]).status.success());
    assert_eq!((steps(&["eval", "runs/mlp-bf16"]), steps(&["eval", "runs/mlp-bf16-2"])), (88.into(), 132.into()));
    fs::write(folder.path("copy.safetensors"), &first).unwrap();
    let copied = train(&["--resume=copy.safetensors", "--epochs", "2"]);
    let message = text(&copied.stderr);
    assert!(message.ends_with("no folder records the run up to step 44: runs/mlp-bf16-4 begins there\n"), "{message}");
    // A run that ends before it begins leaves no folder.
    let yaml = fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    fs::write(folder.path("mlp.yaml"), yaml.replace("hidden: [32]", "hidden: [64]")).unwrap();
    assert!(!train(&["--resume=copy.safetensors"]).status.success());
    assert!(!folder.path("runs/mlp-bf16-5").exists());
}

#[test]
fn a_run_that_starts_has_a_folder_that_no_other_takes() {
    let folder = Folder::new();
    let starting = Place::claim(folder.path("runs/mlp-bf16/checkpoint.safetensors")).unwrap();
    let shown = folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    assert!(shown.contains("\ncheckpoint runs/mlp-bf16-2/checkpoint.safetensors\n"), "{shown}");
    drop(starting);
}

/// A checkpoint that is no run's own: that of a run that is not recorded, and of versions that kept one for all runs.
#[test]
fn a_checkpoint_outside_of_the_runs_folders_is_the_experiments_until_a_run_saves() {
    let folder = Folder::new();
    let before = "checkpoints/mlp-bf16.safetensors";
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1", "--no-run"]);
    assert!(folder.path(before).exists() && !folder.path("runs").exists());
    let refused = folder.stderr(&["train", "mlp.yaml", "--epochs", "1", "--no-run"]);
    assert!(refused.contains("a checkpoint is there, and this run would replace it"), "{refused}");
    let checkpoint = || folder.json(&["eval", "mlp.yaml", "--json"])["checkpoint"].clone();
    assert_eq!(checkpoint(), before);
    // It goes on there, recorded now.
    let resumed = text(&folder.run(&["train", "mlp.yaml", "--resume"]).stderr);
    assert!(resumed.starts_with(&format!("bf16scope: going on from {before} after step 44\n")), "{resumed}");
    assert!(resumed.ends_with("no folder records the run up to step 44: runs/mlp-bf16 begins there\n"), "{resumed}");
    assert!(!folder.path("runs/mlp-bf16/checkpoint.safetensors").exists());
    assert_eq!(checkpoint(), before);
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    assert_eq!(checkpoint(), "runs/mlp-bf16-2/checkpoint.safetensors");
    // The last that was written counts.
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1", "--no-run", "--overwrite"]);
    assert_eq!(checkpoint(), before);
}

/// Three runs that save to one place: the first two once passed for runs with the third one's weights.
#[test]
fn a_run_is_not_evaluated_with_the_weights_of_another() {
    let folder = Folder::new();
    let named = ["--checkpoint", "shared.safetensors", "--overwrite"];
    for (run, epochs) in [("one", "1"), ("two", "2"), ("three", "2")] {
        let args = ["train", "mlp.yaml", "--run", run, "--epochs", epochs, "--seed", epochs];
        folder.stdout(&[&args[..], &named].concat());
    }
    let record = |run: &str| {
        let text = fs::read_to_string(folder.path(run).join("run.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["saved"].clone()
    };
    let hash = |run: &str| record(run)["sha256"].as_str().unwrap()[..12].to_string();
    let refused = format!(
        "bf16scope: shared.safetensors: the checkpoint of another run is there: one/run.json names the one after step 44 \
         (SHA-256 {}…), and this is after step 88 (SHA-256 {}…)\n\
         help: it has been replaced: name a copy of it with --checkpoint, if there is one; `--checkpoint \
         shared.safetensors` takes this one\n",
        hash("one"),
        hash("three")
    );
    for command in [&["eval", "one"][..], &["predict", "one"], &["package", "one", "-o", "package"]] {
        assert_eq!(folder.stderr(command), refused, "{command:?}");
    }
    assert_eq!(folder.stderr(&["train", "mlp.yaml", "--run", "one", "--resume"]), refused);
    // The second run is the third one, to the bit, and its weights are there.
    assert_eq!(hash("two"), hash("three"));
    assert!(folder.stdout(&["eval", "two"]).contains("after 88 steps"));
    let taken = folder.stdout(&["eval", "one", "--checkpoint", "shared.safetensors"]);
    assert!(taken.contains("after 88 steps"), "{taken}");
    // Earlier versions recorded no hash: seed, batch, precision, settings and step tell.
    for run in ["one", "two"] {
        let path = folder.path(run).join("run.json");
        let mut about: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        about["saved"].as_object_mut().unwrap().remove("sha256");
        fs::write(path, about.to_string()).unwrap();
    }
    assert!(folder.stderr(&["eval", "one"]).contains("the checkpoint of another run is there"));
    assert!(folder.stdout(&["eval", "two"]).contains("after 88 steps"));
    // The run's own copy in its folder comes before another run's in its old place.
    fs::copy(folder.path("shared.safetensors"), folder.path("three/shared.safetensors")).unwrap();
    folder.stdout(&["train", "mlp.yaml", "--run", "four", "--epochs", "1", "--checkpoint", named[1], named[2]]);
    assert!(folder.stdout(&["eval", "three"]).starts_with("three/shared.safetensors in bf16: "));
}

#[test]
fn work_of_seconds_says_what_it_is() {
    let raw = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let folder = Folder::new();
    // Each layer has another width, so that the compiler sees each only once.
    let hidden: Vec<String> = (0..12).map(|layer| (64 + layer).to_string()).collect();
    folder.write(
        "deep.yaml",
        &format!("model: {{kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [{}]}}", hidden.join(", ")),
    );
    let train = ["train", "deep.yaml", "--epochs", "0", "--no-run", "--overwrite"];
    let shown = |args: &[&str]| {
        let (shown, is_ok) = folder.on_a_terminal(args);
        assert!(is_ok, "{shown}");
        shown
    };
    assert!(shown(&train).contains("compiling the training step of deep.yaml"));
    for command in ["eval", "predict"] {
        assert!(shown(&[command, "deep.yaml"]).contains("compiling "), "{command}");
    }
    // Not with --quiet, and not without a terminal.
    assert!(!shown(&[&train[..], &["--quiet"]].concat()).contains("compiling"));
    assert!(!raw(&folder.run(&train).stderr).contains("compiling"));
}

/// Another user may write a run's folder, whose file names the checkpoint that a resumed run overwrites.
#[cfg(unix)]
#[test]
fn a_checkpoint_that_another_user_may_have_named_is_not_followed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1", "--run", "shared"]);
    let again = ["train", "mlp.yaml", "--run", "shared", "--resume", "--epochs", "2"];
    for name in ["shared", "shared/run.json"] {
        let mode = |mode| fs::set_permissions(folder.path(name), fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        let message = folder.stderr(&again);
        assert!(message.starts_with(&format!("bf16scope: {name}: every user may write it (mode 777)")), "{message}");
        assert!(message.contains("help: name the run's checkpoint yourself: --checkpoint FILE"), "{message}");
        mode(0o755);
    }
    fs::set_permissions(folder.path("shared"), fs::Permissions::from_mode(0o777)).unwrap();
    let named = ["--checkpoint", "shared/checkpoint.safetensors"];
    folder.stdout(&[&again[..], &named].concat());
}
