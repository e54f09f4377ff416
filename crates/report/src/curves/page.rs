//! Runs as a page for the browser: a plot of each scalar with a line for each run, and tables.

use super::{Extremes, NamedRun, curve, figure, last_step, scalars};
use crate::grouped;
use crate::html::{Cell, Column, Fact, Page, Table};
use crate::plot::lines::{Axis, Line, N_COLUMNS, lines};
use bf16scope_train::run_folder::{Point, Run};

/// The page.
pub fn page(runs: &[NamedRun]) -> Page {
    let names: Vec<&str> = runs.iter().map(|named| named.name.as_str()).collect();
    Page {
        sheets: Vec::new(),
        title: format!("Training: {}", names.join(", ")),
        lead: format!(
            "What was recorded of each run, over the updates that it made. Hovering says the values. Of a line with more than \
             {} values each of {N_COLUMNS} columns shows its least and its greatest one, so no peak is lost; metrics.jsonl in \
             a run’s folder has them all. A cross at the top is a value that is not finite.",
            grouped(2 * N_COLUMNS as i64)
        ),
        facts: runs.iter().map(fact).collect(),
        notes: runs.iter().flat_map(remarks).collect(),
        figures: scalars(runs).iter().map(|name| plot(runs, name)).collect(),
        tables: vec![values(runs), described(runs)],
    }
}

fn fact(NamedRun { name, run }: &NamedRun) -> Fact {
    let precision = run.about.as_ref().map_or(String::new(), |about| format!(" in {}", about.precision));
    Fact { label: format!("{name}: steps{precision}"), value: grouped(last_step(run) as i64), is_bad: false }
}

fn remarks(NamedRun { name, run }: &NamedRun) -> Vec<String> {
    run.remarks.iter().map(|remark| format!("{name}: {remark}")).collect()
}

fn plot(runs: &[NamedRun], name: &str) -> (String, String) {
    let line = |(look, NamedRun { name: run_name, run }): (usize, &NamedRun)| {
        let points = curve(run, name)?.points.iter().map(|point| (point.step, point.value)).collect();
        Some(Line { name: run_name.clone(), look, points })
    };
    let all: Vec<Line> = runs.iter().enumerate().filter_map(line).collect();
    let axis = Axis::for_lines(&all);
    let scale = if axis == Axis::Logarithmic { " (logarithmic scale)" } else { "" };
    (format!("{name}{scale}"), lines(&format!("{name} over steps"), &all, axis, shown))
}

/// A value without trailing zeros.
fn shown(value: f64) -> String {
    let text = figure(value);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

fn columns<const N: usize>(columns: [(&'static str, &'static str); N]) -> Vec<Column> {
    columns.into_iter().map(|(title, help)| Column { title, help }).collect()
}

fn step_cell(point: Option<&Point>) -> Cell {
    match point {
        Some(point) => Cell::Number(point.step as f64, grouped(point.step as i64)),
        None => Cell::Number(f64::INFINITY, "-".to_string()),
    }
}

fn value_cell(point: Option<&Point>) -> Cell {
    match point.map(|point| point.value) {
        Some(value) if !value.is_nan() => Cell::Number(value, figure(value)),
        Some(value) => Cell::Number(f64::INFINITY, figure(value)),
        None => Cell::Number(f64::INFINITY, "-".to_string()),
    }
}

fn values(runs: &[NamedRun]) -> Table {
    let mut rows = Vec::new();
    for name in scalars(runs) {
        for NamedRun { name: run_name, run } in runs {
            let Some(curve) = curve(run, name) else { continue };
            let Extremes { n_values, last, least, greatest, .. } = Extremes::from_curve(curve);
            rows.push(vec![
                Cell::Text(name.to_string()),
                Cell::Text(run_name.clone()),
                value_cell(last),
                step_cell(last),
                value_cell(least),
                step_cell(least),
                value_cell(greatest),
                step_cell(greatest),
                Cell::Number(n_values as f64, grouped(n_values as i64)),
            ]);
        }
    }
    Table {
        heading: "Last, smallest and largest values".to_string(),
        lead: "The best loss is the smallest, the best accuracy the largest.".to_string(),
        columns: columns([
            ("scalar", "as it was recorded"),
            ("run", "its folder"),
            ("last", "value"),
            ("at step", "updates made"),
            ("min", "the first, if there are several"),
            ("at step", "updates made"),
            ("max", "the first, if there are several"),
            ("at step", "updates made"),
            ("values", "how many were recorded"),
        ]),
        rows,
    }
}

/// Seconds between the first and the last record.
fn seconds(run: &Run) -> f64 {
    let times = run.curves.iter().flat_map(|curve| [curve.points.first(), curve.points.last()]).flatten();
    let times = times.map(|point| point.time).filter(|time| time.is_finite());
    let (first, last) = times.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), time| (a.min(time), b.max(time)));
    if first < last { last - first } else { 0.0 }
}

fn described(runs: &[NamedRun]) -> Table {
    let row = |NamedRun { name, run }: &NamedRun| {
        let about = run.about.clone().unwrap_or_default();
        let first = about.starts.first().cloned().unwrap_or_default();
        let resumed: Vec<String> = about.starts.iter().skip(1).map(|start| grouped(start.step as i64)).collect();
        let number = |value: u64| Cell::Number(value as f64, grouped(value as i64));
        vec![
            Cell::Text(name.clone()),
            Cell::Text(about.experiment),
            Cell::Text(about.precision),
            number(about.batch),
            Cell::Text(about.seed.to_string()),
            Cell::Text(first.date),
            Cell::Number(seconds(run), crate::seconds(seconds(run))),
            Cell::Text(resumed.join(", ")),
            Cell::Text(first.device),
            Cell::Text(first.plugin),
            Cell::Text(first.bf16scope),
            Cell::Text(run.path.display().to_string()),
        ]
    };
    Table {
        heading: "Runs".to_string(),
        lead: "run.json in a run’s folder has all settings, experiment.yaml the experiment.".to_string(),
        columns: columns([
            ("run", "its folder"),
            ("experiment", "the file, as it was named"),
            ("precision", "what the network computes in"),
            ("batch", "examples"),
            ("seed", "of initial values and of the order of examples"),
            ("started", "UTC"),
            ("took", "from the first record to the last"),
            ("resumed", "after these steps"),
            ("device", "when it was started"),
            ("plugin", "the library, and what it says of its version"),
            ("bf16scope", "version"),
            ("folder", "as it was named"),
        ]),
        rows: runs.iter().map(row).collect(),
    }
}
