//! How processor time grows with size: for each kind of module and of YAML file, and each thing that is done with it, the
//! slope of time over size on logarithmic scales, by least squares over the upper half of the sizes. 1 is linear, 2
//! quadratic; above [`MAX_SLOPE`] it fails. [slopes.md](../slopes.md) has a recorded table.
//!
//! `cargo bench --no-default-features --bench slopes`, or with `-- PART` for kinds whose name has that part.
//! `BF16SCOPE_SLOPES=16000x3` takes the three sizes from 16,000 on.

mod texts;

use bf16scope::experiment::Experiment;
use bf16scope::foreign::stablehlo;
use bf16scope::graph::Precision;
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::{Module, graphviz, proto, verify::verify};
use bf16scope::passes::amp::{self, Policy};
use bf16scope::passes::tidy;
use bf16scope::study::n_in_doubt;
use bf16scope::train::{Objective, program};
use std::hint::black_box;
use std::process::ExitCode;
use texts::{DOCUMENTS, MODULES, NETWORKS};

/// The smallest size, unless `BF16SCOPE_SLOPES` says another.
const SMALLEST: usize = 4_000;
/// Sizes, each twice the one before it, unless `BF16SCOPE_SLOPES` says how many.
const N_SIZES: usize = 5;
/// The slope is fitted to the largest sizes: at small ones constant costs dominate.
const N_JUDGED: usize = 3;
/// Slope beyond which something is not linear: sorting, maps and caches that grow out of a processor's take some of it.
const MAX_SLOPE: f64 = 1.2;
/// Shorter measurements at the largest size are not judged: their slope is noise.
const MIN_SECONDS: f64 = 0.02;

/// Seconds that this thread has been on a processor.
fn processor_seconds() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says how long a thread ran");
    schedstat.split(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("nanoseconds come first") * 1e-9
}

/// The kernel counts in ticks of a few milliseconds: as many of them make a tick of no account.
const ENOUGH_SECONDS: f64 = 0.15;

/// Seconds of a run, the mean of as many as take [`ENOUGH_SECONDS`]; the lesser of two such means.
fn seconds<T>(mut work: impl FnMut() -> T) -> f64 {
    let mut mean = || {
        let (began, mut n_runs) = (processor_seconds(), 0.0);
        loop {
            drop(black_box(work()));
            n_runs += 1.0;
            let elapsed = processor_seconds() - began;
            if elapsed >= ENOUGH_SECONDS {
                return elapsed / n_runs;
            }
        }
    };
    mean().min(mean())
}

/// The slope of a line through points of logarithms.
fn slope(sizes: &[usize], seconds: &[f64]) -> f64 {
    let points: Vec<(f64, f64)> = sizes.iter().zip(seconds).map(|(n, t)| ((*n as f64).ln(), t.ln())).collect();
    let n = points.len() as f64;
    let mean = |coordinate: fn(&(f64, f64)) -> f64| points.iter().map(coordinate).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    covariance / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
}

/// A module in all the forms that the work takes.
struct Subject {
    text: String,
    module: Module,
    /// Empty where it would not be read, for its size: work on protos is timed for the smaller sizes only.
    proto: Vec<u8>,
    /// A quarter, the middle and the end: instructions that are asked about.
    asked: Vec<String>,
    report: amp::LoweringReport,
}

impl Subject {
    fn new(kind: &str, text: String) -> Subject {
        let module = parse(&text, "m").unwrap_or_else(|error| panic!("{kind}: {error}"));
        verify(&module).unwrap_or_else(|errors| panic!("{kind}: {errors}"));
        let mut proto = proto::encode::to_bytes(&module).unwrap_or_else(|error| panic!("{kind}: {error}"));
        if proto::decode::check_size(&proto).is_err() {
            proto.clear();
        }
        let (_, report) = amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let instructions = &module.entry().instructions;
        let asked = [1, 2, 4].map(|part| instructions[(instructions.len() - 1) * part / 4].name.clone()).to_vec();
        Subject { text, module, proto, asked, report }
    }
}

/// Does something with a module.
type Work = fn(&Subject);

