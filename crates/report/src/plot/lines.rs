//! Values of several runs over their steps: lines, each with its own colour and pattern.
//!
//! A long run is drawn by columns of steps, with the smallest and the largest value of each, so that no spike is lost
//! and the picture stays small. A value that is not finite is a cross at the top, and the line breaks there. Hovering
//! over a strip shows each line's value at its steps, without a script.

use std::fmt::Write as _;

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, line, open, text};
use crate::html::escape;

/// Columns of a line, if it has more than two points for each.
pub const N_COLUMNS: usize = 400;
/// Strips that show values on hovering.
const N_STRIPS: usize = 120;

/// Colours that the colour-blind can distinguish (after Okabe and Ito), as variables of the page, darker or lighter for
/// its scheme.
const COLORS: [&str; 6] = ["--line1", "--line2", "--line3", "--line4", "--line5", "--line6"];
/// Patterns, for more lines than there are colours, and for prints without colour.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "10 3 2 3"];
/// More lines than this would not be distinguishable.
pub const MAX_LINES: usize = COLORS.len() * DASHES.len();

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Which of [`MAX_LINES`] looks it has: the same in every plot of a page.
    pub look: usize,
    /// Steps, ascending, and values.
    pub points: Vec<(u64, f64)>,
}

/// The scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// From the smallest value to the largest.
    Linear,
    /// Powers of ten.
    Logarithmic,
}

impl Axis {
    /// Logarithmic for positive values whose greatest is more than 30 times the least.
    pub fn for_lines(lines: &[Line]) -> Axis {
        let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1).filter(|value| value.is_finite());
        let (low, high) = bounds(values);
        if low > 0.0 && high > 30.0 * low { Axis::Logarithmic } else { Axis::Linear }
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The plot, and the text of its last strip. `show` formats a value.
pub fn lines(label: &str, lines: &[Line], axis: Axis, show: impl Fn(f64) -> String) -> String {
    let steps = lines.iter().flat_map(|line| &line.points).map(|point| point.0 as f64);
    let (first, last) = match bounds(steps) {
        (first, last) if first < last => (first, last),
        // A single step is in the middle.
        (first, last) if first == last => (first - 1.0, last + 1.0),
        _ => (0.0, 1.0),
    };
    let scale = Scale::new(lines, axis);
    let rows = rows(lines);
    let top = 14.0 + 18.0 * rows.len() as f64;
    let (left, right) = (LEFT + 24.0, WIDTH - RIGHT);
    let (height, bottom) = (HEIGHT + top, HEIGHT + top - BOTTOM);
    let x_of = |step: f64| left + (step - first) / (last - first) * (right - left);
    let y_of = |value: f64| bottom - scale.share(value) * (bottom - top - 12.0);
    let mut out = String::new();
    open(&mut out, label);
    out = out.replacen(&format!("{WIDTH} {HEIGHT}"), &format!("{WIDTH} {height}"), 1);
    for value in scale.ticks() {
        line(&mut out, "grid", (left, y_of(value)), (right, y_of(value)));
        text(&mut out, (left - 8.0, y_of(value) + 4.0), "end", &show(value));
    }
    line(&mut out, "axis", (left, bottom), (right, bottom));
    for step in round_ticks(first, last).into_iter().filter(|step| *step >= 0.0 && step.fract() == 0.0) {
        text(&mut out, (x_of(step), bottom + 16.0), "middle", &crate::grouped(step as i64));
    }
    text(&mut out, ((left + right) / 2.0, bottom + 34.0), "middle", "step");
    for (nth, one) in lines.iter().enumerate() {
        // Lines below others are wider, by more than a pixel on each side so that antialiasing does not blend them into
        // another colour.
        let width = 1.6 + 2.6 * (lines.len() - 1 - nth).min(3) as f64;
        draw(&mut out, one, width, (first, last), x_of, y_of, top);
    }
    for (row, members) in rows.iter().enumerate() {
        let mut x = left;
        for one in members {
            let y = 14.0 + 18.0 * row as f64;
            let stroke = stroke(one.look, 2.5);
            let _ = write!(out, "<path {stroke} d=\"M{x:.1} {y:.1}h26\"/>");
            text(&mut out, (x + 32.0, y + 4.0), "start", &one.name);
            x += legend_width(one);
        }
    }
    let strips = strips(lines, (first, last), show);
    let width = (right - left) / N_STRIPS as f64;
    for (place, said) in strips.iter().enumerate().filter(|(_, said)| !said.is_empty()) {
        let (x, title) = (left + place as f64 * width, escape(said));
        let _ = write!(
            out,
            "<rect class=\"moment\" x=\"{x:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{:.1}\"><title>{title}</title></rect>",
            bottom - top
        );
    }
    out.push_str("</svg>");
    let last = strips.iter().rev().find(|text| !text.is_empty()).map_or(String::new(), |said| escape(said));
    // As high as its lines.
    let height = 1.4 + 1.45 * lines.len() as f64;
    let _ = write!(out, "<pre class=\"readout\" style=\"min-height:{height:.2}em\">{last}</pre>");
    out
}

fn stroke(look: usize, width: f64) -> String {
    let (color, dash) = (COLORS[look % COLORS.len()], DASHES[look / COLORS.len() % DASHES.len()]);
    let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    format!("class=\"line\" fill=\"none\" stroke=\"var({color})\" stroke-width=\"{width}\"{dash}")
}

/// The approximate width of the name and its sample.
fn legend_width(line: &Line) -> f64 {
    56.0 + 7.0 * line.name.chars().count() as f64
}

/// The legend's rows.
fn rows(lines: &[Line]) -> Vec<Vec<&Line>> {
    let (mut rows, mut x): (Vec<Vec<&Line>>, f64) = (Vec::new(), f64::INFINITY);
    for line in lines {
        if x + legend_width(line) > WIDTH - RIGHT {
            rows.push(Vec::new());
            x = LEFT + 24.0;
        }
        x += legend_width(line);
        rows.last_mut().expect("the first line begins one").push(line);
    }
    rows
}

/// The position of values.
struct Scale {
    low: f64,
    high: f64,
    axis: Axis,
}

impl Scale {
    fn new(lines: &[Line], axis: Axis) -> Scale {
        let all = lines.iter().flat_map(|line| &line.points).map(|point| point.1).filter(|value| value.is_finite());
        let (low, high) = match axis {
            Axis::Linear => bounds(all),
            Axis::Logarithmic => bounds(all.filter(|value| *value > 0.0).map(f64::log10)),
        };
        // Finite even for huge ranges, and never empty.
        let (low, high) = if low > high { (0.0, 1.0) } else { (low.max(-1e300), high.min(1e300)) };
        let least = (low.abs().max(high.abs()) * 1e-9).max(1e-300);
        let (low, high) = if high - low > least {
            (low, high)
        } else {
            (low - least.max(0.5 * low.abs()), high + least.max(0.5 * high.abs()))
        };
        Scale { low, high, axis }
    }

