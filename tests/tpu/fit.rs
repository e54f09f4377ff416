//! `bf16scope fit` with the real TPU compiler and small models: which batches fit, which is best, caching, and errors
//! for wrong input.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::browser;
use support::home::cache_dir;
use tempfile::TempDir;

/// Compiles in a fifth of a second.
const SMALL: &str = "model: {kind: mlp, input: [8], n_classes: 2, hidden: [16]}\ntrain: {batch: 8}\n";
/// 8 million features: an example takes 64 MiB in f32, so that some hundred fit.
const WIDE: &str = "model: {kind: mlp, input: [4], n_classes: 2, hidden: [8388608]}\ntrain: {batch: 64}\n";
/// Compiles in a second; most of its memory is for activations.
const BROAD: &str = "model: {kind: mlp, input: [4], n_classes: 2, hidden: [131072]}\ntrain: {batch: 64}\n";
/// 1.6 billion weights.
const HUGE: &str = "model: {kind: mlp, input: [4], n_classes: 2, hidden: [40000, 40000]}\ntrain: {batch: 2}\n";

/// An image of 412 MB.
const WALL: &str = "model: {kind: cnn, input: [12000, 12000, 3], n_classes: 2}\ntrain: {batch: 1}\n";

/// A folder with models, and a separate cache.
struct Place {
    folder: TempDir,
    cache: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), cache: cache_dir() };
        let models = [("small.yaml", SMALL), ("broad.yaml", BROAD), ("wide.yaml", WIDE), ("huge.yaml", HUGE)];
        for (name, text) in models {
            fs::write(place.path(name), text).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
        command.current_dir(self.folder.path()).args(args).env("BF16SCOPE_CACHE", self.cache.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that ends with this code.
    fn stdout(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", utf8(&output.stderr));
        utf8(&output.stdout)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(&[args, &["--json"]].concat(), 0)).unwrap()
    }

    /// Standard error of a command that cannot run.
    fn error(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", utf8(&output.stdout));
        utf8(&output.stderr)
    }

    /// Complete records only: the file of a killed run has another extension.
    fn n_records(&self) -> usize {
        let is_record = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "compile");
        fs::read_dir(self.cache.path().join("compiles"))
            .map_or(0, |entries| entries.filter(|entry| entry.as_ref().is_ok_and(is_record)).count())
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn rows(series: &Value) -> Vec<&Value> {
    series["rows"].as_array().unwrap().iter().collect()
}

fn batches(series: &Value) -> Vec<u64> {
    rows(series).iter().map(|row| row["batch"].as_u64().unwrap()).collect()
}

#[test]
fn the_largest_batch_is_found_between_what_fits_and_what_does_not() {
    let place = Place::new();
    let fit = place.json(&["fit", "wide.yaml", "--target", "tpu-v2", "--precision", "f32"]);
    let series = &fit["series"][0];
    assert_eq!(batches(series), [64, 96, 112, 120, 128]);
    assert_eq!((&series["largest"], &series["is_capped"]), (&Value::from(112), &Value::from(false)));
    let [.., largest, next, _] = rows(series)[..] else { panic!("{fit}") };
    assert!(largest["fits"]["hbm"]["total"].as_i64() <= largest["fits"]["hbm"]["limit"].as_i64(), "{largest}");
    assert!(next["out_of_memory"]["needed"].as_u64() > next["out_of_memory"]["available"].as_u64(), "{next}");
    let answer = fit["answers"][0].as_str().unwrap();
    assert!(answer.starts_with("f32: up to 112, best 112 (1.") && answer.ends_with(" examples/Mcycle)."), "{answer}");
    // A coarser search takes fewer compiles.
    let coarse = place.json(&["fit", "wide.yaml", "--target", "tpu-v2", "--precision", "f32", "--multiple", "32"]);
    assert_eq!((batches(&coarse["series"][0]), &coarse["series"][0]["largest"]), (vec![64, 96, 128], &96.into()));
    // A negative outcome is cached too.
    let again = place.json(&["fit", "wide.yaml", "--target", "tpu-v2", "--precision", "f32"]);
    assert!(rows(&again["series"][0]).iter().all(|row| row["cached"] == true), "{again}");
}

#[test]
fn a_second_run_compiles_nothing_and_compile_shares_it() {
    let place = Place::new();
    let args = ["fit", "small.yaml", "--max-batch", "16", "--html", "fit.html", "--svg", "fit.svg"];
    let first = place.stdout(&args, 0);
    let n_records = place.n_records();
    assert_eq!(n_records, 4, "{first}");
    let page = fs::read_to_string(place.path("fit.html")).unwrap();
    let fit = place.json(&args[..4]);
    for series in fit["series"].as_array().unwrap() {
        assert_eq!((batches(series), &series["is_capped"]), (vec![8, 16], &Value::from(true)));
        assert!(rows(series).iter().all(|row| row["cached"] == true), "{series}");
    }
    assert_eq!(place.n_records(), n_records);
    let answer = first.lines().last().unwrap();
    assert_eq!(fit["answers"][0], answer);
    assert!(answer.starts_with("f32: up to 16 or more, best 16 (2,") && answer.contains(" × f32, with "), "{answer}");
    // A small model's memory is in MiB; its axis in GiB used to have only 0.00.
    assert!(page.contains(" MiB</text>") && !page.contains(">0 GiB</text>"), "{page}");
    // The page has the same content: the sentences, and a point for each compile and figure.
    assert!(page.contains(&support::escape(answer)), "{page}");
    assert_eq!(page.matches("<circle").count(), 8);
    assert!(fs::read_to_string(place.path("fit.svg")).unwrap().starts_with("<svg xmlns="));
    for elsewhere in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    let compiled = place.json(&["compile", "small.yaml", "--batch", "16", "--precision", "f32"]);
    let report = &compiled["reports"][0];
    let row = rows(&fit["series"][0])[1].clone();
    assert_eq!((&report["cached"], &report["hbm"]), (&Value::from(true), &row["fits"]["hbm"]));
    // With --fresh it compiles again, with the same results.
    let fresh = place.json(&["fit", "small.yaml", "--max-batch", "8", "--precision", "f32", "--fresh"]);
    // It also tried a batch below the largest allowed one, which is the best.
    assert_eq!(batches(&fresh["series"][0]), [4, 8]);
    let fresh = rows(&fresh["series"][0])[1].clone();
    assert_eq!(
        (&fresh["cached"], &fresh["fits"]["cycles"]),
        (&Value::from(false), &rows(&fit["series"][0])[0]["fits"]["cycles"])
    );
}

#[test]
fn the_page_works_in_a_browser() {
    let place = Place::new();
    let args = ["fit", "wide.yaml", "--precision", "f32,bf16", "--max-batch", "128", "--multiple", "32"];
    place.stdout(&[&args[..], &["--html", "fit.html"]].concat(), 0);
    let fit = place.json(&args);
    let html = fs::read_to_string(place.path("fit.html")).unwrap();
    // A user sorts by memory, largest first, filters, and hovers over the marked points of the plot.
    let user = "<script>
      const table = document.querySelector('section');
      const texts = (rows, at) => [...rows].map(row => row.cells[at].textContent).join(' ');
      const titles = [...table.querySelectorAll('th')].map(head => head.textContent);
      const rows = table.querySelectorAll('tbody tr');
      const search = table.querySelector('input');
      search.value = 'best';
      search.dispatchEvent(new Event('input', { bubbles: true }));
      const shown = [...table.querySelectorAll('tbody tr')].filter(row => row.offsetParent !== null);
      const best = [...document.querySelectorAll('circle')].filter(c => c.getAttribute('r') == 6);
      document.title = [
        texts(rows, titles.indexOf('batch')),
        texts(shown, titles.indexOf('batch')),
        best.map(c => c.textContent.split(':')[0]).join(', '),
        document.querySelectorAll('.cross').length,
        document.querySelectorAll('line.limit').length,
      ].join(' / ');
    </script>\n</body>";
    fs::write(place.path("fit.html"), html.replace("</body>", user)).unwrap();
    let all: Vec<u64> = fit["series"].as_array().unwrap().iter().flat_map(batches).collect();
    let best = [0, 1].map(|at| fit["series"][at]["best"].as_u64().unwrap());
    // Once in the plot of memory, and once in that of speed.
    let marked = ["f32", "bf16"].iter().zip(best).map(|(name, best)| format!("{name} at batch {best}"));
    let marked: Vec<String> = marked.clone().chain(marked).collect();
    let join = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<String>>().join(" ");
    // f32 does not fit at 128: a cross in each plot.
    let expected = format!("{} / {} / {} / 2 / 1", join(&all), join(&best), marked.join(", "));
    let answer = support::escape(fit["answers"][0].as_str().unwrap());
    let expected_texts = [
        "<b>96</b><span>tpu-v2, f32: largest batch</span>",
        "<b>128 or more</b><span>tpu-v2, bf16: largest batch</span>",
        &answer,
    ];
    // The same in the markup, which is complete without its script.
    for text in expected_texts {
        assert!(html.contains(text), "{text} is not in\n{html}");
    }
    let points: Vec<&str> = html.split("<circle ").skip(1).filter(|point| point.contains(" r=\"6\"")).collect();
    let names: Vec<&str> = points.iter().map(|point| point.split(['>', ':']).nth(2).unwrap()).collect();
    assert_eq!(names, marked, "{points:?}");
    assert_eq!((html.matches("class=\"cross\"").count(), html.matches("<line class=\"limit\"").count()), (2, 1));
    for batch in &all {
        assert!(html.contains(&format!("data-v=\"{batch}\">{batch}</td>")), "{batch}: {html}");
    }
    let Some(seen) = browser::dom(&place.path("fit.html")) else { return };
    assert!(seen.contains(&format!("<title>{expected}</title>")), "{expected}\n{seen}");
    for text in expected_texts {
        assert!(seen.contains(text), "{text} is not in\n{seen}");
    }
}

#[test]
fn a_run_that_is_killed_goes_on_where_it_stopped() {
    let place = Place::new();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    let args = ["fit", digits.to_str().unwrap(), "--precision", "bf16", "--max-batch", "256"];
    let mut n_before = 0;
    for signal in ["KILL", "INT"] {
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Four compiles of a second each: it is in the middle of one when the next record appears.
        while place.n_records() <= n_before {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
        let killed = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "{signal}");
        if signal == "INT" {
            assert_eq!(output.status.code(), Some(130));
            let stderr = utf8(&output.stderr);
            assert!(
                stderr.ends_with(
                    "bf16scope: stopped; what was compiled is kept, and the same command continues from there\n"
                ),
                "{stderr}"
            );
        }
        n_before = place.n_records();
    }
    let fit = place.json(&args);
    let n_cached = rows(&fit["series"][0]).iter().filter(|row| row["cached"] == true).count();
    assert_eq!((n_cached, place.n_records()), (n_before, 4), "{fit}");
    let whole = place.json(&args);
    let figures = |fit: &Value| rows(&fit["series"][0]).iter().map(|row| row["fits"].clone()).collect::<Vec<Value>>();
    assert_eq!(figures(&whole), figures(&fit));
}

#[test]
fn what_does_not_fit_at_batch_1_says_what_is_large() {
    let place = Place::new();
    let text = place.stdout(&["fit", "huge.yaml", "--precision", "bf16"], 1);
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| *line == "bf16: does not fit at batch 1.").unwrap();
    assert!(
        lines[at + 1].starts_with("tpu-v2, bf16 at batch 1: does not fit: needs 1")
            && lines[at + 1].ends_with(" of 7.48 GiB. Its largest buffers, explained on tpu-v5p, where it fits:"),
        "{text}"
    );
    // The weights and their momentum: 40,000² floats, padded to tiles of 128. Their gradient is never materialised.
    let largest: Vec<&str> = lines[at + 2..].iter().map(|line| line.trim()).collect();
    let kernel = "6113.3 MiB  argument   f32[40000,40000]{1,0:T(8,128)}  mlp/dense2/kernel";
    assert!(largest[0].starts_with(&format!("{kernel} (huge.yaml:")), "{text}");
    assert!(largest[1].starts_with(&format!("{kernel}/momentum (crates/model/src/optim/slot.rs:")), "{text}");

    // An example of 12,000 × 12,000 pixels fits no TPU: then the program's own values are listed, without padding.
    fs::write(place.path("wall.yaml"), WALL).unwrap();
    let args = ["fit", "wall.yaml", "--precision", "f32", "--json"];
    let fit: Value = serde_json::from_str(&place.stdout(&args, 1)).unwrap();
    let large = &fit["series"][0]["too_large"];
    assert_eq!((&large["on"], &large["values"][0]["shape"]), (&Value::Null, &"f32[1,12000,12000,32]".into()), "{fit}");
    let answers = fit["answers"].to_string();
    assert!(answers.contains(" of 7.48 GiB. The largest values of the program:"), "{answers}");
}

