//! Word vectors: a table with a row for each word, and text as its rows or row numbers.
//!
//! A table is a text file in the format of GloVe (`word v1 … vn`), or of word2vec and fastText (the same below a line
//! with both sizes), or a `.npy` array of two axes with a file of its words, one per line. Text is cut into words as
//! Keras' `TextVectorization` does by default: lower-case, without punctuation, at whitespace. A word that the table
//! lacks is left out.
//!
//! Written by hand: most of the code encodes text, which no crate that reads such tables does (docs/DEPENDENCIES.md).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::feature::Feature;
use super::feature::is_whole;
use super::npz::Header;
use super::written::beyond_range;
use crate::error::{DataError, DataErrorKind, DataPlace};
use bf16scope_files as files;

/// The largest size of a table's numbers in memory, in bytes: 2,200,000 words of 300 take 2.6 GB.
const MAX_BYTES: u64 = 8 << 30;
/// The largest size of a line, in bytes.
const MAX_LINE: u64 = 1 << 20;
/// Keras strips all of ASCII's punctuation.
fn is_punctuation(letter: char) -> bool {
    letter.is_ascii_punctuation()
}

/// Encodes text as word vectors or word numbers: `word_vectors` of a feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordVectors {
    /// The table: a text of words and their vectors, or `.npy`.
    pub table: PathBuf,
    /// For `.npy`: the file of its words, one per line, in the order of its rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PathBuf>,
    /// How text is normalised before it is cut at whitespace. Default as in Keras.
    #[serde(default)]
    pub standardize: Standardize,
}

/// Normalisations of text, by Keras' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standardize {
    /// Lower-case, without punctuation.
    #[default]
    LowerAndStripPunctuation,
    /// Lower-case.
    Lower,
    /// Unchanged.
    None,
}

/// Words with their vectors.
pub struct WordTable {
    rows: HashMap<Box<str>, u32, FixedState>,
    numbers: Vec<f32>,
    width: usize,
    standardize: Standardize,
    fingerprint: String,
}

impl std::fmt::Debug for WordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WordTable({} words of {} numbers)", self.n_words(), self.width)
    }
}

impl WordTable {
    /// Reads a table.
    ///
    /// # Errors
    /// A file that cannot be read; a line with another number of values than the first, or with something else; another
    /// number of words than rows.
    pub fn read(options: &WordVectors) -> Result<WordTable, DataError> {
        let _span = tracing::info_span!("word vectors").entered();
        let path = &options.table;
        let is_npy = path.extension().is_some_and(|ending| ending == "npy");
        let mut table = WordTable {
            rows: HashMap::default(),
            numbers: Vec::new(),
            width: 0,
            standardize: options.standardize,
            fingerprint: String::new(),
        };
        match (is_npy, &options.vocabulary) {
            (false, None) => table.read_text(path, MAX_BYTES)?,
            (true, Some(vocabulary)) => {
                let n_rows = table.read_npy(path)?;
                table.read_words(vocabulary, path, n_rows)?;
            }
            (true, None) => {
                let expected = "`vocabulary: FILE` beside it, one word a line";
                return Err(wrong(path, "an array, which names no words", expected));
            }
            (false, Some(_)) => {
                let expected = "no `vocabulary`: each line begins with its word";
                return Err(wrong(path, "a text with a `vocabulary` beside it", expected));
            }
        }
        table.fingerprint = table.hash();
        Ok(table)
    }

    /// Reads the table of a feature.
    ///
    /// # Errors
    /// Those of [`read`](WordTable::read); vectors of another length than the feature's, more words than its dims take.
    pub(super) fn of_feature(options: &WordVectors, feature: &Feature) -> Result<WordTable, DataError> {
        let table = WordTable::read(options)?;
        let wrong = |message: String, expected: String| Err(wrong(&options.table, &message, &expected));
        let name = &feature.name;
        match (is_whole(feature), feature.dims.last(), feature.n_values) {
            (true, _, Some(n)) if table.n_rows() as i64 >= n => {
                let n_numbers = table.n_rows() + 1;
                wrong(
                    format!("{n_numbers} numbers of words, 0 among them"),
                    format!("at most {n}, for `{name}` takes those below"),
                )
            }
            (false, Some(&width), _) if width != table.width as i64 => {
                let expected = format!("{width}, for `{name}` has dims {:?}", feature.dims);
                wrong(format!("vectors of {} numbers", table.width), expected)
            }
            _ => Ok(table),
        }
    }

