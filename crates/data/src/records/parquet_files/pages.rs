//! The pages of a column, checked before they are decoded.
//!
//! A page's header states its bytes and values. Both are bounded, and any count from which one of the crate's decoders
//! allocates is compared with the bytes present. A page's CRC-32 is verified if it has one. The crate's own page reader
//! allocates what headers claim, which is why it is not used.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{CompressionCodec as Codec, Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use prost::bytes::Bytes;

use super::codec;
use super::thrift::{self, Fault, Field, Struct};
use bf16scope_files::read_exact_at;

/// The largest size of a page, compressed or not: writers make pages of a megabyte, and put hundreds of large images in
/// one.
const MAX_PAGE: i64 = 1 << 30;
/// The largest size of a page header: its statistics may hold two values.
const MAX_HEAD: usize = 16 << 20;
/// The largest number of values in list pages between two calls: 64 rows of a million numbers.
const MAX_VALUES: u64 = 1 << 26;

/// The encoding-independent type of a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) codec: Codec,
    pub(super) physical: Type,
    /// Bytes of a fixed-length value.
    pub(super) width: usize,
    pub(super) max_rep: i16,
    pub(super) max_def: i16,
}

/// Reads the pages of a column chunk.
pub(super) struct Pages {
    file: Arc<File>,
    shape: Shape,
    /// The offset of the next header, and of the chunk's end.
    at: u64,
    end: u64,
    has_dictionary: bool,
    next: Option<Head>,
    /// Values in the pages returned since this was last reset to zero.
    n_values: Arc<AtomicU64>,
}

struct Head {
    n_bytes: u64,
    packed: u64,
    unpacked: usize,
    crc: Option<u32>,
    kind: PageKind,
}

enum PageKind {
    Dictionary { n_values: u32, encoding: Encoding },
    V1 { n_values: u32, encoding: Encoding, def_levels: Encoding, rep_levels: Encoding },
    V2 { n_values: u32, n_nulls: u32, n_rows: u32, encoding: Encoding, levels: [u32; 2], is_packed: bool },
    Other,
}

fn wrong<T>(message: impl Into<String>) -> Result<T> {
    Err(ParquetError::General(message.into()))
}

impl Pages {
    pub(super) fn new(file: Arc<File>, [start, end]: [u64; 2], shape: Shape, total: Arc<AtomicU64>) -> Pages {
        Pages { file, shape, at: start, end, has_dictionary: false, next: None, n_values: total }
    }

