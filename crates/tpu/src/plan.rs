//! Which slice to rent: predicts the cost of training with one global batch on slices of every size, from a few
//! compiles.
//!
//! A [`Setting`] is one way to train. Settings that differ only in the number of examples per core are a [`Series`]:
//! its compiled settings are points of memory and cycles as a function of that number, and the others are predicted on
//! straight lines between them ([`plan`]), marked as predicted, with a bound on the error. [`next`] chooses the setting
//! to compile next, [`front`] the settings that no other dominates. All of it is arithmetic over the compiler's
//! figures; nothing here compiles.
//!
//! The seconds of a step are [`StepTime`]'s, with latency: a network whose step is computed in microseconds takes as
//! long as its start.

use serde::Serialize;

use super::links::STEP_START_SECONDS;
use super::{Collective, CompileOutcome, CompileReport, Links, StepTime, Target};
use bf16scope_hlo::devices::Devices;

/// Settings that differ only in the examples per core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// One board of the TPU.
    #[serde(rename = "tpu")]
    pub board: Target,
    /// The compute precision.
    pub precision: String,
    /// Whether the backward pass rematerialises according to the target's tuning.
    pub remat: bool,
    /// Whether the state is sharded over the cores.
    pub in_parts: bool,
}

/// One way to train.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The properties it shares with others.
    #[serde(flatten)]
    pub series: Series,
    /// The slice.
    pub target: Target,
    /// Cores that share a batch: the whole slice.
    pub n_cores: u32,
    /// Examples in a global batch.
    pub batch: u32,
    /// Micro-batches into which a core's part is divided.
    pub accumulate: u32,
}

impl Setting {
    /// Examples per core at once.
    pub fn part(&self) -> u32 {
        self.batch / self.n_cores.max(1) / self.accumulate.max(1)
    }
}

/// A setting, and the compiler's outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The setting.
    pub setting: Setting,
    /// The outcome.
    pub outcome: CompileOutcome,
}

impl Point {
    fn report(&self) -> Option<&CompileReport> {
        self.outcome.report()
    }
}

/// The cost of a setting's step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Bytes of a core's HBM, code included.
    pub hbm: f64,
    /// Bytes of HBM that a core has.
    pub limit: f64,
    /// The time of a step.
    #[serde(flatten)]
    pub step: StepTime,
}

/// The source of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Known {
    /// Compiled.
    Compiled,
    /// Predicted on a line through compiled points.
    Predicted {
        /// The largest relative error of memory; `None` if no bound is known.
        hbm_error: Option<f64>,
        /// The same for cycles.
        cycles_error: Option<f64>,
    },
}

/// Whether a setting fits in a core's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// The distance of the prediction from the limit is within the prediction's error.
    Unsure,
}

/// A setting, and its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SliceRow {
    /// The setting.
    #[serde(flatten)]
    pub setting: Setting,
    /// Whether it fits.
    pub fits: Fit,
    /// The source of the figures and of `fits`.
    pub known: Known,
    /// `None` if the compiler refused the program.
    pub figures: Option<Figures>,
    /// Steps per second.
    pub steps_per_second: Option<f64>,
    /// Examples per second, over all cores.
    pub examples_per_second: Option<f64>,
    /// Examples per second and core, divided by the largest rate of a single core without collectives in any row with
    /// its TPU and precision; `None` if only one part size is known.
    pub efficiency: Option<f64>,
    /// Whether no fitting row of its TPU has as many examples per second on as few cores.
    pub is_on_front: bool,
}

/// A compiled point of a series, for interpolation: the cost of its step as a function of the examples at once.
#[derive(Clone, Copy, Debug)]
struct Sample {
    part: f64,
    hbm: f64,
    cycles: f64,
    /// Bytes that do not grow with the part: arguments and code.
    fixed: f64,
    /// Bytes of arguments. Sharded state takes less of them on more cores, which for one batch have smaller parts: so
    /// it is on a line too.
    arguments: f64,
}