#[test]
fn modules_of_several_batches_are_a_model_too() {
    let place = Place::new();
    fs::create_dir(place.path("exported")).unwrap();
    for batch in ["16", "8"] {
        let file = format!("exported/b{batch}.hlo");
        place.stdout(&["emit", "small.yaml", "--batch", batch, "--precision", "f32", "-o", &file], 0);
    }
    let error = place.error(&["fit", "exported"]);
    let expected = "bf16scope: exported holds modules, and which of their axes is the batch must be said\nhelp: use --batch-dim \
                    images:0, whose size differs from module to module: 8, 16\n";
    assert_eq!(error, expected);
    // The number of the parameter with the images, as the message lists them.
    let images = place.stdout(&["emit", "exported/b8.hlo"], 0);
    let images = images.lines().find(|line| line.contains("images") && line.contains(" parameter(")).unwrap();
    let number = images.split(" parameter(").nth(1).unwrap().split(')').next().unwrap();
    let fit = place.json(&["fit", "exported", "--batch-dim", &format!("{number}:0"), "--target", "tpu-v3"]);
    let series = &fit["series"][0];
    assert_eq!(
        (batches(series), &series["largest"], &series["precision"]),
        (vec![8, 16], &16.into(), &"as given".into())
    );
    // The same program from the model has the same cache key.
    let model = place.json(&["fit", "small.yaml", "--target", "tpu-v3", "--precision", "f32", "--max-batch", "16"]);
    let figures =
        |fit: &Value| rows(&fit["series"][0]).iter().map(|row| row["fits"]["hbm"].clone()).collect::<Vec<Value>>();
    assert_eq!(figures(&fit), figures(&model));
    // Beside their lowered forms, and the lowered forms alone.
    let dim = format!("{number}:0");
    let args = ["fit", "exported", "--batch-dim", &dim, "--target", "tpu-v3"];
    let both = place.json(&[&args[..], &["--compare"]].concat());
    assert_eq!(figures(&both), figures(&fit));
    let lowered = &both["series"][1];
    assert_eq!((batches(lowered), &lowered["precision"]), (vec![8, 16], &"default".into()));
    assert_ne!(rows(lowered)[1]["fits"]["bytes_accessed"], rows(&both["series"][0])[1]["fits"]["bytes_accessed"]);
    let answers = both["answers"][0].as_str().unwrap();
    assert!(answers.starts_with("as given: up to 16") && answers.contains(" default: up to 16"), "{answers}");
    let alone = place.json(&[&args[..], &["--policy", "default"]].concat());
    assert_eq!((alone["series"].as_array().unwrap().len(), &alone["series"][0]["precision"]), (1, &"default".into()));
    assert_eq!(figures(&alone), rows(lowered).iter().map(|row| row["fits"]["hbm"].clone()).collect::<Vec<Value>>());
    let error = place.error(&["fit", "exported", "--batch-dim", &dim, "--precision", "bf16"]);
    assert!(error.contains("help: --compare puts them beside their lowered forms, and --policy says how"), "{error}");
    let error = place.error(&["fit", "exported", "--batch-dim", &dim, "--tune", "none"]);
    assert_eq!(error, "bf16scope: --tune chooses among a model's programs, and exported holds modules\n");
    let error = place.error(&["fit", "small.yaml", "--policy", "O2"]);
    assert!(error.starts_with("bf16scope: --policy O2 lowers a module, and small.yaml is a model"), "{error}");

    let error = place.error(&["fit", "exported", "--batch-dim", "nothing:0"]);
    assert!(
        error.starts_with("bf16scope: exported/b16.hlo\n  caused by: no parameter `nothing`: it has parameters 0 `"),
        "{error}"
    );
    let error = place.error(&["fit", "exported", "--batch-dim", &format!("{number}:7")]);
    assert!(error.contains("has 2 axes, and axis 7 was named"), "{error}");
    let error = place.error(&["fit", "exported", "--batch-dim", &format!("{number}:1")]);
    assert!(
        error.starts_with("bf16scope: exported/b16.hlo and exported/b8.hlo both have batch 8 in --batch-dim "),
        "{error}"
    );
    let error = place.error(&["fit", "exported/b8.hlo"]);
    assert!(
        error.starts_with("bf16scope: exported/b8.hlo is one module, of one batch, and fit looks for a batch\nhelp: "),
        "{error}"
    );
    // One module of jax.export with a symbolic batch can be compiled at any batch.
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/stablehlo/");
    fs::copy(format!("{data}symbolic.jax"), place.path("step.jax")).unwrap();
    fs::copy(format!("{data}symbolic_32.mlir"), place.path("step_32.mlir")).unwrap();
    let any = place.json(&["fit", "step.jax", "--batch-dim", "b", "--target", "tpu-v2", "--max-batch", "32"]);
    let compiled = place.json(&["compile", "step_32.mlir", "--target", "tpu-v2"]);
    let of_32 = rows(&any["series"][0]).into_iter().find(|row| row["batch"] == 32).unwrap();
    assert_eq!((&any["model"], batches(&any["series"][0]).len()), (&"step.jax".into(), 6), "1, 2, 4, 8, 16 and 32");
    assert_eq!(of_32["fits"]["hbm"], compiled["reports"][0]["hbm"], "{compiled}");
    let error = place.error(&["fit", "step.jax", "--batch-dim", "q"]);
    assert!(error.contains("no symbolic dimension is called `q`"), "{error}");
    let error = place.error(&["fit", "step.jax", "--batch-dim", "b", "--dim", "b=4"]);
    assert!(error.contains("\nhelp: name another dimension as --batch-dim\n"), "{error}");
    assert!(error.contains("`b` is the batch, and has a size of its own already"), "{error}");
    let error = place.error(&["fit", "exported", "--batch-dim", "b"]);
    assert!(error.contains("--batch-dim b names a symbolic dimension, and exported is a folder"), "{error}");
    fs::create_dir(place.path("empty")).unwrap();
    let error = place.error(&["fit", "empty", "--batch-dim", "0:0"]);
    assert!(error.starts_with("bf16scope: empty holds no modules, HLO or StableHLO\n"), "{error}");
    let error = place.error(&["fit", "exported", "--precision", "bf16"]);
    assert!(
        error.starts_with("bf16scope: --precision chooses among a model's programs, and exported holds modules\n"),
        "{error}"
    );
}

