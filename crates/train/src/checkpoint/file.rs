//! The bytes of a checkpoint: a safetensors file with a hash over all of it.
//!
//! The file is 8 bytes of header length, a JSON header padded with spaces, and the arrays. Our own data are one JSON
//! text under the key `bf16scope` of the header's `__metadata__`, so other tools can read the arrays. That text begins
//! with the SHA-256 of the whole file, computed with these 64 digits as `0`: it covers length, header, padding and
//! arrays.
//!
//! Neither reader nor writer holds the file in memory beside the arrays: arrays are hashed and written, or read and
//! hashed, one after the other. A reader allocates no more than the length of the file, whatever its header says.
//!
//! The hash is SHA-256 because the crate is a dependency already, because CPUs have instructions that make it faster
//! than a disk, and because anyone can check it with `sha256sum`.

use super::{
    Array, Checkpoint, CheckpointError, CheckpointHead, DataIdentity, Fault, FunctionHash, Position, Settings, VERSION,
};
use crate::callback_state::CallbackState;
use bf16scope_data::weights::safetensors::header::{
    self, FilePart, Header, HeaderArray, HeaderError, MAX_BYTES, MakeError, NO_HASH, OURS,
};
use bf16scope_hlo::ArrayShape;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::path::Path;

/// The JSON text under [`OURS`]. The hash comes first, so a reader finds it before any text that a user chose.
#[derive(Serialize, Deserialize)]
struct OurHeader {
    sha256: String,
    version: u32,
    position: Position,
    settings: Settings,
    function: Option<FunctionHash>,
    data: Option<DataIdentity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    callbacks: Option<CallbackState>,
}

/// The version alone, which decides how the rest is read.
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
    /// The arrays in the order of the file.
    arrays: Vec<&'a Array>,
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

/// Builds the header and hashes the whole file.
pub(super) fn encode<'a>(path: &Path, checkpoint: &'a Checkpoint) -> Result<Encoded<'a>, CheckpointError> {
    let unsaved = |fault| CheckpointError::Unsaved { path: path.to_path_buf(), fault };
    checkpoint.check().map_err(unsaved)?;
    let header = OurHeader {
        sha256: NO_HASH.to_string(),
        version: VERSION,
        position: checkpoint.position.clone(),
        settings: checkpoint.settings.clone(),
        function: checkpoint.function.clone(),
        data: checkpoint.data.clone(),
        callbacks: checkpoint.callbacks.clone(),
    };
    let text = serde_json::to_string(&header).expect("numbers and text have a JSON form");
    let arrays: Vec<(&String, &Array)> = checkpoint.variables.iter().collect();
    let shapes: Vec<(&str, &ArrayShape)> = arrays.iter().map(|(name, array)| (name.as_str(), &array.shape)).collect();
    let header = header::make(&shapes, HashMap::from([(OURS.to_string(), text)]));
    let (mut start, order) = header.map_err(|error| match error {
        MakeError::NoDType(idx) => {
            let (name, dtype) = (arrays[idx].0.clone(), arrays[idx].1.shape.dtype);
            CheckpointError::Unsaveable { path: path.to_path_buf(), name, dtype }
        }
        error => unreachable!("arrays that were checked follow one another: {error:?}"),
    })?;
    let n_bytes = start.len() - 8;
    if n_bytes as u64 > MAX_BYTES {
        return Err(unsaved(Fault::Header { measured: n_bytes, most: MAX_BYTES }));
    }
    let arrays: Vec<&Array> = order.into_iter().map(|idx| arrays[idx].1).collect();
    let mut sha = Sha256::new();
    sha.update(&start);
    arrays.iter().for_each(|array| sha.update(&array.bytes));
    let place = header::hash_place(&start).expect("the header was made with a place for it");
    start[place].copy_from_slice(bf16scope_files::hex(sha.finalize()).as_bytes());
    Ok(Encoded { start, arrays })
}

