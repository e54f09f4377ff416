//! Shares of a whole as rectangles whose areas are in proportion, squarified (Bruls, Huizing, van Wijk 2000).
//!
//! Parts of one group have one hue: the group is the name up to its second `/`.

use std::fmt::Write as _;

use super::{WIDTH, open};
use crate::html::escape;

/// A part of the whole.
#[derive(Clone, Debug)]
pub struct TreemapPart {
    /// Its name, shown if there is room.
    pub name: String,
    /// Its size.
    pub value: f64,
    /// The text for hovering.
    pub text: String,
}

const HEIGHT: f64 = 320.0;

/// Rectangle: left, top, width, height.
type Rect = (f64, f64, f64, f64);

/// The parts, largest first, as an SVG. Parts of size 0 are left out.
pub fn treemap(label: &str, parts: &[TreemapPart]) -> String {
    let mut parts: Vec<&TreemapPart> = parts.iter().filter(|part| part.value > 0.0 && part.value.is_finite()).collect();
    parts.sort_by(|a, b| b.value.total_cmp(&a.value));
    let values: Vec<f64> = parts.iter().map(|part| part.value).collect();
    let mut out = String::new();
    open(&mut out, label);
    // The frame of other plots is a little lower.
    out = out.replacen(&format!("{WIDTH} {}", super::HEIGHT), &format!("{WIDTH} {HEIGHT}"), 1);
    for (part, (x, y, width, height)) in parts.iter().zip(squarify(&values, (0.0, 0.0, WIDTH, HEIGHT))) {
        let (name, title) = (escape(&part.name), escape(&part.text));
        let hue = hue(&part.name);
        let _ = write!(
            out,
            "<g class=\"part\" data-name=\"{name}\"><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"hsl({hue} 42% 42%)\"><title>{title}</title></rect>"
        );
        let n_letters = ((width - 12.0) / 6.6) as usize;
        if height > 20.0 && n_letters >= 4 {
            let (x, y) = (x + 6.0, y + 16.0);
            let shown = match part.name.char_indices().nth(n_letters) {
                Some(_) => format!("…{}", tail(&part.name, n_letters - 1)),
                None => part.name.clone(),
            };
            let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(&shown));
        }
        out.push_str("</g>");
    }
    out.push_str("</svg>");
    out
}

/// The last letters of a name, which distinguish layers.
fn tail(name: &str, n_letters: usize) -> &str {
    let skipped = name.chars().count().saturating_sub(n_letters);
    name.char_indices().nth(skipped).map_or("", |(at, _)| &name[at..])
}

/// A hue for the group of a name.
fn hue(name: &str) -> u32 {
    let group: Vec<&str> = name.split('/').take(2).collect();
    // FNV-1a: a name has the same colour in every page.
    let hash =
        group.join("/").bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % 360
}

/// Rectangles of the given sizes, largest first, that fill a rectangle.
fn squarify(values: &[f64], (mut x, mut y, mut width, mut height): Rect) -> Vec<Rect> {
    let mut out = Vec::with_capacity(values.len());
    let mut from = 0;
    while from < values.len() {
        let rest: f64 = values[from..].iter().sum();
        let area = width * height / rest;
        let side = width.min(height);
        // The worst aspect ratio in a row of these values along the shorter side.
        let worst = |row: &[f64]| {
            let sum: f64 = row.iter().sum::<f64>() * area;
            let thickness = sum / side;
            row.iter()
                .map(|value| value * area / thickness)
                .map(|length| (length / thickness).max(thickness / length))
                .fold(0.0, f64::max)
        };
        let mut to = from + 1;
        while to < values.len() && worst(&values[from..=to]) <= worst(&values[from..to]) {
            to += 1;
        }
        let sum: f64 = values[from..to].iter().sum();
        let thickness = sum * area / side;
        let mut at = 0.0;
        for value in &values[from..to] {
            let length = value * area / thickness;
            out.push(if width >= height { (x, y + at, thickness, length) } else { (x + at, y, length, thickness) });
            at += length;
        }
        if width >= height {
            (x, width) = (x + thickness, (width - thickness).max(0.0));
        } else {
            (y, height) = (y + thickness, (height - thickness).max(0.0));
        }
        from = to;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_in_proportion_and_fill_the_whole() {
        let values = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let rects = squarify(&values, (0.0, 0.0, 600.0, 400.0));
        for (value, (x, y, width, height)) in values.iter().zip(&rects) {
            // Sums of a few numbers of this size are exact to 1e-9.
            assert!((width * height - value * 10_000.0).abs() < 1e-6, "{rects:?}");
            assert!(*x >= 0.0 && *y >= 0.0 && x + width < 600.0 + 1e-9 && y + height < 400.0 + 1e-9, "{rects:?}");
        }
    }

    #[test]
    fn parts_are_named_and_escaped() {
        let part =
            |name: &str, value: f64| TreemapPart { name: name.to_string(), value, text: format!("{name}: {value}") };
        let svg = treemap("cycles", &[part("a/b/c<d>", 3.0), part("nothing", 0.0), part("x", 1.0)]);
        assert_eq!(svg.matches("class=\"part\"").count(), 2);
        assert!(svg.contains("a/b/c&lt;d&gt;") && !svg.contains("<d>") && !svg.contains("nothing"), "{svg}");
        assert_eq!(hue("a/b/c"), hue("a/b/d"));
    }
}
