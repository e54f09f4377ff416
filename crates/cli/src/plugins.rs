//! `bf16scope plugins`: lists, locates and installs PJRT plugins.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use super::{Context, Status};
use crate::report::{Column, Screen, Table};
use bf16scope_pjrt::{self as pjrt, Installed, PluginSpec, Setup};

const EXAMPLES: &str = "\
Examples:
  bf16scope plugins list
          what is installed, and what would be
  bf16scope plugins install
          both plugins, now (201 MB to download, 727 MB on disk)
  TPU_LIBRARY_PATH=$(bf16scope plugins where tpu) other-program
          the path of a library, for other programs

A plugin is looked for in BF16SCOPE_CPU_PLUGIN or TPU_LIBRARY_PATH, then in the cache (BF16SCOPE_CACHE, else
XDG_CACHE_HOME/bf16scope, else ~/.cache/bf16scope), and installed on first use with pip: one version, checked by sha256,\nas the library is once after each change of its file.";

/// Arguments of `plugins`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show each plugin: pinned version, where it is, whether it is there
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Install what is missing
    Install {
        /// Which plugins
        #[arg(value_enum, default_values_t = [Which::Cpu, Which::Tpu])]
        which: Vec<Which>,
    },
    /// Print the path of a plugin's library; installs it first if it is missing
    Where {
        /// Which plugin
        #[arg(value_enum)]
        which: Which,
    },
}

/// A plugin, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// XLA's CPU client
    Cpu,
    /// Google's TPU compiler, libtpu
    Tpu,
}

impl Which {
    fn spec(self) -> &'static PluginSpec {
        match self {
            Which::Cpu => PluginSpec::cpu(),
            Which::Tpu => PluginSpec::tpu(),
        }
    }
}

/// A plugin's state, known without loading it.
#[derive(Debug, Serialize)]
pub(super) struct PluginRow {
    /// Its name on the command line.
    pub(super) plugin: String,
    package: &'static str,
    version: &'static str,
    /// `named` by the environment, `installed`, `damaged` or `missing`.
    state: &'static str,
    path: Option<PathBuf>,
}

impl PluginRow {
    /// Whether there is a library to load.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.state, "named" | "installed")
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let setup = context.setup();
    match &args.action {
        Action::List { json } => list(&setup, *json, context)?,
        Action::Install { which } => {
            for which in which {
                let spec = which.spec();
                let located = pjrt::locate(spec, &setup).with_context(|| failed(spec))?;
                context.print(&format!("{}: {}\n", spec.name, located.path.display()))?;
            }
        }
        Action::Where { which } => {
            let spec = which.spec();
            let located = pjrt::locate(spec, &setup).with_context(|| failed(spec))?;
            context.print_data(&format!("{}\n", located.path.display()))?;
        }
    }
    Ok(Status::Ok)
}

fn failed(spec: &PluginSpec) -> String {
    format!("the {} plugin could not be installed", spec.name)
}

/// Each pinned plugin's state, without installing or loading anything.
pub(super) fn rows(setup: &Setup) -> Vec<PluginRow> {
    PluginSpec::pinned().map(|spec| row(spec, setup)).into()
}

/// A plugin's state, without installing or loading anything.
pub(super) fn row(spec: &PluginSpec, setup: &Setup) -> PluginRow {
    let named = pjrt::named(spec, setup).map(|(path, _)| path);
    let cached = spec.artifact.as_ref().zip(setup.cache_dir.as_deref());
    let state = match (&named, cached) {
        (Some(path), _) if path.exists() => "named",
        (Some(_), _) | (None, None) => "missing",
        (None, Some((artifact, cache_dir))) => match pjrt::installed(artifact, cache_dir) {
            Installed::Whole => "installed",
            Installed::Damaged(_) => "damaged",
            Installed::Absent => "missing",
        },
    };
    PluginRow {
        plugin: spec.name.to_string(),
        package: spec.artifact.map_or("-", |artifact| artifact.package),
        version: spec.artifact.map_or("-", |artifact| artifact.version),
        state,
        path: named.or_else(|| cached.map(|(artifact, cache_dir)| artifact.path_in(cache_dir))),
    }
}

fn list(setup: &Setup, json: bool, context: &Context) -> anyhow::Result<()> {
    let rows = rows(setup);
    if json {
        return context.print_json(&serde_json::json!({ "plugins": rows }));
    }
    context.print(&render(&rows, context.screen))
}

/// A table, and how to install what is missing.
pub(super) fn render(rows: &[PluginRow], screen: Screen) -> String {
    let mut table = Table::new([
        Column::text("plugin"),
        Column::text("package"),
        Column::text("version"),
        Column::text("state"),
        Column::path("library"),
    ]);
    for row in rows {
        let path = row.path.as_ref().map_or("-".to_string(), |path| path.display().to_string());
        table.row([row.plugin.as_str(), row.package, row.version, row.state, &path]);
    }
    let mut text = table.render(screen);
    if !rows.iter().all(PluginRow::is_there) {
        text += "what is missing is installed on first use, or now with `bf16scope plugins install`\n";
    }
    text
}

/// An installed plugin, at a path of a usual length, and a missing one.
#[cfg(test)]
pub(super) fn examples() -> Vec<PluginRow> {
    let row = |plugin: &str, package, version, state, path: &str| PluginRow {
        plugin: plugin.to_string(),
        package,
        version,
        state,
        path: Some(PathBuf::from(path)),
    };
    let cache = "/home/somebody/.cache/bf16scope/plugins";
    vec![
        row("cpu", "xla-cpu-pjrt", "0.0.1", "installed", &format!("{cache}/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so")),
        row("tpu", "libtpu", "0.0.52", "missing", &format!("{cache}/libtpu-0.0.52/libtpu.so")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::check_screen;
    use expect_test::expect_file;

    #[test]
    fn plugins_on_80_columns() {
        check_screen(|screen| render(&examples(), screen), &expect_file!["../../../tests/cli/screens/plugins.txt"]);
    }
}
