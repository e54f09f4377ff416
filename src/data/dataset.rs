//! Labelled examples in memory, and reading them from CSV.
//!
//! For data sets that fit in memory, such as the digits in `examples/data`. Larger ones want a reader that streams,
//! which this is not.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::DataError;
use crate::files;
use crate::hlo::DType;
use half::{bf16, f16};

/// Text read from one file at most, in bytes, after decompression: what bounds memory when a small gzip file unpacks
/// to something huge.
const MAX_TEXT_BYTES: u64 = 4 << 30;

/// Text in one row at most, in bytes: what bounds memory when a file without line ends is named by mistake.
const MAX_ROW_BYTES: u64 = 64 << 20;

/// Empty lines after one another at most: a small gzip file may hold billions.
const MAX_EMPTY_LINES: u64 = 1 << 20;

/// Spreadsheets put one at the start of a CSV file.
const BYTE_ORDER_MARK: char = '\u{FEFF}';

/// Labelled examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// All features, example after example, row-major in each.
    pub features: Vec<f32>,
    /// Dimensions of one example's features, without the batch.
    pub feature_dims: Vec<i64>,
    /// One class for each example, from 0.
    pub labels: Vec<i32>,
    /// How many classes there are.
    pub n_classes: usize,
}

/// How a CSV file is to be read: each line the features in row-major order, then the label;
/// commas between, no header, no quotes. Empty lines are passed over.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvSpec {
    /// Dimensions of one example's features.
    pub feature_dims: Vec<i64>,
    /// Labels are `0..n_classes`.
    pub n_classes: usize,
    /// What each feature is multiplied with: 1/16 for intensities from 0 to 16.
    pub scale: f32,
}

impl CsvSpec {
    /// The digits of `examples/data/digits.csv.gz`: 8×8 grey images, intensities from 0 to 16, ten classes.
    pub fn digits() -> CsvSpec {
        CsvSpec { feature_dims: vec![8, 8, 1], n_classes: 10, scale: 1.0 / 16.0 }
    }

    fn n_features(&self) -> Result<usize, DataError> {
        let count =
            self.feature_dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
        match count {
            Some(count) if count > 0 => Ok(count),
            Some(_) | None => Err(DataError::FeatureDims { dims: self.feature_dims.clone() }),
        }
    }
}

impl Dataset {
    /// How many examples there are.
    pub fn n_examples(&self) -> usize {
        self.labels.len()
    }

    /// How many numbers one example's features are.
    pub fn n_features(&self) -> usize {
        self.feature_dims.iter().map(|&dim| usize::try_from(dim).expect("dimensions are not negative")).product()
    }

    /// Whether a cast to `dtype` keeps every feature a number.
    ///
    /// # Errors
    /// The first that becomes infinite in bf16 or f16.
    pub fn check_range(&self, dtype: DType) -> Result<(), DataError> {
        let (greatest, becomes_infinite): (f32, fn(f32) -> bool) = match dtype {
            DType::BF16 => (bf16::MAX.to_f32(), |value| bf16::from_f32(value).is_infinite()),
            DType::F16 => (f16::MAX.to_f32(), |value| f16::from_f32(value).is_infinite()),
            _ => return Ok(()),
        };
        // Only what is beyond the greatest can round to an infinity.
        let is_lost = |&value: &f32| value.is_finite() && value.abs() > greatest && becomes_infinite(value);
        let Some(at) = self.features.iter().position(is_lost) else { return Ok(()) };
        let (n, value) = (self.n_features().max(1), self.features[at]);
        Err(DataError::Overflows { example: at / n, feature: at % n, value, dtype, greatest })
    }

    /// The features of one example.
    pub fn example(&self, idx: usize) -> &[f32] {
        let n_features = self.n_features();
        &self.features[idx * n_features..(idx + 1) * n_features]
    }

    /// Cuts the last `n_test` examples off, in order: (training, test).
    pub fn split_tail(mut self, n_test: usize) -> Result<(Dataset, Dataset), DataError> {
        let n_examples = self.n_examples();
        if n_test == 0 || n_test >= n_examples {
            return Err(DataError::Split { n_test, n_examples });
        }
        let n_train = n_examples - n_test;
        let test = Dataset {
            features: self.features.split_off(n_train * self.n_features()),
            feature_dims: self.feature_dims.clone(),
            labels: self.labels.split_off(n_train),
            n_classes: self.n_classes,
        };
        Ok((self, test))
    }

