//! `csv: FILE`: one example a line.

use crate::TrainError;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use crate::experiment::data::settings::Scale;
use bf16scope_data::csv;
use serde::Deserialize;
use std::path::PathBuf;

/// A file of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Csv(pub PathBuf);

impl SourceFiles for Csv {
    const FAMILY: Family = Family::Memory;
    const TAKES: &'static [&'static str] = &["scale", "columns", "delimiter"];

    /// A factor for all features is applied while the file is read.
    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        let factor = if let Some(Scale::All(factor)) = reading.data.scale { Some(factor) } else { None };
        let arrays = csv::read_scaled(&reading.at(&self.0)?, reading.features, factor.unwrap_or(1.0));
        Ok(Opened::Arrays { arrays: reading.placed(arrays)?, is_scaled: factor.is_some() })
    }
}
