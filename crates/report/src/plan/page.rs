//! A plan as a page for the browser: speed and memory over cores, the front, and a table.

use super::{figure, named, notes, remark};
use crate::html::{Cell, Column, Fact, Page, Table};
use crate::outcome::excess_note;
use crate::plot::curves::{Cross, Curve, Panel, Point, panels};
use crate::{mib, seconds};
use bf16scope_study::PlanAnswer;
use bf16scope_tpu::Target;
use bf16scope_tpu::plan::{Fit, Known, Series, SliceRow};

const GIB: f64 = (1u64 << 30) as f64;

/// The page.
pub fn page(plan: &PlanAnswer) -> Page {
    Page {
        title: format!("Which slice: {}", plan.model),
        lead: format!(
            "A training step on a batch of {} {} over all cores of a slice. Memory and cycles are those of Google's TPU \
             compiler, libtpu {}{}, or predicted on straight lines between programs that it compiled; collectives take what a \
             ring over the chips takes by their links. No TPU has run anything.",
            plan.batch,
            plan.unit,
            plan.libtpu,
            excess_note(plan.excess_precision)
        ),
        facts: facts(plan),
        notes: notes(plan),
        figures: vec![(
            "Cores against speed and memory; larger points are on the Pareto front".to_string(),
            plots(plan),
        )],
        sheets: Vec::new(),
        tables: vec![table(plan)],
    }
}

fn boards(plan: &PlanAnswer) -> Vec<&Target> {
    let mut boards: Vec<&Target> = Vec::new();
    for row in &plan.rows {
        if !boards.contains(&&row.setting.series.board) {
            boards.push(&row.setting.series.board);
        }
    }
    boards
}

/// The front of each TPU.
fn facts(plan: &PlanAnswer) -> Vec<Fact> {
    let rows = plan.rows.iter().filter(|row| row.is_on_front);
    let fact = |row: &SliceRow| Fact {
        label: format!(
            "{} in {}{}, {}",
            row.setting.target,
            row.setting.series.precision,
            if row.setting.series.in_parts { ", sharded state" } else { "" },
            remark(row)
        ),
        value: format!("{} {}/s", row.examples_per_second.map_or("-".to_string(), figure), plan.unit),
        is_bad: false,
    };
    rows.map(fact).collect()
}

fn plots(plan: &PlanAnswer) -> String {
    let mut all = Vec::new();
    for board in boards(plan) {
        let rows: Vec<&SliceRow> = plan.rows.iter().filter(|row| row.setting.series.board == *board).collect();
        all.push(Panel {
            title: format!("{board}: {}/s, estimated", plan.unit),
            unit: figure,
            curves: curves(&rows, plan.unit, |row| row.examples_per_second),
            limit: None,
            cross: Cross::AtZero,
        });
        let limit = rows.iter().find_map(|row| Some(row.figures?.limit / GIB));
        all.push(Panel {
            title: format!("{board}: device memory of a core"),
            unit: |gib| format!("{gib} GiB"),
            curves: curves(&rows, plan.unit, |row| Some(row.figures.filter(|_| row.fits != Fit::No)?.hbm / GIB)),
            limit: limit.map(|limit| (limit, format!("the core has {limit:.2} GiB"))),
            cross: Cross::AtLimit,
        });
    }
    panels("cores against speed and memory", "cores", &all)
}

fn curves(rows: &[&SliceRow], unit: &str, value: impl Fn(&SliceRow) -> Option<f64>) -> Vec<Curve> {
    const COLORS: [&str; 6] = ["--line1", "--line2", "--line3", "--line4", "--line5", "--line6"];
    let mut series: Vec<&Series> = Vec::new();
    for row in rows {
        if !series.contains(&&row.setting.series) {
            series.push(&row.setting.series);
        }
    }
    let point = |row: &&&SliceRow| Point {
        x: f64::from(row.setting.n_cores),
        y: value(row),
        hover: hover(row, unit),
        is_marked: row.is_on_front,
    };
    let curve = |(place, series): (usize, &&Series)| Curve {
        name: named(series),
        color: COLORS[place % COLORS.len()],
        // With and without accumulation, the setting that fits.
        points: rows
            .iter()
            .filter(|row| row.setting.series == **series)
            .filter(|row| row.setting.accumulate > 1 || !has_accumulated(rows, row))
            .map(|row| point(&row))
            .collect(),
    };
    series.iter().enumerate().map(curve).collect()
}

