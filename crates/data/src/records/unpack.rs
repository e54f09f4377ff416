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
mod tests {
    use super::super::{Records as _, TfRecords};
    use super::*;
    use bf16scope_files::framing::framed;
    use std::fs;
    use std::path::PathBuf;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Place {
            Place { folder: tempfile::tempdir().unwrap() }
        }

        fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        }

        fn cache(&self) -> PathBuf {
            self.folder.path().join("cache")
        }

        fn refused(&self, path: &Path) -> String {
            let error = TfRecords::open(&[path.to_path_buf()], Some(&self.cache())).unwrap_err();
            error.to_string().replace(&format!("{}/", self.folder.path().display()), "")
        }
    }

    #[test]
    fn compressed_files_are_unpacked_once_and_read_by_number() {
        let place = Place::new();
        let records = |from: u32| -> Vec<u8> { (from..from + 3).flat_map(|n| framed(&n.to_le_bytes())).collect() };
        // A file of two gzip members, like `cat a.gz b.gz`.
        let two = [gzip(&records(0)), gzip(&records(3))].concat();
        let files = [place.file("a.gz", &two), place.file("b", &records(6)), place.file("c", &zlib(&records(9)))];
        let open = || TfRecords::open(&files, Some(&place.cache())).unwrap();
        let check = |opened: &TfRecords| {
            assert_eq!(opened.n_records(), 12);
            for index in (0..12).rev() {
                assert_eq!(opened.bytes(index).unwrap(), (index as u32).to_le_bytes());
            }
            assert_eq!(opened.place(4), format!("{}, record 4", files[0].display()));
        };
        let opened = open();
        check(&opened);
        let cached = unpacked(&place.cache());
        let n_bytes = (records(0).len() * 3) as u64;
        assert_eq!(cached.size().unwrap(), (2, n_bytes));
        // The second time the file in the cache is used, not made again.
        let mut of_cache: Vec<PathBuf> =
            fs::read_dir(cached.dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
        of_cache.sort();
        let inode = |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before: Vec<u64> = of_cache.iter().map(inode).collect();
        let again = open();
        check(&again);
        assert_eq!(of_cache.iter().map(inode).collect::<Vec<_>>(), before);
        // A checkpoint's fingerprint does not depend on how the files are stored.
        let plain =
            [place.file("p", &[records(0), records(3)].concat()), files[1].clone(), place.file("q", &records(9))];
        assert_eq!(TfRecords::open(&plain, None).unwrap().fingerprint(), opened.fingerprint());
        // A new file with the same name is unpacked again.
        fs::write(&files[0], gzip(&[records(20), records(23)].concat())).unwrap();
        assert_eq!(open().bytes(0).unwrap(), 20u32.to_le_bytes());
    }

    #[test]
    fn without_a_cache_it_is_said_how_a_file_is_unpacked() {
        let place = Place::new();
        let refused = |path: &PathBuf| {
            let error = TfRecords::open(std::slice::from_ref(path), None).unwrap_err().to_string();
            error.replace(&format!("{}/", place.folder.path().display()), "")
        };
        assert_eq!(
            refused(&place.file("a", &gzip(&framed(b"one")))),
            "a: a gzip file, whose records are read by number once it is unpacked, and there is no cache directory for that\n\
             help: set BF16SCOPE_CACHE, or unpack it: gunzip -c a > a.unpacked"
        );
        let error = refused(&place.file("b", &zlib(&framed(b"one"))));
        assert!(error.starts_with("b: a zlib file, whose records") && error.contains("zlib.decompress"), "{error}");
    }

    #[cfg(not(feature = "records"))]
    #[test]
    fn a_build_without_zstandard_names_the_feature() {
        let place = Place::new();
        assert_eq!(
            place.refused(&place.file("a.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0])),
            "a.zst: this build reads no Zstandard files\nhelp: build bf16scope with `--features records`, or unpack the file \
             yourself and name what comes out"
        );
    }

    #[test]
    fn a_damaged_or_cut_stream_is_said_with_its_file_and_leaves_nothing() {
        let place = Place::new();
        // Incompressible bytes, so that damage anywhere is noticed.
        let noise: Vec<u8> = (0..40_000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        let whole = gzip(&framed(&noise));
        for end in [17, whole.len() / 2, whole.len() - 1] {
            let error = place.refused(&place.file("a", &whole[..end]));
            let help = "help: copy or download the file again";
            assert!(
                error.starts_with("a: the gzip stream is damaged or ends early, at or before byte ")
                    && error.ends_with(help),
                "{error}"
            );
        }
        let mut damaged = whole.clone();
        let at = damaged.len() - 6; // the stream's own checksum
        damaged[at] ^= 1;
        assert!(place.refused(&place.file("a", &damaged)).starts_with("a: the gzip stream is damaged"));
        assert_eq!(unpacked(&place.cache()).size().unwrap(), (0, 0));
        // An unpacked file that has no records gets the usual error, under the user's name for the file.
        let error = place.refused(&place.file("a", &gzip(b"x,y\n1.0,2.0\n3.0,4.0")));
        assert!(error.starts_with("a, record 0, at byte 0: the checksum of its length does not agree"), "{error}");
    }

    /// Bytes after a stream used to be ignored silently. Gzip files can be joined by `cat`, and all members are read.
    #[test]
    fn what_stands_after_a_stream_is_read_or_said() {
        let place = Place::new();
        let records = |from: u32| -> Vec<u8> { (from..from + 3).flat_map(|n| framed(&n.to_le_bytes())).collect() };
        for junk in [&zlib(&records(3))[..], b"x", &[0; 40_000]] {
            let end = zlib(&records(0)).len();
            let error = TfRecords::open(&[place.file("z", &[&zlib(&records(0)), junk].concat())], Some(&place.cache()));
            let error = error.unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(source, format!("the stream ends at byte {end}, and the file goes on"));
            assert!(error.to_string().contains("z: the zlib stream is damaged"), "{error}");
            let gzipped = place.file("g", &[&gzip(&records(0)), junk].concat());
            let error = TfRecords::open(&[gzipped], Some(&place.cache())).unwrap_err().to_string();
            assert!(error.contains("g: the gzip stream is damaged"), "{error}");
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let place = Place::new();
        // A megabyte would unpack to a gigabyte of zeros.
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for _ in 0..80 {
            out.write_all(&vec![0; 1 << 20]).unwrap();
        }
        let bomb = out.finish().unwrap();
        let error = place.refused(&place.file("bomb.gz", &bomb));
        let start = "bomb.gz: a gzip file of which ";
        let end = " times as many; expected at most 200 times: it may be a decompression bomb\n\
                   help: if it is not, unpack it yourself and name what comes out";
        assert!(error.starts_with(start) && error.contains(" bytes unpack to ") && error.ends_with(end), "{error}");
        assert_eq!(unpacked(&place.cache()).size().unwrap(), (0, 0), "nothing of it is left");
    }

    #[test]
    fn what_is_unpacked_has_a_limit_and_the_oldest_of_others_go() {
        let place = Place::new();
        let path = place.file("a", &gzip(&framed(&[1; 1000])));
        let dir = place.cache();
        let room = |limit| Room { cached: Kept::new(dir.clone(), "records", limit), limit };
        let fill = |path: &Path, limit| {
            let mut shards = [Shard::from_path(path).unwrap()];
            room(limit).fill(&mut shards, &[(0, Compression::Gzip)], &Cache::default())
        };
        let error = fill(&path, 1015).unwrap_err().to_string();
        assert_eq!(
            error.replace(&format!("{}/", place.folder.path().display()), ""),
            "a: a gzip file; with those before it, it unpacks to more than 1015 bytes, which is all that is kept unpacked of a \
             data set\nhelp: unpack the files where there is room, and name those: gunzip -c a > a.unpacked"
        );
        // Parquet has no command that unpacks it.
        assert_eq!(
            too_large(Path::new("a.parquet"), Compression::Parquet, 1015).to_string(),
            "a.parquet: a Parquet file; with those before it, it unpacks to more than 1015 bytes, which is all that is kept \
             unpacked of a data set\nhelp: name fewer files, or write them again without columns that no feature is made of"
        );
        // A file stands where the folder of the cache would be.
        let taken = Kept::new(place.file("taken", b"").join("unpacked"), "records", 1016);
        let shard = Shard::from_path(&path).unwrap();
        let error = Room { cached: taken, limit: 1016 }.unpack(&shard, Compression::Gzip, "key", 1016);
        assert_eq!(
            error.unwrap_err().to_string().replace(&format!("{}/", place.folder.path().display()), ""),
            "a: cannot be unpacked to taken/unpacked"
        );
        fill(&path, 1016).unwrap();
        let other = place.file("b", &gzip(&framed(&[2; 500])));
        fill(&other, 1516).unwrap();
        assert_eq!(room(1).cached.size().unwrap(), (1, 516), "the older one went, for 1532 do not fit");
    }
}
