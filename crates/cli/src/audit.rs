//! `bf16scope audit`: is a lowered module still right, and if not, where does it go wrong?

mod at;
mod cycles;
mod first;
mod made;
mod names;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::arrays::{Inputs, seed};
use super::as_tpu::{self, AsArg};
use super::child::LimitArgs;
use super::policy::PolicyArgs;
use super::run::devices::placement;
use super::sizes::SizeArgs;
use super::whole::whole;
use super::{Context, Status, again, emit, failure, module_file, progress};
use crate::report::audit::{self, AtStep, AuditOutcome, F32As, InputsFrom};
use crate::report::seconds;
use bf16scope_audit::{
    Audit, AuditError, Auditor, Config, FirstBeyond, Progress, ResultChoice, Search, SearchEnd, SearchLimits, Searched,
    ShardedAuditor, after_steps,
};
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::module_shards::without_shardings;
use bf16scope_hlo::{Literal, Module};
use bf16scope_model::document;
use bf16scope_passes::amp::Policy;
use bf16scope_pjrt::{Client, Platform};
use bf16scope_tpu::Target;
use cycles::cycles_of;
pub(crate) use made::{Asked, Maker};

/// How often an audit without a terminal reports progress.
const SAYS_EVERY: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  bf16scope audit step.hlo.pb --inputs in.npz
          run it in f32 and lowered; show which instructions lose most accuracy
  bf16scope audit step.hlo.pb --random 1 --policy bf16_scope --html audit.html
          with random inputs and another policy, and a page for the browser
  bf16scope audit step.hlo.pb --inputs in.npz --budget 1e-2 --save-policy step.yaml
          if a result's error exceeds a hundredth of its scale, find instructions to keep in f32
  bf16scope audit sharded.mlir --random 1 --device cpu:8
          a module for 8 devices, on 8 CPU devices: its results are compared shard by shard

  bf16scope audit step.mlir --inputs in.npz --steps 20 --results 'loss,*kernel*' --budget 2e-2
          the twentieth step, judged by the loss and the kernels: JAX's names of results, scoped names, outN or instructions
  bf16scope audit examples/digits.yaml --at 300
          step 300 of its run, with the state and the batch of that step: both are recomputed, and the loss is checked bitwise
  bf16scope audit runs/digits-bf16 --first-beyond 10
          the first step of a recorded run whose error is over ten times that of its first step

The scaled error of an array is its largest |x - r| over the largest |r| of the f32 module; a budget bounds the largest scaled
error of a result. An error is born at an instruction if the lowered instruction makes it on the f32 module's operands. It has
grown by its excess over that error plus the errors of the instruction's operands. The module also runs in f64: an element whose
f32 error exceeds 2^-9 of the result's scale is noise, which is counted and not judged.

Integer and predicate results have no such error: those that differ are listed, and if no floating-point result is judged
(--results classes) they are a failure.

Without --budget errors are measured and not judged. If most of f32's own results are NaN or noise, there is no reference to
compare with; if some are NaN, nothing is recommended.

Exit status: 0 within the budget, or not judged; 1 over the budget, a NaN or infinity that f32 does not have, only integers or
predicates are judged and some differ, or f32's own results are no reference; 2 could not run.";

