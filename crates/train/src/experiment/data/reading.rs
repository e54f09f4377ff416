//! What opens the files that a source names: each source is a file beside this, and a line of the table in `source.rs`.

use super::{DataConfig, Patterns};
use crate::TrainError;
use crate::experiment::lines::with_line;
use bf16scope_data::records::{self, Records};
use bf16scope_data::{Arrays, DataError, DataErrorKind};
use bf16scope_model::document::{NodeError, Step};
use bf16scope_model::task::Feature;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of a source, as `data` names them.
pub(super) trait SourceFiles {
    /// What its examples become, and so what may name those for testing.
    const FAMILY: Family;

    /// The keys that may stand beside it, apart from those about testing and `n_train`.
    const TAKES: &'static [&'static str];

    /// What its features are multiplied by unless `scale` says otherwise.
    const SCALE: Option<f32> = None;

    /// Opens them.
    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError>;
}

/// What the examples of a source become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Arrays in memory. Those for testing may be of any source of this family.
    Memory,
    /// The same, with a test set of their own.
    Sets,
    /// Records on the disk. Those for testing are of the same source.
    Disk,
    /// Ids of text. Those for testing are of the same source.
    Text,
}

/// What a source gives.
pub(super) enum Opened {
    /// Arrays, and whether they are scaled.
    Arrays { arrays: Arrays, is_scaled: bool },
    /// Those for training, and those for testing.
    Sets(Arrays, Arrays),
    /// Records on the disk.
    Records(Arc<dyn Records>),
    /// Files of text, or of JSON lines.
    Text { files: Vec<PathBuf>, is_json: bool },
}

/// What is read, and for whom.
#[derive(Clone)]
pub(super) struct Reading<'a> {
    pub(super) data: &'a DataConfig,
    /// The experiment.
    pub(super) path: &'a Path,
    /// What names of files are relative to.
    pub(super) folder: &'a Path,
    pub(super) features: &'a [Feature],
    /// The keys that lead to the files; none to those of a command line.
    pub(super) keys: Vec<&'a str>,
}

impl Reading<'_> {
    /// A file, or an object of a store, as it is here.
    pub(super) fn at(&self, file: &Path) -> Result<PathBuf, TrainError> {
        self.placed(records::at(self.folder, file, &self.data.cache))
    }

    /// The files, or the objects of a store, that patterns name.
    pub(super) fn files(&self, Patterns(patterns): &Patterns) -> Result<Vec<PathBuf>, TrainError> {
        self.placed(records::files(self.folder, patterns))
    }

    /// What comes of files: an error that says nothing but that they are not there, or are not fetched, with the line that
    /// names them.
    pub(super) fn placed<T>(&self, found: Result<T, DataError>) -> Result<T, TrainError> {
        self.placed_below(None, found)
    }

    /// The same of the file that a key below names.
    pub(super) fn placed_below<T>(&self, key: Option<&str>, found: Result<T, DataError>) -> Result<T, TrainError> {
        found.map_err(|error| match *error.kind() == DataErrorKind::Read && !self.keys.is_empty() {
            true => {
                let keys = self.keys.iter().copied().chain(key);
                let way = keys.map(|key| Step::Key(key.to_string())).collect();
                with_line(&self.data.origin, way, error.into())
            }
            false => error.into(),
        })
    }

    /// What is wrong under `data`: at the last of `keys`, or where there are none at `data` itself.
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

    /// What features there are, for a message.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.features.iter().map(|feature| feature.name.as_str()).collect();
        names.join(", ")
    }
}
