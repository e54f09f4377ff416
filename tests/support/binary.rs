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
    let names_it = device != "cpu" && args.first().is_some_and(|subcommand| RUNNING.contains(subcommand));
    if names_it {
        words.extend(["--device", &device]);
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    // On xla-rs excess precision is the process's, and the option must agree with it.
    if names_it && args.contains(&"--allow-excess-precision") {
        let flags = std::env::var("XLA_FLAGS").unwrap_or_default();
        command.env("XLA_FLAGS", format!("{flags} --xla_allow_excess_precision=true"));
    }
    // XLA's library, where one is linked, otherwise says on standard error that it was loaded.
    command.env("TF_ENABLE_ONEDNN_OPTS", "0");
    command
}
