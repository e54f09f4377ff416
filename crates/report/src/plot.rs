//! Plots as inline SVG: points over a program's order, and a histogram, both on a logarithmic scale.
//!
//! Written by hand: an audit's plots need a logarithmic axis with a place for zero and for infinity, names on hovering
//! and colours that follow the page's light or dark scheme (CSS variables). That is less code than adding it to a
//! plotting crate; none has the latter two (docs/DEPENDENCIES.md). Independent of HTML and of what is plotted.

pub mod curves;
pub mod heat;
pub mod lines;
pub mod timeline;
pub mod treemap;

use std::fmt::Write as _;

use super::html::escape;

/// Values of one kind.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its colour: a CSS variable of the page, such as `--born`.
    pub color: &'static str,
    /// Place along the program, value, and the text for hovering. Values are not negative.
    pub points: Vec<(usize, f64, String)>,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 58.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;
/// The largest width of a letter or digit at 12 pixels.
const LETTER: f64 = 7.5;
/// Columns of points; only the largest value of a series in each is drawn, so that a page of a long program stays
/// small.
const MAX_COLUMNS: usize = 600;
/// The smallest and the largest power of ten on an axis.
const DECADES: (i32, i32) = (-12, 12);

/// The powers of ten that enclose all values other than zero and infinity.
fn decades(series: &[Series]) -> (i32, i32) {
    let values = series.iter().flat_map(|series| &series.points).map(|point| point.1);
    let logs = values.filter(|value| *value > 0.0 && value.is_finite()).map(f64::log10);
    let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| (low.min(log), high.max(log)));
    if low > high {
        return (-3, 0);
    }
    let low = (low.floor() as i32).clamp(DECADES.0, DECADES.1 - 1);
    (low, (high.ceil() as i32).clamp(low + 1, DECADES.1))
}

fn power(exponent: i32) -> String {
    match exponent {
        0 => "1".to_string(),
        1 => "10".to_string(),
        _ => format!("1e{exponent}"),
    }
}

