//! Tables for a terminal, fitted to its width.
//!
//! A [`Table`] knows the kind of its columns, and thereby how each shrinks. Numbers are never cut. A name loses its
//! middle, a text is broken between words, a path after a `/`. Columns that are [`Column::extra`] are shown if there is
//! room, and otherwise named below the table. If the other columns do not fit either, the table becomes a list, a line
//! for each cell. So no table is wider than its screen, and omissions are stated.

use comfy_table::presets::{ASCII_FULL_CONDENSED, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width};
use unicode_width::UnicodeWidthStr as _;

use super::screen::{Screen, lines, shortened};
use bf16scope_hlo::words::visible;

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    title: String,
    kind: ColumnKind,
    /// Among extra columns, the one with the largest rank is dropped first; 0 is never dropped.
    rank: u8,
}

/// How a column shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Number,
    Name,
    Text,
    Path,
}

impl ColumnKind {
    /// Its least width, and the width at which it reads well; its natural width if that is less.
    fn bounds(self) -> (usize, usize) {
        match self {
            ColumnKind::Number => (usize::MAX, usize::MAX),
            ColumnKind::Name => (12, 26),
            ColumnKind::Text => (12, 40),
            ColumnKind::Path => (16, 36),
        }
    }
}

impl Column {
    fn new(title: impl Into<String>, kind: ColumnKind) -> Column {
        Column { title: title.into(), kind, rank: 0 }
    }

    /// Numbers, and words as short: right-aligned, never cut.
    pub fn number(title: impl Into<String>) -> Column {
        Column::new(title, ColumnKind::Number)
    }

    /// Names, which lose their middle.
    pub fn name(title: impl Into<String>) -> Column {
        Column::new(title, ColumnKind::Name)
    }

    /// Words, and numbers of many digits: broken into lines.
    pub fn text(title: impl Into<String>) -> Column {
        Column::new(title, ColumnKind::Text)
    }

    /// Paths: broken into lines.
    pub fn path(title: impl Into<String>) -> Column {
        Column::new(title, ColumnKind::Path)
    }

    /// Shown if there is room; among several, the one with the largest rank is dropped first. Ranks begin at 1.
    pub fn extra(self, rank: u8) -> Column {
        Column { rank, ..self }
    }
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row. Missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The table as lines that fit, each with a line end.
    pub fn render(&self, screen: Screen) -> String {
        let table = self.shown(screen);
        let all: Vec<usize> = (0..table.columns.len()).collect();
        let Some(width) = screen.table else {
            let widths: Vec<usize> = all.iter().map(|&place| table.natural(place)).collect();
            return table.draw(screen, &all, &widths);
        };
        let here = table.chosen(width);
        let Some(widths) = table.widths(&here, width) else { return table.list(screen, &here, width) };
        let mut text = table.draw(screen, &here, &widths);
        let is_shortened = here.iter().zip(&widths).any(|(&place, &width)| table.shortens(place, width));
        let note = note(&table.left_out(&here), is_shortened);
        text += &Screen { line: screen.table, ..screen }.folded(&note, 2);
        text
    }

    /// The same in characters that the screen can show, and none that steer a terminal: widths are of these.
    fn shown(&self, screen: Screen) -> Table {
        let shown = |text: &String| screen.shown(&visible(text).replace('\t', "\\t")).into_owned();
        let columns = self.columns.iter().map(|column| Column { title: shown(&column.title), ..column.clone() });
        let rows = self.rows.iter().map(|row| row.iter().map(shown).collect());
        Table { columns: columns.collect(), rows: rows.collect() }
    }

