//! A source with additional metadata: class names, and the statistics learnt to build it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::learnt::Learnt;
use super::random::Draw;
use super::source::{ArrayInfo, ColumnSize, Fingerprint, Reading, Skipped, Source, Spent, Take};
use crate::error::DataError;

/// A source with class names, or with the statistics that encoded it.
#[derive(Debug)]
pub struct Named {
    /// The examples.
    pub source: Box<dyn Source>,
    /// Names of classes by array; they replace the source's own.
    pub classes: BTreeMap<String, Vec<String>>,
    /// The statistics and vocabularies learnt.
    pub learnt: Option<Learnt>,
}

impl Source for Named {
    fn n_examples(&self) -> u64 {
        self.source.n_examples()
    }

    fn arrays(&self) -> &[ArrayInfo] {
        self.source.arrays()
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        self.source.read(index)
    }

    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        self.source.give(index, draw, take)
    }

    fn place(&self, index: u64) -> String {
        self.source.place(index)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.source.fingerprint()
    }

    fn reading(&self) -> Reading {
        self.source.reading()
    }

    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        let mut classes = self.source.classes();
        classes.extend(self.classes.clone());
        classes
    }

    fn learnt(&self) -> Option<&Learnt> {
        self.learnt.as_ref().or_else(|| self.source.learnt())
    }

    fn columns(&self, array: &str) -> Option<Vec<ColumnSize>> {
        self.source.columns(array)
    }

    fn skipped(&self) -> Option<&Skipped> {
        self.source.skipped()
    }
}
