//! Checkpoints: a training run's variables and position in one safetensors file.
//!
//! Files are written whole or not at all: into a temporary file beside the target, synced, renamed over it. So a reader
//! never sees half a checkpoint, and a failed write leaves the one before. The same state gives the same bytes.
//!
//! This file knows variables by name, dtype and dims, not what they mean; `session` puts them on a device.
//!
//! Source: the safetensors format (8 bytes of header length, a JSON header, the arrays). Our own data are one JSON text
//! under the key `bf16scope` of its `__metadata__`, so other tools can read the arrays.

use crate::graph::Precision;
use crate::hlo::{ArrayShape, DType};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The version this build writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// The key of our data in the file's metadata.
const KEY: &str = "bf16scope";

/// Where a run is and how it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Updates made.
    pub step: u64,
    /// Updates in an epoch. The position within the epoch is `step % steps_per_epoch`.
    pub steps_per_epoch: u64,
    /// Examples in a batch.
    pub batch: u32,
    /// The seed of initial values and of the order of examples.
    pub seed: u64,
    /// What the network computed in. The variables are f32 in any case.
    pub precision: Precision,
}

/// An array on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostArray {
    /// Dtype and dims.
    pub shape: ArrayShape,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The position in training.
    pub position: Position,
    /// The model's configuration, for people and tools; variables decide whether a checkpoint fits.
    pub model: serde_json::Value,
    /// Variables and slots by name.
    pub variables: BTreeMap<String, HostArray>,
}

/// The JSON text under [`KEY`].
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    position: Position,
    model: serde_json::Value,
}

/// Only the version, which decides how the rest is read.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// What is wrong with a checkpoint, or with the place it should go.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is none.
    #[error("{}: no such checkpoint\nhelp: train first, or name one with --checkpoint", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system does not give it.
    #[error("{}: cannot read the checkpoint", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Its end is missing.
    #[error("{}: the checkpoint is cut off: {n_bytes} bytes, {expected}\nhelp: copy it again, or go on from an earlier one; this file is left as it is", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes there are.
        n_bytes: usize,
        /// What was expected.
        expected: String,
    },
    /// Another kind of file.
    #[error("{}: not a safetensors file: {why}\nhelp: name a checkpoint that `bf16scope train` wrote", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What the safetensors reader says.
        why: String,
    },
    /// Arrays, but not of a run of ours.
    #[error("{}: not a bf16scope checkpoint: {why}\nhelp: name a checkpoint that `bf16scope train` wrote", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with its metadata.
        why: String,
    },
    /// Of another build.
    #[error("{}: checkpoint format {found}, this build reads format {VERSION}\nhelp: use the build of bf16scope that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Of another model.
    #[error("{}: the checkpoint is of another model or optimizer:{mismatch}\nhelp: name the experiment it was made with, or leave --resume out to start again", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// How its variables differ.
        mismatch: Mismatch,
    },
    /// An array of a dtype that safetensors has not.
    #[error("{}: cannot save {name}: safetensors has no {dtype}", path.display())]
    Unsaveable {
        /// The file.
        path: PathBuf,
        /// The variable.
        name: String,
        /// Its dtype.
        dtype: DType,
    },
    /// The disk is full, the directory is not writable, …
    #[error("{}: cannot write the checkpoint: {doing}\nhelp: make room or name another place with --checkpoint; what was there before is unchanged", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What failed.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// How the variables of a checkpoint differ from those of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// The program has them, the checkpoint has not.
    pub missing: Vec<String>,
    /// The checkpoint has them, the program has not.
    pub unexpected: Vec<String>,
    /// Name, shape in the checkpoint, shape in the program.
    pub different: Vec<(String, String, String)>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let different =
            self.different.iter().map(|(name, found, expected)| format!("{name} is {found}, not {expected}"));
        list(f, "different", different.collect())?;
        list(f, "missing", self.missing.clone())?;
        list(f, "unexpected", self.unexpected.clone())
    }
}

/// Up to this many variables of a kind are named in an error.
const N_NAMED: usize = 4;

fn list(f: &mut fmt::Formatter<'_>, kind: &str, names: Vec<String>) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {kind}: {}", names[..names.len().min(N_NAMED)].join(", "))?;
    match names.len().checked_sub(N_NAMED) {
        Some(n) if n > 0 => write!(f, " and {n} more"),
        Some(_) | None => Ok(()),
    }
}

