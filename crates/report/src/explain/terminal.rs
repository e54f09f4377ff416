//! An explanation for the terminal: a line of figures, a sparkline, and tables.

use std::fmt::Write as _;

use crate::screen::shortened;
use crate::{Column, Screen, Table, grouped, mib, percent, ratio, scientific, seconds};
use bf16scope_study::Explained;
use bf16scope_tpu::StepTime;
use bf16scope_tpu::explain::{Bound, Cost, LiveBuffer, Memory, Origin, Phase};

/// Columns of the sparkline.
const WIDTH: usize = 72;
/// The largest width of an array's shape or a layer in a line; its middle is left out, except on an unlimited screen.
const MAX_TEXT: usize = 48;

/// All sections, `n_rows` to a table, and the sentences of a verdict.
pub fn render(lead: &str, subjects: &[Explained], sentences: &[String], n_rows: usize, screen: Screen) -> String {
    let mut out = format!("{lead}\n");
    for subject in subjects {
        let _ = writeln!(out, "\n== {}", subject.label);
        memory(&mut out, subject, n_rows, screen);
        costs(&mut out, subject, n_rows, screen);
    }
    match subjects {
        [one, other] => compare(&mut out, one, other, n_rows, screen),
        [_, _, ..] => compare_all(&mut out, subjects, screen),
        _ => {}
    }
    if !sentences.is_empty() {
        let _ = writeln!(out, "\n{}", sentences.join("\n"));
    }
    out
}

fn memory(out: &mut String, subject: &Explained, n_rows: usize, screen: Screen) {
    let memory = &subject.explanation.memory;
    let Memory { arguments, outputs, constants, peak, .. } = *memory;
    let bytes = |n: u64| mib(n as i64);
    let _ = write!(
        out,
        "HBM: arguments {}, outputs of their own {}, constants {}, temporaries alive at once {}",
        bytes(arguments),
        bytes(outputs),
        bytes(constants),
        bytes(peak)
    );
    if let Some(report) = &subject.report {
        let (heap, packed) = (bytes(memory.heap), mib(report.hbm.temporaries));
        let _ = write!(out, ", {heap} when packed; the compiler's heap {packed}");
        let holes = report.hbm.temporaries - peak as i64;
        if holes > (report.hbm.temporaries / 10).max(1 << 20) {
            let _ = write!(out, " ({} of it holes; `lower --target` may find what packs better)", mib(holes));
        }
    }
    let _ = writeln!(
        out,
        "\npeak: step {} of {}, %{} ({})",
        memory.peak_step + 1,
        memory.timeline.len(),
        memory.peak_instruction,
        origin(&memory.peak_origin, screen)
    );
    let _ = writeln!(out, "{}\n", sparkline(&memory.timeline, screen));
    let alive = memory.live.len();
    if alive == 0 {
        let _ =
            writeln!(out, "No temporary is in HBM: what is computed fits on the chip, or goes straight to a result");
        return findings(out, memory, n_rows, screen);
    }
    let _ = writeln!(out, "Alive at the peak: {} of {alive} buffers", alive.min(n_rows));
    let mut table = Table::new([
        Column::number("bytes"),
        Column::number("share").extra(2),
        Column::number("padding").extra(5),
        Column::name("array"),
        Column::name("layer"),
        Column::name("source").extra(1),
        Column::name("made by").extra(3),
        Column::name("waited for by").extra(4),
        Column::text("why f32"),
    ]);
    for buffer in memory.live.iter().take(n_rows) {
        table.row([
            bytes(buffer.n_bytes),
            percent(buffer.n_bytes as i64, peak as i64),
            percent(buffer.n_wasted() as i64, buffer.n_bytes as i64),
            buffer.shape.clone(),
            layer(&buffer.origin),
            buffer.origin.source.clone(),
            format!("%{}", buffer.instruction),
            waiting(buffer),
            buffer.why_f32.as_ref().map_or(String::new(), |why| why.reason.clone()),
        ]);
    }
    out.push_str(&table.render(screen));
    by_layer(out, memory, n_rows, screen);
    findings(out, memory, n_rows, screen);
}

