//! Checksums of a large file in a cache, block by block, in a file beside it: every read at any offset is verified,
//! without waiting until gigabytes have been hashed.
//!
//! `KEY.records` has `KEY.records.sums`: a magic number, the key, the file's size, a CRC-32C of each of its blocks, and
//! a SHA-256 of all that. A file without its sums, or with those of another key or size, counts as missing.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{FileError, open, put, read};

/// The block size in bytes. This is the average overhead of reading an image of 100 KB, and 64 GiB have sums of 16 MiB.
const BLOCK: u64 = 1 << 14;
/// The first bytes of sums; changes with the format.
const MAGIC: &[u8; 8] = b"bfsums1\n";
/// The largest size of sums: those of a file of 4 TiB.
const MAX_SUMS: u64 = 1 << 30;

/// The checksums of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    n_bytes: u64,
    blocks: Vec<u32>,
}

/// The path of a file's checksums.
pub(super) fn place(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sums");
    PathBuf::from(name)
}

impl Sums {
    /// Bytes of the file.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Stores the checksums of the file at `path`, which is in its cache under `key`.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn keep(&self, path: &Path, key: &str) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(self.n_bytes.to_le_bytes());
        bytes.extend(self.blocks.iter().flat_map(|block| block.to_le_bytes()));
        let hash = Sha256::digest(&bytes);
        bytes.extend(hash);
        put(&place(path), &bytes)
    }

    /// The checksums of the file at `path`, if it exists with the recorded size: none of its bytes is read yet.
    ///
    /// # Errors
    /// [`Damage`], if the file exists but is not valid.
    pub fn find(path: &Path, key: &str) -> Result<Option<Sums>, Damage> {
        let Ok(found) = fs::symlink_metadata(path) else { return Ok(None) };
        if !found.is_file() {
            return Err(Damage::Kind);
        }
        let bytes = read(&place(path), MAX_SUMS).map_err(|_| Damage::Sums)?;
        let sums = Sums::from_bytes(&bytes, key).ok_or(Damage::Sums)?;
        match found.len() == sums.n_bytes {
            true => Ok(Some(sums)),
            false => Err(Damage::Length { measured: found.len(), expected: sums.n_bytes }),
        }
    }

    fn from_bytes(bytes: &[u8], key: &str) -> Option<Sums> {
        let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
        if Sha256::digest(body)[..] != *hash {
            return None;
        }
        let (n_key, rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        let (name, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*n_key)).ok()?)?;
        let (n_bytes, blocks) = rest.split_first_chunk::<8>()?;
        let n_bytes = u64::from_le_bytes(*n_bytes);
        let (blocks, rest) = blocks.as_chunks::<4>();
        let blocks: Vec<u32> = blocks.iter().map(|block| u32::from_le_bytes(*block)).collect();
        let fits = name == key.as_bytes() && rest.is_empty() && blocks.len() as u64 == n_bytes.div_ceil(BLOCK);
        fits.then_some(Sums { n_bytes, blocks })
    }

    /// Reads bytes from `at` on, and verifies the blocks that contain them.
    ///
    /// # Errors
    /// An error of the operating system; [`FileError::Damaged`].
    pub fn read_exact_at(&self, file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
        let end = at.checked_add(into.len() as u64).filter(|end| *end <= self.n_bytes);
        let end = end.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        if into.is_empty() {
            return Ok(());
        }
        read_exact_at(file, into, at)?;
        let (first, last) = (at / BLOCK, (end - 1) / BLOCK);
        let mut edge = Vec::new();
        for block in first..=last {
            let whole = block * BLOCK..((block + 1) * BLOCK).min(self.n_bytes);
            let part = whole.start.max(at)..whole.end.min(end);
            let before = crc_of(file, whole.start..part.start, 0, &mut edge)?;
            let wanted = &into[(part.start - at) as usize..(part.end - at) as usize];
            let crc = crc_of(file, part.end..whole.end, crc32c::crc32c_append(before, wanted), &mut edge)?;
            if crc != self.blocks[block as usize] {
                return Err(FileError::Damaged { at: whole.start }.into());
            }
        }
        Ok(())
    }

    /// Reads and verifies the whole file.
    ///
    /// # Errors
    /// Those of [`read_exact_at`](Sums::read_exact_at).
    pub fn check(&self, path: &Path) -> io::Result<()> {
        let mut file = BufReader::with_capacity(1 << 18, open(path)?);
        let mut block = vec![0; BLOCK as usize];
        for (number, expected) in self.blocks.iter().enumerate() {
            let at = number as u64 * BLOCK;
            let block = &mut block[..BLOCK.min(self.n_bytes - at) as usize];
            file.read_exact(block)?;
            if crc32c::crc32c(block) != *expected {
                return Err(FileError::Damaged { at }.into());
            }
        }
        match file.read(&mut block[..1])? {
            0 => Ok(()),
            _ => Err(FileError::Damaged { at: self.n_bytes }.into()),
        }
    }
}

/// Continues a checksum over bytes of a file.
fn crc_of(file: &File, bytes: Range<u64>, crc: u32, scratch: &mut Vec<u8>) -> io::Result<u32> {
    if bytes.is_empty() {
        return Ok(crc);
    }
    scratch.resize((bytes.end - bytes.start) as usize, 0);
    read_exact_at(file, scratch, bytes.start)?;
    Ok(crc32c::crc32c_append(crc, scratch))
}