/// Points of a series without accumulation, by part.
fn samples(series: &Series, points: &[Point], without: Option<u32>) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    // Among several programs with one part, choose one over cores, which has collectives.
    let (over_cores, alone): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|point| point.setting.n_cores > 1);
    for point in over_cores.into_iter().chain(alone) {
        let Some(report) = point.report() else { continue };
        let part = point.setting.part();
        let is_of_it = point.setting.series == *series && point.setting.accumulate == 1 && without != Some(part);
        if is_of_it && samples.iter().all(|sample| sample.part != f64::from(part)) {
            samples.push(Sample {
                part: f64::from(part),
                hbm: report.hbm.total as f64,
                cycles: report.cycles as f64,
                fixed: (report.hbm.total - report.hbm.temporaries) as f64,
                arguments: report.hbm.arguments as f64,
            });
        }
    }
    samples.sort_by(|one, other| one.part.total_cmp(&other.part));
    samples
}

/// How far a line is extended beyond its largest part, as a factor: smaller parts do not show how a compiler handles
/// larger ones (other tiles, rematerialisation), and a part of one or two examples is mostly padding.
const REACH: f64 = 2.0;

/// Memory and cycles for a part: on the line through the two nearest points that enclose it, otherwise through the two
/// nearest, up to [`REACH`]; for a single point, temporaries and cycles of smaller parts are proportional, and larger
/// parts are unknown.
fn at(samples: &[Sample], part: f64) -> Option<(f64, f64)> {
    let (one, two) = match samples {
        [] => return None,
        [only] if part > only.part => return None,
        [.., two] if part > REACH * two.part => return None,
        [only] => {
            let times = part / only.part;
            return Some((only.fixed + (only.hbm - only.fixed) * times, only.cycles * times));
        }
        _ => {
            let above = samples.partition_point(|sample| sample.part < part).clamp(1, samples.len() - 1);
            (samples[above - 1], samples[above])
        }
    };
    let share = (part - one.part) / (two.part - one.part);
    let between = |one: f64, two: f64| one + (two - one) * share;
    // A line extended to fewer examples may fall below the memory for none.
    let hbm = between(one.hbm, two.hbm).max(one.fixed.min(two.fixed));
    Some((hbm, between(one.cycles, two.cycles).max(0.0)))
}

/// Whether the cycles of a part are known from a line, or from a point of it.
fn is_line(samples: &[Sample], part: u32) -> bool {
    samples.len() > 1 || samples.iter().any(|sample| sample.part == f64::from(part))
}

/// The memory of a core's whole part of the arguments beyond that of one micro-batch, to which the line refers.
fn arguments_beyond(samples: &[Sample], setting: &Setting) -> f64 {
    if setting.accumulate <= 1 {
        return 0.0;
    }
    let line = |part: f64| match samples {
        [] => 0.0,
        [only] => only.arguments,
        [first, .., last] => {
            first.arguments + (last.arguments - first.arguments) * (part - first.part) / (last.part - first.part)
        }
    };
    let part = f64::from(setting.part());
    (line(part * f64::from(setting.accumulate)) - line(part)).max(0.0)
}

/// The least bound for memory and for cycles: a few compiled points may be on a line by chance. For the steps of
/// ResNet-50, BERT and the digits, predicted from three and four compiled ones, memory was off by up to 9 % and cycles
/// by up to 8 %, where the points themselves suggested 0.7 % and 1.5 %.
const LEAST_BOUND: (f64, f64) = (0.1, 0.1);

/// The error bounds of memory and cycles for a part between compiled points: the largest error when each of these is
/// predicted from the others, and at least [`LEAST_BOUND`]. `None` outside, and with fewer than three points.
fn bounds(series: &Series, points: &[Point], samples: &[Sample], part: u32) -> Option<(f64, f64)> {
    let (least, greatest) = (samples.first()?.part, samples.last()?.part);
    let (hbm, cycles) = errors(series, points)?;
    let is_between = (least..=greatest).contains(&f64::from(part));
    is_between.then(|| (hbm.max(LEAST_BOUND.0), cycles.max(LEAST_BOUND.1)))
}

