//! Damaged cache entries, and caches that are cleared during a run: the data that are read do not change.

use bf16scope::data::Source;
use bf16scope::data::records::{self, Records, TfRecords};
use bf16scope::data::text::{Format, Options, TextExamples, Texts, Tokenizer};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The number of damaged entries, two of each kind; docs/TEST_RUNS.md has a run with `BF16SCOPE_DAMAGES=10000`.
fn n_damages() -> u64 {
    std::env::var("BF16SCOPE_DAMAGES").map_or(22, |n| n.parse().unwrap())
}

/// A record as TensorFlow frames it.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let crc = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &crc(&length), bytes, &crc(bytes)].concat()
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// A tar of files, some larger than a block of sums.
fn tar(n: usize) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for number in 0..n {
        for (ending, len) in [("cls", 1), ("bin", 100 + 7_000 * (number % 5))] {
            let bytes = match ending {
                "cls" => vec![b'0' + (number % 10) as u8],
                _ => (0..len).map(|at| ((at * (number + 3)) >> 3) as u8).collect(),
            };
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, format!("{number:04}.{ending}"), &bytes[..]).unwrap();
        }
    }
    tar.into_inner().unwrap()
}

/// Data of every kind that is cached, and hashes of their contents.
pub(super) struct Place {
    folder: tempfile::TempDir,
    expected: Vec<[u8; 32]>,
}

const KINDS: [&str; 5] = ["a.gz", "b.zlib", "c.tar.gz", "d.parquet", "e.txt"];

impl Place {
    pub(super) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        // As many records as have an index that is kept, of the same lengths in both files: one may stand for the other.
        let records = |name: &str| -> Vec<u8> {
            (0..1100)
                .flat_map(|number| framed(format!("{name} {number:05} {}", "x".repeat(number % 40)).as_bytes()))
                .collect()
        };
        write("a.gz", &gzip(&records("a")));
        write("b.zlib", &zlib(&records("b")));
        write("c.tar.gz", &gzip(&tar(24)));
        let parquet = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input/parquet");
        let parquet = fs::read_dir(parquet).unwrap().map(|entry| entry.unwrap().path());
        let mut parquet: Vec<PathBuf> =
            parquet.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("shapes-")).collect();
        parquet.sort();
        fs::copy(&parquet[0], folder.path().join("d.parquet")).unwrap();
        let words = (0..).map(|number: u32| number.wrapping_mul(2_654_435_761).to_string() + " ");
        let mut text = String::new();
        words
            .take_while(|word| {
                text.push_str(word);
                text.len() < 1_100_000
            })
            .for_each(drop);
        write("e.txt", text.as_bytes());
        write("precious", b"a file of the user's");
        let mut place = Place { folder, expected: Vec::new() };
        place.expected = KINDS.iter().map(|name| place.hash(name)).collect();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn open(&self, name: &str) -> Arc<dyn Records> {
        match name.ends_with(".zlib") || name.ends_with(".gz") && !name.ends_with(".tar.gz") {
            true => Arc::new(TfRecords::open(&[self.path(name)], Some(&self.cache())).unwrap()),
            false => records::open(self.folder.path(), &[name], Some(&self.cache())).unwrap(),
        }
    }

    fn text(&self) -> TextExamples {
        let tokenizer = Tokenizer::bytes();
        let options: Options = serde_json::from_str(r#"{"tokenizer": "bytes", "window": 1000}"#).unwrap();
        let texts = Texts {
            files: vec![self.path("e.txt")],
            format: Format::Whole,
            separator: None,
            n_workers: 1,
            n_skipped_max: 0,
            cache: bf16scope::files::Cache::from(Some(&*self.cache())),
        };
        TextExamples::new(&texts, &tokenizer, &options).unwrap()
    }

    /// A hash of everything that is read from a data set.
    fn hash(&self, name: &str) -> [u8; 32] {
        match name {
            "e.txt" => of_source(&self.text()),
            name => of_records(name, &*self.open(name)),
        }
    }

    /// The entries of the cache.
    fn entries(&self) -> Vec<PathBuf> {
        let files = |folder: PathBuf| -> Vec<PathBuf> {
            fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
        };
        let mut entries: Vec<PathBuf> = files(self.cache()).into_iter().flat_map(files).collect();
        entries.sort();
        entries
    }
}

