//! Examples on disk as arrays for a network: which field each feature is made from, and how.
//!
//! A [`Pipeline`] is the [`Source`] over [`Records`]: it reads a record, extracts each feature's value and transforms
//! it. A transform is a pure function of the value and, in training, of a [`Draw`]; evaluation draws nothing.
//! [`Loader`](super::Loader) does the cast to the compute dtype, last, into the batch's own memory.

mod spec;
mod tensor;

pub use spec::{FeatureSpec, RawType};
use spec::{Scratch, is_image};
pub(crate) use tensor::Tensor;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::feature::{Feature, is_whole, n_elements};
use super::random::Draw;
use super::records::{DIMS, Records, Value, Values};
use super::source::{ArrayInfo, Elements, Fingerprint, Reading, Skipped, Source, Spent, Take};
use super::words::WordTable;
use crate::error::{DataError, DataErrorKind, MAX_LISTED};
use bf16scope_hlo::DType;
use bf16scope_hlo::words::{listed, nearest};
use sha2::{Digest, Sha256};

/// If records may be skipped: how many are tried to find one that shows the kinds of values.
const MAX_FIRST: u64 = 1000;
/// A pixel buffer larger than this is freed after use instead of being reused for the next image.
const MAX_KEPT: usize = 1 << 24;

/// How a pipeline reads. Options do not change the content of examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads that read and transform, one batch ahead; 0 uses the caller's own thread.
    pub n_workers: usize,
    /// How many unreadable examples may be skipped.
    pub n_skipped_max: u64,
}

/// A feature, its spec, and its table of word vectors, if any.
#[derive(Clone, Debug)]
struct Made {
    feature: Feature,
    spec: FeatureSpec,
    table: Option<Arc<WordTable>>,
}

impl Made {
    /// Its name in the records.
    fn key(&self) -> &String {
        self.spec.key.as_ref().unwrap_or(&self.feature.name)
    }
}

/// Class names of image folders.
const LABELS: &str = "labels";

/// Records, as arrays of features.
#[derive(Clone, Debug)]
pub struct Pipeline {
    records: Arc<dyn Records>,
    /// The first record of this source's examples.
    first: u64,
    n_examples: u64,
    features: Vec<Made>,
    infos: Vec<ArrayInfo>,
    n_workers: usize,
    skipped: Arc<Skipped>,
    /// As many as there were threads reading at once.
    scratch: Arc<Mutex<Vec<Scratch>>>,
}

impl Pipeline {
    /// The arrays of `features`, each made as the spec of its name says, or by the default one. The first record shows
    /// the kinds of values; if records may be skipped, the first intact one does.
    ///
    /// # Errors
    /// The first record cannot be read, or lacks a feature.
    pub fn new(
        records: Arc<dyn Records>,
        features: &[Feature],
        specs: &BTreeMap<String, FeatureSpec>,
        options: Options,
    ) -> Result<Pipeline, DataError> {
        let n_examples = records.n_records();
        let spec = |feature: &Feature| specs.get(&feature.name).cloned().unwrap_or_default();
        let specified = |feature: &Feature| -> Result<Made, DataError> {
            let spec = spec(feature);
            let table =
                spec.word_vectors.as_ref().map(|options| WordTable::of_feature(options, feature)).transpose()?;
            Ok(Made { feature: feature.clone(), spec, table: table.map(Arc::new) })
        };
        let features = features.iter().map(specified).collect::<Result<Vec<_>, _>>()?;
        let Options { n_workers, n_skipped_max } = options;
        let (infos, skipped) = (Vec::new(), Arc::new(Skipped::new(n_skipped_max)));
        let scratch = Arc::default();
        let mut pipeline = Pipeline { records, first: 0, n_examples, features, infos, n_workers, skipped, scratch };
        pipeline.find_infos()?;
        Ok(pipeline)
    }

