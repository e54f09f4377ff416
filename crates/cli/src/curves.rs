//! `bf16scope curves`: recorded runs side by side, as a table and as a page of curves.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde::Serialize;

use super::{Context, Status, emit};
use crate::report::curves::{self, Extremes, NamedRun};
use crate::report::plot::lines::MAX_LINES;
use bf16scope_train::run_folder::{About, Run, read};

mod against;

const EXAMPLES: &str = "\
Examples:
  bf16scope curves runs/digits-f32 runs/digits-bf16
          the last values of two runs
  bf16scope curves runs/* --html curves.html
          all of them on one page, loss, metrics, learning rate and examples/s over steps; open it in any browser
  bf16scope curves runs/bf16-seed* --against runs/f32-seed*
          is bf16 as good? seed by seed: means, a paired test, and how many seeds would detect a given difference
  bf16scope curves runs/bf16-seed* --against runs/f32-seed* --scalar test/accuracy
          by one scalar, chosen in advance, which needs fewer seeds than all scalars together
  tensorboard --logdir runs
          the same folders in TensorBoard (pip install tensorboard)

A run is a folder that `train` makes, or one with event files for TensorBoard that another program wrote. The run need not be
over. metrics.jsonl in the folder has every recorded value, a JSON object on each line: pandas.read_json(FILE, lines=True).";

/// Arguments of `curves`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Folders of runs
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Runs with the same seeds and another setting, such as another precision: compare both seed by seed
    #[arg(long, value_name = "RUN", num_args = 1..)]
    against: Vec<PathBuf>,
    /// The difference to detect, in the scalars' unit [default: the standard deviation over the seeds of --against]
    #[arg(long, value_name = "SIZE", requires = "against")]
    difference: Option<f64>,
    /// Compare only these scalars, by patterns of their names: p-values are corrected for the number of compared scalars
    #[arg(long, value_name = "PATTERN", requires = "against", value_delimiter = ',')]
    scalar: Vec<String>,
    /// Write a page for the browser: a plot of each scalar, with a line for each run
    #[arg(short = 'o', long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `--json` for a run.
#[derive(Serialize)]
struct Json<'a> {
    path: &'a Path,
    about: Option<&'a About>,
    curves: Vec<Extremes<'a>>,
    remarks: &'a [String],
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let n_runs = args.runs.len() + args.against.len();
    let are_drawn = args.against.is_empty() || args.html.is_some();
    ensure!(
        n_runs <= MAX_LINES || !are_drawn,
        "{n_runs} runs, expected {MAX_LINES} at most: more lines than that look alike\nhelp: name those to compare"
    );
    emit::check_names(&[("--html", args.html.as_deref())], &[])?;
    let runs = args.runs.iter().chain(&args.against).map(read).collect::<Result<Vec<Run>, _>>()?;
    for run in &runs {
        run.remarks.iter().for_each(|remark| tracing::warn!("{}: {remark}", run.path.display()));
    }
    let runs = named(runs);
    if let Some(path) = &args.html {
        emit::replace(path, curves::page(&runs).render().as_bytes())?;
    }
    if !args.against.is_empty() {
        let (first, second) = runs.split_at(args.runs.len());
        let compared = against::compare(first, second, args.difference, &args.scalar)?;
        match args.json {
            true => context.print_json(&serde_json::json!({ "compared": compared }))?,
            false => context.print(&against::render(&compared, context.screen))?,
        }
        return Ok(Status::Ok);
    }
    if args.json {
        let json = |NamedRun { run, .. }: &NamedRun| -> serde_json::Result<serde_json::Value> {
            let curves = run.curves.iter().map(Extremes::from_curve).collect();
            serde_json::to_value(Json { path: &run.path, about: run.about.as_ref(), curves, remarks: &run.remarks })
        };
        let runs = runs.iter().map(json).collect::<Result<Vec<_>, _>>()?;
        context.print_json(&serde_json::json!({ "runs": runs }))?;
    } else {
        context.print(&curves::render(&runs, context.screen))?;
    }
    Ok(Status::Ok)
}

/// Names runs by their folders, or by their paths if folders have the same name.
fn named(runs: Vec<Run>) -> Vec<NamedRun> {
    let short = |run: &Run| {
        let path = run.path.canonicalize().unwrap_or_else(|_| run.path.clone());
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    };
    let names: Vec<String> = runs.iter().map(short).collect();
    let is_alone = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let all: Vec<String> = (names.iter().zip(&runs))
        .map(|(name, run)| if is_alone(name) { name.clone() } else { run.path.display().to_string() })
        .collect();
    all.into_iter().zip(runs).map(|(name, run)| NamedRun { name, run }).collect()
}