/// Computes checksums over consecutive bytes.
#[derive(Debug, Default)]
pub struct Summing {
    n_bytes: u64,
    blocks: Vec<u32>,
    crc: u32,
}

impl Summing {
    /// Adds the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = BLOCK - self.n_bytes % BLOCK;
            let (own, rest) = bytes.split_at(left.min(bytes.len() as u64) as usize);
            self.crc = crc32c::crc32c_append(self.crc, own);
            self.n_bytes += own.len() as u64;
            if self.n_bytes.is_multiple_of(BLOCK) {
                self.blocks.push(std::mem::take(&mut self.crc));
            }
            bytes = rest;
        }
    }

    /// The checksums of all bytes.
    pub fn finish(mut self) -> Sums {
        if !self.n_bytes.is_multiple_of(BLOCK) {
            self.blocks.push(self.crc);
        }
        Sums { n_bytes: self.n_bytes, blocks: self.blocks }
    }
}

/// Why an existing file of a cache is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It is a link, a FIFO or a directory.
    #[error("it is not a regular file")]
    Kind,
    /// Its checksums are missing, damaged or another file's.
    #[error("its checksums are missing, damaged or another file's")]
    Sums,
    /// It has another size.
    #[error("it has {measured} bytes, expected {expected}")]
    Length {
        /// Its size.
        measured: u64,
        /// The recorded size.
        expected: u64,
    },
}

/// Fills `into` with the bytes of a file from `at` on, from any thread.
///
/// # Errors
/// An error of the operating system; a file that ends before.
#[cfg(unix)]
pub fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

/// As above.
///
/// # Errors
/// As above.
#[cfg(not(unix))]
pub fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    use std::io::Seek as _;
    let mut reader = file.try_clone()?;
    reader.seek(io::SeekFrom::Start(at))?;
    reader.read_exact(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums_of(bytes: &[u8]) -> Sums {
        let mut sums = Summing::default();
        // In pieces that end anywhere.
        bytes.chunks(4099).for_each(|piece| sums.update(piece));
        sums.finish()
    }

    #[test]
    fn a_damage_is_described() {
        assert_eq!(Damage::Kind.to_string(), "it is not a regular file");
        assert_eq!(Damage::Sums.to_string(), "its checksums are missing, damaged or another file's");
    }

    #[test]
    fn every_damage_is_seen_where_it_is_read_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.records");
        for n_bytes in [0usize, 1, 100, BLOCK as usize, BLOCK as usize + 1, 3 * BLOCK as usize, 3 * BLOCK as usize + 77]
        {
            let whole: Vec<u8> = (0..n_bytes).map(|at| ((at * at) >> 5) as u8).collect();
            let sums = sums_of(&whole);
            fs::write(&path, &whole).unwrap();
            sums.keep(&path, "key").unwrap();
            assert_eq!(Sums::find(&path, "key"), Ok(Some(sums.clone())));
            assert_eq!(Sums::find(&path, "yek"), Err(Damage::Sums));
            sums.check(&path).unwrap();
            let file = File::open(&path).unwrap();
            let ranges = [(0, n_bytes), (n_bytes / 3, n_bytes / 2), (n_bytes / 2, n_bytes), (n_bytes, n_bytes)];
            for (from, to) in ranges {
                let mut read = vec![0; to - from];
                sums.read_exact_at(&file, &mut read, from as u64).unwrap();
                assert_eq!(read, whole[from..to]);
            }
            let beyond = sums.read_exact_at(&file, &mut [0; 2], (n_bytes as u64).saturating_sub(1));
            assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            for at in (0..n_bytes).step_by(1 + n_bytes / 40) {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x20;
                fs::write(&path, &damaged).unwrap();
                let is_damage = |error: io::Error| error.get_ref().is_some_and(|inner| inner.is::<FileError>());
                assert!(is_damage(sums.check(&path).unwrap_err()));
                for (from, to) in ranges {
                    let block = at as u64 / BLOCK;
                    let is_near = from < to && (from as u64 / BLOCK..=(to as u64 - 1) / BLOCK).contains(&block);
                    let read = sums.read_exact_at(&file, &mut vec![0; to - from], from as u64);
                    assert_eq!(read.is_err(), is_near, "byte {at} of {n_bytes}, {from} to {to}");
                }
            }
            fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
            let (measured, expected) = (n_bytes as u64 + 1, n_bytes as u64);
            assert_eq!(Sums::find(&path, "key"), Err(Damage::Length { measured, expected }));
        }
    }

    #[test]
    fn sums_that_are_damaged_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.records");
        assert_eq!(Sums::find(&path, "key"), Ok(None));
        fs::write(&path, b"a file").unwrap();
        assert_eq!(Sums::find(&path, "key"), Err(Damage::Sums));
        sums_of(b"a file").keep(&path, "key").unwrap();
        let whole = fs::read(place(&path)).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert_eq!(Sums::from_bytes(&damaged, "key"), None, "byte {at}");
            assert_eq!(Sums::from_bytes(&whole[..at], "key"), None, "up to byte {at}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(Sums::find(&path, "key"), Err(Damage::Kind));
    }
}
