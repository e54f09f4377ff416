//! The program as a user runs it.

mod arrays_cli;
mod as_tpu_cli;
mod audit_at;
mod audit_cli;
#[path = "../support/binary.rs"]
mod binary;
mod callbacks_cli;
mod cli_bits;
mod clipart;
mod curves;
mod documented;
mod earlier;
#[path = "../support/first.rs"]
mod first;
mod import_cli;
mod initialize_cli;
mod lower;
mod names_cli;
mod newcomer;
mod outputs;
mod package_cli;
mod port_cli;
mod predict_cli;
mod regression;
#[path = "../run/mod.rs"]
mod run;
mod run_cli;
mod schedule;
mod screens;
mod slots_cli;
#[path = "../support/mod.rs"]
mod support;
mod text_cli;
mod train_cli;
mod two_tower;
mod watch_cli;
mod weights_cli;
#[path = "../support/wide.rs"]
mod wide;