/// The largest errors of memory and cycles when points with neighbours on both sides are predicted from the others.
fn errors(series: &Series, points: &[Point]) -> Option<(f64, f64)> {
    let all = samples(series, points, None);
    let inner = all.get(1..all.len().checked_sub(1)?).filter(|inner| !inner.is_empty())?;
    let tried = inner.iter().filter_map(|sample| {
        let (hbm, cycles) = at(&samples(series, points, Some(sample.part as u32)), sample.part)?;
        Some(((hbm / sample.hbm - 1.0).abs(), (cycles / sample.cycles - 1.0).abs()))
    });
    tried.reduce(|(hbm, cycles), other| (hbm.max(other.0), cycles.max(other.1)))
}

/// The collectives of a setting, from the nearest compiled program of its series: sums of gradients have the same
/// arrays whatever the batch.
fn collectives<'p>(setting: &Setting, points: &'p [Point]) -> Option<&'p [Collective]> {
    let is_same = |point: &&Point| point.setting.series == setting.series && point.setting.n_cores > 1;
    let same = points.iter().filter(is_same);
    let reports = same.filter_map(|point| Some((point.setting.part().abs_diff(setting.part()), point.report()?)));
    reports.min_by_key(|(distance, _)| *distance).map(|(_, report)| report.collectives.as_slice())
}

/// Seconds of the collectives over all cores of a setting.
fn collective_seconds(setting: &Setting, collectives: &[Collective]) -> Option<f64> {
    let links = Links::for_target(&setting.target)?;
    let devices = Devices { replicas: setting.n_cores as usize, partitions: 1 };
    let all = u64::from(setting.n_cores);
    Some(collectives.iter().fold(0.0, |sum, it| sum + links.of_bytes(&it.op, it.n_bytes as f64, all, devices)))
}

/// The latency of a setting's step in seconds: its start, and the latency of its collectives.
fn latency_seconds(setting: &Setting, collectives: &[Collective]) -> f64 {
    let devices = Devices { replicas: setting.n_cores as usize, partitions: 1 };
    let links = Links::for_target(&setting.target);
    let each = |it: &Collective| {
        let latency = links.map_or(0.0, |links| links.latency(&it.op, u64::from(setting.n_cores), devices));
        it.n as f64 * latency
    };
    collectives.iter().fold(STEP_START_SECONDS, |sum, it| sum + each(it))
}

/// Memory that accumulation adds: an f32 sum of every gradient, which are the arrays that the cores sum.
fn accumulators(setting: &Setting, collectives: &[Collective]) -> f64 {
    match setting.accumulate {
        0 | 1 => 0.0,
        _ => collectives
            .iter()
            .filter(|it| it.reduction.as_deref() == Some("add"))
            .fold(0.0, |sum, it| sum + it.n_bytes as f64),
    }
}

/// The row of each setting.
pub fn plan(settings: &[Setting], points: &[Point]) -> Vec<SliceRow> {
    let mut rows: Vec<SliceRow> = settings.iter().map(|setting| row(setting, points)).collect();
    let per_core = |row: &SliceRow| {
        let figures =
            row.figures.filter(|figures| row.steps_per_second.is_some() && figures.step.compute_seconds > 0.0)?;
        let each = f64::from(row.setting.batch / row.setting.n_cores.max(1)) / figures.step.compute_seconds;
        Some((row.setting.part(), each))
    };
    let alone: Vec<Option<f64>> = rows
        .iter()
        .map(|row| {
            let Series { board, precision, .. } = &row.setting.series;
            let is_same = |other: &Series| (&other.board, &other.precision) == (board, precision);
            let same = rows.iter().filter(|other| is_same(&other.setting.series)).filter_map(per_core);
            let same: Vec<(u32, f64)> = same.collect();
            let is_compared = same.iter().any(|(part, _)| *part != same[0].0);
            same.into_iter().map(|(_, each)| each).reduce(f64::max).filter(|_| is_compared)
        })
        .collect();
    for (row, alone) in rows.iter_mut().zip(alone) {
        let each = row.examples_per_second.map(|all| all / f64::from(row.setting.n_cores));
        row.efficiency = each.zip(alone).map(|(each, alone)| each / alone);
    }
    let on_front = front(&rows);
    for (row, is_on_front) in rows.iter_mut().zip(on_front) {
        row.is_on_front = is_on_front;
    }
    rows
}

