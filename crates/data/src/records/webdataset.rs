//! WebDataset: tar files in which the files of one example are consecutive and share a name, with one extension each:
//! `n01/0007.jpg`, `n01/0007.cls`, `n01/0007.json`.
//!
//! Opening hops over the headers, which have checksums, and remembers the offset of each file: about 100 bytes of
//! memory per example. A tar has no checksums for the contents of files. An example's values are named by the
//! extensions. Extensions that WebDataset reads as whole numbers (`cls`, `index`, …) give numbers; `json` also gives
//! its members, as `json.NAME`; everything else is bytes.
//!
//! Source: WebDataset's `tariterators.py` (`base_plus_ext`, `group_by_keys`) and `autodecode.py`. The headers are read by the
//! crate `tar`.

mod json;

use std::collections::HashMap;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use super::MAX_RECORD;
use super::compression::Compression;
use super::index::cut;
use super::shard::Shard;
use super::shards::Shards;
use super::tfrecord::no_records;
use super::{Records, Value, Values};
use crate::error::{COPY_AGAIN, DataError, DataErrorKind};
use bf16scope_files::Cache;

/// The size of a header, and the unit to which files are padded.
const BLOCK: u64 = 512;
/// The largest size of a name that has its own header.
const MAX_NAME: u64 = 64 << 10;
/// Bytes after a tar's end that are checked: tars are padded to some 10 KiB, and at most to a MiB.
const MAX_BEHIND: u64 = 64 << 20;
/// Extensions of files that hold a whole number as text.
const NUMBERS: [&str; 7] = ["cls", "cls2", "class", "count", "index", "inx", "id"];
/// Extensions of JSON files.
const JSON: [&str; 2] = ["json", "jsn"];

/// The examples of tar files, one file after the other.
#[derive(Debug)]
pub struct Tars {
    shards: Arc<Shards>,
    samples: Vec<Sample>,
    /// The files of all samples, in the order of the tars.
    fields: Vec<Field>,
    /// The names of all samples, one after the other.
    names: String,
    endings: Vec<String>,
    /// The number of each extension, and the last example that has such a file: a hash lookup, however many there are.
    known: HashMap<String, (usize, usize)>,
    fingerprint: String,
    /// Whether ignored members of JSON were reported.
    has_passed_over: AtomicBool,
}

/// An example's range of fields, up to the beginning of the next example's.
#[derive(Debug)]
struct Sample {
    shard: usize,
    field: usize,
    name: usize,
}

/// A file in a tar.
#[derive(Debug)]
struct Field {
    ending: u32,
    at: u64,
    n_bytes: u64,
}

impl Tars {
    /// The examples of `files`, in this order. Gzipped tars are unpacked once, into the folder `cache`.
    ///
    /// # Errors
    /// A file that cannot be opened or unpacked, is not a tar, or is truncated; two files with the same name and
    /// extension; no examples.
    pub fn open(files: &[PathBuf], cache: Option<&Path>) -> Result<Tars, DataError> {
        Tars::open_in(files, &cache.into())
    }

    /// The same, with a callback for download progress.
    ///
    /// # Errors
    /// Those of [`Tars::open`].
    pub fn open_in(files: &[PathBuf], cache: &Cache) -> Result<Tars, DataError> {
        let _span = tracing::info_span!("index").entered();
        // The two bytes of zlib's header may also begin the name of a tar's first file.
        let compression = |head: &[u8]| Compression::detect(head).filter(|kind| *kind != Compression::Zlib);
        let shards = Arc::new(Shards::open(files, cache, compression)?);
        let mut tars = Tars {
            shards,
            samples: Vec::new(),
            fields: Vec::new(),
            names: String::new(),
            endings: Vec::new(),
            known: HashMap::new(),
            fingerprint: String::new(),
            has_passed_over: AtomicBool::new(false),
        };
        let (mut hash, mut n_other) = (Sha256::new(), 0);
        for idx in 0..files.len() {
            n_other += tars.hop(idx, &mut hash)?;
        }
        if tars.samples.is_empty() {
            return Err(no_records(files));
        }
        if n_other > 0 {
            tracing::warn!("tar files: {n_other} entries that are not files, such as links, are skipped");
        }
        tars.fingerprint = bf16scope_files::hex(hash.finalize());
        tars.known = HashMap::new();
        Ok(tars)
    }