fn by_layer(out: &mut String, memory: &Memory, n_rows: usize, screen: Screen) {
    let mut table =
        Table::new([Column::name("layer"), Column::number("bytes alive at the peak"), Column::number("share")]);
    for (layer, n_bytes) in memory.layers.iter().take(n_rows) {
        table.row([layer.clone(), mib(*n_bytes as i64), percent(*n_bytes as i64, memory.peak as i64)]);
    }
    let _ = writeln!(out, "\nBy layer: {} of {}", memory.layers.len().min(n_rows), memory.layers.len());
    out.push_str(&table.render(screen));
}

fn findings(out: &mut String, memory: &Memory, n_rows: usize, screen: Screen) {
    let sum = |buffers: &[LiveBuffer], of: fn(&LiveBuffer) -> u64| buffers.iter().map(of).sum::<u64>();
    let wasted = sum(&memory.live, LiveBuffer::n_wasted);
    let _ = writeln!(
        out,
        "\nPadding: tiles that are not full take {} of the peak ({})",
        mib(wasted as i64),
        percent(wasted as i64, memory.peak as i64)
    );
    if !memory.padding.is_empty() {
        let mut table = Table::new([
            Column::number("wasted"),
            Column::number("bytes").extra(2),
            Column::name("array"),
            Column::text("kind").extra(1),
            Column::name("layer"),
            Column::name("source").extra(3),
        ]);
        for buffer in memory.padding.iter().take(n_rows.min(6)) {
            table.row([
                mib(buffer.n_wasted() as i64),
                mib(buffer.n_bytes as i64),
                buffer.shape.clone(),
                buffer.kind.to_string(),
                layer(&buffer.origin),
                buffer.origin.source.clone(),
            ]);
        }
        out.push_str(&table.render(screen));
    }
    let halvable = |buffer: &LiveBuffer| buffer.why_f32.as_ref().is_some_and(|why| why.could_be_bf16);
    let wide: u64 = memory.live.iter().filter(|buffer| halvable(buffer)).map(|buffer| buffer.n_bytes).sum();
    let stays_f32: u64 = (memory.live.iter())
        .filter(|buffer| buffer.why_f32.as_ref().is_some_and(|why| !why.could_be_bf16))
        .map(|buffer| buffer.n_bytes)
        .sum();
    let _ = writeln!(
        out,
        "f32 at the peak: {} that bf16 would halve, {} that stay f32 by the rules of a scope",
        mib(wide as i64),
        mib(stays_f32 as i64)
    );
    let copies = memory.copies_of_arguments;
    if copies.n > 0 {
        let _ = writeln!(
            out,
            "Copies of variables at the peak: {}, {}, beside the variables themselves",
            copies.n,
            mib(copies.n_bytes as i64)
        );
    }
    let converted: u64 = memory.converts.iter().map(|convert| convert.n_bytes).sum();
    let _ = writeln!(
        out,
        "Converts whose operand is needed afterwards too: {}, {} in all",
        memory.converts.len(),
        mib(converted as i64)
    );
    for convert in memory.converts.iter().take(n_rows.min(6)) {
        let _ = writeln!(
            out,
            "  %{}: {} to {}, {}, {}",
            convert.instruction,
            convert.from,
            cut(&convert.to, screen),
            mib(convert.n_bytes as i64),
            origin(&convert.origin, screen)
        );
    }
}

/// `, 154.9 ms with its collectives`, if the step's time is known.
fn took(subject: &Explained) -> String {
    let step = subject.report.as_ref().and_then(|report| report.step);
    let with = |step: StepTime| if step.collective_seconds > 0.0 { " with collectives" } else { "" };
    step.map_or(String::new(), |step| format!(", {}{}", seconds(step.seconds), with(step)))
}

