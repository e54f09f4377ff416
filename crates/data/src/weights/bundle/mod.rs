//! Tensor bundles, TensorFlow's checkpoint format: `PREFIX.index` and `PREFIX.data-00000-of-0000N`.
//!
//! The index is a table of names (`table`) with an entry for each tensor: dtype, dims, data file, offset, and checksum.
//! A tensor's checksum is verified when it is read, those of the index when it is opened. Names come from TensorFlow 1,
//! or from a graph of objects (`objects`); partitioned variables are joined (`slices`).
//!
//! Source: TensorFlow's `core/util/tensor_bundle/tensor_bundle.{h,cc}`.

mod objects;
mod proto;
mod slices;
mod table;
#[cfg(test)]
mod tests;
mod write;

pub(super) use objects::KEY as GRAPH;
pub(super) use table::is_table;
pub(super) use write::BundleWriter;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost::encoding::decode_varint;

use self::proto::{Header, ObjectGraph, SavedTensorSlices, TensorEntry};
use self::slices::Slice;
use super::region::{Region, Sink};
use super::{Entry, Format, Opened, Reader, WeightsError, WeightsErrorKind, n_bytes, too_much};
use bf16scope_files::framing::mask;

/// The largest size of the graph of objects.
const MAX_GRAPH: u64 = 64 << 20;
/// The largest size of an array of strings, which is held in memory whole.
const MAX_TEXTS: u64 = 1 << 30;
/// The newest reader version that this reader is equivalent to (`kTensorBundleMinConsumer`).
const CONSUMER: i32 = 0;

/// Where a tensor's bytes are.
#[derive(Clone, Debug)]
struct Place {
    shard: i32,
    at: u64,
    n_bytes: u64,
    /// Masked, as in LevelDB.
    crc: u32,
}

/// Where an array's bytes are: in one place, or in one per slice.
enum Parts {
    Whole(Place),
    Slices(Vec<(Slice, Place)>),
}

struct Bundle {
    index: PathBuf,
    shards: BTreeMap<i32, Region>,
    parts: Vec<Parts>,
}

/// Opens a bundle by its index.
pub(super) fn open(region: &Region, format: Format) -> Result<Opened, WeightsError> {
    let index = region.path();
    let contents = read_index(region)?;
    let header = contents.header.ok_or_else(|| WeightsError::damaged(index, 0, "the index has no header"))?;
    check_apart(index, &contents.tensors)?;
    let shards = open_shards(index, &header, &contents.tensors)?;
    let mut bundle = Bundle { index: index.to_path_buf(), shards, parts: Vec::new() };
    let mut tensors = contents.tensors;
    let graph = tensors.remove(objects::KEY.as_bytes());
    let graph = graph.map(|tensor| bundle.graph(&tensor)).transpose()?;
    let mut aliases = graph.as_ref().map(objects::aliases).unwrap_or_default();
    let full_names = graph.as_ref().map(objects::full_names).unwrap_or_default();
    // A name that several variables have, or that is another's path, cannot be a primary name.
    let mut n_called: BTreeMap<&str, usize> = BTreeMap::new();
    full_names.values().for_each(|name| *n_called.entry(name).or_default() += 1);
    let keys = tensors.keys().filter_map(|key| std::str::from_utf8(key).ok());
    let paths: BTreeSet<String> = keys.flat_map(|key| [Some(key.to_string()), objects::path(key)]).flatten().collect();
    let (mut is_taken, mut pairs) = (BTreeSet::new(), slices::MAX_PAIRS);
    let mut entries = Vec::new();
    for (key, tensor) in tensors.iter().filter(|(key, _)| !key.starts_with(&[0])) {
        let key = std::str::from_utf8(key)
            .map_err(|_| WeightsError::damaged(index, 0, format!("the name {} is not UTF-8", key.escape_ascii())))?;
        let (entry, parts) = bundle.entry(key, tensor, &tensors, &mut pairs)?;
        let path =
            graph.as_ref().and_then(|_| objects::path(key)).filter(|path| !tensors.contains_key(path.as_bytes()));
        // A variable in one of Keras' private lists gets the layer's name for it; the path is an alias.
        let called = path.as_deref().filter(|path| objects::is_private(path)).and_then(|_| full_names.get(key));
        let called = called.filter(|name| n_called[*name] == 1 && !paths.contains(**name)).map(|name| name.to_string());
        let other = path.clone();
        let name = called.or(path).filter(|path| is_taken.insert(path.clone())).unwrap_or_else(|| key.to_string());
        let mut names = aliases.remove(key).unwrap_or_default();
        names.push(key.to_string());
        names.extend(other);
        names.sort();
        names.dedup();
        names.retain(|alias| *alias != name);
        entries.push(Entry { name, aliases: names, ..entry });
        bundle.parts.push(parts);
    }
    Ok(Opened { format, entries, reader: Box::new(bundle), left_out: Vec::new(), order: Vec::new() })
}

