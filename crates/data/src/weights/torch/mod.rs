//! Weights saved by `torch.save`: a zip archive with a pickle, `data.pkl`, and the bytes of each storage, `data/KEY`.
//!
//! The pickle is read as data (`pickle`); nothing in it is executed. A tensor is a view of a storage: an offset, sizes
//! and strides. The archive has a checksum for each member, which is verified when a storage is read.
//!
//! Source: PyTorch's `torch/serialization.py`, `torch/_utils.py` and `caffe2/serialize/inline_container.h`.

mod pickle;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use zip::{CompressionMethod, ZipArchive};

use self::pickle::Tensor;
use super::region::{PIECE, Region, Sink};
use super::{Entry, Format, Opened, Reader, WeightsError, WeightsErrorKind, too_much};
use bf16scope_files::{self as files, ZipError};
use bf16scope_hlo::DType;

/// The largest size of the pickle: names and shapes of a hundred thousand tensors.
const MAX_PICKLE: u64 = 64 << 20;

/// An opened archive.
pub(super) type Zip = ZipArchive<BufReader<File>>;

struct Archive {
    path: PathBuf,
    region: Region,
    zip: Mutex<Zip>,
    /// Members with a verified checksum: a storage with many views is read whole only once.
    checked: Mutex<BTreeSet<usize>>,
    tensors: Vec<View>,
}

/// A tensor's place: its storage's member, the byte range in the file, and the elements within.
struct View {
    member: usize,
    at: u64,
    n_storage: u64,
    width: usize,
    start: u64,
    dims: Vec<u64>,
    strides: Vec<u64>,
}

/// If an archive has PyTorch's member `NAME/data.pkl`: `NAME/`.
pub(super) fn root(zip: &Zip) -> Option<String> {
    zip.file_names()
        .filter_map(|name| name.strip_suffix("data.pkl"))
        .find(|root| root.ends_with('/'))
        .map(str::to_string)
}

/// Reads the pickle of an archive.
pub(super) fn open(path: &Path, mut zip: Zip, root: &str) -> Result<Opened, WeightsError> {
    if zip.index_for_name(&format!("{root}constants.pkl")).is_some() {
        let help = "save its weights alone: torch.save(torch.jit.load(FILE).state_dict(), NEW)";
        return Err(WeightsError::unsupported(path, "a TorchScript archive, whose code is not read").help(help));
    }
    if zip.index_for_name(&format!("{root}byteorder")).is_some()
        && member(path, &mut zip, &format!("{root}byteorder"), 16)? != b"little"
    {
        let message = "it was written on a big-endian machine, which is not read";
        return Err(WeightsError::unsupported(path, message).help("load and save it again on another machine"));
    }
    // The archive may also contain a user's own folder with such a file.
    let is_other = |other: &&str| !other.contains('/') && format!("{other}/") != root;
    let other = zip.file_names().filter_map(|name| name.strip_suffix("/data.pkl")).find(is_other).map(str::to_string);
    if let Some(other) = other {
        let (root, other) = (root.escape_debug(), other.escape_debug());
        let message = format!("it has two states, `{root}data.pkl` and `{other}/data.pkl`; expected one");
        return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).help("save it again: one is another's"));
    }
    let bytes = member(path, &mut zip, &format!("{root}data.pkl"), MAX_PICKLE)?;
    let state = pickle::read(path, &bytes)?;
    let region = Region::open(path)?;
    let (mut entries, mut tensors) = (Vec::new(), Vec::new());
    for (name, tensor) in state.tensors {
        let key = format!("{root}data/{}", tensor.storage);
        let Some(idx) = zip.index_for_name(&key) else {
            let message = format!("the storage of `{name}`, `{key}`, is missing");
            return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).help("copy or save it again"));
        };
        let (entry, view) = view(path, &mut zip, idx, name, &tensor)?;
        entries.push(entry);
        tensors.push(view);
    }
    // Each tensor that shares a storage may be as large as it, and there may be any number of them.
    let total = entries.iter().fold(0u64, |n, entry: &Entry| n.saturating_add(entry.n_bytes));
    if files::is_bomb(region.n_bytes(), total) {
        let message = format!(
            "its tensors have {total} bytes, in a file of {}; expected at most {} times as many beyond {} bytes",
            region.n_bytes(),
            files::MAX_UNPACKED_RATIO,
            files::UNPACKED_WITHOUT_QUESTION
        );
        let error = WeightsError::new(WeightsErrorKind::TooLarge, path, message);
        return Err(error.help("save each tensor once, or as `tensor.clone()`"));
    }
    // A state with several parameter groups is numbered group by group, unlike the order of modules.
    let order = match state.has_groups {
        true => Vec::new(),
        false => entries.iter().map(|entry: &Entry| entry.name.clone()).collect(),
    };
    let (path, checked) = (path.to_path_buf(), Mutex::new(BTreeSet::new()));
    let reader = Archive { path, region, zip: Mutex::new(zip), checked, tensors };
    Ok(Opened { format: Format::Torch, entries, reader: Box::new(reader), left_out: state.left_out, order })
}

