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
mod npz;
mod region;
pub mod safetensors;
#[cfg(test)]
mod tests;
mod torch;
mod write;

pub use error::{WeightsError, WeightsErrorKind};
pub use write::{WrittenArray, WrittenFormat, write, write_each};

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use self::region::{Region, Sink};
use bf16scope_files as files;
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

/// Opens a file of weights, or a folder of them, and reads its list of arrays.
///
/// # Errors
/// A file that cannot be opened, is damaged, or has an unsupported format: the error names it, and what to do.
pub fn open(path: impl AsRef<Path>) -> Result<WeightsFile, WeightsError> {
    let path = path.as_ref();
    sorted(path, open_as_found(path)?)
}

/// Opens a file that an index names. It must not be an index itself, which could name itself.
fn open_shard(path: &Path) -> Result<WeightsFile, WeightsError> {
    let region = Region::open(path)?;
    let head = region.read(0, region.n_bytes().min(16), "the file")?;
    if head.first() == Some(&b'{') && !safetensors::is_head(&head) {
        let message = "an index names it as a file of weights, and it is an index in JSON itself";
        return Err(WeightsError::format(path, message).help("name the files of weights in one index"));
    }
    sorted(path, open_as_found(path)?)
}

/// The file with its arrays sorted by name; a duplicate name is an error.
fn sorted(path: &Path, opened: Opened) -> Result<WeightsFile, WeightsError> {
    let Opened { format, entries, reader, left_out, order: numbered } = opened;
    let mut names = BTreeMap::new();
    for (idx, entry) in entries.iter().enumerate() {
        if names.insert(entry.name.as_str(), idx).is_some() {
            let message = format!("array `{}` is there twice; expected once", entry.name);
            return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).help("leave one out"));
        }
    }
    let mut order: Vec<usize> = names.into_values().collect();
    order.sort_by(|&left, &right| entries[left].name.cmp(&entries[right].name));
    let entries = order.iter().map(|&idx| entries[idx].clone()).collect();
    let reader = Box::new(Ordered { order, inner: reader });
    Ok(WeightsFile { path: path.to_path_buf(), format, entries, reader, left_out, order: numbered })
}

fn open_as_found(path: &Path) -> Result<Opened, WeightsError> {
    if path.is_dir() {
        return open_folder(path);
    }
    // A bundle is named by its prefix, without `.index`; there is no file of that name.
    let index = bundle::index_of(path);
    if !path.exists() && index.exists() {
        return bundle::open(&Region::open(&index)?, Format::TensorFlow);
    }
    let region = Region::open(path)?;
    let head = region.read(0, region.n_bytes().min(16), "the file")?;
    match head.as_slice() {
        [] => {
            Err(WeightsError::format(path, "an empty file; expected a file of weights").help("copy or save it again"))
        }
        [b'P', b'K', 3 | 5, 4 | 6, ..] => open_zip(path),
        _ if head.starts_with(&hdf5::MAGIC) => hdf5::open(region, Format::Hdf5),
        [0x80, 2..=5, ..] => Err(of_pickle(path, &head)),
        // Checked first, because the length of its header may begin with the byte of JSON's brace.
        _ if safetensors::is_head(&head) => safetensors::open(region),
        [b'{', ..] => safetensors::open_sharded(path),
        _ if bundle::is_table(&region)? || path.extension().is_some_and(|extension| extension == "index") => {
            bundle::open(&region, Format::TensorFlow)
        }
        _ => Err(not_weights(path, &head)),
    }
}

/// Opens an archive: Keras', PyTorch's, or NumPy's.
fn open_zip(path: &Path) -> Result<Opened, WeightsError> {
    let open = || files::open(path).map_err(|cause| WeightsError::open(path, cause));
    // Leaves the error for an invalid archive to NumPy's reader.
    if !files::has_zip_end(&open()?).map_err(|cause| WeightsError::read(path, cause))? {
        return npz::open(path);
    }
    let Ok(zip) = zip::ZipArchive::new(std::io::BufReader::new(open()?)) else { return npz::open(path) };
    let flaw = crate::npz::flaw(open()?, zip.central_directory_start());
    if let Some(message) = flaw.map_err(|cause| WeightsError::read(path, cause))? {
        return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).help("save it again: one is another's"));
    }
    if zip.index_for_name(hdf5::KERAS_MEMBER).is_some() {
        return hdf5::open_keras(path, zip);
    }
    match torch::root(&zip) {
        Some(root) => torch::open(path, zip, &root),
        None => npz::open(path),
    }
}

/// The first bytes of PyTorch's older files: a pickled long number.
const OLD_TORCH: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c";

