//! The `data` block of an experiment: the files that hold the examples, and their split into training, validation and
//! test examples.
//!
//! [`source`] opens the files of each source. How they become features depends on the family: arrays in `memory`,
//! records on the `disk`, `tokens` of text.

mod columns;
mod copies;
mod disk;
mod memory;
mod one_class;
mod parts;
mod reading;
mod settings;
pub mod source;
mod tables;
mod tokens;

pub use columns::{ClassNames, NameList};
pub use settings::{PartSize, Patterns, Scale, Stratify, Tolerance};
pub use source::DataSource;

use self::reading::{Family, Opened, Reading};
use self::source::SOURCES;
use crate::Data;
use crate::TrainError;
use crate::experiment::lines::with_line;
use bf16scope_data::npz::NpzReader;
use bf16scope_data::table::{Columns, Learnt};
use bf16scope_data::text::{self, TextExamples, Tokenizer};
use bf16scope_data::{Arrays, Augment, Augmented, DataError, FeatureSpec, Named, Pipeline, Source};
use bf16scope_files::Cache;
use bf16scope_hlo::{Array, ArrayShape, DType};
use bf16scope_model::document::{self, Node, Origin, Step, Value};
use bf16scope_model::task::Feature;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::Path;

/// The files that hold the examples, and the test examples among them: the last `n_test`, or those of `test`. Names,
/// dims and ranges are those of the task's features.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(remote = "Self", default)]
pub struct DataConfig {
    /// The source of the examples; without one, only `n_train` has an effect.
    #[serde(skip)]
    pub source: Option<DataSource>,
    /// For text: how it becomes examples.
    pub tokens: Option<text::Options>,
    /// For examples on disk (`tfrecord`, `webdataset`, `parquet`, `images`): how each feature is made of records, by
    /// name.
    pub features: BTreeMap<String, FeatureSpec>,
    /// For examples on disk and text: the number of threads that read. Default one for each core. It changes no result.
    pub workers: Option<u32>,
    /// For examples on disk and text: how examples that cannot be read are handled: `stop`, or `{skip: N}`. Default
    /// `stop`.
    pub on_error: Tolerance,
    /// For `csv`: the columns of each feature, by their names in the header.
    #[serde(deserialize_with = "columns::columns")]
    pub columns: Option<Columns>,
    /// For `csv` with `columns`: the delimiter. Default a comma.
    #[serde(deserialize_with = "columns::delimiter")]
    pub delimiter: Option<u8>,
    /// Random changes of training images. Default none.
    pub augment: Option<Augment>,
    /// Class names, from class 0 on. Default those of the files, if they have any.
    pub classes: Option<ClassNames>,
    /// Statistics and vocabularies of an earlier run, used instead of learning them again.
    #[serde(skip)]
    pub learnt: Option<Learnt>,
    /// For `npz` and text: the array of a feature, where its name differs.
    pub arrays: BTreeMap<String, String>,
    /// The factor of features that the network computes with: a number for all of them, or one by name.
    pub scale: Option<Scale>,
    /// The number of training examples: schedules by epoch use it where the files are not read. Where they are read, it
    /// must be right.
    #[serde(deserialize_with = "some_positive")]
    pub n_train: Option<u64>,
    /// The number of test examples: the last ones, unless they are shuffled or stratified.
    pub n_test: Option<PartSize>,
    /// Another source for the test examples.
    pub test: Option<DataSource>,
    /// The number of validation examples: those before the test examples. With them each epoch ends with an evaluation
    /// on these, and the test examples are evaluated once, when training is over.
    pub n_validation: Option<PartSize>,
    /// Another source for the validation examples.
    pub validation: Option<DataSource>,
    /// The seed of the shuffle before the examples are split. Default no shuffle.
    #[serde(deserialize_with = "settings::shuffle")]
    pub shuffle: Option<u64>,
    /// The label whose classes keep their shares in every part. Default none.
    pub stratify: Option<Stratify>,
    /// The cache for what is made of the files once. Not a key of the file: the reader sets it
    /// ([`Setup::cache`](bf16scope_pjrt::Setup)).
    #[serde(skip)]
    pub cache: Cache,
    /// The place of this block in its experiment.
    #[serde(skip)]
    pub origin: Origin,
}

/// The keys of `data` beside the sources.
const KEYS: [&str; 17] = [
    "augment",
    "columns",
    "delimiter",
    "classes",
    "tokens",
    "features",
    "workers",
    "on_error",
    "arrays",
    "scale",
    "n_train",
    "n_test",
    "test",
    "n_validation",
    "validation",
    "shuffle",
    "stratify",
];

