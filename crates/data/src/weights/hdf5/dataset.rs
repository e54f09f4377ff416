//! Datasets: dtype, dims, where the elements are, and their compression.
//!
//! Source: the HDF5 File Format Specification, version 3.0, sections IV.A.2.b, d, e, f, i, l and III.A.1 and VII.

use super::attributes;
use super::cursor::Cursor;
use super::header::{Message, NOWHERE, Structure};
use crate::weights::{WeightsDType, WeightsError};
use bf16scope_hlo::DType;

const DATASPACE: u16 = 0x01;
const DATATYPE: u16 = 0x03;
const OLD_FILL: u16 = 0x04;
const FILL: u16 = 0x05;
/// Names of other files in which the elements are.
const EXTERNAL: u16 = 0x07;
const LAYOUT: u16 = 0x08;
const FILTERS: u16 = 0x0b;

/// The name of HDF5's opaque class.
const OPAQUE: &str = "opaque bytes";

/// A dataset before its elements are read.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    pub dtype: WeightsDType,
    /// Bytes of an element.
    pub width: usize,
    pub is_big_endian: bool,
    pub dims: Vec<u64>,
    pub layout: Layout,
    pub filters: Vec<Filter>,
    /// The bytes of an element that was never written, if it is a number and the file defines it.
    pub fill: Option<Vec<u8>>,
}

/// Where elements are.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// In the header.
    Compact(Vec<u8>),
    /// In one place; `None` if nothing was written.
    Contiguous(Option<(u64, u64)>),
    /// In chunks of these dims, found by an index.
    Chunked { dims: Vec<u64>, index: ChunkIndex },
}

impl Layout {
    /// Whether no element was ever written. A part of the chunks may be missing otherwise.
    pub fn is_unwritten(&self) -> bool {
        match self {
            Layout::Compact(_) => false,
            Layout::Contiguous(place) => place.is_none(),
            Layout::Chunked { index, .. } => index.at() == NOWHERE,
        }
    }
}

/// The index of chunks.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkIndex {
    /// A B-tree of version 1.
    Tree(u64),
    /// A single chunk: its place, and its size if it is compressed.
    Single(u64, Option<u64>),
    /// Contiguous chunks.
    Implicit(u64),
    /// A fixed array.
    Array(u64),
}

impl ChunkIndex {
    fn at(self) -> u64 {
        match self {
            ChunkIndex::Tree(at) | ChunkIndex::Single(at, _) | ChunkIndex::Implicit(at) | ChunkIndex::Array(at) => at,
        }
    }
}

/// A filter of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Deflate,
    Shuffle,
    Fletcher32,
}

/// The dataset in an object's messages, if it is one.
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
    let is_shared = [LAYOUT, FILTERS].into_iter().filter_map(find).any(|message| message.is_shared);
    if space.is_shared || dtype.is_shared || is_shared {
        return Err(file.unsupported(at, format!("dataset `{name}` has a named type")));
    }
    if find(EXTERNAL).is_some() {
        let message =
            format!("dataset `{name}` has its elements in other files (external storage), which are not read");
        return Err(file.unsupported(at, message));
    }
    let wrong = |what: &str| file.damaged(at, format!("dataset `{name}` has {what} that cannot be read"));
    let dims = dims(&space.bytes).ok_or_else(|| wrong("dims"))?;
    let (mut dtype, width, is_big_endian) = element(&dtype.bytes).ok_or_else(|| wrong("a type"))?;
    // Keras writes bf16 as opaque bytes with an attribute that says so; h5py writes NumPy's `V2` the same way.
    if dtype == WeightsDType::Other(OPAQUE) && width == 2 {
        match attributes::text(file, messages, "dtype").as_deref() {
            None | Some("bfloat16") => dtype = WeightsDType::Array(DType::BF16),
            Some(_) => {}
        }
    }
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
    let fill = dtype.array().and_then(|_| fill(messages, width));
    Ok(Some(Dataset { dtype, width, is_big_endian, dims, layout, filters, fill }))
}

/// The bytes of an element that was never written: zeros if no value was chosen, `None` if it has none.
fn fill(messages: &[Message], width: usize) -> Option<Vec<u8>> {
    const NEVER: u8 = 1;
    let zeros = || Some(vec![0; width]);
    let value = |mut rest: Cursor<'_>| match rest.size(4)? {
        0 => zeros(),
        n => rest.take(n).filter(|value| value.len() == width).map(<[u8]>::to_vec),
    };
    let find = |kind: u16| messages.iter().find(|message| message.kind == kind);
    let Some(message) = find(FILL).or_else(|| find(OLD_FILL)) else { return zeros() };
    if message.is_shared {
        return None;
    }
    let mut rest = Cursor(&message.bytes);
    if message.kind == OLD_FILL {
        return value(rest);
    }
    let version = rest.byte()?;
    let (when, is_defined, has_value) = match version {
        1 | 2 => {
            let (_allocated, when, is_defined) = (rest.byte()?, rest.byte()?, rest.byte()? != 0);
            (when, is_defined, version == 1 || is_defined)
        }
        3 => {
            let flags = rest.byte()?;
            ((flags >> 2) & 3, flags & 0x10 == 0, flags & 0x20 != 0)
        }
        _ => return None,
    };
    match (is_defined && when != NEVER, has_value) {
        (false, _) => None,
        (true, true) => value(rest),
        (true, false) => zeros(),
    }
}