    /// The same features from other records; scales are kept.
    ///
    /// # Errors
    /// Those of [`new`](Pipeline::new).
    pub fn over(&self, records: Arc<dyn Records>) -> Result<Pipeline, DataError> {
        let skipped = Arc::new(Skipped::new(self.skipped.limit()));
        let n_examples = records.n_records();
        let mut pipeline = Pipeline { records, first: 0, n_examples, skipped, ..self.clone() };
        pipeline.find_infos()?;
        for (info, scaled) in pipeline.infos.iter_mut().zip(&self.infos) {
            info.scale = scaled.scale;
        }
        Ok(pipeline)
    }

    /// Determines the arrays' dtypes and dims from the first record.
    fn find_infos(&mut self) -> Result<(), DataError> {
        let first = self.infos_of(0);
        // If records may be skipped, the first intact one; if none is intact, the error of the first.
        let n_tried = self.n_examples.min(self.skipped.limit().saturating_add(1)).min(MAX_FIRST);
        let other = || (1..n_tried).find_map(|index| self.infos_of(index).ok());
        self.infos = first.or_else(|error| other().ok_or(error))?;
        Ok(())
    }

    /// The arrays' dtypes and dims, from one record.
    fn infos_of(&self, index: u64) -> Result<Vec<ArrayInfo>, DataError> {
        let values = self.values(index)?;
        let info = |made: &Made| {
            let value = self.value(&values, index, made)?;
            if let Some(expected) = misfit(made, value) {
                let measured = shown(value);
                return Err(self.mismatch(index, made, &measured, &expected));
            }
            Ok(ArrayInfo::new(&made.feature.name, dtype(made, value), made.feature.dims.clone()))
        };
        self.features.iter().map(info).collect()
    }

    /// The same arrays; the numbers of `name` are multiplied by `scale` when they are cast.
    pub fn scaled(mut self, name: &str, scale: f32) -> Pipeline {
        self.infos.iter_mut().filter(|info| info.name == name).for_each(|info| info.scale = scale);
        self
    }

    /// Cuts the last `n_test` examples off, in order: (training, test).
    ///
    /// # Errors
    /// One of the two would be empty.
    pub fn split_tail(self, n_test: u64) -> Result<(Pipeline, Pipeline), DataError> {
        if n_test == 0 || n_test >= self.n_examples {
            return Err(DataError::split(n_test, format!("the data set has {}", self.n_examples), ""));
        }
        let n_train = self.n_examples - n_test;
        let skipped = Arc::new(Skipped::new(self.skipped.limit()));
        let test = Pipeline { first: self.first + n_train, n_examples: n_test, skipped, ..self.clone() };
        Ok((Pipeline { n_examples: n_train, ..self }, test))
    }

    /// The records.
    pub fn records(&self) -> &Arc<dyn Records> {
        &self.records
    }

    fn values(&self, index: u64) -> Result<Values, DataError> {
        let keys: Vec<&str> = self.features.iter().map(|made| made.key().as_str()).collect();
        self.records.values(self.first + index, Some(&keys))
    }

