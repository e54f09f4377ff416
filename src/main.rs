//! The `bf16scope` command. Everything is in [`bf16scope::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    bf16scope::cli::run()
}
