//! Examples that stay on disk, and the pipeline that makes features of their records.

use super::memory;
use super::reading::Reading;
use crate::{TrainError, TrainErrorKind};
use bf16scope_data::pipeline::Options;
use bf16scope_data::records::{self, Pictures, Records};
use bf16scope_data::{Feature, Pipeline};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// The numbers that `scale` may make of a white pixel, 255, if the scaled numbers are bytes.
const WHITE: RangeInclusive<f32> = 0.25..=2.1;

/// The keys that sources on the disk take.
pub(super) const TAKES: &[&str] = &["scale", "features", "workers", "on_error"];

/// Checks that the options fit each other and the features.
pub(super) fn check(reading: &Reading<'_>) -> Result<(), TrainError> {
    check_workers(reading)?;
    for (name, spec) in &reading.data.features {
        let Some(feature) = reading.features.iter().find(|feature| feature.name == *name) else {
            let expected = format!("a feature of the model: {}", reading.names());
            return Err(reading.wrong(&["features", name], &format!("`features` of {name}"), &expected));
        };
        if let Some((keys, measured, expected)) = spec.fault(feature) {
            let keys: Vec<&str> = ["features", name.as_str()].into_iter().chain(keys).collect();
            return Err(reading.wrong(&keys, &format!("{measured} for `{name}`"), &expected));
        }
    }
    Ok(())
}

/// Checks that there is at least one worker.
pub(super) fn check_workers(reading: &Reading<'_>) -> Result<(), TrainError> {
    match reading.data.workers {
        Some(0) => {
            let expected = "1 at least, or none said: as many as there are cores";
            Err(reading.wrong(&["workers"], "`workers: 0`", expected))
        }
        _ => Ok(()),
    }
}

/// The pipeline that makes features of records as `data` describes.
pub(super) fn pipeline(reading: &Reading<'_>, records: Arc<dyn Records>) -> Result<Pipeline, TrainError> {
    let folder = reading.path.parent().unwrap_or(Path::new(""));
    let mut specs = reading.data.features.clone();
    for words in specs.values_mut().filter_map(|spec| spec.word_vectors.as_mut()) {
        words.table = folder.join(&words.table);
        words.vocabulary = words.vocabulary.take().map(|vocabulary| folder.join(vocabulary));
    }
    let options = Options { n_workers: reading.data.n_workers(), n_skipped_max: reading.data.on_error.n_skipped_max() };
    let pipeline = Pipeline::new(records, reading.features, &specs, options)?;
    let factors = memory::factors(reading)?;
    Ok(factors.iter().fold(pipeline, |pipeline, (name, factor)| pipeline.scaled(name, *factor)))
}

/// Other examples, through the same pipeline as those of `data`: a TFRecord file, a tar, a Parquet file, a folder of
/// images, or one image. Where `data` is in memory, images alone, as bytes that `scale` multiplies.
pub(super) fn other(reading: &Reading<'_>, file: &Path) -> Result<Pipeline, TrainError> {
    let (data, features) = (reading.data, reading.features);
    let is_picture = |feature: &Feature| matches!(feature.dims[..], [_, _, 1 | 3]) && !feature.is_label;
    let is_labelled = features.iter().any(|feature| feature.is_label);
    let has_folders =
        || std::fs::read_dir(file).is_ok_and(|entries| entries.flatten().any(|entry| entry.path().is_dir()));
    let holds_pictures = Pictures::is_named_so(file) || (file.is_dir() && !is_labelled && !has_folders());
    if !data.is_on_disk() {
        let [one] = features else { return Err(other_kind(file)) };
        if !holds_pictures || !is_picture(one) {
            return Err(other_kind(file));
        }
        check_bytes(reading, one, file)?;
        return pipeline(reading, Arc::new(Pictures::open(file)?));
    }
    if holds_pictures {
        if !matches!(features, [one] if is_picture(one)) {
            let read: Vec<String> =
                features.iter().map(|feature| format!("`{}` {:?}", feature.name, feature.dims)).collect();
            let text = format!(
                "an image is not all that the model reads: {}; expected records or a folder that hold each feature",
                read.join(", ")
            );
            return Err(TrainError::of_file(TrainErrorKind::Data, file, text));
        }
        return pipeline(reading, Arc::new(Pictures::open(file)?));
    }
    let records = records::open_in(Path::new(""), &[file.to_string_lossy()], &data.cache)?;
    if !file.is_dir() || data.source.as_ref().is_some_and(|source| source.source_key().is_of_folders()) {
        return pipeline(reading, records);
    }
    // If the source of `data` is of another kind, its array names do not apply to folders.
    let mut data = data.clone();
    for feature in features {
        let spec = data.features.entry(feature.name.clone()).or_default();
        spec.key = is_picture(feature).then(|| "images".to_string());
        if feature.is_label {
            (spec.key, spec.offset) = (Some("labels".to_string()), 0);
        }
    }
    pipeline(&Reading { data: &data, ..reading.clone() }, records)
}

/// The error for a file that holds no examples of an experiment whose data are in memory.
fn other_kind(file: &Path) -> TrainError {
    let text = "a file of another kind, expected one whose name ends in .npz, .csv or .csv.gz, or with `tokens` under \
                `data` in .txt or .jsonl: `data` of this experiment does not say how features are made of records or \
                images";
    TrainError::of_file(TrainErrorKind::Data, file, text)
}

/// Checks that the numbers of a feature in memory are bytes, as pixels are: that `scale` makes about 1 of the largest.
fn check_bytes(reading: &Reading<'_>, feature: &Feature, file: &Path) -> Result<(), TrainError> {
    let name = &feature.name;
    let factor = memory::factors(reading)?.into_iter().find(|(scaled, _)| scaled == name).map(|(_, factor)| factor);
    let text = match factor {
        Some(factor) if WHITE.contains(&(255.0 * factor.abs())) => return Ok(()),
        Some(factor) => format!(
            "an image, and `scale` of `{name}` makes {} of a white pixel (255), expected about 1, as where examples are \
             bytes",
            255.0 * factor
        ),
        None => format!(
            "an image, and `data` of this experiment has no `scale` of `{name}`, which would say what a pixel (0 to 255) is \
             to the network"
        ),
    };
    let help = "give examples as `data` has them: arrays in an .npz file, or rows of a .csv";
    Err(TrainError::of_file(TrainErrorKind::Data, file, text).with_help(help))
}
