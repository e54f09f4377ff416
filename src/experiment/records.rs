//! The part of the `data` block that names examples on disk: TFRecord files, tars, Parquet files and folders of images, what
//! features are made of, and how they are read.

use super::data::{DataConfig, Examples, TestConfig, wrong_in};
use super::lines::ReadFrom;
use crate::data::DataError;
use crate::data::pipeline::Options;
use crate::data::records::{self, ImageFolder, Parquet, Pictures, Records, Tars, TfRecords, Value};
use crate::data::{Feature, Pipeline, Source};
use crate::document::{NodeError, Step};
use crate::train::TrainError;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// File names or patterns: one, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Patterns(pub Vec<String>);

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Patterns, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Patterns;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a file name or a pattern such as train-*, or a list of them")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Patterns, E> {
                Ok(Patterns(vec![value.to_string()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Patterns, A::Error> {
                let mut patterns = Vec::new();
                while let Some(pattern) = seq.next_element()? {
                    patterns.push(pattern);
                }
                match patterns.is_empty() {
                    true => Err(de::Error::invalid_length(0, &self)),
                    false => Ok(Patterns(patterns)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// What is done about an example that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// The run ends.
    #[default]
    Stop,
    /// It is left out, up to so many; then the run ends.
    Skip(u64),
}

impl Serialize for Tolerance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Tolerance::Stop => serializer.serialize_str("stop"),
            Tolerance::Skip(limit) => serializer.collect_map([("skip", limit)]),
        }
    }
}

impl<'de> Deserialize<'de> for Tolerance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tolerance, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Tolerance;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`stop`, or `{skip: N}`: how many examples may be left out, 1 at least")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Tolerance, E> {
                match value {
                    "stop" => Ok(Tolerance::Stop),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tolerance, A::Error> {
                let entry: Option<(String, u64)> = map.next_entry()?;
                let rest: Option<(String, u64)> = map.next_entry()?;
                match (entry, rest) {
                    (Some((key, limit)), None) if key == "skip" && limit > 0 => Ok(Tolerance::Skip(limit)),
                    _ => Err(de::Error::invalid_value(de::Unexpected::Map, &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Files of examples on disk, of one kind.
enum RecordFiles<'a> {
    TfRecord(&'a Patterns),
    WebDataset(&'a Patterns),
    Parquet(&'a Patterns),
    Images(&'a Path),
}

impl<'a> RecordFiles<'a> {
    /// Those that `data` names.
    fn of(data: &'a DataConfig) -> Vec<RecordFiles<'a>> {
        RecordFiles::named([&data.tfrecord, &data.webdataset, &data.parquet], data.images.as_deref())
    }

    /// Those that `test` names.
    fn of_test(test: &'a TestConfig) -> Vec<RecordFiles<'a>> {
        RecordFiles::named([&test.tfrecord, &test.webdataset, &test.parquet], test.images.as_deref())
    }

    fn named(
        [tfrecord, webdataset, parquet]: [&'a Option<Patterns>; 3],
        images: Option<&'a Path>,
    ) -> Vec<RecordFiles<'a>> {
        let all = [
            tfrecord.as_ref().map(RecordFiles::TfRecord),
            webdataset.as_ref().map(RecordFiles::WebDataset),
            parquet.as_ref().map(RecordFiles::Parquet),
            images.map(RecordFiles::Images),
        ];
        all.into_iter().flatten().collect()
    }

    /// What `data` calls them.
    fn key(&self) -> &'static str {
        match self {
            RecordFiles::TfRecord(_) => "tfrecord",
            RecordFiles::WebDataset(_) => "webdataset",
            RecordFiles::Parquet(_) => "parquet",
            RecordFiles::Images(_) => "images",
        }
    }

    /// What stands after the key.
    fn metavariable(&self) -> &'static str {
        if let RecordFiles::Images(_) = self { "DIRECTORY" } else { "FILES" }
    }

    /// Opens them; names are relative to `folder`.
    fn open(&self, folder: &Path, cache: Option<&Path>) -> Result<Arc<dyn Records>, DataError> {
        Ok(match self {
            RecordFiles::TfRecord(Patterns(patterns)) => {
                Arc::new(TfRecords::open(&records::files(folder, patterns)?, cache)?)
            }
            RecordFiles::WebDataset(Patterns(patterns)) => {
                Arc::new(Tars::open(&records::files(folder, patterns)?, cache)?)
            }
            RecordFiles::Parquet(Patterns(patterns)) => {
                Arc::new(Parquet::open(&records::files(folder, patterns)?, cache)?)
            }
            RecordFiles::Images(directory) => Arc::new(ImageFolder::open(&records::directory(folder, directory)?)?),
        })
    }
}

impl DataConfig {
    /// Whether the examples are on disk, where broken ones may be left out.
    pub fn is_on_disk(&self) -> bool {
        !RecordFiles::of(self).is_empty()
    }

    /// The examples where they are on disk; `None` where `data` names files that are read into memory.
    pub(super) fn read_records(&self, path: &Path, features: &[Feature]) -> Result<Option<Examples>, TrainError> {
        let wrong = |keys: &[&str], measured: &str, expected: &str| {
            Err(wrong_in(&self.document, path, keys, measured, expected))
        };
        let files = RecordFiles::of(self);
        let Some(own) = files.first() else {
            let set = [
                ("features", !self.features.is_empty()),
                ("workers", self.workers.is_some()),
                ("on_error", self.on_error != Tolerance::Stop),
            ];
            return match set.iter().find(|(_, is_set)| *is_set) {
                Some((key, _)) => {
                    let expected = "it with `tfrecord`, `webdataset`, `parquet` or `images`: other files are read into \
                                    memory as they are";
                    wrong(&[key], &format!("`{key}` without records"), expected)
                }
                None => Ok(None),
            };
        };
        let others = [
            ("csv", self.csv.is_some()),
            ("npz", self.npz.is_some()),
            ("idx", self.idx.is_some()),
            ("mnist", self.mnist.is_some()),
            ("arrays", !self.arrays.is_empty()),
        ];
        let other = files.get(1).map(RecordFiles::key);
        let other = other.or_else(|| others.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key));
        if let Some(key) = other {
            return wrong(&[key], &format!("`{key}` beside `{}`", own.key()), "one of them");
        }
        if self.workers == Some(0) {
            return wrong(&["workers"], "`workers: 0`", "1 at least, or none said: as many as there are cores");
        }
        self.check_features(path, features)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let pipeline = |files: &RecordFiles<'_>| {
            let records = files.open(folder, self.cache.as_deref())?;
            self.pipeline(path, records, features)
        };
        let (training, test) = match (self.n_test, &self.test) {
            (Some(n_test), None) => {
                let records = own.open(folder, self.cache.as_deref())?;
                if let RecordFiles::Images(_) = own {
                    warn_of_split(&self.document, path, &*records, n_test);
                }
                self.pipeline(path, records, features)?.split_tail(n_test)?
            }
            (None, Some(test)) => {
                let of_test = RecordFiles::of_test(test);
                let is_in_memory = test.csv.is_some() || test.npz.is_some() || test.idx.is_some();
                match &of_test[..] {
                    [of_test] if of_test.key() == own.key() && !is_in_memory => {
                        let training = pipeline(own)?;
                        let test = training.over(of_test.open(folder, self.cache.as_deref())?)?;
                        (training, test)
                    }
                    _ => {
                        let expected = format!("`test: {{{}: {}}}`", own.key(), own.metavariable());
                        return wrong(&["test"], "`test` of another kind", &expected);
                    }
                }
            }
            (None, None) => {
                let expected = format!("`n_test: N`, or `test: {{{}: {}}}`", own.key(), own.metavariable());
                return wrong(&[], "nothing for testing", &expected);
            }
            (Some(_), Some(_)) => return wrong(&["test"], "both `n_test` and `test`", "one of them"),
        };
        let boxed = |pipeline| -> Box<dyn Source> { Box::new(pipeline) };
        Ok(Some(Examples { training: boxed(training), test: boxed(test) }))
    }

    /// Other examples, made as those of `data` are: a TFRecord file, a tar, a Parquet file, a folder of images, or one image.
    pub(super) fn read_other_records(
        &self,
        path: &Path,
        file: &Path,
        features: &[Feature],
    ) -> Result<Box<dyn Source>, TrainError> {
        if !self.is_on_disk() {
            return Err(TrainError::OtherFile { path: file.to_path_buf() });
        }
        let mut config = self.clone();
        let is_picture = |feature: &Feature| matches!(feature.dims[..], [_, _, 1 | 3]) && !feature.is_label;
        let is_labelled = features.iter().any(|feature| feature.is_label);
        let has_folders =
            || std::fs::read_dir(file).is_ok_and(|found| found.flatten().any(|entry| entry.path().is_dir()));
        let are_pictures = Pictures::is_named_so(file) || (file.is_dir() && !is_labelled && !has_folders());
        let records: Arc<dyn Records> = if are_pictures {
            if !matches!(features, [one] if is_picture(one)) {
                let features =
                    features.iter().map(|feature| format!("`{}` {:?}", feature.name, feature.dims)).collect();
                return Err(TrainError::NotOneImage { path: file.to_path_buf(), features });
            }
            Arc::new(Pictures::open(file)?)
        } else {
            records::open(Path::new(""), &[file.to_string_lossy()], self.cache.as_deref())?
        };
        if file.is_dir() && !are_pictures {
            // Where `data` is of another kind, its names are not a folder's.
            for feature in features.iter().filter(|_| self.images.is_none()) {
                let spec = config.features.entry(feature.name.clone()).or_default();
                spec.key = is_picture(feature).then(|| "images".to_string());
                if feature.is_label {
                    (spec.key, spec.offset) = (Some("labels".to_string()), 0);
                }
            }
        }
        Ok(Box::new(config.pipeline(path, records, features)?))
    }

    /// The features of an experiment that was read from `path`, made of records as `data` says.
    pub(super) fn pipeline(
        &self,
        path: &Path,
        records: Arc<dyn Records>,
        features: &[Feature],
    ) -> Result<Pipeline, TrainError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut specs = self.features.clone();
        for words in specs.values_mut().filter_map(|spec| spec.word_vectors.as_mut()) {
            words.table = folder.join(&words.table);
            words.vocabulary = words.vocabulary.take().map(|vocabulary| folder.join(vocabulary));
        }
        let mut pipeline = Pipeline::new(records, features, &specs, self.options())?;
        for (name, factor) in &self.factors(path, features)? {
            pipeline = pipeline.scaled(name, *factor);
        }
        Ok(pipeline)
    }

    fn check_features(&self, path: &Path, features: &[Feature]) -> Result<(), TrainError> {
        for (name, spec) in &self.features {
            let Some(feature) = features.iter().find(|feature| feature.name == *name) else {
                let names: Vec<&str> = features.iter().map(|feature| feature.name.as_str()).collect();
                let expected = format!("a feature of the model: {}", names.join(", "));
                return Err(wrong_in(
                    &self.document,
                    path,
                    &["features", name],
                    &format!("`features` of {name}"),
                    &expected,
                ));
            };
            if let Some((keys, measured, expected)) = spec.fault(feature) {
                let keys: Vec<&str> = ["features", name.as_str()].into_iter().chain(keys).collect();
                return Err(wrong_in(&self.document, path, &keys, &format!("{measured} for `{name}`"), &expected));
            }
        }
        Ok(())
    }

    fn options(&self) -> Options {
        let n_cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let n_skipped_max = match self.on_error {
            Tolerance::Stop => 0,
            Tolerance::Skip(limit) => limit,
        };
        Options { n_workers: self.workers.unwrap_or_else(n_cores) as usize, n_skipped_max }
    }
}

/// Says that the last images of a folder, which come class after class, are no fair test.
fn warn_of_split(document: &ReadFrom, path: &Path, folder: &dyn Records, n_test: u64) {
    let (n, n_classes) = (folder.n_records(), folder.classes().len() as i64);
    let label = |index| match folder.values(index, Some(&["labels"])).ok()?.get("labels")? {
        Value::Ints(labels) => labels.first().copied(),
        _ => None,
    };
    let Some(first) = n.checked_sub(n_test).filter(|first| (1..n).contains(first)) else { return };
    let (Some(last_class), Some(first_class)) = (label(first - 1), label(first)) else { return };
    let (in_training, in_test) = (last_class + 1, n_classes - first_class);
    let way = vec![Step::Key("data".to_string()), Step::KeyItself("n_test".to_string())];
    let message = format!(
        "images come class after class: of {n_classes} classes, {in_test} are in the part for testing and {in_training} in \
         the rest"
    );
    if in_training < n_classes || in_test < n_classes {
        let help = "name a folder of images to test on: `test: {images: DIRECTORY}` instead of `n_test`";
        tracing::warn!("{}", document.error(path, NodeError::new(way, message).with_help(help)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{self, Document};
    use crate::hlo::DType;

    /// What is said of `data: TEXT`, with the place, in a file whose `data` stands on the second line.
    fn refused(data: &str) -> (String, String) {
        let features = [Feature::compute("images", [8, 8, 3]), Feature::exact("labels", DType::S32, []).label()];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.yaml");
        let text = format!("model: {{}}\ndata: {data}\n");
        let document = Document::parse(&path.display().to_string(), &text).unwrap();
        let config = DataConfig { document: document.into(), ..document::from_str("e.yaml", data).unwrap() };
        let error = config.read(&path, &features).unwrap_err().to_string();
        let error = error.replace(&format!("{}", folder.path().display()), "");
        let (place, message) = error.lines().next().unwrap().split_once(": ").unwrap();
        (place.to_string(), message.to_string())
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused_with_their_place() {
        for (data, key, expected) in [
            (
                "{csv: a.csv, n_test: 1, workers: 2}",
                "workers",
                "`data` has `workers` without records, expected it with `tfrecord`, `webdataset`, `parquet` or `images`: other \
                 files are read into memory as they are",
            ),
            (
                "{tfrecord: a*, csv: b.csv, n_test: 1}",
                "csv:",
                "`data` has `csv` beside `tfrecord`, expected one of them",
            ),
            (
                "{tfrecord: a*, images: b, n_test: 1}",
                "images",
                "`data` has `images` beside `tfrecord`, expected one of them",
            ),
            (
                "{webdataset: a*, csv: b.csv, n_test: 1}",
                "csv:",
                "`data` has `csv` beside `webdataset`, expected one of them",
            ),
            (
                "{parquet: a*, webdataset: b*, n_test: 1}",
                "parquet:",
                "`data` has `parquet` beside `webdataset`, expected one of them",
            ),
            (
                "{parquet: a*}",
                "data",
                "`data` has nothing for testing, expected `n_test: N`, or `test: {parquet: FILES}`",
            ),
            (
                "{tfrecord: a*, n_test: 1, workers: 0}",
                "workers",
                "`data` has `workers: 0`, expected 1 at least, or none said: as many as there are cores",
            ),
            (
                "{tfrecord: a*, features: {image: {}}}",
                "image:",
                "`data` has `features` of image, expected a feature of the model: images, labels",
            ),
            (
                "{tfrecord: a*, features: {labels: {resize: bicubic}}}",
                "resize",
                "`data` has `resize` for `labels`, expected it of an image, [height, width, 1 or 3]: `labels` has dims []",
            ),
            (
                "{tfrecord: a*, features: {images: {mean: [1.0]}}}",
                "mean",
                "`data` has `mean: [1.0]` for `images`, expected finite numbers, one for each of 3 channels",
            ),
            (
                "{tfrecord: a*, features: {images: {std: [1, 0, 1]}}}",
                "std",
                "`data` has `std: [1.0, 0.0, 1.0]` for `images`, expected numbers above 0, one for each of 3 channels",
            ),
            (
                "{tfrecord: a*, features: {images: {random_resized_crop: {area_range: [0, 1]}}}}",
                "area_range",
                "`data` has `area_range: [0.0, 1.0]` for `images`, expected two shares above 0 and up to 1, the lesser first",
            ),
            (
                "{tfrecord: a*, features: {labels: {dct_method: integer_fast}}}",
                "dct_method",
                "`data` has `dct_method` for `labels`, expected it of an image, [height, width, 1 or 3]: `labels` has dims []",
            ),
            (
                "{tfrecord: a*, features: {images: {random_flip: true, raw: u8}}}",
                "raw",
                "`data` has `raw` with `random_flip` for `images`, expected one of them: raw bytes are no encoded image",
            ),
            (
                "{tfrecord: a*, features: {images: {random_flip: true, offset: 1}}}",
                "offset",
                "`data` has `offset` with `random_flip` for `images`, expected one of them: an image is no whole number",
            ),
            (
                "{tfrecord: a*, features: {images: {half_pixel_centers: true}}}",
                "half_pixel_centers",
                "`data` has `half_pixel_centers` without `resize` for `images`, expected it with `resize: bicubic` or `resize: \
                 bilinear`",
            ),
            (
                "{tfrecord: a*, features: {labels: {one_hot: true}}}",
                "one_hot",
                "`data` has `one_hot` for `labels`, expected it of a row, one number for each class: `labels` has dims []",
            ),
        ] {
            let column = format!("data: {data}").rfind(key).unwrap() + 1;
            assert_eq!(refused(data), (format!("/e.yaml:2:{column}"), expected.to_string()), "{data}");
        }
    }

    #[test]
    fn files_and_errors_are_said_in_two_ways_each() {
        let config = |text: &str| document::from_str::<DataConfig>("e.yaml", text);
        assert_eq!(config("{tfrecord: a*}").unwrap().tfrecord, Some(Patterns(vec!["a*".to_string()])));
        let two = config("{tfrecord: [a, b*], on_error: {skip: 3}}").unwrap();
        assert_eq!(two.tfrecord, Some(Patterns(vec!["a".to_string(), "b*".to_string()])));
        assert_eq!((two.on_error, config("{on_error: stop}").unwrap().on_error), (Tolerance::Skip(3), Tolerance::Stop));
        // What is written is read.
        let text = serde_json::to_string(&two).unwrap();
        assert_eq!(serde_json::from_str::<DataConfig>(&text).unwrap(), two);
        for (text, expected) in [
            ("{tfrecord: []}", "a file name or a pattern such as train-*, or a list of them"),
            ("{on_error: skip}", "`stop`, or `{skip: N}`: how many examples may be left out, 1 at least"),
            ("{on_error: {skip: 0}}", "`stop`, or `{skip: N}`"),
            ("{on_error: {stop: 1}}", "`stop`, or `{skip: N}`"),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