fn has_accumulated(rows: &[&SliceRow], row: &SliceRow) -> bool {
    let is_it = |other: &&&SliceRow| {
        let (one, other) = (&row.setting, &other.setting);
        other.accumulate > 1 && one.series == other.series && one.target == other.target
    };
    rows.iter().any(|other| is_it(&other))
}

fn hover(row: &SliceRow, unit: &str) -> String {
    let setting = &row.setting;
    let name = format!("{} on {}, {} {unit} at once on a core", named(&setting.series), setting.target, setting.part());
    match (row.figures, row.examples_per_second) {
        (Some(figures), Some(speed)) => format!(
            "{name}: {} {unit}/s, {}, collectives {}; {}",
            figure(speed),
            mib(figures.hbm as i64),
            seconds(figures.step.collective_seconds),
            remark(row)
        ),
        _ => format!("{name}: {}", remark(row)),
    }
}

fn table(plan: &PlanAnswer) -> Table {
    let column = |title, help| Column { title, help };
    let columns = vec![
        column("slice", "chips along each axis"),
        column("cores", "all of them share a batch"),
        column("dtype", "what the network computes in"),
        column("remat", "whether the backward pass rematerialises"),
        column("state", "whole on each core, or in parts, one on each"),
        column("a core", "examples at once on a core"),
        column("micro-batches", "of a core's part of the batch"),
        column("HBM", "of a core, code included"),
        column("share", "of the core's memory"),
        column("computing", "cycles at the core's clock"),
        column("collectives", "by a ring over the chips' links"),
        column("steps/s", "one after the other"),
        column("each second", "examples, of all cores"),
        column("efficiency", "of a core, over the most that one does alone"),
        column("memory off by", "where a compiled row is predicted from the others"),
        column("cycles off by", "where a compiled row is predicted from the others"),
        column("remark", ""),
    ];
    let rows = plan.rows.iter().map(cells).collect();
    Table { heading: "Settings".to_string(), lead: String::new(), columns, rows }
}

fn cells(row: &SliceRow) -> Vec<Cell> {
    let setting = &row.setting;
    let number = |value: Option<f64>, shown: fn(f64) -> String| match value {
        Some(value) => Cell::Number(value, shown(value)),
        None => Cell::Number(f64::INFINITY, "-".to_string()),
    };
    let count = |n: u32| Cell::Number(f64::from(n), n.to_string());
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let figures = row.figures;
    let (hbm_error, cycles_error) = match row.known {
        Known::Compiled => (None, None),
        Known::Predicted { hbm_error, cycles_error } => (hbm_error, cycles_error),
    };
    vec![
        Cell::Text(setting.target.to_string()),
        count(setting.n_cores),
        Cell::Text(setting.series.precision.clone()),
        Cell::Text(if setting.series.remat { "on" } else { "off" }.to_string()),
        Cell::Text(if setting.series.in_parts { "parts" } else { "whole" }.to_string()),
        count(setting.part()),
        count(setting.accumulate),
        number(figures.map(|figures| figures.hbm), |n| mib(n as i64)),
        number(figures.map(|figures| figures.hbm / figures.limit), percent),
        number(figures.map(|figures| figures.step.compute_seconds), seconds),
        number(figures.map(|figures| figures.step.collective_seconds), seconds),
        number(row.steps_per_second, figure),
        number(row.examples_per_second, figure),
        number(row.efficiency, percent),
        number(hbm_error, percent),
        number(cycles_error, percent),
        Cell::Text(remark(row)),
    ]
}
