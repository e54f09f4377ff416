//! `mnist: DIRECTORY`: MNIST as it is published.

use crate::TrainError;
use crate::experiment::data::memory;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use bf16scope_data::mnist;
use serde::Deserialize;
use std::path::PathBuf;

/// The directory of the four files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Mnist(pub PathBuf);

impl SourceFiles for Mnist {
    const FAMILY: Family = Family::Sets;
    const TAKES: &'static [&'static str] = memory::TAKES;
    const SCALE: Option<f32> = Some(1.0 / 255.0);

    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        let (training, test) = reading.placed(mnist::read(reading.folder.join(&self.0)))?;
        Ok(Opened::Sets(training, test))
    }
}
