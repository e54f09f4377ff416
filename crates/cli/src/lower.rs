//! `bf16scope lower`: lowers the heavy work of any HLO module to bf16 or f16, and reports the decisions.

mod lost;

use std::path::PathBuf;

use anyhow::Context as _;

use super::child::LimitArgs;
use super::compiling::CompileProgress;
use super::emit::{self, Format};
use super::excess::ExcessArgs;
use super::policy::PolicyArgs;
use super::sizes::SizeArgs;
use super::tune::targets_help;
use super::whole::whole;
use super::{Context, Status, again, module_file};
use crate::report::lower::{figures, in_doubt, list, losses, totals};
use bf16scope_hlo::{DType, Module};
use bf16scope_model::document;
use bf16scope_passes::amp::{self, LoweringReport, Policy};
use bf16scope_study::{LowerQuestion, lower_for, n_in_doubt};
use bf16scope_tpu::Target;

const EXAMPLES: &str = "\
Examples:
  bf16scope lower step.hlo.pb -o step.bf16.pb
          dots, convolutions and what lies between them in bf16; loss, update and state f32
  bf16scope lower step.txt -o step.bf16.txt --policy bf16_scope --report step.json
          as a TensorFlow bf16 scope would, and every decision as JSON
  bf16scope lower step.pb -o out.pb --policy policy.yaml --keep '*/layer_norm/*'
          with lists of your own, and layer norms left alone
  bf16scope lower step.hlo.pb -o step.bf16.pb --target tpu-v2 --decisions step.yaml
          compile both forms where rules leave a choice, and take the cheaper; `--policy step.yaml` then makes the same module

With --target, each region (instructions of one opcode and shape that one rule decided) that can take another form without an
additional rounding is compiled in that form: in f32, rounded at another place, or behind a barrier. A form is accepted if it
takes no more memory and no more cycles than the policy alone (up to a thousandth); among those the least product of both wins,
if it is smaller by more than a thousandth. Every compile is cached, so the same command continues where it was stopped.";

/// Arguments of `lower`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", amp::keys::help()))]
pub struct Args {
    /// The module: HLO text, a serialized HloModuleProto, or StableHLO
    #[arg(value_name = "MODULE")]
    module: PathBuf,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Where to write the lowered module
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Text, proto, stablehlo or dot; if not given, by the output's extension (.pb: proto, .mlir: StableHLO, .dot: picture,
    /// else text)
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write every decision and cast as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Show every instruction, not only totals by op
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    asked: AskedArgs,
}

