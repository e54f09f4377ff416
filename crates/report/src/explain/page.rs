//! An explanation as a page for the browser: timeline, treemaps, tables that sort and filter.

use super::terminal::{Pair, bound, busy, layer, pairs, waiting};
use crate::html::{Cell, Column, Fact, Page, Table};
use crate::plot::timeline::{self, timeline};
use crate::plot::treemap::{TreemapPart, treemap};
use crate::{grouped, mib, percent, scientific, seconds};
use bf16scope_study::{AS_GIVEN, Explained};
use bf16scope_tpu::explain::{Bound, Cost, LiveBuffer, Moment, Origin};

/// The page for one program, or for several side by side, with the sentences of a verdict.
pub fn page(lead: &str, subjects: &[Explained], sentences: &[String]) -> Page {
    Page {
        sheets: Vec::new(),
        title: format!("Where memory and time go: {lead}"),
        lead: "Read from the TPU compiler's own scheduled program. Memory is HBM of one core: arguments, outputs and constants \
               stay, temporaries come and go. Cycles are the compiler's estimates; flops and bytes are counted from shapes. \
               Busy is the least share of the estimated time that the bounding resource works: memory or matrix units."
            .to_string(),
        facts: subjects.iter().flat_map(facts).collect(),
        notes: sentences.to_vec(),
        figures: subjects.iter().flat_map(figures).collect(),
        tables: comparison(subjects).into_iter().chain(subjects.iter().flat_map(tables)).collect(),
    }
}

/// Two programs, layer by layer.
fn comparison(subjects: &[Explained]) -> Option<Table> {
    let [one, other] = subjects else { return None };
    let ratio = |[one, other]: [u64; 2]| match one {
        0 => number(f64::INFINITY, "-".to_string()),
        _ => number(other as f64 / one as f64, crate::ratio(other as f64, one as f64)),
    };
    let count = |n: u64| number(n as f64, grouped(n as i64));
    let row = |Pair { layer, cycles, bytes }: Pair| {
        let [cycles_cells, bytes_cells] = [cycles.map(count), bytes.map(n_bytes)];
        let mut cells = vec![words(layer)];
        cells.extend(cycles_cells);
        cells.push(ratio(cycles));
        cells.extend(bytes_cells);
        cells.push(ratio(bytes));
        cells
    };
    let (cycles, peak) = ("the compiler's estimate", "bytes of temporaries");
    // The subjects are a model in two precisions, or a module and its lowered form, which the heading names.
    let titles = match one.label.as_str() {
        AS_GIVEN => [
            ("layer", "by scoped name"),
            ("cycles as given", cycles),
            ("cycles lowered", cycles),
            ("lowered / as given", "cycles"),
            ("at the peak as given", peak),
            ("at the peak lowered", peak),
            ("lowered / as given", "bytes"),
        ],
        _ => [
            ("layer", "by scoped name"),
            ("cycles f32", cycles),
            ("cycles bf16", cycles),
            ("bf16 / f32", "cycles"),
            ("at the peak f32", peak),
            ("at the peak bf16", peak),
            ("bf16 / f32", "bytes"),
        ],
    };
    Some(Table {
        heading: format!("{} beside {}", one.label, other.label),
        lead: String::new(),
        columns: columns(titles),
        rows: pairs([one, other]).into_iter().map(row).collect(),
    })
}

fn bytes(n_bytes: u64) -> String {
    mib(n_bytes as i64)
}

fn facts(subject: &Explained) -> Vec<Fact> {
    let memory = &subject.explanation.memory;
    let name = &subject.label;
    let fact = |label: &str, value: String| Fact { label: format!("{name}: {label}"), value, is_bad: false };
    let mut facts = vec![
        fact("temporaries alive at the peak", bytes(memory.peak)),
        fact("the same, packed into a heap", bytes(memory.heap)),
    ];
    if let Some(report) = &subject.report {
        facts.push(fact("the compiler's heap", mib(report.hbm.temporaries)));
    }
    facts.push(fact("arguments", bytes(memory.arguments)));
    facts.push(fact("estimated cycles", grouped(subject.explanation.total.cycles as i64)));
    if let Some(step) = subject.report.as_ref().and_then(|report| report.step) {
        facts.push(fact("time of a run", seconds(step.seconds)));
    }
    let wide = memory.live.iter().filter(|buffer| buffer.why_f32.as_ref().is_some_and(|why| why.could_be_bf16));
    facts.push(fact("f32 at the peak that bf16 would halve", bytes(wide.map(|buffer| buffer.n_bytes).sum())));
    facts
}

