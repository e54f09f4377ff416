//! The results of `compile`: a table of the compiler's figures for each program, with notes below it.

use std::path::Path;

use crate::outcome::excess_note;
use crate::several;
use crate::{Column, Screen, Table, grouped, mib, percent, ratio, scientific, seconds};
use bf16scope_hlo::devices::Devices;
use bf16scope_model::graph::Storage;
use bf16scope_study::{AS_GIVEN, CompiledSubject, ModelProgram};
use bf16scope_tpu::{CompileOutcome, CompileReport, Spec, Target};

/// Compiled programs of one model or module.
#[derive(Clone, Copy, Debug)]
pub struct CompiledPrograms<'a> {
    /// The file of the model or the module.
    pub path: &'a Path,
    /// Which program of a model.
    pub program: ModelProgram,
    /// The batch; `None` for a module.
    pub batch: Option<u32>,
    /// How a model's variables are stored; `None` for a module.
    pub variables: Option<Storage>,
    /// The unit of a batch: `images`.
    pub unit: &'a str,
    /// The TPU.
    pub target: &'a Target,
    /// The cores that a program is for.
    pub devices: Devices,
    /// Whether the compiler may have dropped roundings.
    pub excess_precision: bool,
    /// Each program, and what became of it.
    pub entries: &'a [CompiledSubject],
}

impl CompiledPrograms<'_> {
    /// A line on the programs, a table, and what does not fit.
    pub fn render(&self, screen: Screen) -> String {
        let CompiledPrograms { unit, target, devices, entries, .. } = *self;
        let program = match self.batch {
            Some(batch) => format!("{}, batch {batch}, ", self.program),
            None => lowered_by(entries),
        };
        let variables = match self.variables {
            None | Some(Storage::F32) => String::new(),
            Some(other) => format!("variables {other}, "),
        };
        let (model, excess) = (self.path.display(), excess_note(self.excess_precision));
        let mut text = format!("{model}: {program}{variables}{}{excess}\n", several::cores(devices, target));
        // The table would be empty.
        if entries.iter().any(|entry| entry.outcome.report().is_some()) {
            let table = match entries.len() > 2 {
                true => by_entry(unit, devices, entries),
                false => by_figure(target, unit, devices, entries),
            };
            text += &table.render(screen);
            let named: Vec<(&str, &CompileReport)> =
                entries.iter().filter_map(|entry| Some((entry.label.as_str(), entry.outcome.report()?))).collect();
            text += &several::notes(&named, target, screen);
            for (name, report) in named.iter().filter(|(_, report)| report.n_without_cycles > 0) {
                text += &format!(
                    "{name}: the compiler has no estimate for {} kernels: their cycles are unknown, and cycles and times are \
                     without them\n",
                    grouped(report.n_without_cycles as i64)
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
                (Some(Some(first)), Some(Some(last)), Some(value)) => self::ratio(value(last), value(first)),
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
    Figure { title: "HBM total", shown: |r| mib(r.hbm.total), value: |r| r.hbm.total as f64 },
    Figure { title: "cycles", shown: |r| grouped(r.cycles as i64), value: |r| r.cycles as f64 },
    Figure { title: "time", shown: |r| estimate(r.step_seconds(), seconds), value: |r| r.step_seconds() },
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
                    cells.push(base.map_or("-".to_string(), |base| ratio(value(own), value(base))));
                }
                cells.extend([
                    percent(own.hbm.total, own.hbm.limit),
                    mib(own.hbm.temporaries),
                    scientific(own.bytes_accessed),
                    scientific(own.flops),
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
        (CompileOutcome::Fits(report), false) => seconds(report.compile_seconds),
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
        row(name, Box::new(move |report: &CompileReport| mib(n_bytes(report))), value)
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
            cell: Box::new(|r| percent(r.hbm.total, r.hbm.limit)),
            value: None,
        },
        row("flops", Box::new(|r| scientific(r.flops)), |r| r.flops),
        row("bytes accessed", Box::new(|r| scientific(r.bytes_accessed)), |r| r.bytes_accessed),
        row("estimated cycles", Box::new(|r| grouped(r.cycles as i64)), |r| r.cycles as f64),
        row("time of a run", Box::new(|r| estimate(r.step_seconds(), seconds)), |r| r.step_seconds()),
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
    let optimum = Box::new(|r: &CompileReport| estimate(r.optimal_seconds, seconds));
    rows.push(row("compiler's optimum", optimum, |r| r.optimal_seconds));
    rows
}