    /// Finds the examples of a tar; returns the number of entries that are neither files nor folders.
    fn hop(&mut self, shard_idx: usize, hash: &mut Sha256) -> Result<u64, DataError> {
        let shard = self.shards.shards[shard_idx].clone();
        let n_bytes = shard.stored_bytes();
        let shards = Arc::clone(&self.shards);
        let mut archive = tar::Archive::new(BufReader::with_capacity(4096, shards.reader(shard_idx)?));
        let (mut at, mut n_other) = (0, 0);
        let mut begun = Begun::new();
        // A long name, which has its own header before the entry's.
        let mut long_name: Option<Vec<u8>> = None;
        let first = self.samples.len();
        for entry in archive.entries_with_seek().map_err(|cause| no_header(&shard, 0, &cause))?.raw(true) {
            let mut entry = entry.map_err(|cause| no_header(&shard, at, &cause))?;
            let (start, size) = (entry.raw_file_position(), entry.size());
            let end = start.saturating_add(size);
            let kind = entry.header().entry_type();
            at = end.next_multiple_of(BLOCK);
            // The padding of a file's last block belongs to the file.
            if at > n_bytes {
                return Err(cut(shard.path.display().to_string(), entry.raw_header_position(), n_bytes, at));
            }
            if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
                long_name = given_name(&mut entry, &shard)?.or(long_name);
                continue;
            }
            let is_about_others = kind.is_pax_global_extensions() || kind.is_gnu_longlink();
            if is_about_others {
                continue;
            }
            let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
            if !(kind.is_file() || kind.is_contiguous()) {
                n_other += u64::from(!kind.is_dir());
                continue;
            }
            let name = String::from_utf8_lossy(&name).into_owned();
            let Some((name, ending)) = split(&name) else { continue };
            for part in [name.as_bytes(), b".", ending.as_bytes(), b"\0", &size.to_le_bytes()] {
                hash.update(part);
            }
            self.add((shard_idx, first), (name, &ending), (start, size), &shard, &mut begun)?;
        }
        // Two blocks of zeros mark the end. Tars without them are common, and every reader accepts them.
        if at == n_bytes && n_bytes > 0 {
            let name = self.samples.last().map(|sample| &self.names[sample.name..]).unwrap_or_default();
            tracing::warn!(
                "{}: the file ends after {n_bytes} bytes, behind `{name}`, without tar's mark of its end: it may have been cut \
                 between two files",
                shard.path.display()
            );
        }
        self.nothing_behind(shard_idx, at)?;
        Ok(n_other)
    }

    /// After the end of a tar there should be only zeros. Another tar there is an error: every reader stops before it.
    /// Other bytes cause a warning.
    fn nothing_behind(&self, shard_idx: usize, end: u64) -> Result<(), DataError> {
        let shard = &self.shards.shards[shard_idx];
        let (mut at, n_bytes) = (end, shard.stored_bytes());
        let mut block = vec![0; BLOCK as usize * 128];
        while at < n_bytes && at - end < MAX_BEHIND {
            let part = &mut block[..(n_bytes - at).min(BLOCK * 128) as usize];
            self.shards.read_exact_at(shard_idx, part, at, || shard.path.display().to_string())?;
            let Some(place) = part.iter().position(|&byte| byte != 0) else {
                at += part.len() as u64;
                continue;
            };
            // A header begins at a multiple of the block size.
            let start = place - place % BLOCK as usize;
            let place = at + start as u64;
            if part[start..].first_chunk().is_some_and(is_header) {
                let message = format!("another tar begins at byte {place}, behind the end of the first; expected one");
                let help = "tars are joined by `tar --concatenate`, or named one by one";
                return Err(DataError::new(DataErrorKind::Format, &shard.path, message).help(help));
            }
            at = place;
            break;
        }
        if at < n_bytes {
            tracing::warn!(
                "{}: {} bytes behind the mark of its end, from byte {at}, are not read",
                shard.path.display(),
                n_bytes - at
            );
        }
        Ok(())
    }

    /// Adds a file to the example with its name, or begins a new one; `first` is the first example of the tar.
    fn add(
        &mut self,
        (shard_idx, first): (usize, usize),
        (name, ending): (&str, &str),
        (at, n_bytes): (u64, u64),
        shard: &Shard,
        begun: &mut Begun,
    ) -> Result<(), DataError> {
        let is_same =
            self.samples.len() > first && self.samples.last().is_some_and(|sample| self.names[sample.name..] == *name);
        if !is_same {
            let number = self.samples.len();
            let alike = begun.entry(hash_of(name)).or_default();
            if alike.iter().any(|&before| self.name(before as u64) == name) {
                return Err(apart(shard, name, ending));
            }
            alike.push(number);
            let (field, start) = (self.fields.len(), self.names.len());
            self.samples.push(Sample { shard: shard_idx, field, name: start });
            self.names.push_str(name);
        }
        let sample = self.samples.len();
        let ending = match self.known.get_mut(ending) {
            Some((_, last)) if *last == sample => {
                let message = format!("two files are called `{name}.{ending}`; expected one of each name and ending");
                return Err(DataError::new(DataErrorKind::Format, &shard.path, message));
            }
            Some((number, last)) => {
                *last = sample;
                *number
            }
            None => {
                let number = self.endings.len();
                self.endings.push(ending.to_string());
                self.known.insert(ending.to_string(), (number, sample));
                number
            }
        };
        if n_bytes > MAX_RECORD {
            let place = format!("{}: {name}.{}", shard.path.display(), self.endings[ending]);
            return Err(DataError::too_long(place, n_bytes, MAX_RECORD));
        }
        self.fields.push(Field { ending: ending as u32, at, n_bytes });
        Ok(())
    }

    /// The files of an example.
    fn fields(&self, index: u64) -> &[Field] {
        let idx = index as usize;
        let end = self.samples.get(idx + 1).map_or(self.fields.len(), |next| next.field);
        &self.fields[self.samples[idx].field..end]
    }

    fn name(&self, index: u64) -> &str {
        let idx = index as usize;
        let end = self.samples.get(idx + 1).map_or(self.names.len(), |next| next.name);
        &self.names[self.samples[idx].name..end]
    }

    fn ending(&self, field: &Field) -> &str {
        &self.endings[field.ending as usize]
    }

    fn bytes(&self, index: u64, field: &Field) -> Result<Vec<u8>, DataError> {
        let shard = self.samples[index as usize].shard;
        let mut bytes = vec![0; field.n_bytes as usize];
        self.shards.read_exact_at(shard, &mut bytes, field.at, || self.place(index))?;
        Ok(bytes)
    }

    /// The content of a file, parsed according to its extension.
    fn value(&self, index: u64, field: &Field) -> Result<Value, DataError> {
        let bytes = self.bytes(index, field)?;
        let ending = self.ending(field);
        if !NUMBERS.contains(&kind_of(ending)) {
            return Ok(Value::Bytes(vec![bytes]));
        }
        let text = String::from_utf8_lossy(&bytes);
        match text.trim().parse() {
            Ok(number) => Ok(Value::Ints(vec![number])),
            Err(_) => {
                let measured = format!("`{}`", text.trim().chars().take(40).collect::<String>());
                let what = format!("feature `{ending}`");
                Err(DataError::mismatch(self.place(index), &what, &measured, "a whole number"))
            }
        }
    }

    /// The members of a JSON file, as `EXTENSION.NAME`; for a member that cannot be a feature, its type.
    fn members(&self, index: u64, field: &Field) -> Result<json::Features, DataError> {
        let (bytes, ending) = (self.bytes(index, field)?, self.ending(field));
        json::features(ending, &bytes).map_err(|error| {
            DataError::mismatch(self.place(index), &format!("feature `{ending}`"), &error.to_string(), "JSON")
        })
    }

    /// Reports, once, that a member of JSON is ignored.
    fn passes_over(&self, index: u64, member: &str, message: &str) {
        if !self.has_passed_over.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{}: `{member}` is {message}, and is passed over, as others like it are: features are numbers, truths and texts, \
                 and lists of one of them",
                self.place(index)
            );
        }
    }
}

