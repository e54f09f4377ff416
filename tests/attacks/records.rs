//! Training on TFRecords: killed and resumed, and with files that are damaged or do not match the experiment.

use super::binary;
use super::streams::{kill, text};
use bf16scope::data::image;
use bf16scope::data::records::{Records, TfRecords, Value};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(super) const FEATURES: &str = "    images: {key: image/encoded, random_resized_crop: {}, center_crop: {crop_padding: 8}, resize: bicubic, random_flip: true,
             mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]}
    labels: {key: image/class/label, offset: -1}
";

/// An experiment on the shapes of `tests/data/input`: 27 to train on, 6 to test on.
pub(super) struct Shapes {
    pub(super) folder: tempfile::TempDir,
}

impl Shapes {
    pub(super) fn new() -> Shapes {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input");
        for shard in 0..3 {
            let name = format!("shapes-{shard:05}-of-00003");
            std::fs::copy(from.join(&name), folder.path().join(&name)).unwrap();
        }
        let shapes = Shapes { folder };
        shapes.write("", FEATURES, "batch: 4");
        shapes
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn write(&self, data: &str, features: &str, train: &str) {
        let model = "{kind: mlp, input: [16, 16, 3], n_classes: 3, hidden: [4]}";
        let text = format!(
            "model: {model}\ndata:\n  tfrecord: shapes-*\n  n_test: 6\n{data}  features:\n{features}train: {{{train}}}\n"
        );
        std::fs::write(self.path("shapes.yaml"), text).unwrap();
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = binary::bf16scope(&[&["train", "shapes.yaml", "--no-run"], args].concat());
        command.current_dir(self.folder.path());
        command
    }

    pub(super) fn train(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Flips a bit of a byte of a file.
    fn flip(&self, name: &str, at: usize) {
        let mut bytes = std::fs::read(self.path(name)).unwrap();
        bytes[at] ^= 4;
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// The error for an experiment that cannot be trained.
    fn refused(&self) -> String {
        let output = self.train(&["--checkpoint", "run.safetensors"]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(!self.path("run.safetensors").exists());
        stderr
    }
}

/// Trains `train` in `folder` to the end, with one worker; then again, killed at its first checkpoint, which must be within an
/// epoch, and resumed with three workers: the weights must be the same bytes. `write` writes the experiment for a number of
/// workers.
pub fn killed_and_gone_on_with(folder: &Path, write: impl Fn(u32), train: impl Fn(&[&str]) -> Command) {
    let run = |args: &[&str]| {
        let output = train(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    write(1);
    run(&["--epochs", "20", "--checkpoint", "whole.safetensors"]);
    let mut child = train(&["--epochs", "20", "--checkpoint", "killed.safetensors"]).spawn().unwrap();
    let began = std::time::Instant::now();
    while !folder.join("killed.safetensors").exists() {
        assert!(began.elapsed().as_secs() < 120, "no checkpoint within two minutes");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    kill("KILL", &child);
    child.wait().unwrap();
    write(3);
    run(&["--epochs", "20", "--checkpoint", "killed.safetensors", "--resume"]);
    let bytes = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(bytes("killed.safetensors") == bytes("whole.safetensors"), "other weights");
}

#[test]
fn a_killed_run_goes_on_with_other_workers_and_has_the_same_weights() {
    let shapes = Shapes::new();
    // One file is compressed, and unpacked once.
    let middle = shapes.path("shapes-00001-of-00003");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&std::fs::read(&middle).unwrap()).unwrap();
    std::fs::write(&middle, gzip.finish().unwrap()).unwrap();
    // The first checkpoint is written in the middle of an epoch, which has 6 steps.
    let write = |n: u32| shapes.write(&format!("  workers: {n}\n"), FEATURES, "batch: 4, save_checkpoints_steps: 4");
    killed_and_gone_on_with(shapes.folder.path(), write, |args| shapes.command(args));
    // Other files are other data.
    std::fs::remove_file(shapes.path("shapes-00001-of-00003")).unwrap();
    let output = shapes.train(&["--epochs", "21", "--checkpoint", "killed.safetensors", "--resume"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("bf16scope: killed.safetensors: the checkpoint is of another run:"), "{stderr}");
}

#[test]
fn damaged_records_end_the_run_or_are_left_out_and_counted() {
    let shapes = Shapes::new();
    shapes.flip("shapes-00000-of-00003", 500);
    let stderr = shapes.refused();
    let message = "bf16scope: shapes-00000-of-00003, record 0: the checksum of its bytes is 0x";
    assert!(stderr.starts_with(message) && stderr.contains("`on_error: {skip: N}` under `data`"), "{stderr}");

    // One in the first file, one in the part for testing.
    shapes.write("  on_error: {skip: 1}\n", FEATURES, "batch: 4");
    shapes.flip("shapes-00002-of-00003", 14_000);
    let output = shapes.train(&["--epochs", "1", "--checkpoint", "run.safetensors"]);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    // Each is reported once: the training's, and the test's.
    let n_warnings = |name: &str| stderr.matches(&format!("left out, 1 of at most 1: {name}")).count();
    assert_eq!(
        (n_warnings("shapes-00000-of-00003, record 0"), n_warnings("shapes-00002-of-00003, record ")),
        (1, 1),
        "{stderr}"
    );

    shapes.flip("shapes-00001-of-00003", 500);
    let output = shapes.train(&["--epochs", "1", "--checkpoint", "other.safetensors"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("bf16scope: more than 1 examples could not be used; the last of them: shapes-0000"),
        "{stderr}"
    );
}

#[test]
fn what_is_not_as_the_experiment_says_is_named_by_file_record_and_feature() {
    let shapes = Shapes::new();
    let labels = |label_options: &str| FEATURES.replace("key: image/class/label, offset: -1", label_options);
    shapes.write("", &labels("key: image/class/text"), "batch: 4");
    assert_eq!(
        shapes.refused(),
        "bf16scope: shapes-00000-of-00003, record 0: there is no feature `image/class/text`; it has `image/class/label`, \
         `image/encoded`, `image/object/bbox`, `thumbnail`\nhelp: name another one with `key`: `image/class/label`?\n"
    );
    // Records 0, 1, 3 and 5 are among the sixteen that are looked at.
    shapes.write("", &labels("key: image/class/label"), "batch: 4");
    assert_eq!(
        shapes.refused(),
        "bf16scope: shapes.yaml:1:51: shapes-00000-of-00003, record 5: number 0 of `labels` is 3; expected a whole number from \
         0 to 2\n  1 | model: {kind: mlp, input: [16, 16, 3], n_classes: 3, hidden: [4]}\n    |                                      \
         \x20            ^\n  help: write 4 or more here, or leave such examples out: `on_error: {skip: N}` under `data`; where the data \
         count from 1, `offset: -1` of `labels` counts from 0\n"
    );
    shapes.write("", &labels("key: image/encoded"), "batch: 4");
    assert_eq!(
        shapes.refused(),
        "bf16scope: shapes-00000-of-00003, record 0: feature `image/encoded` is 1 value of bytes; expected a whole number, for \
         bytes are an encoded image unless `raw` says what they are: name another one with `key`, or add `raw`\n"
    );
    shapes.write("", &FEATURES.replace("resize: bicubic, ", ""), "batch: 4");
    assert_eq!(
        shapes.refused(),
        "bf16scope: shapes-00000-of-00003, record 0: feature `image/encoded`: an image of 32 × 32 pixels; expected 16 × 16\n\
         help: say how it is made so under `features`, with `resize: bicubic` or `resize: bilinear`; where `data` is in \
         memory, make it that size\n"
    );
    // A file that ends within a record.
    shapes.write("", FEATURES, "batch: 4");
    let bytes = std::fs::read(shapes.path("shapes-00001-of-00003")).unwrap();
    std::fs::write(shapes.path("shapes-00001-of-00003"), &bytes[..bytes.len() - 1]).unwrap();
    let stderr = shapes.refused();
    let message = "bf16scope: shapes-00001-of-00003, record 10, at byte ";
    assert!(
        stderr.starts_with(message) && stderr.contains("the file ends after 15380 bytes, within the record"),
        "{stderr}"
    );
}

#[test]
fn what_is_broken_is_counted_by_name_before_it_ends_a_run() {
    let shapes = Shapes::new();
    let data = |args: &[&str]| {
        let mut command = binary::bf16scope(&[&["data"], args].concat());
        let output = command.current_dir(shapes.folder.path()).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    shapes.flip("shapes-00000-of-00003", 500);
    shapes.write("", &FEATURES.replace(", offset: -1", ""), "batch: 4");
    let (code, stdout, stderr) = data(&["shapes.yaml"]);
    assert_eq!(code, Some(1), "{stderr}");
    // Nine of 27 examples for training have the class 3, which does not exist; and the first is damaged.
    for part in [
        "training: 27 examples, all of them looked at",
        "labels: 2 values, 8 to 9 examples each: 1: 47.1 %, 2: 52.9 %",
        "10 broken:\n  shapes-00000-of-00003, record 0: the checksum of its bytes is 0x",
        "\n  shapes-00000-of-00003, record 2: number 0 of `labels` is 3; expected a whole number from 0 to 2",
        "help: `on_error: {skip: N}` under `data` leaves such examples out; without it the first ends the run",
        "test: 6 examples, all of them looked at",
    ] {
        assert!(stdout.contains(part), "{part} is not in\n{stdout}");
    }
    let (_, stdout, _) = data(&["shapes.yaml", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&json["training"]["n_broken"], &json["test"]["n_broken"]), (&10.into(), &2.into()));
    assert_eq!(json["training"]["features"]["labels"]["counts"], serde_json::json!({ "1": 8, "2": 9 }));

    // A folder with a file of one byte and one that is cut.
    let records = TfRecords::open(&[shapes.path("shapes-00002-of-00003")], None).unwrap();
    let folder = shapes.path("pictures/disc");
    std::fs::create_dir_all(&folder).unwrap();
    for index in 0..4 {
        let values = records.values(index, None).unwrap();
        let Value::Bytes(strings) = &values["image/encoded"] else { panic!("{values:?}") };
        let n_bytes = if index == 3 { strings[0].len() / 2 } else { strings[0].len() };
        std::fs::write(folder.join(format!("{index}.jpg")), &strings[0][..n_bytes]).unwrap();
    }
    std::fs::write(folder.join("bad.png"), "a").unwrap();
    let (code, stdout, _) = data(&["pictures"]);
    assert_eq!(code, Some(1));
    assert!(stdout.contains("1 neither"), "{stdout}");
    let message = "pictures/disc/bad.png: feature `images`: 1 byte, 61; expected a JPEG or PNG image";
    assert!(stdout.contains("2 broken:\n") && stdout.contains(message), "{stdout}");
    assert!(stdout.contains("pictures/disc/3.jpg: feature `images`: the "), "{stdout}");
}

#[test]
fn one_image_a_folder_and_a_tar_are_predicted_and_evaluated() {
    let shapes = Shapes::new();
    let output = shapes.train(&["--epochs", "1", "--checkpoint", "run.safetensors"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let records = TfRecords::open(&[shapes.path("shapes-00002-of-00003")], None).unwrap();
    let classes = ["a_disc", "b_square", "c_cross"];
    for index in 5..11 {
        let values = records.values(index, None).unwrap();
        let (Value::Bytes(image), Value::Ints(label)) = (&values["image/encoded"], &values["image/class/label"]) else {
            panic!("{values:?}")
        };
        let folder = shapes.path("pictures").join(classes[label[0] as usize - 1]);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{index:02}.jpg")), &image[0]).unwrap();
        std::fs::create_dir_all(shapes.path("flat")).unwrap();
        std::fs::write(shapes.path("flat").join(format!("{index:02}.png")), &image[0]).unwrap();
    }
    let run = |args: &[&str]| {
        let args = [args, &["--checkpoint", "run.safetensors", "--json"]].concat();
        let output = binary::bf16scope(&args).current_dir(shapes.folder.path()).output().unwrap();
        let stdout = text(&output.stdout);
        (output.status.code(), serde_json::from_str::<serde_json::Value>(&stdout).unwrap(), text(&output.stderr))
    };
    let predicted = |name: &str, inputs: &str| {
        let args = ["predict", "shapes.yaml", "--inputs", inputs];
        let (code, json, stderr) = run(if inputs.is_empty() { &args[..2] } else { &args });
        assert_eq!(code, Some(0), "{inputs}: {stderr}");
        json["predictions"][name].as_array().unwrap().clone()
    };
    // The last six records are the test data.
    assert_eq!(predicted("logits", "flat"), predicted("logits", ""));
    // In other batches sums may be made in another order: what is asked is the class.
    let expected = predicted("classes", "");
    assert_eq!(expected.len(), 6);
    assert_eq!(predicted("classes", "flat/07.png"), expected[2..3]);
    assert_eq!(predicted("classes", "shapes-00002-of-00003")[5..], expected[..]);
    // By class, then by name: records 27, 30, then 28, 31, then 29, 32.
    let by_class = [0, 3, 1, 4, 2, 5].map(|index| expected[index].clone());
    assert_eq!(predicted("classes", "pictures"), by_class);
    let (_, whole, _) = run(&["eval", "shapes.yaml"]);
    let (code, folder, stderr) = run(&["eval", "shapes.yaml", "--inputs", "pictures"]);
    assert_eq!((code, &folder["n_examples"]), (Some(0), &6.into()), "{stderr}");
    assert_eq!(folder["accuracy"], whole["accuracy"]);
    std::fs::write(shapes.path("broken.png"), "a").unwrap();
    let args = ["predict", "shapes.yaml", "--checkpoint", "run.safetensors", "--inputs", "broken.png"];
    let output = binary::bf16scope(&args).current_dir(shapes.folder.path()).output().unwrap();
    assert_eq!(
        text(&output.stderr).lines().next().unwrap(),
        "bf16scope: broken.png: feature `image/encoded`: 1 byte, 61; expected a JPEG or PNG image"
    );
}

/// A number below `bound`: Knuth's generator, the upper half of it.
fn below(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    ((*state >> 32) as usize) % bound
}

/// Bytes that are changed in a few places, cut, or repeated.
fn mutated(bytes: &[u8], state: &mut u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=below(state, 4) {
        let at = below(state, bytes.len().max(1)).min(bytes.len().saturating_sub(1));
        match below(state, 5) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] ^= 1 << below(state, 8),
            1 => bytes[at] = below(state, 256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + 1 + below(state, 16)).min(bytes.len()))),
            _ => bytes[at] = [0, 0x7f, 0x80, 0xff][below(state, 4)],
        }
    }
    bytes
}

/// Mutated images, and mutated files of records whose checksums are right: errors that print, or pixels, and no panic.
fn mutations(cases: std::ops::Range<u64>) -> [u64; 4] {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input");
    let whole = TfRecords::open(&TfRecords::files(&from, &["shapes-*"]).unwrap(), None).unwrap();
    let path = folder.path().join("mutated");
    let mut counts = [0; 4];
    for case in cases {
        let mut state = case.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x51;
        let record = below(&mut state, whole.n_records() as usize) as u64;
        if case % 2 == 0 {
            let values = whole.values(record, None).unwrap();
            let Value::Bytes(strings) = &values["image/encoded"] else { panic!("{values:?}") };
            let bytes = mutated(&strings[0], &mut state);
            let dct = [image::DctMethod::IntegerAccurate, image::DctMethod::IntegerFast][case as usize / 2 % 2];
            match image::decode(&bytes, 3, dct) {
                Ok(image) => {
                    assert_eq!(image.pixels.len(), image.height * image.width * 3, "case {case}");
                    counts[0] += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    counts[1] += 1;
                }
            }
        } else {
            // The bytes of the record are changed before the checksums are made, for no fuzzer finds one.
            let bytes = mutated(&whole.bytes(record).unwrap(), &mut state);
            std::fs::write(&path, bf16scope::files::framing::framed(&bytes)).unwrap();
            let records = TfRecords::open(std::slice::from_ref(&path), None).unwrap();
            assert_eq!(records.bytes(0).unwrap(), bytes);
            match records.values(0, None) {
                Ok(_) => counts[2] += 1,
                Err(error) => {
                    assert!(error.to_string().contains("record 0: no tf.train.Example"), "{error}");
                    counts[3] += 1;
                }
            }
        }
    }
    counts
}

#[test]
fn mutated_records_and_images_are_read_or_refused() {
    let counts = mutations(0..500);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Missing files are reported at the line that names them, as for files that are read into memory.
#[test]
fn names_that_no_file_has_are_told_at_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |data: &str| {
        let model = "model: {kind: mlp, input: [4], n_classes: 3}";
        std::fs::write(
            folder.path().join("e.yaml"),
            format!("{model}\ndata: {{{data}}}\ntrain: {{batch: 2, epochs: 1}}\n"),
        )
        .unwrap();
        let output = binary::bf16scope(&["data", "e.yaml"]).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{data}");
        text(&output.stderr)
    };
    let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input/shapes-00000-of-00003");
    let shape = shape.display();
    let features = "features: {images: {key: image/object/bbox}, labels: {key: image/class/label, offset: -1}}";
    let tokens = "tokens: {tokenizer: bytes, window: 4}";
    for data in [
        format!("tfrecord: none-*, n_test: 2, {features}"),
        format!("webdataset: [none-*], n_test: 2, {features}"),
        format!("parquet: none-*, n_test: 2, {features}"),
        format!("text: none-*, n_test: 2, {tokens}"),
        format!("tfrecord: {shape}, test: {{tfrecord: none-*}}, {features}"),
    ] {
        let error = refused(&data);
        let column = "data: {".len() + data.find("none").unwrap() + 1 - usize::from(data.contains('['));
        let expected =
            format!("bf16scope: e.yaml:2:{column}: none-*: no file has such a name; expected one at least\n");
        assert!(error.starts_with(&expected), "{data}: {error}");
    }
    let error = refused("images: none, n_test: 2");
    assert!(error.starts_with("bf16scope: e.yaml:2:16: none: cannot list the folder: No such file"), "{error}");
}

/// A tar that is cut between two of its files, or has no end mark, is read with a warning; a tar that is cut elsewhere is refused;
/// and the bytes of a file that is not a tar are not printed raw.
#[test]
fn a_tar_without_its_end_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input/shapes.tar")).unwrap();
    let data = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let output = binary::bf16scope(&["data", name]).current_dir(folder.path()).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(data("whole.tar", &whole), (Some(0), String::new()));
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap() / 512 * 512 + 512;
    let (code, stderr) = data("cut.tar", &whole[..end]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(&format!("warning: cut.tar: the file ends after {end} bytes, behind `")), "{stderr}");
    assert!(stderr.contains("without tar's mark of its end: it may have been cut between two files"), "{stderr}");
    let (code, stderr) = data("padding.tar", &whole[..end - 3]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains(&format!(": the file ends after {} bytes, within the record", end - 3)), "{stderr}");
    // Data behind the end mark is not read.
    let (code, stderr) = data("junk.tar", &[&whole[..], b"junk"].concat());
    let n_bytes = whole.len();
    assert_eq!(code, Some(0), "{stderr}");
    let warning = format!("warning: junk.tar: 4 bytes behind the mark of its end, from byte {n_bytes}, are not read\n");
    assert!(stderr.contains(&warning), "{stderr}");
    let (code, stderr) = data("two.tar", &[&whole[..], &whole].concat());
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains(&format!("two.tar: another tar begins at byte {n_bytes}, behind the end")), "{stderr}");
    let (code, stderr) = data("text.tar", &b"number 1 of a text\nand line after line of it\n".repeat(30));
    assert_eq!((code, stderr.lines().count()), (Some(2), 3), "{stderr}");
}

/// JSON members that are not features are reported once, with the first one.
#[test]
fn what_of_json_is_no_feature_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["a.json", "b.json"] {
        let bytes = br#"{"boxes": [[1, 2], [3, 4]], "label": 1, "note": null}"#;
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    std::fs::write(folder.path().join("a.tar"), tar.into_inner().unwrap()).unwrap();
    let output = binary::bf16scope(&["data", "a.tar"]).current_dir(folder.path()).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let warning = "warning: a.tar, example `a`: `json.boxes` is a list of lists or objects, and is passed over, as others like it are";
    assert!(stderr.contains(warning), "{stderr}");
    assert_eq!(stderr.matches("passed over").count(), 1, "{stderr}");
    assert!(text(&output.stdout).contains("json.label"), "{}", text(&output.stdout));
}

/// Files of unknown content are not reported as damaged TFRecords.
#[test]
fn a_file_that_an_experiment_describes_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    for (name, key) in [("a.csv", "csv"), ("a.txt", "text"), ("a.jsonl", "jsonl"), ("a.npz", "npz")] {
        std::fs::write(folder.path().join(name), "1,2,3\n".repeat(20)).unwrap();
        let output = binary::bf16scope(&["data", name]).current_dir(folder.path()).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("`data: {{{key}: {name}}}` in a YAML file")), "{stderr}");
    }
}

/// The last images of a folder are those of its last classes, and files that are not images are reported as skipped.
#[test]
fn what_a_folder_leaves_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let shapes =
        TfRecords::files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input"), &["shapes-*"]).unwrap();
    let records = TfRecords::open(&shapes, None).unwrap();
    for index in 0..9 {
        let values = records.values(index, None).unwrap();
        let Value::Bytes(image) = &values["image/encoded"] else { panic!("{values:?}") };
        let class = folder.path().join("set").join(["a", "b", "c"][index as usize / 3]);
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{index}.png")), &image[0]).unwrap();
    }
    std::fs::write(folder.path().join("set/b/x.gif"), "GIF89a").unwrap();
    std::fs::write(folder.path().join("set/stray.jpg"), "").unwrap();
    let stderr_of = |n_test: u64| {
        let model = "model: {kind: mlp, input: [8, 8, 3], n_classes: 3}";
        let data = format!("data: {{images: set, n_test: {n_test}, features: {{images: {{resize: bilinear}}}}}}");
        std::fs::write(folder.path().join("e.yaml"), format!("{model}\n{data}\ntrain: {{batch: 1, epochs: 1}}\n"))
            .unwrap();
        let output = binary::bf16scope(&["data", "e.yaml"]).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let stderr = stderr_of(4);
    assert!(stderr.contains("set: 2 entries are not read, as only the `.jpg`, `.jpeg` and `.png`"), "{stderr}");
    assert!(stderr.contains("e.yaml:2:21: images come class after class: of 3 classes, 2 are in"), "{stderr}");
    assert!(stderr.contains("2 are in the part for testing and 2 in the rest\n"), "{stderr}");
    let help = "help: write `stratify: true` beside `n_test`, or name a folder of images to test on: `test: {images: DIRECTORY}`\n";
    assert!(stderr.contains(help), "{stderr}");
}

#[test]
fn a_label_of_the_images_size_that_stays_as_it_is_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "1,2,3,4,0,1,1,0\n5,6,7,8,1,0,0,1\n").unwrap();
    let stderr_of = |augment: &str| {
        let model = "model: {kind: layers, inputs: {x: [2, 2, 1]}, layers: [{conv: 2, kernel_size: 1}], \
                     loss: sparse_softmax_cross_entropy}";
        let data = format!("data: {{csv: t.csv, n_test: 1, augment: {augment}}}");
        std::fs::write(folder.path().join("e.yaml"), format!("{model}\n{data}\ntrain: {{batch: 1, epochs: 1}}\n"))
            .unwrap();
        let output = binary::bf16scope(&["data", "e.yaml"]).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let stderr = stderr_of("{flip: true}");
    let message = "e.yaml:2:31: images are moved, and the label `labels` of their size, [2, 2], is not\n";
    let help = "help: if it says something of each pixel, write `masks: [labels]` in `augment`\n";
    assert!(stderr.contains(message) && stderr.contains(help), "{stderr}");
    let stderr = stderr_of("{flip: true, masks: [labels]}");
    assert!(!stderr.contains("images are moved"), "{stderr}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// A million mutated records and images.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_million_mutated_records_and_images_are_read_or_refused() {
        let halves = [0..500_000, 500_000..1_000_000].map(|cases| std::thread::spawn(|| mutations(cases)));
        let [first, second] = halves.map(|half| half.join().unwrap());
        let counts: Vec<u64> = first.iter().zip(second).map(|(a, b)| a + b).collect();
        println!(
            "images: {} read, {} refused; records: {} read, {} refused",
            counts[0], counts[1], counts[2], counts[3]
        );
    }
}
