//! The `bf16scope` command.
fn main() {}