    /// A text encoded for a feature, as little-endian bytes: f32 vectors, or word numbers as s64.
    pub(super) fn array(&self, text: &str, feature: &Feature) -> Vec<u8> {
        match feature.dims[..] {
            [n_words] if is_whole(feature) => {
                self.ids(text, n_words as usize).into_iter().flat_map(i64::to_le_bytes).collect()
            }
            [n_words, _] => self.vectors(text, n_words as usize).into_iter().flat_map(f32::to_le_bytes).collect(),
            _ => self.mean(text).into_iter().flat_map(f32::to_le_bytes).collect(),
        }
    }

    /// Rows of the table, including those of duplicate words.
    fn n_rows(&self) -> usize {
        self.numbers.len() / self.width.max(1)
    }

    /// The number of words.
    pub fn n_words(&self) -> usize {
        self.rows.len()
    }

    /// The length of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Identifies the table's content: SHA-256 in hexadecimal.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The rows of a text's words, in order, without words that the table lacks.
    pub fn rows_of(&self, text: &str) -> Vec<u32> {
        let text = match self.standardize {
            Standardize::None => std::borrow::Cow::Borrowed(text),
            Standardize::Lower => text.to_lowercase().into(),
            Standardize::LowerAndStripPunctuation => {
                text.to_lowercase().chars().filter(|letter| !is_punctuation(*letter)).collect::<String>().into()
            }
        };
        text.split_whitespace().filter_map(|word| self.rows.get(word).copied()).collect()
    }

    /// The vectors of a text's first `n_words` words, then zeros.
    pub fn vectors(&self, text: &str, n_words: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(n_words * self.width);
        for row in self.rows_of(text).into_iter().take(n_words) {
            out.extend_from_slice(&self.numbers[row as usize * self.width..][..self.width]);
        }
        out.resize(n_words * self.width, 0.0);
        out
    }

    /// The mean of the vectors of a text's words, added in f32, in order; zeros if the table has none of them.
    pub fn mean(&self, text: &str) -> Vec<f32> {
        let (rows, mut sum) = (self.rows_of(text), vec![0.0; self.width]);
        for row in &rows {
            let vector = &self.numbers[*row as usize * self.width..][..self.width];
            sum.iter_mut().zip(vector).for_each(|(sum, number)| *sum += number);
        }
        sum.iter_mut().for_each(|sum| *sum /= rows.len().max(1) as f32);
        sum
    }

    /// The numbers of a text's first `n_words` words, starting at 1 for the table's first row; then 0.
    pub fn ids(&self, text: &str, n_words: usize) -> Vec<i64> {
        let mut out: Vec<i64> = self.rows_of(text).into_iter().take(n_words).map(|row| i64::from(row) + 1).collect();
        out.resize(n_words, 0);
        out
    }

    /// Reads a text whose numbers take at most `limit` bytes.
    fn read_text(&mut self, path: &Path, limit: u64) -> Result<(), DataError> {
        let mut lines = Lines::open(path, "word vectors")?;
        let mut sizes = None;
        while let Some(line) = lines.next()? {
            let fields = || line.split([' ', '\t']).filter(|field| !field.is_empty());
            if lines.n == 1
                && let (2, Ok(n), Ok(width)) = (
                    fields().count(),
                    fields().next().unwrap_or_default().parse::<u64>(),
                    fields().next_back().unwrap_or_default().parse::<usize>(),
                )
            {
                sizes = Some((n, width));
                continue;
            }
            if self.width == 0 {
                self.width = fields().count().saturating_sub(1);
                if self.width == 0 {
                    let message = format!("`{}`", short(&line));
                    return Err(lines.wrong(message, "a word and its numbers, with spaces between"));
                }
                if let Some((_, width)) = sizes.filter(|(_, width)| *width != self.width) {
                    let message = format!("{} numbers after the word", self.width);
                    return Err(lines.wrong(message, &format!("{width}, as the first line says")));
                }
            }
            // A word of GloVe's may hold spaces, so numbers are counted from the end.
            let mut rest = line.as_str();
            let start = self.numbers.len();
            self.numbers.resize(start + self.width, 0.0);
            for idx in (0..self.width).rev() {
                let Some((before, field)) = rest.rsplit_once([' ', '\t']) else {
                    let message = format!("{} numbers after the word", self.width - 1 - idx);
                    return Err(lines.wrong(message, &format!("{}, as in the lines before", self.width)));
                };
                rest = before;
                match field.parse::<f32>() {
                    Ok(number) if number.is_finite() => self.numbers[start + idx] = number,
                    _ => {
                        let message = format!("`{}` in place {} after the word", short(field), idx + 1);
                        let error = lines.wrong(message, &format!("a finite number, {} of them", self.width));
                        return Err(error.help(beyond_range(field, bf16scope_hlo::DType::F32).unwrap_or_default()));
                    }
                }
            }
            if 4 * self.numbers.len() as u64 > limit {
                return Err(lines.wrong("more numbers than are kept".to_string(), "a table of 8 GiB at most"));
            }
            self.add(rest.trim_end(), lines.n, start);
        }
        match sizes {
            Some((n, _)) if n != lines.n.saturating_sub(1) => {
                let message = format!("{} words", lines.n.saturating_sub(1));
                Err(lines.wrong(message, &format!("{n}, as the first line says: the file may be cut")))
            }
            _ if self.rows.is_empty() => Err(lines.wrong("no words".to_string(), "a word and its numbers a line")),
            _ => Ok(()),
        }
    }

