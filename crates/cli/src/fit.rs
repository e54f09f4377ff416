//! `bf16scope fit`: the largest batch that fits a TPU, the best one, and the effect of bf16. Every figure comes from a
//! compile, and every compile is cached.

mod levers;

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{bail, ensure};

use super::child::LimitArgs;
use super::compiling::CompileProgress;
use super::emit::{check_names, replace};
use super::excess::ExcessArgs;
use super::mesh::MeshArgs;
use super::program::Which;
use super::sizes::SizeArgs;
use super::subjects::CompareArgs;
use super::tune::{TuneArg, targets_help};
use super::whole::whole;
use super::{Context, Status, again, module_file};
use crate::report;
use crate::report::plot::curves;
use bf16scope_foreign::Size;
use bf16scope_model::graph::Precision;
use bf16scope_study::{
    BatchDim, FitAnswer, FitQuestion, FitSource, ModelSubject, check_no_model_axis, check_slice, fit,
};
use bf16scope_tpu::fit::MULTIPLE;
use bf16scope_tpu::{Target, TpuError};
use bf16scope_train::Mesh;

const EXAMPLES: &str = "\
Examples:
  bf16scope fit examples/resnet50.yaml --target tpu-v2
          the largest batch in f32 and bf16, and the best one (some 17 compiles of 1 to 2 minutes on two cores)
  bf16scope fit examples/digits.yaml --target tpu-v2,tpu-v3 --max-batch 4096 --html fit.html
          two TPUs, and a page with the plot of batch against memory and speed (compiles of seconds)
  bf16scope fit examples/bert_base.yaml --target tpu-v3:4x4 --mesh data=32
          the largest part of a batch for each core of a slice
  bf16scope fit exported/ --batch-dim 0:0 --target tpu-v3
          modules that another framework exported at several batches; the first axis of parameter 0 is the batch
  bf16scope fit exported/ --batch-dim 0:0 --compare --policy bf16_scope
          the same beside their lowered forms
  bf16scope fit step.jax --batch-dim b --dim n=128 --target tpu-v3
          one file of jax.export whose sizes are symbolic: any batch b, with n of 128
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
    /// A model in YAML (examples/resnet50.yaml), a folder of HLO modules exported at several batches, or one module of
    /// jax.export whose batch is symbolic
    #[arg(value_name = "MODEL.yaml|FOLDER|MODULE")]
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
    #[arg(long, value_name = "N", default_value_t = FitQuestion::MAX_BATCH, value_parser = whole::<u32>(1..=1 << 30), allow_negative_numbers = true)]
    max_batch: u32,
    /// Bisect to a multiple of this: more saves compiles
    #[arg(long, value_name = "N", default_value_t = MULTIPLE, value_parser = whole::<u32>(1..=1 << 20), allow_negative_numbers = true)]
    multiple: u32,
    /// The batch dimension of a module: a parameter, by number or name, and one of its axes, such as 0:0 or images:0; or the
    /// name of a symbolic dimension
    #[arg(long, value_name = "PARAMETER:AXIS")]
    batch_dim: Option<BatchArg>,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Instead of searching, compile one batch of a model's training step with each lever (bf16 scope, bf16 weights,
    /// …) and report what each saves over the plain program, whose precision is --precision [default: f32]
    #[arg(long, conflicts_with_all = ["max_batch", "multiple", "batch_dim", "dims", "program", "tune", "svg", "compare", "policy", "devices", "mesh"])]
    levers: bool,
    /// The batch for --levers, instead of the file's
    #[arg(long, value_name = "N", requires = "levers", value_parser = whole::<u32>(1..=1 << 30), allow_negative_numbers = true)]
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
    excess: ExcessArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// The location of a batch, as typed.
#[derive(Clone, Debug)]
enum BatchArg {
    /// An axis of a parameter.
    Axis(BatchDim),
    /// A symbolic dimension.
    Symbol(String),
}

impl FromStr for BatchArg {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchArg, String> {
        match text.parse() {
            Ok(axis) => Ok(BatchArg::Axis(axis)),
            Err(_) if format!("{text}=1").parse::<Size>().is_ok() => Ok(BatchArg::Symbol(text.to_string())),
            Err(error) => Err(format!("{error}, or the name of a symbolic dimension, such as b")),
        }
    }
}

