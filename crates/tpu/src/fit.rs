//! Searches for batches that fit, and for the best one: calls a closure that compiles a program at a batch, and
//! summarises the rows.
//!
//! [`search`] is plain logic over a closure, independent of compilers and programs. A [`CompiledBatch`] is the outcome
//! of one compile, and [`summarize`] interprets a list of them.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Serialize, Serializer};

use super::{CompileOutcome, CompileReport, Need};

/// The outcome of one batch, as far as the search needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trial {
    /// It fits; examples per cycle, or any figure that is better if greater.
    Fits(f64),
    /// It does not fit, so nothing larger is tried.
    OutOfMemory,
    /// The compiler refused for another reason, which does not apply to larger batches.
    Failed,
}

/// A requested compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Examples in a batch.
    pub batch: u32,
    /// The expected number of further compiles.
    pub n_more: u32,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The largest batch that compiles; `None` if not even 1 does.
    pub largest: Option<u32>,
    /// Whether the search ended at its limit, so that larger ones may fit.
    pub is_capped: bool,
    /// The compiled batch with the largest figure; the least among equals.
    pub best: Option<u32>,
}

/// The default multiple for batches between powers of two: the TPU's registers hold 8 rows.
pub const MULTIPLE: u32 = 8;

/// Finds the largest batch up to `max` that compiles, and the best one.
///
/// From the power of two at or below `start` it doubles until one does not fit, halves if the first does not, bisects
/// between the largest that fits and the least that does not to a `multiple`, and halves on from the best until the
/// next smaller power of two is worse. A failure for a reason other than memory is skipped once, and bounds the
/// bisection as memory does. The search assumes that a batch fits if a larger one does; if that is wrong, it still
/// returns a batch that fits and whose next tried multiple does not.
///
/// # Errors
/// An error of the closure, at once.
pub fn search<E>(
    start: u32,
    max: u32,
    multiple: u32,
    mut compile: impl FnMut(Step) -> Result<Trial, E>,
) -> Result<Found, E> {
    let multiple = multiple.max(1);
    let mut seen: BTreeMap<u32, Trial> = BTreeMap::new();
    let mut ask = |seen: &mut BTreeMap<u32, Trial>, step: Step| -> Result<Trial, E> {
        let trial = compile(step)?;
        seen.insert(step.batch, trial);
        Ok(trial)
    };
    let max = max.max(1);
    let first = power_at_most(start.clamp(1, max));
    let mut n_failed = 0;
    let mut batch = first;
    loop {
        let n_more = 2 + n_bisections(batch, batch.saturating_mul(2), multiple);
        match ask(&mut seen, Step { batch, n_more })? {
            Trial::Fits(_) => n_failed = 0,
            Trial::Failed if n_failed == 0 => n_failed = 1,
            Trial::Failed | Trial::OutOfMemory => break,
        }
        if batch == max {
            break;
        }
        batch = batch.saturating_mul(2).min(max);
    }
    let mut batch = first;
    while largest(&seen).is_none() && batch > 1 {
        batch /= 2;
        ask(&mut seen, Step { batch, n_more: 1 + n_bisections(batch, batch * 2, multiple) })?;
    }
    while let Some((low, high)) = bracket(&seen)
        && let Some(batch) = between(low, high, multiple)
    {
        ask(&mut seen, Step { batch, n_more: 1 + n_bisections(low, high, multiple) / 2 })?;
    }
    while let Some(best) = best(&seen)
        && best > 1
        && let below = power_at_most(best - 1)
        && !seen.contains_key(&below)
    {
        ask(&mut seen, Step { batch: below, n_more: 0 })?;
    }
    let largest = largest(&seen);
    Ok(Found { largest, is_capped: largest == Some(max), best: best(&seen) })
}

/// The largest that fits among given batches, smallest first, and the best one: for modules that exist only at these
/// batches. Nothing larger than one that does not fit is compiled.
///
/// # Errors
/// An error of the closure, at once.
pub fn search_among<E>(batches: &[u32], mut compile: impl FnMut(Step) -> Result<Trial, E>) -> Result<Found, E> {
    let mut seen = BTreeMap::new();
    for (place, &batch) in batches.iter().enumerate() {
        let n_more = (batches.len() - place - 1) as u32;
        let trial = compile(Step { batch, n_more })?;
        seen.insert(batch, trial);
        if trial == Trial::OutOfMemory {
            break;
        }
    }
    let largest = largest(&seen);
    Ok(Found { largest, is_capped: largest.is_some() && largest == batches.iter().max().copied(), best: best(&seen) })
}

fn power_at_most(n: u32) -> u32 {
    1 << n.ilog2()
}

