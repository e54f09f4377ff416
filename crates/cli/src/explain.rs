//! `bf16scope explain`: where the memory and the time of a compiled program go, layer by layer and line by line.

use std::path::PathBuf;

use anyhow::ensure;

use super::child::LimitArgs;
use super::compile::{Spinner, programs};
use super::excess::ExcessArgs;
use super::program::{Choice, Which};
use super::subjects::{CompareArgs, with_accuracy};
use super::tune::targets_help;
use super::whole::whole;
use super::{Context, Status, emit, module_file};
use crate::report;
use bf16scope_hlo::devices::Devices;
use bf16scope_study::{
    ExplainQuestion, ExplainSource, Explained, Explanations, Stretches, StudyError, StudyErrorKind, explain,
};
use bf16scope_tpu::{Target, TpuError};

const EXAMPLES: &str = "\
Examples:
  bf16scope explain examples/digits.yaml --target tpu-v3
          which buffers are alive at the memory peak, and which layers take the cycles
  bf16scope explain examples/resnet50.yaml --target tpu-v2 --batch 64 --compare
          f32 beside bf16 (compiles both first: about two minutes)
  bf16scope explain step.hlo.pb --compare --policy bf16_scope
          a module from JAX, TensorFlow or PyTorch/XLA beside itself in bf16, layer by layer
  bf16scope explain examples/resnet18.yaml --target tpu-v3 --html resnet18.html
          a page with a timeline (hover shows the buffers), treemaps and tables; open it in any browser
  bf16scope explain optimized.hlo.pb --target tpu-v3 --json
          a module that libtpu has optimized

A model, or a module that is not scheduled, is compiled first, and the result is cached as by `compile`. A module that the
TPU compiler has already optimized (is_scheduled=true) is read as it is; the target then only sets a core's speed.

Memory is computed from the schedule and the layouts of the compiler's own program, cycles are its estimates, flops and
bytes are counted from shapes. What bounds a layer is shown for v2 (46 TFLOP/s and 700 GB/s a chip) and v3 (123 TFLOP/s and
900 GB/s), from Google's Cloud TPU documentation; a core has half. Exit status: 0 done, 1 it does not fit, 2 could not run.";

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    #[arg(long, help = targets_help(", and a grid of chips if not one board: tpu-v3:4x4"), default_value = "tpu-v2")]
    target: Target,
    #[command(flatten)]
    compare: CompareArgs,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = whole(1..=u16::MAX), allow_negative_numbers = true)]
    top: u16,
    /// Compile even if the result is cached
    #[arg(long)]
    fresh: bool,
    /// Write a page for the browser: timeline, treemaps, tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    excess: ExcessArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// The number of stretches of the schedule on a page, and of buffers in each.
const PAGE: Stretches = (480, 8);

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    ensure!(args.target != Target::Cpu, TpuError::NotATpu(Target::Cpu));
    emit::check_names(&[("--html", args.html.as_deref())], &[Some(&args.choice.model)])?;
    let (mut all, runs_alone) = match all(args, context) {
        Ok(all) => all,
        // This is an answer too: without an optimized program there is only the error to explain.
        Err(error) if is_out_of_memory(&error) => {
            tracing::error!("{error:#}\nhelp: `bf16scope fit` finds the batch that fits, and what is largest");
            return Ok(Status::Failing);
        }
        Err(error) => return Err(error),
    };
    let labels: Vec<&str> = all.programs.iter().map(|one| one.label.as_str()).collect();
    all.verdict = all.verdict.map(|verdict| with_accuracy(verdict, &labels, &args.choice, runs_alone));
    let sentences = all.verdict.as_ref().map_or(&[][..], |verdict| &verdict.sentences);
    let excess = report::excess_note(all.excess_precision == Some(true));
    let lead = lead(args, all.batch, &all.programs) + excess;
    if let Some(path) = &args.html {
        emit::replace(path, report::explain::page(&lead, &all.programs, sentences).render().as_bytes())?;
    }
    if args.json {
        context.print_json(&serde_json::to_value(&all)?)?;
    } else {
        context.print(&report::explain::render(
            &lead,
            &all.programs,
            sentences,
            usize::from(args.top),
            context.screen,
        ))?;
    }
    Ok(Status::Ok)
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StudyError>().is_some_and(|error| error.kind() == StudyErrorKind::OutOfMemory)
}

/// The programs to explain, and whether one device can run them alone.
fn all(args: &Args, context: &Context) -> anyhow::Result<(Explanations, bool)> {
    let source =
        match args.choice.module_by(|path| Ok(module_file::load_to_show(path, &args.choice.converter(context)?)?))? {
            // A scheduled module is not lowered, so it is not compiled either.
            Some(module) if module.is_scheduled && !args.compare.is_asked() => {
                ExplainSource::Scheduled { module: Box::new(module), path: args.choice.model.clone() }
            }
            module => ExplainSource::Programs(programs(&args.choice, &args.target, &args.compare, module, context)?),
        };
    let runs_alone = matches!(&source, ExplainSource::Programs(programs) if programs.runs_alone);
    let stretches = args.html.is_some().then_some(PAGE);
    let question = ExplainQuestion { source, target: args.target.clone(), stretches };
    let asking = args.limits.asking(args.fresh, args.choice.is_module(), context);
    let asking = args.excess.asking(asking, args.choice.is_module());
    let mut spinner = Spinner::new(args.choice.model.display().to_string(), context.quiet);
    Ok((explain(&question, &asking, &mut |event| spinner.on(event))?, runs_alone))
}

/// The explained programs, in a line.
fn lead(args: &Args, batch: Option<u32>, explained: &[Explained]) -> String {
    let devices = explained.first().map_or(Devices::ONE, |one| one.devices);
    let program = match (batch, args.choice.program()) {
        (Some(batch), Which::Train) => format!("training step, batch {batch}, "),
        (Some(batch), Which::Infer) => format!("inference, batch {batch}, "),
        (None, _) => String::new(),
    };
    format!("{}: {program}{}", args.choice.model.display(), report::several::cores(devices, &args.target))
}
