//! Heat maps: a colour for each row and column, as an SVG that follows the page's light or dark scheme.
//!
//! Heat is the opacity of one of the page's colours; bad cells have another colour, and a cross. So a map reads alike
//! on light and on dark backgrounds; one hue with varying lightness is readable for the colour-blind, and bad cells are
//! recognisable by their shape as well.

use std::fmt::Write as _;

use super::{WIDTH, line, text};
use crate::html::escape;

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatCell {
    /// From 0 to 1; values outside are clamped.
    pub heat: f64,
    /// Whether it is bad, whatever its heat.
    pub is_bad: bool,
    /// The text for hovering.
    pub text: String,
}

/// A row: its name, and a cell for each column; `None` if nothing was measured.
#[derive(Clone, Debug)]
pub struct HeatRow {
    /// Its name.
    pub name: String,
    /// In the order of the columns.
    pub cells: Vec<Option<HeatCell>>,
}

/// The content of a map.
#[derive(Clone, Debug)]
pub struct HeatMap<'a> {
    /// A description for screen readers.
    pub label: &'a str,
    /// Its rows, from the top.
    pub rows: &'a [HeatRow],
    /// The names of columns; shown as far as there is room.
    pub columns: &'a [String],
    /// The meaning of no heat and of full heat.
    pub ends: [&'a str; 2],
    /// The meaning of a bad cell.
    pub bad: &'a str,
}

/// The largest number of columns; if there are more, each shows the hottest of several, with bad cells taking
/// precedence.
const MAX_COLUMNS: usize = 180;
/// The largest number of cells, so that a page of a large network stays small: a cell takes some 200 bytes.
const MAX_CELLS: usize = 8_000;
/// Space for the names of rows.
const NAMES: f64 = 262.0;
/// The number of letters of a name that fit there.
const N_LETTERS: usize = 36;
/// About the width of a letter.
const LETTER: f64 = 7.0;
/// The height of a row.
const ROW: f64 = 16.0;
/// Space above the rows, for the scale, and below, for the names of columns.
const ABOVE: f64 = 32.0;
const BELOW: f64 = 28.0;

/// Rows over columns.
pub fn heat(map: &HeatMap<'_>) -> String {
    let HeatMap { label, rows, columns, .. } = map;
    let height = ABOVE + BELOW + ROW * rows.len() as f64;
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(label));
    scale(&mut out, map);
    let n_columns = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
    let n_shown = n_columns.min(MAX_COLUMNS).min((MAX_CELLS / rows.len().max(1)).max(1));
    let width = (WIDTH - NAMES - 8.0) / n_shown.max(1) as f64;
    for (number, HeatRow { name, cells }) in rows.iter().enumerate() {
        let y = ABOVE + ROW * number as f64;
        text(&mut out, (NAMES - 8.0, y + ROW - 4.0), "end", &shortened(name));
        for column in 0..n_shown {
            let (from, to) = (column * n_columns / n_shown, (column + 1) * n_columns / n_shown);
            let hottest = cells.iter().take(to).skip(from).flatten().max_by(|a, b| {
                (a.is_bad, a.heat).partial_cmp(&(b.is_bad, b.heat)).unwrap_or(std::cmp::Ordering::Equal)
            });
            if let Some(cell) = hottest {
                draw(&mut out, (NAMES + width * column as f64, y), width, cell);
            }
        }
    }
    names_of_columns(&mut out, columns, n_columns, height);
    out.push_str("</svg>");
    out
}

fn draw(out: &mut String, (x, y): (f64, f64), width: f64, HeatCell { heat, is_bad, text }: &HeatCell) {
    let (width, height) = ((width - 0.5).max(0.6), ROW - 1.0);
    let color = if *is_bad { "--bad" } else { "--error" };
    // The coldest measured cell is still visible.
    let opacity = if *is_bad { 0.8 } else { opacity(*heat) };
    let title = escape(text);
    let _ = write!(
        out,
        "<g><title>{title}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.0}\" \
         fill=\"var({color})\" fill-opacity=\"{opacity:.2}\"/>"
    );
    if *is_bad {
        let (right, bottom) = (x + width, y + height);
        line(out, "axis", (x, y), (right, bottom));
        line(out, "axis", (x, bottom), (right, y));
    }
    out.push_str("</g>");
}

fn opacity(heat: f64) -> f64 {
    0.08 + 0.92 * if heat.is_nan() { 0.0 } else { heat.clamp(0.0, 1.0) }
}

/// The legend of the colours, above the map.
fn scale(out: &mut String, HeatMap { ends: [cold, hot], bad, .. }: &HeatMap<'_>) {
    const N: u32 = 6;
    let mut x = NAMES + LETTER * cold.chars().count() as f64;
    text(out, (x, 19.0), "end", cold);
    x += 6.0;
    for step in 0..N {
        let opacity = opacity(f64::from(step) / f64::from(N - 1));
        let _ = write!(
            out,
            "<rect x=\"{x:.1}\" y=\"8\" width=\"16\" height=\"13\" fill=\"var(--error)\" fill-opacity=\"{opacity:.2}\"/>"
        );
        x += 17.0;
    }
    text(out, (x + 5.0, 19.0), "start", hot);
    x += 5.0 + LETTER * hot.chars().count() as f64 + 24.0;
    if !bad.is_empty() {
        draw(out, (x, 6.0), 16.5, &HeatCell { heat: 1.0, is_bad: true, text: (*bad).to_string() });
        text(out, (x + 21.0, 19.0), "start", bad);
    }
}