/// The prefix of a bundle: its index's path without `.index`.
pub(super) fn prefix(index: &Path) -> PathBuf {
    if index.extension().is_some_and(|extension| extension == "index") {
        index.with_extension("")
    } else {
        index.to_path_buf()
    }
}

/// The index path of a prefix.
pub(super) fn index_of(prefix: &Path) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(".index");
    PathBuf::from(name)
}

fn shard_name(prefix: &Path, shard: i32, n_shards: i32) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!(".data-{shard:05}-of-{n_shards:05}"));
    PathBuf::from(name)
}

#[derive(Default)]
struct Index {
    header: Option<Header>,
    tensors: BTreeMap<Vec<u8>, TensorEntry>,
}

fn read_index(region: &Region) -> Result<Index, WeightsError> {
    let (path, mut index) = (region.path(), Index::default());
    table::read(region, &mut |key, value, at| {
        if key.is_empty() {
            index.header = Some(header(path, value, at)?);
            return Ok(());
        }
        let tensor = TensorEntry::decode(value).map_err(|cause| {
            let message = format!("the entry of `{}` cannot be read", String::from_utf8_lossy(key));
            WeightsError::damaged(path, at, message).because(cause)
        })?;
        index.tensors.insert(key.to_vec(), tensor);
        Ok(())
    })?;
    Ok(index)
}

fn header(path: &Path, value: &[u8], at: u64) -> Result<Header, WeightsError> {
    let header = match Header::decode(value) {
        Ok(header) => header,
        Err(_) if SavedTensorSlices::decode(value).is_ok_and(|first| first.meta.is_some()) => {
            let message = "a checkpoint of version 1 (tf.train.SaverDef.V1), which is not read; expected version 2";
            let help = "restore it in TensorFlow and save it again: \
                        tf.compat.v1.train.Saver(write_version=tf.compat.v1.train.SaverDef.V2)";
            return Err(WeightsError::unsupported(path, message).help(help));
        }
        Err(cause) => return Err(WeightsError::damaged(path, at, "the index's header cannot be read").because(cause)),
    };
    let least = header.version.as_ref().map_or(0, |version| version.min_consumer);
    if least > CONSUMER + 1 {
        let message = format!("the bundle is for readers of version {least} or newer; this one is of version 1");
        return Err(WeightsError::unsupported(path, message).help("save it with TensorFlow 2"));
    }
    match (header.endianness, header.num_shards) {
        (0, 1..) => Ok(header),
        (1, _) => {
            let message = "the bundle was written on a big-endian machine, which is not read";
            Err(WeightsError::unsupported(path, message).help("restore and save it again on another machine"))
        }
        (_, n) => Err(WeightsError::damaged(path, at, format!("the index says that there are {n} data files"))),
    }
}

