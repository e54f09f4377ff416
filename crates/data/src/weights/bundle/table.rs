//! The table format of a bundle's index: LevelDB's, without compression and without filters.
//!
//! Keys and values are in blocks, sorted by key, each key without the prefix that it shares with the previous one. A
//! last block locates the others, and the 48 bytes of the footer locate that one. Every block has a checksum, the
//! blocks are contiguous from the first byte, and only zeros may be between them and the footer, so each bit of a table
//! is checked.
//!
//! Source: LevelDB's `table_format.md`; TensorFlow's `tsl/lib/io/{table_builder,block_builder,format}.cc`.

use prost::encoding::{decode_varint, encode_varint};

use crate::weights::region::Region;
use crate::weights::{WeightsError, WeightsErrorKind};
use bf16scope_files::framing::masked_crc;

/// The last bytes of a table.
const MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();
/// The size of the footer: two handles, zeros, and the magic number.
pub(in crate::weights) const FOOTER: u64 = 48;
/// The compression type and the checksum after each block.
const TRAILER: u64 = 5;
/// The largest size of a table: names and shapes of half a million variables.
const MAX_TABLE: u64 = 64 << 20;
/// The largest total size of all keys. A shared prefix is stored once, so a small file could make many long keys.
const MAX_KEYS: u64 = 256 << 20;
/// The size of written blocks, as in TensorFlow's writer.
const BLOCK: usize = 256 << 10;
/// Keys from one that is written whole to the next.
const RESTART: usize = 16;

/// Whether a file ends like a table.
pub(in crate::weights) fn is_table(region: &Region) -> Result<bool, WeightsError> {
    let Some(at) = region.n_bytes().checked_sub(8) else { return Ok(false) };
    Ok(region.read(at, 8, "the file")? == MAGIC)
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    at: u64,
    n_bytes: u64,
}

impl Handle {
    fn decode(bytes: &mut &[u8]) -> Option<Handle> {
        Some(Handle { at: decode_varint(bytes).ok()?, n_bytes: decode_varint(bytes).ok()? })
    }

    fn encode(self, out: &mut Vec<u8>) {
        encode_varint(self.at, out);
        encode_varint(self.n_bytes, out);
    }

    /// Where the next block begins.
    fn end(self) -> Option<u64> {
        self.at.checked_add(self.n_bytes)?.checked_add(TRAILER)
    }
}

/// Takes a key, its value, and where their block begins.
type Each<'a> = dyn FnMut(&[u8], &[u8], u64) -> Result<(), WeightsError> + 'a;