    /// Assigns a row to a word; the first of two equal words counts.
    fn add(&mut self, word: &str, line: u64, start: usize) {
        let row = (start / self.width) as u32;
        if let Some(first) = self.rows.get(word) {
            tracing::debug!("line {line}: `{word}` stands at row {first} already, which counts");
            return;
        }
        self.rows.insert(word.into(), row);
    }

    /// Reads the numbers of an array; returns its number of rows.
    fn read_npy(&mut self, path: &Path) -> Result<usize, DataError> {
        let wrong = |message: String| {
            let expected = "an array of two axes, a row for each word, of floats of 16, 32 or 64 bits, in C order";
            wrong(path, &message, expected)
        };
        let mut file = BufReader::new(opened(path, "word vectors")?);
        let header = Header::read(&mut file).map_err(|error| wrong(error.to_string()))?;
        let is_float = header.kind == 'f' && [2, 4, 8].contains(&header.width);
        let &[n_rows, width] = &header.dims[..] else { return Err(wrong(header.to_string())) };
        if !is_float || header.is_fortran || header.is_big_endian || n_rows < 1 || width < 1 {
            return Err(wrong(header.to_string()));
        }
        let n_numbers = (n_rows as u64).saturating_mul(width as u64);
        if n_rows > i64::from(u32::MAX) || n_numbers.saturating_mul(4) > MAX_BYTES {
            return Err(wrong(format!("{header}, which is more than 8 GiB")));
        }
        self.width = width as usize;
        let mut number = vec![0; header.width];
        for at in 0..n_numbers {
            if let Err(error) = file.read_exact(&mut number) {
                return Err(wrong(format!("{header}, which ends after {at} numbers ({error})")));
            }
            let value = match number[..] {
                [a, b] => half::f16::from_le_bytes([a, b]).to_f32(),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
                _ => unreachable!("widths were checked"),
            };
            if !value.is_finite() {
                return Err(wrong(format!("{header} with {value} in row {}", at / width as u64)));
            }
            self.numbers.push(value);
        }
        Ok(n_rows as usize)
    }

    fn read_words(&mut self, path: &Path, table: &Path, n_rows: usize) -> Result<(), DataError> {
        let mut lines = Lines::open(path, "vocabulary")?;
        while let Some(word) = lines.next()? {
            let row = lines.n as usize - 1;
            if row < n_rows {
                self.add(word.trim(), lines.n, row * self.width);
            }
        }
        match lines.n as usize == n_rows {
            true => Ok(()),
            false => {
                let expected = format!("{n_rows}, one for each row of {}", table.display());
                Err(wrong(path, &format!("{} words", lines.n), &expected))
            }
        }
    }

