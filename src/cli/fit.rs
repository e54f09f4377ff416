//! `bf16scope fit`: the largest batch that fits a TPU, the best one, and what bf16 changes. Every figure comes from a
//! compile, and every compile is cached.

mod large;
mod levers;
mod page;
#[cfg(test)]
mod screens;
mod source;
mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use indicatif::ProgressBar;
use serde::Serialize;

use self::source::{BatchDim, Source};
use super::child::LimitArgs;
use super::compile::compiler;
use super::emit::{check_names, replace};
use super::mesh::MeshArgs;
use super::program::Which;
use super::subjects::CompareArgs;
use super::tune::{TuneArg, targets_help};
use super::{Context, Status, progress, signals};
use crate::graph::Precision;
use crate::hlo::Module;
use crate::hlo::devices::{Devices, Placement};
use crate::hlo::proto::encode;
use crate::pjrt::PjrtError;
use crate::report::plot::curves;
use crate::report::{self, Column, Screen, Table};
use crate::study::check_slice;
use crate::tpu::fit::{Found, MULTIPLE, Outcome, Row, Step, Summary, Trial, search, search_among, summarize};
use crate::tpu::{Answer, Compiler, Target, TpuError};
use crate::train::Mesh;

const EXAMPLES: &str = "\
Examples:
  bf16scope fit examples/resnet50.yaml --target tpu-v2
          how far f32 and bf16 go, and which batch is best (some 17 compiles of 1 to 2 minutes on two cores)
  bf16scope fit examples/digits.yaml --target tpu-v2,tpu-v3 --max-batch 4096 --html fit.html
          two TPUs, and a page with the plot of batch against memory and speed (compiles of seconds)
  bf16scope fit examples/bert_base.yaml --target tpu-v3:4x4 --mesh data=32
          the largest part of a batch for each core of a slice
  bf16scope fit exported/ --batch-dim 0:0 --target tpu-v3
          modules that another framework exported at several batches; the first axis of parameter 0 is the batch
  bf16scope fit exported/ --batch-dim 0:0 --compare --policy bf16_scope
          the same beside their lowered forms
  bf16scope fit examples/resnet50.yaml --target tpu-v2 --levers --batch 128
          one batch, compiled with each option that saves memory or time, beside the plain f32 program

How it searches: from the batch in the file (the power of two at or below it) it doubles until one does not fit, bisects to
a multiple of 8 (--multiple 64 saves compiles), and halves from the best until smaller is worse. Of the batches
compiled, the best has the most examples per million estimated cycles.

How long it takes: 6 to 10 compiles for each target and precision. On two cores a compile of a small network takes seconds,
of ResNet-50 or BERT-base 1 to 2 minutes, more where memory is scarce. Every answer is cached on disk at once: an interrupted
run continues where it stopped, a second run is instant, and `compile` uses the same cache.

Exit status: 0 some batch fits everywhere, 1 one does not fit at batch 1, 2 could not run.";

/// Arguments of `fit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model in YAML (examples/resnet50.yaml), or a folder of HLO modules exported at several batches
    #[arg(value_name = "MODEL.yaml|FOLDER")]
    model: PathBuf,
    #[arg(long, value_name = "TARGETS", value_delimiter = ',', default_value = "tpu-v2", help = targets_help("; separate several with commas"))]
    target: Vec<Target>,
    /// Precision of a model's network: f32, bf16, f16; separate several with commas [default: f32,bf16]
    #[arg(long, value_name = "PRECISIONS", value_delimiter = ',')]
    precision: Vec<Precision>,
    #[command(flatten)]
    compare: CompareArgs,
    /// Which program of a model [default: train]
    #[arg(long, value_enum)]
    program: Option<Which>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    tune: TuneArg,
    /// The largest batch to try
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    max_batch: u32,
    /// Bisect to a multiple of this: more saves compiles
    #[arg(long, value_name = "N", default_value_t = MULTIPLE, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    multiple: u32,
    /// Where a module's batch is: a parameter, by number or name, and one of its axes, such as 0:0 or images:0
    #[arg(long, value_name = "PARAMETER:AXIS")]
    batch_dim: Option<BatchDim>,
    /// Instead of searching, compile one batch of a model's training step with each lever (bf16 scope, bf16 weights,
    /// …) and report what each saves over the plain program, whose precision is --precision [default: f32]
    #[arg(long, conflicts_with_all = ["max_batch", "multiple", "batch_dim", "program", "tune", "svg", "compare", "policy", "devices", "mesh"])]
    levers: bool,
    /// The batch for --levers, instead of the file's
    #[arg(long, value_name = "N", requires = "levers", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    batch: Option<u32>,
    /// Compile even what is cached
    #[arg(long)]
    fresh: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page with plots and tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write only the plots
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What was found for one target and precision.
#[derive(Debug, Serialize)]
struct Series {
    target: String,
    precision: String,
    #[serde(flatten)]
    found: Found,
    /// By batch.
    rows: Vec<SeriesRow>,
    /// What is largest in the program of the least batch, where that does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    too_large: Option<large::Large>,
}

