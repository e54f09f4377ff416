//! The ids of texts in a file: written once, in order, then read by range from any thread.
//!
//! After the ids come a table of records (where the ids of each text end, and the text's place), a header in JSON, its
//! length, a CRC-32C of everything before it and a magic number. Nothing of it is kept in memory.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use bf16scope_files::{self as files, Records as Kept, Replacement, read_exact_at};

/// The largest size of the ids of all data sets in the cache, and of one data set anywhere.
pub(super) const MAX_BYTES: u64 = 16 << 30;
/// The last bytes of a file of ids; changes with the format.
const MAGIC: &[u8; 8] = b"txtids2\n";
const TAIL: u64 = 8 + 4 + 8;
const MAX_HEADER: u64 = 1 << 16;
const BLOCK: usize = 1 << 16;

/// The ids of texts kept below a cache directory.
pub fn token_ids(cache_dir: &Path) -> Kept {
    Kept::new(cache_dir.join("tokens"), "ids", MAX_BYTES)
}

/// The header of a file of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// Bytes of an id.
    pub width: u64,
    pub n_tokens: u64,
    pub n_records: u64,
    /// Texts per record: one or two.
    pub n_fields: u64,
    /// The type of the labels, if there are any.
    pub label: Option<LabelType>,
    pub greatest_id: u32,
    /// Skipped records.
    pub n_skipped: u64,
    /// SHA-256 of ids and records.
    pub fingerprint: String,
    /// Its key in the cache: one file cannot be mistaken for another.
    pub key: String,
}

/// The type of the labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LabelType {
    Int,
    Float,
}

/// A text of a data set, or a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Where its ids begin.
    pub start: u64,
    /// Where the ids of each text end.
    pub ends: Vec<u64>,
    /// The file's number, and the line from 1; 0 for a whole file.
    pub file: u64,
    pub line: u64,
    /// The label: the bits of an `i64` or an `f64`.
    pub label: u64,
}

const LINE_BITS: u32 = 44;

impl Header {
    fn row(&self) -> u64 {
        8 * (self.n_fields + 1 + u64::from(self.label.is_some()))
    }

    fn n_bytes(&self) -> Option<u64> {
        let ids = self.n_tokens.checked_mul(self.width)?;
        ids.checked_add(self.n_records.checked_mul(self.row())?)
    }
}

/// Bytes per id for ids below `vocabulary`.
pub(super) fn width(vocabulary: u32) -> u64 {
    match vocabulary {
        0..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        _ => 4,
    }
}

/// Writes ids and records, in order.
#[derive(Debug)]
pub(super) struct Writer {
    header: Header,
    out: BufWriter<Out>,
    table: BufWriter<File>,
    n_tokens: u64,
}

#[derive(Debug)]
enum Out {
    Kept(Replacement),
    Unnamed(File),
}

impl Out {
    fn with<T>(&mut self, write: impl FnOnce(&mut dyn Write) -> T) -> T {
        match self {
            Out::Kept(file) => write(file),
            Out::Unnamed(file) => write(file),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(|out| out.flush())
    }
}

impl Writer {
    /// Writes to the cache's file for `key`; without a cache, to an unnamed temporary file.
    pub fn new(cached: Option<(&Kept, &str)>, header: Header) -> io::Result<Writer> {
        let (out, table) = match cached {
            Some((cached, key)) => {
                std::fs::create_dir_all(cached.dir())?;
                files::make_way(&cached.path(key))?;
                (Out::Kept(Replacement::begin(&cached.path(key))?), tempfile::tempfile_in(cached.dir())?)
            }
            None => (Out::Unnamed(tempfile::tempfile()?), tempfile::tempfile()?),
        };
        Ok(Writer { header, out: BufWriter::new(out), table: BufWriter::new(table), n_tokens: 0 })
    }

    /// The number of ids so far.
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    pub fn n_records(&self) -> u64 {
        self.header.n_records
    }