/// Arguments for asking the TPU compiler.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Asking the TPU compiler")]
struct AskedArgs {
    #[arg(long, help = targets_help("; where rules are in doubt, both forms are compiled for it, and the cheaper is kept"))]
    target: Option<Target>,
    /// The number of programs to compile at most, besides cached ones
    #[arg(long, value_name = "N", default_value_t = LowerQuestion::N_COMPILES, requires = "target", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    compiles: u32,
    /// Where to write the policy with what was decided [default: beside the output, named .decisions.yaml]
    #[arg(long, value_name = "FILE", requires = "target")]
    decisions: Option<PathBuf>,
    /// Compile even what is cached
    #[arg(long, requires = "target")]
    fresh: bool,
    #[command(flatten)]
    excess: ExcessArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Why a module has nothing to lower, if its dtypes show it.
fn why_nothing(module: &Module, low: DType) -> String {
    let gives = |dtype| {
        let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.filter(|instr| instr.shape.leaves().iter().any(|leaf| leaf.dtype() == Some(dtype))).count()
    };
    match (gives(DType::F32), gives(DType::F64), gives(low)) {
        (0, 1.., _) => "it is in f64, and only f32 is lowered: export it without jax_enable_x64, or in f32".to_string(),
        (_, _, n @ 1..) => {
            format!("{n} of its instructions give {low} already; --list says of each other one why it does not")
        }
        _ => "--list says why, instruction by instruction".to_string(),
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let policy = args.policy.policy()?;
    // The module itself may be replaced by its lowered form, but other inputs may not.
    let decided = args.asked.target.as_ref().map(|_| decisions_path(args));
    let (report, decisions) = (args.report.as_deref(), decided.as_deref());
    let output = [("-o", Some(args.output.as_path()))];
    let beside = [("--report", report), ("--decisions", decisions)];
    emit::check_names(&output, &[args.policy.file()])?;
    emit::check_names(&beside, &[Some(&args.module), args.policy.file()])?;
    emit::check_names(&[&output[..], &beside].concat(), &[])?;
    if let Some(path) = decisions {
        emit::check_kind(path, b"# `bf16scope lower ", "policy with decisions").context("--decisions")?;
    }
    let module = module_file::load(&args.module, &args.sizes.converter(context)?)?;
    if module.is_scheduled {
        tracing::warn!(
            "{} is what a compiler has made (is_scheduled=true): what is inside its fusions stays as it is; lower the \
             module before optimization, such as lowered.as_text()",
            args.module.display()
        );
    }
    let _span = tracing::info_span!("lower").entered();
    let (lowered, report, said, lost) = match &args.asked.target {
        Some(target) => {
            let original = module.clone();
            let (lowered, report, said) = asked(args, target, module, policy, context)?;
            let lost = lost::warning(&original, &lowered, &report);
            lost::check_layouts(&original, &lowered)?;
            (lowered, report, said, lost)
        }
        None => {
            let lowered = amp::run(&module, &policy);
            let (lowered, report) = lowered.with_context(|| format!("{} cannot be lowered", args.module.display()))?;
            let hint = in_doubt(n_in_doubt(&module, &report));
            let lost = lost::warning(&module, &lowered, &report);
            lost::check_layouts(&module, &lowered)?;
            (lowered, report, hint, lost)
        }
    };
    let format = args.format.unwrap_or_else(|| emit::format_of(Some(&args.output)));
    emit::replace(&args.output, &emit::write(&lowered, format)?)?;
    if let Some(path) = &args.report {
        let mut json = serde_json::to_vec_pretty(&report).context("cannot write the report as JSON")?;
        json.push(b'\n');
        emit::replace(path, &json)?;
    }
    report.notes.iter().for_each(|note| tracing::warn!("{note}"));
    warn_of_hurts(&report);
    if let Some(lost) = lost {
        tracing::warn!("{lost}");
    }
    if report.n_lowered() == 0 {
        tracing::warn!(
            "nothing gives {} under this policy: {} computes as before; {}",
            report.policy.dtype.dtype(),
            args.output.display(),
            why_nothing(&lowered, report.policy.dtype.dtype())
        );
    }
    if args.list {
        context.print(&list(&report, context.screen))?;
    }
    context.print(&totals(&report, context.screen))?;
    context.print(&losses(&report))?;
    context.print(&said)?;
    Ok(Status::Ok)
}

/// The largest number of warnings about harmful roundings; the report has all of them.
const MAX_HURTS: usize = 8;

/// Warns of roundings requested by the policy that will do harm.
fn warn_of_hurts(report: &LoweringReport) {
    report.hurts.iter().take(MAX_HURTS).for_each(|hurt| tracing::warn!("{}", hurt.sentence()));
    if let Some(n @ 1..) = report.hurts.len().checked_sub(MAX_HURTS) {
        tracing::warn!("{n} more such roundings are in the report: --report writes it");
    }
}

/// The path for the decisions.
fn decisions_path(args: &Args) -> PathBuf {
    args.asked.decisions.clone().unwrap_or_else(|| args.output.with_extension("decisions.yaml"))
}

/// Lowers with the TPU compiler's answers, and writes the decisions.
fn asked(
    args: &Args,
    target: &Target,
    module: Module,
    policy: Policy,
    context: &Context,
) -> anyhow::Result<(Module, LoweringReport, String)> {
    let AskedArgs { compiles, fresh, excess, limits, .. } = &args.asked;
    let question =
        LowerQuestion { module, path: args.module.clone(), policy, target: target.clone(), n_compiles: *compiles };
    let mut progress = CompileProgress::at_most(context.quiet, *compiles);
    progress.keep_what_is_compiled()?;
    let asking = excess.asking(limits.asking(*fresh, true, context), true);
    let answer = lower_for(&question, &asking, &mut |event| progress.on(event))?;
    progress.finish();
    let path = decisions_path(args);
    let mut text = format!(
        "# `bf16scope lower {} --target {target} --compiles {compiles}` decided what is below `decided`, if anything;\n# \
         `--policy` with this file makes the same module without a compiler.\n",
        again::word(&args.module),
    );
    text += &document::to_string(&answer.policy).context("cannot write the policy as YAML")?;
    emit::replace(&path, text.as_bytes())?;
    let text = figures(&answer, &path, context.screen);
    Ok((answer.module, answer.report, text))
}
