//! A watched run as a page for the browser: layers against steps as heat maps.

use super::{WatchedRun, magnitude, share, verdict};
use crate::grouped;
use crate::html::{Cell, Column, Fact, Page, Table};
use crate::plot::heat::{HeatCell, HeatMap, HeatRow, heat};
use bf16scope_train::watch::{Anomaly, Bins, Quantity, RULES, WatchRecord, WatchRow};

/// The page.
pub fn page(outcome: &WatchedRun<'_>, records: &[WatchRecord]) -> Page {
    Page {
        sheets: Vec::new(),
        title: format!("Watched: {}", outcome.run.display()),
        lead: "The numbers of each layer over the steps of a training, each look before its step was made. Darker is more; \
               hovering says the values. A map whose shares are 0 throughout is left out."
            .to_string(),
        facts: facts(outcome),
        notes: verdict(outcome),
        figures: over_steps(records).into_iter().chain(exponents(outcome, records)).collect(),
        tables: vec![wrong(outcome), rows(outcome), rules()],
    }
}

fn facts(outcome: &WatchedRun<'_>) -> Vec<Fact> {
    let fact = |label: &str, value: String, is_bad| Fact { label: label.to_string(), value, is_bad };
    let n = outcome.anomalies.len();
    let mut facts = vec![
        fact("looks", grouped(outcome.n_looks as i64), false),
        fact("last look, before step", grouped(outcome.steps[1] as i64), false),
        fact("things that are wrong", n.to_string(), n > 0),
    ];
    facts.extend(
        outcome
            .anomalies
            .first()
            .map(|first| fact("first of them", format!("{} at step {}", first.rule, grouped(first.step as i64)), true)),
    );
    facts
}

/// The quantity that a map shows.
struct Shown {
    /// The title, after the quantity.
    what: &'static str,
    /// `None` if the row has no such number.
    value: fn(&WatchRow) -> Option<f64>,
    scale: Scale,
}

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// By exponents, from those of the smallest to those of the largest in the map. Always drawn.
    Magnitude,
    /// From none to all. A map of zeros is omitted.
    Share,
}

const SHOWN: [Shown; 6] = [
    Shown { what: "magnitude (rms)", value: |row| Some(row.rms.into()), scale: Scale::Magnitude },
    Shown { what: "largest magnitude", value: |row| Some(row.max.into()), scale: Scale::Magnitude },
    Shown { what: "share of zeros", value: |row| Some(row.zero), scale: Scale::Share },
    Shown {
        what: "share of numbers below the smallest normal one of their dtype",
        value: |row| Some(row.subnormal),
        scale: Scale::Share,
    },
    Shown {
        what: "share of numbers at the largest finite one of their dtype",
        value: |row| Some(row.saturated),
        scale: Scale::Share,
    },
    Shown {
        what: "share that is lost, below half an ulp of what is stored",
        value: |row| row.lost,
        scale: Scale::Share,
    },
];

/// The least span of exponents in a map of magnitudes, so that small differences are not exaggerated.
const MIN_SPAN: f64 = 8.0;

/// The exponents at a map's ends: whole numbers that enclose those of all values above 0.
fn exponents_of(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let logs = values.filter(|value| *value > 0.0 && value.is_finite()).map(f64::log2);
    let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| (low.min(log), high.max(log)));
    if low > high {
        return (-MIN_SPAN, 0.0);
    }
    let (low, high) = (low.floor(), high.ceil());
    let more = ((MIN_SPAN - (high - low)) / 2.0).ceil().max(0.0);
    (low - more, high + more)
}

fn plural(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Activation => "Activations",
        Quantity::Cotangent => "Cotangents",
        Quantity::Gradient => "Gradients",
        _ => "Updates",
    }
}

/// Maps of layers against steps.
fn over_steps(records: &[WatchRecord]) -> Vec<(String, String)> {
    let steps: Vec<String> = records.iter().map(|record| format!("step {}", grouped(record.step as i64))).collect();
    let mut figures = Vec::new();
    for quantity in Quantity::ALL {
        let looks: Vec<Vec<&WatchRow>> = records.iter().map(|record| of_quantity(record, quantity)).collect();
        for Shown { what, value, scale } in &SHOWN {
            let values = looks.iter().flatten().filter_map(|row| value(row));
            let (ends, low, high) = match scale {
                Scale::Magnitude => {
                    let (low, high) = exponents_of(values);
                    ([format!("2^{low}"), format!("2^{high}")], low, high)
                }
                Scale::Share if values.clone().all(|value| value == 0.0) => continue,
                Scale::Share => (SHARES.map(str::to_string), 0.0, 1.0),
            };
            let heat_of = |row: &WatchRow| {
                let value = value(row)?;
                let place = if *scale == Scale::Magnitude { value.log2() } else { value };
                Some((place - low) / (high - low))
            };
            let rows = map_rows(&looks, &steps, heat_of);
            if rows.is_empty() {
                continue;
            }
            let caption = format!("{}: {what}", plural(quantity));
            let label = format!("{caption}; a row for each layer, a column for each look");
            let map = HeatMap {
                label: &label,
                rows: &rows,
                columns: &steps,
                ends: [&ends[0], &ends[1]],
                bad: "infinite or NaN",
            };
            let svg = heat(&map);
            figures.push((caption, svg));
        }
    }
    figures
}

