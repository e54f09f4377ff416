//! Where each record of a TFRecord file begins, found by hopping over lengths, and cached.
//!
//! Opening does not read the bytes of records. Their lengths and the checksums that the file stores beside the lengths
//! identify them; reading a record verifies its bytes against the checksum.

use std::io::{BufReader, Read as _};
use std::path::Path;

use super::MAX_RECORD;
use super::shard::{Shard, key};
use super::shards::Shards;
use crate::error::{COPY_AGAIN, DataError, DataErrorKind};
use bf16scope_files::Records as Kept;
use bf16scope_files::framing::{self, FOOT, HEAD};
use sha2::{Digest, Sha256};

/// Above this size of the cache the oldest indexes are removed; a record takes 8 bytes.
const MAX_CACHE: u64 = 1 << 30;
/// Smaller indexes are not cached: making one takes a few milliseconds.
const MIN_KEPT: usize = 1000;
/// The first bytes of an index in the cache; changes with the format.
const MAGIC: &[u8; 8] = b"tfridx2\n";

/// The indexes kept below a cache directory.
pub fn indexes(cache_dir: &Path) -> Kept {
    Kept::new(cache_dir.join("indexes"), "index", MAX_CACHE)
}

/// The records of some files.
#[derive(Debug, PartialEq)]
pub(super) struct Index {
    /// For each file, where its records begin, followed by the end of the last one.
    pub(super) files: Vec<Vec<u64>>,
    /// SHA-256 of all lengths and checksums, in order.
    pub(super) fingerprint: String,
}

/// The place of a record, for messages.
pub(super) fn place(path: &Path, record: usize) -> String {
    format!("{}, record {record}", path.display())
}

impl Index {
    /// The index of these files, from the cache or newly made and cached. A cache that cannot be read or written only
    /// costs time.
    pub(super) fn load(shards: &Shards, cache: Option<&Path>) -> Result<Index, DataError> {
        let cached = cache.map(indexes);
        let key = key(&shards.shards);
        if let Some(cached) = &cached
            && let Some(bytes) = cached.find(&key, MAX_CACHE)
            && let Some(index) = Index::from_bytes(&bytes, &shards.shards)
        {
            return Ok(index);
        }
        let index = Index::build(shards)?;
        let n_records: usize = index.files.iter().map(|starts| starts.len() - 1).sum();
        if let Some(cached) = &cached
            && n_records >= MIN_KEPT
            && let Err(error) = cached.keep_whole(&key, &index.to_bytes())
        {
            tracing::warn!("index of records {}: {error}; it is made again each time", cached.dir().display());
        }
        Ok(index)
    }

    fn build(shards: &Shards) -> Result<Index, DataError> {
        let _span = tracing::info_span!("index").entered();
        let mut hash = Sha256::new();
        let files = (0..shards.shards.len()).map(|idx| hop(shards, idx, &mut hash)).collect::<Result<_, _>>()?;
        let fingerprint = bf16scope_files::hex(hash.finalize());
        Ok(Index { files, fingerprint })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.fingerprint.as_bytes());
        for starts in &self.files {
            out.extend((starts.len() as u64).to_le_bytes());
            out.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
        }
        out
    }

    /// `None` if the bytes do not fit the files.
    fn from_bytes(bytes: &[u8], shards: &[Shard]) -> Option<Index> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (fingerprint, mut rest) = rest.split_at_checked(64)?;
        let mut files = Vec::new();
        for shard in shards {
            let (n, after) = rest.split_first_chunk::<8>()?;
            let n_bytes = usize::try_from(u64::from_le_bytes(*n)).ok()?.checked_mul(8)?;
            let (starts, after) = after.split_at_checked(n_bytes)?;
            let starts: Vec<u64> = starts.as_chunks::<8>().0.iter().map(|start| u64::from_le_bytes(*start)).collect();
            if starts.last() != Some(&shard.stored_bytes()) {
                return None;
            }
            files.push(starts);
            rest = after;
        }
        let fingerprint = String::from_utf8(fingerprint.to_vec()).ok()?;
        rest.is_empty().then_some(Index { files, fingerprint })
    }
}

/// The error for a file that ends after `measured` bytes, inside a part that begins at byte `at` and needs `expected`
/// bytes.
pub(super) fn cut(place: String, at: u64, measured: u64, expected: u64) -> DataError {
    // A file cut in its first record may not be a TFRecord file at all.
    let kind = if at == 0 { DataErrorKind::Format } else { DataErrorKind::Damaged };
    let message = format!("the file ends after {measured} bytes, within the record; expected {expected} at least");
    DataError::new(kind, format!("{place}, at byte {at}"), message).help(COPY_AGAIN)
}

