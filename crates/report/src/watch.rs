//! A watched run: the verdict and a look on a terminal, and a page of layers against steps.

mod page;

use std::path::Path;

use serde::Serialize;

use crate::{Column, Screen, Table, grouped};
use bf16scope_train::Narrowed;
use bf16scope_train::watch::{Anomaly, RULES, WatchRecord};

pub use page::page;

/// All that is known about a watched run; also the output of `--json`.
#[derive(Debug, Serialize)]
pub struct WatchedRun<'a> {
    /// Its folder.
    pub run: &'a Path,
    /// How many looks it has.
    pub n_looks: usize,
    /// The steps of the first and the last look.
    pub steps: [u64; 2],
    /// The anomalies, each where it first occurs, in order of steps.
    pub anomalies: Vec<Anomaly>,
    /// The steps between two looks, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<&'a Narrowed>,
    /// The command that audits the step of the first anomaly.
    pub audit: Option<String>,
    /// The look to show.
    pub look: &'a WatchRecord,
    /// Remarks on reading it.
    pub remarks: &'a [String],
}

/// The verdict, in lines.
fn verdict(outcome: &WatchedRun<'_>) -> Vec<String> {
    let WatchedRun { run, n_looks, steps: [first, last], anomalies, audit, .. } = outcome;
    let looks = match n_looks {
        1 => format!("1 look, at step {}", grouped(*first as i64)),
        n => format!("{n} looks, at steps {} to {}", grouped(*first as i64), grouped(*last as i64)),
    };
    let Some(Anomaly { step, rule, layer, quantity, direction, found, remedy, .. }) = anomalies.first() else {
        return vec![format!("{}: {looks}: nothing is wrong by any of {} rules", run.display(), RULES.len())];
    };
    let n = match anomalies.len() {
        1 => "1 thing is wrong".to_string(),
        n => format!("{n} things are wrong"),
    };
    let mut lines = vec![
        format!("{}: {looks}: {n}", run.display()),
        format!("first: step {}: {rule}: {quantity} of {layer} ({direction}): {found}", grouped(*step as i64)),
        format!("  help: {remedy}"),
    ];
    lines.extend(outcome.narrowed.into_iter().flat_map(narrowed_lines));
    lines.extend(audit.iter().map(|audit| format!("  look closer: `{audit}`")));
    lines
}

/// The steps between two looks.
fn narrowed_lines(narrowed: &Narrowed) -> Vec<String> {
    let Narrowed { steps: [first, last], anomalies, settings, .. } = narrowed;
    let mut lines: Vec<String> = anomalies
        .iter()
        .take(3)
        .map(|anomaly| {
            let Anomaly { step, rule, layer, quantity, direction, found, .. } = anomaly;
            format!("narrowed: step {}: {rule}: {quantity} of {layer} ({direction}): {found}", grouped(*step as i64))
        })
        .collect();
    let looked = format!("each step from {} to {} was looked at", grouped(*first as i64), grouped(*last as i64));
    match (anomalies.len(), settings.first()) {
        (0, _) => lines.push(format!("narrowed: {looked}: nothing is wrong that the looks before did not see")),
        (n, _) if n > 3 => lines.push(format!("  and {} more of that step", n - 3)),
        _ => {}
    }
    lines.extend(settings.iter().take(3).map(|change| format!("  setting: {change}")));
    if settings.is_empty() {
        lines.push(format!("  setting: none changed; {looked}"));
    }
    lines
}

/// The verdict, the anomalies and a look, layer by layer, up to so many rows.
pub fn render(outcome: &WatchedRun<'_>, n_rows: usize, screen: Screen) -> String {
    let mut text: String = verdict(outcome).into_iter().map(|line| line + "\n").collect();
    if outcome.anomalies.len() > 1 {
        let columns =
            [Column::number("step"), Column::text("rule"), Column::name("of"), Column::text("what was found")];
        let mut table = Table::new(columns);
        for anomaly in &outcome.anomalies {
            let subject = format!("{} of {}", anomaly.quantity, anomaly.layer);
            table.row([grouped(anomaly.step as i64), anomaly.rule.to_string(), subject, anomaly.found.clone()]);
        }
        text += &table.render(screen);
    }
    let WatchRecord { step, rows, .. } = outcome.look;
    text += &format!("\nthe look before step {}:\n", grouped(*step as i64));
    let mut table = Table::new([
        Column::name("layer"),
        Column::text("of"),
        Column::number("dtype").extra(3),
        Column::number("rms"),
        Column::number("largest"),
        Column::number("zero"),
        Column::number("subnormal").extra(2),
        Column::number("not finite").extra(1),
        Column::number("lost"),
    ]);
    for row in rows.iter().take(n_rows) {
        table.row([
            row.name(),
            row.quantity.to_string(),
            row.dtype.clone(),
            magnitude(row.rms),
            magnitude(row.max),
            share(row.zero),
            share(row.subnormal),
            share(row.not_finite),
            row.lost.map_or("-".to_string(), share),
        ]);
    }
    text += &table.render(screen);
    match rows.len().saturating_sub(n_rows) {
        0 => {}
        1 => text += "1 more row (--all shows it)\n",
        n => text += &format!("{n} more rows (--all shows them)\n"),
    }
    text
}

fn magnitude(value: f32) -> String {
    if value == 0.0 { "0".to_string() } else { format!("{value:.2e}") }
}

fn share(value: f64) -> String {
    match 100.0 * value {
        0.0 => "-".to_string(),
        percent if percent < 0.1 => "< 0.1 %".to_string(),
        percent => format!("{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_magnitudes_are_short() {
        assert_eq!((share(0.0), share(1e-5), share(0.25)), ("-".into(), "< 0.1 %".into(), "25.0 %".into()));
        assert_eq!((magnitude(0.0), magnitude(0.001_25)), ("0".into(), "1.25e-3".into()));
    }
}