fn largest(seen: &BTreeMap<u32, Trial>) -> Option<u32> {
    seen.iter().rev().find(|(_, trial)| matches!(trial, Trial::Fits(_))).map(|(batch, _)| *batch)
}

fn best(seen: &BTreeMap<u32, Trial>) -> Option<u32> {
    let mut best: Option<(u32, f64)> = None;
    for (&batch, trial) in seen {
        if let Trial::Fits(figure) = *trial
            && best.is_none_or(|(_, greatest)| figure > greatest)
        {
            best = Some((batch, figure));
        }
    }
    best.map(|(batch, _)| batch)
}

/// The largest that fits, and the least above it that does not.
fn bracket(seen: &BTreeMap<u32, Trial>) -> Option<(u32, u32)> {
    let low = largest(seen)?;
    seen.range((Bound::Excluded(low), Bound::Unbounded)).next().map(|(high, _)| (low, *high))
}

/// The multiple in the middle between two batches; `None` if there is none between them.
fn between(low: u32, high: u32, multiple: u32) -> Option<u32> {
    let middle = low.midpoint(high) / multiple * multiple;
    let batch = if middle > low { middle } else { middle.saturating_add(multiple) };
    (low < batch && batch < high).then_some(batch)
}

/// The number of compiles for bisecting between two batches.
fn n_bisections(low: u32, high: u32, multiple: u32) -> u32 {
    ((high - low) / multiple).checked_ilog2().unwrap_or(0)
}

/// The outcome of compiling at one batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompiledBatch {
    /// Examples in a batch.
    pub batch: u32,
    /// Whether it was cached.
    pub cached: bool,
    /// The outcome.
    #[serde(flatten, serialize_with = "without_the_compilers_text")]
    pub outcome: CompileOutcome,
}

/// The form that commands print.
fn without_the_compilers_text<S: Serializer>(outcome: &CompileOutcome, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Printed<'o> {
        Fits(&'o CompileReport),
        OutOfMemory { needed: Option<u64>, available: Option<u64> },
        Failed { message: &'o str },
    }
    match outcome {
        CompileOutcome::Fits(report) => Printed::Fits(report),
        CompileOutcome::OutOfMemory(Need { needed, available, .. }) => {
            Printed::OutOfMemory { needed: *needed, available: *available }
        }
        CompileOutcome::Failed(message) => Printed::Failed { message },
    }
    .serialize(serializer)
}

impl CompiledBatch {
    /// The figures, if it fits.
    pub fn report(&self) -> Option<&CompileReport> {
        self.outcome.report()
    }

    /// The outcome for the search.
    pub fn trial(&self) -> Trial {
        match &self.outcome {
            CompileOutcome::Fits(report) => Trial::Fits(per_mcycle(self.batch, report)),
            CompileOutcome::OutOfMemory(_) => Trial::OutOfMemory,
            CompileOutcome::Failed(_) => Trial::Failed,
        }
    }
}

/// Examples per million estimated cycles. A program without cycles counts as 0.
pub fn per_mcycle(batch: u32, report: &CompileReport) -> f64 {
    match report.cycles {
        0 => 0.0,
        n_cycles => f64::from(batch) * 1e6 / n_cycles as f64,
    }
}

/// If the flops per example exceed those of a smaller batch by this factor, the compiler rematerialises to save memory.
/// Other effects of a batch are far smaller: ResNet-50 for v2 has 1.027 where it first rematerialises.
pub const REMATERIALISES: f64 = 1.02;

/// The interpretation of a row's figures beside the others'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Examples per million cycles.
    pub examples_per_mcycle: f64,
    /// Flops per example, divided by the least of this and any smaller batch that fits.
    pub flops_ratio: f64,
    /// Whether that exceeds [`REMATERIALISES`].
    pub rematerialises: bool,
}

/// The summary of each row; `None` for rows that do not fit. Rows may be in any order.
pub fn summarize(rows: &[CompiledBatch]) -> Vec<Option<Summary>> {
    let flops = |row: &CompiledBatch| row.report().map(|report| report.flops / f64::from(row.batch));
    let summary = |row: &CompiledBatch| {
        let report = row.report()?;
        let flops_each = flops(row)?;
        let smaller = rows.iter().filter(|other| other.batch <= row.batch);
        let least = smaller.filter_map(flops).fold(flops_each, f64::min);
        // A program of copies has no flops at all.
        let flops_ratio = if least > 0.0 { flops_each / least } else { 1.0 };
        Some(Summary {
            examples_per_mcycle: per_mcycle(row.batch, report),
            flops_ratio,
            rematerialises: flops_ratio > REMATERIALISES,
        })
    };
    rows.iter().map(summary).collect()
}

#[cfg(test)]
mod tests;