    fn hash(&self) -> String {
        let mut words: Vec<(&str, u32)> = self.rows.iter().map(|(word, row)| (&**word, *row)).collect();
        words.sort_unstable_by_key(|(_, row)| *row);
        let mut hash = Sha256::new();
        hash.update((self.width as u64).to_le_bytes());
        for (word, row) in words {
            hash.update((word.len() as u64).to_le_bytes());
            hash.update(word);
            let vector = &self.numbers[row as usize * self.width..][..self.width];
            hash.update(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
        }
        bf16scope_files::hex(hash.finalize())
    }
}

fn wrong(place: impl Into<DataPlace>, message: &str, expected: &str) -> DataError {
    DataError::new(DataErrorKind::Format, place, format!("{message}; expected {expected}"))
}

fn opened(path: &Path, what: &str) -> Result<File, DataError> {
    let failed = |cause| DataError::new(DataErrorKind::Read, path, format!("cannot open the {what}")).because(cause);
    files::open(path).map_err(failed)
}

/// The lines of a text file, and their count.
struct Lines {
    file: BufReader<File>,
    path: PathBuf,
    n: u64,
}

impl Lines {
    fn open(path: &Path, what: &'static str) -> Result<Lines, DataError> {
        let file = BufReader::with_capacity(1 << 18, opened(path, what)?);
        Ok(Lines { file, path: path.to_path_buf(), n: 0 })
    }

    fn wrong(&self, message: String, expected: &str) -> DataError {
        wrong((&*self.path, self.n.max(1)), &message, expected)
    }