    /// From 0 at the bottom to 1 at the top.
    fn share(&self, value: f64) -> f64 {
        let value = match self.axis {
            Axis::Linear => value,
            Axis::Logarithmic if value > 0.0 => value.log10(),
            Axis::Logarithmic => self.low,
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.axis {
            Axis::Linear => round_ticks(self.low, self.high),
            Axis::Logarithmic => {
                let (low, high) = (self.low.floor() as i32, self.high.ceil() as i32);
                // Within two powers of ten, also 2 and 5 times them.
                let factors: &[f64] = if high - low <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let step = ((high - low) / 6 + 1) as usize;
                let powers = (low..=high).step_by(step).map(|power| 10f64.powi(power));
                let all = powers.flat_map(|power| factors.iter().map(move |factor| power * factor));
                all.filter(|value| (self.low..=self.high).contains(&value.log10())).collect()
            }
        }
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, about five of them.
fn round_ticks(low: f64, high: f64) -> Vec<f64> {
    let power = 10f64.powf(((high - low) / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| (high - low) / step <= 6.0);
    let Some(step) = step.filter(|step| step.is_normal()) else { return Vec::new() };
    let (first, last) = ((low / step).ceil(), (high / step).floor());
    // Beyond 2^53, multiples are no longer exact whole numbers.
    if !(first.abs() < 9e15 && last.abs() < 9e15) {
        return Vec::new();
    }
    // Divided by 5 for steps of a fifth: a multiple of 0.2 may be an ulp off.
    let multiple = |nth: f64| if step < 1.0 { nth / (1.0 / step).round() } else { nth * step };
    (first as i64..=last as i64).map(|nth| multiple(nth as f64)).collect()
}

/// The smallest and the largest value of each column, in the order of their steps; all points if there are few.
fn thinned(points: &[(u64, f64)], (first, last): (f64, f64)) -> Vec<(u64, f64)> {
    if points.len() <= 2 * N_COLUMNS {
        return points.to_vec();
    }
    let column =
        |step: u64| ((step as f64 - first) / (last - first) * N_COLUMNS as f64).min(N_COLUMNS as f64 - 1.0) as usize;
    let mut out = Vec::with_capacity(2 * N_COLUMNS);
    for part in points.chunk_by(|a, b| column(a.0) == column(b.0)) {
        let finite = || part.iter().filter(|point| point.1.is_finite());
        let least = finite().min_by(|a, b| a.1.total_cmp(&b.1));
        let greatest = finite().max_by(|a, b| a.1.total_cmp(&b.1));
        // One non-finite value per column is enough to show it.
        let mut column_points: Vec<(u64, f64)> =
            [least, greatest, part.iter().find(|point| !point.1.is_finite())].into_iter().flatten().copied().collect();
        column_points.sort_by_key(|point| point.0);
        column_points.dedup_by_key(|point| point.0);
        out.extend(column_points);
    }
    out
}

fn draw(
    out: &mut String,
    one: &Line,
    width: f64,
    range: (f64, f64),
    x_of: impl Fn(f64) -> f64,
    y_of: impl Fn(f64) -> f64,
    top: f64,
) {
    let points = thinned(&one.points, range);
    let mut path = String::new();
    for part in points.split(|point| !point.1.is_finite()) {
        for (nth, (step, value)) in part.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if nth == 0 { 'M' } else { 'L' }, x_of(*step as f64), y_of(*value));
        }
        // A point between two breaks is a dot.
        if part.len() == 1 {
            path.push_str("h0");
        }
    }
    let stroke = stroke(one.look, width);
    let _ = write!(out, "<path {stroke} stroke-linecap=\"round\" data-name=\"{}\" d=\"{path}\"/>", escape(&one.name));
    for (step, _) in points.iter().filter(|point| !point.1.is_finite()) {
        let (x, y) = (x_of(*step as f64), top + 4.0);
        let color = COLORS[one.look % COLORS.len()];
        let _ = write!(
            out,
            "<path class=\"cross\" stroke=\"var({color})\" stroke-width=\"1.8\" d=\"M{:.1} {:.1}l7 7m-7 0l7 -7\"/>",
            x - 3.5,
            y - 3.5
        );
    }
}

/// The text of each strip: the last step of each line in it, with its value.
fn strips(lines: &[Line], (first, last): (f64, f64), show: impl Fn(f64) -> String) -> Vec<String> {
    let mut out = vec![String::new(); N_STRIPS];
    let n_letters = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    for line in lines {
        let mut at = 0;
        for (place, said) in out.iter_mut().enumerate() {
            let end = first + (last - first) * (place + 1) as f64 / N_STRIPS as f64;
            let n_before = line.points[at..].partition_point(|point| (point.0 as f64) <= end);
            if let Some((step, value)) = line.points[at..at + n_before].last() {
                let begin = if said.is_empty() { "" } else { "\n" };
                let _ = write!(said, "{begin}{:<n_letters$}  step {step}: {}", line.name, show(*value));
            }
            at += n_before;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(name: &str, look: usize, values: &[f64]) -> Line {
        let points = values.iter().enumerate().map(|(step, value)| (step as u64 + 1, *value)).collect();
        Line { name: name.to_string(), look, points }
    }

    fn plot(all: &[Line]) -> String {
        let svg = lines("loss", all, Axis::for_lines(all), |value| format!("{value:.3}"));
        assert!(!svg.contains("\"NaN") && !svg.contains(" NaN") && !svg.contains("inf"), "{svg}");
        svg
    }

    #[test]
    fn a_long_run_keeps_its_extremes_and_is_small() {
        let mut values = vec![1.0; 1_000_000];
        (values[123_456], values[123_457], values[777_777]) = (9.5, 0.25, f64::NAN);
        let long = line_of("f32", 0, &values);
        let drawn = thinned(&long.points, (1.0, 1e6));
        assert!(drawn.len() <= 3 * N_COLUMNS && drawn.is_sorted_by_key(|point| point.0), "{}", drawn.len());
        assert!(drawn.contains(&(123_457, 9.5)) && drawn.contains(&(123_458, 0.25)));
        let svg = lines("loss", &[long], Axis::Linear, |value| value.to_string().replace("NaN", "not a number"));
        assert!(svg.len() < 40_000 && svg.matches("class=\"cross\"").count() == 1, "{}", svg.len());
        // If there are few points, all are drawn.
        let few = line_of("f32", 0, &vec![1.0; 2 * N_COLUMNS]);
        assert_eq!(thinned(&few.points, (1.0, 800.0)).len(), 2 * N_COLUMNS);
    }

    #[test]
    fn lines_break_at_what_is_not_finite_and_no_text_is_markup() {
        let all = [line_of("a<b>", 0, &[1.0, f64::INFINITY, 0.5, 0.25]), line_of("c", 7, &[0.5, 0.5, 0.5, 0.5])];
        let svg =
            lines(
                "loss",
                &all,
                Axis::Linear,
                |value| if value.is_finite() { value.to_string() } else { "∞".to_string() },
            );
        assert!(svg.contains("data-name=\"a&lt;b&gt;\"") && !svg.contains("<b>"), "{svg}");
        assert_eq!((svg.matches("class=\"cross\"").count(), svg.matches("h0").count()), (1, 1));
        assert!(svg.contains("<title>a&lt;b&gt;  step 2: ∞\nc     step 2: 0.5</title>"), "{svg}");
        assert!(svg.ends_with("em\">a&lt;b&gt;  step 4: 0.25\nc     step 4: 0.5</pre>"), "{svg}");
        assert!(svg.contains("var(--line2)") && svg.contains("stroke-dasharray=\"7 4\""), "{svg}");
    }

    #[test]
    fn axes_hold_whatever_there_is() {
        assert_eq!(Axis::for_lines(&[line_of("a", 0, &[0.001, 1.0])]), Axis::Logarithmic);
        for values in [&[0.0, 1.0][..], &[-1.0, 1.0], &[0.5, 1.0], &[f64::NAN], &[]] {
            assert_eq!(Axis::for_lines(&[line_of("a", 0, values)]), Axis::Linear, "{values:?}");
        }
        for values in [
            &[][..],
            &[f64::NAN, f64::INFINITY],
            &[0.0],
            &[3.0, 3.0],
            &[f64::MAX, f64::MIN],
            &[f64::MIN_POSITIVE, f64::MAX],
            &[5e-324, 0.0],
        ] {
            let svg =
                lines("x", &[line_of("a", 0, values)], Axis::for_lines(&[line_of("a", 0, values)]), |_| String::new());
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
        }
        let huge = Line { name: "a".to_string(), look: 0, points: vec![(0, 1.0), (u64::MAX, 2.0)] };
        plot(&[huge]);
        plot(&[]);
        assert_eq!(round_ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(round_ticks(1.0, 88.0), [20.0, 40.0, 60.0, 80.0]);
    }

    /// Each lower one of several coinciding lines is visible by more than a pixel on either side.
    #[test]
    fn lines_on_one_another_are_seen_by_more_than_a_pixel() {
        let same = |look| line_of("run", look, &[0.5, 0.25]);
        let svg = lines("loss", &[same(0), same(1), same(2)], Axis::Linear, |value| value.to_string());
        let widths = svg.split("class=\"line\"").skip(1).filter_map(|path| path.split("stroke-width=\"").nth(1));
        let widths = widths.map(|rest| rest.split('"').next().unwrap());
        let widths: Vec<f64> = widths.map(|width| width.parse().unwrap()).take(3).collect();
        assert!(widths.windows(2).all(|two| two[0] - two[1] > 2.0), "{widths:?}");
    }

    #[test]
    fn a_legend_of_many_takes_rows() {
        let all: Vec<Line> = (0..MAX_LINES).map(|look| line_of(&format!("digits-bf16-{look}"), look, &[1.0])).collect();
        let strokes: std::collections::BTreeSet<String> = (0..MAX_LINES).map(|look| stroke(look, 2.0)).collect();
        assert_eq!(strokes.len(), MAX_LINES);
        assert!(rows(&all).len() > 3);
        plot(&all);
    }
}
