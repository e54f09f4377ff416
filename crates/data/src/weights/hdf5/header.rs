//! The superblock, and object headers: the messages that describe each object of a file.
//!
//! Source: the HDF5 File Format Specification, version 3.0, sections II and IV.

use std::cell::Cell;

use super::cursor::Cursor;
use crate::weights::region::Region;
use crate::weights::{WeightsError, WeightsErrorKind};

/// The undefined address.
pub(super) const NOWHERE: u64 = u64::MAX;
/// The largest total size of a file's structure that is read: many references may lead to the same bytes. In a file
/// written by h5py each part is read once or twice, and a text heap of four thousand bytes once for each layer.
const MAX_STRUCTURE: u64 = 1 << 30;
const MAX_READS_OF_A_BYTE: u64 = 8;
const READ_WITHOUT_QUESTION: u64 = 16 << 20;
/// The largest number of pieces in an object's header.
const MAX_PIECES: usize = 256;
const CONTINUATION: u16 = 0x10;

/// A file whose structure is being read, with its budget.
pub(super) struct Structure<'a> {
    pub region: &'a Region,
    read: Cell<u64>,
    /// Bytes of link names so far.
    named: Cell<u64>,
}

/// A header message: its type and its bytes.
pub(super) struct Message {
    pub kind: u16,
    pub bytes: Vec<u8>,
    /// Whether the bytes only refer to a shared message.
    pub is_shared: bool,
}

impl<'a> Structure<'a> {
    /// The file, and where its root group is.
    pub fn open(region: &'a Region) -> Result<(Structure<'a>, u64), WeightsError> {
        let file = Structure { region, read: Cell::new(0), named: Cell::new(0) };
        let start = file.read(0, region.n_bytes().min(112), "its superblock")?;
        let mut rest = Cursor(start.get(8..).unwrap_or_default());
        let cut = || WeightsError::cut(region.path(), region.n_bytes(), 112, "its superblock");
        let version = rest.byte().ok_or_else(cut)?;
        let superblock = match version {
            0 | 1 => superblock_0(rest, version),
            2 | 3 => superblock_2(rest),
            version => {
                let message = format!("an HDF5 file whose superblock is of version {version}; expected 0 to 3");
                return Err(WeightsError::unsupported(region.path(), message));
            }
        };
        let (sizes, base, end, root) = superblock.ok_or_else(cut)?;
        if sizes != (8, 8) || base != 0 {
            let message = format!("an HDF5 file with addresses of {} and {} bytes from {base} on", sizes.0, sizes.1);
            return Err(WeightsError::unsupported(region.path(), format!("{message}; expected 8 and 8 from 0 on")));
        }
        region.check(0, end, "what it says it has")?;
        Ok((file, root))
    }

    /// Bytes of the file's structure.
    pub fn read(&self, at: u64, n_bytes: u64, what: &str) -> Result<Vec<u8>, WeightsError> {
        let read = self.read.get().saturating_add(n_bytes);
        let limit = MAX_READS_OF_A_BYTE.saturating_mul(self.region.n_bytes()).saturating_add(READ_WITHOUT_QUESTION);
        let limit = limit.min(MAX_STRUCTURE);
        if read > limit {
            return Err(WeightsError::too_large(self.region.path(), "what says where its arrays are", read, limit));
        }
        self.read.set(read);
        self.region.read(at, n_bytes, what)
    }