    /// The next line, without its line end.
    fn next(&mut self) -> Result<Option<String>, DataError> {
        let mut bytes = Vec::new();
        let read = (&mut self.file).take(MAX_LINE).read_until(b'\n', &mut bytes);
        self.n += 1;
        match read {
            Ok(0) => {
                self.n -= 1;
                Ok(None)
            }
            Ok(n) if n as u64 == MAX_LINE => {
                Err(self.wrong(format!("a line of {MAX_LINE} bytes or more"), "shorter ones"))
            }
            Ok(_) => match String::from_utf8(bytes) {
                Ok(line) => Ok(Some(line.trim_end().to_string())),
                Err(_) => Err(self.wrong("bytes that are not UTF-8".to_string(), "text in UTF-8")),
            },
            Err(error) => Err(self.wrong(format!("it cannot be read ({error})"), "a line")),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn check(files: &[(&str, &[u8])], vocabulary: Option<&str>) -> Result<WordTable, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let vocabulary = vocabulary.map(|name| folder.path().join(name));
        let options =
            WordVectors { table: folder.path().join(files[0].0), vocabulary, standardize: Standardize::default() };
        WordTable::read(&options)
            .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
    }

    const GLOVE: &[u8] = "the 0.5 -1 2e-1\ncat 1 2 3\n. . . 4 5 6\nÄpfel 7 8 9\ncat 9 9 9\näpfel 0 0 1 \n".as_bytes();

    #[test]
    fn text_becomes_vectors_and_numbers() {
        let table = check(&[("glove.txt", GLOVE)], None).unwrap();
        assert_eq!((table.n_words(), table.width()), (5, 3));
        assert_eq!(table.vectors("The cat's  (Cat)!", 3), [0.5, -1.0, 0.2, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
        assert_eq!(table.vectors("the the the", 1), [0.5, -1.0, 0.2]);
        assert_eq!(table.ids("ÄPFEL the dog cat", 4), [6, 1, 2, 0]);
        assert_eq!(table.mean("the cat"), [0.75, 0.5, 1.6]);
        assert_eq!(table.mean("dog"), [0.0; 3]);
        // word2vec and fastText: the same table below its sizes.
        let same = check(&[("vectors.vec", &[b"6 3\n", GLOVE].concat())], None).unwrap();
        assert_eq!(same.fingerprint(), table.fingerprint());
        let raw = WordTable { standardize: Standardize::None, ..same };
        assert_eq!(raw.ids("Äpfel The the", 2), [4, 1]);
    }

    #[test]
    fn an_array_with_its_words_is_a_table_too() {
        let words: &[u8] = "the\ncat\n".as_bytes();
        for (dtype, n) in
            [(bf16scope_hlo::DType::F32, 4), (bf16scope_hlo::DType::F64, 8), (bf16scope_hlo::DType::F16, 2)]
        {
            let mut npy = Header::for_dtype(dtype, vec![2, 2]).to_bytes();
            for value in [0.5f64, -1.0, 1.0, 2.0] {
                match n {
                    2 => npy.extend(half::f16::from_f64(value).to_le_bytes()),
                    4 => npy.extend((value as f32).to_le_bytes()),
                    _ => npy.extend(value.to_le_bytes()),
                }
            }
            let table = check(&[("a.npy", &npy), ("words.txt", words)], Some("words.txt")).unwrap();
            assert_eq!(table.vectors("cat the", 2), [1.0, 2.0, 0.5, -1.0], "{dtype}");
            let error =
                check(&[("a.npy", &npy[..npy.len() - 1]), ("words.txt", words)], Some("words.txt")).unwrap_err();
            assert!(error.starts_with(&format!("a.npy: f{}[2,2], which ends after 3 numbers", 8 * n)), "{error}");
            let error = check(&[("a.npy", &npy), ("words.txt", b"the\n")], Some("words.txt")).unwrap_err();
            assert_eq!(error, "words.txt: 1 words; expected 2, one for each row of a.npy");
        }
        let npy = Header::for_dtype(bf16scope_hlo::DType::S32, vec![2, 2]).to_bytes();
        let expected = "an array of two axes, a row for each word, of floats of 16, 32 or 64 bits, in C order";
        let error = check(&[("a.npy", &npy), ("words.txt", words)], Some("words.txt")).unwrap_err();
        assert_eq!(error, format!("a.npy: s32[2,2]; expected {expected}"));
        let large = Header::for_dtype(bf16scope_hlo::DType::F32, vec![1 << 30, 4]).to_bytes();
        let error = check(&[("a.npy", &large), ("words.txt", words)], Some("words.txt")).unwrap_err();
        assert_eq!(error, format!("a.npy: f32[1073741824,4], which is more than 8 GiB; expected {expected}"));
        let error = check(&[("a.npy", &npy)], None).unwrap_err();
        assert_eq!(
            error,
            "a.npy: an array, which names no words; expected `vocabulary: FILE` beside it, one word a line"
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let refused = |text: &[u8]| check(&[("a.txt", text)], None).unwrap_err();
        assert_eq!(refused(b""), "a.txt:1: no words; expected a word and its numbers a line");
        assert_eq!(refused(b"word\n"), "a.txt:1: `word`; expected a word and its numbers, with spaces between");
        assert_eq!(refused(b"a 1 2\nb 1\n"), "a.txt:2: 1 numbers after the word; expected 2, as in the lines before");
        assert_eq!(
            refused(b"a 1 2\nb 1 x\n"),
            "a.txt:2: `x` in place 2 after the word; expected a finite number, 2 of them"
        );
        assert_eq!(
            refused(b"a 1 nan\n"),
            "a.txt:1: `nan` in place 2 after the word; expected a finite number, 2 of them"
        );
        assert_eq!(
            refused(b"a 1 1e39\n"),
            "a.txt:1: `1e39` in place 2 after the word; expected a finite number, 2 of them\nhelp: it is beyond the range \
             of f32, whose largest number is 3.4e38"
        );
        assert_eq!(refused(b"2 3\na 1 2\n"), "a.txt:2: 2 numbers after the word; expected 3, as the first line says");
        assert_eq!(
            refused(b"3 2\na 1 2\nb 1 2\n"),
            "a.txt:3: 2 words; expected 3, as the first line says: the file may be cut"
        );
        assert_eq!(refused(b"a 1 2\n\xff 1 2\n"), "a.txt:2: bytes that are not UTF-8; expected text in UTF-8");
        let error = check(&[("a.txt", b"a 1"), ("words", b"")], Some("words")).unwrap_err();
        assert_eq!(
            error,
            "a.txt: a text with a `vocabulary` beside it; expected no `vocabulary`: each line begins with its word"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "a 1 2\nb 3 4\n").unwrap();
        let mut table = check(&[("a.txt", b"a 1 2")], None).unwrap();
        let error = table.read_text(&path, 23).unwrap_err().to_string();
        let expected = "a.txt:2: more numbers than are kept; expected a table of 8 GiB at most";
        assert!(error.ends_with(expected), "{error}");
        // A file that is open to be written.
        let mut lines = Lines { file: BufReader::new(File::create(&path).unwrap()), path, n: 0 };
        let error = lines.next().unwrap_err().to_string();
        let expected = "a.txt:1: it cannot be read (Bad file descriptor (os error 9)); expected a line";
        assert!(error.ends_with(expected), "{error}");
        let options = WordVectors { table: "/nonexistent/a".into(), vocabulary: None, standardize: Standardize::None };
        assert_eq!(WordTable::read(&options).unwrap_err().to_string(), "/nonexistent/a: cannot open the word vectors");
    }
}
