//! The audit as a page for the browser.

use super::cycles::AuditCycles;
use super::screen::{
    beyond, dtypes, f32_fails, f32_title, first_beyond_line, layer, name, number, remarks, search_result, shape, ulps,
};
use super::step::AtStep;
use super::{AuditOutcome, F32As};
use crate::html::{Cell, Column, Fact, Page, Table};
use crate::plot::{Series, along, histogram};
use bf16scope_audit::AuditRow;

/// The page.
pub fn page(outcome: &AuditOutcome) -> Page {
    let audit = &outcome.audit;
    Page {
        sheets: Vec::new(),
        title: format!("Audit of {}", audit.module),
        lead: "An f32 module beside its lowered form, run on the same inputs on a CPU, with every rounding kept. An error is \
               born at an instruction if its lowered form makes it on the f32 module's operands; the scaled error of an \
               array is its largest |x − r| over the largest |r| of the f32 module."
            .to_string(),
        facts: facts(outcome),
        notes: notes(outcome),
        figures: figures(outcome),
        tables: vec![instructions(outcome), results(outcome)],
    }
}

fn notes(outcome: &AuditOutcome) -> Vec<String> {
    let at = outcome.first_beyond.iter().map(first_beyond_line).chain(outcome.at.iter().map(AtStep::line));
    let f32_as = outcome.f32_as.iter().map(|f32_as| beyond(outcome.error, f32_as));
    let fails = outcome.f32_fails.iter().map(|failure| f32_fails(failure, outcome));
    let search = outcome.search.iter().map(|search| search_result(search, outcome.saved_policy.as_deref()));
    at.chain(fails).chain(f32_as).chain(search).chain(outcome.cycles.iter().map(AuditCycles::line)).collect()
}

fn facts(outcome: &AuditOutcome) -> Vec<Fact> {
    let audit = &outcome.audit;
    let fact = |label: &str, value: String, is_bad| Fact { label: label.to_string(), value, is_bad };
    let is_over = outcome.budget.is_some_and(|budget| outcome.error > budget);
    let mut facts = vec![fact("largest scaled error of a result", number(outcome.error), is_over)];
    facts.extend(outcome.f32_as.iter().map(|f32_as| fact(&f32_title(f32_as), number(f32_as.error), false)));
    if let Some(budget) = outcome.budget {
        facts.push(fact("budget", number(budget), false));
    }
    let judged = match outcome.is_right {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not judged",
    };
    facts.push(fact("right", judged.to_string(), outcome.is_right == Some(false)));
    let first = audit.first_not_finite.clone();
    facts.push(fact("first NaN or infinity of its own", first.clone().unwrap_or("none".to_string()), first.is_some()));
    facts.push(fact("instructions compared", audit.rows.len().to_string(), false));
    if !audit.skipped.is_empty() {
        facts.push(fact("not compared", audit.skipped.len().to_string(), false));
    }
    facts.push(fact("narrow dtype", outcome.policy.dtype.dtype().to_string(), false));
    if outcome.flush_subnormals {
        facts.push(fact("subnormal numbers", "flushed".to_string(), false));
    }
    facts
}

fn figures(outcome: &AuditOutcome) -> Vec<(String, String)> {
    let rows = &outcome.audit.rows;
    let series = |name: &str, color, of: fn(&AuditRow) -> f64| Series {
        name: name.to_string(),
        color,
        points: (rows.iter().enumerate())
            .map(|(place, row)| (place, of(row), format!("{}: {}", row.instruction, number(of(row)))))
            .collect(),
    };
    let both = [
        series("all of the error", "--error", |row| row.errors.scaled),
        series("born here", "--born", |row| row.born.scaled),
    ];
    let n_places = rows.len();
    vec![
        (
            "Scaled error along the program".to_string(),
            along("scaled error of each instruction", "instructions, in order", n_places, &both, outcome.budget),
        ),
        (
            "How many instructions have which scaled error".to_string(),
            histogram("histogram of scaled errors", "scaled error", &both),
        ),
    ]
}

/// With f32 on a TPU, its column comes after the error.
const INSTRUCTION_COLUMNS: [Column; 18] = [
    Column { title: "layer", help: "its scoped name: op_name of its metadata" },
    Column { title: "source", help: "file and line it was written in, as its metadata says" },
    Column { title: "instruction", help: "its name in both modules" },
    Column { title: "op", help: "opcode" },
    Column { title: "dtype", help: "before → now" },
    Column { title: "shape", help: "in the f32 module" },
    Column { title: "born", help: "scaled error made here on the f32 module's operands" },
    Column { title: "born ulp", help: "largest error made here, in distances of bf16's numbers" },
    Column {
        title: "grown",
        help: "how much larger the scaled error is than those of what it reads and what is born here, added up",
    },
    Column { title: "error", help: "scaled error, handed down and made here" },
    Column { title: "max abs", help: "largest |x − r|" },
    Column { title: "mean abs", help: "mean |x − r|" },
    Column { title: "max rel", help: "largest |x − r| / |r|, where r is not 0" },
    Column { title: "mean rel", help: "mean of the same" },
    Column { title: "max ulp", help: "largest |x − r| in distances of bf16's numbers" },
    Column { title: "cosine", help: "of the angle between x and r" },
    Column { title: "values", help: "shares that overflowed, went subnormal or became 0" },
    Column { title: "place", help: "place in the f32 module" },
];