/// Operations on a module that are timed: what `emit`, `lower`, `verify` and `explain-cast` are made of.
const WORK: [(&str, Work); 12] = [
    ("read text", |subject| drop(parse(&subject.text, "m").expect("it was read before"))),
    ("read proto", |subject| drop(proto::decode::from_bytes(&subject.proto).expect("it was encoded"))),
    ("verify", |subject| verify(&subject.module).expect("it was verified before")),
    ("write text", |subject| drop(black_box(print(&subject.module, &PrintOptions::default())))),
    ("write proto", |subject| drop(proto::encode::to_bytes(&subject.module).expect("it has a proto"))),
    ("write mlir", |subject| drop(black_box(stablehlo::write(&subject.module)))),
    ("write dot", |subject| drop(black_box(graphviz::render(&subject.module)))),
    ("tidy", |subject| drop(tidy::run(&subject.module, &tidy::Config::default()).expect("it is tidied"))),
    ("lower", |subject| drop(amp::run(&subject.module, &Policy::default()).expect("it was lowered before"))),
    ("lower, O3", |subject| {
        let policy = Policy::preset("O3").expect("the preset is known");
        drop(amp::run(&subject.module, &policy).expect("it is lowered"));
    }),
    ("doubts", |subject| {
        black_box(n_in_doubt(&subject.module, &subject.report));
    }),
    ("explain-cast", |subject| {
        for name in &subject.asked {
            black_box((subject.report.explain(name).len(), subject.report.casts_about(name).len()));
        }
        black_box(Policy::default().idle(&subject.module));
    }),
];

/// Prints a row of the table; whether it is steep.
fn is_steep(kind: &str, work: &str, sizes: &[usize], seconds: &[f64]) -> bool {
    let judged = seconds.len() - N_JUDGED;
    let slope = slope(&sizes[judged..seconds.len()], &seconds[judged..]);
    let is_judged = seconds.last().is_some_and(|last| *last > MIN_SECONDS);
    let cells = seconds.iter().map(|t| format!(" {t:>8.4} |"));
    let shown: String = cells.chain(sizes[seconds.len()..].iter().map(|_| format!(" {:>8} |", "–"))).collect();
    let shown_slope = if is_judged { format!("{slope:.2}") } else { "short".to_string() };
    println!("| {kind:<18} | {work:<12} |{shown} {shown_slope:>5} |");
    is_judged && slope > MAX_SLOPE
}

fn main() -> ExitCode {
    let part = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let folder = tempfile::tempdir().expect("a folder for experiments can be made");
    let path = folder.path().join("e.yaml");
    let asked = std::env::var("BF16SCOPE_SLOPES").unwrap_or_default();
    let (smallest, n_sizes) = asked.split_once('x').unwrap_or((&asked, ""));
    let n_sizes = n_sizes.parse().unwrap_or(N_SIZES).max(N_JUDGED);
    let smallest = smallest.parse().unwrap_or(SMALLEST);
    let sizes: Vec<usize> = (0..n_sizes).map(|at| smallest << at).collect();
    let columns: String = sizes.iter().map(|n| format!(" {n:>8} |")).collect();
    println!("| {:<18} | {:<12} |{columns} slope |\n|{}", "kind", "work", " --- |".repeat(n_sizes + 3));
    let mut steep = Vec::new();
    let mut judge = |kind: &str, work: &str, seconds: &[f64]| {
        if is_steep(kind, work, &sizes, seconds) {
            steep.push(format!("{kind}, {work}"));
        }
    };
    for (kind, make) in MODULES.into_iter().filter(|(kind, _)| kind.contains(&part)) {
        let subjects: Vec<Subject> = sizes.iter().map(|&n| Subject::new(kind, make(n))).collect();
        for (work, does) in WORK {
            let is_timed = |subject: &&Subject| !work.ends_with("proto") || !subject.proto.is_empty();
            let timed = subjects.iter().take_while(is_timed).map(|subject| seconds(|| does(subject)));
            judge(kind, work, &timed.collect::<Vec<f64>>());
        }
    }
    let write = |make: fn(usize) -> String, n| std::fs::write(&path, make(n)).expect("an experiment can be written");
    for (kind, make) in DOCUMENTS.into_iter().chain(NETWORKS).filter(|(kind, _)| kind.contains(&part)) {
        let read = |n: usize| {
            write(make, n);
            seconds(|| Experiment::read(&path).map(drop).map_err(drop))
        };
        judge(kind, "read YAML", &sizes.iter().copied().map(read).collect::<Vec<f64>>());
    }
    for (kind, make) in NETWORKS.into_iter().filter(|(kind, _)| kind.contains(&part)) {
        let emit = |n: usize| {
            write(make, n);
            let task = Experiment::read(&path).unwrap_or_else(|error| panic!("{kind}: {error}")).task();
            seconds(|| {
                let program = program::training(&*task, Precision::Bf16, 4, &Objective::default());
                let module = program.unwrap_or_else(|error| panic!("{kind}: {error}")).program.module;
                verify(&module).expect("a program verifies");
                print(&module, &PrintOptions::default())
            })
        };
        judge(kind, "emit", &sizes.iter().copied().map(emit).collect::<Vec<f64>>());
    }
    if steep.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("slopes above {MAX_SLOPE}:\n{}", steep.join("\n"));
    ExitCode::FAILURE
}
