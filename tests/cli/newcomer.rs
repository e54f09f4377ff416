//! Messages for users with their own data: errors in labels, files and meshes.

use crate::train_cli::Folder;

/// One pixel.
pub const PNG: &[u8] = &[
    137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0, 144, 119, 83,
    222, 0, 0, 0, 12, 73, 68, 65, 84, 120, 156, 99, 56, 193, 37, 7, 0, 2, 142, 0, 241, 169, 90, 242, 142, 0, 0, 0, 0,
    73, 69, 78, 68, 174, 66, 96, 130,
];

fn pictures() -> Folder {
    let folder = Folder::new();
    for class in ["black", "white"] {
        std::fs::create_dir_all(folder.path("set").join(class)).unwrap();
        for name in ["a.png", "b.png"] {
            std::fs::write(folder.path("set").join(class).join(name), PNG).unwrap();
        }
    }
    experiment(&folder, "n_classes: 2", "images: set, n_test: 1");
    folder
}

fn experiment(folder: &Folder, classes: &str, data: &str) {
    let text = format!(
        "model: {{kind: mlp, input: [1, 1, 3], {classes}, hidden: [4]}}\ndata: {{{data}}}\ntrain: {{batch: 2, epochs: 1}}\n"
    );
    std::fs::write(folder.path("e.yaml"), text).unwrap();
}

#[test]
fn predictions_for_a_folder_name_its_files_and_leave_none_out() {
    let folder = pictures();
    folder.stdout(&["train", "e.yaml", "--no-run"]);
    let table = folder.stdout(&["predict", "e.yaml", "--inputs", "set/white"]);
    assert!(table.contains("predictions for 2 examples"), "{table}");
    assert!(table.contains("│ a.png ┆") && table.contains("│ b.png ┆"), "{table}");
    let json = folder.json(&["predict", "e.yaml", "--inputs", "set", "--json"]);
    assert_eq!(json["files"], serde_json::json!(["black/a.png", "black/b.png", "white/a.png", "white/b.png"]));
    let one = folder.stdout(&["predict", "e.yaml", "--inputs", "set/white/a.png"]);
    assert!(one.contains("predictions for 1 example,"), "{one}");
    std::fs::write(folder.path("set/white/b.png"), "no image").unwrap();
    let error = folder.stderr(&["predict", "e.yaml", "--inputs", "set/white"]);
    let expected =
        "expected a JPEG or PNG image\nhelp: take it out: a prediction is for every example, and leaves out none";
    assert!(error.contains(expected) && !error.contains("on_error"), "{error}");
}

#[test]
fn a_label_that_the_model_has_no_room_for_is_said_with_the_line_of_its_classes() {
    let folder = pictures();
    experiment(&folder, "n_classes: 1", "images: set, n_test: 1");
    let error = folder.stderr(&["train", "e.yaml", "--no-run"]);
    assert!(error.contains("\nbf16scope: e.yaml:1:49: "), "{error}");
    assert!(error.contains("is 1; expected a whole number from 0 to 0\n"), "{error}");
    assert!(error.contains("help: write 2 or more here, or leave such examples out: `on_error: {skip: N}`"), "{error}");
    experiment(&folder, "n_classes: 2", "images: set, n_test: 4");
    let error = folder.stderr(&["train", "e.yaml", "--no-run"]);
    assert!(error.starts_with("bf16scope: e.yaml:2:29: cannot keep 4 examples for testing"), "{error}");
}

#[test]
fn a_label_that_is_text_and_an_option_that_is_wrong_are_said_shortly() {
    let folder = pictures();
    let input = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/input");
    let message = |images: &str, labels: &str| {
        let data = format!(
            "tfrecord: {input}/clipart.train, n_test: 1, features: {{images: {{key: image/encoded, resize: bilinear{images}}}, \
             labels: {{key: {labels}}}}}"
        );
        experiment(&folder, "n_classes: 4", &data);
        folder.stderr(&["train", "e.yaml", "--no-run"])
    };
    let error = message("", "image/encoded");
    let expected =
        "feature `image/encoded` is 1 value of bytes; expected a whole number, for bytes are an encoded image";
    assert!(error.contains(expected), "{error}");
    let error = message(", mean: [1, 2]", "image/class/label");
    assert!(error.contains("expected finite numbers, one for each of 3 channels\n"), "{error}");
    assert!(!error.contains("help: `data` is"), "{error}");
}

