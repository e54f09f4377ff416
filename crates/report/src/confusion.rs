//! Which classes are mistaken for which: a confusion matrix, or the most frequent confusions.

use crate::{Column, Screen, Table, grouped};

/// The number of pairs in the list that replaces a matrix too wide for the screen.
const N_PAIRS: usize = 20;

/// The confusion matrix: how many examples of each class were predicted as each.
pub struct Confusion {
    /// How many classes there are.
    pub n_classes: usize,
    /// Row-major: the true class, then the predicted one.
    pub counts: Vec<u64>,
}

impl Confusion {
    /// The matrix, a row for each true class.
    pub fn rows(&self) -> Vec<&[u64]> {
        self.counts.chunks_exact(self.n_classes).collect()
    }

    /// The matrix if it fits the screen, otherwise the most frequent confusions.
    ///
    /// `names` are the classes' names, if known.
    pub fn render(&self, names: &[String], screen: Screen) -> String {
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let mut matrix = Table::new(
            [Column::number("true \\ predicted")]
                .into_iter()
                .chain((0..self.n_classes).map(|class| Column::number(name(class)))),
        );
        for (class, row) in self.rows().iter().enumerate() {
            let counts = row.iter().map(|&n| if n == 0 { "·".to_string() } else { n.to_string() });
            matrix.row([name(class)].into_iter().chain(counts));
        }
        let rendered = matrix.render(screen);
        // A table that does not fit becomes a list, a line for each cell.
        match rendered.lines().count() <= self.n_classes + 6 {
            true => rendered,
            false => self.pairs(names, screen),
        }
    }

    fn pairs(&self, names: &[String], screen: Screen) -> String {
        let n = self.n_classes;
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let mut pairs: Vec<(u64, usize, usize)> = (0..n * n)
            .filter(|at| at / n != at % n && self.counts[*at] > 0)
            .map(|at| (self.counts[at], at / n, at % n))
            .collect();
        pairs.sort_by_key(|&(count, truth, predicted)| (std::cmp::Reverse(count), truth, predicted));
        let mut table = Table::new([
            Column::number("true"),
            Column::number("predicted"),
            Column::number("times"),
            Column::number("of the true"),
        ]);
        for &(count, truth, predicted) in pairs.iter().take(N_PAIRS) {
            let of_class: u64 = self.rows()[truth].iter().sum();
            let part = format!("{:.1} %", 100.0 * count as f64 / of_class as f64);
            table.row([name(truth), name(predicted), grouped(count as i64), part]);
        }
        let mut text = table.render(screen);
        if let Some(rest) = pairs.len().checked_sub(N_PAIRS).filter(|&rest| rest > 0) {
            text += &format!("{rest} more pairs: --json has the whole matrix\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_shown_where_it_fits_and_the_worst_pairs_where_not() {
        let confusion = Confusion { n_classes: 2, counts: vec![5, 1, 0, 4] };
        let screen = Screen::with_width(80);
        let named = confusion.render(&["cat".to_string(), "dog".to_string()], screen);
        assert!(named.contains("cat") && named.contains("dog"), "{named}");
        let text = confusion.render(&[], screen);
        assert!(text.contains("true \\ predicted") && text.contains('·'), "{text}");
        let mut counts = vec![0; 40 * 40];
        (counts[3 * 40 + 3], counts[3 * 40 + 7]) = (3, 1);
        let text = Confusion { n_classes: 40, counts }.render(&[], screen);
        assert!(text.contains("25.0 %") && text.contains('7'), "{text}");
    }
}
