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

pub(crate) use json::check_keys;

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
mod tests;
