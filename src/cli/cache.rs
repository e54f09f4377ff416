//! `bf16scope cache`: shows and clears the TPU compiler's answers on disk.

use anyhow::Context as _;
use clap::Subcommand;

use super::{Context, Status};
use crate::report;
use crate::tpu::Cache;

const EXAMPLES: &str = "\
Examples:
  bf16scope cache show
          where compiles are cached, how many there are, and their size
  bf16scope cache clear
          forget them

`compile`, `fit` and `explain` remember what the TPU compiler said, in the folder `compiles` of the cache (BF16SCOPE_CACHE,
else XDG_CACHE_HOME/bf16scope, else ~/.cache/bf16scope). The oldest go when there are more than 2 GiB.";

/// Arguments of `cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show where compiles are cached, how many there are, and their size
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete every cached compile
    Clear,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let setup = context.setup();
    let cache_dir = setup.cache_dir.context(
        "no cache directory: BF16SCOPE_CACHE, XDG_CACHE_HOME and HOME are unset or empty\nhelp: set BF16SCOPE_CACHE",
    )?;
    let cache = Cache::of(&cache_dir);
    let shown = cache.dir().display();
    let failed = || format!("cannot read or change {shown}");
    match &args.action {
        Action::Show { json } => {
            let (n_compiles, n_bytes) = cache.size().with_context(failed)?;
            if *json {
                context.print_json(&serde_json::json!({
                    "path": cache.dir(), "n_compiles": n_compiles, "n_bytes": n_bytes,
                }))?;
            } else {
                context.print(&format!("{shown}: {n_compiles} compiles, {}\n", report::mib(n_bytes as i64)))?;
            }
        }
        Action::Clear => {
            let (n_compiles, n_bytes) = cache.clear().with_context(failed)?;
            context.print(&format!("{shown}: deleted {n_compiles} compiles, {}\n", report::mib(n_bytes as i64)))?;
        }
    }
    Ok(Status::Ok)
}
