//! `bf16scope plan`: which slice to rent for a model and a global batch. Compiles some settings, predicts the others
//! ([`tpu::plan`](bf16scope_tpu::plan)), and shows both as a table and a page.

use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::ensure;
use clap::ValueEnum;

use super::child::LimitArgs;
use super::compiling::CompileProgress;
use super::emit::{check_names, replace};
use super::excess::ExcessArgs;
use super::whole::whole;
use super::{Context, Status, module_file};
use crate::report;
use bf16scope_model::graph::Precision;
use bf16scope_study::{ModelSubject, PlanQuestion, plan};
use bf16scope_tpu::Target;

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
        context.print(&report::plan::render(&answer, context.screen))?;
    }
    if let Some(path) = &args.html {
        replace(path, report::plan::page(&answer).render().as_bytes())?;
    }
    Ok(if answer.fits() { Status::Ok } else { Status::Failing })
}
