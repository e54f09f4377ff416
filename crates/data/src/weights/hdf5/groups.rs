//! Groups: names and the objects that they link to. Old groups are a B-tree over symbol tables; new ones have links in
//! their header, or, if there are many, in a fractal heap with an index of names.
//!
//! Source: the HDF5 File Format Specification, version 3.0, sections III.A, III.B, III.C, III.D, III.G and IV.A.2.

use super::cursor::Cursor;
use super::header::{Message, NOWHERE, Structure};
use crate::weights::WeightsError;

const LINK_INFO: u16 = 0x02;
const LINK: u16 = 0x06;
const SYMBOL_TABLE: u16 = 0x11;
/// The largest depth of a B-tree.
const MAX_LEVELS: u8 = 16;

/// A name in a group, and its object; `None` for soft and external links.
pub(super) type Link = (String, Option<u64>);

/// Whether an object is a group.
pub(super) fn is_group(messages: &[Message]) -> bool {
    messages.iter().any(|message| matches!(message.kind, LINK_INFO | LINK | SYMBOL_TABLE))
}

/// The links of a group.
pub(super) fn links(file: &Structure<'_>, at: u64, messages: &[Message]) -> Result<Vec<Link>, WeightsError> {
    let none = || file.damaged(at, "a group does not say where its names are");
    let mut links = Vec::new();
    for message in messages {
        let mut rest = Cursor(&message.bytes);
        match message.kind {
            SYMBOL_TABLE => {
                let (tree, heap) = rest.long().zip(rest.long()).ok_or_else(none)?;
                let names = names(file, heap)?;
                symbols(file, tree, &names, MAX_LEVELS, &mut links)?;
            }
            LINK => links.push(link(file, &message.bytes)?.ok_or_else(none)?),
            LINK_INFO => {
                let (_, flags) = rest.byte().zip(rest.byte()).ok_or_else(none)?;
                let skipped = rest.take(if flags & 1 != 0 { 8 } else { 0 });
                let (heap, tree) = skipped.and_then(|_| rest.long().zip(rest.long())).ok_or_else(none)?;
                if heap != NOWHERE && tree != NOWHERE {
                    dense(file, heap, tree, &mut links)?;
                }
            }
            _ => {}
        }
    }
    Ok(links)
}

/// A link, from a message or from a heap.
fn link(file: &Structure<'_>, bytes: &[u8]) -> Result<Option<Link>, WeightsError> {
    let Some((name, object)) = link_of(bytes) else { return Ok(None) };
    Ok(Some((file.name(name)?, object)))
}

fn link_of(bytes: &[u8]) -> Option<(&[u8], Option<u64>)> {
    let mut rest = Cursor(bytes);
    let (_version, flags) = (rest.byte()?, rest.byte()?);
    let kind = if flags & 8 != 0 { rest.byte()? } else { 0 };
    rest.take(if flags & 4 != 0 { 8 } else { 0 })?;
    rest.take(if flags & 0x10 != 0 { 1 } else { 0 })?;
    let n = rest.size(1 << (flags & 3))?;
    let name = rest.take(n)?;
    Some((name, if kind == 0 { Some(rest.long()?) } else { None }))
}

/// The NUL-terminated names of an old group.
fn names(file: &Structure<'_>, at: u64) -> Result<Vec<u8>, WeightsError> {
    let bytes = file.read(at, 32, "the names of a group")?;
    let mut rest = Cursor(bytes.strip_prefix(b"HEAP").unwrap_or_default());
    let place = rest.word().and_then(|_| Some((rest.long()?, rest.long()?, rest.long()?)));
    let (n_bytes, _, at) = place.ok_or_else(|| file.damaged(at, "there are no names of a group"))?;
    file.read(at, n_bytes, "the names of a group")
}

