//! Outputs are local files only, and never overwrite another run's checkpoint.

use crate::train_cli::{Folder, text};

use std::fs;

/// A command for each output argument, with its file at the end. Their inputs do not exist: a URL is refused before
/// they are read.
const OUTPUTS: [&[&str]; 24] = [
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
    &["bits", "1", "--trace"],
    &["--trace"],
];

#[test]
fn no_output_goes_to_a_url() {
    let folder = Folder::new();
    let mut wrong = Vec::new();
    for command in OUTPUTS {
        for url in ["gs://bucket/x.safetensors", "s3://bucket/x", "http://host/x.html", "file:///tmp/x", "hdfs://x/y"] {
            let output = folder.run(&[command, &[url][..]].concat());
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
    let checkpoint = folder.path("checkpoints/mlp-bf16.safetensors");
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    let before = fs::read(&checkpoint).unwrap();
    let refused = "bf16scope: checkpoints/mlp-bf16.safetensors: a checkpoint is there, and this run would replace it\n\
                   help: --resume goes on from it, --checkpoint FILE leaves it and writes to another file, --overwrite \
                   replaces it\n";
    // Before the data are read, and before any step: the data file does not exist.
    let yaml = fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    fs::write(folder.path("mlp.yaml"), yaml.replace("digits.csv.gz", "none.csv")).unwrap();
    assert_eq!(folder.stderr(&["train", "mlp.yaml", "--seed", "1"]), refused);
    fs::write(folder.path("mlp.yaml"), yaml).unwrap();
    assert_eq!(folder.stderr(&["train", "mlp.yaml", "--epochs", "0"]), refused);
    let named = ["train", "mlp.yaml", "--checkpoint", "checkpoints/../checkpoints/mlp-bf16.safetensors"];
    assert!(folder.stderr(&named).contains("a checkpoint is there, and this run would replace it"));
    // Resuming from elsewhere would overwrite it as well.
    fs::copy(&checkpoint, folder.path("other.safetensors")).unwrap();
    assert_eq!(folder.stderr(&["train", "mlp.yaml", "--resume=other.safetensors", "--epochs", "2"]), refused);
    assert_eq!(fs::read(&checkpoint).unwrap(), before);
    assert!(!folder.path("runs/mlp-bf16-2").exists());
    // Resuming it under any name is not overwriting another run.
    folder.stdout(&["train", "mlp.yaml", "--resume=./checkpoints/mlp-bf16.safetensors", "--epochs", "2"]);
    folder.stdout(&["train", "mlp.yaml", "--resume", "--epochs", "3"]);
    assert_ne!(fs::read(&checkpoint).unwrap(), before);
    let output = folder.run(&["train", "mlp.yaml", "--epochs", "1", "--overwrite"]);
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("mlp-bf16.safetensors will be replaced after the first epoch, as --overwrite says"),
        "{message}"
    );
    assert_eq!(fs::read(&checkpoint).unwrap(), before);
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
