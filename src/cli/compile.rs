//! `bf16scope compile`: what Google's TPU compiler reports for a model or any HLO module, without a TPU.

use anyhow::ensure;
use serde::Serialize;

use super::child::LimitArgs;
use super::policy::lower_if_asked;
use super::program::{Choice, Which, read, unit};
use super::{Context, Status, progress, several};
use crate::graph::Precision;
use crate::hlo::Module;
use crate::hlo::devices::{Devices, Placement};
use crate::hlo::proto::encode;
use crate::report::{self, Column, Screen, Table};
use crate::tpu::{Answer, CompileReport, Compiled, Compiler, Target, TpuError, Version};
use crate::tuning::Tuning;

const EXAMPLES: &str = "\
Examples:
  bf16scope compile examples/resnet50.yaml --target tpu-v2 --batch 64 --compare
          f32 beside bf16: memory, flops, bytes, cycles, images/s (about two minutes)
  bf16scope compile examples/digits.yaml --target tpu-v3:4x4 --json
          the bf16 training step for a core of a 32-core slice, as JSON
  bf16scope compile examples/resnet50.yaml --program infer --batch 1
          latency of inference
  bf16scope compile step.hlo.pb --target tpu-v3
          a module from JAX, TensorFlow or PyTorch/XLA; one for several devices is compiled for as many cores, and
          reported with one core's share and its collectives

Every compile is cached under BF16SCOPE_CACHE (else XDG_CACHE_HOME/bf16scope, else ~/.cache/bf16scope) by program, options,
target and compiler, so asking again is instant. `bf16scope cache clear` empties the cache.

Every figure comes from the compiler. Seconds and images/s are its estimates (optimal_seconds); cycles are the sum of its
estimated_cycles. Exit status: 0 it compiles and fits, 1 it does not fit, 2 it could not be compiled.";

/// Arguments of `compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// tpu-v2, tpu-v3, tpu-v4, tpu-v5e, tpu-v5p or tpu-v6e, and a grid of chips if not one board: tpu-v3:4x4
    #[arg(long, default_value = "tpu-v2")]
    target: Target,
    /// A model in f32 and bf16, side by side
    #[arg(long, conflicts_with = "precision")]
    compare: bool,
    /// Compile even if the result is cached
    #[arg(long)]
    fresh: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

/// A program to compile, and what to call it.
struct Subject {
    /// The model's precision, or [`AS_GIVEN`].
    precision: String,
    module: Module,
}

/// A module has whatever precision it has.
const AS_GIVEN: &str = "as given";

/// The compiler's answer for one precision.
#[derive(Debug, Serialize)]
struct Entry {
    precision: String,
    /// Whether it was compiled before; `compile_seconds` is what it took then.
    cached: bool,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Fits(CompileReport),
    DoesNotFit { out_of_memory: OutOfMemory },
}

/// Bytes, where the compiler says so.
#[derive(Debug, Serialize)]
struct OutOfMemory {
    needed: Option<u64>,
    available: Option<u64>,
    message: String,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let Programs { subjects, batch, unit, tuning, placement } = programs(args)?;
    let devices = placement.devices;
    let compiler = compiler(args.fresh, args.choice.is_module(), &args.limits, context).over(placement);
    let mut entries = Vec::new();
    for Subject { precision, module } in subjects {
        let bytes = encode::to_bytes(&module)?;
        drop(module);
        let what = format!("compiling {} ({precision}) for {}", args.choice.model.display(), args.target);
        let spinner = progress::spinner(what.clone(), context.quiet);
        let _span = tracing::info_span!("compile", precision = %precision, target = %args.target).entered();
        let compiled = compiler.compile(&args.target, &bytes, batch.unwrap_or(1) as usize);
        spinner.finish_and_clear();
        let Compiled { answer, is_cached } = compiled?;
        entries.push(Entry { precision, cached: is_cached, outcome: Outcome::of(answer, &args.target)? });
    }
    if args.json {
        let libtpu = compiler.libtpu()?;
        let target = args.target.to_string();
        context.print_json(&serde_json::json!({
            "target": target, "batch": batch, "tune": tuning, "libtpu": libtpu, "devices": devices,
            "reports": entries,
        }))?;
    } else {
        context.print(&render(args, batch, unit, devices, &entries, context.screen))?;
        if let Some(tuning) = &tuning {
            context.print(&format!("{}\n", tuned(tuning, &args.target)))?;
        }
    }
    let fits = entries.iter().all(|entry| matches!(entry.outcome, Outcome::Fits(_)));
    Ok(if fits { Status::Ok } else { Status::Failing })
}

