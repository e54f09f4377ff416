//! `bf16scope audit`: is a lowered module still right, and if not, where does it go wrong?

mod page;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::arrays::{Inputs, seed};
use super::as_tpu::{self, AsArg};
use super::child::LimitArgs;
use super::policy::PolicyArgs;
use super::{Context, Status, again, emit, module_file, progress};
use crate::audit::{Audit, AuditError, Auditor, Config, Progress, ResultRow, Row, Search};
use crate::document;
use crate::hlo::alone::runs_alone;
use crate::hlo::{Literal, Module};
use crate::numerics::compare::Errors;
use crate::passes::amp::Policy;
use crate::passes::as_tpu::TpuArithmetic;
use crate::pjrt::{Client, Platform};
use crate::report::{Column, Screen, Table};

/// How often an audit without a terminal says how far it is.
const SAYS_EVERY: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  bf16scope audit step.hlo.pb --inputs in.npz
          run it in f32 and lowered; show where most error is born
  bf16scope audit step.hlo.pb --random 1 --policy bf16_scope --html audit.html
          on drawn inputs, under another policy, with a page for the browser
  bf16scope audit step.hlo.pb --inputs in.npz --budget 1e-2 --save-policy step.yaml
          and if a result is off by more than a hundredth of its scale, find what to keep in f32

The scaled error of an array is its greatest |x - r| over the greatest |r| of the f32 module; budgets are on the greatest
of a result. An error is born at an instruction if its lowered form makes it on the f32 module's operands.

Exit status: 0 right; 1 over the budget, or with a NaN or infinity that f32 does not have; 2 could not run.";

/// Arguments of `audit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The f32 module: HLO text, a serialized HloModuleProto, or StableHLO
    #[arg(value_name = "MODULE")]
    module: PathBuf,
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
    /// Where to write the policy that a search found [default: MODULE.policy.yaml in the current directory]
    #[arg(long, value_name = "FILE", requires = "budget")]
    save_policy: Option<PathBuf>,
    /// Write a page for the browser: a sortable table, and plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show this many instructions and results
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// Show every instruction and result
    #[arg(long, conflicts_with = "top")]
    all: bool,
    /// Values held at once for comparison, in MiB, beside what the two programs hold between two instructions
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    slice_mib: u32,
    /// Where it runs: cpu, tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

fn budget(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(budget) if budget > 0.0 && budget.is_finite() => Ok(budget),
        Ok(_) | Err(_) => Err("expected a number over 0, such as 1e-2".to_string()),
    }
}

/// All that is known when the work is done; also what `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    file: PathBuf,
    flush_subnormals: bool,
    policy: Policy,
    /// Greatest scaled error of a result; `null` if one is not finite.
    error: f64,
    budget: Option<f64>,
    /// Whether the results are within the budget and no instruction has a NaN or infinity of its own.
    is_right: bool,
    /// The file that the found policy was written to.
    saved_policy: Option<PathBuf>,
    search: Option<Search>,
    /// The f32 module in a TPU's arithmetic, where one was asked for.
    f32_as: Option<F32As>,
    #[serde(flatten)]
    audit: Audit,
}

/// What f32 is on a TPU.
#[derive(Debug, Serialize)]
struct F32As {
    arithmetic: TpuArithmetic,
    /// Greatest scaled error of a result.
    error: f64,
    audit: Audit,
}