fn costs(out: &mut String, subject: &Explained, n_rows: usize, screen: Screen) {
    let explanation = &subject.explanation;
    let all = explanation.total.cycles;
    let _ = writeln!(
        out,
        "\nCost: {} cycles by the compiler's estimate{}, {} flops and {} bytes counted from shapes",
        grouped(all as i64),
        took(subject),
        scientific(explanation.total.flops),
        scientific(explanation.total.bytes)
    );
    let columns = |first: &'static str, fourth: &'static str| {
        [
            Column::name(first),
            Column::number("cycles"),
            Column::number("share"),
            Column::number(fourth).extra(1),
            Column::number("flops").extra(2),
            Column::number("bytes").extra(3),
            Column::number("bound by"),
            Column::number("busy"),
        ]
    };
    let mut table = Table::new(columns("layer", "backward"));
    for row in explanation.layers.iter().take(n_rows) {
        let backward = percent(row.backward_cycles as i64, row.cost.cycles as i64);
        table.row(cost_row(row.layer.clone(), &row.cost, all, backward, row.bound, row.efficiency));
    }
    let _ = writeln!(out, "Layers: {} of {}", explanation.layers.len().min(n_rows), explanation.layers.len());
    out.push_str(&table.render(screen));
    let mut table = Table::new(columns("op", "steps"));
    for row in explanation.kinds.iter().take(n_rows) {
        table.row(cost_row(row.op.clone(), &row.cost, all, row.n_steps.to_string(), row.bound, row.efficiency));
    }
    let _ = writeln!(out, "\nKinds of op: {} of {}", explanation.kinds.len().min(n_rows), explanation.kinds.len());
    out.push_str(&table.render(screen));
}

fn cost_row(
    name: String,
    cost: &Cost,
    all: u64,
    fourth: String,
    bound: Option<Bound>,
    efficiency: Option<f64>,
) -> [String; 8] {
    [
        name,
        grouped(cost.cycles as i64),
        percent(cost.cycles as i64, all as i64),
        fourth,
        scientific(cost.flops),
        scientific(cost.bytes),
        self::bound(bound).to_string(),
        busy(efficiency),
    ]
}

/// The resource that bounds a cost, in a word.
pub(super) fn bound(bound: Option<Bound>) -> &'static str {
    match bound {
        Some(Bound::Compute) => "compute",
        Some(Bound::Memory) => "memory",
        None => "-",
    }
}

/// The least share of the time that the bounding resource is busy.
pub(super) fn busy(efficiency: Option<f64>) -> String {
    efficiency.map_or("-".to_string(), |share| format!("{:.0} %", 100.0 * share))
}

/// A layer in two programs: cycles, and bytes alive at the peak.
pub(super) struct Pair {
    pub(super) layer: String,
    pub(super) cycles: [u64; 2],
    pub(super) bytes: [u64; 2],
}

