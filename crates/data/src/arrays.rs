//! Examples in memory: what the readers of CSV, `.npz` and IDX files return.
//!
//! Elements keep the file's dtype, so 60,000 images of bytes take 45 MiB instead of four times that;
//! [`Loader`](super::Loader) casts them batch by batch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::feature::{Feature, n_elements};
use super::source::{ArrayInfo, ColumnSize, Fingerprint, Source};
use crate::error::{DataError, DataErrorKind};
use bf16scope_hlo::element::f64s;
use bf16scope_hlo::{Array, ArrayShape, DType, Shape};
use sha2::{Digest, Sha256};

/// Upper bound on the bytes of one array that a reader takes into memory: it limits a small compressed file that
/// unpacks to something huge.
pub(super) const MAX_BYTES: u64 = 16 << 30;

/// Named arrays of the same number of examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrays {
    /// The files that the arrays were read from, for errors.
    files: Vec<PathBuf>,
    infos: Vec<ArrayInfo>,
    /// For each array, the elements of all examples.
    bytes: Vec<Vec<u8>>,
    n_examples: u64,
    /// The first example's number in the file.
    first: u64,
    /// For files with lines: each example that is not on the line after the previous example's, and its line.
    lines: Vec<(u64, u64)>,
    /// For tables, by array: the column of each element that is its number as it is, by name and number in the file.
    columns: ColumnNames,
}

/// The largest number of elements of an array whose columns are measured.
const MAX_COLUMNS: usize = 4096;

/// The most numbers of an array that are measured: of more, some examples are left out.
const MAX_MEASURED: usize = 1 << 26;

/// Columns by name and number in the file, by array and element.
pub(super) type ColumnNames = BTreeMap<String, Vec<Option<(String, u64)>>>;

impl Arrays {
    /// Builds the source from a program's own arrays, by name; the first axis of each counts the examples.
    ///
    /// ```
    /// use bf16scope_data::Arrays;
    /// use bf16scope_hlo::Array;
    ///
    /// let x = Array::from_vec(vec![0.0f32, 0.5, 1.0, 1.5], [-1, 2])?; // two examples of two numbers
    /// let source = Arrays::from_arrays([("x", x), ("label", vec![0, 1].into())])?;
    /// assert_eq!(source.array("label")?.to_vec::<i32>()?, [0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Arrays::new`]; an array without axes, or whose bytes do not match its shape.
    pub fn from_arrays<N: Into<String>>(arrays: impl IntoIterator<Item = (N, Array)>) -> Result<Arrays, DataError> {
        let file = Path::new("memory");
        let with_info = |(name, Array { shape, bytes }): (N, Array)| {
            let name = name.into();
            match shape.dims.split_first() {
                Some((&n, dims)) => {
                    let info = ArrayInfo::new(&name, shape.dtype, dims);
                    let measured = bytes.len() / example_bytes(&info)?;
                    if measured as i64 != n {
                        return Err(unequal(file, (&name, measured as u64), ("its shape", n.unsigned_abs())));
                    }
                    Ok((info, bytes))
                }
                None => {
                    let shape = Shape::Array(shape).to_string();
                    Err(DataError::mismatch(file, &format!("array `{name}`"), &shape, "examples along its first axis"))
                }
            }
        };
        Arrays::new(file, arrays.into_iter().map(with_info).collect::<Result<_, _>>()?)
    }

    /// One array, with all its examples.
    ///
    /// # Errors
    /// No array has this name.
    pub fn array(&self, name: &str) -> Result<Array, DataError> {
        let idx = self.find(name)?;
        let ArrayInfo { dtype, dims, .. } = &self.infos[idx];
        let dims: Vec<i64> = [self.n_examples as i64].iter().chain(dims).copied().collect();
        Ok(Array { shape: ArrayShape::new(*dtype, dims), bytes: self.bytes[idx].clone() })
    }

