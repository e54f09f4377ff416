//! Compressed files and Parquet files, unpacked once into the cache, so that their records can be read by number.
//!
//! The output is written to disk and never held in memory. Two bounds keep a decompression bomb from filling the disk:
//! the total size of the unpacked files, and the ratio of unpacked to compressed bytes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use super::compression::Compression;
use super::parquet_files::rows;
use super::remote;
use super::shard::{Cached, Shard, cached_sums, key};
use crate::error::{COPY_AGAIN, DataError, DataErrorKind};
use bf16scope_files::{self as files, Cache, Records as Kept, Replacement, Summing, Sums};

/// The largest total size of unpacked files; above it, the least recently used ones are removed.
const MAX_UNPACKED: u64 = 64 << 30;
/// The remedy without the feature that unpacks Zstandard.
#[cfg(not(feature = "records"))]
const WITHOUT: &str = "build bf16scope with `--features records`, or unpack the file yourself and name what comes out";
/// Output bytes before the ratio is checked.
const MIN_JUDGED: u64 = 64 << 20;

/// The unpacked files kept below a cache directory.
pub fn unpacked(cache_dir: &Path) -> Kept {
    Kept::new(cache_dir.join("unpacked"), "records", MAX_UNPACKED)
}

/// Finds or makes the unpacked form of each compressed file.
pub(super) fn unpack(
    shards: &mut [Shard],
    cache: &Cache,
    compression: fn(&[u8]) -> Option<Compression>,
) -> Result<(), DataError> {
    let mut packed = Vec::new();
    for (idx, shard) in shards.iter().enumerate() {
        let head = match head(shard) {
            Err(_) if shard.fetched.is_some() => {
                remote::again(shard, cache)?;
                head(shard)
            }
            head => head,
        };
        if let Some(kind) = compression(&head?) {
            packed.push((idx, kind));
        }
    }
    let Some(&(first, kind)) = packed.first() else { return Ok(()) };
    let Some(dir) = &cache.dir else {
        let path = &shards[first].path;
        let message = format!(
            "a {} file, whose records are read by number once it is unpacked, and there is no cache directory for that",
            kind.name()
        );
        let by_hand = kind.by_hand(path).map(|by_hand| format!(", or unpack it: {by_hand}")).unwrap_or_default();
        let error = DataError::new(DataErrorKind::Write, path, message);
        return Err(error.help(format!("set BF16SCOPE_CACHE{by_hand}")));
    };
    let room = Room { cached: unpacked(dir), limit: MAX_UNPACKED };
    room.fill(shards, &packed, cache)
}

/// Unpacks a file again, to the same place: the copy that a run uses may be damaged, or removed by another process that
/// makes room.
pub(super) fn again(shard: &Shard, to: &Cached, kind: Compression, cache: &Cache) -> Result<(), DataError> {
    let changed = || DataError::changed(&shard.path);
    match &shard.fetched {
        Some(fetched) if fetched.sums.check(&fetched.path).is_err() => remote::again(shard, cache)?,
        Some(_) => {}
        None if Shard::from_path(&shard.path)?.is_as(shard) => {}
        None => return Err(changed()),
    }
    let dir = cache.dir.as_deref().expect("a file of a cache is in one");
    let room = Room { cached: unpacked(dir), limit: MAX_UNPACKED };
    let key = to.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    match room.unpack(shard, kind, key, to.sums.n_bytes())? == *to.sums {
        true => Ok(()),
        false => Err(changed()),
    }
}

/// The first bytes of a file.
fn head(shard: &Shard) -> Result<Vec<u8>, DataError> {
    let failed = |cause| DataError::open(&shard.path, cause);
    let mut head = Vec::new();
    let file = files::open(shard.whole()).map_err(failed)?;
    match &shard.fetched {
        Some(fetched) => {
            head.resize(fetched.sums.n_bytes().min(16) as usize, 0);
            fetched.sums.read_exact_at(&file, &mut head, 0).map_err(failed)?;
        }
        None => drop(file.take(16).read_to_end(&mut head).map_err(failed)?),
    }
    Ok(head)
}

/// Where files are unpacked, and how many bytes of one data set may be.
struct Room {
    cached: Kept,
    limit: u64,
}

impl Room {
    fn fill(&self, shards: &mut [Shard], packed: &[(usize, Compression)], cache: &Cache) -> Result<(), DataError> {
        let mut left = self.limit;
        let (mut keys_in_use, mut n_new, mut n_bytes_new) = (BTreeSet::new(), 0, 0);
        for &(idx, kind) in packed {
            let shard = &mut shards[idx];
            let name = key(std::slice::from_ref(shard)) + kind.form();
            let path = self.cached.path(&name);
            self.cached.check(&name).map_err(|error| DataError::open(&shard.path, error.into()))?;
            let sums = match cached_sums(&path, &name) {
                // Another user's cache may still be readable.
                Some(sums) if sums.n_bytes() <= left => sums,
                Some(_) => return Err(too_large(&shard.path, kind, self.limit)),
                None => {
                    let _span = tracing::info_span!("unpack").entered();
                    if let Some(fetched) = &shard.fetched
                        && fetched.sums.check(&fetched.path).is_err()
                    {
                        remote::again(shard, cache)?;
                    }
                    let sums = self.unpack(shard, kind, &name, left)?;
                    (n_new, n_bytes_new) = (n_new + 1, n_bytes_new + sums.n_bytes());
                    sums
                }
            };
            left -= sums.n_bytes();
            shard.unpacked = Some((Cached { path, sums: Arc::new(sums) }, kind));
            keys_in_use.insert(name);
            // Never removes a file of this data set to make room for another one of it.
            if let Err(error) = self.cached.make_room(&keys_in_use) {
                tracing::warn!("{}: {error}; what is unpacked there stays", self.cached.dir().display());
            }
        }
        if n_new > 0 {
            let (dir, mib) = (self.cached.dir().display(), n_bytes_new >> 20);
            tracing::warn!(
                "files whose records cannot be read by number are unpacked once: {n_new} of them, {mib} MiB, to {dir}, where at most {} GiB are kept",
                self.limit >> 30
            );
        }
        Ok(())
    }