    /// Reads a CSV file, compressed with gzip or not (told by its first bytes, not by its name).
    pub fn read_csv(path: &Path, spec: &CsvSpec) -> Result<Dataset, DataError> {
        let open_error = |source| DataError::Open { path: path.to_owned(), source };
        let mut file = BufReader::new(files::open(path).map_err(open_error)?);
        let is_gzip = file.fill_buf().map_err(open_error)?.starts_with(&[0x1F, 0x8B]);
        if is_gzip {
            read_rows(path, MultiGzDecoder::new(file), spec, MAX_TEXT_BYTES)
        } else {
            read_rows(path, file, spec, MAX_TEXT_BYTES)
        }
    }
}

fn read_rows(path: &Path, reader: impl Read, spec: &CsvSpec, limit: u64) -> Result<Dataset, DataError> {
    let n_features = spec.n_features()?;
    let mut text = BufReader::new(reader.take(limit + 1));
    let mut dataset = Dataset {
        features: Vec::new(),
        feature_dims: spec.feature_dims.clone(),
        labels: Vec::new(),
        n_classes: spec.n_classes,
    };
    let mut row = String::new();
    let mut n_empty = 0;
    for line in 1.. {
        row.clear();
        match text.by_ref().take(MAX_ROW_BYTES + 1).read_line(&mut row) {
            Ok(0) => break,
            Ok(n_bytes) if n_bytes as u64 > MAX_ROW_BYTES => {
                return Err(DataError::RowTooLong { path: path.to_owned(), line, limit: MAX_ROW_BYTES });
            }
            Ok(_) if text.get_ref().limit() == 0 => {
                return Err(DataError::TooLarge { path: path.to_owned(), limit });
            }
            Ok(_) if row.trim().is_empty() => {
                n_empty += 1;
                if n_empty > MAX_EMPTY_LINES {
                    return Err(DataError::EmptyLines { path: path.to_owned(), line, limit: MAX_EMPTY_LINES });
                }
            }
            Ok(_) => {
                n_empty = 0;
                push_row(path, line, row.trim_start_matches(BYTE_ORDER_MARK), spec.scale, &mut dataset)?;
            }
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(DataError::TruncatedGzip { path: path.to_owned(), line });
            }
            Err(source) => return Err(DataError::Read { path: path.to_owned(), line, source }),
        }
    }
    if dataset.labels.is_empty() {
        return Err(DataError::Empty { path: path.to_owned(), n_columns: n_features });
    }
    Ok(dataset)
}

