//! `bf16scope explain`: where the memory and the time of a compiled program go, layer by layer and line by line.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::child::LimitArgs;
use super::compile::compiler;
use super::program::{Choice, Which};
use super::subjects::{AS_GIVEN, CompareArgs, Programs, Subject, judge};
use super::tune::targets_help;
use super::{Context, Status, emit, module_file, progress, several};
use crate::hlo::Module;
use crate::hlo::devices::{Devices, Placement, devices_of_compiled};
use crate::hlo::proto::decode;
use crate::hlo::verify::verify_ids;
use crate::tpu::explain::{Explanation, Moment, Rates, explain, moments};
use crate::tpu::verdict::{Candidate, Evidence, Outcome};
use crate::tpu::{CompileReport, Target, TpuError};

mod page;
mod terminal;

const EXAMPLES: &str = "\
Examples:
  bf16scope explain examples/digits.yaml --target tpu-v3
          what is alive when most of the memory is used, and which layers take the cycles
  bf16scope explain examples/resnet50.yaml --target tpu-v2 --batch 64 --compare
          f32 beside bf16 (compiles both first: about two minutes)
  bf16scope explain step.hlo.pb --compare --policy bf16_scope
          a module from JAX, TensorFlow or PyTorch/XLA beside itself in bf16, layer by layer
  bf16scope explain examples/resnet18.yaml --target tpu-v3 --html resnet18.html
          a page with a timeline (hover shows the buffers), treemaps and tables; open it in any browser
  bf16scope explain optimized.hlo.pb --target tpu-v3 --json
          a module that libtpu made

A model, or a module that is not scheduled, is compiled first, and the result is cached as by `compile`. A module that the
TPU compiler has already optimized (is_scheduled=true) is read as it is; the target then only says how fast a core is.

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
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
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
    limits: LimitArgs,
}

/// A program, compiled and explained.
#[derive(Debug, Serialize)]
struct Explained {
    /// The model's precision, [`AS_GIVEN`], or a policy.
    precision: String,
    /// The devices that it is for: all figures are of one.
    devices: Devices,
    /// The compiler's figures; a module that came optimized has none.
    report: Option<CompileReport>,
    #[serde(flatten)]
    explanation: Explanation,
    /// For the page.
    #[serde(skip)]
    moments: Vec<Moment>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    ensure!(args.target != Target::Cpu, TpuError::NotATpu(Target::Cpu));
    emit::check_names(&[("--html", args.html.as_deref())], &[Some(&args.choice.model)])?;
    let all = match all(args, context) {
        Ok(all) => all,
        // An answer: there is no optimized program, so nothing to explain but that.
        Err(error) if matches!(error.downcast_ref(), Some(TpuError::OutOfMemory { .. })) => {
            tracing::error!("{error:#}\nhelp: `bf16scope fit` finds the batch that fits, and what is largest");
            return Ok(Status::Failing);
        }
        Err(error) => return Err(error),
    };
    let All { explained, candidates, batch } = all;
    let labels: Vec<&str> = explained.iter().map(|one| one.precision.as_str()).collect();
    let verdict = judge(&candidates, &labels, &args.choice);
    let sentences = verdict.as_ref().map_or(&[][..], |verdict| &verdict.sentences);
    let lead = lead(args, batch, &explained);
    if let Some(path) = &args.html {
        emit::replace(path, page::page(&lead, &explained, sentences).render().as_bytes())?;
    }
    if args.json {
        let target = args.target.to_string();
        let rates = Rates::of(&args.target);
        context.print_json(&serde_json::json!({
            "target": target, "batch": batch, "core": rates, "programs": explained, "verdict": verdict,
        }))?;
    } else {
        context.print(&terminal::render(&lead, &explained, sentences, usize::from(args.top), context.screen))?;
    }
    Ok(Status::Ok)
}

/// Everything that is explained.
struct All {
    explained: Vec<Explained>,
    /// For the verdict: those with the compiler's figures.
    candidates: Vec<Candidate>,
    batch: Option<u32>,
}

