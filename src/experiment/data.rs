//! The `data` block of an experiment: which files hold the examples, and which of them are for testing.

use super::lines::ReadFrom;
use super::records::{Patterns, Tolerance};
use crate::data::{Arrays, DataError, FeatureSpec, Source, csv, idx, mnist, npz, records, text};
use crate::document::{self, NodeError, Step};
use crate::task::{Feature, FeatureDType};
use crate::train::Data;
use crate::train::TrainError;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Which files hold the examples: one of `csv`, `npz`, `idx`, `mnist`, `tfrecord`,
/// `webdataset`, `parquet`, `images`, `text` and `jsonl`; and which of them are for testing: the last
/// `n_test`, or those of `test`. Names, dims and ranges are those of the task's features.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// One example a line: its features in the task's order, then its labels; plain or gzip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csv: Option<PathBuf>,
    /// Arrays by name, as `numpy.savez` writes them; the first dim is the example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub npz: Option<PathBuf>,
    /// A file of MNIST's format for each feature; plain or gzip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idx: Option<BTreeMap<String, PathBuf>>,
    /// The directory of MNIST's four files, with `images` (scaled by 1/255 unless said otherwise) and `labels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mnist: Option<PathBuf>,
    /// TFRecord files of `tf.train.Example`s, by name or pattern. They are read by number, and stay on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tfrecord: Option<Patterns>,
    /// WebDataset's tar files, by name or pattern: files of one name are an example, and their endings name what it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webdataset: Option<Patterns>,
    /// Parquet files, by name or pattern. They are unpacked into the cache once, and read there by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parquet: Option<Patterns>,
    /// A directory of images with a directory for each class: `images` and `labels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<PathBuf>,
    /// Files of text, by name or pattern; `tokens` says what becomes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Patterns>,
    /// Files of JSON lines, by name or pattern; `tokens` says what becomes of their text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jsonl: Option<Patterns>,
    /// Of `text` and `jsonl`: how text becomes examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<text::Options>,
    /// Of examples on disk (`tfrecord`, `webdataset`, `parquet`, `images`): what features are made of, and how, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, FeatureSpec>,
    /// Of examples on disk: how many threads read them. Default one for each core. It changes no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Of examples on disk: what is done about examples that cannot be read: `stop`, or `{skip: N}`. Default `stop`.
    #[serde(skip_serializing_if = "is_stop")]
    pub on_error: Tolerance,
    /// Of `npz`: the array of a feature, where it is not called like it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub arrays: BTreeMap<String, String>,
    /// What features that the network computes with are multiplied by: a number for all of them, or one by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// How many examples training has: what schedules by epoch count with where the files are not read. Where they are, it
    /// must be so.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub n_train: Option<u64>,
    /// How many examples at the end are for testing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_test: Option<u64>,
    /// The files of those that are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<TestConfig>,
    /// Where what is made of the files once is kept: not of the file, but of whoever reads it ([`Setup::cache_dir`](crate::pjrt::Setup)).
    #[serde(skip)]
    pub cache: Option<PathBuf>,
    /// The document that it stands in.
    #[serde(skip)]
    pub document: ReadFrom,
}

fn some_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Some(document::positive(deserializer)? as u64))
}

fn is_stop(on_error: &Tolerance) -> bool {
    *on_error == Tolerance::Stop
}

/// The files of the examples for testing, of the same format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TestConfig {
    /// As [`DataConfig::csv`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csv: Option<PathBuf>,
    /// As [`DataConfig::npz`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub npz: Option<PathBuf>,
    /// As [`DataConfig::idx`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idx: Option<BTreeMap<String, PathBuf>>,
    /// As [`DataConfig::tfrecord`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tfrecord: Option<Patterns>,
    /// As [`DataConfig::webdataset`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webdataset: Option<Patterns>,
    /// As [`DataConfig::parquet`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parquet: Option<Patterns>,
    /// As [`DataConfig::images`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<PathBuf>,
    /// As [`DataConfig::text`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Patterns>,
    /// As [`DataConfig::jsonl`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jsonl: Option<Patterns>,
}

