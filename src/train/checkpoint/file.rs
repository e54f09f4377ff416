//! The bytes of a checkpoint: a safetensors file with a hash over all of it.
//!
//! The file is 8 bytes of header length, a JSON header padded with spaces, and the arrays. Our own data are one JSON text
//! under the key `bf16scope` of the header's `__metadata__`, so other tools can read the arrays. That text begins with the
//! SHA-256 of the whole file, in which these 64 digits count as `0`: length, header, padding and arrays are all covered.
//!
//! Neither side holds the file in memory beside the arrays: they are hashed and written, or read and hashed, one after
//! the other. What a reader takes is bounded by the length of the file, whatever its header says.
//!
//! SHA-256, because the crate is a dependency already, because CPUs have instructions for it, so that a disk is slower, and
//! because anyone can check it with `sha256sum`.

use super::{Checkpoint, CheckpointError, DataIdentity, Fault, FunctionHash, HostArray, Position, Settings, VERSION};
use crate::hlo::{ArrayShape, DType};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

/// The key of our data in the file's metadata.
pub(super) const KEY: &str = "bf16scope";

/// The header's bytes at most: names, shapes and settings of a hundred thousand variables. Parsing takes some twenty times
/// as much memory.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// What precedes the digits of the hash in the header, where our text is a string in JSON.
const HASH_KEY: &[u8] = br#"\"sha256\":\""#;

/// What the digits count as while the hash is taken.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The JSON text under [`KEY`]. The hash comes first: so it is found before anything that a user named.
#[derive(Serialize, Deserialize)]
struct Header {
    sha256: String,
    version: u32,
    position: Position,
    settings: Settings,
    function: Option<FunctionHash>,
    data: Option<DataIdentity>,
}

/// What decides how the rest is read.
#[derive(Deserialize)]
struct VersionOnly {
    #[serde(default)]
    sha256: Option<String>,
    version: u32,
}

/// A checkpoint ready to be written.
pub(super) struct Encoded<'a> {
    /// Length and header.
    start: Vec<u8>,
    /// In the order of the file.
    arrays: Vec<&'a HostArray>,
}

impl Encoded<'_> {
    pub fn n_bytes(&self) -> usize {
        self.start.len() + self.arrays.iter().map(|array| array.bytes.len()).sum::<usize>()
    }

    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.start)?;
        self.arrays.iter().try_for_each(|array| out.write_all(&array.bytes))
    }
}

/// Makes the header, and hashes everything.
pub(super) fn encode<'a>(path: &Path, checkpoint: &'a Checkpoint) -> Result<Encoded<'a>, CheckpointError> {
    let unsaved = |fault| CheckpointError::Unsaved { path: path.to_path_buf(), fault };
    checkpoint.check().map_err(unsaved)?;
    let mut arrays = Vec::with_capacity(checkpoint.variables.len());
    for (name, array) in &checkpoint.variables {
        let dtype = array.shape.dtype;
        let unsaveable = || CheckpointError::Unsaveable { path: path.to_path_buf(), name: name.clone(), dtype };
        arrays.push((their_dtype(dtype).ok_or_else(unsaveable)?, name, array));
    }
    // The most aligned first, as the safetensors library orders them.
    arrays.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(right.1)));
    let mut n_bytes = 0;
    let infos = arrays.iter().map(|(dtype, name, array)| {
        let data_offsets = (n_bytes, n_bytes + array.bytes.len());
        n_bytes = data_offsets.1;
        let shape = array.shape.dims.iter().map(|&dim| dim as usize).collect();
        ((*name).clone(), TensorInfo { dtype: *dtype, shape, data_offsets })
    });
    let header = Header {
        sha256: NO_HASH.to_string(),
        version: VERSION,
        position: checkpoint.position.clone(),
        settings: checkpoint.settings.clone(),
        function: checkpoint.function.clone(),
        data: checkpoint.data.clone(),
    };
    let text = serde_json::to_string(&header).expect("numbers and text have a JSON form");
    let metadata = Metadata::new(Some(HashMap::from([(KEY.to_string(), text)])), infos.collect());
    let metadata = metadata.expect("arrays that were checked follow one another");
    let mut json = serde_json::to_vec(&metadata).expect("names and numbers have a JSON form");
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() as u64 > MAX_HEADER_BYTES {
        return Err(unsaved(Fault::Header { measured: json.len(), most: MAX_HEADER_BYTES }));
    }
    let mut start = (json.len() as u64).to_le_bytes().to_vec();
    start.extend(json);
    let mut sha = Sha256::new();
    sha.update(&start);
    arrays.iter().for_each(|(.., array)| sha.update(&array.bytes));
    let place = hash_place(&start).expect("the header was made with a place for it");
    start[place].copy_from_slice(crate::files::hex(sha.finalize()).as_bytes());
    Ok(Encoded { start, arrays: arrays.into_iter().map(|(.., array)| array).collect() })
}