/// The ends of a map of shares.
const SHARES: [&str; 2] = ["none", "all"];

fn of_quantity(record: &WatchRecord, quantity: Quantity) -> Vec<&WatchRow> {
    record.rows.iter().filter(|row| row.quantity == quantity).collect()
}

/// A row for each in the last look, with a cell for each look that has it too.
fn map_rows(looks: &[Vec<&WatchRow>], steps: &[String], heat_of: impl Fn(&WatchRow) -> Option<f64>) -> Vec<HeatRow> {
    let Some(last) = looks.last() else { return Vec::new() };
    let cell = |step: &String, row: &WatchRow| {
        let heat = heat_of(row)?;
        Some(HeatCell { heat, is_bad: row.not_finite > 0.0, text: format!("{step}: {}", in_words(row)) })
    };
    let heat_row = |(place, row): (usize, &&WatchRow)| {
        // A layer may have several values: each is identified by its place among them.
        let is_same = |other: &&&WatchRow| (&other.layer, other.role) == (&row.layer, row.role);
        let at_step =
            |(step, rows): (&String, &Vec<&WatchRow>)| rows.get(place).filter(is_same).and_then(|row| cell(step, row));
        HeatRow { name: row.name(), cells: steps.iter().zip(looks).map(at_step).collect() }
    };
    let rows: Vec<HeatRow> = last.iter().enumerate().map(heat_row).collect();
    rows.into_iter().filter(|row| row.cells.iter().any(Option::is_some)).collect()
}

/// A row in words.
fn in_words(row: &WatchRow) -> String {
    let mut text = format!("{}: rms {}, largest {}", row.name(), magnitude(row.rms), magnitude(row.max));
    let shares = [
        ("zero", row.zero),
        ("subnormal", row.subnormal),
        ("saturated", row.saturated),
        ("infinite or NaN", row.not_finite),
        ("lost", row.lost.unwrap_or(0.0)),
    ];
    for (name, value) in shares.into_iter().filter(|(_, value)| *value > 0.0) {
        text += &format!(", {name} {}", share(value));
    }
    text
}

/// Maps of exponents: of each layer in the shown look, and of the first anomaly over the looks.
fn exponents(outcome: &WatchedRun<'_>, records: &[WatchRecord]) -> Vec<(String, String)> {
    let bins = bins();
    let mut figures = Vec::new();
    for quantity in Quantity::ALL {
        let heat_row = |row: &&WatchRow| HeatRow { name: row.name(), cells: cells(row, &bins) };
        let rows: Vec<HeatRow> = of_quantity(outcome.look, quantity).iter().map(heat_row).collect();
        let step = grouped(outcome.look.step as i64);
        let caption = format!("{}: exponents of magnitudes, before step {step}", plural(quantity));
        if !rows.is_empty() {
            figures.push(exponent_map(caption, &rows, &bins));
        }
    }
    let Some(Anomaly { layer, quantity, .. }) = outcome.anomalies.first() else { return figures };
    let is_it = |row: &&WatchRow| row.layer == *layer && row.quantity == *quantity;
    let heat_row = |record: &WatchRecord| {
        let row = record.rows.iter().find(is_it)?;
        Some(HeatRow { name: format!("step {}", grouped(record.step as i64)), cells: cells(row, &bins) })
    };
    let rows: Vec<HeatRow> = records.iter().filter_map(heat_row).collect();
    // The looks around the step at which it went wrong.
    let at = records.iter().filter(|record| record.step < outcome.anomalies[0].step).count();
    let from = at.saturating_sub(20).min(rows.len());
    let rows = &rows[from..rows.len().min(from + 40)];
    let caption = format!("What went wrong first: exponents of the {quantity} of {layer}, look by look");
    figures.insert(0, exponent_map(caption, rows, &bins));
    figures
}

fn exponent_map(caption: String, rows: &[HeatRow], bins: &[String]) -> (String, String) {
    let label = format!("{caption}; a column for each bin of exponents");
    let svg = heat(&HeatMap { label: &label, rows, columns: bins, ends: SHARES, bad: "" });
    (caption, svg)
}

