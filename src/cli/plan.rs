//! `bf16scope plan`: which slice to rent for a model and a global batch. Compiles some settings, predicts the others
//! ([`tpu::plan`](crate::tpu::plan)), and shows both as a table and a page.

mod page;
#[cfg(test)]
mod screens;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{bail, ensure};
use clap::ValueEnum;

use super::child::LimitArgs;
use super::compile::compiler;
use super::emit::{check_names, replace};
use super::{Context, Status, module_file, progress, signals};
use crate::experiment::Experiment;
use crate::graph::Precision;
use crate::hlo::devices::Placement;
use crate::hlo::proto::encode;
use crate::pjrt::PjrtError;
use crate::report::{self, Column, Screen, Table};
use crate::study::{ModelProgram, build, check_no_model_axis, read, unit};
use crate::tpu::plan::{Fit, Known, Point, Row, Series, Setting, accumulated, next, plan};
use crate::tpu::{Answer, Links, Spec, Target, TpuError};
use crate::train::{Mesh, StateOf};
use crate::tuning::{LayerRemat, Remat, Tuning};

const EXAMPLES: &str = "\
Examples:
  bf16scope plan examples/digits.yaml --batch 2048
          what fits and how fast, on v2 and v3 from 8 to 2,048 cores, in f32 and bf16
  bf16scope plan examples/resnet50.yaml --batch 1024 --html plan.html
          the same with a page: speed and memory over cores, and the settings that no other beats
  bf16scope plan examples/bert_base.yaml --batch 4096 --target tpu-v3 --precision bf16 --compiles 3
          one TPU, one precision, and at most three compiles

A batch is always that of all cores. At most --compiles programs are compiled that are not cached yet, each in the time that
`compile` takes for it: a minute or two for ResNet-50 on two cores, however many cores the slice has. Every compile is
cached, so a plan that was stopped goes on where it was, and a second one with more compiles only adds to it. The rest is
predicted on straight lines through compiled settings of the same TPU and precision, and marked: with how far the lines are
off where a compiled setting is predicted from the others.

Steps a second are cycles at the core's clock (700 MHz on v2, 940 MHz on v3) and the time of collectives, one after the other;
the compiler gives the latter no cycles, so they take what a ring over the chips takes by their links, without latency.
Efficiency is examples a second and core, over the most that one core does alone in any of the rows. Exit status: 0 something
fits, 1 nothing does, 2 could not run.";

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model in YAML (examples/resnet50.yaml)
    #[arg(value_name = "MODEL.yaml")]
    model: PathBuf,
    /// Examples in a batch of all cores, instead of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    batch: Option<u32>,
    /// TPUs, without a grid: what their slices are is the question
    #[arg(long, value_delimiter = ',', default_value = "tpu-v2,tpu-v3")]
    target: Vec<Target>,
    /// Numbers of cores; those that a TPU has no slice of are left out
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,32,128,512,2048")]
    devices: Vec<NonZeroU32>,
    /// f32, bf16 or f16
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16")]
    precision: Vec<Precision>,
    /// Whether the backward pass rematerialises what pays on a TPU
    #[arg(long, value_enum, default_value = "on")]
    remat: RematArg,
    /// Where variables that train, and what the optimizer keeps of them, lie
    #[arg(long, value_enum, default_value = "whole")]
    state: StateArg,
    /// Programs to compile at most that are not cached
    #[arg(long, value_name = "N", default_value_t = 12)]
    compiles: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page with plots and a table
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Which rematerialisations are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RematArg {
    /// As the target's tuning and the file say
    On,
    /// None
    Off,
    /// Both
    Both,
}

/// Which places of the state are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StateArg {
    /// Whole on each core
    Whole,
    /// In parts, one on each core
    Sharded,
    /// Both
    Both,
}