    /// Arrays with the bytes of all examples one after another, row-major, little-endian. `file` is where they are from
    /// and appears in errors.
    ///
    /// # Errors
    /// No arrays, or no examples; two arrays with the same name; invalid dims; bytes that are not a whole number of
    /// examples; arrays with different numbers of examples.
    pub fn new(file: impl AsRef<Path>, arrays: Vec<(ArrayInfo, Vec<u8>)>) -> Result<Arrays, DataError> {
        let file = file.as_ref();
        let mut n_examples: Option<(u64, &str)> = None;
        for (idx, (info, bytes)) in arrays.iter().enumerate() {
            if arrays[..idx].iter().any(|(other, _)| other.name == info.name) {
                return Err(two_arrays(file, &info.name));
            }
            let n_bytes = example_bytes(info)?;
            if bytes.len() % n_bytes != 0 {
                let message = format!(
                    "array `{}` has {} bytes, which are not whole examples; expected a multiple of {n_bytes}",
                    info.name,
                    bytes.len()
                );
                return Err(DataError::new(DataErrorKind::Mismatch, file, message));
            }
            let measured = (bytes.len() / n_bytes) as u64;
            match n_examples {
                Some((expected, other)) if expected != measured => {
                    return Err(unequal(file, (&info.name, measured), (other, expected)));
                }
                Some(_) => {}
                None => n_examples = Some((measured, &info.name)),
            }
        }
        let n_examples = n_examples.map_or(0, |(n_examples, _)| n_examples);
        if n_examples == 0 {
            return Err(DataError::empty(file, "no examples; expected one at least"));
        }
        let (infos, bytes) = arrays.into_iter().unzip();
        let (lines, columns) = (Vec::new(), ColumnNames::new());
        Ok(Arrays { files: vec![file.to_owned()], infos, bytes, n_examples, first: 0, lines, columns })
    }

    /// Adds the arrays of `other`, example by example: for labels that are in a separate file.
    ///
    /// # Errors
    /// `other` has another number of examples, or an array whose name is taken.
    pub fn join(self, other: Arrays) -> Result<Arrays, DataError> {
        let file = other.files[0].clone();
        let Arrays { mut files, mut infos, mut bytes, n_examples, first, lines, columns } = self;
        if let Some(two) = other.infos.iter().find(|info| infos.iter().any(|other| other.name == info.name)) {
            return Err(two_arrays(&file, &two.name));
        }
        if other.n_examples != n_examples {
            let first = (&*infos[0].name, n_examples);
            return Err(unequal(&file, (&other.infos[0].name, other.n_examples), first));
        }
        for file in other.files {
            if !files.contains(&file) {
                files.push(file);
            }
        }
        infos.extend(other.infos);
        bytes.extend(other.bytes);
        Ok(Arrays { files, infos, bytes, n_examples, first, lines, columns })
    }

    /// The same arrays; the numbers of `name` are multiplied by `scale` when they are cast.
    ///
    /// # Errors
    /// No array has this name; the scale is NaN, infinite or 0.
    pub fn scaled(mut self, name: &str, scale: f32) -> Result<Arrays, DataError> {
        let idx = self.find(name)?;
        if !scale.is_finite() || scale == 0.0 {
            return Err(DataError::scale(&self.files[0], name, scale));
        }
        self.infos[idx].scale = scale;
        Ok(self)
    }

    /// The same arrays; each example of `name` gets these dims: `[28, 28, 1]` where the file says `[28, 28]`.
    ///
    /// # Errors
    /// No array has this name; the dims have another number of elements.
    pub fn reshaped(mut self, name: &str, dims: impl Into<Vec<i64>>) -> Result<Arrays, DataError> {
        let (idx, dims) = (self.find(name)?, dims.into());
        if n_elements(&dims).is_none() || n_elements(&dims) != n_elements(&self.infos[idx].dims) {
            return Err(DataError::other_dims(&self.files[0], name, &self.infos[idx].dims, &dims));
        }
        self.infos[idx].dims = dims;
        Ok(self)
    }

    /// The same arrays, reshaped to the dims of their features.
    pub(super) fn shaped_as(self, features: &[Feature]) -> Result<Arrays, DataError> {
        features.iter().try_fold(self, |arrays, feature| arrays.reshaped(&feature.name, &feature.dims[..]))
    }

    /// Cuts the last `n_test` examples off, in order: (training, test).
    ///
    /// # Errors
    /// One of the two would be empty.
    pub fn split_tail(mut self, n_test: u64) -> Result<(Arrays, Arrays), DataError> {
        if n_test == 0 || n_test >= self.n_examples {
            return Err(DataError::split(n_test, format!("the data set has {}", self.n_examples), ""));
        }
        let n_train = self.n_examples - n_test;
        let n_examples = self.n_examples as usize;
        let test = Arrays {
            files: self.files.clone(),
            infos: self.infos.clone(),
            bytes: self
                .bytes
                .iter_mut()
                .map(|bytes| bytes.split_off(bytes.len() / n_examples * n_train as usize))
                .collect(),
            n_examples: n_test,
            first: self.first + n_train,
            lines: self.lines.clone(),
            columns: self.columns.clone(),
        };
        self.n_examples = n_train;
        Ok((self, test))
    }