/// The keys of `data`.
pub(super) fn keys() -> Vec<&'static str> {
    SOURCES.iter().map(|source| source.name).chain(KEYS).collect()
}

impl<'de> Deserialize<'de> for DataConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DataConfig, D::Error> {
        Node::read(deserializer, |node| {
            let (source, others) = DataSource::from_keys("data", node, &KEYS)?;
            // serde reads the keys beside the source.
            let config = DataConfig::deserialize(&node.replaced(Value::Map(others)))?;
            Ok(DataConfig { source, ..config })
        })
    }
}

fn some_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Some(document::positive(deserializer)? as u64))
}

/// The forms that `data` may have.
fn help() -> String {
    let forms = source::alternatives(SOURCES.iter().map(source::SourceKey::form));
    format!("`data` is {forms}, with `n_test: N` or `test: {{…}}`, and `scale`; docs/EXPERIMENTS.md lists them")
}

/// The examples of an experiment.
#[derive(Debug)]
pub struct Examples {
    /// The training examples.
    pub training: Box<dyn Source>,
    /// The test examples, for the final evaluation.
    pub test: Box<dyn Source>,
    /// The examples evaluated after each epoch, if they differ from the test examples.
    pub validation: Option<Box<dyn Source>>,
}

impl Examples {
    /// Borrows the training examples and those evaluated after each epoch.
    pub fn data(&self) -> Data<'_> {
        Data { training: &*self.training, test: self.validation.as_deref().unwrap_or(&*self.test) }
    }
}

/// Examples that can still be split.
enum Made {
    Arrays(Arrays),
    Records(Box<Pipeline>),
    Text(TextExamples),
}

impl Made {
    /// The training examples, and the last `n_test` as test examples.
    fn split_tail(self, n_test: u64) -> Result<(Made, Made), DataError> {
        Ok(match self {
            Made::Arrays(arrays) => both(arrays.split_tail(n_test)?, Made::Arrays),
            Made::Records(records) => both(records.split_tail(n_test)?, |records| Made::Records(Box::new(records))),
            Made::Text(text) => both(text.split_tail(n_test)?, Made::Text),
        })
    }

    fn as_source(&self) -> &dyn Source {
        match self {
            Made::Arrays(arrays) => arrays,
            Made::Records(records) => &**records,
            Made::Text(text) => text,
        }
    }

    fn source(self) -> Box<dyn Source> {
        match self {
            Made::Arrays(arrays) => Box::new(arrays),
            Made::Records(records) => records,
            Made::Text(text) => Box::new(text),
        }
    }
}

fn both<T, U>((training, test): (T, T), make: impl Fn(T) -> U) -> (U, U) {
    (make(training), make(test))
}

/// Makes examples of opened files.
enum Maker {
    /// The factor of each feature that has one.
    Memory(Vec<(String, f32)>),
    Disk,
    Text(Tokenizer),
}

impl Maker {
    /// The maker for a source, after checking that its options fit each other.
    fn for_source(reading: &Reading<'_>, source: &DataSource) -> Result<Maker, TrainError> {
        Ok(match source.source_key().family {
            Family::Memory | Family::Sets => Maker::Memory(memory::factors(reading)?),
            Family::Disk => {
                disk::check(reading)?;
                Maker::Disk
            }
            Family::Text => Maker::Text(tokens::checked(reading, source.key())?),
        })
    }

    fn make(&self, reading: &Reading<'_>, opened: Opened) -> Result<Made, TrainError> {
        Ok(match (self, opened) {
            (Maker::Memory(factors), Opened::Arrays { arrays, is_scaled }) => {
                let factors = if is_scaled { &[] } else { &factors[..] };
                Made::Arrays(memory::ready(arrays, reading.features, factors)?)
            }
            (Maker::Disk, Opened::Records(records)) => Made::Records(Box::new(disk::pipeline(reading, records)?)),
            (Maker::Text(tokenizer), Opened::Text { files, is_json }) => {
                let tokens = reading.data.tokens.as_ref().expect("a tokenizer was made of them");
                Made::Text(tokens::examples(reading, (files, is_json), tokens, tokenizer)?)
            }
            _ => unreachable!("a source opens what its family says"),
        })
    }