#[test]
fn a_model_axis_without_a_split_is_told_how_a_file_says_one() {
    let folder = pictures();
    let text = "model: {kind: mlp, input: [4], n_classes: 2, hidden: [4]}\nmesh: {data: 2, model: 2}\n";
    std::fs::write(folder.path("e.yaml"), format!("{text}data: {{csv: e.csv, n_test: 2}}\ntrain: {{batch: 2}}\n"))
        .unwrap();
    std::fs::write(folder.path("e.csv"), "1,2,3,4,0\n".repeat(6)).unwrap();
    let error = folder.stderr(&["train", "e.yaml", "--no-run"]);
    assert!(error.contains("e.yaml:2:24: 2 partitions, and nothing is split over them"), "{error}");
    assert!(error.contains("help: say what is, by the pattern of a name and an axis: `split: {"), "{error}");
    let tuned =
        format!("{text}tune: {{transpose_input: true}}\ndata: {{csv: e.csv, n_test: 2}}\ntrain: {{batch: 2}}\n");
    std::fs::write(folder.path("e.yaml"), tuned).unwrap();
    let error = folder.stderr(&["train", "e.yaml", "--no-run"]);
    assert!(error.contains("e.yaml:3:25: `transpose_input` hands images over in one dimension"), "{error}");
}

/// Padding tokens should not be learnt by a model.
#[test]
fn padding_that_a_model_would_learn_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.txt"), "line after line of a text\n".repeat(40)).unwrap();
    let data = |model: &str, tokens: &str| {
        let text = format!(
            "model:\n{model}\ndata: {{text: t.txt, tokens: {{{tokens}}}, n_test: 4}}\ntrain: {{batch: 2, epochs: 1}}\n"
        );
        std::fs::write(folder.path().join("e.yaml"), text).unwrap();
        let output = crate::binary::bf16scope(&["data", "e.yaml"]).current_dir(folder.path()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let gpt =
        "  {kind: transformer, vocabulary: 256, length: 8, layers: 1, features: 8, heads: 1, hidden: 8, causal: true}";
    assert_eq!(data(gpt, "tokenizer: bytes, window: 8"), "");
    let warning = data(gpt, "tokenizer: bytes, pack: 8, by: line");
    let expected =
        "warning: e.yaml:3:48: the model takes no `weights`, so what fills up rows counts in its loss and accuracy\n";
    assert!(warning.contains(expected), "{warning}");
    let help = "help: `kind: layers` takes `example_weights: weights` in its loss, and `labels: {weights: [N]}`";
    assert!(warning.contains(&format!("{help}; `window` fills up none (docs/EXPERIMENTS.md)\n")), "{warning}");
    let warning = data(gpt, "tokenizer: bytes, window: 8, mask: {}");
    assert!(warning.contains("so what was not chosen counts in its loss and accuracy\n"), "{warning}");
    assert!(warning.contains(&format!("{help} (docs/EXPERIMENTS.md)\n")), "{warning}");
    let layers = |labels: &str| {
        format!(
            "  kind: layers\n  inputs: {{tokens: {{shape: [8], dtype: int32}}}}\n{labels}  layers: [{{embedding: {{input_dim: 256, \
             output_dim: 4}}}}, {{dense: 256}}]\n  loss: {{sparse_softmax_cross_entropy: , example_weights: weights}}"
        )
    };
    let warning = data(&layers(""), "tokenizer: bytes, pack: 8, by: line");
    assert!(warning.contains("expected `labels: {weights: [8]}` beside the `loss` under `model`"), "{warning}");
    assert_eq!(data(&layers("  labels: {weights: [8]}\n"), "tokenizer: bytes, pack: 8, by: line"), "");
}

/// `libtpu` aborts the process on it, with its own message and status.
#[test]
fn a_grid_that_is_none_is_an_error_before_the_plugin_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.yaml"), "model: {kind: mlp, input: [4], n_classes: 2, hidden: [4]}\n")
        .unwrap();
    let mut command = crate::binary::bf16scope(&["compile", "m.yaml", "--target", "tpu-v2", "--batch", "8", "--fresh"]);
    let output = command.current_dir(folder.path()).env("TPU_PROCESS_BOUNDS", "2,2").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    let expected = "plugin tpu: TPU_PROCESS_BOUNDS is \"2,2\", expected three whole numbers from 1 up, with commas, such as 2,2,1\n";
    assert!(error.contains("help: correct it, or unset it: the plugin would end the process over it"), "{error}");
    assert!(error.contains(expected), "{error}");
}

