//! The largest batches that fit TPUs, and the best: on a terminal, as plots and as a page, and in words.

mod page;
#[cfg(test)]
mod screens;
mod words;

use crate::outcome::excess_note;
use crate::{Column, Screen, Table, mib, percent, scientific, seconds};
use bf16scope_study::{FitAnswer, FitRow};
use bf16scope_tpu::CompileOutcome;

pub use page::{page, plots};
pub use words::answers;

/// The unit of a batch.
fn of_core(n_devices: u32) -> String {
    match n_devices {
        1 => "one core".to_string(),
        n => format!("one core's part of a batch over {n} cores, whose gradients are summed in f32"),
    }
}

/// The program of a model, with a separator.
fn program(fit: &FitAnswer) -> String {
    fit.program.map_or(String::new(), |program| format!("{program}, "))
}

/// A table, failures, and conclusions in words.
pub fn render(fit: &FitAnswer, screen: Screen) -> String {
    let unit = fit.unit;
    let one = unit.trim_end_matches('s');
    // A target that all rows share is not repeated.
    let is_one = fit.series.windows(2).all(|two| two[0].target == two[1].target);
    let mut table = Table::new([
        Column::text("target").extra(if is_one { 1 } else { 0 }),
        Column::text("precision"),
        Column::number("batch"),
        Column::number("HBM"),
        Column::number("share"),
        Column::number("temporaries").extra(3),
        Column::number(format!("flops/{one}")).extra(4),
        Column::number(format!("{unit}/Mcycle")),
        Column::number(format!("{unit}/s")).extra(2),
        Column::number("compile").extra(5),
        Column::text(""),
    ]);
    let mut failures = String::new();
    for series in &fit.series {
        for FitRow { row, summary } in &series.rows {
            let mut cells = vec![series.target.clone(), series.precision.clone(), row.batch.to_string()];
            match (row.report(), summary) {
                (Some(report), Some(summary)) => cells.extend([
                    mib(report.hbm.total),
                    percent(report.hbm.total, report.hbm.limit),
                    mib(report.hbm.temporaries),
                    scientific(report.flops / f64::from(row.batch)),
                    words::figure(summary.examples_per_mcycle),
                    words::estimate(report.examples_per_second),
                    if row.cached { "cached".to_string() } else { seconds(report.compile_seconds) },
                ]),
                _ => cells.extend((0..7).map(|_| "-".to_string())),
            }
            cells.push(words::remark(series, row, summary.as_ref(), one));
            table.row(cells);
            if let CompileOutcome::Failed(text) = &row.outcome {
                let line = text.lines().next().unwrap_or_default();
                failures += &format!("{}, {}, batch {}: {line}\n", series.target, series.precision, row.batch);
            }
        }
    }
    let mut text = format!(
        "{}: {}{}{}\n{}{failures}",
        fit.model,
        program(fit),
        of_core(fit.devices),
        excess_note(fit.excess_precision),
        table.render(screen)
    );
    for answer in words::answers(fit) {
        text += &format!("{answer}\n");
    }
    text
}