fn figures(subject: &Explained) -> Vec<(String, String)> {
    let name = &subject.label;
    let explanation = &subject.explanation;
    let moments: Vec<timeline::Moment> = (subject.moments.iter())
        .map(|moment| timeline::Moment { value: moment.n_bytes as f64, text: moment_text(moment) })
        .collect();
    let part = |name: &str, value: u64, whole: u64, shown: String| TreemapPart {
        name: name.to_string(),
        value: value as f64,
        text: format!("{name}: {shown}, {}", percent(value as i64, whole as i64)),
    };
    let memory = &explanation.memory;
    let live: Vec<TreemapPart> = memory.layers.iter().map(|(name, n)| part(name, *n, memory.peak, bytes(*n))).collect();
    let cycles: Vec<TreemapPart> = (explanation.layers.iter())
        .map(|row| {
            let n = row.cost.cycles;
            part(&row.layer, n, explanation.total.cycles, format!("{} cycles", grouped(n as i64)))
        })
        .collect();
    vec![
        (
            format!("{name}: temporaries alive over the schedule (hover for the buffers)"),
            timeline("temporaries alive over the schedule", &moments, |value| bytes(value as u64)),
        ),
        (format!("{name}: bytes alive at the peak, by layer"), treemap("bytes alive at the peak, by layer", &live)),
        (format!("{name}: estimated cycles, by layer"), treemap("estimated cycles, by layer", &cycles)),
    ]
}

fn moment_text(moment: &Moment) -> String {
    let place = |origin: &Origin| match origin.source.as_str() {
        "" => layer(origin),
        source => format!("{}, {source}", layer(origin)),
    };
    let mut text = format!(
        "step {}: %{} ({})\n{} in {} buffers",
        moment.step + 1,
        moment.instruction,
        place(&moment.origin),
        bytes(moment.n_bytes),
        moment.n_alive
    );
    for (n_bytes, shape, origin) in &moment.largest {
        text += &format!("\n{:>10}  {shape}  {}", bytes(*n_bytes), place(origin));
    }
    text
}

fn number(value: f64, shown: String) -> Cell {
    Cell::Number(value, shown)
}

fn n_bytes(value: u64) -> Cell {
    number(value as f64, bytes(value))
}