fn of_pickle(path: &Path, head: &[u8]) -> WeightsError {
    match head.starts_with(OLD_TORCH) {
        true => WeightsError::unsupported(path, "a file of PyTorch before 1.6 (a pickle), which is not read").help(
            "load and save it again with a newer PyTorch: torch.save(torch.load(FILE, map_location=\"cpu\"), NEW)",
        ),
        false => WeightsError::unsupported(path, "a Python pickle, which may run anything, and is not read")
            .help("where it is trusted, load it in Python and save its arrays: numpy.savez(FILE, **arrays)"),
    }
}

/// Opens a folder, whose files determine the format.
fn open_folder(folder: &Path) -> Result<Opened, WeightsError> {
    let variables = folder.join("variables/variables.index");
    if folder.join("saved_model.pb").exists() || variables.exists() {
        return bundle::open(&Region::open(&variables)?, Format::SavedModel);
    }
    // Orbax also has a file called `checkpoint`.
    if let Some(item) = orbax_item(folder) {
        let message = "a checkpoint of Orbax, which is not read";
        return Err(WeightsError::unsupported(folder, message).help(from_orbax(&item)));
    }
    let state = folder.join("checkpoint");
    if state.exists() {
        let name = latest(&state)?;
        let mut index = bundle::index_of(&folder.join(&name));
        // TensorFlow may write absolute paths, and the folder may have moved since.
        if let (false, Some(file)) = (index.exists(), Path::new(&name).file_name()) {
            index = bundle::index_of(&folder.join(file));
        }
        if !index.exists() {
            let message =
                format!("it says that the latest checkpoint is `{name}`, and there is no {}", index.display());
            let help = "name the checkpoint that is there, with or without `.index`";
            return Err(WeightsError::new(WeightsErrorKind::NoShard, &state, message).help(help));
        }
        return bundle::open(&Region::open(&index)?, Format::TensorFlow);
    }
    let known =
        ["model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"];
    match known.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
        Some(path) => open_as_found(&path),
        None => {
            let message = "a folder without weights that are known: no `checkpoint`, no saved_model.pb, no \
                         model.safetensors, no pytorch_model.bin";
            Err(WeightsError::format(folder, message).help("name a file of weights in it"))
        }
    }
}

/// The largest size of a `checkpoint` file, which lists the names of the kept checkpoints.
const MAX_STATE: u64 = 1 << 20;

/// The name of the latest checkpoint in TensorFlow's file `checkpoint` (`CheckpointState` as text).
fn latest(state: &Path) -> Result<String, WeightsError> {
    let text = files::read_text(state, MAX_STATE).map_err(|cause| WeightsError::open(state, cause))?;
    let value = text.lines().find_map(|line| line.trim().strip_prefix("model_checkpoint_path:"));
    let value = value.map(str::trim).and_then(|value| value.strip_prefix('"')?.strip_suffix('"'));
    value.map(str::to_string).ok_or_else(|| {
        let message = "the file does not say `model_checkpoint_path: \"NAME\"`, as TensorFlow's does";
        WeightsError::format(state, message).help("name a checkpoint in this folder, with or without `.index`")
    })
}

/// The folder of Orbax' arrays: the folder itself, or an item in it (`default` first), or the step with the largest
/// number, as `CheckpointManager` writes them.
fn orbax_item(folder: &Path) -> Option<PathBuf> {
    let has_arrays = |folder: &Path| ["_METADATA", "manifest.ocdbt"].iter().any(|name| folder.join(name).exists());
    let in_step = |folder: &Path| {
        let mut items = files::folders_in(folder);
        items.sort_by_key(|item| (!item.ends_with("default"), item.clone()));
        items.into_iter().find(|item| has_arrays(item))
    };
    if has_arrays(folder) {
        return Some(folder.to_path_buf());
    }
    if folder.join("_CHECKPOINT_METADATA").exists() || folder.join("default").is_dir() {
        let item = in_step(folder);
        return item.or_else(|| folder.join("_CHECKPOINT_METADATA").exists().then(|| folder.to_path_buf()));
    }
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u64>().ok();
    let newest = files::folders_in(folder).into_iter().filter_map(|step| Some((number(&step)?, step))).max()?;
    if has_arrays(&newest.1) { Some(newest.1) } else { in_step(&newest.1) }
}

/// A path as a Python string within a shell's double quotes.
fn in_python(path: &Path, else_called: &str) -> String {
    let shown = path.display().to_string();
    let is_plain = !shown.contains(['\'', '"', '\\', '`', '$', '!']) && !shown.contains(char::is_control);
    format!("'{}'", if is_plain { &shown } else { else_called })
}