impl Checkpoint {
    /// The variables called for, in that order.
    ///
    /// # Errors
    /// [`CheckpointError::OtherModel`] unless names, dtypes and dims all match; where `exactly` is false, variables
    /// that were not called for are left out silently (an evaluation needs no slots).
    pub fn select<'a>(
        &self,
        path: &Path,
        wanted: impl Iterator<Item = (&'a str, ArrayShape)>,
        exactly: bool,
    ) -> Result<Vec<&HostArray>, CheckpointError> {
        let mut mismatch = Mismatch::default();
        let mut selected = Vec::new();
        let mut unexpected: BTreeMap<&str, &HostArray> = self.variables.iter().map(|(k, v)| (k.as_str(), v)).collect();
        for (name, shape) in wanted {
            match unexpected.remove(name) {
                None => mismatch.missing.push(name.to_string()),
                Some(array) if array.shape.dtype == shape.dtype && array.shape.dims == shape.dims => {
                    selected.push(array);
                }
                Some(array) => {
                    mismatch.different.push((name.to_string(), array.shape.to_string(), shape.to_string()));
                }
            }
        }
        if exactly {
            mismatch.unexpected = unexpected.into_keys().map(str::to_string).collect();
        }
        match mismatch == Mismatch::default() {
            true => Ok(selected),
            false => Err(CheckpointError::OtherModel { path: path.to_path_buf(), mismatch }),
        }
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// Where there is none, or it is cut off, no checkpoint, or of another version.
    pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
        let bytes = fs::read(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CheckpointError::Missing { path: path.to_path_buf() },
            _ => CheckpointError::Read { path: path.to_path_buf(), source },
        })?;
        Checkpoint::from_bytes(path, &bytes)
    }

    /// Reads a checkpoint from the bytes of the file `path`, which is named in errors only.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
        let foreign = |why: String| CheckpointError::Foreign { path: path.to_path_buf(), why };
        let arrays = SafeTensors::deserialize(bytes).map_err(|error| match expected_length(bytes) {
            Some(expected) => CheckpointError::Truncated { path: path.to_path_buf(), n_bytes: bytes.len(), expected },
            None => CheckpointError::NotSafetensors { path: path.to_path_buf(), why: error.to_string() },
        })?;
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| foreign(error.to_string()))?;
        let text = metadata.metadata().as_ref().and_then(|texts| texts.get(KEY));
        let text = text.ok_or_else(|| foreign(format!("its metadata has no key `{KEY}`")))?;
        let version: VersionOnly = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
        if version.version != VERSION {
            return Err(CheckpointError::Version { path: path.to_path_buf(), found: version.version });
        }
        let header: Header = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
        let mut variables = BTreeMap::new();
        for (name, array) in arrays.iter() {
            let dtype = our_dtype(array.dtype());
            let dtype = dtype.ok_or_else(|| foreign(format!("{name} is {:?}", array.dtype())))?;
            let dims: Vec<i64> = array.shape().iter().map(|&dim| dim as i64).collect();
            let value = HostArray { shape: ArrayShape::new(dtype, dims), bytes: array.data().to_vec() };
            variables.insert(name.to_string(), value);
        }
        Ok(Checkpoint { position: header.position, model: header.model, variables })
    }

    /// The bytes of its file; the same for the same checkpoint.
    ///
    /// # Errors
    /// For a dtype that safetensors has not.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>, CheckpointError> {
        let header = Header { version: VERSION, position: self.position.clone(), model: self.model.clone() };
        let text = serde_json::to_string(&header).expect("numbers and text have a JSON form");
        let mut views = Vec::with_capacity(self.variables.len());
        for (name, array) in &self.variables {
            let dtype = array.shape.dtype;
            let unsaveable = || CheckpointError::Unsaveable { path: path.to_path_buf(), name: name.clone(), dtype };
            let dims = array.shape.dims.iter().map(|&dim| dim as usize).collect();
            let theirs = their_dtype(dtype).ok_or_else(unsaveable)?;
            let view = TensorView::new(theirs, dims, &array.bytes).expect("an array has the bytes its shape says");
            views.push((name.as_str(), view));
        }
        let metadata = HashMap::from([(KEY.to_string(), text)]);
        Ok(safetensors::serialize(views, Some(metadata)).expect("views that were made can be written"))
    }

    /// Writes it to `path`, whole or not at all; makes the directory if there is none.
    ///
    /// # Errors
    /// Where the system does not let us; then what was at `path` is unchanged.
    pub fn write(&self, path: &Path) -> Result<(), CheckpointError> {
        let bytes = self.to_bytes(path)?;
        let failed = |doing| move |source| CheckpointError::Write { path: path.to_path_buf(), doing, source };
        let place = &place_of(path)?;
        let mut file = temporary_beside(place)?;
        file.write_all(&bytes).map_err(failed("writing"))?;
        file.as_file().sync_all().map_err(failed("syncing"))?;
        file.persist(place).map_err(|error| failed("renaming")(error.error))?;
        // The rename is durable once the directory is.
        let directory = fs::File::open(directory_of(place)).and_then(|directory| directory.sync_all());
        directory.map_err(failed("syncing the directory"))
    }
}

