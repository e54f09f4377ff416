//! `bf16scope lower`: puts the heavy work of any HLO module into bf16 or f16, and shows what was decided.

use std::path::PathBuf;

use anyhow::Context as _;

use super::emit::{self, Format};
use super::policy::PolicyArgs;
use super::{Context, Status, module_file};
use crate::passes::amp::{self, LoweringReport};
use crate::report::{self, Column, Screen, Table};

const EXAMPLES: &str = "\
Examples:
  bf16scope lower step.hlo.pb -o step.bf16.pb
          dots, convolutions and what lies between them in bf16; loss, update and state f32
  bf16scope lower step.txt -o step.bf16.txt --policy bf16_scope --report step.json
          as a TensorFlow bf16 scope would, and every decision as JSON
  bf16scope lower step.pb -o out.pb --policy policy.yaml --keep '*/layer_norm/*'
          with lists of your own, and layer norms left alone

A policy file holds, all optional: preset, dtype, the op lists allow, infer, clear, deny and island, keep (patterns of
names), min_elements, parameters and results (keep or lower), loss (keep or lower), accumulate (compute or f32), sums
(over devices: f32 or as_computed), reach (none, dots, between, all), deny_spreads, unstored, logits,
tables, moved, loops and choices (keep or lower).
An op in two lists, or one that no list may hold, is an error.";

/// Arguments of `lower`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The module: HLO text, a serialized HloModuleProto, or StableHLO
    #[arg(value_name = "MODULE")]
    module: PathBuf,
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
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let policy = args.policy.policy()?;
    // The module itself may be replaced by its lowered form, and by nothing else.
    emit::check_names(&[("-o", Some(&args.output)), ("--report", args.report.as_deref())], &[])?;
    emit::check_names(&[("--report", args.report.as_deref())], &[Some(&args.module)])?;
    let module = module_file::load(&args.module, &context.converter())?;
    if module.is_scheduled {
        tracing::warn!(
            "{} is what a compiler has made (is_scheduled=true): what is inside its fusions stays as it is; lower the \
             module before optimization, such as lowered.as_text()",
            args.module.display()
        );
    }
    let _span = tracing::info_span!("lower").entered();
    let lowered = amp::run(&module, &policy);
    let (lowered, report) = lowered.with_context(|| format!("{} cannot be lowered", args.module.display()))?;
    let format = args.format.unwrap_or_else(|| emit::format_of(Some(&args.output)));
    emit::replace(&args.output, &emit::write(&lowered, format)?)?;
    if let Some(path) = &args.report {
        let mut json = serde_json::to_vec_pretty(&report).context("cannot write the report as JSON")?;
        json.push(b'\n');
        emit::replace(path, &json)?;
    }
    report.notes.iter().for_each(|note| tracing::warn!("{note}"));
    if report.n_lowered() == 0 {
        tracing::warn!(
            "nothing gives {} under this policy: {} computes as before; --list says why, instruction by instruction",
            report.policy.dtype.dtype(),
            args.output.display()
        );
    }
    if args.list {
        context.print(&list(&report, context.screen))?;
    }
    context.print(&totals(&report, context.screen))?;
    Ok(Status::Ok)
}

/// A row for each op, and what it comes to.
fn totals(report: &LoweringReport, screen: Screen) -> String {
    let low = report.policy.dtype.dtype();
    let mut table = Table::new([Column::name("op"), Column::number(format!("now {low}")), Column::number("as before")]);
    for (opcode, total) in &report.totals {
        table.row([opcode.clone(), total.lowered.to_string(), total.kept.to_string()]);
    }
    let (before, after) = (report.n_activation_bytes_before, report.n_activation_bytes_after);
    format!(
        "{}{} of {} instructions with f32 give {low} now; {} casts inserted ({})\nresults computed: {} before, {} \
         after ({})\n",
        table.render(screen),
        report.n_lowered(),
        report.totals.values().map(|total| total.lowered + total.kept).sum::<usize>(),
        report.casts.len(),
        n_bytes(report.n_cast_bytes),
        n_bytes(before),
        n_bytes(after),
        report::percent(after, before),
    )
}

/// Bytes in a unit that shows them.
fn n_bytes(n: i64) -> String {
    if n < 1 << 20 { format!("{} bytes", report::grouped(n)) } else { report::mib(n) }
}

/// A row for each instruction.
fn list(report: &LoweringReport, screen: Screen) -> String {
    let mut table = Table::new([
        Column::name("instruction"),
        Column::name("op").extra(1),
        Column::text("class").extra(2),
        Column::text("was"),
        Column::text("is"),
        Column::text("because"),
        Column::name("from").extra(3),
    ]);
    for decision in &report.decisions {
        table.row([
            &format!("{}/%{}", decision.computation, decision.instruction),
            &decision.opcode,
            decision.class,
            &decision.old,
            &decision.new,
            &decision.rule,
            &decision.from.as_ref().map(|from| format!("%{from}")).unwrap_or_default(),
        ]);
    }
    table.render(screen)
}
