//! `parquet: FILES`: a row is an example.

use crate::TrainError;
use crate::experiment::data::disk;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use crate::experiment::data::settings::Patterns;
use bf16scope_data::records;
use serde::Deserialize;
use std::sync::Arc;

/// Parquet files, by name or pattern.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Parquet(pub Patterns);

impl SourceFiles for Parquet {
    const FAMILY: Family = Family::Disk;
    const TAKES: &'static [&'static str] = disk::TAKES;

    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        let records = records::Parquet::open_in(&reading.files(&self.0)?, &reading.data.cache);
        Ok(Opened::Records(Arc::new(reading.placed(records)?)))
    }
}
