//! The format of a record in the compile cache: a line with the format's name and a checksum of the next, a line of
//! JSON, and the gzipped optimized program. [`super::cache`] finds and writes the files.
//!
//! ```text
//! bf16scope-compile 1 SHA-256-OF-THE-NEXT-LINE
//! {"key":…,"target":"tpu-v2","answer":{"fits":{…}},…}
//! gzip of a HloModuleProto, whose own checksum covers it; nothing if the program does not fit
//! ```

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{CompileOutcome, Target};
use bf16scope_files as files;

/// A record without the optimized program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    /// The hash of everything that determines the outcome; also the file's name.
    pub(super) key: String,
    /// For people who look into the file.
    target: String,
    /// The hash of the program's bytes, including source lines.
    pub(super) program_sha256: String,
    /// The compiler's outcome.
    pub(super) answer: CompileOutcome,
    /// The size of the optimized program, compressed and uncompressed.
    n_gzip_bytes: u64,
    n_bytes: u64,
}

/// Why a record is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not a record, or belongs to another version.
    #[error("this is not a record of this version")]
    Format,
    /// Its second line does not match the first, or cannot be parsed.
    #[error("its figures are damaged")]
    Figures,
    /// It belongs to another program.
    #[error("it is another program's: its name was changed")]
    Key,
    /// Too short or too long.
    #[error("it holds {measured} bytes of program, expected {expected}")]
    Length {
        /// The actual bytes.
        measured: u64,
        /// The expected bytes.
        expected: u64,
    },
}

const MAGIC: &str = "bf16scope-compile 1 ";
/// A header is about 1 KiB; it contains one line of the compiler's text.
const MAX_LINE: u64 = 1 << 16;

impl Header {
    pub(super) fn new(key: &str, target: &Target, program_sha256: String, answer: CompileOutcome) -> Header {
        Header { key: key.to_string(), target: target.to_string(), program_sha256, answer, n_gzip_bytes: 0, n_bytes: 0 }
    }
}

/// The bytes of a record.
pub(super) fn bytes(header: &Header, optimized: &[u8]) -> io::Result<Vec<u8>> {
    let gzip = match optimized.is_empty() {
        true => Vec::new(),
        false => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(optimized)?;
            encoder.finish()?
        }
    };
    let header = Header { n_gzip_bytes: gzip.len() as u64, n_bytes: optimized.len() as u64, ..header.clone() };
    let line = serde_json::to_string(&header).map_err(io::Error::other)?;
    let mut bytes = format!("{MAGIC}{}\n{line}\n", sum(line.as_bytes())).into_bytes();
    bytes.extend(gzip);
    Ok(bytes)
}

fn sum(bytes: &[u8]) -> String {
    files::hex(Sha256::digest(bytes))
}

/// The header of a record; `None` if there is no record.
pub(super) fn read_header(path: &Path, key: &str) -> Result<Option<Header>, Damage> {
    let file = match files::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let n_file_bytes = file.metadata()?.len();
    let (header, n_header_bytes) = header_of(&mut BufReader::new(file))?;
    if header.key != key {
        return Err(Damage::Key);
    }
    let measured = n_file_bytes.saturating_sub(n_header_bytes);
    match measured == header.n_gzip_bytes {
        true => Ok(Some(header)),
        false => Err(Damage::Length { measured, expected: header.n_gzip_bytes }),
    }
}

/// The header, and its size.
fn header_of(reader: &mut BufReader<File>) -> Result<(Header, u64), Damage> {
    let mut line = || -> Result<Vec<u8>, Damage> {
        let mut line = Vec::new();
        reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        line.pop_if(|last| *last == b'\n').ok_or(Damage::Format)?;
        Ok(line)
    };
    let (first, second) = (line()?, line()?);
    let expected = first.strip_prefix(MAGIC.as_bytes()).ok_or(Damage::Format)?;
    if sum(&second).as_bytes() != expected {
        return Err(Damage::Figures);
    }
    let header = serde_json::from_slice(&second).map_err(|_| Damage::Figures)?;
    Ok((header, (first.len() + second.len() + 2) as u64))
}

/// The optimized program of a record.
pub(super) fn read_optimized(path: &Path) -> Result<Vec<u8>, Damage> {
    let mut reader = BufReader::new(files::open(path)?);
    let (header, _) = header_of(&mut reader)?;
    let mut optimized = Vec::new();
    // At the end of its input the decoder verifies checksum and length.
    GzDecoder::new(reader).take(header.n_bytes.saturating_add(1)).read_to_end(&mut optimized)?;
    match optimized.len() as u64 == header.n_bytes {
        true => Ok(optimized),
        false => Err(Damage::Length { measured: optimized.len() as u64, expected: header.n_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_says_why() {
        let messages = [
            (Damage::Format, "this is not a record of this version"),
            (Damage::Figures, "its figures are damaged"),
            (Damage::Key, "it is another program's: its name was changed"),
            (Damage::Length { measured: 3, expected: 4 }, "it holds 3 bytes of program, expected 4"),
        ];
        for (damage, expected) in messages {
            assert_eq!(damage.to_string(), expected);
        }
    }
}