    fn value<'v>(&self, values: &'v Values, index: u64, made: &Made) -> Result<&'v Value, DataError> {
        let key = made.key();
        match values.get(key) {
            Some(value) => match values.get(&format!("{key}{DIMS}")) {
                Some(Value::Ints(dims)) if !is_arranged(dims, &made.feature.dims) => {
                    let expected = format!("lists as {:?}, or one list", made.feature.dims);
                    Err(self.mismatch(index, made, &format!("lists of lists, {dims:?}"), &expected))
                }
                _ => Ok(value),
            },
            None => {
                // All values are needed only now, for the names.
                let all = self.records.values(self.first + index, None)?;
                let message = format!("there is no feature `{key}`; it has {}", listed(all.keys(), MAX_LISTED));
                let help = nearest(key, all.keys().map(String::as_str))
                    .map_or("name another one with `key`".to_string(), |name| {
                        format!("name another one with `key`: `{name}`?")
                    });
                Err(DataError::new(DataErrorKind::Missing, self.place(index), message).help(help))
            }
        }
    }

    /// The error for a value that does not match its feature's use.
    fn mismatch(&self, index: u64, made: &Made, measured: &str, expected: &str) -> DataError {
        DataError::mismatch(self.place(index), &format!("feature `{}`", made.key()), measured, expected)
    }

    /// Passes a feature's bytes to `take`.
    fn array(
        &self,
        (index, draw): (u64, Option<Draw>),
        value: &Value,
        made: &Made,
        expected: DType,
        scratch: &mut Scratch,
        take: &mut dyn FnMut(Elements<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let Made { feature, spec, table } = made;
        let wrong = |measured: &str, expected: &str| self.mismatch(index, made, measured, expected);
        if dtype(made, value) != expected {
            return Err(wrong(&shown(value), &format!("{expected}, as in the first record")));
        }
        let n_elements = n_elements(&feature.dims).unwrap_or_default();
        let refused = |(value, expected): (i64, String)| wrong(&value.to_string(), &expected);
        match value {
            Value::Bytes(strings) => self.array_of_bytes((index, draw), value, strings, made, scratch, take),
            _ if table.is_some() => Err(wrong(&shown(value), "text")),
            Value::Ints(values) if spec.one_hot => {
                let &[value] = &values[..] else { return Err(wrong(&shown(value), "one whole number")) };
                take(Elements::F32s(&one_hot(value, spec.offset, n_elements).map_err(refused)?))
            }
            Value::Ints(values) if values.len() == n_elements => {
                take(Elements::Bytes(counted_from(values, spec.offset).map_err(refused)?.as_flattened()))
            }
            Value::Floats(values) if values.len() == n_elements => take(Elements::F32s(values)),
            Value::Ints(_) | Value::Floats(_) => {
                Err(wrong(&shown(value), &format!("{}: {:?}", counted(n_elements), feature.dims)))
            }
        }
    }

    /// An array from byte strings: words, raw numbers, or an image.
    fn array_of_bytes(
        &self,
        (index, draw): (u64, Option<Draw>),
        value: &Value,
        strings: &[Vec<u8>],
        made: &Made,
        scratch: &mut Scratch,
        take: &mut dyn FnMut(Elements<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let Made { feature, spec, table } = made;
        let wrong = |measured: &str, expected: &str| self.mismatch(index, made, measured, expected);
        if let Some(table) = table {
            let words = strings.iter().map(|string| str::from_utf8(string)).collect::<Result<Vec<&str>, _>>();
            let words = words.map_err(|_| wrong("bytes that are not UTF-8", "text"))?;
            return take(Elements::Bytes(&table.array(&words.join(" "), feature)));
        }
        let [bytes] = strings else { return Err(wrong(&shown(value), "one string of bytes")) };
        if spec.raw == Some(RawType::Tensor) {
            let tensor = Tensor::read(bytes).map_err(|error| wrong(&error, "a tensor that TensorFlow serialized"))?;
            return match tensor.has_dims(&feature.dims) {
                true => take(Elements::Bytes(&tensor.bytes)),
                false => Err(wrong(&format!("a tensor {tensor}"), &format!("dims {:?}", feature.dims))),
            };
        }
        if let Some(dtype) = spec.raw.and_then(|raw| raw.dtype(bytes)) {
            let n_bytes = n_elements(&feature.dims).unwrap_or_default() * dtype.n_bytes();
            if bytes.len() == n_bytes {
                return take(Elements::Bytes(bytes));
            }
            let expected = format!("{n_bytes}: {dtype} {:?}", feature.dims);
            return Err(wrong(&format!("{} bytes", bytes.len()), &expected));
        }
        if !spec.classes.is_empty() {
            let class = class_of(&spec.classes, bytes).map_err(|measured| {
                wrong(&measured, &format!("one of `classes`: {}", listed(&spec.classes, MAX_LISTED)))
            })?;
            let n_elements = n_elements(&feature.dims).unwrap_or_default();
            let refused = |(value, expected): (i64, String)| wrong(&value.to_string(), &expected);
            return match spec.one_hot {
                true => take(Elements::F32s(&one_hot(class, 0, n_elements).map_err(refused)?)),
                false => take(Elements::Bytes(&class.to_le_bytes())),
            };
        }
        if let Some(expected) = misfit(made, value) {
            return Err(wrong(&shown(value), &expected));
        }
        let rows = spec.rows(bytes, &feature.dims, draw, scratch, |row| take(Elements::F32s(row)));
        rows.map_err(|error| error.or_at(format!("{}: feature `{}`", self.place(index), made.key())))
    }
}

/// Whether elements that are in lists of these lengths are, one after the other, the elements of an array of `dims`: each
/// list is a part of the array.
fn is_arranged(lists: &[i64], dims: &[i64]) -> bool {
    let parts = |lengths: &[i64]| -> Vec<i64> {
        let part = |n: &mut i64, length: &i64| {
            *n = n.saturating_mul(*length);
            Some(*n)
        };
        lengths.iter().rev().scan(1, part).collect()
    };
    let (lists, dims) = (parts(lists), parts(dims));
    let is_within = |some: &[i64], all: &[i64]| some.iter().all(|part| *part == 1 || all.contains(part));
    is_within(&lists, &dims) || is_within(&dims, &lists) || lists.last() != dims.last()
}

/// A value for a message: `3 values of int64`.
fn shown(value: &Value) -> String {
    format!("{} of {}", counted(value.len()), value.kind())
}

/// The number of the class with this name; otherwise the text, as far as it is readable.
fn class_of(classes: &[String], text: &[u8]) -> Result<i64, String> {
    let Ok(text) = str::from_utf8(text) else { return Err("bytes that are not UTF-8".to_string()) };
    let class = classes.iter().position(|class| class == text.trim());
    class.map(|class| class as i64).ok_or_else(|| format!("`{}`", text.trim().chars().take(40).collect::<String>()))
}

/// A one-hot row; or the class that is out of range, and the expectation.
fn one_hot(value: i64, offset: i64, n_classes: usize) -> Result<Vec<f32>, (i64, String)> {
    let class = value.checked_add(offset).and_then(|class| usize::try_from(class).ok());
    let Some(class) = class.filter(|class| *class < n_classes) else {
        let (least, greatest) = (-offset, n_classes as i64 - 1 - offset);
        return Err((value, format!("a class from {least} to {greatest}")));
    };
    Ok((0..n_classes).map(|idx| f32::from(u8::from(idx == class))).collect())
}

/// Whole numbers with `offset` added; or the number that overflows, and the expectation.
fn counted_from(values: &[i64], offset: i64) -> Result<Vec<[u8; 8]>, (i64, String)> {
    let refused = |value| (value, format!("a number that {offset} can be added to"));
    let add = |&value: &i64| value.checked_add(offset).map(i64::to_le_bytes).ok_or_else(|| refused(value));
    values.iter().map(add).collect()
}

/// The expectation of the feature for an error, if values of this kind do not fit it.
fn misfit(made: &Made, value: &Value) -> Option<String> {
    let Made { feature, spec, table } = made;
    let what = match (is_whole(feature), &feature.dims[..]) {
        (true, []) => "a whole number".to_string(),
        (true, dims) => format!("whole numbers {dims:?}"),
        (false, []) => "a number".to_string(),
        (false, dims) => format!("numbers {dims:?}"),
    };
    match value {
        Value::Bytes(_) if spec.raw.is_some() || table.is_some() || !spec.classes.is_empty() => None,
        Value::Bytes(strings) if strings.first().is_some_and(|bytes| Tensor::dtype_of(bytes).is_some()) => {
            Some(format!("{what}: these are bytes of `tf.io.serialize_tensor`, so add `raw: tensor`"))
        }
        Value::Bytes(strings) if is_whole(feature) && strings.first().is_some_and(|bytes| is_name(bytes)) => {
            Some(format!("{what}: of text, name its classes with `classes: [NAME, …]`, of class 0 first"))
        }
        Value::Bytes(_) if !is_image(&feature.dims) => Some(format!(
            "{what}, for bytes are an encoded image unless `raw` says what they are: name another one with `key`, or add `raw`"
        )),
        Value::Floats(_) if is_whole(feature) && table.is_none() => Some(what),
        Value::Bytes(_) | Value::Ints(_) | Value::Floats(_) => None,
    }
}

/// Whether bytes can be a class name: a short line of text.
fn is_name(bytes: &[u8]) -> bool {
    let text = str::from_utf8(bytes).unwrap_or_default();
    (1..=100).contains(&text.len()) && !text.contains(char::is_control)
}

fn counted(n: usize) -> String {
    if n == 1 { "1 value".to_string() } else { format!("{n} values") }
}

/// The dtype that a value is converted to.
fn dtype(made: &Made, value: &Value) -> DType {
    let spec = &made.spec;
    match (value, spec.raw) {
        (Value::Bytes(_), None) if made.table.is_some() && is_whole(&made.feature) => DType::S64,
        (Value::Bytes(strings), Some(raw)) => strings.first().and_then(|bytes| raw.dtype(bytes)).unwrap_or(DType::F32),
        (Value::Bytes(_), None) if !spec.classes.is_empty() && !spec.one_hot => DType::S64,
        (Value::Ints(_), _) if !spec.one_hot => DType::S64,
        (Value::Bytes(_) | Value::Ints(_) | Value::Floats(_), _) => DType::F32,
    }
}

impl Source for Pipeline {
    fn n_examples(&self) -> u64 {
        self.n_examples
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.infos
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        let mut example = vec![Vec::new(); self.infos.len()];
        self.give(index, None, &mut |array, elements| {
            example[array].extend_from_slice(&elements.bytes());
            Ok(())
        })?;
        Ok(example.into_iter().map(Cow::Owned).collect())
    }

    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        if index >= self.n_examples {
            return Err(DataError::no_example(format!("example {index}"), self.n_examples));
        }
        let began = Instant::now();
        let values = self.values(index)?;
        let read = began.elapsed();
        let scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = scratch.unwrap_or_default();
        scratch.decoding = Duration::ZERO;
        let result = self.features.iter().zip(&self.infos).enumerate().try_for_each(|(array, (made, info))| {
            let value = self.value(&values, index, made)?;
            self.array((index, draw), value, made, info.dtype, &mut scratch, &mut |elements| take(array, elements))
        });
        let decode = scratch.decoding;
        let spent = Spent { read, decode, transform: began.elapsed().saturating_sub(read + decode) };
        if scratch.buffers.pixels.capacity() <= MAX_KEPT {
            self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        }
        result.map(|()| Some(spent))
    }

    /// Class names from `classes`, and from folders.
    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        let names = |made: &Made| match (&made.spec.classes[..], self.records.classes()) {
            ([], names) if !names.is_empty() && made.key() == LABELS && made.spec.offset == 0 => Some(names.to_vec()),
            ([], _) => None,
            (names, _) => Some(names.to_vec()),
        };
        self.features.iter().filter_map(|made| Some((made.feature.name.clone(), names(made)?))).collect()
    }

    fn place(&self, index: u64) -> String {
        self.records.place(self.first + index.min(self.n_examples - 1))
    }

    fn fingerprint(&self) -> Fingerprint {
        let hash = |(made, info): (&Made, &ArrayInfo)| {
            let mut spec = made.spec.clone();
            if let (Some(words), Some(table)) = (&mut spec.word_vectors, &made.table) {
                // The fingerprint covers the table's content, not its path.
                (words.table, words.vocabulary) = (table.fingerprint().into(), None);
            }
            let spec = serde_json::to_string(&spec).expect("a spec is numbers and names");
            let message = format!("{} {:?} {:08x} {spec}\n", info.dtype, info.dims, info.scale.to_bits());
            let mut hash = Sha256::new();
            hash.update(message);
            hash.update(self.records.fingerprint());
            hash.update(self.first.to_le_bytes());
            hash.update(self.n_examples.to_le_bytes());
            let hex: String = bf16scope_files::hex(hash.finalize());
            (info.name.clone(), hex)
        };
        Fingerprint { n_examples: self.n_examples, arrays: self.features.iter().zip(&self.infos).map(hash).collect() }
    }

    fn reading(&self) -> Reading {
        Reading { n_workers: self.n_workers, is_costly: true }
    }

    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Few(Vec<Values>);

    impl Records for Few {
        fn n_records(&self) -> u64 {
            self.0.len() as u64
        }

        fn values(&self, index: u64, _keys: Option<&[&str]>) -> Result<Values, DataError> {
            Ok(self.0[index as usize].clone())
        }

        fn place(&self, index: u64) -> String {
            format!("a, record {index}")
        }

        fn fingerprint(&self) -> &str {
            ""
        }
    }

    /// The array's dtype and bytes, or the reason why it cannot be read.
    fn made(feature: &Feature, spec: FeatureSpec, bytes: &[u8]) -> Result<(DType, Vec<u8>), String> {
        last(feature, spec, &[Value::Bytes(vec![bytes.to_vec()])])
    }

    /// The same of the last of these values, each of a record.
    fn last(feature: &Feature, spec: FeatureSpec, values: &[Value]) -> Result<(DType, Vec<u8>), String> {
        let records = Few(values.iter().map(|value| [(feature.name.clone(), value.clone())].into()).collect());
        let specs = [(feature.name.clone(), spec)].into();
        let message = |error: DataError| error.to_string();
        let pipeline = Pipeline::new(Arc::new(records), std::slice::from_ref(feature), &specs, Options::default())
            .map_err(message)?;
        let bytes = pipeline.read(values.len() as u64 - 1).map_err(message)?.remove(0).into_owned();
        Ok((pipeline.arrays()[0].dtype, bytes))
    }

    #[test]
    fn a_record_of_another_kind_or_number_is_told() {
        let x = Feature::compute("x", [3]);
        let one_hot = FeatureSpec { one_hot: true, ..FeatureSpec::default() };
        assert_eq!(
            last(&x, one_hot, &[Value::Ints(vec![1, 2])]).unwrap_err(),
            "a, record 0: feature `x` is 2 values of int64; expected one whole number"
        );
        let raw = FeatureSpec { raw: Some(RawType::U8), ..FeatureSpec::default() };
        assert_eq!(
            last(&x, raw, &[Value::Bytes(vec![vec![1, 2, 3], vec![4]])]).unwrap_err(),
            "a, record 0: feature `x` is 2 values of bytes; expected one string of bytes"
        );
        let label = Feature::exact("y", DType::S32, []).label();
        assert_eq!(
            last(&label, FeatureSpec::default(), &[Value::Ints(vec![1]), Value::Floats(vec![1.0])]).unwrap_err(),
            "a, record 1: feature `y` is 1 value of float; expected s64, as in the first record"
        );
    }

    #[test]
    fn a_tensor_that_tensorflow_serialized_says_what_it_is() {
        let spec = || FeatureSpec { raw: Some(RawType::Tensor), ..FeatureSpec::default() };
        let x = Feature::compute("x", [2, 2]);
        let content: Vec<u8> = [1.0f32, -2.0, 3.5, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let bytes = tensor::tests::serialized(1, &[2, 2], &content);
        assert_eq!(made(&x, spec(), &bytes), Ok((DType::F32, content.clone())));
        // Dims of 1 do not change the order of elements.
        assert_eq!(made(&Feature::compute("x", [2, 2, 1]), spec(), &bytes), Ok((DType::F32, content)));
        let labels = tensor::tests::serialized(9, &[], &7i64.to_le_bytes());
        let label = Feature::exact("y", DType::S32, []).label();
        assert_eq!(made(&label, spec(), &labels), Ok((DType::S64, 7i64.to_le_bytes().to_vec())));
        assert_eq!(
            made(&Feature::compute("x", [4]), spec(), &bytes).unwrap_err(),
            "a, record 0: feature `x` is a tensor f32[2,2]; expected dims [4]"
        );
        let error = made(&x, spec(), b"\xff\xd8\xff").unwrap_err();
        let (start, end) = ("a, record 0: feature `x` is ", "; expected a tensor that TensorFlow serialized");
        assert!(error.starts_with(start) && error.ends_with(end), "{error}");
        // Without the key, the message names the right one.
        assert_eq!(
            made(&x, FeatureSpec::default(), &bytes).unwrap_err(),
            "a, record 0: feature `x` is 1 value of bytes; expected numbers [2, 2]: these are bytes of `tf.io.serialize_tensor`, \
             so add `raw: tensor`"
        );
    }

    #[test]
    fn a_text_is_the_number_of_its_class() {
        let classes = || vec!["cat".to_string(), "dog".to_string(), "frog".to_string()];
        let spec = || FeatureSpec { classes: classes(), ..FeatureSpec::default() };
        let label = Feature::exact("y", DType::S32, []).label();
        assert_eq!(made(&label, spec(), b"frog\n"), Ok((DType::S64, 2i64.to_le_bytes().to_vec())));
        let row = Feature::compute("y", [3]);
        let one_hot: Vec<u8> = [0.0f32, 1.0, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(made(&row, FeatureSpec { one_hot: true, ..spec() }, b"dog"), Ok((DType::F32, one_hot)));
        assert_eq!(
            made(&label, spec(), b"horse").unwrap_err(),
            "a, record 0: feature `y` is `horse`; expected one of `classes`: `cat`, `dog`, `frog`"
        );
        assert!(made(&label, spec(), b"\xff").unwrap_err().contains("is bytes that are not UTF-8; expected one of"));
        assert_eq!(
            made(&label, FeatureSpec::default(), b"cat").unwrap_err(),
            "a, record 0: feature `y` is 1 value of bytes; expected a whole number: of text, name its classes with `classes: \
             [NAME, …]`, of class 0 first"
        );
        let fault = |spec: FeatureSpec, feature: &Feature| spec.fault(feature).map(|(keys, ..)| keys);
        assert_eq!(fault(spec(), &label), None);
        assert_eq!(fault(FeatureSpec { raw: Some(RawType::U8), ..spec() }, &label), Some(vec!["raw"]));
        assert_eq!(fault(FeatureSpec { offset: 1, ..spec() }, &label), Some(vec!["offset"]));
        assert_eq!(fault(spec(), &Feature::compute("y", [3])), Some(vec!["classes"]));
        let twice = FeatureSpec { classes: vec!["a".to_string(), "a".to_string()], ..FeatureSpec::default() };
        assert_eq!(fault(twice, &label), Some(vec!["classes"]));
    }

    #[test]
    fn lists_of_lists_are_parts_of_an_array() {
        let yes: [(&[i64], &[i64]); 6] = [
            (&[2, 3], &[2, 3]),
            (&[2, 3], &[6]),
            (&[1, 2, 3], &[2, 3, 1]),
            (&[4, 3], &[2, 2, 3]),
            (&[2, 2, 3], &[4, 3]),
            (&[1, 6], &[2, 3]),
        ];
        yes.iter().for_each(|(lists, dims)| assert!(is_arranged(lists, dims), "{lists:?} {dims:?}"));
        // Channels first, and lists of columns.
        let no: [(&[i64], &[i64]); 3] = [(&[3, 2], &[2, 3]), (&[3, 8, 8], &[8, 8, 3]), (&[3, 4], &[2, 2, 3])];
        no.iter().for_each(|(lists, dims)| assert!(!is_arranged(lists, dims), "{lists:?} {dims:?}"));
        // How many there are is told elsewhere.
        assert!(is_arranged(&[3, 2], &[5]));
        let values = Values::from([
            ("x".to_string(), Value::Floats(vec![0.0; 6])),
            (format!("x{DIMS}"), Value::Ints(vec![3, 2])),
        ]);
        let x = [Feature::compute("x", [2, 3])];
        let pipeline = Pipeline::new(Arc::new(Few(vec![values])), &x, &BTreeMap::new(), Options::default());
        assert_eq!(
            pipeline.err().unwrap().to_string(),
            "a, record 0: feature `x` is lists of lists, [3, 2]; expected lists as [2, 3], or one list"
        );
    }

    #[test]
    fn a_class_out_of_range_is_told_the_range_as_the_file_counts() {
        assert_eq!(one_hot(9, 1, 5), Err((9, "a class from -1 to 3".to_string())));
        assert_eq!(one_hot(-1, 1, 2).unwrap(), [1.0, 0.0]);
    }
}
