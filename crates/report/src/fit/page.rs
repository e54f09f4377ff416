//! A fit as a page for the browser, and its plots.

use super::words;
use crate::html::{Cell, Column, Fact, Page, Table};
use crate::outcome::{excess_note, one_line};
use crate::plot::curves::{Cross, Curve, Panel, Point, panels};
use crate::{grouped, mib, percent, scientific, seconds};
use bf16scope_study::{FitAnswer, FitRow, FitSeries};
use bf16scope_tpu::CompileOutcome;

/// The page.
pub fn page(fit: &FitAnswer) -> Page {
    Page {
        sheets: Vec::new(),
        title: format!("What fits: {}", fit.model),
        lead: format!(
            "Every row is a program ({}{}) that Google's TPU compiler, libtpu {}{}, compiled or refused. Cycles and \
             seconds are its estimates; no TPU has run anything.",
            super::program(fit),
            super::of_core(fit.devices),
            fit.libtpu,
            excess_note(fit.excess_precision)
        ),
        facts: facts(fit),
        notes: words::answers(fit),
        figures: vec![("Batch against memory and speed".to_string(), plots(fit))],
        tables: vec![table(fit)],
    }
}

fn facts(fit: &FitAnswer) -> Vec<Fact> {
    let mut facts = Vec::new();
    for series in &fit.series {
        let name = format!("{}, {}", series.target, series.precision);
        let Some((largest, best)) = series.found.largest.zip(series.found.best) else {
            facts.push(Fact { label: name, value: "does not fit".to_string(), is_bad: true });
            continue;
        };
        let more = if series.found.is_capped { " or more" } else { "" };
        facts.push(Fact { label: format!("{name}: largest batch"), value: format!("{largest}{more}"), is_bad: false });
        let speed = series.at(best).map_or(0.0, |(_, summary)| summary.examples_per_mcycle);
        let label = format!("{name}: best batch ({} {}/Mcycle)", words::figure(speed), fit.unit);
        facts.push(Fact { label, value: best.to_string(), is_bad: false });
    }
    facts
}

/// Memory and speed for each target, in panels below each other.
pub fn plots(fit: &FitAnswer) -> String {
    let mut targets: Vec<&str> = fit.series.iter().map(|series| series.target.as_str()).collect();
    targets.dedup();
    let mut all = Vec::new();
    for target in targets {
        let series: Vec<&FitSeries> = fit.series.iter().filter(|series| series.target == target).collect();
        let memory = curves(&series, fit.unit, |row| row.row.report().map(|report| report.hbm.total as f64 / GIB));
        let limit = series.iter().find_map(|series| limit(series)).map(|limit| limit / GIB);
        let greatest = memory.iter().flat_map(|curve| &curve.points).filter_map(|point| point.y).fold(0.0, f64::max);
        // A limit far above all values would flatten the curves.
        let is_near = limit.is_some_and(|limit| greatest == 0.0 || greatest > limit / 20.0);
        let far = match limit {
            Some(limit) if !is_near => format!(", far below the core's {limit:.2} GiB"),
            _ => String::new(),
        };
        // For a small model, MiB are more readable.
        let is_small = greatest > 0.0 && greatest < 0.25 && !is_near;
        let mut memory = memory;
        if is_small {
            memory
                .iter_mut()
                .flat_map(|curve| &mut curve.points)
                .for_each(|point| point.y = point.y.map(|y| y * 1024.0));
        }
        all.push(Panel {
            title: format!("{target}: device memory{far}"),
            unit: if is_small { |mib| format!("{mib} MiB") } else { |gib| format!("{gib} GiB") },
            curves: memory,
            limit: limit.filter(|_| is_near).map(|limit| (limit, format!("the core has {limit:.2} GiB"))),
            cross: Cross::AtLimit,
        });
        all.push(Panel {
            title: format!("{target}: {}/s, estimated", fit.unit),
            unit: speed,
            curves: curves(&series, fit.unit, |row| row.row.report().and_then(|report| report.examples_per_second)),
            limit: None,
            cross: Cross::AtZero,
        });
    }
    panels("batch against memory and speed", "examples in a batch", &all)
}

/// A round number on an axis, without unnecessary digits.
fn speed(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1000.0 => grouped(v as i64),
        v => format!("{v:.4}").trim_end_matches('0').trim_end_matches('.').to_string(),
    }
}

const GIB: f64 = (1u64 << 30) as f64;