fn row(setting: &Setting, points: &[Point]) -> SliceRow {
    let unknown = |fits, known| SliceRow {
        setting: setting.clone(),
        fits,
        known,
        figures: None,
        steps_per_second: None,
        examples_per_second: None,
        efficiency: None,
        is_on_front: false,
    };
    let sums = collectives(setting, points).unwrap_or_default();
    let (figures, known, fits) = match points.iter().find(|point| point.setting == *setting) {
        Some(Point { outcome: CompileOutcome::OutOfMemory(_) | CompileOutcome::Failed(_), .. }) => {
            return unknown(Fit::No, Known::Compiled);
        }
        Some(Point { outcome: CompileOutcome::Fits(report), .. }) => {
            let step = StepTime::new(&setting.target, report.cycles as f64, report.collective_seconds());
            let step = step.map(|step| step.with_latency(latency_seconds(setting, &report.collectives)));
            let (hbm, limit) = (report.hbm.total as f64, report.hbm.limit as f64);
            let figures = step.map(|step| Figures { hbm, limit, step });
            (figures, Known::Compiled, Fit::Yes)
        }
        None => {
            let samples = samples(&setting.series, points, None);
            let bounds = bounds(&setting.series, points, &samples, setting.part());
            let known = Known::Predicted { hbm_error: bounds.map(|it| it.0), cycles_error: bounds.map(|it| it.1) };
            let limit = points.iter().filter(|point| point.setting.series == setting.series).find_map(limit);
            let line = at(&samples, f64::from(setting.part()));
            let is_refused = refused(setting, points);
            let (Some((hbm, cycles)), Some(limit)) = (line, limit) else {
                return unknown(if is_refused { Fit::No } else { Fit::Unsure }, known);
            };
            let hbm = hbm + accumulators(setting, sums) + arguments_beyond(&samples, setting);
            let cycles = cycles * f64::from(setting.accumulate.max(1));
            let step = StepTime::new(&setting.target, cycles, collective_seconds(setting, sums));
            let step = step.map(|step| step.with_latency(latency_seconds(setting, sums)));
            let figures = step.map(|step| Figures { hbm, limit, step });
            let off = bounds.map_or(UNTRIED, |it| it.0);
            let fits = match hbm {
                _ if is_below_one_that_fits(setting, points) => Fit::Yes,
                hbm if hbm <= limit * (1.0 - off) => Fit::Yes,
                hbm if hbm > limit * (1.0 + off) => Fit::No,
                _ => Fit::Unsure,
            };
            (figures, known, if is_refused { Fit::No } else { fits })
        }
    };
    // In a small network nearly all cycles of a single point may be independent of the part.
    let is_on_line = known == Known::Compiled || is_line(&samples(&setting.series, points, None), setting.part());
    let seconds = figures.map(|figures| figures.step.seconds);
    let seconds = seconds.filter(|seconds| *seconds > 0.0 && fits != Fit::No && is_on_line);
    SliceRow {
        figures,
        steps_per_second: seconds.map(|seconds| 1.0 / seconds),
        examples_per_second: seconds.map(|seconds| f64::from(setting.batch) / seconds),
        ..unknown(fits, known)
    }
}

/// Without a known bound, memory is assumed to be within this fraction of the prediction, above or below. A line is not
/// extended beyond twice its largest part.
const UNTRIED: f64 = 0.5;

fn limit(point: &Point) -> Option<f64> {
    match &point.outcome {
        CompileOutcome::Fits(report) => Some(report.hbm.limit as f64),
        CompileOutcome::OutOfMemory(need) => need.available.map(|available| available as f64),
        CompileOutcome::Failed(_) => None,
    }
}

/// Whether a step with at least as many examples at once fits, and so does this one, without additional sums of
/// gradients.
fn is_below_one_that_fits(setting: &Setting, points: &[Point]) -> bool {
    setting.accumulate <= 1
        && points.iter().any(|point| {
            let is_same = point.setting.series == setting.series && point.setting.n_cores > 1;
            is_same && point.report().is_some() && point.setting.part() >= setting.part()
        })
}