fn open(out: &mut String, label: &str) {
    let label = escape(label);
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">");
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let content = escape(content);
    let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = write!(out, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

fn legend(out: &mut String, series: &[Series]) {
    let mut x = LEFT;
    for Series { name, color, .. } in series {
        let _ = write!(out, "<rect x=\"{x:.1}\" y=\"8\" width=\"11\" height=\"11\" rx=\"2\" fill=\"var({color})\"/>");
        text(out, (x + 16.0, 18.0), "start", name);
        // About the width of a letter.
        x += 40.0 + 7.0 * name.chars().count() as f64;
    }
}

/// Points of each series over their places; `n_places` is the end of the axis. `limit` is drawn as a line.
pub fn along(label: &str, x_label: &str, n_places: usize, series: &[Series], limit: Option<f64>) -> String {
    let (low, high) = decades(series);
    let (bottom, top) = (HEIGHT - BOTTOM, TOP + 12.0);
    // Zero has its own line at the bottom, infinity one at the top.
    let (floor, ceiling) = (bottom - 16.0, top + 14.0);
    let y_of = |value: f64| match value {
        0.0 => bottom,
        v if v.is_infinite() => top,
        v => {
            let log = v.log10().clamp(f64::from(low), f64::from(high));
            floor - (log - f64::from(low)) / f64::from(high - low) * (floor - ceiling)
        }
    };
    let width = WIDTH - LEFT - RIGHT;
    let x_of = |place: usize| LEFT + (place as f64 + 0.5) / n_places.max(1) as f64 * width;
    let mut out = String::new();
    open(&mut out, label);
    let step = ((high - low) / 6 + 1) as usize;
    for exponent in (low..=high).step_by(step) {
        let y = y_of(10f64.powi(exponent));
        line(&mut out, "grid", (LEFT, y), (WIDTH - RIGHT, y));
        text(&mut out, (LEFT - 8.0, y + 4.0), "end", &power(exponent));
    }
    let points = || series.iter().flat_map(|series| &series.points);
    if points().any(|point| point.1.is_infinite()) {
        text(&mut out, (LEFT - 8.0, top + 4.0), "end", "not finite");
        line(&mut out, "grid", (LEFT, top), (WIDTH - RIGHT, top));
    }
    line(&mut out, "axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
    text(&mut out, (LEFT - 8.0, bottom + 4.0), "end", "0");
    text(&mut out, (LEFT, HEIGHT - 8.0), "start", "first");
    text(&mut out, (LEFT + width / 2.0, HEIGHT - 8.0), "middle", x_label);
    text(&mut out, (WIDTH - RIGHT, HEIGHT - 8.0), "end", "last");
    if let Some(limit) = limit {
        line(&mut out, "limit", (LEFT, y_of(limit)), (WIDTH - RIGHT, y_of(limit)));
        text(&mut out, (WIDTH - RIGHT + 6.0, y_of(limit) + 4.0), "start", "budget");
    }
    for Series { color, points, .. } in series {
        let _ = write!(out, "<g fill=\"var({color})\">");
        for (place, value, name) in greatest_of_columns(points, n_places) {
            let (x, y) = (x_of(*place), y_of(*value));
            let name = escape(name);
            let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"><title>{name}</title></circle>");
        }
        out.push_str("</g>");
    }
    legend(&mut out, series);
    out.push_str("</svg>");
    out
}

/// The largest point of each column; all points if they are few.
fn greatest_of_columns(points: &[(usize, f64, String)], n_places: usize) -> Vec<&(usize, f64, String)> {
    if points.len() <= MAX_COLUMNS {
        return points.iter().collect();
    }
    let mut columns: Vec<Option<&(usize, f64, String)>> = vec![None; MAX_COLUMNS];
    for point in points {
        let column = &mut columns[(point.0 * MAX_COLUMNS / n_places.max(1)).min(MAX_COLUMNS - 1)];
        if column.is_none_or(|greatest| greatest.1 < point.1) {
            *column = Some(point);
        }
    }
    columns.into_iter().flatten().collect()
}

/// A histogram of each series with bins of half a power of ten, with zero at the left and infinity at the right.
pub fn histogram(label: &str, x_label: &str, series: &[Series]) -> String {
    let (low, high) = decades(series);
    let n_bins = 2 * (high - low) as usize + 2;
    let bin_of = |value: f64| match value {
        0.0 => 0,
        v if v.is_infinite() => n_bins - 1,
        v => 1 + ((v.log10() - f64::from(low)) * 2.0).clamp(0.0, (n_bins - 3) as f64) as usize,
    };
    let counts: Vec<Vec<usize>> = (series.iter())
        .map(|series| {
            let mut counts = vec![0; n_bins];
            series.points.iter().for_each(|point| counts[bin_of(point.1)] += 1);
            counts
        })
        .collect();
    let most = counts.iter().flatten().copied().max().unwrap_or(0).max(1);
    let (bottom, height) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP - 8.0);
    let bin_width = (WIDTH - LEFT - RIGHT) / n_bins as f64;
    let mut out = String::new();
    open(&mut out, label);
    for tick in ticks(most) {
        let y = bottom - tick as f64 / most as f64 * height;
        line(&mut out, "grid", (LEFT, y), (WIDTH - RIGHT, y));
        text(&mut out, (LEFT - 8.0, y + 4.0), "end", &tick.to_string());
    }
    let bar = (bin_width - 4.0) / series.len().max(1) as f64;
    for (place, (Series { name, color, .. }, counts)) in series.iter().zip(&counts).enumerate() {
        let _ = write!(out, "<g fill=\"var({color})\">");
        for (bin, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let x = LEFT + bin as f64 * bin_width + 2.0 + place as f64 * bar;
            let n_high = count as f64 / most as f64 * height;
            let (y, name) = (bottom - n_high, escape(name));
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{n_high:.1}\"><title>{name}: {count}</title></rect>",
                bar - 1.0
            );
        }
        out.push_str("</g>");
    }
    line(&mut out, "axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
    // Both ends are always labelled; the powers between them if there is room.
    let (zero, infinity) = (LEFT + bin_width / 2.0, WIDTH - RIGHT - bin_width / 2.0);
    text(&mut out, (zero, bottom + 15.0), "middle", "0");
    text(&mut out, (infinity, bottom + 15.0), "middle", "∞");
    let mut free = (zero + LETTER, infinity - LETTER);
    for exponent in low..=high {
        let x = LEFT + (1 + 2 * (exponent - low)) as f64 * bin_width;
        let half = LETTER / 2.0 * power(exponent).chars().count() as f64;
        if x - half >= free.0 && x + half <= free.1 {
            text(&mut out, (x, bottom + 15.0), "middle", &power(exponent));
            free.0 = x + half + LETTER / 2.0;
        }
    }
    text(&mut out, (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, HEIGHT - 8.0), "middle", x_label);
    legend(&mut out, series);
    out.push_str("</svg>");
    out
}

