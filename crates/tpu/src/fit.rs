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
mod tests {
    use super::*;
    use crate::Hbm;

    /// The requested batches, in order, and the result, for a compiler with known answers.
    fn run(start: u32, max: u32, answer: impl Fn(u32) -> Trial) -> (Vec<u32>, Found) {
        let mut asked = Vec::new();
        let result = search(start, max, MULTIPLE, |step: Step| -> Result<Trial, String> {
            asked.push(step.batch);
            Ok(answer(step.batch))
        });
        let mut once = asked.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), asked.len(), "asked twice: {asked:?}");
        (asked, result.unwrap())
    }

    fn found_at(largest: u32, best: u32) -> Found {
        Found { largest: Some(largest), is_capped: false, best: Some(best) }
    }

    /// Fits up to a batch, and is better the nearer it is to another.
    fn fits_up_to(limit: u32, best: u32) -> impl Fn(u32) -> Trial {
        move |batch| match batch <= limit {
            true => Trial::Fits(-f64::from(batch).log2().mul_add(1.0, -f64::from(best).log2()).abs()),
            false => Trial::OutOfMemory,
        }
    }

    #[test]
    fn it_doubles_bisects_and_looks_below_the_best() {
        let (asked, result) = run(128, 8192, fits_up_to(300, 128));
        assert_eq!(result, found_at(296, 128));
        assert_eq!(asked, [128, 256, 512, 384, 320, 288, 304, 296, 64]);
        // The best is far below the start.
        let (asked, result) = run(64, 8192, fits_up_to(64, 4));
        assert_eq!((result, asked), (found_at(64, 4), vec![64, 128, 96, 80, 72, 32, 16, 8, 4, 2]));
        // The start is not a power of two.
        assert_eq!(run(100, 8192, fits_up_to(70, 64)).1, found_at(64, 64));
    }

    #[test]
    fn a_coarser_bisection_takes_fewer_compiles() {
        let mut asked = Vec::new();
        let result = search(128, 8192, 64, |step: Step| -> Result<Trial, String> {
            asked.push(step.batch);
            Ok(fits_up_to(300, 128)(step.batch))
        });
        assert_eq!((result, asked), (Ok(found_at(256, 128)), vec![128, 256, 512, 384, 320, 64]));
    }

    #[test]
    fn a_start_that_does_not_fit_is_halved() {
        let (asked, result) = run(512, 8192, fits_up_to(20, 16));
        assert_eq!((result, asked), (found_at(16, 16), vec![512, 256, 128, 64, 32, 16, 24, 8]));
        // Below 8 only powers of two are tried.
        let (asked, result) = run(16, 8192, fits_up_to(3, 1));
        assert_eq!((result, asked), (found_at(2, 1), vec![16, 8, 4, 2, 1]));
    }

    #[test]
    fn nothing_fits_at_batch_1() {
        let (asked, result) = run(4, 8192, |_| Trial::OutOfMemory);
        assert_eq!((result, asked), (Found { largest: None, is_capped: false, best: None }, vec![4, 2, 1]));
    }

    #[test]
    fn the_greatest_batch_allowed_ends_the_search() {
        let (asked, result) = run(128, 384, fits_up_to(10_000, 384));
        assert_eq!(result, Found { is_capped: true, ..found_at(384, 384) });
        assert_eq!(asked, [128, 256, 384]);
        let (asked, result) = run(128, 1, fits_up_to(10_000, 1));
        assert_eq!((result, asked), (Found { is_capped: true, ..found_at(1, 1) }, vec![1]));
        let (asked, _) = run(u32::MAX, u32::MAX, fits_up_to(u32::MAX, u32::MAX));
        assert_eq!(asked, [1 << 31, u32::MAX]);
        // A batch at the limit that does not fit is not a cap.
        assert_eq!(run(128, 256, fits_up_to(200, 128)).1, found_at(200, 128));
    }

    #[test]
    fn a_larger_batch_may_fit_where_a_smaller_does_not() {
        // 384 fits although 320 does not: the result fits, and the batch that bounds it does not.
        let answer = |batch: u32| match batch {
            320 | 512.. => Trial::OutOfMemory,
            batch => Trial::Fits(f64::from(batch)),
        };
        assert_eq!(run(128, 8192, answer).1.largest, Some(504));
        let answer = |batch: u32| match batch {
            0..=256 => Trial::Fits(f64::from(batch)),
            384 => Trial::OutOfMemory,
            320 => Trial::OutOfMemory,
            264..=312 => Trial::Fits(f64::from(batch)),
            _ => Trial::OutOfMemory,
        };
        assert_eq!(run(128, 8192, answer).1.largest, Some(312));
    }

    #[test]
    fn a_failure_in_the_middle_is_passed_over_once() {
        let answer = |batch: u32| match batch {
            256 => Trial::Failed,
            0..=600 => Trial::Fits(f64::from(batch)),
            _ => Trial::OutOfMemory,
        };
        let (asked, result) = run(128, 8192, answer);
        assert_eq!((result.largest, &asked[..4]), (Some(600), &[128, 256, 512, 1024][..]));
        // Two in a row end the doubling, and bound the bisection.
        let answer = |batch: u32| if batch > 200 { Trial::Failed } else { Trial::Fits(1.0 / f64::from(batch)) };
        let (asked, result) = run(128, 8192, answer);
        assert_eq!(result, found_at(200, 1));
        assert_eq!(asked[..3], [128, 256, 512]);
        // A start that fails is halved like one that does not fit.
        assert_eq!(run(16, 8192, |_| Trial::Failed).1.largest, None);
    }

    #[test]
    fn the_least_of_equals_is_best_and_errors_end_the_search() {
        assert_eq!(run(8, 64, |_| Trial::Fits(1.0)).1, Found { is_capped: true, ..found_at(64, 1) });
        let mut n_asked = 0;
        let error = search(8, 64, MULTIPLE, |_| {
            n_asked += 1;
            Err("no compiler")
        });
        assert_eq!((error, n_asked), (Err("no compiler"), 1));
    }

    #[test]
    fn the_compiles_that_follow_are_guessed_within_reason() {
        let mut guesses = Vec::new();
        search(128, 8192, MULTIPLE, |step: Step| -> Result<Trial, String> {
            guesses.push(step.n_more);
            Ok(fits_up_to(300, 128)(step.batch))
        })
        .unwrap();
        // Nine compiles, eight of them after the first.
        assert!((4..=9).contains(&guesses[0]), "{guesses:?}");
        assert_eq!(guesses.last(), Some(&0));
    }

    #[test]
    fn given_batches_are_taken_in_order_until_one_does_not_fit() {
        let mut asked = Vec::new();
        let result = search_among(&[16, 32, 64, 128], |step: Step| -> Result<Trial, String> {
            asked.push((step.batch, step.n_more));
            Ok(fits_up_to(40, 16)(step.batch))
        });
        let expected = Found { largest: Some(32), is_capped: false, best: Some(16) };
        assert_eq!((result, asked), (Ok(expected), vec![(16, 3), (32, 2), (64, 1)]));
        let all = search_among(&[16, 32], |_| -> Result<Trial, String> { Ok(Trial::Fits(1.0)) }).unwrap();
        assert_eq!(all, Found { largest: Some(32), is_capped: true, best: Some(16) });
        let none = search_among(&[], |_| -> Result<Trial, String> { Ok(Trial::Fits(1.0)) }).unwrap();
        assert_eq!(none, Found { largest: None, is_capped: false, best: None });
    }

    /// ResNet-50 for v2 in f32: flops and cycles of batches 64, 128 and 256.
    fn resnet() -> Vec<CompiledBatch> {
        let hbm = Hbm { arguments: 0, outputs: 0, aliased: 0, temporaries: 0, code: 0, total: 0, limit: 0 };
        let row = |batch, flops, cycles| {
            let report = CompileReport {
                hbm,
                flops,
                bytes_accessed: 0.0,
                cycles,
                n_without_cycles: 0,
                step: None,
                optimal_seconds: 1.0,
                examples_per_second: Some(1.0),
                compile_seconds: 1.0,
                devices: bf16scope_hlo::devices::Devices::ONE,
                collectives: Vec::new(),
                narrow_sums: Vec::new(),
            };
            CompiledBatch { batch, cached: false, outcome: CompileOutcome::Fits(report) }
        };
        let no = CompileOutcome::OutOfMemory(Need::default());
        vec![
            CompiledBatch { batch: 512, cached: false, outcome: no },
            row(64, 1.523e12, 113_966_736),
            row(128, 3.129e12, 204_721_685),
            row(256, 8.434e12, 506_842_004),
        ]
    }

    #[test]
    fn a_row_that_computes_things_twice_says_so() {
        let rows = resnet();
        let summaries = summarize(&rows);
        assert_eq!(summaries[0], None);
        let figures: Vec<(String, String, bool)> = (summaries.iter().flatten())
            .map(|s| (format!("{:.2}", s.examples_per_mcycle), format!("{:.3}", s.flops_ratio), s.rematerialises))
            .collect();
        let expected = [("0.56", "1.000", false), ("0.63", "1.027", true), ("0.51", "1.384", true)];
        assert_eq!(figures, expected.map(|(a, b, c)| (a.to_string(), b.to_string(), c)));
        // Work that does not grow with the batch has more weight in small batches: that is not rematerialisation.
        let mut falling = resnet();
        falling.truncate(3);
        let CompileOutcome::Fits(report) = &mut falling[1].outcome else { panic!("{falling:?}") };
        report.flops *= 1.5;
        assert!(summarize(&falling).iter().flatten().all(|summary| !summary.rematerialises));
    }
}