#[derive(Debug, Serialize)]
struct SeriesRow {
    #[serde(flatten)]
    row: Row,
    #[serde(flatten)]
    summary: Option<Summary>,
}

/// All that was found.
#[derive(Debug)]
struct Fit {
    /// The model's file.
    model: String,
    /// Which program of it; empty for modules.
    program: &'static str,
    /// `images`, `examples` or `runs`.
    unit: &'static str,
    /// The cores that a step is over: a batch is one core's part.
    mesh: Mesh,
    libtpu: String,
    series: Vec<Series>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    for target in &args.target {
        ensure!(target.topology().is_some(), TpuError::NotATpu(target.clone()));
    }
    check_names(&[("--html", args.html.as_deref()), ("--svg", args.svg.as_deref())], &[Some(&args.model)])?;
    if args.levers {
        return levers::run(args, context);
    }
    let source =
        Source::open(&args.model, args.program, &args.precision, args.batch_dim.as_ref(), &args.compare, &args.mesh)?;
    ensure!(
        !(source.is_foreign() && args.tune.is_some()),
        "--tune chooses among a model's programs, and {} holds modules",
        args.model.display()
    );
    let mesh = source.mesh();
    for target in &args.target {
        check_slice(mesh, 1, target)?;
    }
    let devices = Devices { replicas: mesh.data.get() as usize, partitions: 1 };
    let compiler = compiler(args.fresh, source.is_foreign(), &args.limits, context)
        .over(Placement { devices, ..Placement::default() });
    let targets = without_repeats(&args.target);
    let mut watch = Watch::new(context.quiet, targets.len() * source.precisions().len());
    keep_what_is_compiled(context.quiet)?;
    let mut series = Vec::new();
    for target in targets {
        for precision in source.precisions() {
            series.push(one(args, &source, &compiler, &target, precision, &mut watch)?);
        }
    }
    watch.bar.finish_and_clear();
    let fit = Fit {
        model: args.model.display().to_string(),
        program: source.program(),
        unit: source.unit(),
        mesh,
        libtpu: compiler.libtpu()?,
        series,
    };
    // Before the files, which may not be written: minutes of compiling are in it.
    if args.json {
        context.print_json(&json(&fit))?;
    } else {
        context.print(&render(&fit, context.screen))?;
    }
    if let Some(path) = &args.svg {
        replace(path, curves::standalone(&page::plots(&fit)).as_bytes())?;
    }
    if let Some(path) = &args.html {
        replace(path, page::page(&fit).render().as_bytes())?;
    }
    let fits = fit.series.iter().all(|series| series.found.largest.is_some());
    Ok(if fits { Status::Ok } else { Status::Failing })
}

fn without_repeats<T: Clone + PartialEq>(items: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in items {
        if !kept.contains(item) {
            kept.push(item.clone());
        }
    }
    kept
}

/// Ctrl-C ends the process at once: a compile cannot be stopped, and what was compiled is on disk already.
fn keep_what_is_compiled(quiet: bool) -> anyhow::Result<()> {
    signals::on_stop(move |signal| {
        if !quiet {
            progress::say("stopped; what was compiled is kept, and the same command continues from there");
        }
        signals::leave(signal);
    })
}

