//! `bf16scope compile`: what Google's TPU compiler reports for a model or any HLO module, without a TPU.

use super::child::LimitArgs;
use super::excess::{self, ExcessArgs};
use super::program::{Choice, Which};
use super::subjects::{CompareArgs, with_accuracy};
use super::tune::targets_help;
use super::{Context, Status, progress, several};
use crate::report::{self, Column, Screen, Table};
use bf16scope_hlo::devices::Devices;
use bf16scope_hlo::{DType, Module};
use bf16scope_model::graph::Storage;
use bf16scope_passes::tuning::Tuning;
use bf16scope_study::{AS_GIVEN, CompiledSubject, Event, Programs, compare};
use bf16scope_tpu::{Collective, CompileOutcome, CompileReport, Spec, Target};

const EXAMPLES: &str = "\
Examples:
  bf16scope compile examples/resnet50.yaml --target tpu-v2 --batch 64 --compare
          f32 beside bf16: memory, flops, bytes, cycles, images/s (about two minutes)
  bf16scope compile examples/digits.yaml --target tpu-v3:2x2 --mesh data=8
          one core's share of a step over eight cores, and its all-reduces: dtype, bytes, time
  bf16scope compile examples/digits.yaml --target tpu-v3:4x4 --json
          the bf16 training step for a core of a 32-core slice, as JSON
  bf16scope compile examples/resnet50.yaml --program infer --batch 1
          latency of inference
  bf16scope compile step.hlo.pb --target tpu-v3 --compare
          a module from JAX, TensorFlow or PyTorch/XLA, beside its bf16 form, and which of the two to choose; a module for
          several devices is compiled for as many cores, and reported with one core's share and its collectives
  bf16scope compile step.hlo.pb --compare --policy all
          the same for every policy: which one to give to `lower`

Every compile is cached under BF16SCOPE_CACHE (else XDG_CACHE_HOME/bf16scope, else ~/.cache/bf16scope) by program, options,
target and compiler, so asking again is instant. `bf16scope cache clear` empties the cache.

Cycles are the sum of the compiler's estimated_cycles. Time is these cycles at the core's clock (700 MHz on v2, 940 MHz on v3)
and, over several cores, the time of collectives by their bytes and links; images/s follow from that time (docs/ESTIMATES.md
compares them with published runs). The compiler's optimum is its optimal_seconds: the least time that flops and bytes could
take. Exit status: 0 it compiles and fits, 1 it does not fit, or a model's replicas sum gradients in a narrower dtype than the
f32 that was asked for, 2 it could not be compiled.";

/// Arguments of `compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    #[arg(long, help = targets_help(", and a grid of chips if not one board: tpu-v3:4x4"), default_value = "tpu-v2")]
    target: Target,
    #[command(flatten)]
    compare: CompareArgs,
    /// Compile even if the result is cached
    #[arg(long)]
    fresh: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    excess: ExcessArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let programs = programs(&args.choice, &args.target, &args.compare, args.choice.module(context)?, context)?;
    let Programs { batch, unit, variables, sums, runs_alone, .. } = programs;
    let asking = args.limits.asking(args.fresh, args.choice.is_module(), context);
    let asking = args.excess.asking(asking, args.choice.is_module());
    let mut spinner = Spinner::new(args.choice.model.display().to_string(), context.quiet);
    let mut answer = compare(&programs, &args.target, &asking, &mut |event| spinner.on(event))?;
    let labels: Vec<&str> = answer.reports.iter().map(|report| report.label.as_str()).collect();
    answer.verdict = answer.verdict.map(|verdict| with_accuracy(verdict, &labels, &args.choice, runs_alone));
    if args.json {
        context.print_json(&serde_json::to_value(&answer)?)?;
    } else {
        let excess = excess::note(answer.excess_precision);
        let text = render(args, (batch, variables), unit, (answer.devices, excess), &answer.reports, context.screen);
        context.print(&text)?;
        if let Some(tuning) = &answer.tune {
            context.print(&format!("{}\n", tuned(tuning, &args.target)))?;
        }
        if let Some(verdict) = &answer.verdict {
            context.print(&format!("\n{}\n", verdict.sentences.join("\n")))?;
        }
    }
    let fits = answer.reports.iter().all(|report| report.outcome.report().is_some());
    let narrow = if sums == Some(DType::F32) { narrow_sums(&answer.reports) } else { None };
    if let Some(narrow) = &narrow {
        tracing::error!("{}: {narrow}", args.choice.model.display());
    }
    Ok(if fits && narrow.is_none() { Status::Ok } else { Status::Failing })
}