/// Reads every key and its value, in order, after verifying their checksums.
pub(super) fn read(region: &Region, each: &mut Each<'_>) -> Result<(), WeightsError> {
    let path = region.path();
    let damaged = |at, message: &str| WeightsError::damaged(path, at, message);
    if region.n_bytes() > MAX_TABLE {
        return Err(WeightsError::too_large(path, "the index", region.n_bytes(), MAX_TABLE));
    }
    let Some(footer_at) = region.n_bytes().checked_sub(FOOTER) else {
        return Err(WeightsError::cut(path, region.n_bytes(), FOOTER, "the shortest index"));
    };
    let footer = region.read(footer_at, FOOTER, "the index")?;
    let (mut handles, magic) = footer.split_at(40);
    if magic != MAGIC {
        let message = "the index does not end as one: it was cut off, or is damaged";
        return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).at(footer_at).help("copy it again"));
    }
    let bad_handle = || damaged(footer_at, "it does not say where the blocks of the index are");
    let meta = Handle::decode(&mut handles).ok_or_else(bad_handle)?;
    let index = Handle::decode(&mut handles).ok_or_else(bad_handle)?;
    if handles.iter().any(|&byte| byte != 0) || meta.end() != Some(index.at) || index.end() != Some(footer_at) {
        return Err(bad_handle());
    }
    let (meta_block, index_block) = (block(region, meta)?, block(region, index)?);
    if entries(&meta_block).next().is_some() {
        return Err(
            WeightsError::unsupported(path, "the index has filters, which TensorFlow does not write").at(meta.at)
        );
    }
    let (mut next, mut keys, mut n_key_bytes) = (0, Entries::default(), 0);
    let mut last: Option<Vec<u8>> = None;
    for entry in entries(&index_block) {
        let value = entry.and_then(|(_, value)| Handle::decode(&mut &*value));
        let handle = value.filter(|handle| handle.at == next && handle.end().is_some_and(|end| end <= meta.at));
        let handle = handle.ok_or_else(|| damaged(index.at, "it does not say where the next block of the index is"))?;
        next = handle.end().unwrap_or(next);
        let bytes = block(region, handle)?;
        keys.restart(&bytes);
        while let Some(entry) = keys.next(&bytes) {
            let Some(value) = entry else {
                return Err(damaged(handle.at, "a block of the index has entries that do not fit in it"));
            };
            n_key_bytes += keys.key.len() as u64;
            if n_key_bytes > MAX_KEYS {
                return Err(WeightsError::too_large(path, "the names of its arrays", n_key_bytes, MAX_KEYS));
            }
            if last.as_ref().is_some_and(|last| *last >= keys.key) {
                return Err(damaged(handle.at, "the names of its arrays are not in order"));
            }
            each(&keys.key, &bytes[value], handle.at)?;
            last = Some(keys.key.clone());
        }
    }
    match next == meta.at {
        true => Ok(()),
        false => Err(damaged(next, "the index has bytes that are in none of its blocks")),
    }
}

/// A block with a verified checksum.
fn block(region: &Region, handle: Handle) -> Result<Vec<u8>, WeightsError> {
    let mut bytes = region.read(handle.at, handle.n_bytes.saturating_add(TRAILER), "a block of the index")?;
    let crc = bytes.split_off(bytes.len() - 4);
    let (measured, expected) = (masked_crc(&bytes), u32::from_le_bytes(crc.try_into().expect("four bytes")));
    // A fuzzer cannot guess a checksum.
    if measured != expected && !cfg!(fuzzing) {
        let message = format!("the checksum of a block is {measured:08x}; expected {expected:08x}");
        return Err(WeightsError::damaged(region.path(), handle.at, message));
    }
    match bytes.pop() {
        Some(0) => Ok(bytes),
        kind => {
            let message =
                format!("a block of the index is compressed (kind {}); expected none", kind.unwrap_or_default());
            let help = "TensorFlow writes none: save it again with tf.train.Checkpoint or tf.compat.v1.train.Saver";
            Err(WeightsError::unsupported(region.path(), message).at(handle.at).help(help))
        }
    }
}

/// Iterates over the entries of a block; keeps the last key.
#[derive(Default)]
struct Entries {
    key: Vec<u8>,
    at: usize,
    /// Where the entries end: the restart points follow them.
    end: Option<usize>,
}

impl Entries {
    fn restart(&mut self, block: &[u8]) {
        *self = Entries { key: Vec::new(), at: 0, end: end_of_entries(block) };
    }

    /// Where the next value is; `Some(None)` for an invalid entry.
    fn next(&mut self, block: &[u8]) -> Option<Option<std::ops::Range<usize>>> {
        let Some(end) = self.end else {
            self.end = Some(0);
            self.at = 0;
            return Some(None);
        };
        if self.at >= end {
            return None;
        }
        let value = self.entry(&block[..end]);
        if value.is_none() {
            self.at = end;
        }
        Some(value)
    }