/// What to compile.
struct Programs {
    subjects: Vec<Subject>,
    /// Examples in a batch, which only a model says.
    batch: Option<u32>,
    /// What a second does some of.
    unit: &'static str,
    /// How a model's programs are tuned.
    tuning: Option<Tuning>,
    /// How they lie over cores.
    placement: Placement,
}

fn programs(args: &Args) -> anyhow::Result<Programs> {
    if let Some(module) = args.choice.module()? {
        ensure!(
            !args.compare,
            "--compare builds a model twice, and {} is one module\nhelp: give the model's YAML file",
            args.choice.model.display()
        );
        let module = lower_if_asked(module, &args.choice.model)?;
        let placement = several::placement(&module, &args.choice.model)?;
        let subjects = vec![Subject { precision: AS_GIVEN.to_string(), module }];
        return Ok(Programs { subjects, batch: None, unit: "runs", tuning: None, placement });
    }
    let experiment = read(&args.choice.model)?;
    let precisions = match args.compare {
        true => vec![Precision::F32, Precision::Bf16],
        false => vec![args.choice.precision()],
    };
    let build = |precision: Precision| -> anyhow::Result<Subject> {
        let module = args.choice.build(&experiment, precision, &args.target)?.module;
        Ok(Subject { precision: precision.to_string(), module })
    };
    let subjects = precisions.into_iter().map(build).collect::<anyhow::Result<Vec<Subject>>>()?;
    let unit = unit(&experiment);
    let (batch, tuning) = (args.choice.batch(&experiment), args.choice.tune.tuning(&experiment, &args.target));
    let placement = Placement::default();
    Ok(Programs { subjects, batch: Some(batch), unit, tuning: Some(tuning), placement })
}

/// How programs for a target are tuned, in a line.
pub(super) fn tuned(tuning: &Tuning, target: &Target) -> String {
    if *tuning == Tuning::none() {
        return "not tuned: the program as TensorFlow writes it".to_string();
    }
    match *tuning == target.tuning() {
        true => format!("tuned for {target}; with --tune none it is the program as TensorFlow writes it"),
        false => "tuned as the file says; --tune auto is what pays on the target".to_string(),
    }
}

/// The compiler with its memory; `fresh`: which it does not ask. Modules that bf16scope did not build are compiled in a
/// child, and whatever is limited.
pub(super) fn compiler(fresh: bool, is_foreign: bool, limits: &LimitArgs, context: &Context) -> Compiler {
    let compiler = Compiler::new(&context.setup());
    let compiler = if is_foreign || limits.is_some() { compiler.in_child(&limits.spec()) } else { compiler };
    if fresh { compiler.afresh() } else { compiler }
}