/// The search for one target and precision.
fn one(
    args: &Args,
    source: &Source,
    compiler: &Compiler,
    target: &Target,
    precision: &str,
    watch: &mut Watch,
) -> anyhow::Result<Series> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let ask = |step: Step| -> anyhow::Result<_> {
        let row = match source.module(precision, step.batch, target, &args.tune) {
            Ok(module) => {
                watch.start(target, precision, step);
                let row = compile(compiler, target, &module, step.batch)?;
                watch.done(target, precision, &row);
                row
            }
            Err(error) => failed(step.batch, format!("{error:#}")),
        };
        let trial = row.trial();
        rows.insert(step.batch, row);
        Ok(trial)
    };
    let found = match source.batches() {
        Some(batches) => {
            let allowed: Vec<u32> = batches.into_iter().filter(|batch| *batch <= args.max_batch).collect();
            search_among(&allowed, ask)?
        }
        None => search_parts(source, args, ask)?,
    };
    let rows: Vec<Row> = rows.into_values().collect();
    let out_of_memory = rows.iter().find(|row| matches!(row.outcome, Outcome::OutOfMemory { .. }));
    let too_large = match (found.largest, out_of_memory) {
        (None, Some(row)) => {
            watch.start(
                target,
                &format!("{precision} for a larger TPU, to see what is too large,"),
                Step { batch: row.batch, n_more: 0 },
            );
            Some(large::find(compiler, target, &source.module(precision, row.batch, target, &args.tune)?))
        }
        (None, None) => bail!(nothing_compiles(target, precision, &rows)),
        (Some(_), _) => None,
    };
    watch.end_series();
    let summaries = summarize(&rows);
    let rows = rows.into_iter().zip(summaries).map(|(row, summary)| SeriesRow { row, summary }).collect();
    Ok(Series { target: target.to_string(), precision: precision.to_string(), found, rows, too_large })
}

/// A search in parts of a batch, of which a model that accumulates gradients has several.
fn search_parts(
    source: &Source,
    args: &Args,
    mut ask: impl FnMut(Step) -> anyhow::Result<Trial>,
) -> anyhow::Result<Found> {
    let (n_parts, max) = (source.n_parts(), args.max_batch);
    ensure!(n_parts <= max, "--max-batch {max} is below {n_parts}, of which every batch of this model is a multiple");
    let whole = |part: u32| part * n_parts;
    let found = search(source.start() / n_parts, max / n_parts, args.multiple.div_ceil(n_parts), |step| {
        ask(Step { batch: whole(step.batch), ..step })
    })?;
    Ok(Found { largest: found.largest.map(whole), best: found.best.map(whole), ..found })
}

/// No batch is out of memory and none fits: the first failure is the message.
fn nothing_compiles(target: &Target, precision: &str, rows: &[Row]) -> String {
    let mut failures = rows.iter().filter_map(|row| match &row.outcome {
        Outcome::Failed { message } => Some(format!("batch {}: {message}", row.batch)),
        Outcome::Fits(_) | Outcome::OutOfMemory { .. } => None,
    });
    let why = failures.next_back().unwrap_or("there is no batch to try: --max-batch is below all of them".to_string());
    format!("{target}, {precision}: nothing compiles\n{why}")
}

fn failed(batch: u32, message: String) -> Row {
    Row { batch, cached: false, outcome: Outcome::Failed { message } }
}

