//! A table of small hostile files: `rows.txt` records each reader's error, or a summary of the contents that it read.
//!
//! The summary has sizes, so that a file that is only read in part is noticed. `BF16SCOPE_BLESS=1` writes the table.

mod arrays;
mod packages;
mod records;
mod tokenizers;

use std::path::{Path, PathBuf};

/// A file and its reader.
pub struct Row {
    /// The reader.
    pub area: &'static str,
    /// The error in it.
    pub name: String,
    /// Its name in the folder.
    pub file: &'static str,
    pub bytes: Vec<u8>,
    /// A short description of what is read, or the error.
    pub read: fn(&Path) -> Result<String, String>,
}

fn rows() -> Vec<Row> {
    [arrays::rows(), records::rows(), tokenizers::rows(), packages::rows()].into_iter().flatten().collect()
}

/// The number of rows, as in docs/TEST_RUNS.md.
#[test]
fn there_are_at_least_three_hundred_rows_and_no_two_are_one() {
    let rows = rows();
    assert!(rows.len() >= 300, "{} rows", rows.len());
    let mut names: Vec<String> = rows.iter().map(|row| format!("{} | {}", row.area, row.name)).collect();
    let mut files: Vec<(&str, &[u8])> = rows.iter().map(|row| (row.area, &*row.bytes)).collect();
    names.sort();
    files.sort();
    let twice = names.windows(2).find(|two| two[0] == two[1]);
    assert_eq!(twice, None);
    let same = files.windows(2).find(|two| two[0] == two[1]).map(|two| (two[0].0, two[0].1.len()));
    assert_eq!(same, None, "two rows have the same bytes");
}

/// A text without control characters except for line ends.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// A reader must not panic, must not take unbounded memory, and must describe every file as before.
#[test]
fn every_row_is_as_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = String::new();
    for (number, Row { area, name, file, bytes, read }) in rows().into_iter().enumerate() {
        let place = folder.path().join(number.to_string());
        std::fs::create_dir(&place).unwrap();
        let path = place.join(file);
        std::fs::write(&path, bytes).unwrap();
        let outcome = read(&path).map_or_else(|error| format!("refused: {error}"), |what| format!("read: {what}"));
        let outcome = printable(&outcome.replace(&place.display().to_string(), "."));
        table += &format!("{area} | {}\n", printable(&name).replace('\n', "\\n"));
        table.extend(outcome.lines().map(|line| format!("    {line}\n")));
    }
    let golden: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/rows/rows.txt");
    if std::env::var_os("BF16SCOPE_BLESS").is_some() {
        return std::fs::write(golden, table).unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap();
    let differs = table.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    let around = |text: &str| {
        let from = differs.unwrap_or(0).saturating_sub(3);
        text.lines().skip(from).take(7).collect::<Vec<_>>().join("\n")
    };
    assert!(
        table == expected,
        "found:\n{}\nexpected:\n{}\nBF16SCOPE_BLESS=1 writes what was found",
        around(&table),
        around(&expected)
    );
}