/// The core's memory, from any compile.
fn limit(series: &FitSeries) -> Option<f64> {
    series.rows.iter().find_map(|row| match &row.row.outcome {
        CompileOutcome::Fits(report) => Some(report.hbm.limit as f64),
        CompileOutcome::OutOfMemory(need) => need.available.map(|available| available as f64),
        CompileOutcome::Failed(_) => None,
    })
}

fn curves(series: &[&FitSeries], unit: &str, value: impl Fn(&FitRow) -> Option<f64>) -> Vec<Curve> {
    let colors = ["--error", "--born", "--ink"];
    let curve = |(place, series): (usize, &&FitSeries)| {
        let point = |row: &FitRow| Point {
            x: f64::from(row.row.batch),
            y: value(row),
            hover: hover(series, row, unit),
            is_marked: series.found.best == Some(row.row.batch),
        };
        Curve {
            name: series.precision.clone(),
            color: colors[place % colors.len()],
            points: series.rows.iter().map(point).collect(),
        }
    };
    series.iter().enumerate().map(curve).collect()
}

fn hover(series: &FitSeries, row: &FitRow, unit: &str) -> String {
    let one = unit.trim_end_matches('s');
    let name = format!("{} at batch {}", series.precision, row.row.batch);
    let remark = words::remark(series, &row.row, row.summary.as_ref(), one);
    match (row.row.report(), &row.summary) {
        (Some(report), Some(summary)) => {
            let remark = if remark.is_empty() { String::new() } else { format!("; {remark}") };
            format!(
                "{name}: {}, {} of the core's memory; {} {unit}/Mcycle, {} {unit}/s{remark}",
                mib(report.hbm.total),
                percent(report.hbm.total, report.hbm.limit),
                words::figure(summary.examples_per_mcycle),
                words::estimate(report.examples_per_second)
            )
        }
        _ => format!("{name}: {}", one_line(&row.row.outcome)),
    }
}

fn table(fit: &FitAnswer) -> Table {
    let one = fit.unit.trim_end_matches('s');
    let column = |title, help| Column { title, help };
    let columns = vec![
        column("target", "the TPU"),
        column("precision", "what the network computes in"),
        column("batch", "examples in a batch, on one core"),
        column("HBM", "arguments + outputs - aliased + temporaries + code"),
        column("share", "of the core's memory"),
        column("temporaries", "what lives between arguments and outputs"),
        column("flops each", "flops for each example"),
        column("× least", "flops for each example over the least of this and smaller batches"),
        column("each Mcycle", "examples in a million estimated cycles"),
        column("each second", "examples in an estimated second"),
        column("compile", "seconds it took, now or when it was compiled first"),
        column("remark", ""),
    ];
    let mut rows = Vec::new();
    for series in &fit.series {
        for FitRow { row, summary } in &series.rows {
            let mut cells = vec![
                Cell::Text(series.target.clone()),
                Cell::Text(series.precision.clone()),
                Cell::Number(f64::from(row.batch), row.batch.to_string()),
            ];
            match (row.report(), summary) {
                (Some(report), Some(summary)) => {
                    let each = report.flops / f64::from(row.batch);
                    let (hbm, share) = (report.hbm, report.hbm.total as f64 / report.hbm.limit as f64);
                    cells.extend([
                        Cell::Number(hbm.total as f64, mib(hbm.total)),
                        Cell::Number(share, percent(hbm.total, hbm.limit)),
                        Cell::Number(hbm.temporaries as f64, mib(hbm.temporaries)),
                        Cell::Number(each, scientific(each)),
                        Cell::Number(summary.flops_ratio, format!("{:.3}", summary.flops_ratio)),
                        Cell::Number(summary.examples_per_mcycle, words::figure(summary.examples_per_mcycle)),
                        Cell::Number(
                            report.examples_per_second.unwrap_or(f64::INFINITY),
                            words::estimate(report.examples_per_second),
                        ),
                        Cell::Number(report.compile_seconds, seconds(report.compile_seconds)),
                    ]);
                }
                _ => cells.extend((0..8).map(|_| Cell::Number(f64::INFINITY, "-".to_string()))),
            }
            let remark = match &row.outcome {
                CompileOutcome::Failed(text) => text.clone(),
                CompileOutcome::Fits(_) | CompileOutcome::OutOfMemory(_) => {
                    words::remark(series, row, summary.as_ref(), one)
                }
            };
            cells.push(Cell::Text(remark));
            rows.push(cells);
        }
    }
    Table {
        heading: "Compiles".to_string(),
        lead: format!(
            "Beyond {} times the flops for each example of a smaller batch, the compiler computes things twice to save memory.",
            bf16scope_tpu::fit::REMATERIALISES
        ),
        columns,
        rows,
    }
}