/// A table: a row for each figure, a column for each precision, and the last over the first.
fn render(args: &Args, batch: Option<u32>, unit: &str, devices: Devices, entries: &[Entry], screen: Screen) -> String {
    let ratio = if entries.len() > 1 { Some("bf16 / f32") } else { None };
    let names = entries.iter().map(|entry| entry.precision.as_str());
    let mut table = Table::new([Column::name("figure")].into_iter().chain(names.chain(ratio).map(Column::number)));
    let reports: Vec<Option<&CompileReport>> = entries.iter().map(|entry| entry.outcome.report()).collect();
    for row in rows(&args.target, unit, devices) {
        let mut cells = vec![row.name.clone()];
        cells.extend(reports.iter().map(|report| report.map_or("-".to_string(), |report| (row.cell)(report))));
        if ratio.is_some() {
            cells.push(match (reports.first(), reports.last(), row.value) {
                (Some(Some(first)), Some(Some(last)), Some(value)) => report::ratio(value(last), value(first)),
                _ => String::new(),
            });
        }
        table.row(cells);
    }
    let times = entries.iter().map(|entry| match (&entry.outcome, entry.cached) {
        (_, true) => "cached".to_string(),
        (Outcome::Fits(report), false) => report::seconds(report.compile_seconds),
        (Outcome::DoesNotFit { .. }, false) => "-".to_string(),
    });
    table.row(std::iter::once("compile time here".to_string()).chain(times));
    let program = match (batch, args.choice.program()) {
        (Some(batch), Which::Train) => format!("training step, batch {batch}, "),
        (Some(batch), Which::Infer) => format!("inference, batch {batch}, "),
        (None, _) => String::new(),
    };
    let model = args.choice.model.display();
    let mut text = format!("{model}: {program}{}\n", several::cores(devices, &args.target));
    // A table of nothing says nothing.
    if reports.iter().any(Option::is_some) {
        text += &table.render(screen);
        let named: Vec<(&str, &CompileReport)> =
            entries.iter().filter_map(|entry| Some((entry.precision.as_str(), entry.outcome.report()?))).collect();
        text += &several::notes(&named, screen);
    }
    for entry in entries {
        if let Outcome::DoesNotFit { out_of_memory } = &entry.outcome {
            text += &format!("{}: {}\n", entry.precision, out_of_memory.message);
        }
    }
    text
}

