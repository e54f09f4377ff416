//! Datasets: dtype, dims, where the elements are, and what packs them.
//!
//! Source: the HDF5 File Format Specification, version 3.0, sections IV.A.2.b, d, i, l and III.A.1 and VII.

use super::cursor::Cursor;
use super::header::{Message, NOWHERE, Structure};
use crate::weights::{WeightsDType, WeightsError};
use bf16scope_hlo::DType;

const DATASPACE: u16 = 0x01;
const DATATYPE: u16 = 0x03;
const LAYOUT: u16 = 0x08;
const FILTERS: u16 = 0x0b;

/// A dataset of which the elements are not read yet.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    pub dtype: WeightsDType,
    /// Bytes of an element.
    pub width: usize,
    pub is_big_endian: bool,
    pub dims: Vec<u64>,
    pub layout: Layout,
    pub filters: Vec<Filter>,
}

/// Where elements are.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// In the header.
    Compact(Vec<u8>),
    /// In one place; none where nothing was written.
    Contiguous(Option<(u64, u64)>),
    /// In blocks of these dims, found by an index.
    Chunked { dims: Vec<u64>, index: ChunkIndex },
}

/// How blocks are found.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkIndex {
    /// A B-tree of version 1.
    Tree(u64),
    /// There is one block: where, and its bytes if they are packed.
    Single(u64, Option<u64>),
    /// One after the other.
    Implicit(u64),
    /// An array of a size that does not change.
    Array(u64),
}

/// What packs a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Deflate,
    Shuffle,
    Fletcher32,
}

/// What an object says, if it is a dataset.
pub(super) fn read(
    file: &Structure<'_>,
    at: u64,
    name: &str,
    messages: &[Message],
) -> Result<Option<Dataset>, WeightsError> {
    let find = |kind: u16| messages.iter().find(|message| message.kind == kind);
    let (Some(space), Some(dtype), Some(layout)) = (find(DATASPACE), find(DATATYPE), find(LAYOUT)) else {
        return Ok(None);
    };
    if space.is_shared || dtype.is_shared {
        return Err(file.unsupported(at, format!("dataset `{name}` has a named type")));
    }
    let wrong = |what: &str| file.damaged(at, format!("dataset `{name}` has {what} that cannot be read"));
    let dims = dims(&space.bytes).ok_or_else(|| wrong("dims"))?;
    let (dtype, width, is_big_endian) = element(&dtype.bytes).ok_or_else(|| wrong("a type"))?;
    let layout = self::layout(file, at, name, &layout.bytes)?.ok_or_else(|| wrong("a place"))?;
    if let Layout::Chunked { dims: chunk, .. } = &layout
        && (chunk.len() != dims.len() || chunk.contains(&0))
    {
        return Err(wrong("blocks"));
    }
    let filters = match find(FILTERS) {
        None => Vec::new(),
        Some(message) => filters(file, at, name, &message.bytes)?,
    };
    Ok(Some(Dataset { dtype, width, is_big_endian, dims, layout, filters }))
}

fn dims(bytes: &[u8]) -> Option<Vec<u64>> {
    let mut rest = Cursor(bytes);
    let (version, rank, _flags) = (rest.byte()?, rest.byte()?, rest.byte()?);
    match version {
        1 => drop(rest.take(5)?),
        // A null dataspace has no elements, and no dims to say so.
        2 if rest.byte()? == 2 => return Some(vec![0]),
        2 => {}
        _ => return None,
    }
    (0..rank).map(|_| rest.long()).collect()
}

/// The dtype, the bytes of an element, and whether the most significant comes first.
fn element(bytes: &[u8]) -> Option<(WeightsDType, usize, bool)> {
    let mut rest = Cursor(bytes);
    let (class, bits) = (rest.byte()? & 15, rest.number(3)?);
    let width = rest.size(4).filter(|&width| width > 0)?;
    let is_big_endian = bits & 1 != 0;
    let array = |dtype| (WeightsDType::Array(dtype), width, is_big_endian);
    let other = |name| Some((WeightsDType::Other(name), width, false));
    Some(match class {
        0 => {
            let is_whole = rest.short()? == 0 && usize::from(rest.short()?) == 8 * width;
            match (width, bits & 8 != 0) {
                _ if !is_whole => return other("integers of odd sizes"),
                (1, true) => array(DType::S8),
                (2, true) => array(DType::S16),
                (4, true) => array(DType::S32),
                (8, true) => array(DType::S64),
                (1, false) => array(DType::U8),
                (2, false) => array(DType::U16),
                (4, false) => array(DType::U32),
                (8, false) => array(DType::U64),
                _ => return other("integers of odd sizes"),
            }
        }
        1 => {
            rest.take(5)?;
            let n_exponent = rest.byte()?;
            match (width, n_exponent) {
                (2, 5) => array(DType::F16),
                (2, 8) => array(DType::BF16),
                (4, 8) => array(DType::F32),
                (8, 11) => array(DType::F64),
                _ => return other("floats of odd sizes"),
            }
        }
        3 => (WeightsDType::Text, width, false),
        6 => return other("compound"),
        // NumPy's bool, as h5py has it: two names of a byte.
        8 if width == 1 && memchr::memmem::find(rest.0, b"FALSE\0").is_some() => {
            (WeightsDType::Array(DType::Pred), width, false)
        }
        8 => return other("enum"),
        9 => return other("texts of any length"),
        _ => return other("no numbers"),
    })
}

