//! The report of `port` on a screen, and as a page for the browser.

use std::fmt::Write as _;

use super::{NoteRow, PortReport};
use crate::report::html::{self, Page};
use crate::report::{Column, Screen, Table};

/// The report as text.
pub(super) fn screen(report: &PortReport, screen: Screen) -> String {
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
pub(super) fn page(report: &PortReport) -> Page {
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
