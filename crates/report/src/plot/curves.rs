//! Curves over powers of two, in panels below each other: for quantities that depend on the batch.

use std::fmt::Write as _;

use super::{LEFT, LETTER, RIGHT, WIDTH, line, text};
use crate::html::escape;

/// Axes with curves.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// The format of a value on the vertical axis.
    pub unit: fn(f64) -> String,
    /// Its curves.
    pub curves: Vec<Curve>,
    /// A horizontal line for a value that cannot be exceeded, and its name.
    pub limit: Option<(f64, String)>,
    /// Where points without a value are marked.
    pub cross: Cross,
}

/// Where a cross is drawn, so that it is not mistaken for the best value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cross {
    /// At the limit, or at the top: for a point that takes too much.
    AtLimit,
    /// On the axis: for a point that does not run at all.
    AtZero,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its colour: a CSS variable of the page, such as `--born`.
    pub color: &'static str,
    /// Points from left to right.
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Clone, Debug)]
pub struct Point {
    /// The horizontal coordinate; greater than 0.
    pub x: f64,
    /// The vertical coordinate; not negative. `None`: there is no value here, and a [`Cross`] is drawn instead.
    pub y: Option<f64>,
    /// The text for hovering.
    pub hover: String,
    /// Whether it is drawn larger, for example the best.
    pub is_marked: bool,
}

const PANEL: f64 = 270.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 44.0;

/// Panels below each other, over a shared logarithmic axis to base two.
pub fn panels(label: &str, x_label: &str, panels: &[Panel]) -> String {
    let height = PANEL * panels.len() as f64;
    let mut out = String::new();
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(label));
    let points = || panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
    let logs = points().map(|point| point.x.log2());
    let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| (low.min(log), high.max(log)));
    // A single place is in the middle.
    let (low, high) = if low < high {
        (low, high)
    } else if low == high {
        (low - 1.0, high + 1.0)
    } else {
        (0.0, 1.0)
    };
    let inset = 24.0;
    let n_letters = panels.iter().flat_map(|panel| panel.scale().1).map(|(_, label)| label.chars().count()).max();
    let left = LEFT.max(16.0 + LETTER * n_letters.unwrap_or(0) as f64);
    let width = WIDTH - left - RIGHT - 2.0 * inset;
    let x_of = |x: f64| left + inset + (x.log2() - low) / (high - low) * width;
    for (place, panel) in panels.iter().enumerate() {
        panel.draw(&mut out, (left, PANEL * place as f64), x_label, (low, high), x_of);
    }
    out.push_str("</svg>");
    out
}

impl Panel {
    /// The end of the vertical axis, and its labels.
    fn scale(&self) -> (f64, Vec<(f64, String)>) {
        let values = self.curves.iter().flat_map(|curve| &curve.points).filter_map(|point| point.y);
        let greatest = values.fold(self.limit.as_ref().map_or(0.0, |limit| limit.0), f64::max);
        let step = round_step(greatest);
        let ceiling = (greatest / step).ceil().max(1.0) * step;
        let label = |tick: u32| {
            let value = f64::from(tick) * step;
            // A multiple of 0.2 may be an ulp off.
            (value, (self.unit)((value * 1e12).round() / 1e12))
        };
        (ceiling, (0..=(ceiling / step).round() as u32).map(label).collect())
    }

