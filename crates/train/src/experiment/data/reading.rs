//! The interface of sources to their files: each source is a file in `source`, and a line of the table in
//! `source/mod.rs`.

use super::{DataConfig, Patterns};
use crate::TrainError;
use crate::experiment::lines::with_line;
use bf16scope_data::records::{self, Records};
use bf16scope_data::{Arrays, Augment, DataError, DataErrorKind};
use bf16scope_model::document::{NodeError, Step};
use bf16scope_model::task::Feature;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A source's files, as `data` names them.
pub(super) trait SourceFiles {
    /// The family of its examples, which decides the sources that test examples may have.
    const FAMILY: Family;

    /// The keys that may stand beside it, apart from those about testing and `n_train`.
    const TAKES: &'static [&'static str];

    /// The factor of its features unless `scale` is set.
    const SCALE: Option<f32> = None;

    /// Opens the files.
    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError>;
}

/// The families of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Arrays in memory. Test examples may be of any source of this family.
    Memory,
    /// Arrays in memory, with a test set in the same source.
    Sets,
    /// Records on disk. Test examples are of the same source.
    Disk,
    /// Ids of text. Test examples are of the same source.
    Text,
}

/// The content of an opened source.
pub(super) enum Opened {
    /// Arrays, and whether they are scaled.
    Arrays { arrays: Arrays, is_scaled: bool },
    /// Training examples and test examples.
    Sets(Arrays, Arrays),
    /// Records on disk.
    Records(Arc<dyn Records>),
    /// Files of text, or of JSON lines.
    Text { files: Vec<PathBuf>, is_json: bool },
}

/// The context of reading `data`: the block, the experiment, the task's features.
#[derive(Clone)]
pub(super) struct Reading<'a> {
    pub(super) data: &'a DataConfig,
    /// The experiment's file.
    pub(super) path: &'a Path,
    /// The folder that file names are relative to.
    pub(super) folder: &'a Path,
    pub(super) features: &'a [Feature],
    /// The keys that lead to the files; empty for files of a command line.
    pub(super) keys: Vec<&'a str>,
}

impl Reading<'_> {
    /// The local path of a file, or of a store's object in the cache.
    pub(super) fn at(&self, file: &Path) -> Result<PathBuf, TrainError> {
        self.placed(records::at(self.folder, file, &self.data.cache))
    }

    /// The files or objects of a store that match the patterns.
    pub(super) fn files(&self, Patterns(patterns): &Patterns) -> Result<Vec<PathBuf>, TrainError> {
        self.placed(records::files(self.folder, patterns))
    }

    /// Adds the line that names the files to an error about missing or unfetched files.
    pub(super) fn placed<T>(&self, result: Result<T, DataError>) -> Result<T, TrainError> {
        self.placed_below(None, result)
    }

    /// The same for the file that the key `key` below names.
    pub(super) fn placed_below<T>(&self, key: Option<&str>, result: Result<T, DataError>) -> Result<T, TrainError> {
        result.map_err(|error| match *error.kind() == DataErrorKind::Read && !self.keys.is_empty() {
            true => {
                let keys = self.keys.iter().copied().chain(key);
                let way = keys.map(|key| Step::Key(key.to_string())).collect();
                with_line(&self.data.origin, way, error.into())
            }
            false => error.into(),
        })
    }

    /// An error under `data`: at the last of `keys`, or at `data` itself without keys.
    pub(super) fn wrong(&self, keys: &[&str], measured: &str, expected: &str) -> TrainError {
        let mut way: Vec<Step> = ["data"].iter().chain(keys).map(|key| Step::Key(key.to_string())).collect();
        if let Some(Step::Key(last)) = way.pop() {
            way.push(Step::KeyItself(last));
        }
        let error = NodeError::new(way, format!("`data` has {measured}, expected {expected}"));
        match keys.is_empty() {
            true => self.data.origin.error(self.path, error.with_help(super::help())).into(),
            false => self.data.origin.error(self.path, error).into(),
        }
    }

    /// Warns of a label of the images' size that stays as it is while `augment` moves the images.
    pub(super) fn warn_of_masks(&self, augment: &Augment) {
        let Some(label) = augment.left_behind(self.features) else { return };
        let way = vec![Step::Key("data".to_string()), Step::KeyItself("augment".to_string())];
        let name = &label.name;
        let message = format!("images are moved, and the label `{name}` of their size, {:?}, is not", label.dims);
        let help = format!("if it says something of each pixel, write `masks: [{name}]` in `augment`");
        tracing::warn!("{}", self.data.origin.error(self.path, NodeError::new(way, message).with_help(help)));
    }

    /// The names of the features, for a message.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.features.iter().map(|feature| feature.name.as_str()).collect();
        names.join(", ")
    }
}
