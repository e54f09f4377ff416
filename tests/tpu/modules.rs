//! Modules from files through the TPU compiler, which runs in a child process: what ends it ends the child alone.

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
