//! The real binary as a user runs it: on the CPU plugin, or on the device that `BF16SCOPE_TEST_DEVICE` names.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::process::Command;

/// The subcommands that run programs, and so take `--device`.
const RUNNING: [&str; 5] = ["audit", "eval", "predict", "run", "train"];

/// The device named; `cpu` if none is.
pub fn device() -> String {
    std::env::var("BF16SCOPE_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string())
}

/// `bf16scope` with these arguments, and the device named where they run a program.
pub fn bf16scope(args: &[&str]) -> Command {
    started_by(&[], args)
}

/// The same, started by another program that becomes it.
pub fn started_by(launcher: &[&str], args: &[&str]) -> Command {
    let mut words = [launcher, &[env!("CARGO_BIN_EXE_bf16scope")], args].concat();
    let device = device();
    let runs = args.first().is_some_and(|subcommand| RUNNING.contains(subcommand));
    let flag = match (runs, device == "cpu") {
        (false, _) => None,
        (true, true) => std::env::var_os("BF16SCOPE_TEST_OPTIMIZED").is_none().then_some(match args.first() {
            // As the tests' own clients compile (`quick` in tests/run), with whose results those of `run` are compared.
            Some(&"run") => "--xla_backend_optimization_level=0",
            // As those that are asked for words (`quickest` there), in the spelling that `libtpu` reads too.
            _ => "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
        }),
        (true, false) => {
            words.extend(["--device", &device]);
            // On xla-rs excess precision is the process's, and the option must agree with it.
            args.windows(2)
                .any(|pair| pair == ["--excess-precision", "on"])
                .then_some("--xla_allow_excess_precision=true")
        }
    };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    if let Some(flag) = flag {
        let flags = std::env::var("XLA_FLAGS").unwrap_or_default();
        command.env("XLA_FLAGS", format!("{flags} {flag}"));
    }
    // XLA's library, where one is linked, otherwise says on standard error that it was loaded.
    command.env("TF_ENABLE_ONEDNN_OPTS", "0");
    command
}