/// The symbols of a B-tree's node, and of its descendants.
fn symbols(file: &Structure<'_>, at: u64, names: &[u8], levels: u8, links: &mut Vec<Link>) -> Result<(), WeightsError> {
    let none = || file.damaged(at, "there is no node of a group's names");
    let head = file.read(at, 8, "a node of a group's names")?;
    if let Some(rest) = head.strip_prefix(b"SNOD") {
        let n = Cursor(&rest[2..]).short().ok_or_else(none)?;
        let bytes = file.read(at + 8, u64::from(n) * 40, "the symbols of a group")?;
        for entry in bytes.chunks_exact(40) {
            let mut rest = Cursor(entry);
            let (name, object, cache) = (rest.size(8), rest.long(), rest.word());
            let name = name.and_then(|name| names.get(name..)).ok_or_else(none)?;
            let name = &name[..memchr::memchr(0, name).ok_or_else(none)?];
            let name = file.name(name)?;
            // Cache type 2 is a soft link.
            links.push((name, object.filter(|_| cache != Some(2))));
        }
        return Ok(());
    }
    let rest = head.strip_prefix(b"TREE").ok_or_else(none)?;
    let mut rest = Cursor(rest);
    let (kind, level) = rest.byte().zip(rest.byte()).ok_or_else(none)?;
    let n = rest.short().filter(|_| kind == 0 && level < levels).ok_or_else(none)?;
    // A key before each child, and one after the last; before them the two siblings.
    let bytes = file.read(at + 24, u64::from(n) * 16, "a node of a group's names")?;
    for pair in bytes.chunks_exact(16) {
        let child = Cursor(&pair[8..]).long().ok_or_else(none)?;
        symbols(file, child, names, level, links)?;
    }
    Ok(())
}

/// A fractal heap, as far as it holds links.
struct Heap {
    at: u64,
    /// The size of an offset within it.
    n_offset: usize,
    width: u64,
    start_size: u64,
    max_direct: u64,
    root: u64,
    /// Rows of the root block; 0 if it is a direct block.
    n_rows: u64,
}

impl Heap {
    fn read(file: &Structure<'_>, at: u64) -> Result<Heap, WeightsError> {
        let bytes = file.read(at, 142, "a heap of links")?;
        let field = |from: usize, n: usize| Cursor(&bytes[from..]).number(n).unwrap_or_default();
        if !bytes.starts_with(b"FRHP") || field(110, 2) == 0 || field(112, 8) == 0 {
            return Err(file.damaged(at, "there is no heap of links"));
        }
        if field(7, 2) != 0 {
            return Err(file.unsupported(at, "the names of a group are compressed"));
        }
        let n_offset = (field(128, 2) as usize).div_ceil(8);
        let (width, start_size, max_direct) = (field(110, 2), field(112, 8), field(120, 8));
        Ok(Heap { at, n_offset, width, start_size, max_direct, root: field(132, 8), n_rows: field(140, 2) })
    }

    /// The bytes of the object with an identifier.
    fn object(&self, file: &Structure<'_>, id: &[u8]) -> Result<Vec<u8>, WeightsError> {
        let none = || file.damaged(self.at, "a link is not in its heap");
        let mut rest = Cursor(id);
        let kind = rest.byte().ok_or_else(none)? >> 4;
        if kind != 0 {
            return Err(file.unsupported(self.at, "a link is too long for its heap"));
        }
        let offset = rest.number(self.n_offset).ok_or_else(none)?;
        let n_bytes = rest.number(rest.0.len()).ok_or_else(none)?;
        let (block, start, size) = self.block(file, offset)?;
        let end = offset.checked_add(n_bytes).filter(|&end| end <= start.saturating_add(size));
        let at = end.and_then(|_| block.checked_add(offset - start)).ok_or_else(none)?;
        file.read(at, n_bytes, "a link")
    }

