//! Chunked datasets: finds, unpacks and places each chunk.
//!
//! Source: the HDF5 File Format Specification, version 3.0, sections III.A.1, VII.C and IV.A.2.l.

use std::io::Read as _;

use super::cursor::Cursor;
use super::dataset::{ChunkIndex, Dataset, Filter};
use super::header::{NOWHERE, Structure};
use crate::weights::WeightsError;
use bf16scope_files as files;

/// The largest depth of a B-tree.
const MAX_LEVELS: u8 = 16;
/// The largest ratio of unpacked to deflated bytes.
const MAX_RATIO: u64 = 1032;
/// The least size of an index entry for a chunk.
const MIN_ENTRY: u64 = 8;
/// The largest number of chunks in a dataset.
const MAX_CHUNKS: u64 = 1 << 24;

/// A chunk: its place in the file, its bytes there, the filters that were skipped, and its place in the dataset.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    at: u64,
    n_bytes: u64,
    without: u32,
    start: Vec<u64>,
}

impl Chunk {
    /// Its bytes in the file.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// The chunks of a dataset that was written, whole or in part. All must exist: a damaged index may have lost the others.
pub(super) fn find(
    file: &Structure<'_>,
    at: u64,
    name: &str,
    dataset: &Dataset,
    dims: &[u64],
    index: ChunkIndex,
) -> Result<Vec<Chunk>, WeightsError> {
    let wrong = |message: String| file.damaged(at, format!("dataset `{name}` {message}"));
    let n_bytes = dims.iter().try_fold(dataset.width as u64, |n, &dim| n.checked_mul(dim));
    let n_bytes = n_bytes.ok_or_else(|| wrong(format!("has blocks of {dims:?}")))?;
    let counts: Vec<u64> = dataset.dims.iter().zip(dims).map(|(dim, chunk)| dim.div_ceil(*chunk)).collect();
    let expected = counts.iter().try_fold(1u64, |n, &count| n.checked_mul(count)).filter(|&n| n <= MAX_CHUNKS);
    let expected = expected.ok_or_else(|| wrong(format!("is in {counts:?} blocks")))?;
    let start = |nth: u64| {
        let mut rest = nth;
        let mut start: Vec<u64> = counts
            .iter()
            .zip(dims)
            .rev()
            .map(|(&count, &dim)| {
                let index = rest % count;
                rest /= count;
                index * dim
            })
            .collect();
        start.reverse();
        start
    };
    let mut chunks = Vec::new();
    match index {
        _ if expected == 0 => {}
        ChunkIndex::Tree(root) => tree(file, root, dataset.dims.len(), MAX_LEVELS, expected, &mut chunks)?,
        ChunkIndex::Single(at, packed) => {
            chunks.push(Chunk { at, n_bytes: packed.unwrap_or(n_bytes), without: 0, start: start(0) });
        }
        ChunkIndex::Implicit(first) => {
            file.region.check(first, n_bytes.saturating_mul(expected), &format!("dataset `{name}`"))?;
            // The file is too small to have an index entry for each chunk; this index type has none.
            if expected > 1 << 10 && expected > file.region.n_bytes() / MIN_ENTRY {
                return Err(wrong(format!("is in {expected} blocks of {n_bytes} bytes")));
            }
            chunks.extend((0..expected).map(|nth| Chunk {
                at: first + nth * n_bytes,
                n_bytes,
                without: 0,
                start: start(nth),
            }));
        }
        ChunkIndex::Array(head) => {
            let places = array(file, head, expected, n_bytes)?;
            let chunk =
                |(nth, (at, n_bytes, without)): (usize, _)| Chunk { at, n_bytes, without, start: start(nth as u64) };
            chunks.extend(places.into_iter().enumerate().map(chunk).filter(|chunk| chunk.at != NOWHERE));
        }
    }
    let is_placed = |chunk: &Chunk| {
        chunk.start.iter().zip(dims).zip(&dataset.dims).all(|((start, chunk), dim)| start % chunk == 0 && start < dim)
    };
    chunks.sort_by(|left, right| left.start.cmp(&right.start));
    chunks.dedup_by(|left, right| left.start == right.start);
    if chunks.len() as u64 != expected || !chunks.iter().all(is_placed) {
        let help = "write the dataset whole if some were never written; else the file is damaged: copy it again";
        return Err(wrong(format!("has {} of its {expected} blocks; expected all", chunks.len())).help(help));
    }
    // Otherwise a small file could refer to the same bytes from many chunks, or claim that a few bytes are many.
    let stored = chunks.iter().fold(0u64, |n, chunk| n.saturating_add(chunk.n_bytes));
    let is_packed = dataset.filters.contains(&Filter::Deflate);
    let most = |stored: u64| if is_packed { stored.saturating_mul(MAX_RATIO) } else { stored };
    if stored > file.region.n_bytes() || chunks.iter().any(|chunk| n_bytes > most(chunk.n_bytes)) {
        return Err(wrong(format!("has blocks of {n_bytes} bytes in {stored} of the file, which cannot be")));
    }
    chunks.iter().try_for_each(|chunk| file.region.check(chunk.at, chunk.n_bytes, &format!("dataset `{name}`")))?;
    Ok(chunks)
}

/// The chunks of a B-tree's node, and of its descendants.
fn tree(
    file: &Structure<'_>,
    at: u64,
    rank: usize,
    levels: u8,
    most: u64,
    chunks: &mut Vec<Chunk>,
) -> Result<(), WeightsError> {
    let none = || file.damaged(at, "there is no node of a dataset's blocks");
    let head = file.read(at, 8, "a node of a dataset's blocks")?;
    let mut rest = Cursor(head.strip_prefix(b"TREE").ok_or_else(none)?);
    let (kind, level) = rest.byte().zip(rest.byte()).ok_or_else(none)?;
    let n = rest.short().filter(|_| kind == 1 && level < levels).ok_or_else(none)?;
    // Sizes, a mask, and the offset along each axis and within an element; then the chunk or the child node.
    let n_pair = 8 + 8 * (rank + 1) + 8;
    let bytes = file.read(at + 24, u64::from(n) * n_pair as u64, "a node of a dataset's blocks")?;
    for pair in bytes.chunks_exact(n_pair) {
        let mut rest = Cursor(pair);
        let (n_bytes, without) = rest.word().zip(rest.word()).ok_or_else(none)?;
        let start = (0..rank).map(|_| rest.long()).collect::<Option<Vec<u64>>>().ok_or_else(none)?;
        let (_, child) = rest.long().zip(rest.long()).ok_or_else(none)?;
        if level > 0 {
            tree(file, child, rank, level, most, chunks)?;
        } else {
            if chunks.len() as u64 >= most {
                return Err(file.damaged(at, format!("a dataset has more blocks than its {most}")));
            }
            chunks.push(Chunk { at: child, n_bytes: n_bytes.into(), without, start });
        }
    }
    Ok(())
}

/// The place, size and skipped filters of each of `n` chunks, from a fixed array.
fn array(file: &Structure<'_>, at: u64, n: u64, n_bytes: u64) -> Result<Vec<(u64, u64, u32)>, WeightsError> {
    let none = || file.damaged(at, "there is no index of a dataset's blocks");
    let bytes = file.read(at, 24, "the index of a dataset's blocks")?;
    let mut rest = Cursor(bytes.strip_prefix(b"FAHD").ok_or_else(none)?);
    let (_, is_packed, n_entry, n_page_bits) =
        (rest.byte(), rest.byte().ok_or_else(none)? == 1, rest.byte().ok_or_else(none)?, rest.byte().ok_or_else(none)?);
    let (count, block) = rest.long().zip(rest.long()).ok_or_else(none)?;
    if count != n || usize::from(n_entry) < if is_packed { 13 } else { 8 } {
        return Err(none());
    }
    if n_page_bits >= 64 || n > 1 << n_page_bits {
        return Err(file.unsupported(at, format!("a dataset is in {n} blocks, whose index is in pages")));
    }
    let n_entry = usize::from(n_entry);
    let bytes = file.read(block, 14 + n * n_entry as u64, "the index of a dataset's blocks")?;
    let entries = bytes.strip_prefix(b"FADB").and_then(|rest| rest.get(10..)).ok_or_else(none)?;
    let entry = |bytes: &[u8]| {
        let mut rest = Cursor(bytes);
        let at = rest.long()?;
        Some(if is_packed { (at, rest.number(n_entry - 12)?, rest.word()?) } else { (at, n_bytes, 0) })
    };
    entries.chunks_exact(n_entry).map(|bytes| entry(bytes).ok_or_else(none)).collect()
}

/// A chunk's elements.
pub(super) fn unpack(
    region: &crate::weights::region::Region,
    name: &str,
    dataset: &Dataset,
    chunk: &Chunk,
    n_bytes: usize,
) -> Result<Vec<u8>, WeightsError> {
    let wrong = |message: &str| {
        WeightsError::damaged(region.path(), chunk.at, format!("a block of dataset `{name}` {message}"))
    };
    let mut bytes = region.read(chunk.at, chunk.n_bytes, &format!("dataset `{name}`"))?;
    for (nth, filter) in dataset.filters.iter().enumerate().rev() {
        if chunk.without.checked_shr(nth as u32).unwrap_or(0) & 1 != 0 {
            continue;
        }
        bytes = match filter {
            Filter::Deflate if files::is_bomb(bytes.len() as u64, n_bytes as u64) => {
                let message = format!(
                    "is {} packed bytes that are to become {n_bytes}; expected at most {} times as many: it may be a \
                     decompression bomb",
                    bytes.len(),
                    files::MAX_UNPACKED_RATIO
                );
                return Err(wrong(&message).help("if it is not, save it without compression"));
            }
            Filter::Deflate => {
                let mut out = Vec::new();
                // A checksum of four bytes may be inside.
                let mut read = flate2::read::ZlibDecoder::new(bytes.as_slice()).take(n_bytes as u64 + 5);
                read.read_to_end(&mut out).map_err(|cause| wrong("cannot be unpacked").because(cause))?;
                out
            }
            Filter::Shuffle => unshuffled(&bytes, dataset.width),
            Filter::Fletcher32 => {
                let (rest, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| wrong("has no checksum"))?;
                let (measured, expected) = (fletcher32(rest), u32::from_le_bytes(*sum));
                if measured != expected {
                    return Err(wrong(&format!("has the checksum {measured:08x}; expected {expected:08x}")));
                }
                rest.to_vec()
            }
        };
    }
    match bytes.len() == n_bytes {
        true => Ok(bytes),
        false => Err(wrong(&format!("has {} bytes; expected {n_bytes}", bytes.len()))),
    }
}

/// Undoes the shuffle filter: all first bytes of elements come first, then all second ones; a remainder is unchanged.
fn unshuffled(bytes: &[u8], width: usize) -> Vec<u8> {
    let n = bytes.len() / width;
    let mut out = bytes.to_vec();
    for (place, &byte) in bytes[..n * width].iter().enumerate() {
        out[(place % n) * width + place / n] = byte;
    }
    out
}

/// HDF5's checksum: two sums of words of 16 bits, the most significant byte first, modulo 65,535.
fn fletcher32(bytes: &[u8]) -> u32 {
    let (mut first, mut second) = (0u64, 0u64);
    let folded = |sum: u64| (sum & 0xffff) + (sum >> 16);
    for pair in bytes.chunks(2) {
        first += (u64::from(pair[0]) << 8) | u64::from(pair.get(1).copied().unwrap_or(0));
        first = folded(first);
        second = folded(second + first);
    }
    ((folded(second) << 16) | folded(first)) as u32
}

/// Copies a chunk's elements, as far as they are within the dataset, to their places.
pub(super) fn put(dataset: &Dataset, chunk_dims: &[u64], chunk: &Chunk, from: &[u8], into: &mut [u8]) {
    let (dims, width) = (&dataset.dims, dataset.width);
    let sizes: Vec<u64> = (0..dims.len()).map(|axis| chunk_dims[axis].min(dims[axis] - chunk.start[axis])).collect();
    let Some(last) = sizes.last() else {
        into.copy_from_slice(&from[..into.len()]);
        return;
    };
    let row = *last as usize * width;
    let n_rows: u64 = sizes[..sizes.len() - 1].iter().product();
    let mut at = vec![0; dims.len()];
    for _ in 0..n_rows {
        let (mut source, mut place) = (0, 0);
        for axis in 0..dims.len() {
            source = source * chunk_dims[axis] + at[axis];
            place = place * dims[axis] + chunk.start[axis] + at[axis];
        }
        let (source, place) = (source as usize * width, place as usize * width);
        into[place..place + row].copy_from_slice(&from[source..source + row]);
        for axis in (0..dims.len() - 1).rev() {
            at[axis] += 1;
            if at[axis] < sizes[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::WeightsDType;
    use crate::weights::hdf5::dataset::Layout;
    use crate::weights::region::Region;
    use bf16scope_hlo::DType;

    #[test]
    fn a_block_that_becomes_gigabytes_is_refused_before_it_is_unpacked() {
        // Deflate's own ratio would allow six million packed bytes to become six billion; these unpack to nothing, so
        // that only the check before unpacking can refuse them as a bomb.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.h5");
        std::fs::write(&path, vec![0u8; 6_000_000]).unwrap();
        let n_bytes = 6_000_000_000u64;
        let dataset = Dataset {
            dtype: WeightsDType::Array(DType::F32),
            width: 4,
            is_big_endian: false,
            dims: vec![n_bytes / 4],
            layout: Layout::Chunked { dims: vec![n_bytes / 4], index: ChunkIndex::Single(0, Some(6_000_000)) },
            filters: vec![Filter::Deflate],
            fill: None,
        };
        let chunk = Chunk { at: 0, n_bytes: 6_000_000, without: 0, start: vec![0] };
        let region = Region::open(&path).unwrap();
        let error = unpack(&region, "kernel", &dataset, &chunk, n_bytes as usize).unwrap_err();
        let message = error.to_string();
        assert!(
            message.ends_with(
                "weights.h5: at byte 0: a block of dataset `kernel` is 6000000 packed bytes that are to become 6000000000; \
                 expected at most 200 times as many: it may be a decompression bomb\n\
                 help: if it is not, save it without compression"
            ),
            "{message}"
        );
        // Without that filter the same bytes are only too few.
        let plain = Dataset { filters: vec![], ..dataset };
        let error = unpack(&region, "kernel", &plain, &chunk, n_bytes as usize).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("a block of dataset `kernel` has 6000000 bytes; expected 6000000000"), "{message}");
    }

    #[test]
    fn a_block_that_is_damaged_is_told_by_its_filter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.h5");
        std::fs::write(&path, [1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let region = Region::open(&path).unwrap();
        for (filter, n_bytes, expected) in [
            (Filter::Deflate, 8, "cannot be unpacked"),
            (Filter::Fletcher32, 2, "has no checksum"),
            (Filter::Fletcher32, 8, "has the checksum 02000100; expected 00000000"),
        ] {
            let dataset = Dataset {
                dtype: WeightsDType::Array(DType::F32),
                width: 4,
                is_big_endian: false,
                dims: vec![1],
                layout: Layout::Chunked { dims: vec![1], index: ChunkIndex::Single(0, Some(n_bytes)) },
                filters: vec![filter],
                fill: None,
            };
            let chunk = Chunk { at: 0, n_bytes, without: 0, start: vec![0] };
            let error = unpack(&region, "kernel", &dataset, &chunk, 4).unwrap_err();
            assert_eq!(
                error.to_string().replace(&format!("{}/", folder.path().display()), ""),
                format!(
                    "weights.h5: at byte 0: a block of dataset `kernel` {expected}\n\
                     help: the file is damaged: copy it again"
                )
            );
        }
    }
}