/// Arguments of `audit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The f32 module: HLO text, a serialized HloModuleProto, or StableHLO; with --at, an experiment or the folder of its run
    #[arg(value_name = "MODULE|EXPERIMENT|RUN")]
    module: PathBuf,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Arrays for the parameters
    #[arg(short, long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// Draw at random what --inputs does not supply
    #[arg(long, value_name = "SEED", value_parser = seed, allow_negative_numbers = true)]
    random: Option<u64>,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    as_tpu: AsArg,
    /// Flush subnormal numbers to zero where f32 becomes bf16, as a TPU does (--as does so too)
    #[arg(long)]
    flush_subnormals: bool,
    /// Largest scaled error that a result may have; if one exceeds it, search for what to keep in f32
    #[arg(long, value_name = "ERROR", value_parser = budget, allow_negative_numbers = true)]
    budget: Option<f64>,
    /// Lists of instructions that the search may try, each with a compile and a run
    #[arg(long, value_name = "N", default_value_t = SearchLimits::default().max_runs, requires = "budget", value_parser = whole(1..=usize::MAX), allow_negative_numbers = true)]
    max_runs: usize,
    /// Instructions that the search may keep in f32: if an error is born at more, it comes from bf16 as such, and none are kept
    #[arg(long, value_name = "N", default_value_t = SearchLimits::default().max_kept, requires = "budget", value_parser = whole(0..=usize::MAX), allow_negative_numbers = true)]
    max_kept: usize,
    /// Estimate with the TPU compiler the cycles that the kept instructions cost, and warn if less than half of lowering's
    /// saving remains
    #[arg(long, value_name = "TARGET", requires = "budget")]
    target: Option<Target>,
    /// Judge by these results alone: patterns of names, of outN or of instructions, with commas between
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    results: Vec<String>,
    /// Do not judge these results
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    ignore: Vec<String>,
    /// Audit this step: the steps before it run in f32, and results feed the parameters that they alias
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    steps: u32,
    /// Where to write the policy that a search found [default: MODULE.policy.yaml in the current directory]
    #[arg(long, value_name = "FILE", requires = "budget")]
    save_policy: Option<PathBuf>,
    /// Write a page for the browser: a sortable table, and plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show this many instructions and results
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    top: u32,
    /// Show every instruction and result
    #[arg(long, conflicts_with = "top")]
    all: bool,
    /// Memory for values that are compared at once, in MiB, besides the memory of the two programs
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = whole(0..=u32::MAX), allow_negative_numbers = true)]
    slice_mib: u32,
    /// Where it runs: cpu, cpu:N (a module for N devices), tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the
    /// feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: at::AtArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

fn budget(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(budget) if budget > 0.0 && budget.is_finite() => Ok(budget),
        Ok(_) | Err(_) => Err("expected a number over 0, such as 1e-2".to_string()),
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    args.as_tpu.check(&args.device)?;
    let policy = args.policy.policy()?;
    let outputs = [("--save-policy", args.save_policy.as_deref()), ("--html", args.html.as_deref())];
    emit::check_names(&outputs, &[Some(&args.module), args.inputs.as_deref(), args.policy.file()])?;
    if args.budget.is_some() {
        emit::check_kind(&policy_path(args), b"# `bf16scope audit ", "policy that a search found")
            .context("--save-policy")?;
    }
    if args.at.is_asked(&args.module)? {
        return at::run(args, &policy, context);
    }
    let module = module_file::load(&args.module, &args.sizes.converter(context)?)?;
    let failed = || format!("{} cannot be audited", args.module.display());
    let placement = placement(&module, &args.device).with_context(failed)?;
    let is_alone = placement.devices.is_one();
    if args.steps > 1 && !is_alone {
        bail!(
            "--steps {} feeds results back to the parameters that they alias, and the module is for {}, which hold shards \
             of them\nhelp: audit one step, with --inputs that hold the state of a later one",
            args.steps,
            placement.devices
        );
    }
    let mut inputs = Inputs::new(&module, args.inputs.as_deref(), args.random)?;
    // On the host and on each device, in f32 and in f64, which takes twice as much.
    inputs.check_memory(3 * (1 + placement.devices.n() as u64))?;
    let inputs: Vec<Literal> =
        (0..inputs.parameters.len()).map(|position| inputs.literal(position)).collect::<Result<_, _>>()?;
    let client = args.limits.client_of_all(&args.device, context)?;
    let inputs = after_steps(&client, &module, &inputs, args.steps - 1).with_context(failed);
    let inputs = inputs.map_err(|error| failure::about(error, &module, &args.module))?;
    let subject =
        Subject { module: &module, inputs, names: names::of_file(&args.module), at: None, first_beyond: None };
    judge(args, &policy, subject, (!is_alone).then_some(&placement), &client, context)
}

