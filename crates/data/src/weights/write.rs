//! Writes arrays as a file of weights: each array is requested when its turn comes, so one is in memory at a time.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::path::Path;

use super::bundle::{self, BundleWriter};
use super::safetensors::header::{self, MakeError};
use super::{WeightsError, WeightsErrorKind};
use crate::DataError;
use crate::npz::{Header, NpzWriter};
use bf16scope_files::Replacement;
use bf16scope_hlo::{ArrayShape, DType, Literal};

/// A format that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WrittenFormat {
    /// A NumPy archive. bf16 is written as `ml_dtypes` does it, as a void type of two bytes.
    Npz,
    /// A safetensors file.
    Safetensors,
    /// A TensorFlow tensor bundle, with the path as its prefix: `PATH.index` and `PATH.data-00000-of-00001`. Beside an
    /// older bundle the data file is called `-of-00002` and so on; replacing the index replaces the older bundle.
    TensorFlow,
}

/// An array to write.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenArray {
    /// Its name.
    pub name: String,
    /// Its dtype and dims.
    pub shape: ArrayShape,
}

/// Writes arrays from memory.
///
/// # Errors
/// Those of [`write_each`].
pub fn write(
    path: &Path,
    format: WrittenFormat,
    arrays: impl IntoIterator<Item = (String, Literal)>,
) -> Result<(), WeightsError> {
    let (mut all, mut literals) = (Vec::new(), Vec::new());
    for (name, literal) in arrays {
        let Literal::Array { shape, .. } = &literal else {
            let message = format!("`{name}` is a {}, which no file of weights has", literal.shape());
            return Err(WeightsError::new(WeightsErrorKind::DType, path, message));
        };
        all.push(WrittenArray { name, shape: shape.clone() });
        literals.push(Some(literal));
    }
    write_each(path, format, &all, &mut |idx| Ok(literals[idx].take().expect("each array is asked for once")))
}

/// Writes arrays, calling `read` with each number once, in turn. The file at `path` is unchanged until everything is
/// written.
///
/// # Errors
/// Errors of `read`; an array that the format cannot hold; an error of the operating system, such as a full disk.
pub fn write_each<E: From<WeightsError>>(
    path: &Path,
    format: WrittenFormat,
    arrays: &[WrittenArray],
    read: &mut dyn FnMut(usize) -> Result<Literal, E>,
) -> Result<(), E> {
    let mut names = BTreeSet::new();
    if let Some(array) = arrays.iter().find(|array| !names.insert(&array.name)) {
        let message = format!("two arrays are to be written as `{}`; expected one", array.name);
        return Err(WeightsError::new(WeightsErrorKind::NoArray, path, message).into());
    }
    let mut bytes_of = |idx: usize| -> Result<Vec<u8>, E> {
        let expected = &arrays[idx];
        match read(idx)? {
            Literal::Array { shape, bytes }
                if shape.dims == expected.shape.dims && shape.dtype == expected.shape.dtype =>
            {
                Ok(bytes)
            }
            other => {
                let message = format!("array `{}` is {}; expected {}", expected.name, other.shape(), expected.shape);
                Err(WeightsError::new(WeightsErrorKind::DType, path, message).into())
            }
        }
    };
    match format {
        WrittenFormat::Npz => npz(path, arrays, &mut bytes_of),
        WrittenFormat::Safetensors => safetensors(path, arrays, &mut bytes_of),
        WrittenFormat::TensorFlow => bundle(path, arrays, &mut bytes_of),
    }
}

type Bytes<'a, E> = &'a mut dyn FnMut(usize) -> Result<Vec<u8>, E>;

fn npz<E: From<WeightsError>>(path: &Path, arrays: &[WrittenArray], bytes_of: Bytes<'_, E>) -> Result<(), E> {
    let failed = |error: DataError| {
        WeightsError::new(WeightsErrorKind::Write, path, "the archive cannot be written").because(error)
    };
    let mut headers = Vec::new();
    for WrittenArray { name, shape } in arrays {
        let header = Header::for_dtype(shape.dtype, shape.dims.clone());
        headers.push(match shape.dtype {
            DType::BF16 => Header { kind: 'V', ..header },
            dtype if header.dtype() == Some(dtype) => header,
            dtype => return Err(no_dtype(path, name, dtype, "an .npz archive").into()),
        });
    }
    let mut npz = NpzWriter::create(path).map_err(failed)?;
    for (idx, (array, header)) in arrays.iter().zip(&headers).enumerate() {
        npz.add(&array.name, header, &bytes_of(idx)?).map_err(failed)?;
    }
    Ok(npz.finish().map_err(failed)?)
}

fn safetensors<E: From<WeightsError>>(path: &Path, arrays: &[WrittenArray], bytes_of: Bytes<'_, E>) -> Result<(), E> {
    let failed = |cause| WeightsError::write(path, cause);
    if arrays.iter().any(|array| array.name == "__metadata__") {
        let message = "an array is called `__metadata__`, which safetensors has for itself";
        return Err(WeightsError::new(WeightsErrorKind::Write, path, message).into());
    }
    let shapes: Vec<(&str, &ArrayShape)> = arrays.iter().map(|array| (&*array.name, &array.shape)).collect();
    let texts = HashMap::from([("format".to_string(), "pt".to_string())]);
    let (start, order) = header::make(&shapes, texts).map_err(|error| match error {
        MakeError::NoDType(idx) => no_dtype(path, shapes[idx].0, shapes[idx].1.dtype, "a safetensors file"),
        MakeError::Rule(cause) => {
            WeightsError::new(WeightsErrorKind::Write, path, "the arrays have no safetensors header").because(cause)
        }
    })?;
    let mut file = std::io::BufWriter::new(Replacement::begin(path).map_err(failed)?);
    file.write_all(&start).map_err(failed)?;
    for idx in order {
        file.write_all(&bytes_of(idx)?).map_err(failed)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    Ok(file.finish().map_err(failed)?)
}

fn bundle<E: From<WeightsError>>(path: &Path, arrays: &[WrittenArray], bytes_of: Bytes<'_, E>) -> Result<(), E> {
    for WrittenArray { name, shape } in arrays {
        if name.is_empty() || name.starts_with('\0') || name == bundle::GRAPH {
            let message = format!("an array is called `{}`, which a bundle has for itself", name.escape_default());
            return Err(WeightsError::new(WeightsErrorKind::Write, path, message).into());
        }
        if !BundleWriter::holds(shape.dtype) {
            return Err(no_dtype(path, name, shape.dtype, "a checkpoint of TensorFlow").into());
        }
    }
    let prefix = bundle::prefix(path);
    let mut writer = BundleWriter::create(&prefix)?;
    for (idx, array) in arrays.iter().enumerate() {
        writer.add(&array.name, &array.shape, &bytes_of(idx)?)?;
    }
    Ok(writer.finish()?)
}

fn no_dtype(path: &Path, name: &str, dtype: DType, holder: &str) -> WeightsError {
    let message = format!("array `{name}` is {dtype}, which {holder} does not hold");
    WeightsError::new(WeightsErrorKind::DType, path, message).help("write another format")
}