/// Up to five round numbers from 0 to `most`.
fn ticks(most: usize) -> Vec<usize> {
    let mut step = 1;
    while most / step > 4 {
        // 1, 2, 5, 10, 20, …
        step = if step.to_string().starts_with('2') { step * 5 / 2 } else { step * 2 };
    }
    (0..=most).step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let points = values.iter().enumerate().map(|(place, &value)| (place, value, format!("<{place}>"))).collect();
        Series { name: "born".to_string(), color: "--born", points }
    }

    #[test]
    fn axes_hold_all_values() {
        assert_eq!(decades(&[series(&[0.0, 3e-4, f64::INFINITY, 0.2])]), (-4, 0));
        assert_eq!(decades(&[series(&[0.0])]), (-3, 0));
        assert_eq!(decades(&[series(&[1.0])]), (0, 1));
        assert_eq!(decades(&[series(&[1e-300, 1e300])]), DECADES);
        assert_eq!(ticks(3), [0, 1, 2, 3]);
        assert_eq!(ticks(1000), [0, 500, 1000]);
    }

    #[test]
    fn every_point_is_drawn_and_no_text_is_markup() {
        let svg = along("errors", "program", 3, &[series(&[0.0, 1e-3, f64::INFINITY])], Some(1e-2));
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("&lt;1&gt;") && !svg.contains("<1>"));
        assert!(svg.contains("not finite") && svg.contains("budget") && !svg.contains("NaN"));
        let svg = histogram("errors", "error", &[series(&[0.0, 1e-3, 1.1e-3, f64::INFINITY])]);
        assert!(svg.contains("born: 2"));
        assert_eq!(svg.matches("born: 1").count(), 2);
    }

    /// Labels below a histogram are separate, however many powers of ten there are.
    #[test]
    fn labels_of_a_histogram_do_not_overlap() {
        for values in [[1e-12, 1e12], [1e-3, 0.5], [1e-9, 1e-8], [0.0, f64::INFINITY]] {
            let svg = histogram("errors", "error", &[series(&values)]);
            let below = format!(" y=\"{:.1}\"", HEIGHT - BOTTOM + 15.0);
            let mut extents: Vec<(f64, f64)> = Vec::new();
            for label in svg.split("<text x=\"").skip(1).filter(|label| label.contains(&below)) {
                let x: f64 = label.split('"').next().unwrap().parse().unwrap();
                let n = label.split(['>', '<']).nth(1).unwrap().chars().count();
                extents.push((x - 3.35 * n as f64, x + 3.35 * n as f64));
            }
            extents.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(extents.len() > 2, "{svg}");
            assert!(extents.windows(2).all(|two| two[0].1 < two[1].0), "{values:?}: {extents:?}");
        }
    }

    #[test]
    fn a_long_program_is_drawn_by_its_greatest_points() {
        let mut values = vec![1e-6; 20_000];
        values[12_345] = 0.5;
        let svg = along("errors", "program", values.len(), &[series(&values)], None);
        assert_eq!(svg.matches("<circle").count(), MAX_COLUMNS);
        assert!(svg.contains("&lt;12345&gt;"));
    }
}