/// Appends one row to the data set.
fn push_row(path: &Path, line: u64, row: &str, scale: f32, dataset: &mut Dataset) -> Result<(), DataError> {
    let expected = dataset.n_features() + 1;
    // Counted, not kept: a row may be millions of commas.
    let found = row.split(',').count();
    if found != expected {
        return Err(DataError::ColumnCount { path: path.to_owned(), line, found, expected });
    }
    let mut columns = row.split(',').map(str::trim);
    for (idx, text) in columns.by_ref().take(expected - 1).enumerate() {
        match text.parse::<f32>() {
            Ok(value) if (value * scale).is_finite() => dataset.features.push(value * scale),
            Ok(value) if value.is_finite() => {
                let path = path.to_owned();
                return Err(DataError::Scaled { path, line, column: idx + 1, value, scale });
            }
            Ok(_) | Err(_) => {
                return Err(DataError::NotANumber {
                    path: path.to_owned(),
                    line,
                    column: idx + 1,
                    text: text.to_owned(),
                });
            }
        }
    }
    let text = columns.next().unwrap_or_default();
    let label = text.parse::<i32>().ok();
    match label.filter(|&label| usize::try_from(label).is_ok_and(|class| class < dataset.n_classes)) {
        Some(label) => dataset.labels.push(label),
        None => {
            return Err(DataError::Label {
                path: path.to_owned(),
                line,
                text: text.to_owned(),
                n_classes: dataset.n_classes,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn spec() -> CsvSpec {
        CsvSpec { feature_dims: vec![2, 1], n_classes: 3, scale: 0.5 }
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Reads bytes from a file called `rows.csv`; an error comes back as its message, without the folder.
    fn read(bytes: &[u8]) -> Result<Dataset, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, bytes).unwrap();
        Dataset::read_csv(&path, &spec())
            .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
    }

    #[test]
    fn reads_plain_and_gzip() {
        let expected = Dataset {
            features: vec![0.5, 1.0, -2.0, 0.25],
            feature_dims: vec![2, 1],
            labels: vec![2, 0],
            n_classes: 3,
        };
        for text in ["1,2,2\n-4,0.5,0\n", "1, 2 ,2\r\n\r\n-4,5e-1,0"] {
            assert_eq!(read(text.as_bytes()), Ok(expected.clone()));
            assert_eq!(read(&gzip(text.as_bytes())), Ok(expected.clone()));
        }
        // Two gzip members after one another are one stream.
        let two = [gzip(b"1,2,2\n"), gzip(b"-4,0.5,0\n")].concat();
        assert_eq!(read(&two), Ok(expected));
    }

    #[test]
    fn every_bad_row_is_named() {
        let check = |text: &str, message: &str| assert_eq!(read(text.as_bytes()).unwrap_err(), message);
        check("1,2,0\n1,2\n", "rows.csv:2: 2 columns; expected 3: 2 features and a label");
        check("1,2,3,0\n", "rows.csv:1: 4 columns; expected 3: 2 features and a label");
        check("1,x,0\n", "rows.csv:1: column 2 is `x`; expected a finite number");
        check("1,2,0\n\n\nnan,2,0\n", "rows.csv:4: column 1 is `nan`; expected a finite number");
        check("1,2,0\n,2,0\n", "rows.csv:2: column 1 is ``; expected a finite number");
        check("1,2,3\n", "rows.csv:1: the label is `3`; expected a whole number from 0 to 2");
        check("1,2,-1\n", "rows.csv:1: the label is `-1`; expected a whole number from 0 to 2");
        check("1,2,1.0\n", "rows.csv:1: the label is `1.0`; expected a whole number from 0 to 2");
        check("", "rows.csv: no rows; expected one example a line: 2 numbers, then a label");
        check("\n\n", "rows.csv: no rows; expected one example a line: 2 numbers, then a label");
        assert_eq!(read(b"1,2,0\n1,\xFF,0\n").unwrap_err(), "rows.csv:2: cannot read on from here");
    }

    #[test]
    fn damaged_gzip_is_named() {
        let text: String = (0..200).map(|idx| format!("{},{},{}\n", idx * 37 % 101, idx * 53 % 97, idx % 3)).collect();
        let whole = gzip(text.as_bytes());
        assert_eq!(read(&whole).unwrap().n_examples(), 200);
        // Anything cut off must be noticed, the trailing checksum included.
        for n_bytes in 3..whole.len() {
            let message = read(&whole[..n_bytes]).unwrap_err();
            assert!(
                message.starts_with("rows.csv:")
                    && message.ends_with(": the gzip stream ends early, at this line; copy or download the file again"),
                "{n_bytes}: {message}"
            );
        }
        let mut corrupt = whole.clone();
        let checksum_at = corrupt.len() - 8;
        corrupt[checksum_at] ^= 1;
        assert_eq!(read(&corrupt).unwrap_err(), "rows.csv:201: cannot read on from here");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Dataset::read_csv(Path::new("/nonexistent/rows.csv"), &spec()).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent/rows.csv: cannot open the data file");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "No such file or directory (os error 2)");
    }

    #[test]
    fn impossible_dimensions_are_refused() {
        for (dims, shown) in
            [(vec![8, -1], "[8, -1]"), (vec![0], "[0]"), (vec![i64::MAX, 8], "[9223372036854775807, 8]")]
        {
            let spec = CsvSpec { feature_dims: dims, ..spec() };
            let error = read_rows(Path::new("rows.csv"), &b"1,2,0\n"[..], &spec, 100).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("feature dimensions {shown} do not make an example; expected positive ones")
            );
        }
    }

    #[test]
    fn memory_is_bounded() {
        let text = "1,2,0\n".repeat(10);
        let rows = |limit| read_rows(Path::new("rows.csv"), text.as_bytes(), &spec(), limit);
        assert_eq!(rows(60).unwrap().n_examples(), 10);
        assert_eq!(
            rows(59).unwrap_err().to_string(),
            "rows.csv: more than 59 bytes of text; expected a data set that fits in memory: split it"
        );
    }

    #[test]
    fn the_digits() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
        let digits = Dataset::read_csv(&path, &CsvSpec::digits()).unwrap();
        assert_eq!(digits.n_examples(), 1797);
        assert_eq!(digits.features.len(), 1797 * 64);
        let (min, max) = digits.features.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| (min.min(x), max.max(x)));
        assert_eq!((min, max), (0.0, 1.0));
        assert_eq!(digits.labels[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(digits.example(0)[..8], [0.0, 0.0, 0.3125, 0.8125, 0.5625, 0.0625, 0.0, 0.0]);

        let (train, test) = digits.clone().split_tail(360).unwrap();
        assert_eq!((train.n_examples(), test.n_examples()), (1437, 360));
        assert_eq!(test.example(0), digits.example(1437));
        assert_eq!(test.labels[..], digits.labels[1437..]);
    }

    #[test]
    fn a_split_leaves_something_on_both_sides() {
        let dataset = read(b"1,2,0\n1,2,1\n").unwrap();
        for n_test in [0, 2, 3] {
            assert_eq!(
                dataset.clone().split_tail(n_test).unwrap_err().to_string(),
                format!(
                    "cannot keep {n_test} examples for testing; the data set has 2, and one must be left to train on"
                )
            );
        }
    }
}