/// Reads a checkpoint of `n_bytes` from `reader`; `path` appears in errors only.
pub(super) fn read(path: &Path, reader: &mut impl Read, n_bytes: u64) -> Result<Checkpoint, CheckpointError> {
    let path_buf = || path.to_path_buf();
    let failed = |source| CheckpointError::Read { path: path_buf(), source };
    let foreign = |why: String| CheckpointError::Foreign { path: path_buf(), why };
    let header = Header::read(n_bytes, |n| {
        let mut bytes = vec![0; n];
        reader.read_exact(&mut bytes).map(|()| bytes)
    });
    let header = header.map_err(|error| refused(path, n_bytes, error))?;
    let text = header.our_text().cloned();
    let text = text.ok_or_else(|| foreign(format!("its metadata has no key `{OURS}`")))?;
    let arrays = header.arrays();
    let mut start = header.start;
    let version: VersionOnly = serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
    let other_version = || Err(CheckpointError::Version { path: path_buf(), found: version.version });
    let (Some(hash), Some(place)) = (version.sha256.as_ref(), header::hash_place(&start)) else {
        return match version.version {
            VERSION => Err(foreign("its metadata has no sha256".to_string())),
            _ => other_version(),
        };
    };
    let mut sha = Sha256::new();
    start[place].copy_from_slice(NO_HASH.as_bytes());
    sha.update(&start);
    let mut variables = BTreeMap::new();
    for HeaderArray { name, dtype, dims, place } in arrays {
        let dtype = dtype.map_err(|dtype| foreign(format!("{name} is {dtype}")))?;
        let as_i64: Result<Vec<i64>, _> = dims.iter().map(|&dim| i64::try_from(dim)).collect();
        let dims = as_i64.map_err(|_| foreign(format!("{name} is {dims:?}")))?;
        // The header's offsets were compared with the length of the file, so this many bytes follow.
        let mut bytes = vec![0; (place.end - place.start) as usize];
        reader.read_exact(&mut bytes).map_err(failed)?;
        sha.update(&bytes);
        variables.insert(name, Array { shape: ArrayShape::new(dtype, dims), bytes });
    }
    let measured = bf16scope_files::hex(sha.finalize());
    if *hash != measured {
        return Err(CheckpointError::Damaged { path: path_buf(), measured, expected: hash.clone() });
    }
    if version.version != VERSION {
        return other_version();
    }
    let header: OurHeader = serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
    let OurHeader { position, settings, function, data, callbacks, .. } = header;
    let checkpoint = Checkpoint { position, settings, function, data, callbacks, variables };
    checkpoint.check().map_err(|fault| CheckpointError::Unsound { path: path_buf(), fault })?;
    Ok(checkpoint)
}

/// Reads the header of a checkpoint of `n_bytes`; `path` appears in errors only.
pub(super) fn read_head(path: &Path, reader: &mut impl Read, n_bytes: u64) -> Result<CheckpointHead, CheckpointError> {
    let foreign = |why: String| CheckpointError::Foreign { path: path.to_path_buf(), why };
    let header = Header::read(n_bytes, |n| {
        let mut bytes = vec![0; n];
        reader.read_exact(&mut bytes).map(|()| bytes)
    });
    let header = header.map_err(|error| refused(path, n_bytes, error))?;
    let text = header.our_text().ok_or_else(|| foreign(format!("its metadata has no key `{OURS}`")))?;
    let version: VersionOnly = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
    if version.version != VERSION {
        return Err(CheckpointError::Version { path: path.to_path_buf(), found: version.version });
    }
    let ours: OurHeader = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
    Ok(CheckpointHead { sha256: ours.sha256, position: ours.position, settings: ours.settings })
}

/// Other formats that store variables, by their first bytes; read as a header's length, each exceeds [`MAX_BYTES`].
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

/// The [`CheckpointError`] for a header that cannot be read.
fn refused(path: &Path, n_bytes: u64, error: HeaderError<io::Error>) -> CheckpointError {
    let path = path.to_path_buf();
    let why = match error {
        HeaderError::Read(source) => return CheckpointError::Read { path, source },
        HeaderError::Cut { part, end } => {
            let expected = match part {
                FilePart::Length => format!("expected at least {end}"),
                FilePart::Header => format!("expected at least {end} (its header)"),
                FilePart::Arrays => format!("expected {end}"),
            };
            return CheckpointError::Truncated { path, n_bytes, expected };
        }
        HeaderError::TooLarge { n_bytes, first } => {
            let kind =
                KINDS.iter().find(|(start, _)| first.starts_with(start)).map(|(_, kind)| format!("it is {kind}"));
            kind.unwrap_or_else(|| format!("its header would be {n_bytes} bytes, expected at most {MAX_BYTES}"))
        }
        HeaderError::NoObject => "its header does not begin with `{`".to_string(),
        HeaderError::Json(error) => error.to_string(),
        HeaderError::DType { name, dtype } => format!("array `{name}` is of {dtype}, which is not read"),
        HeaderError::Longer { end } => format!("it has {n_bytes} bytes, its header says {end}"),
        other => format!("{other:?}"),
    };
    CheckpointError::NotSafetensors { path, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_does_not_fit_its_file_is_named() {
        for (header, rest, why) in
            [("[]", "", "its header does not begin with `{`"), ("{}", "!", "it has 11 bytes, its header says 10")]
        {
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), rest.as_bytes()].concat();
            let error = read(Path::new("x"), &mut &bytes[..], bytes.len() as u64).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "x: not a safetensors file: {why}\nhelp: name a checkpoint that `bf16scope train` wrote; `bf16scope \
                     weights FILE` shows other files of weights"
                )
            );
        }
    }

    /// `eval --checkpoint x.npz` used to report a header of 577,052,293,988,745,216 bytes.
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
        // Two bytes that are a possible header length prove nothing.
        assert!(refused(&[0x1f, 0x8b, 0, 0, 0, 0, 0, 0]).contains("does not begin with `{`"));
    }
}