impl fmt::Display for BatchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchArg::Axis(BatchDim { parameter, axis }) => write!(f, "{parameter}:{axis}"),
            BatchArg::Symbol(name) => f.write_str(name),
        }
    }
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
    let source = source(args, context)?;
    let is_foreign = matches!(source, FitSource::Modules { .. } | FitSource::Symbolic { .. });
    ensure!(
        !(is_foreign && args.tune.is_some()),
        "--tune chooses among a model's programs, and {} holds modules",
        args.model.display()
    );
    let question =
        FitQuestion { source, targets: args.target.clone(), max_batch: args.max_batch, multiple: args.multiple };
    let mut progress = CompileProgress::new(context.quiet, question.n_series());
    progress.keep_what_is_compiled()?;
    let asking = args.limits.asking(args.fresh, is_foreign, context);
    let asking = args.excess.asking(asking, is_foreign);
    let answer = fit(&question, &asking, &mut |event| progress.on(event))?;
    progress.finish();
    // Printed before the files are written, which may fail: it holds the results of minutes of compiling.
    if args.json {
        context.print_json(&json(&answer)?)?;
    } else {
        context.print(&report::fit::render(&answer, context.screen))?;
    }
    if let Some(path) = &args.svg {
        replace(path, curves::standalone(&report::fit::plots(&answer)).as_bytes())?;
    }
    if let Some(path) = &args.html {
        replace(path, report::fit::page(&answer).render().as_bytes())?;
    }
    let fits = answer.series.iter().all(|series| series.found.largest.is_some());
    Ok(if fits { Status::Ok } else { Status::Failing })
}

/// The source that the arguments name: a model, or a folder of modules.
fn source(args: &Args, context: &Context) -> anyhow::Result<FitSource<'static>> {
    let (path, mesh, shown) = (&args.model, &args.mesh, args.model.display());
    let is_folder = path.is_dir() && module_file::saved_model(path).is_none();
    if is_folder || module_file::is_module(path) {
        let holds = if is_folder { "holds modules, which are" } else { "is a module, which is" };
        if let Some(flag) = mesh.flag() {
            bail!("{flag} lays a model's batch over cores, and {shown} {holds} of one");
        }
        let holds = if is_folder { "holds modules" } else { "is a module" };
        ensure!(args.program.is_none(), "--program chooses among a model's programs, and {shown} {holds}");
        ensure!(
            args.precision.is_empty(),
            "--precision chooses among a model's programs, and {shown} {holds}\nhelp: --compare puts them beside their \
             lowered forms, and --policy says how they are lowered"
        );
        let (forms, converter) = (args.compare.forms()?, args.sizes.converter(context)?);
        return match (is_folder, &args.batch_dim) {
            (true, Some(BatchArg::Symbol(name))) => bail!(
                "--batch-dim {name} names a symbolic dimension, and {shown} is a folder, of modules at several batches\nhelp: name \
                 the module whose dimension it is, or say PARAMETER:AXIS"
            ),
            (true, Some(BatchArg::Axis(axis))) => Ok(FitSource::of_folder(path, Some(axis), &forms, &converter)?),
            (true, None) => Ok(FitSource::of_folder(path, None, &forms, &converter)?),
            (false, Some(batch)) => Ok(FitSource::of_symbolic(path, &batch.to_string(), &forms, &converter)?),
            (false, None) => bail!(
                "{shown} is one module, of one batch, and fit looks for a batch\nhelp: of jax.export with a symbolic batch, say \
                 which dimension that is, --batch-dim b; or export it at several batches into a folder, and name the folder; \
                 `bf16scope compile {}` says what this one takes",
                again::word(path)
            ),
        };
    }
    args.sizes.refuse(path)?;
    args.compare.check_model(path)?;
    if let Some(batch) = &args.batch_dim {
        bail!("--batch-dim {batch} is for modules: a model knows its batch");
    }
    let subject = ModelSubject::read(path, &context.setup())?;
    let which = args.program.unwrap_or(Which::Train);
    which.check(mesh)?;
    let of_file = subject.objective.mesh;
    match mesh.choice().n_partitions(of_file) {
        1 => {}
        _ if mesh.names_the_model_axis() => bail!(
            "fit lays a batch over replicas of one device each, and --mesh has a model axis\nhelp: leave it out; `bf16scope \
             compile` with the same --mesh says what a step of so many partitions takes"
        ),
        _ => check_no_model_axis("fit", &subject)?,
    }
    if of_file.is_parallel() && mesh.flag().is_none() {
        tracing::warn!(
            "{shown}: the mesh has {} devices, and fit looks at one: a batch here is one device's part, and no sums over \
             devices are in it\nhelp: --mesh data={} looks at one device's share of a step over all",
            of_file.data,
            of_file.data
        );
    }
    // The rest of the mesh is as in the file.
    let mesh = match mesh.flag() {
        Some(_) => mesh.choice().over(Mesh { model: NonZeroU32::MIN, ..of_file })?,
        None => Mesh::default(),
    };
    for target in &args.target {
        check_slice(mesh, 1, target)?;
    }
    let precisions =
        if args.precision.is_empty() { vec![Precision::F32, Precision::Bf16] } else { args.precision.clone() };
    let subject = Box::new(ModelSubject { program: which.into(), tune_choice: args.tune.choice(), ..subject });
    Ok(FitSource::Model { subject, mesh, precisions })
}

fn json(fit: &FitAnswer) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(fit)?;
    value["answers"] = report::fit::answers(fit).into();
    Ok(value)
}
