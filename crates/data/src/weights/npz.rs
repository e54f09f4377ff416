//! Arrays of an `.npz` archive; `data::npz` reads them.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::region::{PIECE, Sink};
use super::{Entry, Format, MAX_RANK, Opened, Reader, WeightsError, WeightsErrorKind, too_much};
use crate::npz::NpzReader;
use crate::{DataError, DataErrorKind};

struct Archive(Mutex<NpzReader>);

/// Opens an archive and reads the header of every array.
pub(super) fn open(path: &Path) -> Result<Opened, WeightsError> {
    let wrong = |error| of_data(path, error);
    let mut npz = NpzReader::open(path).map_err(wrong)?;
    let names: Vec<String> = npz.names().map(str::to_string).collect();
    let mut entries = Vec::new();
    for name in names {
        let Some(array) = npz.entry(&name).map_err(wrong)? else { continue };
        let header = &array.header;
        let dims: Vec<u64> = header.dims.iter().map(|&dim| dim.unsigned_abs()).collect();
        let dtype = header.dtype().ok_or_else(|| {
            let message =
                format!("array `{name}` is {header}; expected bool, integers, floats of 16 to 64 bits or complex");
            let help = match (header.kind, header.width) {
                // NumPy saves every 8-bit dtype of ml_dtypes under the same type.
                ('V' | 'f', 1) => "NumPy does not write which fp8 it is: save it with .astype('f4'), or as safetensors",
                _ => "leave it out, or save it as another type",
            };
            WeightsError::new(WeightsErrorKind::DType, path, message).help(help)
        })?;
        entries.push(Entry::new(name.clone(), dtype, dims.clone()).ok_or_else(|| {
            let message = match dims.len() > MAX_RANK {
                true => format!("array `{name}` {}", too_much(&dims)),
                false => {
                    format!("array `{name}` says it is {header}; expected sizes that multiply to 2^63 bytes at most")
                }
            };
            WeightsError::new(WeightsErrorKind::Damaged, path, message).help("copy it again")
        })?);
    }
    Ok(Opened {
        format: Format::Npz,
        entries,
        reader: Box::new(Archive(Mutex::new(npz))),
        left_out: Vec::new(),
        order: Vec::new(),
    })
}

impl Reader for Archive {
    fn pass(&self, _idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let mut npz = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let path = npz.path().to_path_buf();
        let array = npz.entry(&entry.name).map_err(|error| of_data(&path, error))?;
        let Some(array) = array else { return Ok(()) };
        let bytes = array.read().map_err(|error| of_data(&path, error))?;
        bytes.chunks(PIECE).try_for_each(sink)
    }
}

/// Converts an error of `data`, which names the file and has a remedy.
fn of_data(path: &Path, error: DataError) -> WeightsError {
    let kind = match error.kind() {
        DataErrorKind::Read => WeightsErrorKind::Read,
        DataErrorKind::Format => WeightsErrorKind::Format,
        DataErrorKind::TooLarge => WeightsErrorKind::TooLarge,
        DataErrorKind::Mismatch => WeightsErrorKind::DType,
        _ => WeightsErrorKind::Damaged,
    };
    WeightsError::new(kind, path, "the archive cannot be read").because(error)
}