/// A plan, with what it is of.
#[derive(Debug)]
struct Plan {
    model: String,
    batch: u32,
    unit: &'static str,
    libtpu: String,
    rows: Vec<Row>,
    /// Sentences on what is not in the rows.
    left_out: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    check_names(&[("--html", args.html.as_deref())], &[Some(&args.model)])?;
    let shown = args.model.display();
    ensure!(
        !args.model.is_dir() && !module_file::is_module(&args.model),
        "plan builds a model for slices of every size, and {shown} is one program\nhelp: give the model's YAML file; \
         `bf16scope compile` says what a module takes on the cores that it is for"
    );
    let experiment = read(&args.model)?;
    check_no_model_axis("plan", &args.model, &experiment.mesh, args.batch.unwrap_or(experiment.train.batch))?;
    let batch = args.batch.unwrap_or(experiment.train.batch);
    let (settings, mut left_out) = settings(args, &experiment, batch)?;
    let plan = Plan {
        model: shown.to_string(),
        batch,
        unit: unit(&experiment),
        rows: compiled(args, &experiment, settings, &mut left_out, context)?,
        libtpu: compiler(false, false, &args.limits, context).libtpu()?,
        left_out,
    };
    // Before the page, which may not be written: minutes of compiling are in it.
    if args.json {
        context.print_json(&json(&plan))?;
    } else {
        context.print(&render(&plan, context.screen))?;
    }
    if let Some(path) = &args.html {
        replace(path, page::page(&plan).render().as_bytes())?;
    }
    let fits = plan.rows.iter().any(|row| row.fits == Fit::Yes);
    Ok(if fits { Status::Ok } else { Status::Failing })
}

/// What is planned, and what cannot be.
fn settings(args: &Args, experiment: &Experiment, batch: u32) -> anyhow::Result<(Vec<Setting>, Vec<String>)> {
    let mut left_out = Vec::new();
    if experiment.train.accumulate > 1 {
        left_out.push(format!(
            "The file accumulates gradients over {} micro-batches; here it does so only where a batch does not fit without.",
            experiment.train.accumulate
        ));
    }
    let remats = match args.remat {
        RematArg::On => &[true][..],
        RematArg::Off => &[false],
        RematArg::Both => &[true, false],
    };
    let states = match args.state {
        StateArg::Whole => &[false][..],
        StateArg::Sharded => &[true],
        StateArg::Both => &[false, true],
    };
    let mut settings = Vec::new();
    for board in &args.target {
        let Target::Tpu { version, .. } = board else { bail!(TpuError::NotATpu(board.clone())) };
        ensure!(
            *board == Target::board(*version),
            "{board} is one slice, and plan looks at slices of every size\nhelp: give {} and --devices {}, or `bf16scope \
             compile --target {board} --mesh data=N`",
            Target::board(*version),
            board.n_cores().unwrap_or(1)
        );
        ensure!(
            Links::of(board).is_some(),
            "{board}: how fast its chips' links are is not known here, so there is no plan for it\nhelp: plan for tpu-v2 or \
             tpu-v3; `bf16scope compile --target {board} --mesh data=N` gives memory and cycles"
        );
        for n_cores in args.devices.iter().map(|n| n.get()) {
            let Some(target) = slice(*version, n_cores) else {
                left_out.push(format!("{board} has no slice of {n_cores} cores."));
                continue;
            };
            if !batch.is_multiple_of(n_cores) {
                left_out.push(format!("A batch of {batch} does not split over the {n_cores} cores of {target}."));
                continue;
            }
            for precision in &args.precision {
                for (remat, in_parts) in
                    remats.iter().flat_map(|&remat| states.iter().map(move |&state| (remat, state)))
                {
                    let series = Series { board: board.clone(), precision: precision.to_string(), remat, in_parts };
                    let target = target.clone();
                    let setting = Setting { series, target, n_cores, batch, accumulate: 1 };
                    if !settings.contains(&setting) {
                        settings.push(setting);
                    }
                }
            }
        }
    }
    ensure!(
        !settings.is_empty(),
        "there is nothing to plan: {}\nhelp: give --devices of which there are slices, such as 8 or 32, and a --batch that is a multiple of them",
        left_out.join(" ")
    );
    Ok((settings, left_out))
}

/// The slice of exactly so many cores.
fn slice(version: &'static Spec, n_cores: u32) -> Option<Target> {
    version.slice_of(n_cores as usize).filter(|slice| slice.n_cores() == Some(u64::from(n_cores)))
}