/// Refuses tensors that share bytes: TensorFlow never does, and a small file could make any number of large arrays from
/// one.
fn check_apart(index: &Path, tensors: &BTreeMap<Vec<u8>, TensorEntry>) -> Result<(), WeightsError> {
    let places = tensors.iter().filter(|(_, tensor)| tensor.slices.is_empty() && tensor.size > 0);
    let mut places: Vec<_> = places.map(|(key, tensor)| (tensor.shard_id, tensor.offset, tensor.size, key)).collect();
    places.sort();
    for pair in places.windows(2) {
        let ((shard, at, n_bytes, key), (next_shard, next_at, _, next)) = (pair[0], pair[1]);
        if shard == next_shard && at.saturating_add(n_bytes) > next_at {
            let (key, next) = (String::from_utf8_lossy(key), String::from_utf8_lossy(next));
            let message = format!(
                "`{}` begins at byte {next_at} of data file {shard}, within `{}`; expected each in its own place",
                next.escape_debug(),
                key.escape_debug()
            );
            return Err(WeightsError::damaged(index, 0, message));
        }
    }
    Ok(())
}

/// Opens the data files that contain tensors.
fn open_shards(
    index: &Path,
    header: &Header,
    tensors: &BTreeMap<Vec<u8>, TensorEntry>,
) -> Result<BTreeMap<i32, Region>, WeightsError> {
    let (prefix, n_shards) = (prefix(index), header.num_shards);
    let mut shards = BTreeMap::new();
    for (key, tensor) in tensors.iter().filter(|(_, tensor)| tensor.slices.is_empty()) {
        let shard = tensor.shard_id;
        if shards.contains_key(&shard) {
            continue;
        }
        if !(0..n_shards).contains(&shard) {
            let name = String::from_utf8_lossy(key);
            let message = format!("`{name}` is in data file {shard}; expected 0 to {}", n_shards - 1);
            return Err(WeightsError::damaged(index, 0, message));
        }
        let place = shard_name(&prefix, shard, n_shards);
        if !place.exists() {
            let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let message = format!("the data file `{name}` is missing");
            let help = format!("put {name} beside the index: it names every data file that it needs");
            return Err(WeightsError::new(WeightsErrorKind::NoShard, index, message).help(help));
        }
        shards.insert(shard, Region::open(&place)?);
    }
    Ok(shards)
}

impl Bundle {
    fn entry(
        &self,
        key: &str,
        tensor: &TensorEntry,
        all: &BTreeMap<Vec<u8>, TensorEntry>,
        pairs: &mut u64,
    ) -> Result<(Entry, Parts), WeightsError> {
        let damaged = |message: String| WeightsError::damaged(&self.index, 0, format!("`{key}` {message}"));
        let shape = tensor.shape.clone().unwrap_or_default();
        let dims: Option<Vec<u64>> = shape.dim.iter().map(|dim| u64::try_from(dim.size).ok()).collect();
        let dims = dims.filter(|_| !shape.unknown_rank).ok_or_else(|| damaged("has no dims".to_string()))?;
        let dtype = proto::dtype(tensor.dtype);
        // The dims of strings are bounded like those of bytes.
        let width = dtype.array().unwrap_or(bf16scope_hlo::DType::U8);
        let expected = n_bytes(width, &dims).ok_or_else(|| damaged(too_much(&dims)))?;
        let entry = |n_bytes| Entry { name: key.to_string(), aliases: Vec::new(), dtype, dims: dims.clone(), n_bytes };
        if tensor.slices.is_empty() {
            let place = self.place(key, tensor)?;
            if dtype.array().is_some() && place.n_bytes != expected {
                return Err(damaged(format!("has {} bytes; expected {expected} as its dims say", place.n_bytes)));
            }
            return Ok((entry(place.n_bytes), Parts::Whole(place)));
        }
        if dtype.array().is_none() || tensor.slices.len() > slices::MAX_SLICES {
            let message = format!("`{key}` is {dtype} in {} slices, which is not read", tensor.slices.len());
            return Err(WeightsError::unsupported(&self.index, message));
        }
        let mut parts = Vec::new();
        for slice in &tensor.slices {
            let slice_entry = all.get(&slices::key(key.as_bytes(), slice));
            let slice_entry =
                slice_entry.ok_or_else(|| damaged(format!("lacks one of its {} slices", tensor.slices.len())))?;
            let part = Slice::from_proto(slice, &dims)
                .ok_or_else(|| damaged("has a slice that is not within it".to_string()))?;
            let place = self.place(key, slice_entry)?;
            if slice_entry.dtype != tensor.dtype || n_bytes(width, &part.dims) != Some(place.n_bytes) {
                return Err(damaged("has a slice of another dtype or size".to_string()));
            }
            parts.push((part, place));
        }
        parts.sort_by(|left, right| left.0.starts.cmp(&right.0.starts));
        let places: Vec<Slice> = parts.iter().map(|(slice, _)| slice.clone()).collect();
        let is_whole = slices::cover(&places, &dims, pairs).ok_or_else(|| {
            let message =
                format!("`{key}`, with those before it, is in more slices than are compared with one another");
            WeightsError::unsupported(&self.index, message).help("save it in fewer slices")
        })?;
        match is_whole {
            true => Ok((entry(expected), Parts::Slices(parts))),
            false => Err(damaged("has slices that are not the whole of it, each element once".to_string())),
        }
    }