/// Whether a checkpoint could be written to `path`: better asked before an hour of training than after it.
///
/// # Errors
/// What writing would say.
pub fn check_writable(path: &Path) -> Result<(), CheckpointError> {
    let place = place_of(path)?;
    if is_something_else(&place) {
        let source = io::Error::from(io::ErrorKind::AlreadyExists);
        let doing = "there is a file that is no checkpoint";
        return Err(CheckpointError::Write { path: path.to_path_buf(), doing, source });
    }
    temporary_beside(&place).map(drop)
}

/// The file that is replaced: `path`, or what it links to. Renaming over anything else that is there, such as
/// `/dev/null`, would destroy it.
fn place_of(path: &Path) -> Result<PathBuf, CheckpointError> {
    let failed = |doing, source| CheckpointError::Write { path: path.to_path_buf(), doing, source };
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(failed("the path is a directory", io::Error::from(io::ErrorKind::IsADirectory)));
    }
    match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path).map_err(|source| failed("following the path", source)),
        Ok(_) => Err(failed("the path is no regular file", io::Error::from(io::ErrorKind::InvalidInput))),
        // A name too long would else be found out when an epoch's work is to be renamed.
        Err(source) if source.kind() == io::ErrorKind::InvalidFilename => Err(failed("looking at the path", source)),
        Err(_) => Ok(path.to_path_buf()),
    }
}

/// Whether a file is there that is not even the start of a safetensors file, such as an experiment given by mistake.
fn is_something_else(place: &Path) -> bool {
    let mut start = [0; 9];
    let read = fs::File::open(place).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start[8] != b'{'
}

/// An empty file in the directory of `path`, which is made if there is none. It is gone when dropped.
fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile, CheckpointError> {
    let failed = |doing| move |source| CheckpointError::Write { path: path.to_path_buf(), doing, source };
    let directory = directory_of(path);
    fs::create_dir_all(directory).map_err(failed("making its directory"))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".checkpoint-");
    #[cfg(unix)]
    {
        // As any file a program makes; the umask takes its share. Temporary files are the owner's alone otherwise.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory).map_err(failed("making a file in its directory"))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// For the start of a safetensors file: how long it should have been, in words. `None` if it is no such start, or is
/// long enough.
fn expected_length(bytes: &[u8]) -> Option<String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Some("expected at least 8".to_string());
    };
    let header_length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    if rest.first().is_some_and(|&first| first != b'{') {
        return None;
    }
    let Some(header) = rest.get(..header_length) else {
        // A header of this crate's checkpoints is kilobytes; a length beyond that is no length.
        let plausible = header_length < 100_000_000;
        return plausible.then(|| format!("expected at least {} (its header)", header_length + 8));
    };
    let metadata: Metadata = serde_json::from_slice(header).ok()?;
    let expected = 8 + header_length + metadata.data_len();
    (bytes.len() < expected).then(|| format!("expected {expected}"))
}

/// Each dtype of ours that safetensors has.
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
];

fn their_dtype(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|row| row.0 == dtype).map(|row| row.1)
}

