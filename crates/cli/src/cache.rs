//! `bf16scope cache`: shows and clears the disk caches: TPU compiles, conversions of StableHLO, indexes of records,
//! objects of stores, unpacked data files (compressed or Parquet), and tokenized text.

use anyhow::Context as _;
use clap::Subcommand;

use super::{Context, Status};
use crate::report;
use bf16scope_data::records::{indexes, objects, unpacked};
use bf16scope_data::text::token_ids;
use bf16scope_foreign::conversions;
use bf16scope_tpu::Cache;

const EXAMPLES: &str = "\
Examples:
  bf16scope cache show
          where compiles, conversions, indexes, objects, unpacked files and tokenized text are cached, how many there are, and their size
  bf16scope cache clear
          delete them

`compile`, `fit` and `explain` cache the TPU compiler's results in the folder `compiles` of the cache (BF16SCOPE_CACHE,
else XDG_CACHE_HOME/bf16scope, else ~/.cache/bf16scope). The oldest are deleted when there are more than 2 GiB.
StableHLO that was converted to HLO is in the folder `stablehlo`, at most 1 GiB.
The offsets of records in TFRecord files are in the folder `indexes`, at most 1 GiB.
Objects of stores are in the folder `objects`, at most 64 GiB; the least recently used are deleted.
Compressed data files and Parquet files are unpacked to `unpacked`, at most 64 GiB; the least recently used are deleted.
Tokenized text is in the folder `tokens`, at most 16 GiB.";

/// Arguments of `cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show where compiles, conversions, indexes, objects, unpacked files and tokenized text are cached, how many there are, and their size
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete every cached compile, conversion, index, object, unpacked file and tokenized text
    Clear,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let setup = context.setup();
    let cache_dir = setup.cache_dir.context(
        "no cache directory: BF16SCOPE_CACHE, XDG_CACHE_HOME and HOME are unset or empty\nhelp: set BF16SCOPE_CACHE",
    )?;
    let cache = Cache::new(&cache_dir);
    let kinds = [
        ("compiles", "compile", cache.records()),
        ("conversions", "conversion", &conversions(&cache_dir)),
        ("indexes", "index", &indexes(&cache_dir)),
        ("objects", "object", &objects(&cache_dir)),
        ("unpacked", "unpacked", &unpacked(&cache_dir)),
        ("tokens", "text as ids", &token_ids(&cache_dir)),
    ];
    let mut caches = serde_json::Map::new();
    for (kind, one, records) in kinds {
        let shown = records.dir().display();
        let failed = || format!("cannot read or change {shown}");
        let line = |did: &str, n: usize, n_bytes: u64| {
            let what = if n == 1 { one } else { kind };
            format!("{shown}: {did}{n} {what}, {}\n", report::mib(n_bytes as i64))
        };
        match &args.action {
            Action::Show { json } => {
                let (n, n_bytes) = records.size().with_context(failed)?;
                let entry = serde_json::json!({ "path": records.dir(), "n": n, "n_bytes": n_bytes });
                caches.insert(kind.to_string(), entry);
                if !json {
                    context.print(&line("", n, n_bytes))?;
                }
            }
            Action::Clear => {
                let (n, n_bytes) = records.clear().with_context(failed)?;
                context.print(&line("deleted ", n, n_bytes))?;
            }
        }
    }
    if matches!(args.action, Action::Show { json: true }) {
        context.print_json(&serde_json::Value::Object(caches))?;
    }
    Ok(Status::Ok)
}