    /// A link's name. Many links may share one long name, so the total is bounded.
    pub fn name(&self, bytes: &[u8]) -> Result<String, WeightsError> {
        let named = self.named.get() + bytes.len() as u64;
        if named > super::MAX_NAMES {
            return Err(WeightsError::too_large(
                self.region.path(),
                "the names of its arrays",
                named,
                super::MAX_NAMES,
            ));
        }
        self.named.set(named);
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    pub fn damaged(&self, at: u64, message: impl Into<String>) -> WeightsError {
        WeightsError::damaged(self.region.path(), at, message)
    }

    pub fn unsupported(&self, at: u64, message: impl Into<String>) -> WeightsError {
        let help = "write it again with h5py's defaults, or save the weights as .npz or safetensors";
        WeightsError::new(WeightsErrorKind::Unsupported, self.region.path(), message).at(at).help(help)
    }

    /// The messages of an object, from all pieces of its header.
    pub fn messages(&self, at: u64) -> Result<Vec<Message>, WeightsError> {
        const WHAT: &str = "the header of an object";
        let start = self.read(at, 32.min(self.region.n_bytes().saturating_sub(at)), WHAT)?;
        let none = || self.damaged(at, "there is no object's header");
        let (mut pieces, is_new, has_order) = match start.strip_prefix(b"OHDR") {
            Some(rest) => {
                let mut rest = Cursor(rest);
                let (version, flags) = rest.byte().zip(rest.byte()).ok_or_else(none)?;
                if version != 2 {
                    return Err(
                        self.unsupported(at, format!("an object's header of version {version}; expected 1 or 2"))
                    );
                }
                let n_skipped = if flags & 0x20 != 0 { 16 } else { 0 } + if flags & 0x10 != 0 { 4 } else { 0 };
                let n_bytes = rest.take(n_skipped).and_then(|_| rest.number(1 << (flags & 3))).ok_or_else(none)?;
                let from = at + (start.len() - rest.0.len()) as u64;
                (vec![(from, n_bytes)], true, flags & 4 != 0)
            }
            None => {
                let mut rest = Cursor(&start);
                let (version, _, _, _) = four(rest.byte(), rest.byte(), rest.short(), rest.word()).ok_or_else(none)?;
                let n_bytes = rest.word().filter(|_| version == 1).ok_or_else(none)?;
                (vec![(at + 16, u64::from(n_bytes))], false, false)
            }
        };
        let (mut messages, mut nth, mut n_all) = (Vec::new(), 0, 0u64);
        while let Some(&(from, n_bytes)) = pieces.get(nth) {
            nth += 1;
            if nth > MAX_PIECES {
                return Err(self.damaged(at, format!("an object's header is in more than {MAX_PIECES} pieces")));
            }
            // Pieces do not overlap.
            n_all = n_all.saturating_add(n_bytes);
            if n_all > self.region.n_bytes() || pieces[..nth - 1].iter().any(|&(before, _)| before == from) {
                return Err(self.damaged(at, "two pieces of an object's header are in one place"));
            }
            let bytes = self.read(from, n_bytes, WHAT)?;
            // In the newer form, continuation pieces begin with a signature and end with a checksum.
            let bytes = match is_new && nth > 1 {
                true => bytes.strip_prefix(b"OCHK").and_then(|rest| rest.split_last_chunk::<4>()).map(|(rest, _)| rest),
                false => Some(bytes.as_slice()),
            };
            let mut rest = Cursor(bytes.ok_or_else(|| self.damaged(from, "there is no piece of an object's header"))?);
            while let Some(message) = message(&mut rest, is_new, has_order) {
                if message.kind == CONTINUATION {
                    let mut place = Cursor(&message.bytes);
                    pieces.push(place.long().zip(place.long()).ok_or_else(none)?);
                } else {
                    messages.push(message);
                }
            }
        }
        Ok(messages)
    }
}

fn four<A, B, C, D>(a: Option<A>, b: Option<B>, c: Option<C>, d: Option<D>) -> Option<(A, B, C, D)> {
    Some((a?, b?, c?, d?))
}

/// The sizes of an address and of a length, the base address, the end of the file, and the address of the root.
type Superblock = ((u8, u8), u64, u64, u64);

fn superblock_0(mut rest: Cursor<'_>, version: u8) -> Option<Superblock> {
    rest.take(4)?;
    let sizes = (rest.byte()?, rest.byte()?);
    rest.take(if version == 0 { 9 } else { 13 })?;
    let (base, _, end, _) = four(rest.long(), rest.long(), rest.long(), rest.long())?;
    // The root's entry: a name, then its header.
    rest.long()?;
    Some((sizes, base, end, rest.long()?))
}

fn superblock_2(mut rest: Cursor<'_>) -> Option<Superblock> {
    let sizes = (rest.byte()?, rest.byte()?);
    rest.byte()?;
    let (base, _, end, root) = four(rest.long(), rest.long(), rest.long(), rest.long())?;
    Some((sizes, base, end, root))
}

/// The next message; `None` if the rest is too short for one.
fn message(rest: &mut Cursor<'_>, is_new: bool, has_order: bool) -> Option<Message> {
    let (kind, n_bytes, flags) = if is_new {
        let start = (u16::from(rest.byte()?), rest.short()?, rest.byte()?);
        rest.take(if has_order { 2 } else { 0 })?;
        start
    } else {
        let start = (rest.short()?, rest.short()?, rest.byte()?);
        rest.take(3)?;
        start
    };
    let bytes = rest.take(n_bytes.into())?.to_vec();
    Some(Message { kind, bytes, is_shared: flags & 2 != 0 })
}