/// A tensor as a view of its storage, checked to be within it.
fn view(path: &Path, zip: &mut Zip, idx: usize, name: String, tensor: &Tensor) -> Result<(Entry, View), WeightsError> {
    let file = zip.by_index(idx).map_err(|error| broken(path, error))?;
    if file.compression() != CompressionMethod::Stored {
        let message = format!("the storage of `{name}` is compressed ({}), as PyTorch writes none", file.compression());
        return Err(WeightsError::unsupported(path, message).help("save it again with torch.save"));
    }
    let (at, n_bytes) = (file.data_start(), file.size());
    let width = tensor.dtype.n_bytes();
    let damaged = |message: String| WeightsError::damaged(path, at, format!("tensor `{name}` {message}"));
    if tensor.n_storage != n_bytes {
        let expected = tensor.n_storage;
        return Err(damaged(format!("is in a storage of {n_bytes} bytes; expected {expected}, as the pickle says")));
    }
    let entry = Entry::new(name.clone(), tensor.dtype, tensor.dims.clone());
    let entry = entry.ok_or_else(|| damaged(too_much(&tensor.dims)))?;
    let n_elements = entry.n_elements();
    if n_elements > 0 {
        let last = tensor
            .dims
            .iter()
            .zip(&tensor.strides)
            .try_fold(tensor.start, |at, (&dim, &stride)| at.checked_add((dim - 1).checked_mul(stride)?));
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(width as u64));
        if end.is_none_or(|end| end > n_bytes) {
            return Err(damaged(format!("is not within its storage of {n_bytes} bytes")));
        }
    }
    if entry.n_bytes > n_bytes {
        let message = format!("tensor `{name}` repeats the elements of a smaller storage (expand), which is not read");
        return Err(WeightsError::unsupported(path, message).help("save it as `tensor.clone()`"));
    }
    let (dims, strides) = (tensor.dims.clone(), tensor.strides.clone());
    Ok((entry, View { member: idx, at, n_storage: n_bytes, width, start: tensor.start, dims, strides }))
}

fn member(path: &Path, zip: &mut Zip, name: &str, limit: u64) -> Result<Vec<u8>, WeightsError> {
    let file = zip.by_name(name).map_err(|error| broken(path, error))?;
    if file.compression() != CompressionMethod::Stored {
        let message = format!("its `{name}` is compressed ({}), as PyTorch writes none", file.compression());
        return Err(WeightsError::unsupported(path, message).help("save it again with torch.save"));
    }
    let mut bytes = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|cause| {
        WeightsError::new(WeightsErrorKind::Damaged, path, format!("`{name}` cannot be read")).because(cause)
    })?;
    match bytes.len() as u64 > limit {
        true => Err(WeightsError::too_large(path, &format!("`{name}`"), bytes.len() as u64, limit)),
        false => Ok(bytes),
    }
}

pub(super) fn broken(path: &Path, error: zip::result::ZipError) -> WeightsError {
    let message = "the zip archive cannot be read: it was cut off, or is damaged";
    WeightsError::new(WeightsErrorKind::Damaged, path, message).because(ZipError::new(error)).help("copy it again")
}

