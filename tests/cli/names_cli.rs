//! Names and raw inputs from a user's view: the output of `init`, tables with a header, texts, folders of images, names
//! of classes.

use crate::newcomer::PNG;
use crate::train_cli::{Folder, text};
use bf16scope::data::npz::{Header, NpzReader, NpzWriter};
use bf16scope::hlo::DType;
use std::path::Path;

/// Every kind is written once, begins with a comment, and its model is valid; a shipped model is listed, too.
#[test]
fn init_writes_experiments_that_are_read() {
    let folder = Folder::new();
    let listed = folder.json(&["models", "--json"]);
    let names = |list: &str| -> Vec<String> {
        listed[list].as_array().unwrap().iter().map(|kind| kind["name"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(names("templates"), ["images", "table", "text", "language_model", "numbers"]);
    let on_disk = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models"));
    assert_eq!(
        names("models").len(),
        on_disk.map_or(0, |files| files
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|ending| ending == "yaml"))
            .count())
    );
    for kind in names("templates") {
        let message = folder.stdout(&["init", &kind]);
        assert_eq!(message, format!("{kind}.yaml: name your data in it, then `bf16scope train {kind}.yaml`\n"));
        let summary = folder.json(&["summary", &format!("{kind}.yaml"), "--json"]);
        assert!(summary["n_parameters"].as_u64().unwrap() > 100, "{summary}");
    }
    let again = folder.stderr(&["init", "table"]);
    assert_eq!(again, "bf16scope: table.yaml: is there already\nhelp: name another file with -o\n");
    let unknown = folder.stderr(&["init", "image"]);
    assert!(unknown.starts_with("bf16scope: no kind `image`, expected one of images, table, "), "{unknown}");
    assert!(unknown.ends_with("help: did you mean `images`?\n"), "{unknown}");
    let table = folder.stdout(&["models"]);
    assert!(table.contains("Images in a folder for each class"), "{table}");
}

/// 4 layers with parameters; a summary of 40 columns fits them.
#[test]
fn a_summary_counts_what_training_counts_and_fits() {
    let folder = Folder::new();
    let text = folder.stdout(&["summary", "mlp.yaml"]);
    assert!(text.starts_with("mlp.yaml: mlp of images [8, 8, 1]\n"), "{text}");
    let ending = "2,410 parameters: 9,640 bytes in f32, 4,820 in bf16\ntraining keeps 19,280 bytes between steps, with momentum\n";
    assert!(text.ends_with(ending), "{text}");
    assert!(text.contains("[32]") && text.contains("2,080") && text.contains("[10]") && text.contains("330"), "{text}");
    let json = folder.json(&["summary", "mlp.yaml", "--json"]);
    assert_eq!(
        (&json["n_parameters"], &json["n_state_bytes"], &json["n_bytes_bf16"]),
        (&2410.into(), &19280.into(), &4820.into())
    );
}

/// Neither what a loop carries beside its state, nor a product inside of attention.
#[test]
fn a_summary_shows_what_a_layer_gives_to_the_next() {
    let folder = Folder::new();
    let layers = "{lstm: 5, name: l}, {gru: 5, inputs: x, name: g}, {lstm: 5, inputs: x, bidirectional: true, name: b}, \
                  {gru: 6, inputs: x, return_sequences: true, name: s}, {attention: 2, inputs: x, name: a}, \
                  {flatten: , name: f}, {flatten: , inputs: s, name: t}, {concat: [l, g, b, t, f]}, {dense: 2}";
    let model = format!("{{kind: layers, inputs: {{x: [9, 4]}}, layers: [{layers}], loss: mean_squared_error}}");
    std::fs::write(
        folder.path("steps.yaml"),
        format!(
            "model: {model}
"
        ),
    )
    .unwrap();
    let summary = folder.json(&["summary", "steps.yaml", "--json"]);
    let output = |name: &str| {
        let layer = summary["layers"].as_array().unwrap().iter().find(|layer| layer["name"] == name);
        layer.unwrap_or_else(|| panic!("{name}: {summary}"))["output"].clone()
    };
    for (name, dims) in [
        ("l", "[5]"),
        ("g", "[5]"),
        ("b/forward", "[5]"),
        ("b/backward", "[5]"),
        ("b", "[10]"),
        ("s", "[9,6]"),
        ("a/query", "[9,2,2]"),
        ("a", "[9,4]"),
        ("f", "[36]"),
        ("dense", "[2]"),
    ] {
        assert_eq!(output(name).to_string(), dims, "{name}");
    }
}

/// A second use used to have no row, and to give its dims to the first.
#[test]
fn a_summary_has_a_row_for_each_use_of_a_shared_layer() {
    let folder = Folder::new();
    let rows = |inputs: &str, blocks: &str, layers: &str| -> Vec<String> {
        let model = format!(
            "{{kind: layers, inputs: {inputs}, blocks: {blocks}, layers: [{layers}], loss: sparse_softmax_cross_entropy}}"
        );
        std::fs::write(folder.path("shared.yaml"), format!("model: {model}\n")).unwrap();
        let summary = folder.json(&["summary", "shared.yaml", "--json"]);
        let row = |layer: &serde_json::Value| {
            format!("{} {} {}", layer["name"].as_str().unwrap(), layer["output"], layer["n_parameters"])
        };
        summary["layers"].as_array().unwrap().iter().map(row).collect()
    };
    let of_words = rows(
        "{words: {shape: [12], dtype: int32}, other: {shape: [16], dtype: int32}}",
        "{}",
        "{embedding: 100, output_dim: 8, inputs: other, name: e}, {reduce: max, axis: 1, name: m}, \
         {share: e, inputs: words, name: o}, {reduce: max, axis: 1, name: n}, {concat: [m, n], name: c}, {dense: 3, name: d}",
    );
    assert_eq!(of_words, ["e [16,8] 800", "m [8] 0", "o [12,8] 0", "n [8] 0", "c [16] 0", "d [3] 51"]);
    let of_block = rows(
        "{a: [12], b: [12]}",
        "{tower: [{dense: 8, name: one}, {dense: 4, name: two}]}",
        "{tower: , name: ta, inputs: a}, {share: ta, inputs: b, name: tb}, {concat: [ta, tb], name: c}, {dense: 3, name: d}",
    );
    let of_variable = rows("{x: [12]}", "{}", "{variable: [12], name: v}, {add: [x, v], name: a}, {dense: 3, name: d}");
    assert_eq!(of_variable, ["v [12] 12", "a [12] 0", "d [3] 39"]);
    assert_eq!(of_block, ["ta/one [8] 104", "ta/two [4] 36", "tb/one [8] 0", "tb/two [4] 0", "c [8] 0", "d [3] 27"]);
}

/// Rows whose class follows from them: the old people of Bern and the young ones of Rome said yes.
fn people(rows: std::ops::Range<u32>, is_labelled: bool) -> String {
    let header = if is_labelled { "age,fare,town,survived\n" } else { "town,age,fare\n" };
    let row = |row: u32| {
        let (age, town) = (20 + row * 7 % 40, if row.is_multiple_of(3) { "Bern" } else { "Rome" });
        let (fare, said) = (row % 5, if (age >= 40) == (town == "Bern") { "yes" } else { "no" });
        let age = if row == 11 { String::new() } else { age.to_string() };
        match is_labelled {
            true => format!("{age},{fare},\"{town}\",{said}\n"),
            false => format!("{town},{age},{fare}\n"),
        }
    };
    header.to_string() + &rows.map(row).collect::<String>()
}

#[test]
fn a_table_with_a_header_is_trained_on_and_predicted_from_by_name() {
    let folder = Folder::new();
    std::fs::write(folder.path("table.csv"), people(0..400, true)).unwrap();
    std::fs::write(folder.path("new.csv"), people(400..440, false)).unwrap();
    folder.stdout(&["init", "table"]);
    let out = folder.stdout(&["train", "table.yaml", "--epochs", "40", "--precision", "f32"]);
    assert!(out.contains("280 training and 40 validation and 80 test examples"), "{out}");
    assert!(out.contains(" (val "), "{out}");
    let eval = folder.stdout(&["eval", "table.yaml", "--precision", "f32", "--confusion"]);
    let accuracy: f64 = eval.split("accuracy ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(accuracy > 90.0 && eval.contains("yes") && eval.contains("no"), "{eval}");
    assert!(!eval.contains("are not those of its training"), "{eval}");
    // New rows are encoded like the training rows, from the checkpoint alone, whatever the order of their columns.
    std::fs::remove_file(folder.path("table.csv")).unwrap();
    let args = ["predict", "table.yaml", "--precision", "f32", "--inputs", "new.csv"];
    let predicted = folder.json(&[&args[..], &["--json"]].concat());
    let truth: Vec<String> =
        people(400..440, true).lines().skip(1).map(|line| line.rsplit(',').next().unwrap().to_string()).collect();
    let names: Vec<&str> =
        predicted["class_names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let n_right = names.iter().zip(&truth).filter(|(name, truth)| *name == truth).count();
    assert!(n_right > 35, "{n_right} of {names:?}");
    let shown = folder.stdout(&args);
    assert!(shown.contains("yes") && shown.contains("no"), "{shown}");
    let packaged = folder.stdout(&["package", "table.yaml", "--precision", "f32", "-o", "package"]);
    assert!(packaged.starts_with("package: table.yaml after "), "{packaged}");
    let manifest = std::fs::read_to_string(folder.path("package/package.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["classes"]["labels"], serde_json::json!(["no", "yes"]));
    // A package accepts the same rows, in any number, and names classes like `predict`.
    let run = folder.json(&["run", "package", "--inputs", "new.csv", "--json"]);
    assert_eq!(run["class_names"], predicted["class_names"]);
    assert_eq!(run["outputs"][0]["dims"], serde_json::json!([40, 2]));
    std::fs::write(folder.path("new.csv"), "town,age,fare\nOslo,3,4\n").unwrap();
    let error = folder.stderr(&args);
    assert!(
        error.starts_with("bf16scope: new.csv:2: column `town` is `Oslo`; expected one of `Rome`, `Bern`\n"),
        "{error}"
    );
}

#[test]
fn texts_are_classified_by_words_that_training_learnt() {
    let folder = Folder::new();
    let row = |row: u32| match row % 2 {
        0 => format!("\"A fine film, number {row}!\",good\n"),
        _ => format!("\"a dull, dull film {row}\",bad\n"),
    };
    std::fs::write(folder.path("text.csv"), "review,rating\n".to_string() + &(0..200).map(row).collect::<String>())
        .unwrap();
    std::fs::write(folder.path("new.csv"), "review\n\"A fine film, number 7!\"\n\"a DULL, dull film 9\"\n").unwrap();
    folder.stdout(&["init", "text"]);
    let yaml = std::fs::read_to_string(folder.path("text.yaml")).unwrap();
    std::fs::write(folder.path("text.yaml"), yaml.replace("learning_rate: 0.001", "learning_rate: 0.01")).unwrap();
    folder.stdout(&["train", "text.yaml", "--epochs", "5"]);
    let predicted = folder.json(&["predict", "text.yaml", "--inputs", "new.csv", "--json", "--best"]);
    assert_eq!(predicted["class_names"], serde_json::json!(["good", "bad"]));
    // A package has the words, too.
    folder.stdout(&["package", "text.yaml", "--best", "-o", "package"]);
    let run = folder.json(&["run", "package", "--inputs", "new.csv", "--json"]);
    assert_eq!(run["class_names"], predicted["class_names"]);
    assert_eq!(run["outputs"][0]["dims"], serde_json::json!([2, 2]));
}

#[test]
fn folders_name_classes_and_files_of_names_do() {
    let folder = Folder::new();
    for (class, name) in ["cat", "dog"].iter().flat_map(|class| (0..5).map(move |name| (class, name))) {
        std::fs::create_dir_all(folder.path("pets").join(class)).unwrap();
        std::fs::write(folder.path("pets").join(class).join(format!("{name}.png")), PNG).unwrap();
    }
    let yaml = "model: {kind: cnn, filters: [4], input: [8, 8, 3], n_classes: 2}\n\
                data:\n  images: pets\n  n_test: 0.2\n  stratify: true\n  \
                augment: {rotation: 10, flip: true, brightness: 0.1, erasing: 0.2}\n  \
                features: {images: {resize: bilinear, mean: [120, 110, 100], std: [60, 50, 40]}}\ntrain: {batch: 2, epochs: 1, \
                learning_rate: 0.001}\n";
    std::fs::write(folder.path("pets.yaml"), yaml).unwrap();
    folder.stdout(&["train", "pets.yaml"]);
    let eval = folder.json(&["eval", "pets.yaml", "--json"]);
    assert_eq!(eval["n_examples"], 2);
    assert_eq!(eval["class_names"]["labels"], serde_json::json!(["cat", "dog"]));
    // A package accepts an image file.
    folder.stdout(&["package", "pets.yaml", "-o", "package"]);
    let run = folder.json(&["run", "package", "--inputs", "pets/cat/0.png", "--json"]);
    assert_eq!(run["outputs"][0]["dims"], serde_json::json!([1, 2]));
    let predicted = folder.json(&["predict", "pets.yaml", "--inputs", "pets/cat/0.png", "--json"]);
    assert_eq!(run["class_names"], predicted["class_names"]);
    // The one pixel as bytes, many times, is normalised, too; of another size they are never told to be converted.
    let bytes = |name: &str, side: i64| {
        let pixels: Vec<u8> = [200, 10, 30].repeat((side * side) as usize);
        let mut npz = NpzWriter::create(folder.path(name)).unwrap();
        npz.add("images", &Header::for_dtype(DType::U8, vec![1, side, side, 3]), &pixels).unwrap();
        npz.finish().unwrap();
    };
    let logits = |inputs: &str| {
        folder.stdout(&["run", "package", "--inputs", inputs, "--outputs", "out.npz"]);
        NpzReader::open(folder.path("out.npz")).unwrap().entry("logits").unwrap().unwrap().read().unwrap()
    };
    bytes("bytes.npz", 8);
    assert_eq!(logits("bytes.npz"), logits("pets/cat/0.png"));
    bytes("large.npz", 20);
    let error = folder.stderr(&["run", "package", "--inputs", "large.npz"]);
    assert!(
        error.contains("array `images` has dims [20, 20, 3] in each example; expected [8, 8, 3]")
            && !error.contains("astype"),
        "{error}"
    );
    // The digits, with a file of names.
    std::fs::write(folder.path("names.txt"), "zero\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n").unwrap();
    let mlp = std::fs::read_to_string(folder.path("mlp.yaml")).unwrap();
    std::fs::write(folder.path("mlp.yaml"), mlp.replace("scale: 0.0625", "classes: names.txt, scale: 0.0625")).unwrap();
    folder.stdout(&["train", "mlp.yaml"]);
    let shown = folder.stdout(&["predict", "mlp.yaml", "--top", "2"]);
    assert!(["zero", "seven", "nine: "].iter().all(|name| shown.contains(name)), "{shown}");
    std::fs::write(folder.path("mlp.yaml"), mlp.replace("scale: 0.0625", "classes: [a, b], scale: 0.0625")).unwrap();
    let error = text(&folder.run(&["train", "mlp.yaml", "--overwrite"]).stderr);
    assert!(
        error.contains("`data` has 2 names of the classes of `labels`, expected 10, one for each class of the model"),
        "{error}"
    );
}

/// One of two outputs has classes for labels, the other distributions over classes.
#[test]
fn each_output_has_the_names_of_its_label() {
    let folder = Folder::new();
    let mut npz = NpzWriter::create(folder.path("pair.npz")).unwrap();
    let floats = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let x = (0..40 * 2).map(|i| if i % 2 == i / 2 % 2 { 1.0 } else { -1.0 }).collect();
    npz.add("x", &Header::for_dtype(DType::F32, vec![40, 2]), &floats(x)).unwrap();
    let kinds: Vec<u8> = (0..40i32).flat_map(|i| (i % 2).to_le_bytes()).collect();
    npz.add("kind", &Header::for_dtype(DType::S32, vec![40]), &kinds).unwrap();
    let sizes = (0..40).flat_map(|i| if i % 2 == 0 { [0.9f32, 0.1, 0.0] } else { [0.0, 0.25, 0.75] }).collect();
    npz.add("size", &Header::for_dtype(DType::F32, vec![40, 3]), &floats(sizes)).unwrap();
    npz.finish().unwrap();
    let yaml = "model:\n  kind: layers\n  inputs: {x: [2]}\n  layers:\n    - {dense: 2, name: a, inputs: x}\n    \
                - {dense: 3, name: b, inputs: x}\n  outputs: {animal: a, length: b}\n  loss:\n    \
                - {sparse_softmax_cross_entropy: , output: animal, labels: kind}\n    \
                - {softmax_cross_entropy: , output: length, labels: size}\n\
                data: {npz: pair.npz, n_test: 8, classes: {kind: [cat, dog], size: [small, medium, large]}}\n\
                train: {batch: 8, epochs: 40, learning_rate: 0.1}\n";
    std::fs::write(folder.path("pair.yaml"), yaml).unwrap();
    folder.stdout(&["train", "pair.yaml"]);
    let predicted = folder.json(&["predict", "pair.yaml", "--json"]);
    let [animals, lengths] = ["animal", "length"].map(|output| &predicted["class_names"][output]);
    assert_eq!(*animals, serde_json::json!(["cat", "dog", "cat", "dog", "cat", "dog", "cat", "dog"]));
    assert_eq!((&lengths[0], &lengths[1]), (&"small".into(), &"large".into()));
    let shown = folder.stdout(&["predict", "pair.yaml", "--wide"]);
    assert!(["animal_classes", "length_classes", "dog", "large"].iter().all(|name| shown.contains(name)), "{shown}");
    // The most probable class of a distribution is the true one.
    let eval = folder.json(&["eval", "pair.yaml", "--json", "--confusion"]);
    let confusion = eval["confusion"].to_string();
    assert!(confusion.contains("[[4,0,0],[0,0,0],[0,0,4]]") && confusion.contains("[[4,0],[0,4]]"), "{eval}");
    folder.stdout(&["package", "pair.yaml", "-o", "package"]);
    let run = folder.json(&["run", "package", "--inputs", "pair.npz", "--json"]);
    assert_eq!((&run["class_names"]["animal"][1], &run["class_names"]["length"][1]), (&"dog".into(), &"large".into()));
}

/// Labels of pixels and of one number used to be refused, and left out without a word beside a class of each example.
#[test]
fn classes_of_pixels_masks_and_answers_are_counted() {
    let folder = Folder::new();
    let (n, n_pixels, n_test) = (40, 16, 12);
    // A pixel is -1, 0 or 1; one of 1 is a spot.
    let pixels: Vec<i32> = (0..n * n_pixels).map(|at| (at * 7 + at / n_pixels) as i32 % 3 - 1).collect();
    let is_spot: Vec<bool> = pixels.iter().map(|&pixel| pixel == 1).collect();
    let is_first: Vec<bool> = is_spot.iter().step_by(n_pixels).copied().collect();
    let floats = |truths: &[bool]| -> Vec<u8> {
        truths.iter().flat_map(|&is_true| f32::from(u8::from(is_true)).to_le_bytes()).collect()
    };
    let mut npz = NpzWriter::create(folder.path("spots.npz")).unwrap();
    let x: Vec<u8> = pixels.iter().flat_map(|&pixel| (pixel as f32).to_le_bytes()).collect();
    let kinds: Vec<u8> = pixels.iter().flat_map(|&pixel| (pixel + 1).to_le_bytes()).collect();
    for (name, dtype, dims, bytes) in [
        ("x", DType::F32, vec![40, 4, 4, 1], x),
        ("kind", DType::S32, vec![40, 4, 4], kinds),
        ("spot", DType::F32, vec![40, 4, 4, 1], floats(&is_spot)),
        ("first", DType::F32, vec![40, 1], floats(&is_first)),
    ] {
        npz.add(name, &Header::for_dtype(dtype, dims), &bytes).unwrap();
    }
    npz.finish().unwrap();
    let yaml = "model:\n  kind: layers\n  inputs: {x: [4, 4, 1]}\n  layers:\n    \
                - {conv: 3, kernel_size: 1, name: a, inputs: x}\n    - {conv: 1, kernel_size: 1, name: b, inputs: x}\n    \
                - {flatten: , name: flat, inputs: x}\n    - {dense: 1, name: c, inputs: flat}\n  \
                outputs: {kinds: a, spots: b, answer: c}\n  loss:\n    \
                - {sparse_softmax_cross_entropy: , output: kinds, labels: kind}\n    \
                - {sigmoid_cross_entropy: , output: spots, labels: spot}\n    \
                - {sigmoid_cross_entropy: , output: answer, labels: first}\n\
                data: {npz: spots.npz, n_test: 12, classes: {first: [dark, bright]}}\n\
                train: {batch: 8, epochs: 3, learning_rate: 0.1}\n";
    std::fs::write(folder.path("spots.yaml"), yaml).unwrap();
    folder.stdout(&["train", "spots.yaml"]);
    folder.stdout(&["predict", "spots.yaml", "-o", "p.npz"]);
    let mut npz = NpzReader::open(folder.path("p.npz")).unwrap();
    let mut logits = |name: &str| -> Vec<f32> {
        let bytes = npz.entry(name).unwrap().unwrap().read().unwrap();
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let counted = |truths: &[usize], predicted: &[usize], n_classes: usize| {
        assert_eq!(truths.len(), predicted.len());
        let mut counts = vec![vec![0; n_classes]; n_classes];
        truths.iter().zip(predicted).for_each(|(&truth, &class)| counts[truth][class] += 1);
        serde_json::json!(counts)
    };
    let greatest = |row: &[f32]| (0..3).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let of_test: Vec<usize> = pixels[(n - n_test) * n_pixels..].iter().map(|&pixel| (pixel + 1) as usize).collect();
    let kinds = counted(&of_test, &logits("kinds").chunks(3).map(greatest).collect::<Vec<_>>(), 3);
    let mut answers = |name: &str, truths: &[bool]| {
        let predicted: Vec<usize> = logits(name).iter().map(|&logit| usize::from(logit > 0.0)).collect();
        counted(&truths.iter().copied().map(usize::from).collect::<Vec<_>>(), &predicted, 2)
    };
    let spots = answers("spots", &is_spot[(n - n_test) * n_pixels..]);
    let firsts = answers("answer", &is_first[n - n_test..]);
    let eval = folder.json(&["eval", "spots.yaml", "--json", "--confusion"]);
    assert_eq!(eval["confusion"], serde_json::json!({"kind": kinds, "spot": spots, "first": firsts}));
    let shown = folder.stdout(&["eval", "spots.yaml", "--confusion"]);
    assert!(["kind:", "spot:", "first:", "dark", "bright"].iter().all(|name| shown.contains(name)), "{shown}");
}
