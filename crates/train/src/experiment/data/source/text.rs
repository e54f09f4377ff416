//! `text: FILES`: text that `tokens` turns into examples.

use crate::TrainError;
use crate::experiment::data::reading::{Family, Opened, Reading, SourceFiles};
use crate::experiment::data::settings::Patterns;
use crate::experiment::data::tokens;
use serde::Deserialize;

/// Files of text, by name or pattern.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Text(pub Patterns);

impl SourceFiles for Text {
    const FAMILY: Family = Family::Text;
    const TAKES: &'static [&'static str] = tokens::TAKES;

    fn open(&self, reading: &Reading<'_>) -> Result<Opened, TrainError> {
        tokens::open(reading, &self.0, false)
    }
}