fn our_dtype(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|row| row.1 == dtype).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dtype: DType, dims: &[i64]) -> HostArray {
        let shape = ArrayShape::new(dtype, dims);
        let bytes = (0..shape.n_elements() as usize * dtype.n_bytes()).map(|i| i as u8).collect();
        HostArray { shape, bytes }
    }

    fn checkpoint() -> Checkpoint {
        let position = Position { step: 1234, steps_per_epoch: 100, batch: 32, seed: 7, precision: Precision::F16 };
        let variables = [
            ("dense/kernel", array(DType::F32, &[2, 3])),
            ("dense/kernel/momentum", array(DType::F32, &[2, 3])),
            ("dropout/state", array(DType::U64, &[2])),
            ("scalar", array(DType::BF16, &[])),
        ];
        let variables = variables.map(|(name, value)| (name.to_string(), value)).into();
        Checkpoint { position, model: serde_json::json!({"kind": "mlp", "hidden": [2]}), variables }
    }

    fn path() -> &'static Path {
        Path::new("runs/mlp.safetensors")
    }

    fn error(bytes: &[u8]) -> String {
        Checkpoint::from_bytes(path(), bytes).unwrap_err().to_string()
    }

    #[test]
    fn bytes_round_trip_and_are_reproducible() {
        let bytes = checkpoint().to_bytes(path()).unwrap();
        assert_eq!(Checkpoint::from_bytes(path(), &bytes).unwrap(), checkpoint());
        assert_eq!(checkpoint().to_bytes(path()).unwrap(), bytes);
    }

    #[test]
    fn every_cut_is_noticed() {
        let whole = checkpoint().to_bytes(path()).unwrap();
        for n_bytes in 0..whole.len() {
            let message = error(&whole[..n_bytes]);
            let start = format!("runs/mlp.safetensors: the checkpoint is cut off: {n_bytes} bytes, expected ");
            assert!(message.starts_with(&start), "{n_bytes}: {message}");
        }
        let expected = format!(
            "runs/mlp.safetensors: the checkpoint is cut off: {} bytes, expected {}\n\
             help: copy it again, or go on from an earlier one; this file is left as it is",
            whole.len() - 1,
            whole.len()
        );
        assert_eq!(error(&whole[..whole.len() - 1]), expected);
    }

    #[test]
    fn other_files_are_named_for_what_they_are() {
        assert_eq!(
            error(b"PK\x03\x04 a zip file, not a checkpoint"),
            "runs/mlp.safetensors: not a safetensors file: header too large\n\
             help: name a checkpoint that `bf16scope train` wrote"
        );
        let view = TensorView::new(Dtype::U8, vec![2], &[1, 2]).unwrap();
        let foreign = safetensors::serialize([("x", view)], None).unwrap();
        assert_eq!(
            error(&foreign),
            "runs/mlp.safetensors: not a bf16scope checkpoint: its metadata has no key `bf16scope`\n\
             help: name a checkpoint that `bf16scope train` wrote"
        );
        let metadata = HashMap::from([(KEY.to_string(), r#"{"version": 2, "future": true}"#.to_string())]);
        let later = safetensors::serialize([] as [(&str, TensorView<'_>); 0], Some(metadata)).unwrap();
        assert_eq!(
            error(&later),
            "runs/mlp.safetensors: checkpoint format 2, this build reads format 1\n\
             help: use the build of bf16scope that wrote it"
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let path = Path::new("/nonexistent/mlp.safetensors");
        assert_eq!(
            Checkpoint::read(path).unwrap_err().to_string(),
            "/nonexistent/mlp.safetensors: no such checkpoint\nhelp: train first, or name one with --checkpoint"
        );
    }

    #[test]
    fn another_models_checkpoint_is_refused_with_every_difference() {
        let shape = |dims: &[i64]| ArrayShape::new(DType::F32, dims);
        let wanted = || [("conv/kernel", shape(&[3])), ("dense/kernel", shape(&[3, 2]))].into_iter();
        let checkpoint = checkpoint();
        assert_eq!(
            checkpoint.select(path(), wanted(), true).unwrap_err().to_string(),
            "runs/mlp.safetensors: the checkpoint is of another model or optimizer:\
             \n  different: dense/kernel is f32[2,3], not f32[3,2]\
             \n  missing: conv/kernel\
             \n  unexpected: dense/kernel/momentum, dropout/state, scalar\
             \nhelp: name the experiment it was made with, or leave --resume out to start again"
        );
        let some = || [("dense/kernel", shape(&[2, 3]))].into_iter();
        assert_eq!(checkpoint.select(path(), some(), false).unwrap(), [&checkpoint.variables["dense/kernel"]]);
        assert!(checkpoint.select(path(), some(), true).is_err());
        let many: Vec<String> = (0..9).map(|i| format!("layer{i}")).collect();
        let missing = checkpoint.select(path(), many.iter().map(|name| (name.as_str(), shape(&[]))), false);
        assert!(missing.unwrap_err().to_string().contains("missing: layer0, layer1, layer2, layer3 and 5 more"));
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/run.safetensors");
        let mut checkpoint = checkpoint();
        checkpoint.write(&path).unwrap();
        checkpoint.position.step += 1;
        checkpoint.write(&path).unwrap();
        assert_eq!(Checkpoint::read(&path).unwrap(), checkpoint);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        // A file where a directory should be: refused whoever runs the test, root too.
        let path = file.join("run.safetensors");
        let expected = format!(
            "{}: cannot write the checkpoint: making its directory\n\
             help: make room or name another place with --checkpoint; what was there before is unchanged",
            path.display()
        );
        assert_eq!(check_writable(&path).unwrap_err().to_string(), expected);
        assert_eq!(checkpoint().write(&path).unwrap_err().to_string(), expected);
        let message = check_writable(folder.path()).unwrap_err().to_string();
        assert!(message.contains("cannot write the checkpoint: the path is a directory"), "{message}");
    }

    #[test]
    fn dtypes_correspond_one_to_one() {
        for (ours, theirs) in DTYPES {
            assert_eq!((our_dtype(*theirs), their_dtype(*ours)), (Some(*ours), Some(*theirs)));
            assert_eq!(theirs.bitsize(), 8 * ours.n_bytes());
        }
    }
}
