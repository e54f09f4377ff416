//! `bf16scope predict` from a user's view: its predictions match the counts of `eval`, in every output format.

use crate::newcomer::PNG;
use crate::train_cli::{Folder, text};

use bf16scope::data::npz::{Header, NpzReader, NpzWriter};
use bf16scope::hlo::DType;
use serde_json::Value;
use std::io::Read as _;

/// The lines of the test data: features, followed by the label.
pub fn test_rows() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits.csv.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    let rows: Vec<String> = text.lines().map(str::to_string).collect();
    rows[rows.len() - 360..].to_vec()
}

fn trained() -> Folder {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml"]);
    folder
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        other => vec![other.as_f64().unwrap()],
    }
}

#[test]
fn predictions_are_what_eval_counts_and_the_same_in_every_file() {
    let folder = trained();
    // 360 examples are 11 batches and a quarter.
    let object = folder.json(&["predict", "mlp.yaml", "--json", "--top", "3"]);
    let predictions = &object["predictions"];
    let classes = numbers(&predictions["classes"]);
    let labels: Vec<f64> =
        test_rows().iter().map(|row| row.rsplit(',').next().unwrap().trim().parse().unwrap()).collect();
    assert_eq!((object["n_examples"].as_u64(), classes.len()), (Some(360), 360));
    let n_correct = classes.iter().zip(&labels).filter(|(class, label)| class == label).count();
    let eval = folder.json(&["eval", "mlp.yaml", "--json"]);
    assert_eq!((eval["accuracy"].as_f64().unwrap() * 360.0).round(), n_correct as f64);

    // The confusion matrix: computed here from the predictions, and by `eval`.
    let mut counts = vec![vec![0.0; 10]; 10];
    classes.iter().zip(&labels).for_each(|(class, label)| counts[*label as usize][*class as usize] += 1.0);
    let confusion = folder.json(&["eval", "mlp.yaml", "--json", "--confusion"])["confusion"].clone();
    let rows: Vec<Vec<f64>> = confusion.as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(rows, counts);
    let shown = folder.stdout(&["eval", "mlp.yaml", "--confusion"]);
    assert!(shown.contains("true \\ predicted") && shown.lines().count() > 10, "{shown}");

    for row in 0..360 {
        let probabilities = numbers(&predictions["probabilities"][row]);
        // Ten roundings of 2^-53 in the quotients, and ten in each sum.
        assert!((probabilities.iter().sum::<f64>() - 1.0).abs() <= 30.0 * 2f64.powi(-53), "{probabilities:?}");
        let top = numbers(&predictions["top_probabilities"][row]);
        assert_eq!(top[0], probabilities.iter().copied().fold(0.0, f64::max));
        assert!(top[0] >= top[1] && top[1] >= top[2]);
        assert_eq!(numbers(&predictions["top_classes"][row])[0], classes[row]);
    }

    for file in ["p.npz", "p.csv", "p.json"] {
        let summary = folder.stdout(&["predict", "mlp.yaml", "--top", "3", "-o", file]);
        assert!(summary.contains(&format!("{file}: logits f32[360,10], classes s32[360], ")), "{summary}");
    }
    let file: Value = serde_json::from_slice(&std::fs::read(folder.path("p.json")).unwrap()).unwrap();
    assert_eq!(&file["predictions"], predictions);
    let csv = std::fs::read_to_string(folder.path("p.csv")).unwrap();
    let mut lines = csv.lines();
    let titles: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((titles[0], titles[9], titles[10], titles[11]), ("logits.0", "logits.9", "classes", "probabilities.0"));
    let rows: Vec<Vec<f64>> = lines.map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
    let mut npz = NpzReader::open(folder.path("p.npz")).unwrap();
    let mut begin = 0;
    for (name, width) in
        [("logits", 10), ("classes", 1), ("probabilities", 10), ("top_classes", 3), ("top_probabilities", 3)]
    {
        let json = numbers(&predictions[name]);
        let of_csv: Vec<f64> = rows.iter().flat_map(|row| row[begin..begin + width].to_vec()).collect();
        assert_eq!(of_csv, json, "{name}");
        begin += width;
        let bytes = npz.entry(name).unwrap().unwrap().read().unwrap();
        let of_json: Vec<u8> = match name {
            "logits" => json.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect(),
            "classes" | "top_classes" => json.iter().flat_map(|&value| (value as i32).to_le_bytes()).collect(),
            _ => json.iter().flat_map(|&value| value.to_le_bytes()).collect(),
        };
        assert!(bytes == of_json, "{name} differs");
    }
    assert_eq!((begin, rows.len()), (titles.len(), 360));
}

