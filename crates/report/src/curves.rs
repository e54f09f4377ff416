//! Recorded runs side by side: their last values on a terminal, and a page with a plot of each scalar.

mod page;

use serde::Serialize;

use crate::{Column, Screen, Table, grouped};
use bf16scope_train::run_folder::{Curve, Point, Run};

pub use page::page;

/// A run with a name that is unique among the others.
pub struct NamedRun {
    /// Its name.
    pub name: String,
    /// The content of its folder.
    pub run: Run,
}

/// A curve's summary.
#[derive(Serialize)]
pub struct Extremes<'a> {
    /// The scalar.
    pub name: &'a str,
    /// How many values it has.
    pub n_values: usize,
    /// The last one.
    pub last: Option<&'a Point>,
    /// The least, ignoring NaNs; the first of equal values.
    pub least: Option<&'a Point>,
    /// The largest, in the same way.
    pub greatest: Option<&'a Point>,
}

impl Extremes<'_> {
    /// The summary of a curve.
    pub fn from_curve(curve: &Curve) -> Extremes<'_> {
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

/// The names of all scalars: metrics of the test data first, then others of epochs, then the loss of steps; rates last.
pub fn scalars(runs: &[NamedRun]) -> Vec<&str> {
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

/// The curve of a scalar.
pub fn curve<'r>(run: &'r Run, name: &str) -> Option<&'r Curve> {
    run.curves.iter().find(|curve| curve.name == name)
}

/// The last step with any recorded scalar.
pub fn last_step(run: &Run) -> u64 {
    run.curves.iter().filter_map(|curve| curve.points.last()).map(|point| point.step).max().unwrap_or(0)
}

/// A value in few digits.
pub fn figure(value: f64) -> String {
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

/// The last values of each run.
pub fn render(runs: &[NamedRun], screen: Screen) -> String {
    let names = scalars(runs);
    let mut columns = vec![Column::name("run"), Column::number("precision").extra(2), Column::number("steps")];
    // Columns that do not fit are dropped from the right.
    let ranks = (1..=u8::MAX).chain(std::iter::repeat(u8::MAX));
    columns.extend(names.iter().zip(ranks).map(|(name, rank)| Column::number(*name).extra(rank)));
    let mut table = Table::new(columns);
    for NamedRun { name, run } in runs {
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