    fn read(&self, at: u64, n_bytes: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; n_bytes];
        match read_exact_at(&self.file, &mut bytes, at) {
            Ok(()) => Ok(bytes),
            Err(error) => wrong(format!("cannot be read: {error}")),
        }
    }

    /// Reads the header of the next page that has values.
    fn look(&mut self) -> Result<()> {
        while self.next.is_none() && self.at < self.end {
            let head = self.head()?;
            match head.kind {
                PageKind::Other => self.at += head.n_bytes + head.packed,
                _ => self.next = Some(head),
            }
        }
        Ok(())
    }

    fn head(&self) -> Result<Head> {
        let left = self.end - self.at;
        let mut n_bytes = 4096;
        let (fields, n_bytes) = loop {
            let bytes = self.read(self.at, n_bytes.min(left as usize))?;
            match thrift::read(&bytes) {
                Ok(header) => break header,
                Err(Fault::Short) if (n_bytes as u64) < left && n_bytes < MAX_HEAD => n_bytes *= 8,
                Err(_) => return wrong(format!("no head of a page at byte {}", self.at)),
            }
        };
        let head = Head::from_fields(&fields, n_bytes as u64)?;
        if head.n_bytes + head.packed > left {
            return wrong(format!(
                "the page at byte {} has {} bytes, and its column ends after {left}",
                self.at,
                head.n_bytes + head.packed
            ));
        }
        Ok(head)
    }

    fn page(&mut self, head: Head) -> Result<Page> {
        let Shape { codec, .. } = self.shape;
        let packed = self.read(self.at + head.n_bytes, head.packed as usize)?;
        if let Some(crc) = head.crc {
            let mut measured = flate2::Crc::new();
            measured.update(&packed);
            if measured.sum() != crc {
                let (at, measured) = (self.at, measured.sum());
                return wrong(format!(
                    "the checksum of the page at byte {at} is {measured:#010x}; expected {crc:#010x}"
                ));
            }
        }
        self.at += head.n_bytes + head.packed;
        let unpack = |packed: &[u8], n| codec::unpack(codec, packed, n).map_err(ParquetError::General);
        Ok(match head.kind {
            PageKind::Dictionary { n_values, encoding } => {
                if std::mem::replace(&mut self.has_dictionary, true) {
                    return wrong("two dictionaries; expected one");
                }
                let buf = Bytes::from(unpack(&packed, head.unpacked)?);
                self.check_dictionary(n_values, buf.len())?;
                Page::DictionaryPage { buf, num_values: n_values, encoding, is_sorted: false }
            }
            PageKind::V1 { n_values, encoding, def_levels, rep_levels } => {
                let buf = Bytes::from(unpack(&packed, head.unpacked)?);
                let levels = v1_levels(&buf, &[(self.shape.max_rep, rep_levels), (self.shape.max_def, def_levels)])?;
                self.check_values(n_values, encoding, &buf[levels..])?;
                let (def_level_encoding, rep_level_encoding) = (def_levels, rep_levels);
                Page::DataPage {
                    buf,
                    num_values: n_values,
                    encoding,
                    def_level_encoding,
                    rep_level_encoding,
                    statistics: None,
                }
            }
            PageKind::V2 { n_values, n_nulls, n_rows, encoding, levels: [rep, def], is_packed } => {
                let levels = rep as usize + def as usize;
                if levels > packed.len() || levels > head.unpacked {
                    return wrong(format!("a page of {} bytes with {levels} of levels", packed.len()));
                }
                let mut buf = packed[..levels].to_vec();
                match is_packed {
                    true => buf.extend(unpack(&packed[levels..], head.unpacked - levels)?),
                    false => buf.extend(&packed[levels..]),
                }
                self.check_values(n_values, encoding, &buf[levels..])?;
                Page::DataPageV2 {
                    buf: buf.into(),
                    num_values: n_values,
                    encoding,
                    num_nulls: n_nulls,
                    num_rows: n_rows,
                    def_levels_byte_len: def,
                    rep_levels_byte_len: rep,
                    is_compressed: is_packed,
                    statistics: None,
                }
            }
            PageKind::Other => return wrong("a page without values"),
        })
    }

    /// Every value of a dictionary takes space: the decoder allocates as many as the header states.
    fn check_dictionary(&self, n_values: u32, n_bytes: usize) -> Result<()> {
        let each = match self.shape.physical {
            Type::BOOLEAN => return wrong("a dictionary of bools; expected none"),
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => self.shape.width.max(1),
        };
        match (n_values as usize).checked_mul(each).is_some_and(|needed| needed <= n_bytes) {
            true => Ok(()),
            false => wrong(format!("a dictionary of {n_values} values in {n_bytes} bytes")),
        }
    }

    fn check_values(&self, n_values: u32, encoding: Encoding, values: &[u8]) -> Result<()> {
        let total = self.n_values.fetch_add(u64::from(n_values), Ordering::Relaxed) + u64::from(n_values);
        if self.shape.max_rep > 0 && total > MAX_VALUES {
            return wrong(format!("{total} values in the lists of some rows; expected at most {MAX_VALUES}"));
        }
        let is_one = match encoding {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if !self.has_dictionary => {
                return wrong("values by numbers of a dictionary, and no dictionary");
            }
            Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY => true,
            Encoding::DELTA_BYTE_ARRAY => false,
            _ => return Ok(()),
        };
        // The decoders produce as many numbers as these headers state.
        let bounded = |values: &[u8]| match delta_end(values) {
            Some((n, end)) if n <= u64::from(n_values).min(MAX_VALUES) => Ok(end),
            Some((n, _)) => wrong(format!("{n} numbers in a page of {n_values} values")),
            None => wrong("numbers by their differences that end early"),
        };
        let end = bounded(values)?;
        if !is_one {
            bounded(&values[end..])?;
        }
        Ok(())
    }
}