    /// Where a tensor is, within its file.
    fn place(&self, key: &str, tensor: &TensorEntry) -> Result<Place, WeightsError> {
        let numbers = u64::try_from(tensor.offset).ok().zip(u64::try_from(tensor.size).ok());
        let Some((at, n_bytes)) = numbers else {
            return Err(WeightsError::damaged(&self.index, 0, format!("`{key}` is at no place of a file")));
        };
        let place = Place { shard: tensor.shard_id, at, n_bytes, crc: tensor.crc32c };
        self.shard(&place)?.check(at, n_bytes, &format!("`{key}`"))?;
        Ok(place)
    }

    fn shard(&self, place: &Place) -> Result<&Region, WeightsError> {
        self.shards
            .get(&place.shard)
            .ok_or_else(|| WeightsError::damaged(&self.index, 0, format!("a tensor is in data file {}", place.shard)))
    }

    /// Streams a tensor's bytes, and verifies their checksum after the last.
    fn pass_place(&self, name: &str, place: &Place, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let (shard, mut crc) = (self.shard(place)?, 0);
        shard.pass(place.at, place.n_bytes, &format!("`{name}`"), &mut |piece| {
            crc = crc32c::crc32c_append(crc, piece);
            sink(piece)
        })?;
        self.check_crc(name, place, mask(crc))
    }

    fn check_crc(&self, name: &str, place: &Place, measured: u32) -> Result<(), WeightsError> {
        // A fuzzer cannot guess a checksum.
        if measured == place.crc || cfg!(fuzzing) {
            return Ok(());
        }
        let (n_bytes, expected) = (place.n_bytes, place.crc);
        let message = format!("the checksum of `{name}` ({n_bytes} bytes) is {measured:08x}; expected {expected:08x}");
        Err(WeightsError::damaged(self.shard(place)?.path(), place.at, message))
    }

    fn graph(&self, tensor: &TensorEntry) -> Result<ObjectGraph, WeightsError> {
        let place = self.place(objects::KEY, tensor)?;
        if place.n_bytes > MAX_GRAPH {
            return Err(WeightsError::too_large(&self.index, "the graph of objects", place.n_bytes, MAX_GRAPH));
        }
        let texts = self.strings(objects::KEY, &place, 1)?;
        let text = texts.first().map_or(&[][..], Vec::as_slice);
        ObjectGraph::decode(text).map_err(|cause| {
            let path = self.shards[&place.shard].path();
            WeightsError::damaged(path, place.at, "the graph of objects cannot be read").because(cause)
        })
    }

