//! Modules from files through the TPU compiler, which runs in a child process: an abort ends only the child.

use std::process::{Command, Output};

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
    // A failed CHECK of the compiler; and a call into nowhere, which dies in a random way.
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

/// Only `fit` used to report such a refusal; and no command reported an f64 constant, which the compiler accepts.
#[test]
fn types_of_64_bits_are_named_with_their_lines_and_a_remedy() {
    let module = |body: &str| format!("HloModule wide\n\nENTRY main {{\n  x = f32[8]{{0}} parameter(0)\n{body}\n}}\n");
    let fft = module(
        "  w = c128[8]{0} convert(x), metadata={source_file=\"net.py\" source_line=7}\n  ROOT y = c128[8]{0} fft(w), \
         fft_type=FFT, fft_length={8}",
    );
    let constant = module(
        "  w = f64[8]{0} convert(x)\n  c = f64[] constant(0.1), metadata={source_file=\"net.py\" source_line=7}\n  b = \
         f64[8]{0} broadcast(c), dimensions={}\n  m = f64[8]{0} multiply(w, b)\n  ROOT r = f32[8]{0} convert(m)",
    );
    for command in ["compile", "explain"] {
        for (module, code, said, help) in [
            (&fft, 2, "these have them: main/%w (convert c128[8], net.py:7), ", "help: make it complex64 there"),
            (&constant, 0, "main/%c (constant f64[], net.py:7)", "help: make it float32 there"),
        ] {
            let output = on(module, &[command, "m.hlo"]);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{command}: {text}");
            assert!(text.contains(said) && text.contains(help), "{command}: {text}");
        }
    }
}

/// The compiler's cost analysis omits figures that are 0.
#[test]
fn modules_that_compute_nothing_compile_and_are_explained() {
    let entry = |body: &str| format!("HloModule small\n\nENTRY main {{\n{body}\n}}\n");
    for (what, body) in [
        ("identity", "  ROOT x = f32[8,128]{1,0} parameter(0)"),
        ("constant", "  ROOT c = f32[] constant(1)"),
        ("transpose", "  x = f32[8,128]{1,0} parameter(0)\n  ROOT y = f32[128,8]{1,0} transpose(x), dimensions={1,0}"),
        ("integers", "  x = s32[8,128]{1,0} parameter(0)\n  ROOT y = s32[8,128]{1,0} add(x, x)"),
        (
            "bits",
            "  k = u64[2]{0} parameter(0)\n  ROOT r = (u64[2]{0}, u32[64]{0}) rng-bit-generator(k), \
             algorithm=rng_three_fry",
        ),
        ("nothing", "  x = f32[8]{0} parameter(0)\n  ROOT t = () tuple()"),
        ("empty", "  x = f32[0,8]{1,0} parameter(0)\n  ROOT y = f32[0,8]{1,0} add(x, x)"),
        (
            "triangular solve",
            "  a = f32[16,16]{1,0} parameter(0)\n  b = f32[16,8]{1,0} parameter(1)\n  ROOT y = f32[16,8]{1,0} \
             triangular-solve(a, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
        ),
        (
            "qr",
            "  a = f32[16,16]{1,0} parameter(0)\n  ROOT y = (f32[16,16]{1,0}, f32[16]{0}) custom-call(a), \
             custom_call_target=\"Qr\"",
        ),
    ] {
        for command in ["compile", "explain"] {
            let output = on(&entry(body), &[command, "m.hlo", "--json"]);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{command} of {what}: {text}");
            let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            if command == "compile" {
                let report = &answer["reports"][0];
                for figure in ["flops", "optimal_seconds"] {
                    assert!(report[figure].as_f64().is_some_and(|value| value >= 0.0), "{what}: {figure} in {report}");
                }
                // A rate is unknown where nothing takes time.
                assert_eq!(report["examples_per_second"].is_null(), report["step"].is_null(), "{what}: {report}");
            } else {
                let program = &answer["programs"][0];
                let n_listed = program["steps"].as_array().unwrap().len() as u64;
                assert!(program["n_steps"].as_u64().unwrap() >= n_listed, "{what}: {program}");
            }
        }
        // On the screen, an estimate that is missing is a dash.
        let output = on(&entry(body), &["compile", "m.hlo"]);
        assert!(String::from_utf8(output.stdout).unwrap().contains("time of a run"), "{what}");
    }
}
