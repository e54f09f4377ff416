//! Parses and builds the beginning of a safetensors file: for weights, and for checkpoints, which are such files with a
//! hash.
//!
//! A file is the length of a header (u64, little-endian), the header in JSON, padded with spaces to 8 bytes, and the
//! arrays. The header's `__metadata__` holds texts of the writer; ours is under [`OURS`], and begins with the SHA-256
//! of the whole file, in which its 64 digits count as `0`.
//!
//! Source: the safetensors format description.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use bf16scope_hlo::{ArrayShape, DType};

/// The largest size of a header: names, shapes and settings of a hundred thousand arrays. Parsing takes some twenty
/// times as much memory.
pub const MAX_BYTES: u64 = 16 << 20;

/// The key of our own text in a file's metadata.
pub const OURS: &str = "bf16scope";

/// The bytes before the digits of the hash in the header, where our text is a JSON string.
const HASH_KEY: &[u8] = br#"\"sha256\":\""#;

/// The placeholder for the digits while hashing.
pub const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Our dtypes that safetensors has.
const DTYPES: &[(DType, Dtype)] = &[
    (DType::Pred, Dtype::BOOL),
    (DType::S8, Dtype::I8),
    (DType::S16, Dtype::I16),
    (DType::S32, Dtype::I32),
    (DType::S64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::F8E4M3FN, Dtype::F8_E4M3),
    (DType::F8E8M0FNU, Dtype::F8_E8M0),
];

/// Dtypes that the format has since versions of its library that this crate does not have: their names, ours, and one of as
/// many bits that the library knows.
const NEWER: &[(&str, DType, &str)] =
    &[("C64", DType::C64, "U64"), ("F8_E4M3FNUZ", DType::F8E4M3FNUZ, "U8"), ("F8_E5M2FNUZ", DType::F8E5M2FNUZ, "U8")];

/// Our dtype for one of theirs.
fn our_dtype(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|row| row.1 == dtype).map(|row| row.0)
}

/// A parsed header, of a file whose size matches its claims.
#[derive(Debug)]
pub struct Header {
    /// The length and the JSON: the bytes before the arrays.
    pub start: Vec<u8>,
    metadata: Metadata,
    /// The arrays whose dtypes are among [`NEWER`].
    newer: HashMap<String, DType>,
}

/// An array that a header describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderArray {
    /// Its name.
    pub name: String,
    /// Its dtype, or the file's name for one that we do not have.
    pub dtype: Result<DType, String>,
    /// Its dimensions.
    pub dims: Vec<u64>,
    /// Where its bytes are, counted from the end of the header.
    pub place: Range<u64>,
}

/// A part of a file, for the error about a truncated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePart {
    /// The first eight bytes, which hold the header's length.
    Length,
    /// The JSON.
    Header,
    /// The bytes after it.
    Arrays,
}

/// Why the beginning of a file cannot be parsed. `E` is the reader's error.
#[derive(Debug)]
#[non_exhaustive]
pub enum HeaderError<E> {
    /// Reading failed.
    Read(E),
    /// The file ends before byte `end`, the end of this part.
    Cut {
        /// The part.
        part: FilePart,
        /// Where it ends, in bytes from the file's start.
        end: u64,
    },
    /// A header larger than the limit; and how the file begins.
    TooLarge {
        /// The length that the file claims for it.
        n_bytes: u64,
        /// The file's first bytes.
        first: [u8; 8],
    },
    /// A header that does not begin like a JSON object.
    NoObject,
    /// The JSON is damaged, or does not describe arrays.
    Json(String),
    /// A dtype that the format did not have when this was written.
    DType {
        /// The array.
        name: String,
        /// The file's name for its dtype.
        dtype: String,
    },
    /// The file continues after its last array, which ends at byte `end`.
    Longer {
        /// The end of the last array, in bytes from the file's start.
        end: u64,
    },
}

impl Header {
    /// Reads the header of a file of `n_bytes`; each call of `next` returns the next bytes of the requested number.
    /// Never requests bytes that the file does not have.
    pub fn read<E>(n_bytes: u64, mut next: impl FnMut(usize) -> Result<Vec<u8>, E>) -> Result<Header, HeaderError<E>> {
        if n_bytes < 8 {
            return Err(HeaderError::Cut { part: FilePart::Length, end: 8 });
        }
        let mut start = next(8).map_err(HeaderError::Read)?;
        let first: [u8; 8] = start[..].try_into().expect("as many as were asked for");
        let length = u64::from_le_bytes(first);
        if length > MAX_BYTES {
            return Err(HeaderError::TooLarge { n_bytes: length, first });
        }
        start.extend(next(length.min(n_bytes - 8) as usize).map_err(HeaderError::Read)?);
        if start.get(8).is_some_and(|&first| first != b'{') {
            return Err(HeaderError::NoObject);
        }
        if length > n_bytes - 8 {
            return Err(HeaderError::Cut { part: FilePart::Header, end: length + 8 });
        }
        // A reader would take the last of two, and drop the first.
        if let Some(key) = repeated_key(&start[8..]) {
            return Err(HeaderError::Json(format!("its key `{}` is there twice; expected once", key.escape_debug())));
        }
        let (metadata, newer) = match serde_json::from_slice::<Metadata>(&start[8..]) {
            Ok(metadata) => (metadata, HashMap::new()),
            Err(error) => with_newer(&start[8..]).unwrap_or_else(|| Err(HeaderError::Json(error.to_string())))?,
        };
        let end = (start.len() as u64).saturating_add(metadata.data_len() as u64);
        match n_bytes {
            _ if n_bytes < end => Err(HeaderError::Cut { part: FilePart::Arrays, end }),
            _ if n_bytes > end => Err(HeaderError::Longer { end }),
            _ => Ok(Header { start, metadata, newer }),
        }
    }