fn dims(bytes: &[u8]) -> Option<Vec<u64>> {
    let mut rest = Cursor(bytes);
    let (version, rank, _flags) = (rest.byte()?, rest.byte()?, rest.byte()?);
    match version {
        1 => drop(rest.take(5)?),
        // A null dataspace has no elements, and no dims.
        2 if rest.byte()? == 2 => return Some(vec![0]),
        2 => {}
        _ => return None,
    }
    (0..rank).map(|_| rest.long()).collect()
}

/// The dtype, the size of an element, and whether the most significant byte comes first.
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
        1 => match float(bits, width, rest)? {
            Some(dtype) => array(dtype),
            None => return other("floats of odd sizes"),
        },
        3 => (WeightsDType::Text, width, false),
        // Opaque bytes with a tag have another meaning than NumPy's void types.
        5 if rest.0.iter().all(|&byte| byte == 0) => return other(OPAQUE),
        6 => return other("compound"),
        8 if width == 1 && is_bool(bits, bytes[0] >> 4, rest) == Some(true) => {
            (WeightsDType::Array(DType::Pred), width, false)
        }
        8 => return other("enum"),
        9 => return other("texts of any length"),
        _ => return other("no numbers"),
    })
}

/// The layout of each float dtype: bits of the exponent and of the mantissa below it; the sign is on top.
const FLOATS: &[(DType, u8, u8)] =
    &[(DType::F16, 5, 10), (DType::BF16, 8, 7), (DType::F32, 8, 23), (DType::F64, 11, 52), (DType::F8E5M2, 5, 2)];

/// The dtype of a float, all of whose parts must be where IEEE has them: checking only the sizes of the float and of
/// its exponent would accept another bias, VAX's byte order, or other positions.
fn float(bits: u64, width: usize, mut rest: Cursor<'_>) -> Option<Option<DType>> {
    let (offset, precision) = (rest.short()?, rest.short()?);
    let [exponent_at, n_exponent, mantissa_at, n_mantissa] = [rest.byte()?, rest.byte()?, rest.byte()?, rest.byte()?];
    let bias = rest.word()?;
    // Bit 6 is VAX's order; bits 4 and 5 state how mantissas are normalised, 2 for an implied first bit.
    let (is_vax, normalised, sign_at) = (bits & 0x40 != 0, (bits >> 4) & 3, (bits >> 8) & 0xff);
    let is_ieee = |&&(_, exponent, mantissa): &&(DType, u8, u8)| {
        let n_bits = u16::from(1 + exponent + mantissa);
        8 * width == usize::from(n_bits)
            && (offset, precision) == (0, n_bits)
            && (exponent_at, n_exponent, mantissa_at, n_mantissa) == (mantissa, exponent, 0, mantissa)
            && bias == (1 << (exponent - 1)) - 1
            && (is_vax, normalised, sign_at) == (false, 2, u64::from(n_bits - 1))
    };
    Some(FLOATS.iter().find(is_ieee).map(|row| row.0))
}

/// Whether an enum of a byte is NumPy's bool in h5py's form: FALSE is 0 and TRUE is 1.
fn is_bool(bits: u64, version: u8, mut rest: Cursor<'_>) -> Option<bool> {
    // The base type of the enum: its class, its width, and the position of its bits.
    let class = rest.byte()? & 15;
    rest.take(3)?;
    let (width, offset, precision) = (rest.word()?, rest.short()?, rest.short()?);
    if bits & 0xffff != 2 || (class, width, offset, precision) != (0, 1, 0, 8) {
        return Some(false);
    }
    let mut names = Vec::new();
    for _ in 0..2 {
        let n = memchr::memchr(0, rest.0)?;
        // Before version 3, names are padded to eight bytes, including their NUL.
        names.push(&rest.take(if version < 3 { (n + 1).next_multiple_of(8) } else { n + 1 })?[..n]);
    }
    let values = rest.take(2)?;
    let named = [(names[0], values[0]), (names[1], values[1])];
    Some(named.contains(&(b"FALSE", 0)) && named.contains(&(b"TRUE", 1)))
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
                let message =
                    format!("dataset `{name}` can grow, and its blocks are found by an index that is not read");
                return Err(file.unsupported(at, message));
            }
            None => None,
        },
        (class, _) => {
            return Err(file.unsupported(at, format!("dataset `{name}` is of layout {class}; expected 0 to 2")));
        }
    })
}

/// The dims of a chunk, followed by the size of an element, which its type gives too.
fn chunked_3(mut rest: Cursor<'_>) -> Option<Layout> {
    let n = rest.byte()?.checked_sub(1)?;
    let tree = rest.long()?;
    let dims = (0..n).map(|_| rest.word().map(u64::from)).collect::<Option<_>>()?;
    Some(Layout::Chunked { dims, index: ChunkIndex::Tree(tree) })
}

/// `Some(None)` for an unsupported kind of index.
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