    /// Makes test examples with the same transforms as the training examples.
    fn make_beside(&self, reading: &Reading<'_>, training: &Made, opened: Opened) -> Result<Made, TrainError> {
        match (training, opened) {
            (Made::Records(training), Opened::Records(records)) => Ok(Made::Records(Box::new(training.over(records)?))),
            (_, opened) => self.make(reading, opened),
        }
    }
}

impl DataConfig {
    /// Reads the training and test examples of an experiment that was read from `path`, for a task with these features.
    ///
    /// # Errors
    /// Keys that contradict each other; an invalid file, with its place.
    pub fn read(&self, path: &Path, features: &[Feature]) -> Result<Examples, TrainError> {
        let _span = tracing::info_span!("data").entered();
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut reading = Reading { data: self, path, folder, features, keys: vec!["data"] };
        let source = self.checked(&reading)?;
        reading.keys.push(source.key());
        let maker = Maker::for_source(&reading, source)?;
        self.check_tests(&reading, source)?;
        let parts = self.parts(&reading, source, &maker)?;
        let warnings = [copies::warnings(&reading, source, &parts), one_class::warnings(&reading, source, &parts)];
        warnings.iter().flatten().for_each(|warning| tracing::warn!("{warning}"));
        let examples = self.named(&reading, parts)?;
        let n = examples.training.n_examples();
        match self.n_train.filter(|n_train| *n_train != n) {
            Some(n_train) => {
                let expected = format!("{n}, as many as there are, or no `n_train`");
                Err(reading.wrong(&["n_train"], &format!("`n_train: {n_train}`"), &expected))
            }
            None => Ok(examples),
        }
    }

    /// The source, after checking the keys beside it.
    fn checked(&self, reading: &Reading<'_>) -> Result<&DataSource, TrainError> {
        let wrong = |keys: &[&str], measured: &str, expected: &str| Err(reading.wrong(keys, measured, expected));
        let is_feature = |name: &&String| reading.features.iter().any(|feature| feature.name == **name);
        if let Some(other) = self.arrays.keys().find(|name| !is_feature(name)) {
            let expected = format!("a feature of the model: {}", reading.names());
            return wrong(&["arrays", other], &format!("`arrays` of {other}"), &expected);
        }
        let Some(source) = &self.source else {
            return wrong(&[], &format!("none of {}", source::names(|_| true)), "one of them");
        };
        let row = source.source_key();
        if let Some((key, _, why)) = self.options().iter().find(|(key, is_set, _)| *is_set && !row.takes(key)) {
            let takers = source::names(|source| source.takes(key));
            return wrong(&[key], &format!("`{key}` beside `{}`", row.name), &format!("it with {takers}: {why}"));
        }
        if self.n_test == Some(PartSize::Count(0)) {
            return wrong(&["n_test"], "`n_test: 0`", "at least 1: each epoch ends with an evaluation");
        }
        if self.n_validation == Some(PartSize::Count(0)) {
            return wrong(&["n_validation"], "`n_validation: 0`", "at least 1, or none said");
        }
        Ok(source)
    }

    /// Checks that `data` names the test examples.
    fn check_tests(&self, reading: &Reading<'_>, source: &DataSource) -> Result<(), TrainError> {
        let wrong = |keys: &[&str], measured: &str, expected: &str| Err(reading.wrong(keys, measured, expected));
        let row = source.source_key();
        match (self.n_test, &self.test) {
            (Some(_), Some(_)) => wrong(&["test"], "both `n_test` and `test`", "one of them"),
            (n_test, test) if row.family == Family::Sets && (n_test.is_some() || test.is_some()) => {
                let key = if test.is_some() { "test" } else { "n_test" };
                let (name, expected) = (row.name, "neither `n_test` nor `test`: it has a test set");
                wrong(&[key], &format!("`{name}` and what is for testing"), expected)
            }
            (None, None) if row.family != Family::Sets && self.n_validation.is_none() && self.validation.is_none() => {
                wrong(&[], "nothing for testing", &format!("`n_test: N`, or {}", row.tests()))
            }
            (None, Some(test)) if !row.may_be_tested_on(test.source_key()) => {
                wrong(&["test"], "`test` of another kind", &row.tests())
            }
            _ => self.check_cuts(reading, source),
        }
    }

