//! Draws a curve in a terminal's characters: braille dots, or asterisks on an ASCII screen.

use super::Screen;

/// The height of a curve in rows.
const N_ROWS: usize = 10;
/// The largest width of a curve in columns.
const MAX_COLUMNS: usize = 100;

/// The size of a curve on a screen.
#[derive(Clone, Copy, Debug)]
pub struct Canvas {
    is_ascii: bool,
    n_columns: usize,
    /// Columns on the left, for the values.
    margin: usize,
}

impl Canvas {
    /// For a screen, with this many columns for values on the left.
    pub fn new(screen: Screen, margin: usize) -> Canvas {
        let width = screen.table.unwrap_or(80).min(MAX_COLUMNS);
        Canvas { is_ascii: screen.is_ascii, n_columns: width.saturating_sub(margin + 2).max(8), margin }
    }

    /// The number of points side by side.
    pub fn n_points(&self) -> usize {
        self.n_columns * self.dots().0
    }

    /// Points per character, horizontally and vertically.
    fn dots(&self) -> (usize, usize) {
        if self.is_ascii { (1, 1) } else { (2, 4) }
    }

    /// The curve through [`Canvas::n_points`] values, from `low` to `high`, with its axes. `labels` are at both ends of
    /// the vertical axis, `ends` at those of the horizontal one.
    pub fn draw(&self, values: &[f64], (low, high): (f64, f64), labels: [&str; 2], ends: [&str; 2]) -> String {
        let (across, down) = self.dots();
        let n_high = N_ROWS * down;
        let range = if high > low { high - low } else { 1.0 };
        let row_of = |value: f64| {
            let share = ((value - low) / range).clamp(0.0, 1.0);
            n_high - 1 - (share * (n_high - 1) as f64).round() as usize
        };
        let mut cells = vec![vec![0u8; self.n_columns]; N_ROWS];
        let mut last: Option<usize> = None;
        for (x, value) in values.iter().take(self.n_points()).enumerate() {
            if !value.is_finite() {
                last = None;
                continue;
            }
            let row = row_of(*value);
            // A jump is a vertical line between the two values.
            let from = match last {
                Some(last) if last < row => last + 1,
                Some(last) if last > row => last - 1,
                _ => row,
            };
            for y in row.min(from)..=row.max(from) {
                cells[y / down][x / across] |= BRAILLE[x % across][y % down];
            }
            last = Some(row);
        }
        let mut out = String::new();
        for (number, cells) in cells.iter().enumerate() {
            let label = match number {
                0 => labels[0],
                n if n == N_ROWS - 1 => labels[1],
                _ => "",
            };
            let shown: String = cells.iter().map(|cell| self.character(*cell)).collect();
            out += format!("{label:>width$} │{shown}", width = self.margin).trim_end();
            out.push('\n');
        }
        let gap = self.n_columns.saturating_sub(ends[0].len() + ends[1].len());
        out += &format!("{:>width$}{}{}{}\n", "", ends[0], " ".repeat(gap), ends[1], width = self.margin + 2);
        out
    }

    fn character(&self, cell: u8) -> char {
        match (cell, self.is_ascii) {
            (0, _) => ' ',
            (_, true) => '*',
            (dots, false) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or('*'),
        }
    }
}

/// The bit of each dot of a braille character: two columns of four.
const BRAILLE: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_and_a_drop() {
        let canvas = Canvas::new(Screen { is_ascii: true, ..Screen::with_width(24) }, 4);
        assert_eq!(canvas.n_points(), 18);
        let values: Vec<f64> = (0..18).map(|x| if x < 10 { f64::from(x) } else { 4.5 }).collect();
        let text = canvas.draw(&values, (0.0, 9.0), ["9", "0"], ["0", "17"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (11, "   9 │         *"));
        assert_eq!(lines[9], "   0 │*");
        assert_eq!(lines[10], "      0               17");
        // The drop is drawn completely.
        assert!(lines[1..4].iter().all(|line| line.chars().nth(16) == Some('*')), "{text}");
        let dots = Canvas::new(Screen::with_width(24), 4);
        assert_eq!(dots.n_points(), 36);
        let flat = dots.draw(&[1.0; 36], (0.0, 1.0), ["1", "0"], ["0", "35"]);
        assert_eq!(flat.lines().next(), Some(format!("   1 │{}", "⠉".repeat(18)).as_str()));
        assert!(
            dots.draw(&[f64::NAN; 36], (0.0, 1.0), ["1", "0"], ["0", "35"]).lines().all(|line| !line.contains('⠉'))
        );
    }
}
