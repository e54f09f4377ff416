//! The findings of a fit, in words.

use crate::outcome::{no_room, one_line};
use crate::{grouped, mib};
use bf16scope_study::{FitAnswer, FitSeries, Large, Value};
use bf16scope_tpu::CompileOutcome;
use bf16scope_tpu::fit::{CompiledBatch, Summary};

/// A figure with its significant digits: `0.63`, `12.3`, `1,234`.
pub(super) fn figure(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1000.0 => format!("{v:.1}"),
        v => grouped(v.round() as i64),
    }
}

/// The same for an estimate that may be unknown.
pub(super) fn estimate(value: Option<f64>) -> String {
    value.map_or("-".to_string(), figure)
}

/// Remarks on a row: best or largest batch, rematerialisation, or why it has no result.
pub(super) fn remark(series: &FitSeries, row: &CompiledBatch, summary: Option<&Summary>, one: &str) -> String {
    let mut remarks = Vec::new();
    if series.found.best == Some(row.batch) {
        remarks.push("best".to_string());
    }
    if series.found.largest == Some(row.batch) {
        remarks.push(if series.found.is_capped { "largest tried" } else { "largest" }.to_string());
    }
    match (&row.outcome, summary) {
        (_, Some(summary)) if summary.rematerialises => {
            remarks.push(format!("rematerialises: {:.2} × the flops per {one}", summary.flops_ratio));
        }
        (CompileOutcome::OutOfMemory(need), _) => remarks.push(no_room(need)),
        (CompileOutcome::Failed(_), _) => remarks.push("refused, see below".to_string()),
        _ => {}
    }
    remarks.join("; ")
}

/// One line for each target, then what is too large if nothing fits.
pub fn answers(fit: &FitAnswer) -> Vec<String> {
    let mut targets: Vec<&str> = fit.series.iter().map(|series| series.target.as_str()).collect();
    targets.dedup();
    let mut answers = Vec::new();
    for target in &targets {
        let series: Vec<&FitSeries> = fit.series.iter().filter(|series| series.target == *target).collect();
        let prefix = if targets.len() > 1 { format!("{target}: ") } else { String::new() };
        answers.push(prefix + &sentences(&series, fit.unit));
    }
    answers.extend(fit.series.iter().filter_map(|series| Some(too_large(series, series.too_large.as_ref()?))));
    answers
}

fn sentences(all: &[&FitSeries], unit: &str) -> String {
    let mut sentences = Vec::new();
    let mut has_said_unit = false;
    for series in all {
        let name = &series.precision;
        let (Some(largest), Some(best)) = (series.found.largest, series.found.best) else {
            let least = series.rows.first().map_or(1, |row| row.row.batch);
            sentences.push(format!("{name}: does not fit at batch {least}."));
            continue;
        };
        let more = if series.found.is_capped { " or more" } else { "" };
        let speed = series.at(best).map_or(0.0, |(_, summary)| summary.examples_per_mcycle);
        let per = if has_said_unit { String::new() } else { format!(" {unit}/Mcycle") };
        has_said_unit = true;
        let mut sentence = format!("{name}: up to {largest}{more}, best {best} ({}{per})", figure(speed));
        if let Some(comparison) = all.first().and_then(|first| compare(first, series)) {
            sentence += &format!(": {comparison}");
        }
        sentences.push(sentence + ".");
    }
    sentences.join(" ")
}

/// A precision compared with the first: speed at the best batch of each, memory at one batch.
fn compare(first: &FitSeries, series: &FitSeries) -> Option<String> {
    if std::ptr::eq(first, series) {
        return None;
    }
    let (own_best, first_best) = (series.found.best?, first.found.best?);
    let (_, own) = series.at(own_best)?;
    let (_, other) = first.at(first_best)?;
    let speed = format!("{:.2} × {}", own.examples_per_mcycle / other.examples_per_mcycle, first.precision);
    // Its own best batch, otherwise the largest that both compiled.
    let both = |batch: u32| Some((batch, series.at(batch)?.0, first.at(batch)?.0));
    let common = both(own_best).or_else(|| series.rows.iter().rev().find_map(|row| both(row.row.batch)));
    let Some((batch, own, other)) = common else { return Some(speed) };
    let less = 100.0 * (1.0 - own.hbm.total as f64 / other.hbm.total as f64);
    let at =
        if batch == own_best && batch == first_best { "the same batch".to_string() } else { format!("batch {batch}") };
    let memory = match less.round() {
        l if l > 0.0 => format!("{l:.0} % less memory"),
        l if l < 0.0 => format!("{:.0} % more memory", -l),
        _ => "as much memory".to_string(),
    };
    Some(format!("{speed}, with {memory} at {at}"))
}

fn too_large(series: &FitSeries, large: &Large) -> String {
    let row = series.rows.first().map(|row| &row.row);
    let batch = row.map_or(1, |row| row.batch);
    let why = row.map_or(String::new(), |row| one_line(&row.outcome));
    let which = match &large.on {
        Some(target) => format!("Its largest buffers, explained on {target}, where it fits:"),
        None => "The largest values of the program:".to_string(),
    };
    let mut text = format!("{}, {} at batch {batch}: {why}. {which}", series.target, series.precision);
    for Value { n_bytes, kind, shape, name, at } in &large.values {
        let at = at.as_ref().map_or(String::new(), |at| format!(" ({at})"));
        let n_bytes = mib(i64::try_from(*n_bytes).unwrap_or(i64::MAX));
        text += &format!("\n  {n_bytes:>12}  {kind:<9}  {shape}  {name}{at}");
    }
    text
}