/// Where the records of a file begin, and the file's end.
fn hop(shards: &Shards, file_idx: usize, hash: &mut Sha256) -> Result<Vec<u64>, DataError> {
    let shard = &shards.shards[file_idx];
    let path = &shard.path;
    let mut file = BufReader::with_capacity(64 << 10, shards.reader(file_idx)?);
    let (mut starts, mut at) = (vec![0], 0u64);
    let n_bytes = shard.stored_bytes();
    while at < n_bytes {
        let place = || place(path, starts.len() - 1);
        let failed = |cause| DataError::read(place(), cause);
        let cut = |expected| cut(place(), at, n_bytes, expected);
        let no_length = || {
            let (kind, why) = match at {
                0 => (DataErrorKind::Format, ": this may be another kind of file"),
                _ => (DataErrorKind::Damaged, ""),
            };
            let place = format!("{}, at byte {at}", place());
            let message = format!("the checksum of its length does not agree; expected a TFRecord file{why}");
            DataError::new(kind, place, message).help(COPY_AGAIN)
        };
        if n_bytes - at < HEAD as u64 {
            return Err(match at {
                0 => no_length(),
                _ => cut(at + HEAD as u64),
            });
        }
        let mut head = [0; HEAD];
        file.read_exact(&mut head).map_err(failed)?;
        let (length, is_intact) = framing::length(&head);
        if !is_intact {
            return Err(no_length());
        }
        let end = length.checked_add((HEAD + FOOT) as u64).and_then(|n_bytes| at.checked_add(n_bytes));
        let Some(end) = end.filter(|end| *end <= n_bytes) else {
            return Err(cut(end.unwrap_or(u64::MAX)));
        };
        if length > MAX_RECORD {
            return Err(DataError::too_long(place(), length, MAX_RECORD));
        }
        file.seek_relative(length as i64).map_err(failed)?;
        let mut foot = [0; FOOT];
        file.read_exact(&mut foot).map_err(failed)?;
        hash.update(length.to_le_bytes());
        hash.update(foot);
        starts.push(end);
        at = end;
    }
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_files::framing::framed;
    use std::fs;
    use std::io::Write as _;

    fn shard(path: &Path, bytes: &[u8]) -> Shards {
        fs::write(path, bytes).unwrap();
        Shards::plain(vec![Shard::from_path(path).unwrap()])
    }

    fn whole() -> Vec<u8> {
        [framed(b"one"), framed(b""), framed(b"three")].concat()
    }

    #[test]
    fn an_index_is_kept_and_made_again_when_it_is_damaged_or_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cache) = (folder.path().join("a"), folder.path().join("cache"));
        let cached = indexes(&cache);
        let few = Index::load(&shard(&path, &whole()), Some(&cache)).unwrap();
        assert_eq!((few.files, cached.size().unwrap().0), (vec![vec![0, 19, 35, 56]], 0));
        let whole = framed(b"one").repeat(MIN_KEPT);
        let shards = shard(&path, &whole);
        let index = Index::load(&shards, Some(&cache)).unwrap();
        let key = key(&shards.shards);
        let of_cache = cached.path(&key);
        let bytes = fs::read(&of_cache).unwrap();
        let body = cached.find(&key, MAX_CACHE).unwrap();
        assert_eq!(Index::from_bytes(&body, &shards.shards).as_ref(), Some(&index));
        for at in (0..body.len()).step_by(37) {
            assert_eq!(Index::from_bytes(&body[..at], &shards.shards), None);
        }
        fs::write(&of_cache, b"damaged").unwrap();
        assert_eq!(Index::load(&shards, Some(&cache)).unwrap(), index);
        assert_eq!(fs::read(&of_cache).unwrap(), bytes);
        // Another record: another key, another fingerprint.
        let longer = shard(&path, &[&whole[..], &framed(b"four")].concat());
        let other = Index::load(&longer, Some(&cache)).unwrap();
        assert!(other.fingerprint != index.fingerprint && other.files[0].len() == MIN_KEPT + 2);
        // A record with other bytes has another checksum.
        let other = shard(&path, &[&framed(b"One"), &whole[19..]].concat());
        assert_ne!(Index::load(&other, None).unwrap().fingerprint, index.fingerprint);
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let name = path.display().to_string();
        let refused =
            |bytes: &[u8]| Index::load(&shard(&path, bytes), None).unwrap_err().to_string().replace(&name, "a");
        for end in 1..whole().len() {
            if [19, 35].contains(&end) {
                continue;
            }
            let error = refused(&whole()[..end]);
            assert!(error.starts_with("a, record ") && error.contains("expected"), "{error}");
        }
        assert_eq!(
            refused(&whole()[..50]),
            "a, record 2, at byte 35: the file ends after 50 bytes, within the record; expected 56 at least\n\
             help: copy or download the file again"
        );
        let mut flipped = whole();
        flipped[20] ^= 0x10;
        assert_eq!(
            refused(&flipped),
            "a, record 1, at byte 19: the checksum of its length does not agree; expected a TFRecord file\n\
             help: copy or download the file again"
        );
        assert_eq!(
            refused(b"x,y\n1.0,2.0\n3.0,4.0"),
            "a, record 0, at byte 0: the checksum of its length does not agree; expected a TFRecord file: this may be another \
             kind of file\nhelp: copy or download the file again"
        );
        // A length with a valid checksum that no memory holds.
        let length = (MAX_RECORD + 1).to_le_bytes();
        let head = [&length[..], &framing::masked_crc(&length).to_le_bytes()].concat();
        let sparse = fs::File::create(&path).unwrap();
        (&sparse).write_all(&head).unwrap();
        sparse.set_len(MAX_RECORD + 17).unwrap();
        let error = Index::load(&Shards::plain(vec![Shard::from_path(&path).unwrap()]), None)
            .unwrap_err()
            .to_string()
            .replace(&name, "a");
        assert_eq!(error, "a, record 0: 268435457 bytes; expected at most 268435456 in a record");
    }
}
