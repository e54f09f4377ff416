//! Which slice of TPUs to take: a table with remarks, and a page of speed and memory over cores.

mod page;
#[cfg(test)]
mod screens;

use crate::outcome::excess_note;
use crate::{Column, Screen, Table, grouped, mib, percent, seconds};
use bf16scope_study::PlanAnswer;
use bf16scope_tpu::SPREAD;
use bf16scope_tpu::plan::{Fit, Known, Series, Setting, SliceRow};

pub use page::page;

/// Whether a row is compiled or predicted, and what stands out.
fn remark(row: &SliceRow) -> String {
    let known = match row.known {
        Known::Compiled => "compiled",
        Known::Predicted { .. } => "predicted",
    };
    let fits = match row.fits {
        Fit::Yes => "",
        Fit::No => ", does not fit",
        Fit::Unsure if row.figures.is_none() => ", nothing known",
        Fit::Unsure => ", may not fit",
    };
    let front = if row.is_on_front { ", on the front" } else { "" };
    let accumulates = match row.setting.accumulate {
        1 => String::new(),
        n => format!(", {n} micro-batches"),
    };
    format!("{known}{accumulates}{fits}{front}")
}

/// The accuracy of predictions, for each series that has some, and what the rows omit.
fn notes(plan: &PlanAnswer) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let mut shown: Vec<&Series> = Vec::new();
    for row in &plan.rows {
        let series = &row.setting.series;
        if matches!(row.known, Known::Predicted { .. }) && !shown.contains(&series) {
            shown.push(series);
            notes.push(note(plan, series));
        }
    }
    notes.extend(plan.left_out.iter().cloned());
    notes
}

/// The accuracy of a series' predictions.
fn note(plan: &PlanAnswer, series: &Series) -> String {
    let predicted = plan.rows.iter().filter(|row| row.setting.series == *series).filter_map(|row| match row.known {
        Known::Predicted { hbm_error, cycles_error } => Some((hbm_error.zip(cycles_error), row.figures.is_some())),
        Known::Compiled => None,
    });
    let predicted: Vec<_> = predicted.collect();
    let bounds = predicted.iter().filter_map(|(bounds, _)| *bounds);
    let most = bounds.reduce(|(hbm, cycles), other| (hbm.max(other.0), cycles.max(other.1)));
    let has_others = predicted.iter().any(|(bounds, has_figures)| bounds.is_none() && *has_figures);
    let mut sentences = Vec::new();
    if let Some((hbm, cycles)) = most {
        sentences.push(format!(
            "predicted on lines between compiled rows, within {:.1} % of memory and {:.1} % of cycles",
            100.0 * hbm,
            100.0 * cycles
        ));
    }
    if has_others {
        sentences.push(match most {
            Some(_) => "how far rows beyond those are off is not known".to_string(),
            None => "predicted from too few compiled rows, so how far they are off is not known; more --compiles tell"
                .to_string(),
        });
    }
    if predicted.iter().any(|(_, has_figures)| !has_figures) {
        sentences.push("of rows without figures too little is compiled; more --compiles tell".to_string());
    }
    format!("{}: {}.", named(series), sentences.join("; "))
}

fn named(series: &Series) -> String {
    let remat = if series.remat { "" } else { ", without remat" };
    let state = if series.in_parts { ", sharded state" } else { "" };
    format!("{}, {}{remat}{state}", series.board, series.precision)
}

/// A table, and remarks on it.
pub fn render(plan: &PlanAnswer, screen: Screen) -> String {
    let unit = plan.unit;
    let has_both = plan.rows.iter().any(|row| !row.setting.series.remat);
    let mut columns = vec![
        Column::text("slice"),
        Column::text("dtype"),
        Column::number("a core").extra(1),
        Column::number("HBM"),
        Column::number("share").extra(2),
        Column::number("steps/s").extra(3),
        Column::number(format!("{unit}/s")),
        Column::number("efficiency"),
        Column::number("collectives").extra(4),
        Column::text("target").extra(5),
        Column::text(""),
    ];
    let has_parts = plan.rows.iter().any(|row| row.setting.series.in_parts);
    if has_both {
        columns.insert(2, Column::text("remat"));
    }
    if has_parts {
        columns.insert(2, Column::text("state"));
    }
    let mut table = Table::new(columns);
    for row in &plan.rows {
        let Setting { series, target, n_cores, .. } = &row.setting;
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_string());
        let mut cells = vec![
            format!("{}-{n_cores}", series.board.to_string().trim_start_matches("tpu-")),
            series.precision.clone(),
            row.setting.part().to_string(),
            shown(row.figures.map(|figures| mib(figures.hbm as i64))),
            shown(row.figures.map(|figures| percent(figures.hbm as i64, figures.limit as i64))),
            shown(row.steps_per_second.map(figure)),
            shown(row.examples_per_second.map(figure)),
            shown(row.efficiency.map(|share| format!("{:.0} %", 100.0 * share))),
            shown(row.figures.filter(|_| row.fits != Fit::No).map(|figures| seconds(figures.step.collective_seconds))),
            target.to_string(),
            remark(row),
        ];
        if has_both {
            cells.insert(2, if series.remat { "on" } else { "off" }.to_string());
        }
        if has_parts {
            cells.insert(2, if series.in_parts { "parts" } else { "whole" }.to_string());
        }
        table.row(cells);
    }
    let mut text = format!(
        "{}: training step, a batch of {} {unit} over all cores; memory and \"a core\" ({unit} at once) are one core's{}\n",
        plan.model,
        plan.batch,
        excess_note(plan.excess_precision)
    );
    text += &table.render(screen);
    for note in notes(plan) {
        text += &format!("{note}\n");
    }
    text += &format!(
        "Efficiency is {unit}/s of a core over the most that one core of its TPU and dtype does alone. On the front are rows \
         that no row of their TPU beats on as few cores. Time is cycles at the core's clock, then collectives by their bytes \
         over the links, and latency: a microsecond a hop of each collective, and 50 µs to start a step, which is assumed (`steps_per_call` \
         has it once for several): estimates, and no TPU has run anything. Steps of six published runs, all of ResNet-50 and of 8 ms or more, \
         took {:.2} to {:.2} times as long as estimates of this kind (docs/ESTIMATES.md): of another network, and of shorter steps, \
         nothing is known.\n",
        SPREAD.0, SPREAD.1
    );
    text
}

/// A number with its significant digits.
fn figure(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1000.0 => format!("{v:.1}"),
        v => grouped(v.round() as i64),
    }
}
