//! Checkpoints: a training run's variables and position in one safetensors file.
//!
//! A file is written whole or not at all: into a temporary file beside the target, synced, then renamed over it. A
//! reader never sees half a checkpoint, a failed write leaves the previous one, and a [`Place`] belongs to one run at a
//! time. The same state gives the same bytes. Reading verifies a hash over all bytes ([`file`]), and refuses states
//! that no run has: numbers that are not finite, counts out of range. Such a state is never written over a good
//! checkpoint.
//!
//! This module knows variables by name, dtype and dims, not by meaning; `session` uploads them to a device.
//!
//! Source: the safetensors format (8 bytes of header length, a JSON header, the arrays).

mod averages;
mod convert;
mod error;
mod file;
mod place;
mod series;

pub use error::{CheckpointError, Fault, Mismatch};
pub use place::Place;
pub(crate) use series::{Series, beside};

use super::callback_state::CallbackState;
use super::memory::memory_of_machine;
use bf16scope_data::table::Learnt;
use bf16scope_data::{DrawVersion, Fingerprint};
use bf16scope_files as files;
pub use bf16scope_hlo::Array;
use bf16scope_hlo::ArrayShape;
use bf16scope_hlo::element::floats;
use bf16scope_model::graph::Precision;
use bf16scope_model::optim::Update;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The version that this build writes, and the only one that it reads. Version 1 had no hash; version 2 supported four
/// fixed models instead of tasks, and ordered examples differently.
pub const VERSION: u32 = 3;

/// A run's position and how the run was made.
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
    /// The dtype that the network computed in. The variables carry their own dtypes.
    pub precision: Precision,
    /// The version of the order of examples: [`ORDER_VERSION`](bf16scope_data::ORDER_VERSION) of the build that wrote it.
    pub order: u32,
    /// The version of random crops, flips and masks: that of the build in which the run began ([`DrawVersion`]). Older
    /// checkpoints, which do not have it, are of the first version.
    #[serde(default = "first_draws")]
    pub draws: u32,
}

fn first_draws() -> u32 {
    DrawVersion::V1.number()
}

/// A fingerprint of the function that a task computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionHash {
    /// SHA-256 of its prediction module, not tuned, without names and source locations.
    pub sha256: String,
    /// The version of bf16scope that emitted it: another version may emit the same function differently.
    pub version: String,
}

/// The fingerprints of a run's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataIdentity {
    /// The training data.
    pub training: Fingerprint,
    /// The test data.
    pub test: Fingerprint,
    /// Class names of each label feature, from class 0 on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Vec<String>>,
    /// Statistics and vocabularies of a table's columns, learnt from the training examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learnt: Option<Learnt>,
}

/// The settings of a run, by the keys of its experiment. [`resume::settings`](super::resume::settings) takes them from
/// a run; a checkpoint stores them as JSON text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(pub(crate) serde_json::Value);

/// The text is not JSON; the message is the parser's.
#[derive(Debug, thiserror::Error)]
#[error("settings: {0}")]
pub struct SettingsError(#[source] serde_json::Error);

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(json: &str) -> Result<Settings, SettingsError> {
        serde_json::from_str(json).map(Settings).map_err(SettingsError)
    }
}

/// What the header of a checkpoint says: which one it is, without its arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointHead {
    /// The hash of the file, as its header has it.
    pub sha256: String,
    /// The position in training.
    pub position: Position,
    /// The settings of its run.
    pub settings: Settings,
}

/// The contents of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The position in training.
    pub position: Position,
    /// The settings of its run.
    pub settings: Settings,
    /// The function that was trained, if the task predicts something.
    pub function: Option<FunctionHash>,
    /// The data of its run. A program that trains step by step may leave it out.
    pub data: Option<DataIdentity>,
    /// The counters of callbacks, if the run has any.
    pub callbacks: Option<CallbackState>,
    /// Variables and slots by name.
    pub variables: BTreeMap<String, Array>,
}