    fn draw(
        &self,
        out: &mut String,
        (left, y0): (f64, f64),
        x_label: &str,
        (low, high): (f64, f64),
        x_of: impl Fn(f64) -> f64,
    ) {
        let (top, bottom) = (y0 + TOP, y0 + PANEL - BOTTOM);
        let (ceiling, labels) = self.scale();
        let y_of = |y: f64| bottom - y / ceiling * (bottom - top);
        text(out, (left, y0 + 20.0), "start", &self.title);
        for (value, label) in labels {
            let class = if value == 0.0 { "axis" } else { "grid" };
            line(out, class, (left, y_of(value)), (WIDTH - RIGHT, y_of(value)));
            text(out, (left - 8.0, y_of(value) + 4.0), "end", &label);
        }
        for power in low.ceil() as i32..=high.floor() as i32 {
            let x = 2f64.powi(power);
            line(out, "grid", (x_of(x), top), (x_of(x), bottom));
            text(out, (x_of(x), bottom + 16.0), "middle", &x.to_string());
        }
        text(out, (left + (WIDTH - left - RIGHT) / 2.0, bottom + 34.0), "middle", x_label);
        let mut at_limit = if self.cross == Cross::AtZero { bottom } else { top };
        if let Some((limit, name)) = &self.limit {
            at_limit = y_of(*limit);
            line(out, "limit", (left, at_limit), (WIDTH - RIGHT, at_limit));
            text(out, (left + 6.0, at_limit - 6.0), "start", name);
        }
        let n_curves = self.curves.len();
        for (place, curve) in self.curves.iter().enumerate() {
            // Shifted, because crosses of several curves would hide each other.
            let shift = 9.0 * (place as f64 - (n_curves as f64 - 1.0) / 2.0);
            curve.draw(out, &x_of, y_of, (at_limit, shift));
        }
        let mut x = WIDTH - RIGHT;
        for Curve { name, color, .. } in self.curves.iter().rev() {
            x -= 34.0 + 7.0 * name.chars().count() as f64;
            let y = y0 + 10.0;
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"var({color})\"/>"
            );
            text(out, (x + 16.0, y0 + 20.0), "start", name);
        }
    }
}

