//! Modules from files through the TPU compiler, which runs in a child process: what ends it ends the child alone, and what
//! is compiled for fewer devices than it asks for is said.

use crate::support;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::home::cache_dir;

fn on(module: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("batches")).unwrap();
    std::fs::write(folder.path().join("m.hlo"), module).unwrap();
    std::fs::write(folder.path().join("batches/m.hlo"), module).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
    command.args(args).args(["--target", "tpu-v2"]).current_dir(folder.path()).output().unwrap()
}

#[test]
fn what_ends_the_tpu_compiler_is_an_error() {
    let custom_call = |operand: &str, target: &str| {
        format!(
            "HloModule custom\n\nENTRY main {{\n  x = f32[4]{{0}} parameter(0)\n  n = s32[] constant(2)\n  y = f32[<=4]{{0}} \
             set-dimension-size(x, n), dimensions={{0}}\n  ROOT z = (f32[], f32[4]{{0}}) custom-call({operand}), \
             custom_call_target=\"{target}\"\n}}\n"
        )
    };
    // A CHECK of the compiler; and a call into nowhere, so that how it ends is chance.
    for (module, said) in [
        (custom_call("y", "SliceToDynamic"), "Check failed: !subshape.IsTuple()"),
        (custom_call("x", "TopK"), "the child process ended with signal "),
    ] {
        for args in [&["compile", "m.hlo"][..], &["explain", "m.hlo"], &["fit", "batches", "--batch-dim", "0:0"]] {
            let output = on(&module, args);
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
            assert!(text.contains("`custom`") && text.contains(said), "{args:?}: {text}");
            assert!(text.contains("help: XLA checks some rules by ending its process"), "{args:?}: {text}");
        }
    }
}

#[test]
fn a_module_for_several_devices_is_refused() {
    let halves = "HloModule halves, num_partitions=2\n\nENTRY main {\n  x = f32[4]{0} parameter(0)\n  ROOT y = f32[4]{0} negate(x)\n}\n";
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/xla_today");
    let of_jax = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (shardy, gspmd) = (of_jax("jax_tpu_v3_sharded.before.txt"), of_jax("jax_cpu_gspmd.before.txt"));
    for (module, wants) in [
        (halves, "num_partitions=2 for 2 devices"),
        (shardy.as_str(), " for 8 devices"),
        (gspmd.as_str(), " for 8 devices"),
    ] {
        for args in [&["compile", "m.hlo"][..], &["explain", "m.hlo"], &["fit", "batches", "--batch-dim", "0:0"]] {
            let output = on(module, args);
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
            assert!(text.contains(wants) && text.contains("compiled for one core"), "{args:?}: {text}");
            assert!(text.contains("help: export the step that one device does"), "{args:?}: {text}");
        }
    }
}

/// JAX's training step of a small MLP in f32, as it is and lowered.
#[test]
fn a_module_stands_beside_its_lowered_forms() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), cache_dir());
    let step = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/xla_today/jax_tpu_v2_step.before.txt");
    std::fs::copy(step, folder.path().join("step.hlo")).unwrap();
    let run_with = |auto: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
        command.args(args).args(["step.hlo", "--wide"]).current_dir(folder.path());
        let output = command.env("BF16SCOPE_CACHE", cache.path()).env("BF16SCOPE_AUTO", auto).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
        (String::from_utf8(output.stdout).unwrap(), error)
    };
    let run = |args: &[&str]| run_with("0", args);
    let json = |args: &[&str]| serde_json::from_str::<Value>(&run(&[args, &["--json"]].concat()).0).unwrap();
    let labels = |programs: &Value| {
        let label = |program: &Value| program["precision"].as_str().unwrap().to_string();
        programs.as_array().unwrap().iter().map(label).collect::<Vec<String>>()
    };

    let both = json(&["compile", "--compare"]);
    assert_eq!(labels(&both["reports"]), ["as given", "default"]);
    let figure = |at: usize, name: &str| both["reports"][at][name].as_f64().unwrap();
    // bf16 moves fewer bytes; the figures are those of the verdict.
    assert!(figure(1, "bytes_accessed") < figure(0, "bytes_accessed"), "{both}");
    let percent = |name: &str| 100.0 * (figure(1, name) / figure(0, name) - 1.0);
    let shown = |percent: f64| format!("{}{:.1} %", if percent < 0.0 { "−" } else { "+" }, percent.abs());
    let sentences: Vec<&str> =
        both["verdict"]["sentences"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let all = sentences.join("\n");
    let changes = format!("cycles {}, time {}, HBM ", shown(percent("cycles")), shown(percent("seconds")));
    assert!(all.contains(&changes), "{changes} is not in\n{all}");
    assert!(labels(&both["reports"]).contains(&both["verdict"]["choice"].as_str().unwrap().to_string()), "{both}");
    assert!(
        all.ends_with(
            "Accuracy was not measured: `bf16scope audit step.hlo --random 1 --policy default` compares the \
                           results with f32's."
        ),
        "{all}"
    );
    // The same lines below the table, and nothing was compiled again.
    let (text, _) = run(&["compile", "--compare"]);
    assert!(text.starts_with("step.hlo: as given, and lowered by default, one core of tpu-v2\n"), "{text}");
    assert!(text.ends_with(&format!("\n\n{all}\n")) && text.matches("cached").count() == 2, "{text}");

    // One program for a policy alone, whatever the variable says; that of the comparison.
    let (text, error) = run_with("bf16_scope", &["compile", "--policy", "default"]);
    assert!(text.starts_with("step.hlo: lowered by default, one core of tpu-v2\n"), "{text}");
    assert!(text.contains("cached") && !text.contains("as given"), "{text}");
    assert!(error.contains("BF16SCOPE_AUTO is set, and says nothing here: --policy says what is lowered"), "{error}");

    // What is the same program, or changes nothing, is no row.
    let args = ["compile", "--compare", "--policy", "default", "--policy", "O1", "--policy", "O0", "--policy", "O3"];
    let (text, error) = run(&args);
    assert!(text.starts_with("step.hlo: as given, and lowered by default, O3, one core of tpu-v2\n"), "{text}");
    assert!(text.contains("│ program  ┆ HBM total ┆ "), "{text}");
    assert!(error.contains("policy O1 gives the same program as policy default"), "{error}");
    assert!(error.contains("policy O0 changes nothing in step.hlo, and is left out"), "{error}");
    if text.contains("Choose policy O3") {
        assert!(text.contains("\nPolicy O3 takes or gives other dtypes than the module as given: "), "{text}");
    }

    let explained = json(&["explain", "--compare"]);
    assert_eq!(labels(&explained["programs"]), ["as given", "default"]);
    assert_eq!(explained["verdict"], both["verdict"]);
    let (text, _) = run(&["explain", "--compare", "--html", "page.html"]);
    assert!(text.contains("\n== as given beside default\n") && text.ends_with(&format!("\n\n{all}\n")), "{text}");
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("<h2>as given beside default</h2>") && page.contains(">cycles lowered</button>"), "{page}");
    let (text, _) = run(&["explain", "--compare", "--policy", "default", "--policy", "O3"]);
    assert!(text.contains("\n== side by side\n"), "{text}");
}
