//! Writes predictions: `.npz`, CSV, JSON, PNG. Numbers in text are the shortest that read back unchanged.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Number, Value};

use super::pictures;
use crate::arrays;
use crate::emit::check_kind;
use bf16scope_data::NamedArray;
use bf16scope_data::npz::NpzWriter;
use bf16scope_files::Replacement;
use bf16scope_hlo::{ArrayShape, DType, Element};

/// The format of a file of predictions.
#[derive(Clone, Copy)]
pub(super) enum PredictionFormat {
    Npz,
    Csv,
    Json,
    Png,
}

impl PredictionFormat {
    /// By the file's extension.
    pub(super) fn from_path(path: &Path) -> anyhow::Result<PredictionFormat> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npz") => Ok(PredictionFormat::Npz),
            Some("csv") => Ok(PredictionFormat::Csv),
            Some("json") => Ok(PredictionFormat::Json),
            Some("png") => Ok(PredictionFormat::Png),
            _ => bail!(
                "-o {}: predictions are not written in this form; expected .npz, .csv, .json or .png\nhelp: .npz has all \
                 predictions as arrays, .csv and .json have them as text, .png has pictures",
                path.display()
            ),
        }
    }
}

/// A file being written, beside the file that it will replace.
pub(super) enum Output {
    Npz(Box<NpzWriter>),
    Other { path: PathBuf, file: BufWriter<Replacement>, kind: PredictionFormat },
}

impl Output {
    pub(super) fn begin(path: &Path, kind: PredictionFormat) -> anyhow::Result<Output> {
        if let PredictionFormat::Npz = kind {
            check_kind(path, b"PK", ".npz archive")?;
            return Ok(Output::Npz(Box::new(NpzWriter::create(path)?)));
        }
        let file = Replacement::begin(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Output::Other { path: path.to_path_buf(), file: BufWriter::new(file), kind })
    }

    /// Writes everything, and moves the file into place. JSON is `head` with the predictions added.
    pub(super) fn finish(self, head: &Value, all: &[NamedArray]) -> anyhow::Result<()> {
        match self {
            Output::Npz(mut npz) => {
                for NamedArray { name, dtype, dims, bytes } in all {
                    arrays::write(&mut npz, name, &ArrayShape::new(*dtype, dims.clone()), bytes, false)?;
                }
                Ok(npz.finish()?)
            }
            Output::Other { path, mut file, kind } => {
                let bytes = match kind {
                    PredictionFormat::Png => pictures::grid(all)?,
                    PredictionFormat::Csv => as_csv(all)?.into_bytes(),
                    PredictionFormat::Json | PredictionFormat::Npz => {
                        let mut object = head.clone();
                        object["predictions"] = as_json(all)?;
                        (serde_json::to_string(&object)? + "\n").into_bytes()
                    }
                };
                let write = || {
                    file.write_all(&bytes)?;
                    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.finish()
                };
                write().with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }
}

/// Arrays by name, nested as their dims are.
pub(super) fn as_json(all: &[NamedArray]) -> anyhow::Result<Value> {
    let named = all.iter().map(|array| Ok((array.name.clone(), nested(array)?)));
    Ok(Value::Object(named.collect::<anyhow::Result<_>>()?))
}

/// A line of titles (`classes`, `logits.0`, `logits.1`), then one for each example.
fn as_csv(all: &[NamedArray]) -> anyhow::Result<String> {
    let mut titles = Vec::new();
    let mut columns = Vec::new();
    let n = all.first().map_or(0, |array| array.dims[0].unsigned_abs() as usize);
    for array in all {
        let per_row: i64 = array.dims[1..].iter().product();
        let per_row = per_row.unsigned_abs() as usize;
        titles.extend((0..per_row).map(|place| title(array, place)));
        columns.push(per_row);
    }
    let mut text = titles.join(",") + "\n";
    for row in 0..n {
        let mut cells = Vec::with_capacity(titles.len());
        for (array, per_row) in all.iter().zip(&columns) {
            let width = array.dtype.n_bytes();
            let bytes = &array.bytes[row * per_row * width..][..per_row * width];
            for element in bytes.chunks_exact(width) {
                cells.push(number(array, element)?.to_string());
            }
        }
        text += &cells.join(",");
        text.push('\n');
    }
    Ok(text)
}

/// `logits.3.5` for an element of each example; the name alone for a scalar.
fn title(array: &NamedArray, place: usize) -> String {
    let mut rest = place;
    let mut at: Vec<String> = Vec::new();
    for dim in array.dims[1..].iter().rev().map(|dim| dim.unsigned_abs() as usize) {
        at.push((rest % dim).to_string());
        rest /= dim;
    }
    at.push(array.name.clone());
    at.reverse();
    at.join(".")
}

/// An array's numbers, nested as its dims are.
pub(super) fn nested(array: &NamedArray) -> anyhow::Result<Value> {
    fn nest(array: &NamedArray, dims: &[i64], bytes: &[u8]) -> anyhow::Result<Value> {
        let [n, inner @ ..] = dims else { return number(array, bytes) };
        let n_bytes = (bytes.len() / n.unsigned_abs().max(1) as usize).max(1);
        bytes.chunks_exact(n_bytes).map(|bytes| nest(array, inner, bytes)).collect()
    }
    nest(array, &array.dims, &array.bytes)
}

/// One element.
fn number(array: &NamedArray, bytes: &[u8]) -> anyhow::Result<Value> {
    let float = |value: f32| {
        let shortest = value.to_string().parse().unwrap_or(f64::NAN);
        // Readers may parse as f64 and round again.
        let number = if shortest as f32 == value { shortest } else { f64::from(value) };
        Number::from_f64(number).map_or(Value::Null, Value::Number)
    };
    Ok(match array.dtype {
        DType::F32 => float(f32::read(bytes)),
        DType::S32 => i32::read(bytes).into(),
        DType::BF16 => float(half::bf16::read(bytes).to_f32()),
        DType::Pred => bool::read(bytes).into(),
        DType::F64 => f64::read(bytes).into(),
        dtype => bail!("`{}` is {dtype}, which has no text here\nhelp: write it with -o FILE.npz", array.name),
    })
}