/// `--json` has a key `precision` of its own, which the metric of that name leaves alone.
#[test]
fn a_metric_called_precision_stands_among_the_metrics() {
    let folder = Folder::new();
    let floats = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let mut npz = NpzWriter::create(folder.path("halves.npz")).unwrap();
    let x = (0..40 * 2).map(|i| if i % 2 == i / 2 % 2 { 1.0 } else { -1.0 }).collect();
    npz.add("x", &Header::for_dtype(DType::F32, vec![40, 2]), &floats(x)).unwrap();
    let labels = (0..40u8).map(|i| f32::from(i % 2)).collect();
    npz.add("labels", &Header::for_dtype(DType::F32, vec![40, 1]), &floats(labels)).unwrap();
    npz.finish().unwrap();
    let yaml = "model:\n  kind: layers\n  inputs: {x: [2]}\n  layers: [{dense: 1, name: a}]\n  loss: sigmoid_cross_entropy\n  \
                metrics: [precision, recall]\ndata: {npz: halves.npz, n_test: 8}\ntrain: {batch: 8, epochs: 40, \
                learning_rate: 0.1}\n";
    std::fs::write(folder.path("halves.yaml"), yaml).unwrap();
    folder.stdout(&["train", "halves.yaml"]);
    let eval = folder.json(&["eval", "halves.yaml", "--json"]);
    assert_eq!((&eval["precision"], &eval["recall"]), (&"bf16".into(), &1.0.into()));
    assert_eq!((&eval["metrics"]["precision"], &eval["metrics"]["recall"]), (&1.0.into(), &1.0.into()));
}

#[test]
fn other_examples_have_no_labels() {
    let folder = trained();
    let whole = folder.json(&["predict", "mlp.yaml", "--json"]);
    let rows = test_rows();
    let features =
        |n: usize| -> String { rows[..n].iter().map(|row| format!("{}\n", row.rsplit_once(',').unwrap().0)).collect() };
    std::fs::write(folder.path("new.csv"), features(33)).unwrap();
    let new = folder.json(&["predict", "mlp.yaml", "--inputs", "new.csv", "--json"]);
    assert_eq!((&new["n_examples"], &new["inputs"]), (&33.into(), &"new.csv".into()));
    assert_eq!(
        new["predictions"]["classes"].as_array().unwrap()[..],
        whole["predictions"]["classes"].as_array().unwrap()[..33]
    );
    let table = folder.stdout(&["predict", "mlp.yaml", "--inputs", "new.csv"]);
    assert!(table.contains("predictions for 33 examples") && table.contains("\n13 more: -o FILE.npz"), "{table}");

    let with_labels = rows[..2].join("\n");
    std::fs::write(folder.path("labels.csv"), with_labels).unwrap();
    assert_eq!(
        folder.stderr(&["predict", "mlp.yaml", "--inputs", "labels.csv"]),
        "bf16scope: labels.csv:1: 65 columns; expected 64: 64 of `images`\n\
         help: examples to predict have no labels: leave those columns out\n"
    );
}

