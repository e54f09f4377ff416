//! `bf16scope compile`: what Google's TPU compiler reports for a model or any HLO module, without a TPU.

use super::child::LimitArgs;
use super::excess::ExcessArgs;
use super::program::Choice;
use super::subjects::{CompareArgs, with_accuracy};
use super::tune::targets_help;
use super::{Context, Status, progress};
use crate::report::Screen;
use crate::report::compile::CompiledPrograms;
use bf16scope_hlo::devices::Devices;
use bf16scope_hlo::{DType, Module};
use bf16scope_model::graph::Storage;
use bf16scope_passes::tuning::Tuning;
use bf16scope_study::{CompiledSubject, Event, Programs, compare};
use bf16scope_tpu::{Collective, Target};

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
        let over = (answer.devices, answer.excess_precision);
        let text = render(args, (batch, variables), unit, over, &answer.reports, context.screen);
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
    (devices, excess_precision): (Devices, bool),
    entries: &[CompiledSubject],
    screen: Screen,
) -> String {
    let compiled = CompiledPrograms {
        path: &args.choice.model,
        program: args.choice.program().into(),
        batch,
        variables,
        unit,
        target: &args.target,
        devices,
        excess_precision,
        entries,
    };
    compiled.render(screen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::check_screen;
    use bf16scope_study::{AS_GIVEN, Judged, judge};
    use bf16scope_tpu::explain::Copies;
    use bf16scope_tpu::verdict::{Candidate, Evidence};
    use bf16scope_tpu::{CompileOutcome, CompileReport, Hbm, Need, StepTime};
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

    /// A kernel without an estimate was once counted as the largest integer.
    #[test]
    fn kernels_without_an_estimate_are_counted_below_the_table() {
        let args = Line::parse_from(["compile", "step.hlo.pb"]).args;
        let mut unknown = report(true);
        unknown.n_without_cycles = 1_003;
        let entries = [subject("bf16", false, CompileOutcome::Fits(unknown))];
        let text = render(&args, (None, None), "runs", (Devices::ONE, false), &entries, Screen::with_width(80));
        let note = "bf16: the compiler has no estimate for 1,003 kernels: their cycles are unknown, and cycles and times are \
                    without them\n";
        assert!(text.contains(note) && text.contains(" 88,811,993 "), "{text}");
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
            |screen| render(&args, (Some(64), Some(Storage::F32)), "images", (Devices::ONE, false), &entries, screen),
            &expect_file!["../../../tests/cli/screens/compile.txt"],
        );
        let entries = [subject("f32", false, CompileOutcome::OutOfMemory(need)), fits(true)];
        check_screen(
            |screen| {
                render(
                    &args,
                    (Some(192), Some(Storage::Bf16Stochastic)),
                    "images",
                    (Devices::ONE, false),
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
                    render(&args, (None, None), "runs", (Devices::ONE, true), &entries, screen)
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