fn of_records(name: &str, records: &dyn Records) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(records.fingerprint());
    for index in 0..records.n_records() {
        // Those of TFRecords are no examples here: their error says so, after their checksum was right.
        match records.values(index, None) {
            Ok(values) => hash.update(format!("{values:?}")),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("no tf.train.Example") && !name.contains("tar"), "{name}: {error}");
                hash.update(error);
            }
        }
    }
    hash.finalize().into()
}

fn of_source(source: &TextExamples) -> [u8; 32] {
    let mut hash = Sha256::new();
    for index in 0..source.n_examples() {
        source.read(index).unwrap().iter().for_each(|array| hash.update(array));
    }
    hash.finalize().into()
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip,
    Cut,
    Longer,
    Swap,
    Empty,
    Fifo,
    SymlinkToOther,
    SymlinkToUser,
    SymlinkToNothing,
    Directory,
    Removed,
}

const DAMAGES: [Damage; 11] = [
    Damage::Flip,
    Damage::Cut,
    Damage::Longer,
    Damage::Swap,
    Damage::Empty,
    Damage::Fifo,
    Damage::SymlinkToOther,
    Damage::SymlinkToUser,
    Damage::SymlinkToNothing,
    Damage::Directory,
    Damage::Removed,
];

fn damage(kind: Damage, entries: &[PathBuf], place: &Place, random: &mut SmallRng) -> PathBuf {
    let path = entries.choose(random).unwrap();
    let same = entries.iter().filter(|other| other.extension() == path.extension() && *other != path);
    let other = same.collect::<Vec<_>>().choose(random).map_or_else(|| entries.choose(random).unwrap(), |other| *other);
    let whole = fs::read(path).unwrap();
    let replace = |make: &dyn Fn(&Path)| {
        fs::remove_file(path).unwrap();
        make(path);
    };
    match kind {
        Damage::Flip if whole.is_empty() => {}
        Damage::Flip => {
            let mut flipped = whole;
            let at = random.random_range(0..flipped.len());
            flipped[at] ^= 1 << random.random_range(0..8);
            fs::write(path, flipped).unwrap();
        }
        Damage::Cut => fs::write(path, &whole[..random.random_range(0..whole.len().max(1))]).unwrap(),
        Damage::Longer => fs::write(path, [&whole[..], &[0; 7]].concat()).unwrap(),
        Damage::Swap => {
            let theirs = fs::read(other).unwrap();
            fs::write(path, theirs).unwrap();
            fs::write(other, whole).unwrap();
        }
        Damage::Empty => fs::write(path, b"").unwrap(),
        Damage::Fifo => replace(&|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        Damage::SymlinkToOther => replace(&|path| std::os::unix::fs::symlink(other, path).unwrap()),
        Damage::SymlinkToUser => replace(&|path| std::os::unix::fs::symlink(place.path("precious"), path).unwrap()),
        Damage::SymlinkToNothing => replace(&|path| std::os::unix::fs::symlink("/nowhere/at/all", path).unwrap()),
        Damage::Directory => replace(&|path| fs::create_dir(path).unwrap()),
        Damage::Removed => fs::remove_file(path).unwrap(),
    }
    path.clone()
}

/// Regression: a `.records` file cut between two records silently trained on a part of the data; a changed byte of an unpacked
/// tar changed weights; other damage was reported as the user's file's; and opening a FIFO waited for ever.
#[test]
fn a_damaged_entry_changes_no_result_and_ends_no_run() {
    let place = Place::new();
    assert!(place.entries().len() >= 5, "{:?}", place.entries());
    let mut random = SmallRng::seed_from_u64(31);
    for number in 0..n_damages() {
        let kind = DAMAGES[number as usize % DAMAGES.len()];
        let damaged = damage(kind, &place.entries(), &place, &mut random);
        // All of them, for a swap is of two; the text, which is the largest, where it is its own.
        for (name, expected) in KINDS.iter().zip(&place.expected) {
            let is_ids = damaged.extension().is_some_and(|ending| ending == "ids");
            if *name != "e.txt" || is_ids || number % 16 == 0 {
                assert_eq!(place.hash(name), *expected, "{number}: {kind:?} of {}, {name}", damaged.display());
            }
        }
        assert_eq!(fs::read(place.path("precious")).unwrap(), b"a file of the user's", "{number}: {kind:?}");
        let irregular = place.entries().into_iter().find(|path| !fs::symlink_metadata(path).unwrap().is_file());
        // An irregular file of a text's entry stays until that file is looked at.
        if let Some(path) = irregular.filter(|path| path.extension().is_some_and(|ending| ending != "ids")) {
            panic!("{number}: {kind:?} is left: {}", path.display());
        }
    }
}

/// Damages an entry of a cache, given another entry and the folder of the data.
pub(super) type Harm = fn(&Path, &Path, &Place);

/// The damages of an entry, by name: a flipped bit or a cut at some positions, and every kind of file instead of the entry.
pub(super) fn harms() -> Vec<(&'static str, Harm)> {
    fn rewritten(path: &Path, change: impl Fn(&mut Vec<u8>)) {
        let mut bytes = fs::read(path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    }
    fn replaced(path: &Path, make: impl Fn(&Path)) {
        fs::remove_file(path).unwrap();
        make(path);
    }
    fn link(to: &Path, path: &Path) {
        replaced(path, |path| std::os::unix::fs::symlink(to, path).unwrap());
    }
    vec![
        ("its first bit flipped", |path, _, _| rewritten(path, |bytes| bytes[0] ^= 1)),
        ("a bit in the middle flipped", |path, _, _| {
            rewritten(path, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 8;
            })
        }),
        ("its last bit flipped", |path, _, _| rewritten(path, |bytes| *bytes.last_mut().unwrap() ^= 0x80)),
        ("cut to a byte", |path, _, _| rewritten(path, |bytes| bytes.truncate(1))),
        ("cut to a half", |path, _, _| rewritten(path, |bytes| bytes.truncate(bytes.len() / 2))),
        ("cut by a byte", |path, _, _| rewritten(path, |bytes| bytes.truncate(bytes.len() - 1))),
        ("empty", |path, _, _| fs::write(path, b"").unwrap()),
        ("grown by a byte", |path, _, _| rewritten(path, |bytes| bytes.push(0))),
        ("grown by itself", |path, _, _| rewritten(path, |bytes| bytes.extend_from_within(..))),
        ("another's bytes", |path, other, _| assert!(fs::copy(other, path).is_ok())),
        ("swapped with another", |path, other, _| {
            let [own, theirs] = [path, other].map(|path| fs::read(path).unwrap());
            fs::write(path, theirs).unwrap();
            fs::write(other, own).unwrap();
        }),
        ("a FIFO", |path, _, _| {
            replaced(path, |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()))
        }),
        ("a link to another", |path, other, _| link(other, path)),
        ("a link to the user's", |path, _, place| link(&place.path("precious"), path)),
        ("a link to itself", |path, _, _| link(path, path)),
        ("a link to nothing", |path, _, _| link(Path::new("/nowhere/at/all"), path)),
        ("a link to a device", |path, _, _| link(Path::new("/dev/zero"), path)),
        ("a folder", |path, _, _| replaced(path, |path| fs::create_dir(path).unwrap())),
        ("a folder with a file", |path, _, _| {
            replaced(path, |path| {
                fs::create_dir(path).unwrap();
                fs::write(path.join("file"), b"a file").unwrap();
            });
        }),
        // Root reads it all the same.
        ("unreadable", |path, _, _| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap()
        }),
        ("removed", |path, _, _| fs::remove_file(path).unwrap()),
    ]
}