/// Compiles what tells most, and predicts the rest.
fn compiled(
    args: &Args,
    experiment: &Experiment,
    mut settings: Vec<Setting>,
    left_out: &mut Vec<String>,
    context: &Context,
) -> anyhow::Result<Vec<Row>> {
    let quiet = context.quiet;
    signals::on_stop(move |signal| {
        if !quiet {
            progress::say("stopped; what was compiled is kept, and the same command continues from there");
        }
        signals::leave(signal);
    })?;
    let mut watch = Watch::new(args.compiles, quiet);
    let mut points = Vec::new();
    while let Some(at) = next(&settings, &points) {
        match ask(args, experiment, &settings[at], &mut watch, context)? {
            Asked::Said(answer) => points.push(Point { setting: settings[at].clone(), answer }),
            Asked::Refused(message) => left_out.push(refusal(&settings.remove(at), &message)),
            // What is cached costs nothing, and comes by the same order.
            Asked::NotNow => break,
        }
    }
    let mut with_accumulation = Vec::new();
    for setting in &settings {
        with_accumulation.push(setting.clone());
        let Some(setting) = accumulated(setting, &points) else { continue };
        match ask(args, experiment, &setting, &mut watch, context)? {
            Asked::Said(answer) => points.push(Point { setting: setting.clone(), answer }),
            Asked::Refused(message) => {
                left_out.push(refusal(&setting, &message));
                continue;
            }
            Asked::NotNow => {}
        }
        with_accumulation.push(setting);
    }
    watch.finish();
    Ok(plan(&with_accumulation, &points))
}

fn refusal(setting: &Setting, message: &str) -> String {
    let Setting { series: Series { precision, in_parts, .. }, target, .. } = setting;
    let state = if *in_parts { ", state in parts" } else { "" };
    format!("{target} in {precision}{state}: the compiler refused: {}.", message.lines().next().unwrap_or_default())
}

enum Asked {
    Said(Answer),
    /// The compiler refused this program for another reason than memory.
    Refused(String),
    /// There are no compiles left for it.
    NotNow,
}