impl View {
    /// Whether the elements are contiguous in row-major order.
    fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let is_right = dim == 1 || stride == expected;
            expected *= dim;
            is_right
        })
    }

    /// The elements in row-major order, from a storage's bytes from element `first` on.
    fn gather(&self, storage: &[u8], first: u64) -> Vec<u8> {
        let n: u64 = self.dims.iter().product();
        let mut out = Vec::with_capacity(n as usize * self.width);
        let mut at = vec![0; self.dims.len()];
        for _ in 0..n {
            let place = at.iter().zip(&self.strides).fold(self.start, |place, (at, stride)| place + at * stride);
            let place = (place - first) as usize * self.width;
            out.extend_from_slice(&storage[place..place + self.width]);
            for axis in (0..self.dims.len()).rev() {
                at[axis] += 1;
                if at[axis] < self.dims[axis] {
                    break;
                }
                at[axis] = 0;
            }
        }
        out
    }
}

impl Reader for Archive {
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let view = &self.tensors[idx];
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = zip.by_index(view.member).map_err(|error| broken(&self.path, error))?;
        let at = file.data_start();
        let failed = |cause| {
            let message = format!("the storage of `{}` cannot be read", entry.name);
            WeightsError::damaged(&self.path, at, message).because(cause)
        };
        if self.checked.lock().unwrap_or_else(PoisonError::into_inner).contains(&view.member) {
            drop(file);
            drop(zip);
            return self.pass_checked(view, entry, sink);
        }
        if !view.is_dense() {
            let mut storage = Vec::new();
            file.read_to_end(&mut storage).map_err(failed)?;
            self.is_checked(view);
            return view.gather(&storage, 0).chunks(PIECE).try_for_each(sink);
        }
        // The whole storage is read, because its checksum can be compared only at its end.
        let (from, mut to_skip, mut left) = (view.start * view.width as u64, 0, entry.n_bytes);
        let mut piece = vec![0; PIECE];
        to_skip += from;
        loop {
            let n = read_up_to(&mut file, &mut piece).map_err(failed)?;
            if n == 0 {
                self.is_checked(view);
                return Ok(());
            }
            let begin = to_skip.min(n as u64) as usize;
            to_skip -= begin as u64;
            let end = begin + left.min((n - begin) as u64) as usize;
            left -= (end - begin) as u64;
            if begin < end {
                sink(&piece[begin..end])?;
            }
        }
    }
}

impl Archive {
    fn is_checked(&self, view: &View) {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).insert(view.member);
    }

    /// Reads only the tensor's own part of the file: the storage's checksum was verified before.
    fn pass_checked(&self, view: &View, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let what = format!("the storage of `{}`", entry.name);
        let (width, n_elements) = (view.width as u64, entry.n_elements());
        let from = view.start.saturating_mul(width);
        if n_elements == 0 {
            return Ok(());
        }
        if view.is_dense() {
            return self.region.pass(view.at + from, entry.n_bytes, &what, sink);
        }
        let last: u64 = view.dims.iter().zip(&view.strides).map(|(dim, stride)| (dim - 1) * stride).sum();
        let n_bytes = ((last + 1) * width).min(view.n_storage.saturating_sub(from));
        let part = self.region.read(view.at + from, n_bytes, &what)?;
        view.gather(&part, view.start).chunks(PIECE).try_for_each(sink)
    }
}

/// Fills the buffer unless the reader ends, so that pieces end at element boundaries.
fn read_up_to(reader: &mut impl std::io::Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < into.len() {
        match reader.read(&mut into[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n)
}

/// The dtype of PyTorch's storage or tensor type.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "FloatStorage" | "float32" => DType::F32,
        "DoubleStorage" | "float64" => DType::F64,
        "HalfStorage" | "float16" => DType::F16,
        "BFloat16Storage" | "bfloat16" => DType::BF16,
        "LongStorage" | "int64" => DType::S64,
        "IntStorage" | "int32" => DType::S32,
        "ShortStorage" | "int16" => DType::S16,
        "CharStorage" | "int8" => DType::S8,
        "ByteStorage" | "uint8" => DType::U8,
        "BoolStorage" | "bool" => DType::Pred,
        "ComplexFloatStorage" | "complex64" => DType::C64,
        "ComplexDoubleStorage" | "complex128" => DType::C128,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "float8_e5m2" => DType::F8E5M2,
        "float8_e4m3fn" => DType::F8E4M3FN,
        "float8_e5m2fnuz" => DType::F8E5M2FNUZ,
        "float8_e4m3fnuz" => DType::F8E4M3FNUZ,
        "float8_e8m0fnu" => DType::F8E8M0FNU,
        _ => return None,
    })
}