/// Whether the compiler refused fewer examples at once.
fn refused(setting: &Setting, points: &[Point]) -> bool {
    points.iter().any(|point| {
        point.setting.series == setting.series && point.report().is_none() && point.setting.part() <= setting.part()
    })
}

/// Settings beyond this multiple of the core's memory are not compiled: a refusal takes long.
const TOO_LARGE: f64 = 1.5;

/// The most informative setting to compile next; `None` if no remaining setting could fit.
///
/// Series take turns, those with the fewest points first. In each, the largest part comes first: if it fits, all do,
/// and if not, that is what a user wants to know; the smallest part is mostly padding, and is not informative. Then
/// comes the part nearest to the middle, then the one farthest from all compiled parts.
pub fn next(settings: &[Setting], points: &[Point]) -> Option<usize> {
    let points_of =
        |series: &Series| -> Vec<&Point> { points.iter().filter(|point| point.setting.series == *series).collect() };
    // Programs for a single core have no collectives.
    let n_points = |series: &Series| match points_of(series) {
        points if points.iter().any(|point| point.setting.n_cores > 1) => points.len(),
        _ => 0,
    };
    let log = |part: u32| f64::from(part.max(1)).log2();
    let value = |setting: &Setting| -> Option<f64> {
        let row = row(setting, points);
        let is_hopeless = row.figures.is_some_and(|figures| figures.hbm > TOO_LARGE * figures.limit);
        if row.known == Known::Compiled || is_hopeless || refused(setting, points) {
            return None;
        }
        let part = log(setting.part());
        Some(match points_of(&setting.series).as_slice() {
            _ if n_points(&setting.series) == 0 => part,
            [only] => {
                let same = settings.iter().filter(|other| other.series == setting.series);
                let least = same.map(|other| log(other.part())).fold(f64::INFINITY, f64::min);
                -(part - least.midpoint(log(only.setting.part()))).abs()
            }
            several => {
                let distances = several.iter().map(|point| (log(point.setting.part()) - part).abs());
                distances.fold(f64::INFINITY, f64::min)
            }
        })
    };
    let candidates = settings.iter().enumerate().filter_map(|(at, setting)| Some((at, setting, value(setting)?)));
    // Fewest points first; then the largest value; then the first.
    let best = candidates.min_by(|(_, one, value), (_, other, than)| {
        n_points(&one.series).cmp(&n_points(&other.series)).then(than.total_cmp(value))
    });
    best.map(|(at, ..)| at)
}

/// For each row, whether it is on the Pareto front of its TPU: it fits, and no fitting row has as few cores and more
/// examples per second, or fewer cores and as many.
pub fn front(rows: &[SliceRow]) -> Vec<bool> {
    let figures = |row: &SliceRow| row.examples_per_second.filter(|_| row.fits == Fit::Yes);
    let beats = |one: &SliceRow, other: &SliceRow| match (figures(one), figures(other)) {
        (Some(speed), Some(than)) => {
            let (n, m) = (one.setting.n_cores, other.setting.n_cores);
            one.setting.series.board == other.setting.series.board && n <= m && speed >= than && (n < m || speed > than)
        }
        _ => false,
    };
    rows.iter().map(|row| figures(row).is_some() && !rows.iter().any(|other| beats(other, row))).collect()
}

/// The same setting with the fewest micro-batches that are predicted to fit, if it does not fit without; `None` if it
/// does, if nothing is known, or if not even one example at once fits.
pub fn accumulated(setting: &Setting, points: &[Point]) -> Option<Setting> {
    if setting.accumulate != 1 || row(setting, points).fits != Fit::No {
        return None;
    }
    let part = setting.part();
    let by = |accumulate: u32| Setting { accumulate, ..setting.clone() };
    let counts = (1..=part.max(1).ilog2()).map(|power| 1u32 << power).filter(|n| part.is_multiple_of(*n));
    counts.map(by).find(|setting| row(setting, points).fits == Fit::Yes)
}

#[cfg(test)]
mod tests;