/// The command that converts an Orbax checkpoint to arrays by name, for a user who has JAX. Tested with Orbax 0.12.8,
/// which requires absolute paths.
fn from_orbax(item: &Path) -> String {
    format!(
        "where it was written, save its arrays by name: python -c \"import numpy, os, jax, orbax.checkpoint as o; leaves = \
         jax.tree_util.tree_leaves_with_path(o.PyTreeCheckpointer().restore(os.path.abspath({}))); \
         numpy.savez('weights.npz', **{{jax.tree_util.keystr(k, simple=True, separator='/'): numpy.asarray(v) for k, v in \
         leaves}})\"",
        in_python(item, "FOLDER")
    )
}

/// The same for a Flax file. Tested with Flax 0.12.8.
fn from_flax(path: &Path) -> String {
    format!(
        "save its arrays by name: python -c \"import numpy, flax.serialization as s, flax.traverse_util as t; \
         numpy.savez('weights.npz', **t.flatten_dict(s.msgpack_restore(open({}, 'rb').read()), sep='/'))\"",
        in_python(path, "FILE")
    )
}

/// Whether a file begins with a MessagePack map whose first key is a text, as Flax writes parameters.
fn is_msgpack(head: &[u8]) -> bool {
    let rest = match head {
        [0x81..=0x8f, rest @ ..] => rest,
        [0xde, _, _, rest @ ..] => rest,
        [0xdf, _, _, _, _, rest @ ..] => rest,
        _ => return false,
    };
    matches!(rest, [0xa1..=0xbf | 0xd9..=0xdb, ..])
}

/// Other formats for weights: their first bytes, their names, and what to do about them.
const OTHERS: &[(&[u8], &str, &str)] = &[
    (b"\x93NUMPY", "one array of NumPy (.npy)", "save it under its variable's name: np.savez(FILE, **{NAME: x})"),
    (b"GGUF", "a GGUF file", "take the safetensors or torch files that it was converted from"),
    (b"\x1f\x8b", "compressed (gzip)", "unpack it first: `gunzip FILE`"),
];

fn not_weights(path: &Path, head: &[u8]) -> WeightsError {
    let known = OTHERS.iter().find(|(start, ..)| head.starts_with(start));
    match known {
        Some((_, what, help)) => {
            WeightsError::unsupported(path, format!("{what}, which is not read as weights")).help(*help)
        }
        None if is_msgpack(head) => {
            let message = "a dict in MessagePack, as Flax writes parameters, which is not read";
            WeightsError::unsupported(path, message).help(from_flax(path))
        }
        None => {
            let shown = &head[..head.len().min(8)];
            let message = format!("no file of weights that is known: it begins with {shown:02x?}");
            WeightsError::format(path, message).help(READ)
        }
    }
}

/// The supported formats, as a remedy.
const READ: &str = "name a checkpoint of TensorFlow (with or without .index, or its folder), Keras' .h5 or .keras, PyTorch's \
     .pt or .bin, an .npz archive, a .safetensors file or the index of several, or a checkpoint of bf16scope";

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
        let mut n_bytes = 0;
        self.reader.pass(idx, entry, &mut |piece| {
            look.crc32c = crc32c::crc32c_append(look.crc32c, piece);
            look.n_not_finite += n_not_finite(dtype, piece);
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

/// NaNs and infinities: elements whose exponent is all ones. A piece consists of whole elements.
fn n_not_finite(dtype: DType, piece: &[u8]) -> u64 {
    let count = |width: usize, mask: u64| {
        let bits = |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, &byte| (bits << 8) | u64::from(byte));
        piece.chunks_exact(width).filter(|chunk| bits(chunk) & mask == mask).count() as u64
    };
    match dtype {
        DType::F16 => count(2, 0x7c00),
        DType::BF16 => count(2, 0x7f80),
        DType::F32 => count(4, 0x7f80_0000),
        DType::F64 => count(8, 0x7ff0_0000_0000_0000),
        _ => 0,
    }
}

/// A reader whose arrays were reordered.
struct Ordered {
    order: Vec<usize>,
    inner: Box<dyn Reader>,
}

impl Reader for Ordered {
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        self.inner.pass(self.order[idx], entry, sink)
    }

    fn texts(&self, idx: usize, entry: &Entry) -> Result<Vec<Vec<u8>>, WeightsError> {
        self.inner.texts(self.order[idx], entry)
    }

    fn check(&self) -> Result<(), WeightsError> {
        self.inner.check()
    }
}