/// The column for the error of f32 on a TPU.
fn f32_column() -> Column {
    Column { title: "f32 on a TPU", help: "scaled error of the f32 module in the TPU's arithmetic" }
}

/// An error of f32 on a TPU; empty if it was not compared.
fn f32_cell(error: Option<f64>) -> Cell {
    error.map_or(Cell::Text("-".to_string()), |error| Cell::Number(error, number(error)))
}

fn instructions(outcome: &AuditOutcome) -> Table {
    let shown = |value: f64| Cell::Number(value, number(value));
    let of_f32 = |f32_as: &F32As, name: &str| f32_cell(f32_as.instruction(name).map(|row| row.errors.scaled));
    let mut columns = INSTRUCTION_COLUMNS.to_vec();
    let after_error = 1 + columns.iter().position(|column| column.title == "error").unwrap_or(0);
    columns.splice(after_error..after_error, outcome.f32_as.iter().map(|_| f32_column()));
    let row = |row: &AuditRow| {
        let mut cells = vec![
            Cell::Text(layer(row)),
            Cell::Text(row.source.clone()),
            Cell::Text(row.instruction.clone()),
            Cell::Text(row.opcode.clone()),
            Cell::Text(dtypes(row)),
            Cell::Text(row.reference.clone()),
            shown(row.born.scaled),
            Cell::Number(row.born.max_ulp, ulps(row.born.max_ulp)),
            shown(row.grown),
            shown(row.errors.scaled),
            shown(row.errors.max_abs),
            shown(row.errors.mean_abs),
            shown(row.errors.max_rel),
            shown(row.errors.mean_rel),
            Cell::Number(row.errors.max_ulp, ulps(row.errors.max_ulp)),
            Cell::Number(row.errors.cosine, format!("{:.6}", row.errors.cosine)),
            Cell::Text(remarks(&row.errors)),
            Cell::Number(row.position as f64, row.position.to_string()),
        ];
        cells.splice(after_error..after_error, outcome.f32_as.iter().map(|f32_as| of_f32(f32_as, &row.instruction)));
        cells
    };
    Table {
        heading: "Instructions".to_string(),
        lead:
            "Where most is lost comes first. What is born at an instruction goes if the policy keeps it; what grows at one goes if it keeps what that reads. A click on a heading sorts by it."
                .to_string(),
        columns,
        rows: outcome.audit.worst_first().into_iter().map(row).collect(),
    }
}

fn results(outcome: &AuditOutcome) -> Table {
    let shown = |value: f64| Cell::Number(value, number(value));
    let rows = outcome.audit.results.iter().map(|row| {
        let errors = row.errors.unwrap_or_default();
        let differs = if row.errors.is_some() {
            String::new()
        } else {
            format!("{} of {} differ", row.n_differing, row.n_elements)
        };
        let mut cells = vec![
            Cell::Text(name(row)),
            Cell::Text(row.instruction.clone()),
            Cell::Text(shape(row)),
            shown(errors.scaled),
        ];
        cells.extend(outcome.f32_as.iter().map(|f32_as| f32_cell(f32_as.result(row).map(|errors| errors.scaled))));
        cells.extend([
            shown(errors.max_abs),
            shown(errors.mean_rel),
            Cell::Number(errors.cosine, format!("{:.6}", errors.cosine)),
            Cell::Text(differs),
        ]);
        cells
    });
    let mut columns = vec![
        Column { title: "result", help: "its name, or its place among the arrays of the result" },
        Column { title: "made by", help: "instruction" },
        Column { title: "shape", help: "in the f32 module, and on how many devices it was compared" },
        Column { title: "error", help: "scaled error" },
    ];
    columns.extend(outcome.f32_as.iter().map(|_| f32_column()));
    columns.extend([
        Column { title: "max abs", help: "largest |x − r|" },
        Column { title: "mean rel", help: "mean |x − r| / |r|, where r is not 0" },
        Column { title: "cosine", help: "of the angle between x and r" },
        Column { title: "values", help: "elements that differ, where a result is not floating" },
    ]);
    Table {
        heading: "Results".to_string(),
        lead: "What the module gives, measured in the module as it is.".to_string(),
        columns,
        rows: rows.collect(),
    }
}