    /// Strings: the length of each, a checksum of the lengths, and all bytes.
    fn strings(&self, name: &str, place: &Place, n: u64) -> Result<Vec<Vec<u8>>, WeightsError> {
        let shard = self.shard(place)?;
        if place.n_bytes > MAX_TEXTS {
            return Err(WeightsError::too_large(shard.path(), &format!("`{name}`"), place.n_bytes, MAX_TEXTS));
        }
        let bytes = shard.read(place.at, place.n_bytes, &format!("`{name}`"))?;
        let damaged =
            || WeightsError::damaged(shard.path(), place.at, format!("the strings of `{name}` do not fit in it"));
        let (mut rest, mut lengths, mut crc) = (bytes.as_slice(), Vec::new(), 0);
        // Each length takes at least a byte.
        if n > place.n_bytes {
            return Err(damaged());
        }
        for _ in 0..n {
            let length = decode_varint(&mut rest).map_err(|_| damaged())?;
            // The checksum covers the lengths as numbers, of four bytes if they fit.
            crc = match u32::try_from(length) {
                Ok(short) => crc32c::crc32c_append(crc, &short.to_le_bytes()),
                Err(_) => crc32c::crc32c_append(crc, &length.to_le_bytes()),
            };
            lengths.push(length);
        }
        let (sum, mut rest) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        let expected = u32::from_le_bytes(*sum);
        if mask(crc) != expected && !cfg!(fuzzing) {
            let message =
                format!("the checksum of the lengths of `{name}` is {:08x}; expected {expected:08x}", mask(crc));
            return Err(WeightsError::damaged(shard.path(), place.at, message));
        }
        crc = crc32c::crc32c_append(crc, sum);
        crc = crc32c::crc32c_append(crc, rest);
        self.check_crc(name, place, mask(crc))?;
        let mut texts = Vec::new();
        for length in lengths {
            let n = usize::try_from(length).ok().filter(|&n| n <= rest.len()).ok_or_else(damaged)?;
            let (text, after) = rest.split_at(n);
            texts.push(text.to_vec());
            rest = after;
        }
        if rest.is_empty() { Ok(texts) } else { Err(damaged()) }
    }
}

impl Reader for Bundle {
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let parts = match &self.parts[idx] {
            Parts::Whole(place) => return self.pass_place(&entry.name, place, sink),
            Parts::Slices(parts) => parts,
        };
        if parts.iter().all(|(slice, _)| slice.is_of_rows(&entry.dims)) {
            return parts.iter().try_for_each(|(_, place)| self.pass_place(&entry.name, place, sink));
        }
        // As large as the slices together, which exist in their files.
        let mut whole = vec![0; entry.n_bytes as usize];
        let width = entry.dtype.array().map_or(1, bf16scope_hlo::DType::n_bytes);
        for (slice, place) in parts {
            let mut bytes = Vec::with_capacity(place.n_bytes as usize);
            self.pass_place(&entry.name, place, &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            slice.put(&entry.dims, width, &bytes, &mut whole);
        }
        whole.chunks(super::region::PIECE).try_for_each(sink)
    }

    fn texts(&self, idx: usize, entry: &Entry) -> Result<Vec<Vec<u8>>, WeightsError> {
        match &self.parts[idx] {
            Parts::Whole(place) => self.strings(&entry.name, place, entry.n_elements()),
            Parts::Slices(_) => Ok(Vec::new()),
        }
    }
}

/// An index with some entries changed, and correct checksums.
#[cfg(test)]
pub(super) fn resealed(index: &Path, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (region, mut pairs) = (Region::open(index).unwrap(), Vec::new());
    let read = table::read(&region, &mut |key, value, _| {
        pairs.push((key.to_vec(), value.to_vec()));
        Ok(())
    });
    read.unwrap();
    // The change decides which entries are affected, so that most stay.
    let n = pairs.len();
    let first = change(&[0; 16]).iter().fold(0, |sum, &byte| sum + usize::from(byte)) % n;
    for nth in [first, (first * 7 + 1) % n] {
        pairs[nth].1 = change(&pairs[nth].1.clone());
    }
    table::write(pairs.iter().map(|(key, value)| (key.as_slice(), value.clone())))
}
