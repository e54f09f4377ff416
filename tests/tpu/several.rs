//! Modules for several cores: compiled for all of them, with one core's share reported, and their collectives listed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn bf16scope(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bf16scope")).args(args).output().unwrap()
}

/// The single report of a compile, as JSON.
#[track_caller]
fn report(module: &Path, target: &str) -> Value {
    // JAX's figures were recorded without excess precision.
    let args = ["compile", module.to_str().unwrap(), "--target", target, "--json", "--excess-precision", "off"];
    let output = bf16scope(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["devices"], answer["reports"][0]["devices"]);
    answer["reports"][0].clone()
}

/// The standard error of a command that cannot run.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = bf16scope(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    text
}

/// `all-reduce add f32 8 1 1048580`: op, reduction, dtype, participants, count, bytes.
fn collectives(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let line =
        |it: &Value| ["op", "reduction", "dtype", "participants", "n", "n_bytes"].map(|name| text(&it[name])).join(" ");
    report["collectives"].as_array().unwrap().iter().map(line).collect()
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_step_over_eight_cores_has_the_figures_that_jax_has() {
    let jax: Value = serde_json::from_slice(&std::fs::read(data("several_cores/jax.json")).unwrap()).unwrap();
    let all: Vec<Value> = ["f32", "bf16", "f32_one"]
        .into_iter()
        .map(|name| {
            let report = report(&data(&format!("several_cores/{name}.hlo.txt")), "tpu-v3");
            for (figure, expected) in jax[name].as_object().unwrap() {
                let figure = if figure == "seconds" { "optimal_seconds" } else { figure };
                let reported = if report[figure].is_null() { &report["hbm"][figure] } else { &report[figure] };
                assert_eq!(reported, expected, "{name}: {figure}");
            }
            report
        })
        .collect();
    let [eight, bf16, one] = &all[..] else { panic!() };
    assert_eq!(eight["devices"], serde_json::json!({"replicas": 1, "partitions": 8}));
    assert_eq!(one["devices"], serde_json::json!({"replicas": 1, "partitions": 1}));
    // The batch is sharded, the weights are not.
    let weights = 2 * 4 * 256 * 512;
    let inputs = |report: &Value| report["hbm"]["arguments"].as_i64().unwrap() - weights;
    assert_eq!(inputs(one), 8 * inputs(eight));
    // A run covers all cores, and its bytes are not multiplied by their number.
    let rate =
        |report: &Value| report["examples_per_second"].as_f64().unwrap() * report["step"]["seconds"].as_f64().unwrap();
    assert!((rate(eight) - 1.0).abs() < 1e-12);
    // Both gradients and the loss in one all-reduce.
    assert_eq!(collectives(eight), [format!("all-reduce add f32 8 1 {}", weights + 4)]);
    assert_eq!(
        collectives(bf16),
        [format!("all-reduce add bf16 8 1 {}", weights / 2), "all-reduce add f32 8 1 4".into()]
    );
    assert_eq!(collectives(one), [""; 0]);
}

#[test]
fn the_screen_says_the_mesh_and_sums_in_bf16() {
    let module = data("several_cores/bf16.hlo.txt");
    let module = module.to_str().unwrap();
    let output = bf16scope(&["compile", module, "--target", "tpu-v3:4x4"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let first = format!(
        "{module}: one core's share of 8 partitions, on 8 of the 32 cores of tpu-v3:4x4, with excess precision\n"
    );
    assert!(text.starts_with(&first), "{text}");
    for part in [
        "runs/s  ",
        "A run is of 8 cores at once. Arguments and outputs are one core's shards.\n",
        "collectives of one run, 512.0 KiB a core, 5 us\n",
        "Their time is a model's: a ring over the chips of a group by links of 82 GB/s",
        "warning: 1 all-reduce sums in bf16: ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("per core") && !text.contains("per board"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.chars().count() <= 80), "{text}");
    let output = bf16scope(&["explain", module, "--target", "tpu-v3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let first =
        format!("{module}: one core's share of 8 partitions, on the 8 cores of tpu-v3, with excess precision\n");
    assert!(text.starts_with(&first), "{text}");
    // Off, every rounding is kept: another cache key, without a remark.
    let output = bf16scope(&["compile", module, "--target", "tpu-v3", "--excess-precision", "off", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["excess_precision"], false);
}

const REPLICAS: &str = "HloModule replicas, replica_count=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  w = f32[256,512]{1,0} parameter(0)
  x = f32[512,256]{1,0} parameter(1)
  y = f32[512,512]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[256,512]{1,0} dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  s = f32[256,512]{1,0} all-reduce(g), replica_groups={}, to_apply=add
  ROOT n = f32[256,512]{1,0} subtract(w, s)
}
";

#[test]
fn replicas_are_compiled_for_as_many_cores() {
    let folder = tempfile::tempdir().unwrap();
    let eight = written(&folder, "eight.hlo", REPLICAS);
    let report = report(&eight, "tpu-v2");
    assert_eq!(report["devices"], serde_json::json!({"replicas": 8, "partitions": 1}));
    assert_eq!(collectives(&report), ["all-reduce add f32 8 1 524288"]);
    // The compiler gives no cycles; four chips form a ring in both directions, with links of 62 GB/s.
    let seconds = report["collectives"][0]["seconds"].as_f64().unwrap();
    assert_eq!(report["collectives"][0]["cycles"], 0);
    assert!((seconds / (1.5 * 524_288.0 / 124e9) - 1.0).abs() < 1e-12, "{seconds}");
    // Without a replica count: one is assumed, with a warning.
    let unsaid = written(&folder, "unsaid.hlo", &REPLICAS.replace(", replica_count=8", ""));
    let output = bf16scope(&["compile", unsaid.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("main/%s is over all devices, and nothing says how many there are"), "{text}");
}

#[test]
fn a_slice_that_is_too_small_is_refused_with_one_that_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    for (count, target, expected) in [
        (
            "replica_count=4, num_partitions=8",
            "tpu-v3",
            "tpu-v3: the module is for 32 cores (4 replicas of 8 partitions), and this slice has 8\nhelp: use --target \
             tpu-v3:4x4, the smallest slice of v3 that is enough\n",
        ),
        (
            "replica_count=1024",
            "tpu-v2",
            "tpu-v2: the module is for 1024 cores (1024 replicas), and this slice has 8\nhelp: no slice of v2 has as many: \
             export the module for fewer\n",
        ),
    ] {
        let path = written(&folder, "m.hlo", &REPLICAS.replace("replica_count=8", count));
        for command in ["compile", "explain"] {
            let text = refused(&[command, path.to_str().unwrap(), "--target", target]);
            assert_eq!(text, format!("bf16scope: {expected}"), "{command}");
        }
    }
}

#[test]
fn what_jax_shards_is_lowered_and_compiled_with_its_shardings() {
    let folder = tempfile::tempdir().unwrap();
    for module in ["xla_today/jax_cpu_gspmd.before.txt", "xla_today/jax_tpu_v3_sharded.before.txt"] {
        let lowered = folder.path().join("lowered.hlo.pb");
        let output = bf16scope(&["lower", data(module).to_str().unwrap(), "-o", lowered.to_str().unwrap()]);
        assert!(output.status.success(), "{module}: {}", String::from_utf8_lossy(&output.stderr));
        let [before, after] = [data(module), lowered].map(|path| report(&path, "tpu-v3"));
        assert_eq!(after["devices"], serde_json::json!({"replicas": 1, "partitions": 8}), "{module}");
        // Shards as before: a mesh of 4 × 2, the batch over four, the hidden dimension over two.
        assert_eq!(after["hbm"]["arguments"], before["hbm"]["arguments"], "{module}");
        // The same communication, and every sum in f32 as before: the gradients' over four, a layer's over two.
        let expected = ["all-reduce add f32 4 1 1540", "all-reduce add f32 2 1 64"];
        assert_eq!(collectives(&before), expected, "{module}");
        assert_eq!(collectives(&after), expected, "{module}");
    }
}

#[test]
fn a_lowered_step_sums_its_gradients_in_f32() {
    let folder = tempfile::tempdir().unwrap();
    let policy = written(&folder, "policy.yaml", "sums: as_computed\n");
    let module = data("several_cores/f32.hlo.txt");
    let [sums_f32, as_computed] = [None, Some(policy.to_str().unwrap())].map(|policy| {
        let lowered = folder.path().join("lowered.hlo.pb");
        let mut args = vec!["lower", module.to_str().unwrap(), "-o", lowered.to_str().unwrap()];
        args.extend(policy.into_iter().flat_map(|policy| ["--policy", policy]));
        assert!(bf16scope(&args).status.success());
        let output = bf16scope(&["compile", lowered.to_str().unwrap(), "--target", "tpu-v3"]);
        let is_warned = String::from_utf8(output.stdout).unwrap().contains("warning: 1 all-reduce sums in bf16");
        assert_eq!(is_warned, policy.is_some());
        report(&lowered, "tpu-v3")
    });
    let gradients = 4 * 2 * 256 * 512;
    // Both gradients and the loss in one all-reduce.
    assert_eq!(collectives(&sums_f32), [format!("all-reduce add f32 8 1 {}", gradients + 4)]);
    assert_eq!(
        collectives(&as_computed),
        [format!("all-reduce add bf16 8 1 {}", gradients / 2), "all-reduce add f32 8 1 4".into()]
    );
    // This takes the bytes of f32 gradients instead of bf16 ones, and nothing else.
    let temporaries = |report: &Value| report["hbm"]["temporaries"].as_i64().unwrap();
    assert_eq!(temporaries(&sums_f32) - temporaries(&as_computed), gradients / 2);
}

#[test]
fn what_was_compiled_already_is_told_so() {
    let module = data("xla_today/jax_tpu_v3_sharded.after.txt");
    let module = module.to_str().unwrap();
    let lowered = std::env::temp_dir().join("never-written.hlo.pb");
    for args in [
        &["compile", module][..],
        &["run", module, "--random", "1"],
        &["audit", module, "--random", "1"],
        &["lower", module, "-o", lowered.to_str().unwrap()],
    ] {
        let text = refused(args);
        assert!(
            text.contains("XLA's TPU compiler compiled this module already (is_scheduled=true)"),
            "{args:?}: {text}"
        );
        assert!(text.contains("one device's part of a program over 8 partitions"), "{args:?}: {text}");
        assert!(text.contains("help: give the module from before optimization"), "{args:?}: {text}");
    }
    let output = bf16scope(&["explain", module, "--target", "tpu-v3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(": one core's share of 8 partitions, on the 8 cores of tpu-v3\n"), "{text}");
}

#[test]
fn fit_refuses_batches_that_lie_over_cores() {
    let folder = tempfile::tempdir().unwrap();
    written(&folder, "a.hlo", REPLICAS);
    let text = refused(&["fit", folder.path().to_str().unwrap(), "--batch-dim", "x:0"]);
    assert!(text.contains("has replica_count=8 for 8 devices, and fit is about one core"), "{text}");
    assert!(text.contains("help: `bf16scope compile` says what one core's share of it takes"), "{text}");
}

/// The partitioner sums the gradients of bf16 weights in bf16, and the compiler moves casts behind sums. In our own
/// programs no sum is in less than f32, on a board and on 512 cores.
#[test]
fn the_replicas_of_a_model_sum_gradients_in_f32() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = "vocabulary: 16, length: 8, max_length: 8, features: 128, heads: 2, hidden: 128, layers: 1";
    let words = written(&folder, "words.yaml", &format!("model: {{kind: transformer, {sizes}}}\n"));
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    for (model, target, n) in
        [(&digits, "tpu-v3", 8), (&words, "tpu-v3", 8), (&digits, "tpu-v3:16x16", 512), (&words, "tpu-v3:16x16", 512)]
    {
        let (path, n) = (model.to_str().unwrap(), n.to_string());
        let args = ["compile", path, "--target", target, "--devices", &n, "--batch", "1024", "--json"];
        let output = bf16scope(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let report = &answer["reports"][0];
        assert_eq!(report["devices"], serde_json::json!({"replicas": n.parse::<u32>().unwrap(), "partitions": 1}));
        let ops = collectives(report);
        assert!(!ops.is_empty(), "{path}: replicas say nothing to each other");
        assert!(ops.iter().all(|it| it.starts_with(&format!("all-reduce add f32 {n} "))), "{path}: {ops:?}");
    }
}

/// Impossible meshes are errors before the compiler is called.
#[test]
fn a_mesh_that_does_not_divide_the_slice_or_the_batch_is_refused() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    let digits = digits.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let split = folder.path().join("split.yaml");
    let text = "model: {kind: mlp, input: [4], n_classes: 2, hidden: [8]}\n\
                mesh:\n  data: 4\n  model: 2\n  split: {'*/dense1/kernel': 1}\n";
    std::fs::write(&split, text).unwrap();
    let split = split.to_str().unwrap();
    for (args, expected) in [
        (&["plan", split][..], "each replica is split over 2\n  4 |   model: 2\n"),
        (
            &["plan", split],
            "help: leave `model` and `split` out for plan; what a step with them takes on a slice of 32 cores says `bf16scope compile ",
        ),
        (&["plan", split], "split.yaml --target tpu-v3:4x4 --mesh data=16,model=2 --batch 32`"),
        (&["fit", split, "--devices", "8"], "fit lays a batch over replicas of one device each, and here"),
        (
            &["compile", digits, "--target", "tpu-v3:4x4", "--mesh", "data=12", "--batch", "96"],
            "a mesh of 12 devices does not divide tpu-v3:4x4, which has 32 cores\nhelp: use all of them, or a part of the slice, \
             such as 8",
        ),
        (
            &["explain", digits, "--target", "tpu-v3", "--mesh", "data=8", "--batch", "12"],
            "which do not divide the batch of 12",
        ),
        (&["fit", digits, "--target", "tpu-v3", "--devices", "3"], "a mesh of 3 devices does not divide tpu-v3"),
        (&["compile", digits, "--target", "tpu-v3", "--mesh", "batch=2"], "there is no axis `batch`"),
        (
            &["compile", digits, "--target", "tpu-v3", "--mesh", "model=2"],
            "2 partitions, and nothing is split over them",
        ),
        (&["emit", digits, "--split", "images=1"], "help: add it, such as --mesh data=4,model=2"),
        (
            &["emit", digits, "--batch", "8", "--mesh", "data=4,model=2", "--split", "*/queries/kernel=1"],
            "`*/queries/kernel` matches no parameter",
        ),
        (&["fit", digits, "--mesh", "model=2"], "fit lays a batch over replicas"),
        (
            &["compile", digits, "--mesh", "data=16", "--batch", "64"],
            "help: use --target tpu-v2:2x4, the smallest slice",
        ),
        (&["compile", digits, "--program", "infer", "--mesh", "data=8"], "--mesh is for a training step"),
        (
            &["plan", digits, "--batch", "12", "--devices", "8"],
            "there is nothing to plan: A batch of 12 does not split",
        ),
        (&["plan", digits, "--target", "tpu-v4"], "how fast its chips' links are is not known here"),
        (&["plan", digits, "--target", "tpu-v3:4x4"], "help: give tpu-v3 and --devices 32"),
    ] {
        let text = refused(args);
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

/// Searches one core's part, for a step whose gradients eight cores sum.
#[test]
fn fit_over_a_slice_finds_the_part_of_a_core() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    let args = ["fit", digits.to_str().unwrap(), "--target", "tpu-v3", "--precision", "bf16", "--max-batch", "4"];
    let output = bf16scope(&[&args[..], &["--mesh", "data=8", "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["devices"], 8);
    let series = &answer["series"][0];
    assert_eq!((&series["largest"], &series["is_capped"]), (&Value::from(4), &Value::Bool(true)));
    for row in series["rows"].as_array().unwrap() {
        assert_eq!(row["fits"]["devices"], serde_json::json!({"replicas": 8, "partitions": 1}), "{row}");
        assert!(collectives(&row["fits"])[0].starts_with("all-reduce add f32 8 "), "{row}");
    }
}

/// The largest part and the middle one are compiled, and the smallest predicted, within the limit on compiles.
#[test]
fn a_plan_compiles_as_much_as_it_may_and_predicts_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("plan.html");
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    let args = ["plan", digits.to_str().unwrap(), "--batch", "512", "--target", "tpu-v3", "--precision", "bf16"];
    let more = ["--devices", "8,32,128", "--compiles", "2", "--json", "--html", page.to_str().unwrap()];
    let cache = folder.path().join("cache");
    let plugins = bf16scope(&["plugins", "where", "tpu"]);
    let library = String::from_utf8(plugins.stdout).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_bf16scope"))
        .args(args.iter().chain(&more))
        .env("BF16SCOPE_CACHE", &cache)
        .env("TPU_LIBRARY_PATH", library.trim())
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("up to 2 compiles") && message.contains("2 of 2: bf16 for tpu-v3:4x4, 16 a core in "),
        "{message}"
    );
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let by = |at: usize| (answer["rows"][at]["n_cores"].clone(), answer["rows"][at]["known"]["by"].clone());
    let expected = [(8, "compiled"), (32, "compiled"), (128, "predicted")];
    assert_eq!([by(0), by(1), by(2)], expected.map(|(n, by)| (Value::from(n), Value::from(by))));
    for row in answer["rows"].as_array().unwrap() {
        assert_eq!(row["fits"], "yes", "{row}");
        assert!(
            row["examples_per_second"].as_f64().unwrap() > 0.0 && row["efficiency"].as_f64().unwrap() <= 1.0,
            "{row}"
        );
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Which slice: ") && page.contains("predicted from too few compiled rows"), "{page}");
}
