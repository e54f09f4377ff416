//! safetensors files, whole or sharded, and our checkpoints, which are safetensors files.
//!
//! A file is the length of a header (u64, little-endian), the header in JSON, and the arrays one after the other. The
//! format has no checksum; our checkpoints store their own SHA-256 in the header, which the reader's `check` verifies.
//! A sharded model is a JSON file whose `weight_map` names the file of each array.
//!
//! Source: the safetensors format description; Hugging Face's `model.safetensors.index.json`.

pub mod header;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use self::header::{FilePart, Header, HeaderArray, HeaderError, MAX_BYTES, NO_HASH, repeated_key};
use super::region::{Region, Sink};
use super::{Entry, Format, Opened, Reader, WeightsError, WeightsErrorKind, WeightsFile, too_much};
use bf16scope_files as files;

struct File {
    region: Region,
    /// Where each array begins.
    starts: Vec<u64>,
    /// Where the digits of a checkpoint's hash are.
    hash: Option<u64>,
}

/// Converts a header error to an error of weights.
fn refused(region: &Region, error: HeaderError<WeightsError>) -> WeightsError {
    let path = region.path();
    let not_theirs = || WeightsError::damaged(path, 8, "the header is not that of a safetensors file");
    match error {
        HeaderError::Read(error) => error,
        HeaderError::Cut { part, end } => {
            let what = match part {
                FilePart::Length => "the length of its header",
                FilePart::Header => "its header",
                FilePart::Arrays => "the last array",
            };
            WeightsError::cut(path, region.n_bytes(), end, what)
        }
        HeaderError::TooLarge { n_bytes, .. } => WeightsError::too_large(path, "the header", n_bytes, MAX_BYTES),
        HeaderError::NoObject => not_theirs(),
        HeaderError::Json(cause) => not_theirs().because(cause),
        HeaderError::DType { name, dtype } => unread(path, &name, &dtype),
        HeaderError::Longer { end } => {
            let message = format!("the file has {} bytes, and its last array ends at byte {end}", region.n_bytes());
            WeightsError::new(WeightsErrorKind::Damaged, path, message).help("copy it again")
        }
    }
}

/// The error for an array of a dtype that we do not have.
fn unread(path: &Path, name: &str, dtype: &str) -> WeightsError {
    let message = format!("array `{name}` is of {dtype}, which is not read");
    let help = "save it in another dtype, such as F32 or BF16: `tensor.float()`";
    WeightsError::new(WeightsErrorKind::DType, path, message).help(help)
}

/// Whether a file begins like safetensors: the length of a header, and its brace.
pub(super) fn is_head(head: &[u8]) -> bool {
    matches!(head, [_, _, _, _, _, 0, 0, 0, b'{', ..])
}

/// Reads the header of a file.
pub(super) fn open(region: Region) -> Result<Opened, WeightsError> {
    let path = region.path();
    let mut at = 0;
    let header = Header::read(region.n_bytes(), |n| {
        at += n as u64;
        region.read(at - n as u64, n as u64, "its header")
    });
    let header = header.map_err(|error| refused(&region, error))?;
    let start = header.start.len() as u64;
    let (mut entries, mut starts) = (Vec::new(), Vec::new());
    for HeaderArray { name, dtype, dims, place } in header.arrays() {
        let dtype = dtype.map_err(|dtype| unread(path, &name, &dtype))?;
        starts.push(start + place.start);
        let entry = Entry::new(name.clone(), dtype, dims.clone());
        entries.push(entry.ok_or_else(|| {
            let message = format!("array `{name}` {}", too_much(&dims));
            WeightsError::damaged(path, 8, message)
        })?);
    }
    let is_ours = header.our_text().is_some();
    let format = if is_ours { Format::Checkpoint } else { Format::Safetensors };
    let hash = header::hash_place(&header.start).filter(|_| is_ours).map(|place| place.start as u64);
    Ok(Opened {
        format,
        entries,
        reader: Box::new(File { region, starts, hash }),
        left_out: Vec::new(),
        order: Vec::new(),
    })
}

impl Reader for File {
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        self.region.pass(self.starts[idx], entry.n_bytes, &format!("array `{}`", entry.name), sink)
    }

    /// The digits count as `0` in the hash.
    fn check(&self) -> Result<(), WeightsError> {
        let Some(at) = self.hash else { return Ok(()) };
        let expected = self.region.read(at, NO_HASH.len() as u64, "the header")?;
        let (mut sha, after) = (Sha256::new(), at + NO_HASH.len() as u64);
        let mut hash = |piece: &[u8]| {
            sha.update(piece);
            Ok(())
        };
        self.region.pass(0, at, "the file", &mut hash)?;
        hash(NO_HASH.as_bytes())?;
        self.region.pass(after, self.region.n_bytes() - after, "the file", &mut hash)?;
        let (measured, expected) = (files::hex(sha.finalize()), String::from_utf8_lossy(&expected).into_owned());
        if measured == expected {
            return Ok(());
        }
        let message = format!("its sha256 is {measured}, it was written with {expected}");
        Err(WeightsError::new(WeightsErrorKind::Damaged, self.region.path(), message).help("copy it again"))
    }
}