    /// Unpacks a file to the cache's path for `key`.
    fn unpack(&self, shard: &Shard, kind: Compression, key: &str, left: u64) -> Result<Sums, DataError> {
        let (path, to) = (&shard.path, &self.cached.path(key));
        let cannot_keep = |cause| {
            let message = format!("cannot be unpacked to {}", self.cached.dir().display());
            DataError::new(DataErrorKind::Write, path, message).because(cause)
        };
        std::fs::create_dir_all(self.cached.dir()).map_err(cannot_keep)?;
        files::sweep(self.cached.dir()).map_err(cannot_keep)?;
        files::make_way(to).map_err(cannot_keep)?;
        let mut out = Replacement::begin(to).map_err(cannot_keep)?;
        let file = files::open(shard.whole()).map_err(|cause| DataError::open(path, cause))?;
        let (mut n_bytes, mut sums) = (0u64, Summing::default());
        let mut take = |bytes: &[u8], n_packed: u64| {
            n_bytes += bytes.len() as u64;
            let (measured, limit) = (n_bytes / n_packed.max(1), kind.max_ratio());
            if n_bytes > MIN_JUDGED && measured > limit {
                let message = format!(
                    "a {} file of which {n_packed} bytes unpack to {measured} times as many; expected at most {limit} times: it \
                     may be a decompression bomb",
                    kind.name()
                );
                let help = "if it is not, unpack it yourself and name what comes out";
                return Err(DataError::new(DataErrorKind::TooLarge, path, message).help(help));
            }
            if n_bytes > left {
                return Err(too_large(path, kind, self.limit));
            }
            sums.update(bytes);
            out.write_all(bytes).map_err(cannot_keep)
        };
        match kind {
            Compression::Parquet => rows::unpack(file, path, |bytes| take(bytes, shard.n_bytes))?,
            Compression::Gzip => stream(file, path, kind, MultiGzDecoder::new, &mut take)?,
            Compression::Zlib => stream(file, path, kind, Zlib::new, &mut take)?,
            #[cfg(feature = "records")]
            Compression::Zstd => stream(file, path, kind, super::zstd::Zstd::new, &mut take)?,
            #[cfg(not(feature = "records"))]
            Compression::Zstd => {
                return Err(
                    DataError::new(DataErrorKind::Read, path, "this build reads no Zstandard files").help(WITHOUT)
                );
            }
        }
        out.finish().map_err(cannot_keep)?;
        let sums = sums.finish();
        sums.keep(to, key).map_err(cannot_keep)?;
        Ok(sums)
    }
}

/// Takes unpacked bytes, and the number of compressed bytes read so far.
type Take<'a> = dyn FnMut(&[u8], u64) -> Result<(), DataError> + 'a;

/// Passes the output of a compressed file to `take`, with the number of compressed bytes read so far.
fn stream<R: Read>(
    file: File,
    path: &Path,
    kind: Compression,
    decoder: impl FnOnce(Counted) -> R,
    take: &mut Take<'_>,
) -> Result<(), DataError> {
    let n_packed = Rc::new(Cell::new(0));
    let mut stream = decoder(Counted { file, n_bytes: Rc::clone(&n_packed) });
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => take(&buffer[..n], n_packed.get())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                let message = format!(
                    "the {} stream is damaged or ends early, at or before byte {}",
                    kind.name(),
                    n_packed.get()
                );
                return Err(DataError::new(DataErrorKind::Damaged, path, message).help(COPY_AGAIN).because(source));
            }
        }
    }
}

fn too_large(path: &Path, kind: Compression, limit: u64) -> DataError {
    let message = format!(
        "a {} file; with those before it, it unpacks to more than {limit} bytes, which is all that is kept unpacked of a data \
         set",
        kind.name()
    );
    let help = match kind.by_hand(path) {
        Some(by_hand) => format!("unpack the files where there is room, and name those: {by_hand}"),
        None => "name fewer files, or write them again without columns that no feature is made of".to_string(),
    };
    DataError::new(DataErrorKind::TooLarge, path, message).help(help)
}

/// A zlib stream that is the whole file. The decoder alone would silently ignore bytes after its end.
struct Zlib(flate2::bufread::ZlibDecoder<BufReader<Counted>>);

impl Zlib {
    fn new(file: Counted) -> Zlib {
        Zlib(flate2::bufread::ZlibDecoder::new(BufReader::new(file)))
    }
}

impl Read for Zlib {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(into)?;
        if n == 0 && !into.is_empty() && !self.0.get_mut().fill_buf()?.is_empty() {
            let end = self.0.total_in();
            return Err(io::Error::other(format!("the stream ends at byte {end}, and the file goes on")));
        }
        Ok(n)
    }
}

/// A file that counts the bytes read from it.
struct Counted {
    file: File,
    n_bytes: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        self.n_bytes.set(self.n_bytes.get() + n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests;