/// What features are multiplied by.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Scale {
    /// All that the network computes with.
    All(f32),
    /// Those of these names.
    Of(BTreeMap<String, f32>),
}

/// Both kinds of number that YAML has.
#[derive(Clone, Copy, Deserialize)]
struct Factor(#[serde(deserialize_with = "factor")] f32);

fn factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(document::number(deserializer, is_factor, FACTOR)? as f32)
}

fn is_factor(value: f64) -> bool {
    (value as f32).is_normal()
}

const FACTOR: &str = "a number other than 0 that f32 can hold";

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scale, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Scale;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{FACTOR}, or one for each feature")
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Scale, E> {
                match is_factor(value) {
                    true => Ok(Scale::All(value as f32)),
                    false => Err(E::invalid_value(de::Unexpected::Float(value), &self)),
                }
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Scale, E> {
                match is_factor(value as f64) {
                    true => Ok(Scale::All(value as f32)),
                    false => Err(E::invalid_value(de::Unexpected::Unsigned(value), &self)),
                }
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Scale, E> {
                Ok(Scale::All(value as f32))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scale, A::Error> {
                let mut factors = BTreeMap::new();
                while let Some((name, Factor(value))) = map.next_entry::<String, Factor>()? {
                    factors.insert(name, value);
                }
                Ok(Scale::Of(factors))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The examples of an experiment.
#[derive(Debug)]
pub struct Examples {
    /// What is trained on.
    pub training: Box<dyn Source>,
    /// What is evaluated on.
    pub test: Box<dyn Source>,
}

impl Examples {
    /// The same, borrowed.
    pub fn data(&self) -> Data<'_> {
        Data { training: &*self.training, test: &*self.test }
    }
}

/// Where examples are.
enum Place<'a> {
    Csv(&'a Path),
    Npz(&'a Path),
    Idx(&'a BTreeMap<String, PathBuf>),
}

impl DataConfig {
    /// Reads the examples for training and for testing of an experiment that was read from `path`, for a task with these
    /// features.
    ///
    /// # Errors
    /// Keys that do not go together; a file that is not right: then with its place.
    pub fn read(&self, path: &Path, features: &[Feature]) -> Result<Examples, TrainError> {
        let _span = tracing::info_span!("data").entered();
        let wrong =
            |key: &str, measured: String, expected: &str| wrong_in(&self.document, path, &[key], &measured, expected);
        let folder = path.parent().unwrap_or(Path::new(""));
        let is_feature = |name: &&String| features.iter().any(|feature| feature.name == **name);
        if let Some(other) = self.arrays.keys().find(|name| !is_feature(name)) {
            let names: Vec<&str> = features.iter().map(|feature| feature.name.as_str()).collect();
            let expected = format!("a feature of the model: {}", names.join(", "));
            return Err(wrong_in(&self.document, path, &["arrays", other], &format!("`arrays` of {other}"), &expected));
        }
        if !self.arrays.is_empty() && self.npz.is_none() && !self.is_text() {
            return Err(wrong(
                "arrays",
                "`arrays` without `npz`".to_string(),
                "them with `npz`, `text` or `jsonl`: other files have no names of arrays",
            ));
        }
        if self.n_test == Some(0) {
            let expected = "at least 1: each epoch ends with an evaluation";
            return Err(wrong("n_test", "`n_test: 0`".to_string(), expected));
        }
        let has_all = |n: u64| match self.n_train.filter(|n_train| *n_train != n) {
            Some(n_train) => {
                let expected = format!("{n}, as many as there are, or no `n_train`");
                Err(wrong("n_train", format!("`n_train: {n_train}`"), &expected))
            }
            None => Ok(()),
        };
        if let Some(examples) = self.read_text(path, features)? {
            has_all(examples.training.n_examples())?;
            return Ok(examples);
        }
        if let Some(examples) = self.read_records(path, features)? {
            has_all(examples.training.n_examples())?;
            return Ok(examples);
        }
        let factors = self.factors(path, features)?;
        let places = places(self.csv.as_deref(), self.npz.as_deref(), self.idx.as_ref());
        let (training, test) = match (&places[..], &self.mnist) {
            ([], Some(directory)) => {
                let of_test = if self.test.is_some() { "test" } else { "n_test" };
                if self.n_test.is_some() || self.test.is_some() {
                    let expected = "neither `n_test` nor `test`: MNIST has a test set";
                    return Err(wrong(of_test, "`mnist` and what is for testing".to_string(), expected));
                }
                mnist::read(&folder.join(directory))?
            }
            ([place], None) => {
                let of_test = self.test.as_ref();
                let of_test = of_test.map(places_of);
                let training = self.arrays(folder, place, features)?;
                match (self.n_test, of_test.as_deref()) {
                    (Some(n_test), None) => training.split_tail(n_test)?,
                    (None, Some([test])) => (training, self.arrays(folder, test, features)?),
                    (None, Some(_)) => {
                        let expected = "`test: {csv: FILE}`, `{npz: FILE}` or `{idx: {NAME: FILE}}`";
                        return Err(wrong("test", "`test` without one file".to_string(), expected));
                    }
                    (None, None) => {
                        let expected = "`n_test: N`, or `test: {npz: FILE}`";
                        return Err(wrong("", "nothing for testing".to_string(), expected));
                    }
                    (Some(_), Some(_)) => {
                        return Err(wrong("test", "both `n_test` and `test`".to_string(), "one of them"));
                    }
                }
            }
            (found, mnist) => {
                let n = found.len() + usize::from(mnist.is_some());
                return Err(wrong(
                    "",
                    format!(
                        "{n} of `csv`, `npz`, `idx`, `mnist`, `tfrecord`, `webdataset`, `parquet`, `images`, `text` and `jsonl`"
                    ),
                    "one of them",
                ));
            }
        };
        has_all(training.n_examples())?;
        let ready = |arrays| self.ready(arrays, self.csv.is_some(), features, &factors);
        Ok(Examples { training: ready(training)?, test: ready(test)? })
    }

    /// Reads other examples by the same rules, of an experiment that was read from `path`: `file` is CSV, plain or gzip, or
    /// `.npz`, by its name, and holds these features. Where `data` is on disk it may be records of any kind, a folder of
    /// images or one image, made features as `data` says.
    ///
    /// # Errors
    /// A file of another kind, or one that is not right: then with its place.
    pub fn read_other(&self, path: &Path, file: &Path, features: &[Feature]) -> Result<Box<dyn Source>, TrainError> {
        let _span = tracing::info_span!("data").entered();
        let name = file.to_string_lossy();
        let is_csv = name.ends_with(".csv") || name.ends_with(".csv.gz");
        if let Some(tokens) = &self.tokens
            && [".txt", ".jsonl"].iter().any(|ending| name.ends_with(ending))
        {
            return self.other_text(path, file, features, tokens);
        }
        let place = match name.ends_with(".npz") {
            true => Place::Npz(file),
            false if is_csv => Place::Csv(file),
            false => return self.read_other_records(path, file, features),
        };
        let factors = self.factors(path, features)?;
        self.ready(self.arrays(Path::new(""), &place, features)?, is_csv, features, &factors)
    }

    /// The arrays as features want them, multiplied.
    fn ready(
        &self,
        arrays: Arrays,
        is_csv: bool,
        features: &[Feature],
        factors: &[(String, f32)],
    ) -> Result<Box<dyn Source>, TrainError> {
        let mut arrays = fit(arrays, features)?;
        // A CSV file is scaled by one factor as it is read.
        let is_scaled = is_csv && matches!(self.scale, Some(Scale::All(_)));
        for (name, factor) in factors.iter().filter(|_| !is_scaled) {
            arrays = arrays.scaled(name, *factor)?;
        }
        Ok(Box::new(arrays))
    }

    /// What each feature is multiplied by, where it is.
    pub(super) fn factors(&self, path: &Path, features: &[Feature]) -> Result<Vec<(String, f32)>, TrainError> {
        let computed = |feature: &&Feature| feature.dtype == FeatureDType::Compute && !feature.is_label;
        let names = || features.iter().filter(computed).map(|feature| feature.name.clone());
        match &self.scale {
            None if self.mnist.is_some() => Ok(names().map(|name| (name, 1.0 / 255.0)).collect()),
            None => Ok(Vec::new()),
            Some(Scale::All(factor)) => Ok(names().map(|name| (name, *factor)).collect()),
            Some(Scale::Of(factors)) => {
                if let Some(other) = factors.keys().find(|name| !names().any(|own| own == **name)) {
                    let (measured, known) = (format!("`scale` of {other}"), names().collect::<Vec<_>>().join(", "));
                    let expected = format!("a feature that the network computes with: {known}");
                    return Err(wrong_in(&self.document, path, &["scale", other], &measured, &expected));
                }
                Ok(factors.clone().into_iter().collect())
            }
        }
    }

    fn arrays<'a>(&'a self, folder: &Path, place: &Place<'a>, features: &'a [Feature]) -> Result<Arrays, TrainError> {
        let at = |file: &Path| records::at(folder, file, self.cache.as_deref());
        Ok(match place {
            Place::Csv(file) => {
                let scale = if let Some(Scale::All(factor)) = self.scale { factor } else { 1.0 };
                csv::read(&at(file)?, features, scale)?
            }
            Place::Npz(file) => {
                let array = |name: &'a String| (name.as_str(), self.arrays.get(name).unwrap_or(name).as_str());
                let arrays: Vec<(&str, &str)> = features.iter().map(|feature| array(&feature.name)).collect();
                npz::read(&at(file)?, &arrays)?
            }
            Place::Idx(files) => {
                let at = |(name, file): (&'a String, &PathBuf)| Ok((name.as_str(), at(file)?));
                let files = files.iter().map(at).collect::<Result<Vec<(&str, PathBuf)>, DataError>>()?;
                let files: Vec<(&str, &Path)> = files.iter().map(|(name, file)| (*name, file.as_path())).collect();
                idx::read(&files)?
            }
        })
    }
}

/// What is wrong under `data` in the experiment at `path`: at the last of `keys`, or where that is empty at `data` itself.
pub(super) fn wrong_in(document: &ReadFrom, path: &Path, keys: &[&str], measured: &str, expected: &str) -> TrainError {
    let mut steps: Vec<&str> = ["data"].iter().chain(keys).copied().filter(|key| !key.is_empty()).collect();
    let last = steps.pop().unwrap_or_default();
    let mut way: Vec<Step> = steps.into_iter().map(|key| Step::Key(key.to_string())).collect();
    way.push(Step::KeyItself(last.to_string()));
    let error = NodeError::new(way, format!("`data` has {measured}, expected {expected}"));
    if keys.iter().any(|key| !key.is_empty()) {
        return document.error(path, error);
    }
    let error = error.with_help(
        "`data` is {csv: FILE}, {npz: FILE}, {idx: {NAME: FILE}}, {mnist: DIRECTORY}, {tfrecord: FILES}, {webdataset: FILES}, \
         {parquet: FILES}, {images: DIRECTORY}, {text: FILES} or {jsonl: FILES}, with `n_test: N` or `test: {…}`, and `scale`; docs/EXPERIMENTS.md \
         lists them",
    );
    document.error(path, error)
}

fn places_of(test: &TestConfig) -> Vec<Place<'_>> {
    places(test.csv.as_deref(), test.npz.as_deref(), test.idx.as_ref())
}

fn places<'a>(
    csv: Option<&'a Path>,
    npz: Option<&'a Path>,
    idx: Option<&'a BTreeMap<String, PathBuf>>,
) -> Vec<Place<'a>> {
    [csv.map(Place::Csv), npz.map(Place::Npz), idx.map(Place::Idx)].into_iter().flatten().collect()
}

/// The arrays with the dims of features where only axes of size 1 differ, or where one of the two is flat: pictures that have
/// no axis of channels, or that the network reads as a row. All else is for the loader to refuse.
fn fit(mut arrays: Arrays, features: &[Feature]) -> Result<Arrays, TrainError> {
    let without_ones = |dims: &[i64]| dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<_>>();
    for feature in features {
        let Some(info) = arrays.arrays().iter().find(|info| info.name == feature.name) else { continue };
        let (found, wanted) = (without_ones(&info.dims), without_ones(&feature.dims));
        let is_flat = found.len() == 1 || wanted.len() == 1;
        let is_same = found == wanted || (is_flat && found.iter().product::<i64>() == wanted.iter().product::<i64>());
        if is_same && info.dims != feature.dims {
            arrays = arrays.reshaped(&feature.name, feature.dims.clone())?;
        }
    }
    Ok(arrays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use crate::hlo::DType;

    /// Whatever is wrong with `data` shows the line, in a file whose `data` begins on the second.
    #[test]
    fn keys_that_are_wrong_are_refused_with_their_place() {
        let features = [Feature::compute("x", [2]), Feature::compute("y", [2]).label()];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.yaml");
        let refused = |data: &str| {
            let text = format!("model: {{}}\ndata: {data}\n");
            let document = Document::parse(&path.display().to_string(), &text).unwrap();
            let config = DataConfig { document: document.into(), ..document::from_str("e.yaml", data).unwrap() };
            let error = config.read(&path, &features).unwrap_err().to_string();
            let error = error.strip_prefix(&path.display().to_string()).unwrap().to_string();
            assert!(error.contains("\n  2 | data: {"), "{error}");
            // Whose format is not known is told all of them.
            let lists_formats = error.contains("\n  help: `data` is {csv: FILE}, {npz");
            assert_eq!(lists_formats, error.contains(" of `csv`, `npz`, "), "{error}");
            let (place, message) = error.lines().next().unwrap().split_once(": ").unwrap();
            (place.to_string(), message.to_string())
        };
        for (data, key, expected) in [
            (
                "{npz: a.npz, n_test: 1, arrays: {z: x_train}}",
                "z:",
                "`data` has `arrays` of z, expected a feature of the model: x, y",
            ),
            // Nor are labels scaled with what the network reads.
            (
                "{npz: a.npz, n_test: 1, scale: {y: 0.5}}",
                "y:",
                "`data` has `scale` of y, expected a feature that the network computes with: x",
            ),
            (
                "{csv: a.csv, n_test: 1, arrays: {x: a}}",
                "arrays",
                "`data` has `arrays` without `npz`, expected them with `npz`, `text` or `jsonl`: other files have no names of arrays",
            ),
            (
                "{csv: a.csv, n_test: 0}",
                "n_test",
                "`data` has `n_test: 0`, expected at least 1: each epoch ends with an evaluation",
            ),
            (
                "{csv: a.csv, npz: b.npz, n_test: 1}",
                "data",
                "`data` has 2 of `csv`, `npz`, `idx`, `mnist`, `tfrecord`, `webdataset`, `parquet`, `images`, `text` and `jsonl`, expected one of them",
            ),
            (
                "{n_test: 1}",
                "data",
                "`data` has 0 of `csv`, `npz`, `idx`, `mnist`, `tfrecord`, `webdataset`, `parquet`, `images`, `text` and `jsonl`, expected one of them",
            ),
            (
                "{mnist: m, n_test: 1}",
                "n_test",
                "`data` has `mnist` and what is for testing, expected neither `n_test` nor `test`: MNIST has a test set",
            ),
        ] {
            let column = format!("data: {data}").rfind(key).unwrap() + 1;
            assert_eq!(refused(data), (format!(":2:{column}"), expected.to_string()), "{data}");
        }
        // Who has no document is told without a place.
        let config: DataConfig = document::from_str("e.yaml", "{n_test: 1}").unwrap();
        let error = config.read(Path::new("/nonexistent/e.yaml"), &features).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/e.yaml: `data` has 0 of"), "{error}");
        let config: DataConfig = document::from_str("e.yaml", "{npz: a.npz, n_test: 1, scale: 0.5}").unwrap();
        assert_eq!(config.factors(Path::new("e.yaml"), &features).unwrap(), [("x".to_string(), 0.5)]);
        assert_eq!(features[1].dtype_in(DType::BF16), DType::BF16);
    }
}