/// Reads a checkpoint of `n_bytes` from `reader`; `path` is named in errors only.
pub(super) fn read(path: &Path, reader: &mut impl Read, n_bytes: u64) -> Result<Checkpoint, CheckpointError> {
    let path_buf = || path.to_path_buf();
    let failed = |source| CheckpointError::Read { path: path_buf(), source };
    let foreign = |why: String| CheckpointError::Foreign { path: path_buf(), why };
    let mut start = read_start(path, reader, n_bytes)?;
    let metadata: Metadata = serde_json::from_slice(&start[8..])
        .map_err(|error| CheckpointError::NotSafetensors { path: path_buf(), why: error.to_string() })?;
    let expected = start.len() as u64 + metadata.data_len() as u64;
    if n_bytes < expected {
        let expected = format!("expected {expected}");
        return Err(CheckpointError::Truncated { path: path_buf(), n_bytes, expected });
    }
    if n_bytes > expected {
        let why = format!("it has {n_bytes} bytes, its header says {expected}");
        return Err(CheckpointError::NotSafetensors { path: path_buf(), why });
    }
    let text = metadata.metadata().as_ref().and_then(|texts| texts.get(KEY));
    let text = text.ok_or_else(|| foreign(format!("its metadata has no key `{KEY}`")))?;
    let version: VersionOnly = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
    let other_version = || Err(CheckpointError::Version { path: path_buf(), found: version.version });
    let (Some(hash), Some(place)) = (version.sha256.as_ref(), hash_place(&start)) else {
        return match version.version {
            VERSION => Err(foreign("its metadata has no sha256".to_string())),
            _ => other_version(),
        };
    };
    let mut sha = Sha256::new();
    start[place].copy_from_slice(NO_HASH.as_bytes());
    sha.update(&start);
    let mut variables = BTreeMap::new();
    for name in metadata.offset_keys() {
        let info = metadata.info(&name).expect("its own names");
        let dtype = our_dtype(info.dtype).ok_or_else(|| foreign(format!("{name} is {:?}", info.dtype)))?;
        let dims: Result<Vec<i64>, _> = info.shape.iter().map(|&dim| i64::try_from(dim)).collect();
        let dims = dims.map_err(|_| foreign(format!("{name} is {:?}", info.shape)))?;
        // As many as the file has after this: its length was compared with the sum.
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        reader.read_exact(&mut bytes).map_err(failed)?;
        sha.update(&bytes);
        variables.insert(name, HostArray { shape: ArrayShape::new(dtype, dims), bytes });
    }
    let measured = crate::files::hex(sha.finalize());
    if *hash != measured {
        return Err(CheckpointError::Damaged { path: path_buf(), measured, expected: hash.clone() });
    }
    if version.version != VERSION {
        return other_version();
    }
    let header: Header = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
    let Header { position, settings, function, data, .. } = header;
    let checkpoint = Checkpoint { position, settings, function, data, variables };
    checkpoint.check().map_err(|fault| CheckpointError::Unsound { path: path_buf(), fault })?;
    Ok(checkpoint)
}

/// What else people have variables in, by how it begins; read as a header's length, each is beyond [`MAX_HEADER_BYTES`].
const KINDS: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "a zip archive, as .npz files and PyTorch's .pt files are"),
    (b"\x93NUMPY", "one array of NumPy (.npy)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes (.h5)"),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
];

/// The length and the header.
fn read_start(path: &Path, reader: &mut impl Read, n_bytes: u64) -> Result<Vec<u8>, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_path_buf(), source };
    let cut_off = |expected| CheckpointError::Truncated { path: path.to_path_buf(), n_bytes, expected };
    let not_safetensors = |why: String| CheckpointError::NotSafetensors { path: path.to_path_buf(), why };
    if n_bytes < 8 {
        return Err(cut_off("expected at least 8".to_string()));
    }
    let mut length = [0; 8];
    reader.read_exact(&mut length).map_err(failed)?;
    let header_length = u64::from_le_bytes(length);
    if header_length > MAX_HEADER_BYTES {
        let kind = KINDS.iter().find(|(start, _)| length.starts_with(start)).map(|(_, kind)| format!("it is {kind}"));
        return Err(not_safetensors(kind.unwrap_or_else(|| {
            format!("its header would be {header_length} bytes, expected at most {MAX_HEADER_BYTES}")
        })));
    }
    let mut start = length.to_vec();
    start.resize(8 + header_length.min(n_bytes - 8) as usize, 0);
    reader.read_exact(&mut start[8..]).map_err(failed)?;
    if start.get(8).is_some_and(|&first| first != b'{') {
        return Err(not_safetensors("its header does not begin with `{`".to_string()));
    }
    if header_length > n_bytes - 8 {
        return Err(cut_off(format!("expected at least {} (its header)", header_length + 8)));
    }
    Ok(start)
}

/// Where the 64 digits of the hash are.
fn hash_place(start: &[u8]) -> Option<Range<usize>> {
    let from = memchr::memmem::find(start, HASH_KEY)? + HASH_KEY.len();
    let place = from..from + NO_HASH.len();
    start.get(place.clone()).map(|_| place)
}

/// Each dtype of ours that safetensors has.
pub(super) const DTYPES: &[(DType, Dtype)] = &[
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
];

pub(super) fn their_dtype(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|row| row.0 == dtype).map(|row| row.1)
}

pub(super) fn our_dtype(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|row| row.1 == dtype).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_correspond_one_to_one() {
        for (ours, theirs) in DTYPES {
            assert_eq!((our_dtype(*theirs), their_dtype(*ours)), (Some(*ours), Some(*theirs)));
            assert_eq!(theirs.bitsize(), 8 * ours.n_bytes());
        }
    }

    /// `eval --checkpoint x.npz` was told of a header of 577,052,293,988,745,216 bytes.
    #[test]
    fn what_a_file_is_instead_is_said() {
        let refused = |start: &[u8]| {
            let bytes = [start, &[1; 64]].concat();
            let path = Path::new("x");
            read(path, &mut &bytes[..], bytes.len() as u64).unwrap_err().to_string()
        };
        for (start, kind) in KINDS {
            assert_eq!(
                refused(start),
                format!(
                    "x: not a safetensors file: it is {kind}\nhelp: name a checkpoint that `bf16scope train` wrote; \
                     `bf16scope weights FILE` shows other files of weights"
                )
            );
        }
        // Two bytes of a length that may be say nothing.
        assert!(refused(&[0x1f, 0x8b, 0, 0, 0, 0, 0, 0]).contains("does not begin with `{`"));
    }
}
