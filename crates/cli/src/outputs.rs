//! Output paths: handles every argument that names a file or a folder to write, so that commands need not. A URL is
//! refused before any work is done: outputs are local.

use std::any::TypeId;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Command;
use clap::builder::{PathBufValueParser, TypedValueParser as _};

use bf16scope_files as files;

/// Arguments that name inputs. Every other path argument names an output.
const INPUTS: [&str; 15] = [
    "against",
    "bake",
    "check",
    "checkpoint",
    "experiment",
    "file",
    "graph",
    "initialize_from",
    "inputs",
    "model",
    "module",
    "resume",
    "rules",
    "run",
    "runs",
];
/// Commands in which such an argument names an output nevertheless.
const WRITTEN: [(&str, &str); 2] = [("train", "checkpoint"), ("train", "run")];

/// Makes output arguments of every command refuse URLs.
pub(super) fn checked(command: Command) -> Command {
    let name = command.get_name().to_string();
    let command = command.mut_args(|arg| {
        let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        match is_path && is_output(&name, arg.get_id().as_str()) {
            true => {
                arg.value_parser(PathBufValueParser::new().try_map(|path| files::check_output(&path).map(|()| path)))
            }
            false => arg,
        }
    });
    command.mut_subcommands(checked)
}

fn is_output(command: &str, id: &str) -> bool {
    !INPUTS.contains(&id) || WRITTEN.contains(&(command, id))
}

/// Refuses a cache directory that is a URL: a folder called `gs:` would be created.
pub(super) fn check_cache() -> anyhow::Result<()> {
    let Some(path) = std::env::var_os("BF16SCOPE_CACHE") else { return Ok(()) };
    files::check_output(path.as_ref()).context("BF16SCOPE_CACHE cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Every path argument, by its command and its flag: those that accept a store's URL, and those that refuse it.
    fn paths(command: &Command) -> [Vec<String>; 2] {
        let (mut taking, mut refusing) = (Vec::new(), Vec::new());
        for subcommand in command.get_subcommands() {
            let is_path = |arg: &&clap::Arg| arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
            for arg in subcommand.get_arguments().chain(command.get_arguments()).filter(is_path) {
                let flag = arg.get_long().map_or(arg.get_id().to_string(), |long| format!("--{long}"));
                let value = arg.get_long().map_or("gs://b/x".to_string(), |long| format!("--{long}=gs://b/x"));
                let parsed = command.clone().try_get_matches_from(["bf16scope", subcommand.get_name(), &value]);
                let is_refused = parsed.is_err_and(|error| error.to_string().contains("writes only local files"));
                let list = if is_refused { &mut refusing } else { &mut taking };
                list.push(format!("{} {flag}", subcommand.get_name()));
            }
        }
        [taking, refusing]
    }

    #[test]
    fn every_output_of_every_command_refuses_urls() {
        let [taking, refusing] = paths(&checked(crate::Cli::command()));
        let written = |text: &&String| !text.ends_with(" --trace");
        let refusing_outputs: Vec<&str> = refusing.iter().filter(written).map(String::as_str).collect();
        assert_eq!(
            refusing_outputs,
            [
                "train --checkpoint",
                "train --run",
                "predict --output",
                "curves --html",
                "watch --html",
                "data --html",
                "init --output",
                "schedule --html",
                "package --output",
                "weights --output",
                "explain --html",
                "fit --html",
                "fit --svg",
                "plan --html",
                "port --output",
                "port --html",
                "emit --weights",
                "emit --output",
                "run --outputs",
                "lower --output",
                "lower --report",
                "lower --decisions",
                "audit --save-policy",
                "audit --html",
            ]
        );
        // Every command has one of its own.
        assert_eq!(refusing.len() - refusing_outputs.len(), crate::Cli::command().get_subcommands().count());
        let is_output = |text: &&String| text.ends_with("output") || text.ends_with("html") || text.ends_with("trace");
        assert_eq!(taking.iter().filter(is_output).count(), 0, "{taking:?}");
    }
}