/// The module to audit, its parameters, the names of its results, and its step of a run.
struct Subject<'a> {
    module: &'a Module,
    inputs: Vec<Literal>,
    names: Vec<String>,
    at: Option<AtStep>,
    first_beyond: Option<FirstBeyond>,
}

/// The configuration of the audit.
fn config(args: &Args) -> Config {
    let arithmetic = args.as_tpu.arithmetic();
    let flush_subnormals = args.flush_subnormals || arithmetic.is_some();
    Config { slice_bytes: i64::from(args.slice_mib) << 20, flush_subnormals, arithmetic }
}

/// Audits, on one device or over those of a placement, and reports the results.
fn judge(
    args: &Args,
    policy: &Policy,
    subject: Subject<'_>,
    placement: Option<&Placement>,
    client: &Client,
    context: &Context,
) -> anyhow::Result<Status> {
    let failed = || format!("{} cannot be audited", args.module.display());
    let (config, module) = (config(args), subject.module);
    if let Some(arithmetic) = config.arithmetic {
        as_tpu::say(&bf16scope_passes::as_tpu::run(module, &arithmetic).with_context(failed)?.1);
    }
    policy.idle(module).iter().for_each(|note| tracing::warn!("{note}"));
    let choice = choice_of(args, subject.names);
    let measured = match placement {
        None => auditor(args, (module, &choice), &subject.inputs, (client, config), context)
            .and_then(|auditor| measure(args, policy, &auditor, context)),
        Some(placement) => {
            over_devices(args, policy, (module, placement, &choice), &subject.inputs, (client, config), context)
        }
    };
    let measured = measured.with_context(failed).map_err(|error| failure::about(error, module, &args.module));
    let Measured { audit, mut search, f32_as } = measured?;
    let asked = args.target.as_ref().zip(search.as_mut().filter(|search| search.is_reached));
    let cycles = match asked {
        Some((target, search)) => {
            let cycles = cycles_of(args, target, (module, policy, &search.policy), context)?;
            search.end = cycles.end(search.is_reached, search.end);
            Some(cycles)
        }
        None => None,
    };
    let error = audit.error();
    let (n_not_finite, n_elements) = audit.n_not_finite();
    let has_numbers = n_not_finite < n_elements || n_elements == 0;
    let (is_right, f32_fails) = (if has_numbers { audit.is_right(args.budget) } else { None }, audit.f32_fails());
    let is_failing = is_right == Some(false) || !has_numbers || f32_fails.is_some();
    let inputs = match (subject.at.is_some(), args.random) {
        (true, _) => InputsFrom::Run,
        (false, None) => InputsFrom::File,
        (false, Some(_)) => InputsFrom::Drawn,
    };
    let saved_policy = search.as_ref().map(|search| save(args, search, subject.at.as_ref())).transpose()?.flatten();
    let is_found = subject.first_beyond.is_some();
    let outcome = AuditOutcome {
        file: args.module.clone(),
        at: subject.at,
        first_beyond: subject.first_beyond,
        flush_subnormals: config.flush_subnormals,
        policy: policy.clone(),
        error,
        budget: args.budget,
        is_right,
        f32_fails,
        inputs,
        saved_policy,
        search,
        cycles,
        f32_as,
        audit,
    };
    if let Some(path) = &args.html {
        emit::replace(path, audit::page(&outcome).render().as_bytes())?;
    }
    match args.json {
        true => context.print_json(&outcome)?,
        false => context.print(&audit::render(
            &outcome,
            if args.all { usize::MAX } else { args.top as usize },
            context.screen,
        ))?,
    }
    Ok(if is_failing || is_found { Status::Failing } else { Status::Ok })
}

/// The measurements.
struct Measured {
    audit: Audit,
    search: Option<Search>,
    f32_as: Option<F32As>,
}