impl Checkpoint {
    /// The requested variables, in the requested order.
    ///
    /// # Errors
    /// [`CheckpointError::OtherModel`] unless names, dtypes and dims all match; where `exactly` is false, the
    /// checkpoint may have more variables (an evaluation needs no slots).
    pub fn select<'a>(
        &self,
        path: &Path,
        wanted: impl Iterator<Item = (&'a str, ArrayShape)>,
        exactly: bool,
    ) -> Result<Vec<&Array>, CheckpointError> {
        let mut mismatch = Mismatch::default();
        let mut selected = Vec::new();
        let mut unexpected: BTreeMap<&str, &Array> = self.variables.iter().map(|(k, v)| (k.as_str(), v)).collect();
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
            // An average that the run no longer takes is not missed, and neither is the factor of a rate that is no
            // longer reducible.
            let is_missed = |name: &&str| !self.is_average(name) && *name != Update::REDUCED;
            let unexpected = unexpected.into_keys().filter(is_missed);
            mismatch.unexpected = unexpected.map(str::to_string).collect();
        }
        match mismatch == Mismatch::default() {
            true => Ok(selected),
            false => Err(CheckpointError::OtherModel { path: path.to_path_buf(), mismatch, is_resumed: exactly }),
        }
    }

    /// Checks that a run can have such a state: finite numbers, counts in their ranges, as many bytes as the shapes
    /// need.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), Fault> {
        let Position { step, steps_per_epoch, batch, .. } = self.position;
        let counts = [("step", step, 0), ("steps_per_epoch", steps_per_epoch, 1), ("batch", u64::from(batch), 1)];
        for (what, measured, least) in counts {
            if !(least..=i32::MAX as u64).contains(&measured) {
                return Err(Fault::Range { what, measured, least });
            }
        }
        for (name, array) in &self.variables {
            if name == "__metadata__" {
                return Err(Fault::Name);
            }
            let n_elements: u128 = array.shape.dims.iter().map(|&dim| dim.max(0) as u128).product();
            let expected = n_elements * array.shape.dtype.n_bytes() as u128;
            if array.bytes.len() as u128 != expected {
                return Err(Fault::Bytes { name: name.clone(), measured: array.bytes.len(), expected });
            }
        }
        self.check_finite()
    }

    /// Checks that all numbers are finite.
    ///
    /// # Errors
    /// [`Fault::NotFinite`] for the first number that is not.
    pub fn check_finite(&self) -> Result<(), Fault> {
        match self.variables.iter().find_map(|(name, array)| not_finite(array).map(|found| (name, found))) {
            Some((name, (idx, value))) => Err(Fault::NotFinite { name: name.clone(), idx, value: value.to_string() }),
            None => Ok(()),
        }
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// When the file is missing, truncated, damaged, not a checkpoint, or of another version.
    pub fn read(path: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let path = path.as_ref();
        let (mut file, n_bytes) = open(path)?;
        match memory_of_machine() {
            Some(available) if u128::from(n_bytes) > available => {
                Err(CheckpointError::TooLarge { path: path.to_path_buf(), n_bytes, available })
            }
            Some(_) | None => file::read(path, &mut file, n_bytes),
        }
    }

    /// The position of a checkpoint. Only its header is read, and the hash is not verified.
    ///
    /// # Errors
    /// When the file is missing, its header is truncated or not a checkpoint's, or it is of another version.
    pub fn read_position(path: impl AsRef<Path>) -> Result<Position, CheckpointError> {
        Ok(Checkpoint::read_head(path)?.position)
    }

    /// The header of a checkpoint. The arrays are not read, and the hash is not verified.
    ///
    /// # Errors
    /// As [`Checkpoint::read_position`].
    pub fn read_head(path: impl AsRef<Path>) -> Result<CheckpointHead, CheckpointError> {
        let path = path.as_ref();
        let (mut file, n_bytes) = open(path)?;
        file::read_head(path, &mut file, n_bytes)
    }

    /// Reads a checkpoint from the bytes of the file `path`, which is named in errors only.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
        file::read(path, &mut &bytes[..], bytes.len() as u64)
    }

    /// The bytes of its file; equal checkpoints give equal bytes.
    ///
    /// # Errors
    /// A state that no run has, such as a NaN; a dtype that safetensors does not have.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>, CheckpointError> {
        let encoded = file::encode(path, self)?;
        let mut bytes = Vec::with_capacity(encoded.n_bytes());
        encoded.write_to(&mut bytes).expect("memory takes what is written");
        Ok(bytes)
    }

    /// Writes it to `path`, whole or not at all, and creates the directory if necessary. [Claim](Place::claim) the
    /// place to write more than once.
    ///
    /// # Errors
    /// As [`Checkpoint::to_bytes`] and [`Place::claim`]; the file at `path` is then unchanged.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        let path = path.as_ref();
        Place::claim(path)?.write(self)
    }
}