/// The examples of a tar so far, by the hashes of their names.
type Begun = HashMap<u64, Vec<usize>>;

fn hash_of(name: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The error for an example whose files are not consecutive, as readers of WebDataset require: each run of them would
/// become a separate example.
fn apart(shard: &Shard, name: &str, ending: &str) -> DataError {
    let path = shard.path.display();
    let message = format!(
        "`{name}.{ending}` stands apart from the other files of `{name}`; expected the files of an example one after the other"
    );
    let help = format!(
        "sort them: `mkdir unsorted && tar -xf {path} -C unsorted && tar --sort=name -cf sorted.tar -C unsorted .`, and name \
         sorted.tar"
    );
    DataError::new(DataErrorKind::Format, &shard.path, message).help(help)
}

/// Whether a block is a header, by its checksum: the sum of its bytes, with blanks in place of the sum.
fn is_header(block: &[u8; BLOCK as usize]) -> bool {
    let blanks = 148..156;
    let sum: u32 = (0..).zip(block).map(|(at, &byte)| if blanks.contains(&at) { 32 } else { u32::from(byte) }).sum();
    let digits = str::from_utf8(&block[blanks]).ok().map(|text| text.trim_matches(['\0', ' ']));
    digits.and_then(|digits| u32::from_str_radix(digits, 8).ok()) == Some(sum)
}

/// The error for a missing header at an offset in a tar.
fn no_header(shard: &Shard, at: u64, cause: &io::Error) -> DataError {
    let n_bytes = shard.stored_bytes();
    // A file that is not a tar may be shorter than a header, and its bytes are not printable.
    if at > 0 && (1..BLOCK).contains(&n_bytes.saturating_sub(at)) {
        return cut(shard.path.display().to_string(), at, n_bytes, at + BLOCK);
    }
    let why = if at == 0 { ": this may be another kind of file" } else { "" };
    let place = format!("{}, at byte {at}", shard.path.display());
    let error = DataError::new(DataErrorKind::Format, place, format!("no header of a tar file{why}"));
    error.help(COPY_AGAIN).because(shown(cause))
}

/// The long name that a header of its own gives to the next entry.
fn given_name<R: Read>(entry: &mut tar::Entry<'_, R>, shard: &Shard) -> Result<Option<Vec<u8>>, DataError> {
    let (start, size) = (entry.raw_file_position(), entry.size());
    let too_long = |what: &str, measured: u64, limit: u64| {
        DataError::too_long(format!("{}, at byte {start}: a {what}", shard.path.display()), measured, limit)
    };
    if size > MAX_NAME {
        return Err(too_long("name", size, MAX_NAME));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(|cause| no_header(shard, start, &cause))?;
    if entry.header().entry_type().is_gnu_longname() {
        return Ok(Some(bytes.into_iter().take_while(|byte| *byte != 0).collect()));
    }
    let mut name = None;
    for pair in tar::PaxExtensions::new(&bytes) {
        let pair = pair.map_err(|cause| no_header(shard, start, &cause))?;
        match pair.key_bytes() {
            b"path" => name = Some(pair.value_bytes().to_vec()),
            // Only files beyond 8 GiB need it; those are not examples.
            b"size" => {
                let measured = pair.value().ok().and_then(|size| size.parse().ok()).unwrap_or(u64::MAX);
                return Err(too_long("file", measured, MAX_RECORD));
            }
            _ => {}
        }
    }
    Ok(name)
}

/// The last of several extensions, which determines the type: `png` for `seg.png`.
fn kind_of(ending: &str) -> &str {
    ending.rsplit('.').next().unwrap_or(ending)
}

/// Splits a path into its name and its extensions, which begin at the first dot after the last `/`; `None` for files
/// without an extension, hidden files, and WebDataset's reserved names, `__NAME__`.
fn split(path: &str) -> Option<(&str, String)> {
    let path = path.strip_prefix("./").unwrap_or(path);
    let file = path.rfind('/').map_or(0, |at| at + 1);
    let dot = file + path[file..].find('.')?;
    let is_own = path[file..].starts_with("__") && path.ends_with("__");
    (dot > file && dot + 1 < path.len() && !is_own).then(|| (&path[..dot], path[dot + 1..].to_lowercase()))
}

/// The reader's message, which may quote bytes of the file.
fn shown(error: &io::Error) -> String {
    error.to_string().chars().take(100).flat_map(char::escape_debug).collect()
}

impl Records for Tars {
    fn n_records(&self) -> u64 {
        self.samples.len() as u64
    }

    /// A key may list several extensions, `jpg;jpeg;png`; the first that the example has is used.
    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError> {
        let mut values = Values::new();
        let fields = self.fields(index);
        let Some(keys) = keys else {
            for field in fields {
                let ending = self.ending(field);
                match JSON.contains(&kind_of(ending)) {
                    true => {
                        for (member, value) in self.members(index, field)? {
                            match value {
                                Ok(value) => drop(values.insert(member, value)),
                                Err(kind) => self.passes_over(index, &member, kind),
                            }
                        }
                    }
                    false => drop(values.insert(ending.to_string(), self.value(index, field)?)),
                }
            }
            return Ok(values);
        };
        for key in keys {
            let mut endings = key.split(';');
            let field = endings.find_map(|ending| fields.iter().find(|field| self.ending(field) == ending));
            if let Some(field) = field {
                values.insert(key.to_string(), self.value(index, field)?);
            } else if let Some((ending, _)) = key.split_once('.')
                && let Some(field) = fields.iter().find(|field| JSON.contains(&ending) && self.ending(field) == ending)
            {
                match self.members(index, field)?.remove(*key) {
                    Some(Ok(value)) => drop(values.insert(key.to_string(), value)),
                    Some(Err(kind)) => {
                        let expected = "numbers, truths or texts, or a list of one of them";
                        return Err(DataError::mismatch(
                            self.place(index),
                            &format!("feature `{key}`"),
                            kind,
                            expected,
                        ));
                    }
                    None => {}
                }
            }
        }
        Ok(values)
    }

    fn place(&self, index: u64) -> String {
        let path = &self.shards.shards[self.samples[index as usize].shard].path;
        format!("{}, example `{}`", path.display(), self.name(index))
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn is_image(&self, key: &str) -> bool {
        ["jpg", "jpeg", "png"].contains(&kind_of(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A tar of these files.
    fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            // Long names get a header of their own.
            out.append_data(&mut header, name, *bytes).unwrap();
        }
        out.into_inner().unwrap()
    }

    fn opened(folder: &Path, tars: &[Vec<u8>]) -> Result<Tars, String> {
        let write = |(idx, bytes): (usize, &Vec<u8>)| {
            let path = folder.join(format!("a-{idx}.tar"));
            fs::write(&path, bytes).unwrap();
            path
        };
        let files: Vec<PathBuf> = tars.iter().enumerate().map(write).collect();
        Tars::open(&files, None).map_err(|error| error.to_string().replace(&format!("{}/", folder.display()), ""))
    }

    /// Like the output of `tar --zstd`, which calls the program `zstd`.
    #[cfg(feature = "records")]
    #[test]
    fn a_tar_of_zstandard_is_read_as_the_tar_in_it() {
        let plain =
            tar(&[("0001.cls", b"7"), ("0001.json", b"{\"x\": 1}"), ("0002.cls", b"8"), ("0002.json", b"{\"x\": 2}")]);
        let packed = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.zst");
        fs::write(&path, &packed).unwrap();
        let tars = Tars::open(std::slice::from_ref(&path), Some(&folder.path().join("cache"))).unwrap();
        let unpacked = opened(folder.path(), &[plain]).unwrap();
        assert_eq!(tars.n_records(), 2);
        for at in [0, 1] {
            assert_eq!(tars.values(at, None).unwrap(), unpacked.values(at, None).unwrap());
        }
        fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let error = Tars::open(&[path], Some(&folder.path().join("cache"))).map(drop).unwrap_err().to_string();
        assert!(error.contains("the Zstandard stream is damaged or ends early"), "{error}");
    }

    #[test]
    fn files_of_one_name_are_an_example() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("{}/0003", "n".repeat(150));
        let first: Vec<(&str, &[u8])> = vec![
            ("__meta__", b"x"),
            ("notes", b"no ending"),
            ("./n01/0001.jpg", b"jpeg"),
            ("./n01/0001.CLS", b" 7\n"),
            ("./n01/0001.seg.png", b"png"),
            ("n01/0002.png", b"two"),
            (
                "n01/0002.json",
                br#"{"label": 3, "box": [0.5, 1], "name": "cat", "of": {"ok": true}, "mixed": [1, "a"]}"#,
            ),
        ];
        let names = [format!("{long}.jpg"), format!("{long}.cls")];
        let second: Vec<(&str, &[u8])> = vec![(&names[0], b"three"), (&names[1], b"-1")];
        let tars = opened(folder.path(), &[tar(&first), tar(&second)]).unwrap();
        assert_eq!(tars.n_records(), 3);
        let bytes = |bytes: &[u8]| Value::Bytes(vec![bytes.to_vec()]);
        let expected = [("cls", Value::Ints(vec![7])), ("jpg", bytes(b"jpeg")), ("seg.png", bytes(b"png"))];
        assert_eq!(tars.values(0, None).unwrap(), expected.map(|(key, value)| (key.to_string(), value)).into());
        let expected = [
            ("json.box", Value::Floats(vec![0.5, 1.0])),
            ("json.label", Value::Ints(vec![3])),
            ("json.name", bytes(b"cat")),
            ("json.of.ok", Value::Ints(vec![1])),
            ("png", bytes(b"two")),
        ];
        assert_eq!(tars.values(1, None).unwrap(), expected.map(|(key, value)| (key.to_string(), value)).into());
        let asked = tars.values(1, Some(&["jpg;png", "json.label", "json.other", "cls"])).unwrap();
        let expected = [("jpg;png", bytes(b"two")), ("json.label", Value::Ints(vec![3]))];
        assert_eq!(asked, expected.map(|(key, value)| (key.to_string(), value)).into());
        assert_eq!(tars.values(2, Some(&["cls"])).unwrap()["cls"], Value::Ints(vec![-1]));
        assert_eq!(tars.place(2), format!("{}, example `{long}`", folder.path().join("a-1.tar").display()));
        assert_eq!(tars.place(1), format!("{}, example `n01/0002`", folder.path().join("a-0.tar").display()));
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_example() {
        let folder = tempfile::tempdir().unwrap();
        let whole = tar(&[
            ("a/1.cls", b"seven"),
            ("a/1.json", b"{"),
            ("a/1.jsn", br#"{"x": [1, "a"]}"#),
            ("a/2.jpg", &[1; 700]),
        ]);
        let tars = opened(folder.path(), std::slice::from_ref(&whole)).unwrap();
        let message = |keys: &[&str]| tars.values(0, Some(keys)).unwrap_err().to_string();
        let place = folder.path().join("a-0.tar").display().to_string();
        assert_eq!(
            message(&["cls"]),
            format!("{place}, example `a/1`: feature `cls` is `seven`; expected a whole number")
        );
        assert_eq!(
            message(&["jsn.x"]),
            format!(
                "{place}, example `a/1`: feature `jsn.x` is a list of several kinds; expected numbers, truths or texts, or a \
                 list of one of them"
            )
        );
        assert!(message(&["json.x"]).starts_with(&format!("{place}, example `a/1`: feature `json` is EOF")));

        let refused = |bytes: Vec<u8>| opened(folder.path(), &[bytes]).unwrap_err();
        assert_eq!(
            refused(whole[..5 * 512 + 1024].to_vec()),
            "a-0.tar, at byte 3072: the file ends after 3584 bytes, within the record; expected 4608 at least\n\
             help: copy or download the file again"
        );
        // Truncated within a block's padding, and within a header.
        for (n_bytes, message) in [
            (5 * 512 + 1024 + 700, "4284 bytes, within the record; expected 4608"),
            (600, "600 bytes, within the record; expected 1024"),
        ] {
            let error = refused(whole[..n_bytes].to_vec());
            assert!(error.contains(&format!(": the file ends after {message} at least\n")), "{error}");
        }
        let mut flipped = whole.clone();
        flipped[1024 + 3] ^= 1;
        assert_eq!(
            refused(flipped),
            "a-0.tar, at byte 1024: no header of a tar file\nhelp: copy or download the file again"
        );
        let error = refused(b"x,y\n1,2\n".repeat(100));
        assert!(
            error.starts_with("a-0.tar, at byte 0: no header of a tar file: this may be another kind of file"),
            "{error}"
        );
        assert_eq!(
            refused(tar(&[("a.jpg", b"1"), ("a.JPG", b"2")])),
            "a-0.tar: two files are called `a.jpg`; expected one of each name and ending"
        );
        // Each run would be an example: two for one name, and neither complete.
        let apart = [("./a.jpg", &b"1"[..]), ("./b.jpg", b"2"), ("./a.cls", b"3"), ("./b.cls", b"4")];
        assert_eq!(
            refused(tar(&apart)),
            "a-0.tar: `a.cls` stands apart from the other files of `a`; expected the files of an example one after the other\n\
             help: sort them: `mkdir unsorted && tar -xf a-0.tar -C unsorted && tar --sort=name -cf sorted.tar -C unsorted .`, \
             and name sorted.tar"
        );
        let mut sorted = apart;
        sorted.sort();
        assert_eq!(opened(folder.path(), &[tar(&sorted)]).unwrap().n_records(), 2);
        assert_eq!(refused(tar(&[("notes", b"1")])), "a-0.tar: no records; expected one at least");
        // Readers stop at the end of the first tar in `cat a.tar b.tar`.
        let another = |fill: usize| [&whole[..], &vec![0; fill], &tar(&[("b.cls", b"1")])].concat();
        for fill in [0, 512, 70_144, 1 << 20] {
            let at = whole.len() + fill;
            assert_eq!(
                refused(another(fill)),
                format!(
                    "a-0.tar: another tar begins at byte {at}, behind the end of the first; expected one\nhelp: tars are joined \
                     by `tar --concatenate`, or named one by one"
                )
            );
        }
        assert!(opened(folder.path(), &[[&whole[..], &[0; 9216]].concat()]).is_ok());
        // A file that claims more than the limit of a record is not read into memory.
        let mut header = tar::Header::new_gnu();
        header.set_path("a.jpg").unwrap();
        header.set_size(MAX_RECORD + 1);
        header.set_cksum();
        let path = folder.path().join("sparse.tar");
        fs::write(&path, header.as_bytes()).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(MAX_RECORD + 2048).unwrap();
        let error = Tars::open(&[path], None).unwrap_err().to_string();
        assert!(
            error.ends_with("sparse.tar: a.jpg: 268435457 bytes; expected at most 268435456 in a record"),
            "{error}"
        );
        // Mutated tars are either read or refused.
        let mut n_refused = 0;
        for at in (0..whole.len()).step_by(7) {
            let mut mutated = whole.clone();
            mutated[at] ^= 0x11;
            match opened(folder.path(), &[mutated]) {
                Ok(tars) => (0..tars.n_records()).for_each(|index| drop(tars.values(index, None))),
                Err(_) => n_refused += 1,
            }
        }
        assert!(n_refused > 100, "{n_refused}");
    }
}