/// Runs the module in f32 and in f64.
fn auditor<'m>(
    args: &Args,
    (module, choice): (&'m Module, &ResultChoice),
    inputs: &'m [Literal],
    (client, config): (&Client, Config),
    context: &Context,
) -> Result<Auditor<'m>, AuditError> {
    let spinner = progress::spinner(format!("running {} in f32 and f64", args.module.display()), context.quiet);
    let auditor = Auditor::of_results(client, module, inputs, config, choice);
    spinner.finish_and_clear();
    auditor
}

/// Audits, and searches if a result is over the budget.
fn measure(args: &Args, policy: &Policy, auditor: &Auditor<'_>, context: &Context) -> Result<Measured, AuditError> {
    let spinner = progress::spinner(format!("running {} lowered", args.module.display()), context.quiet);
    let bar = progress::part(context.quiet);
    let mut last_line = Instant::now();
    let mut says = |progress: Progress| {
        if bar.length().is_none() {
            spinner.finish_and_clear();
            bar.set_length(progress.work);
        }
        bar.set_message(format!("comparing {}/{}", progress.n_rows_done, progress.n_rows));
        bar.set_position(progress.work_done);
        // Without a visible bar, print a line now and then.
        if bar.is_hidden() && !context.quiet && last_line.elapsed() >= SAYS_EVERY {
            last_line = Instant::now();
            let percent = 100 * u128::from(progress.work_done) / u128::from(progress.work.max(1));
            progress::say(&format!(
                "compared {} of {} instructions ({percent} %)",
                progress.n_rows_done, progress.n_rows
            ));
        }
    };
    let f32_as = config(args).arithmetic.map(|arithmetic| {
        let audit = auditor.audit_f32_as(arithmetic, &mut says)?;
        Ok::<_, AuditError>(F32As { arithmetic, error: audit.error(), audit })
    });
    let audit = f32_as.transpose().and_then(|f32_as| Ok((f32_as, auditor.audit_with(policy, &mut says)?)));
    bar.finish_and_clear();
    spinner.finish_and_clear();
    let (f32_as, audit) = audit?;
    // If f32's own results are not a reliable reference, no list of instructions can help.
    let Some(budget) =
        args.budget.filter(|&budget| audit.error() > budget && audit.n_nan() == 0 && audit.f32_fails().is_none())
    else {
        return Ok(Measured { audit, search: None, f32_as });
    };
    let limits = SearchLimits { max_runs: args.max_runs, max_kept: args.max_kept };
    let search = search(auditor, policy, &audit, (budget, limits), context);
    Ok(Measured { audit, search: Some(search?), f32_as })
}

/// The results to judge.
fn choice_of(args: &Args, names: Vec<String>) -> ResultChoice {
    ResultChoice { names, only: args.results.clone(), ignore: args.ignore.clone() }
}

/// Audits a module for several devices: its results shard by shard. Its instructions are compared on one device if only
/// shardings split the module; a module that uses device ids is compared by its results alone.
fn over_devices(
    args: &Args,
    policy: &Policy,
    (module, placement, choice): (&Module, &Placement, &ResultChoice),
    inputs: &[Literal],
    (client, config): (&Client, Config),
    context: &Context,
) -> Result<Measured, AuditError> {
    let alone = without_shardings(module);
    let alone = alone.as_ref().map(|alone| auditor(args, (alone, choice), inputs, (client, config), context));
    let alone = alone.transpose()?;
    let spinner =
        progress::spinner(format!("running {} over {}", args.module.display(), placement.devices), context.quiet);
    let auditor = match &alone {
        Some(alone) => alone.over_devices(module, placement, inputs)?,
        None => ShardedAuditor::new(client, module, placement, inputs, config, choice)?,
    };
    let results = auditor.results(policy)?;
    let f32_results = config.arithmetic.map(|arithmetic| auditor.f32_results_as(arithmetic)).transpose()?;
    spinner.finish_and_clear();
    let of_instructions = match &alone {
        Some(alone) => measure(args, policy, alone, context)?,
        None => {
            let nothing = Audit::of_results(module, "it knows its devices: only results are compared");
            let f32_as = config.arithmetic.map(|arithmetic| F32As { arithmetic, error: 0.0, audit: nothing.clone() });
            Measured { audit: nothing, search: None, f32_as }
        }
    };
    let Measured { audit, search, f32_as } = of_instructions;
    let no_f64 = auditor.why_no_f64().map(str::to_string);
    let f32_as = f32_as.zip(f32_results).map(|(f32_as, results)| {
        let audit = f32_as.audit.with_results(results, no_f64.clone());
        F32As { error: audit.error(), audit, ..f32_as }
    });
    Ok(Measured { audit: audit.with_results(results, no_f64), search, f32_as })
}