    pub fn ids(&mut self, ids: &[u32]) -> io::Result<()> {
        self.n_tokens += ids.len() as u64;
        self.header.greatest_id = ids.iter().copied().max().unwrap_or(0).max(self.header.greatest_id);
        let width = self.header.width as usize;
        ids.iter().try_for_each(|id| self.out.write_all(&id.to_le_bytes()[..width]))
    }

    /// Ends a record, with its texts' ends in `ends`.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        self.header.n_records += 1;
        for end in &record.ends {
            self.table.write_all(&end.to_le_bytes())?;
        }
        self.table.write_all(&(record.file << LINE_BITS | record.line).to_le_bytes())?;
        match self.header.label {
            Some(_) => self.table.write_all(&record.label.to_le_bytes()),
            None => Ok(()),
        }
    }

    pub fn finish(self, n_skipped: u64) -> io::Result<Ids> {
        let Writer { mut header, out, table, n_tokens } = self;
        header.n_tokens = n_tokens;
        header.n_skipped = n_skipped;
        let mut out = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        let mut table = table.into_inner().map_err(io::IntoInnerError::into_error)?;
        table.seek(SeekFrom::Start(0))?;
        io::copy(&mut table, &mut out)?;
        let file = match &mut out {
            Out::Kept(file) => files::open(file.writing())?,
            Out::Unnamed(file) => file.try_clone()?,
        };
        let n_bytes = header.n_bytes().unwrap_or(u64::MAX);
        let (mut sha, mut crc) = (Sha256::new(), 0);
        each_block(&file, n_bytes, |block| {
            sha.update(block);
            crc = crc32c::crc32c_append(crc, block);
        })?;
        header.fingerprint = bf16scope_files::hex(sha.finalize());
        let text = serde_json::to_vec(&header)?;
        let mut tail = text.clone();
        tail.extend((text.len() as u64).to_le_bytes());
        crc = crc32c::crc32c_append(crc, &tail);
        tail.extend(crc.to_le_bytes());
        tail.extend(MAGIC);
        // Reading may have moved the file position that is shared with the writer.
        match &mut out {
            Out::Kept(file) => file.seek(SeekFrom::End(0)).map(drop)?,
            Out::Unnamed(file) => file.seek(SeekFrom::End(0)).map(drop)?,
        }
        out.write_all(&tail)?;
        if let Out::Kept(replacement) = out {
            replacement.finish()?;
        }
        Ok(Ids { file, header })
    }
}

fn each_block(file: &File, n_bytes: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = BufReader::with_capacity(BLOCK, file);
    file.seek(SeekFrom::Start(0))?;
    let (mut block, mut left) = (vec![0; BLOCK], n_bytes);
    while left > 0 {
        let n = left.min(BLOCK as u64) as usize;
        file.read_exact(&mut block[..n])?;
        take(&block[..n]);
        left -= n as u64;
    }
    Ok(())
}

/// A finished file of ids, read by range.
#[derive(Debug)]
pub(super) struct Ids {
    file: File,
    pub header: Header,
}

