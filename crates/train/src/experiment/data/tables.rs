//! Examples of a CSV file with a header. Training rows give the statistics and vocabularies that turn its columns into
//! numbers.

use super::reading::Reading;
use super::source::DataSource;
use super::{DataConfig, Examples, PartSize};
use crate::{TrainError, TrainErrorKind};
use bf16scope_data::selected::parts;
use bf16scope_data::table::{Columns, Learnt, Table, class_names};
use bf16scope_data::{DataError, Named, Source};
use bf16scope_model::task::Feature;
use std::path::Path;

impl DataConfig {
    fn table(&self, reading: &Reading<'_>, file: &Path) -> Result<Table, TrainError> {
        reading.placed(Table::read(file, self.delimiter.unwrap_or(b',')))
    }

    /// Reads a table, splits its rows, and learns from the training rows.
    pub(super) fn table_parts(
        &self,
        reading: &Reading<'_>,
        source: &DataSource,
        columns: &Columns,
    ) -> Result<Examples, TrainError> {
        if let Some(other) = columns.keys().find(|name| !reading.features.iter().any(|it| it.name == **name)) {
            let expected = format!("a feature of the model: {}", reading.names());
            return Err(reading.wrong(&["columns", other], &format!("`columns` of {other}"), &expected));
        }
        if self.scale.is_some() {
            return Err(reading.wrong(&["scale"], "`scale` beside `columns`", "`normalize: true` of a column"));
        }
        let opened = |source: &DataSource, keys: Vec<&'static str>| match source {
            DataSource::Csv(csv) => {
                let of_key = Reading { keys, ..reading.clone() };
                self.table(&of_key, &of_key.at(&csv.0)?)
            }
            other => {
                let measured = format!("`{}` beside `columns`", other.key());
                Err(reading.wrong(&[keys[1]], &measured, "`csv`, whose header names the columns"))
            }
        };
        let table = opened(source, vec!["data", "csv"])?;
        let named = |key: &'static str, named: &Option<DataSource>| {
            named.as_ref().map(|named| opened(named, vec!["data", key])).transpose()
        };
        let (test, validation) = (named("test", &self.test)?, named("validation", &self.validation)?);
        let n = table.n_rows();
        let size = |part: Option<PartSize>| part.map_or(0, |part| part.of_examples(n));
        let sizes = [size(self.n_validation), size(self.n_test)];
        let n_kept = sizes[0].saturating_add(sizes[1]);
        let is_said = [self.n_validation.is_some(), self.n_test.is_some()];
        if n_kept >= n || sizes.iter().zip(is_said).any(|(size, is_said)| is_said && *size == 0) {
            let measured = format!("{n_kept} examples to keep, of {n}");
            return Err(reading.wrong(&["n_test"], &measured, "fewer: one must be left to train on"));
        }
        let groups = match &self.stratify {
            None => None,
            Some(stratify) => {
                let label = self.label(reading, stratify)?;
                let column = columns.get(&label.name).and_then(|columns| columns.first());
                Some(table.groups(column.map_or(&label.name, |column| &column.name))?)
            }
        };
        let mut cut = parts(n, &[n - n_kept, sizes[0], sizes[1]], self.shuffle, groups.as_deref()).into_iter();
        let mut next = || cut.next().unwrap_or_default();
        let (training, of_validation, of_test) = (next(), next(), next());
        let learnt = match &self.learnt {
            Some(learnt) => learnt.clone(),
            None => self.placed_column(reading, table.learn(columns, reading.features, &training))?,
        };
        let make = |table: &Table, rows: &[u64]| self.source(reading, table, columns, &learnt, rows);
        let all = |table: &Table| make(table, &(0..table.n_rows()).collect::<Vec<_>>());
        let part = |rows: &[u64], beside: &Option<Table>, is_cut: bool| match (is_cut, beside) {
            (true, _) => make(&table, rows).map(Some),
            (false, Some(beside)) => all(beside).map(Some),
            (false, None) => Ok(None),
        };
        let validation = part(&of_validation, &validation, self.n_validation.is_some())?;
        let test = part(&of_test, &test, self.n_test.is_some())?;
        let training = make(&table, &training)?;
        Ok(super::parts::examples(training, validation, test))
    }

    /// Other rows, converted as those of the run were; only the `columns` of `features` are read.
    pub(super) fn other_table(&self, reading: &Reading<'_>, file: &Path) -> Result<Box<dyn Source>, TrainError> {
        let columns = self.columns.clone().unwrap_or_default();
        let table = self.table(reading, file)?;
        let learnt = match &self.learnt {
            Some(learnt) => learnt.clone(),
            // If nothing is learnt from rows, no checkpoint is needed.
            None => table.learn(&plain(&columns), &features_of(&plain(&columns), reading.features), &[])?,
        };
        self.source(reading, &table, &columns, &learnt, &(0..table.n_rows()).collect::<Vec<_>>())
    }

    fn source(
        &self,
        reading: &Reading<'_>,
        table: &Table,
        columns: &Columns,
        learnt: &Learnt,
        rows: &[u64],
    ) -> Result<Box<dyn Source>, TrainError> {
        let arrays = self.placed_column(reading, table.arrays(columns, reading.features, learnt, rows))?;
        let classes = class_names(columns, reading.features, learnt);
        let learnt = (!learnt.0.is_empty()).then(|| learnt.clone());
        Ok(Box::new(Named { source: Box::new(arrays), classes, learnt }))
    }

    /// Adds the advice to an error about a column that needs learnt values.
    fn placed_column<T>(&self, _: &Reading<'_>, result: Result<T, DataError>) -> Result<T, TrainError> {
        result.map_err(|error| {
            let text = error.to_string();
            let is_unlearnt = text.contains("which is learnt from the rows that are trained on");
            match is_unlearnt {
                true => TrainError::new(TrainErrorKind::Data, crate::TrainPlace::Nowhere, text)
                    .with_help("name the checkpoint of a run, which has what was learnt"),
                false => error.into(),
            }
        })
    }
}

/// The columns whose categories are all listed.
fn plain(columns: &Columns) -> Columns {
    use bf16scope_data::table::ColumnKind;
    let is_plain = |kind: &ColumnKind| matches!(kind, ColumnKind::Categories { names, .. } if !names.is_empty());
    let listed = columns.iter().map(|(feature, columns)| {
        (feature.clone(), columns.iter().filter(|column| is_plain(&column.kind)).cloned().collect::<Vec<_>>())
    });
    listed.filter(|(_, columns)| !columns.is_empty()).collect()
}

fn features_of(columns: &Columns, features: &[Feature]) -> Vec<Feature> {
    features.iter().filter(|feature| columns.contains_key(&feature.name)).cloned().collect()
}