impl Head {
    fn from_fields(fields: &Struct, n_bytes: u64) -> Result<Head> {
        let size = |id: i16| match fields.get(&id) {
            Some(Field::Int(n)) if (0..=MAX_PAGE).contains(n) => Ok(*n as u64),
            Some(Field::Int(n)) => wrong(format!("a page of {n} bytes; expected at most {MAX_PAGE}")),
            _ => wrong("a page that does not say its size"),
        };
        let crc = if let Some(Field::Int(crc)) = fields.get(&4) { Some(*crc as u32) } else { None };
        let (packed, unpacked) = (size(3)?, size(2)? as usize);
        let inner = |id: i16| match fields.get(&id) {
            Some(Field::Struct(inner)) => Ok(inner),
            _ => wrong("a page without its head's second part"),
        };
        let kind = match fields.get(&1) {
            Some(Field::Int(0)) => {
                let inner = inner(5)?;
                let levels = |id| {
                    encoding(inner, id)
                        .or_else(|error| if inner.contains_key(&id) { Err(error) } else { Ok(Encoding::RLE) })
                };
                PageKind::V1 {
                    n_values: count(inner, 1)?,
                    encoding: encoding(inner, 2)?,
                    def_levels: levels(3)?,
                    rep_levels: levels(4)?,
                }
            }
            Some(Field::Int(1)) => PageKind::Other,
            Some(Field::Int(2)) => {
                let inner = inner(7)?;
                PageKind::Dictionary { n_values: count(inner, 1)?, encoding: encoding(inner, 2)? }
            }
            Some(Field::Int(3)) => {
                let inner = inner(8)?;
                PageKind::V2 {
                    n_values: count(inner, 1)?,
                    n_nulls: count(inner, 2)?,
                    n_rows: count(inner, 3)?,
                    encoding: encoding(inner, 4)?,
                    levels: [count(inner, 6)?, count(inner, 5)?],
                    is_packed: inner.get(&7) != Some(&Field::Bool(false)),
                }
            }
            _ => return wrong("a page of no known kind"),
        };
        Ok(Head { n_bytes, packed, unpacked, crc, kind })
    }
}

fn count(fields: &Struct, id: i16) -> Result<u32> {
    match fields.get(&id) {
        Some(Field::Int(n)) if (0..=i64::from(i32::MAX)).contains(n) => Ok(*n as u32),
        _ => wrong("a page whose head lacks a number, or has a negative one"),
    }
}

/// Encodings by their numbers in `parquet.thrift`.
fn encoding(fields: &Struct, id: i16) -> Result<Encoding> {
    Ok(match fields.get(&id) {
        Some(Field::Int(0)) => Encoding::PLAIN,
        Some(Field::Int(2)) => Encoding::PLAIN_DICTIONARY,
        Some(Field::Int(3)) => Encoding::RLE,
        Some(Field::Int(5)) => Encoding::DELTA_BINARY_PACKED,
        Some(Field::Int(6)) => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Some(Field::Int(7)) => Encoding::DELTA_BYTE_ARRAY,
        Some(Field::Int(8)) => Encoding::RLE_DICTIONARY,
        Some(Field::Int(9)) => Encoding::BYTE_STREAM_SPLIT,
        Some(Field::Int(n)) => {
            return wrong(format!("values of encoding {n}; expected one of Parquet's from 0 to 9, without 1 and 4"));
        }
        _ => return wrong("a page that does not say its encoding"),
    })
}

/// Where the values begin in a page that stores its levels first, each with its length.
fn v1_levels(page: &[u8], levels: &[(i16, Encoding)]) -> Result<usize> {
    let mut at = 0usize;
    for &(max, encoding) in levels {
        if max == 0 {
            continue;
        }
        if encoding != Encoding::RLE {
            return wrong(format!("levels of encoding {encoding}; expected RLE"));
        }
        let length = page.get(at..).and_then(|rest| rest.first_chunk::<4>()).map(|n| u32::from_le_bytes(*n) as usize);
        let end = length.and_then(|length| (at + 4).checked_add(length)).filter(|end| *end <= page.len());
        let Some(end) = end else { return wrong("a page that ends within its levels") };
        at = end;
    }
    Ok(at)
}