    fn entry(&mut self, block: &[u8]) -> Option<std::ops::Range<usize>> {
        let mut rest = &block[self.at..];
        let mut number = || usize::try_from(decode_varint(&mut rest).ok()?).ok();
        let (n_shared, n_own, n_value) = (number()?, number()?, number()?);
        let key_at = block.len() - rest.len();
        let value_at = key_at.checked_add(n_own)?;
        let end = value_at.checked_add(n_value).filter(|&end| end <= block.len())?;
        if n_shared > self.key.len() {
            return None;
        }
        self.key.truncate(n_shared);
        self.key.extend_from_slice(&block[key_at..value_at]);
        self.at = end;
        Some(value_at..end)
    }
}

/// A block ends with the restart points, and their number.
fn end_of_entries(block: &[u8]) -> Option<usize> {
    let (rest, n) = block.split_last_chunk::<4>()?;
    let n_bytes = usize::try_from(u32::from_le_bytes(*n)).ok()?.checked_mul(4)?;
    rest.len().checked_sub(n_bytes)
}

/// The entries of a small block.
fn entries(block: &[u8]) -> impl Iterator<Item = Option<(Vec<u8>, &[u8])>> {
    let mut entries = Entries::default();
    entries.restart(block);
    std::iter::from_fn(move || {
        let value = entries.next(block)?;
        Some(value.map(|value| (entries.key.clone(), &block[value])))
    })
}

/// A table with these pairs, whose keys must be sorted and distinct.
pub(super) fn write<'a>(pairs: impl Iterator<Item = (&'a [u8], Vec<u8>)>) -> Vec<u8> {
    let (mut out, mut index) = (Vec::new(), BlockBuilder::default());
    let mut open = BlockBuilder::default();
    let mut close = |open: &mut BlockBuilder, out: &mut Vec<u8>| {
        let key = open.last.clone();
        let handle = std::mem::take(open).put(out);
        let mut value = Vec::new();
        handle.encode(&mut value);
        index.add(&key, &value, 1);
    };
    for (key, value) in pairs {
        open.add(key, &value, RESTART);
        if open.bytes.len() >= BLOCK {
            close(&mut open, &mut out);
        }
    }
    if !open.bytes.is_empty() {
        close(&mut open, &mut out);
    }
    let meta = BlockBuilder::default().put(&mut out);
    let index = index.put(&mut out);
    let mut footer = Vec::new();
    meta.encode(&mut footer);
    index.encode(&mut footer);
    footer.resize(40, 0);
    out.extend(footer);
    out.extend(MAGIC);
    out
}

/// A block under construction.
#[derive(Default)]
struct BlockBuilder {
    bytes: Vec<u8>,
    last: Vec<u8>,
    restarts: Vec<u32>,
    n: usize,
}

impl BlockBuilder {
    fn add(&mut self, key: &[u8], value: &[u8], restart: usize) {
        let is_whole = self.n.is_multiple_of(restart);
        if is_whole {
            self.restarts.push(self.bytes.len() as u32);
        }
        let n_shared = if is_whole { 0 } else { key.iter().zip(&self.last).take_while(|(a, b)| a == b).count() };
        for n in [n_shared, key.len() - n_shared, value.len()] {
            encode_varint(n as u64, &mut self.bytes);
        }
        self.bytes.extend_from_slice(&key[n_shared..]);
        self.bytes.extend_from_slice(value);
        self.last = key.to_vec();
        self.n += 1;
    }