/// Each entry of each kind of data, damaged in each way: indexes, unpacked records with their checksums, ids, conversions.
#[test]
fn every_kind_of_entry_is_made_again_whatever_is_done_to_it() {
    let place = Place::new();
    let mut n_cases = 0;
    for (name, expected) in KINDS.iter().zip(&place.expected) {
        fs::remove_dir_all(place.cache()).unwrap();
        assert_eq!(place.hash(name), *expected);
        let entries = place.entries();
        assert!(!entries.is_empty(), "{name}");
        // An additional file in the cache: a copy that no entry refers to.
        let beside = place.path("cache/beside");
        for entry in &entries {
            for (what, harm) in harms() {
                let other = entries.iter().find(|other| *other != entry).unwrap_or(&beside);
                if *other == beside {
                    fs::write(&beside, b"another entry").unwrap();
                }
                harm(entry, other, &place);
                n_cases += 1;
                assert_eq!(place.hash(name), *expected, "{name}: {}: {what}", entry.display());
                let metadata = fs::symlink_metadata(entry).unwrap();
                assert!(metadata.is_file(), "{name}: {}: {what} is left", entry.display());
                // A folder that is not empty must not be removed.
                if what == "a folder with a file" {
                    let aside = PathBuf::from(format!("{}.aside0", entry.display()));
                    assert_eq!(fs::read(aside.join("file")).unwrap(), b"a file");
                }
                assert_eq!(fs::read(place.path("precious")).unwrap(), b"a file of the user's", "{what}");
            }
        }
    }
    // A conversion is bytes by a key.
    let conversions = bf16scope::foreign::conversions(&place.cache());
    for (what, harm) in harms() {
        for (key, bytes) in [("one", &b"its HLO"[..]), ("two", b"another's HLO")] {
            conversions.keep_whole(key, bytes).unwrap();
            assert_eq!(conversions.find(key, 1 << 20).unwrap(), bytes);
        }
        harm(&conversions.path("one"), &conversions.path("two"), &place);
        n_cases += 1;
        let is_root =
            fs::read("/proc/self/status").is_ok_and(|status| String::from_utf8_lossy(&status).contains("Uid:\t0"));
        let expected = (what == "unreadable" && is_root).then(|| b"its HLO".to_vec());
        assert_eq!(conversions.find("one", 1 << 20), expected, "{what}");
    }
    println!("{n_cases} cases");
    assert!(n_cases >= 180, "{n_cases}");
}