/// What the compiler says of a setting.
fn ask(
    args: &Args,
    experiment: &Experiment,
    setting: &Setting,
    watch: &mut Watch,
    context: &Context,
) -> anyhow::Result<Asked> {
    let Setting { series, target, n_cores, batch, accumulate } = setting;
    let mut stored = experiment.clone();
    stored.train.accumulate = *accumulate;
    let tuning = experiment.tune.tuning(&target.tuning());
    let tuning = if series.remat { tuning } else { without_remat(tuning) };
    let precision = series.precision.parse().map_err(anyhow::Error::msg)?;
    // What else the replicas share is as the file says.
    let mut mesh = NonZeroU32::new(*n_cores).map_or(Mesh::default(), |n| experiment.mesh.of_replicas(n));
    mesh.state = if series.in_parts { StateOf::Sharded } else { StateOf::Whole };
    let module = match build(&stored, ModelProgram::Training, precision, *batch, mesh, tuning) {
        Ok(program) => program.module,
        Err(error) => return Ok(Asked::Refused(error.chain())),
    };
    let compiler = compiler(false, false, &args.limits, context).over(Placement::of(&module)?);
    let program = encode::to_bytes(&module)?;
    if !compiler.remembers(target, &program)? && !watch.start(setting) {
        return Ok(Asked::NotNow);
    }
    let _span = tracing::info_span!("compile", batch, target = %target).entered();
    let compiled = match compiler.compile(target, &program, *batch as usize) {
        Ok(compiled) => compiled,
        Err(TpuError::Pjrt(PjrtError::Call { call: "PJRT_Compile", code, message })) => {
            return Ok(Asked::Refused(format!("{code}: {message}")));
        }
        Err(error @ TpuError::NoFigure { .. }) => return Ok(Asked::Refused(error.to_string())),
        Err(TpuError::Pjrt(PjrtError::Child(error))) if error.is_of_the_program() => {
            return Ok(Asked::Refused(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    if !compiled.is_cached {
        watch.done(setting);
    }
    Ok(Asked::Said(compiled.answer))
}

fn without_remat(tuning: Tuning) -> Tuning {
    tuning.with(|tuning| {
        tuning.remat = Remat::None;
        tuning.layer_remat = LayerRemat::default();
        tuning.cotangent_remat = false;
    })
}

/// How many compiles there are and how long they take.
struct Watch {
    bar: indicatif::ProgressBar,
    /// Lines in place of the bar, where there is no terminal to draw it on.
    has_lines: bool,
    is_quiet: bool,
    most: u32,
    n_done: u32,
    begun: Option<Instant>,
    n_seconds: f64,
}

impl Watch {
    fn new(most: u32, is_quiet: bool) -> Watch {
        let bar = progress::steps(is_quiet);
        bar.set_length(u64::from(most));
        Watch { has_lines: !is_quiet && bar.is_hidden(), bar, is_quiet, most, n_done: 0, begun: None, n_seconds: 0.0 }
    }

    /// Whether one more may be compiled, which then begins.
    fn start(&mut self, setting: &Setting) -> bool {
        if self.n_done == self.most {
            return false;
        }
        if self.n_done == 0 && !self.is_quiet {
            let n = self.most;
            progress::say(&format!(
                "up to {n} compiles, each as long as `compile` takes; --compiles N for fewer, Ctrl-C keeps what is compiled"
            ));
        }
        let left = match self.n_done {
            0 => String::new(),
            n => {
                let seconds = self.n_seconds / f64::from(n) * f64::from(self.most - n);
                format!(", at most {} left", super::fit::minutes(seconds))
            }
        };
        self.bar.reset_elapsed();
        self.bar.set_message(format!("compiling {}{left}", said(setting)));
        self.begun = Some(Instant::now());
        true
    }

    fn done(&mut self, setting: &Setting) {
        self.n_done += 1;
        let took = self.begun.take().map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        self.n_seconds += took;
        self.bar.set_position(u64::from(self.n_done));
        if self.has_lines {
            let (n, most) = (self.n_done, self.most);
            let left = super::fit::minutes(self.n_seconds / f64::from(n) * f64::from(most - n));
            progress::say(&format!(
                "{n} of {most}: {} in {}; at most {left} left",
                said(setting),
                report::seconds(took)
            ));
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn said(setting: &Setting) -> String {
    let Setting { series: Series { precision, in_parts, .. }, target, .. } = setting;
    let state = if *in_parts { ", state in parts" } else { "" };
    format!("{precision} for {target}, {} a core{state}", setting.part())
}

fn json(plan: &Plan) -> serde_json::Value {
    let mut boards: Vec<&Target> = plan.rows.iter().map(|row| &row.setting.series.board).collect();
    boards.dedup();
    let links: Vec<_> =
        boards.iter().map(|board| serde_json::json!({"tpu": board.to_string(), "links": Links::of(board)})).collect();
    serde_json::json!({
        "model": plan.model, "batch": plan.batch, "unit": plan.unit, "libtpu": plan.libtpu, "links": links,
        "rows": plan.rows, "left_out": plan.left_out,
    })
}

/// How a row is known, and what stands out.
fn remark(row: &Row) -> String {
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

/// What predictions are worth, of each series that has some, and what is not in the rows.
fn notes(plan: &Plan) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let mut said: Vec<&Series> = Vec::new();
    for row in &plan.rows {
        let Known::Predicted { hbm_error, cycles_error } = row.known else { continue };
        let series = &row.setting.series;
        if said.contains(&series) {
            continue;
        }
        said.push(series);
        let of = named(series);
        notes.push(match (hbm_error, cycles_error) {
            (Some(hbm), Some(cycles)) => format!(
                "{of}: predicted on lines through compiled rows; a compiled row, predicted from the others, is off by at \
                 most {:.1} % of memory and {:.1} % of cycles.",
                100.0 * hbm,
                100.0 * cycles
            ),
            _ => format!(
                "{of}: predicted from fewer than three compiled rows, so how far it is off is not known; more --compiles tell."
            ),
        });
    }
    notes.extend(plan.left_out.iter().cloned());
    notes
}

fn named(series: &Series) -> String {
    let remat = if series.remat { "" } else { ", without remat" };
    let state = if series.in_parts { ", state in parts" } else { "" };
    format!("{}, {}{remat}{state}", series.board, series.precision)
}

/// A table, and what to know about it.
fn render(plan: &Plan, screen: Screen) -> String {
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
            shown(row.figures.map(|figures| report::mib(figures.hbm as i64))),
            shown(row.figures.map(|figures| report::percent(figures.hbm as i64, figures.limit as i64))),
            shown(row.steps_per_second.map(figure)),
            shown(row.examples_per_second.map(figure)),
            shown(row.efficiency.map(|share| format!("{:.0} %", 100.0 * share))),
            shown(
                row.figures.filter(|_| row.fits != Fit::No).map(|figures| report::seconds(figures.collective_seconds)),
            ),
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
        "{}: training step, a batch of {} {unit} over all cores; memory and \"a core\" ({unit} at once) are one core's\n",
        plan.model, plan.batch
    );
    text += &table.render(screen);
    for note in notes(plan) {
        text += &format!("{note}\n");
    }
    text += &format!(
        "Efficiency is {unit}/s of a core over the most that one core of its TPU and dtype does alone. On the front are rows \
         that no row of their TPU beats on as few cores. Time is cycles at the core's clock, then collectives by their bytes \
         over the links: estimates, and no TPU has run anything.\n"
    );
    text
}

/// As many digits as matter.
fn figure(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1000.0 => format!("{v:.1}"),
        v => report::grouped(v.round() as i64),
    }
}
