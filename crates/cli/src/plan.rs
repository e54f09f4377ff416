//! `bf16scope plan`: which slice to rent for a model and a global batch. Compiles some settings, predicts the others
//! ([`tpu::plan`](bf16scope_tpu::plan)), and shows both as a table and a page.

mod page;
#[cfg(test)]
mod screens;

use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::ensure;
use clap::ValueEnum;

use super::child::LimitArgs;
use super::compiling::CompileProgress;
use super::emit::{check_names, replace};
use super::excess::{self, ExcessArgs};
use super::whole::whole;
use super::{Context, Status, module_file};
use crate::report::{self, Column, Screen, Table};
use bf16scope_model::graph::Precision;
use bf16scope_study::{ModelSubject, PlanAnswer, PlanQuestion, plan};
use bf16scope_tpu::SPREAD;
use bf16scope_tpu::Target;
use bf16scope_tpu::plan::{Fit, Known, Series, Setting, SliceRow};

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
predicted on straight lines through compiled settings of the same TPU and precision, and marked, with a bound: the most by
which compiled settings predict one another, and at least 10 %. The largest part of a batch is compiled first, then the
middle; what `fit` has compiled of one core is used too.

Steps a second are cycles at the core's clock (700 MHz on v2, 940 MHz on v3) and the time of collectives, one after the other;
the compiler gives the latter no cycles, so they take what a ring over the chips takes by their links, and a microsecond of
latency a hop; starting a step is taken to be 50 us more. Efficiency is examples a second and core, over the most that one
core does alone in any of the rows. Exit status: 0 something fits, 1 nothing does, 2 could not run.";

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model in YAML (examples/resnet50.yaml)
    #[arg(value_name = "MODEL.yaml")]
    model: PathBuf,
    /// Examples in a batch of all cores, instead of the file's
    #[arg(long, value_name = "N", value_parser = whole(1..=i32::MAX as u32), allow_negative_numbers = true)]
    batch: Option<u32>,
    /// TPUs, without a grid, since all sizes of slices are compared
    #[arg(long, value_delimiter = ',', default_value = "tpu-v2,tpu-v3")]
    target: Vec<Target>,
    /// Numbers of cores; those without a slice of a TPU are left out
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,32,128,512,2048")]
    devices: Vec<NonZeroU32>,
    /// f32, bf16 or f16
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16")]
    precision: Vec<Precision>,
    /// Whether the backward pass rematerialises activations where that pays on a TPU
    #[arg(long, value_enum, default_value = "on")]
    remat: RematArg,
    /// Whether variables that train, and the optimizer's state of them, are sharded over the cores
    #[arg(long, value_enum, default_value = "whole")]
    state: StateArg,
    /// The number of programs to compile at most, besides cached ones
    #[arg(long, value_name = "N", default_value_t = 12)]
    compiles: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page with plots and a table
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    excess: ExcessArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// The rematerialisations to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RematArg {
    /// As the target's tuning and the file say
    On,
    /// None
    Off,
    /// Both
    Both,
}

/// The shardings of the state to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StateArg {
    /// Whole on each core
    Whole,
    /// Sharded over the cores
    Sharded,
    /// Both
    Both,
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
    let subject = ModelSubject::read(&args.model, &context.setup())?;
    let question = PlanQuestion {
        subject: ModelSubject { batch: args.batch.unwrap_or(subject.batch), ..subject },
        boards: args.target.clone(),
        devices: args.devices.clone(),
        precisions: args.precision.clone(),
        remats: match args.remat {
            RematArg::On => vec![true],
            RematArg::Off => vec![false],
            RematArg::Both => vec![true, false],
        },
        sharded: match args.state {
            StateArg::Whole => vec![false],
            StateArg::Sharded => vec![true],
            StateArg::Both => vec![false, true],
        },
        n_compiles: args.compiles,
    };
    let mut progress = CompileProgress::at_most(context.quiet, args.compiles);
    progress.keep_what_is_compiled()?;
    let asking = args.limits.asking(false, false, context);
    let asking = args.excess.asking(asking, false);
    let answer = plan(&question, &asking, &mut |event| progress.on(event))?;
    progress.finish();
    // Printed before the page is written, which may fail: it holds the results of minutes of compiling.
    if args.json {
        context.print_json(&serde_json::to_value(&answer)?)?;
    } else {
        context.print(&render(&answer, context.screen))?;
    }
    if let Some(path) = &args.html {
        replace(path, page::page(&answer).render().as_bytes())?;
    }
    Ok(if answer.fits() { Status::Ok } else { Status::Failing })
}

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
fn render(plan: &PlanAnswer, screen: Screen) -> String {
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
                row.figures
                    .filter(|_| row.fits != Fit::No)
                    .map(|figures| report::seconds(figures.step.collective_seconds)),
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
        "{}: training step, a batch of {} {unit} over all cores; memory and \"a core\" ({unit} at once) are one core's{}\n",
        plan.model,
        plan.batch,
        excess::note(plan.excess_precision)
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
        v => report::grouped(v.round() as i64),
    }
}
