//! A quantity over the steps of a program as a filled curve; the figure's text describes each moment.
//!
//! Each moment is a strip with its own `<title>`, so hovering works without a script; with the page's script, the text
//! below the curve follows the pointer. It begins with the largest moment.

use std::fmt::Write as _;

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, line, open, text};
use crate::html::escape;

/// A stretch of the program.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The quantity.
    pub value: f64,
    /// The text for hovering, in lines.
    pub text: String,
}

/// The curve of all moments, and the text of the largest one. `show` formats a value for the axis.
pub fn timeline(label: &str, moments: &[Moment], show: impl Fn(f64) -> String) -> String {
    let most = moments.iter().map(|moment| moment.value).fold(0.0, f64::max);
    let scale = if most > 0.0 { most } else { 1.0 };
    let (left, right, bottom) = (LEFT + 24.0, WIDTH - RIGHT, HEIGHT - BOTTOM);
    let height = bottom - TOP;
    let width = (right - left) / moments.len().max(1) as f64;
    let y_of = |value: f64| bottom - value / scale * height;
    let x_of = |place: usize| left + place as f64 * width;
    let mut out = String::new();
    open(&mut out, label);
    for quarter in 0..=4 {
        let value = most * f64::from(quarter) / 4.0;
        line(&mut out, "grid", (left, y_of(value)), (right, y_of(value)));
        text(&mut out, (left - 8.0, y_of(value) + 4.0), "end", &show(value));
    }
    let mut path = format!("M{left:.1} {bottom:.1}");
    for (place, moment) in moments.iter().enumerate() {
        let y = y_of(moment.value);
        let _ = write!(path, "L{:.2} {y:.1}L{:.2} {y:.1}", x_of(place), x_of(place + 1));
    }
    let _ = write!(out, "<path class=\"area\" d=\"{path}L{right:.1} {bottom:.1}Z\"/>");
    line(&mut out, "axis", (left, bottom), (right, bottom));
    text(&mut out, (left, HEIGHT - 8.0), "start", "first step");
    text(&mut out, (right, HEIGHT - 8.0), "end", "last step");
    for (place, moment) in moments.iter().enumerate() {
        let (x, title) = (x_of(place), escape(&moment.text));
        let _ = write!(
            out,
            "<rect class=\"moment\" x=\"{x:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{height:.1}\"><title>{title}</title></rect>"
        );
    }
    out.push_str("</svg>");
    let greatest = moments.iter().find(|moment| moment.value == most);
    let greatest = greatest.map_or(String::new(), |moment| escape(&moment.text));
    let _ = write!(out, "<pre class=\"readout\">{greatest}</pre>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_is_a_strip_and_the_greatest_is_read_out() {
        let moment = |value: f64, text: &str| Moment { value, text: text.to_string() };
        let moments = [moment(0.0, "<first>"), moment(8.0, "second"), moment(2.0, "third")];
        let svg = timeline("memory", &moments, |value| format!("{value} B"));
        assert_eq!(svg.matches("class=\"moment\"").count(), 3);
        assert!(svg.contains("<title>&lt;first&gt;</title>") && svg.contains("8 B"), "{svg}");
        assert!(svg.ends_with("<pre class=\"readout\">second</pre>"), "{svg}");
        assert!(!timeline("nothing", &[], |value| value.to_string()).contains("NaN"));
    }
}
