//! Every command's output on 80 columns, complete, in `tests/cli/screens`; on narrower screens, in ASCII, and without
//! limits.
//!
//! `UPDATE_EXPECT=1 cargo test --locked screens` rewrites the files; read them. Commands that need the TPU compiler
//! (`compile`, `fit`) or depend on the machine (`doctor`, `plugins`) are rendered by unit tests of `crates/cli/src` and
//! `crates/report/src` from recorded figures. Digits that depend on the processor or its speed are shown as 9.

use std::path::Path;
use std::process::Command;

use expect_test::{ExpectFile, expect_file};
use unicode_width::UnicodeWidthStr as _;

use crate::binary;

const OPTIMIZED: &str = include_str!("../tpu/optimized.hlo");

/// Names as frameworks write them.
const MODULE: &str = "HloModule step

ENTRY step {
  x = f32[8,16] parameter(0), metadata={op_name=\"inputs/features\"}
  w = f32[16,16] parameter(1), metadata={op_name=\"transformer/layer11/attention/output/dense/kernel\"}
  b = f32[16] parameter(2)
  transformer_layer11_attention_output_dense.42 = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  broadcast.43 = f32[8,16] broadcast(b), dimensions={1}
  add.44 = f32[8,16] add(transformer_layer11_attention_output_dense.42, broadcast.43)
  ROOT exponential.45 = f32[8,16] exponential(add.44)
}
";

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
        let model = format!(
            "model: {{kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [32]}}\n\
             data: {{csv: {}, scale: 0.0625, n_test: 360}}\n\
             train: {{epochs: 2, learning_rate: {{kind: constant, value: 0.05}}}}\n",
            csv.display()
        );
        // Rates that every processor computes alike.
        let warm = "model: {kind: mlp, input: [4], n_classes: 2}\ndata: {n_train: 32000}\n\
                    train: {epochs: 9, warm_up: {epochs: 1}, learning_rate: {kind: piecewise, value: 0.5, \
                    changes: [{epoch: 2, value: 0.25}, {epoch: 5.5, value: 0.03125}]}}\n";
        let files = [("step.hlo", MODULE), ("optimized.hlo", OPTIMIZED), ("mlp.yaml", &model), ("warm.yaml", warm)];
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Place(folder)
    }

    fn command(&self, args: &[&str], set: &[(&str, &str)]) -> Command {
        let mut command = binary::bf16scope(args);
        command.current_dir(self.0.path()).env("LC_ALL", "C.UTF-8").env("TERM", "xterm").env("COLUMNS", "80");
        command.env_remove("BF16SCOPE_AUTO").envs(set.iter().copied());
        command
    }

    /// Standard output of a command that succeeds.
    fn text(&self, args: &[&str], set: &[(&str, &str)]) -> String {
        let output = self.command(args, set).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A screen of 80 columns.
    fn check(&self, args: &[&str], normal: fn(&str) -> String, expected: &ExpectFile) {
        let text = self.text(args, &[]);
        fits(&text, 80);
        expected.assert_eq(&format!("$ bf16scope {}\n{}", args.join(" "), normal(&text)));
    }
}

#[track_caller]
fn fits(text: &str, width: usize) {
    let wide: Vec<&str> = text.lines().filter(|line| line.width() > width).collect();
    assert!(wide.is_empty(), "wider than {width}: {wide:#?}\n{text}");
}

fn as_it_is(text: &str) -> String {
    text.to_string()
}

/// Digits as nines, keeping their places.
fn all_nines(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect()
}

/// The same for numbers that depend on the processor: those with a point, and those after a `(`. Rates are all alike.
fn nines(text: &str) -> String {
    let is_number = |word: &str| word.trim_start_matches(['-', '(']).starts_with(|c: char| c.is_ascii_digit());
    let is_measured = |word: &str| is_number(word) && (word.contains('.') || word.starts_with('('));
    let words = text.split(' ').map(|word| if is_measured(word) { all_nines(word) } else { word.to_string() });
    let text = words.collect::<Vec<String>>().join(" ");
    let line = |line: &str| match (line.ends_with(" examples/s"), line.rsplit_once(')')) {
        (true, Some((before, _))) => format!("{before})  9,999 examples/s\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Removes times.
fn without_times(text: &str) -> String {
    let Some((before, after)) = text.split_once("; compiled in").or(text.split_once(";\n  compiled in")) else {
        panic!("{text}")
    };
    let table = after.find("\n┌").or(after.find("\nresult")).unwrap_or_else(|| panic!("{text}"));
    format!("{before}; compiled in …{}", &after[table..])
}

#[test]
fn commands_on_modules() {
    let place = Place::new();
    let check = |args: &[&str], normal, expected| place.check(args, normal, &expected);
    check(&["run", "step.hlo", "--random", "1"], |text| nines(&without_times(text)), expect_file!["screens/run.txt"]);
    check(&["lower", "step.hlo", "-o", "low.hlo"], as_it_is, expect_file!["screens/lower.txt"]);
    check(&["lower", "step.hlo", "-o", "low.hlo", "--list"], as_it_is, expect_file!["screens/lower-list.txt"]);
    check(&["explain-cast", "step.hlo", "add.44"], as_it_is, expect_file!["screens/explain-cast.txt"]);
    check(&["audit", "step.hlo", "--random", "1"], nines, expect_file!["screens/audit.txt"]);
    check(&["emit", "mlp.yaml", "-o", "mlp.hlo"], all_nines, expect_file!["screens/emit.txt"]);
    let explain = ["explain", "optimized.hlo", "--target", "tpu-v3", "--offline"];
    check(&explain, as_it_is, expect_file!["screens/explain.txt"]);
}

#[test]
fn commands_on_models() {
    let place = Place::new();
    place.check(&["schedule", "warm.yaml"], as_it_is, &expect_file!["screens/schedule.txt"]);
    place.check(&["train", "mlp.yaml"], nines, &expect_file!["screens/train.txt"]);
    place.check(&["eval", "mlp.yaml"], nines, &expect_file!["screens/eval.txt"]);
    place.check(&["predict", "mlp.yaml"], all_nines, &expect_file!["screens/predict.txt"]);
}

#[test]
fn numbers() {
    let place = Place::new();
    let numbers = ["bits", "1.12156456132", "0.1"];
    place.check(&numbers, as_it_is, &expect_file!["screens/bits.txt"]);
    let sum = ["bits", "--accumulate", "1.125", "0.00041999", "--steps", "100"];
    place.check(&sum, as_it_is, &expect_file!["screens/bits-accumulate.txt"]);
    let cache = place.text(&["cache", "show"], &[("BF16SCOPE_CACHE", "/nonexistent/bf16scope")]);
    let expected = "/nonexistent/bf16scope/compiles: 0 compiles, 0.0 MiB\n\
                    /nonexistent/bf16scope/stablehlo: 0 conversions, 0.0 MiB\n\
                    /nonexistent/bf16scope/indexes: 0 indexes, 0.0 MiB\n\
                    /nonexistent/bf16scope/objects: 0 objects, 0.0 MiB\n\
                    /nonexistent/bf16scope/unpacked: 0 unpacked, 0.0 MiB\n\
                    /nonexistent/bf16scope/tokens: 0 tokens, 0.0 MiB\n";
    assert_eq!(cache, expected);
}

#[test]
fn records_on_disk() {
    let place = Place::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input");
    for shard in 0..3 {
        let name = format!("shapes-{shard:05}-of-00003");
        std::fs::copy(from.join(&name), place.0.path().join(&name)).unwrap();
    }
    place.check(&["data", "shapes-*"], as_it_is, &expect_file!["screens/data.txt"]);
    let experiment = "model: {kind: mlp, input: [16, 16, 3], n_classes: 3, hidden: [4]}\ndata:\n  tfrecord: shapes-*\n  n_test: 6\n  \
                      features:\n    images: {key: image/encoded, random_resized_crop: {}, resize: bicubic, random_flip: true}\n    \
                      labels: {key: image/class/label, offset: -1}\n";
    std::fs::write(place.0.path().join("shapes.yaml"), experiment).unwrap();
    place.check(&["data", "shapes.yaml"], as_it_is, &expect_file!["screens/data-experiment.txt"]);
}

#[test]
fn the_contact_sheet_of_examples_works_in_a_browser() {
    let place = Place::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input");
    let shapes = from.join("shapes-0000*").display().to_string();
    let experiment = format!(
        "model: {{kind: mlp, input: [16, 16, 3], n_classes: 3, hidden: [4]}}\ndata:\n  tfrecord: {shapes}\n  n_test: 6\n  \
         classes: [disc, square, cross]\n  features:\n    images: {{key: image/encoded, random_resized_crop: {{}}, resize: bicubic, random_flip: true}}\n    \
         labels: {{key: image/class/label, offset: -1}}\n"
    );
    std::fs::write(place.0.path().join("shapes.yaml"), experiment).unwrap();
    // Five examples, in evaluation mode and in three epochs; and the records themselves, each with one image.
    for (args, n_images, parts) in [
        (
            &["data", "shapes.yaml", "--html", "page.html", "--examples", "5", "--epochs", "3"][..],
            20,
            &[
                "<b>27</b><span>training examples</span>",
                "bf16 [16, 16, 3]: what the network gets",
                "epoch 2: ",
                "labels: 1 (square)",
            ][..],
        ),
        (
            &["data", &shapes, "--html", "page.html", "--examples", "33"],
            33,
            &["<b>33</b><span>shown</span>", "image/encoded: JPEG, 48 × 60", "image/class/label: 3"],
        ),
    ] {
        place.text(args, &[]);
        let page = place.0.path().join("page.html");
        let html = std::fs::read_to_string(&page).unwrap();
        for part in parts {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
        let sources = html.matches("src=\"data:image/png;base64,").count();
        assert_eq!((sources, html.matches("src=").count()), (n_images, n_images), "nothing is loaded from elsewhere");
        assert!(!html.contains("http") && !html.contains("href="));
        // In a browser a script counts the decoded pictures, and measures their width.
        let script = "<script>document.body.dataset.seen = [...document.images].filter(image => image.naturalWidth > 0).length;</script></body>";
        std::fs::write(&page, html.replace("</body>", script)).unwrap();
        if let Some(dom) = crate::support::browser::dom(&page) {
            assert!(dom.contains(&format!("data-seen=\"{n_images}\"")), "{}", &dom[..500.min(dom.len())]);
        }
    }
}

#[test]
fn helps() {
    let place = Place::new();
    place.check(&["--help"], as_it_is, &expect_file!["screens/help.txt"]);
    place.check(&["fit", "--help"], as_it_is, &expect_file!["screens/help-fit.txt"]);
    for command in [
        "audit",
        "bits",
        "cache",
        "compile",
        "curves",
        "data",
        "doctor",
        "emit",
        "eval",
        "explain",
        "explain-cast",
        "fit",
        "lower",
        "package",
        "plan",
        "plugins",
        "port",
        "predict",
        "run",
        "schedule",
        "train",
        "watch",
    ] {
        fits(&place.text(&[command, "--help"], &[]), 80);
        fits(&place.text(&[command, "--help"], &[("LC_ALL", "C")]), 80);
        // clap prints usage on a separate line.
        let narrow = place.text(&[command, "-h"], &[("COLUMNS", "60")]);
        fits(&narrow.lines().filter(|line| !line.starts_with("Usage: ")).collect::<Vec<&str>>().join("\n"), 60);
    }
}

#[test]
fn narrow_screens_ascii_and_no_bounds() {
    let place = Place::new();
    let explain = ["explain", "optimized.hlo", "--target", "tpu-v3", "--offline"];
    // A terminal of half the width, and one that shows ASCII.
    let narrow = place.text(&["run", "step.hlo", "--random", "1"], &[("COLUMNS", "40")]);
    fits(&narrow, 40);
    let schedule = place.text(&["schedule", "warm.yaml"], &[("COLUMNS", "40"), ("LC_ALL", "C")]);
    fits(&schedule, 40);
    assert!(schedule.is_ascii() && schedule.contains("****"), "{schedule}");
    expect_file!["screens/run-40.txt"].assert_eq(&nines(&without_times(&narrow)));
    for set in [("LC_ALL", "C"), ("LC_ALL", "de_DE.ISO-8859-1"), ("TERM", "dumb")] {
        let text = place.text(&explain, &[set]);
        assert!(text.is_ascii() && text.contains("+--") && text.contains("| layer"), "{set:?}: {text}");
        fits(&text, 80);
        if set == ("LC_ALL", "C") {
            expect_file!["screens/explain-ascii.txt"].assert_eq(&text);
        }
        // Errors too, and helps.
        let output = place.command(&["emit", "naïve.yaml"], &[set]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.is_ascii() && error.contains("na\\u{ef}ve.yaml"), "{set:?}: {error}");
        assert!(place.text(&["fit", "--help"], &[set]).is_ascii());
    }
    // No limits: every column, whole names, whole sentences.
    let wide = place.text(&[&explain[..], &["--wide"]].concat(), &[]);
    for column in ["share", "padding", "source", "made by", "waited for by", "why f32"] {
        assert!(wide.contains(&format!(" {column} ")), "{column}: {wide}");
    }
    assert!(!wide.contains("left out") && !wide.contains('…'), "{wide}");
    assert!(wide.contains(" f32[1024,1024]{1,0:T(8,128)} ") && wide.contains(" %column (net/head), 1 more "), "{wide}");
    // A pipe without COLUMNS: tables of a hundred columns, and unbroken sentences for searching.
    let mut piped = place.command(&explain, &[]);
    let piped = String::from_utf8(piped.env_remove("COLUMNS").output().unwrap().stdout).unwrap();
    let tables: String =
        piped.lines().filter(|line| line.starts_with(['│', '┌', '╞', '└'])).map(|l| format!("{l}\n")).collect();
    fits(&tables, 100);
    assert!(
        piped.lines().any(|line| line.starts_with("HBM: ") && line.contains("temporaries alive at once")),
        "{piped}"
    );
}

#[test]
fn no_colours_where_nobody_wants_them() {
    let place = Place::new();
    for set in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")], &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "0")]] {
        for args in [&["--help"][..], &["bitz"], &["bits", "1"]] {
            let output = place.command(args, set).output().unwrap();
            assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{args:?} {set:?}");
        }
    }
}