    /// Checks the keys of validation, shuffling and classes against each other.
    fn check_cuts(&self, reading: &Reading<'_>, source: &DataSource) -> Result<(), TrainError> {
        let wrong = |keys: &[&str], measured: &str, expected: &str| Err(reading.wrong(keys, measured, expected));
        let row = source.source_key();
        if self.n_validation.is_some() && self.validation.is_some() {
            return wrong(&["validation"], "both `n_validation` and `validation`", "one of them");
        }
        if let Some(validation) = &self.validation
            && !row.may_be_tested_on(validation.source_key())
            && row.family != Family::Sets
        {
            return wrong(
                &["validation"],
                "`validation` of another kind",
                &row.tests().replace("test:", "validation:"),
            );
        }
        let is_cut = self.n_test.is_some() || self.n_validation.is_some();
        let of_order = [("shuffle", self.shuffle.is_some()), ("stratify", self.stratify.is_some())];
        for (key, _) in of_order.into_iter().filter(|(_, is_set)| *is_set) {
            if !is_cut {
                let measured = format!("`{key}` and no examples to keep");
                return wrong(&[key], &measured, "`n_test` or `n_validation` beside it: they say what is cut");
            }
            let is_single = self.tokens.as_ref().is_none_or(|tokens| tokens.max_length.is_some());
            if !is_single {
                let measured = format!("`{key}` of windows or packs of text, which follow each other");
                return wrong(&[key], &measured, "`max_length` of `tokens`, which makes each text an example");
            }
        }
        Ok(())
    }

    /// The keys that only some sources take: whether they are set, and why the others do not take them.
    fn options(&self) -> [(&'static str, bool, &'static str); 8] {
        let (as_they_are, no_names) =
            ("what other files hold is taken as it is", "other files have no names of arrays");
        [
            ("columns", self.columns.is_some(), "other files have no header"),
            ("delimiter", self.delimiter.is_some(), "other files have no cells"),
            ("tokens", self.tokens.is_some(), "other files hold no text"),
            ("arrays", !self.arrays.is_empty(), no_names),
            ("features", !self.features.is_empty(), as_they_are),
            ("workers", self.workers.is_some(), "other files are read into memory as they are"),
            ("on_error", self.on_error != Tolerance::Stop, "other files are read into memory as they are"),
            ("scale", self.scale.is_some(), "text becomes ids"),
        ]
    }

    /// Reads other examples by the same rules, for an experiment that was read from `path`: `file` is CSV, plain or
    /// gzip, or `.npz`, by its name, and holds these features. Where `data` is on disk, it may also be records of any
    /// kind, a folder of images or one image, and goes through the transforms of `data`; where it is in memory, images
    /// as bytes, multiplied by `scale`.
    ///
    /// # Errors
    /// A file of another kind, or an invalid one, with its place.
    pub fn read_other(&self, path: &Path, file: &Path, features: &[Feature]) -> Result<Box<dyn Source>, TrainError> {
        let _span = tracing::info_span!("data").entered();
        let name = file.to_string_lossy();
        let is_named = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        // Features that are drawn at random may be in the file too: by their names, or if nothing else is read.
        let names: Option<Vec<String>> = match is_named(&[".npz"]) && features.iter().any(|it| it.random.is_some()) {
            true => Some(NpzReader::open(file)?.names().map(str::to_string).collect()),
            false => None,
        };
        let is_drawn = features.iter().all(|feature| feature.random.is_some());
        let is_there = |feature: &&Feature| match &names {
            Some(names) => {
                feature.random.is_none() || is_drawn || names.iter().any(|name| name == self.array_of(feature))
            }
            None => feature.random.is_none() || is_drawn,
        };
        let features: &[Feature] = &features.iter().filter(is_there).cloned().collect::<Vec<_>>();
        let reading = Reading { data: self, path, folder: Path::new(""), features, keys: Vec::new() };
        if is_named(&[".csv", ".csv.gz", ".tsv", ".tsv.gz"]) && self.columns.is_some() {
            return self.other_table(&reading, file);
        }
        let opened = match &self.tokens {
            Some(tokens) if is_named(&[".txt", ".jsonl"]) => {
                return Ok(Box::new(tokens::other(&reading, file, tokens)?));
            }
            _ if is_named(&[".npz"]) => DataSource::Npz(source::Npz(file.to_path_buf())).open(&reading)?,
            _ if is_named(&[".csv", ".csv.gz"]) => DataSource::Csv(source::Csv(file.to_path_buf())).open(&reading)?,
            _ => return Ok(Box::new(disk::other(&reading, file)?)),
        };
        let opened = match opened {
            Opened::Arrays { arrays, is_scaled } if self.is_on_disk() => {
                Opened::Arrays { arrays: self.normalised(arrays, features)?, is_scaled }
            }
            opened => opened,
        };
        Ok(Maker::Memory(memory::factors(&reading)?).make(&reading, opened)?.source())
    }