    /// The width of the widest cell.
    fn natural(&self, place: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[place]).chain([&self.columns[place].title]);
        cells.flat_map(|cell| cell.split('\n')).map(|line| line.width()).max().unwrap_or(0)
    }

    /// The least width of a column. A title may be broken between its words.
    fn least(&self, place: usize) -> usize {
        let column = &self.columns[place];
        let cells = self.rows.iter().map(|row| row[place].width()).max().unwrap_or(0);
        let title = column.title.split(' ').map(|word| word.width()).max().unwrap_or(0);
        cells.min(column.kind.bounds().0).max(title)
    }

    /// The columns to show: all others, and the extra ones as long as everything reads well.
    fn chosen(&self, width: usize) -> Vec<usize> {
        let wanted = |place: usize| {
            let (natural, (_, well)) = (self.natural(place), self.columns[place].kind.bounds());
            natural.min(well).max(self.least(place))
        };
        let mut ranks: Vec<u8> = self.columns.iter().map(|column| column.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let up_to = |rank: u8| -> Vec<usize> {
            (0..self.columns.len()).filter(|&place| self.columns[place].rank <= rank).collect()
        };
        let fits = |here: &[usize]| here.iter().map(|&place| wanted(place)).sum::<usize>() + frame(here.len()) <= width;
        let greatest = ranks.iter().rev().map(|&rank| up_to(rank)).find(|here| fits(here));
        greatest.unwrap_or_else(|| up_to(0))
    }

    /// The width of each of these columns in a table of this width; `None` if they do not fit.
    fn widths(&self, here: &[usize], width: usize) -> Option<Vec<usize>> {
        let mut widths: Vec<usize> = here.iter().map(|&place| self.least(place)).collect();
        let mut left = width.checked_sub(frame(here.len()) + widths.iter().sum::<usize>())?;
        // Widens the narrowest columns first, until all read well; then the narrowest again.
        let natural: Vec<usize> = here.iter().map(|&place| self.natural(place)).collect();
        let well = here.iter().zip(&natural).map(|(&place, natural)| self.columns[place].kind.bounds().1.min(*natural));
        for wanted in [well.collect(), natural.clone()] as [Vec<usize>; 2] {
            let narrowest = |widths: &[usize]| {
                let lacking = (0..widths.len()).filter(|&at| widths[at] < wanted[at]);
                lacking.min_by_key(|&at| widths[at])
            };
            while left > 0
                && let Some(at) = narrowest(&widths)
            {
                widths[at] += 1;
                left -= 1;
            }
        }
        Some(widths)
    }

    fn draw(&self, screen: Screen, here: &[usize], widths: &[usize]) -> String {
        let mut drawn = comfy_table::Table::new();
        drawn.load_preset(if screen.is_ascii { ASCII_FULL_CONDENSED } else { UTF8_FULL_CONDENSED });
        drawn.set_content_arrangement(ContentArrangement::Dynamic);
        drawn.set_header(here.iter().map(|&place| &self.columns[place].title));
        for row in &self.rows {
            drawn.add_row(here.iter().zip(widths).map(|(&place, &width)| match self.columns[place].kind {
                ColumnKind::Name => shortened(&row[place], width, screen.ellipsis()).into_owned(),
                ColumnKind::Path => lines(&row[place], width, '/').join("\n"),
                ColumnKind::Number | ColumnKind::Text => row[place].clone(),
            }));
        }
        for ((column, &place), &width) in drawn.column_iter_mut().zip(here).zip(widths) {
            let width = u16::try_from(width + 2).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
            if self.columns[place].kind == ColumnKind::Number {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        format!("{drawn}\n")
    }

    /// If even the least widths do not fit: each row becomes a list that begins with the first column's title and cell.
    fn list(&self, screen: Screen, here: &[usize], width: usize) -> String {
        let first = here.first().map_or("", |&place| self.columns[place].title.as_str());
        let mut text = if first.is_empty() { String::new() } else { format!("{first}:\n") };
        for row in &self.rows {
            for (nth, &place) in here.iter().enumerate().filter(|(_, place)| !row[**place].is_empty()) {
                let (indent, colon) = if nth == 0 { ("", "") } else { ("  ", ": ") };
                let title = if nth == 0 { "" } else { self.columns[place].title.as_str() };
                let begin = if title.is_empty() { indent.to_string() } else { format!("{indent}{title}{colon}") };
                let cell = self.cell(&row[place], place, screen, width - 4);
                match cell.as_slice() {
                    [only] if begin.width() + only.width() <= width => text += &format!("{begin}{only}\n"),
                    lines => {
                        text += &format!("{}\n", begin.trim_end());
                        lines.iter().for_each(|line| text += &format!("    {line}\n"));
                    }
                }
            }
        }
        let is_shortened = here.iter().any(|&place| self.shortens(place, width - 4));
        text += &Screen { line: Some(width), ..screen }.folded(&note(&self.left_out(here), is_shortened), 2);
        text
    }

    /// A cell in lines of `width` columns.
    fn cell(&self, text: &str, place: usize, screen: Screen, width: usize) -> Vec<String> {
        match self.columns[place].kind {
            ColumnKind::Name => vec![shortened(text, width, screen.ellipsis()).into_owned()],
            ColumnKind::Path => lines(text, width, '/'),
            ColumnKind::Number | ColumnKind::Text => lines(text, width, ' '),
        }
    }

    /// Whether a name loses its middle at this width.
    fn shortens(&self, place: usize, width: usize) -> bool {
        self.columns[place].kind == ColumnKind::Name && self.rows.iter().any(|row| row[place].width() > width)
    }

    fn left_out(&self, here: &[usize]) -> Vec<&str> {
        let places = (0..self.columns.len()).filter(|place| !here.contains(place));
        let titles = places.map(|place| self.columns[place].title.as_str());
        // A sign as a title is not a useful name.
        titles.filter(|title| title.contains(char::is_alphanumeric)).collect()
    }
}

/// Columns of the frame: a line before and after each column, and a blank on both sides.
fn frame(n_columns: usize) -> usize {
    3 * n_columns + 1
}

/// The remark on columns and names that a table does not show completely.
fn note(left_out: &[&str], is_shortened: bool) -> String {
    match (left_out, is_shortened) {
        ([], false) => String::new(),
        ([], true) => "names are shortened (--wide shows them whole)\n".to_string(),
        (titles, false) => format!("left out: {} (--wide shows all)\n", titles.join(", ")),
        (titles, true) => format!("left out: {}; names are shortened (--wide shows all)\n", titles.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn table() -> Table {
        let mut table = Table::new([
            Column::name("made by"),
            Column::number("bytes alive"),
            Column::text("why"),
            Column::number("share").extra(1),
            Column::path("source").extra(2),
        ]);
        table.row(["%fusion.12", "1,024", "bf16 would halve it", "12.5 %", "src/models/cnn.rs:64"]);
        table.row(["%convolution_add_fusion.remat.7", "16", "", "0.2 %", ""]);
        table
    }

    fn check(screen: Screen, expected: Expect) {
        let text = table().render(screen);
        if let Some(width) = screen.table {
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
        }
        expected.assert_eq(&text);
    }

    #[test]
    fn a_table_fits_its_screen_and_says_what_it_leaves_out() {
        check(
            Screen::WIDE,
            expect![[r#"
            ┌─────────────────────────────────┬─────────────┬─────────────────────┬────────┬──────────────────────┐
            │ made by                         ┆ bytes alive ┆ why                 ┆  share ┆ source               │
            ╞═════════════════════════════════╪═════════════╪═════════════════════╪════════╪══════════════════════╡
            │ %fusion.12                      ┆       1,024 ┆ bf16 would halve it ┆ 12.5 % ┆ src/models/cnn.rs:64 │
            │ %convolution_add_fusion.remat.7 ┆          16 ┆                     ┆  0.2 % ┆                      │
            └─────────────────────────────────┴─────────────┴─────────────────────┴────────┴──────────────────────┘
        "#]],
        );
        check(
            Screen::with_width(80),
            expect![[r#"
            ┌─────────────────────────────────┬─────────────┬─────────────────────┬────────┐
            │ made by                         ┆ bytes alive ┆ why                 ┆  share │
            ╞═════════════════════════════════╪═════════════╪═════════════════════╪════════╡
            │ %fusion.12                      ┆       1,024 ┆ bf16 would halve it ┆ 12.5 % │
            │ %convolution_add_fusion.remat.7 ┆          16 ┆                     ┆  0.2 % │
            └─────────────────────────────────┴─────────────┴─────────────────────┴────────┘
            left out: source (--wide shows all)
        "#]],
        );
        check(
            Screen { is_ascii: true, ..Screen::with_width(60) },
            expect![[r#"
            +----------------------+-------------+---------------------+
            | made by              | bytes alive | why                 |
            +==========================================================+
            | %fusion.12           |       1,024 | bf16 would halve it |
            | %convo...ion.remat.7 |          16 |                     |
            +----------------------+-------------+---------------------+
            left out: share, source; names are shortened (--wide shows
              all)
        "#]],
        );
        check(
            Screen::with_width(48),
            expect![[r#"
                ┌────────────────┬─────────────┬───────────────┐
                │ made by        ┆ bytes alive ┆ why           │
                ╞════════════════╪═════════════╪═══════════════╡
                │ %fusion.12     ┆       1,024 ┆ bf16 would    │
                │                ┆             ┆ halve it      │
                │ %conv….remat.7 ┆          16 ┆               │
                └────────────────┴─────────────┴───────────────┘
                left out: share, source; names are shortened
                  (--wide shows all)
            "#]],
        );
        check(
            Screen::with_width(30),
            expect![[r#"
            made by:
            %fusion.12
              bytes alive: 1,024
              why: bf16 would halve it
            %convoluti…_fusion.remat.7
              bytes alive: 16
            left out: share, source; names
              are shortened (--wide shows
              all)
        "#]],
        );
    }

    #[test]
    fn no_width_breaks_a_number_or_a_frame() {
        for width in super::super::screen::MIN_WIDTH..140 {
            let text = table().render(Screen::with_width(width));
            assert!(text.contains("1,024") && text.contains("16"), "{width}:\n{text}");
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
            let frames: Vec<usize> =
                text.lines().filter(|line| line.starts_with(['┌', '└'])).map(|l| l.width()).collect();
            assert!(frames.iter().all(|frame| *frame == frames[0]), "{width}:\n{text}");
        }
    }

    #[test]
    fn what_is_made_visible_counts_for_what_it_takes() {
        let mut table = Table::new([Column::name("name"), Column::number("n")]);
        table.row(["a\x1b[31mb", "1"]);
        table.row(["a\tb", "2"]);
        let text = table.render(Screen::WIDE);
        assert_eq!(visible(&text), text);
        assert!(text.contains(r"a\x1b[31mb") && text.contains(r"a\tb"), "{text}");
        assert!(text.lines().all(|line| line.width() == text.lines().next().unwrap_or_default().width()), "{text}");
    }

    #[test]
    fn wide_characters_count_for_what_they_take() {
        let mut table = Table::new([Column::name("層"), Column::text("何")]);
        table.row(["日本語".repeat(8), "二 ".repeat(40)]);
        for width in [24, 37, 60] {
            let text = table.render(Screen::with_width(width));
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
        }
        assert_eq!(
            Table::new([]).render(Screen::with_width(40)).lines().count(),
            Table::new([]).render(Screen::WIDE).lines().count()
        );
    }
}
