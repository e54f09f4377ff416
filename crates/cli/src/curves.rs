//! `bf16scope curves`: recorded runs side by side, as a table and as a page of curves.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde::Serialize;

use super::{Context, Status, emit};
use crate::report::plot::lines::MAX_LINES;
use crate::report::{Column, Screen, Table, grouped};
use bf16scope_train::run_folder::{About, Curve, Point, Run, read};

mod against;
mod page;

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

/// A run with a name that is unique among the others.
struct Named {
    name: String,
    run: Run,
}

/// The output of `--json` for a run.
#[derive(Serialize)]
struct Json<'a> {
    path: &'a Path,
    about: Option<&'a About>,
    curves: Vec<Extremes<'a>>,
    remarks: &'a [String],
}

/// A curve's summary.
#[derive(Serialize)]
struct Extremes<'a> {
    name: &'a str,
    n_values: usize,
    last: Option<&'a Point>,
    /// Ignoring NaNs, the first of equal values.
    least: Option<&'a Point>,
    greatest: Option<&'a Point>,
}

impl Extremes<'_> {
    fn from_curve(curve: &Curve) -> Extremes<'_> {
        let numbers = || curve.points.iter().filter(|point| !point.value.is_nan());
        Extremes {
            name: &curve.name,
            n_values: curve.points.len(),
            last: curve.points.last(),
            least: numbers().min_by(|a, b| a.value.total_cmp(&b.value)),
            greatest: numbers().rev().max_by(|a, b| a.value.total_cmp(&b.value)),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let n_runs = args.runs.len() + args.against.len();
    let are_drawn = args.against.is_empty() || args.html.is_some();
    ensure!(
        n_runs <= MAX_LINES || !are_drawn,
        "{n_runs} runs, expected {MAX_LINES} at most: more lines than that look alike\nhelp: name those to compare"
    );
    let runs = args.runs.iter().chain(&args.against).map(read).collect::<Result<Vec<Run>, _>>()?;
    for run in &runs {
        run.remarks.iter().for_each(|remark| tracing::warn!("{}: {remark}", run.path.display()));
    }
    let runs = named(runs);
    if let Some(path) = &args.html {
        emit::replace(path, page::page(&runs).render().as_bytes())?;
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
        let json = |Named { run, .. }: &Named| -> serde_json::Result<serde_json::Value> {
            let curves = run.curves.iter().map(Extremes::from_curve).collect();
            serde_json::to_value(Json { path: &run.path, about: run.about.as_ref(), curves, remarks: &run.remarks })
        };
        let runs = runs.iter().map(json).collect::<Result<Vec<_>, _>>()?;
        context.print_json(&serde_json::json!({ "runs": runs }))?;
    } else {
        context.print(&render(&runs, context.screen))?;
    }
    Ok(Status::Ok)
}

/// Names runs by their folders, or by their paths if folders have the same name.
fn named(runs: Vec<Run>) -> Vec<Named> {
    let short = |run: &Run| {
        let path = run.path.canonicalize().unwrap_or_else(|_| run.path.clone());
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    };
    let names: Vec<String> = runs.iter().map(short).collect();
    let is_alone = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let all: Vec<String> = (names.iter().zip(&runs))
        .map(|(name, run)| if is_alone(name) { name.clone() } else { run.path.display().to_string() })
        .collect();
    all.into_iter().zip(runs).map(|(name, run)| Named { name, run }).collect()
}

/// The names of all scalars: metrics of the test data first, then others of epochs, then the loss of steps; rates last.
fn scalars(runs: &[Named]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for curve in runs.iter().flat_map(|named| &named.run.curves) {
        if !names.contains(&curve.name.as_str()) {
            names.push(&curve.name);
        }
    }
    names.sort_by_key(|name| match name {
        name if name.ends_with("learning_rate") || name.ends_with("_per_second") => 3,
        name if name.starts_with("test/") => 0,
        name if name.contains('/') => 1,
        _ => 2,
    });
    names
}

fn curve<'r>(run: &'r Run, name: &str) -> Option<&'r Curve> {
    run.curves.iter().find(|curve| curve.name == name)
}

/// The last step with any recorded scalar.
fn last_step(run: &Run) -> u64 {
    run.curves.iter().filter_map(|curve| curve.points.last()).map(|point| point.step).max().unwrap_or(0)
}

/// A value in few digits.
fn figure(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "NaN".to_string(),
        v if v.is_infinite() => if value > 0.0 { "inf" } else { "-inf" }.to_string(),
        0.0 => "0".to_string(),
        v if !(1e-3..1e9).contains(&v) => format!("{value:.3e}"),
        v if v >= 1e3 => grouped(value.round() as i64),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn render(runs: &[Named], screen: Screen) -> String {
    let names = scalars(runs);
    let mut columns = vec![Column::name("run"), Column::number("precision").extra(2), Column::number("steps")];
    // Columns that do not fit are dropped from the right.
    let ranks = (1..=u8::MAX).chain(std::iter::repeat(u8::MAX));
    columns.extend(names.iter().zip(ranks).map(|(name, rank)| Column::number(*name).extra(rank)));
    let mut table = Table::new(columns);
    for Named { name, run } in runs {
        let precision = run.about.as_ref().map_or("-", |about| about.precision.as_str());
        let mut row = vec![name.clone(), precision.to_string(), grouped(last_step(run) as i64)];
        let last = |name: &&str| curve(run, name).and_then(|curve| curve.points.last());
        row.extend(names.iter().map(|name| last(name).map_or("-".to_string(), |point| figure(point.value))));
        table.row(row);
    }
    let nothing = "no scalar is recorded: a run has scalars from its first steps on\n";
    format!("last values\n{}{}", table.render(screen), if names.is_empty() { nothing } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let figures = [0.0, 0.98888, 12.345, 4459.2, 0.05, 1e-4, -2.5, f64::NAN, -f64::INFINITY, 1e300].map(figure);
        assert_eq!(
            figures,
            ["0", "0.9889", "12.35", "4,459", "0.0500", "1.000e-4", "-2.5000", "NaN", "-inf", "1.000e300"]
        );
    }

    #[test]
    fn the_least_and_the_greatest_are_the_first_of_their_kind() {
        let point = |(step, value): (usize, &f64)| Point { step: step as u64, time: 0.0, value: *value };
        let values = [2.0, 1.0, f64::NAN, 3.0, 1.0, 3.0, f64::NAN];
        let curve = Curve { name: "loss".to_string(), points: values.iter().enumerate().map(point).collect() };
        let extremes = Extremes::from_curve(&curve);
        let step = |point: Option<&Point>| point.unwrap().step;
        assert_eq!((step(extremes.least), step(extremes.greatest), step(extremes.last)), (1, 3, 6));
    }
}
