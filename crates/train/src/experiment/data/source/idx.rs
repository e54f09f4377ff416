//! `idx: {FEATURE: FILE}`: a file of MNIST's format for each feature.

use crate::TrainError;
use crate::experiment::data::memory;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use bf16scope_data::{DataPlace, idx};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file of each feature.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Idx(pub BTreeMap<String, PathBuf>);

impl SourceFiles for Idx {
    const FAMILY: Family = Family::Memory;
    const TAKES: &'static [&'static str] = memory::TAKES;

    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        let at = |(name, file): (&'_ String, &PathBuf)| Ok((name.clone(), reading.at(file)?));
        let files = self.0.iter().map(at).collect::<Result<Vec<(String, PathBuf)>, TrainError>>()?;
        let named: Vec<(&str, &Path)> = files.iter().map(|(name, file)| (name.as_str(), file.as_path())).collect();
        let arrays = idx::read_arrays(&named);
        let place = arrays.as_ref().err().map(|error| error.place().clone());
        let key =
            named.iter().find(|(_, file)| place == Some(DataPlace::File(file.to_path_buf()))).map(|(name, _)| *name);
        Ok(Opened::Arrays { arrays: reading.placed_below(key, arrays)?, is_scaled: false })
    }
}