/// The path of the best checkpoint (`keep_best`) of a run whose last checkpoint is at `path`: `NAME-best.safetensors`
/// beside it.
pub fn best_of(path: &Path) -> PathBuf {
    beside(path, "best")
}

/// The file of a checkpoint and its length in bytes.
fn open(path: &Path) -> Result<(File, u64), CheckpointError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::Missing { path: path.to_path_buf() },
        _ => CheckpointError::Read { path: path.to_path_buf(), source },
    };
    let file = files::open(path).map_err(failed)?;
    let n_bytes = file.metadata().map_err(failed)?.len();
    Ok((file, n_bytes))
}

/// The first element that is a NaN or an infinity, and its number.
fn not_finite(array: &Array) -> Option<(usize, f64)> {
    // Integers are always finite; safetensors has no other dtypes.
    floats(array.shape.dtype, &array.bytes)?.enumerate().find(|(_, value)| !value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::DType;
    use safetensors::tensor::{Dtype, TensorView};
    use std::collections::HashMap;
    use std::fs;

    fn array(dtype: DType, dims: &[i64]) -> Array {
        let shape = ArrayShape::new(dtype, dims);
        let bytes = (0..shape.n_elements() as usize * dtype.n_bytes()).map(|i| i as u8).collect();
        Array { shape, bytes }
    }

    fn owned((name, hash): (&str, &str)) -> (String, String) {
        (name.to_string(), hash.to_string())
    }

    fn checkpoint() -> Checkpoint {
        let (step, steps_per_epoch, precision) = (1234, 100, Precision::F16);
        let position = Position { step, steps_per_epoch, batch: 32, seed: 7, precision, order: 2, draws: 2 };
        let variables = [
            ("dense/kernel", array(DType::F32, &[2, 3])),
            ("dense/kernel/momentum", array(DType::F32, &[2, 3])),
            ("dropout/state", array(DType::U64, &[2])),
            ("scalar", array(DType::BF16, &[])),
        ];
        let variables = variables.map(|(name, value)| (name.to_string(), value)).into();
        let settings = Settings(serde_json::json!({"model": {"kind": "mlp", "hidden": [2]}}));
        let print = |hash: &str| Fingerprint { n_examples: 9, arrays: [("images", hash)].map(owned).into() };
        let data =
            Some(DataIdentity { training: print("f"), test: print("g"), classes: BTreeMap::new(), learnt: None });
        let function = Some(FunctionHash { sha256: "h".to_string(), version: "0".to_string() });
        Checkpoint { position, settings, function, data, callbacks: None, variables }
    }

    fn path() -> &'static Path {
        Path::new("runs/mlp.safetensors")
    }

    fn error(bytes: &[u8]) -> String {
        Checkpoint::from_bytes(path(), bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_file_that_is_larger_than_the_machine_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.safetensors");
        // A sparse file: it occupies no disk space.
        let n_bytes = u64::try_from(memory_of_machine().unwrap()).unwrap() + 1;
        fs::File::create(&path).unwrap().set_len(n_bytes).unwrap();
        let error = Checkpoint::read(&path).unwrap_err();
        assert!(matches!(error, CheckpointError::TooLarge { n_bytes: found, .. } if found == n_bytes), "{error}");
    }

    #[test]
    fn bytes_round_trip_and_are_reproducible() {
        let bytes = checkpoint().to_bytes(path()).unwrap();
        assert_eq!(Checkpoint::from_bytes(path(), &bytes).unwrap(), checkpoint());
        assert_eq!(checkpoint().to_bytes(path()).unwrap(), bytes);
        // Also where the arrays are longer than the header.
        let zeros = Array { shape: ArrayShape::new(DType::F32, [64, 64]), bytes: vec![0; 4 * 64 * 64] };
        let large = Checkpoint { variables: [("large".to_string(), zeros)].into(), ..checkpoint() };
        assert_eq!(Checkpoint::from_bytes(path(), &large.to_bytes(path()).unwrap()).unwrap(), large);
    }

    #[test]
    fn a_head_tells_checkpoints_of_one_step_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let head = |checkpoint: Checkpoint| {
            checkpoint.write(&path).unwrap();
            Checkpoint::read_head(&path).unwrap()
        };
        let one = head(checkpoint());
        assert_eq!((&one.position, &one.settings), (&checkpoint().position, &checkpoint().settings));
        assert_eq!(head(checkpoint()), one);
        let variables = [("scalar".to_string(), array(DType::BF16, &[]))].into();
        let other = head(Checkpoint { variables, ..checkpoint() });
        assert!(other.position == one.position && other.sha256 != one.sha256);
    }

    #[test]
    fn a_position_from_before_draws_had_a_version_is_of_the_first() {
        let mut position = serde_json::to_value(checkpoint().position).unwrap();
        assert_eq!(position.as_object_mut().unwrap().remove("draws"), Some(serde_json::json!(2)));
        assert_eq!(serde_json::from_value::<Position>(position).unwrap().draws, 1);
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
            "runs/mlp.safetensors: not a safetensors file: it is a zip archive, as .npz files and PyTorch's .pt files are\n\
             help: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
        );
        let view = TensorView::new(Dtype::U8, vec![2], &[1, 2]).unwrap();
        let foreign = safetensors::serialize([("x", view)], None).unwrap();
        assert_eq!(
            error(&foreign),
            "runs/mlp.safetensors: not a bf16scope checkpoint: its metadata has no key `bf16scope`\n\
             help: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
        );
        let of_format = |text: &str| {
            let metadata =
                HashMap::from([(bf16scope_data::weights::safetensors::header::OURS.to_string(), text.to_string())]);
            error(&safetensors::serialize([] as [(&str, TensorView<'_>); 0], Some(metadata)).unwrap())
        };
        assert_eq!(
            of_format(r#"{"version": 4, "future": true}"#),
            "runs/mlp.safetensors: checkpoint format 4, this build reads format 3\n\
             help: use the build of bf16scope that wrote it"
        );
        assert_eq!(
            of_format(r#"{"version": 1, "position": {}}"#),
            "runs/mlp.safetensors: checkpoint format 1, this build reads format 3\n\
             help: it is of an older build, with other settings and another order of examples: go on with that build, \
             or train again; any reader of safetensors still reads its arrays"
        );
        assert_eq!(
            of_format(r#"{"version": 3}"#),
            "runs/mlp.safetensors: not a bf16scope checkpoint: its metadata has no sha256\n\
             help: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
        );
        let mut longer = checkpoint().to_bytes(path()).unwrap();
        longer.push(0);
        let message = error(&longer);
        assert!(message.starts_with("runs/mlp.safetensors: not a safetensors file: it has "), "{message}");
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
        // A file where a directory should be: refused for every user, root too.
        let path = file.join("run.safetensors");
        let expected = format!(
            "{}: cannot write the checkpoint: making its directory\n\
             help: move the file away that is where the path has a folder or name another place with --checkpoint; what was there before is unchanged",
            path.display()
        );
        assert_eq!(Place::claim(&path).unwrap_err().to_string(), expected);
        assert_eq!(checkpoint().write(&path).unwrap_err().to_string(), expected);
        let message = Place::claim(folder.path()).unwrap_err().to_string();
        assert!(message.contains("cannot write the checkpoint: making a file in its directory"), "{message}");
    }
}
