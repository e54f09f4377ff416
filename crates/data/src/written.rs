//! Text files that people and spreadsheets write: plain or gzip, in UTF-8, and numbers with decimal points.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::error::DataError;
use bf16scope_files as files;
use bf16scope_hlo::DType;

/// How much of a text is looked at before it is read.
const N_HEAD: u64 = 8 << 10;

/// A file's text, unpacked.
pub(super) struct Text {
    /// Its beginning.
    pub head: Vec<u8>,
    /// All of it.
    pub reader: Box<dyn Read>,
}

/// Opens a text, plain or gzip, which is recognised by its first bytes.
///
/// # Errors
/// A file that cannot be opened; text in UTF-16. Errors of its beginning are those of the reader.
pub(super) fn open(path: &Path) -> Result<Text, DataError> {
    let open_error = |source| DataError::open(path, source);
    let mut file = BufReader::new(files::open(path).map_err(open_error)?);
    let is_gzip = file.fill_buf().map_err(open_error)?.starts_with(&[0x1F, 0x8B]);
    let mut rest: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut head = Vec::new();
    let failed = rest.by_ref().take(N_HEAD).read_to_end(&mut head).err();
    if let Some(error) = DataError::utf_16(path, &head) {
        return Err(error);
    }
    let reader = Box::new(Cursor::new(head.clone()).chain(Failed(failed)).chain(rest));
    Ok(Text { head, reader })
}

/// The remedy for a text that is a number, and beyond the range of the dtype that it is read as.
pub(super) fn beyond_range(text: &str, dtype: DType) -> Option<String> {
    // Not the words for infinities.
    let is_number = text.contains(|c: char| c.is_ascii_digit());
    let (is_beyond, largest) = match dtype {
        DType::F64 => (text.parse::<f64>().is_ok_and(f64::is_infinite), "1.8e308"),
        _ => (text.parse::<f32>().is_ok_and(f32::is_infinite), "3.4e38"),
    };
    (is_number && is_beyond).then(|| format!("it is beyond the range of {dtype}, whose largest number is {largest}"))
}

/// The error at the end of a beginning, once.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// The remedy for a number with a comma in it.
pub(super) const WRITE_POINTS: &str = "write a point before decimals and nothing between thousands, as `1234.5`; in pandas \
                                       `read_csv(FILE, decimal=',', thousands='.')`, then `to_csv(NEW)`";

/// Whether a cell is a number with a comma in it, as `1,5` and `1.234,5` are.
pub(super) fn is_with_comma(text: &str) -> bool {
    let is_of_a_number = |byte: u8| byte.is_ascii_digit() || b".,+-' ".contains(&byte);
    let has = |test: fn(u8) -> bool| text.bytes().any(test);
    text.bytes().all(is_of_a_number) && has(|byte| byte.is_ascii_digit()) && has(|byte| byte == b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_commas_are_told_from_names() {
        for text in ["1,5", "-1.234,5", "1,234.5", "1 234,5", "1,234,567"] {
            assert!(is_with_comma(text), "{text}");
        }
        for text in ["1.5", "1e5", "Doe, Jo", ",", "1,5 km", ""] {
            assert!(!is_with_comma(text), "{text}");
        }
    }
}