/// Another run's eviction, `cache clear` or a failing disk during a run: data are still read from open files, or unpacked
/// again.
#[test]
fn a_cache_that_is_cleared_or_damaged_under_a_run_changes_nothing() {
    let place = Place::new();
    let mut random = SmallRng::seed_from_u64(7);
    for (number, kind) in DAMAGES.into_iter().cycle().take(n_damages() as usize / 4).enumerate() {
        let open: Vec<_> = KINDS[..4].iter().map(|name| (*name, place.open(name))).collect();
        let text = place.text();
        match number % 3 {
            0 => fs::remove_dir_all(place.cache()).unwrap(),
            _ => {
                let mut entries = place.entries();
                // Ids are looked at when they are opened, and stay open.
                entries.retain(|path| path.extension().is_some_and(|ending| ending == "records"));
                damage(kind, &entries, &place, &mut random);
            }
        }
        for (name, records) in &open {
            let at = KINDS.iter().position(|kind| kind == name).unwrap();
            assert_eq!(of_records(name, &**records), place.expected[at], "{number}: {kind:?}, {name}");
        }
        if number % 3 == 0 {
            assert_eq!(of_source(&text), place.expected[4]);
        }
        // The next run finds them whole, or makes them.
        drop(open);
        for (name, expected) in KINDS[..4].iter().zip(&place.expected) {
            assert_eq!(place.hash(name), *expected, "{number}: {kind:?}, {name}, opened again");
        }
    }
}

/// Regression: a text that was replaced by one with the same size and modification time gave the ids of the old one.
#[test]
fn a_file_that_was_replaced_with_its_size_and_time_kept_is_another() {
    let place = Place::new();
    // Stored, so that streams of records of one length are of one length.
    let stored = |bytes: &[u8]| {
        let mut out = GzEncoder::new(Vec::new(), Compression::none());
        out.write_all(&framed(bytes)).unwrap();
        out.finish().unwrap()
    };
    let first = |name: &str| TfRecords::open(&[place.path(name)], Some(&place.cache())).unwrap().bytes(0).unwrap();
    fs::write(place.path("f.gz"), stored(b"one")).unwrap();
    assert_eq!(first("f.gz"), b"one");
    let mut text = fs::read(place.path("e.txt")).unwrap();
    text[1000] ^= 1;
    for (name, bytes) in [("f.gz", &stored(b"two")), ("e.txt", &text)] {
        let (path, beside) = (place.path(name), place.path("beside"));
        let before = fs::metadata(&path).unwrap();
        fs::write(&beside, bytes).unwrap();
        fs::File::options().append(true).open(&beside).unwrap().set_modified(before.modified().unwrap()).unwrap();
        fs::rename(&beside, &path).unwrap();
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.modified().unwrap(), now.len()), (before.modified().unwrap(), before.len()));
    }
    assert_eq!(first("f.gz"), b"two");
    assert_ne!(place.hash("e.txt"), place.expected[4]);
}
