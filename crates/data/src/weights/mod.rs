//! Files of named arrays, in the formats in which frameworks store weights: opened, read array by array, and written.
//!
//! [`open`] recognises the format by the file's content, never by its name alone, and reads the list of arrays without
//! their elements. [`WeightsFile::read`] returns one array whole, [`WeightsFile::look`] streams one in constant memory.
//! [`write_each`] writes arrays one after another. This module does not map arrays to a model's variables.
//!
//! A file's claims are compared with its size before anything is allocated. Nothing in a file is executed.

mod bundle;
mod error;
mod hdf5;
#[cfg(test)]
#[path = "hostile/tests.rs"]
mod hostile;
#[cfg(test)]
#[path = "messages/tests.rs"]
mod messages;
mod npz;
mod open;
mod region;
pub mod safetensors;
#[cfg(test)]
mod tests;
mod torch;
mod write;

pub use error::{WeightsError, WeightsErrorKind};
pub use open::open;
pub use write::{WrittenArray, WrittenFormat, write, write_each};

use std::fmt;
use std::path::{Path, PathBuf};

use self::region::{Region, Sink};
use bf16scope_hlo::element::{Float, FloatVisitor};
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{ArrayShape, DType, Literal};

/// The format of a file of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A NumPy archive.
    Npz,
    /// A safetensors file.
    Safetensors,
    /// Several files of weights with a JSON index, the form of Hugging Face's large models.
    Sharded,
    /// A checkpoint that bf16scope wrote.
    Checkpoint,
    /// A tensor bundle: TensorFlow's checkpoint format.
    TensorFlow,
    /// The variables of a TensorFlow SavedModel, which are a tensor bundle.
    SavedModel,
    /// Tensors saved by `torch.save`.
    Torch,
    /// The weights of a model saved by Keras (`.keras`).
    Keras,
    /// An HDF5 file, like Keras' `.weights.h5` and `.h5`.
    Hdf5,
}

impl Format {
    /// The format's name in words.
    pub fn name(self) -> &'static str {
        match self {
            Format::Npz => "NumPy archive (.npz)",
            Format::Safetensors => "safetensors",
            Format::Sharded => "sharded weights (index in JSON)",
            Format::Checkpoint => "bf16scope checkpoint (safetensors)",
            Format::TensorFlow => "TensorFlow checkpoint",
            Format::SavedModel => "variables of a SavedModel",
            Format::Torch => "PyTorch state dict",
            Format::Keras => "Keras model (.keras)",
            Format::Hdf5 => "HDF5 (Keras' .h5)",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightsDType {
    /// Numbers or booleans.
    Array(DType),
    /// Byte strings, each with its own length.
    Text,
    /// A value of the framework that is not an array, by the framework's name for it.
    Other(&'static str),
}

impl WeightsDType {
    /// The HLO dtype; `None` for types that are not numeric.
    pub fn array(self) -> Option<DType> {
        match self {
            WeightsDType::Array(dtype) => Some(dtype),
            WeightsDType::Text | WeightsDType::Other(_) => None,
        }
    }
}

impl fmt::Display for WeightsDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightsDType::Array(dtype) => dtype.fmt(f),
            WeightsDType::Text => f.write_str("string"),
            WeightsDType::Other(name) => f.write_str(name),
        }
    }
}

/// An array of a file, before its elements are read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its name, unique in the file.
    pub name: String,
    /// Other names by which [`WeightsFile::find`] finds it: the key in the file if that is different, and the
    /// framework's name of the variable.
    pub aliases: Vec<String>,
    /// The type of its elements.
    pub dtype: WeightsDType,
    /// Sizes.
    pub dims: Vec<u64>,
    /// Bytes of its elements; for strings, their size in the file.
    pub n_bytes: u64,
}

impl Entry {
    /// An array of numbers; `None` if the product of the dims overflows.
    fn new(name: String, dtype: DType, dims: Vec<u64>) -> Option<Entry> {
        let n_bytes = n_bytes(dtype, &dims)?;
        Some(Entry { name, aliases: Vec::new(), dtype: WeightsDType::Array(dtype), dims, n_bytes })
    }

    /// The number of elements.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The HLO shape; `None` for types that are not numeric.
    pub fn shape(&self) -> Option<ArrayShape> {
        let dims: Vec<i64> = self.dims.iter().map(|&dim| dim as i64).collect();
        Some(ArrayShape::new(self.dtype.array()?, dims))
    }
}

/// The largest rank, as in NumPy and PyTorch.
const MAX_RANK: usize = 64;

