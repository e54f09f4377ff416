//! How a graph of TensorFlow becomes an experiment: the report of `port` on a screen, and as a page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::html::{self, Page};
use crate::{Column, Screen, Table};

/// How a graph becomes an experiment; also the output of `--json`.
#[derive(Debug, Serialize)]
pub struct PortedGraph {
    /// The file.
    pub graph: String,
    /// The version of TensorFlow that wrote it; empty if it says none.
    pub tensorflow: String,
    /// How many nodes it has.
    pub n_nodes: usize,
    /// The sections of the experiment.
    pub becomes: Vec<Becomes>,
    /// The steps of the input pipeline, which `becomes` has in one row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pipeline: Vec<StepRow>,
    /// Differences between the experiment and the graph.
    pub differs: Vec<NoteRow>,
    /// Parts of the graph that an experiment cannot express.
    pub missing: Vec<NoteRow>,
    /// Mistakes that the dtypes show.
    pub slips: Vec<SlipRow>,
    /// The experiment, as YAML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// A summary of the step as HLO, or why it does not become HLO.
    pub step: String,
    /// How much of the graph the checkpoint has; empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checkpoint: String,
    /// The files that were written.
    pub written: Vec<String>,
    /// The experiment's names of variables, by the graph's names.
    #[serde(skip)]
    pub names: BTreeMap<String, String>,
    /// How variables lie in the graph's where dims differ, by the graph's names.
    #[serde(skip)]
    pub layouts: BTreeMap<String, String>,
    /// The dims of the variables that layers have, by the graph's names.
    #[serde(skip)]
    pub variables: BTreeMap<String, Vec<i64>>,
}

/// A section of the experiment, and where the graph has it.
#[derive(Debug, Serialize)]
pub struct Becomes {
    /// The section: `data`, `model`, `train`.
    pub section: &'static str,
    /// The section's content.
    pub text: String,
    /// The node of the graph.
    pub node: String,
    /// The script's line.
    pub place: String,
    /// The lines that led to `place`, innermost first, as in the other rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
}

/// A step of the input pipeline.
#[derive(Debug, Serialize)]
pub struct StepRow {
    /// The operation, such as a shuffle with its buffer.
    pub text: String,
    /// The node of the graph.
    pub node: String,
    /// The script's line.
    pub place: String,
    /// The lines that led to it, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
}

impl Becomes {
    /// The script's line, or the node if the graph records no lines.
    fn shown_place(&self) -> &str {
        if self.place.is_empty() { &self.node } else { &self.place }
    }
}

/// Something that differs, or is missing.
#[derive(Debug, Serialize)]
pub struct NoteRow {
    /// The node of the graph.
    pub node: String,
    /// The script's line.
    pub place: String,
    /// The lines that led to it, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
    /// The difference, or the missing part.
    pub text: String,
    /// The remedy.
    pub help: String,
}

/// A mistake that dtypes show.
#[derive(Debug, Serialize)]
pub struct SlipRow {
    /// The first node that shows it.
    pub node: String,
    /// The script's line.
    pub place: String,
    /// The lines that led to it, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
    /// How many nodes show it.
    pub n_nodes: usize,
    /// The mistake.
    pub what: &'static str,
    /// Why it costs accuracy, memory or time.
    pub why: &'static str,
    /// The corrected line.
    pub mend: &'static str,
    /// How certain it is.
    pub certainty: &'static str,
}

/// The report as text.
pub fn screen(report: &PortedGraph, screen: Screen) -> String {
    let version =
        if report.tensorflow.is_empty() { String::new() } else { format!(", TensorFlow {}", report.tensorflow) };
    let mut text = format!("{}: {} nodes{version}\n\nBecomes\n", report.graph, report.n_nodes);
    let mut table = Table::new([Column::text("of the graph"), Column::text("here"), Column::text("where")]);
    for line in &report.becomes {
        table.row([line.section.to_string(), line.text.clone(), line.shown_place().to_string()]);
    }
    table.row(["step".to_string(), report.step.clone()]);
    if !report.checkpoint.is_empty() {
        table.row(["checkpoint".to_string(), report.checkpoint.clone()]);
    }
    let _ = writeln!(text, "{}", table.render(screen));
    for (title, notes) in [("Differs", &report.differs), ("Missing", &report.missing)] {
        if !notes.is_empty() {
            let _ = writeln!(text, "{title}");
            for note in notes {
                let _ = writeln!(text, "  {}{}", place(&note.place, &note.node), note.text);
                if !note.help.is_empty() {
                    let _ = writeln!(text, "    help: {}", note.help);
                }
            }
            text.push('\n');
        }
    }
    match report.slips.is_empty() {
        true => text.push_str("Slips: the graph shows none.\n"),
        false => {
            text.push_str("Slips, shown by the graph\n");
            for slip in &report.slips {
                let more = if slip.n_nodes > 1 { format!(" ({} nodes)", slip.n_nodes) } else { String::new() };
                let _ = writeln!(text, "  {}{}{more}: {}", place(&slip.place, &slip.node), slip.what, slip.why);
                let _ = writeln!(text, "    help: {}", slip.mend);
            }
        }
    }
    for written in &report.written {
        let _ = writeln!(text, "wrote {written}");
    }
    text
}

/// The place of a row, with the colon behind it.
fn place(place: &str, node: &str) -> String {
    match (place, node) {
        ("", "") => String::new(),
        ("", node) => format!("{node}: "),
        (place, node) => format!("{place} ({node}): "),
    }
}

/// The report as a page.
pub fn page(report: &PortedGraph) -> Page {
    let column = |title, help| html::Column { title, help };
    let text = |text: &str| html::Cell::Text(text.to_string());
    let table = |heading: &str, rows: Vec<Vec<html::Cell>>| html::Table {
        heading: heading.to_string(),
        lead: String::new(),
        columns: vec![
            column("where", "section, node or line"),
            column("what", "of the graph"),
            column("what to do", "here or in the script"),
        ],
        rows,
    };
    let becomes = report.becomes.iter().map(|line| {
        let section = format!("{}{}", place(&line.place, &line.node), line.section);
        vec![text(&section), text(&line.text), text("")]
    });
    let rows = |notes: &[NoteRow]| -> Vec<Vec<html::Cell>> {
        notes
            .iter()
            .map(|note| vec![text(&place(&note.place, &note.node)), text(&note.text), text(&note.help)])
            .collect()
    };
    let slips = report.slips.iter().map(|slip| {
        vec![text(&place(&slip.place, &slip.node)), text(&format!("{}: {}", slip.what, slip.why)), text(slip.mend)]
    });
    let tables = [
        table("Becomes", becomes.collect()),
        table("Differs", rows(&report.differs)),
        table("Missing", rows(&report.missing)),
        table("Slips, shown by the graph", slips.collect()),
    ];
    Page {
        title: format!("{}: what it becomes", report.graph),
        lead: match report.checkpoint.as_str() {
            "" => format!("The step: {}.", report.step),
            checkpoint => format!("The step: {}. The checkpoint: {checkpoint}.", report.step),
        },
        tables: tables.into_iter().filter(|table| !table.rows.is_empty()).collect(),
        ..Page::default()
    }
}