/// The names of as many columns as fit, including the first and, if at least two fit, the last.
fn names_of_columns(out: &mut String, columns: &[String], n_columns: usize, height: f64) {
    let longest = columns.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let n_with_room = ((WIDTH - NAMES) / (LETTER * (longest as f64 + 3.0))) as usize;
    let n_named = columns.len().min(n_columns).min(n_with_room.max(1));
    for nth in 0..n_named {
        let column = if n_named == 1 { 0 } else { nth * (n_columns - 1) / (n_named - 1) };
        let Some(name) = columns.get(column) else { continue };
        let (at, anchor) = match nth {
            0 if n_columns > n_named => (NAMES, "start"),
            _ if nth + 1 == n_named && n_columns > n_named => (WIDTH - 8.0, "end"),
            _ => {
                let width = (WIDTH - NAMES - 8.0) / n_columns as f64;
                (NAMES + width * (column as f64 + 0.5), "middle")
            }
        };
        text(out, (at, height - 10.0), anchor, name);
    }
}

/// The end of a long name, which distinguishes layers.
fn shortened(name: &str) -> String {
    let n = name.chars().count();
    match n > N_LETTERS {
        true => format!("…{}", name.chars().skip(n - N_LETTERS + 1).collect::<String>()),
        false => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(heat: f64, is_bad: bool) -> Option<HeatCell> {
        Some(HeatCell { heat, is_bad, text: format!("<{heat}>") })
    }

    fn drawn(rows: &[HeatRow], columns: &[String], bad: &str) -> String {
        heat(&HeatMap { label: "map", rows, columns, ends: ["cold", "hot"], bad })
    }

    #[test]
    fn cells_are_as_opaque_as_hot_and_what_is_bad_has_its_colour_and_a_cross() {
        let rows = [
            HeatRow { name: "a".to_string(), cells: vec![cell(0.5, false), None, cell(7.0, false)] },
            HeatRow { name: "b".repeat(50), cells: vec![cell(0.0, true), cell(f64::NAN, false), None] },
        ];
        let steps = [1, 2, 3].map(|step| format!("step {step}"));
        let svg = drawn(&rows, &steps, "");
        assert_eq!(svg.matches("<title>").count(), 4);
        assert_eq!((svg.matches("var(--bad)").count(), svg.matches("<line ").count()), (1, 2));
        for part in ["fill-opacity=\"0.54\"", "&lt;0.5&gt;", ">step 1<", ">step 2<", ">step 3<", ">cold<", ">hot<"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(svg.contains(&format!("…{}", "b".repeat(35))) && !svg.contains(&"b".repeat(36)), "{svg}");
        assert!(drawn(&rows, &steps, "not finite").contains(">not finite<"));
        assert!(!drawn(&[], &[], "").contains("<title>"));
    }

    /// The only bad cell among many columns is drawn, whatever the number of rows.
    #[test]
    fn nothing_bad_is_lost_where_cells_are_many() {
        for n_rows in [1, 400] {
            let cells: Vec<_> = (0..10_000).map(|number| cell(0.9, number == 7_777)).collect();
            let rows = vec![HeatRow { name: "a".to_string(), cells }; n_rows];
            let svg = drawn(&rows, &[], "");
            let n_cells = svg.matches("<title>").count();
            assert!(n_cells <= MAX_CELLS && n_cells == n_rows * MAX_COLUMNS.min(MAX_CELLS / n_rows), "{n_cells}");
            assert_eq!(svg.matches("var(--bad)").count(), n_rows);
        }
    }

    /// Names of columns keep a letter's distance.
    #[test]
    fn names_of_columns_do_not_overlap() {
        for (n, longest) in [(1, 3), (2, 9), (3, 60), (17, 9), (180, 12), (9_000, 14)] {
            let columns: Vec<String> = (0..n).map(|at| format!("{at:0longest$}")).collect();
            let rows = [HeatRow { name: String::new(), cells: vec![cell(0.5, false); n] }];
            let svg = drawn(&rows, &columns, "");
            let mut spans: Vec<(f64, f64)> = Vec::new();
            for part in
                svg.split("<text ").filter(|part| columns.iter().any(|name| part.contains(&format!(">{name}<"))))
            {
                let attribute =
                    |name: &str| part.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap();
                let (x, width) = (attribute("x").parse::<f64>().unwrap(), LETTER * longest as f64);
                let from = match attribute("text-anchor") {
                    "start" => x,
                    "end" => x - width,
                    _ => x - width / 2.0,
                };
                spans.push((from, from + width));
            }
            assert!(spans.windows(2).all(|both| both[0].1 + LETTER <= both[1].0), "{n} {longest}: {spans:?}");
            assert!(spans.len() >= n.min(if longest > 20 { 1 } else { 2 }), "{n} {longest}: {spans:?}");
        }
    }
}