/// Two programs side by side: the totals, then layer by layer, in descending order of the first's cycles.
pub(super) fn pairs(both: [&Explained; 2]) -> Vec<Pair> {
    let all = Pair {
        layer: "all".to_string(),
        cycles: both.map(|subject| subject.explanation.total.cycles),
        bytes: both.map(|subject| subject.explanation.memory.peak),
    };
    let mut layers: Vec<&str> = Vec::new();
    for subject in both {
        let with_cycles = subject.explanation.layers.iter().map(|row| row.layer.as_str());
        for layer in with_cycles.chain(subject.explanation.memory.layers.iter().map(|(layer, _)| layer.as_str())) {
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
    }
    let cycles = |subject: &Explained, layer: &str| {
        subject.explanation.layers.iter().find(|row| row.layer == layer).map_or(0, |row| row.cost.cycles)
    };
    let bytes = |subject: &Explained, layer: &str| {
        subject.explanation.memory.layers.iter().find(|(name, _)| name == layer).map_or(0, |(_, n_bytes)| *n_bytes)
    };
    let pair = |layer: &str| Pair {
        layer: layer.to_string(),
        cycles: both.map(|subject| cycles(subject, layer)),
        bytes: both.map(|subject| bytes(subject, layer)),
    };
    std::iter::once(all).chain(layers.into_iter().map(pair)).collect()
}

fn compare(out: &mut String, one: &Explained, other: &Explained, n_rows: usize, screen: Screen) {
    let titles = |what: &str| [format!("{what} {}", one.label), format!("{what} {}", other.label)];
    let ratio = format!("{} / {}", other.label, one.label);
    let numbers = titles("cycles").into_iter().chain([ratio.clone()]).chain(titles("at the peak")).chain([ratio]);
    let mut table = Table::new([Column::name("layer")].into_iter().chain(numbers.map(Column::number)));
    let pairs = pairs([one, other]);
    for Pair { layer, cycles, bytes } in pairs.iter().take(n_rows + 1) {
        table.row([
            layer.clone(),
            grouped(cycles[0] as i64),
            grouped(cycles[1] as i64),
            self::ratio(cycles[1] as f64, cycles[0] as f64),
            mib(bytes[0] as i64),
            mib(bytes[1] as i64),
            self::ratio(bytes[1] as f64, bytes[0] as f64),
        ]);
    }
    let n_layers = pairs.len() - 1;
    let (one, other) = (&one.label, &other.label);
    let _ = writeln!(out, "\n== {one} beside {other}\nLayers: {} of {n_layers}", n_layers.min(n_rows));
    out.push_str(&table.render(screen));
}

/// More than two programs: a row of totals for each.
fn compare_all(out: &mut String, subjects: &[Explained], screen: Screen) {
    let titles = ["program", "cycles", "×", "at the peak", "×"];
    let mut table = Table::new(titles.into_iter().enumerate().map(|(at, title)| match at {
        0 => Column::name(title),
        _ => Column::number(title),
    }));
    let figures = |subject: &Explained| (subject.explanation.total.cycles, subject.explanation.memory.peak);
    let (cycles_before, peak_before) = subjects.first().map(figures).unwrap_or_default();
    for subject in subjects {
        let (cycles, peak) = figures(subject);
        table.row([
            subject.label.clone(),
            grouped(cycles as i64),
            ratio(cycles as f64, cycles_before as f64),
            mib(peak as i64),
            ratio(peak as f64, peak_before as f64),
        ]);
    }
    let _ = writeln!(out, "\n== side by side");
    out.push_str(&table.render(screen));
}

/// `layer (crates/model/src/models/cnn.rs:64)`.
fn origin(origin: &Origin, screen: Screen) -> String {
    let layer = layer(&Origin { layer: cut(&origin.layer, screen), ..origin.clone() });
    match origin.source.as_str() {
        "" => layer,
        source => format!("{layer}, {source}"),
    }
}

/// A layer, and whether it is its backward pass.
pub(super) fn layer(origin: &Origin) -> String {
    match origin.phase {
        Phase::Forward => origin.layer.clone(),
        Phase::Backward => format!("{} (backward)", origin.layer),
    }
}

/// The instructions that read a buffer after the peak.
pub(super) fn waiting(buffer: &LiveBuffer) -> String {
    let Some((name, layer)) = buffer.waited_for_by.first() else { return "this step only".to_string() };
    match buffer.n_waiting {
        1 => format!("%{name} ({layer})"),
        n => format!("%{name} ({layer}), {} more", n - 1),
    }
}

/// A name in a line, shortened if it is long.
fn cut(name: &str, screen: Screen) -> String {
    let max = if screen.table.is_some() { MAX_TEXT } else { usize::MAX };
    shortened(name, max, screen.ellipsis()).into_owned()
}

/// A sparkline: the largest value in each of as many stretches as there are columns.
fn sparkline(values: &[u64], screen: Screen) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const ASCII_BARS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
    let bars = if screen.is_ascii { ASCII_BARS } else { BARS };
    let width = screen.table.map_or(WIDTH, |width| width.min(WIDTH));
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let n_columns = width.min(values.len());
    let column = |at: usize| {
        let (from, to) = (at * values.len() / n_columns, (at + 1) * values.len() / n_columns);
        let greatest = values[from..to].iter().copied().max().unwrap_or(0);
        bars[(greatest as f64 / most as f64 * 7.0).round() as usize]
    };
    (0..n_columns).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_the_greatest_of_each_stretch() {
        let screen = |width| Screen { table: Some(width), ..Screen::WIDE };
        assert_eq!(sparkline(&[0, 7, 0, 14], screen(4)), "▁▅▁█");
        assert_eq!(sparkline(&[0, 7, 0, 14], screen(2)), "▅█");
        assert_eq!(sparkline(&[5], Screen::WIDE), "█");
        assert_eq!(sparkline(&[], screen(72)), "");
        assert_eq!(sparkline(&[0, 7, 0, 14], Screen { is_ascii: true, ..screen(80) }), "_=_#");
    }
}