/// The programs that the arguments of `compile` and `explain` select: a module, or else a model's.
pub(super) fn programs(
    choice: &Choice,
    target: &Target,
    compare: &CompareArgs,
    module: Option<Module>,
    context: &Context,
) -> anyhow::Result<Programs> {
    if let Some(module) = module {
        return Ok(Programs::of_module(module, &choice.model, &compare.forms()?)?);
    }
    compare.check_model(&choice.model)?;
    Ok(Programs::of_model(&choice.subject(&context.setup())?, &compare.precisions(choice), target)?)
}

/// A spinner for each compiled program of a model.
pub(super) struct Spinner {
    model: String,
    quiet: bool,
    shown: Option<indicatif::ProgressBar>,
}

impl Spinner {
    pub(super) fn new(model: String, quiet: bool) -> Spinner {
        Spinner { model, quiet, shown: None }
    }

    /// Shows an event.
    pub(super) fn on(&mut self, event: &Event<'_>) {
        if let Some(spinner) = self.shown.take() {
            spinner.finish_and_clear();
        }
        if let Event::Begins(compiling) = event {
            let what = format!("compiling {} ({}) for {}", self.model, compiling.what, compiling.target);
            self.shown = Some(progress::spinner(what, self.quiet));
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(spinner) = self.shown.take() {
            spinner.finish_and_clear();
        }
    }
}

/// A warning for sums over replicas in less precision than the requested f32.
fn narrow_sums(entries: &[CompiledSubject]) -> Option<String> {
    let reports = entries.iter().filter_map(|entry| Some((&entry.label, entry.outcome.report()?)));
    let mut narrow = reports
        .flat_map(|(precision, report)| report.narrow_sums_over_replicas().into_iter().map(move |it| (precision, it)));
    let (precision, Collective { op, dtype, n, origin, .. }) = narrow.next()?;
    Some(format!(
        "{precision}: the compiler makes {n} {op} of replicas in {dtype}, the largest of {origin}, and f32 was asked for\nhelp: \
         this is an error of bf16scope's, whose step keeps the cast before the sum: report it; `mesh: {{sum: bf16}}` says that \
         bf16 will do"
    ))
}

/// The tuning of programs for a target, in a line.
pub(super) fn tuned(tuning: &Tuning, target: &Target) -> String {
    if *tuning == Tuning::none() {
        return "not tuned: the program as TensorFlow writes it".to_string();
    }
    match *tuning == target.tuning() {
        true => format!("tuned for {target}; with --tune none it is the program as TensorFlow writes it"),
        false => "tuned as the file says; --tune auto is what pays off on the target".to_string(),
    }
}

/// The compiled programs, a table, and whether they fit.
fn render(
    args: &Args,
    (batch, variables): (Option<u32>, Option<Storage>),
    unit: &str,
    (devices, excess): (Devices, &str),
    entries: &[CompiledSubject],
    screen: Screen,
) -> String {
    let program = match (batch, args.choice.program()) {
        (Some(batch), Which::Train) => format!("training step, batch {batch}, "),
        (Some(batch), Which::Infer) => format!("inference, batch {batch}, "),
        (None, _) => lowered_by(entries),
    };
    let variables = match variables {
        None | Some(Storage::F32) => String::new(),
        Some(other) => format!("variables {other}, "),
    };
    let model = args.choice.model.display();
    let mut text = format!("{model}: {program}{variables}{}{excess}\n", several::cores(devices, &args.target));
    // The table would be empty.
    if entries.iter().any(|entry| entry.outcome.report().is_some()) {
        let table = if entries.len() > 2 {
            by_entry(unit, devices, entries)
        } else {
            by_figure(&args.target, unit, devices, entries)
        };
        text += &table.render(screen);
        let named: Vec<(&str, &CompileReport)> =
            entries.iter().filter_map(|entry| Some((entry.label.as_str(), entry.outcome.report()?))).collect();
        text += &several::notes(&named, &args.target, screen);
        for (name, report) in named.iter().filter(|(_, report)| report.n_without_cycles > 0) {
            text += &format!(
                "{name}: the compiler has no estimate for {} kernels: their cycles are unknown, and cycles and times are without \
                 them\n",
                report::grouped(report.n_without_cycles as i64)
            );
        }
    }
    for entry in entries {
        if let Some(problem) = entry.problem() {
            text += &format!("{}: {problem}\n", entry.label);
        }
    }
    text
}

/// How a module's forms were lowered, in a line with details.
fn lowered_by(entries: &[CompiledSubject]) -> String {
    let policies: Vec<&str> =
        (entries.iter()).map(|entry| entry.label.as_str()).filter(|label| *label != AS_GIVEN).collect();
    let by = format!("lowered by {}, ", policies.join(", "));
    match policies.len() {
        0 => String::new(),
        n if n < entries.len() => format!("{AS_GIVEN}, and {by}"),
        _ => by,
    }
}

/// A row for each figure, a column for each precision, and the last over the first.
fn by_figure(target: &Target, unit: &str, devices: Devices, entries: &[CompiledSubject]) -> Table {
    let ratio = match entries {
        [first, .., last] => Some(format!("{} / {}", last.label, first.label)),
        _ => None,
    };
    // Names longer than dtypes would make the column wider than its values.
    let ratio = ratio.map(|title| if title.len() > 12 { "ratio".to_string() } else { title });
    let names = entries.iter().map(|entry| entry.label.clone());
    let mut table =
        Table::new([Column::name("figure")].into_iter().chain(names.chain(ratio.clone()).map(Column::number)));
    let reports: Vec<Option<&CompileReport>> = entries.iter().map(|entry| entry.outcome.report()).collect();
    for row in rows(target, unit, devices) {
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
    table.row(std::iter::once("compile time here".to_string()).chain(entries.iter().map(time)));
    table
}

/// An estimate of the compiler, if it gives one.
fn estimate(value: f64, shown: impl Fn(f64) -> String) -> String {
    if value > 0.0 { shown(value) } else { "-".to_string() }
}

/// A column of a table over several programs.
struct Figure {
    title: &'static str,
    shown: fn(&CompileReport) -> String,
    value: fn(&CompileReport) -> f64,
}

const FIGURES: [Figure; 3] = [
    Figure { title: "HBM total", shown: |r| report::mib(r.hbm.total), value: |r| r.hbm.total as f64 },
    Figure { title: "cycles", shown: |r| report::grouped(r.cycles as i64), value: |r| r.cycles as f64 },
    Figure { title: "time", shown: |r| estimate(r.step_seconds(), report::seconds), value: |r| r.step_seconds() },
];

/// A row for each program, and each figure over the first's.
fn by_entry(unit: &str, devices: Devices, entries: &[CompiledSubject]) -> Table {
    let core = FIGURES.iter().flat_map(|figure| [Column::number(figure.title), Column::number("×")]);
    let extra = [
        Column::number("of the HBM").extra(1),
        Column::number("temporaries").extra(2),
        Column::number("bytes accessed").extra(3),
        Column::number("flops").extra(4),
        Column::number(format!("{unit}/s{}", per_core(devices))).extra(5),
        Column::number("compiled in").extra(6),
    ];
    let mut table = Table::new([Column::name("program")].into_iter().chain(core).chain(extra));
    let base = entries.first().and_then(|entry| entry.outcome.report());
    for entry in entries {
        let mut cells = vec![entry.label.clone()];
        match entry.outcome.report() {
            Some(own) => {
                for Figure { shown, value, .. } in &FIGURES {
                    cells.push(shown(own));
                    cells.push(base.map_or("-".to_string(), |base| report::ratio(value(own), value(base))));
                }
                cells.extend([
                    report::percent(own.hbm.total, own.hbm.limit),
                    report::mib(own.hbm.temporaries),
                    report::scientific(own.bytes_accessed),
                    report::scientific(own.flops),
                    own.examples_per_second.map_or("-".to_string(), |n| format!("{n:.1}")),
                ]);
            }
            None => cells.extend((0..2 * FIGURES.len() + 5).map(|_| "-".to_string())),
        }
        cells.push(time(entry));
        table.row(cells);
    }
    table
}

/// The compile time.
fn time(entry: &CompiledSubject) -> String {
    match (&entry.outcome, entry.cached) {
        (_, true) => "cached".to_string(),
        (CompileOutcome::Fits(report), false) => report::seconds(report.compile_seconds),
        (CompileOutcome::OutOfMemory(_) | CompileOutcome::Failed(_), false) => "-".to_string(),
    }
}

/// A row of the table.
struct FigureRow {
    name: String,
    cell: Box<dyn Fn(&CompileReport) -> String>,
    /// The value for the ratio; `None` for a share.
    value: Option<fn(&CompileReport) -> f64>,
}

/// The unit of examples per second: over several cores it counts the examples of all of them.
fn per_core(devices: Devices) -> &'static str {
    if devices.is_one() { " per core" } else { "" }
}

fn rows(target: &Target, unit: &str, devices: Devices) -> Vec<FigureRow> {
    let n_cores = match target {
        Target::Tpu { version, .. } => version.cores_per_board(),
        Target::Cpu => Spec::ALL[0].cores_per_board(),
    };
    let row = |name: &str, cell: Box<dyn Fn(&CompileReport) -> String>, value| FigureRow {
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
        FigureRow {
            name: "share of the core's HBM".to_string(),
            cell: Box::new(|r| report::percent(r.hbm.total, r.hbm.limit)),
            value: None,
        },
        row("flops", Box::new(|r| report::scientific(r.flops)), |r| r.flops),
        row("bytes accessed", Box::new(|r| report::scientific(r.bytes_accessed)), |r| r.bytes_accessed),
        row("estimated cycles", Box::new(|r| report::grouped(r.cycles as i64)), |r| r.cycles as f64),
        row("time of a run", Box::new(|r| estimate(r.step_seconds(), report::seconds)), |r| r.step_seconds()),
    ];
    rows.push(row(
        &format!("{unit}/s{}", per_core(devices)),
        Box::new(|r| r.examples_per_second.map_or("-".to_string(), |n| format!("{n:.1}"))),
        |r| r.examples_per_second.unwrap_or(0.0),
    ));
    // A single-core program may run on each core of a board.
    if devices.is_one() {
        rows.push(FigureRow {
            name: format!("{unit}/s per board"),
            cell: Box::new(move |r| {
                let all = |n: f64| format!("{:.1} ({n_cores} cores)", n * f64::from(n_cores));
                r.examples_per_second.map_or("-".to_string(), all)
            }),
            value: Some(|r| r.examples_per_second.unwrap_or(0.0)),
        });
    }
    let optimum = Box::new(|r: &CompileReport| estimate(r.optimal_seconds, report::seconds));
    rows.push(row("compiler's optimum", optimum, |r| r.optimal_seconds));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::check_screen;
    use bf16scope_study::{Judged, judge};
    use bf16scope_tpu::explain::Copies;
    use bf16scope_tpu::verdict::{Candidate, Evidence};
    use bf16scope_tpu::{Hbm, Need, StepTime};
    use clap::Parser;
    use expect_test::expect_file;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The compiler's report for ResNet-50 with a batch of 64.
    fn report(bf16: bool) -> CompileReport {
        let choose = |f32: f64, low: f64| if bf16 { low } else { f32 };
        let mib = |f32: f64, low: f64| (choose(f32, low) * f64::from(1 << 20)) as i64;
        let mut hbm = Hbm::default();
        hbm.arguments = mib(238.2, 217.2);
        hbm.outputs = mib(196.2, 196.2);
        hbm.aliased = mib(196.2, 196.2);
        hbm.temporaries = mib(3953.3, 2008.3);
        hbm.code = mib(44.6, 68.4);
        hbm.total = mib(4236.2, 2293.8);
        hbm.limit = mib(7662.0, 7662.0);
        let cycles = choose(108_425_942.0, 88_811_993.0);
        let step = StepTime::new(&"tpu-v2".parse().unwrap(), cycles, Some(0.0));
        let mut report = CompileReport::default();
        report.hbm = hbm;
        report.flops = choose(1.526e12, 1.545e12);
        report.bytes_accessed = choose(3.748e10, 1.915e10);
        report.cycles = cycles as u64;
        report.step = step;
        report.optimal_seconds = choose(0.1371, 0.0908);
        report.examples_per_second = step.map(|step| 64.0 / step.seconds);
        report.compile_seconds = choose(94.1, 120.5);
        report
    }

    fn subject(label: &str, cached: bool, outcome: CompileOutcome) -> CompiledSubject {
        CompiledSubject { label: label.to_string(), target: "tpu-v2".parse().unwrap(), cached, outcome }
    }

    #[test]
    fn replicas_that_sum_in_less_than_f32_are_told_and_the_parts_of_one_are_not() {
        let entry = |partitions: usize, dtype: &str, origin: &str| {
            let mut report_over_devices = report(true);
            report_over_devices.devices = Devices { replicas: 4, partitions };
            let mut sum = Collective::of_bytes("all-reduce", dtype, 64, 4);
            sum.origin = origin.to_string();
            report_over_devices.collectives = vec![sum];
            [subject("bf16", false, CompileOutcome::Fits(report_over_devices))]
        };
        let warning = narrow_sums(&entry(1, "bf16", "net/dense/dot")).unwrap();
        assert!(
            warning.starts_with(
                "bf16: the compiler makes 1 all-reduce of replicas in bf16, the largest of net/dense/dot, and f32 was asked for\n"
            ),
            "{warning}"
        );
        assert!(narrow_sums(&entry(2, "bf16", "net/dense/kernel/all-reduce")).is_some());
        assert_eq!(narrow_sums(&entry(2, "bf16", "net/dense/dot")), None);
        assert_eq!(narrow_sums(&entry(1, "f32", "net/dense/kernel/all-reduce")), None);
    }

    #[test]
    fn two_precisions_and_what_does_not_fit_on_80_columns() {
        let line = ["compile", "examples/resnet50.yaml", "--batch", "64", "--compare"];
        let args = Line::parse_from(line).args;
        let fits = |bf16: bool| subject(if bf16 { "bf16" } else { "f32" }, bf16, CompileOutcome::Fits(report(bf16)));
        let need = Need {
            needed: Some(11_435_000_000),
            available: Some(8_031_000_000),
            text: "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm."
                .to_string(),
        };
        let entries = [fits(false), fits(true)];
        check_screen(
            |screen| render(&args, (Some(64), Some(Storage::F32)), "images", (Devices::ONE, ""), &entries, screen),
            &expect_file!["../../../tests/cli/screens/compile.txt"],
        );
        let entries = [subject("f32", false, CompileOutcome::OutOfMemory(need)), fits(true)];
        check_screen(
            |screen| {
                render(
                    &args,
                    (Some(192), Some(Storage::Bf16Stochastic)),
                    "images",
                    (Devices::ONE, ""),
                    &entries,
                    screen,
                )
            },
            &expect_file!["../../../tests/cli/screens/compile-does-not-fit.txt"],
        );
    }

    #[test]
    fn a_module_under_several_policies_and_its_verdict_on_80_columns() {
        let line = ["compile", "step.hlo.pb", "--compare", "--policy", "all"];
        let args = Line::parse_from(line).args;
        let (as_given, default) = (report(false), report(true));
        // Fewer bytes and more cycles, for some memory.
        let mut tf_amp = as_given.clone();
        tf_amp.hbm.temporaries += 96 << 20;
        tf_amp.hbm.total += 96 << 20;
        tf_amp.cycles = 111_570_294;
        tf_amp.step = StepTime::new(&"tpu-v2".parse().unwrap(), 111_570_294.0, Some(0.0));
        tf_amp.optimal_seconds = 0.1141;
        tf_amp.bytes_accessed = 3.021e10;
        let copies = |n: usize| Copies { n, n_bytes: (n as u64) << 20 };
        let evidence = |n: usize| Evidence {
            copies: copies(n),
            copies_of_arguments: copies(n / 2),
            cycles_by_kind: [("convert".to_string(), 40_000 * n as u64)].into(),
        };
        let check = |all: &[(&str, &str, CompileReport, usize)], name: &str| {
            let entry = |(label, _, report, _): &(&str, &str, CompileReport, usize)| {
                subject(label, false, CompileOutcome::Fits(report.clone()))
            };
            let candidate = |(_, name, report, n): &(&str, &str, CompileReport, usize)| Candidate {
                name: name.to_string(),
                outcome: CompileOutcome::Fits(report.clone()),
                evidence: Some(evidence(*n)),
                changes_interface: false,
            };
            let entries: Vec<CompiledSubject> = all.iter().map(entry).collect();
            let candidates: Vec<Candidate> = all.iter().map(candidate).collect();
            let labels: Vec<&str> = all.iter().map(|(label, ..)| *label).collect();
            let judged = with_accuracy(judge(&candidates, &labels).unwrap(), &labels, &args.choice, true);
            let sentences = judged.sentences.join("\n");
            let text = |screen| {
                format!(
                    "{}\n{sentences}\n",
                    render(&args, (None, None), "runs", (Devices::ONE, excess::note(true)), &entries, screen)
                )
            };
            let path = format!("{}/../../tests/cli/screens/{name}", env!("CARGO_MANIFEST_DIR"));
            check_screen(text, &expect_file![path]);
        };
        // A form that cannot run is not suggested.
        let verdict = Judged { choice: Some("default".to_string()), sentences: Vec::new() };
        let accuracy = |runs_alone| {
            let labels = [AS_GIVEN, "default"];
            with_accuracy(verdict.clone(), &labels, &args.choice, runs_alone).sentences.join(" ")
        };
        assert!(
            accuracy(true).ends_with(
                "`bf16scope audit step.hlo.pb --random 1 --policy default` compares the results with f32's; of an \
                 experiment, `bf16scope audit EXPERIMENT --at STEP`."
            ),
            "{}",
            accuracy(true)
        );
        assert!(accuracy(false).contains("on one device alone, which cannot run this one"), "{}", accuracy(false));
        let as_given = (AS_GIVEN, "the module as given", as_given, 0);
        let tf_amp = ("tf_amp", "policy tf_amp", tf_amp, 97);
        check(&[as_given.clone(), tf_amp.clone()], "compile-module.txt");
        check(&[as_given, ("default", "policy default", default, 3), tf_amp], "compile-policies.txt");
    }
}