/// The index of a sharded model.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

struct Shards {
    files: Vec<WeightsFile>,
    /// The file of each array, and its number there.
    places: Vec<(usize, usize)>,
}

/// Arrays missing from an index are listed up to this many, and counted beyond.
const MAX_UNNAMED: usize = 16;

/// Reads an index and opens every file that it names.
pub(super) fn open_sharded(path: &Path) -> Result<Opened, WeightsError> {
    let bytes = files::read(path, MAX_BYTES).map_err(|cause| WeightsError::open(path, cause))?;
    if let Some(key) = repeated_key(&bytes) {
        let message = format!("its key `{}` is there twice; expected once", key.escape_debug());
        return Err(
            WeightsError::format(path, message).help("leave one out: which file is meant, only its writer knows")
        );
    }
    let index: Index = serde_json::from_slice(&bytes).map_err(|cause| {
        let json = serde_json::from_slice::<serde_json::Value>(&bytes);
        let message = match json.as_ref().map(|json| json.get("weight_map")) {
            Ok(Some(_)) => "its `weight_map` is none: it says which file each array is in, `{\"NAME\": \"FILE\"}`",
            Ok(None) => "JSON without a `weight_map`, which the index of a sharded model has",
            Err(_) => "no JSON; expected the index of a sharded model",
        };
        WeightsError::format(path, message)
            .because(cause)
            .help("name the model's `*.index.json`, or a file of its weights")
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    index.weight_map.iter().for_each(|(name, shard)| shards.entry(shard).or_default().push(name));
    let (mut entries, mut places, mut shard_files, mut unnamed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (shard, names) in shards {
        // An index may only name files in its own folder.
        if shard.contains(['/', '\\']) || shard == ".." || shard.ends_with(".json") {
            let message = format!("it says that arrays are in `{shard}`; expected the name of a file beside it");
            return Err(WeightsError::format(path, message));
        }
        let place = folder.join(shard);
        if !place.exists() {
            let message = format!("the file `{shard}` is missing, in which {} of its arrays are", names.len());
            let help = format!("put {shard} beside the index: all of a sharded model's files are needed");
            return Err(WeightsError::new(WeightsErrorKind::NoShard, path, message).help(help));
        }
        let file = super::open_shard(&place)?;
        let mut is_named = vec![false; file.entries.len()];
        for name in names {
            let (idx, entry) = file.expect(name)?;
            // The index's name for it, which may be an alias in the shard.
            entries.push(Entry { name: name.to_string(), ..entry.clone() });
            places.push((shard_files.len(), idx));
            is_named[idx] = true;
        }
        let others = file.entries.iter().zip(is_named).filter(|(_, is_named)| !is_named);
        unnamed.extend(others.map(|(entry, _)| format!("{} (in {shard}, and the index does not name it)", entry.name)));
        shard_files.push(file);
    }
    if let Some(n_more) = unnamed.len().checked_sub(MAX_UNNAMED).filter(|&n| n > 0) {
        unnamed.truncate(MAX_UNNAMED);
        unnamed.push(format!("{n_more} more that the index does not name"));
    }
    Ok(Opened {
        format: Format::Sharded,
        entries,
        reader: Box::new(Shards { files: shard_files, places }),
        left_out: unnamed,
        order: Vec::new(),
    })
}

impl Reader for Shards {
    fn pass(&self, idx: usize, _entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let (file, idx) = self.place(idx);
        file.reader.pass(idx, &file.entries[idx], sink)
    }

    fn texts(&self, idx: usize, _entry: &Entry) -> Result<Vec<Vec<u8>>, WeightsError> {
        let (file, idx) = self.place(idx);
        file.reader.texts(idx, &file.entries[idx])
    }

    fn check(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(WeightsFile::check)
    }
}

impl Shards {
    fn place(&self, idx: usize) -> (&WeightsFile, usize) {
        let (file, idx) = self.places[idx];
        (&self.files[file], idx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`is_head`] knows no shorter file; other callers of the header's parser have them.
    #[test]
    fn a_file_shorter_than_the_length_of_its_header_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, [0; 5]).unwrap();
        let error = open(Region::open(&path).unwrap()).err().unwrap();
        assert_eq!(
            error.to_string().replace(&format!("{}/", folder.path().display()), ""),
            "x: the file is cut off: it has 5 bytes, and the length of its header ends at byte 8\nhelp: copy it again"
        );
    }
}