impl Curve {
    fn draw(&self, out: &mut String, x_of: impl Fn(f64) -> f64, y_of: impl Fn(f64) -> f64, cross: (f64, f64)) {
        let color = self.color;
        let path: Vec<String> = (self.points.iter())
            .filter_map(|point| Some(format!("{:.1},{:.1}", x_of(point.x), y_of(point.y?))))
            .collect();
        let path = path.join(" ");
        let _ = write!(out, "<polyline fill=\"none\" stroke=\"var({color})\" stroke-width=\"2\" points=\"{path}\"/>");
        for Point { x, y, hover, is_marked } in &self.points {
            let (x, hover) = (x_of(*x), escape(hover));
            let _ = match y {
                Some(y) => {
                    let (y, r) = (y_of(*y), if *is_marked { 6.0 } else { 3.5 });
                    write!(
                        out,
                        "<circle fill=\"var({color})\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"><title>{hover}</title></circle>"
                    )
                }
                None => {
                    let (x, y) = (x + cross.1, cross.0);
                    let (left, right, up, down) = (x - 4.0, x + 4.0, y - 4.0, y + 4.0);
                    write!(
                        out,
                        "<path class=\"cross\" stroke=\"var({color})\" stroke-width=\"2\" d=\"M{left:.1} {up:.1}L{right:.1} \
                         {down:.1}M{left:.1} {down:.1}L{right:.1} {up:.1}\"><title>{hover}</title></path>"
                    )
                }
            };
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides the axis into about five parts.
fn round_step(greatest: f64) -> f64 {
    if greatest.is_nan() || greatest <= 0.0 || greatest.is_infinite() {
        return 1.0;
    }
    let power = 10f64.powf((greatest / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| greatest / step <= 5.0).unwrap_or(10.0 * power)
}

/// A picture as a standalone file: with the XML namespace, and the page's colours.
pub fn standalone(svg: &str) -> String {
    svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" ", 1).replacen(
        '>',
        &format!("><style>{STYLE}</style><rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>"),
        1,
    )
}

/// The colours of [`crate::html`]'s page that plots use.
const STYLE: &str = "
svg { color-scheme: light dark; --ink: #1d232b; --soft: #5b6572; --paper: #ffffff; --line: #dbe0e6; --born: #c2500a;
  --error: #1f6fb2; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { svg { --ink: #e6eaf0; --soft: #9aa5b3; --paper: #14181d; --line: #343c46;
  --born: #f2894a; --error: #64aee8; --bad: #ff8a80; } }
text { font: 12px system-ui, sans-serif; fill: var(--soft); } .grid { stroke: var(--line); } .axis { stroke: var(--soft); }
.limit { stroke: var(--bad); stroke-dasharray: 6 4; }
";

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let point = |x: f64, y: Option<f64>| Point { x, y, hover: format!("<{x}>"), is_marked: x == 64.0 };
        let points = vec![point(64.0, Some(10.0)), point(96.0, Some(12.0)), point(128.0, None)];
        Panel {
            title: "memory & more".to_string(),
            unit: |value| format!("{value} GiB"),
            curves: vec![Curve { name: "f32".to_string(), color: "--error", points }],
            limit: Some((16.0, "limit".to_string())),
            cross: Cross::AtLimit,
        }
    }

    /// The y of the first cross's upper end.
    fn cross_at(svg: &str) -> f64 {
        let (_, path) = svg.split_once("class=\"cross\"").unwrap();
        let (_, from) = path.split_once(" d=\"M").unwrap();
        from.split([' ', 'L']).nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn what_has_no_speed_is_not_drawn_as_the_fastest() {
        let mut speed = panel();
        speed.limit = None;
        let at_top = cross_at(&panels("speed", "batch", &[speed.clone()]));
        speed.cross = Cross::AtZero;
        let at_zero = cross_at(&panels("speed", "batch", &[speed]));
        assert!(at_top == TOP - 4.0 && at_zero == PANEL - BOTTOM - 4.0, "{at_top} {at_zero}");
    }

    /// Labels end 8 pixels left of the axis, and begin within the picture.
    #[test]
    fn long_labels_have_room() {
        let left_of = |unit: fn(f64) -> String| {
            let mut panel = panel();
            panel.unit = unit;
            let svg = panels("speed", "batch", &[panel]);
            let (_, axis) = svg.split_once("class=\"axis\" x1=\"").unwrap();
            axis.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(left_of(|value| format!("{value}")), LEFT);
        assert!(left_of(|value| format!("{value:010}")) >= 8.0 + 10.0 * 6.7);
    }

    #[test]
    fn every_point_is_drawn_and_no_text_is_markup() {
        let svg = panels("memory", "batch", &[panel(), panel()]);
        assert_eq!((svg.matches("<circle").count(), svg.matches("class=\"cross\"").count()), (4, 2));
        assert_eq!((svg.matches("<polyline").count(), svg.matches("class=\"limit\"").count()), (2, 2));
        assert!(svg.contains("&lt;96&gt;") && svg.contains("memory &amp; more") && !svg.contains("NaN"), "{svg}");
        // Whole powers of two are on the axis, and the limit's 16 GiB are below its end.
        assert!(svg.contains(">64</text>") && svg.contains(">128</text>") && svg.contains(">20 GiB</text>"), "{svg}");
    }

    #[test]
    fn nothing_and_a_single_place_are_drawn_too() {
        let mut one = panel();
        one.curves[0].points.truncate(1);
        one.limit = None;
        for svg in [panels("one", "batch", &[one]), panels("none", "batch", &[])] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let mut empty = panel();
        empty.curves.clear();
        assert!(!panels("empty", "batch", &[empty]).contains("NaN"));
    }

    #[test]
    fn steps_are_round() {
        for (greatest, step) in [(7.48, 2.0), (0.78, 0.2), (726.0, 200.0), (5.0, 1.0), (0.0, 1.0), (1e-9, 2e-10)] {
            assert!((round_step(greatest) / step - 1.0).abs() < 1e-12, "{greatest}: {}", round_step(greatest));
        }
    }

    #[test]
    fn a_file_of_its_own_brings_its_colours() {
        let svg = standalone(&panels("memory", "batch", &[panel()]));
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "), "{svg}");
        for variable in ["--born", "--error", "--soft", "--bad", "--line", "--paper"] {
            assert_eq!(svg.matches(&format!("{variable}: #")).count(), 2, "{variable}");
        }
    }
}
