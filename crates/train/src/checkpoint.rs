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

/// The header of a checkpoint: which one it is, without its arrays.
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
    /// The counters of callbacks and the sums of an epoch that is not over, if there are any.
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
mod tests;