/// Asks the compiler. What it refuses of this program is an answer; a compiler that cannot be had is not.
fn compile(compiler: &Compiler, target: &Target, module: &Module, batch: u32) -> anyhow::Result<Row> {
    let program = encode::to_bytes(module)?;
    let _span = tracing::info_span!("compile", batch, target = %target).entered();
    let compiled = match compiler.compile(target, &program, batch as usize) {
        Ok(compiled) => compiled,
        Err(TpuError::Pjrt(PjrtError::Call { call: "PJRT_Compile", code, message })) => {
            return Ok(failed(batch, format!("{code}: {message}")));
        }
        Err(error @ TpuError::NoFigure { .. }) => return Ok(failed(batch, error.to_string())),
        // The next batch has another child.
        Err(TpuError::Pjrt(PjrtError::Child(error))) if error.is_of_the_program() => {
            return Ok(failed(batch, error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    let outcome = match compiled.answer {
        Answer::Fits(report) => Outcome::Fits(report),
        Answer::OutOfMemory { needed, available, .. } => Outcome::OutOfMemory { needed, available },
    };
    Ok(Row { batch, cached: compiled.is_cached, outcome })
}

/// What is being compiled, and how long the rest may take.
struct Watch {
    bar: ProgressBar,
    /// Lines in place of the bar, where there is no terminal to draw it on, or a dumb one.
    has_lines: bool,
    /// Searches that have not begun, and compiles that the first one took.
    n_series_left: u32,
    n_per_series: u32,
    n_done: u32,
    n_done_before: u32,
    /// Seconds of compiles, those of earlier runs too, and their number.
    seconds: (f64, u32),
}

impl Watch {
    fn new(quiet: bool, n_series: usize) -> Watch {
        let bar = progress::steps(quiet);
        let n_series_left = n_series.saturating_sub(1) as u32;
        Watch {
            has_lines: !quiet && bar.is_hidden(),
            bar,
            n_series_left,
            n_per_series: 0,
            n_done: 0,
            n_done_before: 0,
            seconds: (0.0, 0),
        }
    }

    fn start(&mut self, target: &Target, what: &str, step: Step) {
        let n_here = self.n_done - self.n_done_before + 1 + step.n_more;
        let n_left = 1 + step.n_more + self.n_series_left * self.n_per_series.max(n_here);
        let left = match self.seconds {
            (_, 0) => String::new(),
            (seconds, n) => format!(", about {} left", minutes(seconds / f64::from(n) * f64::from(n_left))),
        };
        self.bar.set_length(u64::from(self.n_done + n_left));
        self.bar.set_position(u64::from(self.n_done));
        self.bar.reset_elapsed();
        self.bar.set_message(format!("{target}: compiling {what} at batch {}{left}", step.batch));
    }

    fn done(&mut self, target: &Target, what: &str, row: &Row) {
        self.n_done += 1;
        if let Some(report) = row.report() {
            self.seconds = (self.seconds.0 + report.compile_seconds, self.seconds.1 + 1);
        }
        if self.has_lines && !row.cached {
            progress::say(&format!("{target}: {what} at batch {}: {}", row.batch, words::outcome(row)));
        }
    }

    fn end_series(&mut self) {
        self.n_per_series = self.n_per_series.max(self.n_done - self.n_done_before);
        self.n_done_before = self.n_done;
        self.n_series_left = self.n_series_left.saturating_sub(1);
    }
}

/// Seconds, for someone who decides whether to wait.
pub(super) fn minutes(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

fn json(fit: &Fit) -> serde_json::Value {
    serde_json::json!({
        "model": fit.model, "program": fit.program, "unit": fit.unit, "devices": fit.mesh.data, "libtpu": fit.libtpu, "series": fit.series,
        "answers": words::answers(fit),
    })
}

/// What a batch is of.
fn of_core(mesh: Mesh) -> String {
    match mesh.data.get() {
        1 => "one core".to_string(),
        n => format!("one core's part of a batch over {n} cores, whose gradients are summed in f32"),
    }
}

/// A table, what failed, and the answers in words.
fn render(fit: &Fit, screen: Screen) -> String {
    let unit = fit.unit;
    let one = unit.trim_end_matches('s');
    // The same on all rows it says little; with others beside it, all.
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
        for SeriesRow { row, summary } in &series.rows {
            let mut cells = vec![series.target.clone(), series.precision.clone(), row.batch.to_string()];
            match (row.report(), summary) {
                (Some(report), Some(summary)) => cells.extend([
                    report::mib(report.hbm.total),
                    report::percent(report.hbm.total, report.hbm.limit),
                    report::mib(report.hbm.temporaries),
                    report::scientific(report.flops / f64::from(row.batch)),
                    words::figure(summary.examples_per_mcycle),
                    words::figure(report.examples_per_second),
                    if row.cached { "cached".to_string() } else { report::seconds(report.compile_seconds) },
                ]),
                _ => cells.extend((0..7).map(|_| "-".to_string())),
            }
            cells.push(words::remark(series, row, summary.as_ref(), one));
            table.row(cells);
            if let Outcome::Failed { message } = &row.outcome {
                let line = message.lines().next().unwrap_or_default();
                failures += &format!("{}, {}, batch {}: {line}\n", series.target, series.precision, row.batch);
            }
        }
    }
    let program = if fit.program.is_empty() { String::new() } else { format!("{}, ", fit.program) };
    let mut text = format!("{}: {program}{}\n{}{failures}", fit.model, of_core(fit.mesh), table.render(screen));
    for answer in words::answers(fit) {
        text += &format!("{answer}\n");
    }
    text
}