#[test]
fn what_is_not_right_is_said_before_the_work() {
    use bf16scope::data::npz::{Header, NpzWriter};
    use bf16scope::hlo::DType;
    let folder = trained();
    let npz = |name: &str, array: &str, dtype: DType, dims: &[i64]| {
        let mut npz = NpzWriter::create(folder.path(name)).unwrap();
        let header = Header::for_dtype(dtype, dims.to_vec());
        let n_bytes = dims.iter().product::<i64>() as usize * dtype.n_bytes();
        npz.add(array, &header, &vec![0; n_bytes]).unwrap();
        npz.finish().unwrap();
    };
    npz("name.npz", "pictures", DType::F32, &[2, 8, 8]);
    npz("dims.npz", "images", DType::F32, &[2, 8, 9]);
    npz("dtype.npz", "images", DType::C64, &[2, 8, 8]);
    npz("good.npz", "images", DType::U8, &[2, 8, 8]);
    std::fs::write(folder.path("new.txt"), "").unwrap();
    for (file, said) in [
        ("name.npz", "name.npz: there is no array `images`"),
        ("dims.npz", "array `images` has dims [8, 9] in each example; expected [8, 8, 1]"),
        ("dtype.npz", "dtype.npz"),
        ("new.txt", "new.txt: "),
        ("none.npz", "none.npz"),
    ] {
        let stderr = folder.stderr(&["predict", "mlp.yaml", "--inputs", file]);
        assert!(stderr.contains(said), "{stderr}");
    }
    assert_eq!(folder.json(&["predict", "mlp.yaml", "--inputs", "good.npz", "--json"])["n_examples"], 2);
    let stderr = folder.stderr(&["predict", "mlp.yaml", "--inputs", "good.npz", "--top", "11"]);
    assert_eq!(stderr, "bf16scope: --top 11: the network tells 10 classes apart; expected 10 at most\n");
    let stderr = folder.stderr(&["predict", "mlp.yaml", "-o", "out.txt"]);
    assert!(stderr.contains("expected .npz, .csv, .json or .png"), "{stderr}");
    assert!(stderr.contains("help: .npz has all predictions as arrays, .csv and .json have them as text"), "{stderr}");
    let stderr = folder.stderr(&["predict", "mlp.yaml", "--inputs", "good.npz", "-o", "good.npz"]);
    assert!(stderr.contains("which is read, and would be lost"), "{stderr}");
    folder.write("wide.yaml", "model: {kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [64]}");
    let output = folder.run(&["predict", "wide.yaml", "--checkpoint", "runs/mlp-bf16/checkpoint.safetensors"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("the checkpoint is of another function"), "{stderr}");
}

/// It was refused: only data on the disk said how features are made of images.
#[test]
fn images_are_predicted_from_where_the_examples_are_arrays_of_bytes() {
    let folder = Folder::new();
    let npz = |name: &str, images: &[u8]| {
        let mut npz = NpzWriter::create(folder.path(name)).unwrap();
        let n = images.len() / 3;
        npz.add("images", &Header::for_dtype(DType::U8, vec![n as i64, 1, 1, 3]), images).unwrap();
        if n > 1 {
            let labels: Vec<u8> = (0..n as i32).flat_map(|label| (label % 2).to_le_bytes()).collect();
            npz.add("labels", &Header::for_dtype(DType::S32, vec![n as i64]), &labels).unwrap();
        }
        npz.finish().unwrap();
    };
    npz("set.npz", &[0u8, 40, 80, 120, 160, 200].repeat(4));
    // The pixels of the PNG.
    npz("pixel.npz", &[200, 10, 30]);
    let yaml = |input: &str| {
        format!(
            "model: {{kind: mlp, input: {input}, n_classes: 2, hidden: [4]}}\n\
             data: {{npz: set.npz, n_test: 2, scale: 0.00392157}}\ntrain: {{batch: 2, epochs: 1}}\n"
        )
    };
    std::fs::write(folder.path("e.yaml"), yaml("[1, 1, 3]")).unwrap();
    std::fs::create_dir(folder.path("pictures")).unwrap();
    std::fs::write(folder.path("pictures/pixel.png"), PNG).unwrap();
    folder.stdout(&["train", "e.yaml"]);
    let predicted = |inputs: &str| folder.json(&["predict", "e.yaml", "--inputs", inputs, "--json"]);
    let of_array = predicted("pixel.npz")["predictions"].clone();
    assert_eq!(predicted("pictures/pixel.png")["predictions"], of_array);
    let of_folder = predicted("pictures");
    assert_eq!((&of_folder["predictions"], &of_folder["files"][0]), (&of_array, &"pixel.png".into()));
    folder.stdout(&["package", "e.yaml", "-o", "package"]);
    let run = folder.json(&["run", "package", "--inputs", "pictures/pixel.png", "--json"]);
    assert_eq!(run["outputs"][0]["dims"], serde_json::json!([1, 2]));
    // Nothing says how an image of another size would become one of this.
    std::fs::write(folder.path("e.yaml"), yaml("[3, 1, 1]")).unwrap();
    folder.stdout(&["train", "e.yaml"]);
    let refused = folder.stderr(&["predict", "e.yaml", "--inputs", "pictures/pixel.png"]);
    assert!(refused.contains("an image of 1 × 1 pixels; expected 3 × 1\nhelp: "), "{refused}");
}

/// Each output of a multi-label network is an independent yes or no: there used to be logits without probabilities.
#[test]
fn of_a_multi_label_network_each_label_has_its_probability() {
    let folder = Folder::new();
    write_tags(&folder);
    folder.stdout(&["train", "tags.yaml"]);
    let predictions = folder.json(&["predict", "tags.yaml", "--json"])["predictions"].clone();
    let names: Vec<&String> = predictions.as_object().unwrap().keys().collect();
    assert_eq!(names, ["output", "probabilities"]);
    let (logits, probabilities) = (numbers(&predictions["output"]), numbers(&predictions["probabilities"]));
    assert_eq!((logits.len(), probabilities.len()), (3 * 20, 3 * 20));
    for (logit, probability) in logits.iter().zip(&probabilities) {
        // f64's `exp` is accurate to an ulp, and a sum and a quotient are rounded after it. A logit is written as the
        // shortest text that is read back as the same f32.
        let expected = 1.0 / (1.0 + (-f64::from(*logit as f32)).exp());
        assert!((probability - expected).abs() <= 4.0 * f64::EPSILON * expected, "{logit}: {probability}");
    }
    // The file has the same values.
    folder.stdout(&["predict", "tags.yaml", "-o", "tags.npz"]);
    let mut npz = NpzReader::open(folder.path("tags.npz")).unwrap();
    let bytes = npz.entry("probabilities").unwrap().unwrap().read().unwrap();
    let written: Vec<f64> = bytes.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).collect();
    assert_eq!(written, probabilities);
}