    /// Ends the block and appends it.
    fn put(mut self, out: &mut Vec<u8>) -> Handle {
        if self.restarts.is_empty() {
            self.restarts.push(0);
        }
        self.bytes.extend(self.restarts.iter().flat_map(|at| at.to_le_bytes()));
        self.bytes.extend((self.restarts.len() as u32).to_le_bytes());
        let handle = Handle { at: out.len() as u64, n_bytes: self.bytes.len() as u64 };
        self.bytes.push(0);
        let crc = masked_crc(&self.bytes);
        out.extend(self.bytes);
        out.extend(crc.to_le_bytes());
        handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of one block: its bytes, and where that block, the filters and the index are. `name` changes what the
    /// index says of the block.
    fn table(
        block: BlockBuilder,
        filters: BlockBuilder,
        name: &dyn Fn(Handle) -> Option<Handle>,
    ) -> (Vec<u8>, [Handle; 3]) {
        let (mut out, mut index, mut value) = (Vec::new(), BlockBuilder::default(), Vec::new());
        let block = block.put(&mut out);
        if let Some(named) = name(block) {
            named.encode(&mut value);
            index.add(b"z", &value, 1);
        }
        let filters = filters.put(&mut out);
        let index = index.put(&mut out);
        let mut footer = Vec::new();
        filters.encode(&mut footer);
        index.encode(&mut footer);
        footer.resize(40, 0);
        out.extend(footer);
        out.extend(MAGIC);
        (out, [block, filters, index])
    }

    fn block_of(keys: &[&[u8]]) -> BlockBuilder {
        let mut block = BlockBuilder::default();
        keys.iter().for_each(|key| block.add(key, b"value", 1));
        block
    }

    fn refused(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.index");
        std::fs::write(&path, bytes).unwrap();
        let error = read(&Region::open(&path).unwrap(), &mut |_, _, _| Ok(())).unwrap_err();
        error.to_string().replace(&format!("{}/", folder.path().display()), "")
    }

    #[test]
    fn a_table_is_told_where_it_is_damaged() {
        let right = || block_of(&[b"a", b"b"]);
        let none = BlockBuilder::default;
        let damaged = |at: u64, message: &str| {
            format!("m.index: at byte {at}: {message}\nhelp: the file is damaged: copy it again")
        };
        assert_eq!(
            refused(&[0; 10]),
            "m.index: the file is cut off: it has 10 bytes, and the shortest index ends at byte 48\nhelp: copy it again"
        );
        let footer = [&[0; 40][..], &MAGIC].concat();
        assert_eq!(refused(&footer), damaged(0, "it does not say where the blocks of the index are"));
        let (bytes, [_, filters, _]) = table(right(), block_of(&[b"filter"]), &Some);
        assert_eq!(
            refused(&bytes),
            format!("m.index: at byte {}: the index has filters, which TensorFlow does not write", filters.at)
        );
        let (bytes, [.., index]) = table(right(), none(), &|block| Some(Handle { at: 1, ..block }));
        assert_eq!(refused(&bytes), damaged(index.at, "it does not say where the next block of the index is"));
        let (bytes, _) = table(right(), none(), &|_| None);
        assert_eq!(refused(&bytes), damaged(0, "the index has bytes that are in none of its blocks"));
        let entries = BlockBuilder { bytes: vec![0xff; 3], ..none() };
        let (bytes, _) = table(entries, none(), &Some);
        assert_eq!(refused(&bytes), damaged(0, "a block of the index has entries that do not fit in it"));
        let (bytes, _) = table(block_of(&[b"b", b"a"]), none(), &Some);
        assert_eq!(refused(&bytes), damaged(0, "the names of its arrays are not in order"));
    }

    #[test]
    fn a_block_that_is_flipped_or_compressed_is_told() {
        let (whole, [block, ..]) = table(block_of(&[b"a"]), BlockBuilder::default(), &Some);
        let end = block.n_bytes as usize + 1;
        let mut flipped = whole.clone();
        flipped[0] ^= 1;
        let (measured, expected) = (masked_crc(&flipped[..end]), masked_crc(&whole[..end]));
        assert_eq!(
            refused(&flipped),
            format!(
                "m.index: at byte 0: the checksum of a block is {measured:08x}; expected {expected:08x}\n\
                 help: the file is damaged: copy it again"
            )
        );
        let mut packed = whole;
        packed[end - 1] = 1;
        let crc = masked_crc(&packed[..end]);
        packed[end..end + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            refused(&packed),
            "m.index: at byte 0: a block of the index is compressed (kind 1); expected none\n\
             help: TensorFlow writes none: save it again with tf.train.Checkpoint or tf.compat.v1.train.Saver"
        );
    }
}