fn all(args: &Args, context: &Context) -> anyhow::Result<All> {
    let programs = match args.choice.module_by(load)? {
        // Nothing is lowered, so nothing is compiled.
        Some(module) if module.is_scheduled && !args.compare.is_asked() => {
            let one = explained(args, AS_GIVEN.to_string(), devices_of_compiled(&module), None, &module)?;
            return Ok(All { explained: vec![one], candidates: Vec::new(), batch: None });
        }
        Some(module) => Programs::of_module(module, &args.choice.model, &args.compare)?,
        None => Programs::of_model(&args.choice, &args.target, &args.compare)?,
    };
    let is_compared = programs.subjects.len() > 1;
    let (mut explained, mut candidates) = (Vec::new(), Vec::new());
    for Subject { label, name, bytes, changes_interface } in programs.subjects {
        let both = compiled(args, label, (&bytes, &programs.placement), programs.batch.unwrap_or(1), context);
        let (one, report) = match is_compared {
            true => both.with_context(|| format!("{name} cannot be compiled"))?,
            false => both?,
        };
        let evidence = Some(Evidence::of(&one.explanation));
        candidates.push(Candidate { name, outcome: Outcome::Fits(report), evidence, changes_interface });
        explained.push(one);
    }
    Ok(All { explained, candidates, batch: programs.batch })
}

/// A module as it is: one that is scheduled need only be walked, any other must be fit to compile.
fn load(path: &Path) -> anyhow::Result<Module> {
    let module = module_file::decode(path)?;
    if module.is_scheduled {
        verify_ids(&module).with_context(|| format!("{}: the module is broken", path.display()))?;
    } else {
        module_file::check(&module, path)?;
    }
    Ok(module)
}

/// Compiles a verified program, reads back what the compiler made of it, and explains that.
fn compiled(
    args: &Args,
    precision: String,
    (program, placement): (&[u8], &Placement),
    batch: u32,
    context: &Context,
) -> anyhow::Result<(Explained, CompileReport)> {
    let compiler = compiler(args.fresh, args.choice.is_module(), &args.limits, context).over(placement.clone());
    let what = format!("compiling {} ({precision}) for {}", args.choice.model.display(), args.target);
    let spinner = progress::spinner(what, context.quiet);
    let _span = tracing::info_span!("compile", precision = %precision, target = %args.target).entered();
    let answer = compiler.compile_and_read(&args.target, program, batch as usize);
    spinner.finish_and_clear();
    let (compiled, optimized) = answer?;
    let optimized = decode::from_bytes(&optimized)
        .context("the compiler's optimized program cannot be read: this is a bug of bf16scope, please report it")?;
    verify_ids(&optimized).context("the compiler's optimized program is broken")?;
    let report = compiled.report(&args.target)?;
    Ok((explained(args, precision, placement.devices, Some(report.clone()), &optimized)?, report))
}

/// Stretches of the schedule that a page shows, and buffers of each.
const PAGE: (usize, usize) = (480, 8);

/// Explains a scheduled module whose ids hold.
fn explained(
    args: &Args,
    precision: String,
    devices: Devices,
    report: Option<CompileReport>,
    module: &Module,
) -> anyhow::Result<Explained> {
    let explanation = explain(module, Rates::of(&args.target).as_ref())?;
    let moments = if args.html.is_some() { moments(module, PAGE.0, PAGE.1)? } else { Vec::new() };
    Ok(Explained { precision, devices, report, explanation, moments })
}

/// What is explained, in a line.
fn lead(args: &Args, batch: Option<u32>, explained: &[Explained]) -> String {
    let devices = explained.first().map_or(Devices::ONE, |one| one.devices);
    let program = match (batch, args.choice.program()) {
        (Some(batch), Which::Train) => format!("training step, batch {batch}, "),
        (Some(batch), Which::Infer) => format!("inference, batch {batch}, "),
        (None, _) => String::new(),
    };
    format!("{}: {program}{}", args.choice.model.display(), several::cores(devices, &args.target))
}