/// The message for dims that are too large.
fn too_much(dims: &[u64]) -> String {
    match dims.len() {
        n if n > MAX_RANK => format!("has {n} dims; expected {MAX_RANK} at most"),
        _ => format!("has dims {dims:?}; expected some that multiply to 2^63 at most"),
    }
}

/// Bytes of an array; `None` if a dim or the product overflows HLO's limits.
fn n_bytes(dtype: DType, dims: &[u64]) -> Option<u64> {
    if dims.len() > MAX_RANK {
        return None;
    }
    // One dim may be 0 while others are huge: each counts as at least 1.
    let bound = dims.iter().try_fold(dtype.n_bytes() as u64, |n, &dim| n.checked_mul(dim.max(1)))?;
    (bound <= i64::MAX as u64).then(|| dims.iter().product::<u64>() * dtype.n_bytes() as u64)
}

/// An opened file or folder of named arrays.
pub struct WeightsFile {
    path: PathBuf,
    format: Format,
    entries: Vec<Entry>,
    reader: Box<dyn Reader>,
    left_out: Vec<String>,
    order: Vec<String>,
}

/// Reads the elements of a file's arrays.
trait Reader: Send + Sync {
    /// Passes the bytes of an array to `sink`, little-endian and row-major, as many as its entry states.
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError>;

    /// The strings of an array of strings. Called only if the reader has listed such an array.
    fn texts(&self, _idx: usize, _entry: &Entry) -> Result<Vec<Vec<u8>>, WeightsError> {
        Ok(Vec::new())
    }

    /// Verifies data outside of arrays, such as a hash of the whole file.
    fn check(&self) -> Result<(), WeightsError> {
        Ok(())
    }
}

/// A format reader's view of a file.
struct Opened {
    format: Format,
    entries: Vec<Entry>,
    reader: Box<dyn Reader>,
    /// Names of values in the file that are not arrays.
    left_out: Vec<String>,
    /// Arrays in the order in which their framework numbers a model's variables; empty if the file does not record it.
    order: Vec<String>,
}

/// Measurements over all elements of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Look {
    /// CRC-32C of its bytes, little-endian and row-major: the same in every format. Strings are preceded by their
    /// length (u64, little-endian).
    pub crc32c: u32,
    /// The number of NaNs and infinities, for f16, bf16, f32 and f64.
    pub n_not_finite: u64,
}

/// Opens a file that an index names. It must not be an index itself, which could name itself.
fn open_shard(path: &Path) -> Result<WeightsFile, WeightsError> {
    let region = Region::open(path)?;
    let head = region.read(0, region.n_bytes().min(16), "the file")?;
    if head.first() == Some(&b'{') && !safetensors::is_head(&head) {
        let message = "an index names it as a file of weights, and it is an index in JSON itself";
        return Err(WeightsError::format(path, message).help("name the files of weights in one index"));
    }
    open::sorted(path, open::open_as_found(path)?)
}

impl WeightsFile {
    /// The file, by the user's name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The arrays, by name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Names of values in the file that are not arrays, such as a number of epochs: only some if there are many.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Names of arrays in the order in which their framework numbers a model's variables and their optimizer state: for
    /// PyTorch the order in the file, for Keras the order of the model's layers. Empty if the file does not record it.
    pub fn order(&self) -> &[String] {
        &self.order
    }