impl F32As {
    /// The error of an instruction.
    fn of(&self, instruction: &str) -> Option<&Row> {
        self.audit.rows.iter().find(|row| row.instruction == instruction)
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    args.device.one_device()?;
    args.as_tpu.check(&args.device)?;
    let policy = args.policy.policy()?;
    let outputs = [("--save-policy", args.save_policy.as_deref()), ("--html", args.html.as_deref())];
    emit::check_names(&outputs, &[Some(&args.module), args.inputs.as_deref()])?;
    if module_file::is_model(&args.module) {
        let (model, stem) = (again::word(&args.module), default_stem(&args.module));
        bail!(
            "{} is a model in YAML, and `audit` takes a module\nhelp: write its program in f32 first, `bf16scope emit {model} \
             --precision f32 -o {stem}.hlo.pb`, then audit {stem}.hlo.pb",
            args.module.display()
        );
    }
    let module = module_file::load(&args.module)?;
    let failed = || format!("{} cannot be audited", args.module.display());
    runs_alone(&module).with_context(failed)?;
    let mut inputs = Inputs::new(&module, args.inputs.as_deref(), args.random)?;
    inputs.check_memory(2)?;
    let inputs: Vec<Literal> =
        (0..inputs.parameters.len()).map(|position| inputs.literal(position)).collect::<Result<_, _>>()?;
    let client = args.limits.client(&args.device, context)?;
    let arithmetic = args.as_tpu.arithmetic();
    let flush_subnormals = args.flush_subnormals || arithmetic.is_some();
    let config = Config { slice_bytes: i64::from(args.slice_mib) << 20, flush_subnormals, arithmetic };
    if let Some(arithmetic) = arithmetic {
        as_tpu::say(&crate::passes::as_tpu::run(&module, arithmetic).with_context(failed)?.1);
    }
    policy.idle_patterns(&module).iter().for_each(|note| tracing::warn!("{note}"));
    let Measured { audit, search, f32_as } =
        measure(args, &policy, &module, &inputs, (&client, config), context).with_context(failed)?;
    let error = audit.error();
    let (n_not_finite, n_elements) = audit.n_not_finite();
    let has_numbers = n_not_finite < n_elements || n_elements == 0;
    let is_right = has_numbers && audit.first_not_finite.is_none() && args.budget.is_none_or(|budget| error <= budget);
    let saved_policy = search.as_ref().map(|search| save(args, search)).transpose()?.flatten();
    let outcome = Outcome {
        file: args.module.clone(),
        flush_subnormals,
        policy,
        error,
        budget: args.budget,
        is_right,
        saved_policy,
        search,
        f32_as,
        audit,
    };
    if let Some(path) = &args.html {
        emit::replace(path, page::page(&outcome).render().as_bytes())?;
    }
    match args.json {
        true => context.print_json(&outcome)?,
        false => {
            context.print(&render(&outcome, if args.all { usize::MAX } else { args.top as usize }, context.screen))?
        }
    }
    Ok(if is_right { Status::Ok } else { Status::Failing })
}

/// What was measured.
struct Measured {
    audit: Audit,
    search: Option<Search>,
    f32_as: Option<F32As>,
}

/// Audits, and searches if a result is over the budget.
fn measure(
    args: &Args,
    policy: &Policy,
    module: &Module,
    inputs: &[Literal],
    (client, config): (&Client, Config),
    context: &Context,
) -> Result<Measured, AuditError> {
    let spinner = progress::spinner(format!("running {} in f32 and lowered", args.module.display()), context.quiet);
    let auditor = Auditor::new(client, module, inputs, config)?;
    let bar = progress::part(context.quiet);
    let mut said = Instant::now();
    let mut says = |progress: Progress| {
        if bar.length().is_none() {
            spinner.finish_and_clear();
            bar.set_length(progress.work);
        }
        bar.set_message(format!("comparing {}/{}", progress.n_rows_done, progress.n_rows));
        bar.set_position(progress.work_done);
        // Where nobody sees a bar, a line now and then.
        if bar.is_hidden() && !context.quiet && said.elapsed() >= SAYS_EVERY {
            said = Instant::now();
            let percent = 100 * u128::from(progress.work_done) / u128::from(progress.work.max(1));
            progress::say(&format!(
                "compared {} of {} instructions ({percent} %)",
                progress.n_rows_done, progress.n_rows
            ));
        }
    };
    let f32_as = config.arithmetic.map(|arithmetic| {
        let audit = auditor.audit_f32_as(arithmetic, &mut says)?;
        Ok::<_, AuditError>(F32As { arithmetic, error: audit.error(), audit })
    });
    let audit = f32_as.transpose().and_then(|f32_as| Ok((f32_as, auditor.audit_with(policy, &mut says)?)));
    bar.finish_and_clear();
    spinner.finish_and_clear();
    let (f32_as, audit) = audit?;
    let Some(budget) = args.budget.filter(|&budget| audit.error() > budget) else {
        return Ok(Measured { audit, search: None, f32_as });
    };
    let spinner = progress::spinner("searching for what to keep in f32".to_string(), context.quiet);
    let search = auditor.search_with(policy, &audit, budget, &mut |n| {
        spinner.set_message(format!("searching for what to keep in f32: {n} lists tried"));
    });
    spinner.finish_and_clear();
    Ok(Measured { audit, search: Some(search?), f32_as })
}

/// Writes the policy of a search that succeeded.
fn save(args: &Args, search: &Search) -> anyhow::Result<Option<PathBuf>> {
    if !search.is_reached {
        return Ok(None);
    }
    let path = args.save_policy.clone().unwrap_or_else(|| default_policy(&args.module));
    let mut text = format!(
        "# `bf16scope audit {} --budget {:e}` found what to keep: results are within {:.3e} of f32.\n",
        again::word(&args.module),
        search.budget,
        search.error
    );
    text += &document::to_string(&search.policy).context("cannot write the policy as YAML")?;
    emit::replace(&path, text.as_bytes())?;
    Ok(Some(path))
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

/// An error for eyes.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_string(),
        v if v.is_infinite() => "inf".to_string(),
        v => format!("{v:.2e}"),
    }
}

