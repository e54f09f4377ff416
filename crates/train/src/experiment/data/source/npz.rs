//! `npz: FILE`: arrays by name.

use crate::TrainError;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use bf16scope_data::npz;
use serde::Deserialize;
use std::path::PathBuf;

/// A file as `numpy.savez` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Npz(pub PathBuf);

impl SourceFiles for Npz {
    const FAMILY: Family = Family::Memory;
    const TAKES: &'static [&'static str] = &["scale", "arrays"];

    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        let features = reading.features.iter();
        let arrays: Vec<(&str, &str)> =
            features.map(|feature| (feature.name.as_str(), reading.data.array_of(feature))).collect();
        let arrays = npz::read_arrays(&reading.at(&self.0)?, &arrays);
        Ok(Opened::Arrays { arrays: reading.placed(arrays)?, is_scaled: false })
    }
}