/// Names of the bins: the power of two at which each begins.
fn bins() -> Vec<String> {
    ["less".to_string()].into_iter().chain(Bins::bounds().map(|exponent| format!("2^{exponent}"))).collect()
}

fn cells(row: &WatchRow, bins: &[String]) -> Vec<Option<HeatCell>> {
    let cell = |(bin, value): (&String, &f64)| {
        let text = format!("{}: from {bin} on: {}", row.name(), share(*value));
        (*value > 0.0).then_some(HeatCell { heat: *value, is_bad: false, text })
    };
    bins.iter().zip(&row.bins).map(cell).collect()
}

fn wrong(outcome: &WatchedRun<'_>) -> Table {
    let rows = outcome.anomalies.iter().map(|anomaly| {
        vec![
            Cell::Number(anomaly.step as f64, grouped(anomaly.step as i64)),
            Cell::Text(anomaly.rule.to_string()),
            Cell::Text(anomaly.layer.clone()),
            Cell::Text(anomaly.quantity.to_string()),
            Cell::Text(anomaly.direction.to_string()),
            Cell::Text(anomaly.found.clone()),
            Cell::Text(anomaly.remedy.clone()),
        ]
    });
    let columns = [
        Column { title: "step", help: "the first look that shows it" },
        Column { title: "rule", help: "what was broken, see below" },
        Column { title: "layer", help: "its scope; of gradients and updates the variable" },
        Column { title: "of", help: "activation, cotangent, gradient or update" },
        Column { title: "direction", help: "the part of a step that makes it" },
        Column { title: "found", help: "what was measured" },
        Column { title: "remedy", help: "what to do" },
    ];
    Table {
        heading: "What is wrong".to_string(),
        lead: "Each thing where it is first seen.".to_string(),
        columns: columns.to_vec(),
        rows: rows.collect(),
    }
}

/// The shown look, number by number.
fn rows(outcome: &WatchedRun<'_>) -> Table {
    let part = |value: f64| Cell::Number(value, share(value));
    let rows = outcome.look.rows.iter().map(|row| {
        vec![
            Cell::Text(row.name()),
            Cell::Text(row.quantity.to_string()),
            Cell::Text(row.dtype.clone()),
            Cell::Number(row.n as f64, grouped(row.n as i64)),
            Cell::Number(row.rms.into(), magnitude(row.rms)),
            Cell::Number(row.max.into(), magnitude(row.max)),
            part(row.zero),
            part(row.subnormal),
            part(row.saturated),
            part(row.not_finite),
            part(row.lost.unwrap_or(0.0)),
            part(row.unseen.unwrap_or(0.0)),
        ]
    });
    let columns = [
        Column { title: "layer", help: "its scope; of gradients and updates the variable" },
        Column { title: "of", help: "activation, cotangent, gradient or update" },
        Column { title: "dtype", help: "of an update, what the variable is stored in" },
        Column { title: "numbers", help: "how many" },
        Column { title: "rms", help: "√mean x² of the finite ones" },
        Column { title: "largest", help: "the largest finite magnitude" },
        Column { title: "zero", help: "share" },
        Column { title: "subnormal", help: "share below the smallest normal number of the dtype, and not 0" },
        Column { title: "saturated", help: "share at the largest finite number of the dtype" },
        Column { title: "not finite", help: "share that is infinite or NaN" },
        Column { title: "lost", help: "share of updates that change nothing of what is stored" },
        Column { title: "unseen", help: "share of updates that change nothing of what the network reads" },
    ];
    Table {
        heading: format!("The look before step {}", grouped(outcome.look.step as i64)),
        lead: "What the maps show, in numbers.".to_string(),
        columns: columns.to_vec(),
        rows: rows.collect(),
    }
}

fn rules() -> Table {
    let columns = [
        Column { title: "rule", help: "its name" },
        Column { title: "why", help: "what it asks, and where its threshold is from" },
    ];
    let rows = RULES.iter().map(|rule| vec![Cell::Text(rule.name.to_string()), Cell::Text(rule.why.to_string())]);
    Table {
        heading: "Rules".to_string(),
        lead: "What a look is judged by.".to_string(),
        columns: columns.to_vec(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_powers_of_two_that_hold_all_values() {
        assert_eq!(exponents_of([0.0, 1.5, 3.0].into_iter()), (-3.0, 5.0));
        assert_eq!(exponents_of([1e-9, f64::INFINITY, 1e3].into_iter()), (-30.0, 10.0));
        assert_eq!(exponents_of([0.0].into_iter()), (-8.0, 0.0));
    }
}