    /// The arrays, in the order of their bytes.
    pub fn arrays(&self) -> Vec<HeaderArray> {
        let array = |name: String| {
            let info = self.metadata.info(&name)?;
            let newer = self.newer.get(&name).copied();
            let dtype = newer.or(our_dtype(info.dtype)).ok_or_else(|| format!("{:?}", info.dtype));
            let dims = info.shape.iter().map(|&dim| dim as u64).collect();
            let place = info.data_offsets.0 as u64..info.data_offsets.1 as u64;
            Some(HeaderArray { name, dtype, dims, place })
        };
        self.metadata.offset_keys().into_iter().filter_map(array).collect()
    }

    /// Our own text, if the file is one of ours.
    pub fn our_text(&self) -> Option<&String> {
        self.metadata.metadata().as_ref().and_then(|texts| texts.get(OURS))
    }
}

/// A header as the library reads it, and the arrays whose dtype it does not know.
type Newer = (Metadata, HashMap<String, DType>);

/// A header in which arrays have dtypes that the library does not know, and these arrays; `None` if that is not what is
/// wrong with it.
fn with_newer<E>(json: &[u8]) -> Option<Result<Newer, HeaderError<E>>> {
    let mut whole: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json).ok()?;
    let mut newer = HashMap::new();
    for (name, array) in whole.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let Some(serde_json::Value::String(dtype)) = array.get_mut("dtype") else { continue };
        if serde_json::from_value::<Dtype>(dtype.as_str().into()).is_ok() {
            continue;
        }
        let Some((_, ours, alike)) = NEWER.iter().find(|row| row.0 == dtype.as_str()) else {
            return Some(Err(HeaderError::DType { name: name.clone(), dtype: dtype.clone() }));
        };
        newer.insert(name.clone(), *ours);
        *dtype = alike.to_string();
    }
    if newer.is_empty() {
        return None;
    }
    let metadata = serde_json::from_value(whole.into());
    Some(metadata.map(|metadata| (metadata, newer)).map_err(|error| HeaderError::Json(error.to_string())))
}

/// The first key that occurs twice in an object of a JSON text, at any depth. `None` also for invalid JSON.
pub(crate) fn repeated_key(json: &[u8]) -> Option<String> {
    let mut repeated = None;
    let mut text = serde_json::Deserializer::from_slice(json);
    // Invalid JSON is reported by its reader.
    drop(Unrepeated { repeated: &mut repeated }.deserialize(&mut text));
    repeated
}

/// A JSON value; only its keys are examined.
struct Unrepeated<'a> {
    repeated: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Unrepeated<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unrepeated<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Unrepeated { repeated: self.repeated })?;
            if let Some(key) = keys.replace(key)
                && self.repeated.is_none()
            {
                *self.repeated = Some(key);
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Unrepeated { repeated: self.repeated })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Where the 64 digits of the hash are in the bytes before the arrays.
pub fn hash_place(start: &[u8]) -> Option<Range<usize>> {
    let from = memchr::memmem::find(start, HASH_KEY)? + HASH_KEY.len();
    let place = from..from + NO_HASH.len();
    start.get(place.clone()).map(|_| place)
}

/// Why a header cannot be built for some arrays.
#[derive(Debug)]
#[non_exhaustive]
pub enum MakeError {
    /// The dtype of the array with this number does not exist in safetensors.
    NoDType(usize),
    /// The arrays violate a rule of the format.
    Rule(String),
}

/// Builds the bytes before some arrays, and returns the order in which the arrays follow.
pub fn make(
    arrays: &[(&str, &ArrayShape)],
    texts: HashMap<String, String>,
) -> Result<(Vec<u8>, Vec<usize>), MakeError> {
    let mut order = Vec::with_capacity(arrays.len());
    for (idx, &(name, shape)) in arrays.iter().enumerate() {
        let dtype = DTYPES.iter().find(|row| row.0 == shape.dtype).ok_or(MakeError::NoDType(idx))?.1;
        order.push((dtype, name, idx));
    }
    // Larger alignments first, as in the safetensors library.
    order.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(right.1)));
    let mut n_bytes = 0;
    let infos = order.iter().map(|&(dtype, name, idx)| {
        let shape = arrays[idx].1;
        let data_offsets = (n_bytes, n_bytes + shape.n_bytes() as usize);
        n_bytes = data_offsets.1;
        let info = TensorInfo { dtype, shape: shape.dims.iter().map(|&dim| dim as usize).collect(), data_offsets };
        (name.to_string(), info)
    });
    let rule = |error: SafeTensorError| MakeError::Rule(error.to_string());
    let metadata = Metadata::new(Some(texts), infos.collect()).map_err(rule)?;
    let mut json = serde_json::to_vec(&metadata).expect("names and numbers have a JSON form");
    json.resize(json.len().next_multiple_of(8), b' ');
    let start = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
    Ok((start, order.into_iter().map(|(.., idx)| idx).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_correspond_one_to_one() {
        for (idx, (ours, theirs)) in DTYPES.iter().enumerate() {
            assert_eq!(our_dtype(*theirs), Some(*ours));
            assert!(DTYPES[..idx].iter().all(|row| row.0 != *ours), "{ours}");
            assert_eq!(theirs.bitsize(), 8 * ours.n_bytes());
        }
        for (name, ours, alike) in NEWER {
            assert!(serde_json::from_value::<Dtype>((*name).into()).is_err(), "{name} is known now");
            let alike: Dtype = serde_json::from_value((*alike).into()).unwrap();
            assert_eq!(alike.bitsize(), 8 * ours.n_bytes());
        }
    }
}