/// An error in ulp for eyes.
fn ulps(value: f64) -> String {
    if value < 1e4 { format!("{value:.1}") } else { format!("{value:.1e}") }
}

/// The dtype of a shape as it is printed; the whole for a tuple.
fn dtype(shape: &str) -> &str {
    if shape.starts_with('(') { shape } else { shape.split('[').next().unwrap_or(shape) }
}

/// `bf16`, or `f32 → bf16` where lowering changed it.
fn dtypes(row: &Row) -> String {
    let (before, now) = (dtype(&row.reference), dtype(&row.lowered));
    match (before == now, before.starts_with('(')) {
        (true, false) => now.to_string(),
        (true, true) => "tuple".to_string(),
        (false, false) => format!("{before} → {now}"),
        (false, true) => "tuple, changed".to_string(),
    }
}

/// What else happened to values: nothing, mostly.
fn remarks(errors: &Errors) -> String {
    let share = |share: f64, what: &str| {
        (share > 0.0).then(|| {
            format!("{} {what}", if share < 1e-3 { "< 0.1 %".to_string() } else { format!("{:.1} %", 100.0 * share) })
        })
    };
    let introduced = errors.n_introduced as f64 / errors.n_elements.max(1) as f64;
    let all = [
        share(introduced, "not finite"),
        share(errors.overflowed, "overflowed"),
        share(errors.subnormal, "subnormal"),
        share(errors.flushed, "became 0"),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The tables and what they come to.
fn render(outcome: &Outcome, n_rows: usize, screen: Screen) -> String {
    let audit = &outcome.audit;
    let mut text = String::new();
    let mut columns = vec![
        Column::name("instruction"),
        Column::name("op").extra(1),
        Column::text("dtype"),
        Column::number("born"),
        Column::number("born ulp").extra(2),
        Column::number("error"),
    ];
    // Beside the error of the lowered form.
    columns.extend(outcome.f32_as.iter().map(|f32_as| Column::number(f32_title(f32_as))));
    columns.extend([Column::number("ulp").extra(4), Column::number("cosine").extra(3), Column::text("values")]);
    let mut table = Table::new(columns);
    let rows = audit.by_born();
    for row in rows.iter().take(n_rows) {
        let mut cells = vec![
            row.instruction.clone(),
            row.opcode.clone(),
            dtypes(row),
            number(row.born.scaled),
            ulps(row.born.max_ulp),
            number(row.errors.scaled),
        ];
        let f32_error =
            |f32_as: &F32As| f32_as.of(&row.instruction).map_or("-".into(), |row| number(row.errors.scaled));
        cells.extend(outcome.f32_as.iter().map(f32_error));
        cells.extend([ulps(row.errors.max_ulp), format!("{:.6}", row.errors.cosine), remarks(&row.errors)]);
        table.row(cells);
    }
    text += &table.render(screen);
    if rows.len() > n_rows {
        text += &format!("{} more instructions with less error of their own (--all shows them)\n", rows.len() - n_rows);
    }
    text += &results(&audit.results, outcome.f32_as.as_ref(), n_rows, screen);
    text += &summary(outcome);
    text
}

/// The results; of many, those with the greatest error.
fn results(rows: &[ResultRow], f32_as: Option<&F32As>, n_rows: usize, screen: Screen) -> String {
    let mut shown: Vec<&ResultRow> = rows.iter().collect();
    if rows.len() > n_rows {
        let error = |row: &ResultRow| row.errors.map_or(row.n_differing as f64, |errors| errors.scaled);
        shown.sort_by(|a, b| error(b).total_cmp(&error(a)));
        shown.truncate(n_rows);
    }
    let mut columns =
        vec![Column::name("result"), Column::name("made by"), Column::name("shape"), Column::number("error")];
    columns.extend(f32_as.map(|f32_as| Column::number(f32_title(f32_as))));
    columns.extend([
        Column::number("max abs").extra(1),
        Column::number("mean rel").extra(2),
        Column::number("cosine").extra(3),
    ]);
    let mut table = Table::new(columns);
    for row in shown {
        let mut cells = vec![format!("out{}", row.index), row.instruction.clone(), row.shape.clone()];
        let f32_error = f32_as.map(|f32_as| {
            let errors = f32_as.audit.results.iter().find(|other| other.index == row.index).and_then(|row| row.errors);
            errors.map_or("-".to_string(), |errors| number(errors.scaled))
        });
        match &row.errors {
            // Nothing was compared, so there is no figure.
            Some(errors) if errors.n_elements > 0 && errors.n_not_finite == errors.n_elements => {
                cells.push("not finite in f32".to_string());
                cells.extend(f32_error);
                cells.extend(["-", "-", "-"].map(str::to_string));
            }
            Some(errors) => cells.extend(std::iter::once(number(errors.scaled)).chain(f32_error).chain([
                number(errors.max_abs),
                number(errors.mean_rel),
                format!("{:.6}", errors.cosine),
            ])),
            None => cells.push(format!("{} differ", row.n_differing)),
        }
        table.row(cells);
    }
    let mut text = format!("\n{}", table.render(screen));
    if rows.len() > n_rows {
        text += &format!("{} more results with less error (--all shows them)\n", rows.len() - n_rows);
    }
    text
}

/// The verdict, in lines.
fn summary(outcome: &Outcome) -> String {
    let audit = &outcome.audit;
    let (n_not_finite, n_elements) = audit.n_not_finite();
    let mut lines = vec![format!(
        "{}: {} instructions compared{}{}",
        outcome.file.display(),
        audit.rows.len(),
        if audit.n_slices > 1 { format!(" in {} slices", audit.n_slices) } else { String::new() },
        match n_not_finite == n_elements && n_elements > 0 {
            true => String::new(),
            false => format!("; the results are within {} of f32", number(outcome.error)),
        }
    )];
    lines.extend(outcome.f32_as.as_ref().map(|f32_as| beyond(outcome.error, f32_as)));
    match (n_not_finite, n_elements) {
        (0, _) => {}
        (n, n_elements) if n == n_elements => lines.push(
            "FAILS: every element of the results is a NaN or an infinity in f32 itself, so nothing was compared; give \
             inputs that the module computes numbers from"
                .to_string(),
        ),
        (n, n_elements) => lines.push(format!(
            "{n} of the results' {n_elements} elements are a NaN or an infinity in f32 itself: the figures are of the others; \
             random numbers may be none that a step is called with, such as a second moment below 0: --inputs takes real ones"
        )),
    }
    if !audit.skipped.is_empty() {
        let first = &audit.skipped[0];
        lines.push(format!("{} not compared, such as %{}: {}", audit.skipped.len(), first.instruction, first.why));
    }
    if let Some(first) = &audit.first_not_finite {
        lines.push(format!("FAILS: %{first} is the first with a NaN or infinity that f32 does not have"));
    }
    match (outcome.budget, &outcome.search) {
        (None, _) => {}
        (Some(budget), None) if audit.n_not_finite().0 == 0 || outcome.is_right => {
            lines.push(format!("within the budget of {}", number(budget)));
        }
        (Some(_), None) => {}
        (Some(budget), Some(search)) => {
            lines.push(format!("FAILS: over the budget of {}", number(budget)));
            lines.push(found(search, outcome.saved_policy.as_deref()));
        }
    }
    lines.join("\n") + "\n"
}

/// The column of what f32 loses on a TPU.
fn f32_title(f32_as: &F32As) -> String {
    format!("f32 on {}", f32_as.arithmetic)
}

/// What the lowered form costs beyond what f32 costs on a TPU.
fn beyond(error: f64, f32_as: &F32As) -> String {
    let (arithmetic, f32_error) = (f32_as.arithmetic, f32_as.error);
    let compared = match error / f32_error {
        _ if f32_error == 0.0 => "there f32 loses nothing".to_string(),
        ratio if ratio <= 1.0 => "no further off than f32 is there".to_string(),
        ratio => format!("{ratio:.1} times as far off as f32 is there"),
    };
    format!(
        "f32 as {arithmetic} multiplies is within {} of f32 here; the lowered form is {compared}",
        number(f32_error)
    )
}

/// What a search came to.
fn found(search: &Search, saved: Option<&Path>) -> String {
    let n = search.keep.len();
    if !search.is_reached {
        return format!(
            "with all {n} candidates kept the results are still {} off: the policy's parameters, results or lists are \
             the reason",
            number(search.error)
        );
    }
    let what = match n {
        1 => "1 instruction".to_string(),
        n => format!("{n} instructions"),
    };
    let mut text = format!("keeping {what} in f32 brings them to {} ({} runs):", number(search.error), search.n_runs);
    for name in &search.keep {
        text += &format!("\n  {name}");
    }
    if let Some(path) = saved {
        text += &format!("\nthe policy is in {}: use it with --policy", path.display());
    }
    text
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
    fn shares_are_said_where_there_are_any() {
        let errors = Errors { n_elements: 10_000, overflowed: 0.125, flushed: 1e-4, ..Errors::default() };
        assert_eq!(remarks(&errors), "12.5 % overflowed, < 0.1 % became 0");
        assert_eq!(remarks(&Errors::default()), "");
        assert_eq!((number(0.0), number(f64::INFINITY), number(0.00123)), ("0".into(), "inf".into(), "1.23e-3".into()));
    }

    #[test]
    fn budgets_are_positive() {
        assert_eq!(budget("1e-2"), Ok(0.01));
        for text in ["0", "-1", "nan", "inf", "much"] {
            assert!(budget(text).is_err(), "{text}");
        }
    }
}