    /// The block that contains an offset: its place in the file, its first offset, and its size.
    fn block(&self, file: &Structure<'_>, offset: u64) -> Result<(u64, u64, u64), WeightsError> {
        let none = || file.damaged(self.at, "a link is not in its heap");
        if self.n_rows == 0 {
            return Ok((self.root, 0, self.max_direct.max(self.start_size)));
        }
        let (mut start, mut size) = (0u64, self.start_size);
        for row in 0..self.n_rows {
            // The blocks of the second row are as large as the first row's; from then on the size doubles with each
            // row.
            if row > 1 {
                size = size.checked_mul(2).ok_or_else(none)?;
            }
            let n_row = size.checked_mul(self.width).ok_or_else(none)?;
            let end = start.checked_add(n_row).ok_or_else(none)?;
            if offset < end {
                if size > self.max_direct {
                    return Err(file.unsupported(self.at, "a group has more names than are read"));
                }
                let nth = (offset - start) / size;
                let head = 4 + 1 + 8 + self.n_offset as u64;
                let at = self.root.checked_add(head + (row * self.width + nth) * 8).ok_or_else(none)?;
                let bytes = file.read(at, 8, "a heap of links")?;
                let block = Cursor(&bytes).long().filter(|&block| block != NOWHERE).ok_or_else(none)?;
                return Ok((block, start + nth * size, size));
            }
            start = end;
        }
        Err(none())
    }
}

/// Sizes in an index of names.
struct Index {
    heap: Heap,
    n_node: u64,
    n_record: usize,
    /// The size of a number of records, and of the total below a node, at each level.
    n_count: usize,
    n_below: Vec<usize>,
}

/// The links of a heap, by the index of their names.
fn dense(file: &Structure<'_>, heap: u64, at: u64, links: &mut Vec<Link>) -> Result<(), WeightsError> {
    let none = || file.damaged(at, "there is no index of a group's names");
    let bytes = file.read(at, 34, "the index of a group's names")?;
    let field = |from: usize, n: usize| Cursor(&bytes[from..]).number(n).unwrap_or_default();
    let (kind, n_node, n_record, depth) = (field(5, 1), field(6, 4), field(10, 2), field(12, 2));
    // A hash of the name precedes an identifier in the heap.
    if !bytes.starts_with(b"BTHD") || kind != 5 || n_record < 5 || n_node < 10 + n_record || depth > MAX_LEVELS.into() {
        return Err(none());
    }
    let enclosing = |greatest: u64| (greatest.max(1).ilog2() / 8 + 1) as usize;
    let greatest = (n_node - 10) / n_record;
    let (n_count, mut n_below, mut all) = (enclosing(greatest), vec![0], greatest);
    for level in 1..=depth as usize {
        let pointer = (8 + n_count + n_below[level - 1]) as u64;
        let n = n_node.checked_sub(10 + pointer).ok_or_else(none)? / (n_record + pointer);
        all = (n + 1).saturating_mul(all).saturating_add(n);
        n_below.push(enclosing(all));
    }
    let n_record = n_record as usize;
    let index = Index { heap: Heap::read(file, heap)?, n_node, n_record, n_count, n_below };
    match field(16, 8) {
        NOWHERE => Ok(()),
        root => index.node(file, root, field(24, 2), depth as usize, links),
    }
}

impl Index {
    fn node(
        &self,
        file: &Structure<'_>,
        at: u64,
        n: u64,
        depth: usize,
        links: &mut Vec<Link>,
    ) -> Result<(), WeightsError> {
        let none = || file.damaged(at, "there is no node of a group's names");
        let bytes = file.read(at, self.n_node, "a node of a group's names")?;
        let mark: &[u8] = if depth == 0 { b"BTLF" } else { b"BTIN" };
        let mut rest = Cursor(bytes.strip_prefix(mark).ok_or_else(none)?);
        rest.take(2);
        for _ in 0..n {
            let record = rest.take(self.n_record).ok_or_else(none)?;
            let bytes = self.heap.object(file, &record[4..])?;
            links.push(link(file, &bytes)?.ok_or_else(none)?);
        }
        if depth > 0 {
            for _ in 0..=n {
                let (child, n) = rest.long().zip(rest.number(self.n_count)).ok_or_else(none)?;
                rest.take(self.n_below[depth - 1]).ok_or_else(none)?;
                self.node(file, child, n, depth - 1, links)?;
            }
        }
        Ok(())
    }
}
