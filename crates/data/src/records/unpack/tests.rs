//! Packed streams, whole and damaged.

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
    let mut of_cache: Vec<PathBuf> = fs::read_dir(cached.dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
    of_cache.sort();
    let inode = |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before: Vec<u64> = of_cache.iter().map(inode).collect();
    let again = open();
    check(&again);
    assert_eq!(of_cache.iter().map(inode).collect::<Vec<_>>(), before);
    // A checkpoint's fingerprint does not depend on how the files are stored.
    let plain = [place.file("p", &[records(0), records(3)].concat()), files[1].clone(), place.file("q", &records(9))];
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
