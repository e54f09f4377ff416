//! The memory and time that each option saves, compared with the plain program: on a terminal and as a page.

use crate::html::{Cell, Column, Fact, Page, Table};
use crate::outcome::one_line;
use crate::{Screen, grouped, mib, ratio, scientific};
use bf16scope_study::{LEVERS, Lever, LeversAnswer, OnTarget, Pulled};
use bf16scope_tpu::CompileReport;

/// A lever's description, or the reason why it does not apply.
fn remark(pulled: &Pulled) -> String {
    match (&pulled.not_applicable, &pulled.row) {
        (Some(why), _) => format!("does not apply: {why}"),
        (None, Some(row)) if row.report().is_none() => one_line(&row.outcome),
        (None, _) => String::new(),
    }
}

/// A figure of a report, and its format.
struct Figure {
    title: &'static str,
    help: &'static str,
    /// The rank of its columns in the terminal; see [`Column::extra`](crate::Column::extra).
    rank: u8,
    value: fn(&CompileReport) -> f64,
    shown: fn(f64) -> String,
}

const FIGURES: [Figure; 4] = [
    Figure {
        title: "HBM",
        help: "arguments + outputs - aliased + temporaries + code, and its share of the plain program's",
        rank: 0,
        value: |report| report.hbm.total as f64,
        shown: |n_bytes| mib(n_bytes as i64),
    },
    Figure {
        title: "temporaries",
        help: "what lives between arguments and outputs, and its share of the plain program's",
        rank: 1,
        value: |report| report.hbm.temporaries as f64,
        shown: |n_bytes| mib(n_bytes as i64),
    },
    Figure {
        title: "cycles",
        help: "estimated cycles, and their share of the plain program's",
        rank: 0,
        value: |report| report.cycles as f64,
        shown: |n| grouped(n as i64),
    },
    Figure {
        title: "flops",
        help: "operations of the optimized program, and their share of the plain program's",
        rank: 2,
        value: |report| report.flops,
        shown: scientific,
    },
];

fn heading(answer: &LeversAnswer) -> String {
    format!("training step, batch {}, plain in {}, one core", answer.batch, answer.precision)
}

/// A table of each target, what the levers are, and those that save the most.
pub fn render(answer: &LeversAnswer, screen: Screen) -> String {
    let LeversAnswer { model, targets: all, .. } = answer;
    let mut text = String::new();
    for OnTarget { target, levers } in all {
        let figures = FIGURES
            .iter()
            .flat_map(|figure| [figure.title, "×"].map(|title| crate::Column::number(title).extra(figure.rank)));
        let ends = ["lever", ""].map(crate::Column::text);
        let [lever, why] = ends;
        let mut table = crate::Table::new([lever].into_iter().chain(figures).chain([why]));
        let base = levers.first().and_then(Pulled::report);
        for pulled in levers {
            let mut cells = vec![pulled.lever.to_string()];
            for figure in &FIGURES {
                cells.extend(match (pulled.report(), base) {
                    (Some(own), Some(base)) => {
                        let (own, base) = ((figure.value)(own), (figure.value)(base));
                        [(figure.shown)(own), ratio(own, base)]
                    }
                    (Some(own), None) => [(figure.shown)((figure.value)(own)), "-".to_string()],
                    (None, _) => ["-".to_string(), "-".to_string()],
                });
            }
            cells.push(remark(pulled));
            table.row(cells);
        }
        text += &format!("{model}: {} of {target}\n{}", heading(answer), table.render(screen));
    }
    for Lever { name, option, about, .. } in LEVERS {
        text += &format!("{name} (`{option}`): {about}\n");
    }
    for OnTarget { target, levers } in all {
        let prefix = if all.len() > 1 { format!("{target}: ") } else { String::new() };
        text += &format!("{prefix}{}\n", in_words(levers));
    }
    text
}

/// The single levers that save the most memory and the most cycles.
fn in_words(levers: &[Pulled]) -> String {
    let fitting: Vec<&str> =
        levers.iter().skip(1).filter(|pulled| pulled.report().is_some()).map(|pulled| pulled.lever).collect();
    let Some(base) = levers.first().and_then(Pulled::report) else {
        return match fitting.is_empty() {
            true => "plain does not fit, and no lever makes it fit.".to_string(),
            false => format!("plain does not fit; it does with {}.", fitting.join(", ")),
        };
    };
    let least = |figure: &Figure| {
        let single = levers.iter().skip(1).filter(|pulled| !pulled.option.is_empty());
        let shares = single.filter_map(|pulled| {
            let report = pulled.report()?;
            Some((pulled.lever, (figure.value)(report) / (figure.value)(base)))
        });
        shares.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, share)| *share < 1.0)
    };
    let line = |what: &str, figure: &Figure| match least(figure) {
        Some((lever, share)) => format!("{what}: {lever} ({:.0} % less)", 100.0 * (1.0 - share)),
        None => format!("{what}: none"),
    };
    format!("{}. {}.", line("most memory saved", &FIGURES[0]), line("most cycles saved", &FIGURES[2]))
}