impl Ids {
    /// The ids in the cache under `key`; `None` if they are missing, or damaged, which is reported: every byte is
    /// verified once. The file stays open, so it cannot disappear while it is used.
    pub fn find(path: &Path, key: &str) -> Option<Ids> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        let ids = Ids::open(path).filter(|ids| metadata.is_file() && ids.header.key == key);
        if ids.is_none() {
            tracing::warn!("{} is damaged, and is made again", path.display());
        }
        ids
    }

    fn open(path: &Path) -> Option<Ids> {
        let file = files::open(path).ok()?;
        let n_bytes = file.metadata().ok()?.len();
        let mut tail = [0; TAIL as usize];
        let tail_at = n_bytes.checked_sub(TAIL)?;
        read_exact_at(&file, &mut tail, tail_at).ok()?;
        let n_header = u64::from_le_bytes(*tail.first_chunk()?);
        let crc = u32::from_le_bytes(*tail[8..].first_chunk()?);
        if tail[12..] != *MAGIC || n_header > MAX_HEADER {
            return None;
        }
        let mut text = vec![0; n_header as usize];
        read_exact_at(&file, &mut text, tail_at.checked_sub(n_header)?).ok()?;
        let header: Header = serde_json::from_slice(&text).ok()?;
        if header.n_bytes()?.checked_add(n_header)?.checked_add(TAIL)? != n_bytes {
            return None;
        }
        let mut measured = 0;
        each_block(&file, n_bytes - 12, |block| measured = crc32c::crc32c_append(measured, block)).ok()?;
        (measured == crc).then_some(Ids { file, header })
    }

    /// Reads the ids from `start` on, as many as `ids` holds.
    pub fn read(&self, start: u64, ids: &mut [i32]) -> io::Result<()> {
        let width = self.header.width as usize;
        let mut bytes = vec![0; ids.len() * width];
        read_exact_at(&self.file, &mut bytes, start * self.header.width)?;
        for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(width)) {
            let mut whole = [0; 4];
            whole[..width].copy_from_slice(bytes);
            *id = i32::from_le_bytes(whole);
        }
        Ok(())
    }

    /// A record, by number.
    pub fn record(&self, index: u64) -> io::Result<Record> {
        let (n_fields, row) = (self.header.n_fields as usize, self.header.row());
        let table = self.header.n_tokens * self.header.width;
        // Together with the previous row, whose last end is where this record begins.
        let n_rows = if index == 0 { 1 } else { 2 };
        let mut bytes = vec![0; (n_rows * row) as usize];
        read_exact_at(&self.file, &mut bytes, table + (index + 1 - n_rows) * row)?;
        let numbers: Vec<u64> = bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let fields = &numbers[(n_rows as usize - 1) * row as usize / 8..];
        let start = if index == 0 { 0 } else { numbers[n_fields - 1] };
        let (file, line) = (fields[n_fields] >> LINE_BITS, fields[n_fields] & ((1 << LINE_BITS) - 1));
        let label = fields.get(n_fields + 1).copied().unwrap_or(0);
        Ok(Record { start, ends: fields[..n_fields].to_vec(), file, line, label })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        for vocabulary in [256, 257, 70_000] {
            let folder = tempfile::tempdir().unwrap();
            let cached = token_ids(folder.path());
            let header =
                Header { width: width(vocabulary), n_fields: 2, label: Some(LabelType::Float), ..Header::default() };
            let written = |cached| {
                let mut writer = Writer::new(cached, header.clone()).unwrap();
                for number in 0..3u32 {
                    writer.ids(&[number, vocabulary - 1, 7]).unwrap();
                    let ends = vec![3 * u64::from(number) + 1, 3 * u64::from(number) + 3];
                    let label = f64::from(number).to_bits();
                    writer.record(&Record { ends, file: 5, line: 9 + u64::from(number), label, start: 0 }).unwrap();
                }
                writer.finish(4).unwrap()
            };
            let unnamed = written(None);
            let ids = written(Some((&cached, "key")));
            assert_eq!(unnamed.header, ids.header);
            let path = cached.path("key");
            let opened = Ids::open(&path).unwrap();
            for ids in [unnamed, ids, opened] {
                assert_eq!((ids.header.n_tokens, ids.header.n_records, ids.header.n_skipped), (9, 3, 4));
                assert_eq!(ids.header.greatest_id, vocabulary - 1);
                let mut two = [0; 5];
                ids.read(3, &mut two).unwrap();
                assert_eq!(two, [1, vocabulary as i32 - 1, 7, 2, vocabulary as i32 - 1]);
                let last = Record { start: 6, ends: vec![7, 9], file: 5, line: 11, label: 2f64.to_bits() };
                assert_eq!(ids.record(2).unwrap(), last);
                assert_eq!(ids.record(0).unwrap().start, 0);
            }
            let whole = fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 4;
                fs::write(&path, damaged).unwrap();
                assert!(Ids::open(&path).is_none(), "byte {at}");
                fs::write(&path, &whole[..at]).unwrap();
                assert!(Ids::open(&path).is_none(), "up to byte {at}");
            }
        }
    }
}