fn words(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn columns<const N: usize>(columns: [(&'static str, &'static str); N]) -> Vec<Column> {
    columns.into_iter().map(|(title, help)| Column { title, help }).collect()
}

fn tables(subject: &Explained) -> Vec<Table> {
    let tables = [alive(subject), layers(subject), kinds(subject), steps(subject), padding(subject), converts(subject)];
    // Drops empty tables.
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn buffer_cells(buffer: &LiveBuffer) -> Vec<Cell> {
    vec![
        words(format!("%{}", buffer.instruction)),
        n_bytes(buffer.n_bytes),
        n_bytes(buffer.n_unpadded),
        n_bytes(buffer.n_wasted()),
        words(&buffer.shape),
        words(layer(&buffer.origin)),
        words(&buffer.origin.source),
    ]
}

const BUFFER: [(&str, &str); 7] = [
    ("made by", "the instruction whose result lies in it"),
    ("bytes", "with tiles filled up"),
    ("of elements", "bytes of the elements alone"),
    ("wasted", "what filling up takes"),
    ("array", "dtype, dimensions, layout"),
    ("layer", "by the scoped name of what made it"),
    ("source", "the user's file and line"),
];

fn alive(subject: &Explained) -> Table {
    let memory = &subject.explanation.memory;
    let row = |buffer: &LiveBuffer| {
        let mut cells = buffer_cells(buffer);
        cells.push(words(&buffer.op));
        cells.push(number(buffer.first as f64, (buffer.first + 1).to_string()));
        cells.push(number(buffer.last as f64, (buffer.last + 1).to_string()));
        cells.push(words(waiting(buffer)));
        cells.push(words(buffer.why_f32.as_ref().map_or("", |why| &why.reason)));
        cells
    };
    let mut titles = columns(BUFFER);
    titles.extend(columns([
        ("op", "what made it does"),
        ("from step", "first step alive"),
        ("to step", "last step alive"),
        ("waited for by", "the next step that reads it after the peak, and how many more"),
        ("why f32", "if it is f32"),
    ]));
    Table {
        heading: format!(
            "{}: alive at the peak, step {} of {}",
            subject.label,
            memory.peak_step + 1,
            memory.timeline.len()
        ),
        lead: format!("%{} runs then ({}).", memory.peak_instruction, layer(&memory.peak_origin)),
        columns: titles,
        rows: memory.live.iter().map(row).collect(),
    }
}

fn cost_cells(cost: &Cost, all: u64, limit: Option<Bound>, efficiency: Option<f64>) -> Vec<Cell> {
    vec![
        number(cost.cycles as f64, grouped(cost.cycles as i64)),
        number(cost.cycles as f64, percent(cost.cycles as i64, all as i64)),
        number(cost.flops, scientific(cost.flops)),
        number(cost.bytes, scientific(cost.bytes)),
        words(bound(limit)),
        number(efficiency.unwrap_or(-1.0), busy(efficiency)),
    ]
}

const COST: [(&str, &str); 6] = [
    ("cycles", "the compiler's estimate"),
    ("share", "of all cycles"),
    ("flops", "counted from shapes"),
    ("bytes", "operands and results in HBM"),
    ("bound by", "what takes longer at the rates of a core"),
    ("busy", "the least share of the estimated time that it works"),
];

fn layers(subject: &Explained) -> Table {
    let all = subject.explanation.total.cycles;
    let mut titles = columns([("layer", "by scoped name")]);
    titles.extend(columns(COST));
    titles.extend(columns([("backward", "cycles of the backward pass")]));
    let rows = subject.explanation.layers.iter().map(|row| {
        let mut cells = vec![words(&row.layer)];
        cells.extend(cost_cells(&row.cost, all, row.bound, row.efficiency));
        cells.push(number(row.backward_cycles as f64, grouped(row.backward_cycles as i64)));
        cells
    });
    let heading = format!("{}: cost by layer", subject.label);
    Table { heading, lead: String::new(), columns: titles, rows: rows.collect() }
}

fn kinds(subject: &Explained) -> Table {
    let all = subject.explanation.total.cycles;
    let mut titles = columns([("op", "a fusion by the op that matters in it")]);
    titles.extend(columns(COST));
    titles.extend(columns([("steps", "how many")]));
    let rows = subject.explanation.kinds.iter().map(|row| {
        let mut cells = vec![words(&row.op)];
        cells.extend(cost_cells(&row.cost, all, row.bound, row.efficiency));
        cells.push(number(row.n_steps as f64, row.n_steps.to_string()));
        cells
    });
    let heading = format!("{}: cost by kind of op", subject.label);
    Table { heading, lead: String::new(), columns: titles, rows: rows.collect() }
}

fn steps(subject: &Explained) -> Table {
    let all = subject.explanation.total.cycles;
    let mut titles = columns([("instruction", ""), ("op", ""), ("layer", ""), ("source", "the user's file and line")]);
    titles.extend(columns(COST));
    let rows = subject.explanation.steps.iter().map(|row| {
        let mut cells = vec![
            words(format!("%{}", row.instruction)),
            words(&row.op),
            words(layer(&row.origin)),
            words(&row.origin.source),
        ];
        cells.extend(cost_cells(&row.cost, all, row.bound, row.efficiency));
        cells
    });
    let heading = format!("{}: the most expensive steps", subject.label);
    Table { heading, lead: String::new(), columns: titles, rows: rows.collect() }
}

fn padding(subject: &Explained) -> Table {
    let rows = subject.explanation.memory.padding.iter().map(|buffer| {
        let mut cells = buffer_cells(buffer);
        cells.push(words(buffer.kind));
        cells
    });
    let mut titles = columns(BUFFER);
    titles.extend(columns([("kind", "what the buffer is for")]));
    let lead = "A tile is 8 rows of 128 elements in f32, 16 in bf16; a dimension of 1 on the minor side takes 128."
        .to_string();
    Table { heading: format!("{}: what padding wastes", subject.label), lead, columns: titles, rows: rows.collect() }
}

fn converts(subject: &Explained) -> Table {
    let rows = subject.explanation.memory.converts.iter().map(|convert| {
        let (first, last) = convert.both_alive;
        vec![
            words(format!("%{}", convert.instruction)),
            n_bytes(convert.n_bytes),
            words(&convert.from),
            words(&convert.to),
            words(layer(&convert.origin)),
            words(&convert.origin.source),
            number((last - first) as f64, format!("{} to {}", first + 1, last + 1)),
        ]
    });
    Table {
        heading: format!("{}: converts that cost memory", subject.label),
        lead: "The operand is needed afterwards too, so both take memory.".to_string(),
        columns: columns([
            ("instruction", ""),
            ("bytes", "of the result"),
            ("from", ""),
            ("to", ""),
            ("layer", ""),
            ("source", ""),
            ("both alive, steps", "sorted by how many"),
        ]),
        rows: rows.collect(),
    }
}