#[test]
fn an_activation_is_a_layer_and_transposing_nothing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let message = |layers: &str, rest: &str| {
        let text = format!(
            "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  layers:\n{layers}  loss: mean_squared_error\n{rest}"
        );
        std::fs::write(folder.path().join("m.yaml"), text).unwrap();
        let args = ["emit", "m.yaml", "--program", "train", "--batch", "4"];
        let output = crate::binary::bf16scope(&args).current_dir(folder.path()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(message("    - {dense: {units: 4}}\n    - relu\n", ""), "");
    let error = message("    - {dense: {units: 4}}\n    - {relu: 1}\n", "");
    assert!(error.ends_with("help: write `activation: relu`\n"), "{error}");
    let warning = message("    - {dense: {units: 4}}\n", "tune: {transpose_input: true}\n");
    assert!(warning.contains("`transpose_input` changes nothing in layers: no feature is an image"), "{warning}");
}

#[test]
fn an_argument_of_another_form_is_told_the_form() {
    let folder = Folder::new();
    for (command, flag, value, expected) in [
        (&["audit", "e.yaml"][..], "--first-beyond", "0.5", "expected a number of 1 or more, such as 10"),
        (
            &["fit", "e.yaml", "--target", "tpu-v2"],
            "--batch-dim",
            "a:b",
            "expected a parameter and an axis, such as 0:0 or images:0, or the name of a symbolic dimension, such as b",
        ),
        (
            &["emit", "e.yaml", "--mesh", "model=2"],
            "--split",
            "kernel",
            "expected the pattern of a name and an axis, such as '*/query/kernel=1'",
        ),
        (
            &["emit", "m.mlir"],
            "--dim",
            "b",
            "expected a name and a size, such as b=32, or a parameter and its dimension, such as 0:1=32",
        ),
        (
            &["emit", "m.mlir"],
            "--dim",
            "b=x",
            "`x` is no size; expected a name and a size, such as b=32, or a parameter and its dimension, such as 0:1=32",
        ),
        (
            &["emit", "m.mlir"],
            "--dim",
            "*=3",
            "`*` names no dimension; expected a name and a size, such as b=32, or a parameter and its dimension, such as \
             0:1=32",
        ),
        (&["emit", "m.mlir"], "--dim", "b=2147483648", "the size is 2147483648, expected 0 to 2147483647"),
        (&["lower", "m.hlo", "-o", "n.hlo"], "--dtype", "fp16", "expected bf16 or f16"),
        (
            &["train", "e.yaml"],
            "--watch",
            "0",
            "expected a number of steps, 1 or more, such as 50; without --watch no step is looked at",
        ),
    ] {
        let argument = format!("{flag}={value}");
        let error = folder.stderr(&[command, &[argument.as_str()]].concat());
        assert!(error.starts_with(&format!("error: invalid value '{value}' for '{flag}")), "{error}");
        assert!(error.contains(&format!("': {expected}\n")), "{error}");
    }
}