/// Searches, and reports progress.
fn search(
    auditor: &Auditor<'_>,
    policy: &Policy,
    audit: &Audit,
    (budget, limits): (f64, SearchLimits),
    context: &Context,
) -> Result<Search, AuditError> {
    let head = format!(
        "searching for what to keep in f32, {} instructions at most, in at most {} runs",
        limits.max_kept, limits.max_runs
    );
    if !context.quiet {
        progress::say(&head);
    }
    let spinner = progress::spinner(head, context.quiet);
    let (began, mut said) = (Instant::now(), Instant::now());
    let search = auditor.search_with(policy, audit, budget, limits, &mut |searched: Searched| {
        let Searched { n_runs, max_runs, n_kept, error, .. } = searched;
        let of_a_run = began.elapsed() / u32::try_from(n_runs).unwrap_or(u32::MAX);
        let left = of_a_run * u32::try_from(max_runs - n_runs).unwrap_or(u32::MAX);
        let line = format!(
            "searching: run {n_runs} of {max_runs} at most ({} more at most): {n_kept} kept, {} off",
            seconds(left.as_secs_f64()),
            audit::number(error)
        );
        if spinner.is_hidden() && !context.quiet && (n_runs == 1 || said.elapsed() >= SAYS_EVERY) {
            said = Instant::now();
            progress::say(&line);
        }
        spinner.set_message(line);
    });
    spinner.finish_and_clear();
    search
}

/// Writes the policy of a search that succeeded.
fn save(args: &Args, search: &Search, at: Option<&AtStep>) -> anyhow::Result<Option<PathBuf>> {
    if !search.is_reached || matches!(search.end, SearchEnd::NothingLeft | SearchEnd::TooMany) {
        return Ok(None);
    }
    let path = policy_path(args);
    let mut text = format!(
        "# `bf16scope audit {}{} --budget {:e}` found what to keep: results are within {:.3e} of f32.\n",
        again::word(&args.module),
        at.map_or(String::new(), |at| format!(" --at {}", at.step)),
        search.budget,
        search.error
    );
    text += &document::to_string(&search.policy).context("cannot write the policy as YAML")?;
    emit::replace(&path, text.as_bytes())?;
    Ok(Some(path))
}

/// The path for the policy of a search.
fn policy_path(args: &Args) -> PathBuf {
    args.save_policy.clone().unwrap_or_else(|| default_policy(&args.module))
}

/// `dir/mlp.hlo.pb` → `mlp.policy.yaml`.
fn default_policy(module: &Path) -> PathBuf {
    PathBuf::from(format!("{}.policy.yaml", default_stem(module)))
}

/// `dir/mlp.hlo.pb` → `mlp`.
fn default_stem(module: &Path) -> String {
    let name = module.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.split('.').find(|part| !part.is_empty()).unwrap_or("module").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_after_modules() {
        let name = |path: &str| default_policy(Path::new(path)).display().to_string();
        assert_eq!(name("a/mlp_f32.hlo.pb"), "mlp_f32.policy.yaml");
        assert_eq!(name(".hidden"), "hidden.policy.yaml");
    }

    #[test]
    fn budgets_are_positive() {
        assert_eq!(budget("1e-2"), Ok(0.01));
        for text in ["0", "-1", "nan", "inf", "much"] {
            assert!(budget(text).is_err(), "{text}");
        }
    }
}