    /// Records the examples that are not on the line after the previous example's; the file has one example per line
    /// otherwise.
    pub(super) fn with_lines(self, lines: Vec<(u64, u64)>) -> Arrays {
        Arrays { lines, ..self }
    }

    /// Records which columns of a table the elements are.
    pub(super) fn with_columns(self, columns: ColumnNames) -> Arrays {
        Arrays { columns, ..self }
    }

    fn find(&self, name: &str) -> Result<usize, DataError> {
        self.infos.iter().position(|info| info.name == name).ok_or_else(|| {
            let names: Vec<String> = self.infos.iter().map(|info| info.name.clone()).collect();
            DataError::no_array(&self.files[0], name, &names)
        })
    }
}

/// Bytes of one example of an array.
fn example_bytes(info: &ArrayInfo) -> Result<usize, DataError> {
    match n_elements(&info.dims) {
        Some(count) => Ok(count * info.dtype.n_bytes()),
        None => Err(DataError::dims(&info.dims)),
    }
}

fn two_arrays(file: &Path, name: &str) -> DataError {
    DataError::new(DataErrorKind::Request, file, format!("two arrays are named `{name}`; expected a name for each"))
}

fn unequal(file: &Path, (name, measured): (&str, u64), (other, expected): (&str, u64)) -> DataError {
    let message = format!("array `{name}` has {measured} examples, `{other}` has {expected}; expected as many of each");
    DataError::new(DataErrorKind::Mismatch, file, message)
}

impl Source for Arrays {
    fn n_examples(&self) -> u64 {
        self.n_examples
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.infos
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        if index >= self.n_examples {
            return Err(DataError::no_example(self.place(index), self.n_examples));
        }
        let slice = |bytes| -> Cow<'_, [u8]> {
            let bytes: &Vec<u8> = bytes;
            let n_bytes = bytes.len() / self.n_examples as usize;
            Cow::Borrowed(&bytes[index as usize * n_bytes..][..n_bytes])
        };
        Ok(self.bytes.iter().map(slice).collect())
    }

    fn columns(&self, array: &str) -> Option<Vec<ColumnSize>> {
        let at = self.infos.iter().position(|info| info.name == array)?;
        let info = &self.infos[at];
        let n = n_elements(&info.dims).filter(|n| *n <= MAX_COLUMNS)?;
        // Only files of text have lines.
        let is_text = !self.lines.is_empty();
        let is_measured = if is_text { info.dtype == DType::F32 } else { info.dims.len() == 1 };
        if !is_measured {
            return None;
        }
        let mut sums = vec![0f64; n];
        let step = (self.n_examples as usize).saturating_mul(n).div_ceil(MAX_MEASURED).max(1);
        for example in self.bytes[at].chunks_exact(n * info.dtype.n_bytes()).step_by(step) {
            let numbers = f64s(info.dtype, example)?;
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number * number);
        }
        let n_before: usize = self.infos[..at].iter().filter_map(|info| n_elements(&info.dims)).sum();
        let size = |(element, sum): (usize, f64)| {
            let (name, number) = match self.columns.get(array) {
                Some(columns) => columns.get(element)?.clone().map(|(name, number)| (Some(name), number))?,
                None if is_text => (None, (n_before + element + 1) as u64),
                None => (None, element as u64 + 1),
            };
            let rms = (sum / self.n_examples.div_ceil(step as u64) as f64).sqrt() * f64::from(info.scale.abs());
            Some(ColumnSize { name, number, is_of_feature: !is_text, rms: rms as f32 })
        };
        Some(sums.into_iter().enumerate().filter_map(size).collect())
    }

    fn place(&self, index: u64) -> String {
        let files = self.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ");
        let example = self.first.saturating_add(index);
        match self.lines.partition_point(|&(first, _)| first <= example).checked_sub(1) {
            Some(run) => {
                let (first, line) = self.lines[run];
                format!("{files}:{}", line + (example - first))
            }
            None => format!("{files}, example {example}"),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        let hash = |(info, bytes): (&ArrayInfo, &Vec<u8>)| {
            let mut hash = Sha256::new();
            hash.update(info.dtype.name());
            for &number in [info.dims.len() as i64].iter().chain(&info.dims) {
                hash.update(number.to_le_bytes());
            }
            hash.update(info.scale.to_le_bytes());
            hash.update(bytes);
            let hex: String = bf16scope_files::hex(hash.finalize());
            (info.name.clone(), hex)
        };
        Fingerprint { n_examples: self.n_examples, arrays: self.infos.iter().zip(&self.bytes).map(hash).collect() }
    }
}

#[cfg(test)]
mod tests;