fn layout(file: &Structure<'_>, at: u64, name: &str, bytes: &[u8]) -> Result<Option<Layout>, WeightsError> {
    let mut rest = Cursor(bytes);
    let Some((version, class)) = rest.byte().zip(rest.byte()) else { return Ok(None) };
    if !(3..=4).contains(&version) {
        return Err(
            file.unsupported(at, format!("dataset `{name}` is laid out as version {version} has it; expected 3 or 4"))
        );
    }
    Ok(match (class, version) {
        (0, _) => rest.size(2).and_then(|n| rest.take(n)).map(|bytes| Layout::Compact(bytes.to_vec())),
        (1, _) => {
            rest.long().zip(rest.long()).map(|place| Layout::Contiguous(Some(place).filter(|place| place.0 != NOWHERE)))
        }
        (2, 3) => chunked_3(rest),
        (2, 4) => match chunked_4(rest) {
            Some(Some(layout)) => Some(layout),
            Some(None) => {
                let found = format!("dataset `{name}` can grow, and its blocks are found by an index that is not read");
                return Err(file.unsupported(at, found));
            }
            None => None,
        },
        (class, _) => {
            return Err(file.unsupported(at, format!("dataset `{name}` is of layout {class}; expected 0 to 2")));
        }
    })
}

/// The dims of a block, and after them the bytes of an element, which its type says.
fn chunked_3(mut rest: Cursor<'_>) -> Option<Layout> {
    let n = rest.byte()?.checked_sub(1)?;
    let tree = rest.long()?;
    let dims = (0..n).map(|_| rest.word().map(u64::from)).collect::<Option<_>>()?;
    Some(Layout::Chunked { dims, index: ChunkIndex::Tree(tree) })
}

/// `Some(None)` where there is an index of a kind that is not read.
fn chunked_4(mut rest: Cursor<'_>) -> Option<Option<Layout>> {
    let (flags, n) = (rest.byte()?, rest.byte()?.checked_sub(1)?);
    let n_bytes = rest.byte()?.into();
    let dims = (0..n).map(|_| rest.number(n_bytes)).collect::<Option<_>>()?;
    rest.number(n_bytes)?;
    let index = match rest.byte()? {
        1 if flags & 2 != 0 => {
            let (n_bytes, _mask) = (rest.long()?, rest.word()?);
            ChunkIndex::Single(rest.long()?, Some(n_bytes))
        }
        1 => ChunkIndex::Single(rest.long()?, None),
        2 => ChunkIndex::Implicit(rest.long()?),
        3 => {
            rest.byte()?;
            ChunkIndex::Array(rest.long()?)
        }
        _ => return Some(None),
    };
    Some(Some(Layout::Chunked { dims, index }))
}

fn filters(file: &Structure<'_>, at: u64, name: &str, bytes: &[u8]) -> Result<Vec<Filter>, WeightsError> {
    let ids = filter_ids(bytes)
        .ok_or_else(|| file.damaged(at, format!("dataset `{name}` has filters that cannot be read")))?;
    let filter = |id: u16| match id {
        1 => Ok(Filter::Deflate),
        2 => Ok(Filter::Shuffle),
        3 => Ok(Filter::Fletcher32),
        id => Err(file.unsupported(
            at,
            format!("dataset `{name}` is packed by filter {id}; expected gzip, shuffle or fletcher32"),
        )),
    };
    ids.into_iter().map(filter).collect()
}

fn filter_ids(bytes: &[u8]) -> Option<Vec<u16>> {
    let mut rest = Cursor(bytes);
    let (version, n) = (rest.byte()?, rest.byte()?);
    rest.take(if version == 1 { 6 } else { 0 })?;
    (0..n)
        .map(|_| {
            let id = rest.short()?;
            let n_name = if version == 1 || id >= 256 { rest.short()? } else { 0 };
            let (_flags, n_values) = (rest.short()?, usize::from(rest.short()?));
            let n_name = usize::from(n_name);
            rest.take(if version == 1 { n_name.next_multiple_of(8) } else { n_name })?;
            rest.take(4 * if version == 1 { n_values.next_multiple_of(2) } else { n_values })?;
            Some(id)
        })
        .collect()
}