impl Outcome {
    fn of(answer: Answer, target: &Target) -> anyhow::Result<Outcome> {
        match answer.report(target) {
            Ok(report) => Ok(Outcome::Fits(report)),
            Err(error @ TpuError::OutOfMemory { needed, available, .. }) => {
                let message = error.to_string();
                Ok(Outcome::DoesNotFit { out_of_memory: OutOfMemory { needed, available, message } })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn report(&self) -> Option<&CompileReport> {
        match self {
            Outcome::Fits(report) => Some(report),
            Outcome::DoesNotFit { .. } => None,
        }
    }
}

/// A row of the table.
struct Row {
    name: String,
    cell: Box<dyn Fn(&CompileReport) -> String>,
    /// What the ratio is of; none for a share.
    value: Option<fn(&CompileReport) -> f64>,
}

fn rows(target: &Target, unit: &str, devices: Devices) -> Vec<Row> {
    let n_cores = match target {
        Target::Tpu { version, .. } => version.cores_per_board(),
        Target::Cpu => Version::V2.cores_per_board(),
    };
    let row = |name: &str, cell: Box<dyn Fn(&CompileReport) -> String>, value| Row {
        name: name.to_string(),
        cell,
        value: Some(value),
    };
    let bytes = |name: &str, n_bytes: fn(&CompileReport) -> i64, value: fn(&CompileReport) -> f64| {
        row(name, Box::new(move |report: &CompileReport| report::mib(n_bytes(report))), value)
    };
    let mut rows = vec![
        bytes("HBM arguments", |r| r.hbm.arguments, |r| r.hbm.arguments as f64),
        bytes("HBM outputs", |r| r.hbm.outputs, |r| r.hbm.outputs as f64),
        bytes("HBM aliased", |r| r.hbm.aliased, |r| r.hbm.aliased as f64),
        bytes("HBM temporaries", |r| r.hbm.temporaries, |r| r.hbm.temporaries as f64),
        bytes("HBM code", |r| r.hbm.code, |r| r.hbm.code as f64),
        bytes("HBM total", |r| r.hbm.total, |r| r.hbm.total as f64),
        Row {
            name: "share of the core's HBM".to_string(),
            cell: Box::new(|r| report::percent(r.hbm.total, r.hbm.limit)),
            value: None,
        },
        row("flops", Box::new(|r| report::scientific(r.flops)), |r| r.flops),
        row("bytes accessed", Box::new(|r| report::scientific(r.bytes_accessed)), |r| r.bytes_accessed),
        row("estimated cycles", Box::new(|r| report::grouped(r.cycles as i64)), |r| r.cycles as f64),
        row("estimated time", Box::new(|r| report::seconds(r.seconds)), |r| r.seconds),
    ];
    // A program over several cores is of all of them; one of one core may run on each of a board.
    let per = if devices.is_one() { " per core" } else { "" };
    rows.push(row(&format!("{unit}/s{per}"), Box::new(|r| format!("{:.1}", r.examples_per_second)), |r| {
        r.examples_per_second
    }));
    if devices.is_one() {
        rows.push(Row {
            name: format!("{unit}/s per board"),
            cell: Box::new(move |r| format!("{:.1} ({n_cores} cores)", r.examples_per_second * f64::from(n_cores))),
            value: Some(|r| r.examples_per_second),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::check_screen;
    use crate::tpu::Hbm;
    use clap::Parser;
    use expect_test::expect_file;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// ResNet-50 in a batch of 64, as the compiler reports it.
    fn report(bf16: bool) -> CompileReport {
        let choose = |f32: f64, low: f64| if bf16 { low } else { f32 };
        let mib = |f32: f64, low: f64| (choose(f32, low) * f64::from(1 << 20)) as i64;
        let hbm = Hbm {
            arguments: mib(238.2, 217.2),
            outputs: mib(196.2, 196.2),
            aliased: mib(196.2, 196.2),
            temporaries: mib(3953.3, 2008.3),
            code: mib(43.6, 67.4),
            total: mib(4235.1, 2292.9),
            limit: mib(7662.0, 7662.0),
        };
        CompileReport {
            hbm,
            flops: choose(1.526e12, 1.545e12),
            bytes_accessed: choose(3.748e10, 1.915e10),
            cycles: choose(108_425_942.0, 88_811_993.0) as u64,
            seconds: choose(0.1371, 0.0908),
            examples_per_second: choose(466.7, 704.7),
            compile_seconds: choose(94.1, 120.5),
            devices: Devices::ONE,
            collectives: Vec::new(),
        }
    }

    #[test]
    fn two_precisions_and_what_does_not_fit_on_80_columns() {
        let line = ["compile", "examples/resnet50.yaml", "--batch", "64", "--compare"];
        let args = Line::parse_from(line).args;
        let entry = |precision: &str, cached, outcome| Entry { precision: precision.to_string(), cached, outcome };
        let fits = |bf16: bool| entry(if bf16 { "bf16" } else { "f32" }, bf16, Outcome::Fits(report(bf16)));
        let error = TpuError::OutOfMemory {
            target: args.target.clone(),
            needed: Some(11_435_000_000),
            available: Some(8_031_000_000),
            text: "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm."
                .to_string(),
        };
        let message = error.to_string();
        let too_large = OutOfMemory { needed: None, available: None, message };
        let entries = [fits(false), fits(true)];
        check_screen(
            |screen| render(&args, Some(64), "images", Devices::ONE, &entries, screen),
            &expect_file!["../../tests/cli/screens/compile.txt"],
        );
        let entries = [entry("f32", false, Outcome::DoesNotFit { out_of_memory: too_large }), fits(true)];
        check_screen(
            |screen| render(&args, Some(192), "images", Devices::ONE, &entries, screen),
            &expect_file!["../../tests/cli/screens/compile-does-not-fit.txt"],
        );
    }
}
