//! The largest batch that fits a TPU, and the best one. Every figure comes from a compile.

mod batch_dim;
mod large;
mod source;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use batch_dim::{BatchDim, BatchDimError};
pub use large::{Large, Value};
pub use source::FitSource;

use super::ask::{Asking, Compiling, Event, ask};
use super::{ModelProgram, StudyError, check_slice};
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::{Devices, Placement};
use bf16scope_hlo::proto::encode;
use bf16scope_tpu::fit::{CompiledBatch, Found, MULTIPLE, Step, Summary, Trial, search, search_among, summarize};
use bf16scope_tpu::{CompileOutcome, CompileReport, Compiled, Compiler, Target, TpuError};

/// A question about which batches fit.
#[derive(Clone, Debug)]
pub struct FitQuestion<'t> {
    /// The model or module.
    pub source: FitSource<'t>,
    /// The TPUs to compile for.
    pub targets: Vec<Target>,
    /// The largest batch to try.
    pub max_batch: u32,
    /// Bisect to a multiple of this.
    pub multiple: u32,
}

impl<'t> FitQuestion<'t> {
    /// The default for the largest batch to try.
    pub const MAX_BATCH: u32 = 8192;

    /// Up to [`FitQuestion::MAX_BATCH`], to a multiple of [`MULTIPLE`].
    pub fn new(source: FitSource<'t>, targets: Vec<Target>) -> FitQuestion<'t> {
        FitQuestion { source, targets, max_batch: FitQuestion::MAX_BATCH, multiple: MULTIPLE }
    }

    /// The number of searches.
    pub fn n_series(&self) -> usize {
        without_repeats(&self.targets).len() * self.source.labels().len()
    }
}

/// The results for one target and precision.
#[derive(Clone, Debug, Serialize)]
pub struct FitSeries {
    /// The target.
    pub target: String,
    /// A model's precision, or the label of a module's form.
    pub precision: String,
    /// The largest batch, and the best.
    #[serde(flatten)]
    pub found: Found,
    /// By batch.
    pub rows: Vec<FitRow>,
    /// The largest values in the program of the least batch, if that does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_large: Option<Large>,
}

/// The outcome for one batch, and its summary beside the others.
#[derive(Clone, Debug, Serialize)]
pub struct FitRow {
    /// The compiler's outcome.
    #[serde(flatten)]
    pub row: CompiledBatch,
    /// The summary; `None` if the batch does not fit.
    #[serde(flatten)]
    pub summary: Option<Summary>,
}

impl FitSeries {
    /// The figures of a batch that fits.
    pub fn at(&self, batch: u32) -> Option<(&CompileReport, &Summary)> {
        let FitRow { row, summary } = self.rows.iter().find(|row| row.row.batch == batch)?;
        Some((row.report()?, summary.as_ref()?))
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct FitAnswer {
    /// The task's name, the model's file, or the folder of modules.
    pub model: String,
    /// The program of a model; empty for modules.
    #[serde(serialize_with = "program")]
    pub program: Option<ModelProgram>,
    /// The unit of a batch: `images` or `examples`.
    pub unit: &'static str,
    /// The cores that share a step: a batch is one core's part.
    pub devices: u32,
    /// The compiler.
    pub libtpu: String,
    /// Whether the compiler was allowed to keep more precision than the programs specify.
    pub excess_precision: bool,
    /// By target and precision.
    pub series: Vec<FitSeries>,
}

impl fmt::Display for FitAnswer {
    /// A line for each target and precision: the largest batch, and the best one with its figures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, series) in self.series.iter().enumerate() {
            let FitSeries { target, precision, found, .. } = series;
            let line_end = if nth > 0 { "\n" } else { "" };
            write!(f, "{line_end}{target}, {precision}: ")?;
            let (Some(largest), Some(best)) = (found.largest, found.best) else {
                f.write_str("no batch fits")?;
                continue;
            };
            let more = if found.is_capped { ", and larger ones were not tried" } else { "" };
            write!(f, "batches up to {largest} fit{more}; best is {best}")?;
            if let Some(FitRow { row, .. }) = series.rows.iter().find(|row| row.row.batch == best) {
                write!(f, ": {}", row.outcome)?;
            }
        }
        Ok(())
    }
}

fn program<S: serde::Serializer>(program: &Option<ModelProgram>, serializer: S) -> Result<S::Ok, S::Error> {
    match program {
        Some(program) => serializer.collect_str(program),
        None => serializer.serialize_str(""),
    }
}

/// Removes duplicates, keeping the order of first occurrences.
pub(super) fn without_repeats<T: Clone + PartialEq>(items: &[T]) -> Vec<T> {
    let mut distinct: Vec<T> = Vec::new();
    for item in items {
        if !distinct.contains(item) {
            distinct.push(item.clone());
        }
    }
    distinct
}

/// Searches, on each target and in each precision.
///
/// # Errors
/// A target that is not a TPU; programs that cannot be built; a missing compiler. A batch that does not fit, or is
/// refused, is a result.
pub fn fit(
    question: &FitQuestion<'_>,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<FitAnswer, StudyError> {
    let FitQuestion { source, targets, .. } = question;
    let mesh = source.mesh();
    for target in targets {
        if target.topology().is_none() {
            return Err(TpuError::NotATpu(target.clone()).into());
        }
        check_slice(mesh, 1, target)?;
    }
    let devices = Devices { replicas: mesh.data.get() as usize, partitions: 1 };
    let compiler = asking.compiler(Placement { devices, ..Placement::default() });
    let mut series = Vec::new();
    for target in without_repeats(targets) {
        for label in source.labels() {
            series.push(one(question, &compiler, &target, &label, on)?);
            on(&Event::SeriesEnds);
        }
    }
    Ok(FitAnswer {
        model: source.name(),
        program: source.program(),
        unit: source.unit(),
        devices: mesh.data.get(),
        libtpu: compiler.libtpu()?,
        excess_precision: asking.excess_precision,
        series,
    })
}

/// The search for one target and precision.
fn one(
    question: &FitQuestion<'_>,
    compiler: &Compiler,
    target: &Target,
    label: &str,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<FitSeries, StudyError> {
    let source = &question.source;
    let mut rows: BTreeMap<u32, CompiledBatch> = BTreeMap::new();
    let mut try_batch = |step: Step| -> Result<Trial, StudyError> {
        let row = match source.module(label, step.batch, target) {
            Ok(module) => row_of(compiler, target, label, step, &module, on)?,
            Err(error) => failed(step.batch, error.chain()),
        };
        let trial = row.trial();
        rows.insert(step.batch, row);
        Ok(trial)
    };
    let result = match source.batches() {
        Some(batches) => {
            let allowed: Vec<u32> = batches.into_iter().filter(|batch| *batch <= question.max_batch).collect();
            search_among(&allowed, try_batch)?
        }
        None => search_parts(question, &mut try_batch)?,
    };
    let rows: Vec<CompiledBatch> = rows.into_values().collect();
    let out_of_memory = rows.iter().find(|row| matches!(row.outcome, CompileOutcome::OutOfMemory(_)));
    let too_large = match (result.largest, out_of_memory) {
        (None, Some(row)) => {
            on(&Event::Begins(&for_a_larger_tpu(target, label, row.batch)));
            Some(large::find(compiler, target, &source.module(label, row.batch, target)?))
        }
        (None, None) => return Err(nothing_compiles(target, label, &rows)),
        (Some(_), _) => None,
    };
    let summaries = summarize(&rows);
    let rows = rows.into_iter().zip(summaries).map(|(row, summary)| FitRow { row, summary }).collect();
    Ok(FitSeries { target: target.to_string(), precision: label.to_string(), found: result, rows, too_large })
}

/// A search in units of the parts of a batch, which a model that accumulates gradients has.
fn search_parts(
    question: &FitQuestion<'_>,
    try_batch: &mut dyn FnMut(Step) -> Result<Trial, StudyError>,
) -> Result<Found, StudyError> {
    let (source, max_batch) = (&question.source, question.max_batch);
    let n_parts = source.n_parts();
    if n_parts > max_batch {
        return Err(StudyError::below_parts(max_batch, n_parts));
    }
    let whole = |part: u32| part * n_parts;
    let multiple = question.multiple.div_ceil(n_parts);
    let result = search(source.start() / n_parts, max_batch / n_parts, multiple, |step| {
        try_batch(Step { batch: whole(step.batch), ..step })
    })?;
    Ok(Found { largest: result.largest.map(whole), best: result.best.map(whole), ..result })
}

/// The compile that shows which values are too large.
fn for_a_larger_tpu(target: &Target, label: &str, batch: u32) -> Compiling {
    let what = format!("{label} for a larger TPU, to see what is too large,");
    Compiling { target: target.clone(), what, batch: Some(batch), n_more: 0 }
}

/// No batch is out of memory and none fits: the message is the first failure.
fn nothing_compiles(target: &Target, label: &str, rows: &[CompiledBatch]) -> StudyError {
    let mut failures = rows.iter().filter_map(|row| match &row.outcome {
        CompileOutcome::Failed(text) => Some(format!("batch {}: {text}", row.batch)),
        CompileOutcome::Fits(_) | CompileOutcome::OutOfMemory(_) => None,
    });
    let why = failures.next_back().unwrap_or("there is no batch to try: --max-batch is below all of them".to_string());
    StudyError::nothing_compiles(target, label, &why)
}

pub(super) fn failed(batch: u32, text: String) -> CompiledBatch {
    CompiledBatch { batch, cached: false, outcome: CompileOutcome::Failed(text) }
}

/// Compiles the program of one batch, with progress events.
pub(super) fn row_of(
    compiler: &Compiler,
    target: &Target,
    what: &str,
    Step { batch, n_more }: Step,
    module: &Module,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<CompiledBatch, StudyError> {
    let compiling = Compiling { target: target.clone(), what: what.to_string(), batch: Some(batch), n_more };
    on(&Event::Begins(&compiling));
    let program = encode::to_bytes(module).map_err(StudyError::encode)?;
    let Compiled { outcome, is_cached } = ask(compiler, target, &program, batch)?;
    on(&Event::Ends { compiling: &compiling, is_cached, outcome: &outcome });
    Ok(CompiledBatch { batch, cached: is_cached, outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_failure_is_said_or_that_no_batch_was_tried() {
        let v2 = Target::board(&bf16scope_tpu::Spec::ALL[0]);
        let text = |rows: &[CompiledBatch]| nothing_compiles(&v2, "bf16", rows).to_string();
        let none = text(&[]);
        assert!(none.ends_with("there is no batch to try: --max-batch is below all of them"), "{none}");
        let failures = text(&[failed(4, "one".to_string()), failed(8, "two".to_string())]);
        assert!(failures.ends_with("batch 8: two"), "{failures}");
    }
}