#[test]
fn levers_are_measured_beside_the_plain_program() {
    let place = Place::new();
    let args = ["fit", "broad.yaml", "--levers", "--batch", "32"];
    let text = place.stdout(&[&args[..], &["--html", "levers.html"]].concat(), 0);
    assert!(text.starts_with("broad.yaml: training step, batch 32, plain in f32, one core of tpu-v2\n"), "{text}");
    let fit = place.json(&args);
    let levers = fit["targets"][0]["levers"].as_array().unwrap();
    let [plain, scope, ..] = &levers[..] else { panic!("{fit}") };
    assert_eq!((&plain["lever"], &scope["lever"]), (&"plain".into(), &"bf16 scope".into()));
    let total = |lever: &Value| lever["fits"]["hbm"]["total"].as_i64().unwrap();
    assert!(total(scope) < total(plain), "{fit}");
    // Every lever is measured, or has a reason; those that apply are also combined.
    for lever in levers {
        assert!(lever["cached"] == true || lever["not_applicable"].is_string(), "{lever}");
    }
    assert_eq!(levers.last().unwrap()["lever"], "together");
    assert!(text.lines().last().unwrap().starts_with("most memory saved: "), "{text}");
    let page = fs::read_to_string(place.path("levers.html")).unwrap();
    assert!(page.contains("<td>bf16 scope</td>"), "{page}");
    let error = place.error(&["fit", "wide.yaml", "--levers", "--precision", "f32,bf16"]);
    assert!(
        error.starts_with("bf16scope: --levers compiles beside one plain program, and 2 precisions were named\n"),
        "{error}"
    );
    let error = place.error(&["fit", "wide.yaml", "--batch", "8"]);
    assert!(error.contains("--levers"), "{error}");
}