/// The page.
pub fn page(answer: &LeversAnswer) -> Page {
    let LeversAnswer { model, libtpu, targets: all, .. } = answer;
    let table = |OnTarget { target, levers }: &OnTarget| {
        let base = levers.first().and_then(Pulled::report);
        let rows = levers.iter().map(|pulled| {
            let mut cells = vec![Cell::Text(pulled.lever.to_string())];
            for figure in &FIGURES {
                let value = pulled.report().map(figure.value);
                cells.push(value.map_or(Cell::Number(f64::INFINITY, "-".to_string()), |value| {
                    Cell::Number(value, (figure.shown)(value))
                }));
                let share = value.zip(base.map(figure.value)).map(|(value, base)| value / base);
                cells.push(
                    share
                        .filter(|share| share.is_finite())
                        .map_or(Cell::Number(f64::INFINITY, "-".to_string()), |share| {
                            Cell::Number(share, format!("{share:.3}"))
                        }),
                );
            }
            let why = remark(pulled);
            cells.push(Cell::Text(if why.is_empty() { pulled.about.clone() } else { why }));
            cells
        });
        let figures = FIGURES.iter().flat_map(|Figure { title, help, .. }| {
            [Column { title, help }, Column { title: "×", help: "of the plain program's" }]
        });
        Table {
            heading: target.clone(),
            lead: String::new(),
            columns: [Column { title: "lever", help: "" }]
                .into_iter()
                .chain(figures)
                .chain([Column { title: "what it changes", help: "or why it does not apply" }])
                .collect(),
            rows: rows.collect(),
        }
    };
    let fact = |on: &OnTarget| {
        let least = on.levers.iter().filter_map(Pulled::report).map(|report| report.hbm.total).min();
        Fact {
            label: format!("{}: least memory", on.target),
            value: least.map_or("does not fit".to_string(), mib),
            is_bad: least.is_none(),
        }
    };
    Page {
        sheets: Vec::new(),
        title: format!("What saves what: {model}"),
        lead: format!(
            "Every row is a program ({}) that Google's TPU compiler, libtpu {libtpu}, compiled or refused. Cycles are its \
             estimates; no TPU has run anything.",
            heading(answer)
        ),
        facts: all.iter().map(fact).collect(),
        notes: all.iter().map(|on| format!("{}: {}", on.target, in_words(&on.levers))).collect(),
        figures: Vec::new(),
        tables: all.iter().map(table).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_tpu::fit::CompiledBatch;
    use bf16scope_tpu::{CompileOutcome, Need};

    fn pulled(lever: &'static str, n_bytes: Option<i64>, cycles: u64) -> Pulled {
        let mut hbm = bf16scope_tpu::Hbm::default();
        hbm.total = n_bytes.unwrap_or(0);
        hbm.limit = 1000;
        let mut report = CompileReport::default();
        report.hbm = hbm;
        report.flops = 1.0;
        report.bytes_accessed = 1.0;
        report.cycles = cycles;
        report.optimal_seconds = 1.0;
        report.examples_per_second = Some(1.0);
        report.compile_seconds = 1.0;
        let outcome = match n_bytes {
            Some(_) => CompileOutcome::Fits(report),
            None => CompileOutcome::OutOfMemory(Need::default()),
        };
        let option = if lever == "together" || lever == "plain" { "" } else { "x" };
        let row = CompiledBatch { batch: 8, cached: false, outcome };
        Pulled { lever, option, about: String::new(), not_applicable: None, row: Some(row) }
    }

    #[test]
    fn the_answer_names_the_lever_that_saves_most() {
        let plain = || pulled("plain", Some(100), 100);
        let levers = [plain(), pulled("a", Some(60), 120), pulled("b", Some(80), 90), pulled("together", Some(50), 80)];
        assert_eq!(in_words(&levers), "most memory saved: a (40 % less). most cycles saved: b (10 % less).");
        assert_eq!(in_words(&[plain()]), "most memory saved: none. most cycles saved: none.");
        let levers = [pulled("plain", None, 1), pulled("a", Some(60), 1), pulled("b", None, 1)];
        assert_eq!(in_words(&levers), "plain does not fit; it does with a.");
        assert_eq!(in_words(&levers[..1]), "plain does not fit, and no lever makes it fit.");
    }

    #[test]
    fn levers_on_80_columns() {
        let mut levers = vec![
            pulled("plain", Some(7_335_000_000), 188_200_000),
            pulled("bf16 scope", Some(3_860_000_000), 152_400_000),
            pulled("adafactor", None, 1),
            pulled("remat elementwise", None, 1),
        ];
        levers[2].row = None;
        levers[2].not_applicable = Some("the optimizer is not adam".to_string());
        let answer = LeversAnswer {
            model: "examples/resnet50.yaml".to_string(),
            batch: 128,
            precision: "f32".to_string(),
            libtpu: String::new(),
            excess_precision: false,
            targets: vec![OnTarget { target: "tpu-v2".to_string(), levers }],
        };
        crate::screen::check_screen(
            |screen| render(&answer, screen),
            &expect_test::expect_file!["../../../tests/cli/screens/fit-levers.txt"],
        );
    }
}