    /// Turns arrays of bytes into the images that `features` normalise, as if the pixels had been decoded. Floats are
    /// taken as normalised.
    fn normalised(&self, arrays: Arrays, features: &[Feature]) -> Result<Arrays, TrainError> {
        let is_raw = |name: &str| arrays.arrays().iter().any(|info| info.name == name && info.dtype == DType::U8);
        let spec = |name: &str| self.features.get(name).filter(|spec| !(spec.mean.is_empty() && spec.std.is_empty()));
        if !features.iter().any(|feature| is_raw(&feature.name) && spec(&feature.name).is_some()) {
            return Ok(arrays);
        }
        let mut all = Vec::new();
        for info in arrays.arrays() {
            let array = arrays.array(&info.name)?;
            let array = match spec(&info.name).filter(|_| is_raw(&info.name)) {
                None => array,
                Some(spec) => {
                    let channels = info.dims.last().copied().unwrap_or(1).max(1) as usize;
                    let of_channel =
                        |numbers: &[f32], at: usize, default| numbers.get(at % channels).copied().unwrap_or(default);
                    let pixel = |(at, pixel): (usize, &u8)| {
                        (f32::from(*pixel) - of_channel(&spec.mean, at, 0.0)) / of_channel(&spec.std, at, 1.0)
                    };
                    let bytes = array.bytes.iter().enumerate().map(pixel).flat_map(f32::to_le_bytes).collect();
                    Array { shape: ArrayShape::new(DType::F32, array.shape.dims), bytes }
                }
            };
            all.push((info.name.clone(), array));
        }
        Ok(Arrays::from_arrays(all)?)
    }

    /// The examples with the class names that `classes` gives.
    fn named(&self, reading: &Reading<'_>, examples: Examples) -> Result<Examples, TrainError> {
        let mut classes = self.classes.as_ref().map(|classes| classes.read(reading)).transpose()?.unwrap_or_default();
        let label = reading.features.iter().find(|feature| feature.is_label && feature.n_values.is_some());
        if let (Some(tokens), Some(label)) = (&self.tokens, label)
            && !tokens.classes.is_empty()
        {
            classes.entry(label.name.clone()).or_insert_with(|| tokens.classes.clone());
        }
        let examples = match &self.augment {
            None => examples,
            Some(augment) => {
                if let Some((key, measured, expected)) = augment.fault() {
                    return Err(reading.wrong(&["augment", key], &format!("`{key}: {measured}`"), expected));
                }
                reading.warn_of_masks(augment);
                let augmented = Augmented::new(examples.training, reading.features, augment.clone());
                let training = augmented.map_err(|error| {
                    let way = ["data", "augment"].map(|key| Step::KeyItself(key.to_string()));
                    let way = vec![Step::Key("data".to_string()), way[1].clone()];
                    with_line(&self.origin, way, error.into())
                })?;
                Examples { training: Box::new(training), ..examples }
            }
        };
        if classes.is_empty() {
            return Ok(examples);
        }
        let named = |source| -> Box<dyn Source> { Box::new(Named { source, classes: classes.clone(), learnt: None }) };
        let Examples { training, test, validation } = examples;
        Ok(Examples { training: named(training), test: named(test), validation: validation.map(named) })
    }

    /// Whether the examples are on disk, where broken ones may be skipped.
    pub fn is_on_disk(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.source_key().family == Family::Disk)
    }

    /// The tokenizer of an experiment that was read from `path`; `None` where `data` has no `tokens`.
    ///
    /// # Errors
    /// A tokenizer file that cannot be read.
    pub fn tokenizer(&self, path: &Path) -> Result<Option<Tokenizer>, TrainError> {
        self.tokens.as_ref().map(|tokens| tokens::tokenizer(&self.origin, path, tokens)).transpose()
    }

    /// The array of a feature.
    fn array_of<'a>(&'a self, feature: &'a Feature) -> &'a str {
        self.arrays.get(&feature.name).unwrap_or(&feature.name)
    }

    /// The number of threads that read.
    fn n_workers(&self) -> usize {
        let n_cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        self.workers.unwrap_or_else(n_cores) as usize
    }
}

#[cfg(test)]
mod tests;