#[test]
fn a_model_that_accumulates_has_batches_of_whole_parts() {
    let place = Place::new();
    let text = "model: {kind: mlp, input: [8], n_classes: 2, hidden: [16]}\ntrain: {batch: 12, accumulate: 3}\n";
    fs::write(place.path("parts.yaml"), text).unwrap();
    let args = ["fit", "parts.yaml", "--precision", "f32", "--max-batch"];
    let fit = place.json(&[&args[..], &["24"]].concat());
    assert_eq!(batches(&fit["series"][0]), [12, 24]);
    let error = place.error(&[&args[..], &["2"]].concat());
    assert_eq!(error, "bf16scope: --max-batch 2 is below 3, of which every batch of this model is a multiple\n");
}

#[test]
fn wrong_targets_say_which_there_are() {
    let place = Place::new();
    let error = place.error(&["fit", "small.yaml", "--target", "tpu-v2,tpu-3"]);
    let names = "tpu-v2, tpu-v3, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e";
    assert!(
        error.contains(&format!("no target `tpu-3`: expected {names}")) && error.contains("did you mean `tpu-v3`?"),
        "{error}"
    );
    let error = place.error(&["fit", "small.yaml", "--target", "tpu-v2:3x5"]);
    let expected = "bf16scope: target tpu-v2:3x5: the compiler makes no such grid of chips: v2 comes in boards of 2x2 chips, so \
                    both axes are even\nhelp: use tpu-v2:4x6 or tpu-v2\ncompiler: ";
    assert!(error.starts_with(expected), "{error}");
    let error = place.error(&["fit", "small.yaml", "--target", "cpu"]);
    assert!(
        error.starts_with("bf16scope: target cpu: the report needs the TPU compiler, and this is not a TPU\n"),
        "{error}"
    );
    assert_eq!(place.n_records(), 0);
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// 128 examples do not fit in f32, as the largest batch shows, and fit with a bf16 scope.
    ///
    /// Compiles each lever again.
    #[cfg_attr(feature = "long-tests", test)]
    fn levers_make_a_batch_fit() {
        let text = Place::new().stdout(&["fit", "wide.yaml", "--levers", "--batch", "128"], 0);
        assert!(text.lines().last().unwrap().starts_with("plain does not fit; it does with bf16 scope"), "{text}");
    }
}