/// 60 examples of four numbers, and of three labels each.
fn write_tags(folder: &Folder) {
    let x = |i: usize| ((i * 37 + i / 4) % 17) as f32 / 8.0 - 1.0;
    let floats = |n: usize, of: &dyn Fn(usize) -> f32| (0..n).flat_map(|i| of(i).to_le_bytes()).collect::<Vec<u8>>();
    let mut npz = NpzWriter::create(folder.path("tags-data.npz")).unwrap();
    npz.add("x", &Header::for_dtype(DType::F32, vec![60, 4]), &floats(240, &x)).unwrap();
    let tag = |i: usize| f32::from(x(i / 3 * 4 + i % 3) > 0.0);
    npz.add("labels", &Header::for_dtype(DType::F32, vec![60, 3]), &floats(180, &tag)).unwrap();
    npz.finish().unwrap();
    let text = "model:\n  kind: layers\n  inputs: {x: [4]}\n  layers: [{dense: 3}]\n  loss: sigmoid_cross_entropy\n\
                data: {npz: tags-data.npz, n_test: 20}\ntrain: {epochs: 2, batch: 8}\n";
    std::fs::write(folder.path("tags.yaml"), text).unwrap();
}

/// The crate that writes archives used to print `ZipWriter drop failed` before the error.
#[test]
fn a_full_disk_is_said_once() {
    let folder = trained();
    // A limit on the size of files simulates a full disk: 360 examples have 14,400 bytes of logits alone.
    let limit = ["sh", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh"];
    let output = folder.command_by(&limit, &["predict", "mlp.yaml", "-o", "out.npz"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    let expected = "bf16scope: out.npz: cannot write the archive\n  caused by: File too large (os error 27)";
    assert!(stderr.starts_with(expected) && stderr.lines().count() == 2, "{stderr}");
    assert!(!folder.path("out.npz").exists());
}