    /// The array with this name, or the only one that has it as an alias.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.position(name).map(|idx| &self.entries[idx])
    }

    fn position(&self, name: &str) -> Option<usize> {
        if let Ok(idx) = self.entries.binary_search_by(|entry| entry.name.as_str().cmp(name)) {
            return Some(idx);
        }
        let has_it = |entry: &Entry| entry.aliases.iter().any(|alias| alias == name);
        let mut matches = (0..self.entries.len()).filter(|&idx| has_it(&self.entries[idx]));
        matches.next().filter(|_| matches.next().is_none())
    }

    fn expect(&self, name: &str) -> Result<(usize, &Entry), WeightsError> {
        if let Some(idx) = self.position(name) {
            return Ok((idx, &self.entries[idx]));
        }
        let error = WeightsError::new(WeightsErrorKind::NoArray, &self.path, format!("there is no array `{name}`"));
        Err(match nearest(name, self.entries.iter().map(|entry| entry.name.as_str())) {
            Some(near) => error.help(format!("did you mean `{near}`?")),
            None => error.help(format!("`bf16scope weights {}` lists what there is", self.path.display())),
        })
    }

    /// Reads a whole array.
    ///
    /// # Errors
    /// No such array; an array of strings; a file that is truncated or damaged there.
    pub fn read(&self, name: &str) -> Result<Literal, WeightsError> {
        let (idx, entry) = self.expect(name)?;
        let Some(shape) = entry.shape() else {
            let message = format!("array `{name}` is of {}; expected numbers", entry.dtype);
            return Err(WeightsError::new(WeightsErrorKind::DType, &self.path, message));
        };
        let mut bytes = Vec::new();
        self.reader.pass(idx, entry, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        self.check_length(entry, bytes.len() as u64)?;
        self.check_bools(entry, 0, &bytes)?;
        Ok(Literal::Array { shape, bytes })
    }

    /// The strings of an array of strings.
    ///
    /// # Errors
    /// Those of [`read`](WeightsFile::read); an array of numbers.
    pub fn texts(&self, name: &str) -> Result<Vec<Vec<u8>>, WeightsError> {
        let (idx, entry) = self.expect(name)?;
        if entry.dtype != WeightsDType::Text {
            let message = format!("array `{name}` is of {}; expected strings", entry.dtype);
            return Err(WeightsError::new(WeightsErrorKind::DType, &self.path, message));
        }
        self.reader.texts(idx, entry)
    }

    /// Measures all elements of an array, holding only a few at a time if the format allows it.
    ///
    /// # Errors
    /// Those of [`read`](WeightsFile::read).
    pub fn look(&self, name: &str) -> Result<Look, WeightsError> {
        let (idx, entry) = self.expect(name)?;
        let mut look = Look::default();
        let Some(dtype) = entry.dtype.array() else {
            if entry.dtype != WeightsDType::Text {
                return Ok(look);
            }
            for text in self.reader.texts(idx, entry)? {
                look.crc32c = crc32c::crc32c_append(look.crc32c, &(text.len() as u64).to_le_bytes());
                look.crc32c = crc32c::crc32c_append(look.crc32c, &text);
            }
            return Ok(look);
        };
        let mut n_bytes = 0u64;
        self.reader.pass(idx, entry, &mut |piece| {
            look.crc32c = crc32c::crc32c_append(look.crc32c, piece);
            look.n_not_finite += n_not_finite(dtype, piece);
            self.check_bools(entry, n_bytes, piece)?;
            n_bytes += piece.len() as u64;
            Ok(())
        })?;
        self.check_length(entry, n_bytes)?;
        Ok(look)
    }

    /// Verifies data outside of arrays: the hash of one of our checkpoints.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn check(&self) -> Result<(), WeightsError> {
        self.reader.check()
    }

    /// Refuses bools that are neither 0 nor 1, which programs read differently; `first` is the first element's number.
    fn check_bools(&self, entry: &Entry, first: u64, piece: &[u8]) -> Result<(), WeightsError> {
        if entry.dtype != WeightsDType::Array(DType::Pred) {
            return Ok(());
        }
        let Some(at) = piece.iter().position(|&byte| byte > 1) else { return Ok(()) };
        let (name, nth) = (&entry.name, first + at as u64);
        let message = format!("array `{name}` is of bools, and element {nth} is {}; expected 0 or 1", piece[at]);
        let error = WeightsError::new(WeightsErrorKind::Damaged, &self.path, message);
        Err(error.help("write it with 0 and 1, or as integers"))
    }

    fn check_length(&self, entry: &Entry, measured: u64) -> Result<(), WeightsError> {
        if measured == entry.n_bytes {
            return Ok(());
        }
        let message = format!("array `{}` holds {measured} bytes; expected {}", entry.name, entry.n_bytes);
        Err(WeightsError::new(WeightsErrorKind::Damaged, &self.path, message).help("copy or save the file again"))
    }
}

impl fmt::Debug for WeightsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WeightsFile { path, format, entries, reader: _, left_out: _, order: _ } = self;
        f.debug_struct("WeightsFile").field("path", path).field("format", format).field("entries", entries).finish()
    }
}

/// NaNs and infinities of floats of 16 to 64 bits. A piece consists of whole elements.
fn n_not_finite(dtype: DType, piece: &[u8]) -> u64 {
    struct NotFinite<'a>(&'a [u8]);
    impl FloatVisitor for NotFinite<'_> {
        type Output = u64;

        // A loop for each type, which vectorises.
        fn visit<T: Float>(self) -> u64 {
            T::chunks(self.0).iter().filter(|bytes| !T::from_le(**bytes).is_finite()).count() as u64
        }
    }
    dtype.visit_float(NotFinite(piece)).unwrap_or(0)
}
