//! `bf16scope explain-cast`: why an instruction is, or is not, computed in bf16.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::policy::PolicyArgs;
use super::sizes::SizeArgs;
use super::{Context, Status, module_file};
use bf16scope_hlo::{Instruction, Module};
use bf16scope_model::document::nearest;
use bf16scope_passes::amp::{self, Cast, Decision, LoweringReport};
use bf16scope_passes::name_pattern::bare;

const EXAMPLES: &str = "\
Examples:
  bf16scope explain-cast step.hlo.pb %add.65
          the rule that decided for %add.65, the instruction it came from, and the casts around it
  bf16scope explain-cast step.txt dot.3 --policy O2 --json
          the same for another policy, as JSON";

/// The number of suggestions for an unknown name.
const MAX_MEANT: usize = 3;

/// The number of steps to show of a decision's derivation.
const MAX_STEPS: usize = 16;

/// Arguments of `explain-cast`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A module, as HLO text, serialized HloModuleProto or StableHLO, not lowered yet
    #[arg(value_name = "MODULE")]
    module: PathBuf,
    #[command(flatten)]
    sizes: SizeArgs,
    /// An instruction of the module, with or without % and its computation: dot.3, %dot.3 or main.5/%dot.3
    #[arg(value_name = "INSTRUCTION")]
    instruction: String,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The decisions about an instruction.
#[derive(Debug, Serialize)]
struct Explanation<'r> {
    /// One for each copy of its computation.
    decisions: Vec<&'r Decision>,
    /// The instructions that the decisions came from, nearest first.
    from: Vec<&'r Decision>,
    /// Casts of its value or of its operands.
    casts: Vec<&'r Cast>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let policy = args.policy.policy()?;
    let module = module_file::load(&args.module, &args.sizes.converter(context)?)?;
    let name = bare(&args.instruction);
    check_name(&module, name, args)?;
    let lowered = amp::run(&module, &policy);
    let (_, report) = lowered.with_context(|| format!("{} cannot be lowered", args.module.display()))?;
    policy.idle(&module).iter().for_each(|note| tracing::warn!("{note}"));
    let decisions = report.explain(name);
    let explanation = Explanation { from: way(&report, &decisions), casts: report.casts_about(name), decisions };
    if args.json {
        context.print_json(&explanation)?;
    } else {
        context.print(&show(&explanation, name))?;
    }
    Ok(Status::Ok)
}

/// Checks that the module has an instruction with this name.
fn check_name(module: &Module, name: &str, args: &Args) -> anyhow::Result<()> {
    let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
    if instructions().any(|instr| instr.name == name) {
        return Ok(());
    }
    let meant = meant(module, name);
    let help = match meant.split_last() {
        Some((last, [])) => format!("; did you mean `{last}`?"),
        Some((last, others)) => format!("; did you mean `{}` or `{last}`?", others.join("`, `")),
        None => String::new(),
    };
    bail!("{}: no instruction is named `{name}`{help}", args.module.display())
}

/// Suggestions for an unknown name, the likeliest first: similar names, names with the same number (frameworks keep the
/// number when they rename an op), and instructions of the opcode that it begins with.
fn meant(module: &Module, name: &str) -> Vec<String> {
    let instructions: Vec<&Instruction> = module.computations.iter().flat_map(|comp| &comp.instructions).collect();
    let names: Vec<String> = instructions.iter().map(|instr| instr.name.clone()).collect();
    let (base, number) = match name.rsplit_once('.') {
        Some((base, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => (base, Some(number)),
        _ => (name, name.bytes().all(|byte| byte.is_ascii_digit()).then_some(name)),
    };
    let has_number = |name: &str| number.is_some_and(|number| name.rsplit_once('.').is_some_and(|(_, n)| n == number));
    let mut meant: Vec<String> = nearest(name, &names).map(str::to_string).into_iter().collect();
    meant.extend(names.iter().filter(|name| has_number(name)).cloned());
    meant.extend(instructions.iter().filter(|instr| instr.op.opcode() == base).map(|instr| instr.name.clone()));
    let mut seen = BTreeSet::new();
    meant.retain(|name| seen.insert(name.clone()));
    meant.truncate(MAX_MEANT);
    meant
}

/// The decisions from which others were derived, nearest first, without duplicates.
fn way<'r>(report: &'r LoweringReport, decisions: &[&'r Decision]) -> Vec<&'r Decision> {
    let mut seen: BTreeSet<&str> = decisions.iter().map(|decision| &decision.instruction[..]).collect();
    let mut way = Vec::new();
    let mut next: Vec<&str> = decisions.iter().filter_map(|decision| decision.from.as_deref()).collect();
    while let Some(name) = next.pop() {
        if way.len() == MAX_STEPS || !seen.insert(name) {
            continue;
        }
        if let Some(&decision) = report.explain(name).first() {
            way.push(decision);
            next.extend(decision.from.as_deref());
        }
    }
    way
}

fn show(explanation: &Explanation<'_>, name: &str) -> String {
    if explanation.decisions.is_empty() {
        return format!(
            "%{name} has nothing to do with f32, or only names another's value: lowering leaves it to others\n"
        );
    }
    let mut text = String::new();
    for decision in &explanation.decisions {
        text += &line(decision);
    }
    for (step, decision) in explanation.from.iter().enumerate() {
        text += &format!("{:indent$}from {}", "", line(decision), indent = 2 * (step + 1));
    }
    for cast in &explanation.casts {
        text += &format!(
            "  cast %{} ({}, {} elements) gives %{} in {}, first wanted by %{}\n",
            cast.instruction, cast.opcode, cast.n_elements, cast.of, cast.to, cast.wanted_by
        );
    }
    text
}

fn line(decision: &Decision) -> String {
    let Decision { computation, instruction, opcode, class, old, new, is_lowered, rule, from, .. } = decision;
    let became = match is_lowered {
        true if old == new => format!("is lowered and gives {new}"),
        true => format!("was {old}, is {new}"),
        false => format!("stays {old}"),
    };
    let from = from.as_ref().map(|from| format!(" (%{from})")).unwrap_or_default();
    format!("{computation}/%{instruction}, {opcode} of class {class}, {became}: {rule}{from}\n")
}
