//! The program `bf16scope`. Everything is in the crate `bf16scope-cli`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

// `MODELS`: the files of `examples/models`, by name.
include!(concat!(env!("OUT_DIR"), "/models.rs"));

fn main() -> ExitCode {
    bf16scope_cli::run_with(MODELS)
}
