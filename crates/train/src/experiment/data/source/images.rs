//! `images: DIRECTORY`: a directory of images for each class.

use crate::TrainError;
use crate::experiment::data::disk;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use bf16scope_data::records::{self, ImageFolder, Records, Value};
use bf16scope_model::document::{NodeError, Step};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// The directory of the directories.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Images(pub PathBuf);

impl SourceFiles for Images {
    const FAMILY: Family = Family::Disk;
    const TAKES: &'static [&'static str] = disk::TAKES;

    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        let directory = reading.placed(records::directory(reading.folder, &self.0))?;
        let folder = reading.placed(ImageFolder::open(&directory))?;
        let data = reading.data;
        if let (Some(n_test), None, None) = (data.n_test, data.shuffle, &data.stratify) {
            warn_of_split(reading, &folder, n_test.of_examples(folder.n_records()));
        }
        Ok(Opened::Records(Arc::new(folder)))
    }
}

/// Warns that the last images of a folder, which come class by class, are no fair test set.
fn warn_of_split(reading: &Reading<'_>, folder: &ImageFolder, n_test: u64) {
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
        let help = "write `stratify: true` beside `n_test`, or name a folder of images to test on: `test: {images: DIRECTORY}`";
        tracing::warn!("{}", reading.data.origin.error(reading.path, NodeError::new(way, message).with_help(help)));
    }
}