/// The number of values in a block of `DELTA_BINARY_PACKED`, and where the block ends.
///
/// Source: `Encodings.md` of Apache Parquet.
fn delta_end(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut at = 0;
    let varint = |at: &mut usize| {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *bytes.get(*at)?;
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    };
    let (block, minis, n) = (varint(&mut at)?, varint(&mut at)?, varint(&mut at)?);
    let _first = varint(&mut at)?;
    if block == 0 || minis == 0 || block % minis != 0 || block > 1 << 20 {
        return None;
    }
    let each = block / minis;
    let mut left = n.saturating_sub(1);
    while left > 0 {
        let _least = varint(&mut at)?;
        let widths = bytes.get(at..at.checked_add(minis as usize)?)?;
        at += minis as usize;
        for &width in widths {
            if left == 0 {
                break;
            }
            at = at.checked_add(usize::try_from(each * u64::from(width) / 8).ok()?)?;
            left = left.saturating_sub(each);
        }
    }
    (at <= bytes.len()).then_some((n, at))
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.look()?;
        match self.next.take() {
            Some(head) => self.page(head).map(Some),
            None => Ok(None),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.look()?;
        let metadata = |head: &Head| match head.kind {
            PageKind::V1 { n_values, .. } => {
                PageMetadata { num_rows: None, num_levels: Some(n_values as usize), is_dict: false }
            }
            PageKind::V2 { n_values, n_rows, .. } => {
                PageMetadata { num_rows: Some(n_rows as usize), num_levels: Some(n_values as usize), is_dict: false }
            }
            PageKind::Dictionary { .. } | PageKind::Other => {
                PageMetadata { num_rows: None, num_levels: None, is_dict: true }
            }
        };
        Ok(self.next.as_ref().map(metadata))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.look()?;
        if let Some(head) = self.next.take() {
            self.at += head.n_bytes + head.packed;
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_by_differences_are_measured_without_making_them() {
        // `Encodings.md`: 1, 2, 3, 4, 5 in blocks of 128 and 4 miniblocks: the differences are all 1, and take no bits.
        let bytes = [0x80, 0x01, 4, 5, 2, 2, 0, 0, 0, 0, 0xff];
        assert_eq!(delta_end(&bytes), Some((5, 10)));
        // 2^40 values in the same number of bytes.
        let bytes = [0x80, 0x01, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 2, 2, 0, 0, 0, 0];
        assert_eq!(delta_end(&bytes), None);
        assert_eq!(delta_end(&[0x80, 0x01, 0, 5, 2]), None);
    }

    #[test]
    fn heads_that_claim_too_much_are_refused() {
        let message = |changed: &[(i16, Field)], inner: &[(i16, Field)]| {
            let second = [(1, Field::Int(9)), (2, Field::Int(0)), (3, Field::Int(3)), (4, Field::Int(3))];
            let mut second = Struct::from(second);
            second.extend(inner.iter().cloned());
            let fields = [(1, Field::Int(0)), (2, Field::Int(99)), (3, Field::Int(50)), (5, Field::Struct(second))];
            let mut fields = Struct::from(fields);
            fields.extend(changed.iter().cloned());
            Head::from_fields(&fields, 20).map(|head| head.unpacked).map_err(|error| error.to_string())
        };
        assert_eq!(message(&[], &[]), Ok(99));
        let error = |message: &str| Err(format!("Parquet error: {message}"));
        for id in [2, 3] {
            for n in [(1 << 30) + 1, i64::from(i32::MAX), -1] {
                let expected = error(&format!("a page of {n} bytes; expected at most 1073741824"));
                assert_eq!(message(&[(id, Field::Int(n))], &[]), expected);
            }
            assert_eq!(message(&[(id, Field::Other)], &[]), error("a page that does not say its size"));
        }
        assert_eq!(message(&[(1, Field::Int(7))], &[]), error("a page of no known kind"));
        let lacks = "a page whose head lacks a number, or has a negative one";
        assert_eq!(message(&[], &[(1, Field::Int(-1))]), error(lacks));
        let encoding = "values of encoding 4; expected one of Parquet's from 0 to 9, without 1 and 4";
        assert_eq!(message(&[], &[(2, Field::Int(4))]), error(encoding));
    }

    /// Counts from which a decoder allocates are compared with the bytes present.
    #[test]
    fn values_that_are_not_there_are_refused() {
        let shape = Shape { codec: Codec::UNCOMPRESSED, physical: Type::BYTE_ARRAY, width: 0, max_rep: 1, max_def: 1 };
        let file = Arc::new(tempfile::tempfile().unwrap());
        let pages = Pages::new(file, [0, 0], shape, Arc::default());
        assert!(pages.check_dictionary(25, 100).is_ok());
        let error = pages.check_dictionary(u32::MAX, 100).unwrap_err().to_string();
        assert_eq!(error, "Parquet error: a dictionary of 4294967295 values in 100 bytes");
        assert!(pages.check_values(1 << 25, Encoding::PLAIN, &[]).is_ok());
        let error = pages.check_values((1 << 25) + 1, Encoding::PLAIN, &[]).unwrap_err().to_string();
        assert_eq!(error, "Parquet error: 67108865 values in the lists of some rows; expected at most 67108864");
        pages.n_values.store(0, Ordering::Relaxed);
        let error = pages.check_values(3, Encoding::RLE_DICTIONARY, &[]).unwrap_err().to_string();
        assert_eq!(error, "Parquet error: values by numbers of a dictionary, and no dictionary");
        let five = [0x80, 0x01, 4, 5, 2, 2, 0, 0, 0, 0];
        assert!(pages.check_values(5, Encoding::DELTA_LENGTH_BYTE_ARRAY, &five).is_ok());
        let error = pages.check_values(4, Encoding::DELTA_LENGTH_BYTE_ARRAY, &five).unwrap_err().to_string();
        assert_eq!(error, "Parquet error: 5 numbers in a page of 4 values");
        let error = pages.check_values(5, Encoding::DELTA_BYTE_ARRAY, &five).unwrap_err().to_string();
        assert_eq!(error, "Parquet error: numbers by their differences that end early");
    }
}
