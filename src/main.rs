//! The program `bf16scope`. Everything is in the crate `bf16scope-cli`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bf16scope_cli::run()
}
